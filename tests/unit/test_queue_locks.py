"""Locks of queues as members of a group ask a broker for them."""

from __future__ import annotations

from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from world_rig import Remote, World, run

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


async def ask(client: Remote, code: RequestCode, member: str, *queue_ids: int) -> list[int]:
    """The queues that the answer grants."""
    queues = [{"topic": "T", "brokerName": "broker-a", "queueId": n} for n in queue_ids]
    asked = {"consumerGroup": "G", "clientId": member, "mqSet": queues}
    answer = await client.ask(code, {}, fastjson.dumps(asked))
    assert answer.code == 0, answer.remark
    if code == UNLOCK:
        return []
    return [queue["queueId"] for queue in fastjson.loads(bytes(answer.body))["lockOKMQSet"]]


def test_a_queue_that_another_member_has_locked_is_not_granted() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        assert await ask(client, LOCK, "one", 0, 1) == [0, 1]
        assert await ask(client, LOCK, "two", 1, 2) == [2]
        await ask(client, UNLOCK, "two", 0, 1)  # only its owner gives a lock back
        assert await ask(client, LOCK, "two", 0, 1, 2) == [2]
        await ask(client, UNLOCK, "one", 1)
        assert await ask(client, LOCK, "two", 0, 1, 2) == [1, 2]
        await broker.close()

    run(body)
