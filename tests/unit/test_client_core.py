"""The connections, nameservers, heartbeats and end that all clients share, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from core_world import World
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.producer.producer import Producer
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    MalformedFrame,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
)

BEAT, LEAVE = int(RequestCode.HEART_BEAT), int(RequestCode.UNREGISTER_CLIENT)
ASK = 7  # any request


Run = Callable[..., World]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a test in a world with these servers open."""
    worlds: list[World] = []

    def go(test: Callable[[World], Awaitable[None]], *servers: int) -> World:
        world = World()
        worlds.append(world)

        async def main() -> None:
            for number in servers or (1, 2, 3):
                await world.servers[number].open()
            async with asyncio.timeout(1000):
                await test(world)

        world.loop.run_until_complete(main())
        return world

    yield go
    for world in worlds:
        assert (world.loop.failures, world.runtime.deaths) == ([], [])
        world.loop.close()


class Group:
    """A consumer, as far as ClientCore knows it."""

    def __init__(self) -> None:
        self.changed: list[str] = []

    def heartbeat_data(self) -> dict[str, Any]:
        return {"groupName": "G"}

    def on_ids_changed(self) -> None: ...

    def running_info(self) -> dict[str, Any]:
        return {}

    def on_route_changed(self, topic: str) -> None:
        self.changed.append(topic)


# -- life ------------------------------------------------------------------------------------------


def test_a_start_that_was_cancelled_begins_anew_with_the_next_call(run: Run) -> None:
    async def test(world: World) -> None:
        core = world.core()
        core.register_producer("P")
        world.route(a={0: 2})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await core.start()
        await core.start()
        assert core.client_id.startswith("10.0.0.99@")
        await core.route("T")
        await asyncio.sleep(60)
        assert world.servers[2].when(RequestCode.HEART_BEAT)
        await core.close()

    run(test)


@pytest.mark.parametrize("alive", [(1,), (2,), (3,), (1, 2, 3)], ids=str)
def test_a_client_is_named_by_the_address_from_which_it_reaches_a_nameserver(
    run: Run, alive: tuple[int, ...]
) -> None:
    async def test(world: World) -> None:
        core, named = world.core(1, 2, 3), world.core(1, client_id="mine")
        assert core.client_id.startswith("127.0.0.1@")
        for _ in range(2):
            await core.start()
        assert core.local_ip == "10.0.0.99"
        assert core.client_id.startswith(f"10.0.0.99@{core.pid}#")
        assert 0 <= core.pid < 1 << 16
        address = world.runtime.dialled[-1]
        assert address in [world.servers[number].address for number in alive]
        assert len(set(world.runtime.dialled)) == len(world.runtime.dialled)
        assert len(world.runtime.dialled) <= 4 - len(alive)
        assert await core.ask_nameserver(Command.request(ASK), lambda told: told.remark) == address
        await named.start()
        assert named.client_id == "mine"
        assert core.client_id != world.core(1).client_id
        await core.close()
        await named.close()

    run(test, *alive)


def test_a_client_starts_without_a_nameserver(run: Run) -> None:
    async def test(world: World) -> None:
        core = world.core(1, 2, 3)
        await core.start()
        order = [world.servers[number].address for number in (1, 2, 3)]
        first = order.index(world.runtime.dialled[0])
        assert world.runtime.dialled == order[first:] + order[:first]
        assert core.client_id.startswith("127.0.0.1@")
        await core.close()

    run(test, 4)


def test_a_client_that_is_closed_leaves_its_groups_and_takes_no_more_requests(run: Run) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2, 1: 3})
        core = world.core()
        await core.start()
        await core.unregister_producer("P")
        await core.unregister_consumer("G")
        core.register_producer("P")
        core.register_consumer("G", Group())
        await core.route("T")
        await world.runtime.sleep(2.0)
        world.servers[3].shut()
        world.servers[2].does = lambda endpoint, command: None
        began = world.now
        await core.close()
        assert round(world.now - began) == 2, "a second for each that is told and silent"
        told = [command.ext for _, command in world.servers[2].asked if command.code == LEAVE]
        name = {"clientID": core.client_id}
        assert told == [{**name, "consumerGroup": "G"}, {**name, "producerGroup": "P"}]
        assert world.servers[1].when(LEAVE) == []
        await world.runtime.sleep(0.1)
        assert [world.servers[number].connected() for number in (1, 2, 3)] == [0, 0, 0]
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not any(name.startswith("client/") for name in names), names
        await core.close()
        dialled = len(world.runtime.dialled)
        with pytest.raises(ClientClosed, match="the client is closed"):
            await core.connect(world.servers[2].address)
        await world.runtime.sleep(100.0)
        assert len(world.runtime.dialled) == dialled
        assert len(world.servers[2].when(LEAVE)) == 2

    run(test)


