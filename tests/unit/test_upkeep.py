"""The services that keep a store ahead of its writer do not wait for each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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
