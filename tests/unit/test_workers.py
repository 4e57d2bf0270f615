"""The threads of one owner (`runtime/workers.py`)."""

from __future__ import annotations

import asyncio
import threading

import pytest
from saturnmq.runtime.native import NativeRuntime

DEADLINE_S = 10.0


def test_as_many_workers_as_asked_for_run_at_once_and_no_more() -> None:
    async def body() -> None:
        workers = NativeRuntime().workers(20, name="test")
        together = threading.Barrier(20)
        names: set[str] = set()

        def call() -> None:
            names.add(threading.current_thread().name)
            together.wait(DEADLINE_S)

        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(workers.run(call) for _ in range(60)))
        assert len(names) == 20
        workers.close()

    asyncio.run(body())


def test_one_worker_does_what_one_can_do_and_close_ends_all() -> None:
    async def body() -> None:
        workers = NativeRuntime().workers(3, name="test")
        together = threading.Barrier(3)

        def call() -> threading.Thread:
            together.wait(DEADLINE_S)
            return threading.current_thread()

        async with asyncio.timeout(DEADLINE_S):
            threads = set(await asyncio.gather(*(workers.run(call) for _ in range(3))))
            again = {await workers.run(threading.current_thread) for _ in range(30)}
            assert (len(threads), len(again)) == (3, 1), "the others sleep"
            assert again < threads
            gate = threading.Event()
            busy = workers.run(gate.wait, DEADLINE_S)
            workers.close()
            gate.set()
            assert await busy, "a call under way comes to its end"
            for thread in threads:
                await asyncio.to_thread(thread.join, DEADLINE_S)
        assert not any(thread.is_alive() for thread in threads)

    asyncio.run(body())


def test_calls_wait_for_a_thread_also_behind_a_close() -> None:
    async def body() -> None:
        workers = NativeRuntime().workers(1, name="test")
        gate = threading.Event()
        done: list[int] = []
        first = workers.run(gate.wait, DEADLINE_S)
        others = [workers.run(done.append, number) for number in (1, 2)]
        workers.close()
        assert not done
        gate.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(first, *others)
        assert done == [1, 2]

    asyncio.run(body())


def test_a_call_without_a_thread_fails_by_its_result_and_the_next_one_tries_again() -> None:
    async def body() -> None:
        workers = NativeRuntime().workers(2, name="test")
        before = threading.stack_size(1 << 46)  # more than an address space has
        try:
            lost = workers.run(max, 1, 2)
        finally:
            threading.stack_size(before)
        with pytest.raises(RuntimeError, match="start new thread"):
            await lost
        assert await workers.run(max, 1, 2) == 2
        workers.close()

    asyncio.run(body())
