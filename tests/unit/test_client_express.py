"""The lone synchronous send, which never leaves its thread, against scripted brokers."""

import re
import threading
import time

import client_fakes as fakes
import pytest
from producer_world import A0, clusters
from saturnmq.client.blocking import Producer
from saturnmq.client.producer import direct_send
from saturnmq.client.producer.direct_send import AT_ONCE
from saturnmq.client.producer.lanes import Pin
from saturnmq.client.producer.results import SendStatus
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    MessageIllegal,
    RequestTimeout,
)
from saturnmq.runtime.native import NativeRuntime


@pytest.fixture
def cluster():
    with fakes.threaded("a", "b") as cluster:
        yield cluster


def bodies(cluster):
    return sorted(body for broker in cluster.brokers.values() for body in broker.bodies())


def sends(cluster):
    return sum(code == 320 for broker in cluster.brokers.values() for code, _ in broker.requests)


def test_results_are_those_of_any_send(cluster):
    with Producer("senders", cluster.address) as producer:
        results = [producer.send(Message("T", b"%d" % n, tag="x")) for n in range(20)]
        channels = producer._express._lines[0]._channels
        assert len(channels) == 2, "this way was taken, to both brokers"
    for n, result in enumerate(results):
        log = cluster.brokers[result.queue.broker_name].log[result.queue.queue_id]
        body, properties = log[result.queue_offset]
        assert body == b"%d" % n
        assert properties["UNIQ_KEY"] == result.message_id
        assert properties["TAGS"] == "x"
        assert int(result.offset_message_id, 16) == result.queue_offset  # the fake counts them so
    assert len({result.message_id for result in results}) == 20


def test_a_sender_looks_for_its_answer_before_it_sleeps(cluster):
    with Producer("senders", cluster.address) as producer:
        producer.send(Message("T", b"warm"))
        producer.send(Message("T", b"warm"))
        channels = producer._express._lines[0]._channels.values()
        looks = []
        for channel in channels:
            watched = channel._lookout._is_there
            channel._lookout._is_there = lambda watched=watched: looks.append(1) or watched()
            channel._lookout._in_vain._to_leave_out = 0
        for n in range(6):
            assert producer.send(Message("T", b"%d" % n)).ok
    assert looks


def test_a_refusal_that_may_pass_is_repeated_on_the_other_broker(cluster):
    with Producer("senders", cluster.address) as producer:
        producer.send(Message("T", b"warm"))
        cluster.brokers["a"].answer = lambda cmd: (14, "disk full")
        for n in range(6):
            result = producer.send(Message("T", b"%d" % n))
            assert result.ok
            assert result.queue.broker_name == "b"
    assert bodies(cluster) == sorted([b"warm", *(b"%d" % n for n in range(6))])


def test_a_refusal_that_cannot_pass_is_raised_at_once(cluster):
    with Producer("senders", cluster.address) as producer:
        producer.send(Message("T", b"warm"))
        for broker in cluster.brokers.values():
            broker.answer = lambda cmd: (13, "too large")
        before = sends(cluster)
        with pytest.raises(MessageIllegal, match="too large"):
            producer.send(Message("T", b"x"))
        with pytest.raises(MessageIllegal):
            producer.send(Message("T", b""))
        assert sends(cluster) == before + 1


def test_a_silent_broker_costs_one_timeout_and_the_send_goes_elsewhere(cluster):
    with Producer("senders", cluster.address, send_timeout=1.0) as producer:
        producer.send(Message("T", b"warm"))
        cluster.brokers["a"].answer = lambda cmd: "silence"
        for n in range(4):
            assert producer.send(Message("T", b"%d" % n)).queue.broker_name == "b"


def test_a_slow_answer_takes_its_broker_out(cluster):
    def to() -> str:
        return producer.send(Message("T", b"x")).queue.broker_name

    with Producer("senders", cluster.address) as producer:
        to()  # the first finds the route, on the loop
        cluster.brokers["a"].answer = lambda cmd: time.sleep(1.05)
        while to() != "a":
            pass
        cluster.brokers["a"].answer = None
        assert {to() for _ in range(8)} == {"b"}, "for a minute"