def made(kind: type[Any], world: World, **options: Any) -> Any:
    if "core" not in options:
        options["nameservers"] = world.servers[1].address
        options["runtime"] = world.runtime
    if kind is PushConsumer:
        options["listener_one"] = lambda message: None
    client = kind(group="G", **options)
    if kind is not Producer:
        client.subscribe("T")
    return client


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer])
def test_a_core_is_started_and_closed_by_the_client_that_made_it(run: Run, kind: type[Any]) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2})
        nameserver = world.servers[1]
        own = made(kind, world)
        async with own:
            await world.runtime.sleep(2.0)
            assert nameserver.connected() == 1
            await own.start()
        await world.runtime.sleep(0.1)
        assert (nameserver.connected(), own.core.closed) == (0, True)
        core = world.core()
        sharing = made(kind, world, core=core)
        async with sharing:
            assert core.client_id.startswith("127.0.0.1@"), "nobody has started it"
            assert sharing.core is core
        assert not core.closed
        await core.close()

    run(test)


# -- connections -----------------------------------------------------------------------------------


def test_who_wants_a_connection_at_once_shares_one(run: Run) -> None:
    async def test(world: World) -> None:
        core, address = world.core(), world.servers[2].address
        lines = await asyncio.gather(*(core.connect(address) for _ in range(3)))
        assert lines == [core.connected(address)] * 3
        assert await core.connect(address) is lines[0]
        core.drop(address)
        core.drop(address)
        assert core.connected(address) is None
        assert await core.connect(address) is not lines[0]
        assert world.runtime.dialled == [address] * 2
        lost = await asyncio.gather(
            *(core.connect("10.0.0.5:9876") for _ in range(2)), return_exceptions=True
        )
        assert [type(error) for error in lost] == [ConnectFailed] * 2
        assert world.runtime.dialled[2:] == ["10.0.0.5:9876"]
        with pytest.raises(ConnectFailed, match=r"no connection to nonsense: ValueError"):
            await core.connect("nonsense")
        await core.close()

    run(test)


@pytest.mark.parametrize(("options", "seconds"), [({"connect_timeout": 0.5}, 0.5), ({}, 3.0)])
def test_who_cannot_be_reached_is_waited_for_so_long(
    run: Run, options: dict[str, float], seconds: float
) -> None:
    async def test(world: World) -> None:
        world.network.partition(["client"], ["s2"])
        core = world.core(**options)
        began = world.now
        with pytest.raises(ConnectFailed, match=r"no connection to 10\.0\.0\.2:9876"):
            await core.connect(world.servers[2].address)
        assert world.now - began == pytest.approx(seconds, abs=0.011)
        await core.close()

    run(test)


def test_a_connection_that_comes_when_the_client_is_closed_is_closed(run: Run) -> None:
    async def test(world: World) -> None:
        core = world.core()
        waiting = asyncio.ensure_future(core.connect(world.servers[2].address))
        await world.runtime.sleep(0.001)
        await core.close()
        with pytest.raises(ClientClosed):
            await waiting
        await world.runtime.sleep(0.1)
        assert world.servers[2].connected() == 0

    run(test)


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "seconds"), [({"request_timeout": 0.5}, 0.5), ({}, 3.0)])
def test_a_request_takes_so_long_at_most_and_a_code_that_is_not_wanted_is_an_error(
    run: Run, options: dict[str, float], seconds: float
) -> None:
    async def test(world: World) -> None:
        core, server = world.core(**options), world.servers[2]
        assert (await core.invoke(server.address, Command.request(ASK))).remark == server.address
        server.does = lambda endpoint, command: endpoint.send(command.reply(17, "no"), command)
        with pytest.raises(TopicNotExist):
            await core.invoke(server.address, Command.request(ASK))
        assert (await core.invoke(server.address, Command.request(ASK), ok=(0, 17))).code == 17
        server.does = lambda endpoint, command: None
        for given, lasts in ((None, seconds), (0.25, 0.25), (0.0, 0.0)):
            began = world.now
            with pytest.raises(RequestTimeout):
                await core.invoke(server.address, Command.request(ASK), given)
            assert world.now - began == pytest.approx(lasts, abs=0.011)
        assert server.connected() == 1
        await core.close()

    run(test)


