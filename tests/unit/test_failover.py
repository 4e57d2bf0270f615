"""Fail-over: promotion, fencing, what a returning master does, and a tail that is copied back."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, pull, run, send, started, until
from failover_rig import Group
from hypothesis import given
from hypothesis import strategies as st
from saturnmq import aio
from saturnmq.broker.broker import Broker
from saturnmq.broker.replication import promises
from saturnmq.broker.replication.events import Paused
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import OPENER, TERM, next_promotion, next_restart, next_term
from saturnmq.runtime.door import Transport
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import MessageStore


@given(st.integers(0, 5 * TERM), st.integers(0, 5 * TERM))
def test_nodes_that_cannot_hear_each_other_never_open_the_same_epoch(
    known: int, least: int
) -> None:
    opened = [next_promotion(known, least, opener) for opener in range(5)]
    assert len({epoch // OPENER for epoch in opened}) == 5
    assert all(epoch > known and epoch >= least for epoch in opened)


@given(st.integers(0, 3), st.lists(st.booleans(), max_size=30))
def test_a_promotion_outranks_whatever_the_old_master_did_meanwhile(
    opener: int, restarts: list[bool]
) -> None:
    epoch = known = next_restart(0, opener)
    for _ in restarts:  # cut off from everybody
        assert next_restart(epoch, opener) > epoch
        epoch = next_restart(epoch, opener)
    fence = next_term(known)
    assert next_promotion(known, fence, 7) >= fence > epoch


def test_restarts_without_number_do_not_run_into_another_openers_epochs() -> None:
    epoch = next_restart(0, 1)
    seen = set()
    for _ in range(3 * OPENER):
        seen.add(epoch % TERM // OPENER)
        after = next_restart(epoch, 1)
        assert after > epoch
        epoch = after
    assert seen == {1}


def test_a_promoted_slave_takes_over_and_the_old_master_follows_and_is_cut(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, slave_timeout_ms=200) as group:
            old, new = group.master, group.slave
            assert await group.send_all(old, b"on both") == [0]
            new.replication.slave.close()
            new.context.role.depose("cut off")  # the slave hears the master no more
            await until(lambda: old.context.copies_in_sync() == 1)
            assert (await group.send_all(old, b"on the old one only"))[0] in (11, 12)
            lost = old.store.watermarks.appended - new.store.watermarks.appended
            await old.close(clean=False)

            code, state = await group.role(new, RequestCode.PROMOTE, epoch=2 * TERM, force="true")
            assert code == 0, state
            assert state["role"] == "master"
            assert state["epoch"] == 2 * TERM + OPENER
            assert (await group.send_all(new, b"to nobody but the new one"))[0] in (11, 12)

            group.master = back = await group.start("m")
            assert back.replica_state()["role"] in ("slave", "fenced")
            assert (await group.send_all(back, b"refused")) == [2]
            await until(lambda: new.context.copies_in_sync() == 2)
            assert await group.send_all(new, b"on both again") == [0]
            expected = [b"on both", b"to nobody but the new one", b"on both again"]
            assert await group.bodies(new) == expected
            await until(
                lambda: (
                    back.store.watermarks.confirmed == new.store.watermarks.confirmed
                    and back.store.watermarks.dispatched == back.store.watermarks.appended
                )
            )
            assert await group.bodies(back) == expected
            state = back.replica_state()
            assert (state["role"], state["brokerId"]) == ("slave", 1)
            assert state["epochs"] == new.replica_state()["epochs"]
            [cut] = state["truncated"]
            assert cut["to"] - cut["from"] == lost
            assert b"on the old one only" in Path(cut["file"]).read_bytes()
            reply = await ask(await connected(runtime, back), RequestCode.GET_BROKER_RUNTIME_INFO)
            table = json.loads(bytes(reply.body))["table"]
            assert (table["truncatedFiles"], table["truncatedBytes"]) == ("1", str(lost))

    run(body)


def test_roles_outlive_a_restart_of_every_node(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            await until(
                lambda: (
                    group.slave.store.watermarks.appended == group.master.store.watermarks.appended
                    and group.slave.context.role.caught_up
                )
            )
            await group.master.close(clean=False)
            code, state = await group.role(group.slave, RequestCode.PROMOTE, epoch=2 * TERM)
            assert code == 0, state
            group.master = await group.start("m")
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            await group.master.close()
            await group.slave.close()
            group.slave, group.master = await group.start("s"), await group.start("m")
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            assert group.slave.replica_state()["role"] == "master"
            assert group.master.replica_state()["role"] == "slave"
            assert await group.send_all(group.slave, b"two") == [0]
            assert await group.bodies(group.slave) == [b"one", b"two"]

    run(body)


def test_a_fenced_master_takes_no_writes_but_lets_its_slave_fetch_the_rest(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"before") == [0]
            code, state = await group.role(group.master, RequestCode.FENCE, epoch=5 * TERM)
            assert code == 0, state
            assert state["role"] == "fenced"
            assert await group.send_all(group.master, b"after") == [2]
            end = group.master.store.watermarks.appended
            await until(lambda: group.slave.store.watermarks.appended == end)
            code, _ = await group.role(group.slave, RequestCode.PROMOTE, epoch=50)
            assert code == 16, "an epoch that is over"
            await until(lambda: group.slave.context.role.caught_up)
            code, state = await group.role(group.slave, RequestCode.PROMOTE, epoch=5 * TERM)
            assert code == 0, state
            assert int(state["epoch"]) >= 5 * TERM
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            assert group.master.replica_state()["role"] == "slave"
            assert group.master.replica_state()["truncated"] == []
            assert await group.send_all(group.slave, b"after") == [0]

    run(body)


def test_a_master_that_leads_again_knows_no_queue_locks_of_its_former_time(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async def lock(broker: Broker, member: str) -> list[Any]:
            client = await connected(runtime, broker)
            queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
            asked = {"consumerGroup": "G", "clientId": member, "mqSet": [queue]}
            reply = await ask(client, RequestCode.LOCK_BATCH_MQ, {}, json.dumps(asked).encode())
            client.close()
            assert reply.code == 0, reply.remark
            return list(json.loads(reply.body)["lockOKMQSet"])

        async def change_over(old: Broker, new: Broker, epoch: int) -> None:
            code, state = await group.role(old, RequestCode.FENCE, epoch=epoch)
            assert code == 0, state
            await until(lambda: new.context.role.caught_up)
            code, state = await group.role(new, RequestCode.PROMOTE, epoch=epoch)
            assert code == 0, state
            await until(lambda: new.context.copies_in_sync() == 2)

        async with Group(runtime, tmp_path) as group:
            assert await lock(group.master, "one")
            assert not await lock(group.master, "two")
            await change_over(group.master, group.slave, 5 * TERM)
            assert await lock(group.slave, "two")
            await change_over(group.slave, group.master, 8 * TERM)
            assert await lock(group.master, "two")
            assert not await lock(group.master, "one")

    run(body)


def test_a_restarted_master_copies_back_what_its_slave_has_before_it_takes_writes(
    tmp_path: Path,
) -> None:
    """Async flush and sync replication: the power failed before the master's disk had it all."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"kept") == [0]
            end = group.master.store.watermarks.appended
            acknowledged = [b"acknowledged %d" % n for n in range(20)]
            assert set(await group.send_all(group.master, *acknowledged)) == {0}
            await group.master.close(clean=False)
            settings = group.configs["m"].store_config()
            store = MessageStore.open(settings, NativeDisk(), runtime)
            store.truncate(end)
            (tmp_path / "m" / "abort").touch()
            store.close()
            (tmp_path / "m" / "abort").touch()  # it did not stop in order
            group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"new") == [0]
            assert await group.bodies(group.master) == [b"kept", *acknowledged, b"new"]
            assert group.slave.replica_state()["truncated"] == []

    run(body)


