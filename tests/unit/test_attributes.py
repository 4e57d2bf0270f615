"""The attributes of topics: how a request changes them, and what a topic of a type takes. Those of
groups: test_group_table.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broker_rig import ask, config, connected, pull, run, send, started, until
from saturnmq.broker.commit.message_types import type_of
from saturnmq.broker.tables.attributes import changed
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.batches import BatchPart, decode_answers, encode_parts
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.properties import encode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import dlq_topic, retry_topic
from saturnmq.runtime.errors import InvalidParameter
from saturnmq.runtime.native import NativeRuntime

TYPED = {"message.type": "FIFO"}


@pytest.mark.parametrize(
    ("current", "changes", "after"),
    [
        (None, "", {}),
        (TYPED, "", TYPED),
        (None, "+message.type=FIFO", TYPED),
        (TYPED, "+message.type=DELAY", {"message.type": "DELAY"}),
        (TYPED, "-message.type", {}),
        (TYPED, "-message.type,,", {}),
        (TYPED, ",", TYPED),
        (None, "+cleanup.policy=DELETE,+queue.type=SimpleCQ,+reserve.time=-1", {
            "cleanup.policy": "DELETE", "queue.type": "SimpleCQ", "reserve.time": "-1",
        }),
        ({"reserve.time": "5"}, "-reserve.time,+message.type=FIFO", TYPED),
        ({"of.a.later.release": "x"}, "+message.type=FIFO", {"of.a.later.release": "x", **TYPED}),
    ],
)  # fmt: skip
def test_a_change_names_what_it_changes_and_keeps_the_rest(
    current: dict[str, str] | None, changes: str, after: dict[str, str]
) -> None:
    before = dict(current or {})
    assert changed("T", current, changes, allow_mixed=False) == after
    assert (current or {}) == before, "what is in the table is not touched"


@pytest.mark.parametrize(
    ("current", "changes", "told"),
    [
        (None, "+colour=red", "unsupported key: colour"),
        ({"colour": "red"}, "-colour", "unsupported key: colour"),
        (None, "-message.type", "only add attribute is supported while creating topic"),
        ({}, "-message.type", "attempt to delete a nonexistent key: message.type"),
        (None, "message.type=FIFO", "kv string format wrong"),
        (None, "+message.type", "kv string format wrong"),
        ({}, "-message.type=FIFO", "kv string format wrong"),
        (None, "++message.type=FIFO", "kv string format wrong"),
        (None, "+=FIFO", "kv string format wrong"),
        (None, ",+message.type=FIFO", "kv string format wrong"),
        (TYPED, "+message.type=NORMAL,-message.type", "alter duplication key"),
        (None, "+message.type=fifo", "'fifo'; it is one of NORMAL, FIFO, DELAY, TRANSACTION"),
        (None, "+message.type=", "''; it is one of NORMAL"),
        (None, "+message.type=MIXED", "MIXED message type is not supported"),
        (None, "+message.type=PRIORITY", "without regard to priorities"),
        (None, "+cleanup.policy=COMPACTION", "does not compact topics"),
        (None, "+queue.type=BatchedCQ", "'BatchedCQ'; it is SimpleCQ or BatchCQ"),
        ({}, "+cleanup.policy=DELETE", "unchangeable attribute. key: cleanup.policy"),
        ({"queue.type": "SimpleCQ"}, "-queue.type", "unchangeable attribute. key: queue.type"),
        (None, "+reserve.time=soon", "'soon'; it is a number from -1 on"),
        (None, "+reserve.time=-2", "'-2'; it is a number from -1 on"),
        (None, "+reserve.time=--1", "'--1'; it is a number"),
        (None, f"+reserve.time={1 << 63}", "it is a number from -1 on"),
        (None, f"+reserve.time={'9' * 9000}", "it is a number from -1 on"),
    ],
)  # fmt: skip
def test_a_change_that_rocketmq_refuses_is_refused_in_its_words(
    current: dict[str, str] | None, changes: str, told: str
) -> None:
    with pytest.raises(InvalidParameter, match="topic T: ") as refused:
        changed("T", current, changes, allow_mixed=False)
    assert told in str(refused.value)


def test_mixed_needs_the_broker_to_allow_it() -> None:
    wanted = {"message.type": "MIXED"}
    assert changed("T", None, "+message.type=MIXED", allow_mixed=True) == wanted


async def create(client: Endpoint, attributes: str, topic: str = "T") -> Command:
    ext = {"topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "attributes": attributes}
    return await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


def test_attributes_are_in_the_table_as_rocketmq_writes_them_and_survive_a_restart(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await create(client, "+message.type=FIFO,+reserve.time=7")).code == 0
        assert (await create(client, "-reserve.time")).code == 0
        refused = await create(client, "+colour=red,-message.type")
        assert (refused.code, "unsupported key: colour" in str(refused.remark)) == (29, True)
        await broker.close()
        table = json.loads((tmp_path / "config" / "topics.json").read_bytes())
        assert table["topicConfigTable"]["T"]["attributes"] == TYPED
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        told = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
        assert json.loads(bytes(told.body))["attributes"] == TYPED
        await broker.close()

    run(body)


def test_a_topic_that_a_send_creates_has_no_attributes_of_its_template(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        ext = {"topic": "template", "perm": 7, "order": "true", "attributes": "+message.type=FIFO"}
        assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        assert (await send(client, b"x", topic="made", c="template")).code == 0
        made = broker.context.topics.get("made")
        assert made is not None
        assert (made.perm, made.order, made.attributes) == (6, False, {})
        await broker.close()

    run(body)


def test_a_static_topic_is_refused_by_name(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        ext = {"topic": "T", "readQueueNums": 1, "writeQueueNums": 1, "lo": "true"}
        refused = await ask(client, 513, ext, b'{"topic":"T","totalQueues":8}')
        assert refused.code == 3
        assert "topic T: static topics are not supported" in str(refused.remark)
        assert broker.context.topics.get("T") is None
        await broker.close()

    run(body)


@pytest.mark.parametrize("attribute", ["cleanup.policy=COMPACTION"])
def test_a_topic_of_rocketmq_that_would_not_be_kept_is_neither_written_nor_read(
    tmp_path: Path, attribute: str
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await send(client, b"x")).code == 0
        await broker.close()
        path = tmp_path / "config" / "topics.json"
        table = json.loads(path.read_bytes())
        name, value = attribute.split("=")
        table["topicConfigTable"]["orders"]["attributes"] = {name: value}
        path.write_text(json.dumps(table))
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        for reply in (await send(client, b"y"), await pull(client, 0)):
            assert reply.code == 16
            assert f"topic orders has {attribute}" in str(reply.remark)
        assert broker.store.max_offset("orders", 0) == 1
        await broker.close()

    run(body)


PROPERTIES = {
    "NORMAL": {"KEYS": "k", "DELAYED": "1", "A__SHARDINGKEY": "x"},
    "FIFO": {"__SHARDINGKEY": "a"},
    "DELAY": {"DELAY": "1", "__SHARDINGKEY": "a"},
    "TRANSACTION": {"TRAN_MSG": "true", "PGROUP": "P"},
}
MORE = [
    ("DELAY", {"TIMER_DELIVER_MS": "1"}),
    ("DELAY", {"TIMER_DELAY_SEC": "1"}),
    ("DELAY", {"TIMER_DELAY_MS": "1"}),
    ("TRANSACTION", {"TRAN_MSG": "TRUE", "DELAY": "1"}),
    ("FIFO", {"TRAN_MSG": "false", "__SHARDINGKEY": "a"}),
]


@pytest.mark.parametrize(("expected", "properties"), [*PROPERTIES.items(), *MORE])
def test_the_type_of_a_message_follows_from_its_properties(
    expected: str, properties: dict[str, str]
) -> None:
    assert type_of(encode_properties(properties).decode()) == expected


def text(name: str) -> str:
    return encode_properties(PROPERTIES[name]).decode()


def test_with_the_check_a_topic_takes_only_messages_of_its_type(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        checking = config(tmp_path, check_message_types=True, allow_mixed_types=True)
        broker = await started(runtime, checking)
        client = await connected(runtime, broker)
        kinds = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED")
        for kind in kinds:
            assert (await create(client, f"+message.type={kind}", kind)).code == 0
        taken = {
            kind: [
                name
                for name in PROPERTIES
                if (await send(client, b"x", topic=kind, i=text(name))).code == 0
            ]
            for kind in kinds
        }
        assert taken == {
            **{name: [name] for name in PROPERTIES},
            "MIXED": list(PROPERTIES),
            "UNSPECIFIED": [],
        }
        refused = await send(client, b"x", topic="FIFO")
        assert refused.code == 13
        expected = "TopicMessageType validate failed, the expected type is FIFO, but actual type is"
        assert f"{expected} NORMAL" in str(refused.remark)
        assert (await send(client, b"x", topic="plain", i=text("FIFO"))).code == 13
        assert (await send(client, b"x", topic="plain")).code == 0
        assert (await send(client, b"x", topic="FIFO", i="TRANSFER_FLAG\x01y\x02")).code == 0
        assert (await create(client, "", dlq_topic("G"))).code == 0
        for taking_all in (retry_topic("G"), dlq_topic("G")):
            assert (await send(client, b"x", topic=taking_all, i=text("FIFO"))).code == 0
        await broker.close()

    run(body)


def test_with_the_check_each_message_of_a_batch_counts(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, check_message_types=True))
        client = await connected(runtime, broker)
        assert (await create(client, "+message.type=FIFO", "FIFO")).code == 0
        keyed, plain = (b"x", text("FIFO").encode(), 0), (b"y", b"KEYS\x01__SHARDINGKEY\x02", 0)

        async def batch(topic: str, *entries: tuple[bytes, bytes, int]) -> int:
            ext = {"a": "P", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0}
            body = bytes(encode_batch(entries))
            return (await ask(client, 320, {**ext, "i": "", "m": "true"}, body)).code

        assert await batch("FIFO", keyed, keyed) == 0
        assert await batch("FIFO", keyed, plain) == 13
        assert await batch("plain", plain, plain) == 0
        assert await batch("plain", plain, keyed) == 13
        await until(lambda: broker.store.max_offset("FIFO", 0) == 2)
        await broker.close()

    run(body)


def test_with_the_check_each_batch_of_a_request_with_several_counts_for_itself(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, check_message_types=True))
        client = await connected(runtime, broker)
        assert (await create(client, "+message.type=FIFO", "FIFO")).code == 0
        keyed, plain = (b"x", text("FIFO").encode(), 0), (b"y", b"KEYS\x01k\x02", 0)
        batches = (("FIFO", [keyed]), ("FIFO", [keyed, plain]), ("plain", [keyed]))
        parts = [
            BatchPart(topic, 0, 0, 1, bytes(encode_batch(entries)))
            for topic, entries in (*batches, ("plain", [plain]))
        ]
        ext = {"a": "P", "c": "TBW102", "d": 4}
        reply = await ask(client, RequestCode.SEND_BATCHES, ext, encode_parts(parts))
        answers = list(decode_answers(reply.body, len(parts)))
        assert [answer.code for answer in answers] == [0, 13, 13, 0]
        assert b"expected type is FIFO, but actual type is NORMAL" in answers[1].rest
        await until(lambda: [broker.store.max_offset(t, 0) for t in ("FIFO", "plain")] == [1, 1])
        await broker.close()

    run(body)


def test_with_the_check_the_rows_of_a_sink_count(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, check_message_types=True))
        client = await connected(runtime, broker)
        for topic in ("FIFO", "plain"):
            kind = "FIFO" if topic == "FIFO" else "NORMAL"
            assert (await create(client, f"+message.type={kind}", topic)).code == 0
        keyed = bytes(encode_batch([(b"x", text("FIFO").encode(), 0)]))
        codes = []
        for partition, topic in enumerate(("FIFO", "plain")):
            ext = {"sink": "S", "epoch": 0, "partition": partition, "attempt": "a"}
            ext |= {"seq": 0, "topic": topic, "queueId": 0}
            codes.append((await ask(client, RequestCode.STAGE, ext, keyed)).code)
        assert codes == [0, 13]
        await broker.close()

    run(body)


def test_without_the_check_a_topic_takes_all_messages_as_at_a_broker_of_rocketmq(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await create(client, "+message.type=FIFO", "FIFO")).code == 0
        for name in PROPERTIES:
            assert (await send(client, b"x", topic="FIFO", i=text(name))).code == 0
        await broker.close()

    run(body)
