"""One connection of HTTP/2 (RFC 9113), the server side: frames and flow control, on any transport.
Its calls are in `stream.py`, gRPC in `grpc_calls.py`, the socket and TLS in `socket_side.py`.

Bounds. A request that comes in takes memory of the connection's budget; without room for it its
call is refused. The window of the connection is given back as bytes come: the windows of its
streams and the budget bound them. The window of a stream is given back for messages that a handler
has read, and for a message that is not complete, which `message_max` bounds.

Answers that a client does not take wait in their calls, and count in the budget. A call with more
than WAITING_MAX unsent does not go on, and one of which nothing could be sent for too long is
ended (`late`). While the socket is full nothing is read, so a flood of frames that ask for an
answer (SETTINGS, PING) fills nothing. Streams that are opened and broken faster than calls end
close the connection, and so does a flood of SETTINGS, each of which changes all streams.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from itertools import takewhile

from saturnmq.gateway.opening import PREFACE
from saturnmq.protocol.budget import Budget
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SystemBusy
from saturnmq.runtime.turns import Turns

from . import frames
from .beginnings import Beginnings
from .frames import BadFrames, FrameKind, Setting, Why, frame
from .hpack import LIST_MAX, BadBlock, BadText, HeaderDecoder, ListTooLong
from .stream import OWN_WINDOW, Stream

log = logging.getLogger(__name__)

CONNECTION_WINDOW = 16 << 20
STREAMS_MAX = 10_000  # open at once
STREAM_BYTES = 3072  # of an open call, beside its headers and messages
HEADER_BYTES = 128  # of each header, beside the block that it came in
BLOCK_MAX = 2 * LIST_MAX  # bytes of one block of headers, as it comes
BROKEN_MAX = 1_000  # streams that were broken before they ended, beyond those that ended
SETTINGS_MAX = 20  # frames of SETTINGS in a second
FRAMES_AT_ONCE = 100  # of a read, in one turn of the loop, if it has time
CANCELLED_AT_ONCE = 20  # calls of a connection that is gone: a millisecond
PIECES_AT_ONCE = 24  # as of an Endpoint: three for each answer
TAKEN_BYTES = 16 << 10  # a stream that sent fewer is as slow as it was


class Http2Connection:
    """Bytes in by `received`, bytes out by `send`. `begin` is told of a call when its headers are
    there, and when all of its request is; `refuse` of one for which there is no room."""

    def __init__(
        self,
        runtime: Runtime,
        budget: Budget,
        send: Callable[[list[bytes]], None],
        begin: Callable[[Stream], None],
        refuse: Callable[[Stream, str], None],
        message_max: int,
        turns: Turns | None = None,
    ) -> None:
        """`message_max`: the bytes that a message of a request may have. With `turns` a read with
        many frames is handled in several of them (`is_behind`)."""
        self._runtime = runtime
        self.budget = budget
        self.message_max = min(message_max, budget.limit)
        self._send = send
        self._turns, self.beginnings = turns, Beginnings(turns)
        self.is_behind = False  # frames that came wait for the next `received`
        self._begin = begin
        self._refuse = refuse
        self.closed = False
        self.is_greeted = False  # the client's SETTINGS came
        self.streams: dict[int, Stream] = {}
        self._unfinished: dict[Stream, float] = {}  # a part of a request came, and when it began
        self._blocked: dict[Stream, None] = {}  # wait for the window of the connection
        self._stalled: dict[Stream, float] = {}  # the client takes nothing, and since when
        self._decoder = HeaderDecoder()
        self._buffer = b""
        self._is_begun = False  # the preface came
        self._window = frames.USUAL_WINDOW  # bytes that the client takes, of all streams
        self._their_window = frames.USUAL_WINDOW  # of a new stream
        self._unacked = 0  # received bytes that were not given back to the connection's window
        self._last = 0  # the newest stream
        self._block: bytearray | None = None  # of headers that go on in CONTINUATION
        self._block_of = (0, 0)  # stream and flags
        self._partial_since = 0.0  # a part of a frame, or of a block, came; 0: there is none
        self._broken = 0
        self._settings = (0, 0.0)  # how many frames came in this second, and its begin
        self._out: list[bytes] = []
        self._in_batch = self._flush_due = self._leaving = self._is_paused = False

    # reading

    def start(self) -> None:
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
            Setting.INITIAL_WINDOW_SIZE: OWN_WINDOW,
            Setting.MAX_HEADER_LIST_SIZE: LIST_MAX,
        }
        more = CONNECTION_WINDOW - frames.USUAL_WINDOW
        self._put(frames.settings(settings) + frames.window_update(0, more))

    def received(self, data: bytes) -> None:
        """BadFrames: the connection is to be closed, after what `goodbye` says."""
        buffer = self._buffer + data if self._buffer else data
        at = 0
        if not self._is_begun:
            if not PREFACE.startswith(buffer[: len(PREFACE)]):
                raise BadFrames(Why.PROTOCOL_ERROR, "it does not begin as HTTP/2 does")
            if len(buffer) < len(PREFACE):
                self._buffer = buffer
                return
            at, self._is_begun = len(PREFACE), True
        self._in_batch, self.is_behind = True, False
        taken = 0
        try:
            while len(buffer) - at >= frames.HEAD_BYTES:
                turns = self._turns if taken else None
                if turns is not None and (taken >= FRAMES_AT_ONCE or turns.is_over()):
                    self.is_behind = True
                    break
                high, low, kind, flags, number = frames.HEAD.unpack_from(buffer, at)
                size = high << 8 | low
                if size > frames.FRAME_MAX:
                    raise BadFrames(Why.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                end = at + frames.HEAD_BYTES + size
                if len(buffer) < end:
                    break
                payload = buffer[at + frames.HEAD_BYTES : end]
                at, taken = end, taken + 1
                self._frame(kind, flags, number & 0x7FFFFFFF, payload)
                if self.closed:
                    return
        finally:
            self._in_batch = False
            self._buffer = buffer[at:]
            self.flush()
        if self.is_behind:
            self._partial_since = 0.0  # the client is not what it waits for
        elif self._block is not None:
            self._partial_since = self._partial_since or self._runtime.monotonic()
        elif not self._buffer:
            self._partial_since = 0.0
        elif at or not self._partial_since:
            self._partial_since = self._runtime.monotonic()

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self.is_greeted and kind != FrameKind.SETTINGS:
            raise BadFrames(Why.PROTOCOL_ERROR, "the first frame has to be SETTINGS")
        if self._block is not None and kind != FrameKind.CONTINUATION:
            raise BadFrames(Why.PROTOCOL_ERROR, "a frame within a block of headers")
        if kind == FrameKind.DATA:
            self._on_data(flags, number, payload)
        elif kind == FrameKind.HEADERS:
            self._on_headers(flags, number, payload)
        elif kind == FrameKind.WINDOW_UPDATE:
            self._on_window(number, payload)
        elif kind == FrameKind.RST_STREAM:
            self._on_reset(number, payload)
        elif kind == FrameKind.SETTINGS:
            self._on_settings(flags, number, payload)
        elif kind == FrameKind.PING:
            if frames.asks_for_answer(flags, number, payload):
                self._put(frame(FrameKind.PING, frames.ACK, 0, payload))
        elif kind == FrameKind.CONTINUATION:
            self._on_continuation(flags, number, payload)
        elif kind == FrameKind.PUSH_PROMISE:
            raise BadFrames(Why.PROTOCOL_ERROR, "a client promises nothing")
        # PRIORITY, GOAWAY and kinds that nobody knows change nothing here.

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self._check_known(number)
        self._unacked += len(payload)
        if self._unacked > CONNECTION_WINDOW // 2:
            self._put(frames.window_update(0, self._unacked))
            self._unacked = 0
        if stream is None:
            return
        if stream.ended:
            self.drop(stream, Why.STREAM_CLOSED)
            return
        data = frames.without_padding(flags, payload)
        stream.allowed -= len(payload)
        if stream.allowed < 0:
            self.drop(stream, Why.FLOW_CONTROL_ERROR)
            return
        try:
            if data:
                stream.received(data)
        except SystemBusy as error:
            self._refuse(stream, str(error))
            return
        if flags & frames.END_STREAM:
            self._unfinished.pop(stream, None)
            stream.end()
            self._begin(stream)
            return
        if stream.begun:  # a stream of requests: a message of it may be late
            if not stream.is_partial:
                self._unfinished.pop(stream, None)
            elif stream not in self._unfinished:
                self._unfinished[stream] = self._runtime.monotonic()
        if stream.allowed < OWN_WINDOW // 2:
            self.reopen(stream)

    def reopen(self, stream: Stream) -> None:
        """Give a client its window back, but for what waits to be read."""
        more = OWN_WINDOW - stream.unread - stream.allowed
        if more >= OWN_WINDOW // 2 and not (stream.ended or stream.over):
            stream.allowed += more
            self._put(frames.window_update(stream.number, more))

    def _check_known(self, number: int) -> None:
        if not number or number > self._last or not number & 1:
            raise BadFrames(Why.PROTOCOL_ERROR, f"there is no stream {number}")

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        payload = frames.without_priority(flags, frames.without_padding(flags, payload))
        if flags & frames.END_HEADERS:
            self._on_block(number, flags, payload)
        else:
            self._block, self._block_of = bytearray(payload), (number, flags)

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or number != self._block_of[0]:
            raise BadFrames(Why.PROTOCOL_ERROR, "a CONTINUATION of nothing")
        self._block += payload
        if len(self._block) > BLOCK_MAX or (not payload and not flags & frames.END_HEADERS):
            raise BadFrames(Why.ENHANCE_YOUR_CALM, "a block of headers without end")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._on_block(number, self._block_of[1], block)

    def _on_block(self, number: int, flags: int, block: bytes) -> None:
        headers: dict[str, str] = {}
        is_bad = False
        try:
            headers = dict(self._decoder.decode(block))
        except ListTooLong:
            pass
        except BadText:
            is_bad = True
        except BadBlock as error:
            raise BadFrames(Why.COMPRESSION_ERROR, str(error)) from None
        stream = self.streams.get(number)
        if stream is not None:
            self._on_trailers(stream, flags, is_bad=is_bad)
            return
        if not number & 1:
            raise BadFrames(Why.PROTOCOL_ERROR, f"stream {number} cannot begin")
        if number <= self._last:
            return  # the trailers of a call that is over here
        self._last = number
        if self._leaving or len(self.streams) >= STREAMS_MAX:
            self._put(frames.reset(number, Why.REFUSED_STREAM))
            return
        stream = Stream(self, number, self._their_window)
        stream.headers = headers
        try:
            stream.hold(STREAM_BYTES + len(block) + HEADER_BYTES * len(headers))
        except SystemBusy as error:
            log.debug("a call is refused: %s", error)
            self._put(frames.reset(number, Why.REFUSED_STREAM))
            return
        self.streams[number] = stream
        if is_bad:
            self.drop(stream, Why.PROTOCOL_ERROR)
            return
        if flags & frames.END_STREAM:
            stream.end()
            self._begin(stream)
            return
        self._unfinished[stream] = self._runtime.monotonic()
        self._begin(stream)
        if stream.begun:
            self._unfinished.pop(stream, None)

    def _on_trailers(self, stream: Stream, flags: int, *, is_bad: bool) -> None:
        if stream.ended:
            self.drop(stream, Why.STREAM_CLOSED)
        elif is_bad or not flags & frames.END_STREAM:
            self.drop(stream, Why.PROTOCOL_ERROR)
        else:
            self._unfinished.pop(stream, None)
            stream.end()
            self._begin(stream)

    def _on_window(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BadFrames(Why.FRAME_SIZE_ERROR, "a WINDOW_UPDATE has 4 bytes")
        more = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if not number:
            if not more:
                raise BadFrames(Why.PROTOCOL_ERROR, "a WINDOW_UPDATE of nothing")
            self._window += more
            if self._window > frames.WINDOW_MAX:
                raise BadFrames(Why.FLOW_CONTROL_ERROR, "a window that is too large")
            self._unblock()
            return
        found = self.streams.get(number)
        if found is None:
            self._check_known(number)
            return
        found.window += more
        if not more or found.window > frames.WINDOW_MAX:
            self.drop(found, Why.FLOW_CONTROL_ERROR if more else Why.PROTOCOL_ERROR)
            return
        self.push(found)

    def _on_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BadFrames(Why.FRAME_SIZE_ERROR, "a RST_STREAM has 4 bytes")
        stream = self.streams.get(number)
        if stream is None:
            self._check_known(number)
            return
        self._break(stream)

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if not frames.says_settings(flags, number, payload):
            return
        now = self._runtime.monotonic()
        count, since = self._settings
        self._settings = (count + 1, since) if now - since < 1 else (1, now)
        if count >= SETTINGS_MAX and now - since < 1:
            raise BadFrames(Why.ENHANCE_YOUR_CALM, "too many SETTINGS")
        self.is_greeted = True
        window = frames.initial_window(payload, self._their_window)
        self._put(frame(FrameKind.SETTINGS, frames.ACK, 0))
        if window != self._their_window:
            self._change_windows(window)

    def _change_windows(self, window: int) -> None:
        more, self._their_window = window - self._their_window, window
        for stream in list(self.streams.values()):
            stream.window += more
            if stream.window > frames.WINDOW_MAX:
                raise BadFrames(Why.FLOW_CONTROL_ERROR, "a window that is too large")
            if more > 0 and stream.unsent:
                self.push(stream)

    # writing

    def pause(self) -> None:
        """The socket takes no more: what calls write waits with them."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self.excuse(self._runtime.monotonic())  # no word of the client was read meanwhile
        self._unblock()

    def _unblock(self) -> None:
        while self._blocked and self._window > 0 and not self._is_paused:
            stream = next(iter(self._blocked))
            del self._blocked[stream]
            self.push(stream)

    def headers(self, stream: Stream, block: bytes) -> None:
        self._put(frame(FrameKind.HEADERS, frames.END_HEADERS, stream.number, block))

    def push(self, stream: Stream) -> None:
        """Send of a stream what its client takes."""
        if stream.over:
            return
        while stream.unsent and stream.window > 0:
            if self._window <= 0 or self._is_paused:
                self._blocked[stream] = None
                break
            piece = stream.next_piece(min(stream.window, self._window, frames.FRAME_MAX))
            stream.window -= len(piece)
            stream.sent += len(piece)
            self._window -= len(piece)
            self._put(frame(FrameKind.DATA, 0, stream.number, piece))
        if stream.unsent:
            self._stall(stream)
            return
        self._stalled.pop(stream, None)
        if stream.trailers:
            flags = frames.END_STREAM | frames.END_HEADERS
            self._put(frame(FrameKind.HEADERS, flags, stream.number, stream.trailers))
            if not stream.ended:
                self._put(frames.reset(stream.number, Why.NO_ERROR))
            self._broken = max(0, self._broken - 1)
            self._over(stream)
        else:
            stream.count_unsent()

    def _stall(self, stream: Stream) -> None:
        """The client, or the socket, takes no more of this stream now."""
        if not self._is_paused and (stream not in self._stalled or stream.sent >= TAKEN_BYTES):
            self._stalled.pop(stream, None)  # those that wait longest come first
            self._stalled[stream] = self._runtime.monotonic()
            stream.sent = 0
        stream.count_unsent()

    # the end

    def drop(self, stream: Stream, why: Why) -> None:
        """Reset a stream, for what its client did."""
        if not stream.over:
            self._put(frames.reset(stream.number, why))
            self._break(stream)

    def _break(self, stream: Stream) -> None:
        self._over(stream)
        stream.cancel()
        self._broken += 1
        if self._broken > BROKEN_MAX:
            raise BadFrames(Why.ENHANCE_YOUR_CALM, f"{self._broken} streams were broken")

    def _over(self, stream: Stream) -> None:
        self.streams.pop(stream.number, None)
        self._unfinished.pop(stream, None)
        self._blocked.pop(stream, None)
        self._stalled.pop(stream, None)
        stream.stop()

    def late(self, now: float, patience_s: float) -> list[Stream]:
        """The calls whose time is over, those of which nothing could be sent for so long, and
        those whose request is not complete after it."""
        found = [stream for stream in self.streams.values() if stream.deadline <= now]
        for waiting in (self._stalled, self._unfinished):
            oldest = takewhile(lambda each: now - each[1] > patience_s, waiting.items())
            found += [stream for stream, _ in oldest]
        return found

    def partial_s(self, now: float) -> float:
        """The age of a frame, or of a block of headers, that is not complete."""
        return now - self._partial_since if self._partial_since else 0.0

    def held_up_s(self, now: float) -> float:
        """For how long the client has left a request incomplete, or an answer untaken."""
        oldest = [next(iter(each.values())) for each in (self._stalled, self._unfinished) if each]
        return max(self.partial_s(now), now - min(oldest, default=now))

    def excuse(self, now: float) -> None:
        """The client had no chance until now."""
        for waiting in (self._stalled, self._unfinished):
            waiting.update(dict.fromkeys(waiting, now))
        self._partial_since = self._partial_since and now

    @property
    def buffered(self) -> int:
        """Bytes that no call has: of unfinished frames, and of headers that the client repeats."""
        return len(self._buffer) + len(self._block or b"") + self._decoder.memory

    def ping(self) -> None:
        """Ask a silent client for a sign of life."""
        self._put(frame(FrameKind.PING, 0, 0, bytes(8)))

    def leave(self) -> None:
        """Take no more calls; those that are open go on."""
        self._leaving = True
        self._put(frames.goaway(self._last, Why.NO_ERROR))

    def goodbye(self, error: BadFrames) -> bytes:
        """The last frame before the end."""
        return frames.goaway(self._last, error.why, str(error))

    def close(self) -> None:
        """The connection is gone."""
        self.closed = True
        streams = deque(self.streams.values())
        for stream in streams:
            self._over(stream)
        self._cancel(streams)
        # Cut the cycle with their owner: a node's collector never frees it (`cli/garbage.py`).
        self._send, self._begin = lambda _: None, lambda _: None

    def _cancel(self, streams: deque[Stream]) -> None:
        """End the work on calls, of which there may be thousands, some in each turn of the loop."""
        for _ in range(min(len(streams), CANCELLED_AT_ONCE)):
            streams.popleft().cancel()
        if streams:
            self._runtime.call_soon(self._cancel, streams)

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        if len(self._out) >= PIECES_AT_ONCE:
            self.flush()
        elif not self._in_batch and not self._flush_due:
            self._flush_due = True
            self._runtime.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_due = False
        self.flush()

    def flush(self) -> None:
        if self._out and not self.closed:
            out, self._out = self._out, []
            self._send(out)
