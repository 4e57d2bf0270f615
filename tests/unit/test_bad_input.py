"""Bad input, each kind once, against a nameserver and a broker on loopback ports: it gets a clear
typed error, a connection beside it does not notice, and nothing that was stored is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from saturnmq import Message, MessageQueue, aio
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.cli.launcher import free_block
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.errors import (
    ConfigError,
    DirectoryLocked,
    InvalidParameter,
    MessageIllegal,
    RouteNotFound,
    SaturnError,
    StoreDamaged,
    TopicNotExist,
)
from saturnmq.protocol.native import NativeRuntime
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.runtime import split_address
from saturnmq.store.disk import NativeDisk

TOPIC = "orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
SMALL = {
    "commitlog_segment_bytes": 16 << 20,
    "consumequeue_segment_bytes": 20 * 1000,
    "index_slots": 100,
    "index_items": 400,
}
MIB = 1 << 20


class World:
    """A nameserver, a broker without topic creation, and a bystander with something stored."""

    def __init__(self, runtime: NativeRuntime, config: BrokerConfig) -> None:
        self.runtime = runtime
        self.config = config
        self.stored = 0

    async def start(self) -> None:
        self.nameserver = NameServer(self.runtime, port=0)
        await self.nameserver.start()
        names = self.nameservers = [self.nameserver.address]
        self.config = replace(self.config, nameservers=tuple(names))
        self.broker = Broker(self.config, self.runtime, NativeDisk())
        await self.broker.start()
        self.admin = await aio.Admin(names).start()
        await self.admin.create_topic(TOPIC, queues=1)
        self.bystander = await aio.Producer(nameservers=names).start()
        await self.store()

    async def store(self) -> None:
        result = await self.bystander.send(Message(TOPIC, b"kept %d" % self.stored))
        assert (result.ok, result.queue_offset) == (True, self.stored)
        self.stored += 1

    async def unharmed(self) -> None:
        """The bystander's connection still works, and everything stored comes back, no more."""
        await self.store()
        reader = aio.PullConsumer("readers", self.nameservers, client_id="reader")
        async with reader:
            reader.assign([QUEUE])
            reader.seek(QUEUE, 0)
            bodies: list[bytes] = []
            while len(bodies) < self.stored:
                bodies += [bytes(message.body) for message in await reader.poll(5.0)]
        assert bodies == [b"kept %d" % number for number in range(self.stored)]

    async def close(self) -> None:
        await self.bystander.close()
        await self.admin.close()
        await self.broker.close()
        await self.nameserver.close()

    async def ask(self, code: int, ext: dict[str, Any], body: bytes = b"") -> Command:
        """One request on a connection of its own, past every check of our client."""
        endpoint = Endpoint(self.runtime, None)
        await self.runtime.connect(*split_address(self.broker.address), endpoint)
        try:
            texts = {name: str(value) for name, value in ext.items()}
            return await endpoint.request(Command.request(code, texts, body), 10.0)
        finally:
            endpoint.close()

    async def send(self, body: bytes = b"x", code: int = 310, **changes: Any) -> Command:
        ext = {"a": "P", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        return await self.ask(code, {**ext, "i": "", **changes}, body)


def settings(root: Path, **changes: Any) -> BrokerConfig:
    return BrokerConfig(
        broker_name="broker-a",
        root=str(root / "store"),
        port=0,
        ha_port=0,
        auto_create_topics=False,
        store_options=SMALL,
        **changes,
    )


@contextlib.asynccontextmanager
async def world(root: Path, port: int = 0) -> AsyncIterator[World]:
    async with asyncio.timeout(60):
        one = World(NativeRuntime(), replace(settings(root), port=port))
        await one.start()
        try:
            yield one
            await one.unharmed()
        finally:
            await one.close()


def test_an_unknown_topic_with_creation_off(tmp_path):
    async def main() -> None:
        async with world(tmp_path) as one:
            with pytest.raises((RouteNotFound, TopicNotExist), match="'ordres'"):
                await one.bystander.send(Message("ordres", b"x"))
            answer = await one.send(b="ordres")
            assert answer.code == TopicNotExist.code
            assert "ordres" in answer.remark
            assert "ordres" not in await one.admin.list_topics()

    asyncio.run(main())


def oversized_body() -> dict[str, Any]:
    return {"body": b"x" * (4 * MIB + 1)}


def oversized_properties() -> dict[str, Any]:
    return {"body": b"x", "properties": {"P": "v" * 32_768}}


@pytest.mark.parametrize(
    ("bad", "limit"), [(oversized_body, str(4 * MIB)), (oversized_properties, "32")]
)
def test_a_message_over_a_limit(tmp_path, bad, limit):
    async def main() -> None:
        async with world(tmp_path) as one:
            message = bad()
            with pytest.raises(MessageIllegal, match=limit):
                await one.bystander.send(Message(TOPIC, **message))
            given = message.get("properties", {})
            pairs = "".join(f"{name}\x01{value}\x02" for name, value in given.items())
            answer = await one.send(message["body"], i=pairs)
            assert answer.code == MessageIllegal.code
            assert limit in answer.remark

    asyncio.run(main())


@pytest.mark.parametrize(("topic", "why"), [("t" * 128, "127"), ("no/slash", "character")])
def test_a_topic_name_that_breaks_the_rules(tmp_path, topic, why):
    async def main() -> None:
        async with world(tmp_path) as one:
            attempts: list[Callable[[], Awaitable[Any]]] = [
                lambda: one.bystander.send(Message(topic, b"x")),
                lambda: one.admin.create_topic(topic),
            ]
            for attempt in attempts:
                with pytest.raises(InvalidParameter, match=why):
                    await attempt()
            answer = await one.send(b=topic)
            assert answer.code == InvalidParameter.code
            assert why in answer.remark

    asyncio.run(main())


def framed(header: bytes) -> bytes:
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x7f\xff\xff\xff",
        framed(b'{"code": 10, "opaque": '),
        framed(b'["not", "an", "object"]'),
        (8).to_bytes(4, "big") + (0x01_00_00_04).to_bytes(4, "big") + b"\xff" * 4,
    ],
)
def test_a_malformed_frame_or_header_costs_its_sender_the_connection(tmp_path, garbage):
    async def main() -> None:
        async with world(tmp_path) as one:
            for server in (one.broker, one.nameserver):
                reader, writer = await asyncio.open_connection(*split_address(server.address))
                writer.write(garbage)
                assert await reader.read() == b""
                writer.close()

    asyncio.run(main())


