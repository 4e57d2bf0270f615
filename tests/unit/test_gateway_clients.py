"""The clients of a gateway: what is kept of each, and what is left of one that is gone."""

from __future__ import annotations

import weakref

import pytest
from garbage_rig import without_collections
from gateway_rig import served
from saturnmq.gateway import v2
from world_rig import World, run


@pytest.mark.parametrize("says_so", [True, False])
def test_a_client_that_is_gone_leaves_nothing_that_only_a_collection_frees(says_so: bool) -> None:
    """Nodes free no cycle that has lived through a collection (`cli/garbage.py`)."""

    async def body(world: World) -> None:
        _, caller = await served(world)
        group, kind = v2.Resource(name="G"), v2.ClientType.SIMPLE_CONSUMER
        await caller.ask("Heartbeat", group=group, client_type=kind)
        await caller.send(caller.message())
        [client] = caller.gateway._clients
        left = [weakref.ref(client), weakref.ref(client.link)]
        del client
        if says_so:
            await caller.ask("NotifyClientTermination", group=group)
        await world.until(lambda: len(caller.gateway._clients) == 0, 200, 1.0)
        await world.until(lambda: not any(each() for each in left), 20, 1.0)

    with without_collections():
        run(body)


def test_a_producer_is_one_of_the_topics_that_it_named_last() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message())
        [client] = caller.gateway._clients
        client.produce(f"T{number}" for number in range(1_000))
        client.produce(["T3", "U"])
        assert [*client.topics] == [*(f"T{number}" for number in range(1, 1_000)), "U"]

    run(body)