def test_a_request_without_an_answer_opens_its_connection_or_is_lost(run: Run) -> None:
    async def test(world: World) -> None:
        core, server = world.core(), world.servers[2]
        for _ in range(2):
            core.oneway(server.address, Command.request(ASK))
            await world.runtime.sleep(0.1)
        core.oneway("10.0.0.5:9876", Command.request(ASK))
        await world.runtime.sleep(0.1)
        assert world.runtime.dialled == [server.address, "10.0.0.5:9876"]
        assert [command.is_oneway for _, command in server.asked] == [True, True]
        await core.close()

    run(test)


@pytest.mark.parametrize("trouble", ["away", "lost", "silent", "nonsense"])
def test_a_nameserver_in_trouble_is_left_for_the_next_one(
    run: Run, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        core = world.core(1, 2, 3)

        def read(told: Command) -> str:
            if trouble == "nonsense" and told.remark == first:
                raise MalformedFrame("nonsense")
            return str(told.remark)

        async def ask() -> str:
            request = Command.request(ASK, {"x": "y"}, b"body")
            return await core.ask_nameserver(request, read, 0.5)

        first = ""
        first = await ask()
        bad = next(each for each in world.servers.values() if each.address == first)
        if trouble == "away":
            bad.shut()
        elif trouble == "lost":
            bad.does = lambda endpoint, _: endpoint.abort()
        elif trouble == "silent":
            bad.does = lambda endpoint, _: None
        began = world.now
        second = await ask()
        assert world.now - began == pytest.approx(0.5 if trouble == "silent" else 0.0, abs=0.02)
        order = [world.servers[number].address for number in (1, 2, 3)]
        assert second == order[(order.index(first) + 1) % 3]
        assert [await ask() for _ in range(3)] == [second] * 3, "it stays there"
        assert (core.connected(first) is None) == (trouble != "nonsense")
        good = next(each for each in world.servers.values() if each.address == second)
        assert {(c.ext["x"], c.body) for _, c in good.asked} == {("y", b"body")}
        warned = f"nameserver {first} answers nonsense" in caplog.text
        assert warned == (trouble == "nonsense")
        await core.close()

    run(test)


def test_when_no_nameserver_answers_the_last_reason_is_told(run: Run) -> None:
    async def test(world: World) -> None:
        core = world.core(1, 2)
        with pytest.raises(ConnectFailed):
            await core.ask_nameserver(Command.request(ASK), lambda told: told)
        assert sorted(world.runtime.dialled) == ["10.0.0.1:9876", "10.0.0.2:9876"]
        await world.servers[1].open()
        await world.servers[2].open()
        for number in (1, 2):
            world.servers[number].does = lambda endpoint, command: endpoint.send(
                command.reply(17, "no such thing"), command
            )
        with pytest.raises(TopicNotExist):
            await core.ask_nameserver(Command.request(ASK), lambda told: told)
        assert len(world.servers[1].asked) + len(world.servers[2].asked) == 1
        await core.close()

    run(test, 3)


# -- routes ----------------------------------------------------------------------------------------


def test_routes_are_asked_for_again_and_again_and_when_a_nameserver_says_so(run: Run) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2})
        core = world.core()
        heard: list[str] = []
        core.on_route_change(heard.append)
        await core.start()
        await core.route("T")
        ask = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await world.runtime.sleep(95.0)
        times = world.servers[1].when(ask)
        assert [round(at) for at in times] == [0, 30, 60, 90]
        await core.connect(world.servers[2].address)
        changed = Command.request(RequestCode.ROUTE_CHANGED, {}, fastjson.dumps(["T"]))
        world.servers[2].lines[0].oneway(changed)
        await world.runtime.sleep(0.5)
        assert len(world.servers[1].when(ask)) == 4, "no nameserver said so"
        assert (heard, core.publish_queues("T")) == (["T"], core.subscribe_queues("T"))
        world.route(a={0: 3})
        world.servers[1].lines[0].oneway(changed)
        await world.runtime.sleep(0.5)
        assert (heard, core.broker_address("a")) == (["T", "T"], world.servers[3].address)
        await world.runtime.sleep(1.0)
        core.refresh_soon("T")
        core.refresh_soon("T")
        await world.runtime.sleep(0.5)
        asked = len(world.servers[1].when(ask))
        assert asked == 6
        for options, more in (({}, 0), ({"refresh": True}, 1)):
            await world.runtime.sleep(0.1)
            await core.route("T", **options)
            asked += more
            assert len(world.servers[1].when(ask)) == asked
        await core.close()

    run(test)


