"""Tables that grow by requests have their part of the broker's memory, and no more."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from broker_rig import ask, config, connected, run, send, started
from saturnmq.broker.tables import table_memory
from saturnmq.broker.tables.locks import QueueLockTable
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.broker.tables.topics import Topic, TopicTable
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.header_fields import NAME_MAX
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.remoting import MAX_FRAME, Command
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.runtime.errors import SystemBusy
from saturnmq.runtime.native import NativeRuntime
from saturnmq.runtime.steps import at_once
from saturnmq.store.derived.tombstones import Tombstone


def beat_of(group: str) -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 5}],
    }
    return fastjson.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]})


def test_beyond_their_part_of_the_memory_tables_take_nothing_new_and_serve_what_is_there(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        budget = broker.context.connections.budget

        async def commit(group: str, queue_id: int, offset: int = 0) -> Command:
            ext = {"consumerGroup": group, "topic": "T", "queueId": queue_id}
            return await ask(client, 15, {**ext, "commitOffset": offset})

        async def beat(group: str) -> Command:
            return await ask(client, 34, body=beat_of(group))

        async def lock(queue_id: int) -> Command:
            queue = {"topic": "T", "brokerName": "b", "queueId": queue_id}
            asked = {"consumerGroup": "G", "clientId": "c", "mqSet": [queue]}
            return await ask(client, 41, body=fastjson.dumps(asked))

        async def new_topic(name: str) -> Command:
            ext = {"topic": name, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
            return await ask(client, 17, ext)

        for reply in (await send(client, b"x", topic="T"), await commit("G", 0), await beat("G")):
            assert reply.code == 0, reply.remark
        assert (await lock(0)).code == 0
        broker.context.tables.count()
        used, part = broker.context.tables.used, broker.context.tables._part
        assert 10_000 < used < 1 << 20
        assert budget.used > used
        part.limit = used + 100
        refused = [
            await new_topic("another"),
            await send(client, b"x", topic="another"),
            await ask(client, 200, body=fastjson.dumps({"groupName": "another"})),
            await commit("G", 1),
            await commit("another", 0),
            await beat("another"),
            await lock(1),
        ]
        assert [reply.code for reply in refused] == [2] * len(refused)
        assert all("topics, groups and offsets" in str(reply.remark) for reply in refused)
        served = [
            await new_topic("T"),
            await send(client, b"x", topic="T"),
            await ask(client, 200, body=fastjson.dumps({"groupName": "G"})),
            await commit("G", 0, 1),
            await beat("G"),
            await lock(0),
        ]
        assert [reply.code for reply in served] == [0] * len(served)
        broker.context.tables.count()
        assert broker.context.tables.used == used
        await broker.close()

    run(body)


def test_topics_and_groups_that_could_not_be_told_in_one_frame_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 260 changes of the attributes of one topic no nameserver could be told the table: the
    broker was out of all routes two minutes later, for good."""

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        topics = await text_of(client, RequestCode.GET_ALL_TOPIC_CONFIG)
        groups = await text_of(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        monkeypatch.setattr(table_memory, "TEXT_BYTES", max(topics, groups) + 20_000)

        async def topic(number: int, attributes: str = "") -> Command:
            ext = {"topic": f"{'t' * 120}{number}", "readQueueNums": 1, "writeQueueNums": 1}
            return await ask(client, 17, {**ext, "attributes": attributes})

        async def group(name: str, more: int = 0) -> Command:
            return await ask(client, 200, body=fastjson.dumps({"groupName": name, "x": "x" * more}))

        made = 0
        while (answer := await topic(made)).code == 0:
            made += 1
        assert made > 40
        for number in range(3):
            assert (await group(f"G{number}", 6000)).code == 0
        more = "+message.type=TRANSACTION,+reserve.time=9223372036854775807"
        changes = [await topic(number, more) for number in range(10)]
        assert changes[0].code in (0, 2), "there may be room for one, but not for all"
        refused = [
            answer,
            changes[-1],
            await group("G", 6000),
            await group("G0", 12_000),
        ]
        assert [reply.code for reply in refused] == [2] * len(refused)
        assert all("would not fit into one frame" in str(reply.remark) for reply in refused)
        for number in range(20):
            assert (await ask(client, 215, {"topic": f"{'t' * 120}{number}"})).code == 0
        assert (await topic(made)).code == 0
        assert (await group("G0")).code == 0
        assert (await group("G", 6000)).code == 0
        assert (await ask(client, 207, {"groupName": "G"})).code == 0
        assert (await group("H", 6000)).code == 0
        beats = [await ask(client, 34, body=beat_of(f"{'y' * 100}{n}")) for n in range(40)]
        codes = [reply.code for reply in beats]
        assert codes == sorted(codes)
        assert (codes[0], codes[-1]) == (0, 2), "a group has a topic, too"
        await broker.close()

    run(body)


def test_topics_that_are_made_and_deleted_again_and_again_fill_the_table_until_the_log_forgets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_memory, "TEXT_BYTES", 100_000)
    table = TopicTable(lambda: 1, lambda: None, lambda: 1 << 50)

    def remake(start: int) -> None:
        for number in range(start, start + 10_000):
            topic = Topic(f"t{number}", 1, 1)
            table.make_room(topic)
            table.put(topic)
            last = Tombstone(1 << 50, dict.fromkeys(range(number % 50), 1 << 60))
            table.delete(topic.name, last)()  # it could not be saved
            table.delete(topic.name, last)

    for start in (0, 10_000):
        with pytest.raises(SystemBusy, match="deleted ones that the log still has"):
            remake(start)
        assert len(table) == 0
        assert len(table.deleted) > 100
        assert 80_000 < len(fastjson.dumps(table.snapshot())) < 105_000
        copy = TopicTable(lambda: 1, lambda: None, lambda: 1 << 50)
        copy.replace_all(table.snapshot(), as_of=1)
        with pytest.raises(SystemBusy):
            copy.make_room(Topic("another", 1, 1, attributes={"x": "x" * 2000}))
        table.forget_deleted(1 << 51)


