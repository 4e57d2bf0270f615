"""Requests with replies: a broker that passes them on (324, 325, 326), and both sides in our
client."""

from __future__ import annotations

import asyncio
import queue
import random
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from broker_rig import ask, config, connected, run, started, until
from example_rig import printed_by
from saturnmq import Message, Producer, PushConsumer, ReceivedMessage, aio
from saturnmq.broker.broker import Broker
from saturnmq.broker.handlers import replies
from saturnmq.client.producer.requesting import Requests
from saturnmq.protocol import fastjson, properties
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import (
    ClientClosed,
    ConnectFailed,
    MalformedFrame,
    MessageIllegal,
    RequestTimeout,
    SaturnError,
    SystemError_,
)
from saturnmq.runtime.native import NativeRuntime
from served_rig import served
from staging_rig import TOPIC as ROWS
from staging_rig import publishing

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "CORRELATION_ID\x017\x02REPLY_TO_CLIENT\x01me\x02MSG_TYPE\x01reply\x02"
SHORT = {"a": "P", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 9, "h": 3}
LONG = {
    "producerGroup": "P",
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 9,
    "flag": 3,
}


class Requester:
    """A client of this id, which notes the replies that a broker passes on to it."""

    def __init__(self, runtime: NativeRuntime, code: int = 0) -> None:
        self.pushed: list[Command] = []
        self.code = code
        self.endpoint = Endpoint(runtime, self.asked)

    def asked(self, endpoint: Endpoint, command: Command) -> None:
        self.pushed.append(command)
        endpoint.send(command.reply(self.code, "no room"), command)

    async def join(self, runtime: NativeRuntime, broker: Broker, client_id: str = "me") -> None:
        await runtime.connect(*split_address(broker.address), self.endpoint)
        await self.beat(client_id)

    async def beat(self, client_id: str = "me") -> None:
        body = {"clientID": client_id, "producerDataSet": [{"groupName": "Q"}]}
        beat = {**body, "consumerDataSet": [], "heartbeatFingerprint": 0, "withoutSub": False}
        assert (
            await ask(self.endpoint, RequestCode.HEART_BEAT, {}, fastjson.dumps(beat))
        ).code == 0


def with_broker(
    root: Path, test: Callable[[NativeRuntime, Broker, Endpoint], Awaitable[None]], **changes: Any
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(root, **changes))
        consumer = await connected(runtime, broker)
        await test(runtime, broker, consumer)
        broker.validate()
        consumer.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize("code", [324, 325])
@pytest.mark.parametrize("stores", [True, False])
def test_a_reply_goes_to_its_requester_with_all_that_it_says(
    tmp_path: Path, code: int, stores: bool
) -> None:
    async def test(runtime: NativeRuntime, broker: Broker, consumer: Endpoint) -> None:
        requester = Requester(runtime)
        await requester.join(runtime, broker)
        ext = {**LONG, "properties": PROPERTIES} if code == 324 else {**SHORT, "i": PROPERTIES}
        answer = await ask(consumer, code, ext, b"the reply")
        assert (answer.code, answer.ext["queueId"]) == (0, "0")
        [pushed] = requester.pushed
        assert (pushed.code, bytes(pushed.body)) == (326, b"the reply")
        told = dict(pushed.ext)
        assert told.pop("storeHost") == broker.address
        assert told.pop("bornHost").startswith("127.0.0.1:")
        assert int(told.pop("storeTimestamp")) > 0
        sent = properties.decode_properties(told.pop("properties").encode())
        assert int(sent.pop("PUSH_REPLY_TIME")) > 0
        assert sent == {"CORRELATION_ID": "7", "REPLY_TO_CLIENT": "me", "MSG_TYPE": "reply"}
        unsaid = {"reconsumeTimes": "0", "unitMode": "false"}
        assert told == {**{name: str(value) for name, value in LONG.items()}, **unsaid}
        marks = broker.store.watermarks
        await until(lambda: marks.dispatched == marks.appended)
        assert broker.store.max_offset(TOPIC, 0) == (1 if stores else 0)
        if stores:
            [kept] = decode_frames(broker.store.get_message(TOPIC, 0, 0, 1).data, True)
            assert (kept.body, kept.flag, kept.born_timestamp) == (b"the reply", 3, 9)
            assert kept.offset_message_id == answer.ext["msgId"]
            assert kept.properties["CORRELATION_ID"] == "7"
        requester.endpoint.close()

    with_broker(tmp_path, test, store_replies=stores)


