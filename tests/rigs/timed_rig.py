"""Timed messages on the machines of `machines_rig.py`."""

from __future__ import annotations

import asyncio
from typing import Any

from machines_rig import Machine, World
from saturnmq.protocol.remoting import Command

HOUR_MS = 3_600_000
LATE_S = 0.3


async def later(machine: Machine, body: bytes, **names: object) -> Command:
    reply = await machine.put(body, **names)
    assert reply.code == 0, reply.remark
    return reply


async def after(machine: Machine, body: bytes, seconds: int) -> Command:
    return await later(machine, body, TIMER_DELAY_SEC=seconds)


async def comes(machine: Machine, body: bytes, at: float) -> None:
    """Not before this time of the loop, and then soon; once."""
    loop = machine.world.loop
    await asyncio.sleep(at - 0.02 - loop.time())
    assert body not in await machine.bodies(), "early"
    await asyncio.sleep(at + LATE_S - loop.time())
    assert (await machine.bodies()).count(body) == 1, "late, or twice"


async def booted(world: World, ahead_ms: int = 0, **settings: Any) -> Machine:
    machine = world.machine("broker", "10.0.0.2", ahead_ms, **settings)
    await machine.boot()
    return machine


def wall(machine: Machine) -> int:
    return machine.runtime.now_ms()
