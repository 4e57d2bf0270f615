"""How much a listener is handed at once, by how many threads, and what a run tells of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from saturnmq import PushConsumer
from saturnmq.client.consumer.listening import Caller
from saturnmq.client.consumer.process_queue import MessageRun, ProcessQueue
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.runtime.errors import ConfigError, ListenerError
from saturnmq.runtime.native import NativeRuntime

KINDS = ["one", "many", "async one", "async many"]
ANSWERS = {"retry": ConsumeResult.RETRY, "wrong": "wrong"}


@dataclass
class Message:
    queue_offset: int


class Clock:
    """A runtime whose time is what listeners say, and whose only thread is this one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[int] = []
        self.closed = 0

    def monotonic(self) -> float:
        return self.now

    def workers(self, threads: int, *, name: str) -> Any:
        self.asked.append(threads)
        return self

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def close(self) -> None:
        self.closed += 1


class Listening:
    """A Caller and its listener, which takes `pace` seconds per message and answers by `answer`."""

    def __init__(self, kind: str, size: int = 4, threads: int = 20) -> None:
        self.clock: Any = Clock()
        self.told: list[tuple[float, ListenerError, int]] = []
        self.caller = Caller(self.clock, size, threads, self.tell)
        self.pace = 1e-3
        self.calls: list[list[int]] = []
        self.answer: Callable[[list[int]], object] = lambda _: None

        async def later(given: Any) -> Any:
            return self.listen(given)

        listener: Any = later if "async" in kind else self.listen
        self.caller.set(*((None, listener) if "one" in kind else (listener, None)))

    def tell(self, error: ListenerError) -> None:
        self.told.append((self.clock.now, error, error.messages))

    def listen(self, given: Any) -> Any:
        batch = list(given) if isinstance(given, list) else [given]
        if isinstance(given, list):
            given.clear()  # it is the listener's own
        self.calls.append(batch)
        self.clock.now += self.pace * len(batch)
        return self.answer(batch)

    def run(self, messages: Sequence[int], **how: Any) -> MessageRun:
        chunk = MessageRun(messages, 0, 0)
        asyncio.run(self.caller.run(chunk, **how))
        return chunk


@pytest.mark.parametrize("kind", ["one", "many"])
@pytest.mark.parametrize(
    ("pace", "messages"),
    [(0.0, 8192), (2.0**-24, 8192), (2.0**-20, 2097), (2.0**-10, 2), (2.0**-9, 1), (1.0, 0)],
)
def test_a_run_takes_two_milliseconds_in_whole_slices(
    kind: str, pace: float, messages: int
) -> None:
    listening = Listening(kind)
    size = 1 if kind == "one" else 4
    assert (listening.caller.pace, listening.caller.run_length) == (0.0, size)
    listening.pace = pace
    listening.run(range(8))
    assert listening.caller.pace == max(pace, 1e-9 / 8)
    assert listening.caller.run_length == max(size, messages - messages % size)


@pytest.mark.parametrize(
    ("pace", "threads", "parallel"),
    [
        (0.0, 20, 1),
        (5e-6, 20, 1),
        (5.1e-6, 20, 2),
        (50e-6, 20, 2),
        (50e-6, 1, 1),
        (51e-6, 20, 20),
        (1.0, 3, 3),
    ],
)
def test_a_fast_listener_gets_few_threads_and_all_of_them_when_it_stalls(
    pace: float, threads: int, parallel: int
) -> None:
    listening = Listening("one", threads=threads)
    assert listening.caller.parallel == threads
    listening.pace = pace
    listening.run([0])
    assert listening.caller.parallel == parallel
    listening.caller.stalled()
    assert (listening.caller.parallel, listening.caller.pace) == (threads, 0.0)


def test_an_async_listener_is_under_way_as_often_as_it_may() -> None:
    listening = Listening("async one", threads=3)
    listening.pace = 1e-6
    listening.run([0])
    assert listening.caller.parallel == 3


@pytest.mark.parametrize("kind", KINDS)
def test_of_the_pace_the_latest_run_counts_most(kind: str) -> None:
    listening = Listening(kind)
    for listening.pace in (1.0, 3.0):
        listening.run(range(10))
    assert listening.caller.pace == pytest.approx((0.7 * 10 + 30) / (0.7 * 10 + 10))


def test_threads_are_asked_for_once_and_given_back_once() -> None:
    listening = Listening("many", threads=7)
    for _ in range(2):
        listening.run([0])
    listening.caller.close()
    listening.caller.close()
    assert (listening.clock.asked, listening.clock.closed) == ([7], 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failing", ["retry", "wrong", "raised"])
@pytest.mark.parametrize("stop", [False, True])
def test_a_run_says_how_far_it_came_and_what_failed(kind: str, failing: str, stop: bool) -> None:
    listening = Listening(kind, size=2)

    def answer(batch: list[int]) -> object:
        if 5 not in batch:
            return ConsumeResult.SUCCESS if 0 in batch else None
        if failing == "raised":
            raise ValueError("five")
        return ANSWERS[failing]

    listening.answer = answer
    chunk = listening.run(range(9), stop_at_failure=stop)
    step = 1 if "one" in kind else 2
    failed = [5] if step == 1 else [4, 5]
    assert chunk.failed == failed
    assert chunk.handled == (failed[0] if stop else 9)
    heard = [message for batch in listening.calls for message in batch]
    assert heard == list(range(6 if stop else 9))
    assert {len(batch) for batch in listening.calls[:4]} == {step}
    assert [count for _, _, count in listening.told] == ([step] if failing == "wrong" else [])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["told", "ended"])
