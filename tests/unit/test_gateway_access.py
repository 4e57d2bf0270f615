"""Calls of gRPC to brokers that check users: the header `authorization`."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

import pytest
from access_rig import ALICE, CHECKING, NODES, ROOT
from gateway_rig import Caller, Code, at_nameserver, create_topic, served
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.broker.access.model import Acl, Resource, Rule
from saturnmq.broker.access.table import super_user
from saturnmq.broker.broker import Broker
from saturnmq.gateway import v2
from saturnmq.gateway.callers import PRESENT, Signatory, caller_of, tell
from saturnmq.gateway.callers import Caller as Told
from saturnmq.gateway.calls import GrpcCall
from saturnmq.gateway.gateway import Gateway
from saturnmq.gateway.peers import Peers
from saturnmq.gateway.topics import FreshFacts
from saturnmq.nameserver.gateway_node import NameserverNode
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.access_words import Action, Decision, PolicyType
from saturnmq.protocol.credentials import (
    ACCESS_KEY,
    CALLER,
    CALLER_HOST,
    CALLER_SIGNATURE,
    CALLER_TEXT,
    Credentials,
)
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.native import NativeRuntime, new_event_loop
from world_rig import World, new_disk, run

OPEN_TO_RIG = CHECKING | {  # it makes topics
    "authentication_whitelist": ("17",),
    "authorization_whitelist": ("17",),
}
BOB = Credentials("bob", "bob's password")
WHEN = "20261128T120000Z"


def signed(user: Credentials, when: str = WHEN, *, upper: bool = False) -> dict[str, str]:
    """The headers of a call, as RocketMQ's clients make them."""
    found = hmac.new(user.secret_key.encode(), when.encode(), "sha1").hexdigest()
    found = found.upper() if upper else found
    return {
        "authorization": f"MQv2-HMAC-SHA1 Credential={user.access_key}, "
        f"SignedHeaders=x-mq-date-time, Signature={found}",
        "x-mq-date-time": when,
    }


def rules(broker: Broker, user: Credentials, *resources: str) -> None:
    """Add a user with some rules, as an operator does."""
    table = broker.ground.context.access
    known = super_user(user).changed({"userType": "Normal"})
    if table.user(user.access_key) is None:
        table.create_user(known)
    made = {
        each: Rule(each, (Action.PUB, Action.SUB), Decision.ALLOW)
        for each in map(Resource.read, resources)
    }
    if made:
        table.add_rules(Acl(known.subject, {PolicyType.CUSTOM: made}))


async def checked(world: World, **changes: Any) -> tuple[Broker, Caller]:
    return await served(world, **(OPEN_TO_RIG | changes))


async def route(caller: Caller, topic: str = "T") -> Any:
    return await caller.ask("QueryRoute", topic=v2.Resource(name=topic))


@pytest.mark.parametrize("upper", [False, True])
def test_a_call_with_the_right_signature_is_served(upper: bool) -> None:
    async def body(world: World) -> None:
        _, caller = await checked(world)
        caller.headers = signed(ROOT, upper=upper)
        assert (await route(caller)).status.code == Code.OK
        assert (await caller.send(caller.message(b"x"))).status.code == Code.OK
        received = await caller.receive()
        assert received.bodies == [b"x"]
        assert (await caller.ack(*received.messages)).status.code == Code.OK

    run(body)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature="},
        signed(Credentials("root", "another")),
        signed(Credentials("nobody", "x")),
        signed(ROOT) | {"x-mq-date-time": "20261128T120001Z"},
        {"authorization": signed(ROOT)["authorization"]},
        {"authorization": "Basic cm9vdDp4", "x-mq-date-time": WHEN},
        {"authorization": "MQv2-HMAC-SHA1 Credential=root, Signature=zz", "x-mq-date-time": WHEN},
    ],
)
def test_another_call_is_refused_whatever_it_asks(headers: dict[str, str]) -> None:
    async def body(world: World) -> None:
        broker, caller = await checked(world)
        caller.headers = headers
        assert (await route(caller)).status.code == Code.UNAUTHORIZED
        assert (await caller.send(caller.message(b"x"))).status.code == Code.UNAUTHORIZED
        assert (await caller.receive()).code == Code.UNAUTHORIZED
        group = v2.Resource(name="G")
        beat = await caller.ask("Heartbeat", client_type=v2.ClientType.PUSH_CONSUMER, group=group)
        assert beat.status.code == Code.UNAUTHORIZED
        assert broker.store.watermarks.appended == 0

    run(body)


