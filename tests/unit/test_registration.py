"""Brokers of two groups with one name, real registrations at real nameservers, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.context import Context
from saturnmq.broker.registration import Registrar
from saturnmq.broker.replication.role import Role, State
from saturnmq.broker.tables.topics import NEWS_MOST, Topic, TopicTable
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.nameserver.server import NameServer
from saturnmq.nameserver.settings import SCAN_INTERVAL_MS
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicConfig
from saturnmq.runtime.errors import SaturnError, TopicNotExist
from saturnmq.runtime.steps import Steps
from saturnmq.runtime.supervision import Supervisor
from saturnmq.store.derived.tombstones import Tombstone
from world_rig import World, run

OURS, THEIRS = "1" * 32, "2" * 32
NAME = "broker-0"
PACE_S, HOLD_S = 30, 120
TABLE = {name: TopicConfig(name, 4, 4, 6).to_json() for name in ("TBW102", "T")}


def die_of(error: SaturnError) -> NoReturn:
    """The task that failed is not to begin again: the test is to hear of it."""
    raise error


class Member:
    """The registration of a broker, and what it hears: the broker itself is not there."""

    def __init__(
        self,
        world: World,
        identity: str,
        nameservers: list[str],
        broker_id: int,
        epoch: int,
        pace_s: int = PACE_S,
    ) -> None:
        self.node = world.node(f"broker-{len(world.nodes)}")
        config = BrokerConfig(
            broker_name=NAME,
            broker_id=broker_id,
            host=self.node.ip,
            role="SLAVE" if broker_id else "ASYNC_MASTER",
            register_ms=pace_s * 1000,
            nameservers=tuple(nameservers),
        )
        self.role = Role(config)
        self.role.identity, self.role.log_epoch, self.role.promised_epoch = identity, epoch, epoch
        if not broker_id:
            self.role.lead(0)
        self.address = f"{self.node.ip}:10911"
        self.topics = TopicTable(lambda: 1, self._changed, lambda: 0)
        self.topics.load({"topicConfigTable": TABLE, "dataVersion": {"counter": 1}})
        context = SimpleNamespace(
            config=config,
            runtime=self.node,
            role=self.role,
            topics=self.topics,
            steps=Steps(self.node),
            address=self.address,
            store=SimpleNamespace(watermarks=SimpleNamespace(appended=1)),
        )
        self.masters: list[str] = []  # that it was told to follow
        self.epochs: list[int] = []  # that deposed it
        self.registration = Registrar(cast(Context, context), f"{self.node.ip}:10912")
        self.registration.on_master = self._hear
        self._tasks = self.registration.start(Supervisor(self.node, die_of))

    def _changed(self) -> None:
        self.registration.topics_changed()

    def _hear(self, epoch: int, master: str, _: str) -> None:
        if self.role.is_slave:
            self.masters.append(master)
        else:
            self.epochs.append(epoch)

    @property
    def foreign(self) -> dict[str, str]:
        return self.registration.foreign

    async def stop(self) -> None:
        await self.registration.unregister()
        for task in self._tasks:
            task.cancel()


async def until(world: World, check: Callable[[], object], seconds: float = 60) -> None:
    await world.until(check, seconds, every=0.1)


async def nameserver(world: World) -> NameServer:
    node = world.node(f"nameserver-{len(world.nodes)}")
    server = NameServer(node, node.ip, 9876)
    await server.start()
    return server


def ours(world: World, *nameservers: NameServer, broker_id: int = 0) -> Member:
    return Member(world, OURS, [ns.address for ns in nameservers], broker_id, 100_000)


def theirs(world: World, *nameservers: NameServer, broker_id: int = 0) -> Member:
    return Member(world, THEIRS, [ns.address for ns in nameservers], broker_id, 300_000)


def addresses(server: NameServer) -> dict[int, str]:
    try:
        brokers = server.routes.route("T").brokers
    except TopicNotExist:
        return {}
    return next((data.addresses for data in brokers if data.broker_name == NAME), {})


def told(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What brokers said of their nameservers."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "saturnmq.broker.registration" and record.levelno == level
    ]


def test_a_foreign_master_at_our_nameserver_changes_nothing_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        master, slave = ours(world, server), ours(world, server, broker_id=1)
        await until(world, lambda: slave.masters)
        foreign = theirs(world, server)
        their_slave = theirs(world, server, broker_id=1)
        await until(world, lambda: foreign.foreign and their_slave.foreign)
        await asyncio.sleep(300)
        assert addresses(server) == {0: master.address, 1: slave.address}
        assert master.epochs == slave.epochs == []
        assert set(slave.masters) == {master.address}
        assert (master.foreign, slave.foreign) == ({}, {})
        assert (foreign.epochs, foreign.masters, their_slave.masters) == ([], [], [])
        assert foreign.role.state is State.MASTER
        text = foreign.foreign[server.address]
        for part in (OURS, THEIRS, master.address, foreign.address, "brokerName"):
            assert part in text
        (said,) = told(caplog, logging.CRITICAL)
        assert text in said
        (said,) = told(caplog, logging.ERROR)
        assert their_slave.foreign[server.address] in said

    run(body)


def test_after_a_foreign_group_that_came_first_has_gone_ours_takes_its_place() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        foreign = theirs(world, server)
        await until(world, lambda: addresses(server))
        master, slave = ours(world, server), ours(world, server, broker_id=1)
        await until(world, lambda: master.foreign and slave.foreign)
        await asyncio.sleep(300)
        assert addresses(server) == {0: foreign.address}
        assert master.role.state is State.MASTER
        assert (master.epochs, slave.masters) == ([], [])
        await foreign.stop()
        await until(world, lambda: not addresses(server))
        await asyncio.sleep(HOLD_S - PACE_S - 1)
        assert master.foreign
        assert addresses(server) == {}
        await until(world, lambda: slave.masters, 2 * PACE_S + 10)
        assert addresses(server) == {0: master.address, 1: slave.address}
        assert set(slave.masters) == {master.address}
        assert (master.foreign, slave.foreign, master.epochs) == ({}, {}, [])
        returned = theirs(world, server)
        await until(world, lambda: returned.foreign)
        assert addresses(server) == {0: master.address, 1: slave.address}

    run(body)


def test_of_nameservers_that_disagree_the_one_that_knows_our_group_is_believed() -> None:
    async def body(world: World) -> None:
        wrong, right = await nameserver(world), await nameserver(world)
        foreign = theirs(world, wrong)
        await until(world, lambda: addresses(wrong))
        master = ours(world, wrong, right)
        slave = ours(world, wrong, right, broker_id=1)
        await until(world, lambda: slave.masters)
        await asyncio.sleep(300)
        assert addresses(wrong) == {0: foreign.address}
        assert addresses(right) == {0: master.address, 1: slave.address}
        assert set(slave.masters) == {master.address}
        assert master.epochs == []
        assert list(master.foreign) == list(slave.foreign) == [wrong.address]
        async with asyncio.timeout(5):
            await master.registration.ask_all(60)

    run(body)


def test_a_slave_that_has_learned_its_group_hears_no_more_of_the_other() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        theirs(world, server)
        await until(world, lambda: addresses(server))
        slave = Member(world, "", [server.address], 1, 0)
        await until(world, lambda: slave.masters)
        assert slave.address in addresses(server).values()
        heard = len(slave.masters)
        slave.role.identity = OURS
        slave.registration.look_for_master()
        await until(world, lambda: slave.foreign)
        await asyncio.sleep(10)
        assert len(slave.masters) == heard
        assert slave.address not in addresses(server).values()

    run(body)


def test_a_nameserver_that_stood_still_gives_nobodys_name_away() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        node, started = world.nodes[-1], world.loop.time()
        master = ours(world, server)
        silent = await registered(world, server, "", "broker-1")
        await until(world, lambda: master.registration.registered)
        foreign = theirs(world, server)
        hasty = theirs(world, server, broker_id=1)  # it asks every second
        await until(world, lambda: foreign.foreign and hasty.foreign)
        # What it hears first when it goes on came before the next scan.
        await asyncio.sleep(started + 4 * SCAN_INTERVAL_MS / 1000 + 1 - world.loop.time())
        node.pause()
        await asyncio.sleep(3 * HOLD_S)
        assert not master.registration.registered
        node.resume()
        await until(world, lambda: master.registration.registered and foreign.foreign)
        await asyncio.sleep(PACE_S + 1)
        assert not foreign.registration.registered
        assert addresses(server) == {0: master.address}
        shown = server.routes.cluster_info()["brokerAddrTable"]
        assert shown["broker-1"]["brokerAddrs"] == {"0": f"{silent.node.ip}:10911"}
        await asyncio.sleep(HOLD_S)
        assert "broker-1" not in server.routes.cluster_info()["brokerAddrTable"]

    run(body)


# -- what a nameserver answers ---------------------------------------------------------------------


class Scripted:
    """A nameserver that answers what the test says."""

    def __init__(self, node: SimRuntime, **answer: str) -> None:
        self.node = node
        self.answer = answer
        self.asked: list[Command] = []
        self.closed = 0
        self.address = f"{node.ip}:9876"

    async def start(self) -> Scripted:
        await self.node.listen(
            self.node.ip, 9876, lambda: Endpoint(self.node, self._serve, self._lost, server=True)
        )
        return self

    def _serve(self, endpoint: Endpoint, command: Command) -> None:
        self.asked.append(command)
        endpoint.send(command.reply(ext=self.answer))

    def _lost(self, endpoint: Endpoint) -> None:
        self.closed += 1


MASTER = {"masterAddr": "10.0.9.9:10911", "haServerAddr": "10.0.9.9:10912"}
HIGHER = {**MASTER, "saturnEpoch": "200000"}


@pytest.mark.parametrize(("identity", "counts"), [(THEIRS, False), (OURS, True), ("", True)])
@pytest.mark.parametrize("broker_id", [0, 1])
def test_news_of_another_group_deposes_and_leads_nobody(
    identity: str, counts: bool, broker_id: int
) -> None:
    async def body(world: World) -> None:
        answer = {**HIGHER, **({"saturnIdentity": identity} if identity else {})}
        server = await Scripted(world.node("nameserver"), **answer).start()
        member = Member(world, OURS, [server.address], broker_id, 100_000)
        await until(world, lambda: member.registration.registered)
        assert server.asked[0].ext["saturnIdentity"] == OURS
        heard = member.masters or member.epochs
        assert bool(heard) is counts

    run(body)


def test_a_broker_of_an_unknown_group_believes_as_ever() -> None:
    async def body(world: World) -> None:
        answer = {**HIGHER, "saturnIdentity": THEIRS}
        server = await Scripted(world.node("nameserver"), **answer).start()
        member = Member(world, "", [server.address], 0, 100_000)
        await until(world, lambda: member.epochs)
        assert server.asked[0].ext["saturnIdentity"] == ""

    run(body)


@pytest.mark.parametrize(
    "bad",
    [
        {"saturnEpoch": "9" * 400},
        {"saturnEpoch": str(1 << 31)},
        {"saturnEpoch": "-1"},
        {"saturnEpoch": "999999999"},
        {"saturnEpoch": "x"},
        {"saturnIdentity": "x"},
        {"masterAddr": "x"},
        {"haServerAddr": "10.0.9.9:99999"},
    ],
)
@pytest.mark.parametrize("broker_id", [0, 1])
def test_an_answer_that_cannot_be_is_told_and_changes_nothing(
    bad: dict[str, str], broker_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        server = await Scripted(world.node("nameserver"), **{**HIGHER, **bad}).start()
        member = Member(world, OURS, [server.address], broker_id, 100_000)
        await asyncio.sleep(3 * PACE_S + 1)
        assert len(server.asked) >= 4
        assert (member.masters, member.epochs, server.closed) == ([], [], 0)
        assert member.registration.registered == {server.address}
        (said,) = told(caplog, logging.WARNING)
        assert "counts for nothing" in said
        assert next(iter(bad)) in said
        server.answer = HIGHER
        await until(world, lambda: member.masters or member.epochs)

    run(body)


def test_a_nameserver_that_is_away_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        node = world.node("nameserver")
        member = Member(world, OURS, [f"{node.ip}:9876"], 0, 100_000)
        await asyncio.sleep(60)
        assert member.registration.registered == set()
        (said,) = told(caplog, logging.WARNING)
        assert f"nameserver {node.ip}:9876: " in said
        await Scripted(node).start()
        await until(world, lambda: member.registration.registered)

    run(body)


# -- by hand ---------------------------------------------------------------------------------------


class Connection:
    """To a nameserver, from a machine. It hears which routes changed."""

    def __init__(self, node: SimRuntime) -> None:
        self.node = node
        self.endpoint = Endpoint(node, self._hear)
        self.name = NAME
        self.changed: list[str] = []

    def _hear(self, endpoint: Endpoint, command: Command) -> None:
        if command.code == RequestCode.ROUTE_CHANGED:
            self.changed += fastjson.loads(command.body)

    async def ask(self, code: int, ext: dict[str, Any], data: bytes = b"") -> Command:
        return await self.endpoint.request(Command.request(code, ext, data), 5)

    def about(self, broker_id: int = 0) -> dict[str, str]:
        """A broker on this machine."""
        return {
            "clusterName": "DefaultCluster",
            "brokerName": self.name,
            "brokerId": str(broker_id),
            "brokerAddr": f"{self.node.ip}:10911",
        }

    async def register(self, identity: str, broker_id: int = 0, epoch: int = 0) -> Command:
        wrapper = {"dataVersion": {**VERSION, "stateVersion": epoch}, "topicConfigTable": TABLE}
        body = fastjson.dumps({"topicConfigSerializeWrapper": wrapper})
        ext = {**self.about(broker_id), **({"saturnIdentity": identity} if identity else {})}
        return await self.ask(RequestCode.REGISTER_BROKER, ext, body)


VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 5}


async def connection(
    world: World, server: NameServer, node: SimRuntime | None = None
) -> Connection:
    made = Connection(node or world.node(f"machine-{len(world.nodes)}"))
    host, _, port = server.address.rpartition(":")
    await made.node.connect(host, int(port), made.endpoint)
    return made


async def registered(
    world: World, server: NameServer, identity: str, name: str = NAME
) -> Connection:
    """The connection of a master that has registered, and falls silent."""
    link = await connection(world, server)
    link.name = name
    assert (await link.register(identity)).code == 0
    return link


def test_the_answer_says_of_which_group_master_and_epoch_are() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        master, slave = await connection(world, server), await connection(world, server)
        assert "saturnIdentity" not in (await slave.register("", 1)).ext
        answer = await master.register(OURS, epoch=100_000)
        assert answer.ext == {"saturnEpoch": "100000", "saturnIdentity": OURS}
        known = await slave.register("", 1)
        assert known.ext["masterAddr"] == f"{master.node.ip}:10911"
        assert known.ext["saturnIdentity"] == OURS
        refused = await (await connection(world, server)).register(THEIRS, epoch=300_000)
        assert (refused.code, refused.ext) == (390004, {})

    run(body)


def test_watchers_hear_of_a_refusal_only_if_it_changes_the_route() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        slave = await connection(world, server)
        await slave.register("", 1)
        await registered(world, server, OURS)
        watcher = await connection(world, server)
        await watcher.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", "saturnWatch": "true"})
        stranger = await connection(world, server)
        assert (await stranger.register(THEIRS, epoch=300_000)).code == 390004
        await asyncio.sleep(10)
        assert watcher.changed == []
        assert (await slave.register(THEIRS, 1)).code == 390004  # it knows its group by now
        await until(world, lambda: watcher.changed == ["T"])
        assert len(addresses(server)) == 1

    run(body)


@pytest.mark.parametrize("identity", ["", OURS])
def test_nobody_but_the_broker_says_that_it_goes(identity: str) -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        link = await registered(world, server, identity)
        shown = addresses(server)
        stranger = await connection(world, server)
        reply = await stranger.ask(RequestCode.UNREGISTER_BROKER, link.about())
        assert reply.code == 16
        assert stranger.node.ip in str(reply.remark)
        wrong_id = {**link.about(), "brokerId": "1"}
        assert (await link.ask(RequestCode.UNREGISTER_BROKER, wrong_id)).code == 16
        wrong_cluster = {**link.about(), "clusterName": "another"}
        assert (await stranger.ask(RequestCode.UNREGISTER_BROKER, wrong_cluster)).code == 0
        assert addresses(server) == shown
        assert (await link.ask(RequestCode.UNREGISTER_BROKER, link.about())).code == 0
        assert addresses(server) == {}

    run(body)


@pytest.mark.parametrize(("identity", "gone"), [("", True), (OURS, False)])
def test_rocketmqs_broker_may_say_it_over_another_connection(identity: str, gone: bool) -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        link = await registered(world, server, identity)
        other = await connection(world, server, link.node)
        reply = await other.ask(RequestCode.UNREGISTER_BROKER, link.about())
        assert (reply.code == 0) is gone
        assert (addresses(server) == {}) is gone

    run(body)


@pytest.mark.parametrize("code", [RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION])
@pytest.mark.parametrize("identity", ["", OURS])
@pytest.mark.parametrize("whose", ["its own", "a stranger's"])
def test_only_signs_of_life_of_the_broker_itself_keep_it_in_the_routes(
    code: int, identity: str, whose: str
) -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        link = await registered(world, server, identity)
        asker = link if whose == "its own" else await connection(world, server)
        for _ in range(6):
            await asyncio.sleep(PACE_S)
            reply = await asker.ask(code, link.about(), fastjson.dumps(VERSION))
            assert reply.code == 0
        if code == RequestCode.QUERY_DATA_VERSION:
            assert reply.ext == {"changed": "false" if asker is link else "true"}
        assert bool(addresses(server)) is (asker is link)
        foreign = theirs(world, server)
        await until(world, lambda: foreign.foreign or foreign.registration.registered)
        assert bool(foreign.foreign) is (asker is link and identity == OURS)

    run(body)


def test_a_broker_can_ask_who_else_is_registered_under_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        first, second = await nameserver(world), await nameserver(world)
        master = ours(world, first, second)
        slave, other = ours(world, first, broker_id=1), ours(world, second, broker_id=2)
        await until(world, lambda: len(addresses(first)) == len(addresses(second)) == 2)
        assert await master.registration.members(1.0) == {slave.address, other.address}
        wrong: dict[str, Any] = {"brokerMemberGroup": {"brokerAddrs": {1: None}}}
        monkeypatch.setattr(first.routes, "member_group", lambda *_: wrong)
        assert await master.registration.members(1.0) == {other.address}
        wrong["brokerMemberGroup"] = []
        assert await master.registration.members(1.0) == {other.address}

    run(body)


def watch(server: NameServer) -> list[set[str]]:
    """The topics of each registration from now on."""
    seen: list[set[str]] = []
    register = server.routes.register

    def note(registration: Any, *args: Any) -> Any:
        seen.append(set(registration.topics))
        return register(registration, *args)

    server.routes.register = note  # type: ignore[method-assign]
    return seen


def queues_of(server: NameServer, topic: str) -> int:
    try:
        return sum(data.write_queues for data in server.routes.route(topic).queues)
    except TopicNotExist:
        return 0


def test_a_topic_that_is_made_or_changed_is_told_alone_and_the_table_at_the_usual_pace() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        master = ours(world, server)
        await until(world, lambda: addresses(server))
        seen = watch(server)
        for number in range(5):
            master.topics.put(Topic(f"new-{number}", 2, 2))
            await until(world, lambda number=number: queues_of(server, f"new-{number}") == 2)
        master.topics.put(Topic("T", 8, 8))
        await until(world, lambda: queues_of(server, "T") == 8)
        assert [len(topics) for topics in seen] == [1] * 6
        for queues in (1, 3):
            master.topics.put(Topic("two", queues, queues))
            master.topics.put(Topic("at-once", queues, queues))
            await until(world, lambda queues=queues: queues_of(server, "at-once") == queues)
            assert queues_of(server, "two") == queues
        assert [len(topics) for topics in seen] == [1] * 10
        for number in range(NEWS_MOST + 1):
            master.topics.put(Topic("two", 5, number + 1))
        await until(world, lambda: queues_of(server, "two") == NEWS_MOST + 1)
        assert len(seen) == 11
        assert len(seen[-1]) == len(TABLE) + 7
        await asyncio.sleep(2 * PACE_S)
        assert len(seen[-1]) == len(TABLE) + 7
        master.topics.delete("new-0", Tombstone(0))
        await until(world, lambda: not queues_of(server, "new-0"))

    run(body)


def test_a_nameserver_that_has_forgotten_the_broker_gets_the_table() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        master = ours(world, server)
        await until(world, lambda: addresses(server))
        server.routes.unregister(NAME, master.address)
        assert not queues_of(server, "T")
        master.topics.put(Topic("new", 2, 2))
        await until(world, lambda: queues_of(server, "new"), PACE_S / 2)
        assert queues_of(server, "T") == 4

    run(body)


def test_a_broker_that_is_to_register_seldom_does_before_nameservers_end_its_connection() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        member = Member(world, OURS, [server.address], 0, 100_000, pace_s=3_600)
        await until(world, lambda: addresses(server))
        live = server.routes.live(NAME, member.address)
        assert live is not None
        first = live.connection
        seen = watch(server)
        await asyncio.sleep(400)
        assert len(seen) == 6
        again = server.routes.live(NAME, member.address)
        assert again is not None
        assert again.connection is first

    run(body)