def test_a_run_ends_before_the_slice_that_nobody_wants_any_more(kind: str, how: str) -> None:
    listening = Listening(kind, size=2)
    chunk = MessageRun(range(9), 0, 0)
    go_on = iter([True, True, False]).__next__ if how == "told" else None
    if how == "ended":

        def answer(batch: list[int]) -> None:
            chunk.ended = len(listening.calls) == 2

        listening.answer = answer
    asyncio.run(listening.caller.run(chunk, go_on))
    assert (len(listening.calls), chunk.handled) == (2, 2 if "one" in kind else 4)
    assert listening.caller.pace == pytest.approx(listening.pace)


@pytest.mark.parametrize("loop_runs", [False, True])
def test_a_run_that_is_closed_is_no_failure_of_its_listener(loop_runs: bool) -> None:
    """As at the end of a loop, with tasks that nobody waits for any more."""

    async def waiting(_: object) -> None:
        await asyncio.Event().wait()

    caller = Caller(Clock(), 4, 1, pytest.fail)  # type: ignore[arg-type]
    caller.set(waiting, None)
    chunk = MessageRun(range(3), 0, 0)
    run = caller.run(chunk)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.ensure_future(run)
        await asyncio.sleep(0)
        if loop_runs:
            run.close()
        return task

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with asyncio.Runner() as runner:
        task = runner.run(begin())
        run.close()
        runner.run(end())
    assert (chunk.handled, chunk.failed, chunk.faults) == (0, [], {})


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_taken_from_a_run_under_way_is_not_handed_to_its_listener(kind: str) -> None:
    """Which is in a call of its own thread meanwhile."""
    queue, freed = ProcessQueue(next_offset=0), threading.Event()
    got: list[Any] = []
    queue.put([Message(offset) for offset in range(100)], 100, 1000)
    chunk = queue.take(100)
    assert chunk is not None

    def listen(given: Any) -> None:
        batch = given if isinstance(given, list) else [given]
        got.extend(message.queue_offset for message in batch)
        if 40 in got:
            assert freed.wait(5.0)

    async def later(given: Any) -> None:
        batch = given if isinstance(given, list) else [given]
        got.extend(message.queue_offset for message in batch)
        while 40 in got and not freed.is_set():
            await asyncio.sleep(0.001)

    async def main() -> None:
        caller = Caller(NativeRuntime(), 8, 1, pytest.fail)
        listener: Any = later if "async" in kind else listen
        caller.set(*((None, listener) if "one" in kind else (listener, None)))
        run = asyncio.create_task(caller.run(chunk))
        async with asyncio.timeout(5.0):
            while 40 not in got:
                await asyncio.sleep(0.001)
        queue.split(chunk)
        freed.set()
        await run
        caller.close()

    asyncio.run(main())
    rest = queue.take(100)
    assert rest is not None
    assert got == list(range(41 if "one" in kind else 48))
    assert (chunk.handled, len(chunk.messages)) == (len(got), len(got))
    assert [message.queue_offset for message in rest.messages] == list(range(len(got), 100))


def test_each_kind_of_fault_is_told_once_a_minute_with_the_messages_since() -> None:
    listening = Listening("one")
    listening.pace = 0.0
    listening.answer = lambda batch: batch[0]
    ends = [SystemExit(), KeyboardInterrupt()]

    def raising(batch: list[int]) -> object:
        raise ends[batch[0]]

    listening.run([1, 2, 3])
    for listening.clock.now in (1.0, 59.9):
        listening.run([4])
    listening.answer = raising
    listening.run([0, 1, 1])
    listening.answer = lambda batch: batch[0]
    for listening.clock.now in (60.0, 61.0, 119.9, 120.0):
        listening.run([5])
    counts = [(at, type(error).__name__, count) for at, error, count in listening.told]
    assert counts == [
        (0.0, "WrongListenerResult", 3),
        (59.9, "ListenerRaisedExit", 1),
        (59.9, "ListenerRaisedExit", 2),
        (60.0, "WrongListenerResult", 3),
        (120.0, "WrongListenerResult", 3),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consume_message_batch_max_size", 0),
        ("consume_message_batch_max_size", -1),
        ("consume_threads", 0),
    ],
)
def test_sizes_below_one_are_refused(name: str, value: int) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"{name} is {value}: give 1 to"):
        PushConsumer("g", "127.0.0.1:1", listener_one=print, **options)


def test_a_consumer_keeps_its_listener() -> None:
    caller = Caller(Clock(), 1, 1, lambda _: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="either"):
        caller.set(None, None)
    assert not caller.ready
    one: Any = print
    for _ in range(2):  # for a second topic
        caller.set(None, one)
        assert caller.ready
    with pytest.raises(ConfigError, match="another consumer"):
        caller.set(one, None)
