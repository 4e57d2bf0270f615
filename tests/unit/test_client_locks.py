"""Lock calls of an ordered group: who is asked, with what, and what the answers mean."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.queue_locks import QueueLocks
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConnectionLost

A0, A1 = (MessageQueue("T", "a", number) for number in (0, 1))
C0, C1 = (MessageQueue("T", "c", number) for number in (0, 1))
B0, D0 = (MessageQueue("T", name, 0) for name in "bd")
LOCK, UNLOCK = 41, 42


class Brokers:
    """What QueueLocks uses of ClientCore: `a` has no master, `b` does not answer, `c` grants what
    it is told to, and so does `d`."""

    client_id = "me"

    def __init__(self, *granted: MessageQueue) -> None:
        self.runtime: Any = self
        self.granted: Any = set(granted)
        self.now = 100.0
        self.asked: list[tuple[str, int, float, Any]] = []
        self.refreshed: list[str] = []
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def broker_address(self, name: str) -> str | None:
        return None if name == "a" else name

    def refresh_soon(self, topic: str) -> None:
        self.refreshed.append(topic)

    def call_later(self, delay: float, wake: Any) -> Any:
        self.pauses.append(delay)
        return self

    def cancel(self) -> None: ...

    async def invoke(self, address: str, cmd: Command, timeout_s: float) -> Command:
        body = json.loads(bytes(cmd.body))
        self.asked.append((address, cmd.code, timeout_s, body))
        await asyncio.sleep(0)
        self.now += 5.0
        if address == "b":
            raise ConnectionLost("b is away")
        listed = self.granted
        if isinstance(listed, set):
            listed = [mq for mq in body["mqSet"] if queue_of(mq) in self.granted]
        return cmd.reply(body=json.dumps({"lockOKMQSet": listed}).encode())


def queue_of(mq: dict[str, Any]) -> MessageQueue:
    return MessageQueue(mq["topic"], mq["brokerName"], mq["queueId"])


def locks(brokers: Any) -> QueueLocks:
    return QueueLocks(brokers, "G", None)  # type: ignore[arg-type]


def test_each_master_is_asked_once_for_all_its_queues_and_none_holds_up_another() -> None:
    brokers = Brokers(C0, D0)
    asked = [C1, A0, D0, B0, C0, A1]
    assert asyncio.run(locks(brokers).acquire(asked)) == {C0, D0}
    assert [(address, code) for address, code, _, _ in brokers.asked] == [
        ("b", LOCK),
        ("c", LOCK),
        ("d", LOCK),
    ]
    assert {timeout for _, _, timeout, _ in brokers.asked} == {1.0}
    body = brokers.asked[1][3]
    assert {queue_of(mq) for mq in body.pop("mqSet")} == {C0, C1}
    assert body == {"clientId": "me", "consumerGroup": "G", "onlyThisBroker": False}
    assert brokers.refreshed == ["T", "T"], "of a that has no master, and b that does not answer"


def test_each_master_is_told_of_the_locks_that_are_given_back() -> None:
    brokers = Brokers()
    asyncio.run(locks(brokers).release([D0, A0, C0, B0]))
    assert [(address, code) for address, code, _, _ in brokers.asked] == [
        ("b", UNLOCK),
        ("c", UNLOCK),
        ("d", UNLOCK),
    ]


@pytest.mark.parametrize(
    "listed", [None, 7, [7], [{}], [{"topic": "T", "brokerName": "c", "queueId": "x"}]], ids=repr
)
def test_an_answer_that_is_nonsense_grants_and_refuses_nothing(listed: Any) -> None:
    brokers = Brokers()
    brokers.granted = listed
    held = {C0: AssignedQueue(C0)}
    held[C0].state.lock(90.0)
    assert not asyncio.run(locks(brokers).renew(held))
    assert held[C0].state.locked(119.9) == (listed is not None)


def test_a_grant_counts_from_before_the_request_left_and_a_refusal_ends_it_at_once() -> None:
    brokers = Brokers(C0)
    held = {queue: AssignedQueue(queue) for queue in (A0, B0, C0, C1, D0)}
    for mine in held.values():
        mine.state.lock(90.0)
    held[D0].handed_over = True
    made = locks(brokers)
    assert not asyncio.run(made.renew(held))
    assert brokers.now == 110.0
    assert [held[queue].state.locked(119.9) for queue in (A0, B0, C0, C1)] == [
        True,
        True,
        True,
        False,
    ]
    assert not held[B0].state.locked(120.0), "30 s from the last grant"
    assert (held[C0].state.locked(129.9), held[C0].state.locked(130.0)) == (True, False)
    assert "d" not in [address for address, _, _, _ in brokers.asked]
    del held[A0], held[B0], held[C1]
    assert asyncio.run(made.renew(held)), "none is missing"


def test_locks_are_renewed_every_20_s_or_every_second_while_one_is_missing_or_when_told() -> None:
    brokers = Brokers(C0, C1)
    held = {C0: AssignedQueue(C0), C1: AssignedQueue(C1)}
    for mine in held.values():
        mine.state.lock(99.0)
    made = locks(brokers)

    async def main() -> None:
        running = asyncio.ensure_future(made.run(held))

        async def pauses(count: int) -> list[float]:
            while len(brokers.pauses) < count:
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            return brokers.pauses

        assert await pauses(1) == [20.0]
        brokers.granted.discard(C1)
        made.renew_soon()
        assert await pauses(2) == [20.0, 1.0]
        del held[C1]
        made.renew_soon()
        assert await pauses(3) == [20.0, 1.0, 20.0]
        running.cancel()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_queue_that_was_handed_over_while_another_broker_was_asked_is_not_locked_again() -> None:
    brokers = Brokers(C0, D0)
    held = {queue: AssignedQueue(queue) for queue in (C0, D0)}
    held[C0].state.lock(90.0)
    made = locks(brokers)

    async def main() -> None:
        asking = asyncio.ensure_future(made.renew(held))
        await asyncio.sleep(0)
        assert [address for address, _, _, _ in brokers.asked] == ["c"]
        held[D0].handed_over = True
        await made.release([D0])
        assert await asking, "none is missing"
        assert [(address, code) for address, code, _, _ in brokers.asked] == [
            ("c", LOCK),
            ("d", UNLOCK),
        ]

    asyncio.run(main())


def test_locks_that_brokers_may_hold_for_us_are_known_until_they_are_released_or_expire() -> None:
    brokers = Brokers(C0)
    made = locks(brokers)
    asked = [A0, B0, C0, C1]
    asyncio.run(made.acquire(asked))
    assert set(made.left_over([])) == {B0, C0}, "a was not asked, and c refused C1"
    assert set(made.left_over(asked)) == set()
    asyncio.run(made.release([B0, C0]))
    assert made.left_over([]) == [B0]
    brokers.now = 159.9
    assert made.left_over([]) == [B0]
    brokers.now = 160.0
    assert made.left_over([]) == [], "it was asked for 60 s ago"


def test_a_queue_that_went_while_its_lock_was_asked_for_is_left_alone() -> None:
    brokers = Brokers(C0, D0)
    held = {queue: AssignedQueue(queue) for queue in (C0, D0)}
    for mine in held.values():
        mine.state.lock(90.0)

    async def main() -> None:
        asking = asyncio.ensure_future(locks(brokers).renew(held))
        await asyncio.sleep(0)
        gone = held.pop(C0)
        await asking
        assert (gone.state.locked(120.0), held[D0].state.locked(120.0)) == (False, True)

    asyncio.run(main())
