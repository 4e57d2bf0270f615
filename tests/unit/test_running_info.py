"""307 at a broker, in virtual time: a tool asks what a consumer does, the consumer answers."""

from __future__ import annotations

import json

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from world_rig import Remote, World, run

HEARTBEAT = {
    "clientID": "me",
    "consumerDataSet": [
        {
            "groupName": "G",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [],
        }
    ],
}


async def about(tool: Remote, client_id: str) -> Command:
    ext = {"consumerGroup": "G", "clientId": client_id, "jstackEnable": "false"}
    return await tool.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)


def test_a_consumer_is_asked_and_its_answer_passed_on() -> None:
    asked: list[dict[str, str]] = []

    def heard(endpoint: Endpoint, command: Command) -> None:
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            asked.append(dict(command.ext))
            endpoint.send(command.reply(body=b'{"mqTable":{}}'))

    async def body(world: World) -> None:
        broker = await world.broker()
        consumer = await world.connect(broker.address, heard)
        await consumer.ask(RequestCode.HEART_BEAT, {}, json.dumps(HEARTBEAT).encode())
        tool = await world.connect(broker.address)
        answer = await about(tool, "me")
        assert (answer.code, bytes(answer.body)) == (0, b'{"mqTable":{}}')
        assert asked == [{"consumerGroup": "G", "clientId": "me", "jstackEnable": "false"}]
        assert (await about(tool, "you")).code == 1
        await broker.close()

    run(body)


def test_a_consumer_that_does_not_answer_costs_ten_seconds_and_one_that_leaves_nothing() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        consumer = await world.connect(broker.address)
        await consumer.ask(RequestCode.HEART_BEAT, {}, json.dumps(HEARTBEAT).encode())
        tool = await world.connect(broker.address)
        began = world.loop.time()
        answer = await about(tool, "me")
        assert (answer.code, "me did not answer in 10 s" in (answer.remark or "")) == (207, True)
        assert 10.0 <= world.loop.time() - began < 11.0
        asking = tool.endpoint.request(
            Command.request(
                RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "G", "clientId": "me"}
            ),
            60.0,
        )
        world.loop.call_later(1.0, consumer.endpoint.close)
        answer = await asking
        assert answer.code == 1
        assert world.loop.time() - began < 13.0
        await broker.close()

    run(body)
