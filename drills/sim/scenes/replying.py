"""Requests that wait for a reply: requesters and repliers die, and so does the broker between them.

A request ends in its time, with its own reply or with an error of the client. When its replier was
told that the reply is taken, and its requester lives, it has that reply. Several requests of one
requester are open at once, so that a reply could be taken for another one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from saturnmq.client.core import ClientCore
from saturnmq.client.producer import at_exit
from saturnmq.client.producer.producer import Producer
from saturnmq.drills.sim.history import make_body, read_body
from saturnmq.drills.sim.load import ClientMachine
from saturnmq.drills.sim.scenes.scene import Scene, SceneConsumer
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message import Message, ReceivedMessage
from saturnmq.runtime.errors import SaturnError

ROUNDS = 8
ENCORE = 4
AT_ONCE = 3
REQUESTERS = 2
TIMES_S = (1.0, 4.0, 10.0)
LATE_S = 0.01


@dataclass
class Question:
    """One request of a requester that lives, and its end."""

    requester: str
    at: float
    time_s: float
    ended: float | None = None
    answer: str = ""  # the value in the reply; or why there is none
    replied: bool = False


def _answer_to(value: str) -> str:
    return f"re {value}"


class Requester(ClientMachine):
    """A machine with one producer, which makes requests."""

    def __init__(self, scene: Replying, number: int) -> None:
        super().__init__(scene.cluster, f"{scene.group}-r{number}", scene.address(100 + number))
        self.dead = False

    async def start(self) -> None:
        self.producer = Producer("requesters", core=self.core(), send_timeout=2.0)
        await self.runtime.run(self._begin())

    async def _begin(self) -> None:
        await self.producer.core.start()
        await self.producer.start()

    async def die(self) -> None:
        """`kill -9`."""
        self.dead = True
        at_exit.forget(self.producer._settle)  # a killed program settles nothing
        self.runtime.power_off()
        await self.runtime.settle()

    async def close(self) -> None:
        await self.runtime.run(self.producer.close())
        await self.runtime.run(self.producer.core.close())


class Replier(SceneConsumer):
    """A member of the group, with a producer for its replies."""

    async def _begin(self, core: ClientCore) -> None:
        self.producer = Producer("repliers", core=core)
        await super()._begin(core)
        await self.producer.start()

    async def close(self) -> None:
        await self.runtime.run(self.consumer.close())
        await self.runtime.run(self.producer.close())
        await self.runtime.run(self.consumer.core.close())


class Replying(Scene):
    topic, group = "questions", "repliers"
    member_type = Replier

    async def start(self) -> None:
        self._requesters: list[Requester] = []
        self._questions: dict[str, Question] = {}
        self._taken: dict[str, float] = {}  # when a replier was first told so
        await self.create(self.plan.queues)
        for _ in range(2):
            await self.join()
        for _ in range(REQUESTERS):
            await self.hire(self._requesters, Requester)
        for lane in range(2):
            self.spawn(self._ask(f"ask{lane}", ROUNDS))
        self.spawn(self.come_and_go(most=3))
        self.spawn(self.replace(self._requesters, Requester))

    def member_options(self) -> dict[str, object]:
        return {"from_beginning": True}

    async def encore(self) -> None:
        self.spawn(self._ask("last", ENCORE))

    async def _ask(self, lane: str, rounds: int) -> None:
        for counter in range(rounds):
            requester = self.rng.choice(self._requesters)
            values = [f"{lane}.{number}/{counter}" for number in range(AT_ONCE)]
            asking = [requester.runtime.run(self._request(requester, each)) for each in values]
            for error in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(error, BaseException) and not requester.dead:
                    raise error
            await self.pause(rounds)

    async def _request(self, requester: Requester, value: str) -> None:
        history, question = self.history, Question(requester.name, self.now, max(TIMES_S))
        if not self.calm():
            question.time_s = self.rng.choice(TIMES_S)
        self._questions[value] = question
        history.invoke(value, value.partition("/")[0], self.now)
        message = Message(self.topic, make_body(value, self.plan.padding), keys=value)
        try:
            reply = await requester.producer.request(message, timeout=question.time_s)
            question.answer, question.replied = read_body(bytes(reply.body)) or "?", True
        except SaturnError as error:
            known = history.rejected if error.outcome == "rejected" else history.unknown
            known[value] = question.answer = repr(error)
        question.ended = self.now
        self.cluster.trace.note("request", f"{value} {question.answer}")

    async def listen(self, member: SceneConsumer, message: ReceivedMessage) -> object:
        assert isinstance(member, Replier)
        value = self.note(message)
        try:
            await member.producer.reply(message, make_body(_answer_to(value), self.plan.padding))
        except SaturnError as error:
            self.cluster.trace.note("reply.failed", f"{value} {error!r}")
        else:
            self._taken.setdefault(value, self.now)
        return None

    def verdict(self) -> list[str]:
        others, late, gone, none = [], [], [], []
        for value, question in self._questions.items():
            if question.ended is None:
                continue  # it died with its requester
            text = f"{value} of {question.requester} at {question.at:.3f}: {question.answer}"
            if question.replied and question.answer != _answer_to(value):
                others.append(text)
            if question.ended > question.at + question.time_s + LATE_S:
                late.append(f"{text} at {question.ended:.3f}, after more than {question.time_s} s")
            taken = self._taken.get(value, question.ended)
            if taken < question.ended and not question.replied:
                gone.append(f"{text} at {question.ended:.3f}, taken at {taken:.3f}")
            if value.startswith("last") and not question.replied:
                none.append(text)
        found = told("I19 a reply to another request", others)
        found += told("I19 a request that outlives its time", late)
        found += told("I19 a reply that was taken, and is not there", gone)
        found += told("I12 no reply without a fault", none)
        return found + super().verdict()

    def client_names(self) -> list[str]:
        return [*(each.name for each in self._requesters), *(each.name for each in self.members)]

    async def close(self) -> None:
        for lane in self.lanes:
            lane.cancel()
        for requester in self._requesters:
            await requester.close()
        for member in self.members:
            await member.close()
