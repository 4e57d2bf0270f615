"""A gateway over a broker on a simulated machine, and clients that call it without gRPC."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from saturnmq.broker.broker import Broker
from saturnmq.gateway import v2
from saturnmq.gateway.calls import CLIENT_ID, LANGUAGE, REQUEST_ID, GrpcCall
from saturnmq.gateway.gateway import Gateway
from saturnmq.nameserver.gateway_node import NameserverNode
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.credentials import Credentials
from saturnmq.runtime.errors import TopicNotExist
from world_rig import World, new_disk

ADDRESS = "10.9.9.9:8081"  # of the gateway, as clients are told
Code = v2.Code


@dataclass
class Received:
    """The answer to a receive."""

    parts: list[Any]

    @property
    def code(self) -> int:
        assert self.parts[0].WhichOneof("content") == "status"
        return int(self.parts[0].status.code)

    @property
    def messages(self) -> list[Any]:
        return [part.message for part in self.parts if part.WhichOneof("content") == "message"]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


@dataclass(eq=False)
class Caller:
    """One client."""

    world: World
    gateway: Gateway
    client_id: str = "host@1@0@abc"
    language: str = "JAVA"
    request_id: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    sent: int = 0
    told: list[Any] = field(default_factory=list)  # over its Telemetry stream
    says: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    def call(self, seconds: float | None = 3.0) -> GrpcCall:
        metadata = {CLIENT_ID: self.client_id, LANGUAGE: self.language, REQUEST_ID: self.request_id}
        metadata = {key: value for key, value in metadata.items() if value} | self.headers
        deadline = None if seconds is None else self.world.loop.time() + seconds
        return GrpcCall("10.1.1.1:4711", metadata, deadline)

    async def ask(self, name: str, **fields: Any) -> Any:
        rpc = v2.RPCS[name]
        answer = await self.gateway.unary[name](self.call(), rpc.request(**fields))
        assert isinstance(answer, rpc.response)
        assert rpc.response.FromString(answer.SerializeToString()) == answer
        return answer

    def message(self, body: bytes = b"body", topic: str = "T", **system: Any) -> Any:
        self.sent += 1
        found = v2.Message(topic=v2.Resource(name=topic), body=body)
        found.user_properties.update(system.pop("user", {}))
        for name in ("delivery_timestamp", "orphaned_transaction_recovery_duration"):
            if name in system:
                getattr(found.system_properties, name).FromMilliseconds(system.pop(name))
        properties = v2.SystemProperties(
            message_id=f"01{self.sent:032X}", message_type=v2.MessageType.NORMAL, body_encoding=1
        )
        properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
        properties.born_host = "sender"
        properties.MergeFrom(v2.SystemProperties(**system))
        found.system_properties.MergeFrom(properties)
        return found

    async def send(self, *messages: Any) -> Any:
        return await self.ask("SendMessage", messages=messages)

    async def receive(
        self,
        topic: str = "T",
        group: str = "G",
        *,
        most: int = 32,
        invisible_ms: int | None = 10_000,
        poll_ms: int | None = 1000,
        seconds: float | None = 30.0,
        expression: Any = None,
        broker: str = "broker-a",
        **more: Any,
    ) -> Received:
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=group),
            message_queue=v2.MessageQueue(
                topic=v2.Resource(name=topic), broker=v2.Broker(name=broker)
            ),
            filter_expression=expression or v2.FilterExpression(type=v2.FilterType.TAG),
            batch_size=most,
            **more,
        )
        if invisible_ms is not None:
            request.invisible_duration.FromMilliseconds(invisible_ms)
        if poll_ms is not None:
            request.long_polling_timeout.FromMilliseconds(poll_ms)
        parts: list[Any] = []

        async def write(part: Any) -> None:
            parts.append(part)

        await self.gateway.streams["ReceiveMessage"](self.call(seconds), request, write)
        return Received(parts)

    async def ack(self, *messages: Any, group: str = "G", topic: str = "T") -> Any:
        entries = [
            v2.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ]
        return await self.ask(
            "AckMessage",
            group=v2.Resource(name=group),
            topic=v2.Resource(name=topic),
            entries=entries,
        )

    async def change(self, handle: str, milliseconds: int, topic: str = "T") -> Any:
        request = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name="G"), topic=v2.Resource(name=topic), receipt_handle=handle
        )
        request.invisible_duration.FromMilliseconds(milliseconds)
        return await self.gateway.unary["ChangeInvisibleDuration"](self.call(), request)

    def open_telemetry(self) -> asyncio.Task[None]:
        """A Telemetry stream: `says` goes to the server, `told` is what came back."""

        async def read() -> Any:
            while (command := await self.says.get()) is not None:
                yield command

        async def write(command: Any) -> None:
            self.told.append(command)

        return asyncio.ensure_future(self.gateway.telemetry(self.call(None), read(), write))


async def create_topic(world: World, broker: Broker, name: str, kind: str, queues: int = 4) -> None:
    remote = await world.connect(broker.address)
    reply = await remote.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "attributes": f"+message.type={kind}",
        },
    )
    assert reply.code == 0, reply.remark


async def create_group(world: World, broker: Broker, name: str, **settings: Any) -> None:
    from saturnmq.protocol import fastjson

    remote = await world.connect(broker.address)
    body = fastjson.dumps({"groupName": name, **settings})
    reply = await remote.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert reply.code == 0, reply.remark


async def served(world: World, **changes: Any) -> tuple[Broker, Caller]:
    """A broker with the topic T for normal messages, and a client of its gateway."""
    broker = await world.broker(**changes)
    await world.until(lambda: broker.messaging.popping.serves)
    await create_topic(world, broker, "T", "NORMAL")
    gateway = Gateway(broker._runtime, broker, ADDRESS)
    return broker, Caller(world, gateway)


async def at_nameserver(
    world: World,
    *,
    is_proxy: bool = False,
    credentials: Credentials | None = None,
    headers: dict[str, str] | None = None,
    **changes: Any,
) -> tuple[Broker, Caller]:
    """A broker with topic T that has a gateway, and a client of its nameserver's, which has these
    credentials; `headers`: of the client."""
    machine = world.node("nameserver")
    server = NameServer(machine, machine.ip, 9876)
    await server.start()
    broker = await world.broker(nameservers=(server.address,), **changes)
    await world.until(lambda: broker.messaging.popping.serves)
    broker.offers(ADDRESS)
    await create_topic(world, broker, "T", "NORMAL")
    node = NameserverNode(machine, server, is_proxy=is_proxy, credentials=credentials)
    caller = Caller(world, Gateway(machine, node, f"{node.host}:8081"), headers=headers or {})
    async with asyncio.timeout(30):
        while not (await caller.ask("QueryRoute", topic=v2.Resource(name="T"))).message_queues:
            await asyncio.sleep(0.5)
    return broker, caller


async def two(world: World, kind: str = "NORMAL", **changes: Any) -> list[tuple[Broker, Caller]]:
    """Two brokers with topic T, and a client of each one's gateway."""
    nameserver = await world.nameserver()
    found = []
    for number in range(2):
        broker = await world.broker(
            new_disk(number + 1),
            broker_name=f"broker-{number}",
            nameservers=(nameserver,),
            **changes,
        )
        await world.until(lambda broker=broker: broker.messaging.popping.serves)
        await create_topic(world, broker, "T", kind)
        address = f"10.9.9.{number}:8081"
        broker.offers(address)
        gateway = Gateway(broker._runtime, broker, address)
        found.append((broker, Caller(world, gateway, f"client-{number}")))

    async def known() -> int:
        answer = await found[0][1].ask("QueryRoute", topic=v2.Resource(name="T"))
        return len(answer.message_queues)

    async with asyncio.timeout(30):
        while await known() < 8:
            await asyncio.sleep(0.5)
    return found


