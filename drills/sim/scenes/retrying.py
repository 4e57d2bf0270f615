"""A listener that fails: what it refuses comes again, counted, not before its delay, and after its
last attempt it ends in the dead-letter queue.

How often a message fails, and how, follows from its value. Nothing that failed is lost, nothing
comes again that nobody wanted again, and in the encore everything happens exactly once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from saturnmq.broker.handlers.retry import FIRST_RETRY_LEVEL
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.client.producer.results import SendStatus
from saturnmq.drills.sim.scenes.scene import Scene, SceneConsumer
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.topics import dlq_topic
from saturnmq.store.delay_levels import DEFAULT_DELAYS_MS

MESSAGES = 10
ENCORE = 4
EARLY_S = 0.002
HANG_S = 20.0
NEVER = 1_000_000  # failures of a message that nobody can handle
LOSS_SPAN_S = 20  # a loss within it, after a failure, may have taken what was sent back


@dataclass
class Attempt:
    """One call of the listener."""

    at: float
    number: int
    group: str
    failed_at: float | None = None


def _retry() -> object:
    return ConsumeResult.RETRY


def _raise() -> object:
    raise ValueError("the listener fails, as it should")


class Retrying(Scene):
    topic, group = "refused", "failing"
    patience_s = 110.0
    failures: tuple[Callable[[], object], ...] = (_retry, _raise)
    retries: ClassVar[tuple[int, ...]] = (0, 1, 2)  # attempts after the first, of each seed one

    async def start(self) -> None:
        self.attempts: dict[str, list[Attempt]] = {}
        self.most = self.rng.choice(self.retries)
        await self.sender.start()
        await self.create(self.plan.queues)
        await self.join()
        self.spawn(self.send_lane("odd", MESSAGES))
        self.spawn(self.come_and_go(most=2, every_s=8.0))

    def member_options(self) -> dict[str, object]:
        return {"from_beginning": True, "max_reconsume": self.most}

    async def encore(self) -> None:
        await self.shared()
        self.spawn(self.send_lane("strict", ENCORE))

    def fails(self, value: str) -> int:
        """How many attempts fail."""
        luck = random.Random(f"{self.cluster.seed}/{self.topic}/{value}")
        return luck.choice((0, 0, 1, 2, NEVER))

    async def listen(self, member: SceneConsumer, message: ReceivedMessage) -> object:
        value = self.note(message)
        number = message.reconsume_times
        attempt = Attempt(self.now, number, message.broker_name or "")
        self.attempts.setdefault(value, []).append(attempt)
        if number >= self.fails(value):
            return None
        how = random.Random(f"{value}/{number}").choice(self.failures)
        try:
            result = how()
            if asyncio.iscoroutine(result):
                result = await result
        finally:
            attempt.failed_at = self.now
        return result

    def _ends(self, value: str) -> bool:
        """Whether it came to its end: handled, or in the dead-letter queue."""
        fails = self.fails(value)
        if fails > self.most:
            return value in self._dead
        return any(attempt.number >= fails for attempt in self.attempts.get(value, ()))

    def waits_for(self) -> str:
        if missing := super().waits_for():
            return missing
        self._dead = Counter(self.stored(dlq_topic(self.group)).values())
        waiting = [value for value in self.attempts if not self._ends(value)]
        waiting = [value for value in waiting if not self._may_be_lost(value)]
        return f"{len(waiting)} refused messages, the first {waiting[0]}" if waiting else ""

    def _may_be_lost(self, value: str) -> bool:
        last = self.attempts[value][-1]
        return self.was_lost_after(last.failed_at or last.at)

    def was_lost_after(self, at: float) -> bool:
        """Whether a loss some seconds after this time may have taken what was stored then."""
        return any(
            self.cluster.allowance.may_go(group, at + later / 2, None)
            for group in self.cluster.groups
            for later in range(2 * LOSS_SPAN_S)
        )

    def verdict(self) -> list[str]:
        self._dead = Counter(self.stored(dlq_topic(self.group)).values())
        early, unasked, beyond, gone, dead, twice = [], [], [], [], [], []
        for value, attempts in self.attempts.items():
            failed: dict[int, float] = {}
            for attempt in attempts:
                if attempt.failed_at is not None:
                    failed.setdefault(attempt.number, attempt.failed_at)
            for attempt in attempts:
                text = f"{value}, attempt {attempt.number} at {attempt.at:.3f}"
                since = failed.get(attempt.number - 1)
                delay = DEFAULT_DELAYS_MS[FIRST_RETRY_LEVEL + attempt.number - 2] / 1000
                if attempt.number > self.most:
                    beyond.append(f"{text}, of {self.most} more")
                elif attempt.number and since is None:
                    unasked.append(text)
                elif (
                    since is not None
                    and attempt.at < since + delay - EARLY_S
                    and not self.cluster.allowance.misled(attempt.group, since, attempt.at)
                ):
                    early.append(f"{text}, {delay:g} s after {since:.3f}")
            if not self._ends(value) and not self._may_be_lost(value):
                gone.append(f"{value} after attempt {attempts[-1].number} at {attempts[-1].at:.3f}")
            if value in self._dead and (self.fails(value) <= self.most or self.most not in failed):
                dead.append(value)
            numbers = Counter(attempt.number for attempt in attempts)
            if value.startswith("strict") and max(*numbers.values(), self._dead[value]) > 1:
                twice.append(f"{value}, attempts {dict(numbers)}, {self._dead[value]} times dead")
        found = told("I14 a retry came early", early)
        found += told("I14 a retry that nobody asked for", unasked)
        found += told("I1 an attempt beyond the last", beyond)
        found += told("I1 refused by its listener, and gone", gone)
        found += told("I1 in the dead-letter queue, and not after its last attempt", dead)
        found += told("I14 twice without a fault", twice)
        return found + super().verdict()


def _nonsense(result: object) -> Callable[[], object]:
    return lambda: result


def _exit() -> object:
    raise SystemExit(3)


def _cancel() -> object:
    raise asyncio.CancelledError


async def _hang() -> object:
    await asyncio.sleep(HANG_S)
    return ConsumeResult.RETRY


class Misbehaving(Retrying):
    """Listeners with invalid answers, exceptions that are no errors, and calls that hang."""

    topic, group = "abused", "misbehaving"
    failures = (
        _nonsense(False),
        _nonsense("RECONSUME_LATER"),
        _nonsense(SendStatus.OK),
        _nonsense(42),
        _exit,
        _cancel,
        _hang,
    )
