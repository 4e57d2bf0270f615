"""Where keyed messages go while topics become smaller and brokers are away: no send fails."""

import asyncio
import collections
import functools
import logging
import random
import types

import client_fakes as fakes
import pytest
from saturnmq.client.blocking import Producer as BlockingProducer
from saturnmq.client.producer.placing import KeyQueues, Placement
from saturnmq.client.producer.producer import Producer
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute
from saturnmq.runtime.errors import InvalidParameter, RouteNotFound


def route(queues, *, masterless=()):
    """`queues`: by broker name."""
    return TopicRoute(
        queues=[QueueData(name, count, count) for name, count in queues.items()],
        brokers=[BrokerData("C", n, {int(n in masterless): f"{n}:1"}) for n in queues],
    )


def counts(placement):
    return dict(collections.Counter(queue.broker_name for queue in placement.round("T").queues))


# -- the rule --------------------------------------------------------------------------------------


def test_fewer_and_more_queues_of_a_broker_count_at_once():
    placement = Placement(60.0)
    for count in (8, 2, 4):
        placement.take("T", route({"a": count}), 0.0)
        assert placement.round("T").queues == [MessageQueue("T", "a", n) for n in range(count)]


def test_a_broker_without_a_master_or_a_route_keeps_its_queues_for_a_time():
    placement = Placement(60.0)
    placement.take("T", route({"a": 2, "b": 3}), 0.0)
    placement.take("T", route({"a": 2, "b": 1}, masterless=["b"]), 10.0)
    assert counts(placement) == {"a": 2, "b": 3}
    placement.take("T", route({"a": 2}), 69.9)
    assert counts(placement) == {"a": 2, "b": 3}
    placement.take("T", route({"a": 2}), 70.0)
    assert counts(placement) == {"a": 2}
    placement.take("T", route({"a": 2, "b": 3}), 71.0)
    assert counts(placement) == {"a": 2, "b": 3}


def test_a_broker_without_a_master_counts_though_nothing_was_known_of_it_before():
    """Who begins now places keys as those do who began earlier."""
    placement = Placement(60.0)
    for now, expected in ((0.0, {"a": 2, "b": 3}), (60.0, {"a": 2})):
        placement.take("T", route({"a": 2, "b": 3}, masterless=["b"]), now)
        assert counts(placement) == expected


def test_a_slave_that_acts_as_master_is_a_broker_that_is_away():
    placement = Placement(60.0)
    placement.take("T", route({"a": 2, "b": 3}), 0.0)
    acting = route({"a": 2, "b": 3})
    acting.broker("b").enable_acting_master = True
    acting.queues[1].perm = 4
    placement.take("T", acting, 10.0)
    assert counts(placement) == {"a": 2, "b": 3}
    placement.take("T", acting, 70.0)
    assert counts(placement) == {"a": 2}


def test_a_broker_whose_topic_may_not_be_written_has_no_queues_for_keys():
    placement = Placement(60.0)
    placement.take("T", route({"a": 2, "b": 3}), 0.0)
    read_only = route({"a": 2, "b": 3})
    read_only.queues[1].perm = 4
    placement.take("T", read_only, 10.0)
    assert counts(placement) == {"a": 2}


def test_who_was_back_in_between_has_the_whole_time_again():
    placement = Placement(60.0)
    placement.take("T", route({"a": 2, "b": 3}), 0.0)
    placement.take("T", route({"a": 2}), 10.0)
    placement.take("T", route({"a": 2, "b": 3}), 60.0)
    placement.take("T", route({"a": 2}), 80.0)
    assert counts(placement) == {"a": 2, "b": 3}


def test_the_only_broker_is_not_given_up():
    placement = Placement(60.0)
    placement.take("T", route({"a": 2}), 0.0)
    for now in (1.0, 1000.0):
        placement.take("T", route({"a": 2}, masterless=["a"]), now)
        assert counts(placement) == {"a": 2}


def test_who_is_away_keeps_its_queues_beside_brokers_that_have_none():
    placement = Placement(60.0)
    placement.take("T", route({"a": 2, "b": 3}), 0.0)
    for now in (10.0, 1000.0):
        without = route({"a": 2, "b": 3}, masterless=["b"])
        without.queues[0].perm = 4
        placement.take("T", without, now)
        assert counts(placement) == {"b": 3}


def test_a_broker_that_is_there_without_the_topic_is_given_up_at_once():
    placement = Placement(60.0)
    placement.take("T", route({"a": 2, "b": 3}), 0.0)
    placement.withdraw("T", "b")
    assert counts(placement) == {"a": 2}


