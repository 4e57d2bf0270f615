"""The client's side: servers that lie to producers, consumers and admins, in virtual time.

The truth is recorded: every operation once, through a `Front` that stands before a real nameserver
and a real broker. Then the servers are gone, and the fronts answer from what was recorded, spoiled
in every third answer: a field bent, missing or huge, frames of messages with values that cannot be,
bodies that unpack to gigabytes, another code, another opaque, twice, never, torn, garbage; routes
that lead nowhere; requests that nobody expects.

An operation ends in time, with its result or a SaturnError; no task of the client may have failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from saturnmq.client.admin import Admin
from saturnmq.client.producer import Producer
from saturnmq.client.pull_consumer import PullConsumer
from saturnmq.client.push_consumer import PushConsumer
from saturnmq.drills.fuzz.inprocess import Violation
from saturnmq.drills.fuzz.mutations import (
    NUMBERS,
    ODD,
    bent,
    odd,
    spoiled,
    spoiled_in_place,
    written,
)
from saturnmq.drills.fuzz.scene import Scene
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.compression import BODY_BYTES_MAX, ZLIB, compress, sys_flag_of
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.errors import ConnectionLost, SaturnError, TaskFailed
from saturnmq.protocol.frame import crc32, encode_frame
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.remoting import Command, FrameDecoder, encode, encode_head
from saturnmq.protocol.runtime import split_address

QUEUES_MAX = 1_000  # of a topic, to be read
LIES = 0.3  # of the answers
BOUND_S = 180.0  # of virtual time, of one call
CONSUMES_S = 3.0
TOPIC, GROUP = "orders", "readers"
MEMBER = "me"  # as the recorded answers name the member of the group
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
UNASKED = (39, 40, 220, 221, 307, 309, 326, int(RequestCode.ROUTE_CHANGED), 7, 99_999)
CODES = (0, 1, 2, 10, 12, 16, 17, 19, 20, 21, 22, 24, 26, 29, 206, 999_999, -1)
ADDRESSES = ("", "x", "10.9.9.9:1", "10.0.0.2:9876", "127.0.0.1:99999", "[::1]:1", ":", "\u0663:1")
FRAME_FIELDS = (
    (0, 4), (4, 4), (8, 4), (12, 4), (16, 4), (20, 8), (28, 8), (36, 4), (40, 8), (72, 4), (84, 4),
)  # fmt: skip
Call = Callable[[], Awaitable[object]]


class Truth:
    """What servers have answered, by request code."""

    def __init__(self) -> None:
        self._told: defaultdict[int, list[tuple[dict[str, str], Command]]] = defaultdict(list)
        self.addresses: dict[bytes, bytes] = {}  # of a server, and of the front before it

    def note(self, request: Command, answer: Command) -> Command:
        body = bytes(answer.body)
        for real, front in self.addresses.items():
            body = body.replace(real, front)
        answer.body = body
        self._told[request.code].append((dict(request.ext), answer))
        return answer

    def of(self, rng: random.Random, request: Command) -> Command:
        """The answer to the request that is most like this one."""
        told = self._told.get(request.code)
        if not told:
            return Command(0, {}, b"")
        mine = request.ext.items()
        best = max(len(mine & ext.items()) for ext, _ in told)
        return rng.choice([answer for ext, answer in told if len(mine & ext.items()) == best])


class Front(asyncio.BufferedProtocol):
    """One connection of a client to a server that lies, or that is recorded."""

    def __init__(self, world: Client, upstream: Endpoint | None) -> None:
        self._world = world
        self._upstream = upstream
        self._decoder = FrameDecoder()
        self._buffer = bytearray(64 << 10)
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        for request in self._decoder.feed(bytes(self._buffer[:nbytes])):
            if request.is_response:
                continue
            if self._upstream is not None:
                self._world.liar.spawn(self._record(request))
            elif not request.is_oneway:
                self._answer(request)

    async def _record(self, request: Command) -> None:
        assert self._upstream is not None
        asked = Command.request(request.code, dict(request.ext), request.body)
        if request.is_oneway:
            self._upstream.oneway(asked)
            return
        with contextlib.suppress(ConnectionLost):  # the servers are gone, and a pull was held
            answer = await self._upstream.request(asked, 100.0)
            self._say(_reply(request, self._world.truth.note(request, answer)))

    def _answer(self, request: Command) -> None:
        rng = self._world.rng
        answer = _reply(request, self._world.truth.of(rng, request))
        if rng.random() >= LIES:
            self._say(answer)
            return
        if rng.random() < 0.1:
            self._write(b"".join(encode(_unasked(rng))))
        lies: tuple[Callable[[random.Random, Command], None], ...] = (
            self._ext, self._body, self._body, self._body, self._code, self._shape, self._shape,
        )  # fmt: skip
        rng.choice(lies)(rng, answer)

    def _say(self, answer: Command) -> None:
        self._write(b"".join(encode(answer)))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # the lies

    def _ext(self, rng: random.Random, answer: Command) -> None:
        ext: dict[str, Any] = dict(answer.ext)
        name = rng.choice(sorted(ext) or ["offset"])
        if rng.random() < 0.2:
            ext.pop(name, None)
        else:
            ext[name] = rng.choice(("1.5", "9" * 5000, *map(str, NUMBERS), *map(str, ODD)))
        answer.ext = ext
        self._say(answer)

    def _body(self, rng: random.Random, answer: Command) -> None:
        body = bytes(answer.body)
        if not body or rng.random() < 0.1:
            answer.body = rng.choice((b"", b"null", b"[]", b"{}", b"7", b"\xff", b"[" * 3000, b"{"))
        elif body[:1] in b"{[":
            answer.body = _bent_json(rng, body)
        else:
            answer.body = _bent_frames(rng, body)
        self._say(answer)

    def _code(self, rng: random.Random, answer: Command) -> None:
        answer.code = rng.choice(CODES)
        answer.remark = rng.choice((None, "", "x" * 5000, "\x00", answer.remark))
        self._say(answer)

    def _shape(self, rng: random.Random, answer: Command) -> None:
        data = b"".join(encode(answer))
        way = rng.randrange(8)
        if way == 0:
            return  # never
        if way == 1:
            answer.opaque = rng.choice((answer.opaque + 1, 0, -1, (1 << 31) - 1))
            self._say(answer)
        elif way == 2:
            self._write(data * rng.choice((2, 20)))
        elif way == 3:  # torn
            self._write(data[: rng.randrange(len(data))])
            if rng.random() < 0.5:
                self._close()
        elif way == 4:
            self._write(spoiled(rng, data))
        elif way == 5:
            self._write(rng.randbytes(rng.randrange(100)))
        elif way == 6:  # a header whose fields have other types
            head = encode_head(answer)
            header = written(bent(rng, orjson.loads(head[8:])))
            size = 4 + len(header) + len(answer.body)
            self._write(
                size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + answer.body
            )
        else:
            self._close()


class Client:
    """The target."""

    def __init__(self, seed: int) -> None:
        self.truth = Truth()
        self.rng = random.Random(seed)
        self._scene = scene = Scene(seed)
        self._wrong: list[str] = []
        self._clients = 0
        scene.run(lambda: self._prepare(seed))

    def close(self) -> None:
        self._scene.close()

    def execute(self, rng: random.Random) -> str:
        self.rng = rng
        outcome = self._scene.run(lambda: self._live(rng))
        if self._wrong:
            raise Violation(self._wrong[0])
        return outcome

    async def _prepare(self, seed: int) -> None:
        """Every operation once, and what servers answer to it."""
        scene = self._scene
        self.liar, self._node = scene.node("liar"), scene.node("client")
        nameserver = await scene.nameserver()
        broker = await scene.broker(SimDisk(random.Random(seed)), nameserver)
        fronts = [await self._stand_before(real) for real in (nameserver, broker.address)]
        self.nameserver, self._broker = fronts
        await broker_is_known(scene, nameserver)
        async with Admin(nameserver, runtime=scene.node("operator")) as operator:
            await operator.create_topic(TOPIC, 2)
        recording = self._kinds()
        for kind in recording:
            await kind(None)
        await broker.close()
        self._upstreams.clear()

    async def _stand_before(self, real: str) -> str:
        self._upstreams = getattr(self, "_upstreams", {})
        host, port = split_address(real)
        front = f"{self.liar.ip}:{port}"
        self.truth.addresses[real.encode()] = front.encode()
        upstream = Endpoint(self.liar, None)
        await self.liar.connect(host, port, upstream)
        self._upstreams[front] = upstream
        await self.liar.listen(self.liar.ip, port, lambda: Front(self, self._upstreams.get(front)))
        return front

    def _kinds(self) -> Sequence[Callable[[random.Random | None], Awaitable[str]]]:
        return self._sending, self._pulling, self._pushing, self._in_order, self._administering

    async def _live(self, rng: random.Random) -> str:
        return await rng.choice(self._kinds())(rng)

    # what a client does; without `rng` all of it, and nothing may fail

    async def _sending(self, rng: random.Random | None) -> str:
        producer = Producer("writers", self.nameserver, **self._options())
        calls: list[Call] = [
            lambda: producer.send(Message(TOPIC, b"x", keys=["k"])),
            lambda: producer.send(Message(TOPIC, b"later", delay_level=1)),
            lambda: producer.send(Message(TOPIC, b"x"), queue=QUEUE),
            lambda: producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(3)]),
            lambda: producer.send_oneway(Message(TOPIC, b"x")),
            lambda: producer.queues(TOPIC),
            producer.flush,
        ]
        return await self._use("producer", producer, calls, rng)

    async def _pulling(self, rng: random.Random | None) -> str:
        consumer = PullConsumer(
            GROUP, self.nameserver, consume_from="first", client_id=MEMBER, **self._options()
        )
        consumer.subscribe(TOPIC)

        async def poll() -> None:
            self._look_at(await consumer.poll(CONSUMES_S))

        calls: list[Call] = [poll, consumer.commit, lambda: consumer.committed(QUEUE), consumer.lag]
        return await self._use("pull consumer", consumer, calls, rng)

    async def _pushing(self, rng: random.Random | None, *, ordered: bool = False) -> str:
        async def listen(messages: list[ReceivedMessage]) -> None:
            self._look_at(messages)

        consumer = PushConsumer(
            GROUP,
            self.nameserver,
            listener=listen,
            consume_from="first",
            ordered=ordered,
            client_id=MEMBER,
            rebalance_interval_s=1.0,
            commit_interval_s=1.0,
            **self._options(),
        )
        consumer.subscribe(TOPIC)
        calls: list[Call] = [lambda: asyncio.sleep(CONSUMES_S)]
        return await self._use("push consumer", consumer, calls, rng)

    async def _in_order(self, rng: random.Random | None) -> str:
        return await self._pushing(rng, ordered=True)

    async def _administering(self, rng: random.Random | None) -> str:
        admin = Admin(self.nameserver, **self._options())
        calls: list[Call] = [
            admin.cluster,
            admin.replicas,
            admin.list_topics,
            admin.list_groups,
            lambda: admin.route(TOPIC),
            lambda: admin.create_topic("another", 2),
            lambda: admin.alter_topic("another", write_queues=1),
            lambda: admin.undrained(TOPIC, 1),
            lambda: admin.describe_topic(TOPIC),
            lambda: admin.create_group(GROUP),
            lambda: admin.describe_group(GROUP),
            lambda: admin.groups_of_topic(TOPIC),
            lambda: admin.group_lag(GROUP),
            lambda: admin.preview_reset(GROUP, TOPIC, 0),
            lambda: admin.reset_offsets(GROUP, TOPIC, 0),
            lambda: admin.offset_by_time(QUEUE, 0),
            lambda: admin.find_by_offset(QUEUE, 0),
            lambda: admin.find_by_key(TOPIC, "k"),
            lambda: admin.find_by_time(TOPIC, 0, None),
            lambda: admin.broker_status(self._broker),
            lambda: admin.delete_topic("another"),
            lambda: admin.delete_group("another"),
        ]
        lies: list[Call] = [
            lambda: admin.preview_hand_over("broker-a"),
            lambda: admin.hand_over("broker-a"),
            lambda: admin.preview_drain(self._broker),
            lambda: admin.member_queues(GROUP, "nobody"),
        ]
        return await self._use("admin", admin, calls if rng is None else calls + lies, rng)

    def _options(self) -> dict[str, Any]:
        return {"runtime": self._node, "on_error": self._told}

    def _told(self, error: SaturnError) -> None:
        if isinstance(error, TaskFailed):
            self._wrong.append(f"{error}, {_place(error.__cause__)}")

    async def _use(
        self, name: str, client: Any, calls: list[Call], rng: random.Random | None
    ) -> str:
        if rng is None:
            await client.start()
            for call in calls:
                await call()
            await client.close()
            return ""
        chosen = [rng.choice(calls) for _ in range(rng.choice((1, 1, 2, 4)))]
        failed = 0
        for number, call in enumerate([client.start, *chosen, client.close]):
            try:
                async with asyncio.timeout(BOUND_S):
                    await call()
            except SaturnError:
                failed += 1
            except TimeoutError:
                raise Violation(f"call {number} of a {name} does not end") from None
        return f"{name}: {'refused' if failed else 'served'}"

    def _look_at(self, messages: list[ReceivedMessage]) -> None:
        """At all that an application can look at."""
        for message in messages:
            for field in _FIELDS:
                try:
                    getattr(message, field)
                except SaturnError:
                    pass
                except Exception as error:
                    self._wrong.append(f"{field} of a message: {type(error).__name__}: {error}")


async def broker_is_known(scene: Scene, nameserver: str) -> None:
    async with Admin(nameserver, runtime=scene.node("asking")) as admin:
        async with asyncio.timeout(30):
            while not await admin.cluster():
                await asyncio.sleep(0.1)


_FIELDS = (
    "topic", "body", "tag", "properties", "keys", "sharding_key", "delay_level", "born_host",
    "store_host", "offset_message_id", "message_id", "queue", "queue_offset", "store_timestamp",
    "reconsume_times", "prepared_offset", "raw_properties", "frame",
)  # fmt: skip


def _place(error: BaseException | None) -> str:
    trace, at = None if error is None else error.__traceback__, ""
    while trace is not None:
        at = f"{trace.tb_frame.f_code.co_filename.rsplit('/', 2)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return at


def _reply(request: Command, answer: Command) -> Command:
    reply = request.reply(answer.code, answer.remark, dict(answer.ext), bytes(answer.body))
    reply.language = answer.language
    return reply


def _unasked(rng: random.Random) -> Command:
    ext = {"consumerGroup": GROUP, "group": GROUP, "topic": TOPIC}
    offsets = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:%b}}'
    body = rng.choice((b"", b"{}", b'["orders"]', offsets % written(odd(rng)), rng.randbytes(20)))
    return Command(rng.choice(UNASKED), ext if rng.random() < 0.7 else {}, body, opaque=7)


def _bent_json(rng: random.Random, body: bytes) -> bytes:
    try:
        document = orjson.loads(body)
    except ValueError:  # it has queues as keys
        return spoiled(rng, body)
    if isinstance(document, dict) and "brokerDatas" in document and rng.random() < 0.5:
        for data in document["brokerDatas"]:
            addresses = {str(rng.choice((0, 1, 7))): rng.choice(ADDRESSES) for _ in range(2)}
            data["brokerAddrs"] = addresses
        if rng.random() < 0.1:
            document["brokerDatas"] *= rng.choice((2, 5000))
    for _ in range(rng.choice((1, 1, 3))):
        document = bent(rng, document)
    for data in _readable(document):
        data["readQueueNums"] = min(data["readQueueNums"], QUEUES_MAX)
    return written(document)


def _readable(document: Any) -> list[dict[str, Any]]:
    """Those of a route that say how many can be read: a consumer reads as many as it is told."""
    queues = document.get("queueDatas") if isinstance(document, dict) else None
    return [
        data
        for data in (queues if isinstance(queues, list) else [])
        if isinstance(data, dict) and type(data.get("readQueueNums")) is int
    ]


def _bent_frames(rng: random.Random, body: bytes) -> bytes:
    way = rng.random()
    if way < 0.02:
        return _frame(rng, _bomb(), sys_flag_of(ZLIB))
    if way < 0.2:
        flag = rng.choice((0, 1, 0x101, 0x201, 0x301, 0x701, 0x11, 0x20, -1))
        return _frame(rng, rng.choice((b"", b"x", compress(b"x"), rng.randbytes(30))), flag)
    if way < 0.3:
        return spoiled(rng, body)
    size = int.from_bytes(body[:4], "big")
    frame = bytearray(body[:size])
    if way < 0.9 and size > 91:
        at, width = rng.choice(FRAME_FIELDS)
        number = (rng.choice(NUMBERS) + rng.choice((-1, 0, 0, 1))) % (1 << 8 * width)
        frame[at : at + width] = number.to_bytes(width, "big")
    else:
        frame[:] = spoiled_in_place(rng, bytes(frame))
    if rng.random() < 0.5 and size > 91:
        frame[8:12] = crc32(frame[88 : 88 + int.from_bytes(frame[84:88], "big")]).to_bytes(4, "big")
    return bytes(frame) + body[size:]


def _frame(rng: random.Random, body: bytes, sys_flag: int) -> bytes:
    properties = rng.choice(
        (b"", b"DELAY\x01" + b"9" * 5000 + b"\x02", b"TAGS\x01\x02", b"\x02\x01\x01", b"\xff\xfe")
    )
    return encode_frame(
        physical_offset=rng.choice((0, 1 << 62)),
        queue_offset=rng.choice((0, 5, 1 << 62)),
        queue_id=0,
        flag=0,
        sys_flag=sys_flag,
        born_timestamp=rng.choice((-1, 0, 1 << 62)),
        born_host=bytes(8),
        store_timestamp=0,
        store_host=bytes(8),
        reconsume_times=rng.choice((-1, 1 << 30)),
        prepared_offset=0,
        body=body,
        topic=TOPIC.encode(),
        properties=properties,
    )


_BOMBS: list[bytes] = []


def _bomb() -> bytes:
    """What unpacks to more than any reader takes."""
    if not _BOMBS:
        packer = zlib.compressobj(9)
        parts = [packer.compress(bytes(1 << 20)) for _ in range((BODY_BYTES_MAX >> 20) + 1)]
        _BOMBS.append(b"".join([*parts, packer.flush()]))
    return _BOMBS[0]