def test_a_batch_with_a_wrong_crc_is_refused_whole(tmp_path):
    async def main() -> None:
        async with world(tmp_path) as one:
            batch = bytearray()
            for number in range(3):
                encode_batch_item(batch, b"body %d" % number, b"", 0)
            batch[batch.rindex(b"body 2")] ^= 1
            answer = await one.send(bytes(batch), code=320, m="true")
            assert answer.code == MessageIllegal.code
            assert "CRC" in answer.remark

    asyncio.run(main())


@pytest.mark.parametrize(("offset", "goes_on_at"), [(999, "1"), (-5, "0")])
def test_an_offset_outside_the_queue_is_answered_with_where_to_go_on(tmp_path, offset, goes_on_at):
    async def main() -> None:
        async with world(tmp_path) as one:
            ext = {"consumerGroup": "G", "topic": TOPIC, "queueId": 0, "queueOffset": offset}
            more = {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0}
            answer = await one.ask(11, {**ext, **more, "subscription": "*", "subVersion": 0})
            assert answer.code in (20, 21)  # RocketMQ's two ways to say it
            assert answer.ext["nextBeginOffset"] == goes_on_at
            answer = await one.ask(11, {**ext, **more, "queueId": 77, "subscription": "*"})
            assert answer.code == InvalidParameter.code

    asyncio.run(main())


async def refused(one: World, config: BrokerConfig) -> SaturnError:
    second = Broker(config, one.runtime, NativeDisk())
    with pytest.raises(SaturnError) as caught:
        await second.start()
    return caught.value


def test_a_port_in_use(tmp_path):
    async def main() -> None:
        async with world(tmp_path) as one:
            _, port = split_address(one.broker.address)
            taken = replace(settings(tmp_path / "other"), port=port)
            error = await refused(one, taken)
            assert isinstance(error, ConfigError)
            assert str(port) in str(error)
            assert "another port" in str(error)
            # It gave everything back: its directory serves at once on another port.
            again = Broker(replace(taken, port=0), one.runtime, NativeDisk())
            await again.start()
            await again.close()

    asyncio.run(main())


def test_a_data_directory_that_another_broker_uses(tmp_path):
    async def main() -> None:
        async with world(tmp_path) as one:
            error = await refused(one, settings(tmp_path))
            assert isinstance(error, DirectoryLocked)
            assert str(tmp_path) in str(error)

    asyncio.run(main())


def test_a_damaged_table_gives_way_to_its_backup_and_two_damaged_ones_refuse_the_start(tmp_path):
    async def main() -> None:
        # While it is down no outgoing connection may be given its port.
        async with world(tmp_path, free_block("127.0.0.1", 1)) as one:
            await one.admin.create_topic("second", queues=1)  # topics.json now has its backup
            await one.broker.close()
            table = tmp_path / "store" / "config" / "topics.json"
            backup = table.with_name("topics.json.bak")
            good = table.read_bytes()
            table.write_bytes(good[: len(good) // 2])
            backup.write_bytes(b"\0" * 100)
            error = await refused(one, one.config)
            assert isinstance(error, StoreDamaged)
            assert "topics.json" in str(error)
            backup.write_bytes(good)
            one.broker = Broker(one.config, one.runtime, NativeDisk())
            await one.broker.start()
            while not {TOPIC, "second"} <= set(await one.admin.list_topics()):
                await asyncio.sleep(0.01)  # until it has registered; `world` ends it

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "text", "hint"),
    [
        ("broker.toml", 'brokerName = "a"\nlistenPort = \n', "not valid TOML"),
        ("broker.conf", "brokerName=a\nlistenPort\n", "key=value"),
        ("broker.toml", "listenPrt = 1\n", "did you mean 'listenPort'"),
        ("broker.conf", "flushDiskTyp=SYNC_FLUSH\n", "did you mean 'flushDiskType'"),
        ("broker.conf", "listenPort=10,911\n", "a number"),
    ],
)
def test_a_damaged_configuration_or_an_unknown_key(path, text, hint):
    with pytest.raises(ConfigError, match=hint):
        BrokerConfig.load(text, path=path)
