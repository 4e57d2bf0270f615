"""QueryRoute, QueryAssignment, Heartbeat, NotifyClientTermination and Telemetry.

A Telemetry stream is answered with settings whenever the client sends its own, and once more a
moment after the first time: Node.js's client may not wait yet when the first answer comes. Over it
the client is asked, too (commands.py). The server ends it only when the client has said that it
ends, which Java's client waits for, or was silent for too long (Clients.sweep). Node.js's client
ends it by itself, and takes an end that comes before as a loss: it opens a stream again, and its
process never ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

from saturnmq.gateway import v2
from saturnmq.gateway.addresses import Addresses
from saturnmq.gateway.calls import GrpcCall, Read, Write
from saturnmq.gateway.checks import group_of, topic_of
from saturnmq.gateway.clients import NODE, Client, Clients
from saturnmq.gateway.codes import OK
from saturnmq.gateway.commands import Commands
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.routes import assignments, is_read_only, message_queues
from saturnmq.gateway.settings import CONSUMERS, check_client_type, completed
from saturnmq.gateway.topics import Directory, GroupFacts
from saturnmq.runtime.door import Runtime

AGAIN_S = 1.0


class MemberCalls:
    def __init__(
        self,
        runtime: Runtime,
        node: GatewayNode,
        clients: Clients,
        commands: Commands,
        directory: Directory,
        addresses: Addresses,
    ) -> None:
        self._runtime = runtime
        self._node = node
        self._clients = clients
        self._commands = commands
        self._directory = directory
        self._addresses = addresses

    # routes

    async def query_route(self, call: GrpcCall, request: Any) -> Any:
        client, topic = self._clients.of(call), topic_of(request.topic)
        await self._directory.check_access(topic)
        facts = await self._directory.topic(topic)
        endpoints_of = await self._addresses.of(
            client.language,
            request.endpoints,
            facts,
            is_secure=call.is_secure,
            is_pushed=client.is_pushed,
        )
        queues = message_queues(request.topic, facts.route, facts.types, endpoints_of)
        if not queues:  # with an empty list clients would drop the route that they have
            raise facts.lacks("read")
        if client.topics and not client.is_consumer and all(map(is_read_only, queues)):
            raise facts.lacks("written")  # Java's and Python's producers fail without such queues
        self._addresses.hold(client.language, request.endpoints, queues)
        return v2.QueryRouteResponse(status=OK, message_queues=queues)

    async def query_assignment(self, call: GrpcCall, request: Any) -> Any:
        client = self._clients.of(call)
        group = await self._directory.group(group_of(request.group))
        facts = await self._directory.topic(topic_of(request.topic))
        endpoints_of = await self._addresses.of(
            client.language, request.endpoints, facts, is_secure=call.is_secure, is_pushed=True
        )
        found = assignments(request.topic, facts.route, facts.types, endpoints_of, fifo=group.fifo)
        if not found:  # an empty list would make clients drop what they have
            raise facts.lacks("read")
        return v2.QueryAssignmentResponse(status=OK, assignments=found)

    # clients

    async def heartbeat(self, call: GrpcCall, request: Any) -> Any:
        client = self._clients.of(call)
        check_client_type(request.client_type)
        if request.client_type in CONSUMERS and not client.is_consumer:
            client.join(group_of(request.group))
        await self._clients.beat(client)
        return v2.HeartbeatResponse(status=OK)

    async def terminate(self, call: GrpcCall, _: Any) -> Any:
        self._clients.end(call)
        return v2.NotifyClientTerminationResponse(status=OK)

    # telemetry

    async def telemetry(self, call: GrpcCall, read: Read, write: Write) -> None:
        if self._clients.has_ended(call):
            return
        write = in_turn(write)
        client, first = self._clients.of(call), True
        ends_it = client.language == NODE
        end = self._runtime.create_future() if ends_it else client.left
        try:
            async for command in _until(end, read):
                await self._directory.check_caller()  # it may be known no more
                client = self._clients.of(call)  # it lives; Node's may be back, forgotten meanwhile
                client.attach(write)
                if command.WhichOneof("command") != "settings":
                    self._commands.answered(client, command)
                    continue
                answer = await self._settings(client, command.settings)
                await client.tell(answer, write)
                if first:
                    first = False
                    self._runtime.call_later(AGAIN_S, self._commands.tell, client, answer)
        finally:
            client.detach(write)

    async def _settings(self, client: Client, asked: Any) -> Any:
        """The answer to settings. CallRefused: they are those of no client."""
        client.take(asked)
        group = GroupFacts()
        if client.is_consumer:
            group = await self._directory.group(client.group)
        found = completed(asked, body_max=self._node.body_max, group=group)
        await self._clients.beat(client)
        return v2.TelemetryCommand(status=OK, settings=found)


def in_turn(write: Write) -> Write:
    """Write to one stream what several callers tell, message by message."""
    turn = asyncio.Lock()

    async def write_in_turn(message: Any) -> None:
        async with turn:
            await write(message)

    return write_in_turn


async def _until(end: asyncio.Future[None], read: Read) -> Read:
    """The messages that are read before `end` is done."""
    reading: asyncio.Task[Any] | None = None
    try:
        while not end.done():
            reading = asyncio.ensure_future(_next(read))
            await asyncio.wait((reading, end), return_when=asyncio.FIRST_COMPLETED)
            if end.done() or (found := reading.result()) is None:
                return
            yield found
    finally:
        if reading is not None:
            reading.cancel()


async def _next(read: Read) -> Any:
    """The next message; None: there is no other."""
    return await anext(read, None)
