"""What official clients of some language trip over, where no other test shows it.
docs/internals/grpc-traps.md has the list."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_rig import NODES, Caller, Code, create_group, create_topic, everywhere, served
from saturnmq.broker.broker import Broker
from saturnmq.gateway import v2
from saturnmq.gateway.calls import CLIENT_ID, GrpcCall
from saturnmq.protocol.codes import RequestCode
from world_rig import World, run

T = v2.Resource(name="T")


async def settings_of(world: World, caller: Caller, asked: Any) -> Any:
    """The answer to settings."""
    stream = caller.open_telemetry()
    caller.says.put_nowait(v2.TelemetryCommand(settings=asked))
    await world.until(lambda: caller.told)
    caller.says.put_nowait(None)
    await stream
    return caller.told[0]


def test_a_client_that_names_queue_0_only_sends_to_and_receives_from_all() -> None:
    """Go and Python send to queue 0 always; Node uses queue 0 of each broker only."""

    async def body(world: World) -> None:
        _, caller = await served(world)
        bodies = [b"%d" % n for n in range(12)]
        for each in bodies:
            await caller.send(caller.message(each, queue_id=0))
        got: list[Any] = []
        while len(got) < len(bodies):  # the request of the rig names queue 0
            got += (await caller.receive(most=5)).messages
        assert sorted(each.body for each in got) == sorted(bodies)
        assert {each.system_properties.queue_id for each in got} == {0, 1, 2, 3}

    run(body)


def test_a_delivered_message_has_all_that_some_client_cannot_do_without() -> None:
    """Node and C# need a digest, C# the time of birth, Python the encoding, Java an attempt."""

    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"abc"))
        (message,) = (await caller.receive()).messages
        system = message.system_properties
        assert (system.body_digest.type, system.body_digest.checksum) == (
            v2.DigestType.MD5,
            "900150983CD24FB0D6963F7D28E17F72",
        )
        assert system.body_encoding == v2.Encoding.IDENTITY
        assert (system.delivery_attempt, message.topic) == (1, T)
        assert system.receipt_handle
        for each in ("born_timestamp", "store_timestamp", "queue_offset"):
            assert system.HasField(each)

    run(body)


def test_a_send_is_answered_with_one_entry_whose_code_is_that_of_the_call() -> None:
    """Python asserts one entry, Rust that there is one; Go looks at the call alone."""

    async def body(world: World) -> None:
        _, caller = await served(world)
        answer = await caller.send(caller.message(b"a"))
        (entry,) = answer.entries
        assert answer.status.code == entry.status.code == Code.OK
        assert (entry.message_id, entry.transaction_id) == (f"01{1:032X}", f"01{1:032X}")
        empty = await caller.send(caller.message(b""))
        assert empty.status.code == Code.MESSAGE_BODY_EMPTY

    run(body)


def test_answers_about_routes_are_the_same_bytes_while_the_cluster_is_the_same() -> None:
    """Java and C# drop what they have cached for a queue whose assignment flaps."""

    async def body(world: World) -> None:
        broker, caller = await served(world)
        group = v2.Resource(name="G")
        found = set()
        for n in range(6):
            asked = Caller(world, caller.gateway, f"client-{n}")
            route = await asked.ask("QueryRoute", topic=T)
            assigned = await asked.ask("QueryAssignment", topic=T, group=group)
            found.add((route.SerializeToString(), assigned.SerializeToString()))
            await create_group(world, broker, f"OTHER-{n}")
            await asyncio.sleep(6)
        assert len(found) == 1

    run(body)


def test_a_topic_that_nobody_can_read_is_an_error_and_no_empty_assignment() -> None:
    """Java and Node drop all queues of a topic for an empty list."""

    async def body(world: World) -> None:
        broker, caller = await served(world)
        remote = await world.connect(broker.address)
        config = {
            "topic": "T",
            "defaultTopic": "TBW102",
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "perm": 2,
            "topicFilterType": "SINGLE_TAG",
        }
        assert (await remote.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, config)).code == 0
        answer = await caller.ask("QueryAssignment", topic=T, group=v2.Resource(name="G"))
        assert (answer.status.code, list(answer.assignments)) == (Code.FORBIDDEN, [])

    run(body)


