"""The attackers: `python -m saturnmq.drills.hostile.attacks NAME HOST:PORT SECONDS TARGET` runs one
of them. It prints a line when it has begun, and in the end what it did.

They speak by hand, over bare sockets: a client of ours would keep to the rules. They run at the
lowest priority, for on a network they have processors of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import cast

from saturnmq.client.tls import trusting
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import MAX_FRAME, Command, encode
from saturnmq.runtime.door import split_address

TOPIC = "besieged"
CHUNK = 1 << 16
BEGIN_S = 30.0  # a busy machine may take so long to make a connection
REFUSALS = (OSError, EOFError, asyncio.IncompleteReadError)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Attacker:
    """One attack on one node. `done` counts its actions."""

    def __init__(self, address: str, target: str, seconds: float) -> None:
        self.host, self.port = split_address(address)
        self.is_broker = target == "broker"
        self.done: Counter[str] = Counter()
        self._seconds = seconds
        self._begun = asyncio.Event()

    async def run(self, name: str) -> None:
        """Attack for the given time, counted from the first connection, whatever the node does."""
        attack = asyncio.ensure_future(ATTACKS[name](self))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_S):
                await self._begun.wait()
            print("begun", flush=True)
            await asyncio.sleep(self._seconds)
        attack.cancel()

    async def many(self, count: int, one: Callable[[], Awaitable[None]]) -> None:
        """Run so many attacks at once; each begins again when its connection has ended."""

        async def again() -> None:
            while True:
                try:
                    await one()
                except REFUSALS:
                    self.done["ended"] += 1
                await asyncio.sleep(0.05)

        await asyncio.gather(*(again() for _ in range(count)))

    async def connect(self, tls: ssl.SSLContext | None = None) -> Streams:
        streams = await asyncio.open_connection(self.host, self.port, ssl=tls)
        self.done["connections"] += 1
        self._begun.set()
        return streams

    def requests(self, count: int, *codes: RequestCode, **ext: str) -> bytes:
        """So many frames, one after the other, of these codes in turn."""
        return self.frames(Command.request(codes[each % len(codes)], ext) for each in range(count))

    def frames(self, commands: Iterable[Command]) -> bytes:
        parts = [b"".join(bytes(part) for part in encode(command)) for command in commands]
        self.done["requests"] += len(parts)
        return b"".join(parts)

    def big_questions(self) -> tuple[RequestCode, ...]:
        """Requests with long answers."""
        if self.is_broker:
            return (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO)
        return (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,)

    # the attacks

    async def flood(self) -> None:
        """Requests without a pause on few connections, every answer read."""
        code = (
            RequestCode.GET_BROKER_RUNTIME_INFO
            if self.is_broker
            else RequestCode.GET_BROKER_CLUSTER_INFO
        )

        async def one() -> None:
            reader, writer = await self.connect()
            while True:
                writer.write(self.requests(200, code))
                await writer.drain()
                for _ in range(200):
                    size = struct.unpack(">i", await reader.readexactly(4))[0]
                    await reader.readexactly(size)

        await self.many(4, one)

    async def dribble(self) -> None:
        """A thousand promise 16 MiB each; of those 64 KiB come, then a byte at a time."""

        async def one() -> None:
            _, writer = await self.connect()
            header = b'{"code":310,"flag":0,"language":"JAVA","opaque":1,"version":493}'
            writer.write(struct.pack(">ii", MAX_FRAME, len(header)) + header + bytes(CHUNK))
            while True:
                await writer.drain()
                await asyncio.sleep(1.0)
                writer.write(b"\0")

        await self.many(1_000, one)

    async def never_reading(self) -> None:
        """Long answers are asked for, and none is read."""

        async def one() -> None:
            _, writer = await self.connect()
            while True:
                writer.write(self.requests(100, *self.big_questions()))
                await writer.drain()

        await self.many(50, one)

    async def half_open(self) -> None:
        """Three thousand connections that say nothing."""

        async def one() -> None:
            reader, _ = await self.connect()
            await reader.readexactly(1)

        await self.many(3_000, one)

    async def churn(self) -> None:
        """Connections that are reset as soon as they are there."""

        async def one() -> None:
            _, writer = await self.connect()
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.write(self.requests(1, *self.big_questions()))
            writer.transport.abort()

        await self.many(50, one)

    async def handshakes(self) -> None:
        """Handshakes of TLS without a pause; every second one is left when it is half over."""
        tls = trusting()
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.wrap_bio(received, sent).do_handshake()
        hello = sent.read()

        async def one() -> None:
            _, writer = await self.connect(tls)
            writer.close()
            reader, writer = await self.connect()
            writer.write(hello)
            await reader.readexactly(1)
            writer.close()

        await self.many(50, one)

    async def unread_secrets(self) -> None:
        """Long answers are asked for over TLS, and none is read."""
        tls = trusting()

        async def one() -> None:
            _, writer = await self.connect(tls)
            cast(asyncio.Transport, writer.transport).pause_reading()
            while not writer.transport.is_closing():
                writer.write(self.requests(100, *self.big_questions()))
                await writer.drain()
                await asyncio.sleep(0.01)  # asyncio tells no writer of TLS of a dead connection

        await self.many(50, one)

    async def garbage(self) -> None:
        """Bytes that are no frames, and frames of which nothing is true."""
        rng = random.Random(1)

        async def one() -> None:
            _, writer = await self.connect()
            head = struct.pack(">ii", rng.choice((8, 1 << 20, MAX_FRAME)), rng.getrandbits(31))
            writer.write(rng.choice((b"", head)) + rng.randbytes(rng.choice((10, 1_000, CHUNK))))
            await writer.drain()
            writer.close()

        await self.many(20, one)

    async def held_pulls(self) -> None:
        """Pulls that wait at the end of a queue, fifty thousand on each of two connections."""

        async def one() -> None:
            reader, writer = await self.connect()
            pull = {
                "consumerGroup": "besiegers",
                "topic": TOPIC,
                "queueId": "0",
                "queueOffset": str(1 << 40),
                "maxMsgNums": "32",
                "sysFlag": "6",
                "commitOffset": "0",
                "suspendTimeoutMillis": "30000",
                "subscription": "a || b || c",
                "subVersion": "1",
                "expressionType": "TAG",
            }
            for _ in range(500):
                writer.write(self.requests(100, RequestCode.PULL_MESSAGE, **pull))
                await writer.drain()
            await reader.read()

        await self.many(2, one)

    async def names(self) -> None:
        """Heartbeats of a thousand groups each, every one of another client."""

        async def one() -> None:
            _, writer = await self.connect()
            groups = [{"groupName": f"g-{os.getpid()}-{n}"} for n in range(1_000)]
            while True:
                client = f"c-{self.done['requests']}"
                body = json.dumps({"clientID": client, "producerDataSet": groups}).encode()
                writer.write(self.frames([Command.request(RequestCode.HEART_BEAT, {}, body)]))
                await writer.drain()
                await asyncio.sleep(0)

        await self.many(2, one)


ATTACKS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    "flood": Attacker.flood,
    "dribble": Attacker.dribble,
    "never-reading": Attacker.never_reading,
    "half-open": Attacker.half_open,
    "churn": Attacker.churn,
    "handshakes": Attacker.handshakes,
    "unread-secrets": Attacker.unread_secrets,
    "garbage": Attacker.garbage,
    "held-pulls": Attacker.held_pulls,
    "names": Attacker.names,
}
OF_BROKERS = {"held-pulls", "names"}  # nameservers have nothing of the kind


def main(name: str, address: str, seconds: str, target: str) -> None:
    os.nice(19)
    with contextlib.suppress(OSError):  # of the session as well, where the kernel groups by it
        Path("/proc/self/autogroup").write_text("19")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(json.dumps(asyncio.run(attacked(name, address, target, float(seconds)))))


async def attacked(name: str, address: str, target: str, seconds: float) -> dict[str, int]:
    attacker = Attacker(address, target, seconds)
    await attacker.run(name)
    return attacker.done


if __name__ == "__main__":
    main(*sys.argv[1:])
