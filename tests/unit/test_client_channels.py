"""What callers without a loop share: pooled things, connections, nameservers asked in turn."""

import asyncio
import contextlib
import socket
import threading
from types import SimpleNamespace
from typing import ClassVar

import client_fakes as fakes
import pytest
from saturnmq.client import channels as client_channels
from saturnmq.client import pool
from saturnmq.client.channels import Channels, Nameservers, NameserversUnreachable, document
from saturnmq.client.pool import Pool
from saturnmq.protocol import fastjson
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import QueueData, TopicRoute
from saturnmq.runtime.errors import (
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
    SystemBusy,
    TopicNotExist,
)
from saturnmq.runtime.native import NativeRuntime

NOBODY = "127.0.0.1:1"


class TestPool:
    def test_one_user_at_a_time_and_the_next_one_gets_the_same(self):
        opened = []
        pool = Pool(lambda key: opened.append(key) or object(), lambda _: None)
        with pool.use("k") as first, pool.use("k") as second, pool.use("other"):
            assert first is not second
        with pool.use("k") as again:
            assert again in (first, second)
        assert opened == ["k", "k", "other"]
        assert pool.close_idle() == 0
        with pool.use("k") as third:
            assert third not in (first, second)

    def test_what_was_idle_is_closed_and_what_is_in_use_is_not(self):
        closed = threading.Event()
        pool = Pool(lambda _: object(), lambda _: closed.set(), idle_s=0.05)
        with pool.use("k"):
            pool.close_idle()
            assert not closed.is_set()
        assert closed.wait(10.0)
        with pool.use("k"):
            pass
        assert pool.close_idle(60.0) == 1

    def test_what_is_not_usable_is_closed_and_opened_anew(self):
        bad, closed = [], []
        pool = Pool(lambda _: object(), closed.append, usable=lambda thing: thing not in bad)
        with pool.use("k") as first:
            bad.append(first)
        with pool.use("k") as other:
            assert other is not first
        assert closed == [first]

    def test_a_user_that_fails_gives_back_what_it_used(self):
        pool = Pool(lambda _: object(), lambda _: None)
        with pytest.raises(ZeroDivisionError), pool.use("k") as first:
            raise ZeroDivisionError
        with pool.use("k") as again:
            assert again is first


class Timer:
    """A timer that goes off when the test says so."""

    made: ClassVar = []

    def __init__(self, seconds, function):
        self.seconds, self.function = seconds, function
        self.daemon = self.started = False

    def start(self):
        self.started = True
        self.made.append(self)


def test_what_nobody_used_for_five_minutes_is_closed_within_a_minute(monkeypatch):
    now, closed, names = [1000.0], [], iter("abcd")
    monkeypatch.setattr(Timer, "made", [])
    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now[0]))
    things = Pool(lambda _: next(names), closed.append)
    first, second, third = (things.take("k") for _ in range(3))
    things.give_back("k", first)
    now[0] += 1.0
    things.give_back("k", second)
    things.give_back("other", third)
    (timer,) = Timer.made
    assert (timer.seconds, timer.daemon, timer.started) == (60.0, True, True)
    assert things.take("k") == "b", "the one that was used last"
    now[0] = 1299.0
    timer.function()
    assert closed == []
    now[0] = 1300.0
    Timer.made[1].function()
    assert closed == ["a"]
    things.give_back("k", second)
    assert len(Timer.made) == 3, "one at a time"
    now[0] = 1600.0
    Timer.made[2].function()
    assert (closed, len(Timer.made)) == (["a", "c", "b"], 3)
    things.give_back("k", things.take("k"))
    assert (closed, len(Timer.made)) == (["a", "c", "b"], 4)
    assert things.close_idle(0.0) == 0
    assert closed == ["a", "c", "b", "d"]


@pytest.fixture
def cluster():
    with fakes.threaded("a", "b") as cluster:
        yield cluster


@pytest.fixture
def channels():
    channels = Channels()
    yield channels
    channels.close_idle()


def echo(endpoint, cmd):
    endpoint.send(cmd.reply(body=bytes(cmd.body)), cmd)


def asking(*texts):
    return [Command.request(1, {}, text) for text in texts]


