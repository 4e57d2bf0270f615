"""An ordered group whose listener takes long while members come and go: a queue has one
listener at a time (I5), also when it is handed over; unless the master that knew of its lock was
restarted, or is another one now.
"""

from __future__ import annotations

from dataclasses import dataclass

from saturnmq.drills.sim.nodes import Span
from saturnmq.drills.sim.scenes.scene import Scene, SceneConsumer
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message import MessageQueue, ReceivedMessage

MESSAGES = 6
ENCORE = 3
QUEUES = 2
LONG = 0.15
LONG_S = 25.0  # a lock that is not renewed ends for its holder after 30 s
LOCK_S = 65.0


@dataclass
class Call:
    """One call of the listener, for a message of `queue`."""

    member: str
    queue: tuple[str, int]
    offset: int
    span: Span


class TakingLong(Scene):
    topic, group, ordered = "laborious", "careful", True
    patience_s = 2 * LOCK_S + 10 * LONG_S

    async def start(self) -> None:
        self.calls: list[Call] = []
        await self.sender.start()
        await self.create(QUEUES)
        for _ in range(2):
            await self.join()
        for group in self.cluster.groups:
            for queue in range(QUEUES):
                self.spawn(self._send(f"{group}.{queue}", MessageQueue(self.topic, group, queue)))
        self.spawn(self.come_and_go(most=3, every_s=8.0))

    def member_options(self) -> dict[str, object]:
        return {"from_beginning": True, "ordered": True}

    async def _send(self, lane: str, queue: MessageQueue) -> None:
        for counter in range(MESSAGES):
            await self.send(lane, counter, queue)
            await self.pause(MESSAGES)

    async def listen(self, member: SceneConsumer, message: ReceivedMessage) -> object:
        value = self.note(message)
        queue = message.broker_name or "", message.queue_id
        call = Call(member.name, queue, message.queue_offset, Span(self.now))
        self.calls.append(call)
        # A send without an answer may be stored a hundred times: only its first copy takes long.
        long = value.endswith(".0") and (value.startswith("encore") or self.rng.random() < LONG)
        try:
            await member.runtime.sleep(self.rng.uniform(0.4, 1.0) * LONG_S if long else 0.05)
        finally:
            call.span.end = self.now
        return None

    async def encore(self) -> None:
        for group in self.cluster.groups:
            for queue in range(QUEUES):
                self.spawn(self._again(f"encore.{group}.{queue}", group, queue))
        self.spawn(self._handed_over())

    async def _again(self, lane: str, group: str, queue: int) -> None:
        for counter in range(ENCORE):
            await self.send(lane, counter, MessageQueue(self.topic, group, queue))

    async def _handed_over(self) -> None:
        """A member more, and one less, while listeners are in their queues."""
        await self.sender.runtime.sleep(2.0)
        await self.join()
        await self.sender.runtime.sleep(self.rng.uniform(1.0, LONG_S))
        await self.members.pop(0).close()

    def verdict(self) -> list[str]:
        both = []
        calls = sorted(self.calls, key=lambda call: call.span.start)
        for number, one in enumerate(calls):
            for two in calls[number + 1 :]:
                if two.span.start >= one.span.end:
                    break
                if one.queue == two.queue and not self._lock_forgotten(one, two):
                    both.append(
                        f"{one.queue} had {one.member} at {one.offset} from {one.span.start:.3f} "
                        f"to {one.span.end:.3f} and {two.member} at {two.offset} from "
                        f"{two.span.start:.3f}"
                    )
        return told("I5 two owners at once", both) + super().verdict()

    def _lock_forgotten(self, one: Call, two: Call) -> bool:
        """Locks are in a master's memory: another one, or a restarted one, knows of none."""
        allowance = self.cluster.allowance
        group = one.queue[0]
        changes = [span.start for node in allowance.nodes_of(group) for span in node.past.idle] + [
            order.ended for order in allowance.promotions if order.node.group == group
        ]
        return any(one.span.start - LOCK_S <= at <= two.span.start for at in changes)