def test_when_the_nameserver_is_lost_another_is_asked_for_all_routes(run: Run) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 3})
        core = world.core(1, 2)
        await core.start()
        await core.route("T")
        await core.connect(world.servers[3].address)
        used, other = world.servers[1], world.servers[2]
        if not used.asked:
            used, other = other, used
        world.servers[3].lines[0].abort()
        await world.runtime.sleep(0.5)
        assert len(used.asked) == 1, "a lost broker is no reason"
        used.shut()
        await world.runtime.sleep(0.5)
        assert len(other.asked) == 1
        await core.close()

    run(test)


@pytest.mark.parametrize("connected", [True, False])
def test_a_broker_that_a_route_lacks_stays_for_a_while_if_it_is_connected(
    run: Run, connected: bool
) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2}, b={0: 3})
        core = world.core()
        await core.route("T")
        if connected:
            await core.connect(world.servers[3].address)
        world.route(a={0: 2})
        await core.route("T", refresh=True)
        assert len(core.publish_queues("T")) == 1 + connected
        await world.runtime.sleep(4.0)
        assert len(core.publish_queues("T")) == 1
        await core.close()

    run(test)


@pytest.mark.parametrize("queues", [4, 2])
def test_a_topic_that_is_to_be_created_has_so_many_queues_of_the_template(
    run: Run, queues: int
) -> None:
    async def test(world: World) -> None:
        world.route("TBW102", a={0: 2})
        (template,) = world.topics["TBW102"].queues
        template.write_queues, template.perm = 8, 7
        core = world.core() if queues == 4 else world.core(default_topic_queues=queues)
        with pytest.raises(TopicNotExist):
            await core.route("new")
        await core.route("new", create=True)
        assert len(core.publish_queues("new")) == queues
        await core.close()

    run(test)


@pytest.mark.parametrize("seed", range(4))
def test_a_nameserver_without_brokers_is_left_for_one_that_knows_some(run: Run, seed: int) -> None:
    def knows_nothing(endpoint: Any, command: Command) -> None:
        is_route = command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        endpoint.send(
            command.reply(17 if is_route else 0, body=b"" if is_route else b"{}"), command
        )

    async def test(world: World) -> None:
        world.runtime.random.seed(seed)  # which one is asked first
        world.servers[1].does = knows_nothing
        world.route("T", a={0: 3})
        core = world.core(1, 2)
        await core.route("T")
        assert core.nameserver_in_use == world.servers[2].address
        with pytest.raises(TopicNotExist):
            await core.route("another")
        world.servers[2].does = knows_nothing
        with pytest.raises(RouteNotFound, match="'another': no nameserver knows a broker yet"):
            await core.route("another")
        await core.close()

    run(test)


def test_a_broker_is_its_master_unless_a_replica_will_do(run: Run) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2, 1: 3}, b={1: 4})
        core = world.core()
        await core.route("T")
        master, slave = world.servers[2].address, world.servers[3].address
        assert core.broker_address("a") == core.broker_address("a", master=False) == master
        assert core.broker_address("a", master=False, broker_id=1) == slave
        assert core.broker_address("b") is None
        assert core.broker_address("b", master=False) == world.servers[4].address
        await core.close()

    run(test)


