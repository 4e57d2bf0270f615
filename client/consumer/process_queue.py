"""The messages of one queue at one consumer: pulled, being consumed, finished. Pure.

Messages stay in the batches they were pulled in; a chunk is a run of one batch that one listener
call chain works on. Of a message only `queue_offset` is needed. Nothing here costs time per
message.

    pulled ->  [batch][batch]  --take()-->  [chunk][chunk][chunk]  --finish()-->  forgotten
                untaken       <--split()--   taken, some done
                               both in offset order

The offset to commit is the first unfinished one of the oldest unfinished run or batch, also while
the listener works on it. When everything is finished, it is the offset at which the next pull
starts, which covers the messages that the tag filter dropped. A finished chunk behind an unfinished
one waits: the committed offset never passes an unprocessed message (docs/guarantees.md I6).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from saturnmq.client.consumer.results import Retry
from saturnmq.runtime.errors import ListenerError

LOCK_VALID_S = 30.0

Draw = Callable[[list[Any]], Iterator[Any]]


@dataclass(slots=True, eq=False)
class MessageRun:
    """A run of messages of one queue, consumed as one piece of work.

    `handled`, `failed` (a part of the handled), `retries` and `faults` (one of each kind) record
    the progress of the listener's present attempt. The listener's thread writes them, and looks at
    `ended` before every call. The thread draws the messages from `upcoming`; the loop thread takes
    the rest away with `split`. A step of a list's iterator is atomic, so exactly one of the two
    gets a message.
    """

    messages: list[Any]
    first_offset: int
    size: int  # bytes, for flow control
    done: bool = False
    attempts: int = 0
    begun: float = -1.0  # start of the present attempt, or its last advance (monotonic)
    seen: int = 0  # `handled` at that time
    reported_at: float = -1.0  # when a listener that does not return was last reported
    handled: int = 0
    failed: list[Any] = field(default_factory=list)
    faults: dict[str, ListenerError] = field(default_factory=dict)
    retries: dict[int, Retry] | None = None  # by offset: failures with a verdict of their own
    ended: bool = False  # dropped, reset or given up: call the listener no more
    given_up: bool = False
    draw: Draw = iter
    upcoming: Iterator[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.upcoming = self.draw(self.messages)

    def begin(self, now: float) -> None:
        """An attempt of the listener begins."""
        self.upcoming = self.draw(self.messages)
        self.handled, self.failed, self.faults, self.retries = 0, [], {}, None
        self.begun = now

    @property
    def unfinished_from(self) -> int:
        """The lowest unfinished offset; the listener may be at work behind it."""
        handled, at_work = self.handled, self.begun >= 0.0 and not self.given_up
        # Read after `handled`: a failure is recorded before it counts as handled.
        if not at_work or self.failed or handled >= len(self.messages):
            return self.first_offset
        offset: int = self.messages[handled].queue_offset
        return offset

    def stands_still_s(self, now: float) -> float:
        """Seconds for which the listener has finished nothing; 0 while it is not called."""
        if self.begun < 0.0:
            return 0.0
        if self.handled != self.seen:
            self.seen, self.begun = self.handled, now
        return now - self.begun

    def give_up(self) -> None:
        """End the attempt because the listener takes too long; the caller decides about its
        messages."""
        self.ended = self.given_up = True


@dataclass(slots=True, eq=False)
class Batch:
    """The messages of one pull; `taken` of them are in chunks already, and None here."""

    messages: list[Any]
    size: int
    taken: int = 0

    @property
    def first_offset(self) -> int:
        """The offset of the first message that is not taken."""
        offset: int = self.messages[self.taken].queue_offset
        return offset


_by_offset = attrgetter("first_offset")


@dataclass(slots=True)
class FlowLimits:
    """Flow control of one queue: no further pull while either is reached."""

    messages: int = 32_768
    bytes: int = 100 << 20


@dataclass(slots=True)
class ProcessQueue:
    """The messages of one queue between pull and commit. Owned by the loop thread."""

    next_offset: int = -1  # start of the next pull; -1: not known yet
    # How the messages of a run are drawn: by `kernels.upcoming` where a listener is all that draws
    # them, and their properties are as they came.
    draw: Draw = iter
    dropped: bool = False
    messages: int = 0
    bytes: int = 0
    lock_until: float = 0.0  # ordered consumption: the broker's lock is good until then (monotonic)
    locked_at: float = 0.0  # time at which the lock was granted
    generation: int = 0  # counts resets: an answer to a request from before a reset does not count
    last_pull: float = 0.0
    last_consume: float = 0.0
    _untaken: deque[Batch] = field(default_factory=deque)
    _taken: deque[MessageRun] = field(default_factory=deque)

    # -- pulling ----------------------------------------------------------------------------------
    def put(self, messages: list[Any], next_offset: int, size: int) -> None:
        """Takes over the list of one pull's messages; `next_offset` is the broker's
        nextBeginOffset."""
        self.next_offset = next_offset
        if messages:
            self._untaken.append(Batch(messages, size))
            self.messages += len(messages)
            self.bytes += size

    def full(self, limits: FlowLimits) -> bool:
        """Whether the next pull has to wait for the listener."""
        return self.messages >= limits.messages or self.bytes >= limits.bytes

    def reset(self, next_offset: int) -> None:
        """Forgets all messages and restarts at `next_offset` (first lock, seek, offset moved)."""
        self.end_runs()
        self._untaken.clear()
        self._taken.clear()
        self.generation += 1
        self.messages = self.bytes = 0
        self.next_offset = next_offset

    def moved_to(self, offset: int) -> int:
        """The offset to begin again at when a broker says that its queue goes on at `offset`: a
        lower one if an earlier message is held and unfinished. From there on the log may be
        another one."""
        return min(offset, self.commit_offset()) if offset < self.next_offset else offset

    # -- consuming --------------------------------------------------------------------------------
    def take(self, count: int) -> MessageRun | None:
        """The next run of at most `count` messages, from one batch; None if nothing waits."""
        if not self._untaken:
            return None
        batch = self._untaken[0]
        messages, rest = batch.messages, len(batch.messages) - batch.taken
        count = min(count, rest)
        size = batch.size * count // rest
        if count < len(messages):
            part = slice(batch.taken, batch.taken + count)
            messages = messages[part]
            batch.messages[part] = [None] * count  # the run alone holds its messages now
        if count == rest:
            self._untaken.popleft()
        batch.taken += count
        batch.size -= size
        chunk = MessageRun(messages, messages[0].queue_offset, size, draw=self.draw)
        insort(self._taken, chunk, key=_by_offset)
        return chunk

    def split(self, chunk: MessageRun) -> None:
        """Put the messages of `chunk` that the listener has not got yet back, to be taken again."""
        if chunk.ended or chunk not in self._taken:
            return
        rest = list(chunk.upcoming)
        if not rest:
            return
        given = len(chunk.messages) - len(rest)
        size = chunk.size * len(rest) // len(chunk.messages)
        chunk.messages, chunk.size = chunk.messages[:given], chunk.size - size
        insort(self._untaken, Batch(rest, size), key=_by_offset)

    def finish(self, chunk: MessageRun) -> None:
        """All of `chunk` is finished: consumed, or sent back to the broker."""
        if chunk.done:
            return
        chunk.done = True
        if chunk not in self._taken:  # a reset forgot it meanwhile
            return
        self.messages -= len(chunk.messages)
        self.bytes -= chunk.size
        taken = self._taken
        while taken and taken[0].done:
            taken.popleft()

    def keep(self, chunk: MessageRun, rest: list[Any]) -> None:
        """Only `rest` of `chunk` is still unfinished (in offset order)."""
        if not rest or chunk.done:
            self.finish(chunk)
            return
        gone = len(chunk.messages) - len(rest)
        part = chunk.size * gone // len(chunk.messages)
        if chunk in self._taken:
            self.messages -= gone
            self.bytes -= part
        chunk.messages, chunk.size = rest, chunk.size - part
        chunk.handled, chunk.failed = 0, []
        chunk.first_offset = rest[0].queue_offset

    def put_back(self, chunk: MessageRun) -> None:
        """Put back `chunk`, the only one that was taken, to be taken again."""
        if chunk in self._taken:
            self._taken.remove(chunk)
            self._untaken.appendleft(Batch(chunk.messages, chunk.size))

    def validate(self) -> None:
        """AssertionError: messages are counted wrongly, or out of order."""
        working = [run for run in self._taken if not run.done]
        held = sum(len(batch.messages) - batch.taken for batch in self._untaken)
        held += sum(len(run.messages) for run in working)
        assert self.messages == held, f"{self.messages} messages are known of {held}"
        size = sum(batch.size for batch in self._untaken) + sum(run.size for run in working)
        assert self.bytes == size, f"{self.bytes} bytes are known of {size}"
        for parts in (self._untaken, self._taken):
            starts = [part.first_offset for part in parts]
            assert starts == sorted(starts), f"the parts begin at {starts}"
        for batch in self._untaken:
            assert 0 <= batch.taken < len(batch.messages), (batch.taken, len(batch.messages))
        assert not self._taken or not self._taken[0].done, "a finished run is not forgotten"
        assert self.next_offset >= -1, f"the next pull begins at {self.next_offset}"
        assert self.commit_offset() >= -1, f"{self.commit_offset()} is to be committed"
        assert self.generation >= 0, f"{self.generation} resets"
        assert self.lock_until in (0.0, self.locked_at + LOCK_VALID_S), self.lock_until

    def drop(self) -> None:
        """The queue is no longer ours: listeners stop after their present call."""
        self.dropped = True
        self.end_runs()

    def end_runs(self) -> None:
        """Listeners stop after their present call."""
        for chunk in self._taken:
            chunk.ended = True

    def holds(self, chunk: MessageRun) -> bool:
        """Whether `chunk` still belongs to this queue (not reset, not dropped)."""
        return not self.dropped and chunk in self._taken

    @property
    def waiting(self) -> bool:
        """Whether take() would return a run."""
        return bool(self._untaken)

    @property
    def idle(self) -> bool:
        """Nothing pulled is unfinished."""
        return not self._untaken and not self._taken

    def commit_offset(self) -> int:
        """The lowest unfinished offset; -1 while the start is unknown."""
        waiting = self._untaken[0].first_offset if self._untaken else None
        if self._taken:
            taken = self._taken[0].unfinished_from
            return taken if waiting is None else min(taken, waiting)
        return self.next_offset if waiting is None else waiting

    # -- ordered consumption ----------------------------------------------------------------------
    def locked(self, now: float) -> bool:
        """Whether the broker's lock on this queue is certainly still ours."""
        return now < self.lock_until

    def lock(self, now: float) -> bool:
        """The broker granted the lock at `now` (taken before asking); True if it was not held
        before.
        """
        fresh = not self.locked(now)
        self.locked_at, self.lock_until = now, now + LOCK_VALID_S
        return fresh

    def unlock(self) -> None:
        """The broker refused the lock, or it was given back."""
        self.lock_until = 0.0
