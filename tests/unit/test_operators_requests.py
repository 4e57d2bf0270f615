"""Requests of RocketMQ's tools to a broker on a simulated machine: what they are told is true, and
what cannot be done is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.protocol import fastjson
from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.headers import HEADERS
from saturnmq.protocol.refusals import OF_NAMESERVERS, REASONS, refusal
from saturnmq.protocol.remoting import Command
from world_rig import Remote, World, run

CODE = RequestCode
SENT_BY_SERVERS = {
    *(CODE.CHECK_TRANSACTION_STATE, CODE.NOTIFY_CONSUMER_IDS_CHANGED),
    *(CODE.RESET_CONSUMER_CLIENT_OFFSET, CODE.GET_CONSUMER_STATUS_FROM_CLIENT),
    *(CODE.PUSH_REPLY_MESSAGE_TO_CLIENT, CODE.ROUTE_CHANGED, CODE.ROLE_CHANGED),
}


def heartbeat(group: str, *topics: str, client_id: str = "me") -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [
            {"topic": topic, "subString": "*", "subVersion": 1} for topic in topics
        ],
    }
    producers = [{"groupName": "makers"}]
    beat = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": producers}
    return json.dumps(beat).encode()


async def filled(world: World) -> tuple[Broker, Remote]:
    """Queue 0 of T has three messages, queue 1 one; G is through with one of queue 0."""
    broker = await world.broker()
    client = await world.connect(broker.address)
    made = {"topic": "T", "readQueueNums": 2, "writeQueueNums": 2}
    assert (await client.ask(CODE.UPDATE_AND_CREATE_TOPIC, made)).code == 0
    for body, queue in ((b"a", 0), (b"bb", 0), (b"ccc", 0), (b"d", 1)):
        assert (await client.send(body, queue=queue, TAGS="red")).code == 0
    assert (await client.commit(1)).code == 0
    return broker, client


def at(queue: int, topic: str = "T") -> tuple[str, str, int]:
    return topic, "broker-a", queue


def loaded(answer: Command) -> Any:
    assert answer.code == 0, answer.remark
    return fastjson.loads(bytes(answer.body))


def queues(table: dict[Any, Any]) -> dict[int, Any]:
    return {key.queueId if hasattr(key, "queueId") else key[2]: v for key, v in table.items()}


def test_the_progress_of_all_groups_is_told_at_once() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        assert (await client.commit(1, "H", "T", 1)).code == 0
        told = loaded(await client.ask(CODE.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}))
        assert told["brokerAddr"] == broker.address
        assert (told["totalDiff"], told["totalInflightDiff"]) == (3 + 3, 0)
        [of_g, of_h] = told["consumeStatsList"]
        assert (list(of_g), list(of_h)) == (["G"], ["H"])
        [stats] = of_g["G"]
        [first, second] = stats["offsetTable"].values()
        assert (first["brokerOffset"], first["consumerOffset"]) == (3, 1)
        assert (second["brokerOffset"], second["consumerOffset"]) == (1, 0)
        ordered = loaded(await client.ask(CODE.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}))
        assert ordered["consumeStatsList"] == [{"G": []}, {"H": []}]
        member = await world.connect(broker.address)
        await member.ask(CODE.HEART_BEAT, {}, heartbeat("G", "U"))
        told = loaded(await client.ask(CODE.GET_BROKER_CONSUME_STATS))
        assert told["consumeStatsList"][0] == {"G": []}, "it reads T no more"
        await broker.close()

    run(body)


def test_a_connected_group_has_progress_in_the_topics_that_it_reads_or_that_are_named() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        for topic in ("U", "%RETRY%G"):
            assert (await client.send(b"u", topic=topic)).code == 0
            assert (await client.commit(1, topic=topic)).code == 0

        async def topics_of(**ext: str) -> set[str]:
            asked = {"consumerGroup": "G", **ext}
            stats = loaded(await client.ask(CODE.GET_CONSUME_STATS, asked))
            return {topic for topic, _, _ in stats["offsetTable"]}

        assert await topics_of() == {"T", "U", "%RETRY%G"}
        member = await world.connect(broker.address)
        await member.ask(CODE.HEART_BEAT, {}, heartbeat("G", "U"))
        assert await topics_of() == {"U", "%RETRY%G"}
        assert (await topics_of(topic="T"), await topics_of(topic="U")) == (set(), {"U"})
        assert await topics_of(topicList="T;") == {"T"}
        assert await topics_of(topicList="T;U;none;", topic="U") == {"T", "U"}
        await member.ask(CODE.HEART_BEAT, {}, heartbeat("G"))  # it chooses its queues itself
        assert await topics_of() == {"T", "U", "%RETRY%G"}
        await broker.close()

    run(body)


def test_a_group_is_told_how_old_its_next_message_is() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        times = [broker.store.store_time_of("T", 0, offset) or 0 for offset in range(3)]
        await broker._runtime.sleep(5)
        ask = CODE.QUERY_CONSUME_TIME_SPAN
        rows = loaded(await client.ask(ask, {"topic": "T", "group": "G"}))["consumeTimeSpanSet"]
        assert [row["messageQueue"]["queueId"] for row in rows] == [0, 1]
        row = rows[0]
        assert (row["minTimeStamp"], row["maxTimeStamp"]) == (times[0], times[2])
        assert row["consumeTimeStamp"] == times[0]
        assert 5000 <= row["delayTime"] <= 6000
        assert (await client.commit(3)).code == 0
        rows = loaded(await client.ask(ask, {"topic": "T", "group": "G"}))["consumeTimeSpanSet"]
        assert (rows[0]["consumeTimeStamp"], rows[0]["delayTime"]) == (times[2], 0)
        assert (await client.ask(ask, {"topic": "none", "group": "G"})).code == 17
        await broker.close()

    run(body)


def test_entries_of_a_queue_are_those_of_its_file() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        ext = {"topic": "T", "queueId": 0, "index": 1, "count": 5}
        told = loaded(await client.ask(CODE.QUERY_CONSUME_QUEUE, ext))
        assert (told["minQueueIndex"], told["maxQueueIndex"]) == (0, 3)
        entries = [(row["physicOffset"], row["physicSize"]) for row in told["queueData"]]
        frames = [(at, broker.store.message_at(at)) for at, _ in entries]
        assert [(at, len(frame or b"")) for at, frame in frames] == entries
        assert len(entries) == 2
        assert len({row["tagsCode"] for row in told["queueData"]}) == 1
        one = loaded(await client.ask(CODE.QUERY_CONSUME_QUEUE, {**ext, "count": 1}))
        assert one["queueData"] == told["queueData"][:1]
        named = {**ext, "consumerGroup": "G"}
        told = loaded(await client.ask(CODE.QUERY_CONSUME_QUEUE, named))
        assert told["filterData"] == "G@T is not online!"
        for wrong, code in (
            ({"index": 4}, 29),
            ({"queueId": 7}, 1),
            ({"topic": "none"}, 1),
            ({"count": 0}, 29),
            ({"count": 10_001}, 29),
        ):
            assert (await client.ask(CODE.QUERY_CONSUME_QUEUE, {**ext, **wrong})).code == code
        await broker.close()

    run(body)


def test_figures_of_a_minute_an_hour_and_a_day_are_told_by_name() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        assert (await client.pull(0)).code == 0
        await broker._runtime.sleep(1)
        for name, key, total in (
            ("TOPIC_PUT_NUMS", "T", 4),
            ("GROUP_GET_NUMS", "T@G", 3),
            ("BROKER_PUT_NUMS", "DefaultCluster", 4),
            ("BROKER_GET_NUMS", "DefaultCluster", 3),
        ):
            ext = {"statsName": name, "statsKey": key}
            told = loaded(await client.ask(CODE.VIEW_BROKER_STATS_DATA, ext))
            assert {span: part["sum"] for span, part in told.items()} == {
                "statsMinute": total,
                "statsHour": total,
                "statsDay": total,
            }
            assert told["statsMinute"]["tps"] > 0
        for name, key in (("TOPIC_PUT_NUMS", "none"), ("GROUP_GET_NUMS", "T@none"), ("X", "T")):
            ext = {"statsName": name, "statsKey": key}
            assert (await client.ask(CODE.VIEW_BROKER_STATS_DATA, ext)).code == 1
        await broker.close()

    run(body)


def test_producers_subscriptions_and_topics_of_the_system_are_listed() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        member = await world.connect(broker.address)
        await member.ask(CODE.HEART_BEAT, {}, heartbeat("G", "T"))
        told = loaded(await client.ask(CODE.GET_ALL_PRODUCER_INFO))["data"]
        [maker] = told["makers"]
        assert maker["clientId"] == "me"
        assert maker["remoteIP"] == member.endpoint._transport.get_extra_info("sockname")[0]
        assert abs(maker["lastUpdateTimestamp"] - broker._runtime.now_ms()) < 1000
        ask = CODE.QUERY_SUBSCRIPTION_BY_CONSUMER
        told = loaded(await client.ask(ask, {"topic": "T", "group": "G"}))
        assert (told["group"], told["topic"]) == ("G", "T")
        assert told["subscriptionData"]["subString"] == "*"
        told = loaded(await client.ask(ask, {"topic": "T", "group": "none"}))
        assert told["subscriptionData"] is None
        names = loaded(await client.ask(CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
        assert {"SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX", "DefaultCluster"} <= set(names)
        assert "T" not in names
        await broker.close()

    run(body)


def test_several_topics_and_groups_are_made_by_one_request() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        rows = [
            {"topicName": "A", "readQueueNums": 2, "writeQueueNums": 3, "perm": 4},
            {"topicName": "B", "attributes": {"+message.type": "FIFO"}, "order": True},
        ]

        async def make(code: int, name: str, values: list[dict[str, Any]]) -> int:
            return (await client.ask(code, {}, json.dumps({name: values}).encode())).code

        topics = CODE.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList"
        groups = CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "groupConfigList"
        assert await make(*topics, rows) == 0
        first, second = broker.context.topics.get("A"), broker.context.topics.get("B")
        assert first is not None
        assert second is not None
        assert (first.read_queues, first.write_queues, first.perm) == (2, 3, 4)
        assert (second.attributes["message.type"], second.order) == ("FIFO", True)
        for bad in ({"topicName": "bad name"}, {"topicName": "C", "perm": 9}, {}, "C"):
            assert await make(*topics, [{"topicName": "D"}, bad]) == 29  # type: ignore[list-item] # wrong on purpose
        assert broker.context.topics.get("D") is None, "all or none"
        both = [{"groupName": "g1", "retryMaxTimes": 3}, {"groupName": "g2"}]
        assert await make(*groups, both) == 0
        made = broker.context.groups.get("g1")
        assert made is not None
        assert made.retry_max == 3
        assert await make(*groups, [{"groupName": "g3"}, {"groupName": ""}]) == 29
        assert broker.context.groups.get("g3") is None
        await broker.close()

    run(body)


@pytest.mark.parametrize("count", [3, 60, 1500])
def test_a_long_list_is_made_in_steps_all_or_none(count: int) -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        topics = [{"topicName": f"t{number}"} for number in range(count)]
        groups = [{"groupName": f"g{number}"} for number in range(count)]
        context = broker.context
        for code, name, rows, bad, known in (
            (CODE.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList", topics, {"topicName": "?"},
             lambda: context.topics.get("t0")),
            (CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "groupConfigList", groups, {},
             lambda: context.groups.get("g0")),
        ):  # fmt: skip
            refused = await client.ask(code, {}, json.dumps({name: [*rows, bad]}).encode())
            assert (refused.code, known()) == (29, None)
            assert (await client.ask(code, {}, json.dumps({name: rows}).encode())).code == 0
            assert known() is not None
        assert all(f"t{number}" in broker.context.topics for number in range(count))
        assert all(broker.context.groups.get(f"g{number}") for number in range(count))
        await broker.close()

    run(body)


RESET = {"topic": "T", "group": "G", "queueId": 0}


@pytest.mark.parametrize(
    ("ext", "code", "word"),
    [
        ({"offset": 4}, 29, "offset 4 is outside queue 0 of T, whose messages have 0 to 2"),
        ({"offset": 2**62}, 29, "outside"),
        ({"offset": 1, "queueId": -1}, 29, "needs a queue"),
        ({"offset": 0, "queueId": 9}, 29, "out of range"),
        ({"offset": 0, "topic": "none"}, 17, "none"),
        ({"offset": 0, "group": "none"}, 26, "none"),
    ],
)
def test_a_reset_outside_the_queue_changes_nothing(
    ext: dict[str, Any], code: int, word: str
) -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        answer = await client.ask(CODE.INVOKE_BROKER_TO_RESET_OFFSET, RESET | ext)
        assert answer.code == code
        assert word in (answer.remark or "")
        assert await client.committed() == 1
        for offset in (0, 3, 2):  # the whole queue is inside, and its end
            reset = await client.ask(CODE.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"offset": offset})
            assert reset.code == 0
            assert await client.committed() == offset
        await broker.close()

    run(body)


def test_members_that_a_broker_does_not_know_yet_follow_a_reset_until_one_has_heard_of_it() -> None:
    """As after a restart or a promotion; and the connection may break that has the answer."""

    async def body(world: World) -> None:
        broker, client = await filled(world)
        order = await client.ask(CODE.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"offset": 0})
        assert order.code == 0, order.remark
        for member in (client, await world.connect(broker.address)):
            told = await member.pull(2)
            assert (told.code, told.remark) == (21, "OFFSET_RESET")
            assert told.ext["nextBeginOffset"] == "0"
            assert (await member.commit(2)).code == 0
            assert await member.committed() == 0, "it has not heard of the reset"
        assert (await client.pull(0)).code == 0
        assert (await client.pull(2)).code == 0, "it has"
        assert (await client.commit(2)).code == 0
        assert await client.committed() == 2
        await broker.close()

    run(body)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_member_that_has_pulled_all_hears_of_a_reset_to_the_end(is_ours: bool) -> None:
    """It holds messages that its group is to skip."""

    async def body(world: World) -> None:
        broker, client = await filled(world)
        term = str(broker.context.role.log_epoch)
        knows = {"saturnTerm": term, **(await client.pull(3, saturnTerm=term)).ext}
        knows = {name: knows[name] for name in ("saturnTerm", "saturnMoves") if is_ours}
        to_end = CODE.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"offset": 3}
        assert (await client.ask(*to_end)).code == 0
        told = await client.pull(3, **knows)
        assert (told.code, told.remark, told.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "3")
        knows |= {"saturnMoves": told.ext["saturnMoves"]} if is_ours else {}
        assert (await client.pull(3, **knows)).code == 19
        new = await world.connect(broker.address)
        assert (await client.ask(*to_end)).code == 0
        assert await new.committed() == 3
        assert (await new.pull(3)).code == 19, "it asked where to begin"
        await broker.close()

    run(body)


def test_a_member_that_was_away_when_another_heard_of_a_reset_does_not_undo_it() -> None:
    """It had the queue, was cut off, and goes on when the other one has given the queue back."""

    async def body(world: World) -> None:
        broker, client = await filled(world)
        term = str(broker.context.role.log_epoch)
        knows = {"saturnTerm": term, **(await client.pull(3, saturnTerm=term)).ext}
        knows = {name: knows[name] for name in ("saturnTerm", "saturnEpochs", "saturnMoves")}
        assert (await client.commit(1, **knows)).code == 0
        order = await client.ask(CODE.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"offset": 0})
        assert order.code == 0, order.remark
        other = await world.connect(broker.address)
        assert await other.committed() == 0
        assert (await other.pull(0)).code == 0, "it has heard"
        assert (await client.commit(3, **knows)).code == 0
        assert await client.committed() == 0
        told = await client.pull(3, sysFlag=5, commitOffset=3, **knows)
        assert (told.code, told.remark) == (21, "OFFSET_RESET")
        assert told.ext["nextBeginOffset"] == "0"
        assert await client.committed() == 0
        knows["saturnMoves"] = told.ext["saturnMoves"]
        assert (await client.pull(0, **knows)).code == 0
        assert (await client.commit(2, **knows)).code == 0
        assert await client.committed() == 2
        await broker.close()

    run(body)


def test_commits_that_a_consumer_sends_after_it_heard_of_a_reset_do_not_undo_it() -> None:
    """Java's client goes on to commit its old place, 4.9 for 10 s; then it commits the new one."""

    async def body(world: World) -> None:
        broker, client = await filled(world)
        assert (await client.commit(3)).code == 0
        member = await world.connect(broker.address)
        await member.ask(CODE.HEART_BEAT, {}, heartbeat("G", "T"))
        assert (
            await client.ask(CODE.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"offset": 0})
        ).code == 0
        moved = await member.pull(3)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "0")
        for late in (3, 3, 0):
            await member.commit(late)
            assert await client.committed() == 0
        assert (await member.pull(0)).code == 0
        await member.commit(2)
        assert await client.committed() == 2
        await broker.close()

    run(body)


