"""Requests of servers to a client: who hears of which, and what is answered."""

from __future__ import annotations

import asyncio
import linecache
import re
from types import SimpleNamespace
from typing import Any

import pytest
from saturnmq.client.producer.at_exit import UnsentMessages, loss
from saturnmq.client.server_requests import TOPICS_MAX, ServerRequests
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    MalformedFrame,
    NoPermission,
    SaturnError,
    SystemError_,
    UnsupportedRequest,
)
from saturnmq.runtime.native import NativeRuntime
from saturnmq.runtime.stacks import CHARACTERS_MOST, stacks
from saturnmq.runtime.supervision import Supervisor

Q = MessageQueue("T", "a", 1)
KEY = '{"brokerName":"a","queueId":1,"topic":"T"}'


class Consumer:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.consumed: Any = {"x": 1}

    def on_ids_changed(self) -> None:
        self.heard.append("ids")

    def on_reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        self.heard.append((topic, offsets))

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        return {Q: 5} if topic == "T" else {}

    def running_info(self) -> dict[str, Any]:
        return {"properties": {"p": "q"}, "mqTable": {Q: {"n": 1}}, "mqPopTable": {}, "last": [2]}

    def consume_directly(self, ext: dict[str, str], frame: bytes) -> Any:
        self.heard.append((ext, frame))
        if isinstance(self.consumed, BaseException):
            raise self.consumed
        return self.consumed


class Line:
    """The connection that a server asks over."""

    def __init__(self) -> None:
        self.sent: list[Command] = []

    def send(self, answer: Command, request: Command) -> None:
        self.sent.append(answer)