def test_a_user_may_do_what_its_rules_allow() -> None:
    async def body(world: World) -> None:
        broker, caller = await checked(world)
        rules(broker, ALICE)
        caller.headers = signed(ALICE)
        refused = await route(caller)
        assert refused.status.code == Code.UNAUTHORIZED
        assert "no rule allows User:alice" in refused.status.message
        rules(broker, ALICE, "Topic:T")
        assert (await route(caller)).status.code == Code.OK
        assert (await caller.send(caller.message(b"x"))).status.code == Code.OK
        received = await caller.receive()
        assert received.code == Code.UNAUTHORIZED
        rules(broker, ALICE, "Group:G")
        received = await caller.receive()
        assert received.bodies == [b"x"]
        denied = await caller.ack(*received.messages, group="H")
        assert denied.status.code == Code.UNAUTHORIZED
        assert (await caller.ack(*received.messages)).status.code == Code.OK

    run(body)


def test_a_client_is_told_when_it_opens_its_stream() -> None:
    async def body(world: World) -> None:
        _, caller = await checked(world)
        caller.headers = signed(Credentials("root", "another"))
        stream = caller.open_telemetry()
        settings = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
        settings.subscription.group.name = "G"
        await caller.says.put(v2.TelemetryCommand(settings=settings))
        await world.until(lambda: bool(caller.told))
        assert caller.told[0].status.code == Code.UNAUTHORIZED
        with pytest.raises(Exception, match="access denied"):
            await stream

    run(body)


def test_a_stream_ends_with_the_next_command_of_a_user_who_is_gone() -> None:
    async def body(world: World) -> None:
        broker, caller = await checked(world)
        rules(broker, ALICE, "Group:G")
        caller.headers = signed(ALICE)
        stream = caller.open_telemetry()
        settings = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
        settings.subscription.group.name = "G"
        for count in (1, 2):
            await caller.says.put(v2.TelemetryCommand(settings=settings))
            await world.until(lambda count=count: len(caller.told) >= count)
        broker.ground.context.access.delete_user("alice")
        await caller.says.put(v2.TelemetryCommand())
        with pytest.raises(Exception, match="access denied"):
            await stream

    run(body)


def test_a_nameserver_of_checking_brokers_lets_nobody_in_while_they_are_away() -> None:
    async def body(world: World) -> None:
        for credentials, code in ((NODES, Code.TOO_MANY_REQUESTS), (None, Code.OK)):
            machine = world.node(f"nameserver-{credentials is None}")
            server = NameServer(machine, machine.ip, 9876)
            await server.start()
            node = NameserverNode(machine, server, credentials=credentials)
            caller = Caller(world, Gateway(machine, node, f"{node.host}:8081"))
            group, kind = v2.Resource(name="G"), v2.ClientType.PUSH_CONSUMER
            answer = await caller.ask("Heartbeat", group=group, client_type=kind)
            assert answer.status.code == code, answer

    run(body)


def test_the_gateway_asks_for_itself_what_all_callers_share() -> None:
    """The kind of a topic is a fact that the first caller's rules must not decide."""

    async def body(world: World) -> None:
        broker, caller = await checked(world)
        await create_topic(world, broker, "F", "FIFO")
        rules(broker, ALICE, "Topic:F")
        caller.headers = signed(ALICE)
        found = await route(caller, "F")
        assert found.status.code == Code.OK, "Get of Topic:F is not needed"
        assert {kind for each in found.message_queues for kind in each.accept_message_types} == {
            v2.MessageType.FIFO
        }

    run(body)


def test_a_nameserver_passes_on_whose_a_call_is() -> None:
    async def body(world: World) -> None:
        broker, caller = await at_nameserver(
            world, is_proxy=True, credentials=NODES, headers=signed(ROOT), **OPEN_TO_RIG
        )
        rules(broker, ALICE, "Topic:T")
        caller.headers = signed(ALICE)
        assert (await caller.send(caller.message(b"x"))).status.code == Code.OK
        assert (await caller.receive()).code == Code.UNAUTHORIZED
        caller.headers = {}
        assert (await caller.send(caller.message(b"x"))).status.code == Code.UNAUTHORIZED

    run(body)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)


