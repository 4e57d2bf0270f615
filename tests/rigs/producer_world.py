"""Brokers that answer as a test says, under the engine of a producer, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from saturnmq.client.core import ClientCore
from saturnmq.client.producer.batch import SendHandle
from saturnmq.client.producer.engine import Callers, ProducerEngine
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.results import STATUS_OF_CODE
from saturnmq.client.routes import RouteCache
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import EARLY_S, SimRuntime
from saturnmq.protocol.batches import HOST, PartAnswer, decode_parts, encode_answers
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute
from saturnmq.runtime.errors import ConnectFailed, RequestTimeout, SaturnError
from saturnmq.runtime.supervision import Supervisor

A0, A1, B0, B1 = (MessageQueue("T", name, number) for name in "ab" for number in (0, 1))
Answer = int | SaturnError | dict[str, Any] | None


@dataclass
class Sent:
    """One attempt; `at` in seconds since the first one could have been."""

    at: float
    broker: str
    address: str
    command: Command
    timeout: float

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.command.ext["b"], self.broker, int(self.command.ext["e"]))


class Line:
    """A connection; a broker needs a millisecond to answer."""

    last_received = -1.0
    closed = False

    def __init__(self, world: Cluster, address: str) -> None:
        self.world = world
        self.address = address

    def request_callback(
        self, command: Command, timeout: float, answered: Callable[[Command | SaturnError], None]
    ) -> None:
        if command.code == RequestCode.SEND_BATCHES:
            self._answer_batches(command, timeout, answered)
            return
        sent = Sent(self.world.now, command.ext["n"], self.address, command, timeout)
        self.world.sent.append(sent)
        answer = self.world.answer(sent)
        later = self.world.runtime.in_time
        if answer is None:
            later(timeout, answered, RequestTimeout(f"{self.address} is silent"))
            return
        code, ext = (0, dict(answer)) if isinstance(answer, dict) else (answer, {})
        reply = answer
        if not isinstance(code, SaturnError):
            place = {"queueId": str(sent.queue.queue_id), "queueOffset": "0", "msgId": "X"}
            body = ext.pop("body", b"")
            reply = command.reply(code, "said so", {**place, **ext}, body)
        later(self.world.takes_s(sent), answered, reply)

    def _answer_batches(
        self, command: Command, timeout: float, answered: Callable[[Command | SaturnError], None]
    ) -> None:
        """As if each had come in a request of its own; what keeps one answer back keeps all."""
        self.world.carried.append(len(decode_parts(command.body)))
        if not self.world.speaks_batches:
            reply = command.reply(3, f" request type {command.code} not supported")
            self.world.runtime.in_time(0.001, answered, reply)
            return
        answers, status, takes_s = [], 0, 0.0
        failed: SaturnError | None = None
        for part in decode_parts(command.body):
            ext = {**command.ext, "b": part.topic, "e": str(part.queue_id)}
            single = Command(RequestCode.SEND_BATCH_MESSAGE, ext, bytes(part.body))
            sent = Sent(self.world.now, ext["n"], self.address, single, timeout)
            self.world.sent.append(sent)
            answer = self.world.answer(sent)
            takes_s = max(takes_s, timeout if answer is None else self.world.takes_s(sent))
            if answer is None:
                failed = RequestTimeout(f"{self.address} is silent")
            elif isinstance(answer, SaturnError):
                failed = answer
            elif isinstance(answer, dict) or answer in STATUS_OF_CODE:
                status = max(status, answer if isinstance(answer, int) else 0)
                answers.append(PartAnswer(0, part.queue_id))
            else:
                answers.append(PartAnswer(answer, part.queue_id, rest=b"said so"))
        stored = command.reply(status, "", {HOST: "AB"}, encode_answers(answers))
        self.world.runtime.in_time(takes_s, answered, failed or stored)

    def abort(self, reason: str) -> None:
        assert reason == "no answer in time"
        self.closed = True
        self.world.lines.pop(self.address)


class Cluster:
    """Brokers, and what the engine of a producer uses of ClientCore."""

    local_ip, pid, default_topic_queues, connect_timeout = "127.0.0.1", 1, 7, 2.5
    tls = credentials = None

    def __init__(self, queues: dict[str, int] | None = None, **options: Any) -> None:
        self.loop = SimLoop(random.Random(7))
        self.runtime = SimRuntime(self.loop, SimNetwork(self.loop, 7), 7, "client", early_s=EARLY_S)
        self.tasks = Supervisor(self.runtime, lambda error: self.runtime.deaths.append(str(error)))
        self.routes = RouteCache()
        self.closed = False
        self.listeners: list[Callable[[str], None]] = []
        self.lines: dict[str, Line] = {}
        self.down: set[str] = set()  # addresses that nobody listens at
        self.sent: list[Sent] = []
        self.speaks_batches = True
        self.carried: list[int] = []  # batches in each request of several
        self.refreshed: list[str] = []
        self.reported: list[SaturnError] = []
        self.asked: list[tuple[float, bool]] = []
        self.created: list[bool] = []  # whether who asked would have the topic created
        self.route_error: SaturnError | None = None
        self.answer: Callable[[Sent], Answer] = lambda _: 0
        self.takes_s: Callable[[Sent], float] = lambda _: 0.001
        if queues is None:
            queues = {"a": 2, "b": 2}
        if queues:
            self.change(queues)
        self.engine = ProducerEngine(
            self,  # type: ignore[arg-type]
            "G",
            ProducerOptions(**options),
            Callers(contextlib.nullcontext(), self.runtime.call_soon, lambda batch, timeout: None),
        )
        self.sender = self.engine.sender
        self.begun = self.loop.time()

    @property
    def now(self) -> float:
        return round(self.loop.time() - self.begun, 3)

    def change(self, queues: dict[str, int], masters: dict[str, str] | None = None) -> None:
        """The route says so from now on; `masters`: addresses, "" for none, by default `a1`.."""
        masters = {name: f"{name}1" for name in queues} | (masters or {})
        route = TopicRoute(
            queues=[QueueData(name, count, count) for name, count in queues.items()],
            brokers=[
                BrokerData("C", name, {int(not address): address or f"{name}2"})
                for name, address in masters.items()
            ],
        )
        if self.routes.update("T", route):
            for listener in self.listeners:
                listener("T")

    # -- what the engine asks ----------------------------------------------------------------------

    def on_route_change(self, listener: Callable[[str], None]) -> None:
        self.listeners.append(listener)

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        return self.routes.publish_queues(topic)

    master_address = ClientCore.master_address

    def broker_address(self, name: str) -> str | None:
        return self.routes.address(name)

    def report_error(self, error: SaturnError) -> None:
        self.reported.append(error)

    def refresh_soon(self, topic: str) -> None:
        self.refreshed.append(topic)

    async def route(self, topic: str, *, refresh: bool = False, create: bool = False) -> None:
        self.asked.append((self.now, refresh))
        self.created.append(create)
        await self.runtime.sleep(0)
        if self.route_error is not None:
            raise self.route_error

    def connected(self, address: str) -> Any:
        return None if address in self.down else self.lines.get(address)

    async def connect(self, address: str) -> Any:
        await self.runtime.sleep(0.001)
        if address in self.down:
            raise ConnectFailed(f"nobody listens at {address}")
        return self.lines.setdefault(address, Line(self, address))

    # -- what tests do -----------------------------------------------------------------------------

    def send(self, queue: MessageQueue | None = None, key: str | None = None) -> SendHandle:
        message = Message("T", b"x")
        if key is not None:
            self.sender.key_queues.learn("T")
        handle = self.engine.enqueue(message, self.engine.pin_for(message, queue, key, None))
        assert handle is not None
        return handle

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def until_done(self, *handles: SendHandle) -> None:
        began = self.loop.time()

        async def done() -> None:
            while not all(handle.done() for handle in handles):
                passed_s = self.loop.time() - began
                assert passed_s < 200.0, "a send is not over in time"
                await self.runtime.sleep(max(0.001, passed_s / 1000))

        self.loop.run_until_complete(self.runtime.spawn(done()))

    def outcome(self, handle: SendHandle) -> Any:
        """The error that a send ends with, or its status."""
        self.until_done(handle)
        return handle.exception() or handle.result().status

    def idle(self) -> bool:
        """Whether nothing counts as under way."""
        accumulator = self.engine.accumulator
        return (
            not accumulator.active
            and accumulator.buffered == 0
            and all(not lane.in_flight for lane in accumulator.lanes.values())
        )


Make = Callable[..., Cluster]


@contextlib.contextmanager
def clusters() -> Iterator[Make]:
    """Makes clusters; at the end no task of one may have failed."""
    made: list[Cluster] = []

    def make(*args: Any, **options: Any) -> Cluster:
        made.append(Cluster(*args, **options))
        return made[-1]

    yield make
    for world in made:
        assert (world.loop.failures, world.runtime.deaths) == ([], [])
        world.loop.close()
