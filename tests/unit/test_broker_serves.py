"""A real broker on a loopback port and a temporary directory, spoken to in Remoting commands."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, insist, pull, run, send, started, until
from saturnmq.cli.free_ports import free_block
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol import fastjson
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.runtime.native import NativeRuntime


def test_a_message_sent_is_pulled_found_by_id_and_by_key(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        sent = await send(client, b"hello")
        assert sent.code == 0, sent.remark
        assert sent.ext["queueOffset"] == "0"
        assert sent.ext["transactionId"] == "U1"
        assert sent.ext["MSG_REGION"] == "DefaultRegion"
        got = await pull(client, 0, sysFlag=6, suspendTimeoutMillis=5000)
        assert got.code == 0, got.remark
        assert got.ext["nextBeginOffset"] == "1"
        [message] = decode_frames(got.body, True)
        assert (message.body, message.tag, message.keys) == (b"hello", "A", ["k1"])
        assert message.properties["CLUSTER"] == "DefaultCluster"
        seen = await ask(client, 33, {"offset": int(sent.ext["msgId"][16:], 16)})
        assert decode_frames(seen.body, True)[0].body == b"hello"
        key = {"topic": "orders", "key": "k1", "maxNum": 5, "beginTimestamp": 0}
        found = await ask(client, 12, {**key, "endTimestamp": 1 << 60})
        assert decode_frames(found.body, True)[0].body == b"hello"
        assert (await ask(client, 30, {"topic": "orders", "queueId": 0})).ext["offset"] == "1"
        await broker.close()

    run(body)


def test_a_broker_serves_though_somebody_has_the_port_of_java_slaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        port = free_block("127.0.0.1", 4) + 2
        with socket.create_server(("127.0.0.1", port - 2)):
            broker = await started(runtime, config(tmp_path, port=port))
            assert f"port {port - 2} (port - 2) is not free" in caplog.text
            client = await connected(runtime, broker)
            assert (await send(client, b"served")).code == 0
            client.close()
            await broker.close()

    run(body)


def test_a_start_tells_a_store_without_a_log_from_one_that_was_recovered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        assert f"{tmp_path} holds no log" in caplog.text
        client = await connected(runtime, broker)
        assert (await send(client, b"x")).code == 0
        await broker.close()
        caplog.clear()
        broker = await started(runtime, config(tmp_path))
        assert "holds no log" not in caplog.text
        assert "recovered in" in caplog.text
        assert "after a clean stop" in caplog.text
        await broker.close()

    run(body)


def test_a_batch_keeps_its_order_and_a_tag_filter_drops(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        batch = bytearray()
        for n in range(100):
            tag = b"TAGS\x01" + (b"A" if n % 2 else b"B") + b"\x02"
            encode_batch_item(batch, b"m%d" % n, tag, 0, True)
        ext = {"a": "P", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        sent = await ask(client, 320, {**ext, "m": "true"}, bytes(batch))
        assert sent.code == 0, sent.remark
        await until(lambda: broker.store.max_offset("orders", 0) == 100)
        got = await pull(client, 0, subscription="A", maxMsgNums=1000)
        assert [m.body for m in decode_frames(got.body, True)] == [
            b"m%d" % n for n in range(1, 100, 2)
        ]
        await broker.close()

    run(body)


def test_a_held_pull_is_woken_and_an_idle_one_ends(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await send(client, b"first")
        await until(lambda: broker.store.max_offset("orders", 0) == 1)
        idle = await pull(client, 1, sysFlag=6, suspendTimeoutMillis=150)
        assert (idle.code, idle.ext["nextBeginOffset"]) == (19, "1")
        held = asyncio.ensure_future(pull(client, 1, sysFlag=6, suspendTimeoutMillis=20_000))
        await until(lambda: len(broker.messaging.pulls.held) == 1)
        await send(client, b"second")
        got = await held
        assert [m.body for m in decode_frames(got.body, True)] == [b"second"]
        assert len(broker.messaging.pulls.held) == 0
        await broker.close()

    run(body)


def test_a_reset_offset_reaches_a_held_pull_at_once(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await send(client, b"first")
        await until(lambda: broker.store.max_offset("orders", 0) == 1)
        consumer = {
            "groupName": "G",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [{"topic": "orders", "subString": "*", "subVersion": 1}],
        }
        beat = {"clientID": "me", "consumerDataSet": [consumer], "producerDataSet": []}
        assert (await ask(client, 34, {}, json.dumps(beat).encode())).code == 0
        held = asyncio.ensure_future(pull(client, 1, sysFlag=6, suspendTimeoutMillis=20_000))
        await until(lambda: len(broker.messaging.pulls.held) == 1)
        reset = await ask(client, 222, {"topic": "orders", "group": "G", "timestamp": 0})
        assert reset.code == 0
        async with asyncio.timeout(5):
            moved = await held
        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "0")
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("changes", "body", "code"),
    [
        ({"b": "bad name"}, b"x", 29),
        ({"b": "x" * 128}, b"x", 29),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, b"x", 16),
        ({"b": "fresh", "c": "no_template"}, b"x", 17),
        ({"e": 99}, b"x", 29),
        ({}, b"", 13),
        ({}, b"x" * ((4 << 20) + 1), 13),
        ({"i": "P\x01" + "v" * 32_768 + "\x02"}, b"x", 13),
        ({"e": "many"}, b"x", 29),
        ({"i": "TRAN_MSG\x01true\x02"}, b"x", 13),
        ({"i": "u\x01v\x02TIMER_DELAY_SEC\x01259201\x02"}, b"x", 13),
        ({"i": "u\x01v\x02TIMER_DELAY_SEC\x015\x02TRAN_MSG\x01true\x02"}, b"x", 13),
    ],
)
def test_a_bad_send_gets_its_code_and_the_next_one_works(
    tmp_path: Path, changes: dict[str, Any], body: bytes, code: int
) -> None:
    async def go(runtime: NativeRuntime) -> None:
        settings = config(tmp_path, store_options={"commitlog_segment_bytes": 8 << 20})
        broker = await started(runtime, settings)
        client = await connected(runtime, broker)
        refused = await send(client, body, **changes)
        assert refused.code == code, refused.remark
        assert refused.remark
        assert (await send(client, b"fine")).code == 0
        assert (await ask(client, 7777)).code == 3
        await broker.close()

    run(go)


def test_master_and_slave_register_and_the_slave_finds_its_master(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        nameserver = NameServer(runtime, port=0)
        await nameserver.start()
        names = {"nameservers": (nameserver.address,)}
        slave = await started(
            runtime,
            config(tmp_path / "s", role="SLAVE", broker_id=1, register_ms=100, **names),
        )
        master = await started(runtime, config(tmp_path / "m", role="SYNC_MASTER", **names))
        await until(master.context.enough_replicas)
        client = await connected(runtime, master)
        assert (await send(client, b"hello")).code == 0
        asking = Endpoint(runtime, None)
        await runtime.connect(*split_address(nameserver.address), asking)
        route: dict[str, Any] = {}
        while len(route.get("brokerDatas", [{}])[0].get("brokerAddrs", {})) < 2:
            reply = await ask(asking, 105, {"topic": "orders"})
            route = json.loads(bytes(reply.body)) if reply.code == 0 else {}
        addresses = route["brokerDatas"][0]["brokerAddrs"]
        assert addresses == {"0": master.address, "1": slave.address}
        assert route["queueDatas"][0]["writeQueueNums"] == 4
        await master.close()
        await slave.close()
        await nameserver.close()

    run(body)


def test_a_topic_created_just_before_a_crash_is_there_again(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await send(client, b"x", e=3)
        await until(lambda: broker.store.max_offset("orders", 3) == 1)
        client.close()
        await broker.close()
        for name in ("topics.json", "topics.json.bak"):
            (tmp_path / "config" / name).unlink(missing_ok=True)
        broker = await started(runtime, config(tmp_path))
        topic = broker.context.topics.get("orders")
        assert topic is not None
        assert topic.read_queues == 4
        await broker.close()

    run(body)


def test_every_table_that_a_slave_of_rocketmq_asks_for_is_answered(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        for code, part in {
            21: "topicConfigTable",
            43: "offsetTable",
            45: "offsetTable",
            201: "subscriptionGroupTable",
            402: "messageRequestModeMap",
            61: "timingCount",
        }.items():
            table = await ask(client, code)
            assert table.code == 0, table.remark
            assert part in json.loads(bytes(table.body))
        moment, position, *read = struct.unpack(">7q", bytes((await ask(client, 60)).body))
        assert moment % 1000 == 0
        assert 0 < runtime.now_ms() - moment < 60_000
        assert (position, read[:2], read[4]) == (0, [0, 0], 0)
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("topics", '{"topicConfigTable":["T"]}'),
        ("consumerOffset", '{"offsetTable":["T@G"]}'),
        ("subscriptionGroup", '{"subscriptionGroupTable":["G"]}'),
        ("delayOffset", '{"offsetTable":{"x":1}}'),
    ],
)
def test_a_table_of_another_shape_refuses_the_start(
    tmp_path: Path, name: str, document: str
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        file = tmp_path / "config" / f"{name}.json"
        file.parent.mkdir()
        file.write_text(document)
        with pytest.raises(StoreDamaged, match=name):
            await started(runtime, config(tmp_path))
        file.unlink()
        await (await started(runtime, config(tmp_path))).close()

    run(body)


def test_offsets_of_queues_that_there_are_not_are_dropped_at_the_start(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await send(client, b"x", topic="T")
        ext = {"consumerGroup": "G", "topic": "T", "queueId": 3, "commitOffset": 0}
        assert (await ask(client, 15, ext)).code == 0
        await broker.close()
        file = tmp_path / "config" / "consumerOffset.json"
        document = fastjson.loads(file.read_bytes())
        document["offsetTable"]["T@G"] |= {str(queue): 0 for queue in (4, 5000, 2_000_000)}
        document["offsetTable"]["elsewhere@G"] = {"0": 0}
        file.write_bytes(fastjson.dumps(document))
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        table = fastjson.loads((await ask(client, 43)).body)["offsetTable"]
        assert table == {"T@G": {"3": 0}, "elsewhere@G": {"0": 0}}
        await broker.close()
        assert fastjson.loads(file.read_bytes())["offsetTable"] == table

    run(body)


def test_members_see_each_other_and_are_told_of_changes(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        notices: list[int] = []

        def heard(endpoint: Endpoint, command: Command) -> None:
            notices.append(command.code)

        first = Endpoint(runtime, heard)
        host, port = split_address(broker.address)
        await runtime.connect(host, port, first)
        second = await connected(runtime, broker)
        assert (await ask(first, 38, {"consumerGroup": "G"})).code == 1
        for client, name in ((first, "c1"), (second, "c2")):
            beat = {
                "clientID": name,
                "producerDataSet": [],
                "consumerDataSet": [
                    {
                        "groupName": "G",
                        "consumeType": "CONSUME_PASSIVELY",
                        "messageModel": "CLUSTERING",
                        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                        "subscriptionDataSet": [
                            {"topic": "orders", "subString": "A", "subVersion": 5}
                        ],
                    }
                ],
            }
            assert (await ask(client, 34, {}, json.dumps(beat).encode())).code == 0
        listed = await ask(first, 38, {"consumerGroup": "G"})
        assert json.loads(bytes(listed.body)) == {"consumerIdList": ["c1", "c2"]}
        await until(lambda: notices.count(40) == 2)
        assert broker.context.topics.get("%RETRY%G") is not None
        second.close()
        await until(lambda: notices.count(40) == 3)
        listed = await ask(first, 38, {"consumerGroup": "G"})
        assert json.loads(bytes(listed.body)) == {"consumerIdList": ["c1"]}
        await broker.close()

    run(body)


def test_offsets_and_messages_survive_a_restart(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        for round_ in range(3):
            broker = await started(runtime, config(tmp_path))
            client = await connected(runtime, broker)
            assert (await send(client, b"round %d" % round_)).code == 0
            await until(lambda: broker.store.max_offset("orders", 0) == round_ + 1)  # noqa: B023
            stored = {"consumerGroup": "G", "topic": "orders", "queueId": 0}
            stored["setZeroIfNotFound"] = "false"
            if round_:
                assert (await ask(client, 14, stored)).ext["offset"] == str(round_)
            else:
                assert (await ask(client, 14, stored)).code == 22
            assert (await ask(client, 15, {**stored, "commitOffset": round_ + 1})).code == 0
            got = await pull(client, 0)
            assert len(decode_frames(got.body, True)) == round_ + 1
            client.close()
            await broker.close()

    run(body)


def test_a_message_given_back_comes_again_and_at_last_goes_to_the_dead_letters(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        sent = await send(client, b"hard")
        group = {"groupName": "G", "retryMaxTimes": 1}
        assert (await ask(client, 200, {}, json.dumps(group).encode())).code == 0
        back = {"group": "G", "originTopic": "orders", "unitMode": "false"}
        offset = int(sent.ext["msgId"][16:], 16)
        given = await ask(client, 36, {**back, "offset": offset, "delayLevel": 1})
        assert given.code == 0, given.remark
        await until(lambda: broker.store.max_offset("%RETRY%G", 0) == 1)
        got = await pull(client, 0, topic="%RETRY%G")
        [again] = decode_frames(got.body, True)
        assert (again.body, again.reconsume_times) == (b"hard", 1)
        assert again.properties["RETRY_TOPIC"] == "orders"
        given = await ask(client, 36, {**back, "offset": again.physical_offset, "delayLevel": 0})
        assert given.code == 0
        await until(lambda: broker.store.max_offset("%DLQ%G", 0) == 1)
        dead_letters = broker.context.topics.get("%DLQ%G")
        assert dead_letters is not None
        assert dead_letters.queues == 1
        got = await pull(client, 0, topic="%DLQ%G")
        [dead] = decode_frames(got.body, True)
        assert (dead.body, dead.reconsume_times) == (b"hard", 2)
        # what RocketMQ leaves in a dead letter: no delay, and its last trip through the schedule
        for name, value in {
            "RETRY_TOPIC": "orders",
            "ORIGIN_MESSAGE_ID": sent.ext["msgId"],
            "WAIT": "false",
            "DELAY": "0",
            "REAL_TOPIC": "%RETRY%G",
            "REAL_QID": "0",
        }.items():
            assert dead.properties[name] == value
        await broker.close()

    run(body)


def test_another_message_that_is_at_its_place_now_is_not_given_back(tmp_path: Path) -> None:
    """A promotion may cut off what a consumer has read, and other messages come there."""

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        sent = await send(client, b"there", i="UNIQ_KEY\x01mine\x02")
        by_offset = sent.ext["msgId"]
        back = {"offset": int(by_offset[16:], 16), "group": "G", "delayLevel": -1}
        refused = await ask(client, 36, {**back, "originMsgId": "its"})
        assert refused.code == 1
        for part in (str(back["offset"]), "mine", "its"):
            assert part in refused.remark
        assert broker.context.topics.get("%DLQ%G") is None
        for known in ("mine", by_offset, ""):
            assert (await ask(client, 36, {**back, "originMsgId": known})).code == 0
        await until(lambda: broker.store.max_offset("%DLQ%G", 0) == 3)
        await broker.close()

    run(body)


def test_a_group_is_made_by_the_first_message_to_its_retry_topic(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await send(client, b"again", "%RETRY%new")).code == 0
        sent = await send(client, b"first")
        back = {"offset": int(sent.ext["msgId"][16:], 16), "group": "newer", "delayLevel": -1}
        assert (await ask(client, 36, back)).code == 0
        assert {"new", "newer"} <= {group.name for group in broker.context.groups}
        refused = await send(client, b"again", "%RETRY%" + "g" * 121)
        assert refused.code == 29
        assert "at most 120" in (refused.remark or "")
        await broker.close()

    run(body)


def test_sync_flush_answers_when_flushed(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, flush_disk_type="SYNC_FLUSH"))
        client = await connected(runtime, broker)
        sent = await asyncio.gather(*(send(client, b"%d" % n) for n in range(64)))
        assert {s.code for s in sent} == {0}
        assert broker.store.watermarks.flushed == broker.store.watermarks.appended
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ("", 11),
        ("WAIT\x01true\x02", 11),
        ("WAIT\x01false\x02", 0),
        ("AWAIT\x01true\x02WAIT\x01false\x02WAIT\x01true\x02", 0),
        ("WAIT\x01TRUE\x02", 11),
        ("AWAIT\x01false\x02XTRAN_MSG\x01true\x02XDELAY\x013\x02", 11),  # the user's own names
    ],
)
def test_only_wait_false_gives_up_the_ack_mode(tmp_path: Path, properties: str, code: int) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, role="SYNC_MASTER"))
        await insist(broker)
        client = await connected(runtime, broker)
        assert (await send(client, b"nobody copies this", i=properties)).code == code
        await until(lambda: broker.store.queues().keys() == {("orders", 0)})
        await broker.close()

    run(body)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_send_waits_for_those_who_could_be_elected(tmp_path: Path, flush: str) -> None:
    """A master without a lease, parted from its slave: their connection may stay for long."""

    async def body(runtime: NativeRuntime) -> None:
        settings = {"slave_timeout_ms": 100, "sync_flush_timeout_ms": 100}
        broker = await started(runtime, config(tmp_path, flush_disk_type=flush, **settings))
        client = await connected(runtime, broker)
        broker.context.witnesses = lambda: frozenset({"10.0.0.9:10911"})
        assert (await send(client, b"the master's alone")).code == 12
        assert (await pull(client, 0)).code == 19, "not confirmed, so not visible"
        assert (await send(client, b"no matter", i="WAIT\x01false\x02")).code == 0
        broker.context.had_by = lambda _: broker.store.watermarks.appended
        assert (await send(client, b"the slave has it")).code == 0
        await broker.close()

    run(body)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_slave_copies_the_log_and_the_tables_and_serves_pulls(tmp_path: Path, flush: str) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(
            runtime, config(tmp_path / "m", role="SYNC_MASTER", flush_disk_type=flush)
        )
        await insist(master)
        client = await connected(runtime, master)
        alone = await send(client, b"alone")
        assert alone.code == 11
        assert alone.ext["queueOffset"] == "0"
        assert (await pull(client, 0)).code == 19, "not confirmed, so not visible"
        slave = await started(
            runtime,
            config(
                tmp_path / "s",
                role="SLAVE",
                broker_id=1,
                flush_disk_type=flush,
                ha_master_address=master.ha_address,
            ),
        )
        slave.replication.slave.master_is(master.address, master.ha_address)
        await until(master.context.enough_replicas)
        sent = await asyncio.gather(*(send(client, b"m" * 50_000) for n in range(50)))
        assert {s.code for s in sent} == {0}
        end = master.store.watermarks.appended
        await until(lambda: slave.store.watermarks.dispatched == end)
        await until(lambda: slave.context.topics.get("orders") is not None)
        reader = await connected(runtime, slave)
        got = await pull(reader, 0)
        assert got.code == 0
        assert len(decode_frames(got.body, True)) > 1
        assert (await send(reader, b"no")).code == 2
        slave.store.watermarks  # noqa: B018
        await slave.close()
        await until(lambda: not master.context.enough_replicas())
        assert (await send(client, b"alone again")).code == 11
        await master.close()

    run(body)


def test_a_slave_serves_a_topic_that_the_master_made_just_before_it_died(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "m", role="SYNC_MASTER"))
        # Only the log is copied: the tables would come from an address that it is not told.
        slave = await started(
            runtime,
            config(tmp_path / "s", role="SLAVE", broker_id=1, ha_master_address=master.ha_address),
        )
        await until(master.context.enough_replicas)
        client = await connected(runtime, master)
        assert (await send(client, b"acknowledged", e=2)).code == 0
        await master.close(clean=False)
        reader = await connected(runtime, slave)
        await until(lambda: slave.store.watermarks.dispatched > 0)
        got = await pull(reader, 0, queueId=2)
        assert got.code == 0, got.remark
        assert decode_frames(got.body, True)[0].body == b"acknowledged"
        await slave.close()

    run(body)


@pytest.mark.parametrize(("checks", "code", "following"), [(False, 20, "99"), (True, 21, "1")])
def test_a_slave_corrects_an_offset_only_if_told_to(
    tmp_path: Path, checks: bool, code: int, following: str
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path))
        client = await connected(runtime, master)
        assert (await send(client, b"one")).code == 0
        await master.close()
        slave = await started(
            runtime,
            config(
                tmp_path,
                role="SLAVE",
                broker_id=1,
                ha_master_address="127.0.0.1:1",
                offset_check_in_slave=checks,
            ),
        )
        reader = await connected(runtime, slave)
        moved = await pull(reader, 99)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (code, following)
        assert (await pull(reader, 0)).code == 0
        await slave.close()

    run(body)
