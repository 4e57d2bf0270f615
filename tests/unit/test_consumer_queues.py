"""Queues of a push consumer come and go: locks, commits and the end, each in its time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest
from consumer_world import MASTER, Q0, Q1, World, WorldCore, consumer
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import RequestTimeout

QUERY_OFFSET, COMMIT, LOCK, UNLOCK = 14, 15, 41, 42


class Watched(WorldCore):
    """Notes what is asked of brokers and waits for; some of it takes long."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.slow: dict[int, float] = {}
        self.lost: set[int] = set()  # requests that no broker hears
        self.unheard: dict[int, float] = {}  # the broker does it, its answer takes so long
        self.asked: list[tuple[int, set[int]]] = []  # code, and of which queues
        self.connection: object | None = object()

    def connected(self, address: str) -> object | None:
        return self.connection

    async def invoke(
        self,
        address: str,
        cmd: Command,
        timeout_s: float | None = None,
        ok: Collection[int] = frozenset({0}),
    ) -> Command:
        if cmd.code in (LOCK, UNLOCK):
            queues = {mq["queueId"] for mq in json.loads(bytes(cmd.body))["mqSet"]}
        else:
            queues = {int(cmd.ext.get("queueId", -1))}
        self.asked.append((cmd.code, queues))
        await self.runtime.sleep(self.slow.get(cmd.code, 0.0))
        if cmd.code in self.lost:
            raise RequestTimeout("no answer")
        answer = await super().invoke(address, cmd, timeout_s, ok)
        late = self.unheard.get(cmd.code, 0.0)
        if timeout_s is not None and late > timeout_s:
            await self.runtime.sleep(timeout_s)
            raise RequestTimeout("no answer")
        await self.runtime.sleep(late)
        return answer

    def codes(self) -> set[int]:
        return {code for code, _ in self.asked}


def backlog(count: int, queues: int = 1) -> World:
    world = World(queues=queues)
    for n in range(count):
        for queue in range(queues):
            world.send(queue, b"%d" % n)
    return world


def pulling() -> set[str]:
    """The tasks that pull."""
    names = (task.get_name().partition("/")[2] for task in asyncio.all_tasks())
    return {name for name in names if name.startswith("pull ")}


def someone_else_locks(world: World, *queues: MessageQueue) -> Collection[MessageQueue]:
    """Those that another consumer gets."""
    return set(world.locks.lock("G", "somebody else", list(queues), world.loop.time()))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("takes_s", "in_time"), [(9.9, True), (10.1, False)])
def test_close_waits_ten_seconds_for_a_listener(
    ordered: bool, takes_s: float, in_time: bool
) -> None:
    world = backlog(3)
    begun: list[Any] = []
    told: list[Any] = []

    async def listener(message: ReceivedMessage) -> None:
        begun.append(message.queue_offset)
        await asyncio.sleep(takes_s)

    async def main() -> None:
        options: Any = {"listener_one": listener, "ordered": ordered, "consume_threads": 1}
        made = consumer(world, on_error=told.append, **options)
        await made.start()
        await world.until(lambda: begun != [])
        began = world.loop.time()
        await made.close()
        took = world.loop.time() - began
        assert 9.8 < took < 10.0 if in_time else 10.0 <= took < 10.1
        assert world.offsets == {Q0: int(in_time)}
        assert len(told) == (not in_time)
        assert "still runs 10 s after close()" in "".join(map(str, told)) or in_time
        assert ("lock expires" in "".join(map(str, told))) == (ordered and not in_time)
        assert begun == [0]

    world.run(main)


@pytest.mark.parametrize("ordered", [False, True])
def test_close_ends_a_run_of_many_messages_behind_the_one_at_work(ordered: bool) -> None:
    world, done = backlog(500), []

    async def listener(message: ReceivedMessage) -> None:
        if message.queue_offset >= 300:
            await asyncio.sleep(1.0)
        done.append(message.queue_offset)

    async def main() -> None:
        made = consumer(world, listener_one=listener, ordered=ordered, consume_threads=1)
        async with made:
            await world.until(lambda: len(done) == 300)
            began = world.loop.time()
        assert world.loop.time() - began < 1.1
        assert (done, world.offsets) == (list(range(301)), {Q0: 301})

    world.run(main)


