"""A nameserver as the access point: it answers routes and settings, and sends on the rest."""

from __future__ import annotations

import asyncio

from gateway_rig import (
    ADDRESS,
    Caller,
    Code,
    at_nameserver,
    create_group,
    create_topic,
    with_slave,
)
from saturnmq.gateway import v2
from saturnmq.gateway.gateway import Gateway
from saturnmq.gateway.messages import Type
from saturnmq.nameserver.gateway_node import NameserverNode
from saturnmq.nameserver.server import NameServer
from world_rig import World, run

T = v2.Resource(name="T")


def test_a_nameserver_leads_clients_to_the_gateways_of_brokers() -> None:
    async def body(world: World) -> None:
        _, caller = await at_nameserver(world)
        answer = await caller.ask("QueryRoute", topic=T)
        assert answer.status.code == Code.OK
        assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
        for queue in answer.message_queues:
            (address,) = queue.broker.endpoints.addresses
            assert f"{address.host}:{address.port}" == ADDRESS
        missing = await caller.ask("QueryRoute", topic=v2.Resource(name="MISSING"))
        assert missing.status.code == Code.TOPIC_NOT_FOUND

    run(body)


def test_a_nameserver_answers_settings_from_what_brokers_know_of_the_group() -> None:
    async def body(world: World) -> None:
        broker, caller = await at_nameserver(world)
        await create_group(world, broker, "G", consumeMessageOrderly=True, retryMaxTimes=2)
        asked = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
        asked.subscription.group.name = "G"
        stream = caller.open_telemetry()
        caller.says.put_nowait(v2.TelemetryCommand(settings=asked))
        await world.until(lambda: caller.told)
        found = caller.told[0].settings
        assert (found.subscription.fifo, found.backoff_policy.max_attempts) == (True, 3)
        caller.says.put_nowait(None)
        await stream
        beat = await caller.ask("Heartbeat", group=v2.Resource(name="G"), client_type=2)
        assert beat.status.code == Code.OK
        assigned = await caller.ask("QueryAssignment", topic=T, group=v2.Resource(name="G"))
        assert [each.message_queue.id for each in assigned.assignments] == [0, 1, 2, 3]

    run(body)


def test_messages_go_through_a_nameserver_for_clients_that_know_nothing_else() -> None:
    async def body(world: World) -> None:
        _, caller = await at_nameserver(world)
        assert (await caller.send(caller.message(b"x"))).status.code == Code.OK
        for broker in ("broker-a", ""):
            got = await caller.receive(broker=broker, poll_ms=5000)
            if got.messages:
                break
        (message,) = got.messages
        assert message.body == b"x"
        assert (await caller.ack(message)).status.code == Code.OK

    run(body)


def test_messages_for_a_client_that_went_away_while_a_broker_held_its_receive_come_at_once() -> (
    None
):
    async def body(world: World) -> None:
        broker, caller = await at_nameserver(world)
        asked = asyncio.ensure_future(caller.receive(invisible_ms=60_000, poll_ms=15_000))
        await world.until(lambda: len(broker.messaging.pops.held) == 1)
        asked.cancel()
        await world.until(lambda: len(broker.messaging.pops.held) == 0)
        await caller.ask("Heartbeat", group=v2.Resource(name="G"), client_type=2)
        sent = world.loop.time()
        assert (await caller.send(caller.message(b"x"))).status.code == Code.OK
        other = Caller(world, caller.gateway, "other")
        while not (got := await other.receive(poll_ms=5000)).messages:
            assert world.loop.time() - sent < 60
        assert got.bodies == [b"x"]
        assert got.messages[0].system_properties.delivery_attempt == 1
        assert world.loop.time() - sent < 5

    run(body)


def test_a_call_with_fields_that_are_too_long_is_refused_and_ends_no_other() -> None:
    """All clients of a gateway share its connection to a broker."""

    async def body(world: World) -> None:
        broker, caller = await at_nameserver(world)
        waiting = asyncio.ensure_future(caller.receive(poll_ms=15_000))
        await world.until(lambda: len(broker.messaging.pops.held) == 1)
        other = Caller(world, caller.gateway, "other")
        long, group = "x" * 1_000_000, v2.Resource(name="G")
        sql = v2.FilterExpression(type=v2.FilterType.SQL, expression="\U0001f600" * 65_536)
        for more in ({"attempt_id": long}, {"broker": long}, {"expression": sql}):
            (refused,) = (await other.receive(poll_ms=0, **more)).parts
            assert refused.status.code in (Code.BAD_REQUEST, Code.ILLEGAL_FILTER_EXPRESSION)
        handle = "0 1 2 0 0 broker-a 0 0"
        ends = {"topic": T, "transaction_id": long, "message_id": long, "resolution": 1}
        buried = {"group": group, "topic": T, "receipt_handle": handle, "message_id": long}
        for name, fields in {
            "EndTransaction": ends,
            "ForwardMessageToDeadLetterQueue": buried,
        }.items():
            assert (await other.ask(name, **fields)).status.code == Code.BAD_REQUEST
        assert (await caller.send(caller.message(b"x"))).status.code == Code.OK
        assert (await waiting).bodies == [b"x"]

    run(body)


def test_a_nameserver_without_brokers_answers_with_errors() -> None:
    async def body(world: World) -> None:
        broker, caller = await at_nameserver(world)
        await broker.close()
        await asyncio.sleep(5)
        assert (await caller.ask("QueryRoute", topic=T)).status.code == Code.TOPIC_NOT_FOUND
        assert (await caller.send(caller.message(b"x"))).status.code == Code.TOPIC_NOT_FOUND
        assert (await caller.receive()).code != Code.OK
        asked = await caller.ask("QueryAssignment", topic=T, group=v2.Resource(name="NEW"))
        assert asked.status.code not in (Code.OK, Code.INTERNAL_SERVER_ERROR)

    run(body)