def test_a_send_does_not_wait_for_a_master_that_hangs_and_was_succeeded(cluster):
    with Producer("senders", cluster.address, send_timeout=20.0) as producer:
        queue = MessageQueue("T", "a", 0)
        producer.send(Message("T", b"warm"), queue=queue)
        asked = threading.Event()

        def silent(cmd):
            asked.set()
            return "silence"

        def succeed():
            asked.wait(5)
            cluster.replaced["a"] = cluster.brokers["b"]
            cluster.on_loop(cluster.announce)

        cluster.brokers["a"].answer = silent
        operator = threading.Thread(target=succeed)
        operator.start()
        began = time.monotonic()
        assert producer.send(Message("T", b"x"), queue=queue).ok
        assert time.monotonic() - began < 3
        operator.join()
    assert cluster.brokers["b"].bodies() == [b"x"]


def test_a_connection_closed_while_idle_is_noticed_before_it_is_used(cluster, monkeypatch):
    monkeypatch.setattr(direct_send, "IDLE_S", 0.0)
    with Producer("senders", cluster.address) as producer:
        queue = MessageQueue("T", "a", 0)
        for n in range(3):
            producer.send(Message("T", b"%d" % n), queue=queue)
        broker = cluster.brokers["a"]
        for endpoint in list(broker.endpoints):
            cluster.on_loop(endpoint.close)
        assert producer.send(Message("T", b"3"), queue=queue).queue_offset == 3
    assert [body for body, _ in broker.log[0]] == [b"0", b"1", b"2", b"3"]


def test_a_status_short_of_the_ack_mode_is_handed_over(cluster):
    with Producer("senders", cluster.address) as producer:
        producer.send(Message("T", b"warm"))
        for broker in cluster.brokers.values():
            broker.answer = lambda cmd: (11, None)
        result = producer.send(Message("T", b"x"))
        assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
        assert not result.ok


def test_a_sharded_send_waits_behind_what_is_on_the_way(cluster):
    with Producer("senders", cluster.address) as producer:
        for n in range(50):
            if n % 3:
                producer.send_async(Message("T", b"%02d" % n), sharding_key="plane")
            else:
                producer.send(Message("T", b"%02d" % n), sharding_key="plane")
        producer.flush(10)
    (log,) = [log for broker in cluster.brokers.values() for log in broker.log.values() if log]
    assert [body for body, _ in log] == [b"%02d" % n for n in range(50)]