@pytest.mark.parametrize("ordered", [False, True])
def test_an_ordered_consumer_keeps_its_locks_and_another_asks_for_none(ordered: bool) -> None:
    world = World()

    async def main() -> None:
        core = Watched(world)
        async with consumer(world, core, listener_one=lambda _: None, ordered=ordered):
            await world.until(lambda: world.offsets == {Q0: 0, Q1: 0})  # where it began
            commits = len(world.commits)
            await asyncio.sleep(100.0)
            assert someone_else_locks(world, Q0, Q1) == (set() if ordered else {Q0, Q1})
            assert core.codes() >= {LOCK} if ordered else LOCK not in core.codes()
            assert (commits, len(world.commits)) == (2, 2), "nothing is committed twice"
        assert sorted(world.unlocked) == ([Q0, Q1] if ordered else [])
        assert {Q0, Q1} == someone_else_locks(world, Q0, Q1)

    world.run(main)


def test_commits_wait_for_no_answer_but_the_last_one_does() -> None:
    world = backlog(1)
    got: list[Any] = []

    async def main() -> None:
        core = Watched(world)
        async with consumer(world, core, listener_one=got.append):
            await world.until(lambda: (Q0, 1) in world.commits)
            assert 5.0 <= world.committed_when[-1] < 5.1, "every five seconds"
            assert COMMIT not in core.codes()
            core.connection = None
            world.send(0, b"late")
            await world.until(lambda: len(got) == 2)
            await asyncio.sleep(10.0)
            assert (Q0, 2) not in world.commits
        assert COMMIT in core.codes()
        assert world.offsets == {Q0: 2}

    world.run(main)


def test_a_queue_that_another_has_locked_holds_up_no_other() -> None:
    world = backlog(1, queues=2)
    got: list[Any] = []

    async def main() -> None:
        assert someone_else_locks(world, Q0) == {Q0}
        options: Any = {"listener_one": got.append, "ordered": True}
        async with consumer(world, **options) as made:
            await world.until(lambda: made.held_queues() == [Q1] and len(got) == 1, 2.0)
            await world.until(lambda: world.offsets.get(Q1) == 1)
            await asyncio.sleep(40.0)
            assert made.held_queues() == [Q1]
            await world.until(lambda: len(got) == 2, 25.0)  # 60 s after it was locked

    world.run(main)


def test_a_lock_that_is_taken_away_keeps_no_other_queue_from_being_committed() -> None:
    world = backlog(1, queues=2)
    got: list[Any] = []

    async def main() -> None:
        async with consumer(world, listener_one=got.append, ordered=True):
            await world.until(lambda: world.offsets == {Q0: 1, Q1: 1})
            world.locks.unlock("G", "me", [Q0])
            assert someone_else_locks(world, Q0) == {Q0}
            await asyncio.sleep(25.0)
            for queue in (0, 1):
                world.send(queue, b"late")
            await world.until(lambda: world.offsets[Q1] == 2, 6.0)
            assert world.offsets[Q0] == 1
            assert len(got) == 3

    world.run(main)


def test_what_another_has_consumed_meanwhile_is_not_committed_backwards() -> None:
    world, done = backlog(10), []

    async def listener(message: ReceivedMessage) -> None:
        done.append(message.queue_offset)
        await asyncio.sleep(8.0)

    async def main() -> None:
        core = Watched(world)
        async with consumer(world, core, listener_one=listener, ordered=True):
            await world.until(lambda: done == [0, 1])
            world.down.add(MASTER)
            await asyncio.sleep(40.0)  # longer than a lock is trusted
            finished = len(done)
            assert world.offsets[Q0] < finished < 8
            world.offsets[Q0] = 8  # by another one
            core.slow[QUERY_OFFSET] = 12.0  # some commits pass
            world.down.clear()
            await world.until(lambda: world.offsets[Q0] != 8, 60.0)
        assert world.offsets[Q0] == 9 or world.offsets[Q0] == 10
        assert done == [*range(finished), 8, 9]

    world.run(main)


