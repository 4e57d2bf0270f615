"""The settings of a group do what their names say: broker, client and Admin in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import ConfigError
from world_rig import Remote, World, run


class Failing:
    """A consumer whose listener takes nothing; `seen` is the attempt number of each call."""

    def __init__(self, world: World, nameserver: str, **options: Any) -> None:
        self.seen: list[int] = []
        self.consumer = PushConsumer(
            "G",
            [nameserver],
            runtime=world.node("consumer"),
            listener_one=self._handle,
            from_beginning=True,
            **options,
        )
        self.consumer.subscribe("T")

    async def _handle(self, message: ReceivedMessage) -> ConsumeResult:
        self.seen.append(message.reconsume_times)
        return ConsumeResult.RETRY


def dead(broker: Broker) -> int:
    return broker.store.max_offset("%DLQ%G", 0)


async def admin_of(world: World, nameserver: str) -> Admin:
    return await Admin([nameserver], runtime=world.node("admin")).start()


async def grouped(client: Remote, **settings: Any) -> None:
    """The group G with these fields, as RocketMQ's tools create it."""
    body = json.dumps({"groupName": "G", **settings}).encode()
    assert (await client.ask(200, {}, body)).code == 0


async def attempts(world: World, max_retries: int, **options: Any) -> list[int]:
    """How a message that always fails is delivered until it is a dead letter."""
    nameserver = await world.nameserver()
    broker = await world.broker(nameservers=(nameserver,))
    client = await world.connect(broker.address)
    assert (await client.send(b"hard")).code == 0
    admin = await admin_of(world, nameserver)
    await admin.create_group("G", max_retries=max_retries)
    await admin.close()
    failing = Failing(world, nameserver, **options)
    await failing.consumer.start()
    await world.until(lambda: dead(broker) == 1, 600, every=0.1)
    await failing.consumer.close()
    await broker.close()
    return failing.seen


@pytest.mark.parametrize(
    ("of_the_group", "options", "expected"),
    [
        (0, {}, [0]),
        (1, {}, [0, 1]),
        (3, {}, [0, 1, 2, 3]),
        (5, {"max_reconsume": 2}, [0, 1, 2]),
        (1, {"max_reconsume": 2}, [0, 1, 2]),
    ],
)
def test_a_message_is_retried_as_often_as_its_group_says_unless_the_consumer_says_more_or_less(
    of_the_group: int, options: dict[str, int], expected: list[int]
) -> None:
    async def body(world: World) -> None:
        assert await attempts(world, of_the_group, **options) == expected

    run(body)


def test_a_group_is_not_created_with_fewer_than_no_retries() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        admin = await admin_of(world, nameserver)
        with pytest.raises(ConfigError, match=r"max_retries is -1.*0 for none"):
            await admin.create_group("G", max_retries=-1)
        with pytest.raises(ConfigError, match="max_retries is 1180591620717411303424, no number"):
            await admin.create_group("G", max_retries=1 << 70)
        with pytest.raises(ConfigError, match="retry_policy is None"):
            await admin.create_group("G", retry_policy=None)  # type: ignore[arg-type]
        assert broker.context.groups.get("G") is None
        await admin.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize(("limit", "asked", "dead_letters"), [(1, "", 1), (3, "", 0), (3, "1", 1)])