def test_a_topic_that_cannot_be_written_is_an_error_for_producers_alone() -> None:
    """Java's producer raises IllegalArgumentException for a route without a queue to write, and
    Python's divides by zero; with an error they keep the route that they have, and get the code of
    the fault for their sends."""

    async def body(world: World) -> None:
        broker, caller = await served(world)
        asked = v2.Settings(client_type=v2.ClientType.PRODUCER)
        asked.publishing.topics.add(name="T")
        await settings_of(world, caller, asked)
        assert (await caller.ask("QueryRoute", topic=T)).status.code == Code.OK
        await read_only(world, broker)
        answer = await caller.ask("QueryRoute", topic=T)
        assert (answer.status.code, list(answer.message_queues)) == (Code.FORBIDDEN, [])
        assert (await caller.send(caller.message(b"a"))).status.code == Code.FORBIDDEN
        consumer = Caller(world, caller.gateway, "consumer")
        route = await consumer.ask("QueryRoute", topic=T)
        assert {queue.permission for queue in route.message_queues} == {v2.Permission.READ}

    run(body)


async def read_only(world: World, broker: Broker) -> None:
    """Let the topic be read and not written."""
    remote = await world.connect(broker.address)
    config = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 4,
        "topicFilterType": "SINGLE_TAG",
    }
    assert (await remote.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, config)).code == 0
    await asyncio.sleep(2)  # the gateway keeps its facts for a second


def test_a_broker_that_has_gone_is_not_named() -> None:
    """Rust's client panics if it cannot reach a broker of its route; Node's leaves it out for
    ever."""

    async def body(world: World) -> None:
        brokers, callers = await everywhere(world)
        normal = v2.Resource(name="NORMAL")
        await brokers[1].close()
        await asyncio.sleep(3)  # the connection to the nameserver broke: nobody waits for a timeout
        for name in (NODES[0], NODES[2]):
            route = await callers[name].ask("QueryRoute", topic=normal)
            assert {queue.broker.name for queue in route.message_queues} == {"broker-0"}

    run(body)


def test_a_stream_that_ends_by_its_deadline_is_taken_up_by_the_next_one() -> None:
    """C++'s client gives its stream a deadline of an hour, and opens another one a second later:
    the messages that it works on stay its own, and questions reach it over the newest stream.
    Here a stream lives for five minutes: longer than a silent client is known."""

    async def body(world: World) -> None:
        changes = {"transaction_check_ms": 100_000, "transaction_timeout_ms": 310_000}
        broker, caller = await served(world, **changes)
        await create_topic(world, broker, "X", "TRANSACTION")
        producer = Caller(world, caller.gateway, "producer", "CPP")
        consuming, producing = v2.Settings(client_type=2), v2.Settings(client_type=1)
        consuming.subscription.group.name = "G"
        producing.publishing.topics.add(name="X")
        pairs = ((caller, consuming), (producer, producing))

        async def a_life() -> None:
            streams = []
            for each, asked in pairs:
                each.told.clear()
                streams.append(each.open_telemetry())
                each.says.put_nowait(v2.TelemetryCommand(settings=asked))
                await world.until(lambda each=each: len(each.told) == 2)
            for _ in range(30):
                await asyncio.sleep(10)
                for each, asked in pairs:
                    beat = {"client_type": asked.client_type, "group": v2.Resource(name="G")}
                    assert (await each.ask("Heartbeat", **beat)).status.code == Code.OK
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            await asyncio.sleep(1)

        await caller.send(caller.message(b"a"))
        got = await caller.receive(auto_renew=True, invisible_ms=None)
        half = producer.message(b"t", "X", message_type=v2.MessageType.TRANSACTION)
        assert (await producer.send(half)).status.code == Code.OK
        await a_life()
        assert (await caller.receive()).code == Code.MESSAGE_NOT_FOUND  # nobody else gets it
        await a_life()
        asked = [each.WhichOneof("command") for each in producer.told]
        assert asked[:3] == ["settings", "settings", "recover_orphaned_transaction_command"]
        assert (await caller.ack(*got.messages)).status.code == Code.OK

    run(body)


