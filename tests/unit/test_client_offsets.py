"""Offsets on their way to the brokers: what is sent when, to whom, and what is sent again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from saturnmq.client.consumer.offset_store import RemoteOffsets
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConnectionLost, MalformedFrame, SaturnError, error_for

QUERY, UPDATE = 14, 15
A0, A1, B0, B1 = (MessageQueue("T", name, number) for name in "ab" for number in (0, 1))
OTHER = MessageQueue("U", "a", 0)


class Tasks:
    """Work that was begun, until a test runs it."""

    def __init__(self) -> None:
        self.begun: list[Any] = []

    def once(self, work: Any, *, name: str) -> None:
        self.begun.append(work)


class Brokers:
    """What RemoteOffsets uses of ClientCore."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.terms: dict[Any, dict[str, str]] = {}
        self.slaves: set[str] = set()  # names of brokers that have no master
        self.unknown: set[str] = set()  # names that the route does not have
        self.connections: dict[str, object] = {"a:1": object(), "b:1": object()}
        self.refusing: set[str] = set()
        self.answer: tuple[int, dict[str, str]] = 0, {}
        self.answered = 0
        self.asked: list[tuple[int, str, dict[str, str]]] = []  # first: how many were answered then
        self.oneways: list[tuple[str, dict[str, str]]] = []
        self.connecting: list[str] = []

    def broker_address(self, name: str, *, master: bool = True) -> str | None:
        if name in self.unknown or (name in self.slaves and master):
            return None
        return f"{name}:1"

    def connected(self, address: str) -> object | None:
        return self.connections.get(address)

    async def connect(self, address: str) -> None:
        self.connecting.append(address)
        raise ConnectionLost(f"no {address}")

    def oneway(self, address: str, request: Command) -> None:
        assert request.code == UPDATE
        self.oneways.append((address, request.ext))

    async def invoke(self, address: str, request: Command, *, ok: Any = frozenset({0})) -> Command:
        self.asked.append((self.answered, address, request.ext))
        for _ in range(3):  # all that go together are asked first
            await asyncio.sleep(0)
        self.answered += 1
        if address in self.refusing:
            raise ConnectionLost(f"{address} is away")
        code, ext = self.answer
        if code not in ok:
            raise error_for(code, "no")
        return request.reply(code, ext=ext)

    def commit(self, offsets: RemoteOffsets, *queues: MessageQueue, **how: Any) -> dict[str, int]:
        """What one commit sends one-way, by queue."""
        self.oneways.clear()
        asyncio.run(offsets.commit(queues or None, **how))
        return {
            f"{ext['topic']} {address[0]}{ext['queueId']}": int(ext["commitOffset"])
            for address, ext in self.oneways
        }


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def offsets(brokers: Any) -> RemoteOffsets:
    return RemoteOffsets(brokers, "G")


@pytest.mark.parametrize(
    ("code", "ext", "expected"),
    [
        (0, {"offset": "5"}, 5),
        (0, {"offset": "0"}, 0),
        (0, {"offset": "-1"}, None),
        (22, {}, None),
    ],
)
def test_an_offset_is_what_the_broker_says(
    brokers: Brokers, offsets: RemoteOffsets, code: int, ext: dict[str, str], expected: Any
) -> None:
    brokers.answer = code, ext
    brokers.slaves = {"b"}
    assert asyncio.run(offsets.load(B1)) == expected
    asked = {"consumerGroup": "G", "topic": "T", "queueId": "1", "bname": "b"}
    assert brokers.asked == [(0, "b:1", asked)], "a slave knows it as well"
    assert brokers.terms == {}
    brokers.answer = code, {**ext, "saturnTerm": "7"}
    asyncio.run(offsets.load(B1, stored_only=True))
    assert brokers.asked[1] == (1, "b:1", {**asked, "setZeroIfNotFound": "false"})
    assert brokers.terms == {}, "nobody begins there"
    asyncio.run(offsets.load(B1, begins=True))
    assert brokers.terms == ({} if code else {("G", B1): {"saturnTerm": "7"}})


@pytest.mark.parametrize(("own", "believed"), [(4, True), (5, True), (6, False)])
def test_an_own_offset_that_is_greater_is_told_with_the_epoch_that_it_is_of(
    brokers: Brokers, offsets: RemoteOffsets, own: int, believed: bool
) -> None:
    """Or messages that got the offsets of lost ones before it would be passed over."""
    brokers.answer = 0, {"offset": "5", "saturnTerm": "9", "saturnEpochs": "3-0,9-40"}
    brokers.terms["G", A0] = {"saturnTerm": "7", "saturnEpochs": "3-0,7-50"}
    offsets.update(A0, own)
    assert asyncio.run(offsets.load(A0, begins=True)) == 5
    assert brokers.terms["G", A0]["saturnTerm"] == ("9" if believed else "7")
    brokers.commit(offsets)
    [(_, ext)] = brokers.oneways
    assert ext["saturnEpochs"] == ("3-0,9-40" if believed else "3-0,7-50")