def test_a_producer_whose_only_stream_is_here_is_asked_how_its_transaction_ended() -> None:
    async def body(world: World) -> None:
        changes = {"transaction_check_ms": 1000, "transaction_timeout_ms": 500}
        broker, other = await at_nameserver(world, **changes)
        await create_topic(world, broker, "X", "TRANSACTION")
        silent = Caller(world, other.gateway, "without a stream")
        caller = Caller(world, other.gateway, "the producer")
        streams = []
        for each, topic in ((other, "T"), (caller, "X")):
            asked = v2.Settings(client_type=v2.ClientType.PRODUCER)
            asked.publishing.topics.add(name=topic)
            streams.append(each.open_telemetry())
            each.says.put_nowait(v2.TelemetryCommand(settings=asked))
        await world.until(lambda: len(caller.told) == 2 and len(other.told) == 2)
        sent = caller.message(b"open", "X", message_type=v2.MessageType.TRANSACTION)
        assert (await silent.send(sent)).status.code == Code.OK
        await world.until(lambda: len(caller.told) > 2)
        question = caller.told[2].recover_orphaned_transaction_command
        assert question.message.body == b"open"
        answer = await caller.ask(
            "EndTransaction",
            topic=v2.Resource(name="X"),
            message_id=question.message.system_properties.message_id,
            transaction_id=question.transaction_id,
            resolution=v2.TransactionResolution.COMMIT,
            source=v2.TransactionSource.SOURCE_SERVER_CHECK,
        )
        assert answer.status.code == Code.OK
        assert (await caller.receive("X", poll_ms=5000)).bodies == [b"open"]
        assert len(other.told) == 2
        producers = broker.ground.context.clients.producers
        assert list(producers) == ["X"]
        await caller.ask("NotifyClientTermination")
        await world.until(lambda: not producers, 15)
        other.says.put_nowait(None)
        await asyncio.gather(*streams)

    run(body)


def test_messages_that_come_for_a_client_that_has_ended_go_to_others_at_once() -> None:
    async def body(world: World) -> None:
        _, caller = await at_nameserver(world)
        other = Caller(world, caller.gateway, "other")
        await other.ask("Heartbeat", group=v2.Resource(name="G"), client_type=2)
        budget = caller.gateway._clients.of(other.call()).link.budget.whole
        assert budget is not None
        used = budget.used
        held = asyncio.ensure_future(
            caller.receive(auto_renew=True, invisible_ms=None, poll_ms=15_000)
        )
        await asyncio.sleep(1)
        await caller.ask("NotifyClientTermination", group=v2.Resource(name="G"))
        sent = world.loop.time()
        assert (await other.send(other.message(b"x"))).status.code == Code.OK
        assert (await held).messages == []
        while not (got := await other.receive(poll_ms=5000)).messages:
            assert world.loop.time() - sent < 400
        assert got.bodies == [b"x"]
        assert got.messages[0].system_properties.delivery_attempt == 1
        assert world.loop.time() - sent < 5
        assert budget.used == used

    run(body)


def test_a_topic_takes_the_same_types_while_its_broker_cannot_be_asked() -> None:
    """Clients take an answer about the type for an error of their own, and do not try again."""

    async def body(world: World) -> None:
        broker, caller = await at_nameserver(world)
        await create_topic(world, broker, "F", "FIFO")
        topic = v2.Resource(name="F")
        # A client that starts meanwhile, at another gateway, is told to try again.
        node = caller.gateway._clients._node
        other = Caller(world, Gateway(caller.gateway._runtime, node, "10.9.9.9:8082"), "other")
        async with asyncio.timeout(30):
            while not (await caller.ask("QueryRoute", topic=topic)).message_queues:
                await asyncio.sleep(0.1)
        host, _, port = broker.address.rpartition(":")
        listener = world.network._listeners.pop((host, int(port)))
        for end in world.network.connections(world.nodes[1].name, world.nodes[0].name):
            if end.get_extra_info("sockname")[1] == int(port):
                end.abort()
        await asyncio.sleep(2)  # facts are kept for a second
        message = caller.message(topic="F", message_type=Type.FIFO, message_group="g")
        assert (await caller.send(message)).status.code == Code.PROXY_TIMEOUT
        found = await caller.ask("QueryRoute", topic=topic)
        assert {tuple(each.accept_message_types) for each in found.message_queues} == {(Type.FIFO,)}
        assert (await other.ask("QueryRoute", topic=topic)).status.code == Code.HA_NOT_AVAILABLE
        world.network._listeners[host, int(port)] = listener
        await asyncio.sleep(2)
        assert (await caller.send(message)).status.code == Code.OK
        assert (await other.send(message)).status.code == Code.OK

    run(body)


def test_a_slave_tells_the_types_of_a_topic_whose_master_is_away() -> None:
    async def body(world: World) -> None:
        machine = world.node("nameserver")
        server = NameServer(machine, machine.ip, 9876)
        await server.start()
        master, slave, _ = await with_slave(world, server.address, "FIFO", role="ASYNC_MASTER")
        await master.close()
        await world.until(lambda: 0 not in server.routes.addresses("broker-a"))
        gateway = Gateway(machine, NameserverNode(machine, server), f"{machine.ip}:8081")
        starts = Caller(world, gateway)
        route = await starts.ask("QueryRoute", topic=v2.Resource(name="T"))
        assert route.status.code == Code.OK
        assert list(route.message_queues[0].accept_message_types) == [Type.FIFO]
        await slave.close()

    run(body)