def called(headers: dict[str, str]) -> Told:
    return caller_of(GrpcCall("10.1.1.1:4711", headers, None))


@given(header=st.one_of(TEXTS, TEXTS.map("MQv2-HMAC-SHA1 {}".format)), when=TEXTS)
def test_no_header_is_taken_for_half_a_signature(header: str, when: str) -> None:
    found = dict(called({"authorization": header, "x-mq-date-time": when}))
    assert found.pop(CALLER_HOST) == "10.1.1.1"
    if found != {CALLER: ""}:
        assert found.keys() == {CALLER, CALLER_TEXT, CALLER_SIGNATURE}
        assert all(found.values())


@given(name=st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True), secret=TEXTS.filter(bool))
def test_what_clients_write_is_read(name: str, secret: str) -> None:
    found = called(signed(Credentials(name, secret)))
    assert (found[CALLER], found[CALLER_TEXT]) == (name, WHEN)
    with_scope = signed(Credentials(name, secret))
    with_scope["authorization"] = with_scope["authorization"].replace(
        f"{name},", f"{name}/region/RocketMQ,"
    )
    assert called(with_scope) == found


def test_a_request_tells_of_its_caller_and_is_the_nodes() -> None:
    signatory = Signatory(NODES)
    for caller, name in [(None, None), (called({}), ""), (called(signed(ALICE)), "alice")]:
        token = PRESENT.set(caller)
        outside, inside = (Command.request(11, {"topic": "T"}) for _ in range(2))
        signatory.sign(outside)
        tell(inside)
        PRESENT.reset(token)
        assert outside.ext[ACCESS_KEY] == "nodes"
        assert ACCESS_KEY not in inside.ext
        assert outside.ext.get(CALLER) == inside.ext.get(CALLER) == name
        assert outside.ext["topic"] == "T"
    plain = Command.request(11, {"topic": "T"})
    Signatory(None).sign(plain)
    assert plain.ext == {"topic": "T"}


def test_a_fact_is_asked_for_in_nobodys_name() -> None:
    """On a real loop a task has the context of the call that has started it."""

    async def main() -> None:
        async def find(name: str) -> tuple[str, Told | None]:
            return name, PRESENT.get()

        facts = FreshFacts(NativeRuntime(), find)
        PRESENT.set(called(signed(ALICE)))
        assert await facts.get("T") == ("T", None)
        assert PRESENT.get(), "the caller's own context is as it was"

    asyncio.run(main())


def test_a_request_of_a_broker_comes_in_nobodys_name() -> None:
    """It comes over a connection that the first call to that broker has opened."""

    async def main() -> None:
        runtime = NativeRuntime()
        told: asyncio.Queue[Told | None] = asyncio.Queue()

        def answer(endpoint: Endpoint, request: Command) -> None:
            endpoint.send(request.reply(0))
            endpoint.oneway(Command.request(39, {}))

        listener = await runtime.listen("127.0.0.1", 0, lambda: Endpoint(runtime, answer))
        peers = Peers(runtime, lambda _, __: told.put_nowait(PRESENT.get()), lambda _: None)
        PRESENT.set(called(signed(ALICE)))
        async with asyncio.timeout(10):
            await peers.ask(listener.address, Command.request(11, {}), 5.0)
            assert await told.get() is None
        peers.close()
        listener.close()
        runtime.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def transactional(topic: str) -> Any:
    settings = v2.Settings(client_type=v2.ClientType.PRODUCER)
    settings.publishing.topics.add(name=topic)
    return v2.TelemetryCommand(settings=settings)


