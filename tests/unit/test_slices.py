"""What is asked of many queues is answered whole, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, pull, run, send, started, until
from saturnmq.broker import bodies
from saturnmq.broker.handlers import slices
from saturnmq.broker.handlers.membership import TOLD_AT_ONCE
from saturnmq.broker.handlers.pull import LOOKED_AT
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import WORKS_MAX
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.native import NativeRuntime

STATS, CONSUMED = RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_CONSUME_STATS
BOUNDS = RequestCode.QUEUE_BOUNDS


@pytest.mark.parametrize("queues", [1, slices.QUEUES, slices.QUEUES + 1, 5 * slices.QUEUES])
def test_every_queue_is_in_the_answer_once(tmp_path: Path, queues: int) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        count = {"topic": "T", "readQueueNums": queues, "writeQueueNums": queues}
        assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, count)).code == 0
        stats = fastjson.loads((await ask(client, STATS, {"topic": "T"})).body)
        assert stats["topicPutTps"] == 0
        assert sorted(queue_id for _, _, queue_id in stats["offsetTable"]) == [*range(queues)]
        asked = {"consumerGroup": "G", "topic": "T"}
        consumed = fastjson.loads((await ask(client, CONSUMED, asked)).body)
        assert consumed["consumeTps"] == 0
        assert consumed["offsetTable"].keys() == stats["offsetTable"].keys()
        bounds = fastjson.loads((await ask(client, BOUNDS, {"topic": "T"})).body)
        assert bounds == {str(queue_id): [0, 0] for queue_id in range(queues)}
        client.close()
        await broker.close()

    run(body)


def test_a_group_without_topics_has_an_empty_table(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        reply = await ask(client, CONSUMED, {"consumerGroup": "G"})
        assert fastjson.loads(reply.body) == {"consumeTps": 0, "offsetTable": {}}
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
        await until(lambda: not broker.ground.context.role.refuses(runtime.monotonic()))
        for first in range(0, len(alike), 64):  # none waits so long that it is refused
            keys = alike[first : first + 64]
            sent = [send(client, b"x", i=f"KEYS\x01{key}\x02") for key in keys]
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


def test_pulls_with_long_conditions_are_served_one_by_one_between_others(tmp_path: Path) -> None:
    def condition(number: int) -> str:
        return " OR ".join(f"a = '{number}.{term}'" for term in range(200))

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, enable_property_filter=True))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        sends = [send(client, b"x", i=f"a\x01{number}.199\x02") for number in range(30)]
        await asyncio.gather(*sends)
        asked = {"expressionType": "SQL92", "maxMsgNums": 1}
        much = [
            asyncio.ensure_future(pull(client, number, subscription=condition(number), **asked))
            for number in range(30)
        ]
        await asyncio.sleep(0)
        assert (await ask(other, RequestCode.GET_BROKER_HA_STATUS)).code == 0
        assert sum(each.done() for each in much) < 10
        found = await asyncio.gather(*much)
        assert {reply.code for reply in found} == {ResponseCode.SUCCESS}
        queue_offsets = [decode_frames(reply.body, False)[0].queue_offset for reply in found]
        assert queue_offsets == [*range(30)]
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize("ends", ["a message", "the time"])
def test_many_held_pulls_are_answered_between_others(tmp_path: Path, ends: str) -> None:
    many = 40 * LOOKED_AT

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        await send(client, b"x")
        held = {"sysFlag": 6, "suspendTimeoutMillis": 10_000}
        much = [asyncio.ensure_future(pull(client, 1, **held)) for _ in range(many)]
        pulls = broker.messaging.pulls
        await until(lambda: len(pulls.held) == many)
        if ends == "a message":
            await send(other, b"y")
        else:
            pulls.expire(runtime.monotonic() + 11)
        assert (await ask(other, RequestCode.GET_BROKER_HA_STATUS)).code == 0
        assert len(pulls.held) > many // 2
        assert len({reply.code for reply in await asyncio.gather(*much)}) == 1
        assert len(pulls.held) == 0
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)


def test_a_large_body_is_read_beside_others(tmp_path: Path) -> None:
    topics = [{"topic": f"t{n}", "subString": f"a > {n}"} for n in range(2000)]
    beat = {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": "G",
                "subscriptionDataSet": [{**each, "expressionType": "SQL92"} for each in topics],
            }
        ],
    }

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        much = asyncio.ensure_future(ask(client, RequestCode.HEART_BEAT, {}, fastjson.dumps(beat)))
        await asyncio.sleep(0)
        little = asyncio.ensure_future(ask(other, RequestCode.GET_BROKER_HA_STATUS))
        done, _ = await asyncio.wait([much, little], return_when=asyncio.FIRST_COMPLETED)
        assert done == {little}
        assert (await much).code == 0
        assert len(broker.context.clients.consumers["G"].subscriptions) == len(topics)
        too_large = await ask(client, RequestCode.HEART_BEAT, {}, b" " * (bodies.BODY_MAX + 1))
        assert too_large.code == ResponseCode.INVALID_PARAMETER, too_large.remark
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)


def test_members_of_a_large_group_are_told_of_many_changes_a_few_times(tmp_path: Path) -> None:
    many = 3 * TOLD_AT_ONCE

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        told: Counter[int] = Counter()
        members = [await connected(runtime, broker) for _ in range(many)]
        for number, member in enumerate(members):
            member._handler = lambda *_, number=number: told.update([number])
        beats = [
            ask(member, RequestCode.HEART_BEAT, {}, fastjson.dumps(beat(f"c{number}")))
            for number, member in enumerate(members)
        ]
        assert {reply.code for reply in await asyncio.gather(*beats)} == {0}
        await until(lambda: not broker.messaging.members._telling and len(told) == many)
        assert max(told.values()) < many // 2, "a join is not told by itself"
        told.clear()
        members.pop().close()
        await until(lambda: len(told) == many - 1)
        assert set(told.values()) == {1}
        for member in members:
            member.close()
        await broker.close()

    def beat(client_id: str) -> dict[str, Any]:
        consumer = {"groupName": "G", "messageModel": "CLUSTERING"}
        return {"clientID": client_id, "consumerDataSet": [consumer]}

    run(body)


def test_a_reset_of_many_queues_is_done_between_others(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        many = 2000
        count = {"topic": "T", "readQueueNums": many, "writeQueueNums": many}
        assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, count)).code == 0
        group = fastjson.dumps({"groupName": "G"})
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await ask(client, code, {}, group)).code == 0
        asked = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true"}
        much = asyncio.ensure_future(ask(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked))
        marks = broker.context.offsets.progress.marks
        while not marks:
            await asyncio.sleep(0)
        assert (await ask(other, RequestCode.GET_BROKER_HA_STATUS)).code == 0
        assert len(marks) < many
        reply = await much
        assert reply.code == 0, reply.remark
        assert len(fastjson.loads(reply.body)["offsetTable"]) == many
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)


def test_of_long_answers_that_one_connection_asks_for_few_are_under_way(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        count = {"topic": "T", "readQueueNums": 1024, "writeQueueNums": 1024}
        assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, count)).code == 0
        asked = [client.request(Command.request(STATS, {"topic": "T"}), 10.0) for _ in range(50)]
        most = 0
        while not all(answer.done() for answer in asked):
            under_way = [task.get_name() for task in asyncio.all_tasks()].count("answer-in-steps")
            most = max(most, under_way)
            await asyncio.sleep(0)
        assert 1 < most <= WORKS_MAX
        assert {(await answer).code for answer in asked} == {0}
        assert (await ask(other, STATS, {"topic": "T"})).code == 0
        await broker.close()

    run(body)


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_a_heartbeat_of_many_groups_is_read_in_steps_and_conditions_are_in_a_thread(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, enable_property_filter=True))
        client = await connected(runtime, broker)
        in_threads = []

        async def run_aside(function: Any, *args: Any) -> Any:
            in_threads.append(function)
            return function(*args)

        monkeypatch.setattr(broker.context.aside, "run", run_aside)
        subscription = {"topic": "T", "subString": "a > 1", "expressionType": kind}
        consumer = {"groupName": "G", "subscriptionDataSet": [subscription]}
        producers = [{"groupName": f"group-{number}"} for number in range(1_000)]
        beat = {"clientID": "me", "producerDataSet": producers, "consumerDataSet": [consumer]}
        request = Command.request(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
        assert (await client.request(request, 10.0)).code == 0
        assert len(broker.context.clients.producers) == 1_000
        assert len(in_threads) == (kind == "SQL92")
        condition = " OR ".join(["a > 1"] * 200)
        subscription |= {"subString": condition, "subVersion": 1}
        beat = {"clientID": "me", "consumerDataSet": [consumer]}
        request = Command.request(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
        assert len(request.body) < slices.QUICK_BYTES
        assert (await client.request(request, 10.0)).code == 0
        assert len(in_threads) == 2 * (kind == "SQL92")
        await broker.close()

    run(body)