class Client:
    """Groups G (a consumer), H (one that can do nothing but hear of members) and P."""

    def __init__(self) -> None:
        self.told: list[SaturnError] = []
        self.routes: list[tuple[str, list[str]]] = []
        runtime = NativeRuntime()
        self.asked = ServerRequests(
            runtime,
            Supervisor(runtime, self.told.append),
            lambda endpoint: "n:1",
            lambda address, topics: self.routes.append((address, topics)),
        )
        self.consumer, self.other = Consumer(), SimpleNamespace(on_ids_changed=self.other_heard)
        self.asked.consumers.update(G=self.consumer, H=self.other)  # type: ignore[arg-type]
        self.others = 0
        self.line = Line()

    def other_heard(self) -> None:
        self.others += 1

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        line: Any = self.line
        self.asked.handle(line, Command.request(code, ext or {}, body))

    def answer(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        self.ask(code, ext, body)
        return self.line.sent.pop()


@pytest.fixture
def client() -> Client:
    async def made() -> Client:
        return Client()

    return asyncio.run(made())


def test_changed_routes_are_told_with_who_says_so(client: Client) -> None:
    client.ask(RequestCode.ROUTE_CHANGED, body=fastjson.dumps(["T", "U"]))
    assert client.routes == [("n:1", ["T", "U"])]
    client.ask(RequestCode.ROUTE_CHANGED, body=fastjson.dumps(["T"] * TOPICS_MAX))
    with pytest.raises(MalformedFrame):
        client.ask(RequestCode.ROUTE_CHANGED, body=fastjson.dumps(["T"] * (TOPICS_MAX + 1)))
    assert (TOPICS_MAX, len(client.routes), client.line.sent) == (65_536, 2, [])


def test_members_that_changed_are_told_to_their_group_or_to_all(client: Client) -> None:
    client.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
    assert (client.consumer.heard, client.others) == (["ids"], 0)
    client.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert (client.consumer.heard, client.others, client.line.sent) == (["ids", "ids"], 1, [])


def test_producers_hear_of_what_they_can_do(client: Client) -> None:
    heard: list[Any] = []
    client.asked.producers.update(
        P=None,
        Q=SimpleNamespace(
            check_transaction=lambda *said: heard.append(said),
            on_reply=lambda *said: heard.append(said),
        ),
    )
    client.ask(RequestCode.CHECK_TRANSACTION_STATE, {"x": "y"}, b"frame")
    assert (heard, client.line.sent) == ([({"x": "y"}, b"frame", "n:1")], [])
    heard.clear()
    assert client.answer(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, {"x": "y"}, b"body").code == 0
    assert heard == [({"x": "y"}, b"body")]


@pytest.mark.parametrize("field", ["consumerGroup", "group"])
def test_a_consumer_answers_for_its_group(client: Client, field: str) -> None:
    ext = {field: "G", "topic": "T"}
    table = f'{{"offsetTable":{{{KEY}:7}}}}'.encode()
    assert client.answer(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, table).code == 0
    assert client.consumer.heard == [("T", {Q: 7})]
    status = client.answer(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext)
    assert bytes(status.body) == (
        f'{{"consumerTable":{{}},"messageQueueTable":{{{KEY}:5}}}}'.encode()
    )
    info = client.answer(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert (
        bytes(info.body)
        == (
            f'{{"properties":{{"p":"q"}},"mqTable":{{{KEY}:{{"n":1}}}},"mqPopTable":{{}},"last":[2]}}'
        ).encode()
    )


def test_stacks_are_told_when_they_are_wanted() -> None:
    async def test() -> None:
        client = Client()
        linecache.clearcache()  # reading the sources lets this thread go on
        for wanted in ("true", "false"):
            client.ask(
                RequestCode.GET_CONSUMER_RUNNING_INFO, {"group": "G", "jstackEnable": wanted}
            )
            async with asyncio.timeout(10):
                while not client.line.sent:
                    await asyncio.sleep(0)
            told = fastjson.loads(client.line.sent.pop().body)
            assert told["last"] == [2]
            assert ("in test_stacks_are_told" in told.get("jstack", "")) == (wanted == "true")

    asyncio.run(test())


def test_stacks_have_threads_and_tasks_and_say_how_much_is_left_out() -> None:
    async def a_task_that_waits(for_what: asyncio.Event) -> None:
        await for_what.wait()

    async def test() -> list[str]:
        gate = asyncio.Event()
        names = [f"waiting-{'x' * 2000}-{number}" for number in range(600)]
        tasks = [asyncio.create_task(a_task_that_waits(gate), name=name) for name in names]
        await asyncio.sleep(0)
        texts = [stacks(tasks[:1]), stacks(tasks)]
        gate.set()
        await asyncio.gather(*tasks)
        return texts

    one, all_of_them = asyncio.run(test())
    assert "thread MainThread (" in one
    assert "in test_stacks_have_threads_and_tasks" in one
    assert f"task waiting-{'x' * 2000}-0:" in one
    assert "in a_task_that_waits" in one
    assert len(all_of_them) < CHARACTERS_MOST + 100
    assert re.search(r"\n\.\.\. \d+ characters more are left out\n$", all_of_them)


def test_what_nobody_here_does_is_an_error(client: Client) -> None:
    with pytest.raises(UnsupportedRequest, match="request type 99 not supported"):
        client.ask(99, {"group": "G"})
    for ext in ({}, {"group": "unknown"}, {"consumerGroup": "H", "group": "G"}):
        with pytest.raises(SystemError_, match="does not do this here"):
            client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert (client.line.sent, client.consumer.heard) == ([], [])


async def later() -> dict[str, Any]:
    return {"x": 2}


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (lambda: {"x": 1}, 0, b'{"x":1}'),
        (later, 0, b'{"x":2}'),
        (lambda: NoPermission("not now"), NoPermission.code, "not now"),
        (lambda: ValueError("broken"), 1, "broken"),
    ],
)
def test_one_message_is_consumed_and_its_result_told(outcome: Any, code: int, said: Any) -> None:
    async def test() -> None:
        client = Client()
        client.consumer.consumed = outcome()
        client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"group": "G"}, b"frame")
        async with asyncio.timeout(5):
            while not client.line.sent:
                await asyncio.sleep(0)
        (answer,) = client.line.sent
        assert client.consumer.heard == [({"group": "G"}, b"frame")]
        assert answer.code == code
        if isinstance(said, bytes):
            assert bytes(answer.body) == said
        else:
            assert said in str(answer.remark)
        assert len(client.told) == (said == "broken")

    asyncio.run(test())


def batch(count: int, *, done: bool = True, error: Exception | None = None) -> Any:
    return SimpleNamespace(count=count, done=done, error=error)


def test_what_a_program_loses_at_its_end_is_what_failed_or_is_not_over() -> None:
    stored, failed = batch(1), batch(2, error=ValueError("mine"))
    late = batch(4, done=False)
    assert loss("g", [stored], "too late") is None
    assert loss("g", [], "too late") is None
    assert loss("g", [stored, late], "too late") == UnsentMessages("g", 4, "too late")
    assert loss("g", [late, stored, failed], "too late") == UnsentMessages(
        "g", 6, "ValueError('mine')"
    )