@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_waits_for_the_end_of_an_atomic_batch(tmp_path: Path, code: int) -> None:
    async def test(runtime: NativeRuntime, broker: Broker, consumer: Endpoint) -> None:
        requester = Requester(runtime)
        await requester.join(runtime, broker)
        assert (await ask(consumer, RequestCode.UPDATE_AND_CREATE_TOPIC, ROWS)).code == 0
        publish = await publishing(consumer, broker)
        ext = {**LONG, "properties": PROPERTIES} if code == 324 else {**SHORT, "i": PROPERTIES}
        answer = await ask(consumer, code, ext, b"the reply")
        assert (answer.code, answer.remark or "") == (0, "")
        assert [bytes(pushed.body) for pushed in requester.pushed] == [b"the reply"]
        assert (await publish).code == 0
        requester.endpoint.close()

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    ("body", "sent", "why"),
    [
        (b"x", "CORRELATION_ID\x017\x02", "REPLY_TO_CLIENT property is null"),
        (b"x", PROPERTIES.replace("me", "you"), "channel of <you> not found"),
        (b"", PROPERTIES, "the body of the reply is empty"),
    ],
)
def test_a_reply_that_cannot_be_passed_on_is_refused_and_not_stored(
    tmp_path: Path, body: bytes, sent: str, why: str
) -> None:
    async def test(runtime: NativeRuntime, broker: Broker, consumer: Endpoint) -> None:
        requester = Requester(runtime)
        await requester.join(runtime, broker)
        appended = broker.store.watermarks.appended
        answer = await ask(consumer, 325, {**SHORT, "i": sent}, body)
        assert answer.code != 0
        assert why in str(answer.remark)
        assert requester.pushed == []
        assert broker.store.watermarks.appended == appended
        requester.endpoint.close()

    with_broker(tmp_path, test)


def test_a_requester_that_refuses_or_has_gone_is_an_error_for_its_consumer(tmp_path: Path) -> None:
    async def test(runtime: NativeRuntime, broker: Broker, consumer: Endpoint) -> None:
        requester = Requester(runtime, code=1)
        await requester.join(runtime, broker)
        answer = await ask(consumer, 325, {**SHORT, "i": PROPERTIES}, b"x")
        assert (answer.code, answer.remark) == (1, "push reply message fail: no room")
        requester.endpoint.close()
        await until(lambda: broker.ground.context.clients.producer("me") is None)
        answer = await ask(consumer, 325, {**SHORT, "i": PROPERTIES}, b"x")
        assert (answer.code, "not found" in str(answer.remark)) == (1, True)

    with_broker(tmp_path, test)


def test_replies_that_nobody_takes_are_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(replies, "WAITING_MOST", 3)

    async def test(runtime: NativeRuntime, broker: Broker, consumer: Endpoint) -> None:
        requester = Requester(runtime)
        requester.endpoint = Endpoint(runtime, lambda endpoint, command: None)  # never answers
        await requester.join(runtime, broker)
        texts = {name: str(value) for name, value in {**SHORT, "i": PROPERTIES}.items()}
        waiting = [consumer.request(Command.request(325, texts, b"x"), 10.0) for _ in range(3)]
        answer = await ask(consumer, 325, {**SHORT, "i": PROPERTIES}, b"x")
        assert (answer.code, "the limit is 3" in str(answer.remark)) == (2, True)
        requester.endpoint.close()
        assert [(await each).code for each in waiting] == [1, 1, 1]
        assert (await ask(consumer, 325, {**SHORT, "i": PROPERTIES}, b"x")).code == 1

    with_broker(tmp_path, test)


