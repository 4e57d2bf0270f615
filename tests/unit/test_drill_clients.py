"""The parts that the loads of drills share (`drills/failover/clients.py`)."""

from __future__ import annotations

import asyncio

from saturnmq.drills.failover.clients import end_tasks


async def breaks(error: BaseException) -> None:
    raise error


def test_a_client_that_ended_before_the_drill_is_told() -> None:
    async def main() -> list[str]:
        ended = [breaks(ValueError("lost")), asyncio.sleep(0), breaks(SystemError("gone"))]
        tasks = [asyncio.create_task(work) for work in ended]
        await asyncio.wait(tasks)
        living = asyncio.create_task(asyncio.sleep(60))
        told = await end_tasks([*tasks, living])
        assert living.cancelled()
        return told

    assert asyncio.run(main()) == [
        "a client of the drill ended: ValueError: lost",
        "a client of the drill ended: SystemError: gone",
    ]
