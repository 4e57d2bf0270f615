"""Long work takes turns: one step of all of it in a turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator

import pytest
from saturnmq.runtime.native import NativeRuntime
from saturnmq.runtime.steps import Steps

Work = Generator[None, None, str]


def run(body: Callable[[Steps], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await body(Steps(NativeRuntime()))

    asyncio.run(main())


def writing(name: str, steps: int, done: list[str]) -> Work:
    for _ in range(steps):
        done.append(name)
        yield
    return name


async def turns(log: list[str]) -> None:
    """Says in the log when a turn of the loop is over."""
    while True:
        await asyncio.sleep(0)
        log.append("|")


def test_works_take_turns_and_a_turn_of_the_loop_has_one_step() -> None:
    async def body(steps: Steps) -> None:
        log: list[str] = []
        watch = asyncio.ensure_future(turns(log))
        works = [steps.run(writing(name, 3, log)) for name in "ab"]
        assert await asyncio.gather(*works) == ["a", "b"]
        watch.cancel()
        text = "".join(log)
        assert text.replace("|", "") == "ababab"
        assert all(len(turn) <= 1 for turn in text.split("|"))

    run(body)


def test_one_may_begin_at_once_and_the_next_in_a_later_turn() -> None:
    async def body(steps: Steps) -> None:
        assert steps.take()
        assert not steps.take()
        waits = asyncio.ensure_future(steps.next())
        while not waits.done():
            await asyncio.sleep(0)
            assert waits.done() or not steps.take(), "who waits goes first"
        while not steps.take():
            await asyncio.sleep(0)

    run(body)


def test_who_was_cancelled_takes_nobody_s_turn() -> None:
    async def body(steps: Steps) -> None:
        assert steps.take()
        gone, stays = (asyncio.ensure_future(steps.next()) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await stays
        assert gone.cancelled()

    run(body)


def test_work_that_nobody_wants_any_more_ends() -> None:
    async def body(steps: Steps) -> None:
        done: list[str] = []
        assert await steps.run_while(writing("a", 100, done), lambda: len(done) < 3) is None
        assert done == ["a", "a", "a"]

    run(body)


def test_an_error_of_the_work_is_one_of_the_run() -> None:
    def failing() -> Work:
        yield
        raise ValueError("no")

    async def body(steps: Steps) -> None:
        with pytest.raises(ValueError, match="no"):
            await steps.run(failing())
        assert await steps.run(writing("a", 1, [])) == "a"

    run(body)


def test_nothing_is_done_while_the_steps_rest() -> None:
    async def body(steps: Steps) -> None:
        done: list[str] = []
        steps.pause()
        assert not steps.take()
        work = asyncio.ensure_future(steps.run(writing("a", 2, done)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not done
        steps.resume()
        assert await work == "a"

    run(body)
