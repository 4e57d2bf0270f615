"""The real runtime: asyncio (uvloop where installed), the system's clocks and sockets.

Only the entry points of processes use it; logic gets it as a `runtime.Runtime`. A spawned task that
dies with an exception is a bug that would otherwise stay silent until somebody waits for its work.
It is logged with its trace and `on_fatal` is called, by default to stop the loop, so that a broker
dies visibly instead of serving without its flush service.
"""

import asyncio
import errno
import logging
import os
import random
import resource
import signal
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from . import forks, local_sockets
from .alarm import FineAlarm
from .datasync import Datasync
from .door import (
    Buffer,
    Handle,
    Listener,
    Runtime,
    Transport,
    is_short_of_descriptors,
    join_address,
    split_address,
    why_no_connection,
)
from .errors import ConfigError, ConnectFailed
from .lookout import LoopLookout
from .workers import NativeWorkers

T = TypeVar("T")
log = logging.getLogger(__name__)

# RocketMQ's client gives a connection 3 s (docs/internals/protocol.md 1.7).
CONNECT_TIMEOUT_S = 3.0
# Flush, prepare ahead, config files: one slow disk call must not block the others.
BLOCKING_THREADS = 8
BACKLOG = local_sockets.BACKLOG  # connections that wait to be accepted
SPARE_DESCRIPTORS = 64  # segments made ahead, the checkpoint, tables, directories that are synced


class NativeListener:
    """An asyncio server with the address it got."""

    def __init__(self, server: asyncio.Server, address: str) -> None:
        self._server = server
        self.address = address

    def close(self) -> None:
        self._server.close()


