"""One call on a connection of HTTP/2, as its frames show it: the messages that came, and the bytes
that are to be sent. `connection.py` moves the frames.

Memory. Bytes that came are counted in the budget of the connection until a handler has read them or
the call is over; bytes that the client's windows do not let go, as long as they wait."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Protocol

from saturnmq.protocol.budget import Budget
from saturnmq.runtime.errors import SystemBusy

from .beginnings import Beginnings

MESSAGE_HEAD = struct.Struct(">BI")  # is it compressed, its length
MESSAGE_BYTES = 128  # of a message that waits, beside its own
MESSAGES_MAX = 1_000  # that wait in one call
OWN_WINDOW = 1 << 20  # of a stream: so much may come that no handler has read
WAITING_MAX = 256 << 10  # unsent bytes of a call that writes a stream


class StreamOwner(Protocol):
    """The connection of a stream."""

    budget: Budget
    closed: bool
    beginnings: Beginnings  # of its calls
    message_max: int  # bytes of a message that comes in

    def headers(self, stream: Stream, block: bytes) -> None:
        """Send headers."""

    def push(self, stream: Stream) -> None:
        """Send what the client takes."""

    def reopen(self, stream: Stream) -> None:
        """Take note that messages were read."""


class Stream:
    """One call."""

    def __init__(self, connection: StreamOwner, number: int, window: int) -> None:
        self.number = number
        self.headers: dict[str, str] = {}
        self.window = window  # bytes that the client takes
        self.allowed = OWN_WINDOW  # bytes that the client may send
        self.unread = 0  # bytes of complete messages that nobody has read
        self.over = False  # reset, or answered
        self.ended = False  # the client has sent all
        self.begun = False  # it is a call by now
        self.task: asyncio.Task[None] | None = None  # which serves it
        self.deadline = float("inf")
        self.sent = 0  # bytes since the client last took too few of them
        self._connection = connection
        self._body = bytearray()
        self._messages: deque[tuple[bool, bytes]] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self.held = 0  # bytes of requests that are counted in the budget
        self._held_unsent = 0  # and of answers
        self._waiting = bytearray()  # what is to be sent
        self._end = b""  # what follows it
        self._rooms: list[asyncio.Future[None]] = []  # of those who wait until it is sent
        self._answered = False  # the headers of the answer were sent

    # requests

    @property
    def message_max(self) -> int:
        """The bytes that a message of it may have, packed or not."""
        return self._connection.message_max

    @property
    def beginnings(self) -> Beginnings:
        """The calls of its connection that wait for their turn."""
        return self._connection.beginnings

    @property
    def is_partial(self) -> bool:
        """Whether a message has begun that is not complete."""
        return bool(self._body)

    def received(self, data: bytes) -> None:
        """SystemBusy: there is no room for it, or a message is too large."""
        self.hold(len(data))
        self._body += data
        at = 0
        while len(self._body) - at >= MESSAGE_HEAD.size:
            packed, size = MESSAGE_HEAD.unpack_from(self._body, at)
            if packed > 1 or size > self.message_max:
                raise SystemBusy(
                    f"a message of {size} bytes; the limit is {self.message_max}: send less at "
                    "once, or raise maxMessageSize or memoryBudgetBytes"
                )
            end = at + MESSAGE_HEAD.size + size
            if len(self._body) < end:
                break
            if self._messages:
                self.hold(MESSAGE_BYTES)
                if len(self._messages) >= MESSAGES_MAX:
                    raise SystemBusy(f"{MESSAGES_MAX} messages wait in this call")
            self._messages.append((bool(packed), bytes(self._body[at + MESSAGE_HEAD.size : end])))
            self.unread += MESSAGE_HEAD.size + size
            at = end
        if at:
            del self._body[:at]
            self._wake()

    def hold(self, size: int) -> None:
        """Count so many bytes for the call. SystemBusy: there is no room for them."""
        if self.over:
            return
        budget = self._connection.budget
        budget.take(size, "a call that comes in")
        if self._connection.closed:  # it was the one that gave way
            budget.give_back(size)
            raise SystemBusy("the connection is closed: memory is short")
        self.held += size

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def end(self) -> None:
        """The client sends no more."""
        self.ended = True
        self._wake()

    async def next_message(self) -> tuple[bool, bytes] | None:
        """(is it compressed, its bytes); None: there is no other."""
        if len(self._messages) > 1:
            await asyncio.sleep(0)  # one in a turn of the loop
        while not self._messages:
            if self.ended:
                return None
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        found = self._messages.popleft()
        size = MESSAGE_HEAD.size + len(found[1])
        self.unread -= size
        self.release(size + (MESSAGE_BYTES if self._messages else 0))
        self._connection.reopen(self)
        return found

    def take(self) -> tuple[bool, bytes] | None:
        """The only message of a call that has ended; None: it has none, or several."""
        return self._messages[0] if len(self._messages) == 1 and not self._body else None

    def release(self, size: int) -> None:
        """Count so many bytes no more."""
        size = min(size, self.held)  # it may be over
        self.held -= size
        if size and not self._connection.closed:  # else all of its budget was released
            self._connection.budget.give_back(size)

    # answers

    def answer(self, head: bytes, body: bytes, trailers: bytes) -> None:
        """The whole answer of a call."""
        if not self.over:
            self._begin(head)
            self._waiting += body
            self._finish(trailers)

    async def write(self, head: bytes, body: bytes) -> None:
        """A part of an answer; waits while the client takes none."""
        if self.over:
            raise asyncio.CancelledError
        self._begin(head)
        self._waiting += body
        del body  # a client that reads nothing costs one copy
        self._connection.push(self)
        while len(self._waiting) > WAITING_MAX and not self.over:
            room = asyncio.get_running_loop().create_future()
            self._rooms.append(room)
            await room

    def _go_on(self) -> None:
        rooms, self._rooms = self._rooms, []
        for room in rooms:
            if not room.done():
                room.set_result(None)

    def finish(self, head: bytes, trailers: bytes) -> None:
        """The end of an answer that was written in parts; `head` if there was none."""
        if self.over:
            return
        self._begin(head)
        self._finish(trailers)

    def expire(self, alone: bytes, behind: bytes) -> None:
        """End the call without the answer that waits: with headers of its own, or behind those
        that were sent."""
        if not self.over:
            self._waiting.clear()
            self._finish(behind if self._answered else alone)

    def _begin(self, head: bytes) -> None:
        if not self._answered:
            self._answered = True
            self._connection.headers(self, head)

    def _finish(self, trailers: bytes) -> None:
        self._end = trailers
        self._connection.push(self)

    @property
    def unsent(self) -> int:
        return len(self._waiting)

    @property
    def trailers(self) -> bytes:
        return self._end

    def next_piece(self, most: int) -> bytes:
        piece = bytes(self._waiting[:most])
        del self._waiting[:most]
        if self._rooms and len(self._waiting) <= WAITING_MAX:
            self._go_on()
        return piece

    def count_unsent(self) -> None:
        """Count what waits, which exists already."""
        more = len(self._waiting) - self._held_unsent
        if more and not self._connection.closed:
            self._connection.budget.hold(more)
            self._held_unsent += more
            if more > 0:
                self._connection.budget.has_room(0)  # if there is none, slow connections give way

    # the end

    def serve(self, task: asyncio.Task[None]) -> None:
        """The call is served by this task."""
        self.begun, self.task = True, task

    def cancel(self) -> None:
        """End the work on the call. Its task has the stream in the frames of its CancelledError:
        if the stream kept the task, only the collector would free them, or nobody
        (`cli/garbage.py`)."""
        task, self.task = self.task, None
        if task is not None:
            task.cancel()

    def stop(self) -> None:
        """The call is over: nothing of it is sent or received any more."""
        self.over = True
        self._waiting.clear()
        self._messages.clear()
        self._body.clear()
        self.count_unsent()
        self.release(self.held)
        self._go_on()
