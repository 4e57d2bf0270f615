"""Wrong requests of every call: random fields, missing fields, huge values. Each gets an answer
with a code, in time, and the broker stays in order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from gateway_rig import Caller, Code, create_group, create_topic, served
from saturnmq.gateway import v2
from saturnmq.gateway.gateway import status_of
from world_rig import World, run

NAMES = ("T", "F", "D", "X", "G", "broker-a", "MISSING", "", " ", "a b", "%RETRY%G", "x" * 300)
TEXTS = (
    *NAMES,
    "\x00",
    "\x01\x02",
    "é漢",
    "*",
    "A || B",
    "a > ",
    "9" * 400,
    "1 2 3 4 0 broker-a 0 0 0",
)
NUMBERS = (0, 1, -1, 2, 31, 2**31 - 1, -(2**31), 10_000)
LARGE = (*NUMBERS, 2**63 - 1, -(2**63), 253_402_300_800)
INTERNAL = {Code.INTERNAL_ERROR, Code.INTERNAL_SERVER_ERROR, Code.CODE_UNSPECIFIED}
SECONDS = 40.0
NEVER_WRONG = {"NotifyClientTermination"}


def fill(message: Any, chance: random.Random) -> Any:
    """Set some of the fields."""
    taken = {
        oneof: chance.choice(oneof.fields)
        for oneof in message.DESCRIPTOR.oneofs
        if len(oneof.fields) > 1
    }
    for field in message.DESCRIPTOR.fields:
        chosen = taken.get(field.containing_oneof, field)
        if chance.random() < 0.25 or chosen is not field:
            continue
        target = getattr(message, field.name)
        if field.message_type is None:
            if hasattr(target, "append"):
                target.extend(value_of(field, chance) for _ in range(chance.randrange(3)))
            else:
                setattr(message, field.name, value_of(field, chance))
        elif field.message_type.GetOptions().map_entry:
            target.update({chance.choice(TEXTS): chance.choice(TEXTS) for _ in range(2)})
        elif hasattr(target, "add"):
            for _ in range(chance.randrange(4)):
                fill(target.add(), chance)
        else:
            target.SetInParent()
            fill(target, chance)
    return message


def value_of(field: Any, chance: random.Random) -> Any:
    if field.enum_type is not None:
        values = [value.number for value in field.enum_type.values]
        return chance.choice([*values, 77])  # a client may be newer
    if field.type == field.TYPE_BYTES:
        return chance.choice([b"", b"body", bytes(5000)])
    if field.type == field.TYPE_STRING:
        return chance.choice(NAMES if field.name == "name" else TEXTS)
    if field.type == field.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type == field.TYPE_FLOAT:
        return chance.choice([0.0, -1.0, 1e30, float("nan")])
    return chance.choice(NUMBERS if field.type == field.TYPE_INT32 else LARGE)


def codes_in(answer: Any) -> list[int]:
    return [answer.status.code, *(entry.status.code for entry in getattr(answer, "entries", ()))]


async def call(caller: Caller, name: str, request: Any) -> list[int]:
    """The codes of the answer to one call."""
    rpc = v2.RPCS[name]
    request = rpc.request.FromString(request.SerializeToString())
    if not rpc.gives_stream:
        answer = await caller.gateway.unary[name](caller.call(), request)
        assert rpc.response.FromString(answer.SerializeToString()) == answer
        return codes_in(answer)
    parts: list[Any] = []

    async def write(part: Any) -> None:
        part.SerializeToString()
        parts.append(part)

    if name == "Telemetry":

        async def read() -> Any:
            yield request

        try:
            await caller.gateway.telemetry(caller.call(None), read(), write)
        except Exception as error:
            parts.append(v2.TelemetryCommand(status=status_of(error, name)))
        return [part.status.code for part in parts]
    await caller.gateway.streams[name](caller.call(), request, write)
    assert parts[0].WhichOneof("content") == "status"
    return [parts[0].status.code]


@pytest.mark.parametrize("name", sorted(v2.RPCS))
def test_a_wrong_request_gets_a_code_and_harms_nobody(name) -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        for topic, kind in (("F", "FIFO"), ("D", "DELAY"), ("X", "TRANSACTION")):
            await create_topic(world, broker, topic, kind)
        await create_group(world, broker, "G", consumeMessageOrderly=False)
        found: set[int] = set()
        for seed in range(150):
            request = fill(v2.RPCS[name].request(), random.Random(f"{name} {seed}"))
            async with asyncio.timeout(SECONDS):
                codes = await call(caller, name, request)
            assert not INTERNAL & {*codes}, (seed, codes, request)
            found |= {*codes}
        assert found - {Code.OK} or name in NEVER_WRONG, "nothing was wrong"
        broker.validate()
        assert (await caller.send(caller.message(b"good"))).status.code == Code.OK
        got = await caller.receive(group="AFTER", poll_ms=2000)
        assert b"good" in got.bodies

    run(body)