class TestChannels:
    def test_several_requests_go_at_once_and_answers_come_in_their_order(self, cluster, channels):
        for broker in cluster.brokers.values():
            broker.serve = echo
        a, b = (cluster.brokers[name].address for name in "ab")
        bodies = [b"1" * 100_000, b"2", b"", b"4" * 50_000]
        asks = list(zip([a, b, a, a], asking(*bodies), strict=True))
        for _ in range(2):
            assert [bytes(answer.body) for answer in channels.request_all(asks, 5.0)] == bodies
        assert channels.close_idle(60.0) == 2
        assert list(channels.request_all([], 5.0)) == []

    def test_who_does_not_answer_keeps_nobody_from_theirs(self, cluster, channels):
        cluster.brokers["a"].serve = echo
        a = cluster.brokers["a"].address
        first, nobody, last = channels.request_all(
            list(zip([a, NOBODY, a], asking(b"1", b"2", b"3"), strict=True)), 5.0
        )
        assert isinstance(nobody, ConnectFailed)
        assert (first.code, last.code) == (0, 0)
        assert channels.close_idle(60.0) == 1

    def test_after_a_failure_all_later_answers_of_the_connection_are_missing(
        self, cluster, channels
    ):
        broker = cluster.brokers["a"]

        def serve(endpoint, cmd):
            if bytes(cmd.body) != b"hang":
                echo(endpoint, cmd)

        broker.serve = serve
        asks = [(broker.address, command) for command in asking(b"1", b"hang", b"3")]
        found = list(channels.request_all(asks, 0.2))
        assert found[0].code == 0
        assert isinstance(found[1], RequestTimeout)
        assert found[2] is found[1]
        assert channels.close_idle() == 0  # nobody knows what else comes on it

    def test_answers_that_are_not_taken_close_the_connection(self, cluster, channels):
        broker = cluster.brokers["a"]
        broker.serve = echo
        answers = channels.request_all([(broker.address, c) for c in asking(b"1", b"2")], 5.0)
        next(answers)
        answers.close()
        assert channels.close_idle(60.0) == 0
        assert channels.request(broker.address, *asking(b"3"), 5.0).body == b"3"
        assert channels.close_idle(60.0) == 1

    def test_a_broker_that_began_anew_is_asked_again(self, cluster, channels):
        broker = cluster.brokers["a"]
        broker.serve = echo
        channels.request(broker.address, *asking(b"1"), 5.0)
        dropped = iter([True])

        def drop_once(endpoint, cmd):
            if next(dropped, False):
                endpoint.abort()
            else:
                echo(endpoint, cmd)

        broker.serve = drop_once
        for endpoint in broker.endpoints:
            endpoint._handler = drop_once
        assert channels.request(broker.address, *asking(b"2"), 5.0).body == b"2"

    def test_nobody_there(self, channels):
        with pytest.raises(ConnectFailed):
            channels.request(NOBODY, *asking(b""), 1.0)
        assert channels.close_idle() == 0


@pytest.mark.parametrize(
    ("idle_s", "alive", "used_again"), [(0.99, False, True), (1.0, False, False), (1.0, True, True)]
)
def test_a_connection_that_was_idle_for_a_second_is_looked_at_before_it_is_used(
    monkeypatch, idle_s, alive, used_again
):
    closed = []

    class Line:
        def __init__(self, *_, **how):
            self.idle_s, self.is_alive = (lambda: idle_s), (lambda: alive)

        def close(self):
            closed.append(self)

    monkeypatch.setattr(client_channels, "Channel", Line)
    channels = Channels()
    first = channels.take("x")
    channels.give_back("x", first)
    assert (channels.take("x") is first) == used_again
    assert closed == ([] if used_again else [first])


def test_a_channel_gives_the_answers_of_what_was_asked_in_that_order(cluster):
    broker = cluster.brokers["a"]
    broker.serve = echo
    channel = Channel(NativeRuntime(), broker.address, 5.0)
    channel.ask_all(asking(b"1", b"2"), 5.0)
    channel.ask(*asking(b"3"), 5.0)
    assert [bytes(channel.answer().body) for _ in range(3)] == [b"1", b"2", b"3"]
    channel.close()
    with pytest.raises(ConnectionLost):
        channel.ask(*asking(b"4"), 5.0)


