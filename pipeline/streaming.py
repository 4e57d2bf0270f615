"""`spark.readStream.format("saturnmq")`: how far each micro-batch goes.

One object per query lives on the driver as long as the query runs. Spark's checkpoint is the truth
about progress; `commit` tells it to the option's `group`, for those who look at lags.

An end offset has the plan of its batch (plan.py). That of the first batch has its start, too: Spark
asks for it anew when that batch is repeated, and other options, another offset of the group, or
messages that have expired would give another one, without a word. When nothing is new the answer is
the start as it was given: Spark compares texts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from saturnmq.pipeline import options as _options
from saturnmq.pipeline import resolve_offsets
from saturnmq.pipeline.access import Access
from saturnmq.pipeline.columns import from_spark_schema
from saturnmq.pipeline.offsets import Offsets, from_json, plan_in, start_in, to_json
from saturnmq.pipeline.options import LATEST, SourceOptions
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import PIECE_ROWS, Range, ReadPlan, share
from saturnmq.pipeline.reading import cut_off, lost
from saturnmq.pipeline.resolve_offsets import Bounds
from saturnmq.pipeline.source import Ranges, plan_of, plan_ranges, read_ranges
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError, SaturnError

log = logging.getLogger(__name__)


def stream_reader(given: Mapping[str, str], schema: Any) -> DataSourceStreamReader:
    """The reader of `DataSource.streamReader`. ConfigError for wrong options and columns."""
    return StreamReader(_options.parse(given, streaming=True), schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's view of the queues."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        if options.group and options.where.path:
            raise ConfigError(
                "option group cannot be kept in a store directory, which is only read; leave it "
                "out, or read from endpoints"
            )
        self._options = options
        self._where = options.where
        self._decoding = options.decoding(from_spark_schema(schema))
        self._plan = plan_of(options)
        self._access: Access | None = None
        self._bounds: dict[MessageQueue, Bounds] = {}
        # Queues that are gone, or end too early: they were told, and are not waited for again.
        self._lacking: set[MessageQueue] = set()
        self._initial: dict[str, Any] | None = None
        self._target: Offsets | None = None
        self._committed: Offsets = {}
        self._triggered_at = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the reader as it was at the start, and open what they need themselves."""
        return self.__dict__ | {"_access": None}

    @property
    def _place(self) -> Access:
        if self._access is None:
            self._access = open_access(self._where)
        return self._access

    # -- offsets ---------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        self._bounds = resolve_offsets.find(self._place, self._options)
        found = resolve_offsets.starting(self._place, self._options, self._bounds, LATEST)
        self._initial = to_json(found)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits in the options; `latestOffset` obeys all of them."""
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        found = resolve_offsets.find(self._place, self._options, may_lack=True)
        self._target = {queue: bounds.high for queue, bounds in found.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = from_json(start)
        begin = dict(before)
        high = self._look(begin)
        waiting = {
            queue: end - begin.get(queue, 0)
            for queue, end in high.items()
            if end > begin.get(queue, 0)
        }
        everything = isinstance(limit, ReadAllAvailable)
        if not waiting or (not everything and self._too_few(sum(waiting.values()))):
            if begin == before:
                return start
            waiting = {}
        elif not everything:
            waiting = self._limited(begin, waiting)
        self._triggered_at = time.monotonic()
        end = begin | {queue: begin.get(queue, 0) + rows for queue, rows in waiting.items()}
        return to_json(end, self._plan.to_json(), before if start == self._initial else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The queues' ends when they were last looked at: the lag is what is between."""
        return to_json({queue: bounds.high for queue, bounds in self._bounds.items()}) or None

    def _look(self, begin: Offsets) -> Offsets:
        """The queues' ends, none before `begin`, which is lowered where a queue has lost its end,
        and raised where its messages have expired; what is lost is told, here or by the task."""
        options = self._options
        lacking: set[MessageQueue] = set()
        for attempt in range(options.where.retries + 1):
            if attempt:  # a broker that registers again is soon there, a slave soon as far
                time.sleep(options.where.retry_interval_ms / 1000)
            self._bounds = resolve_offsets.find(self._place, options, may_lack=True, begun=begin)
            lacking = {queue for queue, start in begin.items() if self._end_of(queue) < start}
            self._lacking &= lacking
            if lacking == self._lacking:
                break
        for queue in sorted(lacking):
            self._tell_lacking(queue, begin)
        self._lacking |= lacking
        if not options.fail_on_data_loss:  # limits are of messages: one batch passes over a gap
            for queue, (low, _) in self._bounds.items():
                if begin.get(queue, 0) < low:
                    begin[queue] = low
        high = {queue: max(end, begin.get(queue, 0)) for queue, (_, end) in self._bounds.items()}
        if self._target is not None:
            for queue in high.keys() & begin.keys():  # away when the target was noted
                self._target.setdefault(queue, high[queue])
            high = {
                queue: max(min(end, self._target.get(queue, 0)), begin.get(queue, 0))
                for queue, end in high.items()
            }
        return high

    def _tell_lacking(self, queue: MessageQueue, begin: Offsets) -> None:
        """Tell of a queue that is gone. In one that has lost its end the read goes on there, for
        new messages get the offsets of those that were lost."""
        start = end = begin[queue]
        if queue not in self._bounds:
            if queue in self._lacking:
                return
            why = "the queue is gone: its topic is deleted, or no broker of that name runs"
            if not resolve_offsets.is_chosen(self._options, queue):
                why = "the checkpoint has it, the options do not choose it any more: name it again"
        else:
            in_log = self._place.end_in_log(queue)
            if in_log is None or in_log >= start:  # a broker that comes back may have more
                return
            begin[queue] = end = self._bounds[queue].high
            why = cut_off(end)
        lost(self._options.fail_on_data_loss, Range(*queue, end, end), end, start, why)

    def _end_of(self, queue: MessageQueue) -> int:
        """Where the queue ends; before every offset if it is gone."""
        return self._bounds[queue].high if queue in self._bounds else -1

    def _too_few(self, rows: int) -> bool:
        """Whether to wait for more; never when the query ends with what there is now."""
        options = self._options
        waited_ms = (time.monotonic() - self._triggered_at) * 1000
        return (
            self._target is None
            and rows < options.min_offsets_per_trigger
            and waited_ms < options.max_trigger_delay_ms
        )

    def _limited(self, begin: Offsets, waiting: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        options = self._options
        if options.max_offsets_per_trigger:
            waiting = share(waiting, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            # In proportion to rows: to know the bytes of all that waits takes long where much does.
            total = sum(waiting.values())
            most = options.max_bytes_per_trigger
            waiting = {
                queue: self._within(queue, begin.get(queue, 0), rows, most * rows // total)
                for queue, rows in waiting.items()
            }
        return waiting

    def _within(self, queue: MessageQueue, start: int, rows: int, room: int) -> int:
        """The number of `rows` from `start` on that weigh no more than `room`; at least one."""
        at, end = start, start + rows
        while at < end and (room > 0 or at == start):
            rest = Range(*queue, at, end)
            [piece] = self._place.cuts([rest], max(room, 1), PIECE_ROWS, first_only=True)
            if piece.bytes > room and at > start:
                break
            at, room = piece.end, room - piece.bytes
        return at - start

    # -- batches ---------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, stop = start_in(end), from_json(end)
        if begin is None:
            begin = from_json(start)
        ranges = [Range(*queue, begin.get(queue, 0), last) for queue, last in stop.items()]
        if not any(item.rows > 0 for item in ranges):
            return []
        plan = ReadPlan.from_json(plan_in(end))
        return [Ranges(own) for own in plan_ranges(self._place, ranges, plan)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_ranges(self._where, self._decoding, partition.value or ())

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the group. That it cannot be told does not stop the query."""
        if not self._options.group:
            return
        changed = {
            queue: offset
            for queue, offset in from_json(end).items()
            if self._committed.get(queue) != offset and queue not in self._lacking
        }
        try:
            self._place.commit(self._options.group, changed)
        except SaturnError as error:
            log.warning("group %s does not hear of the progress: %s", self._options.group, error)
            return
        self._committed |= changed

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
