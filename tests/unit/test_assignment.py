"""QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE: which queues a member reads, and how."""

from __future__ import annotations

import json
from typing import Any

import pytest
from saturnmq.broker.pop.assignment import assigned
from saturnmq.broker.tables.request_modes import RequestMode
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from world_rig import Remote, World, run

QUEUES = sorted(MessageQueue("T", broker, each) for broker in "ab" for each in range(4))
MEMBERS = ["c0", "c1", "c2", "c3"]


def shares(mode: RequestMode, members: list[str] = MEMBERS) -> list[list[tuple[str, int]]]:
    return [
        [(q.broker_name, q.queue_id) for q in assigned(mode, "AVG", me, QUEUES, members)]
        for me in members
    ]


def test_members_that_pop_share_everything() -> None:
    assert shares(RequestMode("POP")) == [[("a", -1), ("b", -1)]] * 4


def test_members_that_pull_have_shares_of_their_own() -> None:
    pulls = shares(RequestMode())
    assert pulls[0] == [("a", 0), ("a", 1)]
    assert sorted(each for share in pulls for each in share) == [
        (q.broker_name, q.queue_id) for q in QUEUES
    ]


def test_members_that_pop_may_share_with_a_few_others() -> None:
    found = shares(RequestMode("POP", 1))
    assert found[0] == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
    assert found[3] == [("b", 2), ("b", 3), ("a", 0), ("a", 1)], "the last shares with the first"


def test_more_members_than_queues_share_one_each() -> None:
    found = shares(RequestMode("POP", 1), [f"c{number:02}" for number in range(10)])
    assert [len(each) for each in found] == [1] * 10
    assert found[8] == found[0] == [("a", 0)]


def test_a_stranger_gets_nothing() -> None:
    assert assigned(RequestMode("POP", 1), "AVG", "else", QUEUES, MEMBERS) == []
    assert assigned(RequestMode(), "AVG", "else", QUEUES, MEMBERS) == []


def beat(client: str, group: str = "G") -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [],
    }
    body = {"clientID": client, "producerDataSet": [], "consumerDataSet": [consumer]}
    return json.dumps(body).encode()


async def ask(remote: Remote, code: int, **fields: Any) -> Command:
    return await remote.ask(code, body=json.dumps(fields).encode())


def question(**changes: Any) -> dict[str, Any]:
    fields = {
        "topic": "T",
        "consumerGroup": "G",
        "clientId": "me",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    return {**fields, **changes}


def found(reply: Command) -> list[tuple[str, int, str]]:
    assert reply.code == 0, reply.remark
    return sorted(
        (each["messageQueue"]["brokerName"], each["messageQueue"]["queueId"], each["mode"])
        for each in json.loads(reply.body)["messageQueueAssignments"]
    )


def test_a_group_pops_once_it_is_told_to_also_after_a_restart() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        remote = await world.connect(broker.address)
        assert (await remote.send(b"x")).code == 0
        assert (await remote.ask(Code.HEART_BEAT, body=beat("me"))).code == 0
        await world.until(lambda: broker.replication.registrar.registered)
        await broker.replication.registrar.ask_all(5.0)
        assert found(await ask(remote, Code.QUERY_ASSIGNMENT, **question())) == [
            ("broker-a", each, "PULL") for each in range(4)
        ]
        mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
        assert (await ask(remote, Code.SET_MESSAGE_REQUEST_MODE, **mode)).code == 0
        group = {"groupName": "G", "retryMaxTimes": 3}
        reply = await ask(remote, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, **group)
        assert reply.code == 0
        await broker.close()
        broker = await world.broker(nameservers=(nameserver,))
        remote = await world.connect(broker.address)
        assert (await remote.ask(Code.HEART_BEAT, body=beat("me"))).code == 0
        await world.until(lambda: broker.replication.registrar.registered)
        pops = found(await ask(remote, Code.QUERY_ASSIGNMENT, **question()))
        assert pops == [("broker-a", -1, "POP")]
        table = json.loads((await remote.ask(Code.GET_ALL_MESSAGE_REQUEST_MODE)).body)
        assert table == {"messageRequestModeMap": {"T": {"G": mode}}}

    run(body)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"strategyName": "BY_LOT"}, 29),
        ({"topic": "none"}, 17),
        ({"consumerGroup": "nobody"}, 1),
        ({"topic": 7}, 29),
    ],
)
def test_a_bad_question_gets_its_code(changes: dict[str, Any], code: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        remote = await world.connect(broker.address)
        assert (await remote.send(b"x")).code == 0
        assert (await remote.ask(Code.HEART_BEAT, body=beat("me"))).code == 0
        reply = await ask(remote, Code.QUERY_ASSIGNMENT, **question(**changes))
        assert reply.code == code, reply.remark
        assert len(found(await ask(remote, Code.QUERY_ASSIGNMENT, **question()))) == 4

    run(body)


@pytest.mark.parametrize("makes", [True, False])
def test_a_mode_makes_its_group_if_groups_may_be_made(makes: bool) -> None:
    async def body(world: World) -> None:
        broker = await world.broker(auto_create_groups=makes)
        remote = await world.connect(broker.address)
        assert (await remote.send(b"x")).code == 0
        mode = {"topic": "T", "consumerGroup": "new", "mode": "POP", "popShareQueueNum": 0}
        reply = await ask(remote, Code.SET_MESSAGE_REQUEST_MODE, **mode)
        assert reply.code == (0 if makes else 26), reply.remark
        table = json.loads((await remote.ask(Code.GET_ALL_MESSAGE_REQUEST_MODE)).body)
        assert ("T" in table["messageRequestModeMap"]) == makes

    run(body)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mode": "PUSH"}, 29),
        ({"topic": "none"}, 17),
        ({"topic": "%RETRY%G"}, 16),
        ({"popShareQueueNum": "x"}, 29),
    ],
)
def test_a_bad_mode_gets_its_code(changes: dict[str, Any], code: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        remote = await world.connect(broker.address)
        assert (await remote.send(b"x")).code == 0
        assert (await remote.ask(Code.HEART_BEAT, body=beat("me"))).code == 0
        mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0, **changes}
        reply = await ask(remote, Code.SET_MESSAGE_REQUEST_MODE, **mode)
        assert reply.code == code, reply.remark

    run(body)
