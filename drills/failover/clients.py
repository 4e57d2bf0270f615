"""Parts that the loads of the drills share: how a topic begins, how a member joins its group, how
the tasks of clients end, and the notes on messages that one group reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from saturnmq import SaturnError, aio
from saturnmq.drills.failover.history import History
from saturnmq.drills.sim.history import read_body
from saturnmq.runtime.errors import SystemBusy

READY_S = 30.0
PAUSE_S = 0.1
REBALANCE_S = 5.0


async def create_topic(admin: Any, topic: str, queues: int) -> None:
    """Create the topic once all masters take writes: at its first start a master waits for the
    word of a slave."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            await admin.create_topic(topic, queues=queues)
            return
        except SystemBusy:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(PAUSE_S)


async def join(
    group: str,
    topic: str,
    nameservers: Sequence[str],
    listener: Callable[[Any], Any],
    **options: Any,
) -> Any:
    """A new member of a group, started. Its listener is called on the loop."""

    async def listen(message: Any) -> Any:
        return listener(message)

    consumer = aio.PushConsumer(
        group, nameservers, listener_one=listen, rebalance_interval_s=REBALANCE_S, **options
    )
    consumer.subscribe(topic)
    await consumer.start()
    return consumer


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> list[str]:
    """Cancel the tasks of clients and wait for their end. Return what had ended one before: the
    rest of its work is missing in the history."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [end for end in ends if isinstance(end, Exception)]  # CancelledError is none
    return [f"a client of the drill ended: {type(end).__name__}: {end}" for end in broken]


class Notes:
    """Notes on messages that one group reads each: asked for, answered, got. A value is
    `topic-number` or `topic.lane-number`."""

    def __init__(self, history: History) -> None:
        self.missing: set[str] = set()  # acknowledged, and the group waits for it
        self._history = history
        self._done: set[str] = set()

    def sending(self, value: str) -> None:
        self._history.add("invoke", topic_of(value), value)

    def failed(self, value: str, error: SaturnError) -> None:
        kind = "fail" if error.outcome == "rejected" else "unknown"
        self._history.add(kind, topic_of(value), value, note=f"{type(error).__name__}: {error}")

    def answered(self, value: str, result: Any, *, comes: bool = True) -> bool:
        """Whether this acknowledges the message; `comes`: the group is to get it then."""
        topic, queue = topic_of(value), result.queue
        place = {"broker": queue.broker_name, "queue": queue.queue_id}
        if not result.ok:
            self._history.add("unknown", topic, value, **place, note=result.status.value)
            return False
        self._history.add("ok", topic, value, **place, offset=result.queue_offset)
        if comes and value not in self._done:
            self.missing.add(value)
        return True

    def got(self, kind: str, message: Any, note: str = "") -> str:
        """The value of a message that a consumer was given."""
        value = value_of(message)
        self._history.add(
            kind,
            topic_of(value),
            value,
            broker=message.broker_name,
            queue=message.queue_id,
            offset=message.queue_offset,
            note=note,
        )
        return value

    def settle(self, value: str) -> None:
        """The group waits for this message no more."""
        self._done.add(value)
        self.missing.discard(value)


def topic_of(value: str) -> str:
    return value.partition("-")[0].partition(".")[0]


def value_of(message: Any) -> str:
    """The value in a message's body; empty if the body is another one."""
    return read_body(bytes(message.body)) or ""
