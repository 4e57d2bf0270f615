"""Where a sink's rows go, what is asked again and for how long, and when a stage is published."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from saturnmq.client import channels
from saturnmq.client.producer import staging
from saturnmq.client.producer.staging import Pinned, Published, Stage, StagingClient
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import PERM_READ, PERM_WRITE, RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute
from saturnmq.runtime.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    NoPermission,
    RequestTimeout,
    SaturnError,
    StageLost,
    SystemBusy,
    SystemError_,
    TopicNotExist,
    UnsupportedRequest,
)

NAMESERVER = "n:9"
Trouble = int | SaturnError


class Wire:
    """The connections of a client: to a nameserver, and to brokers of which each does what a test
    says (`does`: an error, a code or fields of an answer, for one request each)."""

    def __init__(self, *names: str) -> None:
        self.now = 500.0
        self.slept: list[float] = []
        self.masters = {name: f"{name}:1" for name in names}
        self.topics = {"T": dict.fromkeys(names, (2, PERM_READ | PERM_WRITE))}
        self.states: dict[str, dict[str, Any]] = {name: {} for name in names}
        self.does: dict[str, deque[Trouble | dict[str, str]]] = {name: deque() for name in names}
        self.asked: list[tuple[str, Command, float]] = []
        self.lines: list[Line] = []
        self.kept: list[Line] = []
        self.emptied = 0
        self.client = StagingClient(NAMESERVER, timeout_s=7.0, retry_s=10.0, channels=self)  # type: ignore[arg-type]

    # the clock

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    # the connections

    def request(self, address: str, command: Command, timeout_s: float) -> Command:
        self.asked.append((address, command, timeout_s))
        if address == NAMESERVER:
            return self.named(command)
        return self.answer(address, command)

    def take(self, address: str) -> Line:
        self.lines.append(Line(self, address))
        return self.lines[-1]

    def give_back(self, address: str, line: Line) -> None:
        assert address == line.address
        self.kept.append(line)

    def close_idle(self) -> None:
        self.emptied += 1

    def named(self, command: Command) -> Command:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {
                name: BrokerData("C", name, {0: address} if address else {1: "z:1"}).to_json()
                for name, address in self.masters.items()
            }
            return command.reply(body=fastjson.dumps({"brokerAddrTable": table}))
        places = self.topics.get(command.ext["topic"])
        if places is None:
            return command.reply(17, "no such topic")
        route = TopicRoute(
            [QueueData(name, 9, queues, perm) for name, (queues, perm) in places.items()],
            [BrokerData("C", name, {0: f"{name}:1"}) for name in places],
        )
        return command.reply(body=fastjson.dumps(route.to_json()))

    def answer(self, address: str, command: Command) -> Command:
        name = address.partition(":")[0]
        told = self.does[name].popleft() if self.does[name] else {}
        if isinstance(told, SaturnError):
            raise told
        if isinstance(told, int):
            return command.reply(told, "said so")
        if command.code == RequestCode.SINK_STATE:
            state = self.states[name]
            if "brokers" in command.ext and (
                not state.get("brokers") or command.ext["replace"] == "true"
            ):
                state["brokers"] = command.ext["brokers"].split(";")
            return command.reply(body=fastjson.dumps({**state, **told}))
        return command.reply(ext=told)

    # what tests look at

    def requests(self, code: RequestCode) -> list[tuple[str, dict[str, str]]]:
        return [(address, c.ext) for address, c, _ in self.asked if c.code == code]


class Line:
    """A connection of one stage."""

    def __init__(self, wire: Wire, address: str) -> None:
        self.wire = wire
        self.address = address
        self.waiting: list[Command] = []
        self.closed = False

    def ask(self, command: Command, timeout_s: float) -> None:
        self.wire.asked.append((self.address, command, timeout_s))
        self.waiting.append(command)

    def answer(self) -> Command:
        return self.wire.answer(self.address, self.waiting.pop(0))

    def close(self) -> None:
        self.closed = True


def wire_of(monkeypatch: pytest.MonkeyPatch, *names: str) -> Wire:
    wire = Wire(*names)
    monkeypatch.setattr(staging, "time", wire)
    monkeypatch.setattr(channels, "time", wire)
    return wire


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """Of brokers a, b and c; all that was opened is closed or given back by its end."""
    made = wire_of(monkeypatch, "a", "b", "c")
    yield made
    assert all(line.closed != (line in made.kept) for line in made.lines)


# -- opening ---------------------------------------------------------------------------------------


def pins(wire: Wire) -> list[tuple[str, str, str]]:
    """Which broker was told which list, and whether to replace another one."""
    return [
        (address, ext["brokers"], ext["replace"])
        for address, ext in wire.requests(RequestCode.SINK_STATE)
        if "brokers" in ext
    ]


def test_a_sink_is_pinned_once_to_the_brokers_that_have_all_of_its_topics(wire: Wire) -> None:
    wire.topics = {
        "T": {"c": (1, PERM_WRITE), "a": (1, PERM_WRITE), "b": (1, PERM_READ)},
        "U": {"c": (1, PERM_WRITE), "b": (1, PERM_WRITE), "a": (1, PERM_WRITE)},
    }
    assert wire.client.open("s", ["T", "U"]) == Pinned("s", ("a", "c"))
    assert pins(wire) == [("a:1", "a;c", "false"), ("c:1", "a;c", "false")]
    assert wire.client.open("s", "U") == Pinned("s", ("a", "c"))
    assert len(pins(wire)) == 2
    assert {timeout for _, _, timeout in wire.asked} == {7.0}


@pytest.mark.parametrize("topics", ["other", ["T", "other"], []])
def test_a_sink_without_a_broker_for_all_its_topics_says_so(
    wire: Wire, topics: str | list[str]
) -> None:
    named = "no topic" if topics == [] else "T, other" if "T" in topics else "other"
    with pytest.raises(TopicNotExist, match=f"no broker takes messages of {named}: create"):
        wire.client.open("s", topics)


def test_another_list_of_brokers_replaces_the_one_that_was_told(wire: Wire) -> None:
    wire.states = {
        "a": {"brokers": ["a"], "epochs": {"4": {"0": {}, "1": {}}}, "finished": 3},
        "b": {"epochs": {"4": {"1": {}, "2": {}}}, "finished": 2},
        "c": {},
    }
    found = wire.client.open("s", "T", brokers=["b", "b"])
    published = {(4, 0): ("a",), (4, 1): ("a", "b"), (4, 2): ("b",)}
    assert found == Pinned("s", ("b",), 3, published)
    assert pins(wire) == [("a:1", "b", "true"), ("b:1", "b", "false")]
    assert wire.client.open("s", [], brokers=["b"]).brokers == ("b",)
    assert wire.requests(RequestCode.SINK_STATE)[-1] == ("b:1", {"sink": "s"})


def test_a_list_that_somebody_told_meanwhile_counts(wire: Wire) -> None:
    told: dict[str, Any] = {"brokers": ["c"]}
    wire.does["a"].extend([{}, told, told])
    assert wire.client.open("s", "T").brokers == ("c",)
    assert pins(wire) == [("a:1", "a;b;c", "false"), ("c:1", "c", "false")]


def test_what_a_pinned_broker_has_published_counts_though_the_topic_is_gone_there(
    wire: Wire,
) -> None:
    wire.topics["T"] = {"a": (1, PERM_WRITE)}
    wire.states["a"] = {"brokers": ["a", "c"], "finished": 2}
    wire.states["c"] = {"brokers": ["a", "c"], "epochs": {"4": {"0": {}}}, "finished": 3}
    assert wire.client.open("s", "T") == Pinned("s", ("a", "c"), 3, {(4, 0): ("c",)})


def test_a_broker_of_the_former_list_is_asked_though_it_takes_no_messages_now(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    wire.topics["T"] = {"b": (1, PERM_WRITE)}
    wire.states["a"] = {"brokers": ["a", "b", "c"], "epochs": {"0": {"0": {}}}}
    wire.states["b"] = {"brokers": ["a", "b", "c"], "epochs": {"0": {"1": {}}}}
    wire.does["c"].append(ConnectionLost("gone for good"))
    found = wire.client.open("s", "T", brokers=["b"])
    assert found == Pinned("s", ("b",), -1, {(0, 0): ("a",), (0, 1): ("b",)})
    assert "broker c, which sink s wrote to before, does not answer" in caplog.text
    assert wire.slept == []


def test_of_several_lists_that_of_the_first_broker_counts(wire: Wire) -> None:
    wire.states = {"a": {}, "b": {"brokers": ["b"]}, "c": {"brokers": ["c"]}}
    assert wire.client.open("s", "T").brokers == ("b",)
    assert pins(wire) == [("c:1", "b", "true")]


def test_a_client_needs_a_nameserver_and_closes_what_is_its_own(wire: Wire) -> None:
    with pytest.raises(ConfigError, match="nameservers names no address"):
        StagingClient([])
    with wire.client:
        pass
    assert wire.emptied == 0
    own = StagingClient(NAMESERVER)
    closed: list[bool] = []
    own.channels.close_idle = lambda: closed.append(True)  # type: ignore[method-assign,assignment,misc]
    own.close()
    assert (closed, own.timeout_s, own.retry_s) == ([True], 30.0, 120.0)


# -- places ----------------------------------------------------------------------------------------


def test_partitions_go_round_the_brokers_and_stay_where_they_were_published() -> None:
    names = ("a", "b", "c")
    pinned = Pinned("s", names, published={(7, 0): ("z", "y"), (7, 1): ("z", *names), (7, 2): ()})
    first = zlib.crc32(b"s")
    expected = [names[(first + partition) % 3] for partition in range(6)]
    assert [pinned.broker_of(6, partition) for partition in range(6)] == expected
    assert [pinned.broker_of(7, partition) for partition in range(3)] == ["z", *expected[1:3]]
    assert Pinned("s", names).finished == -1


def test_the_queues_of_a_topic_are_those_that_take_messages(wire: Wire) -> None:
    wire.topics["T"] = {"a": (3, PERM_WRITE), "b": (5, PERM_READ), "c": (4, PERM_WRITE)}
    for waits, asked in ((0.0, 1), (29.5, 1), (0.5, 2)):
        wire.now += waits
        found = [wire.client.queues(name, "T") for name in "abc"]
        assert found == [3, 0, 4]
        assert len(wire.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == asked
    wire.topics["U"] = {"a": (1, PERM_WRITE)}
    assert [wire.client.queues(name, "U") for name in "ab"] == [1, 0]
    wire.topics["U"]["b"] = (6, PERM_WRITE)  # where it was not, it is asked for anew
    assert wire.client.queues("b", "U") == 6
    assert wire.client.queues("c", "V") == 0
    assert wire.slept == []


def test_a_broker_that_is_away_is_waited_for_before_its_queues_are_counted(wire: Wire) -> None:
    wire.topics["T"] = {"a": (3, PERM_WRITE)}
    wire.masters["b"] = ""
    with pytest.raises(ConnectFailed, match=r"no nameserver knows a master of broker 'b'"):
        wire.client.queues("b", "T")
    assert sum(wire.slept) == pytest.approx(10.0, abs=1.0)
    assert wire.slept[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert set(wire.slept[5:]) == {1.0}


# -- patience --------------------------------------------------------------------------------------

PASSING = [SystemBusy("busy"), ConnectionLost("lost"), RequestTimeout("late"), ConnectFailed("no")]
LASTING = [SystemError_("bad"), TopicNotExist("no T"), NoPermission("no"), StageLost("gone"), 3, 1]


@pytest.mark.parametrize("trouble", [*PASSING, 2, 14], ids=str)
def test_what_may_pass_is_asked_again_of_the_next_master(wire: Wire, trouble: Trouble) -> None:
    wire.does["a"].extend([trouble, trouble])
    assert wire.client.ask("a", RequestCode.FINISH_EPOCH, {}).code == 0
    wire.does["a"].append(trouble)
    wire.masters["a"] = "b:1"
    assert wire.client.ask("a", RequestCode.FINISH_EPOCH, {"x": "y"}).code == 0
    assert wire.slept == [0.05, 0.1, 0.05]
    assert wire.requests(RequestCode.FINISH_EPOCH)[-1] == ("b:1", {"x": "y"})


@pytest.mark.parametrize("trouble", LASTING, ids=str)
def test_what_does_not_pass_is_told_at_once(wire: Wire, trouble: Trouble) -> None:
    wire.does["a"].append(trouble)
    with pytest.raises(SaturnError) as told:
        wire.client.ask("a", RequestCode.FINISH_EPOCH, {})
    assert wire.slept == []
    if trouble == 3:
        assert isinstance(told.value, UnsupportedRequest)
        assert "'a' is none, or an older one: write with delivery=at-least" in str(told.value)


@pytest.mark.parametrize(("retry_s", "pauses"), [(0.04, []), (0.05, [0.05]), (0.16, [0.05, 0.1])])
def test_nobody_waits_for_longer_than_was_said(
    wire: Wire, retry_s: float, pauses: list[float]
) -> None:
    wire.now = 0.0
    wire.client.retry_s = retry_s
    wire.does["a"].extend(SystemBusy("busy") for _ in range(5))
    with pytest.raises(SystemBusy):
        wire.client.ask("a", RequestCode.FINISH_EPOCH, {})
    assert wire.slept == pauses


def test_an_epoch_is_finished_everywhere_and_given_up_where_that_is_possible(wire: Wire) -> None:
    pinned = Pinned("s", ("a", "b"))
    wire.client.finish(pinned, 5)
    told = {"sink": "s", "epoch": "5"}
    assert wire.requests(RequestCode.FINISH_EPOCH) == [("a:1", told), ("b:1", told)]
    wire.does["a"].append(ConnectionLost("lost"))
    wire.client.abort(pinned, 5)
    assert wire.requests(RequestCode.ABORT_STAGE) == [("a:1", told), ("b:1", told)]
    assert [timeout for _, _, timeout in wire.asked[-2:]] == [1.0, 1.0]
    assert wire.slept == []


# -- stages ----------------------------------------------------------------------------------------


def stage_of(wire: Wire) -> Stage:
    return wire.client.stage(Pinned("s", ("a",)), 4, 2)


def chunks(wire: Wire) -> Sequence[str]:
    return [ext["seq"] for _, ext in wire.requests(RequestCode.STAGE)]


def test_a_stage_says_what_it_holds_and_is_published_with_its_sums(wire: Wire) -> None:
    stage = stage_of(wire)
    stage.add("T", 3, b"12345", 2, sys_flag=9, born_timestamp=77)
    stage.add("U", 0, bytearray(b"123"), 1)
    wire.does["a"].extend([{}, {"rows": "3", "duplicate": "false", "offset": "-1"}])
    assert stage.publish() == Published(3, False, -1)
    assert (stage.broker, stage.rows, stage.bytes) == ("a", 3, 8)
    (_, first), (_, second) = wire.requests(RequestCode.STAGE)
    key = {"sink": "s", "epoch": "4", "partition": "2", "attempt": first["attempt"]}
    assert first == {
        **key,
        "seq": "0",
        "topic": "T",
        "queueId": "3",
        "sysFlag": "9",
        "bornTimestamp": "77",
    }
    assert second == {
        **key,
        "seq": "1",
        "topic": "U",
        "queueId": "0",
        "sysFlag": "0",
    }
    ((_, published),) = wire.requests(RequestCode.PUBLISH)
    assert published == {**key, "chunks": "2", "rows": "3", "bytes": "8"}
    assert [bytes(c.body) for _, c, _ in wire.asked if c.code == RequestCode.STAGE] == [
        b"12345",
        b"123",
    ]
    assert {timeout for _, _, timeout in wire.asked} == {7.0}
    assert (len(wire.lines), wire.kept) == (1, wire.lines)
    assert stage_of(wire)._key["attempt"] != first["attempt"]
    assert wire.client.stage(Pinned("s", ("a",)), 4, 2, broker="b").broker == "b"


def test_what_is_published_already_is_not_sent_again(wire: Wire) -> None:
    stage = stage_of(wire)
    stage.add("T", 0, b"1", 1)
    wire.does["a"].append({"duplicate": "true"})
    stage.add("T", 0, b"22", 2)
    stage.add("T", 0, b"333", 3)
    assert chunks(wire) == ["0"]
    wire.does["a"].append({"rows": "-1", "duplicate": "true", "offset": "50"})
    assert stage.publish() == Published(-1, True, 50)
    ((_, published),) = wire.requests(RequestCode.PUBLISH)
    assert (published["chunks"], published["rows"], published["bytes"]) == ("3", "6", "6")


@pytest.mark.parametrize("field", ["rows", "offset"])
def test_an_answer_to_a_publication_that_cannot_be_is_an_error(wire: Wire, field: str) -> None:
    stage = stage_of(wire)
    wire.does["a"].append({"rows": "1", "duplicate": "false", "offset": "0", field: "-2"})
    with pytest.raises(SaturnError, match=f"{field} is '?-2"):
        stage.publish()


@pytest.mark.parametrize("trouble", [ConnectionLost("lost"), 2], ids=str)
def test_a_chunk_without_an_answer_is_sent_again_over_a_new_connection(
    wire: Wire, trouble: Trouble
) -> None:
    stage = stage_of(wire)
    stage.add("T", 0, b"1", 1)
    wire.does["a"].append(trouble)
    stage.add("T", 0, b"2", 1)
    assert chunks(wire) == ["0", "0", "1"]
    assert [line.closed for line in wire.lines] == [True, False]
    stage.abort()
    assert [line.closed for line in wire.lines] == [True, True]
    ((_, aborted),) = wire.requests(RequestCode.ABORT_STAGE)
    assert aborted == stage._key
    stage.abort()


def test_a_broker_that_cannot_be_reached_gets_the_chunk_when_it_can(wire: Wire) -> None:
    stage = stage_of(wire)
    wire.masters["a"] = ""
    stage.add("T", 0, b"1", 1)
    assert chunks(wire) == []
    wire.masters["a"] = "a:1"
    wire.does["a"].extend([{}, {"rows": "1", "duplicate": "false", "offset": "0"}])
    assert stage.publish().rows == 1
    assert chunks(wire) == ["0"]


def test_a_stage_that_is_lost_is_lost_once(wire: Wire) -> None:
    stage = stage_of(wire)
    stage.add("T", 0, b"1", 1)
    wire.does["a"].append(StageLost("gone"))
    with pytest.raises(StageLost):
        stage.add("T", 0, b"2", 1)
    assert (stage.rows, chunks(wire)) == (1, ["0"])
    stage.abort()
