"""Gateways of several brokers: what a client sends to the wrong one goes to its owner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_rig import Caller, Code, create_group, two, with_slave
from saturnmq.gateway import v2
from saturnmq.gateway.gateway import Gateway
from saturnmq.nameserver.gateway_node import NameserverNode
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import TERM
from world_rig import World, run


def place(queue: Any) -> tuple[str, int, str]:
    (address,) = queue.broker.endpoints.addresses
    return queue.broker.name, queue.id, address.host


def test_a_route_names_the_gateway_of_each_broker_and_is_the_same_everywhere() -> None:
    async def body(world: World) -> None:
        callers = [caller for _, caller in await two(world)]
        answers = [
            await caller.ask("QueryRoute", topic=v2.Resource(name="T")) for caller in callers
        ]
        assert [place(queue) for queue in answers[0].message_queues] == [
            (f"broker-{n}", queue, f"10.9.9.{n}") for n in (0, 1) for queue in range(4)
        ]  # fmt: skip
        assert answers[0] == answers[1]

    run(body)


def test_javas_clients_are_told_all_nodes_and_its_push_consumers_the_master() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        master, slave, caller = await with_slave(world, nameserver)
        master.offers("10.9.9.7:8081")
        slave.offers("10.9.9.8:8081")
        topic = v2.Resource(name="T")

        async def hosts(name: str, **fields: Any) -> set[tuple[str, ...]]:
            answer = await caller.ask(name, topic=topic, **fields)
            queues = getattr(answer, "message_queues", None) or [
                each.message_queue for each in answer.assignments
            ]
            return {
                tuple(each.host for each in queue.broker.endpoints.addresses) for queue in queues
            }

        assert await hosts("QueryRoute") == {("10.9.9.7", "10.9.9.8")}
        pushed = {("10.9.9.7",)}
        assert await hosts("QueryAssignment", group=v2.Resource(name="G")) == pushed
        settings = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
        settings.subscription.group.name = "G"
        stream = caller.open_telemetry()
        caller.says.put_nowait(v2.TelemetryCommand(settings=settings))
        await world.until(lambda: caller.told)
        assert await hosts("QueryRoute") == pushed
        stream.cancel()
        await slave.close()
        await master.close()

    run(body)


def test_a_receive_and_its_acknowledgement_are_sent_on_to_the_broker_that_they_name() -> None:
    async def body(world: World) -> None:
        (_, here), (_, there) = await two(world)
        await there.send(there.message(b"x"))
        (message,) = (await here.receive(broker="broker-1", poll_ms=5000)).messages
        handle = message.system_properties.receipt_handle
        assert "broker-1" in handle
        changed = await here.change(handle, 20_000)
        assert changed.status.code == Code.OK
        message.system_properties.receipt_handle = changed.receipt_handle
        assert (await here.ack(message)).status.code == Code.OK
        assert (await there.ack(message)).status.code == Code.INVALID_RECEIPT_HANDLE

    run(body)


def test_messages_of_a_group_have_one_owner_whichever_broker_they_are_sent_to() -> None:
    async def body(world: World) -> None:
        ((first, here), (second, there)) = await two(world, "FIFO")
        for number in range(16):
            caller = (here, there)[number % 2]
            sent = caller.message(
                b"%d" % number,
                message_type=v2.MessageType.FIFO,
                message_group=f"group-{number // 2}",
            )
            assert (await caller.send(sent)).status.code == Code.OK
        places: dict[str, set[tuple[str, int]]] = {}
        for caller, broker in ((here, "broker-0"), (there, "broker-1")):
            for message in (await caller.receive(broker=broker, poll_ms=2000)).messages:
                system = message.system_properties
                place = broker, system.queue_id
                places.setdefault(system.message_group, set()).add(place)
        assert len(places) == 8
        assert all(len(found) == 1 for found in places.values())
        assert len({broker for found in places.values() for broker, _ in found}) == 2
        first.validate()
        second.validate()

    run(body)


def test_a_client_is_asked_about_a_transaction_at_another_broker_than_that_of_its_stream() -> None:
    async def body(world: World) -> None:
        changes = {"transaction_check_ms": 1000, "transaction_timeout_ms": 500}
        (_, here), (broker, there) = await two(world, "TRANSACTION", **changes)
        asked = v2.Settings(client_type=v2.ClientType.PRODUCER)
        asked.publishing.topics.add(name="T")
        stream = here.open_telemetry()
        here.says.put_nowait(v2.TelemetryCommand(settings=asked))
        sent = there.message(b"open", message_type=v2.MessageType.TRANSACTION)
        (entry,) = (await there.send(sent)).entries
        there.gateway._clients.end(there.call())  # nobody else can be asked
        await world.until(lambda: len(here.told) > 2)
        question = here.told[2].recover_orphaned_transaction_command
        assert question.message.body == b"open"
        answer = await here.ask(
            "EndTransaction",
            topic=v2.Resource(name="T"),
            message_id=entry.message_id,
            transaction_id=question.transaction_id,
            resolution=v2.TransactionResolution.COMMIT,
        )
        assert answer.status.code == Code.OK
        assert (await there.receive(broker="broker-1", poll_ms=5000)).bodies == [b"open"]
        broker.validate()
        here.says.put_nowait(None)
        await stream

    run(body)


def test_a_client_whose_stream_is_at_a_slave_is_asked_about_its_transaction() -> None:
    """After a hand-over that is every client that has not asked for a route since."""

    async def body(world: World) -> None:
        changes = {"transaction_check_ms": 1000, "transaction_timeout_ms": 500}
        nameserver = await world.nameserver()
        master, slave, caller = await with_slave(world, nameserver, "TRANSACTION", **changes)
        asked = v2.Settings(client_type=v2.ClientType.PRODUCER)
        asked.publishing.topics.add(name="T")
        stream = caller.open_telemetry()
        caller.says.put_nowait(v2.TelemetryCommand(settings=asked))
        sent = caller.message(b"open", message_type=v2.MessageType.TRANSACTION)
        assert (await caller.send(sent)).status.code == Code.OK
        await world.until(lambda: len(caller.told) > 2)
        question = caller.told[2].recover_orphaned_transaction_command
        answer = await caller.ask(
            "EndTransaction",
            topic=v2.Resource(name="T"),
            message_id=question.message.system_properties.message_id,
            transaction_id=question.transaction_id,
            resolution=v2.TransactionResolution.COMMIT,
        )
        assert answer.status.code == Code.OK
        assert (await caller.receive(poll_ms=5000)).bodies == [b"open"]
        master.validate()
        caller.says.put_nowait(None)
        await stream
        await slave.close()
        await master.close()

    run(body)


def test_a_transaction_is_ended_at_any_node() -> None:
    async def body(world: World) -> None:
        (_, here), (_, there) = await two(world, "TRANSACTION")
        sent = here.message(b"x", message_type=v2.MessageType.TRANSACTION)
        (entry,) = (await here.send(sent)).entries
        answer = await there.ask(
            "EndTransaction",
            topic=v2.Resource(name="T"),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=v2.TransactionResolution.COMMIT,
        )
        assert answer.status.code == Code.OK
        assert (await there.receive(broker="broker-0", poll_ms=5000)).bodies == [b"x"]

    run(body)


def test_a_message_is_recalled_at_any_node() -> None:
    async def body(world: World) -> None:
        ((broker, here), (_, there)) = await two(world, "DELAY")
        due_ms = broker._runtime.now_ms() + 60_000
        sent = here.message(b"x", message_type=v2.MessageType.DELAY, delivery_timestamp=due_ms)
        (entry,) = (await here.send(sent)).entries
        answer = await there.ask(
            "RecallMessage", topic=v2.Resource(name="T"), recall_handle=entry.recall_handle
        )
        assert (answer.status.code, answer.message_id) == (Code.OK, entry.message_id)

    run(body)


def test_dead_letters_are_forwarded_to_their_broker() -> None:
    async def body(world: World) -> None:
        (_, here), (_, there) = await two(world)
        await there.send(there.message(b"x"))
        (message,) = (await here.receive(broker="broker-1", poll_ms=5000)).messages
        answer = await here.ask(
            "ForwardMessageToDeadLetterQueue",
            group=v2.Resource(name="G"),
            topic=v2.Resource(name="T"),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        assert answer.status.code == Code.OK
        await asyncio.sleep(3)  # the topic is new, and registered
        dead = await there.receive("%DLQ%G", "OTHER", broker="broker-1", poll_ms=2000)
        assert dead.bodies == [b"x"]

    run(body)


def test_a_broker_that_is_away_is_an_error_and_others_serve_on() -> None:
    async def body(world: World) -> None:
        (_, here), (gone, there) = await two(world)
        await there.send(there.message(b"x"))
        (message,) = (await here.receive(broker="broker-1", poll_ms=5000)).messages
        await gone.close()
        answer = await here.ack(message)
        assert answer.status.code not in (Code.OK, Code.INVALID_RECEIPT_HANDLE)
        assert (await here.send(here.message(b"y"))).status.code == Code.OK
        assert (await here.receive(broker="broker-0", poll_ms=2000)).bodies == [b"y"]
        (unknown,) = (await here.receive(broker="broker-9", poll_ms=0)).parts
        assert "the route of topic T has no broker 'broker-9'" in unknown.status.message
        assert unknown.status.code == Code.HA_NOT_AVAILABLE

    run(body)


@pytest.mark.parametrize("ordered", [True, False])
def test_settings_say_whether_the_group_keeps_the_order(ordered) -> None:
    async def body(world: World) -> None:
        ((broker, here), _) = await two(world)
        await create_group(world, broker, "G", consumeMessageOrderly=ordered, retryMaxTimes=3)
        asked = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
        asked.subscription.group.name = "G"
        stream = here.open_telemetry()
        here.says.put_nowait(v2.TelemetryCommand(settings=asked))
        await world.until(lambda: here.told)
        found = here.told[0].settings
        assert (found.subscription.fifo, found.backoff_policy.max_attempts) == (ordered, 4)
        here.says.put_nowait(None)
        await stream

    run(body)


@pytest.mark.parametrize(
    "reply",
    [
        {"popTime": "x", "invisibleTime": "1", "reviveQid": "0"},
        {},
        {"popTime": "1", "invisibleTime": str(1 << 70), "reviveQid": "-1"},
    ],
)
def test_a_broker_that_answers_nonsense_is_an_error_of_the_call_alone(reply, monkeypatch) -> None:
    async def body(world: World) -> None:
        (_, here), (_, there) = await two(world)
        await there.send(there.message(b"x"))
        got = await here.receive(broker="broker-1", poll_ms=5000, auto_renew=True)
        (message,) = got.messages
        peers = here.gateway._peers

        async def lie(address: str, command: Any, timeout_s: float, late: Any = None) -> Any:
            return command.reply(0, ext=dict(reply))

        monkeypatch.setattr(peers, "ask", lie)
        answer = await here.change(message.system_properties.receipt_handle, 20_000)
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        await asyncio.sleep(90)  # renewals get the same answer, until the time is over
        assert len(here.gateway._receiving.renewals) == 0
        monkeypatch.undo()
        assert (await here.send(here.message(b"y"))).status.code == Code.OK

    run(body)


@pytest.mark.parametrize("language", ["JAVA", "GOLANG", "RUST"])
def test_while_there_is_no_master_a_client_starts_at_its_slave_and_goes_on_with_it(
    language: str,
) -> None:
    """A route that names nobody is an error, with which Java's and C#'s clients do not start."""

    async def body(world: World) -> None:
        machine = world.node("nameserver")
        server = NameServer(machine, machine.ip, 9876)
        await server.start()
        master, slave, beside = await with_slave(world, server.address, role="ASYNC_MASTER")
        slave.offers("10.9.9.8:8081")
        await beside.send(beside.message(b"before"))
        marks = slave.store.watermarks
        await world.until(lambda: marks.dispatched == master.store.watermarks.appended)
        await master.close()
        await world.until(lambda: 0 not in server.routes.addresses("broker-a"))
        await asyncio.sleep(2)  # gateways keep their facts for a second
        gateway = Gateway(machine, NameserverNode(machine, server), f"{machine.ip}:8081")
        producer, consumer = (
            Caller(world, gateway, name, language) for name in ("producer", "consumer")
        )
        topic, group = v2.Resource(name="T"), v2.Resource(name="G")
        for caller in (producer, consumer, beside):
            route = await caller.ask("QueryRoute", topic=topic)
            assert route.status.code == Code.OK
            places = {place(queue) for queue in route.message_queues}
            assert places == {("broker-a", number, "10.9.9.8") for number in range(4)}
            assert {queue.broker.id for queue in route.message_queues} == {0}
        # Consumers keep what they have: a slave cannot say who has which message.
        for caller, code in ((consumer, Code.TOO_MANY_REQUESTS), (beside, Code.HA_NOT_AVAILABLE)):
            assigned = await caller.ask("QueryAssignment", topic=topic, group=group)
            assert (assigned.status.code, list(assigned.assignments)) == (code, [])
        there = Caller(world, beside.gateway, "producer")
        refused = await there.send(there.message(b"too early"))
        assert refused.status.code == Code.HA_NOT_AVAILABLE
        operator = await world.connect(slave.address)
        forced = {"epoch": 2 * TERM, "force": "true", "insist": "true"}
        assert (await operator.ask(RequestCode.PROMOTE, forced)).code == 0
        await world.until(lambda: slave.messaging.popping.serves)
        async with asyncio.timeout(3):  # it is registered, and the gateway looks once a second
            while (await there.send(there.message(b"new"))).status.code != Code.OK:
                await asyncio.sleep(0.2)
        bodies: list[bytes] = []
        while got := (await there.receive()).bodies:
            bodies += got
        assert sorted(bodies) == [b"before", b"new"]
        await slave.close()

    run(body)