def test_a_group_gets_the_offsets_of_another_also_back_and_follows() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        for queue, offset in ((0, 3), (1, 1)):
            assert (await client.commit(offset, "H", "T", queue)).code == 0
        member = await world.connect(broker.address)
        await member.ask(CODE.HEART_BEAT, {}, heartbeat("H", "T"))
        ext = {"srcGroup": "G", "destGroup": "H", "topic": "T"}
        loaded(await client.ask(CODE.CLONE_GROUP_OFFSET, ext))
        assert await client.committed("H") == 1
        assert await client.committed("H", queue=1) == 1, "G has no offset there"
        moved = await member.pull(3, consumerGroup="H")
        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "1")
        assert (await client.commit(0, "H", "%RETRY%H")).code == 0
        every = {"srcGroup": "H", "destGroup": "G", "offline": "true"}
        loaded(await client.ask(CODE.CLONE_GROUP_OFFSET, every))
        assert await client.committed("G", queue=1) == 1
        assert await client.committed("G", "%RETRY%H") is None, "retries are each group's own"
        for wrong, code in (
            ({"destGroup": "none"}, 26),
            ({"srcGroup": "none"}, 22),
            ({"topic": "none"}, 22),
            ({"destGroup": "G"}, 29),
        ):
            assert (await client.ask(CODE.CLONE_GROUP_OFFSET, {**ext, **wrong})).code == code
        await member.ask(CODE.HEART_BEAT, {}, heartbeat("H", "U"))
        back = {"srcGroup": "H", "destGroup": "G", "topic": "T"}
        assert (await client.ask(CODE.CLONE_GROUP_OFFSET, back)).code == 22, "H reads T no more"
        assert (await client.ask(CODE.CLONE_GROUP_OFFSET, back | {"offline": "true"})).code == 0
        await broker.close()

    run(body)


