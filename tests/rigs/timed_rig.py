"""Timed messages on the machines of `machines_rig.py`."""

from __future__ import annotations

import asyncio
from typing import Any

from machines_rig import Machine, World
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.remoting import Command

HOUR_MS = 3_600_000
LATE_S = 0.3


async def put(machine: Machine, body: bytes, topic: str = "T", **names: object) -> Command:
    ext = {"a": "P", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0}
    unique = body[:20].decode()
    text = "".join(f"{k}\x01{v}\x02" for k, v in {"UNIQ_KEY": unique, **names}.items())
    return await machine.ask(RequestCode.SEND_MESSAGE_V2, {**ext, "i": text}, body)


async def later(machine: Machine, body: bytes, **names: object) -> Command:
    reply = await put(machine, body, **names)
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


async def group(world: World, ahead_ms: int) -> tuple[Machine, Machine]:
    """A master, and a slave whose clock differs so much."""
    master = world.machine("a", "10.0.0.2", role="ASYNC_MASTER")
    slave = world.machine("b", "10.0.0.3", ahead_ms, role="SLAVE", broker_id=1, slave_sync_ms=100)
    await master.boot()
    return master, slave


async def follow(slave: Machine, master: Machine) -> None:
    slave.broker.replication.slave.master_is(master.broker.address, master.broker.ha_address)
    async with asyncio.timeout(60):
        marks = slave.broker.store.watermarks
        while marks.dispatched < master.broker.store.watermarks.appended:
            await asyncio.sleep(0.01)
        await asyncio.sleep(2.0)  # tables are copied each 0.1 s


async def promote(slave: Machine, term: int = 2) -> None:
    reply = await slave.ask(RequestCode.PROMOTE, {"epoch": term * TERM, "force": "true"})
    assert reply.code == 0, reply.remark
