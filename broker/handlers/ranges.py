"""Ranges of queues, for bulk readers: READ_QUEUE, SPLIT_RANGE, QUEUE_BOUNDS.

The pipeline plans by bounds, splits ranges and reads big chunks, without a group, a subscription or
saved progress. Masters and slaves answer alike, below the visible watermark.

| code | ext | answer |
|---|---|---|
| READ_QUEUE 390020 | topic, queueId, offset, end, maxBytes; subscription, expressionType | frames as a pull's, codes too: 0, 19 nothing there yet, 20 nothing matched, 21 offset below the queue's; nextBeginOffset, minOffset, maxOffset |
| SPLIT_RANGE 390021 | topic, maxBytes, maxRows, firstOnly; body `[[queueId,start,end],...]` | `{"pieces":[[queueId,start,end,bytes],...],"rest":[[queueId,start,end],...]}` |
| QUEUE_BOUNDS 390022 | topic; body `[queueId,...]` | `{"0":[min,end],...}`, all readable queues, and those of the body |

A queue that the topic's readers have lost, because it has fewer read queues now, is answered for to
whom asks by its number: a reader goes on where it has begun.

Each request does a bounded piece of work on the loop: a chunk of at most 8 MiB, or as many entries
as are weighed in a few hundred microseconds; the next request asks for `rest`. A read with an SQL92
condition looks at messages for a few milliseconds (store/derived/sql_filter.py).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from saturnmq.broker.commit.inner_batches import is_batched
from saturnmq.broker.context import Context, answer, answer_failure, cached
from saturnmq.broker.handlers import slices
from saturnmq.broker.handlers.pull import BYTES_MAX, CODES
from saturnmq.broker.handlers.subscriptions import is_long, of_request, read_ahead
from saturnmq.broker.tables.lost_offsets import has_queue
from saturnmq.protocol import fastjson, headers
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import SQL_EXPRESSION
from saturnmq.runtime.errors import InvalidParameter
from saturnmq.store.derived.range_split import cut
from saturnmq.store.message_store import GetResult

ROWS_MAX = 65_536  # of a chunk and of a piece
ENTRIES_MAX = 131_072  # weighed for one request, plus the rest of its last piece
PIECES_MAX = 4096  # of one answer
RANGES_MAX = 10_000  # of one request
RANGES_BYTES = RANGES_MAX * 50  # their size in the body
# The system takes no more parts in one write; a copy costs less than several writes.
PARTS_MAX = 512


class RangeService:
    """The handlers of the three requests."""

    def __init__(self, context: Context) -> None:
        self._c = context
        self._store = context.store
        self._topics = context.topics

    def on_read(
        self, endpoint: Endpoint, request: Command, header: headers.ReadQueueHeader
    ) -> None:
        request.body = b""
        if header.expression_type == SQL_EXPRESSION or is_long(header):
            work = self._read_later(endpoint, request, header)
        else:
            result = self._read(header)
            reading = cached(self._c, result)
            if reading is None:
                answer(endpoint, request, self._reply(request, header, result))
                return
            work = self._reply_later(endpoint, request, header, result, reading)
        self._c.runtime.spawn(answer_failure(self._c, endpoint, request, work), name="range")

    async def _read_later(
        self, endpoint: Endpoint, request: Command, header: headers.ReadQueueHeader
    ) -> None:
        if is_long(header):
            await read_ahead(self._c, header)
        await self._c.steps.next()
        result = self._read(header)
        await self._reply_later(endpoint, request, header, result, cached(self._c, result))

    async def _reply_later(
        self,
        endpoint: Endpoint,
        request: Command,
        header: headers.ReadQueueHeader,
        result: GetResult,
        reading: Awaitable[None] | None,
    ) -> None:
        if reading is not None:
            await reading
        answer(endpoint, request, self._reply(request, header, result))

    def _check(self, topic: str, queue_id: int) -> None:
        """A SaturnError if the topic may not be read, or never had this queue."""
        self._topics.readable(topic, None if has_queue(self._c, topic, queue_id) else queue_id)

    def _read(self, header: headers.ReadQueueHeader) -> GetResult:
        topic, queue_id = header.topic, header.queue_id
        self._check(topic, queue_id)
        offset, end = header.offset, header.end
        if offset >= end:
            raise InvalidParameter(f"offsets {offset} to {end}: offset must be below end")
        max_bytes = max(1, min(header.max_bytes, BYTES_MAX))
        subscription = of_request(self._c, topic, header)
        return self._store.get_message(
            topic,
            queue_id,
            offset,
            min(end - offset, ROWS_MAX),
            max_bytes,
            subscription.filter_codes,
            self._c.visible,
            override_limits=True,
            end=end,
            sql=subscription.sql,
        )

    def _reply(
        self, request: Command, header: headers.ReadQueueHeader, result: GetResult
    ) -> Command:
        code = CODES[result.status]
        if code == ResponseCode.PULL_OFFSET_MOVED and header.offset >= result.min_offset:
            code = ResponseCode.PULL_NOT_FOUND  # behind the end: a slave may lag
        pieces = result.pieces if code == ResponseCode.SUCCESS else ()
        if len(pieces) > PARTS_MAX:
            pieces = (memoryview(b"".join(pieces)),)
        told = {
            "nextBeginOffset": str(result.next_begin_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(
                self._store.visible_end(header.topic, header.queue_id, self._c.visible)
            ),
        }
        body = pieces[0] if pieces else b""
        return request.reply(code, result.status, told, body, pieces[1:])

    def on_cut(
        self, endpoint: Endpoint, request: Command, header: headers.SplitRangeHeader
    ) -> None:
        topic, first_only = header.topic, header.first_only
        if is_batched(self._topics.readable(topic)):
            raise InvalidParameter(
                f"topic {topic} has batches in its queues, which are not read in ranges: consume "
                "it, or copy it into a topic with queue.type=SimpleCQ"
            )
        max_bytes = max(1, header.max_bytes)
        max_rows = max(1, min(header.max_rows, ROWS_MAX))
        rest = _ranges(request)
        pieces: list[tuple[int, int, int, int]] = []
        weighed = 0
        while rest and weighed < ENTRIES_MAX and len(pieces) < PIECES_MAX:
            queue_id, start, end = rest.pop()
            self._check(topic, queue_id)
            entries = partial(self._store.entries, topic, queue_id)
            for first, stop, weight in cut(entries, start, end, max_bytes, max_rows):
                assert start <= first < stop <= end, f"{first} to {stop} of {start} to {end}"
                pieces.append((queue_id, first, stop, weight))
                weighed += stop - first
                start = end if first_only else stop
                if first_only or weighed >= ENTRIES_MAX or len(pieces) >= PIECES_MAX:
                    break
            if start < end:
                rest.append((queue_id, start, end))
        body = fastjson.dumps({"pieces": pieces, "rest": rest[::-1]})
        answer(endpoint, request, request.reply(0, body=body))

    def on_bounds(self, endpoint: Endpoint, request: Command, header: headers.TopicHeader) -> None:
        topic = self._topics.readable(header.topic)
        also = _queue_ids(request)
        store, visible = self._store, self._c.visible

        def made(queue_ids: list[int]) -> bytes:
            table = {
                str(queue_id): (
                    store.min_offset(topic.name, queue_id),
                    store.visible_end(topic.name, queue_id, visible),
                )
                for queue_id in queue_ids
            }
            return fastjson.dumps(table)[1:-1]

        beyond = {queue_id for queue_id in also if queue_id >= topic.read_queues}
        found = slices.of([*range(topic.read_queues), *sorted(beyond)], made)
        work = slices.joined(request, found, lambda table: b"{%b}" % table)
        slices.answer_with(self._c, endpoint, request, work)


def _queue_ids(request: Command) -> list[int]:
    """The numbers in the body."""
    value = fastjson.loads_strict(request.body, RANGES_BYTES) if request.body else []
    if not isinstance(value, list) or len(value) > RANGES_MAX:
        raise InvalidParameter(f"the body must be a list of at most {RANGES_MAX} queue ids")
    if wrong := [item for item in value if type(item) is not int]:
        raise InvalidParameter(f"{str(wrong[0])[:60]} is no queue id")
    return value


def _ranges(request: Command) -> list[tuple[int, int, int]]:
    """The ranges of the body, the first one last."""
    value = fastjson.loads_strict(request.body, RANGES_BYTES) if request.body else []
    if not isinstance(value, list) or len(value) > RANGES_MAX:
        raise InvalidParameter(f"the body must be a list of at most {RANGES_MAX} ranges")
    found = []
    for item in reversed(value):
        match item:
            case [int(queue_id), int(start), int(end)] if 0 <= start <= end:
                found.append((queue_id, start, end))
            case _:
                raise InvalidParameter(f"{str(item)[:60]} is no range [queueId, start, end]")
    return found