async def with_slave(
    world: World, nameserver: str, kind: str = "NORMAL", role: str = "SYNC_MASTER", **changes: Any
) -> tuple[Broker, Broker, Caller]:
    """A master with topic T, its slave, which has the master's tables and is in the route, and a
    client of the slave's gateway."""
    changes["nameservers"] = (nameserver,)
    master = await world.broker(role=role, alone=role == "SYNC_MASTER", **changes)
    await world.until(lambda: master.messaging.popping.serves)
    slave = await world.broker(
        new_disk(2),
        broker_id=1,
        role="SLAVE",
        ha_master_address=master.ha_address,
        slave_sync_ms=100,
        **changes,
    )
    await world.until(lambda: master.context.copies_in_sync() == 2)
    await create_topic(world, master, "T", kind)
    await world.until(lambda: slave.ground.context.topics.get("T"))
    caller = Caller(world, Gateway(slave._runtime, slave, "10.9.9.8:8081"), "beside")
    async with asyncio.timeout(30):
        while not await _is_in_route(slave):
            await asyncio.sleep(0.1)
    return master, slave, caller


async def _is_in_route(slave: Broker) -> bool:
    try:
        found = (await slave.find_route("T", 2)).broker(slave.broker_name)
    except TopicNotExist:
        return False
    return found is not None and slave.address in found.addresses.values()


NODES = "the owner", "another broker", "a nameserver"


async def everywhere(world: World) -> tuple[list[Broker], dict[str, Caller]]:
    """Two brokers with a topic for each type of messages, and a client of each of NODES; the owner
    is broker-0."""
    machine = world.node("nameserver")
    server = NameServer(machine, machine.ip, 9876)
    await server.start()
    brokers, callers = [], {}
    for number, name in enumerate(NODES[:2]):
        broker = await world.broker(
            new_disk(number + 1), broker_name=f"broker-{number}", nameservers=(server.address,)
        )
        await world.until(lambda broker=broker: broker.messaging.popping.serves)
        for topic in ("NORMAL", "FIFO", "DELAY", "TRANSACTION"):
            await create_topic(world, broker, topic, topic)
        address = f"10.9.9.{number}:8081"
        broker.offers(address)
        callers[name] = Caller(world, Gateway(broker._runtime, broker, address))
        brokers.append(broker)
    gateway = Gateway(machine, NameserverNode(machine, server), f"{machine.ip}:8081")
    callers[NODES[2]] = Caller(world, gateway)
    for topic in ("NORMAL", "FIFO", "DELAY", "TRANSACTION"):
        await world.until(lambda topic=topic: _are_told(server, topic))
    return brokers, callers


def _are_told(server: NameServer, topic: str) -> bool:
    try:
        return len(server.routes.route(topic).queues) == 2
    except TopicNotExist:
        return False
