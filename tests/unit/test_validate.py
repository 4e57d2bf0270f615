"""Every `validate` finds the contradiction that it looks for: each is made once, and told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from broker_rig import config, connected, run, send, started
from saturnmq.broker.broker import Broker
from saturnmq.broker.commit.ack_ledger import Waiting
from saturnmq.broker.commit.gate import StoreGate
from saturnmq.broker.exactly_once.sinks import PublishedPartition, Sink
from saturnmq.broker.exactly_once.stages import StagedPartition, StageKey
from saturnmq.broker.replication.ha_master import SlaveConnection
from saturnmq.broker.replication.in_sync import SlaveLag
from saturnmq.broker.replication.recovering import RecoveryAttempt
from saturnmq.broker.replication.role import State
from saturnmq.broker.tables.clients import ConsumerGroup
from saturnmq.broker.tables.offsets import GroupOffset
from saturnmq.broker.tables.progress import Mark
from saturnmq.broker.tables.statistics import Totals
from saturnmq.client.consumer.process_queue import ProcessQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.derived.tombstones import Tombstone
from saturnmq.store.log.atomic_batches import AtomicBatch
from saturnmq.store.log.epochs import Epoch
from saturnmq.store.message_store import MessageStore
from store_rig import dispatch, flush, message, new_disk, open_store

Break = Callable[[Any], AbstractContextManager[None]]


@contextmanager
def changed(target: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(target, name)
    object.__setattr__(target, name, value)  # whatever checks its own setter makes
    try:
        yield
    finally:
        object.__setattr__(target, name, before)


@contextmanager
def entry(table: Any, key: Any, value: Any) -> Iterator[None]:
    before = dict(table)
    table[key] = value
    try:
        yield
    finally:
        table.clear()
        table.update(before)


@contextmanager
def appended(items: Any, value: Any) -> Iterator[None]:
    items.append(value)
    try:
        yield
    finally:
        items.pop()


def whole_store() -> MessageStore:
    store = open_store(new_disk())
    for number in range(200):
        store.put(message(b"%d" % number, queue=number % 2))
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    return store


def queue_of(store: MessageStore) -> Any:
    return store._queues.table["T", 0]


STORE: dict[str, Break] = {
    "flushed leads": lambda s: changed(s.watermarks, "flushed", s._log.end + 1),
    "dispatched leads": lambda s: changed(s.watermarks, "dispatched", s._log.end + 1),
    "confirmed leads": lambda s: changed(s.watermarks, "confirmed", s._log.end + 1),
    "replicated leads": lambda s: changed(s.watermarks, "replicated", s._log.end + 1),
    "appended leads": lambda s: changed(s.watermarks, "appended", s._log.end + 1),
    "start leads": lambda s: changed(s.watermarks, "start", s._log.end + 1),
    "end behind the segments": lambda s: changed(s._log, "end", s._log.series.end + 1),
    "a hole": lambda s: changed(s._log.series.segments[0], "end", 1),
    "a start that differs": lambda s: changed(s._log.series.segments[1], "start", 1),
    "prepared": lambda s: changed(s._log.series.segments[0], "prepared", -1),
    "a buffer without a pool": lambda s: entry(s._log._buffers, 0, memoryview(b"")),
    "a queue leads the log": lambda s: changed(
        s, "_log", SimpleNamespace(end=10, validate=lambda marks: None)
    ),
    "a queue's ends": lambda s: changed(queue_of(s), "_low", 101),
    "a queue's name": lambda s: changed(queue_of(s), "topic", "U"),
    "more entries than offsets": lambda s: entry(s._queues.next, ("T", 0), 99),
    "since": lambda s: changed(queue_of(s), "since", 7),
    "a tombstone": lambda s: changed(s._queues, "tombstones", {"U": Tombstone(-1)}),
    "an index file": lambda s: changed(s._derived.index.files[-1], "header", [0] * 6),
    "names of index files": lambda s: changed(s._derived.index, "_highest", 0),
    "an empty batch": lambda s: changed(s._groups, "_ahead", [AtomicBatch(9, 9)]),
    "batches overlap": lambda s: changed(
        s._groups, "_ahead", [AtomicBatch(0, 90), AtomicBatch(50, 99)]
    ),
    "a checkpoint leads": lambda s: changed(s._saved, "flushed", s._log.end + 1),
    "derived leads flushed": lambda s: changed(s._saved, "derived", s._saved.flushed + 1),
    "an identity": lambda s: changed(s._saved, "identity", "abc"),
}


@pytest.mark.parametrize("name", STORE)
def test_a_store_that_contradicts_itself_is_not_valid(name: str) -> None:
    store = whole_store()
    store.validate()
    with STORE[name](store), pytest.raises(AssertionError):
        store.validate()
    store.validate()


def test_a_store_that_failed_promises_nothing() -> None:
    store = whole_store()
    with changed(store, "_failed", "EIO"), changed(store._log, "end", -1):
        store.validate()


def place(topic: str = "orders") -> GroupOffset:
    return GroupOffset(topic, "readers", 0)


def stage() -> StagedPartition:
    return StagedPartition(StageKey("s", 1, 0, "a"), 0.0, bytes=5)


class Pull:
    due, done = 3, False


def role(b: Broker) -> Any:
    return b.context.role


def machine(b: Broker) -> Any:
    return b.replication.executor.machine


def sink(**more: Any) -> Sink:
    return Sink(**({"first": 0, "newest": 10, "touched_ms": 0} | more))


def of_sink(value: Sink) -> Break:
    return lambda b: entry(b.messaging.sinks._sinks, "s", value)


BROKER: dict[str, Break] = {
    "store": lambda b: changed(b.store.watermarks, "flushed", b.store._log.end + 1),
    "epochs fall": lambda b: changed(b.context.epochs, "entries", [Epoch(2, 0), Epoch(1, 0)]),
    "an epoch before the log": lambda b: changed(b.context.epochs, "entries", [Epoch(1, -1)]),
    "identity": lambda b: changed(b.context.epochs, "identity", "abc"),
    "promised epoch": lambda b: changed(role(b), "promised_epoch", -1),
    "log epoch": lambda b: changed(role(b), "log_epoch", 1 << 31),
    "leads in another epoch": lambda b: changed(role(b), "log_epoch", 7),
    "recorded": lambda b: changed(role(b), "recorded_log_epoch", -1),
    "floor": lambda b: changed(role(b), "floor", -1),
    "required": lambda b: changed(role(b), "required", 0),
    "a master with the id of a slave": lambda b: changed(role(b), "broker_id", 1),
    "a slave with the id of a master": lambda b: changed(role(b), "state", State.SLAVE),
    "a master that lacks something": lambda b: changed(role(b), "lacks", "its front"),
    "forced": lambda b: changed(role(b), "forced", [*range(17)]),
    "a replica with the id of a master": lambda b: changed(role(b), "replicas", {0: "a:1"}),
    "topic's name": lambda b: entry(b.context.topics._topics, "x", b.context.topics.get("orders")),
    "topic's queues": lambda b: entry(
        b.context.topics._topics, "orders", replace(b.context.topics.get("orders"), read_queues=-1)
    ),
    "bytes of topics": lambda b: changed(b.context.topics._text, "_bytes", 0),
    "a topic that is none": lambda b: entry(b.context.topics._as_of, "gone", 5),
    "a deletion": lambda b: entry(b.context.topics.deleted, "gone", Tombstone(-1)),
    "news": lambda b: changed(b.context.topics, "version", 0),
    "group's name": lambda b: entry(b.context.groups._groups, "x", next(iter(b.context.groups))),
    "bytes of groups": lambda b: changed(b.context.groups._text, "_bytes", 0),
    "generation": lambda b: entry(b.context.offsets.progress.marks, place(), Mark(-1, 0)),
    "offset": lambda b: entry(b.context.offsets.progress.marks, place(), Mark(0, -2)),
    "text of offsets": lambda b: changed(b.context.offsets, "_text_bytes", -1),
    "no producer": lambda b: entry(b.context.clients.producers, "g", {}),
    "no consumer": lambda b: entry(b.context.clients.consumers, "g", ConsumerGroup("g")),
    "consumers' name": lambda b: entry(b.context.clients.consumers, "g", ConsumerGroup("h")),
    "locks": lambda b: changed(b.context.locks, "_count", 1),
    "an answer that waits for nothing": lambda b: appended(
        b.context.ledger._waiting,
        Waiting(0, 0.0, 0.0, None, Command.request(1).reply(0)),  # type: ignore[arg-type]
    ),
    "an answer that was given": lambda b: appended(
        b.context.ledger._waiting,
        Waiting(9, 0.0, 0.0, None, Command.request(1).reply(10)),  # type: ignore[arg-type]
    ),
    "totals fall": lambda b: changed(b.context.statistics, "totals", Totals(-1)),
    "memory": lambda b: changed(b.context.tables, "counts", {1: lambda: -1}),
    "machine's log": lambda b: changed(machine(b), "log", replace(machine(b).log, start=9, end=8)),
    "machine's missing": lambda b: changed(
        machine(b), "log", replace(machine(b).log, missing=((5, 5),), amnesia="x")
    ),
    "a recovery of a master": lambda b: changed(
        machine(b).recovering, "_under_way", RecoveryAttempt(None, ())
    ),
    "a word of somebody else": lambda b: entry(
        machine(b).recovering.words._members, "a:1", SimpleNamespace(address="b:1")
    ),
    "known epoch": lambda b: changed(machine(b).recovering.words, "known_epoch", -1),
    "a promise": lambda b: changed(machine(b).promises, "_promised", -1),
    "a slave at no connection": lambda b: entry(
        machine(b).slaves._slaves, 0, SimpleNamespace(join=SimpleNamespace(address="a:1"))
    ),
    "joins who does not lead": lambda b: changed(
        machine(b).following, "_joining", SimpleNamespace(hello=SimpleNamespace(state="slave"))
    ),
    "an event nobody looks at": lambda b: appended(b.replication.executor._events, "event"),
    "a step that nobody does": lambda b: changed(b.replication.executor, "_awaited", object()),
    "sinks' next": lambda b: changed(b.messaging.sinks, "_next", -1),
    "markers fall": of_sink(sink(newest=-1)),
    "rows of a finished epoch": of_sink(sink(finished=3, epochs={3: {}})),
    "a partition behind the markers": of_sink(
        sink(epochs={3: {0: PublishedPartition(1, 1, 11, 20)}})
    ),
    "an empty partition": of_sink(sink(epochs={3: {0: PublishedPartition(1, 1, 5, 5)}})),
    "bytes of stages": lambda b: changed(b.messaging.staging._stages, "_used", 1),
    "a stage without a file": lambda b: entry(
        b.messaging.staging._stages._stages, stage().key, stage()
    ),
    "parked for nothing": lambda b: appended(b.messaging.staging._parked, (None, None)),
    "waits fall": lambda b: changed(
        b.messaging.delays._waits[1], "_entries", [(5, None), (3, None)]
    ),
    "a level": lambda b: entry(b.messaging.delays._next, 0, 0),
    "a mark of delays": lambda b: entry(b.messaging.delays.progress.marks, 1, Mark(0, -2)),
    "delivered of no level": lambda b: appended(b.messaging.delays._delivered, (5, 99, 1)),
    "held pulls": lambda b: changed(b.messaging.pulls.held, "count", 1),
    "a pull without an end": lambda b: entry(
        b.messaging.pulls.held.by_queue, ("T", 0), {Pull(): None}
    ),
    "a time of nobody": lambda b: entry(b.messaging.pulls.held._by_time, 5, {}),
    "gate": lambda b: changed(b.ground.gate, "_working", -1),
    "slaves": lambda b: appended(b.ground.master.connections, slave_connection(next=-1)),
    "a slave of the future": lambda b: appended(
        b.ground.master.connections, slave_connection(mark_at=1e18)
    ),
}


def slave_connection(*, next: int | None = None, mark_at: float = 0.0) -> Any:
    made = object.__new__(SlaveConnection)
    made.link, made.ours, made.next, made.join, made.sent_bytes = 1, False, next, None, 0
    made.lag = SlaveLag()
    made.lag._mark_at = mark_at
    return made


def test_a_broker_that_contradicts_itself_is_not_valid(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await send(client, b"one")
        broker.context.offsets.commit("readers", "orders", 0, 1)
        broker.validate()
        for name, contradiction in BROKER.items():
            with contradiction(broker):
                try:
                    broker.validate()
                except AssertionError:
                    continue
                pytest.fail(f"{name}: nothing is told")
        broker.validate()
        client.close()
        await broker.close()

    run(body)


def offsets(*numbers: int) -> list[Any]:
    return [SimpleNamespace(queue_offset=number) for number in numbers]


QUEUE: dict[str, Break] = {
    "messages": lambda q: changed(q, "messages", 4),
    "bytes": lambda q: changed(q, "bytes", 4),
    "next": lambda q: changed(q, "next_offset", -2),
    "generation": lambda q: changed(q, "generation", -1),
    "lock": lambda q: changed(q, "lock_until", 7.0),
    "order": lambda q: changed(q._untaken[0], "messages", offsets(90, 91, 92)),
    "a batch that is taken": lambda q: changed(q._untaken[0], "taken", 3),
}


@pytest.mark.parametrize("name", QUEUE)
def test_a_process_queue_that_contradicts_itself_is_not_valid(name: str) -> None:
    queue = ProcessQueue()
    queue.put(offsets(0, 1, 2), 3, 30)
    queue.put(offsets(3, 4, 5), 6, 30)
    queue.validate()
    with QUEUE[name](queue), pytest.raises(AssertionError):
        queue.validate()
    run = queue.take(2)
    assert run is not None
    queue.validate()
    queue.finish(run)
    queue.validate()


def test_nobody_works_beside_a_second_truncation_that_waited_before_them() -> None:
    async def body(runtime: NativeRuntime) -> None:
        gate = StoreGate(runtime)
        resting: list[bool] = []
        together: list[bool] = []

        async def work() -> None:
            together.append(bool(resting and resting[-1]))

        def pause() -> None:
            resting.append(True)

        def resume() -> None:
            resting.append(False)

        first = gate.exclusive(lambda: None, pause=pause, resume=resume)
        second = gate.exclusive(lambda: None, pause=pause, resume=resume)
        await asyncio.gather(first, second, gate.shared(work()))
        assert resting == [True, False, True, False]
        assert together == [False]

    run(body)
