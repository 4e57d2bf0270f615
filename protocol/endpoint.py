"""One Remoting connection, either side of it: requests out with time-outs, requests in, responses
both ways.

Users: clients, the listeners of brokers and nameservers, brokers as clients of nameservers. Both
sides may ask; bit 0 of a frame's flag says which table it belongs to: docs/internals/protocol.md.

Cost per request, in order of importance: no task and no future for a served request; the frame is
parsed where the socket wrote it; all that is given while one read is handled leaves in a few
writes, so that both sides work at once; time-outs of all open requests share one timer, armed for
the earliest deadline and moved only by an earlier one.

Buffers. The body of a *request* is a view into the receive buffer and dies when the handler
returns: a handler that keeps it copies it. The body of a *response* belongs to its receiver. It is
bytes, or, if a client gets a large one, a view of a buffer made for it, into which the socket
writes (ResponseBuffer; it costs memory only as it fills). A body given to `send` must not change
until it is sent. The receive buffer doubles only when it is full of a frame's own bytes, so a peer
that merely announces 16 MiB makes us reserve nothing; it shrinks back after a run of small reads.

Memory of a server. The receive buffer and the replies that a peer does not read are counted in the
connection's budget. While a peer does not read, its requests are neither read nor handled. A
request for which there is no memory is answered with SYSTEM_BUSY once its header is there, and the
rest of it is discarded.

Failure. A malformed frame closes this connection only. A handler's SaturnError becomes its response
code and text; any other exception is logged and becomes code 1. When the connection closes, every
open request fails at once with ConnectionLost. A one-way request is never answered, not even with
an error.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import cast

from saturnmq.runtime.door import Handle, Runtime, Transport, ends_of
from saturnmq.runtime.errors import (
    ConnectionLost,
    InvalidParameter,
    MalformedFrame,
    RequestTimeout,
    SaturnError,
)
from saturnmq.runtime.turns import Turns

from .budget import Budget
from .command_reading import read_answer
from .kernels import ResponseBuffer
from .remoting import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    MAX_FRAME,
    MAX_HEADER,
    PREFIX_BYTES,
    Body,
    Command,
    ReadFrame,
    encode_head,
    frame_size,
    parse_start,
)

log = logging.getLogger(__name__)

# Idle connections keep the first size; a connection that fills it in one read gets the second.
FIRST_BUFFER = 16 * 1024
RECEIVE_BUFFER = 256 * 1024
# A client gives a frame of this size a buffer of its own once its length is known. So little of it
# lies in the receive buffer by then, and that buffer does not grow.
LARGE_FRAME = 64 * 1024
# After this many reads without a large frame the buffer shrinks. A smaller number would make it
# grow and shrink all the time on mixed traffic.
SHRINK_AFTER_READS = 256
LINGER_S = 5.0  # time for the peer of a closed connection to read the rest
REST_S = 5.0  # after so long without traffic a connection returns its buffer
TIMER_GRAIN_S = 0.005
PIECES_AT_ONCE = 8  # heads and bodies in one of these writes
REQUESTS_AT_ONCE = 100  # of one connection in one turn of a server's loop, if it has time (Turns)
WORKS_MAX = 16  # long works for one connection; beyond it further requests wait

_DISCARDED = memoryview(bytearray(4096))  # takes bytes that still come over closed connections
Handler = Callable[["Endpoint", Command], None]
ResultCallback = Callable[[Command | SaturnError], None]


class Endpoint(asyncio.BufferedProtocol):
    """A connection. `server=True`: read no requests while the peer does not read our replies."""

    def __init__(
        self,
        runtime: Runtime,
        handler: Handler | None,
        on_close: Callable[["Endpoint"], None] | None = None,
        max_frame: int = MAX_FRAME,
        *,
        server: bool = False,
        turns: Turns | None = None,
        on_open: Callable[["Endpoint"], None] | None = None,
        budget: Budget | None = None,
        read_frame: ReadFrame = read_answer,
    ) -> None:
        self._runtime, self._read_frame = runtime, read_frame
        self._handler, self._on_open, self._on_close = handler, on_open, on_close
        self._max_frame = max_frame
        self.max_header = MAX_HEADER  # of a request that is sent; fuzzers send longer ones
        self._server = server
        self._turns = (turns or Turns(runtime)) if server else None
        self._usual_buffer = RECEIVE_BUFFER if server else LARGE_FRAME
        self.peer_address = self.local_address = ""
        self.closed = False
        self.close_reason: str | None = None
        self._halted = False  # no request is handled: closed, or the peer does not read
        self.last_received = runtime.monotonic()
        self._transport: Transport | None = None
        self._write: Callable[[list[Body]], None]  # set with the transport
        self.budget = Budget(sys.maxsize, "no limit") if budget is None else budget
        self._whole = self.budget.whole or self.budget
        self._view = _DISCARDED
        self._start = self._end = self._small_reads = 0
        self._skip = 0  # remaining bytes of a frame that was refused
        self._unfinished_since = 0.0  # when the incoming frame began; 0: there is none
        self._unread_since = 0.0  # when the peer stopped reading; 0: it reads
        self._unread = 0  # bytes that wait for the peer, as counted in the budget
        self._works = 0  # requests of the peer that are answered in steps
        self._large: memoryview | None = None  # a large frame that is coming in
        self._large_filled = self._opaque = 0
        self._open: dict[int, tuple[float, str, asyncio.Future[Command] | ResultCallback]] = {}
        self._timer: Handle | None = None
        self._timer_at = 0.0
        self._in_batch = False
        self._is_behind = False  # requests that were read wait for the next turn
        self._out: list[Body] = []
        self._out_size = 0

    # -- connection ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.use(transport)
        self.peer_address, self.local_address = ends_of(transport)
        if self.closed:  # before the transport was there
            cast(Transport, transport).abort()
            return
        self.budget.hold(FIRST_BUFFER)
        self._view = memoryview(bytearray(FIRST_BUFFER))
        self.last_received = self._unfinished_since = self._runtime.monotonic()
        if self._on_open is not None:
            self._on_open(self)

    def use(self, transport: asyncio.BaseTransport) -> None:
        """Send over this transport from now on."""
        self._transport = cast(Transport, transport)
        self._write = self._runtime.writer(self._transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.close_reason is None:
            self.close_reason = str(exc) if exc else "closed by the peer"
        self._halted = True
        self._shut()

    def close(self, reason: str = "closed on this side") -> None:
        """Send what is queued, then close. Open requests fail now."""
        if self.closed:
            return
        self.close_reason, self._halted = reason, True
        if self._transport is not None:
            self._write_out()
            self._transport.close()
            if self._server and self.unsent:  # nothing else counts these bytes any more
                self._runtime.call_later(LINGER_S, self._transport.abort)
        self._shut()

    def abort(self, reason: str = "aborted on this side") -> None:
        """Close without sending what is queued."""
        if self.closed:
            return
        self.close_reason, self._halted = reason, True
        if self._transport is not None:
            self._transport.abort()
        self._shut()

    def _shut(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._out, self._out_size = [], 0
        # Cut the cycle between this object and its transport at once; the collector would find it
        # late.
        self._view, self._start, self._end = _DISCARDED, 0, 0
        self.budget.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._open = self._open, {}
        for _, what, waiter in waiting.values():
            self._finish(waiter, self._lost(what))
        if self._on_close is not None:
            self._on_close(self)

    def _lost(self, what: str) -> ConnectionLost:
        peer, why = self.peer_address or "the peer", self.close_reason or "not connected yet"
        return ConnectionLost(f"connection to {peer} lost ({why}) before the answer to {what}")

    def refuse(self, why: SaturnError) -> None:
        """Answer the next request with `why`, and close."""

        def refuse(endpoint: Endpoint, command: Command) -> None:  # not `self`: a cycle
            endpoint.send(command.reply(why.code, str(why)), command)
            endpoint.close(str(why))

        self._handler = refuse

    @property
    def peer_host(self) -> str:
        return self.peer_address.rpartition(":")[0]

    @property
    def waiting(self) -> int:
        """Requests of ours that are not answered yet."""
        return len(self._open)

    @property
    def unsent(self) -> int:
        """Bytes given to the transport that the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        # Only a server may stop reading here: if both sides did, each could wait for the other.
        if self._turns is not None and not self.closed:
            self._unread_since = self._runtime.monotonic()
            self._count_unread()
            self._halt()

    def resume_writing(self) -> None:
        if self._turns is not None and not self.closed:
            self._unread_since = 0.0
            self._count_unread()
            self._go_on_if_free(self._turns)

    def begin_work(self) -> None:
        """A request is answered in steps, or by a thread. While `WORKS_MAX` are under way, no other
        request is handled: it would wait in line, with many others, and take memory."""
        self._works += 1
        if self._works >= WORKS_MAX and self._turns is not None and not self.closed:
            self._halt()

    def end_work(self) -> None:
        """The request is answered, or the answer is not wanted any more."""
        self._works -= 1
        if self._works == WORKS_MAX - 1 and self._turns is not None and not self.closed:
            self._go_on_if_free(self._turns)

    def _halt(self) -> None:
        self._halted = True
        self._read_on()

    def _go_on_if_free(self, turns: Turns) -> None:
        """Handle requests again, unless something else prevents it."""
        if self._unread_since or self._works >= WORKS_MAX:
            return
        self._halted = False
        self.excuse(self._runtime.monotonic())
        if self._start == self._end:
            self._start = self._end = 0
            self._read_on()
        elif not self._is_behind:
            self._put_off(turns)  # requests that were read before

    def _read_on(self) -> None:
        """Start or stop reading, as the state requires."""
        if self._transport is None or self.closed:
            return
        if self._halted or self._is_behind:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # -- use of memory and time ------------------------------------------------------------------

    def _count_unread(self) -> None:
        unread = self.unsent
        if unread != self._unread:
            self.budget.hold(unread - self._unread)
            self._unread = unread

    def unfinished_s(self, now: float) -> float:
        """Seconds for which the next frame has been on its way; 0 if there is none, if this side
        does not read, or if it is handling what came."""
        waits_for_us = self._halted or self._is_behind or self._in_batch
        since = self._unfinished_since
        return now - since if since and not waits_for_us else 0.0

    def unread_s(self, now: float) -> float:
        """Seconds for which the peer has taken nothing of its pending bytes."""
        return now - self._unread_since if self._unread_since else 0.0

    def held_up_s(self, now: float) -> float:
        """Seconds for which the connection has held memory that others may need."""
        large = len(self._view) > FIRST_BUFFER
        return self.unread_s(now) or (self.unfinished_s(now) if large else 0.0)

    def excuse(self, now: float) -> None:
        """Restart the times of the connection: this side could not read before."""
        self.last_received = now
        self._unfinished_since = self._unfinished_since and now
        self._unread_since = self._unread_since and now

    def rest(self, now: float) -> None:
        """Periodic care: count the bytes that wait for the peer, which reads if they get fewer, and
        release a large empty buffer."""
        if self._unread_since and self.unsent < self._unread:
            self._unread_since = now
        self._count_unread()
        idle = now - self.last_received > REST_S
        if idle and self._start == self._end and len(self._view) > FIRST_BUFFER:
            self._replace(FIRST_BUFFER)

    def give_way(self) -> None:
        """Release all memory beyond that of an idle connection."""
        if self._unread_since:
            self.abort(f"memory is short, and it does not read {self.unsent} bytes")
        elif self._end - self._start < FIRST_BUFFER:
            self._replace(FIRST_BUFFER)
        else:
            size = frame_size(self._view, self._start, self._end, self._max_frame)
            self._pass_over(size, self.budget.refusal(size, "a request that comes in slowly"))
            self._write_out()

    def _pass_over(self, size: int, why: SaturnError) -> None:
        """Answer the incoming frame of `size` bytes before it is complete, and discard it."""
        view = self._view[self._start : self._end]
        try:
            command = parse_start(view)
        except MalformedFrame as error:
            command, why = None, error
        if command is None or command.flag & FLAG_RESPONSE:
            self.abort(str(why))
            return
        self.send(command.reply(why.code, str(why)), command)
        self._skip = size - len(view)
        self._start = self._end = 0
        if len(self._view) > FIRST_BUFFER:
            self._replace(FIRST_BUFFER)

    # -- receiving -------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            self._start = self._end = 0
            return
        self.last_received = self._runtime.monotonic()
        large, is_full = self._large, False
        if large is not None:
            self._large_filled += nbytes
            if self._large_filled < len(large):
                return
            self._large = None
        else:
            self._end += nbytes
            is_full = self._end == len(self._view)
            if self._skip:
                passed = min(self._skip, self._end - self._start)
                self._skip -= passed
                self._start += passed
        self._take_frames(large)
        turns = self._turns if is_full and not self._halted and not self._is_behind else None
        if turns is not None and turns.is_over():  # the socket would be read again in this turn
            self._put_off(turns)

    def _take_frames(self, large: memoryview | None = None) -> None:
        """Handle the complete frames: a large one, and those in the buffer."""
        view, start, end = self._view, self._start, self._end
        self._in_batch = True
        needed = taken = 0
        begin, whole = start, self._whole
        busy = self.budget.overdrawn() if whole.used > whole.limit else None
        try:
            if large is not None:
                self._receive(self._read_frame(large), owned=True)
            while start < end and not self._halted:
                size = frame_size(view, start, end, self._max_frame)
                if size == 0 or start + size > end:
                    needed = size
                    break
                taken += 1
                turns = self._turns if taken > 1 else None
                if turns is not None and (taken > REQUESTS_AT_ONCE or turns.is_over()):
                    self._put_off(turns)
                    break
                command = self._read_frame(view[start : start + size])
                start += size
                if command.flag & FLAG_RESPONSE:
                    self._receive(command, owned=False)
                elif busy is None:
                    self._request(command)
                else:
                    self.send(command.reply(busy.code, str(busy)), command)
        except MalformedFrame as error:
            log.warning("malformed frame from %s: %s", self.peer_address, error)
            self.close(f"malformed frame: {error}")
        finally:
            self._start = start
            self._in_batch = False
        if self._out:
            self._write_out()
        if start == end and not self._skip:
            self._unfinished_since = 0.0
        elif start > begin or not self._unfinished_since:
            self._unfinished_since = self.last_received
        if self._halted:
            return
        if needed >= LARGE_FRAME and not self._server:
            self._large_filled = end - start
            self._large = memoryview(ResponseBuffer(needed))
            self._large[: self._large_filled] = view[start:end]
            self._start = self._end = 0
        else:
            self._make_room(needed)

    def _put_off(self, turns: Turns) -> None:
        """Handle the other requests in the buffer, and read on, in a later turn."""
        self._is_behind = True
        self._read_on()
        turns.wait(self._go_on)

    def _go_on(self) -> None:
        if not self.closed:
            self._is_behind = False
            self.last_received = self._runtime.monotonic()  # before that, this side did not read
            self._take_frames()
            if not self._is_behind:
                self._read_on()

    def _receive(self, command: Command, *, owned: bool) -> None:
        if not command.flag & FLAG_RESPONSE:
            self._request(command)
            return
        entry = self._open.pop(command.opaque, None)
        if entry is None:
            return  # late, or never asked: dropped silently, as RocketMQ does
        if not owned:
            command.body = bytes(command.body)
        self._finish(entry[2], command)

    def _make_room(self, needed: int) -> None:
        """Keep free space behind `_end`, and the unread bytes in front."""
        start, end, view = self._start, self._end, self._view
        rest = end - start
        capacity = len(view)
        usual = self._usual_buffer
        if end == capacity < usual and self.budget.has_spare(usual - capacity):
            self._replace(usual)
            return
        if needed <= usual < capacity:
            self._small_reads += 1
            if self._small_reads >= SHRINK_AFTER_READS and rest < usual:
                self._replace(usual)
                return
        elif needed > usual:
            self._small_reads = 0
        if rest == 0:
            self._start = self._end = 0
        elif rest == capacity:
            larger = min(capacity * 2, max(self._max_frame + 4, capacity + 1))
            if self.budget.has_room(larger - capacity):
                self._replace(larger)
            elif not self._skip:  # otherwise it has just given way itself
                why = self.budget.refusal(larger - capacity, f"a request of {needed} bytes")
                self._pass_over(needed, why)
                self._write_out()
        elif start and (end == capacity or start + needed > capacity):
            # The same memory on both sides: slice assignment between memoryviews moves correctly.
            view[:rest] = view[start:end]
            self._start, self._end = 0, rest

    def _replace(self, capacity: int) -> None:
        # A new buffer, never a resized one: a forgotten view would make a resize raise.
        self.budget.hold(capacity - len(self._view))
        fresh = memoryview(bytearray(capacity))
        rest = self._end - self._start
        fresh[:rest] = self._view[self._start : self._end]
        self._view = fresh
        self._start, self._end = 0, rest
        self._small_reads = 0

    def handle(self, command: Command) -> None:
        """Handle a request that the handler put off; it has its own body by now."""
        self._request(command)

    def _request(self, command: Command) -> None:
        try:
            if self._handler is None:
                self.send(command.reply(3, f" request type {command.code} not supported"), command)
            else:
                self._handler(self, command)
        except SaturnError as error:
            self.send(command.reply(error.code, str(error)), command)
        except Exception as error:
            log.exception("request %d from %s failed", command.code, self.peer_address)
            self.send(command.reply(1, f"{type(error).__name__}: {error}"), command)

    def _finish(
        self, waiter: "asyncio.Future[Command] | ResultCallback", result: Command | SaturnError
    ) -> None:
        if isinstance(waiter, asyncio.Future):
            if waiter.done():
                return
            if isinstance(result, SaturnError):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)
            return
        try:
            waiter(result)
        except Exception:
            log.exception("callback for an answer from %s failed", self.peer_address)

    # -- sending ---------------------------------------------------------------------------------

    def send(self, command: Command, request: Command | None = None) -> None:
        """Send a response; nothing if `request` was one-way or the connection is closed."""
        if request is not None and request.flag & FLAG_ONEWAY:
            return
        self._send(command)

    def oneway(self, command: Command) -> None:
        """Send a request that gets no answer; lost silently when the connection is closed."""
        command.flag |= FLAG_ONEWAY
        command.opaque = self._next_opaque()
        self._send(command)

    def request(self, command: Command, timeout_s: float) -> "asyncio.Future[Command]":
        """Send a request. The future gives the response, whatever its code; RequestTimeout; or
        ConnectionLost. Cancelling it forgets the request."""
        future = self._runtime.create_future()
        future.add_done_callback(self._forget)
        # An attribute of our own: it tells `_forget` which request has lost its caller.
        future._saturnmq_opaque = self._ask(command, timeout_s, future)  # type: ignore[attr-defined]
        return future

    def request_callback(
        self, command: Command, timeout_s: float, callback: ResultCallback
    ) -> None:
        """Send a request as `request` does, without a future: `callback` gets the response or the
        error, on the loop."""
        self._ask(command, timeout_s, callback)

    def _ask(
        self,
        command: Command,
        timeout_s: float,
        waiter: "asyncio.Future[Command] | ResultCallback",
    ) -> int:
        what = f"request {command.code}"
        if self.closed or self._transport is None:
            self._runtime.call_soon(self._finish, waiter, self._lost(what))
            return -1
        opaque = command.opaque = self._next_opaque()
        self._send(command)  # one that is too large is not waited for
        deadline = self._runtime.monotonic() + timeout_s
        self._open[opaque] = (deadline, what, waiter)
        if self._timer is None or deadline < self._timer_at - TIMER_GRAIN_S:
            self._arm(deadline)
        return opaque

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def _send(self, command: Command) -> None:
        if self.closed or self._transport is None:
            return
        body_size = command.body_size if command.more else len(command.body)
        head = encode_head(command, body_size)
        if len(head) - PREFIX_BYTES > self.max_header and not command.is_response:
            raise InvalidParameter(  # the peer would end the connection, with others' requests
                f"the fields of request {command.code} take {len(head) - PREFIX_BYTES} bytes, the "
                f"limit is {self.max_header}: shorten them"
            )
        size = len(head) + body_size
        if size - 4 > self._max_frame:
            raise MalformedFrame(
                f"frame of {size - 4} bytes for code {command.code}: the limit is "
                f"{self._max_frame}; send less at once"
            )
        self._out.append(head)
        if body_size:
            self._out.append(command.body)
            self._out.extend(command.more)
        self._out_size += size
        if not self._in_batch or len(self._out) >= PIECES_AT_ONCE or self._out_size > 1 << 20:
            self._write_out()

    def _write_out(self) -> None:
        out = self._out
        if not out:
            return
        self._out, self._out_size = [], 0
        self._write(out)
        if self._unread_since:
            self._count_unread()

    # -- time-outs -------------------------------------------------------------------------------

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(deadline - self._runtime.monotonic(), TIMER_GRAIN_S)
        self._timer = self._runtime.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._runtime.monotonic()
        late = [opaque for opaque, entry in self._open.items() if entry[0] <= now]
        for opaque in late:
            entry = self._open.pop(opaque, None)
            if entry is not None:
                error = RequestTimeout(f"no answer from {self.peer_address} to {entry[1]} in time")
                self._finish(entry[2], error)
        if self._open and not self.closed and self._timer is None:
            self._arm(min(entry[0] for entry in self._open.values()))

    def _forget(self, future: "asyncio.Future[Command]") -> None:
        if future.cancelled():
            self._open.pop(getattr(future, "_saturnmq_opaque", -1), None)
