"""What a listener may answer and raise, and what becomes of its messages when it does otherwise."""

from __future__ import annotations

import asyncio
import enum
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from consumer_world import Q0, World, consumer
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.client.producer.results import SendStatus
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import ListenerError, ListenerRaisedExit, WrongListenerResult
from saturnmq.runtime.native import NativeRuntime


class Mine(enum.Enum):
    SUCCESS = "CONSUME_SUCCESS"


class Odd(BaseException):
    """Of an application that has its reasons."""


KINDS = ["one", "many", "async one", "async many"]


def listening(kind: str, answer: Callable[[], object]) -> dict[str, Any]:
    """The option that gives a consumer a listener of `kind` whose answers are `answer()`."""

    async def later(_: object) -> object:
        return answer()

    listener = later if "async" in kind else lambda _: answer()
    return {"listener_one" if "one" in kind else "listener": listener}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wrong", [True, False, 0, "RECONSUME_LATER", "CONSUME_SUCCESS", Mine.SUCCESS, SendStatus.OK, []]
)
def test_an_answer_that_is_no_consume_result_is_told_and_the_messages_come_again(
    kind: str, wrong: object
) -> None:
    world = World(queues=1)
    told: list[Any] = []
    for n in range(3):
        world.send(0, b"%d" % n)

    async def main() -> None:
        async with consumer(world, on_error=told.append, **listening(kind, lambda: wrong)):
            await world.until(lambda: len(world.backs) == 3)
        assert world.offsets[Q0] == 3

    world.run(main)
    assert isinstance(told[0], WrongListenerResult)
    assert repr(wrong) in str(told[0])
    assert "ConsumeResult.SUCCESS" in str(told[0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_ordered_queue_waits_at_an_answer_that_is_no_consume_result(kind: str) -> None:
    world, answers = World(queues=1), iter([False, "SUCCESS"])
    told: list[Any] = []
    world.send(0, b"0")

    async def main() -> None:
        options = listening(kind, lambda: next(answers, None))
        async with consumer(world, on_error=told.append, ordered=True, **options):
            await world.until(lambda: (Q0, 1) in world.commits, 10.0)
        assert world.backs == []

    world.run(main)
    assert [type(error) for error in told] == [WrongListenerResult] * 2


@pytest.mark.parametrize("answer", [None, ConsumeResult.SUCCESS, ConsumeResult.CONSUME_SUCCESS])
@pytest.mark.parametrize("kind", KINDS)
def test_none_and_success_are_success(kind: str, answer: object) -> None:
    world = World(queues=1)
    told: list[Any] = []
    world.send(0, b"0")

    async def main() -> None:
        async with consumer(world, on_error=told.append, **listening(kind, lambda: answer)):
            await world.until(lambda: world.offsets.get(Q0) == 1)

    world.run(main)
    assert (told, world.backs) == ([], [])


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", ["RETRY", "RECONSUME_LATER", "SUSPEND_CURRENT_QUEUE_A_MOMENT"])
def test_retry_and_suspend_bring_the_messages_again_by_either_name(
    name: str, ordered: bool
) -> None:
    world = World(queues=1)
    told: list[Any] = []
    calls: list[Any] = []
    world.send(0, b"0")

    def listener(message: ReceivedMessage) -> ConsumeResult | None:
        calls.append(message.queue_offset)
        return ConsumeResult[name] if len(calls) == 1 else None

    async def main() -> None:
        options: Any = {"listener_one": listener, "ordered": ordered, "on_error": told.append}
        async with consumer(world, **options):
            await world.until(lambda: world.offsets.get(Q0) == 1)

    world.run(main)
    assert told == []
    assert (len(calls), len(world.backs)) == ((2, 0) if ordered else (1, 1))


def test_a_coroutine_that_nobody_would_await_is_an_error_and_says_how_to_write_it() -> None:
    world = World(queues=1)
    told: list[Any] = []
    world.send(0, b"0")

    async def work() -> None: ...

    async def main() -> None:
        async with consumer(world, listener=lambda _: work(), on_error=told.append):
            await world.until(lambda: len(world.backs) == 1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.run(main)
    assert "async def" in str(told[0])


def test_a_listener_that_is_always_wrong_is_told_now_and_then_with_a_count() -> None:
    world = World(queues=1)
    told: list[Any] = []
    for n in range(5000):
        world.send(0, b"%d" % n)

    async def main() -> None:
        async with consumer(world, listener_one=lambda _: True, on_error=told.append):
            await world.until(lambda: len(world.backs) == 5000)
            world.send(0, b"later")
            await world.runtime.sleep(60.0)
            world.send(0, b"latest")
            await world.until(lambda: len(world.backs) == 5002)

    world.run(main)
    assert 2 <= len(told) <= 4
    assert sum(error.messages for error in told) == 5002


EXITS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Odd("!")]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raised", EXITS, ids=lambda error: type(error).__name__)
def test_a_listener_that_raises_what_ends_programs_is_told_and_gets_its_messages_again(
    raised: BaseException, kind: str, ordered: bool
) -> None:
    world = World(queues=1)
    told: list[Any] = []
    calls: list[Any] = []
    world.send(0, b"0")

    def answer() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise raised

    async def main() -> None:
        made = consumer(world, on_error=told.append, ordered=ordered, **listening(kind, answer))
        async with made:
            await world.until(lambda: world.offsets.get(Q0) == 1)
            world.send(0, b"1")
            await world.until(lambda: world.offsets.get(Q0) == 2)
        assert (len(calls), len(world.backs)) == ((3, 0) if ordered else (2, 1))

    world.run(main)
    (error,) = told
    assert isinstance(error, ListenerRaisedExit)
    assert error.__cause__ is raised
    assert type(raised).__name__ in str(error)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_listener_that_cancels_the_task_that_calls_it_gets_its_messages_again(
    ordered: bool,
) -> None:
    world = World(queues=1)
    told: list[Any] = []
    calls: list[Any] = []
    world.send(0, b"0")

    async def listener(message: ReceivedMessage) -> None:
        calls.append(message.queue_offset)
        if len(calls) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)

    async def main() -> None:
        made = consumer(world, listener_one=listener, ordered=ordered, on_error=told.append)
        async with made:
            await world.until(lambda: world.offsets.get(Q0) == 1)

    world.run(main)
    assert calls == [0, 0]
    assert [type(error) for error in told] == [ListenerError]


def test_an_ordered_listener_that_cancels_its_task_repeats_nothing_that_it_finished() -> None:
    world, calls = World(queues=1), []
    for n in range(200):
        world.send(0, b"%d" % n)

    async def listener(message: ReceivedMessage) -> None:
        calls.append(message.queue_offset)
        if message.queue_offset == 150 and calls.count(150) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)

    async def main() -> None:
        async with consumer(world, listener_one=listener, ordered=True):
            await world.until(lambda: world.offsets.get(Q0) == 200)

    world.run(main)
    assert calls == [*range(151), *range(150, 200)]


