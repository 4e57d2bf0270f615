"""A slave's copies of its master's tables: what they cost, when they count, what comes back."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from broker_rig import (
    ask,
    config,
    connected,
    insist,
    run,
    send,
    slave_config,
    started,
    until,
)
from saturnmq.broker.broker import Broker
from saturnmq.broker.replication import table_sync
from saturnmq.broker.replication.role import State
from saturnmq.broker.replication.table_sync import JAVA_PAUSE_S, TableSync
from saturnmq.broker.tables.offsets import STEP_READ
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import MalformedFrame, SystemBusy
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.derived.tombstones import Tombstone
from saturnmq.store.disk import NativeDisk

TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


class FakeMaster:
    """Answers the four requests with what the test gives it, and counts them."""

    def __init__(self) -> None:
        self.tables: dict[int, dict[str, Any]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: {"topicConfigTable": {}},
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {"subscriptionGroupTable": {}},
            RequestCode.GET_ALL_CONSUMER_OFFSET: {"offsetTable": {}},
            RequestCode.GET_ALL_DELAY_OFFSET: {"offsetTable": {}},
        }
        self.ext: dict[int, dict[str, str]] = {}
        self.holds = 0  # what it is asked by this code waits for `go_on`
        self._held: tuple[Endpoint, Command] | None = None
        self.asked: list[Command] = []
        self.address = ""

    async def start(self, runtime: NativeRuntime) -> FakeMaster:
        self._listener = await runtime.listen(
            "127.0.0.1", 0, lambda: Endpoint(runtime, self._answer, server=True)
        )
        self.address = self._listener.address
        return self

    def _answer(self, endpoint: Endpoint, request: Command) -> None:
        self.asked.append(request)
        if request.code == self.holds:
            self._held = endpoint, request
        else:
            self._give(endpoint, request)

    @property
    def is_asked(self) -> bool:
        return self._held is not None

    def go_on(self) -> None:
        assert self._held is not None, "it was asked"
        self._give(*self._held)

    def _give(self, endpoint: Endpoint, request: Command) -> None:
        ext = self.ext.get(request.code, {})
        endpoint.send(request.reply(0, ext=ext, body=fastjson.dumps(self.tables[request.code])))


def sync_of(broker: Broker) -> TableSync:
    return broker.replication.table_sync


def test_an_unchanged_table_is_an_empty_reply(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await send(endpoint, b"x")
        for code in TABLES:
            first = await ask(endpoint, code)
            version = first.ext["saturnVersion"]
            again = await ask(endpoint, code, {"saturnKnown": version})
            assert (again.ext["saturnUnchanged"], bytes(again.body)) == ("true", b"")
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        version = (await ask(endpoint, code)).ext["saturnVersion"]
        await send(endpoint, b"y", topic="another")
        changed = await ask(endpoint, code, {"saturnKnown": version})
        assert "another" in fastjson.loads(bytes(changed.body))["topicConfigTable"]
        await broker.close()
        again = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, again)
        other = await ask(endpoint, code, {"saturnKnown": changed.ext["saturnVersion"]})
        assert "saturnUnchanged" not in other.ext, "another process, so another version"
        await again.close()

    run(body)


def test_a_slave_asks_for_whole_tables_only_when_they_changed(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await FakeMaster().start(runtime)
        master.ext = {code: {"saturnVersion": "v1"} for code in TABLES}
        broker = await started(runtime, config(tmp_path))
        for _ in range(2):
            assert await sync_of(broker).copy_from(master.address) == 0.1
        known = Counter(request.ext.get("saturnKnown") for request in master.asked)
        assert known == {None: 4, "v1": 4}
        # What was changed here is the master's again with the next copy.
        endpoint = await connected(runtime, broker)
        await send(endpoint, b"x", topic="mine")
        master.asked.clear()
        await sync_of(broker).copy_from(master.address)
        whole = [r.code for r in master.asked if "saturnKnown" not in r.ext]
        assert whole == [RequestCode.GET_ALL_TOPIC_CONFIG]
        assert broker.context.topics.get("mine") is None
        # Another master may use the same words.
        other = await FakeMaster().start(runtime)
        await sync_of(broker).copy_from(other.address)
        assert not any("saturnKnown" in request.ext for request in other.asked)
        await broker.close()

    run(body)


def test_a_java_master_is_asked_less_often(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await FakeMaster().start(runtime)
        master.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = {"offsetTable": {"t@g": {"0": 7}}}
        broker = await started(runtime, config(tmp_path))
        assert await sync_of(broker).copy_from(master.address) == JAVA_PAUSE_S
        assert broker.context.offsets.query("g", "t", 0) == 7
        await broker.close()

    run(body)


def test_a_slave_tells_of_which_log_its_offsets_are(tmp_path: Path) -> None:
    """Its own may lack what they say was consumed, and then somebody else's messages get there."""

    async def body(runtime: NativeRuntime) -> None:
        code, place = RequestCode.GET_ALL_CONSUMER_OFFSET, {"topic": "orders", "queueId": 0}
        master = await FakeMaster().start(runtime)
        master.tables[code] = {"offsetTable": {"orders@G": {"0": 7}}}
        broker = await started(runtime, config(tmp_path, role="SLAVE", broker_id=1))
        endpoint = await connected(runtime, broker)
        await sync_of(broker).copy_from(master.address)
        kept = await ask(endpoint, 14, {"consumerGroup": "G", **place})
        assert kept.ext == {"offset": "7"}, "nobody has said so"
        of_log = {"saturnTerm": "200000", "saturnEpochs": "100000-0,200000-512"}
        master.ext[code] = of_log
        await sync_of(broker).copy_from(master.address)
        kept = await ask(endpoint, 14, {"consumerGroup": "G", **place})
        assert kept.ext == {"offset": "7", **of_log}
        await insist(broker)
        kept = await ask(endpoint, 14, {"consumerGroup": "G", **place})
        own = broker.context.epochs.entries
        led = ",".join(f"{number}-{start}" for number, start in own)
        assert kept.ext["saturnEpochs"] == led, "the offset is of what this master has"
        told = (await ask(endpoint, code)).ext
        assert (told["saturnTerm"], told["saturnEpochs"]) == (str(own[-1].number), led)
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    "table", [{"offsetTable": 5}, {"offsetTable": {}, "generationTable": ["x"]}]
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, table: dict[str, Any]) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await FakeMaster().start(runtime)
        master.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = table
        broker = await started(runtime, config(tmp_path))
        with pytest.raises(MalformedFrame, match=r"is .*, not an object"):
            await sync_of(broker).copy_from(master.address)
        await broker.close()

    run(body)


