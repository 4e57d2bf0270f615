"""Replication: who is in sync, what a send waits for, what a slave shows, how one joins."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker_rig import (
    SMALL,
    config,
    connected,
    insist,
    pull,
    run,
    send,
    slave_config,
    started,
    until,
)
from saturnmq.broker.broker import Broker
from saturnmq.broker.commit import flush
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.replication.events import Ask, Paused
from saturnmq.protocol import ha
from saturnmq.protocol.codes import ResponseCode
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime

SEGMENT = SMALL["commitlog_segment_bytes"]


def log_of(broker: Broker) -> bytes:
    """All bytes of a broker's log."""
    store, parts = broker.store, []
    at, end = store.watermarks.start, store.watermarks.appended
    while at < end:
        data = store.read_log(at, end - at)
        assert data is not None
        parts.append(bytes(data))
        at += len(data)
    return b"".join(parts)


class JavaSlave(asyncio.Protocol):
    """The classic protocol: takes what comes, and reports what it is told to."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closed = True

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def report(self, offset: int) -> None:
        self.transport.write(ha.encode_report(offset))


async def java_slave(master: Broker) -> JavaSlave:
    host, port = split_address(master.ha_address)
    _, slave = await asyncio.get_running_loop().create_connection(JavaSlave, host, port)
    return slave


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"role": "SYNC_MASTER", "in_sync_replicas": 3, "total_replicas": 2}, "totalReplicas"),
        ({"role": "SYNC_MASTER", "total_replicas": 1}, "totalReplicas"),
        ({"role": "SYNC_MASTER", "min_in_sync_replicas": 3}, "minInSyncReplicas"),
        ({"role": "ASYNC_MASTER", "min_in_sync_replicas": 2}, "SYNC_MASTER"),
        ({"role": "ASYNC_MASTER", "all_ack": True}, "SYNC_MASTER"),
    ],
)
def test_a_mode_that_cannot_be_met_is_refused_at_the_start(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig(**settings)


def test_below_the_least_copies_in_sync_a_send_is_refused_and_not_stored(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(
            runtime, config(tmp_path / "m", role="SYNC_MASTER", min_in_sync_replicas=2)
        )
        await insist(master)
        client = await connected(runtime, master)
        refused = await send(client, b"to nobody")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "IN_SYNC_REPLICAS_NOT_ENOUGH" in refused.remark
        assert master.store.watermarks.appended == 0
        slave = await started(runtime, slave_config(tmp_path / "s", master))
        await until(lambda: master.context.copies_in_sync() == 2)
        assert (await send(client, b"to both")).code == 0
        await slave.close()
        await master.close()

    run(body)


def test_consumers_of_a_slave_see_only_what_enough_copies_have(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        settings = config(
            tmp_path / "m", role="SYNC_MASTER", in_sync_replicas=3, slave_timeout_ms=100
        )
        master = await started(runtime, settings)
        one = await started(runtime, slave_config(tmp_path / "s1", master))
        await until(lambda: master.context.copies_in_sync() == 2)
        client = await connected(runtime, master)
        assert (await send(client, b"on two of three")).code in (11, 12)
        await until(lambda: one.store.watermarks.dispatched > 0)
        reader = await connected(runtime, one)
        assert (await pull(reader, 0)).code != 0, "read above the watermark"
        two = await started(runtime, slave_config(tmp_path / "s2", master, broker_id=2))
        await until(lambda: master.store.watermarks.confirmed > 0)
        end = master.store.watermarks.confirmed
        await until(lambda: one.store.watermarks.confirmed == end)
        assert (await pull(reader, 0)).code == 0
        for broker in (one, two, master):
            await broker.close()

    run(body)


def test_a_lone_send_goes_to_the_slaves_before_the_turn_ends(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        settings = config(tmp_path / "m", role="SYNC_MASTER", in_sync_replicas=2)
        master = await started(runtime, settings)
        slave = await started(runtime, slave_config(tmp_path / "s", master))
        await until(lambda: master.context.copies_in_sync() == 2)
        pushed: list[int] = []
        push = master.context.push

        def count() -> None:
            pushed.append(len(master.context.ledger))
            push()

        master.context.push = count
        client = await connected(runtime, master)
        assert (await send(client, b"alone")).code == 0
        assert pushed == [0]
        answers = await asyncio.gather(*(send(client, b"one of ten") for _ in range(10)))
        assert [answer.code for answer in answers] == [0] * 10
        assert 2 <= len(pushed) <= 11
        assert not any(pushed), "one waits already: the turn sends them all"
        await slave.close()
        await master.close()

    run(body)


def test_without_a_lease_consumers_of_a_slave_see_only_what_who_could_be_elected_has(
    tmp_path: Path,
) -> None:
    """The other slave may be elected, and then this message is gone."""

    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "m", slave_timeout_ms=100))
        one = await started(runtime, slave_config(tmp_path / "s1", master))
        two = await started(runtime, slave_config(tmp_path / "s2", master, broker_id=2))
        client, reader = await connected(runtime, master), await connected(runtime, one)
        await until(lambda: len(master.ground.master.followers()) == 2)
        assert (await send(client, b"on all")).code == 0
        await until(lambda: one.store.watermarks.confirmed > 0)
        await two.close(clean=False)
        without = {one.address, two.address}
        master.context.witnesses = lambda: frozenset(without)
        master.context.had_by = master.ground.master.had_by
        assert (await send(client, b"on two of three")).code != 0
        end = master.store.watermarks.appended
        await until(lambda: one.store.watermarks.dispatched == end)
        assert (await pull(reader, 1)).code != 0, "read above the watermark"
        without.discard(two.address)  # it cannot be elected any more
        master.ground.advancer.wake()
        await until(lambda: one.store.watermarks.confirmed == end)
        assert (await pull(reader, 1)).code == 0
        await one.close()
        await master.close()

    run(body)


def test_a_send_that_misses_its_slave_does_not_blame_a_disk_that_it_does_not_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "BOUND_S", 1000.0)

    async def body(runtime: NativeRuntime) -> None:
        settings = config(
            tmp_path, role="SYNC_MASTER", flush_interval_ms=60_000, slave_timeout_ms=50
        )
        master = await started(runtime, settings)
        client, slave = await connected(runtime, master), await java_slave(master)
        slave.report(0)
        await until(lambda: master.context.copies_in_sync() == 2)
        assert (await send(client, b"on no disk")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        marks = master.store.watermarks
        assert marks.flushed < marks.appended
        slave.transport.close()
        await master.close()

    run(body)


def test_with_all_ack_the_slowest_slave_in_sync_decides(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        settings = config(tmp_path, role="SYNC_MASTER", all_ack=True, slave_timeout_ms=200)
        master = await started(runtime, settings)
        client = await connected(runtime, master)
        fast, slow = await java_slave(master), await java_slave(master)
        fast.report(0)
        slow.report(0)
        await until(lambda: master.context.copies_in_sync() == 3)
        waiting = asyncio.ensure_future(send(client, b"for both"))
        await until(lambda: min(fast.received, slow.received) > 12)
        end = master.store.watermarks.appended
        fast.report(end)
        assert (await waiting).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        waiting = asyncio.ensure_future(send(client, b"again for both"))
        await until(lambda: master.store.watermarks.appended > end)
        end = master.store.watermarks.appended
        fast.report(end)
        slow.report(end)
        assert (await waiting).code == 0
        fast.transport.close()
        slow.transport.close()
        await master.close()

    run(body)


@pytest.mark.parametrize("limit", [{"ha_max_gap_bytes": 2000}, {"ha_max_lag_ms": 100}])
def test_a_slow_slave_leaves_the_in_sync_set_and_comes_back_when_it_caught_up(
    tmp_path: Path, limit: dict[str, int]
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path, ha_heartbeat_ms=50, **limit))
        client = await connected(runtime, master)
        slave = await java_slave(master)
        slave.report(0)
        await until(lambda: master.context.copies_in_sync() == 2)
        for n in range(3):
            assert (await send(client, b"%d" % n * 1000)).code == 0
        await until(lambda: master.context.copies_in_sync() == 1)
        slave.report(master.store.watermarks.appended)
        await until(lambda: master.context.copies_in_sync() == 2)
        slave.transport.close()
        await master.close()

    run(body)


@pytest.mark.parametrize("last_only", [False, True])
def test_an_empty_slave_starts_at_the_log_or_at_its_last_segment(
    tmp_path: Path, last_only: bool
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "m"))
        client = await connected(runtime, master)
        for _ in range(25):
            assert (await send(client, b"x" * 100_000)).code == 0
        end = master.store.watermarks.appended
        assert end > 2 * SEGMENT
        slave = await started(
            runtime, slave_config(tmp_path / "s", master, sync_from_last_file=last_only)
        )
        await until(lambda: slave.store.watermarks.dispatched == end)
        start = 2 * SEGMENT if last_only else 0
        assert slave.store.watermarks.start == start
        assert log_of(slave) == log_of(master)[start:]
        await slave.close()
        await master.close()

    run(body)


def test_catching_up_keeps_to_the_rate_it_is_given(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        rate = 1 << 20
        settings = config(
            tmp_path / "m",
            ha_flow_control=True,
            ha_max_bytes_per_s=rate,
            ha_transfer_bytes=64 << 10,
        )
        master = await started(runtime, settings)
        client = await connected(runtime, master)
        for _ in range(15):
            assert (await send(client, b"x" * 100_000)).code == 0
        end = master.store.watermarks.appended
        begun = runtime.monotonic()
        slave = await started(runtime, slave_config(tmp_path / "s", master))
        await until(lambda: slave.store.watermarks.appended == end)
        # What was saved up before it joined, at most a second's worth, goes at once.
        assert runtime.monotonic() - begun > 0.5 * (end - rate) / rate
        assert log_of(slave) == log_of(master)
        await slave.close()
        await master.close()

    run(body)


def test_a_log_of_another_size_of_segments_or_group_is_not_followed(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "m"))
        client = await connected(runtime, master)
        assert (await send(client, b"x")).code == 0
        wrong = {"store_options": {"commitlog_segment_bytes": 2 * SEGMENT}}
        other_size = await started(runtime, slave_config(tmp_path / "s1", master, **wrong))
        other_name = await started(
            runtime, slave_config(tmp_path / "s2", master, broker_name="broker-z")
        )
        for slave, word in ((other_size, "mappedFileSizeCommitLog"), (other_name, "broker-z")):
            await until(lambda s=slave, w=word: w in s.replica_state()["trouble"])
            assert slave.store.watermarks.appended == 0
            await slave.close()
        await master.close()

    run(body)


def test_an_old_store_without_epochs_joins_by_its_checksum(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "m"))
        client = await connected(runtime, master)
        slave = await started(runtime, slave_config(tmp_path / "s", master))
        assert (await send(client, b"one")).code == 0
        await until(lambda: slave.store.watermarks.appended > 0)
        await slave.close()
        for file in (tmp_path / "s").glob("epochFileCheckpoint*"):
            file.unlink()
        slave = await started(runtime, slave_config(tmp_path / "s", master))
        assert (await send(client, b"two")).code == 0
        end = master.store.watermarks.appended
        await until(lambda: slave.store.watermarks.appended == end)
        assert slave.replica_state()["epochs"] == master.replica_state()["epochs"]
        assert log_of(slave) == log_of(master)
        await slave.close()
        await master.close()

    run(body)


def test_a_pull_that_comes_before_a_message_is_confirmed_is_answered_when_it_is(
    tmp_path: Path,
) -> None:
    """Nobody waited when the entry was made, and the message was not to be seen yet."""

    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path, role="SYNC_MASTER"))
        client, reader = await connected(runtime, master), await connected(runtime, master)
        slave = await java_slave(master)
        slave.report(0)
        await until(lambda: master.context.copies_in_sync() == 2)
        sending = asyncio.ensure_future(send(client, b"not confirmed yet"))
        await until(lambda: master.store.watermarks.appended > 0)
        end = master.store.watermarks.appended
        pulling = asyncio.ensure_future(pull(reader, 0, sysFlag=6, suspendTimeoutMillis=9000))
        await until(lambda: len(master.messaging.pulls.held) == 1)
        assert master.store.watermarks.dispatched == end
        slave.report(end)
        assert (await sending).code == 0
        assert (await asyncio.wait_for(pulling, 3.0)).code == 0
        slave.transport.close()
        await master.close()

    run(body)


def test_a_slave_that_joins_while_the_master_is_unsure_is_taken_when_it_is_sure(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        nobody = ("127.0.0.1:1",)  # a nameserver to ask, which does not answer
        master = await started(runtime, config(tmp_path / "m", nameservers=nobody))
        client = await connected(runtime, master)
        assert (await send(client, b"one")).code == 0
        executor, answered = master.replication.executor, asyncio.Event()
        poll = executor._poll

        async def later(ask: Ask) -> None:
            await answered.wait()
            await poll(ask)

        executor._poll = later  # type: ignore[method-assign]
        greeted = master.ground.master.hello()  # what it said while it still was sure
        executor.tell(Paused())
        master.ground.master.hello = lambda: greeted  # type: ignore[method-assign]
        slave = await started(runtime, slave_config(tmp_path / "s", master))
        await until(
            lambda: any(c.join and c.join.offset == 0 for c in master.ground.master.connections)
        )
        assert slave.store.watermarks.appended == 0
        answered.set()
        await until(lambda: slave.store.watermarks.appended == master.store.watermarks.appended)
        await slave.close()
        await master.close()

    run(body)