@pytest.mark.parametrize("answer", [(0, {"offset": "-2"}), (0, {}), (1, {"offset": "5"})])
def test_an_answer_that_is_no_offset_is_an_error(
    brokers: Brokers, offsets: RemoteOffsets, answer: Any
) -> None:
    brokers.answer = answer
    with pytest.raises(SaturnError) as caught:
        asyncio.run(offsets.load(A0))
    assert isinstance(caught.value, MalformedFrame) == (answer[0] == 0)


def test_offsets_rise_and_are_sent_once_with_the_epoch_that_they_are_of(
    brokers: Brokers, offsets: RemoteOffsets
) -> None:
    offsets.update(A0, -1)
    assert offsets.known(A0) is None
    for offset in (0, 5, 3, 5):
        offsets.update(A0, offset)
    offsets.update(B1, 0)
    brokers.terms["G", A0] = {"saturnTerm": "7"}
    assert brokers.commit(offsets) == {"T a0": 5, "T b1": 0}
    assert [ext.get("saturnTerm") for _, ext in sorted(brokers.oneways)] == ["7", None]
    assert {(ext["consumerGroup"], ext["bname"]) for _, ext in brokers.oneways} == {
        ("G", "a"),
        ("G", "b"),
    }
    offsets.update(A0, 5)
    assert brokers.commit(offsets) == {}
    offsets.reset(A0, 2)
    assert brokers.commit(offsets) == {"T a0": 2}
    offsets.update(A0, 6)
    offsets.update(B1, 6)
    assert brokers.commit(offsets, B1, A1) == {"T b1": 6}
    offsets.forget(A0)
    assert (brokers.commit(offsets), offsets.known(A0), brokers.terms) == ({}, None, {})


def test_what_went_over_a_connection_that_is_gone_is_sent_again(
    brokers: Brokers, offsets: RemoteOffsets
) -> None:
    brokers.slaves = {"a", "b"}
    for queue in (A0, B0):
        offsets.update(queue, 5)
    assert brokers.commit(offsets) == {"T a0": 5, "T b0": 5}
    assert brokers.commit(offsets) == {}
    brokers.connections["a:1"] = object()
    assert brokers.commit(offsets) == {"T a0": 5}
    brokers.unknown = {"b"}
    assert brokers.commit(offsets) == {}
    brokers.unknown = set()
    assert brokers.commit(offsets) == {"T b0": 5}
    brokers.connections["b:1"] = object()
    offsets.forget(B0)
    assert brokers.commit(offsets) == {}
    assert brokers.tasks.begun == []


def test_what_cannot_be_sent_now_waits_and_holds_up_nothing(
    brokers: Brokers, offsets: RemoteOffsets
) -> None:
    brokers.unknown = {"a"}
    brokers.connections.pop("b:1")
    for queue in (A0, B0, OTHER):
        offsets.update(queue, 5)
    assert brokers.commit(offsets) == {}
    (reach,) = brokers.tasks.begun
    asyncio.run(reach())
    assert brokers.connecting == ["b:1"], "for the next commit"
    brokers.unknown = set()
    assert brokers.commit(offsets) == {"T a0": 5, "U a0": 5}
    brokers.connections["b:1"] = object()
    assert brokers.commit(offsets) == {"T b0": 5}


def test_confirmed_commits_go_one_first_for_each_broker_and_topic(
    brokers: Brokers, offsets: RemoteOffsets
) -> None:
    """RocketMQ's brokers may lose what is committed beside a group's first commit of a topic."""
    for queue in (A0, A1, B0, B1, OTHER):
        offsets.update(queue, 5)
    assert brokers.commit(offsets, confirm=True) == {}
    asked = [(n, ext["topic"], ext["bname"], ext["queueId"]) for n, _, ext in brokers.asked]
    assert sorted(asked) == [
        (0, "T", "a", "0"),
        (0, "T", "b", "0"),
        (0, "U", "a", "0"),
        (3, "T", "a", "1"),
        (3, "T", "b", "1"),
    ]
    assert brokers.commit(offsets) == {}


def test_a_commit_that_was_not_confirmed_is_made_again(
    brokers: Brokers, offsets: RemoteOffsets
) -> None:
    for queue in (A0, B0):
        offsets.update(queue, 5)
    brokers.refusing = {"a:1"}
    brokers.commit(offsets, confirm=True)
    assert brokers.commit(offsets) == {"T a0": 5}
    brokers.refusing = set()
    offsets.update(A0, 6)
    brokers.commit(offsets, confirm=True)
    brokers.connections["a:1"] = object()
    assert brokers.commit(offsets) == {}, "the broker answered: it has this one"


def test_a_queue_that_went_elsewhere_meanwhile_is_not_committed_again(
    brokers: Brokers, offsets: RemoteOffsets
) -> None:
    offsets.update(A0, 5)
    brokers.refusing = {"a:1"}

    async def forgotten_meanwhile() -> None:
        committing = asyncio.ensure_future(offsets.commit(confirm=True))
        await asyncio.sleep(0.001)
        offsets.forget(A0)
        await committing

    asyncio.run(forgotten_meanwhile())
    assert brokers.commit(offsets) == {}
