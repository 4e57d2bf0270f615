"""The client's side: servers that lie to producers, consumers and admins, in virtual time.

The truth is recorded: every operation once, through a `Front` that stands before a real nameserver,
a real master and its slave. Then the servers are gone, and the fronts answer from what was
recorded, and spoil some answers (`lies.py`).

A turn is the life of one client. Each spoiled answer that it has read is an execution. Its calls
end in time, with a result or a SaturnError; no task of the client may have failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.producer.producer import Producer
from saturnmq.drills.fuzz.inprocess import Violation
from saturnmq.drills.fuzz.lies import (
    GROUP,
    LIES,
    OTHER_TOPIC,
    SINK,
    TOPIC,
    Truth,
    answer,
    asked_for,
    reply,
)
from saturnmq.drills.fuzz.scene import FuzzScene
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.asking import connect
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.remoting import Command, FrameDecoder, encode
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConnectionLost, SaturnError, TaskFailed

BOUND_S = 180.0  # of virtual time, of one call
CONSUMES_S = 1.0
OFTEN = 3, 1, 1, 1, 4, 3  # how many turns of each kind
MEMBER = "me"  # as the recorded answers name the member of the group
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
Call = Callable[[], Awaitable[object]]


class Front(asyncio.BufferedProtocol):
    """One connection of a client to a server that lies, or that is recorded."""

    def __init__(self, world: ClientTarget, server: str, upstream: Endpoint | None) -> None:
        self._world = world
        self._server = server
        self._upstream = upstream
        self._decoder = FrameDecoder()
        self._buffer = bytearray(64 << 10)
        self._transport: Any = None
        self._said = 0  # bytes
        self._lies: list[tuple[int, str]] = []  # where they end, and what was asked
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        self._closed = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        for request in self._decoder.feed(bytes(self._buffer[:nbytes])):
            if request.is_response:
                continue
            if self._upstream is not None:
                self._world.record(self._record(request))
            elif not request.is_oneway:
                self._lie(request)

    async def _record(self, request: Command) -> None:
        assert self._upstream is not None
        asked = Command.request(request.code, dict(request.ext), request.body)
        if request.is_oneway:
            self._upstream.oneway(asked)
            return
        with contextlib.suppress(ConnectionLost):  # the servers are gone, and a pull was held
            told = await self._upstream.request(asked, 100.0)
            told.body = self._world.moved(bytes(told.body))
            self._world.truth.note(self._server, request, told)
            self._write(b"".join(encode(reply(request, told))))

    def _lie(self, request: Command) -> None:
        world = self._world
        said = answer(world.rng, world.truth, self._server, request, world.lies)
        self._write(said.data)
        if said.is_lie and said.data:
            self._lies.append((self._said, asked_for(request)))
        if said.closes and not self._closed:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if not self._closed:
            self._transport.write(data)
            self._said += len(data)

    def believed(self) -> list[str]:
        """The requests whose lying answers the client has read."""
        read = self._said - self._transport.get_write_buffer_size()
        return [name for end, name in self._lies if end <= read]


class ClientTarget:
    """The target."""

    def __init__(self, seed: int) -> None:
        self.truth = Truth()
        self.rng, self.lies = random.Random(seed), 0.0
        self._scene = scene = FuzzScene(seed)
        self._wrong: list[str] = []
        self._fronts: list[Front] = []  # of this turn
        self._upstreams: dict[str, Endpoint] = {}
        self._recording = True
        self._fronts_of: dict[bytes, bytes] = {}  # by address of the server
        scene.run(lambda: self._prepare(seed))

    @property
    def servers(self) -> list[str]:
        """The addresses by which the truth has them, the nameserver's first."""
        return list(self._upstreams)

    def close(self) -> None:
        self._scene.close()

    def turn(self, rng: random.Random) -> list[str]:
        self.rng, self.lies = rng, rng.choice(LIES)
        self._fronts.clear()
        kind = rng.choices(self._kinds(), OFTEN)[0]
        self._scene.run(lambda: kind(rng))
        if self._wrong:
            raise Violation(self._wrong[0])
        return [name for front in self._fronts for name in front.believed()]

    # the truth

    async def _prepare(self, seed: int) -> None:
        """Every operation once, and what servers answer to it."""
        scene = self._scene
        self._liar, self._node = scene.node("liar"), scene.node("client")
        nameserver = await scene.nameserver()
        self.nameserver = await self._stand_before(nameserver)
        master = await scene.broker(SimDisk(random.Random(seed)), nameserver)
        self._broker = await self._stand_before(master.address)
        slave = await scene.broker(
            SimDisk(random.Random(seed)),
            nameserver,
            role="SLAVE",
            broker_id=1,
            ha_master_address=master.ha_address,
        )
        self._slave = await self._stand_before(slave.address)
        async with Admin(nameserver, runtime=scene.node("operator")) as operator:
            async with asyncio.timeout(30):
                while not any(member.in_sync for member in await operator.replicas()):
                    await asyncio.sleep(0.1)
            await operator.create_topic(TOPIC, 2)
            await operator.create_topic(OTHER_TOPIC, 1)
        await self._stage()
        for kind in self._kinds():
            await kind(None)
        for broker in (slave, master):
            await broker.close()
        self._recording = False

    async def _stage(self) -> None:
        """Send the requests of sinks; their clients are not asynchronous (`blocking.py`)."""
        link = await connect(self._node, *split_address(self._broker))
        rows = bytearray()
        encode_batch_item(rows, b"x", b"")
        stage = {"sink": SINK, "epoch": "1", "partition": "0", "attempt": "a" * 32}
        chunk = {"seq": "0", "topic": TOPIC, "queueId": "0", "sysFlag": "0", "bornTimestamp": "0"}
        told = {"chunks": "1", "rows": "1", "bytes": str(len(rows))}
        for code, ext, body in (
            (RequestCode.SINK_STATE, {"sink": SINK}, b""),
            (
                RequestCode.SINK_STATE,
                {"sink": SINK, "brokers": "broker-a", "replace": "false"},
                b"",
            ),
            (RequestCode.STAGE, stage | chunk, bytes(rows)),
            (RequestCode.PUBLISH, stage | told, b""),
            (RequestCode.SINK_STATE, {"sink": SINK}, b""),
            (RequestCode.STAGE, stage | chunk, bytes(rows)),
            (RequestCode.PUBLISH, stage | told, b""),
            (RequestCode.FINISH_EPOCH, {"sink": SINK, "epoch": "1"}, b""),
            (RequestCode.ABORT_STAGE, stage, b""),
        ):
            await link.request(Command.request(code, ext, body), BOUND_S)
        link.close()

    async def _stand_before(self, real: str) -> str:
        host, port = split_address(real)
        node = self._scene.node(f"front-{real}")
        front = f"{node.ip}:{port}"
        self._fronts_of[real.encode()] = front.encode()
        upstream = self._upstreams[front] = Endpoint(node, None)
        await node.connect(host, port, upstream)
        await node.listen(node.ip, port, lambda: self._front(front))
        return front

    def _front(self, address: str) -> Front:
        front = Front(self, address, self._upstreams[address] if self._recording else None)
        self._fronts.append(front)
        return front

    def moved(self, body: bytes) -> bytes:
        """A body with the addresses of the fronts in place of the real ones."""
        for real, front in self._fronts_of.items():
            body = body.replace(real, front)
        return body

    def record(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work of a front."""
        self._liar.spawn(work)

    def _kinds(self) -> Sequence[Callable[[random.Random | None], Awaitable[None]]]:
        return (
            self._sending,
            self._pulling,
            self._pushing,
            self._in_order,
            self._administering,
            self._changing_masters,
        )

    # the work of a client; without `rng` all of it, and nothing may fail

    async def _sending(self, rng: random.Random | None) -> None:
        producer = Producer("writers", self.nameserver, **self._options())

        async def burst() -> None:
            """Batches of two topics, which travel together once both are known."""
            for _ in range(2):
                topics = (TOPIC, OTHER_TOPIC) * 4
                await asyncio.gather(*(producer.send(Message(topic, b"x")) for topic in topics))

        calls: list[Call] = [
            lambda: producer.send(Message(TOPIC, b"x", keys=["k"])),
            lambda: producer.send(Message(TOPIC, b"later", delay_level=1)),
            lambda: producer.send(Message(TOPIC, b"x"), queue=QUEUE),
            lambda: producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(3)]),
            burst,
            lambda: producer.send_oneway(Message(TOPIC, b"x")),
            lambda: producer.queues(TOPIC),
            producer.flush,
        ]
        await self._use("producer", producer, calls, rng)

    async def _pulling(self, rng: random.Random | None) -> None:
        consumer = PullConsumer(
            GROUP, self.nameserver, consume_from="first", client_id=MEMBER, **self._options()
        )
        consumer.subscribe(TOPIC)

        async def poll() -> None:
            self._look_at(await consumer.poll(CONSUMES_S))

        calls: list[Call] = [poll, consumer.commit, lambda: consumer.committed(QUEUE), consumer.lag]
        await self._use("pull consumer", consumer, calls, rng)

    async def _pushing(self, rng: random.Random | None, *, ordered: bool = False) -> None:
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
        await self._use("push consumer", consumer, calls, rng)

    async def _in_order(self, rng: random.Random | None) -> None:
        await self._pushing(rng, ordered=True)

    async def _administering(self, rng: random.Random | None) -> None:
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
            lambda: admin.member_queues(GROUP, "nobody"),
        ]
        await self._use("admin", admin, calls if rng is None else calls + lies, rng)

    async def _changing_masters(self, rng: random.Random | None) -> None:
        admin = Admin(self.nameserver, **self._options())
        calls: list[Call] = [
            admin.replicas,
            lambda: admin.preview_hand_over("broker-a"),
            lambda: admin.preview_drain(self._broker),
            lambda: admin.hand_over("broker-a"),
            lambda: admin.drain(self._slave),  # it leads now
            lambda: admin.promote("broker-a", self._slave),
        ]
        lies: list[Call] = [
            lambda: admin.promote("broker-a", self._broker, force=True),
            lambda: admin.drain(self._broker),
        ]
        await self._use("admin", admin, calls if rng is None else calls + lies, rng)

    def _options(self) -> dict[str, Any]:
        return {"runtime": self._node, "on_error": self._told}

    def _told(self, error: SaturnError) -> None:
        if isinstance(error, TaskFailed):
            self._wrong.append(f"{error}, {_place(error.__cause__)}")

    async def _use(
        self, name: str, client: Any, calls: list[Call], rng: random.Random | None
    ) -> None:
        if rng is None:
            await client.start()
            for call in calls:
                await call()
            await client.close()
            return
        chosen = [rng.choice(calls) for _ in range(rng.choice((1, 3, 6)))]
        for number, call in enumerate([client.start, *chosen, client.close]):
            try:
                async with asyncio.timeout(BOUND_S):
                    await call()
            except SaturnError:
                pass
            except TimeoutError:
                raise Violation(f"call {number} of a {name} does not end") from None

    def _look_at(self, messages: list[ReceivedMessage]) -> None:
        """Read every field that an application can read."""
        for message in messages:
            for field in _FIELDS:
                try:
                    getattr(message, field)
                except SaturnError:
                    pass
                except Exception as error:
                    self._wrong.append(f"{field} of a message: {type(error).__name__}: {error}")


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
