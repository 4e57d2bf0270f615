"""Transactions at a broker of a simulated machine, spoken to in Remoting commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saturnmq.broker.broker import Broker
from saturnmq.protocol import fastjson
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.remoting import Command
from world_rig import Remote, World

HALVES, ENDINGS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
EXPIRED = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "payers"
QUICK: dict[str, Any] = {"transaction_timeout_ms": 500, "transaction_check_ms": 1000}
BUSY, FAILED, ENDED = 2, 4, 390050


class Asked:
    """The questions that a producer heard."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def __call__(self, endpoint: Endpoint, command: Command) -> None:
        if command.code == 39:
            self.commands.append(Command.request(39, dict(command.ext), bytes(command.body)))

    @property
    def ids(self) -> list[str]:
        return [command.ext["transactionId"] for command in self.commands]

    def message(self, number: int = -1) -> ReceivedMessage:
        [found] = decode_frames(bytes(self.commands[number].body), False)
        return found


async def half(
    client: Remote, body: bytes = b"x", unique: str = "U1", group: str = GROUP, **names: str
) -> dict[str, str]:
    """Send a half; return what ends it."""
    reply = await client.send(body, TRAN_MSG="true", PGROUP=group, UNIQ_KEY=unique, **names)
    assert reply.code == 0, reply.remark
    return {
        "producerGroup": group,
        "tranStateTableOffset": reply.ext["queueOffset"],
        "commitLogOffset": str(int(reply.ext["msgId"][-16:], 16)),
        "msgId": unique,
        "transactionId": reply.ext["transactionId"],
    }


async def end(client: Remote, which: dict[str, str], decision: int, **more: Any) -> Command:
    return await client.ask(37, {**which, "commitOrRollback": decision, **more})


async def greet(client: Remote, group: str = GROUP) -> None:
    """Become a producer of the group."""
    beat = {"clientID": "c", "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
    reply = await client.ask(34, {}, fastjson.dumps(beat))
    assert reply.code == 0, reply.remark


def answer_to(question: Command) -> dict[str, str]:
    ext = question.ext
    names = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
    return {"producerGroup": GROUP, **{name: ext[name] for name in names}}


async def stored(world: World, broker: Broker, topic: str = "T") -> list[ReceivedMessage]:
    """All messages of queue 0 of a topic."""
    marks = broker.store.watermarks
    await world.until(lambda: marks.dispatched == marks.appended)
    end_ = broker.store.max_offset(topic, 0)
    found: list[ReceivedMessage] = []
    while len(found) < end_:
        got = decode_frames(broker.store.get_message(topic, 0, len(found), 100).data, True)
        assert got
        found += got
    return found


async def bodies(world: World, broker: Broker, topic: str = "T") -> list[bytes]:
    return [message.body for message in await stored(world, broker, topic)]


def pending(broker: Broker) -> int:
    broker.validate()
    return broker.messaging.half_log.pending


async def started(
    world: World, heard: Callable[[Endpoint, Command], None] = lambda e, c: None, **changes: Any
) -> tuple[Broker, Remote]:
    broker = await world.broker(**changes)
    await world.until(lambda: broker.messaging.half_log.is_loaded)
    return broker, await world.connect(broker.address, heard)
