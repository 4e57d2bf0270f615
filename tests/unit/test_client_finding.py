"""Finding routes on virtual time: what is asked when, and what becomes of the answers."""

import asyncio
import gc
import itertools
import random

import pytest
from client_fakes import cluster_info
from saturnmq.client.route_updater import RouteUpdater
from saturnmq.client.routes import RouteCache
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute
from saturnmq.runtime.errors import ConnectFailed, RouteNotFound, TopicNotExist
from saturnmq.runtime.native import NativeRuntime
from saturnmq.runtime.supervision import Supervisor


class Nameserver:
    """Knows `topics`: name -> the broker names that serve it."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.topics = {}
        self.knows_brokers = True
        self.asked = []
        self.away = False
        self.leaderless = []  # broker names
        self.connected = set()
        self.changed = []
        self.table = RouteCache()
        self.troubles = []
        self.finder = RouteUpdater(
            runtime,
            Supervisor(runtime, self.troubles.append),
            self.table,
            self.ask,
            is_connected=self.connected.__contains__,
            on_change=self.changed.append,
            template_queues=4,
        )

    async def ask(self, command, read, ok=()):
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            known = [BrokerData("C", "a", {0: "a:1"})] if self.knows_brokers else []
            known += [BrokerData("C", name, {1: f"{name}:2"}) for name in self.leaderless]
            return read(command.reply(body=cluster_info(known)))
        topic = command.ext["topic"]
        assert command.ext["saturnWatch"] == "true"
        self.asked.append(topic)
        names = self.topics.get(topic)
        await self.runtime.sleep(0.01)
        if self.away:
            raise ConnectFailed("nobody there")
        if names is None:
            return read(command.reply(17, "unknown"))
        perm = 7 if topic == "TBW102" else 6
        route = TopicRoute(
            [QueueData(name, 8, 8, perm) for name in names],
            [BrokerData("C", name, {0: f"{name}:1"}) for name in names],
        )
        return read(command.reply(body=fastjson.dumps(route.to_json())))

    def brokers(self, topic):
        route = self.table.route(topic)
        return [data.broker_name for data in route.brokers] if route else []

    async def find(self, topic, *, refresh=False, create=False):
        return await self.finder.route(topic, refresh=refresh, create=create)


@pytest.fixture
def found():
    loop = SimLoop(random.Random(1))
    nameserver = Nameserver(SimRuntime(loop, SimNetwork(loop, 1), 1, "client"))

    def run(test):
        async def main():
            async with asyncio.timeout(600):
                await test(nameserver)
            nameserver.finder.closed = True

        loop.run_until_complete(main())
        assert loop.failures == []
        assert nameserver.troubles == []

    yield run
    loop.close()


def test_callers_share_one_question_and_its_answer_is_kept(found):
    async def test(ns):
        ns.topics = {"T": ["a"]}
        routes = await asyncio.gather(*(ns.find("T") for _ in range(5)))
        assert all(route is routes[0] for route in routes)
        await ns.find("T")
        assert ns.asked == ["T"]
        assert ns.changed == ["T"]

    found(test)


def test_what_changes_while_it_is_asked_is_asked_again(found):
    async def test(ns):
        ns.topics = {"T": ["a"]}
        asking = asyncio.ensure_future(ns.find("T"))
        await asyncio.sleep(0.005)  # the answer is on its way
        ns.topics = {"T": ["a", "b"]}
        ns.finder.on_routes_changed(["T", "never wanted"])
        await asking
        assert ns.brokers("T") == ["a", "b"]
        assert ns.asked == ["T", "T"]

    found(test)


@pytest.mark.parametrize("create", [False, True])
def test_a_topic_that_is_made_while_it_is_asked_for_is_asked_for_again(found, create):
    """The notice of it may come before the answer that it does not exist is read."""

    async def test(ns):
        asking = asyncio.ensure_future(ns.find("T", create=create))
        await asyncio.sleep(0.015 if create else 0.005)  # with `create` the template is asked for
        ns.topics = {"T": ["a"]}
        ns.finder.on_routes_changed(["T"])
        await asking
        assert ns.brokers("T") == ["a"]
        assert ns.changed == ["T"]

    found(test)


def test_a_topic_that_will_be_created_follows_the_template_until_it_exists(found):
    async def test(ns):
        ns.topics = {"TBW102": ["a"]}
        with pytest.raises(TopicNotExist):
            await ns.find("T")
        await ns.find("T", create=True)
        assert ns.brokers("T") == ["a"]
        ns.topics = {"TBW102": ["a", "b"]}
        ns.finder.on_routes_changed(["TBW102"])
        await asyncio.sleep(0.1)
        assert ns.brokers("T") == ["a", "b"]
        ns.topics = {"TBW102": ["a", "b"], "T": ["b"]}
        ns.finder.on_routes_changed(["T"])
        await asyncio.sleep(0.1)
        assert ns.brokers("T") == ["b"]
        asked = len(ns.asked)
        ns.finder.on_routes_changed(["TBW102"])
        await asyncio.sleep(0.1)
        assert len(ns.asked) == asked

    found(test)


def test_a_failure_is_a_reason_to_ask_once_a_second_and_to_be_told_from_then_on(found):
    async def test(ns):
        ns.topics = {"T": ["a"]}
        for _ in range(300):
            ns.finder.refresh_soon("T")
            await asyncio.sleep(0.01)
        assert 3 <= len(ns.asked) <= 4
        ns.topics = {"T": ["b"]}
        ns.finder.on_routes_changed(["T"])
        await asyncio.sleep(0.1)
        assert ns.brokers("T") == ["b"]

    found(test)


def test_after_a_lost_nameserver_everything_is_asked_anew_as_soon_as_one_answers(found):
    async def test(ns):
        ns.topics = {"T": ["a"], "U": ["a"]}
        await ns.find("T")
        await ns.find("U")
        ns.away = True
        ns.finder.nameserver_lost()
        ns.finder.nameserver_lost()
        await asyncio.sleep(10)
        assert 10 < len(ns.asked) < 30  # not in a hot loop
        assert await ns.find("T", refresh=True)  # the last good one
        ns.away = False
        ns.topics = {"T": ["a", "b"], "U": ["a", "b"]}
        await asyncio.sleep(1.1)
        assert ns.brokers("T") == ns.brokers("U") == ["a", "b"]
        asked = len(ns.asked)
        await asyncio.sleep(10)
        assert len(ns.asked) == asked

    found(test)


def test_a_connected_broker_outlives_its_absence_for_a_while_only(found):
    async def test(ns):
        ns.topics = {"T": ["a", "b"]}
        ns.connected.add("b:1")
        await ns.find("T")
        ns.topics = {"T": ["a"]}
        ns.finder.on_routes_changed(["T"])
        await asyncio.sleep(2.5)
        assert ns.brokers("T") == ["a", "b"]
        await asyncio.sleep(1)
        assert ns.brokers("T") == ["a"]
        ns.topics = {"T": ["a", "b"]}
        await ns.find("T", refresh=True)
        ns.topics = {"T": ["a"]}
        await ns.find("T", refresh=True)
        assert ns.brokers("T") == ["a", "b"]
        ns.connected.clear()
        ns.finder.broker_lost()
        await asyncio.sleep(0.1)
        assert ns.brokers("T") == ["a"]

    found(test)


def test_who_only_asks_again_has_no_topic_created_and_nobody_asks_for_a_closed_client(found):
    async def test(ns):
        ns.topics = {"TBW102": ["a"]}
        ns.finder.refresh_soon("T")
        await asyncio.sleep(0.1)
        assert (ns.asked, ns.brokers("T")) == (["T"], [])
        await asyncio.sleep(0.95)
        ns.finder.refresh_soon("T")
        await asyncio.sleep(0.1)
        assert ns.asked == ["T", "T"]
        await ns.find("T", create=True)
        assert ns.brokers("T") == ["a"]
        await asyncio.sleep(2)
        ns.asked.clear()
        ns.finder.closed = True
        ns.finder.refresh_soon("T")
        ns.finder.on_routes_changed(["T", "TBW102"])
        ns.finder.nameserver_lost()
        await asyncio.sleep(2)
        assert ns.asked == []

    found(test)


def test_an_error_of_a_question_that_nobody_waits_for_is_not_taken_for_a_lost_one():
    async def main():
        lost = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: lost.append(context["message"]))
        nameserver = Nameserver(NativeRuntime())
        nameserver.finder.refresh_soon("T")
        async with asyncio.timeout(5):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.001)
        gc.collect()
        assert (nameserver.asked, lost) == (["T"], [])

    asyncio.run(main())


def test_a_topic_that_a_group_without_a_master_may_have_is_not_to_be_created(found):
    async def test(ns):
        with pytest.raises(TopicNotExist, match=r"serves it; create it first \(saturnmq topic cre"):
            await ns.find("T")
        ns.leaderless = ["b", "c"]
        told = r"none may create it; b and c may have it, without a master now: bring that back, or"
        with pytest.raises(TopicNotExist, match=told) as caught:
            await ns.find("T", create=True)
        assert "create it first" not in str(caught.value)

    found(test)


def test_a_template_without_queues_and_an_answer_without_a_body_are_no_routes(found):
    async def test(ns):
        ns.topics = {"TBW102": []}
        with pytest.raises(TopicNotExist, match="no broker serves it and none may create it"):
            await ns.find("T", create=True)
        answer = ns.ask

        async def empty(command, read, ok=()):
            if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                return await answer(command, read)
            return read(command.reply())

        ns.finder._ask_nameserver = empty
        with pytest.raises(TopicNotExist):
            await ns.find("T")
        ns.finder._ask_nameserver = answer
        ns.topics = {"T": ["a"]}
        assert await ns.find("T")

    found(test)


def test_a_nameserver_without_brokers_says_of_no_topic_that_it_does_not_exist(found):
    async def test(ns):
        ns.knows_brokers = False
        with pytest.raises(RouteNotFound, match="no nameserver knows a broker yet"):
            await ns.find("T")
        asking = asyncio.ensure_future(ns.find("T"))
        await asyncio.sleep(0.005)  # the answer is on its way
        ns.topics = {"T": ["a"]}
        ns.finder.on_routes_changed(["T"])
        assert (await asking).brokers
        ns.topics, ns.knows_brokers = {}, True
        with pytest.raises(TopicNotExist):
            await ns.find("U")

    found(test)


def test_a_lost_nameserver_is_asked_later_and_later_and_not_by_a_closed_client(found):
    async def test(ns):
        ns.topics = {"T": ["a"]}
        ns.finder.nameserver_lost()
        await asyncio.sleep(1)
        assert ns.asked == [], "nothing is wanted"
        await ns.find("T")
        ns.asked.clear()
        ns.away = True
        times = []
        answer = ns.ask

        async def noted(*args, **options):
            times.append(ns.runtime.monotonic())
            return await answer(*args, **options)

        ns.finder._ask_nameserver = noted
        ns.finder.nameserver_lost()
        await asyncio.sleep(5)
        pauses = [round(b - a - 0.01, 2) for a, b in itertools.pairwise(times)]
        assert pauses[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
        assert set(pauses[5:]) == {1.0}
        ns.finder.nameserver_lost()  # half a second after the last question
        asked = len(times)
        await asyncio.sleep(5)
        assert len(times) - asked in (4, 5)
        asked = len(times)
        ns.finder.closed = True
        await asyncio.sleep(5)
        assert len(times) <= asked + 1

    found(test)


def test_a_nameserver_that_is_lost_again_while_it_is_asked_is_asked_again(found):
    async def test(ns):
        ns.topics = {"T": ["a"]}
        await ns.find("T")
        for losses in (1, 2):
            ns.asked.clear()
            ns.finder.nameserver_lost()
            await asyncio.sleep(0.005)
            if losses == 2:
                ns.finder.nameserver_lost()
            await asyncio.sleep(1)
            assert ns.asked == ["T"] * losses

    found(test)


def test_routes_are_in_the_order_of_their_brokers_and_missing_ones_have_their_queues(found):
    async def test(ns):
        ns.topics = {"T": ["a", "b", "c"]}
        ns.connected |= {"a:1", "c:1"}
        await ns.find("T")
        ns.topics = {"T": ["b"]}
        route = await ns.find("T", refresh=True)
        assert [data.broker_name for data in route.brokers] == ["a", "b", "c"]
        assert [queue.broker_name for queue in route.queues] == ["a", "b", "c"]
        asked = len(ns.asked)
        await asyncio.sleep(3.05)
        assert len(ns.asked) == asked
        await asyncio.sleep(0.1)
        assert ns.brokers("T") == ["b"]
        assert len(ns.asked) > asked
        ns.topics = {"T": ["a", "b"]}
        await ns.find("T", refresh=True)
        ns.topics = {"T": ["b"]}
        await asyncio.sleep(60)
        await ns.find("T", refresh=True)
        assert ns.brokers("T") == ["a", "b"], "it is missing anew"
        ns.topics = {"T": ["a", "b", "c"]}
        await ns.find("T", refresh=True)
        ns.connected.remove("a:1")
        ns.topics = {"T": ["b"]}
        await ns.find("T", refresh=True)
        assert ns.brokers("T") == ["b", "c"], "the other one has no connection"

    found(test)