class Told:
    """Connections to nameservers that answer as a test says."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    def request(self, address, command, timeout_s):
        self.asked.append(address)
        assert (timeout_s, command.ext["topic"]) == (5.0, "T")
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return command.reply(*answer) if isinstance(answer, tuple) else command.reply(body=answer)


ROUTE = fastjson.dumps(TopicRoute([QueueData("a", 1, 1)], []).to_json())


def test_a_route_is_as_old_as_the_caller_allows_and_forgotten_when_the_topic_is_gone(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(client_channels, "time", SimpleNamespace(monotonic=lambda: now[0]))
    told = Told(x=ROUTE)
    nameservers = Nameservers(["x"], told, 5.0)
    for at, asked in ((0.0, 1), (9.9, 1), (10.0, 2), (19.0, 2)):
        now[0] = at
        assert nameservers.route("T", 10.0).queues
        assert len(told.asked) == asked
    told.answers["x"] = ConnectionLost("lost")
    now[0] = 30.0
    assert nameservers.route("T", 10.0).queues
    for answer in ((17, "no such topic"), ConnectionLost("lost")):
        told.answers["x"] = answer
        now[0] += 10.0
        if isinstance(answer, tuple):
            assert nameservers.route("T", 10.0) is None
        else:
            with pytest.raises(NameserversUnreachable, match="x: "):
                nameservers.route("T", 10.0)


def test_who_does_not_answer_is_asked_last_from_then_on():
    told = Told(x=ConnectFailed("away"), y=SystemBusy("busy"), z=ROUTE)
    nameservers = Nameservers(["x", "y", "z"], told, 5.0)
    for asked in (["x", "y", "z"], ["z"]):
        told.asked.clear()
        assert nameservers.route("T")
        assert told.asked == asked
    told.answers["z"] = ConnectFailed("away too")
    with pytest.raises(NameserversUnreachable) as error:
        nameservers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    text = str(error.value)
    assert [each.split(":")[0] for each in text.splitlines()[1].split("; ")] == ["z", "x", "y"]
    told.answers["x"] = (17, "no such topic")
    with pytest.raises(TopicNotExist):
        nameservers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})


def test_an_answer_is_a_json_object_or_an_error():
    command = Command.request(1, {})
    assert document("x", command.reply(body=b'{"a":1}')) == {"a": 1}
    assert document("x", command.reply()) == {}
    with pytest.raises(
        SystemBusy, match=rf"^x answers with \['{'y' * 58}, a JSON object is wanted$"
    ):
        document("x", command.reply(body=fastjson.dumps(["y" * 100])))
    with pytest.raises(TopicNotExist, match="no"):
        document("x", command.reply(17, "no", body=b"{}"))


class TestNameservers:
    def test_the_first_that_answers_is_asked_first_from_then_on(self, cluster, channels):
        refused = []
        take = channels.take

        def watched(address):
            if address == NOBODY:
                refused.append(address)
            return take(address)

        channels.take = watched
        nameservers = Nameservers([NOBODY, cluster.address], channels, 5.0)
        for _ in range(3):
            route = nameservers.route("T")
            assert {queue.broker_name for queue in route.queues} == {"a", "b"}
        assert refused == [NOBODY]

    def test_a_topic_that_nobody_who_answers_knows_is_nowhere(self, cluster, channels):
        nameservers = Nameservers([cluster.address, NOBODY], channels, 5.0)
        assert nameservers.route("other") is None
        with pytest.raises(TopicNotExist):
            nameservers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "other"})

    def test_one_that_has_just_begun_does_not_hide_what_another_knows(self, cluster, channels):
        begun = cluster.brokers["a"]
        begun.serve = lambda endpoint, cmd: endpoint.send(
            cmd.reply(ResponseCode.TOPIC_NOT_EXIST, "not yet"), cmd
        )
        nameservers = Nameservers([begun.address, cluster.address], channels, 5.0)
        assert nameservers.route("T").queues

    def test_a_route_is_good_for_a_while_and_as_long_as_nobody_answers(self, cluster, channels):
        nameservers = Nameservers([cluster.address], channels, 5.0)
        first = nameservers.route("T")
        assert nameservers.route("T", max_age_s=60.0) is first
        assert nameservers.route("T") is not first
        last = nameservers.route("T")
        cluster.on_loop(cluster.stop)
        assert nameservers.route("T") is last
        said = rf"no answer of any nameserver of {cluster.address} .option endpoints.: check that"
        with pytest.raises(NameserversUnreachable, match=said):
            nameservers.route("other")


def test_an_answer_that_drips_in_is_waited_for_no_longer_than_one_that_does_not_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def drip() -> None:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):
                peer.recv(1000)
                peer.sendall((1000).to_bytes(4, "big"))
                while not over.wait(0.01):
                    peer.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        channel = Channel(NativeRuntime(), address, 5.0)
        try:
            with pytest.raises(RequestTimeout, match=r"in 0\.1 s"):
                channel.request(Command.request(RequestCode.SINK_STATE), 0.1)
        finally:
            channel.close()
            over.set()
            thread.join()


@pytest.mark.parametrize("address", ["", "x", "127.0.0.1:99999", "a..b:1", "x" * 70 + ":1"])
def test_an_address_that_is_none_is_one_where_nobody_answers(address: str) -> None:
    """A route may tell it, and so may another broker."""
    with pytest.raises(ConnectFailed, match="no connection to"):
        Channel(NativeRuntime(), address, 5.0)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "a\0b"])
def test_a_name_that_no_host_can_have_is_one_where_nobody_answers(host: str) -> None:
    async def connect() -> None:
        with pytest.raises(ConnectFailed, match="no connection to"):
            await NativeRuntime().connect(host, 1, asyncio.Protocol())

    asyncio.run(connect())