# -- routes that change ----------------------------------------------------------------------------


class Core:
    """What KeyQueues uses of ClientCore; time passes and work is done when a test says so."""

    closed = False

    def __init__(self):
        self.now = 0.0
        self.said = None  # the route that is known
        self.newer = None  # the one that the nameserver would tell now
        self.brokers = ()  # whose masters the nameserver knows
        self.timers = []
        self.work = []
        self.moved = []
        self.runtime = self.tasks = self
        self.routes = types.SimpleNamespace(route=lambda topic: self.said)
        self.queues = KeyQueues(self, 60.0, self.moved.append)

    def on_route_change(self, listener):
        self.changed = listener

    def monotonic(self):
        return self.now

    def call_later(self, seconds, call, *args):
        self.timers.append((self.now + seconds, call, args))

    def once(self, work, *, name):
        self.work.append(work)

    async def ask_nameserver(self, command, read):
        assert command.code == RequestCode.GET_BROKER_CLUSTER_INFO
        return [BrokerData("C", name, {0: f"{name}:1"}) for name in self.brokers]

    async def route(self, topic, *, refresh):
        if refresh and self.newer is not None:
            self.said = self.newer
        return self.said

    def take(self, queues, **how):
        self.said = route(queues, **how)
        self.changed("T")

    def counts(self):
        return dict(collections.Counter(each.broker_name for each in self.queues.round("T").queues))


def test_nothing_is_asked_or_timed_while_all_brokers_are_there():
    core = Core()
    for count in (2, 2, 4):
        core.take({"a": count, "b": 2})
    assert (core.timers, core.work, core.moved) == ([], [], ["T"])


def test_who_is_away_is_looked_at_once_when_its_time_is_over():
    core = Core()
    core.take({"a": 2, "b": 2})
    for core.now in (1.0, 2.0):
        core.take({"a": 2, "b": 2}, masterless=["b"])
    [(at, call, args)] = core.timers
    assert (at, core.moved) == (61.0, [])
    core.now = at
    call(*args)
    assert (core.counts(), core.moved, len(core.timers)) == ({"a": 2}, ["T"], 1)


def test_each_of_two_that_went_one_after_the_other_keeps_its_queues_for_its_own_time():
    core = Core()
    core.take({"a": 2, "b": 2, "c": 2})
    for core.now, masterless in ((1.0, ["b"]), (31.0, ["b", "c"])):
        core.take({"a": 2, "b": 2, "c": 2}, masterless=masterless)
    seen = []
    while core.timers:
        core.now, call, args = core.timers.pop()
        call(*args)
        seen.append((core.now, core.counts()))
    assert seen == [(61.0, {"a": 2, "c": 2}), (91.0, {"a": 2})]


def test_a_timer_that_is_early_is_set_again_for_the_rest():
    core = Core()
    core.take({"a": 2, "b": 2})
    core.now = 1.0
    core.take({"a": 2, "b": 2}, masterless=["b"])
    [(at, call, args)] = core.timers
    core.now = at - 0.001  # as a loop's timers are at times
    call(*args)
    assert core.counts() == {"a": 2, "b": 2}
    at, call, args = core.timers[-1]
    assert at == 61.0
    core.now = at
    call(*args)
    assert (core.counts(), len(core.timers)) == ({"a": 2}, 2)


def test_the_only_broker_is_not_timed_once_its_time_is_over():
    core = Core()
    core.take({"a": 2})
    core.take({"a": 2}, masterless=["a"])
    [(core.now, call, args)] = core.timers
    call(*args)
    assert (core.counts(), len(core.timers)) == ({"a": 2}, 1)


@pytest.mark.parametrize("back", [False, True])
def test_a_broker_that_came_back_with_the_topic_meanwhile_keeps_its_keys(back):
    core = Core()
    core.take({"a": 2, "b": 2})
    core.take({"a": 2})
    [look] = core.work
    core.brokers = ("a", "b")
    core.newer = route({"a": 2, "b": 2}) if back else None
    asyncio.run(look())
    assert core.counts() == ({"a": 2, "b": 2} if back else {"a": 2})


# -- producers -------------------------------------------------------------------------------------