@pytest.mark.parametrize("old", ["hangs", "spoke", "idle", "gone", "leads", "led"])
def test_nobody_waits_for_a_master_that_hangs_and_was_succeeded(run: Run, old: str) -> None:
    """But where the route goes on to name it, or names none, it may yet answer."""

    async def test(world: World) -> None:
        world.route(A={0: 4}, a={0: 2, 1: 3})
        core = world.core()
        await core.start()
        await core.route("T")
        server = world.servers[2]
        if old != "gone":
            await core.connect(server.address)
        server.does = lambda endpoint, command: None
        waiting = None
        if old not in ("idle", "gone"):
            waiting = asyncio.ensure_future(core.invoke(server.address, Command.request(ASK), 9.0))
        await world.runtime.sleep(0.5)
        if old != "leads":
            world.route(A={0: 4}, a={1: 3})  # nobody leads, then another one
            await core.route("T", refresh=True)
        if old != "led":
            world.route(A={0: 4}, a={0: 2} if old == "leads" else {0: 3})
            await core.route("T", refresh=True)
        began = world.now
        await world.runtime.sleep(0.5)
        if old == "spoke":
            server.lines[0].oneway(Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED))
        if old == "hangs":
            assert waiting is not None
            with pytest.raises(ConnectionLost, match="it hangs, and another broker is master now"):
                await waiting
            assert world.now - began == pytest.approx(1.0, abs=0.02)
        await world.runtime.sleep(2.0)
        assert server.connected() == (old in ("spoke", "idle", "leads", "led"))
        if waiting is not None and not waiting.done():
            waiting.cancel()
        await core.close()

    run(test)


# -- heartbeats ------------------------------------------------------------------------------------


def test_brokers_are_greeted_soon_and_every_half_minute(run: Run) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2, 1: 3})
        core = world.core()
        for _ in range(2):
            await core.start()
        await core.route("T")
        await world.runtime.sleep(35.0)
        master, slave = world.servers[2], world.servers[3]
        assert (master.asked, slave.asked) == ([], []), "there is no group"
        core.register_producer("P")
        await world.runtime.sleep(60.0)
        assert [round(at) for at, _ in master.asked] == [61, 91]
        assert slave.asked == []
        core.register_consumer("G", Group())
        await world.runtime.sleep(30.0)
        assert [round(at) for at in slave.when(BEAT)] == [121]
        assert fastjson.loads(master.asked[-1][1].body) == {
            "clientID": core.client_id,
            "producerDataSet": [{"groupName": "P"}, {"groupName": "CLIENT_INNER_PRODUCER"}],
            "consumerDataSet": [{"groupName": "G"}],
            "heartbeatFingerprint": 0,
            "withoutSub": False,
        }
        await core.close()

    run(test)


@pytest.mark.parametrize(("interval", "times"), [(10.0, [1, 11]), (0.5, [0.5, 1.0, 1.5])])
def test_the_first_heartbeat_comes_within_a_second(
    run: Run, interval: float, times: list[float]
) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2})
        core = world.core(heartbeat_interval=interval)
        await core.route("T")
        await core.start()
        core.register_producer("P")
        await world.runtime.sleep(times[-1] + 0.2)
        assert world.servers[2].when(BEAT) == pytest.approx(times, abs=0.05)
        await core.close()

    run(test)


def test_a_broker_that_is_new_in_a_route_is_greeted_at_once_and_once(run: Run) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2})
        world.route("U", a={0: 2}, b={0: 3})
        core = world.core(heartbeat_interval=1000.0)
        group = Group()
        core.register_consumer("G", group)
        await core.start()
        for number in (2, 3):
            await core.connect(world.servers[number].address)
        await asyncio.gather(core.route("T"), core.route("U"))
        await world.runtime.sleep(0.1)
        assert [len(world.servers[number].asked) for number in (2, 3)] == [1, 1]
        assert sorted(group.changed) == ["T", "U"]
        beats = len(world.servers[2].when(BEAT))
        world.route("U", a={0: 2})
        await core.route("U", refresh=True)
        await world.runtime.sleep(0.1)
        world.route("U", a={0: 2}, b={0: 3})
        await core.route("U", refresh=True)
        world.topics["T"].queues[0].write_queues = 2
        await core.route("T", refresh=True)
        assert len(core.publish_queues("T")) == 2
        await world.runtime.sleep(0.1)
        assert len(world.servers[2].when(BEAT)) == beats, "nobody is new"
        world.route("T", a={0: 2}, c={0: 1})
        await core.route("T", refresh=True)
        await world.runtime.sleep(0.1)
        assert len(world.servers[1].when(BEAT)) == 1
        await core.close()

    run(test)


