"""Exactly-once at a real broker: stages, groups, markers, and the blocking client of sinks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, run, send, started, until
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.exactly_once import staging
from saturnmq.client.loop_thread import LoopThread
from saturnmq.client.producer.staging import Pinned, StagingClient
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.errors import (
    ConfigError,
    ConnectFailed,
    MessageIllegal,
    StageLost,
    TopicNotExist,
    UnsupportedRequest,
)
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import NativeDisk

STAGE, PUBLISH, FINISH, ABORT, STATE = 390030, 390031, 390032, 390033, 390034
TOPIC = {"topic": "orders", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}


def entries(*bodies: bytes) -> bytes:
    return bytes(encode_batch((body, b"UNIQ_KEY\x01U\x02", 0) for body in bodies))


def key(epoch: int = 0, partition: int = 0, attempt: str = "a") -> dict[str, Any]:
    return {"sink": "s", "epoch": epoch, "partition": partition, "attempt": attempt}


async def stage(client: Endpoint, seq: int, *bodies: bytes, queue: int = 0, **more: Any) -> Any:
    ext = {**key(), "seq": seq, "topic": "orders", "queueId": queue, **more}
    return await ask(client, STAGE, ext, entries(*bodies))


def told(rows: int, *chunks: Sequence[bytes]) -> dict[str, int]:
    return {"chunks": len(chunks), "rows": rows, "bytes": sum(len(entries(*c)) for c in chunks)}


def bodies_of(broker: Broker, queue: int = 0, topic: str = "orders") -> list[bytes]:
    found: list[bytes] = []
    while len(found) < broker.store.max_offset(topic, queue):
        result = broker.store.get_message(topic, queue, len(found), 1000, 1 << 20)
        found += [bytes(message.body) for message in decode_frames(result.data, True)]
    return found


async def settled(broker: Broker) -> None:
    marks = broker.store.watermarks
    await until(lambda: marks.dispatched == marks.appended)


async def ready(runtime: NativeRuntime, settings: BrokerConfig) -> tuple[Broker, Endpoint]:
    broker = await started(runtime, settings)
    client = await connected(runtime, broker)
    assert (await ask(client, 17, TOPIC)).code == 0
    return broker, client


@pytest.mark.parametrize("memory", [0, len(entries(b"a", b"b")), 1000])
def test_what_is_staged_is_seen_by_nobody_before_it_is_published_and_then_all_of_it(
    tmp_path: Path, memory: int
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path, stage_memory_bytes=memory))
        end = broker.store.watermarks.appended
        assert (await stage(client, 0, b"a", b"b")).ext == {"chunks": "1"}
        assert (await stage(client, 1, b"c", queue=1)).ext == {"chunks": "2"}
        assert broker.store.watermarks.appended == end
        assert (tmp_path / "staging").exists() == (memory < 1000)  # what is too much for memory
        first = await ask(client, PUBLISH, {**key(), **told(3, [b"a", b"b"], [b"c"])})
        assert (first.code, first.ext["duplicate"], first.ext["rows"]) == (0, "false", "3")
        await until(lambda: broker.store.max_offset("orders", 1) == 1)
        assert (bodies_of(broker, 0), bodies_of(broker, 1)) == ([b"a", b"b"], [b"c"])
        await until(lambda: not list((tmp_path / "staging").glob("*")))
        await broker.close()

    run(body)


def test_a_partition_is_published_once_by_whatever_attempt(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        for attempt in ("a", "b"):
            await stage(client, 0, b"row", attempt=attempt)
        wanted = told(1, [b"row"])
        first, second = await asyncio.gather(
            *(ask(client, PUBLISH, {**key(attempt=each), **wanted}) for each in ("a", "b"))
        )
        assert (first.ext["duplicate"], second.ext["duplicate"]) == ("false", "true")
        assert first.ext["offset"] == second.ext["offset"]
        late = await stage(client, 0, b"row", attempt="c")
        assert late.ext == {"duplicate": "true"}
        await settled(broker)
        assert bodies_of(broker) == [b"row"]
        await broker.close()

    run(body)


def test_a_finished_epoch_is_over_for_whoever_comes_late(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        await stage(client, 0, b"row", epoch=4)
        await ask(client, PUBLISH, {**key(4), **told(1, [b"row"])})
        await stage(client, 0, b"never", epoch=4, partition=9)
        assert (await ask(client, FINISH, {"sink": "s", "epoch": 4})).code == 0
        assert (await ask(client, FINISH, {"sink": "s", "epoch": 4})).code == 0
        late = await ask(client, PUBLISH, {**key(3, 7), **told(1, [b"row"])})
        assert (late.code, late.ext["duplicate"], late.ext["rows"]) == (0, "true", "-1")
        sink = broker.messaging.sinks.get("s")
        assert sink is not None
        assert (sink.finished, sink.epochs) == (4, {})
        await settled(broker)
        assert broker.store.markers == (0, 2)
        await broker.close()

    run(body)


def test_an_epoch_far_behind_what_was_published_makes_no_duplicates_of_those_before_it(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        for epoch in range(3):
            for far in ((1 << 62) - 1, epoch + 2):
                assert (await ask(client, FINISH, {"sink": "s", "epoch": far})).code == 0
            assert (await stage(client, 0, b"row", epoch=epoch)).ext == {"chunks": "1"}
            published = await ask(client, PUBLISH, {**key(epoch), **told(1, [b"row"])})
            assert (published.code, published.ext["duplicate"]) == (0, "false")
        for _ in range(2):
            assert (await ask(client, FINISH, {"sink": "s", "epoch": 3})).code == 0
        late = await ask(client, PUBLISH, {**key(3, 7), **told(1, [b"row"])})
        assert late.ext["duplicate"] == "true", "of the next one another broker has all"
        await settled(broker)
        assert bodies_of(broker) == [b"row"] * 3
        await broker.close()

    run(body)


def test_what_is_known_survives_a_restart_with_its_file_and_without(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        for life in range(3):
            broker, client = await ready(runtime, config(tmp_path))
            if life == 0:
                await stage(client, 0, b"row")
            for attempt, duplicate in (("a", "false"), ("b", "true")):
                # Who asks again because an answer was lost is told of its own rows.
                again = await ask(client, PUBLISH, {**key(attempt=attempt), **told(1, [b"row"])})
                assert (again.code, again.ext["duplicate"]) == (0, duplicate)
                assert again.ext["rows"] == "1"
            await broker.close()
            if life == 1:
                for path in (tmp_path / "config").glob("sinks.json*"):
                    path.unlink()
        assert not list((tmp_path / "staging").glob("*"))

    run(body)


def test_what_a_cut_took_from_the_log_is_published_anew(tmp_path: Path) -> None:
    """A slave that knew of it may lead next."""

    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        ends = []
        for partition, row in enumerate((b"kept", b"cut")):
            await stage(client, 0, row, partition=partition)
            published = {**key(partition=partition), **told(1, [row])}
            assert (await ask(client, PUBLISH, published)).ext["duplicate"] == "false"
            await settled(broker)
            ends.append(broker.store.watermarks.appended)
        await broker.replication.executor._doors.cut(ends[0], "a promotion")
        assert bodies_of(broker) == [b"kept"]
        for partition, row, duplicate in ((0, b"kept", "true"), (1, b"cut", "false")):
            attempt = key(partition=partition, attempt="b")
            await stage(client, 0, row, **attempt)
            again = await ask(client, PUBLISH, {**attempt, **told(1, [row])})
            assert again.ext["duplicate"] == duplicate
        await settled(broker)
        assert bodies_of(broker) == [b"kept", b"cut"]
        await broker.close()

    run(body)


def test_what_is_put_back_behind_a_cut_is_known_before_writes_are_taken_again(
    tmp_path: Path,
) -> None:
    """A master whose disk lost the front of its log copies it back, then its own end."""

    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        await stage(client, 0, b"row")
        assert (await ask(client, PUBLISH, {**key(), **told(1, [b"row"])})).code == 0
        await settled(broker)
        doors, end = broker.replication.executor._doors, broker.store.watermarks.appended
        await doors.cut(0, "its front is missing")
        [side] = broker.store.truncated()
        await doors.put_back(side)
        await doors.cut_torn()
        assert broker.store.watermarks.appended == end
        await stage(client, 0, b"row", attempt="b")
        again = await ask(client, PUBLISH, {**key(attempt="b"), **told(1, [b"row"])})
        assert again.ext["duplicate"] == "true"
        assert bodies_of(broker) == [b"row"]
        await broker.close()

    run(body)


def test_a_marker_that_was_damaged_counts_when_it_is_mended(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        await stage(client, 0, b"row")
        assert (await ask(client, PUBLISH, {**key(), **told(1, [b"row"])})).code == 0
        await settled(broker)
        # A start that found damage there passed over the marker.
        end = broker.store.watermarks.appended
        broker.messaging.sinks.load({"end": end, "next": 1, "sinks": {}})
        await broker.replication.rewriter.repair(lambda: None)
        await stage(client, 0, b"row", attempt="b")
        again = await ask(client, PUBLISH, {**key(attempt="b"), **told(1, [b"row"])})
        assert again.ext["duplicate"] == "true"
        await broker.close()

    run(body)


def test_a_stage_that_is_not_whole_is_lost_and_says_so(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        gap = await stage(client, 1, b"b")
        assert gap.code == 390030
        assert "stage it again" in gap.remark
        await stage(client, 0, b"a")
        assert (await stage(client, 0, b"a")).ext == {"chunks": "1"}  # its answer was lost
        short = await ask(client, PUBLISH, {**key(), **told(2, [b"a"], [b"b"])})
        assert short.code == 390030
        other = await ask(client, PUBLISH, {**key(), "chunks": 1, "rows": 5, "bytes": 1})
        assert other.code == 29
        await broker.close()

    run(body)


def test_what_is_staged_for_a_topic_that_is_deleted_is_lost_and_says_so(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        await stage(client, 0, b"row")
        assert (await ask(client, 215, {"topic": "orders"})).code == 0
        end = broker.store.watermarks.appended
        lost = await ask(client, PUBLISH, {**key(), **told(1, [b"row"])})
        assert lost.code == 390030
        assert "deleted meanwhile: orders" in str(lost.remark)
        assert broker.store.watermarks.appended == end
        await broker.close()

    run(body)


def test_an_abort_and_the_end_of_a_lease_drop_what_is_staged(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        settings = config(tmp_path, stage_memory_bytes=0, stage_lease_ms=1000)
        broker, client = await ready(runtime, settings)
        for attempt in ("a", "b"):
            await stage(client, 0, b"row", attempt=attempt)
        await stage(client, 0, b"row", partition=1)
        assert len(list((tmp_path / "staging").iterdir())) == 3
        await ask(client, ABORT, {"sink": "s", "epoch": 0, "partition": 0, "attempt": "a"})
        await until(lambda: len(list((tmp_path / "staging").iterdir())) == 2)
        await ask(client, ABORT, {"sink": "s", "epoch": 0, "partition": 0})
        await until(lambda: len(list((tmp_path / "staging").iterdir())) == 1)
        broker.messaging.staging.expire(runtime.monotonic() + 2)
        await until(lambda: not list((tmp_path / "staging").iterdir()))
        await broker.close()

    run(body)


def test_too_much_for_one_partition_or_for_the_broker_is_refused(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        limits = {"stage_max_bytes": 3000, "stage_memory_bytes": 0, "stage_total_bytes": 8000}
        settings = config(tmp_path, **limits)
        broker, client = await ready(runtime, settings)
        row = bytes(1000)
        await stage(client, 0, row)
        await stage(client, 1, row)
        over = await stage(client, 2, row)
        assert over.code == 13
        assert "raise the number of partitions" in over.remark
        await stage(client, 0, row, partition=1)
        full = await stage(client, 0, row, partition=2)
        assert full.code == 215
        assert "stageTotalBytes" in full.remark
        await ask(client, ABORT, {"sink": "s", "epoch": 0, "partition": 0})
        assert (await stage(client, 0, row, partition=2)).code == 0
        illegal = await stage(client, 0, bytes(5 << 20), partition=3)
        assert illegal.code == 13
        unknown = await ask(
            client, STAGE, {**key(7), "seq": 0, "topic": "none", "queueId": 0}, entries(b"x")
        )
        assert unknown.code == 17
        await broker.close()

    run(body)


def test_what_is_staged_is_counted_in_the_memory_of_the_process_and_leaves_half_of_it(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        budget = broker.context.connections.budget
        before, files = budget.used, tmp_path / "staging"
        await stage(client, 0, bytes(100_000))
        assert budget.used - before >= 100_000
        assert not files.exists()
        taken = budget.limit // 2 - budget.used
        budget.hold(taken)
        await stage(client, 1, bytes(100_000))
        assert files.exists(), "memory is scarce, so it goes into a file"
        taken += budget.limit - budget.used
        budget.hold(budget.limit - budget.used)
        full = await stage(client, 2, b"x")
        assert (full.code, "memoryBudgetBytes" in full.remark) == (2, True)
        budget.give_back(taken)
        await ask(client, ABORT, {"sink": "s", "epoch": 0})
        assert budget.used - before < 400_000  # the receive buffer
        assert broker.messaging.staging._stages._memory.used == 0
        await broker.close()

    run(body)


def test_sends_that_wait_for_a_group_are_counted_and_refused_beyond_their_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PARKED_BYTES_MAX", 3 * (staging.PARKED_BYTES + 200))

    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        chunks = [[b"%d-%d" % (n, m) for m in range(20)] for n in range(200)]
        for n, chunk in enumerate(chunks):
            await stage(client, n, *chunk)
        publish = ask(client, PUBLISH, {**key(), **told(4000, *chunks)})
        group = asyncio.ensure_future(publish)
        while not broker.store.in_group:
            await asyncio.sleep(0)
        sends = [asyncio.ensure_future(send(client, bytes(100))) for _ in range(4)]
        replies = [await each for each in sends]
        assert [reply.code for reply in replies] == [0, 0, 0, 2]
        assert "waits for a group" in str(replies[3].remark)
        assert (await group).code == 0
        assert broker.messaging.staging._parked_memory.used == 0
        await broker.close()

    run(body)


@pytest.mark.parametrize("lie", [{"bornTimestamp": "9" * 400}, {"sysFlag": 1 << 40}], ids=list)
def test_what_no_message_can_have_is_not_staged_and_sends_go_on(
    tmp_path: Path, lie: dict[str, Any]
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        refused = await stage(client, 0, b"never", **lie)
        assert (refused.code, next(iter(lie)) in refused.remark) == (29, True)
        lost = await ask(client, PUBLISH, {**key(), **told(1, [b"never"])})
        assert (lost.code, "it has 0 chunks" in lost.remark) == (StageLost.code, True)
        assert (await send(client, b"sent")).code == 0
        assert (await stage(client, 0, b"row", attempt="b")).ext == {"chunks": "1"}
        published = await ask(client, PUBLISH, {**key(attempt="b"), **told(1, [b"row"])})
        assert (published.code, published.ext["duplicate"]) == (0, "false")
        await settled(broker)
        assert bodies_of(broker) == [b"sent", b"row"]
        await broker.close()

    run(body)


def test_a_chunk_whose_checksum_is_wrong_undoes_its_group(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        await stage(client, 0, b"good")
        bent = bytearray(entries(b"bad!"))
        bent[20] ^= 1
        await ask(client, STAGE, {**key(), "seq": 1, "topic": "orders", "queueId": 0}, bytes(bent))
        end = broker.store.watermarks.appended
        reply = await ask(client, PUBLISH, {**key(), **told(2, [b"good"], [b"bad!"])})
        assert reply.code == 13
        assert "CRC" in reply.remark
        assert broker.store.watermarks.appended == end
        assert (await send(client, b"next")).code == 0
        await settled(broker)
        assert bodies_of(broker) == [b"next"]
        await broker.close()
        broker = await started(runtime, config(tmp_path))
        assert (broker.store.recovery.stopped_by, bodies_of(broker)) == ("", [b"next"])
        await broker.close()

    run(body)


def test_sends_wait_for_a_group_and_keep_their_order_and_pulls_do_not(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, client = await ready(runtime, config(tmp_path))
        chunks = [[b"%d-%d" % (n, m) for m in range(20)] for n in range(200)]
        for n, chunk in enumerate(chunks):
            await stage(client, n, *chunk)
        parked: list[bool] = []
        publish = ask(client, PUBLISH, {**key(), **told(4000, *chunks)})
        group = asyncio.ensure_future(publish)
        while not broker.store.in_group:  # it takes a few turns of the loop only
            await asyncio.sleep(0)
        sends = [asyncio.ensure_future(send(client, b"after %d" % n)) for n in range(3)]
        state = asyncio.ensure_future(ask(client, 30, {"topic": "orders", "queueId": 0}))
        state.add_done_callback(lambda _: parked.append(broker.store.in_group))
        assert (await group).code == 0
        assert [(await each).ext["queueOffset"] for each in sends] == ["4000", "4001", "4002"]
        assert parked == [True]
        expected = [row for chunk in chunks for row in chunk]
        await until(lambda: broker.store.max_offset("orders", 0) == 4003)
        assert bodies_of(broker) == [*expected, b"after 0", b"after 1", b"after 2"]
        await broker.close()

    run(body)


def test_consumers_see_all_of_a_group_or_nothing_on_master_and_slave(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(
            runtime, config(tmp_path / "m", role="SYNC_MASTER", ha_transfer_bytes=1000)
        )
        slave = await started(
            runtime,
            config(
                tmp_path / "s",
                role="SLAVE",
                broker_id=1,
                ha_master_address=master.ha_address,
            ),
        )
        await until(lambda: master.context.copies_in_sync() == 2)
        client = await connected(runtime, master)
        assert (await ask(client, 17, TOPIC)).code == 0
        seen: set[tuple[str, int]] = set()
        done = False

        async def watch(name: str, broker: Broker) -> None:
            while not done:
                visible = broker.context.visible
                result = broker.store.get_message(
                    "orders", 0, 0, 10_000, 1 << 24, visible=visible, override_limits=True
                )
                seen.add((name, result.count))
                await asyncio.sleep(0)

        watching = [asyncio.ensure_future(watch(*each)) for each in (("m", master), ("s", slave))]
        rows = 0
        for epoch in range(5):
            chunks = [[bytes(5000)] * 40] * 5
            for n, chunk in enumerate(chunks):
                await stage(client, n, *chunk, epoch=epoch)
            assert (await ask(client, PUBLISH, {**key(epoch), **told(200, *chunks)})).code == 0
            rows += 200
        await until(lambda: {("m", rows), ("s", rows)} <= seen)
        done = True
        await asyncio.gather(*watching)
        assert {count % 200 for _, count in seen} == {0}
        assert slave.messaging.sinks.get("s") is not None
        assert slave.messaging.sinks.get("s").epochs.keys() == set(range(5))  # type: ignore[union-attr]
        await slave.close()
        await master.close()

    run(body)


# the client of sinks


@dataclass
class Cluster:
    """Brokers on a loop in a thread of their own, so that blocking clients can be used."""

    thread: LoopThread
    root: Path
    nameserver: NameServer
    brokers: dict[str, Broker]

    def start(self, name: str, **changes: Any) -> Broker:
        settings = config(
            self.root / name,
            broker_name=name,
            nameservers=(self.nameserver.address,),
            register_ms=1000,
            **changes,
        )

        async def boot() -> Broker:
            broker = Broker(settings, self.thread.runtime, NativeDisk())
            await broker.start()
            client = await connected(self.thread.runtime, broker)
            assert (await ask(client, 17, TOPIC)).code == 0
            client.close()
            return broker

        self.brokers[name] = self.thread.run(boot())
        return self.brokers[name]

    def stop(self, name: str) -> None:
        self.thread.run(self.brokers.pop(name).close())

    def rows(self) -> list[bytes]:
        def read() -> list[bytes]:
            return [
                row
                for broker in self.brokers.values()
                for queue in range(4)
                for row in bodies_of(broker, queue)
            ]

        async def all_of_them() -> list[bytes]:
            for broker in self.brokers.values():
                await settled(broker)
            return read()

        return sorted(self.thread.run(all_of_them()))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    thread = LoopThread("brokers")

    async def boot() -> NameServer:
        nameserver = NameServer(thread.runtime, port=0)
        await nameserver.start()
        return nameserver

    made = Cluster(thread, tmp_path, thread.run(boot()), {})
    try:
        yield made
    finally:
        for name in list(made.brokers):
            made.stop(name)
        thread.run(made.nameserver.close())
        thread.close()


@contextlib.contextmanager
def client_of(cluster: Cluster, retry_s: float = 20.0) -> Iterator[StagingClient]:
    client = StagingClient(cluster.nameserver.address, timeout_s=5.0, retry_s=retry_s)
    try:
        yield client
    finally:
        client.close()


def write(client: StagingClient, pinned: Pinned, epoch: int, partition: int) -> bool:
    """Ten rows of this partition; whether they were new."""
    stage = client.stage(pinned, epoch, partition)
    queues = client.queues(stage.broker, "orders")
    for n in range(5):
        rows = [b"%d/%d/%d" % (epoch, partition, 2 * n + m) for m in (0, 1)]
        stage.add("orders", n % queues, entries(*rows), 2)
    return not stage.publish().duplicate


def test_the_client_writes_each_partition_once_to_the_broker_it_is_pinned_to(
    cluster: Cluster,
) -> None:
    for name in ("broker-a", "broker-b"):
        cluster.start(name)
    with client_of(cluster) as client:
        pinned = client.open("sink", "orders")
        assert (pinned.brokers, pinned.finished) == (("broker-a", "broker-b"), -1)
        assert [write(client, pinned, 0, partition) for partition in range(4)] == [True] * 4
        places = {pinned.broker_of(0, partition) for partition in range(4)}
        assert places == {"broker-a", "broker-b"}
    with client_of(cluster) as client:
        again = client.open("sink", "orders")
        assert again.published.keys() == {(0, partition) for partition in range(4)}
        assert [write(client, again, 0, partition) for partition in range(5)] == [False] * 4 + [
            True
        ]
        client.finish(again, 0)
        assert client.open("sink", "orders").finished == 0
        assert not write(client, again, 0, 99)
        assert write(client, again, 1, 0)
    expected = [b"%d/%d/%d" % (0, p, n) for p in range(5) for n in range(10)]
    expected += [b"1/0/%d" % n for n in range(10)]
    assert cluster.rows() == sorted(expected)


def test_a_new_broker_changes_nothing_for_a_sink_that_is_pinned(cluster: Cluster) -> None:
    cluster.start("broker-a")
    with client_of(cluster) as client:
        assert client.open("sink", "orders").brokers == ("broker-a",)
        cluster.start("broker-b")
    with client_of(cluster) as client:
        assert client.open("sink", "orders").brokers == ("broker-a",)
        pinned = client.open("another", "orders")
        assert pinned.brokers == ("broker-a", "broker-b")
        # In the middle of an epoch the list is replaced: what is published stays where it is.
        for partition in range(4):
            write(client, pinned, 7, partition)
        moved = client.open("another", "orders", brokers=["broker-b"])
        assert moved.brokers == ("broker-b",)
        assert [write(client, moved, 7, partition) for partition in range(4)] == [False] * 4
        assert client.open("another", "orders").brokers == ("broker-b",)
    assert len(cluster.rows()) == 40


def test_a_pinned_broker_that_is_away_is_waited_for_and_then_named(cluster: Cluster) -> None:
    for name in ("broker-a", "broker-b"):
        cluster.start(name)
    with client_of(cluster, retry_s=1.0) as client:
        pinned = client.open("sink", "orders")
        cluster.stop("broker-a")
    with (
        client_of(cluster, retry_s=1.0) as client,
        pytest.raises(ConnectFailed, match=r"broker-a.*option 'brokers'"),
    ):
        client.open("sink", "orders")
    with client_of(cluster) as client:
        back = threading.Timer(0.3, lambda: cluster.start("broker-a"))
        back.start()
        assert write(client, pinned, 0, 0)
        assert write(client, pinned, 0, 1)
        back.join()
    with pytest.raises(ConfigError, match="nameserver"):
        StagingClient(" ")
    with client_of(cluster) as client, pytest.raises(TopicNotExist, match="nothing"):
        client.open("sink", ["orders", "nothing"])


def test_a_stage_dies_with_its_broker_and_can_be_made_again(cluster: Cluster) -> None:
    cluster.start("broker-a")
    with client_of(cluster) as client:
        pinned = client.open("sink", "orders")
        stage = client.stage(pinned, 0, 0)
        stage.add("orders", 0, entries(b"a"), 1)
        stage.add("orders", 0, entries(b"b"), 1)
        cluster.stop("broker-a")
        cluster.start("broker-a")
        with pytest.raises(StageLost, match="stage it again"):
            stage.publish()
        assert write(client, pinned, 0, 0)
        too_much = client.stage(pinned, 0, 1)
        too_much.add("orders", 0, entries(bytes(5 << 20)), 1)
        with pytest.raises(MessageIllegal):
            too_much.publish()
        too_much.abort()
    assert len(cluster.rows()) == 10


def test_a_broker_of_another_kind_is_refused_with_the_way_out(cluster: Cluster) -> None:
    broker = cluster.start("broker-a")
    for code in (STAGE, PUBLISH, STATE):
        del broker.parts.handlers[code]
    with client_of(cluster) as client, pytest.raises(UnsupportedRequest, match="at-least-once"):
        client.open("sink", "orders")
