"""Starts and ends of consumers that the application cancels."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from consumer_world import World, WorldCore, consumer
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.simple_consumer import SimpleConsumer
from saturnmq.protocol.route import TopicRoute
from saturnmq.runtime.errors import ClientClosed

KINDS = ["push", "pull", "simple"]


class SlowCore(WorldCore):
    """No nameserver answers for a time; brokers are slow to let members go."""

    silent_s = leaving_s = 0.0
    left = 0
    local_ip, pid = "127.0.0.1", 1  # for traces

    async def route(self, topic: str, *, refresh: bool = False, create: bool = False) -> TopicRoute:
        await self.runtime.sleep(self.silent_s)
        return await super().route(topic, refresh=refresh, create=create)

    async def unregister_consumer(self, group: str) -> None:
        await self.runtime.sleep(self.leaving_s)
        await super().unregister_consumer(group)
        self.left += 1


def made(kind: str, core: Any, got: list[bytes]) -> Any:
    if kind == "push":
        return consumer(core.world, core, listener_one=lambda message: got.append(message.body))
    one: Any = PullConsumer if kind == "pull" else SimpleConsumer
    found = one("G", core=core, from_beginning=True)
    found.subscribe("T")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_that_was_cancelled_begins_anew_with_the_next_call(kind: str) -> None:
    world = World()
    world.send(0, b"one")

    async def body() -> None:
        core = SlowCore(world)
        got: list[bytes] = []
        core.silent_s = 60.0
        one = made(kind, core, got)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await one.start()
        assert "G" not in core.handlers
        if kind == "pull":
            with pytest.raises(ClientClosed, match="call start"):
                await one.poll(1.0)
        core.silent_s = 0.0
        await one.start()
        assert "G" in core.handlers
        if kind == "push":
            await world.until(lambda: got == [b"one"])
        if kind == "pull":
            assert [message.body for message in await one.poll(5.0)] == [b"one"]
        await one.close()
        assert "G" not in core.handlers

    world.run(body)


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_whose_caller_is_cancelled_goes_on_and_a_second_call_waits_for_it(kind: str) -> None:
    world = World()

    async def body() -> None:
        core = SlowCore(world)
        core.leaving_s = 8.0
        one = made(kind, core, [])
        await one.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await one.close()
        with pytest.raises(ClientClosed, match="make a new one"):
            await one.start()
        assert "G" in core.handlers
        await one.close()
        assert "G" not in core.handlers
        await one.close()
        assert core.left == 1

    world.run(body)


def test_the_file_and_the_traces_of_a_cancelled_start_are_those_of_the_next_one(
    tmp_path: Path,
) -> None:
    world = World()

    async def body() -> None:
        core, path = SlowCore(world), str(tmp_path / "offsets.json")
        core.silent_s = 60.0
        got: list[bytes] = []
        options: dict[str, Any] = {"broadcasting": True, "offsets_path": path, "trace": True}
        one = consumer(world, core, listener_one=lambda each: got.append(each.body), **options)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await one.start()
        core.silent_s = 0.0
        world.send(0, b"one")
        await one.start()
        await world.until(lambda: got == [b"one"])
        names = [each.get_name() for each in asyncio.all_tasks()]
        assert sum("traces of G" in name for name in names) == 1
        await one.close()

    world.run(body)
