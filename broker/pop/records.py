"""The records of pop in the log: topic `rmq_sys_REVIVE_LOG_<cluster>`, queue 0, one message each.

The table of leases is a function of these records, so it is as safe as the log: it survives what
the log survives, follows it to another node, and a truncation takes messages and their leases
together. Bodies are JSON with RocketMQ's names (docs/internals/format.md 17), and keys of ours:

- `ck`: a lease of `n` messages, `so` and `so + d[i]`. Keys `so pt it bm n q t c bn d`; ours are
  `nx`, the cursor of the lane, `ge`, the generation of the group's offset
  (`broker/tables/progress.py`), `at`, how often the messages were popped before, `un` 1 if no
  consumer had them under this lease, and `od` and `a` of an ordered pop, with its attempt id. With
  `n` 0 it is the cursor alone; then `rs` 1 says that nothing is open in the lane, and `rs` 2 that
  the lane is gone.
- `ack`: the message `ao` is done. Keys `ao so c t q pt bn`.
- `bAck`: the same of several messages, `aol` in place of `ao`.

`lo` is the place of the oldest record that counts: a start reads the last record, and then all from
its `lo` on. A record whose lease is still open, and that would make this stretch long, is written
again (`service.py`), so a start reads a bounded number of records for each open lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from saturnmq.broker.pop.leases import LanePlace, PopLane, PopLease
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.protocol.topics import REVIVE_PREFIX
from saturnmq.runtime.errors import MalformedFrame

CK, ACK, BATCH_ACK = "ck", "ack", "bAck"
KEEP, RESET, GONE = 0, 1, 2  # values of `rs`
QUEUE = 0  # of the revive topic
OFFSETS_MAX = 1 << 16  # of one record


def revive_topic(cluster: str) -> str:
    return REVIVE_PREFIX + cluster


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease, or the cursor of a lane alone."""

    place: LanePlace
    offsets: Sequence[int]
    cursor: int
    pop_ms: int
    invisible_ms: int
    attempts: int
    attempt_id: str
    ordered: bool
    unseen: bool
    generation: int
    reset: int
    low: int


@dataclass(frozen=True, slots=True)
class AckRecord:
    """Acknowledged messages of one lane."""

    place: LanePlace
    offsets: Sequence[int]
    low: int


def encode_lease(
    lease: PopLease, offsets: Sequence[int], cursor: int, broker: str, low: int
) -> bytes:
    lane = lease.lane
    start = offsets[0]
    fact = {
        **_of(lane.place),
        "so": start,
        "pt": lease.pop_ms,
        "it": lease.invisible_ms,
        "bm": 0,
        "n": len(offsets),
        "bn": broker,
        "nx": cursor,
        "ge": _generation(lane),
        "lo": low,
    }
    if len(offsets) > 1:
        fact["d"] = [offset - start for offset in offsets]
    if lease.attempts:
        fact["at"] = lease.attempts
    if lease.unseen:
        fact["un"] = 1
    if lease.ordered:
        fact["od"] = 1
        fact["a"] = lease.attempt_id
    return fastjson.dumps(fact)


def encode_cursor(lane: PopLane, broker: str, low: int, reset: int = KEEP) -> bytes:
    fact = {**_of(lane.place), "so": lane.cursor, "pt": 0, "it": 0, "bm": 0, "n": 0, "bn": broker}
    fact |= {"nx": lane.cursor, "ge": _generation(lane), "lo": low}
    if reset:
        fact["rs"] = reset
    return fastjson.dumps(fact)


def _generation(lane: PopLane) -> int:
    return lane.told.generation if lane.told else 0


def encode_ack(
    place: LanePlace, offsets: Sequence[int], start: int, pop_ms: int, broker: str, low: int
) -> bytes:
    fact = {**_of(place), "so": start, "pt": pop_ms, "bn": broker, "lo": low}
    named: dict[str, Any] = {"aol": offsets} if len(offsets) > 1 else {"ao": offsets[0]}
    return fastjson.dumps({**fact, **named})


def _of(place: LanePlace) -> dict[str, Any]:
    return {"c": place.group, "t": place.topic, "q": place.queue_id}


def decode(body: bytes) -> LeaseRecord | AckRecord:
    """MalformedFrame: no broker wrote this."""
    fact = checked.document(body)
    place = LanePlace(
        checked.text(fact, "c"),
        checked.text(fact, "t"),
        checked.integer(fact, "q", most=QUEUES_MAX),
    )
    low = checked.integer(fact, "lo", 0)
    if "n" in fact:
        return _lease(fact, place, low)
    named = checked.items(fact, "aol") if "aol" in fact else [fact.get("ao")]
    return AckRecord(place, [checked.as_integer(each, "an offset") for each in named], low)


def _lease(fact: Mapping[str, Any], place: LanePlace, low: int) -> LeaseRecord:
    start = checked.integer(fact, "so")
    count = checked.integer(fact, "n", most=OFFSETS_MAX)
    offsets = [start][:count]
    if count > 1:
        offsets = [
            start + checked.as_integer(more, "a distance") for more in checked.items(fact, "d")
        ]
    if len(offsets) != count or any(a >= b for a, b in pairwise(offsets)):
        raise MalformedFrame(f"a lease of {count} messages names {offsets[:40]}")
    return LeaseRecord(
        place,
        offsets,
        checked.integer(fact, "nx", offsets[-1] + 1 if offsets else start),
        checked.integer(fact, "pt"),
        checked.integer(fact, "it"),
        checked.integer(fact, "at", 0),
        checked.text(fact, "a", ""),
        checked.integer(fact, "od", 0) == 1,
        checked.integer(fact, "un", 0) == 1,
        checked.integer(fact, "ge", 0),
        checked.integer(fact, "rs", 0),
        low,
    )
