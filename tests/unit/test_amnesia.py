"""Nodes that come back with less than they had, and nodes of another group: nothing that was
acknowledged goes, and nothing of a foreign node comes in."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, insist, pull, run, send, started, until
from failover_rig import Group
from saturnmq import aio
from saturnmq.broker.broker import Broker
from saturnmq.broker.replication.ha_slave import MasterConnection
from saturnmq.broker.replication.mending import Mending
from saturnmq.cli.free_ports import free_block
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import NoPermission, StoreDamaged
from saturnmq.runtime.native import NativeRuntime

FLUSHES = ["ASYNC_FLUSH", "SYNC_FLUSH"]


async def in_step(group: Group) -> None:
    """The slave has all that the master confirmed, and knows it."""
    marks = group.master.store.watermarks
    await until(lambda: group.slave.store.watermarks.confirmed == marks.appended)
    await until(lambda: group.slave.context.role.caught_up)


def dispatched(broker: Broker) -> int:
    return broker.store.watermarks.dispatched


async def forget(group: Group) -> None:
    """The nameserver starts again, and remembers nothing."""
    address = split_address(group.nameserver.address)
    await group.nameserver.close()
    group.nameserver = NameServer(group.runtime, *address)
    await group.nameserver.start()


def put_back(root: Path, node: str) -> None:
    """The copy of a node's directory takes its place."""
    shutil.rmtree(root / node)
    shutil.copytree(root / "copy", root / node)


def log_of(root: Path) -> bytes:
    files = sorted((root / "commitlog").glob("0*"))
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


@pytest.mark.parametrize("flush", FLUSHES)
def test_a_wiped_master_gets_log_epochs_and_tables_back_from_its_slave(
    tmp_path: Path, flush: str
) -> None:
    """Its disk is empty and no nameserver remembers anything."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, flush_disk_type=flush) as group:
            bodies = [b"kept %d" % n for n in range(50)]
            assert set(await group.send_all(group.master, *bodies)) == {0}
            client = await connected(runtime, group.master)
            made = {"topic": "made", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
            reply = await ask(
                client,
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {**made, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"},
            )
            assert reply.code == 0, reply.remark
            commit = {"consumerGroup": "G", "topic": "orders", "queueId": 0, "commitOffset": 7}
            reply = await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            assert reply.code == 0, reply.remark
            client.close()
            await in_step(group)
            slave = group.slave.context
            await until(lambda: slave.topics.get("made") is not None)
            await until(lambda: bool(slave.offsets.dirty or slave.offsets.snapshot()))
            identity = group.master.context.role.identity
            assert len(identity) == 32
            await group.master.close()
            shutil.rmtree(tmp_path / "m")
            await forget(group)
            group.master = await group.start("m")
            await until(lambda: group.master.replica_state()["role"] == "master")
            state = group.master.replica_state()
            assert state["identity"] == identity
            assert state["epochs"][0] == [TERM, 0]
            assert group.master.context.topics.get("made") is not None
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"new") == [0]
            assert await group.bodies(group.master) == [*bodies, b"new"]
            assert group.slave.replica_state()["truncated"] == []

    run(body)


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("clean", [True, False])
def test_an_older_copy_of_the_masters_disk_gets_back_what_came_since(
    tmp_path: Path, flush: str, clean: bool
) -> None:
    """Its own files say nothing of what it lacks."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, flush_disk_type=flush) as group:
            old, new = [b"old %d" % n for n in range(5)], [b"new %d" % n for n in range(20)]
            assert set(await group.send_all(group.master, *old)) == {0}
            await in_step(group)
            await group.master.close(clean=clean)
            shutil.copytree(tmp_path / "m", tmp_path / "copy")
            group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert set(await group.send_all(group.master, *new)) == {0}
            await in_step(group)
            await group.master.close(clean=clean)
            put_back(tmp_path, "m")
            group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"after") == [0]
            assert await group.bodies(group.master) == [*old, *new, b"after"]
            assert group.slave.replica_state()["truncated"] == []

    run(body)


