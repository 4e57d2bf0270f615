"""The connections of a gateway to other nodes, while a network loses packets and closes nothing."""

from __future__ import annotations

import asyncio

from gateway_rig import Code, at_nameserver
from saturnmq.gateway.peers import CONNECT_S, Peers
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConnectFailed, RequestTimeout
from world_rig import World, run


async def peers_of(world: World) -> tuple[Peers, str, list[Endpoint]]:
    """The peers of a gateway, and a node that answers requests with a body, with its connections
    that are open."""
    machine, gateway = world.node("far"), world.node("gateway")
    opened: list[Endpoint] = []

    def asked(endpoint: Endpoint, request: Command) -> None:
        if request.body:
            endpoint.send(request.reply(0))

    def accept() -> Endpoint:
        return Endpoint(machine, asked, opened.remove, on_open=opened.append)

    await machine.listen(machine.ip, 9000, accept)
    return Peers(gateway, lambda _, __: None, lambda _: None), f"{machine.ip}:9000", opened


def request(*, answered: bool) -> Command:
    return Command.request(RequestCode.SEND_MESSAGE_V2, {}, b"x" if answered else b"")


async def outcome(peers: Peers, address: str, seconds: float, *, answered: bool = False) -> str:
    try:
        await peers.ask(address, request(answered=answered), seconds)
    except (ConnectFailed, RequestTimeout) as error:
        return type(error).__name__
    return "answered"


def test_a_call_behind_one_that_timed_out_on_a_dead_connection_is_answered() -> None:
    """A middlebox has forgotten the connection: it drops its packets, and takes a new one's."""

    async def body(world: World) -> None:
        broker, caller = await at_nameserver(world)
        nameserver, machine = (node.name for node in world.nodes[:2])
        port = int(broker.address.rpartition(":")[2])
        for end in world.network.connections(machine, nameserver):
            if end.get_extra_info("sockname")[1] == port:
                end.vanish()
        codes = [(await caller.send(caller.message(b"x"))).status.code for _ in range(2)]
        assert codes == [Code.PROXY_TIMEOUT, Code.OK]

    run(body)


def test_what_waits_on_a_connection_that_was_left_is_still_answered() -> None:
    """One request takes the node too long, and another one is waited for longer."""

    async def body(world: World) -> None:
        peers, address, opened = await peers_of(world)
        slow = asyncio.ensure_future(peers.ask(address, request(answered=False), 30))
        assert await outcome(peers, address, 2) == "RequestTimeout"
        assert await outcome(peers, address, 2, answered=True) == "answered"
        assert len(opened) == 2
        slow.cancel()
        await world.until(lambda: len(opened) == 1)
        assert await outcome(peers, address, 2, answered=True) == "answered"
        assert len(opened) == 1

    run(body)


def test_calls_with_hardly_any_time_do_not_end_a_connection() -> None:
    async def body(world: World) -> None:
        peers, address, opened = await peers_of(world)
        for _ in range(3):
            assert await outcome(peers, address, 0.5) == "RequestTimeout"
        (first,) = opened
        assert await outcome(peers, address, 2, answered=True) == "answered"
        assert opened == [first]

    run(body)


def test_all_who_wait_for_a_connection_to_a_lost_node_wait_for_one_try() -> None:
    async def body(world: World) -> None:
        peers, address, _ = await peers_of(world)
        world.network.partition(["gateway"], ["far"])
        begun = world.loop.time()
        asks = (outcome(peers, address, 2, answered=True) for _ in range(20))
        assert set(await asyncio.gather(*asks)) == {"ConnectFailed"}
        assert world.loop.time() - begun < CONNECT_S + 1
        world.network.heal()
        assert await outcome(peers, address, 2, answered=True) == "answered"

    run(body)
