"""The addresses that clients are told, which differ where a client cannot follow a fail-over, and
the master that their calls reach."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from gateway_rig import ADDRESS, Caller, Code, at_nameserver
from saturnmq.gateway import v2
from saturnmq.gateway.addresses import FRESH_S, KEPT_S, Addresses
from saturnmq.gateway.asking import Asking
from saturnmq.gateway.gateway import Gateway
from saturnmq.gateway.peers import Peers
from saturnmq.gateway.topics import Directory, TopicFacts
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.inner_endpoint import InnerClient, InnerEndpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute
from saturnmq.runtime.errors import ConnectFailed, SystemBusy
from world_rig import World, run

OWN = "10.8.8.8:8081"
T = v2.Resource(name="T")
ACCESS_POINT = v2.Endpoints(
    scheme=v2.AddressScheme.DOMAIN_NAME, addresses=[v2.Address(host="balancer", port=80)]
)


@dataclass
class Node:
    """A nameserver, as a gateway sees it; each route holds until the next question."""

    routes: list[TopicRoute] = field(default_factory=list)
    broker_name = ""
    is_proxy = False
    host = "10.8.8.8"
    address = "10.8.8.8:9876"
    body_max = 4 << 20

    def connect_inside(self, peer_address: str, client: InnerClient) -> InnerEndpoint:
        raise AssertionError("it has no messages")

    def masters(self) -> list[str]:
        return []

    def offers(self, grpc_address: str) -> None: ...

    async def find_route(self, topic: str, timeout_s: float) -> TopicRoute:
        return self.routes.pop(0) if len(self.routes) > 1 else self.routes[0]


class Broker:
    """A node with a gateway at `gateway`, or with none; `refusal` is its answer to a send."""

    def __init__(self, gateway: str = "", refusal: str = "") -> None:
        self.sends = 0
        self._gateway, self._refusal = gateway, refusal
        self._listener: Any = None

    async def start(self, world: World) -> str:
        machine = world.node(f"broker-{len(world.nodes)}")
        accept = lambda: Endpoint(machine, self._asked)  # noqa: E731
        self._listener = await machine.listen(machine.ip, 10911, accept)
        return f"{machine.ip}:10911"

    def _asked(self, endpoint: Endpoint, request: Command) -> None:
        reply = request.reply(ResponseCode.SYSTEM_ERROR)
        if request.code == RequestCode.REPLICA_STATE and self._gateway:
            reply = request.reply(0, body=fastjson.dumps({"grpcAddress": self._gateway}))
        elif request.code == RequestCode.SEND_MESSAGE_V2:
            self.sends += 1
            code = ResponseCode.SYSTEM_BUSY if self._refusal else ResponseCode.SUCCESS
            reply = request.reply(code, self._refusal or None)
        endpoint.send(reply)


def route(**addresses: str) -> TopicRoute:
    """The nodes of broker `b`: its master is `m`."""
    by_id = dict(enumerate(addresses.values(), "m" not in addresses))
    return TopicRoute([QueueData("b", 1, 1, 6)], [BrokerData("c", "b", by_id)])


def gateway(world: World, *routes: TopicRoute) -> tuple[Addresses, Asking]:
    machine, node = world.node("gateway"), Node(list(routes))
    peers = Peers(machine, lambda _, __: None, lambda _: None)
    asking = Asking(node, peers, Directory(machine, node, peers))
    return Addresses(machine, node, peers, OWN), asking


async def told(
    addresses: Addresses,
    language: str,
    found: TopicRoute,
    *,
    is_secure: bool = False,
    is_pushed: bool = False,
) -> list[str]:
    facts = TopicFacts(found, [1])
    endpoints_of = await addresses.of(
        language, v2.Endpoints(), facts, is_secure=is_secure, is_pushed=is_pushed
    )
    endpoints = endpoints_of("b")
    return [f"{each.host}:{each.port}" for each in endpoints.addresses]


def test_clients_that_take_several_addresses_are_told_all_nodes_and_others_the_master() -> None:
    async def body(world: World) -> None:
        gateways = ("10.1.1.1:9000", "10.1.1.1:10000", "10.1.1.0:10001")
        m, s, t = [await Broker(each).start(world) for each in gateways]
        addresses, _ = gateway(world)
        wanted = ["10.1.1.0:10001", "10.1.1.1:9000", "10.1.1.1:10000"]
        assert await told(addresses, "GO", route(m=m, s=s, t=t)) == wanted
        assert await told(addresses, "GO", route(m=t, s=m, t=s)) == wanted
        found = route(m=m, s=s, t=t)
        assert await told(addresses, "PYTHON", found) == wanted
        # With TLS it looks for the whole list in the certificate.
        assert await told(addresses, "PYTHON", found, is_secure=True) == [gateways[0]]
        for language in ("GO", "JAVA"):
            assert await told(addresses, language, found, is_secure=True) == wanted
        assert await told(addresses, "GO", found, is_pushed=True) == wanted
        # A renewed message has to end where it was received.
        assert await told(addresses, "JAVA", found, is_pushed=True) == [gateways[0]]
        for language in ("HTTP", "RUST", "CPP", "DOTNET", "OTHER"):
            assert await told(addresses, language, found) == [gateways[0]]

    run(body)


def test_a_node_that_left_the_route_stays_named_for_a_while() -> None:
    async def body(world: World) -> None:
        m, s = [await Broker(f"10.1.1.1:{n}").start(world) for n in (1, 2)]
        addresses, _ = gateway(world)
        both = ["10.1.1.1:1", "10.1.1.1:2"]
        assert await told(addresses, "GO", route(m=m, s=s)) == both
        assert await told(addresses, "GO", route(m=s)) == both
        await asyncio.sleep(KEPT_S - FRESH_S)
        assert await told(addresses, "GO", route(m=s)) == both
        await asyncio.sleep(2 * FRESH_S)
        assert await told(addresses, "GO", route(m=s)) == both[1:]

    run(body)


def test_a_broker_without_gateways_is_reached_through_the_node_that_told_the_route() -> None:
    async def body(world: World) -> None:
        m, s = [await Broker().start(world), await Broker("10.1.1.1:2").start(world)]
        addresses, _ = gateway(world)
        assert await told(addresses, "GO", route(m=m)) == [OWN]
        assert await told(addresses, "HTTP", route(m=m, s=s)) == [OWN]
        assert await told(addresses, "GO", route(m=m, s=s)) == ["10.1.1.1:2"]

    run(body)


@pytest.mark.parametrize("host", ["broker-a", "[::1]"])
def test_gos_client_is_told_the_master_alone_where_it_takes_no_several(host: str) -> None:
    async def body(world: World) -> None:
        m, s = [await Broker(f"{host}:{n}").start(world) for n in (1, 2)]
        addresses, _ = gateway(world)
        assert await told(addresses, "GO", route(m=m, s=s)) == [f"{host.strip('[]')}:1"]

    run(body)


def is_held(queue: Any) -> bool:
    return bool(queue.broker.endpoints == ACCESS_POINT)


def test_clients_that_keep_their_first_route_stay_at_a_nameserver_as_they_call_it() -> None:
    async def body(world: World) -> None:
        _, caller = await at_nameserver(world)
        for language, held in (("HTTP", [0]), ("RUST", [0, 1, 2, 3]), ("JAVA", []), ("GO", [])):
            other = Caller(world, caller.gateway, language, language)
            answer = await other.ask("QueryRoute", topic=T, endpoints=ACCESS_POINT)
            assert [queue.id for queue in answer.message_queues if is_held(queue)] == held
            places = {
                f"{queue.broker.endpoints.addresses[0].host}:8081"
                for queue in answer.message_queues
                if not is_held(queue)
            }
            assert places <= {ADDRESS}
            group = v2.Resource(name="G")
            answer = await other.ask(
                "QueryAssignment", topic=T, group=group, endpoints=ACCESS_POINT
            )
            assert not is_held(answer.assignments[0].message_queue)

    run(body)


def test_all_clients_of_a_proxy_stay_at_it() -> None:
    async def body(world: World) -> None:
        _, caller = await at_nameserver(world, is_proxy=True)
        group = v2.Resource(name="G")
        for language in ("JAVA", "GO", "HTTP", "RUST", "CPP"):
            other = Caller(world, caller.gateway, language, language)
            answer = await other.ask("QueryRoute", topic=T, endpoints=ACCESS_POINT)
            assert all(map(is_held, answer.message_queues))
            answer = await other.ask(
                "QueryAssignment", topic=T, group=group, endpoints=ACCESS_POINT
            )
            assert all(is_held(each.message_queue) for each in answer.assignments)
        answer = await caller.ask("QueryRoute", topic=T)  # it does not say how it came here
        assert answer.message_queues[0].broker.endpoints.addresses[0].host == ADDRESS.split(":")[0]

    run(body)


def test_an_access_point_that_is_a_broker_or_has_several_addresses_holds_nobody() -> None:
    async def body(world: World) -> None:
        broker, caller = await at_nameserver(world)
        several = v2.Endpoints(scheme=v2.AddressScheme.IPv4)
        several.addresses.add(host="10.1.1.1", port=1)
        several.addresses.add(host="10.1.1.2", port=1)
        node = Caller(world, caller.gateway, "node", "HTTP")
        for endpoints in (several, v2.Endpoints()):
            answer = await node.ask("QueryRoute", topic=T, endpoints=endpoints)
            assert answer.status.code == Code.OK
            assert all(len(each.broker.endpoints.addresses) == 1 for each in answer.message_queues)
        here = Caller(world, Gateway(broker._runtime, broker, ADDRESS), "node", "HTTP")
        answer = await here.ask("QueryRoute", topic=T, endpoints=ACCESS_POINT)
        assert not any(map(is_held, answer.message_queues))

    run(body)


def test_a_call_reaches_the_new_master_although_the_last_one_refuses_or_is_gone() -> None:
    async def body(world: World) -> None:
        deposed, new = Broker(refusal="[REJECTREQUEST]this node is a slave"), Broker()
        old, address = await deposed.start(world), await new.start(world)
        for last in (old, "10.250.0.1:10911"):
            _, asking = gateway(world, route(m=last), route(m=address))
            request = Command.request(RequestCode.SEND_MESSAGE_V2, {})
            reply = await asking.at(None, "T", "b", request, 3.0)
            assert reply.code == ResponseCode.SUCCESS
        assert (deposed.sends, new.sends) == (1, 2)

    run(body)


def test_a_call_that_no_master_takes_ends_with_the_reason() -> None:
    async def body(world: World) -> None:
        refusing = await Broker(refusal="[REJECTREQUEST]this node is a slave").start(world)
        request = Command.request(RequestCode.SEND_MESSAGE_V2, {})
        _, asking = gateway(world, route(m=refusing))
        reply = await asking.at(None, "T", "b", request, 3.0)
        assert reply.code == ResponseCode.SYSTEM_BUSY
        for found, error in (
            (route(m="10.250.0.1:1"), ConnectFailed),
            (route(s="s:1"), SystemBusy),
        ):
            _, asking = gateway(world, found)
            with pytest.raises(error):
                await asking.at(None, "T", "b", request, 3.0)

    run(body)
