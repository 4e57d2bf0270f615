"""Wrong requests of every call: random fields, missing fields, huge values. Each gets an answer
with a code, in time, at every node, and the brokers stay in order. Which code a fault has:
test_gateway_faults.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from gateway_requests import facts_at, right
from gateway_rig import NODES, Caller, Code, create_group
from saturnmq.gateway import v2
from saturnmq.gateway.calls import CallFailed
from world_rig import World, run

TOPICS = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
NAMES = (*TOPICS, "G", "broker-0", "broker-1", "MISSING", "", " ", "a b", "%RETRY%G", "x" * 300)
TEXTS = (
    *NAMES,
    "\x00",
    "\x01\x02",
    "é漢",
    "*",
    "A || B",
    "a > ",
    "9" * 400,
    "1 2 3 4 0 broker-0 0 0 0",
    "1 2 3 4 0 broker-1 0 0 0",
    "x" * 70_000,
    "x" * 300_000,  # more than a header of Remoting holds
)
NUMBERS = (0, 1, -1, 2, 31, 2**31 - 1, -(2**31), 10_000)
LARGE = (*NUMBERS, 2**63 - 1, -(2**63), 253_402_300_800)
INTERNAL = {Code.INTERNAL_ERROR, Code.INTERNAL_SERVER_ERROR, Code.CODE_UNSPECIFIED}
SECONDS = 40.0
HUGE = 0.02  # the part of lists and bodies that are larger than anything that is allowed
ENTRIES = 10_000
BODY = bytes(5 << 20)
SEEDS = 100
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
                value = value_of(field, chance)
                count = ENTRIES if chance.random() < HUGE else chance.randrange(3)
                target.extend([value] * (count if len(str(value)) < 100 else 1))
            else:
                setattr(message, field.name, value_of(field, chance))
        elif field.message_type.GetOptions().map_entry:
            target.update({chance.choice(TEXTS): chance.choice(TEXTS) for _ in range(2)})
        elif hasattr(target, "add"):
            for _ in range(chance.randrange(4)):
                fill(target.add(), chance)
            if target and target[0].ByteSize() < 300 and chance.random() < 5 * HUGE:
                target.extend([target[0]] * ENTRIES)
        else:
            target.SetInParent()
            fill(target, chance)
    return message


def spoil(message: Any, chance: random.Random) -> Any:
    """Change one field of a right request, or of a message in it."""
    inner = [value for field, value in message.ListFields() if field.message_type is not None]
    inner = [each for each in inner if not hasattr(each, "keys")]
    if inner and chance.random() < 0.6:
        chosen = chance.choice(inner)
        spoil(chance.choice(list(chosen)) if hasattr(chosen, "append") else chosen, chance)
        return message
    field = chance.choice(message.DESCRIPTOR.fields)
    message.ClearField(field.name)
    target = getattr(message, field.name)
    if field.message_type is None and not hasattr(target, "append"):
        setattr(message, field.name, value_of(field, chance))
    elif field.message_type is None:
        target.extend(value_of(field, chance) for _ in range(3))
    elif not hasattr(target, "keys") and not hasattr(target, "add") and chance.random() < 0.7:
        target.SetInParent()
        fill(target, chance)
    return message


def value_of(field: Any, chance: random.Random) -> Any:
    if field.enum_type is not None:
        values = [value.number for value in field.enum_type.values]
        return chance.choice([*values, 77])  # a client may be newer
    if field.type == field.TYPE_BYTES:
        return BODY if chance.random() < HUGE else chance.choice([b"", b"body", bytes(5000)])
    if field.type == field.TYPE_STRING:
        return chance.choice(NAMES if field.name == "name" else TEXTS)
    if field.type == field.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type == field.TYPE_FLOAT:
        return chance.choice([0.0, -1.0, 1e30, float("nan")])
    return chance.choice(NUMBERS if field.type == field.TYPE_INT32 else LARGE)


def codes_in(answer: Any) -> list[int]:
    return [answer.status.code, *(entry.status.code for entry in getattr(answer, "entries", ()))]


async def call(caller: Caller, name: str, requests: list[Any]) -> list[int]:
    """The codes of the answers to one call."""
    rpc = v2.RPCS[name]
    requests = [rpc.request.FromString(each.SerializeToString()) for each in requests]
    if not rpc.gives_stream:
        answer = await caller.gateway.unary[name](caller.call(), requests[0])
        assert rpc.response.FromString(answer.SerializeToString()) == answer
        return codes_in(answer)
    parts: list[Any] = []

    async def write(part: Any) -> None:
        part.SerializeToString()
        parts.append(part)

    if name == "Telemetry":

        async def read() -> Any:
            for each in requests:
                yield each

        with contextlib.suppress(CallFailed):  # its code was told before
            await caller.gateway.telemetry(caller.call(None), read(), write)
        return [part.status.code for part in parts]
    await caller.gateway.streams[name](caller.call(), requests[0], write)
    assert parts[0].WhichOneof("content") == "status"
    return [parts[0].status.code]


async def innocent(caller: Caller, broker: str, codes: set[int]) -> None:
    """A client that waits at the same node for messages of a broker, over and over."""
    while True:
        codes.add((await caller.receive("NORMAL", "INNOCENT", broker=broker)).code)


def commands(chance: random.Random) -> list[Any]:
    """What a client says over one Telemetry stream: right settings of any kind among answers that
    nobody asked for, settings of nobody, and commands that only a server gives."""
    producer, consumer = v2.Settings(client_type=1), v2.Settings(client_type=2)
    producer.publishing.topics.add(name="NORMAL")
    consumer.subscription.group.name = "G"
    right = [v2.TelemetryCommand(settings=each) for each in (producer, consumer)]
    wrong = [fill(v2.TelemetryCommand(), chance) for _ in range(chance.randrange(1, 6))]
    found = [*wrong, *chance.choices(right, k=chance.randrange(4))]
    chance.shuffle(found)
    return found


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("name", sorted(v2.RPCS))
def test_a_wrong_request_gets_a_code_and_harms_nobody(name, node) -> None:
    async def body(world: World) -> None:
        facts = await facts_at(world, node)
        caller = facts.caller
        await create_group(world, facts.brokers[0], "G", consumeMessageOrderly=False)
        found: set[int] = set()
        others: set[int] = set()
        other = Caller(world, caller.gateway, "innocent")
        waiting = [
            asyncio.ensure_future(innocent(other, f"broker-{number}", others)) for number in (0, 1)
        ]
        for seed in range(SEEDS):
            chance = random.Random(f"{name} {node} {seed}")
            if name == "Telemetry":
                requests = commands(chance)
            elif seed % 3 and name != "SyncLiteSubscription":
                requests = [spoil(right(name, facts), chance)]
            else:
                requests = [fill(v2.RPCS[name].request(), chance)]
            async with asyncio.timeout(SECONDS):
                codes = await call(caller, name, requests)
            assert not INTERNAL & {*codes}, (seed, codes, str(requests)[:2000])
            found |= {*codes}
        assert found - {Code.OK} or name in NEVER_WRONG, "nothing was wrong"
        for task in waiting:
            assert not task.done()
            task.cancel()
        assert others <= {Code.OK, Code.MESSAGE_NOT_FOUND}, "a wrong call ended another one"
        for each in facts.brokers:
            each.validate()
        good = caller.message(b"good", "NORMAL", tag="good")
        assert (await caller.send(good)).status.code == Code.OK
        bodies = []
        for number in range(2):
            wanted = {"expression": v2.FilterExpression(type=1, expression="good")}
            wanted |= {"broker": f"broker-{number}", "poll_ms": 2000}
            bodies += (await caller.receive("NORMAL", "AFTER", **wanted)).bodies
        assert bodies == [b"good"]

    run(body)
