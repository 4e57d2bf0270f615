"""Tables that grow by requests have their part of the broker's memory, and no more."""

from __future__ import annotations

from pathlib import Path

from broker_rig import ask, config, connected, run, send, started
from saturnmq.broker.locks import QueueLocks
from saturnmq.protocol import jsonx
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.native import NativeRuntime
from saturnmq.protocol.remoting import Command


def beat_of(group: str) -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 5}],
    }
    return jsonx.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]})


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
            return await ask(client, 41, body=jsonx.dumps(asked))

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
            await ask(client, 200, body=jsonx.dumps({"groupName": "another"})),
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
            await ask(client, 200, body=jsonx.dumps({"groupName": "G"})),
            await commit("G", 0, 1),
            await beat("G"),
            await lock(0),
        ]
        assert [reply.code for reply in served] == [0] * len(served)
        broker.context.tables.count()
        assert broker.context.tables.used == used
        await broker.close()

    run(body)


def test_locks_that_are_over_are_forgotten() -> None:
    locks = QueueLocks()
    queues = [MessageQueue("T", "b", number) for number in range(3)]
    locks.lock("G", "c", queues[:2], 0.0)
    locks.lock("G", "c", queues[2:], 30.0)
    locks.lock("H", "c", queues[:1], 0.0)
    assert (len(locks), locks.unknown("G", queues), locks.unknown("H", queues)) == (4, 0, 2)
    locks.expire(60.0)
    assert (len(locks), locks.holds_any("G", 60.0), locks.holds_any("H", 0.0)) == (1, True, False)
    locks.unlock("G", "c", queues)
    assert len(locks) == 0