def test_a_client_is_known_by_its_newest_id_and_connection(tmp_path: Path) -> None:
    async def test(runtime: NativeRuntime, broker: Broker, consumer: Endpoint) -> None:
        clients = broker.ground.context.clients
        first, second = Requester(runtime), Requester(runtime)
        await first.join(runtime, broker)
        old = clients.producer("me")
        await second.join(runtime, broker)
        new = clients.producer("me")
        assert old is not new is not None
        first.endpoint.close()
        await until(lambda: len(clients.producers["Q"]) == 1)
        assert clients.producer("me") is new
        body = {"clientID": "other", "producerDataSet": [{"groupName": "Q"}], "consumerDataSet": []}
        await ask(second.endpoint, RequestCode.HEART_BEAT, {}, fastjson.dumps(body))
        assert (clients.producer("me"), clients.producer("other")) == (None, new)
        clients.validate()
        second.endpoint.close()
        await until(lambda: clients.producer("other") is None)
        clients.validate()

    with_broker(tmp_path, test)


def test_a_requester_is_found_when_its_old_connection_was_heard_after_the_new_one(
    tmp_path: Path,
) -> None:
    """A broker that hung reads the connections of a client in any order when it goes on."""

    async def test(runtime: NativeRuntime, broker: Broker, consumer: Endpoint) -> None:
        clients = broker.ground.context.clients
        old, new = Requester(runtime), Requester(runtime)
        await new.join(runtime, broker)
        await old.join(runtime, broker)
        old.endpoint.close()
        await until(lambda: len(clients.producers["Q"]) == 1)
        clients.validate()
        answer = await ask(consumer, 325, {**SHORT, "i": PROPERTIES}, b"the reply")
        assert answer.code == 0, answer.remark
        assert [bytes(each.body) for each in new.pushed] == [b"the reply"]
        new.endpoint.close()

    with_broker(tmp_path, test)


def test_a_reply_goes_over_the_connection_that_was_heard_last(tmp_path: Path) -> None:
    async def test(runtime: NativeRuntime, broker: Broker, consumer: Endpoint) -> None:
        old, new = Requester(runtime), Requester(runtime)
        await new.join(runtime, broker)
        await old.join(runtime, broker)  # and nothing says that it has ended
        await new.beat()
        await ask(consumer, 325, {**SHORT, "i": PROPERTIES}, b"the reply")
        assert (len(old.pushed), len(new.pushed)) == (0, 1)
        for each in (old, new):
            each.endpoint.close()

    with_broker(tmp_path, test)


# the client


def test_a_consumer_replies_and_the_producer_gets_it(tmp_path: Path) -> None:
    with served(tmp_path) as address, Producer("repliers", address) as replier:

        def work(message: ReceivedMessage) -> None:
            answer = message.body.upper()
            replier.reply(message, answer, properties={"kind": message.properties["kind"]})

        consumer = PushConsumer("readers", address, listener_one=work, from_beginning=True)
        consumer.subscribe("questions")
        with consumer, Producer("askers", address) as producer:
            for body in (b"first", b"second"):
                question = Message("questions", body, properties={"kind": "shout"})
                reply = producer.request(question, timeout=20.0)
                assert (reply.body, reply.topic) == (body.upper(), TOPIC)
                assert reply.properties["kind"] == "shout"
                assert int(reply.properties["ARRIVE_TIME"]) > 0
                assert "CORRELATION_ID" not in question.properties