def test_nobody_calls_as_the_client_of_another_user() -> None:
    """The ids of clients are no secret."""

    async def body(world: World) -> None:
        broker, owner = await checked(world)
        rules(broker, ALICE, "Topic:T")
        owner.headers = signed(ALICE)
        stream = owner.open_telemetry()
        await owner.says.put(transactional("T"))
        await world.until(lambda: bool(owner.told))
        clients = owner.gateway._clients
        assert len(clients) == 1
        for headers in ({}, signed(Credentials("alice", "another"))):
            thief = Caller(world, owner.gateway, headers=headers)
            ended = await thief.ask("NotifyClientTermination")
            assert ended.status.code == Code.UNAUTHORIZED
            theft = thief.open_telemetry()
            await thief.says.put(v2.TelemetryCommand())
            with pytest.raises(Exception, match="access denied"):
                await theft
        rules(broker, BOB)
        thief = Caller(world, owner.gateway, headers=signed(BOB))
        assert (await thief.ask("NotifyClientTermination")).status.code == Code.OK
        [client] = clients
        assert client.has_stream
        assert client.key == ("alice", owner.client_id)
        stream.cancel()

    run(body)


def test_a_gateway_vouches_only_for_producers_that_may_publish() -> None:
    """It tells other brokers of them as the node that it is, and is asked with whole messages."""

    async def body(world: World) -> None:
        broker, caller = await at_nameserver(
            world, is_proxy=True, credentials=NODES, headers=signed(ROOT), **OPEN_TO_RIG
        )
        await create_topic(world, broker, "X", "TRANSACTION")
        rules(broker, ALICE, "Topic:X")
        rules(broker, BOB)
        streams: list[asyncio.Task[None]] = []
        for headers in ({}, signed(BOB), signed(ALICE)):
            each = Caller(world, caller.gateway, client_id=f"c{len(streams)}", headers=headers)
            streams.append(each.open_telemetry())
            await each.says.put(transactional("X"))
        await asyncio.sleep(30.0)
        allowed = {each.key[0]: each.allowed for each in caller.gateway._clients if each.topics}
        assert allowed == {"alice": {"X"}, "bob": frozenset()}, "nobody has no client"
        broker.ground.context.access.delete_rules("User:alice", PolicyType.CUSTOM, None)
        await asyncio.sleep(30.0)
        assert not any(each.allowed for each in caller.gateway._clients)
        for stream in streams:
            stream.cancel()

    run(body)


def test_a_gateway_vouches_for_those_who_may_publish_at_all_brokers() -> None:
    async def body(world: World) -> None:
        first, caller = await at_nameserver(
            world, is_proxy=True, credentials=NODES, headers=signed(ROOT), **OPEN_TO_RIG
        )
        second = await world.broker(
            new_disk(1),
            broker_name="broker-b",
            nameservers=first.ground.context.config.nameservers,
            **OPEN_TO_RIG,
        )
        for broker in (first, second):
            await create_topic(world, broker, "X", "TRANSACTION")
        rules(first, ALICE, "Topic:X")
        rules(second, ALICE)
        producer = Caller(
            world, caller.gateway, client_id="p", language="GOLANG", headers=signed(ALICE)
        )
        stream = producer.open_telemetry()
        await producer.says.put(transactional("X"))
        told = [each.ground.context.clients.producers for each in (first, second)]
        await asyncio.sleep(60.0)
        assert ["X" in each for each in told] == [False, False]
        rules(second, ALICE, "Topic:X")
        await world.until(lambda: all("X" in each for each in told), 200, 0.2)
        stream.cancel()

    run(body)


def test_a_message_that_nobody_got_is_given_back_though_its_user_lost_the_right() -> None:
    async def body(world: World) -> None:
        broker, caller = await at_nameserver(
            world, is_proxy=True, credentials=NODES, headers=signed(ROOT), **OPEN_TO_RIG
        )
        rules(broker, ALICE, "Topic:T", "Group:G")
        caller.headers = signed(ALICE)
        assert (await caller.send(caller.message(b"x"))).status.code == Code.OK
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name="G"),
            message_queue=v2.MessageQueue(
                topic=v2.Resource(name="T"), broker=v2.Broker(name="broker-a")
            ),
            batch_size=1,
        )
        request.invisible_duration.FromSeconds(600)

        async def write(_: Any) -> None:
            broker.ground.context.access.delete_user("alice")
            raise ConnectionResetError("the client has gone")

        with pytest.raises(ConnectionResetError):
            await caller.gateway.streams["ReceiveMessage"](caller.call(30), request, write)
        caller.headers = signed(ROOT)
        assert (await caller.receive(poll_ms=5_000)).bodies == [b"x"]

    run(body)