@pytest.mark.parametrize(
    "header",
    [
        "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=",
        "MQv2-HMAC-SHA1 Credential=AK//Rocketmq, SignedHeaders=x-mq-date-time, Signature=00",
        "nonsense",
    ],
)
def test_a_signature_that_nobody_asked_for_changes_nothing(header: str) -> None:
    """Python signs with an empty key, Go whenever it has credentials, empty or not."""

    async def body(world: World) -> None:
        _, caller = await served(world)
        metadata = {CLIENT_ID: "c", "authorization": header, "x-mq-date-time": "20260101T000000Z"}
        call = GrpcCall("10.1.1.1:1", metadata, None)
        answer = await caller.gateway.unary["QueryRoute"](call, v2.QueryRouteRequest(topic=T))
        assert answer.status.code == Code.OK

    run(body)


def test_a_producer_without_topics_gets_its_settings_before_any_route() -> None:
    """C++ and Rust open Telemetry at the access point first; C++ names no topics then."""

    async def body(world: World) -> None:
        _, caller = await served(world)
        asked = v2.Settings(client_type=v2.ClientType.PRODUCER)
        asked.publishing.SetInParent()
        answer = await settings_of(world, caller, asked)
        assert answer.status.code == Code.OK
        assert answer.settings.WhichOneof("pub_sub") == "publishing"
        assert answer.settings.publishing.max_body_size == 4 << 20

    run(body)


def test_a_simple_consumer_without_subscriptions_receives() -> None:
    """Rust's settings of a simple consumer have neither subscriptions nor an access point."""

    async def body(world: World) -> None:
        _, caller = await served(world)
        asked = v2.Settings(client_type=v2.ClientType.SIMPLE_CONSUMER)
        asked.subscription.group.name = "G"
        answer = await settings_of(world, caller, asked)
        assert answer.settings.subscription.long_polling_timeout.seconds == 20
        await caller.send(caller.message(b"a"))
        assert (await caller.receive()).bodies == [b"a"]

    run(body)


def test_a_client_whose_stream_is_lost_goes_on_by_its_heartbeats() -> None:
    """C# opens no second stream, Go and Python minutes later, C++ ends its own each hour."""

    async def body(world: World) -> None:
        broker, caller = await served(world)
        asked = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
        asked.subscription.group.name = "G"
        asked.subscription.subscriptions.add().topic.name = "T"
        await settings_of(world, caller, asked)
        for _ in range(40):
            await asyncio.sleep(10)
            beat = await caller.ask(
                "Heartbeat", group=v2.Resource(name="G"), client_type=asked.client_type
            )
            assert beat.status.code == Code.OK
        (member,) = broker.ground.context.clients.consumer_group("G").members
        assert member is not None
        await caller.send(caller.message(b"a"))
        (message,) = (await caller.receive(auto_renew=True, invisible_ms=None)).messages
        assert (await caller.ack(message)).status.code == Code.OK

    run(body)


@pytest.mark.parametrize(("retries", "attempts"), [(2, 3), (-2, 1), ((1 << 31) - 1, (1 << 31) - 1)])
def test_a_push_consumer_of_any_language_is_told_of_a_stated_number_of_deliveries(
    retries: int, attempts: int
) -> None:
    """Python goes on with 17 attempts, whatever the group says, if it reads no back-off. With as
    many as there can be a group retries for ever."""

    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_group(world, broker, "G", retryMaxTimes=retries)
        await create_topic(world, broker, "%RETRY%G", "NORMAL")
        for language in (v2.Language.PYTHON, v2.Language.NODE_JS, v2.Language.JAVA):
            asked = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
            asked.user_agent.language = language
            asked.subscription.group.name = "G"
            each = Caller(world, caller.gateway, f"client-{language}")
            policy = (await settings_of(world, each, asked)).settings.backoff_policy
            assert policy.max_attempts == attempts
            kind = "exponential" if language == v2.Language.NODE_JS else "customized"
            assert policy.WhichOneof("strategy") == f"{kind}_backoff"
        await caller.send(caller.message(b"a"))
        assert (await caller.receive(auto_renew=True, poll_ms=5000)).bodies == [b"a"]

    run(body)


def test_a_push_consumer_is_told_the_retry_policy_that_its_group_has() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [2000, 9000]}}
        await create_group(world, broker, "G", retryMaxTimes=2, groupRetryPolicy=policy)
        await create_topic(world, broker, "%RETRY%G", "NORMAL")
        asked = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
        asked.subscription.group.name = "G"
        told = (await settings_of(world, caller, asked)).settings.backoff_policy
        assert [each.seconds for each in told.customized_backoff.next] == [2, 9]

    run(body)
