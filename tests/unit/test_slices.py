"""What is asked of many queues is answered whole, and others are served meanwhile."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest
from broker_rig import ask, config, connected, run, send, started
from saturnmq.broker import slices
from saturnmq.protocol import jsonx
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.native import NativeRuntime
from saturnmq.protocol.remoting import Command

STATS, CONSUMED = RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_CONSUME_STATS
BOUNDS = RequestCode.QUEUE_BOUNDS


@pytest.mark.parametrize("queues", [1, slices.QUEUES, slices.QUEUES + 1, 5 * slices.QUEUES])
def test_every_queue_is_in_the_answer_once(tmp_path: Path, queues: int) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        count = {"topic": "T", "readQueueNums": queues, "writeQueueNums": queues}
        assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, count)).code == 0
        stats = jsonx.loads((await ask(client, STATS, {"topic": "T"})).body)
        assert stats["topicPutTps"] == 0
        assert sorted(queue_id for _, _, queue_id in stats["offsetTable"]) == [*range(queues)]
        asked = {"consumerGroup": "G", "topic": "T"}
        consumed = jsonx.loads((await ask(client, CONSUMED, asked)).body)
        assert consumed["consumeTps"] == 0
        assert consumed["offsetTable"].keys() == stats["offsetTable"].keys()
        bounds = jsonx.loads((await ask(client, BOUNDS, {"topic": "T"})).body)
        assert bounds == {str(queue_id): [0, 0] for queue_id in range(queues)}
        client.close()
        await broker.close()

    run(body)


def test_a_group_without_topics_has_an_empty_table(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        reply = await ask(client, CONSUMED, {"consumerGroup": "G"})
        assert jsonx.loads(reply.body) == {"consumeTps": 0, "offsetTable": {}}
        client.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize("code", [STATS, CONSUMED, BOUNDS])
def test_who_asks_little_does_not_wait_for_who_asks_much(tmp_path: Path, code: int) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        many = 20 * slices.QUEUES
        count = {"topic": "T", "readQueueNums": many, "writeQueueNums": many}
        assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, count)).code == 0
        fields = {"topic": "T", "consumerGroup": "G"}
        much = client.request(Command.request(code, fields), 10.0)
        little = other.request(
            Command.request(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}), 10.0
        )
        done, _ = await asyncio.wait([much, little], return_when=asyncio.FIRST_COMPLETED)
        assert done == {little}
        assert (await much).code == 0
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)


def test_who_asks_little_does_not_wait_for_a_key_whose_hash_many_share(tmp_path: Path) -> None:
    alike = ["".join(pairs) for pairs in product(("Aa", "BB"), repeat=10)]  # to Java's hashCode

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        sent = [send(client, b"x", i=f"KEYS\x01{key}\x02") for key in alike]
        assert {reply.code for reply in await asyncio.gather(*sent)} == {0}
        wanted = {"topic": "orders", "key": alike[0], "maxNum": 32}
        much = asyncio.ensure_future(ask(client, RequestCode.QUERY_MESSAGE, wanted))
        await asyncio.sleep(0)
        little = asyncio.ensure_future(
            ask(other, RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"})
        )
        done, _ = await asyncio.wait([much, little], return_when=asyncio.FIRST_COMPLETED)
        assert done == {little}
        [found] = decode_frames((await much).body, False)
        assert found.properties["KEYS"] == alike[0], "the first that was sent is found last"
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)
