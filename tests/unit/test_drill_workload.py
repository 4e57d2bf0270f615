"""The clients of a drill (`drills/failover/workload.py`)."""

from __future__ import annotations

import asyncio

from saturnmq.drills.failover.history import History
from saturnmq.drills.failover.workload import Workload


class Broken(Workload):
    """One of its readers has ended with an error, one lives."""

    async def start(self) -> None:
        self._others += [asyncio.create_task(self._lose()), asyncio.create_task(asyncio.sleep(60))]
        await asyncio.wait(self._others, return_when=asyncio.FIRST_COMPLETED)

    async def _lose(self) -> None:
        raise ValueError("the reader is lost")


def test_a_client_that_ended_before_the_drill_is_told() -> None:
    async def main() -> list[str]:
        workload = Broken(["127.0.0.1:9876"], [], History(), 1)
        await workload.start()
        return await workload.close()

    told = asyncio.run(main())
    assert told == ["a client of the drill ended: ValueError: the reader is lost"]