def test_a_message_is_handed_to_a_consumer_and_its_answer_passed_on() -> None:
    asked: list[Command] = []

    def heard(endpoint: Endpoint, command: Command) -> None:
        if command.code == CODE.CONSUME_MESSAGE_DIRECTLY:
            command.body = bytes(command.body)
            asked.append(command)
            endpoint.send(command.reply(body=b'{"consumeResult":"CR_SUCCESS"}'))

    async def body(world: World) -> None:
        broker, client = await filled(world)
        sent = await client.send(b"again", queue=1)
        member = await world.connect(broker.address, heard)
        await member.ask(CODE.HEART_BEAT, {}, heartbeat("G", "T"))
        ext = {"consumerGroup": "G", "clientId": "me", "msgId": sent.ext["msgId"], "topic": "T"}
        answer = await client.ask(CODE.CONSUME_MESSAGE_DIRECTLY, ext)
        assert bytes(answer.body) == b'{"consumeResult":"CR_SUCCESS"}'
        [question] = asked
        assert question.ext["brokerName"] == "broker-a"
        assert b"again" in question.body
        for wrong, code in (
            ({"clientId": "you"}, 1),
            ({"consumerGroup": "none"}, 1),
            ({"msgId": "00" * 16}, 0),
            ({"msgId": "0" * 31 + "1"}, 1),
            ({"msgId": "what"}, 29),
        ):
            answer = await client.ask(CODE.CONSUME_MESSAGE_DIRECTLY, {**ext, **wrong})
            assert answer.code == code, (wrong, answer.remark)
        assert answer.remark == "offset message id 'what' has 4 characters; 32 or 56 are allowed"
        gone = await client.ask(CODE.CONSUME_MESSAGE_DIRECTLY, {**ext, "msgId": "0" * 31 + "1"})
        assert gone.remark == "can not find message by the offset, 1"
        await broker.close()

    run(body)