def test_many_threads_and_one_that_closes(cluster):
    sent, refused = [], []

    def work(number, producer):
        for n in range(200):
            try:
                producer.send(Message("T", b"%d-%d" % (number, n)))
            except ClientClosed as error:
                refused.append(error)
                return
            sent.append(b"%d-%d" % (number, n))

    with Producer("senders", cluster.address) as producer:
        threads = [threading.Thread(target=work, args=(n, producer)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads[:2]:
            thread.join()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert set(sent) <= set(bodies(cluster))
    assert len(sent) == 1600 or refused


class Wire:
    """A connection that answers as a test says, while virtual time goes on."""

    def __init__(self, world, made, address, timeout_s):
        self.world, self.address, self.timeout_s = world, address, timeout_s
        self.asked, self.alive, self.open, self.aborted = [], True, True, False
        self.used_at = world.loop.time()
        self.answer = lambda command: command.reply(ext={"queueId": "0", "queueOffset": "7"})
        made.append(self)

    def request(self, command, timeout_s):
        self.asked.append((command, timeout_s))
        return self.answer(command)

    def idle_s(self):
        return self.world.loop.time() - self.used_at

    def is_silent_since(self, moment):
        return self.used_at <= moment

    def is_alive(self):
        return self.alive

    def abort(self):
        self.aborted = True

    def close(self):
        assert self.open
        self.open = False


class Way:
    """An Express over the engine of a virtual cluster, whose topic's lane is idle."""

    def __init__(self, world, monkeypatch):
        self.world, self.made, self.nobody = world, [], set()
        monkeypatch.setattr(direct_send, "Channel", self.channel)
        self.express = direct_send.DirectSend(world.engine)
        world.until_done(world.send())
        world.sent.clear()

    def channel(self, runtime, address, timeout_s, *, look_s, tls, credentials):
        if address in self.nobody:
            raise ConnectFailed("nobody")
        assert (runtime, timeout_s) == (self.world.runtime, 2.5)
        assert tls is credentials is None
        assert look_s == direct_send.LOOK_S
        return Wire(self.world, self.made, address, timeout_s)

    def send(self, pinned=None):
        return self.express.send(Message("T", b"x"), pinned)


@pytest.fixture
def way(monkeypatch):
    with clusters() as make:
        yield lambda *args, **options: Way(make(*args, **options), monkeypatch)


def test_a_lane_that_is_new_or_at_work_goes_the_ordinary_way(way):
    here = way({"a": 1})
    world, lane = here.world, here.world.engine.accumulator.lane("T", None)
    assert here.send(Pin(A0)) is None
    assert here.send().queue_offset == 7
    handle = world.send()
    assert lane.open is not None
    assert here.send() is None
    world.run(0.0001)
    assert (lane.open, lane.in_flight) == (None, {"a": 1})
    assert here.send() is None
    world.until_done(handle)
    lane.ready.append(handle.batch)
    assert here.send() is None
    lane.ready.clear()
    assert here.send() is not None
    world.change({"a": 1}, {"a": ""})
    assert here.send() is None
    assert [len(wire.asked) for wire in here.made] == [2]
    command, timeout_s = here.made[0].asked[0]
    assert (command.code, timeout_s) == (320, 3.0)
    here.express.close()
    assert not here.made[0].open


def test_what_travels_alone_does_so_on_this_way_too(way):
    here = way({"a": 1})
    for message, code in (
        (Message("T", b"x"), 320),
        (Message("T", b"x", delay_level=1), 310),
        (Message("T", b"x" * 4096), 310),
    ):
        assert here.express.send(message, None) is not None
        assert here.made[0].asked[-1][0].code == code


def test_so_many_sends_at_once_take_this_way(way):
    here = way({"a": 1})
    others = []

    def answer(command):
        others.append(here.send())
        return command.reply(ext={"queueOffset": "7"})

    def answer_all():
        for wire in here.made:
            wire.answer = answer

    for _ in range(AT_ONCE):  # one more each time
        assert here.send() is not None
        answer_all()
    assert len(here.made) == AT_ONCE
    others.clear()
    assert here.send() is not None
    assert [other is not None for other in others] == [False, *[True] * (AT_ONCE - 1)]
    here.express.forked()
    assert here.send() is None
    here.express.close()
    assert here.send() is None
    assert not any(wire.open for wire in here.made)


@pytest.mark.parametrize(
    ("options", "attempts"), [({"retries": 2}, 3), ({"retries": 1}, 2), ({"retries": 0}, 1)]
)
def test_the_attempt_in_the_callers_thread_is_the_first_of_all(way, options, attempts):
    here = way({"a": 1}, **options)
    here.send()
    here.made[0].answer = lambda command: command.reply(1, "no")
    here.world.answer = lambda _: 1
    batch = here.send()
    error = here.world.outcome(batch.handle(0))
    assert (error.code, batch.attempts) == (1, attempts)
    assert len(here.world.sent) == attempts - 1
    assert here.made[0].open


@pytest.mark.parametrize(("wanted", "code"), [(True, 10), (False, 10), (True, 0)])
def test_a_send_stored_short_of_its_ack_mode_goes_on_if_that_is_wanted(way, wanted, code):
    here = way({"a": 1}, retry_unless_stored=wanted)
    here.send()
    here.made[0].answer = lambda command: command.reply(code, ext={"queueOffset": "7"})
    sent = here.send()
    if wanted and code:
        assert here.world.outcome(sent.handle(0)) is SendStatus.OK
        assert (len(here.world.sent), sent.unsure) == (1, True)
    else:
        assert (sent.status is SendStatus.OK, sent.queue_offset) == (code == 0, 7)
        assert sent.batch.done


@pytest.mark.parametrize("failure", [ConnectionLost("lost"), KeyboardInterrupt()], ids=repr)
def test_a_connection_on_which_something_went_wrong_is_not_used_again(way, failure):
    here = way({"a": 1})
    here.send()

    def fail(command):
        raise failure

    here.made[0].answer = fail
    if isinstance(failure, ConnectionLost):
        batch = here.send()
        assert here.world.outcome(batch.handle(0)) is SendStatus.OK
        assert batch.attempts == 2
    else:
        with pytest.raises(KeyboardInterrupt):
            here.send()
    assert not here.made[0].open
    here.world.run(61.0)  # the broker is well again
    assert here.send() is not None
    assert [wire.open for wire in here.made] == [False, True]
    here.made[1].alive = False
    here.made[1].used_at -= 1.1
    here.nobody = {"a1"}
    assert here.send() is None
    assert [wire.open for wire in here.made] == [False, False]


@pytest.mark.parametrize(
    ("idle", "alive", "used"), [(0.9, False, True), (1.1, True, True), (1.1, False, False)]
)
def test_a_connection_that_was_idle_for_a_second_is_looked_at_first(way, idle, alive, used):
    here = way({"a": 1})
    here.send()
    here.made[0].used_at, here.made[0].alive = here.world.loop.time() - idle, alive
    assert here.send() is not None
    assert (here.made[0].open, len(here.made)) == (used, 1 if used else 2)


@pytest.mark.parametrize(("latency_s", "well"), [(0.54, True), (0.56, False)])
def test_the_time_of_an_answer_counts_for_its_broker(way, latency_s, well):
    here = way({"a": 1})
    here.send()

    def slow(command):
        here.world.run(latency_s)
        return command.reply(ext={"queueOffset": "7"})

    here.made[0].answer = slow
    assert here.send() is not None
    assert here.world.sender.faults.available("a", here.world.loop.time()) == well


@pytest.mark.parametrize(
    ("master", "answers", "waits_s", "aborted"),
    [
        ("a3", False, 1.1, True),
        ("a3", False, 0.9, False),
        ("a3", True, 1.1, False),
        ("a1", False, 1.1, False),
    ],
)
def test_a_send_waits_for_a_silent_master_that_was_succeeded_for_a_second(
    way, master, answers, waits_s, aborted
):
    here = way({"a": 1})
    here.send()
    wire = here.made[0]

    def answer(command):
        wire.used_at = here.world.loop.time()
        here.world.change({"a": 2}, {"a": master})
        if answers:
            here.world.run(0.1)
            wire.used_at = here.world.loop.time()
        here.world.run(waits_s)
        return command.reply(ext={"queueOffset": "7"})

    wire.answer = answer
    assert here.send() is not None
    assert wire.aborted == aborted
    here.world.run(2.0)
    assert wire.aborted == aborted, "nobody waits any more"


class TestChannel:
    def test_nobody_there(self):
        runtime = NativeRuntime()
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
            Channel(runtime, "127.0.0.1:1", 1.0)

    def test_a_large_answer_and_a_time_out(self, cluster):
        runtime = NativeRuntime()
        broker = cluster.brokers["a"]
        channel = Channel(runtime, broker.address, 5.0)
        broker.serve = lambda endpoint, cmd: endpoint.send(cmd.reply(body=bytes(cmd.body) * 3), cmd)
        for endpoint in broker.endpoints:
            endpoint._handler = broker.serve
        body = bytes(range(256)) * 4096
        assert channel.request(Command.request(1, {}, body), 5.0).body == body * 3
        for endpoint in broker.endpoints:
            endpoint._handler = lambda endpoint, cmd: None
        with pytest.raises(RequestTimeout, match=re.escape(broker.address)):
            channel.request(Command.request(1, {}), 0.1)
        channel.close()
