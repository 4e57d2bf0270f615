"""The gateway of one node: its parts, and the calls that each of them serves. `http2/` puts it on
gRPC."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from saturnmq.gateway import health, reflection, v2
from saturnmq.gateway.addresses import Addresses
from saturnmq.gateway.announcing import Announcing
from saturnmq.gateway.asking import Asking
from saturnmq.gateway.calls import GrpcCall, Service, Stream, Unary, Write
from saturnmq.gateway.clients import Client, Clients
from saturnmq.gateway.codes import CallRefused, Code, failure, status
from saturnmq.gateway.commands import Commands
from saturnmq.gateway.descriptors import Rpc
from saturnmq.gateway.membership import MemberCalls
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.peers import Peers
from saturnmq.gateway.pulling import Pulling
from saturnmq.gateway.receiving import Receiving
from saturnmq.gateway.sending import Sending
from saturnmq.gateway.topics import Directory
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SaturnError

log = logging.getLogger(__name__)

SWEEP_S = 5.0


class Gateway:
    """All calls of the API, by name: `unary`, `streams` of answers, and `telemetry`; `services` has
    those beside it, too."""

    def __init__(self, runtime: Runtime, node: GatewayNode, address: str) -> None:
        """`address`: its own, as clients are told."""
        self._runtime = runtime
        self._peers = Peers(runtime, lambda _, command: self._announcing.asked(command))
        commands = Commands(runtime)
        self._clients = Clients(runtime, node, commands, self._gone)
        directory = Directory(runtime, node, self._peers)
        asking = Asking(node, self._peers, directory)
        addresses = Addresses(runtime, node, self._peers, address)
        self._members = MemberCalls(runtime, node, self._clients, commands, directory, addresses)
        self._announcing = Announcing(
            runtime, node, address, self._clients, commands, directory, self._peers
        )
        sending = Sending(runtime, node, self._clients, asking, directory)
        self._receiving = Receiving(runtime, node, self._clients, asking, directory)
        self.telemetry = self._members.telemetry
        pulling = Pulling(runtime, node, self._clients, asking, directory)
        streams: dict[str, Stream] = {
            "ReceiveMessage": self._receiving.receive,
            "PullMessage": pulling.pull,
        }
        served: dict[str, Unary] = {
            "QueryRoute": self._members.query_route,
            "QueryAssignment": self._members.query_assignment,
            "Heartbeat": self._members.heartbeat,
            "NotifyClientTermination": self._members.terminate,
            "SendMessage": sending.send,
            "EndTransaction": sending.end_transaction,
            "RecallMessage": sending.recall,
            "AckMessage": self._receiving.ack,
            "ChangeInvisibleDuration": self._receiving.change,
            "ForwardMessageToDeadLetterQueue": self._receiving.to_dead_letters,
            "UpdateOffset": pulling.update,
            "GetOffset": pulling.get,
            "QueryOffset": pulling.query,
            "SyncLiteSubscription": no_lite_topics,
        }
        self.unary = {name: answered(v2.RPCS[name], serve) for name, serve in served.items()}
        self.streams = {name: streamed(v2.RPCS[name], serve) for name, serve in streams.items()}
        api = Service(v2.SERVICE, self.unary, self.streams, {"Telemetry": self.telemetry})
        self.health = health.Health(runtime, [v2.SERVICE])
        names = (v2.SERVICE, health.SERVICE)
        self.services = [api, self.health.service, *reflection.services(names)]
        self._tasks = [
            runtime.spawn(self._sweep(), name="gateway-sweep"),
            runtime.spawn(self._receiving.renewals.run(), name="gateway-renewals"),
            runtime.spawn(self._announcing.run(), name="gateway-announcing"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._peers.close()

    async def _sweep(self) -> None:
        while True:
            await self._runtime.sleep(SWEEP_S)
            self._clients.sweep()

    def _gone(self, client: Client) -> None:
        log.debug("client %s has gone", client.client_id)
        self._receiving.renewals.gone(client)


async def no_lite_topics(*_: Any) -> Any:
    raise CallRefused(
        Code.NOT_IMPLEMENTED, "there are no lite topics here: use a push or a simple consumer"
    )


def status_of(error: Exception, name: str) -> Any:
    """The status of a call that ended with this error."""
    if isinstance(error, SaturnError):
        return failure(error)
    log.exception("call %s failed", name, exc_info=error)
    return status(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def answered(rpc: Rpc, serve: Unary) -> Unary:
    """The call, with errors as answers."""

    async def answer(call: GrpcCall, request: Any) -> Any:
        try:
            return await serve(call, request)
        except Exception as error:
            return rpc.response(status=status_of(error, rpc.name))

    return answer


def streamed(rpc: Rpc, serve: Stream) -> Stream:
    """The call, with an error as its last answer."""

    async def answer(call: GrpcCall, request: Any, write: Write) -> None:
        try:
            await serve(call, request, write)
        except Exception as error:
            await write(rpc.response(status=status_of(error, rpc.name)))

    return answer