def test_members_are_asked_for_their_offsets() -> None:
    def heard(endpoint: Endpoint, command: Command) -> None:
        if command.code == CODE.GET_CONSUMER_STATUS_FROM_CLIENT:
            assert command.ext == {"topic": "T", "group": "G"}
            table = fastjson.dumps_mq_map({at(0): 2})
            endpoint.send(command.reply(body=b'{"messageQueueTable":' + table + b"}"))

    async def body(world: World) -> None:
        broker, client = await filled(world)
        ext = {"topic": "T", "group": "G"}
        ask = CODE.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        assert (await client.ask(ask, ext)).code == 206
        for name, hears in (("me", heard), ("deaf", lambda *_: None)):
            member = await world.connect(broker.address, hears)
            await member.ask(CODE.HEART_BEAT, {}, heartbeat("G", "T", client_id=name))
        told = loaded(await client.ask(ask, ext))["consumerTable"]
        assert list(told) == ["me"]
        assert list(told["me"].values()) == [2]
        assert (await client.ask(ask, ext | {"clientAddr": "deaf"})).code == 207
        assert list(loaded(await client.ask(ask, ext | {"clientAddr": "me"}))["consumerTable"]) == [
            "me"
        ]
        assert (await client.ask(ask, ext | {"clientAddr": "you"})).code == 1
        await broker.close()

    run(body)


