"""The door to time, chance, tasks and network: everything that is not a pure function goes through
it.

Two implementations: `native.NativeRuntime` (asyncio or uvloop) and the simulator's, where one
seed decides every delay and every order of events. Logic that takes a `Runtime` never imports
time, random, socket or threading, so both run the same code.

Protocol objects are `asyncio.BufferedProtocol`s. A transport offers the part of
`asyncio.Transport` named in `Transport`; `write` and `writelines` may keep the buffers they are
given until they are sent, so the caller must not change those bytes afterwards.
"""

import asyncio
import errno
import random as _random
import ssl
from collections.abc import Callable, Coroutine, Iterable
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar

from .errors import ConfigError

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
LOCAL = "\0saturnmq/"  # and the address: the name of a Unix socket (local_sockets.py)


class Handle(Protocol):
    """A planned call."""

    def cancel(self) -> None: ...


class Transport(Protocol):
    """One byte stream, as the protocol object sees it."""

    def write(self, data: Buffer, /) -> None: ...

    def writelines(self, list_of_data: Iterable[Buffer], /) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...

    def get_write_buffer_size(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Listener(Protocol):
    """A listening socket. Closing it leaves the accepted connections open."""

    @property
    def address(self) -> str:
        """`ip:port`, with the real port where 0 was asked for."""
        ...

    def close(self) -> None: ...


class Alarm(Protocol):
    """A timer for fractions of a millisecond."""

    def set(self, seconds: float) -> None:
        """Ring once, so much later; only when it is not set."""
        ...

    def close(self) -> None:
        """Do not ring any more."""
        ...


class Workers(Protocol):
    """Threads that belong to one owner: a hanging call holds up only its owner."""

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Give a blocking call to one of the threads; await it on the loop for the result. All that
        goes wrong is in the result."""
        ...

    def close(self) -> None:
        """End the threads once their calls return; do not wait for them."""
        ...


class Runtime(Protocol):
    """Time, chance, tasks and network of one process."""

    random: _random.Random

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970. May jump; only for stamps that others read."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: for time-outs and measurements."""
        ...

    def processor_time(self) -> float:
        """Seconds of processor time that the calling thread has used."""
        ...

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> "asyncio.Task[T]":
        """Run a task. An exception that ends it goes to the process's fatal handler."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep; up to a millisecond less than `seconds`, as `call_later`."""
        ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle:
        """Call it after `delay` seconds. Loops count whole milliseconds, so that `monotonic` may
        be up to one short of it then: a condition on time has to hold for that, or to be looked
        at again."""
        ...

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Handle: ...

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        """A timer that is finer than `call_later`, and costs a file; for whoever sets it often."""
        ...

    def stay_awake(self, seconds: float) -> None:
        """More input is about to come: for so long the loop need not sleep. See `lookout.py`."""
        ...

    def create_future(self) -> "asyncio.Future[Any]": ...

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Run a blocking call (a flush, a file write) away from the loop."""
        ...

    def datasync(self, fd: int) -> "asyncio.Future[None] | None":
        """Begin `fdatasync` of a file without a thread; the future has an OSError if that fails.
        None where that is not possible: then a thread has to do it."""
        ...

    def writer(
        self, transport: Transport, *, copies: bool = False
    ) -> Callable[[list[Buffer]], None]:
        """The fastest way to write buffers, in order, to `transport`; nobody else may write. With
        `copies` a buffer may change once the call returns, otherwise only after it is sent."""
        ...

    def workers(self, threads: int, *, name: str) -> Workers:
        """At most `threads` threads for blocking calls that may take their time."""
        ...

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> Listener:
        """Accept connections; `factory` makes the protocol object of each."""
        ...

    async def listen_locally(
        self, address: str, factory: Callable[[], asyncio.BaseProtocol]
    ) -> Listener | None:
        """Accept connections from within the machine that are meant for `address`; None where that
        is not possible."""
        ...

    def own_address(self) -> str:
        """The IP address that this machine is reached at, as far as it can tell."""
        ...

    async def connect(
        self,
        host: str,
        port: int,
        protocol: asyncio.BaseProtocol,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Transport:
        """Open a connection for `protocol`; raises ConnectFailed when no peer answers in time."""
        ...


def ends_of(transport: Transport | asyncio.BaseTransport) -> tuple[str, str]:
    """The addresses of the peer and of this side, `ip:port`. A client that came over a Unix socket
    has the server's host, because it is on its machine, and port 0."""
    names = (transport.get_extra_info(name) for name in ("peername", "sockname"))
    peer, own = (_address(name) for name in names)
    if peer.startswith(LOCAL):
        return peer.removeprefix(LOCAL), _client_of(peer)
    if own.startswith(LOCAL):
        return _client_of(own), own.removeprefix(LOCAL)
    return peer, own


def _address(name: Any) -> str:
    if isinstance(name, tuple) and len(name) >= 2:
        return join_address(str(name[0]), int(name[1]))
    return name.decode() if isinstance(name, bytes) else str(name or "")


def _client_of(name: str) -> str:
    host, _, _ = name.removeprefix(LOCAL).rpartition(":")
    return f"{host}:0"


def is_short_of_descriptors(error: OSError) -> bool:
    """Such an error says nothing about a disk or a network and passes by itself: no sync ever fails
    so."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


MORE_DESCRIPTORS = "close connections, or allow more open files (ulimit -n, fs.file-max)"
"""The way out, for those who are told of such an error."""


def why_no_connection(error: Exception) -> str:
    """Text: what kept a connection from being opened."""
    if isinstance(error, OSError) and is_short_of_descriptors(error):
        return f"no descriptor is left for a socket; {MORE_DESCRIPTORS}"
    return str(getattr(error, "strerror", None) or error)


def split_address(address: str, least_port: int = 0) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as (host, port); ValueError when it is neither. Port 0, any free
    one, can be listened on and not be dialled: `least_port` 1 refuses it."""
    host, separator, port = address.rpartition(":")
    is_port = port.isdigit() and least_port <= int(port) <= 65535
    if not separator or not host or "/" in host or not is_port:
        raise ValueError(
            f"{address!r} is not an address: write host:port with a port {least_port}-65535"
        )
    return host.strip("[]"), int(port)


def split_addresses(addresses: str | Iterable[str]) -> list[str]:
    """The addresses of texts that name several, with `,` or RocketMQ's `;` between."""
    texts = [addresses] if isinstance(addresses, str) else addresses
    parts = [part.strip() for text in texts for part in text.replace(";", ",").split(",")]
    return [part for part in parts if part]


def server_addresses(given: str | Iterable[str], what: str = "nameservers") -> list[str]:
    """The addresses to dial that a caller names as `what`. ConfigError: there is none, or one is no
    address."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Iterable) or not all(isinstance(each, str) for each in texts):
        raise ConfigError(f"{what} wants HOST:PORT[,...] or a list of them, not {given!r:.80}")
    found = split_addresses(texts)
    for part in found:
        try:
            split_address(part, least_port=1)
        except ValueError:
            raise ConfigError(
                f"{what} wants HOST:PORT[,...] with ports from 1 to 65535, not {part!r}"
            ) from None
    if not found:
        raise ConfigError(f"{what} names no address: give HOST:PORT[,...]")
    return found


def join_address(host: str, port: int) -> str:
    """The text form of an address, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


EXPOSED = (
    "%s is not only for this machine, and clients are not authenticated: anyone who reaches it may "
    "read, write and delete everything; for trusted networks only (docs/security.md)"
)
"""The warning at the start of a server that listens beyond loopback."""


def is_loopback(address: str) -> bool:
    """Whether `host:port`, with an IP address, can be reached from this machine only."""
    host, _ = split_address(address)
    return ip_address(host).is_loopback
