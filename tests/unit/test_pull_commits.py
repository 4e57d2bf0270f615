"""The commits of a pull consumer that its application waits for."""

from __future__ import annotations

import pytest
from consumer_world import MASTER, Q0, Q1, SLAVE, World, puller
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.runtime.errors import ConnectionLost, InvalidParameter, SaturnError


def reader(world: World) -> PullConsumer:
    made = puller(world, auto_commit=False)
    made.assign([Q0, Q1])
    return made


def filled() -> World:
    world = World()
    for n in range(6):
        world.send(n % 2, b"%d" % n)
    return world


def test_a_commit_that_no_broker_confirms_is_raised_and_made_again_with_the_next_one() -> None:
    world = filled()

    async def main() -> None:
        async with reader(world) as made:
            polled = await made.poll(5.0) + await made.poll(5.0)
            assert len(polled) == 6
            world.down.update((MASTER, SLAVE))
            with pytest.raises(ConnectionLost):
                await made.commit()
            assert world.offsets == {}
            world.down.clear()
            await made.commit()
            assert world.offsets == {Q0: 3, Q1: 3}

    world.run(main)


def test_what_close_cannot_commit_is_reported() -> None:
    world = filled()
    told: list[SaturnError] = []

    async def main() -> None:
        made = reader(world)
        made.core.report_error = told.append  # type: ignore[method-assign]
        async with made:
            await made.poll(5.0)
            made._polled.note_all()
            world.down.update((MASTER, SLAVE))
        assert any(isinstance(error, ConnectionLost) for error in told), told

    world.run(main)


@pytest.mark.parametrize("offset", [-1, 4, 1 << 70])
def test_an_offset_outside_its_queue_is_refused_and_hinders_no_other(offset: int) -> None:
    world = filled()

    async def main() -> None:
        async with reader(world) as made:
            await made.poll(5.0)
            await made.poll(5.0)
            with pytest.raises(InvalidParameter, match=f"offset {offset} is outside"):
                await made.commit({Q1: 1, Q0: offset})
            await made.commit({Q0: 3})
            assert world.offsets == {Q0: 3}
            await made.commit({Q0: 2})
            assert world.offsets == {Q0: 3}, "seek() goes back"

    world.run(main)


def test_a_place_that_no_queue_has_is_not_sought() -> None:
    world = filled()

    async def main() -> None:
        async with reader(world) as made:
            with pytest.raises(InvalidParameter, match="is not from 0 to"):
                made.seek(Q0, 1 << 63)

    world.run(main)