def test_the_least_offset_of_all_groups_is_told_for_each_queue() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)  # G is at 1 in queue 0
        for group, queue, offset in (("H", 0, 2), ("H", 1, 1), ("lone", 0, 0)):
            assert (await client.commit(offset, group, "T", queue)).code == 0

        async def told(**more: str) -> dict[str, int]:
            answer = await client.ask(CODE.QUERY_CORRECTION_OFFSET, {"topic": "T", **more})
            found: dict[str, int] = loaded(answer)["correctionOffsets"]
            return found

        assert await told() == {"0": 0, "1": 1}
        assert await told(filterGroups="lone,none") == {"0": 1, "1": 1}
        assert await told(filterGroups="lone", compareGroup="H") == {"0": 1, "1": 1}
        behind = {"0": INT64_MAX, "1": 1}
        assert await told(filterGroups="lone,G", compareGroup="G") == behind
        assert await told() == {"0": 0, "1": 1}, "a question forgets nothing"
        refused = await client.ask(CODE.QUERY_CORRECTION_OFFSET, {"topic": "none"})
        assert refused.code == 17
        await broker.close()

    run(body)


def test_an_operator_forbids_a_group_to_read_a_topic_and_allows_it_again() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        await client.ask(CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}')
        place = {"group": "G", "topic": "T"}

        async def told(**more: str) -> Command:
            return await client.ask(CODE.UPDATE_AND_GET_GROUP_FORBIDDEN, {**place, **more})

        assert loaded(await told()) == {**place, "readable": True}
        assert loaded(await told(readable="false")) == {**place, "readable": False}
        assert loaded(await told()) == {**place, "readable": False}
        refused = await client.pull(0)
        assert (refused.code, refused.remark) == (16, "group G is forbidden to read topic T")
        await broker.close()
        again = await world.broker()
        client = await world.connect(again.address)
        assert (await client.pull(0)).code == 16, "it is on disk"
        assert loaded(await told(readable="true")) == {**place, "readable": True}
        assert (await client.pull(0)).code == 0
        assert (await told(group="none", readable="false")).code == 26
        assert (await told(topic="none", readable="false")).code == 17
        assert (await told(readable="maybe")).code == 29
        await again.close()

    run(body)


