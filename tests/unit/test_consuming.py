"""When a listener is called, how often at once, and what becomes of what it does not take."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any

import pytest
from consumer_world import Q0, World, WorldCore, consumer
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ListenerError, ListenerStuck

PULL, SEND_BACK = 11, 36


class Watched(WorldCore):
    """Counts the messages that go back at once, each of which takes a second."""

    def __init__(self, world: World, takes_s: float = 0.0) -> None:
        super().__init__(world)
        self.takes_s = takes_s
        self.under_way = self.most = 0

    async def invoke(
        self,
        address: str,
        cmd: Command,
        timeout_s: float | None = None,
        ok: Collection[int] = frozenset({0}),
    ) -> Command:
        if cmd.code == SEND_BACK:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await self.runtime.sleep(self.takes_s)
            self.under_way -= 1
        return await super().invoke(address, cmd, timeout_s, ok)


def backlog(count: int, queues: int = 1) -> World:
    world = World(queues=queues)
    for n in range(count):
        for queue in range(queues):
            world.send(queue, b"%d" % n)
    return world


class Failing:
    """A listener that fails `times[offset]` times, and when it was called with what."""

    def __init__(self, world: World, times: dict[int, int]) -> None:
        self.world = world
        self.left = Counter(times)
        self.calls: list[tuple[int, float]] = []
        self.reconsume_times: list[int] = []

    def __call__(self, message: ReceivedMessage) -> ConsumeResult | None:
        offset = message.queue_offset
        self.reconsume_times.append(message.reconsume_times)
        self.calls.append((offset, round(self.world.loop.time(), 1)))
        if self.left[offset] <= 0:
            return None
        self.left[offset] -= 1
        return ConsumeResult.RETRY

    def offsets(self) -> list[int]:
        return [offset for offset, _ in self.calls]

    def pauses(self) -> list[float]:
        times = [at for _, at in self.calls]
        return [round(b - a, 1) for a, b in pairwise(times)]


def test_what_no_broker_takes_back_is_tried_again_after_five_seconds() -> None:
    world = backlog(3)
    failing = Failing(world, {1: 2})
    world.refuse_backs = 1

    async def main() -> None:
        async with consumer(world, listener_one=failing):
            await world.until(lambda: world.offsets.get(Q0) == 3)
        assert (sorted(failing.offsets()[:3]), failing.offsets()[3:]) == ([0, 1, 2], [1])
        assert failing.pauses()[-1] == 5.0
        assert [back["offset"] for back in world.backs] == [str(len(world.frames[Q0][0]))]

    world.run(main)


def test_an_ordered_message_is_tried_again_every_second() -> None:
    world = backlog(3)
    failing = Failing(world, {1: 3})

    async def main() -> None:
        async with consumer(world, listener_one=failing, ordered=True):
            await world.until(lambda: world.offsets.get(Q0) == 3)
        assert failing.offsets() == [0, 1, 1, 1, 1, 2]
        assert failing.reconsume_times == [0, 0, 1, 2, 3, 0], "as Java's client counts"
        assert failing.pauses()[1:4] == [1.0] * 3

    world.run(main)


@pytest.mark.parametrize("most", [-1, 0, 1, 2])
def test_each_ordered_message_has_its_own_retries(most: int) -> None:
    """Though they are handed over in one piece."""
    world = backlog(6)
    times = {1: 2, 2: 1, 3: 3, 4: 3, 5: 2}
    failing = Failing(world, times)

    async def main() -> None:
        async with consumer(world, listener_one=failing, ordered=True, max_reconsume=most):
            await world.until(lambda: world.offsets.get(Q0) == 6, 90.0)
        size = len(world.frames[Q0][0])
        dead = [n for n, failures in times.items() if 0 <= most < failures]
        assert [int(back["offset"]) // size for back in world.backs] == dead
        tries = {n: most + 1 if n in dead else times.get(n, 0) + 1 for n in range(6)}
        assert Counter(failing.offsets()) == tries
        assert failing.offsets() == sorted(failing.offsets())
        assert failing.reconsume_times == [attempt for n in range(6) for attempt in range(tries[n])]

    world.run(main)


def test_a_broadcast_message_that_fails_is_passed_over() -> None:
    world = backlog(3)
    failing = Failing(world, {1: 9})

    class NoFile:
        written = b""

        def read(self, path: str) -> bytes | None:
            return None

        def replace(self, path: str, data: bytes) -> None:
            self.written = data

        def lock(self, path: str) -> str | None:
            return None

        def unlock(self, path: str) -> None: ...

    async def main() -> None:
        files = NoFile()
        async with consumer(world, listener_one=failing, broadcasting=True, files=files):
            await asyncio.sleep(30.0)
        assert sorted(failing.offsets()) == [0, 1, 2]
        assert world.backs == []
        assert b":3}" in files.written

    world.run(main)


def test_sixty_four_messages_go_back_at_once() -> None:
    world = backlog(200)
    core = Watched(world, 1.0)

    async def main() -> None:
        options: Any = {"listener": lambda _: ConsumeResult.RETRY}
        async with consumer(world, core, consume_message_batch_max_size=200, **options):
            await world.until(lambda: len(world.backs) == 200)
        assert core.most == 64

    world.run(main)


@pytest.mark.parametrize(("kind", "at_once"), [("threads", 3), ("ordered", 4)])
def test_a_listener_is_under_way_as_often_as_it_may(kind: str, at_once: int) -> None:
    world, inside, most, done = backlog(10, queues=4), Counter[int](), [0], []

    async def listener(message: ReceivedMessage) -> None:
        inside[message.queue_id] += 1
        most[0] = max(most[0], inside.total())
        assert kind == "threads" or inside[message.queue_id] == 1
        await asyncio.sleep(1.0)
        inside[message.queue_id] -= 1
        done.append(message.queue_id)

    async def main() -> None:
        options: Any = {"ordered": kind == "ordered", "consume_threads": 3}
        async with consumer(world, listener_one=listener, **options):
            began = world.loop.time()
            await world.until(lambda: len(done) == 40)
            assert world.loop.time() - began < 40 / at_once + 2.0
        assert most[0] == at_once
        # Three and a fourth before the others are known, then one in four.
        assert max(Counter(done[:20]).values()) <= 8, "queues take turns"

    world.run(main)


class Worked(SimRuntime):
    """Its threads call a listener as `_call` does."""

    def workers(self, threads: int, *, name: str) -> Any:
        return self

    def run(self, function: Any, *args: Any) -> Any:
        return self.begin(self._call(function, *args))

    async def _call(self, function: Any, *args: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None: ...


class Stalling(Worked):
    """The n-th run of a listener takes `takes_s(n)` seconds, though its calls take no time."""

    def __init__(self, world: World, takes_s: Callable[[int], float]) -> None:
        super().__init__(world.loop, SimNetwork(world.loop, 8), 8, "stalling")
        self.takes_s = takes_s
        self.begun: list[float] = []

    async def _call(self, function: Any, *args: Any) -> Any:
        self.begun.append(self.monotonic())
        result = function(*args)
        await self.sleep(self.takes_s(len(self.begun)))
        return result


@pytest.mark.parametrize(("takes_s", "waits_s"), [(30.0, 0.1), (0.05, 0.05), (0.09, 0.09)])
def test_a_fast_listener_that_stalls_gets_the_other_threads_a_tenth_of_a_second_later(
    takes_s: float, waits_s: float
) -> None:
    world = backlog(1, queues=4)
    runtime = Stalling(world, lambda n: takes_s if n > 4 else 0.0)

    async def main() -> None:
        async with consumer(world, WorldCore(world, runtime=runtime), listener_one=lambda _: None):
            await world.until(lambda: len(world.offsets) == 4)
            for queue in range(4):
                world.send(queue, b"again")
            await world.until(lambda: len(runtime.begun) == 8)
            first, *others = runtime.begun[4:]
            assert others[0] - first == pytest.approx(waits_s, abs=0.001)
            gaps = [later - one for one, later in pairwise(others)]
            if takes_s > 1.0:
                assert max(gaps) < 0.001
            else:
                assert min(gaps) > 0.9 * takes_s, "a fast one has one thread"
            await asyncio.sleep(40.0)

    world.run(main)


def test_a_long_run_that_is_over_leaves_no_room_for_another_one() -> None:
    world = backlog(1, queues=4)
    runtime = Stalling(world, lambda n: 0.15 if n == 5 else 0.05 if n > 5 else 0.0)

    async def main() -> None:
        async with consumer(world, WorldCore(world, runtime=runtime), listener_one=lambda _: None):
            await world.until(lambda: len(world.offsets) == 4)
            world.send(0, b"long")
            await asyncio.sleep(1.0)
            for queue in range(4):
                world.send(queue, b"again")
            await world.until(lambda: len(runtime.begun) == 9)
            gaps = [later - one for one, later in pairwise(runtime.begun[5:])]
            assert min(gaps) > 0.045, "a fast one has one thread"

    world.run(main)


@pytest.mark.parametrize("size", [1, 8])
def test_what_is_slow_does_not_hold_up_what_was_handed_over_with_it(size: int) -> None:
    """All of it is one run, of a listener that was fast: 50 times 3 s, one after the other."""
    world = backlog(1)
    got: list[Any] = []

    async def listener(messages: list[ReceivedMessage]) -> None:
        if any(message.queue_offset % 10 == 9 for message in messages):
            await asyncio.sleep(3.0)
        got.extend(message.queue_offset for message in messages)

    async def main() -> None:
        options: Any = {"listener": listener, "consume_message_batch_max_size": size}
        async with consumer(world, **options):
            await world.until(lambda: got == [0])
            for _ in range(500):
                world.send(0, b"more")
            began = world.loop.time()
            await world.until(lambda: world.offsets.get(Q0) == 501, 30.0)
            assert world.loop.time() - began < 20.0
        assert sorted(got) == list(range(501))

    world.run(main)


def test_a_call_that_hangs_slows_down_nothing_but_itself() -> None:
    world = backlog(1, queues=2)
    runtime = Stalling(world, lambda n: 30.0 if n == 3 else 0.0)

    async def main() -> None:
        async with consumer(world, WorldCore(world, runtime=runtime), listener_one=lambda _: None):
            await world.until(lambda: len(world.offsets) == 2)
            world.send(0, b"hangs")
            await asyncio.sleep(0.2)
            for n in range(100):
                world.send(1, b"after it")
                await world.until(lambda n=n: len(runtime.begun) == 4 + n, 0.09)  # type: ignore[misc]

    world.run(main)


class Counting(SimRuntime):
    """Notes the names of the tasks that begin."""

    def __init__(self, world: World) -> None:
        super().__init__(world.loop, SimNetwork(world.loop, 8), 8, "counting")
        self.spawned: list[str | None] = []

    def spawn(self, coro: Any, *, name: str | None = None) -> asyncio.Task[Any]:
        self.spawned.append(name)
        return super().spawn(coro, name=name)


def test_a_run_takes_a_task_only_where_it_leaves_something_to_do() -> None:
    world = backlog(4)
    runtime = Counting(world)
    listener = Failing(world, {2: 1})

    async def main() -> None:
        async with consumer(world, WorldCore(world, runtime=runtime), listener_one=listener):
            await world.until(lambda: world.offsets.get(Q0) == 4)
        assert (sorted(listener.offsets()), len(world.backs)) == ([0, 1, 2, 3], 1)
        assert runtime.spawned.count("listener run") == 1

    world.run(main)


def test_what_an_ended_run_has_not_reached_is_not_taken_for_done() -> None:
    """The queue goes to another member while the thread wakes."""
    world = backlog(3)
    called: list[Any] = []
    runtime = SimRuntime(
        world.loop, SimNetwork(world.loop, 8), 8, "slow", blocking_latency_s=(0.05, 0.05)
    )

    async def main() -> None:
        async with consumer(world, WorldCore(world, runtime=runtime), listener_one=called.append):
            await world.until(lambda: world.pulls != [])
            await asyncio.sleep(0.02)
        assert (called, world.offsets.get(Q0, 0)) == ([], 0)

    world.run(main)


class Hanging(Worked):
    """A run of the listener is a real thread, which simulated time does not wait for; the loop
    hears of its end when `free` is called."""

    def run(self, function: Any, *args: Any) -> Any:
        self.future = self.create_future()
        self.thread = threading.Thread(target=function, args=args)
        self.thread.start()
        return self.future

    def free(self, let_go: threading.Event) -> None:
        let_go.set()
        self.thread.join(10.0)
        self.future.set_result(0.001)


def test_what_was_given_up_goes_back_although_its_call_returns_meanwhile() -> None:
    """Another member may have it already."""
    world, let_go = backlog(1), threading.Event()
    runtime = Hanging(world.loop, SimNetwork(world.loop, 8), 8, "hanging")
    got: list[int] = []

    def listen(message: ReceivedMessage) -> None:
        assert let_go.wait(10.0)
        got.append(message.queue_offset)

    async def main() -> None:
        world.refuse_backs = 3
        core = WorldCore(world, runtime=runtime)
        async with consumer(world, core, listener_one=listen, consume_timeout_s=60.0):
            await world.until(lambda: world.refuse_backs == 2, 100.0)
            runtime.free(let_go)
            await world.until(lambda: world.offsets.get(Q0) == 1, 100.0)
        assert (got, world.refuse_backs, len(world.backs)) == ([0], 0, 1)

    world.run(main)


class Breaking(Worked):
    """Its first thread breaks when the listener has had everything."""

    runs = 0

    async def _call(self, function: Any, *args: Any) -> Any:
        self.runs += 1
        took = function(*args)
        if self.runs == 1:
            raise MemoryError("no room for the result")
        return took


def test_a_thread_that_breaks_is_told_and_what_its_listener_has_done_is_done() -> None:
    world = backlog(1)
    got: list[Any] = []
    told: list[Any] = []
    runtime = Breaking(world.loop, SimNetwork(world.loop, 8), 8, "breaking")

    async def main() -> None:
        options: Any = {"listener_one": got.append, "on_error": told.append}
        async with consumer(world, WorldCore(world, runtime=runtime), **options):
            await world.until(lambda: world.offsets.get(Q0) == 1)
        assert [str(error.__cause__) for error in told] == ["no room for the result"]
        assert (len(got), world.backs) == (1, [])

    world.run(main)


class Unstartable(Worked):
    """Its first thread cannot be started."""

    tries = 0

    async def _call(self, function: Any, *args: Any) -> Any:
        self.tries += 1
        if self.tries == 1:
            raise RuntimeError("can't start new thread")
        return function(*args)


@pytest.mark.parametrize(("ordered", "pause_s"), [(False, 5.0), (True, 1.0)])
def test_a_run_that_cannot_begin_is_told_once_and_begins_later(
    ordered: bool, pause_s: float
) -> None:
    world = backlog(1)
    got: list[Any] = []
    told: list[Any] = []
    runtime = Unstartable(world.loop, SimNetwork(world.loop, 8), 8, "poor")

    def tell(error: Any) -> None:
        told.append((type(error), str(error.__cause__), world.loop.time()))

    async def main() -> None:
        core = WorldCore(world, runtime=runtime)
        options: Any = {"listener_one": got.append, "ordered": ordered, "on_error": tell}
        async with consumer(world, core, **options):
            began = world.loop.time()
            await world.until(lambda: got != [])
            assert pause_s <= world.loop.time() - began < pause_s + 0.1
        assert [each[:2] for each in told] == [(ListenerError, "can't start new thread")]
        assert (world.offsets, world.backs) == ({Q0: 1}, [])

    world.run(main)


def test_a_message_on_its_way_back_is_not_taken_for_one_that_its_listener_holds() -> None:
    world = World(queues=1)
    told: list[Any] = []
    core = Watched(world, 12.0)

    async def main() -> None:
        options: Any = {"listener": lambda _: ConsumeResult.RETRY, "on_error": told.append}
        async with consumer(world, core, consume_timeout_s=60.0, **options):
            await asyncio.sleep(100.0)
            world.send(0, b"late")
            await world.until(lambda: world.offsets.get(Q0) == 1)
        assert [back["delayLevel"] for back in world.backs] == ["0"]
        assert told == []

    world.run(main)


def test_what_is_taken_from_a_listener_and_from_no_broker_is_tried_every_five_seconds() -> None:
    world, freed = backlog(1), asyncio.Event()
    told: list[Any] = []
    refused_at: list[Any] = []

    class Refusing(Watched):
        async def invoke(self, address: str, cmd: Command, *args: Any, **options: Any) -> Command:
            if cmd.code == SEND_BACK:
                refused_at.append(world.loop.time())
            return await super().invoke(address, cmd, *args, **options)

    async def hang(message: ReceivedMessage) -> None:
        await freed.wait()

    async def main() -> None:
        world.refuse_backs = 3
        options: Any = {"listener_one": hang, "on_error": told.append}
        async with consumer(world, Refusing(world), consume_timeout_s=60.0, **options):
            await world.until(lambda: world.offsets.get(Q0) == 1, 100.0)
            freed.set()
        pauses = [round(b - a, 1) for a, b in pairwise(refused_at)]
        assert pauses == [5.0] * 3
        assert [type(error) for error in told] == [ListenerStuck]
        assert "1 messages go back" in str(told[0])

    world.run(main)


def test_a_listener_that_hangs_is_told_every_time_out_with_the_message_that_it_hangs_in() -> None:
    world, told, freed = backlog(500), [], asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        if message.queue_offset == 499:
            await freed.wait()

    def tell(error: Any) -> None:
        told.append((world.loop.time(), str(error)))
        assert isinstance(error, ListenerStuck)

    async def main() -> None:
        options: Any = {"consume_timeout_s": 60.0, "commit_interval_s": 1.0, "on_error": tell}
        async with consumer(world, listener_one=listener, ordered=True, **options):
            await world.until(lambda: world.offsets.get(Q0) == 499)
            await asyncio.sleep(250.0)
            freed.set()
        times = [at for at, _ in told]
        assert len(times) == 4
        assert all(60.0 <= b - a <= 61.1 for a, b in pairwise([0.0, *times]))
        assert all("offset 499" in text for _, text in told), told[0]
        assert "for 60 s" in told[0][1]

    world.run(main)


class Timed(SimRuntime):
    """Its listeners take time, which they add to `spent`."""

    spent = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.spent


@pytest.mark.parametrize(
    ("takes_s", "thread_s", "order", "after_s"),
    [
        (0.0001, 0.0002, ["call", "pull"], 0.0002),  # when the call is known to have ended
        (0.0001, 0.005, ["pull", "call"], 0.004),  # the thread comes late: 1 ms, and no longer
        (0.001, 0.0002, ["pull", "call"], 0.0002),  # a slow listener has the pull sent first
    ],
)
def test_a_quick_listener_is_called_before_the_next_pull_of_a_queue_that_was_read(
    takes_s: float, thread_s: float, order: list[str], after_s: float
) -> None:
    world = backlog(1)
    network = SimNetwork(world.loop, 7)
    runtime = Timed(world.loop, network, 7, "timed", blocking_latency_s=(thread_s, thread_s))
    core = WorldCore(world, runtime=runtime)
    events: list[tuple[str, float]] = []

    def asked(cmd: Command) -> None:
        if cmd.code == PULL:
            events.append(("pull", world.loop.time()))

    def listen(_: ReceivedMessage) -> None:
        events.append(("call", world.loop.time()))
        runtime.spent += takes_s

    async def main() -> None:
        core.at_request = asked
        async with consumer(world, core, listener_one=listen):
            await world.until(lambda: len(events) == 3)  # its pace is not known yet
            for _ in range(3):
                events.clear()
                world.send(0, b"next")
                await world.until(lambda: len(events) == 2)
                (first, at), (second, later) = events
                assert [first, second] == order
                assert later - at == pytest.approx(after_s, abs=1e-6)

    world.run(main)
