"""The order of a consumer that pops, and the messages that it gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from saturnmq.protocol.frame import QUEUE_OFFSET_AT, size_of, with_reconsume_times
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.sql92 import Sql
from saturnmq.store.message_store import GetResult


@dataclass(frozen=True, slots=True)
class PopOrder:
    """The wish of one consumer."""

    group: str
    topic: str
    queue_id: int  # -1: any
    most: int = 1
    invisible_ms: int = 0
    from_end: bool = False  # where a group begins that has no offset yet
    ordered: bool = False
    attempt_id: str = ""
    codes: frozenset[int] | None = None
    sql: Sql | None = None


@dataclass(frozen=True, slots=True)
class PoppedRun:
    """Messages of one queue in an answer. Their frames are read when they are sent: a read from the
    disk must not keep the loop waiting."""

    topic: str
    queue_id: int
    offsets: Sequence[int]
    attempts: int
    results: Sequence[GetResult]

    def frames(self) -> bytes:
        """The frames, with the number of attempts in their heads."""
        frames = b"".join(result.data for result in self.results)
        if not self.attempts:
            return frames
        return b"".join(
            with_reconsume_times(frame, attempts_in(frame) + self.attempts)
            for frame in split(frames)
        )


@dataclass(frozen=True, slots=True)
class PoppedQueue:
    """The messages of one queue in an answer, in the order of their offsets."""

    topic: str
    queue_id: int
    offsets: Sequence[int]
    attempts: Sequence[int]  # of each
    frames: bytes


@dataclass(slots=True)
class Popped:
    """The messages that were given out for one order."""

    pop_ms: int
    runs: list[PoppedRun] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    rest: int = 0  # messages behind
    end: int = 0  # of the last record in the log: the answer waits for it

    def offsets(self, topic: str, queue_id: int) -> set[int]:
        """The offsets that it has of one queue."""
        place = topic, queue_id
        runs = (run for run in self.runs if (run.topic, run.queue_id) == place)
        return {offset for run in runs for offset in run.offsets}

    def by_queue(self) -> Iterator[PoppedQueue]:
        """The messages by queue. They must be in memory: see `PoppedRun`."""
        runs: dict[tuple[str, int], list[PoppedRun]] = {}
        for run in self.runs:
            runs.setdefault((run.topic, run.queue_id), []).append(run)
        for (topic, queue_id), found in runs.items():
            if len(found) == 1:
                run = found[0]
                attempts = [run.attempts] * len(run.offsets)
                yield PoppedQueue(topic, queue_id, run.offsets, attempts, run.frames())
                continue
            each = sorted(
                (offset, run.attempts, frame)
                for run in found
                for offset, frame in zip(run.offsets, split(run.frames()), strict=True)
            )
            yield PoppedQueue(
                topic,
                queue_id,
                [offset for offset, _, _ in each],
                [attempts for _, attempts, _ in each],
                b"".join(frame for _, _, frame in each),
            )


def split(frames: bytes) -> Iterator[bytes]:
    """The frames that stand one behind the other."""
    at = 0
    while at < len(frames):
        size = size_of(frames, at)
        yield frames[at : at + size]
        at += size


def attempts_in(frame: bytes) -> int:
    """The reconsumeTimes of a frame."""
    return decode_frames(frame, False)[0].reconsume_times


def offsets_of(result: GetResult, first: int) -> Sequence[int]:
    """The queue offsets of the frames of a result that was read from `first` on."""
    if not result.count:
        return []
    if result.count == result.next_begin_offset - first:
        return range(first, result.next_begin_offset)
    offsets = []
    for piece in result.pieces:
        at = 0
        while at < len(piece):
            place = at + QUEUE_OFFSET_AT
            offsets.append(int.from_bytes(piece[place : place + 8], "big"))
            at += size_of(piece, at)
    return offsets
