"""The services that keep a store ahead of its writer do not wait for each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from saturnmq.broker.commit.gate import StoreGate
from saturnmq.broker.commit.upkeep import Upkeep


class Store:
    """One whose log takes for ever to be prepared."""

    config = SimpleNamespace(commitlog_segment_bytes=1 << 20)

    def __init__(self) -> None:
        self.watermarks = SimpleNamespace(appended=0)
        self.wants_room = False
        self.made = 0

    def prepare_ahead(self) -> None:
        raise AssertionError("nobody runs it")

    def make_room_ahead(self) -> None:
        self.wants_room = False
        self.made += 1


class SlowRuntime:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_blocking(self, function: Callable[[], None]) -> None:
        if function == self._store.prepare_ahead:
            await asyncio.Event().wait()
        function()


def test_room_and_new_files_are_made_while_the_log_is_prepared() -> None:
    async def main() -> None:
        store = Store()
        runtime: Any = SlowRuntime(store)
        door: Any = store
        upkeep = Upkeep(door, runtime, StoreGate(runtime), lambda: None)
        services = [asyncio.create_task(run()) for run in (upkeep.run_ahead, upkeep.run_room)]

        async def made(count: int) -> None:
            async with asyncio.timeout(5):
                while store.made < count:
                    await asyncio.sleep(0)

        await made(1)
        for count in (2, 3):
            store.watermarks.appended += 1
            upkeep.appended()
            assert store.made == count - 1, "nothing wants room"
            store.wants_room = True
            upkeep.appended()
            await made(count)
        for service in services:
            service.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await service

    asyncio.run(main())


class TimedStore:
    """One whose syncs take 0.25 s, for ten seconds."""

    failed = None

    def __init__(self, grown: int = 0, unsynced: int = 0) -> None:
        self.config = SimpleNamespace(commitlog_segment_bytes=1 << 30, queue_files_mapped=100)
        self.watermarks = SimpleNamespace(appended=0)
        self.unsynced_queue_files = unsynced
        self.now, self.grown = 0.0, grown
        self.synced: list[int] = []  # the seconds
        self.written: list[int] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if round(self.now) >= 10:
            raise TimeoutError
        self.now = round(self.now) + seconds
        self.watermarks.appended += self.grown

    async def run_blocking(self, function: Callable[[], None]) -> None:
        function()

    def check_files(self) -> None:
        assert self.now < 11

    def flush_derived(self) -> None:
        self.synced.append(round(self.now))
        self.now += 0.25

    def checkpoint(self) -> None:
        self.written.append(round(self.now))


@pytest.mark.parametrize(
    ("store", "seconds"),
    [
        (
            TimedStore(),
            [1, 6],
        ),  # a twentieth of the time: every 5 s
        (TimedStore(grown=100 << 20), [1, 4, 7, 10]),  # a start would read 256 MiB again
        (TimedStore(unsynced=100), [*range(1, 11)]),  # no more files may be mapped
    ],
)
def test_syncs_of_queues_take_a_twentieth_of_the_time_unless_they_are_needed(
    store: TimedStore, seconds: list[int]
) -> None:
    door: Any = store
    upkeep = Upkeep(door, door, StoreGate(door), lambda: None)
    with pytest.raises(TimeoutError):
        asyncio.run(upkeep.run_checkpoints())
    assert store.synced == seconds
    assert store.written == [*range(1, 11)], "the checkpoint is written every second"


def test_a_checkpoint_on_request_syncs_at_once() -> None:
    store = TimedStore()
    door: Any = store
    upkeep = Upkeep(door, door, StoreGate(door), lambda: None)
    for _ in range(3):
        asyncio.run(upkeep.checkpoint())
    assert len(store.synced) == len(store.written) == 3
