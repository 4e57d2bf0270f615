"""The table of leases as the records in the log tell it: the work of a new term of a master.

It reads from the place that the last record names (`lo` in `records.py`), in steps, and passes over
records of topics that were deleted since. All leases begin their time anew. A table that was found
this way knows each message as open, or as consumed, or as not yet given out, unless the log has
lost records (by a disk that ran full, or an operator), or one is damaged. Then each group goes on
at its committed offset: some messages come again, and none is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from saturnmq.broker.context import Context
from saturnmq.broker.pop import records
from saturnmq.broker.pop.leases import Leases, PopLane, PopLease
from saturnmq.broker.tables.offsets import GroupOffset
from saturnmq.broker.tables.progress import NOTHING, Mark
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import MalformedFrame

log = logging.getLogger(__name__)

WAIT_S = 0.02  # between two looks at the queue, which reput fills
STEP = 100  # records in one step: about a millisecond
STEP_BYTES = 1 << 20
STEP_LANES = 200


async def replay(c: Context, topic: str) -> Leases:
    """The leases and lanes that the records of `topic` describe."""
    marks, end = c.store.watermarks, c.store.watermarks.appended
    while marks.dispatched < end:
        await c.runtime.sleep(WAIT_S)
    try:
        return await c.steps.run(_replayed(c, topic))
    except MalformedFrame as error:
        log.error("a record of pop is damaged: groups go on at their committed offsets: %s", error)
        return Leases()


def _replayed(c: Context, topic: str) -> Generator[None, None, Leases]:
    store, table, now = c.store, Leases(), c.runtime.monotonic()
    low = store.min_offset(topic, records.QUEUE)
    high = store.max_offset(topic, records.QUEUE)
    start = _start(c, topic, low, high)
    if start < low:
        log.warning(
            "records of pop from %d to %d of %s are gone: groups go on at their committed offsets",
            start,
            low,
            topic,
        )
        return table
    at = start
    while at < high:
        result = store.get_message(topic, records.QUEUE, at, STEP, STEP_BYTES, override_limits=True)
        for message in decode_frames(result.data, True):
            record = _record_of(message)
            if record is not None and store.is_deleted(record.place.topic, message.physical_offset):
                continue
            if isinstance(record, records.LeaseRecord):
                _take(table, record, message.queue_offset, now)
            elif record is not None:
                _close(table, record)
        assert result.next_begin_offset > at, f"reading records stands still at {at}"
        at = result.next_begin_offset
        yield
    yield from _settle(c, table)
    if high > start:
        log.info(
            "%d messages are out in %d queues of groups, by %d records",
            table.count,
            len(table.lanes),
            high - start,
        )
    return table


def _start(c: Context, topic: str, low: int, high: int) -> int:
    """The record to begin with, which the last record names."""
    for offset in range(high - 1, low - 1, -1):
        result = c.store.get_message(topic, records.QUEUE, offset, 1, STEP_BYTES)
        for message in decode_frames(result.data, True):
            record = _record_of(message)
            if record is not None:
                return min(record.low, offset)
    return high


def _record_of(message: ReceivedMessage) -> records.LeaseRecord | records.AckRecord | None:
    try:
        return records.decode(message.body)
    except MalformedFrame as error:
        log.error("the record of pop at %d cannot be read: %s", message.physical_offset, error)
        return None


def _take(table: Leases, record: records.LeaseRecord, at: int, now: float) -> None:
    lane = table.lanes.get(record.place)
    if record.reset == records.GONE:
        if lane is not None:
            table.forget(lane)
        return
    if lane is None:
        lane = table.lane(record.place, record.cursor)
    elif record.reset or lane.told is None or record.generation != lane.told.generation:
        table.reset(lane, record.cursor)
    lane.told = Mark(record.generation, NOTHING.offset)
    lane.cursor = max(lane.cursor, record.cursor)
    if record.offsets:
        lease = PopLease(
            lane,
            record.offsets,
            record.pop_ms,
            record.invisible_ms,
            attempts=record.attempts,
            attempt_id=record.attempt_id,
            ordered=record.ordered,
            unseen=record.unseen,
        )
        table.take(lease, now, at)
    table.recorded(lane, at)


def _close(table: Leases, record: records.AckRecord) -> None:
    lane = table.lanes.get(record.place)
    for offset in record.offsets:
        if lane is not None and offset in lane.open:
            table.close(lane, offset)


def _settle(c: Context, table: Leases) -> Generator[None, None, None]:
    """Compare the lanes with the offsets of the groups, which were saved in another way."""
    for number, lane in enumerate(list(table.lanes.values()), 1):
        _settle_lane(c, table, lane)
        if not number % STEP_LANES:
            yield


def _settle_lane(c: Context, table: Leases, lane: PopLane) -> None:
    group, topic, queue_id = place = lane.place
    lane.sort()
    marks, at = c.offsets.progress.marks, GroupOffset(topic, group, queue_id)
    mark = marks.get(at)
    if mark is None:  # the table was not saved since the first pop
        c.offsets.commit(*place, lane.low)
        lane.told = marks.get(at)
    elif lane.told is None or lane.told.generation != mark.generation:
        lane.told = None  # it was reset since: the next pop begins there
    elif mark.offset > lane.cursor:
        table.reset(lane, mark.offset)
        lane.told = mark
    else:
        table.reset(lane, lane.cursor, keep_from=mark.offset)
        lane.told = mark
