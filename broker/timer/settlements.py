"""Settlements: the messages that wait no more, as a fact of the log.

Copies of due messages go into the log as an atomic batch (`store/log/atomic_batches.py`). Its
marker names the messages that they settle, so a copy and the end of its wait are in the log
together or not at all, on each node and after each crash. A recall is a marker, too. The document:

    {"kind":"timer","d":[moment,offset,...],"m":[moment,offset,...],"topics":{topic:n,...}}

`d` and `m` are the shelves; `offset` is the queue offset in rmq_sys_wheel_timer. `topics` says how
many messages of each topic wait less. {"kind":"timer","before":[offset,ms]} says that a RocketMQ
broker wrote this log before: it had delivered what was before that queue offset and due before that
moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from saturnmq.broker.timer.due import MOMENT_MAX, SHELVES
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.checked import INT64_MAX
from saturnmq.runtime.errors import MalformedFrame
from saturnmq.store.message_store import AppendResult, AtomicBatchPart, Marker, MessageStore

KIND = "timer"
_PREFIX = b'{"kind":"timer"'

Place = tuple[int, int]
"""(moment, queue offset) of a waiting message."""


@dataclass(frozen=True, slots=True)
class Settlement:
    places: Mapping[str, list[Place]] = field(default_factory=dict)  # by shelf
    topics: Mapping[str, int] = field(default_factory=dict)
    before: tuple[int, int] | None = None

    def encode(self) -> bytes:
        document: dict[str, object] = {"kind": KIND}
        for shelf, places in self.places.items():
            if places:
                document[shelf] = [number for place in places for number in place]
        if self.topics:
            document["topics"] = dict(self.topics)
        if self.before is not None:
            document["before"] = list(self.before)
        text = fastjson.dumps(document)
        assert text.startswith(_PREFIX), f"a marker that begins with {text[:20]!r}"
        return text


def append_settlement(
    store: MessageStore,
    settlement: Settlement,
    parts: Sequence[AtomicBatchPart],
    store_host: bytes,
) -> AppendResult:
    """Append a settlement with the messages that belong to it, as one atomic batch, in one turn of
    the loop; the place of its marker."""
    put: AppendResult | None = None
    for step in store.append_group(settlement.encode(), parts, store_host=store_host):
        put = step
    assert put is not None, f"{settlement} was appended, and nobody knows where"
    return put


def settlement_in(marker: Marker) -> Settlement | None:
    """The settlement in a marker; None: it is one of a sink. MalformedFrame: nobody wrote this."""
    if not marker.document.startswith(_PREFIX):
        return None
    document = checked.document(marker.document)
    places = {}
    for shelf in SHELVES:
        numbers = [
            checked.as_integer(number, "a settled message", 0, INT64_MAX)
            for number in checked.items(document, shelf)
        ]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=False))
        if len(numbers) % 2 or any(moment > MOMENT_MAX for moment, _ in pairs):
            raise MalformedFrame("settled messages are pairs of a moment and an offset")
        places[shelf] = pairs
    topics: Counter[str] = Counter()
    for topic, number in checked.table(document, "topics").items():
        topics[str(topic)] = checked.as_integer(number, "messages of a topic")
    before = None
    if known := checked.items(document, "before"):
        numbers = [checked.as_integer(number, "a place") for number in known]
        if len(numbers) != 2:
            raise MalformedFrame("a place is an offset and a moment")
        before = numbers[0], numbers[1]
    return Settlement(places, topics, before)