def test_an_older_copy_that_a_slave_finds_out_waits_for_the_others(tmp_path: Path) -> None:
    """That slave was away, too, when the last messages were acknowledged."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            third = await group.start("t", role="SLAVE", broker_id=2)
            await until(lambda: group.master.context.copies_in_sync() == 3)
            assert await group.send_all(group.master, b"old") == [0]
            await in_step(group)
            await group.master.close()
            shutil.copytree(tmp_path / "m", tmp_path / "copy")
            group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 3)
            await group.slave.close()
            assert await group.send_all(group.master, b"new") == [0]
            address = third.address
            await third.close()
            await group.master.close()
            put_back(tmp_path, "m")
            await forget(group)
            group.slave, group.master = await group.start("s"), await group.start("m")
            words = group.master.replication.executor.machine.recovering.words
            await until(lambda: bool(words._members))
            assert words._needed() == 2
            assert group.master.replica_state()["role"] == "recovering"
            assert f"not heard yet: {address}. " in group.master.replica_state()["refuses"]
            third = await group.start("t")
            await until(lambda: group.master.context.copies_in_sync() == 3)
            assert await group.bodies(group.master) == [b"old", b"new"]
            await third.close()

    run(body)


def test_a_wiped_master_does_not_believe_a_slave_that_never_followed(tmp_path: Path) -> None:
    """Its log is empty, too, but it has heard of a master; the slave with the log comes later."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"kept") == [0]
            await in_step(group)
            role = group.slave.context.role
            promised = {"identity": role.identity, "epoch": role.promised_epoch, "brokerId": 2}
            await group.slave.close()
            await group.master.close()
            shutil.rmtree(tmp_path / "m")
            await forget(group)
            (tmp_path / "t" / "config").mkdir(parents=True)
            (tmp_path / "t" / "config" / "role.json").write_text(json.dumps(promised))
            group.master = await group.start("m")
            third = await group.start("t", role="SLAVE", broker_id=2)
            await until(lambda: any(x.join for x in group.master.ground.master.connections))
            assert group.master.replica_state()["role"] == "recovering"
            group.slave = await group.start("s")
            await until(lambda: group.master.replica_state()["role"] == "master")
            await until(lambda: group.master.context.copies_in_sync() == 3)
            assert await group.bodies(group.master) == [b"kept"]
            await third.close()

    run(body)