class Shrinking:
    """Brokers that refuse a queue number that they do not have."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.has = cluster.queues
        for broker in cluster.brokers.values():
            broker.answer = self.answer

    def answer(self, cmd):
        if int(cmd.ext["e"]) >= self.has:
            return 29, f"queue id {cmd.ext['e']} is out of range; it has {self.has} queues"
        return None

    def shrink(self, queues, *, told=True):
        self.has = queues
        self.cluster.queues = queues
        if told:
            self.cluster.announce()


run = functools.partial(fakes.run_producer, queues=8)


def check_order(cluster, keys):
    """In each queue the messages of a key lie in the order in which they were sent."""
    for broker in cluster.brokers.values():
        for log in broker.log.values():
            last = dict.fromkeys(keys, -1)
            for body, _ in log:
                key, _, number = body.decode().partition("/")
                assert int(number) > last[key]
                last[key] = int(number)


@pytest.mark.parametrize("told", [True, False])
def test_no_keyed_send_fails_when_a_topic_shrinks_and_keys_stay_in_order(told):
    async def test(cluster, producer):
        shrinking = Shrinking(cluster)
        keys = [f"key{n}" for n in range(40)]
        handles = []
        for n in range(60):
            if n == 20:
                shrinking.shrink(2, told=told)
            for key in keys:
                message = Message("T", f"{key}/{n}".encode())
                handles.append(await producer.send_async(message, sharding_key=key))
            await asyncio.sleep(0)
        results = [await handle for handle in handles]
        assert len(cluster.brokers["a"].bodies()) == len(handles)
        check_order(cluster, keys)
        assert {result.queue.queue_id for result in results[-40:]} <= {0, 1}
        asked = len(cluster.brokers["a"].requests)
        for key in keys:
            assert (await producer.send(Message("T", b"k/99"), sharding_key=key)).ok
        assert len(cluster.brokers["a"].requests) == asked + len(keys), "none was refused"

    run(test)


@pytest.mark.parametrize("seed", range(5))
def test_keys_stay_in_order_through_any_changes_of_the_number_of_queues(seed):
    chance = random.Random(seed)

    async def test(cluster, producer):
        shrinking = Shrinking(cluster)
        keys = [f"key{n}" for n in range(30)]
        handles = []
        for n in range(120):
            if n % 10 == 9:
                shrinking.shrink(chance.choice((1, 2, 3, 4, 8)), told=chance.random() < 0.7)
            for key in keys:
                message = Message("T", f"{key}/{n}".encode())
                handles.append(await producer.send_async(message, sharding_key=key))
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.002)))
        assert all([(await handle).ok for handle in handles])
        check_order(cluster, keys)

    run(test, batch_bytes=300)


def test_what_waits_for_a_gone_queue_does_not_wait_for_a_broker_that_is_away():
    async def test(cluster, producer):
        shrinking = Shrinking(cluster)
        warm = [await producer.send(Message("T", b"x"), sharding_key=f"k{n}") for n in range(20)]
        key = next(f"k{n}" for n, sent in enumerate(warm) if sent.queue == ("T", "a", 1))
        cluster.brokers["b"].stop()
        cluster.listed = ["a"]
        cluster.announce()
        while len(producer.core.publish_queues("T")) > 2:
            await asyncio.sleep(0.01)
        shrinking.shrink(1, told=False)
        sent = await producer.send(Message("T", b"x"), sharding_key=key)
        assert sent.queue == ("T", "a", 0)

    run(test, "a", "b", queues=2, absence_timeout=1e9)


def test_no_send_without_a_key_fails_when_a_topic_shrinks():
    async def test(cluster, producer):
        shrinking = Shrinking(cluster)
        handles = []
        for n in range(400):
            if n == 100:
                shrinking.shrink(2, told=False)
            handles.append(await producer.send_async(Message("T", b"%d" % n)))
            if n % 5 == 0:
                await asyncio.sleep(0)
        assert all([(await handle).ok for handle in handles])

    run(test)


def test_a_choice_of_a_selector_moves_like_a_key():
    async def test(cluster, producer):
        shrinking = Shrinking(cluster)
        await producer.send(Message("T", b"warm"))
        shrinking.shrink(2, told=False)
        sent = await producer.send(Message("T", b"x"), selector=lambda queues, _: queues[-1])
        assert sent.queue.queue_id < 2

    run(test)


def test_a_queue_that_the_caller_names_is_obeyed_or_refused():
    async def test(cluster, producer):
        shrinking = Shrinking(cluster)
        last = MessageQueue("T", "a", 7)
        assert (await producer.send(Message("T", b"x"), queue=last)).queue == last
        shrinking.shrink(2)
        with pytest.raises(InvalidParameter, match="out of range"):
            await producer.send(Message("T", b"x"), queue=last)
        made_up = MessageQueue("T", "a", 9)
        with pytest.raises(InvalidParameter, match="out of range"):
            await producer.send(Message("T", b"x"), selector=lambda *_: made_up)

    run(test)


def test_no_lone_synchronous_send_fails_when_a_topic_shrinks():
    with (
        fakes.threaded("a", queues=8) as cluster,
        BlockingProducer("senders", cluster.address) as producer,
    ):
        for key in (None, *"abcdefgh"):
            producer.send(Message("T", b"warm"), sharding_key=key)
        shrinking = cluster.on_loop(Shrinking, cluster)
        cluster.on_loop(lambda: shrinking.shrink(2, told=False))
        for key in (*"abcdefgh", *[None] * 8):
            assert producer.send(Message("T", b"x"), sharding_key=key).queue.queue_id < 2
        assert len(producer.queues("T")) == 2


def test_a_key_without_any_queue_to_write_to_is_refused_with_the_reason():
    async def test(cluster, producer):
        await producer.send(Message("T", b"x"), sharding_key="k")
        cluster.queues = 0
        cluster.announce()
        while producer.core.publish_queues("T"):
            await asyncio.sleep(0.01)
        with pytest.raises(RouteNotFound, match="no queue to write to now"):
            await producer.send(Message("T", b"x"), sharding_key="k")

    run(test)


def test_what_waits_for_a_broker_that_stays_away_goes_elsewhere_after_a_time():
    async def test(cluster, producer):
        await producer.send(Message("T", b"x"), sharding_key="any")
        keys = [f"k{n}" for n in range(8)]
        cluster.brokers["b"].stop()
        cluster.listed = ["a"]
        cluster.announce()
        handles = [await producer.send_async(Message("T", b"x"), sharding_key=k) for k in keys]
        results = [await handle for handle in handles]
        assert {result.queue.broker_name for result in results} == {"a"}

    run(test, "a", "b", queues=2, absence_timeout=0.3)


def test_a_broker_that_is_there_without_the_topic_gets_no_keys(caplog):
    caplog.set_level(logging.INFO)

    async def test(cluster, producer):
        await producer.send(Message("T", b"x"), sharding_key="any")
        assert "keys of topic T" not in caplog.text
        keys = [f"k{n}" for n in range(8)]
        cluster.registered = ["a", "b"]
        cluster.listed = ["a"]
        cluster.announce()
        cluster.brokers["b"].answer = lambda cmd: (17, "no such topic")
        handles = [await producer.send_async(Message("T", b"x"), sharding_key=k) for k in keys]
        results = [await handle for handle in handles]
        assert {result.queue.broker_name for result in results} == {"a"}
        assert "keys of topic T go over 2 queues, not 4" in caplog.text

    run(test, "a", "b", queues=2, absence_timeout=1e9)


def test_keys_leave_a_broker_that_no_route_names_and_that_is_there():
    async def test(cluster, producer):
        await producer.send(Message("T", b"x"))
        await producer.send(Message("T", b"x"), sharding_key="any")
        cluster.brokers["b"].stop()  # so that its connection is no reason to keep it in the route
        cluster.registered = ["a", "b"]
        cluster.listed = ["a"]
        cluster.announce()
        keys = [f"k{n}" for n in range(8)]
        handles = [await producer.send_async(Message("T", b"x"), sharding_key=k) for k in keys]
        results = [await handle for handle in handles]
        assert {result.queue.broker_name for result in results} == {"a"}

    run(test, "a", "b", queues=2, absence_timeout=1e9)


def test_keys_leave_nobody_else_than_who_is_there_without_the_topic():
    async def test(cluster, producer):
        await producer.send(Message("T", b"x"), sharding_key="any")
        for name in "bc":
            cluster.brokers[name].stop()
        cluster.registered = ["a", "b"]
        cluster.listed = ["a"]
        cluster.announce()
        while len(queues := await producer.queues("T")) == 6:
            await asyncio.sleep(0.001)
        assert {queue.broker_name for queue in queues} == {"a", "c"}

    run(test, "a", "b", "c", queues=2, absence_timeout=1e9)


def test_a_producer_places_keys_by_a_route_that_its_core_knew_before():
    async def test(cluster, producer):
        await producer.send(Message("T", b"x"))
        async with Producer("others", core=producer.core) as other:
            assert (await other.send(Message("T", b"x"), sharding_key="k")).ok

    run(test)
