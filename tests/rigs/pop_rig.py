"""A consumer that pops from a broker on a simulated machine, with the handles of a Java client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from saturnmq.broker.broker import Broker
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.remoting import Command
from world_rig import Remote, World


@dataclass
class Got:
    """One popped message with its handle, as a Java client makes it."""

    message: ReceivedMessage
    handle: str

    @property
    def body(self) -> bytes:
        return self.message.body


@dataclass
class Popper:
    """A consumer that pops."""

    remote: Remote
    group: str = "G"
    topic: str = "T"
    answers: list[Command] = field(default_factory=list)

    async def pop(self, most: int = 32, invisible: int = 10_000, **more: Any) -> list[Got]:
        ext = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": -1,
            "maxMsgNums": most,
            "invisibleTime": invisible,
            "pollTime": 0,
            "bornTime": 0,
            "initMode": 0,
        }
        reply = await self.remote.ask(Code.POP_MESSAGE, {**ext, **more})
        self.answers.append(reply)
        return got(reply) if reply.code == 0 else []

    async def ack(self, one: Got, **more: Any) -> Command:
        return await self.remote.ask(Code.ACK_MESSAGE, self._about(one, **more))

    async def change(self, one: Got, invisible: int, **more: Any) -> Command:
        ext = {**self._about(one), "invisibleTime": invisible, **more}
        return await self.remote.ask(Code.CHANGE_MESSAGE_INVISIBLETIME, ext)

    def _about(self, one: Got, **more: Any) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "topic": one.message.topic,
            "queueId": one.message.queue_id,
            "offset": one.message.queue_offset,
            "extraInfo": one.handle,
            **more,
        }


def got(reply: Command) -> list[Got]:
    """The messages of an answer, each with the handle that a Java client would make."""
    ext = reply.ext
    starts = {
        tuple(one.split(" ")[:2]): one.split(" ")[2] for one in ext["startOffsetInfo"].split(";")
    }
    offsets = {
        tuple(one.split(" ")[:2]): one.split(" ")[2].split(",")
        for one in ext["msgOffsetInfo"].split(";")
    }
    assert starts.keys() == offsets.keys()
    assert len(starts) == len(ext["startOffsetInfo"].split(";")), "a queue is named twice"
    found = []
    for message in decode_frames(reply.body, True):
        kind = "1" if message.topic.startswith("%RETRY%") else "0"
        queue = kind, str(message.queue_id)
        assert str(message.queue_offset) == offsets[queue].pop(0)
        words = (
            starts[queue],
            ext["popTime"],
            ext["invisibleTime"],
            ext["reviveQid"],
            kind,
            "broker-a",
            message.queue_id,
            message.queue_offset,
        )
        found.append(Got(message, " ".join(map(str, words))))
    assert not any(offsets.values()), offsets
    return found


def bodies(found: list[Got]) -> list[bytes]:
    return [one.body for one in found]


async def started(world: World, **changes: Any) -> tuple[Broker, Popper]:
    broker = await world.broker(**changes)
    return broker, Popper(await world.connect(broker.address))


async def send(popper: Popper, *texts: str, queue: int = 0, **names: str) -> None:
    for text in texts:
        reply = await popper.remote.send(text.encode(), queue=queue, **names)
        assert reply.code == 0, reply.remark


async def settled(world: World, broker: Broker, popper: Popper) -> None:
    """The broker serves pops, and its state is in order."""
    await world.until(lambda: broker.messaging.popping.serves)
    broker.validate()