SMALL = 1 << 20


def test_offsets_that_slaves_could_not_be_told_in_one_frame_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_memory, "TEXT_BYTES", SMALL)
    offsets = ConsumerOffsets(lambda: 1)
    topics = [f"{number:0100}" for number in range(4)]
    pairs = product(topics, (f"{number:0100}" for number in range(SMALL // 100)))

    def fill(table: ConsumerOffsets) -> None:
        for topic, group in pairs:
            table.commit(group, topic, QUEUES_MAX, 1 << 60)

    with pytest.raises(SystemBusy, match="the consumer offsets of this broker"):
        fill(offsets)
    assert len(offsets) > 4_000
    assert 0.95 * SMALL < len(fastjson.dumps(offsets.snapshot())) < 1.01 * SMALL
    again = ConsumerOffsets(lambda: 1)
    again.load(offsets.snapshot())
    for table in (offsets, again):
        with pytest.raises(SystemBusy):
            fill(table)
        assert table.commit(f"{0:0100}", topics[0], QUEUES_MAX, (1 << 60) + 1), "it is there"
        at_once(table.forget({f"{0:0100}"}))
        assert table.commit(f"{0:0100}", topics[0], 1, 1)


async def text_of(client: Endpoint, code: int) -> int:
    return len((await ask(client, code)).body)


def test_a_table_of_the_longest_names_fits_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = table_memory.TEXT_BYTES / MAX_FRAME
    monkeypatch.setattr(table_memory, "TEXT_BYTES", SMALL)
    table = TopicTable(lambda: 1 << 40, lambda: None, lambda: 1 << 50)
    topics = (Topic(f"{n:0{NAME_MAX}}", QUEUES_MAX, QUEUES_MAX) for n in range(SMALL // 255))

    def fill() -> None:
        for topic in topics:
            table.make_room(topic)
            table.put(topic)

    with pytest.raises(SystemBusy, match="delete some"):
        fill()
    assert len(table) > 1_500
    assert parts * len(fastjson.dumps(table.snapshot())) < SMALL
    again = TopicTable(lambda: 1, lambda: None, lambda: 1)
    again.load(table.snapshot())
    with pytest.raises(SystemBusy):
        again.make_room(next(topics))


def test_locks_that_are_over_are_forgotten() -> None:
    locks = QueueLockTable()
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    locks.lock("G", "c", queues[:2], 0.0)
    locks.lock("G", "c", queues[2:], 30.0)
    locks.lock("H", "c", queues[:1], 0.0)
    assert (len(locks), locks.unknown("G", queues), locks.unknown("H", queues)) == (4, 0, 2)
    locks.expire(60.0)
    assert (len(locks), locks.holds_any("G", 60.0), locks.holds_any("H", 0.0)) == (1, True, False)
    locks.unlock("G", "c", queues)
    assert len(locks) == 0