def test_an_entry_that_cannot_be_is_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await FakeMaster().start(runtime)
        offsets = {"t@g": {"0": 7}, "t@number": 5, "t@huge": {"0": 1 << 63}, "t@x": {"x": 1}}
        master.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = {"offsetTable": offsets}
        broker = await started(runtime, config(tmp_path))
        await sync_of(broker).copy_from(master.address)
        assert broker.context.offsets.query("g", "t", 0) == 7
        assert len(broker.context.offsets) == 1
        assert caplog.text.count("is left out") == 3
        await broker.close()

    run(body)


def test_tables_that_cannot_be_copied_are_told_once_until_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(table_sync, "RETRY_S", 0.01)
    monkeypatch.setattr(table_sync, "JAVA_PAUSE_S", 0.01)

    async def delete() -> None:
        raise AssertionError("no topic was deleted")

    def told() -> int:
        return caplog.text.count("tables of the master not copied")

    async def body(runtime: NativeRuntime) -> None:
        master = await FakeMaster().start(runtime)
        good = master.tables[RequestCode.GET_ALL_TOPIC_CONFIG]
        options: dict[str, Any] = {"role": "SLAVE", "broker_id": 1, "slave_sync_ms": 10}
        broker = await started(runtime, config(tmp_path, **options))
        sync = TableSync(
            broker.context, broker.messaging.delays, broker.messaging.timers.clock, delete
        )
        sync.master_address = lambda: master.address
        following = runtime.spawn(sync.run(), name="sync")
        for times in (1, 2):
            master.tables[RequestCode.GET_ALL_TOPIC_CONFIG] = {"topicConfigTable": 5}
            await until(lambda times=times: told() == times)
            asked = len(master.asked)
            await until(lambda asked=asked: len(master.asked) >= asked + 3)
            assert told() == times
            master.tables[RequestCode.GET_ALL_TOPIC_CONFIG] = good
            asked = len(master.asked)
            await until(lambda asked=asked: len(master.asked) >= asked + 2 * len(TABLES))
        following.cancel()
        await broker.close()

    run(body)