def test_who_begins_anew_further_on_than_the_broker_says_tells_of_which_epoch_that_is() -> None:
    """Or messages that got the offsets of lost ones before it would be passed over."""
    world = backlog(3)
    world.term = "7000"

    async def main() -> None:
        async with consumer(world, listener_one=lambda _: None, ordered=True) as made:

            def is_locked() -> bool:
                return bool(made.running_info()["mqTable"][Q0]["locked"])

            await world.until(lambda: world.offsets.get(Q0) == 3)
            world.locks.unlock("G", "me", [Q0])
            assert someone_else_locks(world, Q0) == {Q0}
            made.on_route_changed("T")
            await world.until(lambda: not is_locked())
            world.term, world.offsets[Q0] = "9000", 1  # promoted
            pulls = len(world.pulls)
            world.locks.unlock("G", "somebody else", [Q0])
            made.on_route_changed("T")
            await world.until(is_locked)
            world.send(0, b"late")  # answers a pull of before, and that of the new beginning
            await world.until(lambda: len(world.pulls) > pulls + 1)
            said = [(pull["queueOffset"], pull["saturnTerm"]) for pull in world.pulls[pulls:]]
            assert said[:2] == [("3", "7000"), ("4", "9000")]

    world.run(main)


def test_a_queue_that_is_handed_over_is_not_locked_anew() -> None:
    world = backlog(1, queues=2)
    got: list[Any] = []

    async def main() -> None:
        core = Watched(world)
        async with consumer(world, core, listener_one=got.append, ordered=True) as made:
            await world.until(lambda: world.offsets == {Q0: 1, Q1: 1})
            world.send(1, b"late")
            await world.until(lambda: len(got) == 3)
            core.slow[COMMIT] = 3.0
            world.members = ["me", "you"]
            made.on_ids_changed()
            await world.until(lambda: (COMMIT, {1}) in core.asked)
            core.asked.clear()
            made.on_route_changed("T")
            await world.until(lambda: world.unlocked == [Q1])
            assert (LOCK, {0}) in core.asked
            await asyncio.sleep(30.0)
            assert not any(code == LOCK and 1 in queues for code, queues in core.asked)
            assert someone_else_locks(world, Q0, Q1) == {Q1}

    world.run(main)


def test_a_lock_that_was_granted_while_its_consumer_closed_is_given_back() -> None:
    world = World()

    async def main() -> None:
        core = Watched(world)
        core.unheard[LOCK] = 0.5
        made = consumer(world, core, listener_one=lambda _: None, ordered=True)
        await made.start()
        await world.until(lambda: LOCK in core.codes())
        await asyncio.sleep(0.1)
        assert (made.held_queues(), someone_else_locks(world, Q0)) == ([], set())
        await made.close()
        assert someone_else_locks(world, Q0, Q1) == {Q0, Q1}

    world.run(main)


def test_a_lock_whose_answer_was_lost_is_given_back_when_the_queue_is_another_members() -> None:
    world = World()

    async def main() -> None:
        core = Watched(world)
        core.unheard[LOCK] = 5.0
        async with consumer(world, core, listener_one=lambda _: None, ordered=True) as made:
            await world.until(lambda: (LOCK, {0, 1}) in core.asked)
            await asyncio.sleep(0.1)
            assert someone_else_locks(world, Q1) == set()
            world.members = ["me", "you"]
            await world.until(lambda: someone_else_locks(world, Q1) == {Q1}, 10.0)
            core.unheard.clear()
            await world.until(lambda: made.held_queues() == [Q0], 10.0)

    world.run(main)


