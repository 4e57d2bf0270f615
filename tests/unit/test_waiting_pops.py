"""Pops that wait: each is answered when its message comes."""

from __future__ import annotations

import asyncio

from pop_rig import Popper, bodies, send, settled, started
from world_rig import World, run


def test_pops_of_several_queues_get_what_comes_at_one_time() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await settled(world, broker, popper)
        await send(popper, "first")
        (first,) = await popper.pop()
        await popper.ack(first)

        async def wait(queue: int) -> list[bytes]:
            other = Popper(await world.connect(broker.address))
            return bodies(await other.pop(pollTime=15_000, queueId=queue))

        waiting = []
        for queue in range(3):  # in this order
            waiting.append(asyncio.ensure_future(wait(queue)))
            await world.until(lambda: len(broker.messaging.pops.held) == len(waiting))
        begun = world.loop.time()
        await asyncio.gather(*(popper.remote.send(b"%d" % n, queue=n) for n in (0, 2)))
        assert (await waiting[0], await waiting[2]) == ([b"0"], [b"2"])
        assert world.loop.time() - begun < 1
        assert await waiting[1] == []
        broker.validate()

    run(body)