def raise_descriptor_limit() -> None:
    """Raise the limit of open files as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard
    if hard == resource.RLIM_INFINITY:
        most = int(Path("/proc/sys/fs/nr_open").read_text())
    if soft != most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class SpareDescriptors:
    """The last descriptors are for files: connections must not keep the log from growing."""

    def __init__(self) -> None:
        self._lacking = False

    def is_there(self) -> bool:
        """Whether a connection may keep its descriptor."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most == resource.RLIM_INFINITY:
            return True
        limit = most - min(SPARE_DESCRIPTORS, most // 4)
        try:  # a new descriptor gets the lowest free number
            number = os.open(os.devnull, os.O_RDONLY)
        except OSError as error:
            if not is_short_of_descriptors(error):
                raise
            number = most
        else:
            os.close(number)
        if (number >= limit) != self._lacking:
            self._lacking = not self._lacking
            text = "refused: %d files and connections are open" if self._lacking else "taken again"
            log.warning(
                "connections are %s; the limit is %d, of which %d are kept for files (ulimit -n)",
                text % number if self._lacking else text,
                most,
                most - limit,
            )
        return not self._lacking


class _Refusing(asyncio.Protocol):
    """A connection for which there is no descriptor."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


class NativeRuntime:
    """Runtime over the running asyncio loop, or over `loop` when one is given."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.random = random.Random()
        self._given_loop = loop
        self._on_fatal = on_fatal
        # asyncio keeps only weak references to tasks; without this set a task may vanish half-way.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pool: ThreadPoolExecutor | None = None
        # By the protocol object, while that lives.
        self._sockets: WeakKeyDictionary[object, forks.Socket] = WeakKeyDictionary()
        self._forked = False
        self._lookout: LoopLookout | None = None
        self._datasync: Datasync | None = None
        self._spare = SpareDescriptors()
        forks.register(self)

    def forked(self) -> None:
        """Cut the connections in a child. Another process runs the loop."""
        for connection in list(self._sockets.values()):
            connection.cut()
        self._forked = self._given_loop is not None
        self._given_loop = self._pool = self._datasync = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._given_loop is None:
            if self._forked:
                raise forks.refusal()
            self._given_loop = asyncio.get_running_loop()
        return self._given_loop

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # every request asks several times: no frame for it

    processor_time = staticmethod(time.thread_time)

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        if self._forked:
            coro.close()
        task = self.loop.create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        log.critical("task %s died", task.get_name(), exc_info=error)
        if self._on_fatal is not None:
            self._on_fatal(error)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle:
        return self.loop.call_later(delay, self._in_time, callback, *args)

    def _in_time(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call it unless this is a child of the process that set the timer: a child that leaves
        `asyncio.run` runs the loop once more."""
        if not self._forked:
            callback(*args)

    def alarm(self, ring: Callable[[], None]) -> FineAlarm:
        return FineAlarm(self.loop, lambda: self._in_time(ring))

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Handle:
        return self.loop.call_soon(callback, *args)

    def stay_awake(self, seconds: float) -> None:
        if self._lookout is None:
            self._lookout = LoopLookout(time.monotonic, self.loop.call_soon)
        self._lookout.heard(seconds)

    def create_future(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(BLOCKING_THREADS, thread_name_prefix="saturnmq")
        return await self.loop.run_in_executor(self._pool, _in_thread, function, args)

    def datasync(self, fd: int) -> asyncio.Future[None] | None:
        if self._datasync is None:
            self._datasync = Datasync(self.loop)
        return self._datasync.begin(fd)

    def writer(
        self, transport: Transport, *, copies: bool = False
    ) -> Callable[[list[Buffer]], None]:
        """Straight into the socket while the transport has nothing queued: no turn of the loop in
        between, and the GIL is free while the kernel copies. The rest is queued."""
        sock = transport.get_extra_info("socket")
        if sock is None or transport.get_extra_info("sslcontext") is not None:
            if copies:
                return lambda buffers: transport.writelines([bytes(b) for b in buffers])
            return transport.writelines
        fd = sock.fileno()
        if sock.family == socket.AF_UNIX:  # here, as one that was accepted inherits no buffer
            local_sockets.widen(sock)

        def write(buffers: list[Buffer]) -> None:
            if transport.get_write_buffer_size() or transport.is_closing():
                transport.writelines([bytes(b) for b in buffers] if copies else buffers)
                return
            try:
                sent = os.writev(fd, buffers)
            except OSError:  # a full socket, or a dead one: the transport finds out which
                sent = 0
            for buffer in buffers:
                size = len(buffer)
                if sent >= size:
                    sent -= size
                else:
                    rest = memoryview(buffer)[sent:]
                    transport.write(bytes(rest) if copies else rest)
                    sent = 0

        return write

    def workers(self, threads: int, *, name: str) -> NativeWorkers:
        return NativeWorkers(self.loop, threads, name)

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> Listener:
        try:
            server: asyncio.Server | None
            accept = self._accepting(factory)
            server = await self.loop.create_server(accept, host, port, backlog=BACKLOG)
        except (socket.gaierror, UnicodeError) as error:
            raise ConfigError(f"cannot listen on {join_address(host, port)}: {error}") from error
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise ConfigError(
                    f"cannot listen on {join_address(host, port)}: {os.strerror(error.errno)}; "
                    "stop what holds it or choose another port (0 = any free port)"
                ) from error
            if not is_short_of_descriptors(error):
                raise
            server = None
        if server is None or not server.sockets:  # asyncio skips sockets that it cannot make
            raise ConfigError(
                f"cannot listen on {join_address(host, port)}: no descriptor is left for a socket; "
                "allow more open files (ulimit -n)"
            )
        name = server.sockets[0].getsockname()
        return NativeListener(server, join_address(name[0], name[1]))

    def _accepting(
        self, factory: Callable[[], asyncio.BaseProtocol]
    ) -> Callable[[], asyncio.BaseProtocol]:
        return lambda: factory() if self._spare.is_there() else _Refusing()

    async def listen_locally(
        self, address: str, factory: Callable[[], asyncio.BaseProtocol]
    ) -> Listener | None:
        sock = local_sockets.bind(*split_address(address))
        if sock is None:
            return None
        accept = self._accepting(factory)
        server = await self.loop.create_unix_server(accept, sock=sock, backlog=BACKLOG)
        return NativeListener(server, address)

    def own_address(self) -> str:
        # The source address of packets to elsewhere; connecting UDP sends none.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))
            except OSError:  # no way out: this machine only
                return "127.0.0.1"
            address: str = probe.getsockname()[0]
            return address

    async def connect(
        self,
        host: str,
        port: int,
        protocol: asyncio.BaseProtocol,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Transport:
        near = None if tls is not None else local_sockets.dial(host, port, bulk=True)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport: asyncio.BaseTransport
                if near is not None:
                    transport, _ = await self.loop.create_unix_connection(
                        lambda: protocol, sock=near
                    )
                else:
                    transport, _ = await self.loop.create_connection(
                        lambda: protocol, host, port, ssl=tls
                    )
        except TimeoutError:
            raise ConnectFailed(
                f"no connection to {join_address(host, port)} within {CONNECT_TIMEOUT_S:g} s"
            ) from None
        except (OSError, ValueError) as error:  # a text that is no host name cannot be encoded
            raise ConnectFailed(
                f"no connection to {join_address(host, port)}: {why_no_connection(error)}"
            ) from error
        sock = transport.get_extra_info("socket")
        if sock is not None:
            if near is None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[protocol] = forks.Socket(sock.fileno())
        return cast(Transport, transport)

    def close(self) -> None:
        """Let the blocking threads end; open connections belong to their owners."""
        if self._datasync is not None:
            self._datasync.close()
            self._datasync = None
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None


def _in_thread(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    try:
        return function(*args)
    except StopIteration as error:  # a future refuses it, and would never be done
        raise RuntimeError(f"{function!r} raised StopIteration") from error


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop loop where uvloop is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return cast(asyncio.AbstractEventLoop, uvloop.new_event_loop())


ENDS = (signal.SIGTERM, signal.SIGHUP)


def run(
    main: Callable[[NativeRuntime], Coroutine[Any, Any, T]],
    make: Callable[..., NativeRuntime] = NativeRuntime,
) -> T:
    """Run `main(runtime)` to its end; a dead background task ends it with that task's error.
    `make` is the runtime's class.

    A Python handler of SIGTERM or SIGHUP that was set before is called when `main` has been
    cancelled and has unwound: an exception that it raised in the middle of a callback would be
    lost.
    """
    handlers: dict[int, Any] = {}
    if current_thread() is main_thread():
        handlers = {n: handler for n in ENDS if callable(handler := signal.getsignal(n))}
    ended_by: list[int] = []

    async def guarded() -> T:
        fatal: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def on_fatal(error: BaseException) -> None:
            if not fatal.done():
                fatal.set_exception(error)

        runtime = make(on_fatal=on_fatal)
        work = asyncio.ensure_future(main(runtime))

        def end(number: int) -> None:
            if not ended_by:  # a shell sends SIGHUP once more: it must not cut the unwinding short
                work.cancel()
            ended_by.append(number)

        for number in handlers:
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        try:
            await asyncio.wait((work, fatal), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            work.cancel()
            await asyncio.wait((work,), timeout=5)
            return fatal.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait((work,), timeout=5)
            runtime.close()

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(guarded())
    except asyncio.CancelledError:
        if ended_by:
            handlers[ended_by[0]](ended_by[0], None)
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


_check: type[Runtime] = NativeRuntime  # the type checker compares both here