def test_a_restarted_master_waits_for_the_slave_that_may_know_more(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            await until(lambda: 1 in group.master.context.role.replicas)
            await group.slave.close(clean=False)
            await group.master.close(clean=False)
            (tmp_path / "m" / "abort").touch()  # it did not stop in order
            group.master = await group.start("m")
            assert group.master.replica_state()["role"] == "recovering"
            assert await group.send_all(group.master, b"too early") == [2]
            client = await connected(runtime, group.master)
            refused = await send(client, b"why")
            assert "admin promote" in refused.remark
            client.close()
            code, why = await group.role(group.master, RequestCode.PROMOTE, epoch=5 * TERM)
            assert code == 16, why
            code, state = await group.role(
                group.master, RequestCode.PROMOTE, epoch=5 * TERM, force="true"
            )
            assert code == 0, state
            group.slave = await group.start("s")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"two") == [0]
            assert await group.bodies(group.master) == [b"one", b"two"]

    run(body)


def test_another_slave_follows_the_new_master_without_waiting_for_its_next_registration(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, register_ms=60_000) as group:
            third = await group.start("t", role="SLAVE", broker_id=2)
            await until(lambda: group.master.context.copies_in_sync() == 3)
            await group.master.close(clean=False)
            for node in (third, group.slave):
                code, state = await group.role(node, RequestCode.FENCE, epoch=2 * TERM)
                assert code == 0, state
            code, state = await group.role(
                group.slave, RequestCode.PROMOTE, epoch=2 * TERM, force="true"
            )
            assert code == 0, state
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            assert await group.send_all(group.slave, b"on two of three") == [0]
            await third.close()

    run(body)