def test_a_message_sent_to_its_retry_topic_by_value_obeys_the_same_limit(
    limit: int, asked: str, dead_letters: int
) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        await grouped(client, retryMaxTimes=limit)
        sent = await client.ask(
            310,
            {"a": "P", "b": "%RETRY%G", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
            | {"i": "RETRY_TOPIC\x01T\x02", "j": 2}
            | ({"l": asked} if asked else {}),
            b"hard",
        )
        assert sent.code == 0
        await world.until(
            lambda: broker.store.watermarks.dispatched == broker.store.watermarks.appended
        )
        assert dead(broker) == dead_letters
        assert broker.store.max_offset("%RETRY%G", 0) == 1 - dead_letters
        await broker.close()

    run(body)


def test_a_group_that_may_not_consume_gets_no_messages() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        assert (await client.send(b"x")).code == 0
        await grouped(client, consumeEnable=False)
        refused = await client.pull(0)
        assert (refused.code, refused.remark) == (16, "subscription group [G] may not consume")
        await grouped(client, consumeEnable=True)
        assert (await client.pull(0)).code == 0
        await broker.close()

    run(body)


@pytest.mark.parametrize("allowed", [True, False])
def test_a_group_that_may_not_broadcast_gets_messages_as_a_cluster_only(allowed: bool) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        assert (await client.send(b"x")).code == 0
        await grouped(client, consumeBroadcastEnable=allowed)
        for model, code in (("CLUSTERING", 0), ("BROADCASTING", 0 if allowed else 16)):
            subscription = {"topic": "T", "subString": "*", "subVersion": 0, "tagsSet": []}
            data = {
                "groupName": "G",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": model,
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [subscription],
            }
            beat = {"clientID": "c", "consumerDataSet": [data], "producerDataSet": []}
            assert (await client.ask(34, {}, json.dumps(beat).encode())).code == 0
            assert (await client.pull(0, sysFlag=0)).code == code
        await broker.close()

    run(body)


@pytest.mark.parametrize("queues", [0, 1, 3])
def test_a_retry_topic_has_as_many_queues_as_its_group_says(queues: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        sent = await client.send(b"hard")
        await grouped(client, retryQueueNums=queues)
        back = {"group": "G", "offset": int(sent.ext["msgId"][16:], 16), "delayLevel": 1}
        assert (await client.ask(36, back)).code == 0
        topic = broker.context.topics.get("%RETRY%G")
        assert (topic.queues if topic else 0) == queues
        await broker.close()

    run(body)


@pytest.mark.parametrize("told", [True, False])
def test_members_are_told_of_changes_if_their_group_says_so(told: bool) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        notices: list[int] = []
        one = await world.connect(broker.address, lambda _, command: notices.append(command.code))
        two = await world.connect(broker.address)
        await grouped(one, notifyConsumerIdsChangedEnable=told)
        for client, name in ((one, "c1"), (two, "c2")):
            data = {
                "groupName": "G",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [],
            }
            beat = {"clientID": name, "consumerDataSet": [data], "producerDataSet": []}
            assert (await client.ask(34, {}, json.dumps(beat).encode())).code == 0
        await one.ask(38, {"consumerGroup": "G"})
        assert notices == ([40, 40] if told else [])
        await broker.close()

    run(body)


def test_a_reader_is_sent_to_the_broker_id_that_its_group_names() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        assert (await client.send(b"x")).code == 0
        await grouped(client, brokerId=2, groupSysFlag=1)
        got = await client.pull(0)
        assert (got.ext["suggestWhichBrokerId"], got.ext["groupSysFlag"]) == ("2", "1")
        await broker.close()

    run(body)


def test_a_topic_that_an_operator_forbids_to_a_group_is_not_read_by_it() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        assert (await client.send(b"x")).code == 0
        await grouped(client)
        document = broker.context.groups.snapshot()
        document["forbiddenTable"] = {"G": {"T": 4, "other": 2}}
        broker.context.groups.load(document)
        refused = await client.pull(0)
        assert (refused.code, refused.remark) == (16, "group G is forbidden to read topic T")
        assert (await client.pull(0, consumerGroup="H")).code == 0
        await broker.close()

    run(body)


def test_no_retry_goes_where_nobody_reads_after_a_group_got_more_retry_queues() -> None:
    """The retry topic has as many queues as the group had when it was made, as in RocketMQ, whose
    brokers then put retries into queues that no consumer reads."""

    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        await grouped(client, retryQueueNums=1)
        for number in range(40):
            assert (await client.send(b"%d" % number)).code == 0
        first = Failing(world, nameserver)
        await first.consumer.start()
        await world.until(lambda: "%RETRY%G" in broker.context.topics)
        await grouped(client, retryQueueNums=8, retryMaxTimes=2)
        await world.until(lambda: dead(broker) == 40, 600, every=0.1)
        assert sorted(first.seen) == [0] * 40 + [1] * 40 + [2] * 40
        await first.consumer.close()
        await broker.close()

    run(body)
