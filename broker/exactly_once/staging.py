"""Exactly-once for sinks: STAGE, PUBLISH, FINISH_EPOCH, ABORT_STAGE, SINK_STATE (ours).

A task of a sink stages its rows here, chunk by chunk, and publishes them at the end under a marker:
sink, epoch, partition. The writer appends all of them as one atomic batch (`store/log/atomic_batches.py`), unless the
marker is known (`sinks.py`): then the stage is dropped, and the answer is that of the first time,
with duplicate=true for every attempt except the one that was published. So a task that is not sure
repeats PUBLISH until it is answered, also at the group's next master; and a task that runs again,
for whatever reason, changes nothing.

| code | ext | answer |
|---|---|---|
| STAGE 390030 | sink, epoch, partition, attempt, seq, topic, queueId, bornTimestamp, sysFlag; body: MessageBatch entries of one queue | chunks, or duplicate=true: it is published already |
| PUBLISH 390031 | sink, epoch, partition, attempt, chunks, rows, bytes | duplicate, rows, offset (of the marker; -1 if it is not known any more) |
| FINISH_EPOCH 390032 | sink, epoch: all up to it are over, their markers need not be kept | |
| ABORT_STAGE 390033 | sink, epoch; partition, attempt | |
| SINK_STATE 390034 | sink; brokers: remember this list, unless there is one or replace=true | the sink's row as JSON, `{}` if there is none |

The answers to PUBLISH, FINISH_EPOCH and SINK_STATE wait as the ack mode demands, those to
duplicates as well. The answer to FINISH_EPOCH also waits until readers can have the published rows.
Codes beside those of sends: 390030 the stage is not here (any more): stage it again.

A batch goes in part by part, and between two parts the loop serves everything else. Requests that
append wait (`park`) until the batch is whole; then they are handled in their order. So do FENCE and
PROMOTE: the end of the log that they answer has the whole batch. If this node is master no more for
another reason, the batch is given up.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from saturnmq.broker.commit.acknowledgement import Acknowledgement
from saturnmq.broker.commit.admission import Admission
from saturnmq.broker.commit.inner_batches import check_not_wrapped, is_batched
from saturnmq.broker.commit.message_types import check_types
from saturnmq.broker.context import Context, answer, answer_failure
from saturnmq.broker.exactly_once.sinks import PublishedPartition, Sink, SinkTable
from saturnmq.broker.exactly_once.stages import StagedPartition, StageKey, Stages
from saturnmq.protocol import fastjson, headers
from saturnmq.protocol.budget import Budget
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.frame import TRANSACTION_MASK
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import RETRY_PREFIX
from saturnmq.runtime.errors import InvalidParameter, MessageIllegal, StageLost, SystemBusy
from saturnmq.store.message_store import AppendResult, AtomicBatchPart, Marker

log = logging.getLogger(__name__)

PARKED_BYTES_MAX = 64 << 20
PARKED_BYTES = 1500  # of one, beside its body
# Requests that append to the log, or mark its end, and so wait while a batch is being appended.
APPENDING = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_BATCHES,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.RECALL_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.FINISH_EPOCH,
        RequestCode.SINK_STATE,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.FENCE,
        RequestCode.PROMOTE,
    }
)


class StagingService:
    def __init__(
        self,
        context: Context,
        admission: Admission,
        acknowledgement: Acknowledgement,
        sinks: SinkTable,
        stages: Stages,
        guard: Callable[[Awaitable[None]], Awaitable[None]],
        dispatch: Callable[[], None],
    ) -> None:
        self._c = context
        self._runtime = context.runtime
        self._store = context.store
        self._dispatch = dispatch  # a bounded step of reput
        self._admission = admission
        self._acknowledgement = acknowledgement
        self._sinks = sinks
        self._stages = stages
        self._guard = guard  # a batch that was begun is finished, even if its caller is cancelled
        self._publishing = asyncio.Lock()
        self._parked: list[tuple[Endpoint, Command]] = []
        self._parked_memory = Budget(
            PARKED_BYTES_MAX, "of requests that wait for a group", context.connections.budget
        )

    def validate(self) -> None:
        """AssertionError: requests wait though no group is appended, or stages are wrong."""
        self._stages.validate()
        assert self._publishing.locked() or not self._parked, f"{len(self._parked)} are parked"
        assert self._parked_memory.used >= 0, f"they take {self._parked_memory.used} bytes"
        assert self._publishing.locked() or not self._store.in_group, "nobody appends a group"
        publishing = [stage.key for stage in self._stages if stage.publishing]
        assert len(publishing) <= 1, f"{publishing} are published at once"

    # requests

    def on_stage(self, endpoint: Endpoint, request: Command, header: headers.StageHeader) -> None:
        self._admission.check_ready()
        key, seq = _key(header), header.seq
        if self._known(key) is not None:
            self._drop(self._stages.get(key))
            answer(endpoint, request, request.reply(0, ext={"duplicate": "true"}))
            return
        stage = self._stages.get(key)
        chunks = len(stage.parts) if stage is not None else 0
        if seq > chunks or (stage is not None and stage.publishing):
            raise self._lost(key, f"it has {chunks} chunks, chunk {seq} is offered")
        if seq == chunks:
            stage = self._stages.add(
                key, memoryview(request.body), self._part(endpoint, request, header), self._now()
            )
            chunks += 1
            assert len(stage.parts) == chunks, f"{len(stage.parts)} parts of {chunks} chunks"
        answer(endpoint, request, request.reply(0, ext={"chunks": str(chunks)}))

    def _part(
        self, endpoint: Endpoint, request: Command, header: headers.StageHeader
    ) -> Callable[[Callable[[], bytes]], AtomicBatchPart]:
        """Check a chunk; return a function that makes its batch part."""
        c = self._c
        if header.topic.startswith(RETRY_PREFIX):
            raise MessageIllegal(f"a sink cannot write to {header.topic}; name another topic")
        topic, queue_id = self._admission.checked_queue(header.topic, header.queue_id)
        if is_batched(topic):
            raise MessageIllegal(
                f"topic {topic.name} has batches in its queues, which no sink writes: name another "
                "topic"
            )
        check_not_wrapped(topic.name, header.sys_flag)
        if c.config.check_message_types:
            check_types(topic, request.body)
        born_host = self._admission.born_host(endpoint.peer_address)
        sys_flag = header.sys_flag & ~TRANSACTION_MASK
        born_timestamp = header.born_timestamp
        if born_timestamp is None:
            born_timestamp = c.runtime.now_ms()
        count, size = c.store.measure_part(
            topic.name,
            request.body,
            sys_flag=sys_flag,
            hosts_v6=(len(born_host) == 20) + (len(c.store_host) == 20),
        )

        def part(read: Callable[[], bytes]) -> AtomicBatchPart:
            return AtomicBatchPart(
                topic.name, queue_id, count, size, read, sys_flag, born_timestamp, born_host
            )

        return part

    def on_publish(
        self, endpoint: Endpoint, request: Command, header: headers.PublishHeader
    ) -> None:
        told = header.chunks, header.rows, header.bytes
        self._later(endpoint, request, self._publish(endpoint, request, _key(header), told))

    def on_finish(
        self, endpoint: Endpoint, request: Command, header: headers.FinishEpochHeader
    ) -> None:
        self._admission.check_ready()
        name = header.sink
        sink = self._sinks.get(name) or Sink(0, 0)  # nothing is known of it
        epoch = sink.ends_with(header.epoch)
        for stage in self._stages:
            if stage.key.sink == name and stage.key.epoch <= epoch:
                self._drop(stage)
        if epoch <= sink.finished:
            end = sink.finished_end
        else:
            end = self._mark({"kind": "finished", "sink": name, "epoch": epoch})
        self._later(endpoint, request, self._finished(endpoint, request, end))

    def on_abort(
        self, endpoint: Endpoint, request: Command, header: headers.AbortStageHeader
    ) -> None:
        name, epoch = header.sink, header.epoch
        partition, attempt = header.partition, header.attempt
        for stage in self._stages:
            key = stage.key
            if (
                (key.sink, key.epoch) == (name, epoch)
                and partition in (-1, key.partition)
                and attempt in ("", key.attempt)
            ):
                self._drop(stage)
        answer(endpoint, request, request.reply(0))

    def on_state(
        self, endpoint: Endpoint, request: Command, header: headers.SinkStateHeader
    ) -> None:
        self._admission.check_ready()
        name = header.sink
        brokers = [broker for broker in header.brokers.split(";") if broker]
        sink = self._sinks.get(name)
        end = 0 if sink is None else sink.brokers_end
        if brokers and (sink is None or not sink.brokers or header.replace):
            end = self._mark({"kind": "brokers", "sink": name, "brokers": brokers})
            sink = self._sinks.get(name)
        body = fastjson.dumps({} if sink is None else sink.to_json())
        self._acknowledgement.answer_at(endpoint, request.reply(0, body=body), end)

    def _later(self, endpoint: Endpoint, request: Command, work: Awaitable[None]) -> None:
        """Do the work, which answers the request itself; if it fails, answer with its error."""
        request.body = b""
        self._guard(answer_failure(self._c, endpoint, request, work))

    # publishing

    async def _publish(
        self, endpoint: Endpoint, request: Command, key: StageKey, told: tuple[int, int, int]
    ) -> None:
        try:
            async with self._publishing:
                await self._publish_next(endpoint, request, key, told)
        finally:
            self._unpark()

    async def _publish_next(
        self, endpoint: Endpoint, request: Command, key: StageKey, told: tuple[int, int, int]
    ) -> None:
        self._admission.check_ready()
        known = self._known(key)
        stage = self._stages.get(key)
        if known is not None:
            self._drop(stage)
            self._answer(endpoint, request, known, duplicate=known.attempt != key.attempt)
            return
        if stage is None and told[0] == 0:
            stage = StagedPartition(key, self._now())  # a partition without rows
        if stage is None or len(stage.parts) != told[0]:
            chunks = 0 if stage is None else len(stage.parts)
            raise self._lost(key, f"it has {chunks} chunks, {told[0]} are to be published")
        if (stage.rows, stage.bytes) != told[1:]:
            raise InvalidParameter(
                f"{stage.rows} rows in {stage.bytes} bytes are staged, {told[1]} in {told[2]} were "
                "to be: stage them again"
            )
        gone = {p.topic for p in stage.parts if self._c.topics.get(p.topic) is None}
        if gone:
            self._drop(stage)
            raise self._lost(key, f"deleted meanwhile: {', '.join(sorted(gone))}")
        assert not stage.publishing, f"{key} is published twice at once"
        stage.publishing = True
        try:
            put = await self._append(stage)
        finally:
            stage.publishing = False
            self._drop(stage)  # if the append failed, the stage cannot be trusted
        self._answer(
            endpoint,
            request,
            PublishedPartition(
                stage.rows, stage.bytes, put.physical_offset, put.end_offset, key.attempt
            ),
            duplicate=False,
        )

    async def _append(self, stage: StagedPartition) -> AppendResult:
        """Append a stage as one atomic batch; other requests are served between two parts."""
        c, key = self._c, stage.key
        document = fastjson.dumps(
            {
                "kind": "group",
                "sink": key.sink,
                "epoch": key.epoch,
                "partition": key.partition,
                "attempt": key.attempt,
                "rows": stage.rows,
                "bytes": stage.bytes,
            }
        )
        put: AppendResult | None = None
        appending = c.store.append_group(document, stage.parts, store_host=c.store_host)
        for put in appending:
            if put is None:
                await c.runtime.sleep(0)
                try:
                    self._admission.check_leads()
                except SystemBusy as refused:  # its next master does not wait for this batch
                    appending.throw(refused)
        assert put is not None, f"{key} was appended, and nobody knows where"
        assert put.physical_offset < put.end_offset, (put.physical_offset, put.end_offset)
        self._take(put, document)
        return put

    async def _finished(self, endpoint: Endpoint, request: Command, end: int) -> None:
        """Answer when readers can have all of the epoch: its writer may count on it then."""
        marks, before = self._store.watermarks, -1
        while (
            before < marks.dispatched < end
        ):  # dispatch stands still when the log was cut, or is damaged
            before = marks.dispatched
            self._dispatch()
            await self._runtime.sleep(0)
        self._acknowledgement.answer_at(endpoint, request.reply(0), end)

    def _mark(self, fact: dict[str, object]) -> int:
        """Write a fact into the log; return where it ends there."""
        document = fastjson.dumps(fact)
        put = self._store.put_marker(document, store_host=self._c.store_host)
        self._take(put, document)
        return put.end_offset

    def _take(self, put: AppendResult, document: bytes) -> None:
        """Take a marker at once: the next request may ask for it before it is dispatched."""
        place = put.queue_offset, put.physical_offset, put.end_offset
        self._sinks.take(Marker(*place, put.store_timestamp, document))

    def _known(self, key: StageKey) -> PublishedPartition | None:
        """The partition that was published under this marker."""
        sink = self._sinks.get(key.sink)
        if sink is None:
            return None
        if key.epoch <= sink.finished:
            return PublishedPartition(-1, -1, -1, sink.finished_end)
        return sink.epochs.get(key.epoch, {}).get(key.partition)

    def _answer(
        self,
        endpoint: Endpoint,
        request: Command,
        published: PublishedPartition,
        *,
        duplicate: bool,
    ) -> None:
        ext = {
            "duplicate": "true" if duplicate else "false",
            "rows": str(published.rows),
            "offset": str(published.start),
        }
        self._acknowledgement.answer_at(endpoint, request.reply(0, ext=ext), published.end)

    @staticmethod
    def _lost(key: StageKey, why: str) -> StageLost:
        return StageLost(
            f"partition {key.partition} of epoch {key.epoch} is not wholly staged here ({why}): "
            "this broker was restarted or promoted meanwhile, or the lease of the stage "
            "(stageLease) is over; stage it again"
        )

    # requests that wait for a batch

    def park(self, endpoint: Endpoint, request: Command) -> None:
        """Handle this request when the batch that is being appended is whole."""
        assert self._store.in_group, f"request {request.code} waits for no group"
        size = len(request.body) + PARKED_BYTES
        self._parked_memory.take(size, "a request that waits for a group to be appended")
        request.body = bytes(request.body)
        self._parked.append((endpoint, request))

    def _unpark(self) -> None:
        parked, self._parked = self._parked, []
        self._parked_memory.close()
        for endpoint, request in parked:
            endpoint.handle(request)

    # the end of stages

    def expire(self, now: float) -> None:
        """Drop stages that have got no chunk for the time of a lease."""
        for stage in self._stages:
            if now - stage.used_at > self._c.config.stage_lease_ms / 1000:
                log.info("the lease of a stage of %s is over", stage.key.sink)
                self._drop(stage)

    def drop_all(self) -> None:
        """Drop all stages: this node is not the master any more."""
        for stage in self._stages:
            self._drop(stage)

    def _drop(self, stage: StagedPartition | None) -> None:
        if stage is None or stage.publishing:
            return
        paths = self._stages.drop(stage)
        if paths:
            self._runtime.spawn(self._remove(paths), name="drop-stage")

    async def _remove(self, paths: list[str]) -> None:
        await self._runtime.run_blocking(self._stages.remove, paths)

    def _now(self) -> float:
        return self._runtime.monotonic()


def _key(header: headers.AttemptHeader) -> StageKey:
    return StageKey(header.sink, header.epoch, header.partition, header.attempt)