def test_the_example_runs(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        lines = printed_by("request_reply", address)
    assert lines == ["[1, 2, 3] -> 6", "[20, 22] -> 42"]


def test_many_requests_each_get_their_own_reply(tmp_path: Path) -> None:
    with served(tmp_path) as address:

        async def main() -> None:
            async with aio.Producer("both", address) as producer:

                async def work(messages: list[ReceivedMessage]) -> None:
                    for message in messages:
                        await producer.reply(message, b"re: " + message.body)

                consumer = aio.PushConsumer("readers", address, listener=work, from_beginning=True)
                consumer.subscribe("questions")
                async with consumer:
                    bodies = [b"%d" % number for number in range(50)]
                    got = await asyncio.gather(
                        *(
                            producer.request(Message("questions", body), timeout=30.0)
                            for body in bodies
                        )
                    )
                assert [reply.body for reply in got] == [b"re: " + body for body in bodies]

        asyncio.run(main())


def test_a_request_ends_with_its_producer(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        producer = Producer("askers", address).start()
        failures: queue.Queue[BaseException] = queue.Queue()
        asked: queue.Queue[ReceivedMessage] = queue.Queue()

        def ask() -> None:
            try:
                producer.request(Message("questions", b"anyone?"), timeout=600.0)
            except SaturnError as error:
                failures.put(error)

        consumer = PushConsumer("readers", address, listener_one=asked.put, from_beginning=True)
        consumer.subscribe("questions")
        with consumer:
            asking = threading.Thread(target=ask)
            asking.start()
            asked.get(timeout=20.0)
            producer.close()
        asking.join(20.0)
        assert isinstance(failures.get(timeout=1.0), ClientClosed)


def test_a_request_without_a_reply_ends_in_time_and_a_late_reply_is_dropped(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as address, Producer("askers", address) as producer:
        with pytest.raises(RequestTimeout, match=r"no reply in 0\.3 s"):
            producer.request(Message("questions", b"anyone?"), timeout=0.3)
        found: queue.Queue[ReceivedMessage] = queue.Queue()
        consumer = PushConsumer("readers", address, listener_one=found.put, from_beginning=True)
        consumer.subscribe("questions")
        with consumer, Producer("repliers", address) as replier:
            message = found.get(timeout=20.0)
            replier.reply(message, b"too late")  # its producer lives, and drops it
            assert producer.send(Message("questions", b"a plain message")).ok
            plain = found.get(timeout=20.0)
            with pytest.raises(MessageIllegal, match="waits for no reply"):
                replier.reply(plain, b"?")
            with pytest.raises(MessageIllegal):
                replier.reply(message, b"")
            producer.close()
            # The broker hears of the lost connection when it uses it, if not before.
            for why in ("not found|closed by the peer", "not found"):
                with pytest.raises(SystemError_, match=why):
                    replier.reply(message, b"nobody there")


def test_a_request_in_a_thread_of_its_own_waits_for_its_own_reply(tmp_path: Path) -> None:
    with served(tmp_path) as address, Producer("repliers", address) as replier:
        consumer = PushConsumer(
            "readers",
            address,
            listener_one=lambda message: replier.reply(message, message.body * 2),
            from_beginning=True,
        )
        consumer.subscribe("questions")
        with consumer, Producer("askers", address) as producer:
            got: dict[int, bytes] = {}

            def ask_one(number: int) -> None:
                reply = producer.request(Message("questions", b"%d " % number), timeout=30.0)
                got[number] = reply.body

            threads = [threading.Thread(target=ask_one, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert got == {number: b"%d " % number * 2 for number in range(8)}


class NoAnswer:
    """A sender whose broker stores the request and does not answer; a consumer replies at once. The
    send fails after that, if told so."""

    def __init__(self, producer: Producer | aio.Producer, *, fails: bool) -> None:
        self._engine = producer.engine
        self._fails = fails

    def send_async(self, question: Message, **_: object) -> NoAnswer:
        number = question.properties["CORRELATION_ID"]
        told = {**FIELDS, "properties": f"CORRELATION_ID\x01{number}\x02"}
        self._engine.on_reply(told, b"yes")
        return self

    def add_done_callback(self, callback: Callable[[NoAnswer], object]) -> None:
        if self._fails:
            callback(self)

    def exception(self) -> SaturnError:
        return ConnectFailed("the broker has no master in the route")


@pytest.mark.parametrize("fails", [False, True])
def test_a_reply_ends_a_request_whose_send_is_never_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    with served(tmp_path) as address, Producer("askers", address) as producer:
        lost = NoAnswer(producer, fails=fails)
        monkeypatch.setattr(producer, "send_async", lost.send_async)
        assert producer.request(Message("questions", b"?"), timeout=20.0).body == b"yes"

        async def main() -> None:
            async with aio.Producer("askers", address) as producer:
                lost = NoAnswer(producer, fails=fails)

                async def send_async(question: Message, **_: object) -> NoAnswer:
                    return lost.send_async(question)

                monkeypatch.setattr(producer, "send_async", send_async)
                reply = await producer.request(Message("questions", b"?"), timeout=20.0)
                assert reply.body == b"yes"

        asyncio.run(main())


def test_a_request_that_could_not_be_sent_ends_with_the_error_of_its_send(tmp_path: Path) -> None:
    async def asked(address: str, stopped: asyncio.Event, known: asyncio.Event) -> None:
        async with aio.Producer("askers", address, delivery_timeout=0.5) as producer:
            await producer.send(Message("questions", b"known"))
            await producer.engine.prepare_request("questions")
            known.set()
            await stopped.wait()
            with pytest.raises(ConnectFailed):
                await producer.request(Message("questions", b"?"), timeout=60.0)

    async def main(address: str, stop: Callable[[], object]) -> None:
        stopped, known = asyncio.Event(), asyncio.Event()
        asking = asyncio.ensure_future(asked(address, stopped, known))
        await known.wait()
        await asyncio.to_thread(stop)
        stopped.set()
        await asking

    with ExitStack() as serving:
        address = serving.enter_context(served(tmp_path))
        with Producer("askers", address, delivery_timeout=0.5) as producer:
            with pytest.raises(RequestTimeout, match=r"no reply in 0\.1 s"):
                producer.request(Message("questions", b"?"), timeout=0.1)
            asyncio.run(main(address, serving.close))
            with pytest.raises(ConnectFailed):
                producer.request(Message("questions", b"?"), timeout=60.0)


FIELDS = {
    "topic": TOPIC,
    "properties": PROPERTIES,
    "bornHost": "/127.0.0.1:5000",
    "storeHost": "localhost/127.0.0.1:10911",
    "queueId": "0",
    "flag": "-1",
    "sysFlag": "0",
}


def requests() -> Requests:
    runtime = SimpleNamespace(random=random.Random(1), now_ms=lambda: 5)
    return Requests(SimpleNamespace(runtime=runtime, client_id="me"))  # type: ignore[arg-type]


def test_a_java_broker_names_hosts_as_java_does() -> None:
    waiting = requests()
    got: Future[ReceivedMessage] = Future()
    with waiting.asking(Message("T", b"x"), 1.5, got) as question:
        number = question.properties["CORRELATION_ID"]
        assert question.properties["TTL"] == "1500"
        told = {**FIELDS, "properties": f"CORRELATION_ID\x01{number}\x02"}
        waiting.on_reply(told, b"y")
        waiting.on_reply(told, b"a second one")
    reply = got.result(0)
    assert (reply.body, reply.flag, reply.born_host) == (b"y", -1, "127.0.0.1:5000")
    assert reply.store_host == "127.0.0.1:10911"


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": ""},
        {"topic": "t" * 40_000},
        {"bornHost": "nowhere"},
        {"storeHost": "127.0.0.1:x"},
        {"queueId": "-1"},
        {"flag": "9" * 30},
        {"sysFlag": "x"},
        {"properties": f"CORRELATION_ID\x017\x02k\x01{'v' * 40_000}\x02"},
    ],
)
def test_a_reply_that_makes_no_sense_is_an_error(wrong: dict[str, str]) -> None:
    waiting = requests()
    got: Future[ReceivedMessage] = Future()
    with waiting.asking(Message("T", b"x"), 1.0, got), pytest.raises(MalformedFrame):
        waiting.on_reply({**FIELDS, **wrong}, b"y")
    assert not got.done()
