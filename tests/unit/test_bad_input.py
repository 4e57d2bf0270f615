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
from broker_rig import insist
from saturnmq import Message, MessageQueue, aio
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.replication import ha_slave
from saturnmq.broker.replication.introductions import read_refusal
from saturnmq.cli.free_ports import free_block
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol import fastjson, ha
from saturnmq.protocol.asking import connect
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import (
    ConfigError,
    DirectoryLocked,
    InvalidParameter,
    MalformedFrame,
    MessageIllegal,
    RouteNotFound,
    SaturnError,
    StoreDamaged,
    TopicNotExist,
)
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.config_files import ConfigFile
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


SIXTY_NINES = b"9" * 60


def test_topics_and_groups_with_numbers_that_cannot_be_keep_no_table_from_being_saved(tmp_path):
    async def main() -> None:
        async with world(tmp_path) as one:
            for name in ("perm", "readQueueNums", "writeQueueNums", "topicSysFlag"):
                lie = {"topic": "lie", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
                answer = await one.ask(17, lie | {name: "9" * 400})
                assert answer.code == InvalidParameter.code
                assert name in answer.remark
            for name in ("retryQueueNums", "retryMaxTimes", "brokerId", "groupSysFlag"):
                answer = await one.ask(
                    200, {}, b'{"groupName":"lie","%b":%b}' % (name.encode(), SIXTY_NINES)
                )
                assert answer.code == InvalidParameter.code
                assert name in answer.remark
            # Answered when the table is on the disk.
            assert (await one.ask(200, {}, b'{"groupName":"G","newer":%b}' % SIXTY_NINES)).code == 0
            await one.admin.create_topic("second", queues=1)
            saved = ConfigFile(NativeDisk(), f"{one.config.root}/config/subscriptionGroup.json")
            table = (saved.load() or {})["subscriptionGroupTable"]
            assert ("G" in table, "lie" in table) == (True, False)
            assert one.broker.failures.count == 0

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


# -- what nodes of a group tell each other ---------------------------------------------------------

FAR = 999_999_999  # a number that an epoch can have, and this group's cannot
NO_NUMBER = [{"epoch": lie} for lie in ("9" * 400, "-1", "x", str(1 << 31), "", FAR)]
AN_EPOCH = {"epoch": 200_000}
NO_STATE = (b"{}", b"[]", b"7", b"", b"{", b"\xff", b"[" * 5000)


def part(broker: Broker) -> dict[str, Any]:
    """What a node is in its group."""
    state = broker.replica_state()
    names = ("role", "brokerId", "epoch", "epochs", "replicas", "identity", "required", "forced")
    return {name: state[name] for name in names}


ORDERS: list[tuple[RequestCode, dict[str, Any]]] = [
    *((RequestCode.FENCE, lie) for lie in [*NO_NUMBER, {}]),
    *((RequestCode.PROMOTE, {**lie, "force": "true"}) for lie in [*NO_NUMBER, {}]),
    *((RequestCode.FENCE, {**AN_EPOCH, "term": lie}) for lie in ("x", "9" * 400, -2, 1 << 31)),
    *((RequestCode.PROMOTE, {**AN_EPOCH, "end": lie}) for lie in ("x", "9" * 400, -1, 1 << 63)),
    *((RequestCode.READ_LOG, {"offset": lie, "size": 1}) for lie in ("x", "9" * 400, -1)),
    *((RequestCode.READ_LOG, {"offset": 0, "size": lie}) for lie in ("9" * 400, -1, 1 << 40)),
]


def test_an_order_with_a_number_that_cannot_be_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as one:
            before = part(one.broker)
            group = {"brokerName": "broker-a", "identity": before["identity"]}
            for code, ext in ORDERS:
                answer = await one.ask(code, {**group, **ext})
                assert answer.code == InvalidParameter.code, (code, ext, answer.remark)
                assert len(answer.remark) < 200, answer.remark
                assert part(one.broker) == before, (code, ext)
            for address, code in (("x" * 70_000, InvalidParameter.code), ("x", 0), ("", 0)):
                answer = await one.ask(RequestCode.SLAVE_LEAVES, {"brokerAddr": address})
                assert answer.code == code
                assert part(one.broker) == before, answer.remark

    asyncio.run(main())


def test_nobody_is_elected_by_a_number_that_cannot_be(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as one:
            endpoint = await connect(one.runtime, *split_address(one.nameserver.address))
            for lie in ("x", "9" * 400, -2, 1 << 63):
                ext = {"brokerName": "broker-a", "brokerId": str(lie), "designateElect": "true"}
                request = Command.request(RequestCode.CONTROLLER_ELECT_MASTER, ext)
                answer = await endpoint.request(request, 10.0)
                assert answer.code == InvalidParameter.code
                assert "brokerId" in answer.remark
            endpoint.close()

    asyncio.run(main())


# Of a node, as HELLO, JOIN and REPLICA_STATE tell it.
LIES: list[dict[str, Any]] = [
    *NO_NUMBER[:-2],
    {"epoch": FAR},
    {"epoch": None},
    {"epochs": [[FAR, 0]]},
    {"epochs": [[2, 0], [1, 0]]},
    {"epochs": [[1, 0, 0]]},
    {"epochs": 5},
    {"leadsIn": FAR},
    {"leadsIn": "x"},
    {"brokerId": 1 << 63},
    {"brokerId": -1},
    {"brokerName": 7},
    {"address": "nowhere"},
    {"haAddress": "127.0.0.1:99999"},
    {"identity": "nobody"},
    {"start": -1},
    {"end": "9" * 400},
    {"floor": [1]},
    {"lacks": 1},
    {"role": {}},
    {"freeId": "x"},
    {"replicas": {"x": "127.0.0.1:1"}},
    {"replicas": {"1": "nowhere"}},
    {"replicas": {str(n): "127.0.0.1:1" for n in range(1_001)}},
]
LIES_OF_A_SLAVE = [*LIES, {"from": "5x"}, {"check": [0, 1]}, {"check": [0, 1, -1]}, {"conflict": 1}]
LIES_OF_A_MASTER = [
    *LIES,
    {"confirmed": -1},
    {"segmentBytes": None},
    {"required": 0},
    {"required": 1_001},
    {"forced": [FAR]},
    {"forced": "1"},
]


class Frames:
    """One end of a connection of replication, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._inbox = ha.Inbox(1 << 20)

    def say(self, kind: ha.Kind, document: dict[str, Any]) -> None:
        self.writer.write(ha.encode_control(kind, document))

    async def hear(self, of: str, kind: ha.Kind) -> dict[str, Any] | None:
        """The next frame of this kind; None at the end."""
        while True:
            frame = getattr(self._inbox, of)()
            if isinstance(frame, ha.Control) and frame.kind is kind:
                return frame.document
            if frame is None:
                data = await self.reader.read(1 << 16)
                if not data:
                    return None
                self._inbox.make_room()
                self._inbox.free()[: len(data)] = data
                self._inbox.filled(len(data))


async def refused_join(one: World, lie: dict[str, Any]) -> None:
    frames = Frames(*await asyncio.open_connection(*split_address(one.broker.ha_address)))
    frames.writer.write(ha.encode_greeting(0))
    hello = await frames.hear("next_of_master", ha.Kind.HELLO)
    assert hello is not None
    slave = {"role": "slave", "brokerId": 7, "address": "127.0.0.1:1", "end": 0}
    frames.say(ha.Kind.JOIN, {**hello, **slave, "from": 0, "check": [0, 0, 0], **lie})
    assert await frames.hear("next_of_master", ha.Kind.HELLO) is None, f"{lie} is believed"
    frames.writer.close()


def test_a_slave_that_says_what_cannot_be_is_not_listened_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as one:
            before = part(one.broker)
            for lie in LIES_OF_A_SLAVE:
                await refused_join(one, lie)
                assert part(one.broker) == before, lie

    asyncio.run(main())


@contextlib.asynccontextmanager
async def follower(root: Path) -> AsyncIterator[tuple[Broker, asyncio.Queue[Frames]]]:
    """A slave, and each of the connections on which it waits for its master to speak."""
    calls: asyncio.Queue[Frames] = asyncio.Queue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ha_slave, "REFUSED_S", 0.01)  # who was refused comes again soon
        async with asyncio.timeout(30):
            listener = await asyncio.start_server(
                lambda reader, writer: calls.put_nowait(Frames(reader, writer)), "127.0.0.1", 0
            )
            host, port = listener.sockets[0].getsockname()
            config = settings(
                root,
                role="SLAVE",
                broker_id=1,
                ha_master_address=f"{host}:{port}",
                ha_reconnect_ms=10,
            )
            slave = Broker(config, NativeRuntime(), NativeDisk())
            await slave.start()
            try:
                yield slave, calls
            finally:
                await slave.close()
                listener.close()


HELLO = {
    "brokerName": "broker-a",
    "identity": "1" * 32,
    "brokerId": 0,
    "address": "127.0.0.1:1",
    "role": "master",
    "epoch": 100_000,
    "epochs": [[100_000, 0]],
    "segmentBytes": SMALL["commitlog_segment_bytes"],
}


async def led(calls: asyncio.Queue[Frames], **hello: Any) -> Frames:
    """A connection on which the slave has joined."""
    frames = await calls.get()
    await frames.reader.readexactly(16)  # the greeting, and its report
    frames.say(ha.Kind.HELLO, HELLO | hello)
    while (join := await frames.hear("next_of_slave", ha.Kind.JOIN)) is not None:
        if "from" in join and "asks" not in join:
            return frames
        frames.say(ha.Kind.ACCEPT, {})
    raise AssertionError("it does not follow")


SPOKEN: list[tuple[ha.Kind, dict[str, Any]]] = [
    *((ha.Kind.HELLO, {**HELLO, **lie}) for lie in LIES_OF_A_MASTER),
    *((ha.Kind.GROUP, {"required": lie}) for lie in (0, "x", 1_001)),
    *((ha.Kind.GROUP, {"replicas": lie}) for lie in (5, {"9" * 400: "127.0.0.1:1"})),
    (ha.Kind.REFUSE, {"freeId": 1 << 62}),  # each holds it up for a second
    (ha.Kind.REFUSE, {"differs": [1]}),
]


def test_a_master_that_says_what_cannot_be_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with follower(tmp_path) as (slave, calls):
            frames = await led(calls)
            before = part(slave)
            assert (before["epoch"], before["role"]) == (100_000, "slave")
            for kind, document in SPOKEN:
                frames.say(kind, document)
                end = await frames.hear("next_of_slave", ha.Kind.JOIN)
                assert end is None, f"{kind} {document} is believed"
                frames.writer.close()
                frames = await led(calls)  # it follows whoever speaks sense
                assert part(slave) == before, (kind, document)

    asyncio.run(main())


def test_a_new_node_believes_any_epoch_of_its_first_master(tmp_path: Path) -> None:
    async def main() -> None:
        async with follower(tmp_path) as (slave, calls):
            await led(calls, epoch=FAR, epochs=[[FAR, 0]])
            assert part(slave)["epoch"] == FAR

    asyncio.run(main())


@pytest.mark.parametrize(
    "lie",
    [
        *({"freeId": lie} for lie in ("x", "9" * 400, -1, 1_001, [1])),
        *({"differs": lie} for lie in (5, [1], [1, 2, 3], ["x", 1], [0, -1])),
    ],
    ids=str,
)
def test_a_refusal_that_cannot_be_is_not_read(lie: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame, match=next(iter(lie))):
        read_refusal(lie)


def test_nodes_whose_states_cannot_be_are_not_heard(tmp_path: Path) -> None:
    """A starting master asks its slaves, and liars have their addresses."""

    async def main() -> None:
        async with asyncio.timeout(30):
            runtime = NativeRuntime()
            asked: set[int] = set()
            answers = [*LIES, *NO_STATE]
            state = {"role": "master", "epoch": 200_000, "epochs": [], "brokerName": "broker-a"}

            def liar(number: int, lie: dict[str, Any] | bytes) -> Callable[[], Endpoint]:
                if not isinstance(lie, bytes):
                    lie = fastjson.dumps({**state, "address": "127.0.0.1:1", **lie})

                def tell(endpoint: Endpoint, request: Command) -> None:
                    endpoint.send(request.reply(0, body=lie))
                    asked.add(number)

                return lambda: Endpoint(runtime, tell, server=True)

            config = settings(tmp_path, role="SYNC_MASTER")
            broker = Broker(config, runtime, NativeDisk())
            await broker.start()
            await insist(broker)
            for number, lie in enumerate(answers, 1):
                listener = await runtime.listen("127.0.0.1", 0, liar(number, lie))
                broker.context.role.add_replica(number, listener.address)
            await broker.close()
            broker = Broker(config, runtime, NativeDisk())
            before = ConfigFile(NativeDisk(), f"{config.root}/config/role.json").load()
            await broker.start()
            assert asked == set(range(1, len(answers) + 1))
            assert broker.replica_state()["role"] == "recovering", "nobody has told it anything"
            assert before is not None
            assert broker.context.role.promised_epoch == before["epoch"]
            await broker.close()

    asyncio.run(main())
