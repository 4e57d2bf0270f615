"""A request that is there as a whole is answered once, and its connection goes on, though memory is
short and slow connections give way."""

from __future__ import annotations

import asyncio

import pytest
from limits_rig import Served, ask, frame, run
from saturnmq.protocol import connections
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command, FrameDecoder


@pytest.fixture(autouse=True)
def all_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "RELIEF_S", 0.01)
    monkeypatch.setattr(connections, "SLOW_S", 0.0)


@pytest.mark.parametrize("moment", ["while they are handled", "while they wait for a turn"])
def test_requests_that_are_there_are_answered_once_though_memory_is_short(
    moment: str,
) -> None:
    async def body(served: Served) -> None:
        def count(endpoint: Endpoint, command: Command) -> None:
            handle(endpoint, command)
            if served.handled == 130 and moment == "while they are handled":
                budget.has_room(budget.limit)
            elif served.handled == 130:
                served.runtime.call_soon(budget.has_room, budget.limit)

        handle, served.all._handler = served._handle, count
        client, budget = await served.connect(), served.all.budget
        await ask(client, body=bytes(64 << 10))  # its buffer is a large one by now
        budget.hold(budget.limit - (1 << 20))
        answers = [ask(client, body=bytes(100)) for _ in range(1000)]
        assert [each.code for each in await asyncio.gather(*answers)] == 1000 * [0]
        assert served.handled == 1001

    run(body, memory_bytes=64 << 20)


def test_a_slow_request_whose_last_bytes_come_while_memory_is_short_is_answered_once() -> None:
    async def body(served: Served) -> None:
        budget = served.all.budget
        reader, writer = await served.open()
        slow, most, answers = frame(4 << 20), 4 << 20, FrameDecoder()
        writer.write(slow[:most])
        await served.until(lambda: budget.used > most)  # all of it came: the buffer grew once more
        budget.hold(budget.limit)
        writer.write(slow[most:])
        (refused,) = answers.feed(await reader.read(1 << 16))
        assert (refused.opaque, refused.code) == (7, 2)
        budget.give_back(budget.limit)
        writer.write(frame(0, 8))
        (answered,) = answers.feed(await reader.read(1 << 16))
        assert (answered.opaque, answered.code, served.handled) == (8, 0, 1)
        writer.close()

    run(body, memory_bytes=64 << 20)


def test_who_gives_way_to_its_own_request_goes_on() -> None:
    async def body(served: Served) -> None:
        budget = served.all.budget
        reader, writer = await served.open()
        large, answers = frame(1 << 20), FrameDecoder()
        writer.write(large[: 16 << 10])
        await served.until(lambda: budget.used > 128 << 10)
        held = budget.limit - budget.used
        budget.hold(held)
        writer.write(large[16 << 10 :])
        (refused,) = answers.feed(await reader.read(1 << 16))
        assert (refused.opaque, refused.code) == (7, 2)
        budget.give_back(held)
        writer.write(frame(0, 8))
        (answered,) = answers.feed(await reader.read(1 << 16))
        assert (answered.opaque, answered.code) == (8, 0)
        writer.close()

    run(body, memory_bytes=64 << 20)
