"""An answer to a pop has 4 MiB of messages at most, new ones or not, so that its frame has room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pop_rig import Popper, bodies, started
from saturnmq.protocol.remoting import Command
from world_rig import World, run

MIB = 1 << 20
MOST = 4 * MIB
LARGE: dict[str, Any] = {"store_options": {"commitlog_segment_bytes": 64 << 20}}


async def filled(popper: Popper, count: int, queue: int = 0) -> None:
    for number in range(count):
        assert (await popper.remote.send(bytes([number]) * MIB, queue=queue)).code == 0


def sizes(answers: list[Command]) -> list[int]:
    return [answer.body_size for answer in answers]


@pytest.mark.parametrize("ordered", [False, True])
def test_messages_that_come_again_are_given_out_in_parts(ordered: bool) -> None:
    async def body(world: World) -> None:
        _, popper = await started(world, **LARGE)
        await filled(popper, 8)
        order = {"order": str(ordered).lower(), "attemptId": "one"}
        while await popper.pop(invisible=5000, **order):
            if len(popper.answers) == 8:  # the same attempt would have the first ones again
                break
        await asyncio.sleep(6)
        popper.answers.clear()
        found = bodies(await popper.pop(invisible=600_000, **order))
        assert 1 < len(found) < 8
        assert found == [bytes([number]) * MIB for number in range(len(found))]
        if not ordered:
            while len(found) < 8:
                found += bodies(await popper.pop(invisible=600_000))
            assert sorted(found) == [bytes([number]) * MIB for number in range(8)]
        assert max(sizes(popper.answers)) <= MOST

    run(body)


def test_new_messages_beside_those_that_come_again_have_the_rest_of_the_room() -> None:
    async def body(world: World) -> None:
        _, popper = await started(world, **LARGE)
        await filled(popper, 3)
        found = []
        while got := await popper.pop(invisible=5000):
            found += bodies(got)
        assert len(found) == 3
        await asyncio.sleep(6)
        for queue in range(4):
            assert (await popper.remote.send(b"x" * (2 * MIB), queue=queue)).code == 0
        popper.answers.clear()
        found = []
        while got := await popper.pop(invisible=600_000):
            found += bodies(got)
        assert sorted(map(len, found)) == [MIB] * 3 + [2 * MIB] * 4
        assert max(sizes(popper.answers[:-1])) <= MOST

    run(body)
