"""Polls whose messages are at hand: turns, and what is done with, put back or given up."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Any, cast

import pytest
from consumer_world import Q0, Q1, World, puller
from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.offset_store import OffsetStore, OffsetTable
from saturnmq.client.consumer.poll_round import PollRound
from saturnmq.client.consumer.polled_offsets import PolledOffsets
from saturnmq.runtime.errors import ClientClosed


class Stored:
    """As much of a message as a process queue needs."""

    def __init__(self, offset: int) -> None:
        self.queue_offset = offset


class Rig:
    """A round of two queues of `count` messages each."""

    def __init__(self, count: int, *, auto_commit: bool = True) -> None:
        self.table = OffsetTable()
        self.polled = PolledOffsets(cast(OffsetStore, self.table))
        self.round = PollRound(self.polled, None, auto_commit=auto_commit)
        self.queues = [AssignedQueue(Q0), AssignedQueue(Q1)]
        for held in self.queues:
            self.round.add(held)
            held.state.put([Stored(n) for n in range(count)], count, 10 * count)
            self.round.arrived(held)

    def validate(self) -> None:
        for held in self.queues:
            held.state.validate()


def offsets(messages: Any) -> list[int]:
    return [message.queue_offset for message in messages]


def backlog(count: int, queues: int = 1) -> World:
    world = World(queues=queues)
    for n in range(count):
        for queue in range(queues):
            world.send(queue, b"%d" % n)
    return world


def test_polls_take_turns_without_the_loop_until_a_run_is_empty() -> None:
    rig = Rig(3)
    assert [offsets(rig.round.give(2)) for _ in range(4)] == [[0, 1], [0, 1], [2], [2]]
    assert rig.round.give(2) == []
    rig.queues[1].state.put([Stored(3)], 4, 10)
    assert rig.round.give(1) == []  # its turn has not come up on the loop
    assert offsets(rig.round.take(1)) == [3]
    assert rig.round.take(1) == []
    assert rig.polled == {Q0: 3, Q1: 4}
    rig.validate()
    assert [held.state.messages for held in rig.queues] == [0, 0]


def test_a_queue_that_gets_messages_joins_the_round_while_others_are_at_hand() -> None:
    rig = Rig(3)
    while rig.round.take(3):
        pass
    first, second = rig.queues
    first.state.put([Stored(3), Stored(4), Stored(5)], 6, 30)
    rig.round.arrived(first)
    assert offsets(rig.round.give(1)) == [3]
    second.state.put([Stored(7)], 8, 10)
    rig.round.arrived(second)
    assert [offsets(rig.round.give(1)) for _ in range(2)] == [[7], [4]]


def test_a_poll_says_that_the_messages_before_it_are_done_with_and_its_own_are_not() -> None:
    rig = Rig(10)
    known = rig.table.offsets
    assert offsets(rig.round.give(4)) == [0, 1, 2, 3]
    rig.round.settle()
    assert known == {}
    assert rig.polled == {Q0: 4, Q1: 0}
    rig.round.give(1)
    rig.round.settle()
    assert known == {Q0: 4}
    assert offsets(rig.round.give(6)) == [4, 5, 6, 7, 8, 9]
    rig.round.settle()
    assert known == {Q0: 4, Q1: 1}
    rig.round.give(1)
    rig.round.settle()
    assert known == {Q0: 4, Q1: 1}  # a whole run is noted by the poll that asks the loop
    rig.polled.note_all()
    assert known == {Q0: 10, Q1: 2}
    rig.validate()


def test_without_auto_commit_no_poll_says_so() -> None:
    rig = Rig(10, auto_commit=False)
    for _ in range(12):
        rig.round.give(1)
    rig.round.recall()
    assert rig.table.offsets == {}
    assert rig.polled == {Q0: 6, Q1: 6}


def test_recalled_messages_are_given_by_the_next_poll_that_asks() -> None:
    rig = Rig(10)
    assert [offsets(rig.round.give(2)) for _ in range(3)] == [[0, 1], [0, 1], [2, 3]]
    rig.round.recall()
    rig.validate()
    assert [held.state.commit_offset() for held in rig.queues] == [4, 2]
    assert rig.round.give(2) == []
    assert [offsets(rig.round.take(2)) for _ in range(3)] == [[2, 3], [4, 5], [4, 5]]
    rig.validate()


def test_a_paused_queue_gives_nothing_and_goes_on_where_it_was() -> None:
    rig = Rig(4)
    assert offsets(rig.round.give(1)) == [0]
    rig.round.pause({Q0})
    assert [offsets(rig.round.take(3)) for _ in range(3)] == [[0, 1, 2], [3], []]
    rig.round.resume({Q0})
    assert offsets(rig.round.give(3)) == [1, 2, 3]
    rig.validate()


def test_no_message_is_given_twice_or_lost_while_the_loop_takes_them_back() -> None:
    count = 4_000
    rig = Rig(0)
    held = rig.queues[0]
    waiting = deque(range(count))
    ask, answered, over = threading.Event(), threading.Event(), threading.Event()
    given: list[int] = []

    def poll() -> None:
        while len(given) < count:
            messages = rig.round.give(1)
            if not messages:
                answered.clear()
                ask.set()
                assert answered.wait(30.0)
            given.extend(offsets(messages))
        over.set()
        ask.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=poll)
        thread.start()
        recalls = 0
        while not over.is_set():  # as the loop does
            if ask.is_set():
                ask.clear()
                if not held.state.waiting and waiting:
                    some = [Stored(waiting.popleft()) for _ in range(min(40, len(waiting)))]
                    held.state.put(some, some[-1].queue_offset + 1, 40)
                rig.round.arrived(held)
                given.extend(offsets(rig.round.take(1)))
                answered.set()
            else:
                rig.round.recall()
                recalls += 1
        thread.join(30.0)
    finally:
        sys.setswitchinterval(interval)
    assert given == list(range(count))
    assert recalls > 0
    rig.round.settle()
    rig.validate()
    assert held.state.idle


def test_what_single_polls_gave_is_committed_in_time_but_for_the_last() -> None:
    world = backlog(20)

    async def main() -> None:
        async with puller(world, commit_interval_s=5.0) as made:
            made.assign([Q0])
            await world.runtime.sleep(1.0)
            for _ in range(7):
                assert len(await made.poll(5.0, max_messages=1)) == 1
            assert made.position(Q0) == 7
            await world.runtime.sleep(10.0)
            assert world.offsets == {Q0: 6}
            assert await made.lag() == 13
            await made.commit()
            assert world.offsets == {Q0: 7}
        assert world.offsets == {Q0: 7}
        with pytest.raises(ClientClosed):
            await made.poll(0.0, max_messages=1)

    world.run(main)


def test_a_queue_taken_away_between_single_polls_goes_with_its_messages() -> None:
    world = backlog(20, queues=2)

    async def main() -> None:
        async with puller(world) as made:
            made.assign([Q0, Q1])
            await world.runtime.sleep(1.0)
            for _ in range(5):
                await made.poll(5.0, max_messages=1)
            await made.give_up_queues([Q0])
            assert world.offsets == {Q0: 2}  # the third was of the last poll
            rest = [await made.poll(1.0, max_messages=1) for _ in range(18)]
            assert {message.queue_id for [message] in rest} == {1}
            assert await made.poll(1.0, max_messages=1) == []

    world.run(main)


def test_a_seek_between_single_polls_is_obeyed_by_the_next_one() -> None:
    world = backlog(20)

    async def main() -> None:
        async with puller(world) as made:
            made.assign([Q0])
            await world.runtime.sleep(1.0)
            for _ in range(5):
                await made.poll(5.0, max_messages=1)
            made.seek(Q0, 2)
            assert made.position(Q0) == 2
            assert offsets(await made.poll(5.0, max_messages=1)) == [2]
            await made.offsets.commit()
            assert world.offsets == {Q0: 2}

    world.run(main)
