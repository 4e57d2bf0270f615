"""A listener's own choice of what comes again, and when: `Retry`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from consumer_world import Q0, World, consumer
from example_rig import printed_by
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.results import ConsumeResult, Retry
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import ConfigError, InvalidParameter
from served_rig import served
from world_rig import World as BrokerWorld
from world_rig import run

Verdict = Retry | ConsumeResult | None


def backlog(count: int) -> World:
    world = World(queues=1)
    for n in range(count):
        world.send(0, b"%d" % n)
    return world


def returned(world: World) -> list[tuple[int, int]]:
    """The offset and the level of each message that went back."""
    size = len(world.frames[Q0][0])
    return sorted((int(back["offset"]) // size, int(back["delayLevel"])) for back in world.backs)


@pytest.mark.parametrize(
    ("verdict", "back"),
    [
        (Retry(), [(n, 0) for n in range(6)]),
        (Retry(delay_level=5), [(n, 5) for n in range(6)]),
        (Retry(delay_level=-1), [(n, -1) for n in range(6)]),
        (Retry(done=4), [(4, 0), (5, 0)]),
        (Retry(done=1, delay_level=2), [(n, 2) for n in range(1, 6)]),
        (Retry(done=6), []),
        (Retry(done=99), []),
        (ConsumeResult.RETRY, [(n, 0) for n in range(6)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_async", [False, True])
def test_the_last_messages_of_a_list_go_back_with_the_level_of_the_verdict(
    verdict: Verdict, back: list[tuple[int, int]], is_async: bool
) -> None:
    world = backlog(6)

    def decide(messages: list[ReceivedMessage]) -> Verdict:
        return verdict if len(messages) > 1 else None

    async def decide_async(messages: list[ReceivedMessage]) -> Verdict:
        return decide(messages)

    async def main() -> None:
        options: Any = {"listener": decide_async if is_async else decide}
        async with consumer(world, consume_message_batch_max_size=6, **options):
            await world.until(lambda: world.offsets.get(Q0) == 6)
        assert returned(world) == back

    world.run(main)


def test_each_call_has_a_level_of_its_own() -> None:
    world = backlog(5)

    def decide(message: ReceivedMessage) -> Verdict:
        levels = {1: Retry(delay_level=3), 3: Retry(), 4: Retry(done=1)}
        return levels.get(message.queue_offset)

    async def main() -> None:
        async with consumer(world, listener_one=decide):
            await world.until(lambda: world.offsets.get(Q0) == 5)
        assert returned(world) == [(1, 3), (3, 0)]

    world.run(main)


def test_a_verdict_counts_for_its_own_attempt_only() -> None:
    """No broker took the message: the listener gets it again, and decides anew."""
    world = backlog(1)
    world.refuse_backs = 1
    verdicts = [Retry(delay_level=7), ConsumeResult.RETRY]

    async def main() -> None:
        async with consumer(world, listener_one=lambda _: verdicts.pop(0)):
            await world.until(lambda: world.offsets.get(Q0) == 1)
        assert returned(world) == [(0, 0)]
        assert verdicts == []

    world.run(main)


class InTurn:
    """An ordered listener that gives these verdicts, then None; when it was called with what."""

    def __init__(self, world: World, *verdicts: Verdict) -> None:
        self.world = world
        self.verdicts = list(verdicts)
        self.calls: list[list[int]] = []
        self.times: list[float] = []

    def __call__(self, messages: list[ReceivedMessage]) -> Verdict:
        self.calls.append([message.queue_offset for message in messages])
        self.times.append(self.world.loop.time())
        return self.verdicts.pop(0) if self.verdicts else None

    def pauses(self) -> list[float]:
        return [round(b - a, 2) for a, b in pairwise(self.times)]


def consumed_in_order(
    verdicts: list[Verdict], messages: int = 4, **options: Any
) -> tuple[InTurn, World]:
    world = backlog(messages)
    listener = InTurn(world, *verdicts)

    async def main() -> None:
        given: Any = {"listener": listener, "consume_message_batch_max_size": messages, **options}
        async with consumer(world, ordered=True, **given):
            await world.until(lambda: world.offsets.get(Q0) == messages, 120.0)

    world.run(main)
    return listener, world


def test_an_ordered_queue_goes_on_behind_what_is_done() -> None:
    listener, world = consumed_in_order([Retry(done=2), Retry(done=1), Retry(), None])
    assert listener.calls == [[0, 1, 2, 3], [2, 3], [3], [3]]
    assert world.backs == []


def test_an_ordered_queue_waits_as_long_as_the_verdict_says() -> None:
    verdicts: list[Verdict] = [Retry(suspend_s=0.05), Retry(), Retry(suspend_s=30), None]
    assert consumed_in_order(verdicts)[0].pauses() == [0.05, 1.0, 30.0]
    verdicts = [Retry(), ConsumeResult.SUSPEND, Retry(suspend_s=2.0)]
    assert consumed_in_order(verdicts, suspend_s=0.5)[0].pauses() == [0.5, 0.5, 2.0]


def test_an_ordered_message_is_a_dead_letter_when_the_verdict_says_so() -> None:
    listener, world = consumed_in_order([Retry(done=1, delay_level=-1)])
    assert listener.calls == [[0, 1, 2, 3]]
    assert returned(world) == [(1, -1), (2, -1), (3, -1)]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Retry(delay_level=-2), "delay_level -2"),
        (lambda: Retry(delay_level=1 << 20), "delay_level 1048576"),
        (lambda: Retry(done=-1), "done -1"),
        (lambda: Retry(suspend_s=0.001), "suspend_s is 0.001: give 0.01 to 30 seconds"),
        (lambda: Retry(suspend_s=31), "suspend_s is 31"),
        (lambda: Retry(suspend_s=float("nan")), "suspend_s is nan"),
    ],
)
def test_a_choice_out_of_its_bounds_is_refused(make: Callable[[], Retry], told: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        make()


def test_a_consumer_that_would_wait_for_ever_is_refused() -> None:
    with pytest.raises(ConfigError, match="suspend_s is 31"):
        PushConsumer("G", "10.0.0.1:9876", suspend_s=31)


def test_a_broker_delivers_again_after_the_level_that_the_listener_chose() -> None:
    async def body(world: BrokerWorld) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        assert (await client.send(b"x")).code == 0
        verdicts = [Retry(delay_level=1), Retry(delay_level=2), Retry(delay_level=-1)]
        times: list[float] = []

        async def listener(message: ReceivedMessage) -> Verdict:
            times.append(asyncio.get_running_loop().time())
            return verdicts.pop(0)

        consuming = PushConsumer(
            "G", [nameserver], runtime=world.node("consumer"), listener_one=listener,
            from_beginning=True,
        )  # fmt: skip
        consuming.subscribe("T")
        await consuming.start()
        await world.until(lambda: broker.store.max_offset("%DLQ%G", 0) == 1, 60, every=0.1)
        assert [round(b - a) for a, b in pairwise(times)] == [1, 5]
        await consuming.close()
        await broker.close()

    run(body)


def test_the_example_pays_later_or_gives_up(tmp_path: Path) -> None:
    with served(tmp_path) as nameserver:
        lines = printed_by("retries", nameserver)
    assert sorted(lines) == [
        "dead letters: to nobody",
        "to a busy bank: later",
        "to a busy bank: paid, attempt 2",
        "to a friend: paid, attempt 1",
        "to nobody: given up",
    ]