class SlowDials(NativeRuntime):
    """Connections to `port` take until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.port = 0
        self.dialled, self.go_on = asyncio.Event(), asyncio.Event()

    async def connect(self, host: str, port: int, protocol: asyncio.BaseProtocol) -> Transport:
        if port == self.port:
            self.dialled.set()
            await self.go_on.wait()
        return await super().connect(host, port, protocol)


def test_a_slave_that_dials_a_master_while_it_is_deposed_follows_the_new_one(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, register_ms=60_000) as group:
            group.runtime = dials = SlowDials()
            dials.port = group.configs["m"].ha_port
            third = await group.start("t", role="SLAVE", broker_id=2)
            await dials.dialled.wait()
            for node in (group.slave, group.master):
                assert (await group.role(node, RequestCode.FENCE, epoch=2 * TERM))[0] == 0
            code, state = await group.role(group.slave, RequestCode.PROMOTE, epoch=2 * TERM)
            assert code == 0, state
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            await until(lambda: third.replica_state()["master"] == group.slave.address)
            dials.go_on.set()
            await until(lambda: group.slave.context.copies_in_sync() == 3)
            await third.close()

    run(body)


def test_a_master_goes_on_above_a_promotion_that_did_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked for it fenced the slave, and died."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            monkeypatch.setattr(promises, "PROMOTION_S", 1.5)
            assert await group.send_all(group.master, b"one") == [0]
            code, state = await group.role(group.slave, RequestCode.FENCE, epoch=2 * TERM)
            assert code == 0, state
            await group.slave.close()
            group.slave = await group.start("s")
            await until(lambda: group.slave.context.role.promised_epoch == 3 * TERM, 20.0)
            # A slave may promise before the master, which then writes the epoch down, has heard it.
            await until(lambda: group.master.replica_state()["role"] == "master")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert group.master.replica_state()["epochs"][-1][0] == 3 * TERM
            assert await group.send_all(group.master, b"two") == [0]
            code, why = await group.role(
                group.slave, RequestCode.PROMOTE, epoch=2 * TERM, force="true"
            )
            assert (code, "is below" in str(why)) == (16, True), "it comes after all"
            assert await group.bodies(group.master) == [b"one", b"two"]

    run(body)


def test_a_member_that_knows_more_promises_nothing_to_an_old_master(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            await until(lambda: group.slave.context.epochs.last == TERM)
            for broker, epoch, term in (
                (group.master, 3 * TERM, TERM),  # it leads
                (group.slave, 3 * TERM, 0),  # its log is newer
                (group.slave, 2 * TERM - 1, TERM),  # it has followed another one since
            ):
                code, why = await group.role(broker, RequestCode.FENCE, epoch=epoch, term=term)
                assert (code, "newer master" in str(why)) == (16, True), why
            assert group.slave.context.role.promised_epoch == TERM
            assert group.master.replica_state()["role"] == "master"

    run(body)


def test_a_deposed_master_may_lack_what_its_successor_took(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, flush_disk_type="SYNC_FLUSH") as group:
            written = tmp_path / "m" / "config" / "role.json"
            await until(lambda: written.exists() and json.loads(written.read_text())["caughtUp"])
            await group.master.close(clean=False)
            code, state = await group.role(
                group.slave, RequestCode.PROMOTE, epoch=2 * TERM, force="true"
            )
            assert code == 0, state
            group.runtime = dials = SlowDials()
            dials.port = group.configs["s"].ha_port
            group.master = await group.start("m")
            await dials.dialled.wait()
            assert not group.master.replica_state()["caughtUp"]
            dials.go_on.set()
            await until(lambda: group.master.replica_state()["caughtUp"])

    run(body)


def test_a_slave_without_the_confirmed_log_is_promoted_by_force_only(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            await group.slave.close()
            await group.master.close(clean=False)
            group.configs["s"] = replace(group.configs["s"], root=str(tmp_path / "empty"))
            group.slave = await group.start("s")
            code, why = await group.role(group.slave, RequestCode.PROMOTE, epoch=5 * TERM)
            assert code == 16
            assert "acknowledged messages would be lost" in str(why)
            assert group.slave.replica_state()["role"] == "slave"
            group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            await until(lambda: group.slave.replica_state()["caughtUp"])

    run(body)


def test_a_slave_that_nobody_knows_who_could_be_elected_does_not_count(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, slave_timeout_ms=100) as group:
            context, slave = group.master.context, group.slave.address
            context.counts = lambda address: address != slave
            assert (await group.send_all(group.master, b"0"))[0] in (11, 12)
            context.counts = lambda address: address == slave
            assert await group.send_all(group.master, b"1") == [0]

    run(body)


@pytest.mark.parametrize("position", [3, 2])
def test_a_consumer_goes_on_before_what_was_lost(tmp_path: Path, position: int) -> None:
    """A new message got the offset of a lost one: who had read that must not skip it (I4)."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, slave_timeout_ms=100) as group:
            assert await group.send_all(group.master, b"0", b"1") == [0, 0]
            client = await connected(runtime, group.master)
            term = (await pull(client, 0)).ext["saturnTerm"]
            place = {"consumerGroup": "G", "topic": "orders", "queueId": 0}
            other = {**place, "consumerGroup": "H"}
            await ask(client, 15, {**other, "commitOffset": 1})
            kept = await ask(client, 14, other)  # who begins there and has not read yet knows, too
            assert (kept.ext["offset"], kept.ext["saturnTerm"]) == ("1", term)
            group.slave.replication.slave.close()
            group.slave.context.role.depose("cut off")
            await until(lambda: group.master.context.copies_in_sync() == 1)
            assert (await group.send_all(group.master, b"lost"))[0] in (11, 12)
            await group.master.close(clean=False)
            code, state = await group.role(
                group.slave, RequestCode.PROMOTE, epoch=2 * TERM, force="true"
            )
            assert code == 0, state
            assert (await group.send_all(group.slave, b"2"))[0] in (11, 12)
            client = await connected(runtime, group.slave)
            moved = await pull(client, position, saturnTerm=term)
            if position == 3:
                assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "2")
            else:
                assert moved.code != 21
            assert moved.ext["saturnTerm"] == str(2 * TERM + OPENER)
            ext = {**place, "saturnTerm": term}
            await ask(client, 15, {**ext, "commitOffset": position})
            kept = await ask(client, 14, {**ext, "setZeroIfNotFound": "false"})
            assert kept.ext.get("offset") == (None if position == 3 else "2")
            group.master = await group.start("m")

    run(body)


