"""Delayed messages (I14): none is early, none is lost, none is held, none is replayed.

Time is the virtual time of the world; the wall clocks of nodes need not agree with it. A due
message is delivered within `HELD_S` of its time. After faults a broker may have to count the whole
delay anew, from the moment at which the cluster was whole again. A message comes a second time only
if a node died or lost its role before all others knew of the first delivery.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import replace
from typing import ClassVar

from saturnmq.drills.sim.allowance import put_off
from saturnmq.drills.sim.history import Place, SimHistory
from saturnmq.drills.sim.scenes.scene import Scene
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message_types import DELAY
from saturnmq.protocol.topics import SCHEDULE_TOPIC
from saturnmq.store.delay_levels import DEFAULT_DELAYS_MS

MESSAGES = 12
ENCORE = 4
LEVELS = (1, 1, 1, 2, 2, 3, 4, 18)  # 1, 5, 10 and 30 s; 2 h, which no run lasts
LONG = 18
EARLY_S = 0.002  # brokers count milliseconds
HELD_S = 10.0
KNOWN_S = 5.0  # a delivery is known to all nodes so long after it


class Delaying(Scene):
    topic, group, message_type = "delayed", "patient", DELAY
    waits_in: ClassVar[str] = SCHEDULE_TOPIC
    lane: ClassVar[str] = "wait"
    patience_s = 75.0

    async def start(self) -> None:
        self.levels: dict[str, int] = {}
        self._calm_at = math.inf
        await self.sender.start()
        await self.create(self.plan.queues)
        await self.join()
        for lane in range(2):
            self.spawn(self._send(f"{self.lane}{lane}", MESSAGES))

    async def _send(self, lane: str, count: int) -> None:
        for counter in range(count):
            level = self.rng.choice(LEVELS)
            self.levels[f"{lane}/{counter}"] = level
            await self.send(lane, counter, delay_level=level)
            await self.pause(count)

    async def encore(self) -> None:
        self._calm_at = self.cluster.since()
        self.spawn(self._send("last", ENCORE))

    def member_options(self) -> dict[str, object]:
        return {"from_beginning": True}

    def _level(self, value: str) -> int:
        return self.levels[value.rpartition(".")[0]]

    def delay_s(self, value: str) -> float:
        """How long a message has to wait."""
        return DEFAULT_DELAYS_MS[self._level(value) - 1] / 1000

    def slack_s(self, value: str) -> float:
        """How much earlier it may come by the time of the world."""
        return EARLY_S

    def held_s(self, value: str) -> float:
        """How much later it may come."""
        return HELD_S

    def always_waits(self, value: str) -> bool:
        """Whether no broker delivers it at once."""
        return True

    def comes(self, value: str) -> bool:
        """Whether this run lasts long enough for it."""
        return self._level(value) != LONG

    def waits_for(self) -> str:
        seen = self.history.first_seen[self.group]
        missing = [v for v in self.waiting() if self.comes(v) and v not in seen]
        if missing:
            return f"{len(missing)} delayed messages, the first {missing[0]}"
        return super().waits_for()

    def waiting(self) -> list[str]:
        """The values of this topic that wait, or have waited."""
        waiting = self.stored(self.waits_in).values()
        return [value for value in waiting if value in self.history.invoked]

    def judged(self) -> SimHistory:
        comes = {value: ack for value, ack in self.history.acked.items() if self.comes(value)}
        return replace(self.history, acked=comes)

    def verdict(self) -> list[str]:
        history, found = self.history, []
        early, held = [], []
        for delivery in history.deliveries[self.group]:
            value = delivery.value
            if value is None or value not in history.begun:
                continue  # I2 is the common verdict's
            delay = self.delay_s(value)
            begun = history.begun[value]
            text = f"{value} of {begun:.3f} after {delivery.at - begun:.3f} s of {delay:g} s"
            if delivery.at < begun + delay - self.slack_s(
                value
            ) and not self.cluster.allowance.misled(delivery.place.group, begun, delivery.at):
                early.append(text)
            first = history.first_seen[self.group][value]
            whole = max(begun, self._calm_at)
            if delivery is first and delivery.at > whole + delay + self.held_s(value):
                held.append(text)
        found += told("I14 delivered early", early)
        found += told("I14 held for too long", held)
        found += told("I14 delivered again without a reason", self._replayed())
        waiting = set(self.waiting())
        lost = [
            f"{value}, acknowledged by {ack.by} at {ack.at:.3f}"
            for value, ack in history.acked.items()
            if not self.comes(value)
            and value not in waiting
            and value not in history.first_seen[self.group]
            and not self.cluster.allowance.may_go(ack.place.group, ack.at, ack.by)
        ]
        found += told("I14 lost while it waited", lost)
        return found + super().verdict()

    def _replayed(self) -> list[str]:
        """Messages whose time came twice: they were stored under more than one place."""
        first_seen = self.history.first_seen[self.group]
        seen: dict[str, dict[Place, float]] = {}
        for delivery in self.history.deliveries[self.group]:
            if delivery.value is not None:
                seen.setdefault(delivery.value, {}).setdefault(delivery.place, delivery.at)
        for place, value in self.stored().items():
            seen.setdefault(value, {}).setdefault(place, self.now)
        sent = Counter(self.waiting())  # a producer may have had to send it more than once
        again = []
        for value, places in seen.items():
            if value not in first_seen or value not in self.history.begun:
                continue
            if not self.always_waits(value):
                continue  # a producer that sends it again stores it again
            due = self.history.begun[value] + self.delay_s(value)
            first = first_seen[value]
            others = sorted((at, place) for place, at in places.items() if place != first.place)
            for at, place in others[max(0, sent[value] - 1) :]:
                if not self._may_repeat(place.group, due, first.at, at):
                    again.append(f"{value} at {first.at:.3f} and, from {place}, at {at:.3f}")
        return again

    def _may_repeat(self, group: str, due: float, one: float, two: float) -> bool:
        """Whether a node that did not know of the first copy, stored between `due` and `one`, may
        have led before `two`. With asynchronous copies that is also one that comes back: its term
        may outrank that in which the copy was stored."""
        allowance = self.cluster.allowance
        nodes = allowance.nodes_of(group)
        away = [span for node in nodes for span in (*node.past.idle, *node.past.isolated)]
        known = put_off(one + KNOWN_S, away, KNOWN_S)
        changes = [span.start for node in nodes for span in node.past.idle]
        changes += [order.at for order in allowance.promotions if order.node.group == group]
        if self.plan.copies == 1:
            spans = [span for node in nodes for span in node.past.idle]
            changes += [span.end for span in spans if span.start <= one <= span.end]
        return any(due - KNOWN_S <= at <= min(known, two) for at in changes)


class ClockSteps(Scene):
    """No topic: the wall clocks of brokers step, both ways, a little or by an hour."""

    topic, group = "clocks", "nobody"
    STEPS_MS = (-7_200_000, -3_600_000, -5_000, -500, -20, 20, 500, 5_000, 3_600_000, 7_200_000)

    async def start(self) -> None:
        self.spawn(self._step())

    async def _step(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 5.0))
            if self.calm():
                return
            self.step()

    def step(self) -> None:
        nodes = [node for node in self.cluster.brokers if node.up]
        if nodes:
            node, by = self.rng.choice(nodes), self.rng.choice(self.STEPS_MS)
            self.fault("wall clock jumped", f"{node.name} {by}")
            node.step_clock(by)

    async def encore(self) -> None:
        self.step()

    def waits_for(self) -> str:
        return ""

    def client_names(self) -> list[str]:
        return []

    def verdict(self) -> list[str]:
        return []

    async def close(self) -> None:
        for lane in self.lanes:
            lane.cancel()