@pytest.mark.parametrize("cold", [True, False])
def test_an_older_copy_tells_no_offset_before_it_has_the_tables_of_its_slave(
    tmp_path: Path, cold: bool
) -> None:
    """A group that asks meanwhile would go back to where it was at the time of the copy."""
    place = {"consumerGroup": "G", "topic": "orders", "queueId": 0}

    async def body(runtime: NativeRuntime) -> None:
        async def asked(*requests: tuple[RequestCode, dict[str, Any]]) -> list[Command]:
            client = await connected(runtime, group.master)
            replies = [await ask(client, code, ext) for code, ext in requests]
            client.close()
            return replies

        async def commit(offset: int) -> None:
            there = {**place, "commitOffset": offset}
            [reply] = await asked((RequestCode.UPDATE_CONSUMER_OFFSET, there))
            assert reply.code == 0, reply.remark
            slave = group.slave.context.offsets
            await until(lambda: slave.query("G", "orders", 0) == offset)

        query = (RequestCode.QUERY_CONSUMER_OFFSET, place)
        async with Group(runtime, tmp_path) as group:
            assert set(await group.send_all(group.master, *[b"old"] * 9)) == {0}
            await in_step(group)
            await commit(2)
            if cold:
                await group.master.close()
            shutil.copytree(tmp_path / "m", tmp_path / "copy")
            if cold:
                group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            made = {"topic": "made", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
            extra = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
            [reply] = await asked((RequestCode.UPDATE_AND_CREATE_TOPIC, {**made, **extra}))
            assert reply.code == 0, reply.remark
            assert set(await group.send_all(group.master, b"new")) == {0}
            await commit(8)
            await until(lambda: group.slave.context.topics.get("made") is not None)
            await in_step(group)
            await group.slave.close()
            await group.master.close()
            put_back(tmp_path, "m")
            group.master = await group.start("m")
            assert group.master.replica_state()["role"] == "recovering"
            [reply] = await asked(query)
            assert reply.code == ResponseCode.SYSTEM_BUSY, reply.ext
            assert "may be older than those of its slaves" in reply.remark
            group.slave = await group.start("s")
            await until(lambda: group.master.replica_state()["role"] == "master")
            assert group.master.context.topics.get("made") is not None
            [reply] = await asked(query)
            assert reply.ext["offset"] == "8", "when it leads, not when a slave has joined"

    run(body)


def test_an_older_copy_of_a_slaves_disk_is_not_promoted_without_force(tmp_path: Path) -> None:
    """Its master is away: nobody is there who could tell it what it lacks."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, flush_disk_type="SYNC_FLUSH") as group:
            admin = await aio.Admin([group.nameserver.address]).start()
            assert await group.send_all(group.master, b"old") == [0]
            await in_step(group)
            await group.slave.close()
            shutil.copytree(tmp_path / "s", tmp_path / "copy")
            group.slave = await group.start("s")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"new") == [0]
            await group.slave.close()
            await group.master.close()
            put_back(tmp_path, "s")
            group.slave = await group.start("s")
            await until(lambda: bool(group.slave.replication.registrar.registered))
            with pytest.raises(NoPermission, match="since it started"):
                await admin.promote("broker-a", group.slave.address)
            assert group.slave.replica_state()["role"] == "slave"
            # When it has followed again it has what it lacked, and may be promoted.
            group.master = await group.start("m")
            await in_step(group)
            await group.master.close()
            await admin.promote("broker-a", group.slave.address)
            assert await group.bodies(group.slave) == [b"old", b"new"]
            await admin.close()

    run(body)


def test_a_master_of_a_sync_group_takes_no_writes_before_its_slaves_word(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            await in_step(group)
            await group.slave.close()
            await group.master.close()  # in order: its own disk says that it lacks nothing
            group.master = await group.start("m")
            state = group.master.replica_state()
            assert state["role"] == "recovering"
            assert f"not heard yet: {group.slave.address}. " in state["refuses"]
            assert f"`saturnmq admin promote broker-a {group.master.address} --force`" in str(state)
            assert await group.send_all(group.master, b"too early") == [2]
            group.slave = await group.start("s")
            await until(lambda: group.master.replica_state()["role"] == "master")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"two") == [0]

    run(body)


def test_the_first_epoch_of_a_sync_group_waits_for_the_word_of_a_slave(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        nameserver = NameServer(runtime, "127.0.0.1", 0)
        await nameserver.start()
        settings: dict[str, Any] = {"nameservers": (nameserver.address,), "register_ms": 200}
        master = await started(runtime, config(tmp_path / "m", role="SYNC_MASTER", **settings))
        assert master.replica_state()["role"] == "recovering"
        assert master.context.epochs.entries == []
        slave = await started(
            runtime, config(tmp_path / "s", role="SLAVE", broker_id=1, **settings)
        )
        await until(lambda: master.context.copies_in_sync() == 2)
        assert master.context.epochs.entries == [(TERM, 0)]
        for broker in (slave, master):
            await broker.close()
        await nameserver.close()

    run(body)


def test_where_two_logs_differ_below_what_was_confirmed_both_stop_until_an_operator_decides(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"shared") == [0]
            await in_step(group)
            await group.master.close()
            shutil.copytree(tmp_path / "m", tmp_path / "copy")
            group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"of the slave") == [0]
            await in_step(group)
            end = group.slave.store.watermarks.appended
            # The older copy begins without its slave, at an operator's word, and is written to.
            await group.slave.close()
            await group.master.close()
            put_back(tmp_path, "m")
            await forget(group)
            group.master = await group.start("m")
            master = group.master.context
            forced = {"epoch": 2 * TERM, "force": "true"}
            code, state = await group.role(group.master, RequestCode.PROMOTE, **forced)
            assert code == 0, state
            assert (await group.send_all(group.master, b"of the master"))[0] in (11, 12)

            group.slave = await group.start("s")
            await until(lambda: "Nothing is cut" in group.slave.replica_state()["trouble"])
            assert group.slave.store.watermarks.appended == end
            await until(lambda: "Nothing is cut" in group.master.replica_state()["refuses"])
            assert await group.send_all(group.master, b"refused") == [2]

            number = {"epoch": 3 * TERM, "force": "true", "insist": "true"}
            code, state = await group.role(group.master, RequestCode.PROMOTE, **number)
            assert code == 0, state
            assert isinstance(state, dict)
            assert state["forced"] == [3 * TERM]
            await until(lambda: master.copies_in_sync() == 2)
            [cut] = group.slave.replica_state()["truncated"]
            assert b"of the slave" in Path(cut["file"]).read_bytes()
            assert await group.bodies(group.slave) == [b"shared", b"of the master"]

    run(body)


def test_a_nameserver_tells_an_older_copy_of_a_lone_broker_what_it_has_forgotten(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role="ASYNC_MASTER") as group:
            await group.slave.close()
            assert await group.send_all(group.master, b"one") == [0]
            await group.master.close()
            shutil.copytree(tmp_path / "m", tmp_path / "copy")
            group.master = await group.start("m")
            assert await group.send_all(group.master, b"two") == [0]
            await group.master.close()
            put_back(tmp_path, "m")
            group.master = await group.start("m")
            state = group.master.replica_state()
            assert state["role"] == "recovering"
            assert "epoch 100001, which this node opened" in state["lacks"]
            assert await group.send_all(group.master, b"refused") == [2]

    run(body)


def test_a_slave_of_another_group_of_the_same_name_is_told_nothing_and_changes_nothing(
    tmp_path: Path,
) -> None:
    """Its HA address is by mistake that of this group's master."""

    async def body(runtime: NativeRuntime) -> None:
        (tmp_path / "ours").mkdir()
        async with (
            Group(runtime, tmp_path / "ours") as ours,
            Group(runtime, tmp_path / "other") as other,
        ):
            assert await ours.send_all(ours.master, b"ours") == [0]
            assert set(await other.send_all(other.master, *[b"theirs"] * 10)) == {0}
            client = await connected(runtime, other.slave)
            await in_step(other)
            client.close()
            replicas = dict(ours.master.context.role.replicas)
            end = other.slave.store.watermarks.appended
            await other.slave.close()
            other.configs["s"] = replace(
                other.configs["s"], ha_master_address=ours.master.ha_address, nameservers=()
            )
            other.slave = await other.start("s")
            await until(lambda: "another group" in other.slave.replica_state()["trouble"])
            assert other.slave.store.watermarks.appended == end
            assert other.slave.replica_state()["truncated"] == []
            assert ours.master.context.role.replicas == replicas
            assert ours.master.replica_state()["role"] == "master"
            assert await ours.send_all(ours.master, b"ours too") == [0]

    run(body)


def test_a_group_holds_its_name_from_its_first_message_on(tmp_path: Path) -> None:
    """Not only from the next registration on: until then a stranger could take the name."""

    async def body(runtime: NativeRuntime) -> None:
        (tmp_path / "ours").mkdir()
        async with (
            Group(runtime, tmp_path / "ours", register_ms=60_000) as ours,
            Group(runtime, tmp_path / "other") as other,
        ):
            assert await other.send_all(other.master, b"theirs") == [0]
            await in_step(other)
            await other.slave.close()
            client = await connected(runtime, ours.master)
            orders = {"topic": "orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            reply = await ask(
                client,
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {**orders, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"},
            )
            assert reply.code == 0, reply.remark
            client.close()
            await until(lambda: ours.slave.context.topics.get("orders") is not None)
            for broker in (ours.slave, ours.master):
                await broker.replication.registrar.ask_all(5.0)
            assert await ours.send_all(ours.master, b"ours") == [0]
            other.configs["s"] = replace(other.configs["s"], nameservers=(ours.nameserver.address,))
            other.slave = await other.start("s")
            news = other.slave.replication.registrar
            await until(lambda: bool(news.foreign or news.registered))
            assert "belongs to the group" in news.foreign[ours.nameserver.address]
            assert "another brokerName" in other.slave.replica_state()["trouble"]

    run(body)


def test_a_slave_counts_when_the_file_names_it(tmp_path: Path) -> None:
    """The power goes before `role.json` names the slave that acknowledged."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            may_save = asyncio.Event()
            save = group.master.replication.executor._doors.save

            async def slowly() -> None:
                await may_save.wait()
                await save()

            group.master.replication.executor._doors.save = slowly
            await group.slave.close()
            shutil.rmtree(tmp_path / "s")
            group.slave = await group.start("t", role="SLAVE", broker_id=2)
            await until(lambda: group.master.context.copies_in_sync() == 2)
            sending = asyncio.ensure_future(group.send_all(group.master, b"one"))
            marks = group.slave.store.watermarks
            await until(lambda: marks.flushed == marks.appended > 0)
            assert not sending.done()
            may_save.set()
            assert await sending == [0]
            named = (tmp_path / "m" / "config" / "role.json").read_text()
            assert group.slave.address in named

    run(body)


def test_two_slaves_with_one_id_are_told_apart(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            twin = await group.start("twin", role="SLAVE", broker_id=1)
            await until(lambda: "another brokerId" in twin.replica_state()["trouble"])
            assert group.master.context.role.replicas == {1: group.slave.address}
            await twin.close()

    run(body)


def test_a_second_master_from_a_copy_of_the_first_ones_disk_becomes_its_slave(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            await group.slave.close()
            await group.master.close()
            shutil.copytree(tmp_path / "m", tmp_path / "clone")
            group.master, group.slave = await group.start("m"), await group.start("s")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"two") == [0]
            clone = await group.start("clone", role="SYNC_MASTER")
            await until(lambda: group.master.context.copies_in_sync() == 3)
            assert await group.send_all(clone, b"refused") == [2]
            assert await group.send_all(group.master, b"three") == [0]
            assert clone.context.role.broker_id == 2
            assert await group.bodies(group.master) == [b"one", b"two", b"three"]
            end = group.master.store.watermarks.appended
            await until(lambda: clone.store.watermarks.dispatched == end)
            assert await group.bodies(clone) == [b"one", b"two", b"three"]
            await clone.close()

    run(body)


def test_a_slave_that_dials_who_does_not_lead_says_so(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            third = await group.start(
                "t", role="SLAVE", broker_id=2, ha_master_address=group.slave.ha_address
            )
            await until(lambda: "does not lead, it is slave" in third.replica_state()["trouble"])
            assert "haMasterAddress" in third.replica_state()["trouble"]
            port = free_block("127.0.0.1", 2)
            ports = {"port": port, "ha_port": port + 1}
            lonely = await group.start(
                "u", role="SLAVE", broker_id=3, ha_master_address=f"127.0.0.1:{port + 1}", **ports
            )
            await until(lambda: "this node itself" in lonely.replica_state()["trouble"])
            assert lonely.context.role.replicas == {}
            assert group.slave.replica_state()["trouble"] == ""
            for broker in (third, lonely):
                assert broker.store.watermarks.appended == 0
                await broker.close()

    run(body)


def test_a_wiped_slave_takes_a_free_id_if_a_promotion_gave_its_own_away(tmp_path: Path) -> None:
    """Of two configured ones nobody can say which is wrong (above)."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            third = await group.start("t", role="SLAVE", broker_id=2)
            await until(lambda: group.master.context.copies_in_sync() == 3)
            await group.slave.close()
            await group.master.close()
            code, state = await group.role(third, RequestCode.PROMOTE, epoch=2 * TERM, force="true")
            assert code == 0, state
            group.master = await group.start("m")  # it takes the id of the slave that is away
            await until(lambda: third.context.copies_in_sync() == 2)
            third.context.role.add_replica(1, group.master.address)
            group.master.context.role.follow(1)
            group.master.replication.slave.drop()
            await until(lambda: [x.broker_id for x in third.ground.master.connections] == [1])
            shutil.rmtree(tmp_path / "s")
            group.slave = await group.start("s")
            await until(lambda: third.context.copies_in_sync() == 3)
            assert group.slave.context.role.broker_id not in (0, 1)
            assert await group.bodies(group.slave) == [b"one"]
            await third.close()

    run(body)


@pytest.mark.parametrize(
    "lie",
    [
        {"address": "x"},
        {"epoch": 1 << 31},
        {"epoch": "9" * 400},
        {"epoch": -1},
        {"epochs": [[2, 0], [1, 0]]},
        {"epochs": 5},
        {"identity": "nobody"},
        {"from": "5x"},
        {"check": [0, 1]},
        {"brokerId": 1 << 63},
    ],
)
def test_a_join_with_a_value_that_cannot_be_changes_nothing(
    tmp_path: Path, lie: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            role = group.master.context.role
            before = role.snapshot()
            join = MasterConnection.join
            monkeypatch.setattr(
                MasterConnection, "join", lambda self, document: join(self, document | lie)
            )
            liar = await group.start("liar", role="SLAVE", broker_id=2)
            await until(lambda: liar.replication.slave._looked > 0)
            assert await group.send_all(group.master, b"one") == [0]
            await liar.close()
            after = role.snapshot()
            assert {**after, "floor": 0, "required": 0} == {**before, "floor": 0, "required": 0}

    run(body)


def test_files_of_two_groups_in_one_store_are_refused(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        one = await started(runtime, config(tmp_path / "one"))
        two = await started(runtime, config(tmp_path / "two"))
        assert one.context.epochs.entries == [(TERM, 0)]
        assert one.context.role.identity != two.context.role.identity
        await one.close()
        await two.close()
        shutil.copy(tmp_path / "two/config/role.json", tmp_path / "one/config/role.json")
        with pytest.raises(StoreDamaged, match="of several groups"):
            await started(runtime, config(tmp_path / "one"))

    run(body)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_a_lost_commitlog_folder_comes_back_from_the_slave(
    tmp_path: Path, role: str, clean: bool
) -> None:
    """A lost mount; the nameserver lives, and the node's own files know what it had."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role=role) as group:
            bodies = [b"kept %d" % n for n in range(50)]
            assert set(await group.send_all(group.master, *bodies)) == {0}
            await in_step(group)
            await until(lambda: group.master.store.watermarks.flushed > 0)
            await group.slave.close()
            await group.master.close(clean=clean)
            shutil.rmtree(tmp_path / "m" / "commitlog")
            group.master = await group.start("m")
            state = group.master.replica_state()
            assert state["role"] == "recovering"
            assert "commitlog" in state["lacks"]
            assert await group.send_all(group.master, b"too early") == [2]
            code, why = await group.role(
                group.master, RequestCode.PROMOTE, epoch=2 * TERM, force="true"
            )
            assert code == 16, "nobody has insisted"
            assert "--force" in str(why)
            group.slave = await group.start("s")
            await until(lambda: group.master.replica_state()["role"] == "master")
            assert group.master.replica_state()["lacks"] == ""
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"new") == [0]
            assert await group.bodies(group.master) == [*bodies, b"new"]
            assert group.slave.replica_state()["truncated"] == []

    run(body)


def test_a_lone_broker_that_lost_its_log_says_what_is_missing_until_an_operator_insists(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await send(client, b"one")).code == 0
        client.close()
        await broker.close()
        shutil.rmtree(tmp_path / "commitlog")
        for _ in range(2):  # no start makes it forget that it forgot
            broker = await started(runtime, config(tmp_path))
            client = await connected(runtime, broker)
            refused = await send(client, b"no")
            assert refused.code == 2
            assert "lacks the bytes 0 to" in broker.replica_state()["refuses"]
            client.close()
            await broker.close()
        broker = await started(runtime, config(tmp_path))
        await insist(broker)
        client = await connected(runtime, broker)
        assert (await send(client, b"two")).code == 0
        client.close()
        await broker.close()
        broker = await started(runtime, config(tmp_path))
        assert broker.replica_state()["role"] == "master"
        await broker.close()

    run(body)


def test_a_slave_that_lost_its_log_fetches_it_again_and_is_no_witness_meanwhile(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            await in_step(group)
            await group.slave.close()
            await group.master.close()
            shutil.rmtree(tmp_path / "s" / "commitlog")
            shutil.rmtree(tmp_path / "m" / "commitlog")
            group.slave, group.master = await group.start("s"), await group.start("m")
            await until(
                lambda: bool(group.master.replication.executor.machine.recovering.words._answered)
            )
            assert group.master.replica_state()["role"] == "recovering"
            await group.slave.close()
            await group.master.close()
            group.master = await group.start("m")
            forced = {"epoch": 2 * TERM, "force": "true", "insist": "true"}
            code, state = await group.role(group.master, RequestCode.PROMOTE, **forced)
            assert code == 0, state
            group.slave = await group.start("s")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"two") == [0]
            await until(lambda: group.slave.replica_state()["lacks"] == "")
            await until(lambda: not group.slave.store.amnesia)

    run(body)


@pytest.mark.parametrize("damaged", ["m", "s"])
@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_a_flipped_bit_is_mended_from_the_other_node(
    tmp_path: Path, damaged: str, role: str
) -> None:
    """In a frame that nobody reads at the start."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role=role) as group:
            bodies = [b"kept %d " % n * 20 for n in range(50)]
            assert set(await group.send_all(group.master, *bodies)) == {0}
            await in_step(group)
            await group.slave.close()
            await group.master.close()
            [segment] = sorted((tmp_path / damaged / "commitlog").glob("0*"))[:1]
            whole = segment.read_bytes()
            at = whole.index(bodies[20])
            segment.write_bytes(whole[:at] + b"X" + whole[at + 1 :])
            group.slave, group.master = await group.start("s"), await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2, 20.0)
            assert segment.read_bytes()[: len(whole.rstrip(b"\0"))] == whole.rstrip(b"\0")
            assert await group.send_all(group.master, b"new") == [0]
            assert await group.bodies(group.master) == [*bodies, b"new"]
            await until(lambda: group.slave.store.watermarks.dispatched > at)
            assert (await group.bodies(group.slave))[:50] == bodies

    run(body)


def flip_a_bit(segment: Path, text: bytes) -> None:
    log = bytearray(segment.read_bytes())
    log[log.index(text)] ^= 1
    segment.write_bytes(log)


def zero_the_end(segment: Path, text: bytes) -> None:
    """From within this message on."""
    log = segment.read_bytes()
    at = log.index(text)
    segment.write_bytes(log[:at] + bytes(len(log) - at))


@pytest.mark.parametrize(
    ("damage", "damaged"), [(flip_a_bit, "m"), (flip_a_bit, "s"), (zero_the_end, "m")]
)
def test_a_master_that_lacks_the_end_of_a_log_with_damage_gets_it_back(
    tmp_path: Path, damage: Callable[[Path, bytes], None], damaged: str
) -> None:
    """Before the end is copied checksums are compared, and they differ."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            old, new = [b"old %d " % n * 20 for n in range(20)], [b"new %d" % n for n in range(9)]
            assert set(await group.send_all(group.master, *old)) == {0}
            await in_step(group)
            await group.master.close(clean=False)
            shutil.copytree(tmp_path / "m", tmp_path / "copy")
            group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert set(await group.send_all(group.master, *new)) == {0}
            await in_step(group)
            await group.slave.close()
            await group.master.close()
            put_back(tmp_path, "m")
            [segment] = sorted((tmp_path / damaged / "commitlog").glob("0*"))[:1]
            before = log_of(tmp_path / "s")
            damage(segment, old[15])
            group.slave, group.master = await group.start("s"), await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2, 20.0)
            assert await group.bodies(group.master) == [*old, *new]
            for node in ("m", "s"):
                assert log_of(tmp_path / node).startswith(before)

    run(body)


def damage_the_last_of_a_queue(node: Path, text: bytes) -> None:
    """Its frame is no frame any more, and no queue knows its place: the start rebuilds them."""
    [segment] = sorted((node / "commitlog").glob("0*"))[:1]
    log = bytearray(segment.read_bytes())
    magic = log.rindex((0xDAA320A7).to_bytes(4, "big"), 0, log.index(text))
    log[magic] ^= 1
    segment.write_bytes(log)
    shutil.rmtree(node / "consumequeue")


async def send_two_queues(group: Group, bodies: list[bytes]) -> None:
    """The last message of the log is one of another queue."""
    assert set(await group.send_all(group.master, *bodies)) == {0}
    client = await connected(group.runtime, group.master)
    assert (await send(client, b"other", e=1)).code == 0
    client.close()
    await in_step(group)


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
@pytest.mark.parametrize("damaged", ["m", "s"])
def test_damage_that_a_start_finds_is_mended_before_there_are_new_messages(
    tmp_path: Path, role: str, damaged: str
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role=role) as group:
            bodies = [b"kept %d " % n * 20 for n in range(10)]
            await send_two_queues(group, bodies)
            await group.slave.close()
            await group.master.close()
            before = log_of(tmp_path / damaged)
            damage_the_last_of_a_queue(tmp_path / damaged, bodies[-1])
            group.slave, group.master = await group.start("s"), await group.start("m")
            client = await connected(runtime, group.master)
            await until(lambda: group.master.replica_state()["role"] == "master")
            sent = await send(client, b"new")
            assert sent.ext["queueOffset"] == "10"
            client.close()
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.bodies(group.master) == [*bodies, b"new"]
            await until(lambda: dispatched(group.slave) == dispatched(group.master))
            assert log_of(tmp_path / damaged).startswith(before)
            await until(lambda: group.slave.context.visible >= dispatched(group.master))
            assert await group.bodies(group.slave) == [*bodies, b"new"]

    run(body)


def test_no_consumer_passes_over_damage_while_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role="ASYNC_MASTER") as group:
            bodies = [b"kept %d " % n * 20 for n in range(10)]
            await send_two_queues(group, bodies)
            await group.master.close()
            damage_the_last_of_a_queue(tmp_path / "m", bodies[4])
            may_mend = asyncio.Event()
            mend = Mending.mend

            async def later(self: Mending, start: int, end: int, address: str) -> int:
                await may_mend.wait()
                return await mend(self, start, end, address)

            monkeypatch.setattr(Mending, "mend", later)
            group.master = await group.start("m")
            assert group.master.replica_state()["role"] == "recovering"
            assert await group.bodies(group.master) == bodies[:4]
            may_mend.set()
            await until(lambda: group.master.replica_state()["role"] == "master")
            assert await group.bodies(group.master) == bodies

    run(body)


def test_two_sound_logs_that_differ_are_left_as_they_are(tmp_path: Path) -> None:
    """Whatever their length; RocketMQ's classic HA goes by that alone (#3388)."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group, Group(runtime, tmp_path / "other") as other:
            for each, text in ((group, b"one"), (other, b"two")):
                assert await each.send_all(each.master, text) == [0]
                await in_step(each)
                await each.slave.close()
                await each.master.close()
            # The log of another group below the files that say whose it is.
            shutil.rmtree(tmp_path / "s" / "commitlog")
            shutil.copytree(tmp_path / "other/s/commitlog", tmp_path / "s/commitlog")
            before = log_of(tmp_path / "s")
            group.slave, group.master = await group.start("s"), await group.start("m")
            await until(lambda: "copied from elsewhere" in group.slave.replica_state()["trouble"])
            assert log_of(tmp_path / "s") == before
            other.slave, other.master = await other.start("s"), await other.start("m")

    run(body)


def test_the_log_is_read_by_nodes_of_the_group_only_and_within_its_bounds(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await send(client, b"one")).code == 0
        end = broker.store.watermarks.appended
        ours = {"brokerName": "broker-a", "identity": broker.context.role.identity}
        read = {**ours, "offset": 0, "size": end}
        reply = await ask(client, RequestCode.READ_LOG, read)
        assert bytes(reply.body).rstrip(b"\0") == log_of(tmp_path)
        for lie in (
            {"identity": "f" * 32},
            {"brokerName": "other"},
            {"offset": -1},
            {"offset": end},
            {"size": 0},
            {"size": 1 << 40},
        ):
            assert (await ask(client, RequestCode.READ_LOG, {**read, **lie})).code != 0, lie
        client.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
@pytest.mark.parametrize("node", ["m", "s"])
def test_a_node_whose_oldest_segment_is_gone_copies_all_of_the_log_back(
    tmp_path: Path, node: str, role: str
) -> None:
    """The rest of its log is whole, and its end is that of the others."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role=role) as group:
            large = [b"%d" % n * 50_000 for n in range(10, 40)]
            assert set(await group.send_all(group.master, *large)) == {0}
            await in_step(group)
            await group.slave.close()
            await group.master.close()
            first, *others = sorted((tmp_path / node / "commitlog").glob("0*"))
            rest = b"".join(file.read_bytes() for file in others).rstrip(b"\0")
            assert rest
            first.unlink()
            group.slave, group.master = await group.start("s"), await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            for broker in (group.master, group.slave):
                await until(lambda b=broker: not b.replica_state()["lacks"] and not b.store.amnesia)
            assert await group.send_all(group.master, b"new") == [0]
            assert await group.bodies(group.master) == [*large, b"new"]
            await until(lambda: dispatched(group.slave) == dispatched(group.master))
            assert log_of(tmp_path / "s") == log_of(tmp_path / "m")
            [kept] = (group.master if node == "m" else group.slave).replica_state()["truncated"]
            assert Path(kept["file"]).read_bytes().rstrip(b"\0") == rest

    run(body)


def test_a_master_without_its_front_keeps_what_no_slave_has_yet(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role="ASYNC_MASTER") as group:
            large = [b"%d" % n * 50_000 for n in range(10, 40)]
            assert set(await group.send_all(group.master, *large)) == {0}
            await in_step(group)
            await group.slave.close()
            alone = [b"%d" % n * 50_000 for n in range(40, 60)]
            assert set(await group.send_all(group.master, *alone)) == {0}
            await group.master.close()
            min((tmp_path / "m" / "commitlog").glob("0*")).unlink()
            group.slave, group.master = await group.start("s"), await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"new") == [0]
            assert await group.bodies(group.master) == [*large, *alone, b"new"]
            await until(lambda: dispatched(group.slave) == dispatched(group.master))
            assert log_of(tmp_path / "s") == log_of(tmp_path / "m")

    run(body)


def test_a_node_that_lacks_its_front_tells_no_consumer_to_go_on_behind_it(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            large = [b"%d" % n * 50_000 for n in range(10, 40)]
            assert set(await group.send_all(group.master, *large)) == {0}
            await in_step(group)
            await group.slave.close()
            await group.master.close()
            min((tmp_path / "m" / "commitlog").glob("0*")).unlink()
            group.master = await group.start("m")
            assert group.master.replica_state()["role"] == "recovering"
            client = await connected(runtime, group.master)
            pulled = await pull(client, 0)
            assert (pulled.code, pulled.ext["nextBeginOffset"]) == (19, "0")
            moved = await pull(client, 1000)
            assert (moved.code, moved.ext["nextBeginOffset"]) == (19, "1000")
            queue = {"consumerGroup": "new", "topic": "orders", "queueId": 0}
            for code in (
                RequestCode.QUERY_CONSUMER_OFFSET,
                RequestCode.GET_MIN_OFFSET,
                RequestCode.GET_MAX_OFFSET,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            ):
                refused = await ask(client, code, {**queue, "timestamp": 0})
                assert refused.code == 2, code
                assert "lacks the bytes 0 to" in str(refused.remark)
            waiting = asyncio.ensure_future(pull(client, 0, sysFlag=6, suspendTimeoutMillis=20_000))
            group.slave = await group.start("s")
            assert (await waiting).code == 0
            found = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, queue)
            assert (found.code, found.ext["offset"]) == (0, "0")
            client.close()

    run(body)


@pytest.mark.parametrize("has_heard", [True, False])
def test_a_wiped_async_master_gets_the_log_back_that_a_slave_has(
    tmp_path: Path, has_heard: bool
) -> None:
    """The nameserver has forgotten it: it begins a group, and learns of its own from a slave."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role="ASYNC_MASTER") as group:
            assert await group.send_all(group.master, b"one", b"two") == [0, 0]
            end, identity = (
                group.master.store.watermarks.appended,
                group.slave.context.role.identity,
            )
            await until(lambda: group.slave.store.watermarks.appended == end)
            await group.master.close()
            if not has_heard:
                await group.slave.close()
            shutil.rmtree(tmp_path / "m")
            await forget(group)
            group.master = await group.start("m")
            if not has_heard:
                assert group.master.context.role.identity not in ("", identity)
                group.slave = await group.start("s")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert group.master.replica_state()["role"] == "master"
            assert group.master.context.role.identity == identity
            assert await group.bodies(group.master) == [b"one", b"two"]
            assert await group.send_all(group.master, b"three") == [0]
            assert group.slave.replica_state()["truncated"] == []

    run(body)


def test_a_wiped_node_that_began_a_group_of_its_own_gives_way_to_the_one_with_a_log(
    tmp_path: Path,
) -> None:
    """Nobody told it in time that its group lives, led by another node."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role="ASYNC_MASTER") as group:
            assert await group.send_all(group.master, b"one") == [0]
            await until(lambda: group.slave.store.watermarks.confirmed > 0)
            await until(lambda: group.slave.context.role.caught_up)
            await group.master.close()
            code, state = await group.role(
                group.slave, RequestCode.PROMOTE, epoch=2 * TERM, force="true"
            )
            assert code == 0, state
            assert await group.send_all(group.slave, b"two") == [0]
            identity = group.slave.context.role.identity
            await group.slave.close()
            await forget(group)
            shutil.rmtree(tmp_path / "m")
            group.master = await group.start("m")
            assert group.master.replica_state()["role"] == "master"
            assert group.master.context.role.identity not in ("", identity)
            group.slave = await group.start("s")
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            assert group.master.replica_state()["role"] == "slave"
            assert group.master.context.role.identity == identity
            assert await group.bodies(group.slave) == [b"one", b"two"]
            assert await group.send_all(group.slave, b"three") == [0]

    run(body)