def test_a_slave_of_a_group_without_a_message_is_promoted_when_its_master_has_gone(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            await until(lambda: group.slave.context.role.caught_up)
            await group.master.close()
            async with aio.Admin(group.nameserver.address) as admin:
                done = await admin.promote("broker-a", group.slave.address)
            assert done.master == group.slave.address
            group.master = await group.start("m")
            assert await group.send_all(group.slave, b"the first one") in ([0], [11])
            await until(lambda: group.master.store.watermarks.appended > 0)

    run(body)


def test_after_a_pause_a_master_asks_before_it_writes(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role="ASYNC_MASTER") as group:
            pass
        group = Group(runtime, tmp_path / "2", slave_timeout_ms=200)
        async with group:
            old = group.master
            old.context.role.alive_at = -1e9  # as if the process had been stopped
            assert await group.send_all(old, b"while it is not sure") in ([2], [0])
            await until(lambda: old.replica_state()["refuses"] == "")
            assert await group.send_all(old, b"still the master") == [0]
            assert await asyncio.wait_for(group.bodies(old), 5)

    run(body)


def test_after_a_pause_a_master_with_nobody_to_ask_takes_the_first_send(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        broker.context.role.alive_at = -1e9  # as if the process had been stopped
        sent = await send(client, b"nobody could have taken over")
        assert sent.code == 0, sent.remark
        await broker.close()

    run(body)


def test_a_mistake_in_the_rules_ends_writes(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]

            def mistaken(*_: Any) -> Any:
                raise AssertionError("a rule that contradicts itself")

            executor = group.master.replication.executor
            executor.machine.step = mistaken  # type: ignore[method-assign]
            with pytest.raises(AssertionError):
                executor.tell(Paused())
            assert "its rules failed" in group.master.replica_state()["refuses"]
            assert await group.send_all(group.master, b"two") != [0]
            assert await group.bodies(group.master) == [b"one"]

    run(body)


def test_a_promotion_that_the_end_of_the_node_interrupted_goes_on_at_its_next_start(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            opening = asyncio.Event()

            async def never(number: int, start: int) -> None:
                opening.set()
                await asyncio.Event().wait()

            group.slave.replication.executor._open = never  # type: ignore[method-assign]
            assert (await group.role(group.master, RequestCode.FENCE, epoch=2 * TERM))[0] == 0
            work = group.role(group.slave, RequestCode.PROMOTE, epoch=2 * TERM)
            promoting = asyncio.ensure_future(work)
            await opening.wait()  # it is written down that it leads
            await group.slave.close(clean=False)
            promoting.cancel()
            assert group.master.replica_state()["role"] == "fenced"

            group.slave = await group.start("s")
            await until(lambda: group.slave.replica_state()["role"] == "master")
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            assert group.master.replica_state()["role"] == "slave"
            assert await group.send_all(group.slave, b"two") == [0]
            assert await group.bodies(group.slave) == [b"one", b"two"]

    run(body)