def test_who_does_not_lead_has_no_tables_to_copy(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await FakeMaster().start(runtime)
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await send(endpoint, b"x", topic="mine")
        leads = (await ask(endpoint, RequestCode.GET_ALL_TOPIC_CONFIG)).ext["saturnLeads"]
        assert leads == "true"
        # A deposed master whose disk was replaced.
        master.ext = {code: {"saturnVersion": "v1", "saturnLeads": "false"} for code in TABLES}
        with pytest.raises(SystemBusy, match="leads the group no more"):
            await sync_of(broker).copy_from(master.address)
        assert broker.context.topics.get("mine") is not None
        await broker.close()

    run(body)


@pytest.mark.parametrize("held", TABLES)
def test_the_answer_of_an_old_master_comes_too_late_for_who_leads_now(
    tmp_path: Path, held: RequestCode
) -> None:
    """It may have been under way for as long as a partition."""

    async def body(runtime: NativeRuntime) -> None:
        master = await FakeMaster().start(runtime)
        offsets = {"offsetTable": {"orders@G": {"0": 60}}}
        master.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = offsets
        master.holds = held
        broker = await started(runtime, config(tmp_path, role="SLAVE", broker_id=1))
        copying = asyncio.create_task(sync_of(broker).copy_from(master.address))
        await until(lambda: master.is_asked)
        await insist(broker)
        endpoint = await connected(runtime, broker)
        await send(endpoint, b"x", topic="mine")
        known = broker.context.offsets.query("G", "orders", 0)
        master.go_on()
        with pytest.raises(SystemBusy, match="came too late"):
            await copying
        assert broker.context.topics.get("mine") is not None
        assert broker.context.offsets.query("G", "orders", 0) == known
        assert (held == RequestCode.GET_ALL_DELAY_OFFSET) == (known is not None)
        await broker.close()

    run(body)


def test_who_leads_before_an_answer_is_read_takes_nothing_of_it(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await FakeMaster().start(runtime)
        many = {f"orders@G{number}": {"0": 60} for number in range(3 * STEP_READ)}
        master.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = {"offsetTable": many}
        broker = await started(runtime, config(tmp_path, role="SLAVE", broker_id=1))
        broker.context.steps.pause()
        copying = asyncio.create_task(sync_of(broker).copy_from(master.address))
        await until(lambda: RequestCode.GET_ALL_CONSUMER_OFFSET in [c.code for c in master.asked])
        await insist(broker)
        broker.context.steps.resume()
        with pytest.raises(SystemBusy, match="came too late"):
            await copying
        assert len(broker.context.offsets) == 0
        await broker.close()

    run(body)


def test_offsets_of_a_topic_that_is_deleted_while_they_are_read_are_not_taken(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await FakeMaster().start(runtime)
        offsets = {"orders@G": {"0": 60}, "other@G": {"0": 7}}
        master.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = {"offsetTable": offsets}
        broker = await started(runtime, config(tmp_path, role="SLAVE", broker_id=1))
        offsets_of, topics = broker.context.offsets, broker.context.topics
        read = offsets_of.read

        def read_slowly(document: dict[str, Any]) -> Any:
            marks = yield from read(document)
            topics.delete("orders", Tombstone(0, {0: 100}))
            yield
            return marks

        offsets_of.read = read_slowly  # type: ignore[method-assign]
        await sync_of(broker).copy_from(master.address)
        assert offsets_of.query("G", "orders", 0) is None
        assert offsets_of.query("G", "other", 0) == 7
        await broker.close()

    run(body)


def test_delay_progress_counts_once_the_delivered_copies_are_here(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        code = RequestCode.GET_ALL_DELAY_OFFSET
        master = await FakeMaster().start(runtime)
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await send(endpoint, b"x")
        end = broker.store.watermarks.appended
        master.tables[code] = {"offsetTable": {"3": 12}}
        master.ext[code] = {"saturnVersion": "v1", "saturnLogEnd": str(end + 1)}

        async def known() -> dict[str, int]:
            reply = await ask(endpoint, code)
            table: dict[str, int] = fastjson.loads(bytes(reply.body))["offsetTable"]
            return table

        await sync_of(broker).copy_from(master.address)
        assert await known() == {}
        await send(endpoint, b"what was missing")
        await sync_of(broker).copy_from(master.address)
        assert await known() == {"3": 12}
        await broker.close()

    run(body)


def test_delay_progress_is_told_when_the_delivered_copy_is_flushed(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        store = broker.store
        await send(endpoint, b"later", i="DELAY\x011\x02")
        told: dict[str, int] = {}
        delivered = 0
        while not told:
            flushed = store.watermarks.flushed
            reply = await ask(endpoint, RequestCode.GET_ALL_DELAY_OFFSET)
            told = fastjson.loads(bytes(reply.body))["offsetTable"]
            if store.max_offset("orders", 0) + store.max_offset("orders", 1):
                delivered = delivered or store.watermarks.appended
            flushed = max(flushed, store.watermarks.flushed)
        assert told == {"1": 1}
        assert delivered
        assert flushed >= delivered
        await broker.close()

    run(body)


def test_a_master_that_returns_learns_what_was_consumed_at_its_slave(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "a"))
        endpoint = await connected(runtime, master)
        for _ in range(8):
            await send(endpoint, b"x", e=0)
        slave = await started(runtime, config(tmp_path / "b", role="SLAVE", broker_id=1))
        slave.replication.slave.master_is(master.address, master.ha_address)
        reader = await connected(runtime, slave)
        await until(lambda: slave.store.max_offset("orders", 0) == 8)
        await until(lambda: slave.context.topics.get("orders") is not None)
        commit = {"consumerGroup": "G", "topic": "orders", "queueId": 0, "commitOffset": 3}
        await ask(reader, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        await master.close()
        again = await started(runtime, config(tmp_path / "a"))
        slave.replication.slave.master_is(again.address, again.ha_address)
        await until(lambda: again.context.offsets.query("G", "orders", 0) == 3)
        await slave.close()
        await again.close()

    run(body)


PLACE = {"consumerGroup": "G", "topic": "orders", "queueId": 0}


async def consumed(
    runtime: NativeRuntime, path: Path, messages: int, committed: int
) -> tuple[Broker, Endpoint]:
    """A master with messages of which group G has committed some, and a connection to it."""
    master = await started(runtime, config(path))
    client = await connected(runtime, master)
    for _ in range(messages):
        await send(client, b"x", e=0)
    await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, {**PLACE, "commitOffset": committed})
    return master, client


def test_a_slave_sends_a_member_that_missed_a_reset_to_its_master(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master, client = await consumed(runtime, tmp_path / "a", 4, 1)
        slave = await started(runtime, slave_config(tmp_path / "b", master))
        offsets = slave.context.offsets
        await until(lambda: offsets.query("G", "orders", 0) == 1)
        reader = await connected(runtime, slave)
        pull = {**PLACE, "queueOffset": 2, "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0}
        pull |= {"suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 1}
        pull |= {"expressionType": "TAG", "saturnTerm": str(master.context.role.log_epoch)}
        pull["saturnMoves"] = 0
        await until(lambda: slave.context.store.max_offset("orders", 0) == 4)
        assert (await ask(reader, RequestCode.PULL_MESSAGE, pull)).code == 0
        reset = {"topic": "orders", "group": "G", "queueId": 0, "offset": 4, "timestamp": -1}
        reply = await ask(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert reply.code == 0, reply.remark
        await until(lambda: offsets.query("G", "orders", 0) == 4)
        reply = await ask(reader, RequestCode.PULL_MESSAGE, pull)
        assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (reply.ext["nextBeginOffset"], reply.ext["suggestWhichBrokerId"]) == ("2", "0")
        told = await ask(client, RequestCode.PULL_MESSAGE, pull)
        assert (told.code, told.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "4")
        pull |= {"saturnMoves": told.ext["saturnMoves"], "queueOffset": 4}
        assert (await ask(reader, RequestCode.PULL_MESSAGE, pull)).code == 19
        await slave.close()
        await master.close()

    run(body)


def test_a_master_that_starts_takes_no_marks_of_a_log_of_another_term(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master, client = await consumed(runtime, tmp_path / "a", 8, 3)
        state = fastjson.loads(bytes((await ask(client, RequestCode.REPLICA_STATE)).body))
        # It was master in a term of its own, whose messages this group does not have.
        away = await FakeMaster().start(runtime)
        offsets = master.context.offsets.snapshot()
        offsets["offsetTable"] = {"orders@G": {"0": 7}}
        away.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = offsets
        away.tables[RequestCode.GET_ALL_DELAY_OFFSET] = {"offsetTable": {"1": 4}}
        away.tables[RequestCode.REPLICA_STATE] = {
            **state,
            "address": away.address,
            "brokerId": 1,
            "role": "slave",
            "epochs": [[1, 0]],
        }
        master.context.role.add_replica(1, away.address)
        await master.close()

        again = await started(runtime, config(tmp_path / "a"))
        assert again.context.role.state is State.MASTER
        assert again.context.offsets.query("G", "orders", 0) == 3
        assert [each.code for each in away.asked] == [RequestCode.REPLICA_STATE]
        await again.close()

    run(body)


def test_a_master_that_starts_tells_no_offset_before_it_knows_those_of_its_slaves(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master, client = await consumed(runtime, tmp_path / "a", 8, 3)
        slave = await started(runtime, slave_config(tmp_path / "b", master))
        await until(lambda: slave.context.offsets.query("G", "orders", 0) == 3)
        state = fastjson.loads(
            bytes((await ask(await connected(runtime, slave), RequestCode.REPLICA_STATE)).body)
        )
        await slave.close()
        away = await FakeMaster().start(runtime)
        # The slave has copied a commit that the master had not saved when it was killed.
        offsets = slave.context.offsets
        offsets.commit("G", "orders", 0, 5)
        away.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = offsets.snapshot()
        away.tables[RequestCode.REPLICA_STATE] = {**state, "address": away.address}
        away.holds = RequestCode.GET_ALL_CONSUMER_OFFSET
        master.context.role.add_replica(1, away.address)
        await master.close()

        again = Broker(config(tmp_path / "a"), runtime, NativeDisk())
        starting = asyncio.create_task(again.start())
        await until(lambda: away.is_asked)
        client = await connected(runtime, again)
        stats = {"consumerGroup": "G", "topic": "orders"}
        for code, ext in (
            (RequestCode.QUERY_CONSUMER_OFFSET, PLACE),
            (RequestCode.GET_CONSUME_STATS, stats),
        ):
            reply = await ask(client, code, ext)
            assert reply.code == ResponseCode.SYSTEM_BUSY, reply
            assert "older than those of its slaves: this node gives them when it leads" in str(
                reply.remark
            )
        away.go_on()
        await starting
        assert again.context.role.state is State.MASTER
        reply = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, PLACE)
        assert reply.ext["offset"] == "5"
        reply = await ask(client, RequestCode.GET_CONSUME_STATS, stats)
        assert b'"consumerOffset":5' in bytes(reply.body)
        await again.close()

    run(body)


@pytest.mark.parametrize(
    "change",
    [{"identity": "0" * 31 + "1"}, {"brokerName": "another"}, {"role": "recovering"}, {}],
    ids=["of another group", "of another name", "no slave", "of a group that is not known here"],
)
def test_a_master_that_starts_takes_the_tables_of_slaves_of_its_group_only(
    tmp_path: Path, change: dict[str, str]
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path))
        client = await connected(runtime, master)
        await send(client, b"x", e=0)
        reply = await ask(client, RequestCode.REPLICA_STATE)
        away = await FakeMaster().start(runtime)
        state = {**fastjson.loads(bytes(reply.body)), "role": "slave", "brokerId": 1}
        away.tables[RequestCode.REPLICA_STATE] = {**state, "address": away.address, **change}
        master.context.role.add_replica(1, away.address)
        await master.close()
        if not change:
            _forget_all_but_replicas(tmp_path)
        again = await started(runtime, config(tmp_path))
        assert {each.code for each in away.asked} == {RequestCode.REPLICA_STATE}
        await again.close()

    run(body)


def _forget_all_but_replicas(root: Path) -> None:
    role = root / "config" / "role.json"
    known = fastjson.loads(role.read_bytes())
    shutil.rmtree(root)
    role.parent.mkdir(parents=True)
    role.write_bytes(fastjson.dumps({**known, "identity": "", "epoch": 0, "term": 0}))


def test_a_slave_that_was_away_when_a_group_was_deleted_brings_its_offsets_back_to_nobody(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        offsets = broker.context.offsets
        for group in ("G", "H"):
            offsets.commit(group, "orders", 0, 60)
        away = await FakeMaster().start(runtime)
        away.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = offsets.snapshot()
        deletion = {"groupName": "G", "cleanOffset": "true"}
        assert (await ask(client, RequestCode.DELETE_SUBSCRIPTIONGROUP, deletion)).code == 0
        for _ in range(2):
            await sync_of(broker).merge_back(away.address)  # as when a slave joins
            assert offsets.query("G", "orders", 0) is None
            assert offsets.query("H", "orders", 0) == 60
            await broker.close()
            broker = await started(runtime, config(tmp_path))  # the deletion is on the disk
            offsets = broker.context.offsets
        await broker.close()

    run(body)