@pytest.mark.parametrize(("groups", "away", "tries"), [(0, 0.5, 0), (1, 0.5, 1), (1, 5.5, 6)])
def test_a_broker_that_restarts_hears_of_the_client_as_soon_as_it_can(
    run: Run, groups: int, away: float, tries: int
) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2})
        core, server = world.core(heartbeat_interval=1000.0), world.servers[2]
        await core.start()
        await core.route("T")
        if groups:
            core.register_producer("P")
        await core.connect(server.address)
        await world.runtime.sleep(1.5)
        assert len(server.when(BEAT)) == groups, "the first one"
        server.shut()
        await world.runtime.sleep(away)
        await server.open()
        lost = world.now - away
        await world.runtime.sleep(2.0)
        beats = [at - lost for at in server.when(BEAT) if at > lost]
        assert beats == (pytest.approx([tries], abs=0.02) if groups else [])
        assert world.runtime.dialled.count(server.address) == 1 + tries
        for line in server.lines:
            line.abort()
        await world.runtime.sleep(0.5)
        await core.connect(server.address)  # somebody wants it earlier
        await world.runtime.sleep(2.0)
        assert world.runtime.dialled.count(server.address) == 2 + tries
        assert len(server.when(BEAT)) == 3 * groups
        await core.close()

    run(test)


@pytest.mark.parametrize("why", ["closed", "left", "connecting"])
def test_nobody_looks_for_a_lost_broker_without_need(run: Run, why: str) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2}, b={0: 3})
        core, server = world.core(heartbeat_interval=1000.0), world.servers[2]
        core.register_producer("P")
        await core.start()
        await core.route("T")
        await world.runtime.sleep(2.0)
        server.shut()
        await world.runtime.sleep(0.5)
        attempt = None
        if why == "closed":
            await core.close()
        elif why == "left":
            world.route(b={0: 3})
            await core.route("T", refresh=True)
            await core.heartbeat_now()
        else:
            await server.open()
            world.network.partition(["client"], ["s2"])
            attempt = asyncio.ensure_future(core.connect(server.address))
        await world.runtime.sleep(2.0)
        assert world.runtime.dialled.count(server.address) == 1 + (why == "connecting")
        if attempt is not None:
            with pytest.raises(ConnectFailed):
                await attempt
        await core.close()

    run(test)


def test_a_broker_that_is_silent_at_a_heartbeat_gets_a_new_connection(run: Run) -> None:
    async def test(world: World) -> None:
        world.route(a={0: 2})
        core, server = world.core(heartbeat_interval=10.0), world.servers[2]
        core.register_producer("P")
        await core.start()
        await core.route("T")
        await world.runtime.sleep(0.5)
        assert world.runtime.dialled.count(server.address) == 1
        server.does = lambda endpoint, command: endpoint.send(command.reply(1, "no"), command)
        await world.runtime.sleep(10.0)
        assert world.runtime.dialled.count(server.address) == 1, "an answer, if an error"
        server.does = lambda endpoint, command: None
        await world.runtime.sleep(15.0)
        assert world.runtime.dialled.count(server.address) >= 2
        server.shut()
        await core.heartbeat_now()
        await core.close()

    run(test)


def test_each_subscription_is_newer_than_all_before_whatever_the_clock_does(run: Run) -> None:
    async def test(world: World) -> None:
        core = world.core()
        now = world.runtime.now_ms()
        first = core.subscription_version()
        assert (first, core.subscription_version()) == (now, now + 1)
        world.runtime.jump_wall_clock(-5000)
        assert core.subscription_version() == now + 2
        world.runtime.jump_wall_clock(10_000)
        assert core.subscription_version() == now + 5000

    run(test)