@pytest.mark.parametrize("raised", EXITS, ids=lambda error: type(error).__name__)
def test_threads_of_listeners_outlive_what_ends_programs(raised: BaseException) -> None:
    world = World(queues=4)
    told: list[Any] = []
    got: set[Any] = set()
    for n in range(400):
        world.send(n % 4, b"%d" % n)
    lock = threading.Lock()

    def listener(message: ReceivedMessage) -> None:
        with lock:
            got.add(message.body)
        if message.queue_offset == 50:
            raise raised

    async def main() -> None:
        runtime: Any = NativeRuntime()
        world.loop.close()
        world.loop, world.runtime = asyncio.get_running_loop(), runtime
        async with consumer(world, listener_one=listener, on_error=told.append):
            await world.until(lambda: len(got) == 400 and len(world.backs) == 4)

    asyncio.run(main())
    assert {type(error) for error in told} == {ListenerRaisedExit}


@pytest.mark.parametrize("ordered", [False, True])
def test_a_loop_that_ends_is_not_held_up_by_a_listener(ordered: bool) -> None:
    """The cancelling of all tasks at the end of a loop is no failure of the listener."""
    world = World(queues=1)
    called: list[Any] = []
    told: list[Any] = []
    world.send(0, b"0")

    async def listener(message: ReceivedMessage) -> None:
        called.append(message)
        await asyncio.Event().wait()

    async def main() -> None:
        runtime: Any = NativeRuntime()
        world.loop.close()
        world.loop, world.runtime = asyncio.get_running_loop(), runtime
        made = consumer(world, listener_one=listener, ordered=ordered, on_error=told.append)
        await made.start()
        await world.until(lambda: called != [])

    asyncio.run(asyncio.wait_for(main(), 30))
    assert told == []
    assert len(called) == 1


def test_threads_that_cannot_be_started_are_told_of_and_asked_for_again() -> None:
    world = World(queues=1)
    told: list[Any] = []
    got: list[Any] = []
    world.send(0, b"0")

    async def main() -> None:
        runtime: Any = NativeRuntime()
        world.loop.close()
        world.loop, world.runtime = asyncio.get_running_loop(), runtime
        async with consumer(world, listener_one=got.append, ordered=True, on_error=told.append):
            await world.until(lambda: told != [])
            threading.stack_size(0)
            await world.until(lambda: len(got) == 1)

    before = threading.stack_size(1 << 46)  # more than an address space has
    try:
        asyncio.run(main())
    finally:
        threading.stack_size(before)
    assert isinstance(told[0].__cause__, RuntimeError)
