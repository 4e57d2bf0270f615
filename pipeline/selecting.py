"""Which rows of a batch go to which queue.

| queueSelector | a row's queue |
|---|---|
| roundRobin | any; whole chunks go round |
| shardingKey | as producers choose it: `abs(hash) % queues`, Java's hash of column `shardingKey` |
| column | what columns `queueId` and, with more than one broker, `brokerName` name |

Keys are hashed over all queues that take messages; a row without a key goes anywhere.
Rows of one queue keep their order. Hashes are worked out by numpy, a column at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from saturnmq.pipeline.encode_reference import RowIllegal
from saturnmq.pipeline.sink_options import COLUMN, SHARDING_KEY
from saturnmq.protocol.jhash import jhash
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.topics import check_topic
from saturnmq.runtime.errors import MessageIllegal

Layout = Callable[[str], Sequence[MessageQueue]]
"""The queues of a topic in the order that keys are hashed over."""

ANY = -1


class RowGroup(NamedTuple):
    """Rows that go the same way."""

    topic: str
    queue: MessageQueue | None  # None: any
    rows: Any  # ascending numbers in the batch, int64; None: all


class Selector:
    """The rule of one write."""

    def __init__(self, topic: str | None, selector: str, layout: Layout) -> None:
        """`topic` None: the column says it."""
        self._topic = topic
        self._selector = selector
        self._layout = layout
        self._checked: set[str] = set()

    def groups(self, batch: pa.RecordBatch) -> Iterator[RowGroup]:
        """`batch` in groups; MessageIllegal names the first row that has no place."""
        for topic, rows in self._topics(batch):
            queues: Sequence[MessageQueue] = ()
            if self._selector == SHARDING_KEY:
                queues = self._layout(topic)
                places = by_key(_rows(batch, "shardingKey", rows), len(queues))
            elif self._selector == COLUMN:
                queues = self._layout(topic)
                places = self._named(batch, rows, topic, queues)
            else:
                yield RowGroup(topic, None, rows)
                continue
            for place, chosen in split(places, rows):
                yield RowGroup(topic, None if place == ANY else queues[place], chosen)

    def _topics(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
        if self._topic is not None:
            yield self._topic, None
            return
        coded = batch.column("topic").dictionary_encode()
        if coded.null_count:
            raise RowIllegal(
                _first(pc.is_null(coded)),
                "has no topic: fill column 'topic', or give option 'topic'",
            )
        names = coded.dictionary.to_pylist()
        for name in names:
            if name not in self._checked:
                self._checked.add(check_topic(name))
        for code, rows in split(coded.indices.to_numpy().astype(np.int64), None):
            yield names[code], rows

    def _named(
        self, batch: pa.RecordBatch, rows: Any, topic: str, queues: Sequence[MessageQueue]
    ) -> Any:
        ids = _rows(batch, "queueId", rows)
        if ids.null_count:
            row = _first(pc.is_null(ids))
            raise RowIllegal(
                row if rows is None else int(rows[row]),
                "has no queueId: fill it, or give queueSelector=roundRobin",
            )
        numbers = ids.to_numpy(zero_copy_only=False).astype(np.int64)
        brokers = sorted({queue.broker_name for queue in queues})
        if "brokerName" in batch.schema.names:
            names = _rows(batch, "brokerName", rows)
        elif len(brokers) == 1:
            names = pa.repeat(pa.scalar(brokers[0]), len(numbers))
        else:
            raise MessageIllegal(
                f"queueSelector=column needs a column 'brokerName': topic {topic!r} lies on "
                f"{len(brokers)} brokers ({', '.join(brokers)})"
            )
        coded = names.dictionary_encode()
        known = coded.dictionary.to_pylist()
        codes = coded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
        place_of = {queue: place for place, queue in enumerate(queues)}
        pairs, where = np.unique(
            np.stack([codes.astype(np.int64), numbers]), axis=1, return_inverse=True
        )
        places = np.empty(pairs.shape[1], np.int64)
        for index, (code, queue_id) in enumerate(pairs.T.tolist()):
            broker = known[code] if code < len(known) else None
            place = place_of.get(MessageQueue(topic, broker or "", queue_id))
            if place is None:
                raise MessageIllegal(
                    f"topic {topic!r} has no queue {queue_id} on broker {broker!r}: correct "
                    "columns queueId and brokerName, or give queueSelector=roundRobin; it has "
                    f"{_summary(queues)}"
                )
            places[index] = place
        return places[where.reshape(-1)]


def by_key(keys: pa.Array, queues: int) -> Any:
    """The place of each key among so many queues, int64; ANY where it is null or empty."""
    places = np.abs(java_hashes(keys)) % max(queues, 1)
    places[_lengths(keys) == 0] = ANY
    return places


def java_hashes(texts: pa.Array) -> Any:
    """`jhash` of every text, int64; 0 for null. A pass per character of the longest, all rows at
    once."""
    texts = texts.cast(pa.large_string()).fill_null("")
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    letters = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    if (letters[starts[0] : starts[-1]] >= 0x80).any():
        coded = texts.dictionary_encode()
        unique = np.array([jhash(text) for text in coded.dictionary.to_pylist()], np.int64)
        return unique[coded.indices.to_numpy()]
    hashes = np.zeros(len(texts), np.uint32)
    lengths = np.diff(starts)
    rows = np.arange(len(texts))
    for at in range(int(lengths.max(initial=0))):
        rows = rows[lengths[rows] > at]
        hashes[rows] = hashes[rows] * np.uint32(31) + letters[starts[rows] + at]
    return hashes.view(np.int32).astype(np.int64)


def split(codes: Any, rows: Any) -> Iterator[tuple[int, Any]]:
    """(code, the rows that have it) for each code there is; `rows` are the rows that `codes` speak
    of, None: all, and None is given back where all have one code."""
    if not len(codes):
        return
    if (codes == codes[0]).all():
        yield int(codes[0]), rows
        return
    order = np.argsort(codes, kind="stable")
    ranked = codes[order]
    for part in np.split(order, np.flatnonzero(np.diff(ranked)) + 1):
        yield int(codes[part[0]]), part if rows is None else rows[part]


def _rows(batch: pa.RecordBatch, name: str, rows: Any) -> pa.Array:
    column = batch.column(name)
    return column if rows is None else column.take(pa.array(rows))


def _lengths(texts: pa.Array) -> Any:
    return pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False)


def _first(mask: pa.Array) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])


def _summary(queues: Sequence[MessageQueue]) -> str:
    most: dict[str, int] = {}
    for queue in queues:
        most[queue.broker_name] = max(most.get(queue.broker_name, 0), queue.queue_id)
    return ", ".join(f"0 to {number} on {name}" for name, number in most.items()) or "none"