def test_a_slave_of_rocketmqs_is_told_where_to_connect_and_nobody_tells_whom_to_follow() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world)
        ask = CODE.EXCHANGE_BROKER_HA_INFO
        told = (await client.ask(ask)).ext
        assert told == {
            "masterAddress": broker.address,
            "masterFlushOffset": str(broker.store.watermarks.flushed),
            "masterHaAddress": broker.ha_address,
        }
        refused = await client.ask(ask, {"masterHaAddress": "10.9.9.9:1"})
        assert refused.code == 3
        assert "to follow 10.9.9.9:1 is not for a peer to say" in str(refused.remark)
        await broker.close()

    run(body)


def test_each_code_is_served_by_one_server_or_refused_by_name_with_the_reason() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        nameserver = await world.nameserver()
        refused: dict[str, set[RequestCode]] = {broker.address: set(), nameserver: set()}
        for address, codes in refused.items():
            client = await world.connect(address)
            for code in RequestCode:
                answer = await client.ask(code, {}, b"{}")
                if answer.code == 3:
                    codes.add(code)
                    assert answer.remark == refusal(code)
                    named = f"{code.name} ({int(code)}) is not supported: "
                    assert str(answer.remark).startswith(named)
            unknown = await client.ask(7777)
            assert (unknown.code, unknown.remark) == (3, " request type 7777 not supported")
        of_broker, of_nameserver = refused.values()
        assert of_broker & of_nameserver == set(RequestCode) - HEADERS.keys()
        assert of_broker - of_nameserver == OF_NAMESERVERS
        assert REASONS.keys() | SENT_BY_SERVERS == set(RequestCode) - HEADERS.keys()
        assert not REASONS.keys() & SENT_BY_SERVERS
        await broker.close()

    run(body)