def test_a_lock_is_given_back_again_until_the_broker_says_that_it_heard() -> None:
    world = World()
    retries = MessageQueue("%RETRY%G", "a", 0)  # without it a round is due every second
    world.frames[retries] = []
    world.listed.append(retries.topic)

    async def main() -> None:
        core = Watched(world)
        async with consumer(world, core, listener_one=lambda _: None, ordered=True) as made:
            await world.until(lambda: set(made.held_queues()) == {retries, Q0, Q1})
            core.slow[UNLOCK] = 1.0
            core.lost.add(UNLOCK)
            world.members = ["me", "you"]
            made.on_ids_changed()
            await world.until(lambda: core.asked.count((UNLOCK, {1})) == 5, 9.0)
            assert set(made.held_queues()) == {retries, Q0}
            assert someone_else_locks(world, Q1) == set()
            core.lost.clear()
            await world.until(lambda: someone_else_locks(world, Q1) == {Q1}, 5.0)
            await asyncio.sleep(2.0)
            asked = core.asked.count((UNLOCK, {1}))
            await asyncio.sleep(30.0)
            assert core.asked.count((UNLOCK, {1})) == asked

    world.run(main)


def test_a_listener_that_hangs_keeps_its_own_queue_only() -> None:
    world, freed = backlog(1, queues=2), asyncio.Event()
    begun: list[Any] = []
    told: list[Any] = []
    retries = MessageQueue("%RETRY%G", "a", 0)  # without it a round is due every second
    world.frames[retries] = []
    world.listed.append(retries.topic)

    async def listener(message: ReceivedMessage) -> None:
        begun.append(message.queue_id)
        if message.queue_id == 0:
            await freed.wait()

    async def main() -> None:
        options: Any = {"listener_one": listener, "ordered": True, "on_error": told.append}
        async with consumer(world, **options) as made:
            await world.until(lambda: len(begun) == 2)
            for members in (["a", "me"], ["a", "b", "me"]):  # the first one leaves its queue 0
                world.members = members
                made.on_ids_changed()
                await asyncio.sleep(1.0)
            assert (made.held_queues(), world.unlocked) == ([Q0], [retries, Q1])
            assert pulling() == set()
            await asyncio.sleep(100.0)
            tries = made.running_info()["mqTable"][Q0]["tryUnlockTimes"]
            assert tries == 1 + 5, "a round every 20 s found the listener at work"
            world.members = ["me"]
            made.on_ids_changed()
            await asyncio.sleep(5.0)
            assert set(made.held_queues()) == {retries, Q0, Q1}
            freed.set()
            world.send(0, b"late")
            await world.until(lambda: sorted(begun) == [0, 0, 1], 1.2)
            assert told == []

    world.run(main)


def test_a_queue_that_is_being_left_when_its_consumer_closes_is_given_back_once() -> None:
    world, begun = backlog(3), []

    async def listener(message: ReceivedMessage) -> None:
        begun.append(message.queue_offset)
        await asyncio.sleep(5.0)

    async def main() -> None:
        core = Watched(world)
        core.slow[COMMIT] = 1.0
        made = consumer(world, core, listener_one=listener, ordered=True)
        await made.start()
        await world.until(lambda: begun != [])
        world.members = ["a", "me"]
        made.on_ids_changed()
        await asyncio.sleep(1.0)
        closing = asyncio.ensure_future(made.close())
        await world.until(lambda: world.unlocked != [])
        assert world.offsets == {Q0: 1}, "before anybody else may have it"
        await closing
        await asyncio.sleep(1.0)
        assert (begun, world.unlocked) == ([0], [Q0])

    world.run(main)


