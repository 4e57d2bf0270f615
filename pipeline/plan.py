"""How a batch is cut and packed: pure functions of where it starts, where it ends and `ReadPlan`.

A repeated micro-batch must be cut exactly as the first time, or an exactly-once sink would lose and
double rows. So the plan's parameters travel in the end offset, which Spark has in its log before
the batch runs, and weights are bytes, summed over ConsumeQueue entries, which never change.

1. Every queue's range comes as pieces of a few MiB (`ReadPlan.grain`), each with its bytes.
2. The bytes say how many partitions there are: none is worth starting for less than 8 MiB, none may
   exceed the limits, and between these there are as many as `parts` says, or twice, three times...
3. The pieces, in the order of their queues, fill one partition after the other to its share, so
   that a partition reads few long ranges and none has more than a piece above the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError

WORTH_A_TASK = 8 << 20  # below it the start of a Python task costs more than its work
PIECES = 16  # of a full partition: so closely is it filled
PIECE_ROWS = 65_536  # a broker measures no more at a time
MAX_BYTES = 128 << 20


class Range(NamedTuple):
    """Messages [start, end) of one queue; `bytes` is what their frames weigh in the log."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    bytes: int = 0

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)

    @property
    def rows(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic} {self.broker}/{self.queue_id} {self.start} to {self.end}"


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The parameters; 0 = no such limit."""

    parts: int = 1
    max_bytes: int = MAX_BYTES
    max_rows: int = 0
    min_parts: int = 0

    _NAMES = ("parts", "maxBytes", "maxRows", "minParts")

    def to_json(self) -> dict[str, int]:
        values = (self.parts, self.max_bytes, self.max_rows, self.min_parts)
        return {name: value for name, value in zip(self._NAMES, values, strict=True) if value}

    @classmethod
    def from_json(cls, value: Any) -> ReadPlan:
        """ConfigError for what this version did not write: another cut would lose rows."""
        if (
            isinstance(value, Mapping)
            and set(value) <= set(cls._NAMES)
            and all(isinstance(number, int) and number > 0 for number in value.values())
            and {"parts", "maxBytes"} <= set(value)
        ):
            return cls(*(value.get(name, 0) for name in cls._NAMES))
        raise ConfigError(
            f"the checkpoint's plan {value!r} is none of this version: finish the batch with the "
            "version that wrote it, or start from a new checkpoint"
        )

    def grain(self, rows: int) -> tuple[int, int]:
        """(bytes, rows) that one piece has at most when the batch has so many rows."""
        piece_rows = PIECE_ROWS
        if self.max_rows:
            piece_rows = min(piece_rows, self.max_rows)
        if self.min_parts:
            piece_rows = min(piece_rows, max(1, rows // (self.min_parts * PIECES)))
        return max(1, min(self.max_bytes // PIECES, WORTH_A_TASK)), piece_rows


def pack(pieces: Sequence[Range], plan: ReadPlan) -> list[list[Range]]:
    """The partitions; `pieces` lie in the order of their queues, each within `plan.grain`."""
    pieces = [piece for piece in pieces if piece.rows]
    rows, total = sum(piece.rows for piece in pieces), sum(piece.bytes for piece in pieces)
    by_bytes = max(
        min(plan.parts, _parts(total, WORTH_A_TASK)),
        _parts(total, plan.max_bytes),
        _parts(rows, plan.max_rows),
        1,
    )
    if by_bytes > plan.parts:
        by_bytes = _parts(by_bytes, plan.parts) * plan.parts  # nobody idles in the last round
    by_rows = min(plan.min_parts, rows)
    count = max(by_bytes, by_rows)
    # A requested number of partitions is always met, even if a few messages have all the bytes.
    weights = [piece.rows if by_rows > by_bytes else piece.bytes for piece in pieces]
    everything = sum(weights) or 1
    partitions: list[list[Range]] = []
    number, done = -1, 0
    for piece, weight in zip(pieces, weights, strict=True):
        share_of = min((2 * done + weight) * count // (2 * everything), count - 1)
        if share_of > number or not _fits(piece, partitions[-1], plan):
            number = max(number, share_of)
            partitions.append([piece])
        else:
            _join(partitions[-1], piece)
        done += weight
    return partitions


def _parts(amount: int, limit: int) -> int:
    return -(-amount // limit) if limit else 0


def _fits(piece: Range, partition: list[Range], plan: ReadPlan) -> bool:
    weight = piece.bytes + sum(item.bytes for item in partition)
    rows = piece.rows + sum(item.rows for item in partition)
    return weight <= plan.max_bytes and (not plan.max_rows or rows <= plan.max_rows)


def _join(partition: list[Range], piece: Range) -> None:
    """Add the piece, to the range before it if it follows it."""
    last = partition[-1]
    if last.queue == piece.queue and last.end == piece.start:
        partition[-1] = last._replace(end=piece.end, bytes=last.bytes + piece.bytes)
    else:
        partition.append(piece)


def share(backlog: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """The part of `limit` that each queue gets: in proportion to its backlog, at least one each, so
    that a huge queue does not starve small ones. With more queues than `limit` the longest get
    one."""
    waiting = {queue: rows for queue, rows in sorted(backlog.items()) if rows > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    if len(waiting) >= limit:
        longest = sorted(waiting, key=lambda queue: (-waiting[queue], queue))
        return dict.fromkeys(longest[: max(1, limit)], 1)
    # One each, and of what is left a share of the rest each, the largest remainders rounded up.
    spare, rest = limit - len(waiting), total - len(waiting)
    exact = {queue: (rows - 1) * spare for queue, rows in waiting.items()}
    shares = {queue: 1 + part // rest for queue, part in exact.items()}
    left = limit - sum(shares.values())
    for queue in sorted(exact, key=lambda queue: (-(exact[queue] % rest), queue))[:left]:
        shares[queue] += 1
    return shares