def test_a_consumer_says_what_it_holds_of_each_queue() -> None:
    world, freed = World(), asyncio.Event()
    for n in range(10):
        world.send(0, b"%d" % n + bytes(300_000))

    async def listener(message: ReceivedMessage) -> None:
        if message.queue_offset == 4:
            await freed.wait()

    async def main() -> None:
        await asyncio.sleep(10.0)
        options: Any = {"listener_one": listener, "ordered": True}
        async with consumer(world, **options) as made:
            began = world.runtime.now_ms()
            await world.until(lambda: world.offsets.get(Q0) == 4)
            await asyncio.sleep(5.0)
            table = made.running_info()["mqTable"]
            common = {
                "droped": False,
                "locked": True,
                "tryUnlockTimes": 0,
                "transactionMsgCachedMinOffset": 0,
                "transactionMsgCachedMaxOffset": 0,
                "transactionMsgCachedCount": 0,
            }
            stamps = {"lastPullTimestamp", "lastConsumeTimestamp", "lastLockTimestamp"}
            said = {
                queue: {name: value for name, value in table[queue].items() if name not in stamps}
                for queue in (Q0, Q1)
            }
            # The first was a run of its own; the other nine are one, which is not over.
            assert said[Q0] == common | {
                "commitOffset": 4,
                "cachedMsgMinOffset": 4,
                "cachedMsgMaxOffset": 9,
                "cachedMsgCount": 9,
                "cachedMsgSizeInMiB": 2,
            }
            assert said[Q1] == common | {
                "commitOffset": 0,
                "cachedMsgMinOffset": 0,
                "cachedMsgMaxOffset": 0,
                "cachedMsgCount": 0,
                "cachedMsgSizeInMiB": 0,
            }
            for name in stamps:
                assert began <= table[Q0][name] < began + 9, name
            freed.set()

    world.run(main)


def test_a_queue_of_which_nothing_is_known_yet_is_said_to_hold_nothing() -> None:
    world = backlog(1)
    world.offsets[Q0] = 1

    async def main() -> None:
        core = Watched(world)
        core.slow[QUERY_OFFSET] = 30.0
        async with consumer(world, core, listener_one=lambda _: None) as made:
            await world.until(lambda: made.held_queues() == [Q0])
            told = made.running_info()["mqTable"][Q0]
            offsets = ("commitOffset", "cachedMsgMinOffset", "cachedMsgMaxOffset")
            assert [told[name] for name in offsets] == [0, 0, 0]
            assert [told[name] for name in told if name.endswith("Timestamp")] == [0, 0, 0]

    world.run(main)


def test_nothing_is_pulled_of_a_queue_that_is_left_and_nothing_at_all_after_the_end() -> None:
    world = World()

    async def main() -> None:
        async with consumer(world, listener_one=lambda _: None) as made:
            await world.until(lambda: pulling() == {f"pull {Q0}", f"pull {Q1}"})
            world.members = ["me", "you"]
            made.on_ids_changed()
            await world.until(lambda: made.held_queues() == [Q0])
            await asyncio.sleep(0.1)
            assert pulling() == {f"pull {Q0}"}
        await asyncio.sleep(0.1)
        assert pulling() == set()

    world.run(main)


def test_a_message_that_fails_is_tried_on_when_a_grant_comes_late_that_was_asked_for_in_time() -> (
    None
):
    world, calls = backlog(1), []

    def listener(message: ReceivedMessage) -> ConsumeResult | None:
        calls.append(world.loop.time())
        return ConsumeResult.RETRY if len(calls) < 40 else None

    async def main() -> None:
        core = Watched(world)
        async with consumer(world, core, listener_one=listener, ordered=True):
            await world.until(lambda: len(calls) == 5)
            core.slow[LOCK] = 14.0  # the next one is asked for 20 s after the first
            await world.until(lambda: (Q0, 1) in world.commits, 90.0)
        pauses = sorted(later - one for one, later in pairwise(calls))
        assert len(calls) == 40
        assert pauses[-2] < 1.1
        assert 3.5 < pauses[-1] < 6.0, "nothing is handed over 30 s after the first was asked for"

    world.run(main)
