"""The gateway of one node: its parts, and the calls that each of them serves. `http2/` puts it on
gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.gateway import health, reflection, v2
from saturnmq.gateway.addresses import Addresses
from saturnmq.gateway.announcing import Announcing
from saturnmq.gateway.asking import Asking
from saturnmq.gateway.callers import PRESENT, Signatory, caller_of
from saturnmq.gateway.calls import (
    REQUEST_ID,
    CallFailed,
    Dialogue,
    GrpcCall,
    GrpcStatus,
    Read,
    Service,
    Stream,
    Unary,
    Write,
)
from saturnmq.gateway.clients import Client, Clients
from saturnmq.gateway.codes import Code, failure, status
from saturnmq.gateway.commands import Commands
from saturnmq.gateway.descriptors import Rpc
from saturnmq.gateway.membership import MemberCalls
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.peers import Peers
from saturnmq.gateway.pulling import Pulling
from saturnmq.gateway.receiving import Receiving
from saturnmq.gateway.sending import Sending
from saturnmq.gateway.settings import no_lite_topics
from saturnmq.gateway.topics import Directory
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SaturnError
from saturnmq.runtime.turns import Turns

log = logging.getLogger(__name__)

SWEEP_S = 5.0
GOOD = frozenset({Code.OK, Code.MESSAGE_NOT_FOUND})
"""The codes of calls that did what they should: nothing may have come to be received."""
Check = Callable[[], Awaitable[None]]
"""AccessDenied: the caller of the present call is not known."""
UNAVAILABLE = frozenset({Code.TOO_MANY_REQUESTS, Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT})


class Gateway:
    """All calls of the API, by name: `unary`, `streams` of answers, and `telemetry`; `services` has
    those beside it, too."""

    def __init__(
        self, runtime: Runtime, node: GatewayNode, address: str, turns: Turns | None = None
    ) -> None:
        """`address`: its own, as clients are told; `turns`: those of the node's connections."""
        self._runtime = runtime
        turns = turns or Turns(runtime)
        sign = Signatory(node.credentials).sign
        self._peers = Peers(
            runtime, lambda _, command: self._announcing.asked(command), sign, turns
        )
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
        self.telemetry = talked(
            v2.RPCS["Telemetry"], self._members.telemetry, directory.check_caller
        )
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
            "SyncLiteSubscription": sync_lite_subscription,
        }
        check, rpcs = directory.check_caller, v2.RPCS
        self.unary = {name: answered(rpcs[name], serve, check) for name, serve in served.items()}
        self.streams = {name: streamed(rpcs[name], serve, check) for name, serve in streams.items()}
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


async def sync_lite_subscription(*_: Any) -> Any:
    raise no_lite_topics()


def status_of(error: Exception, call: GrpcCall, name: str) -> Any:
    """The status of a call that ended with this error."""
    if isinstance(error, SaturnError):
        return failure(error)
    log.exception("call %s failed, request %s", name, call.request_id or "-", exc_info=error)
    return status(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def told(call: GrpcCall, name: str, *statuses: Any) -> None:
    """Put the caller's name of the call into what it is told of failures, and into the log, so that
    the two can be found by one another."""
    for each in statuses:
        if each.code not in GOOD:
            request_id = call.request_id
            log.debug("%s, request %s: %s %s", name, request_id or "-", each.code, each.message)
            if request_id:
                each.message += f" ({REQUEST_ID} {request_id})"


def answered(rpc: Rpc, serve: Unary, check: Check) -> Unary:
    """The call of a caller that passes the check, with errors as answers."""

    async def answer(call: GrpcCall, request: Any) -> Any:
        PRESENT.set(caller_of(call))
        try:
            await check()
            found = await serve(call, request)
        except Exception as error:
            found = rpc.response(status=status_of(error, call, rpc.name))
        if found.status.code != Code.OK:
            entries = getattr(found, "entries", ())
            told(call, rpc.name, found.status, *(entry.status for entry in entries))
        return found

    return answer


def streamed(rpc: Rpc, serve: Stream, check: Check) -> Stream:
    """The same, with an error as its last answer."""

    async def answer(call: GrpcCall, request: Any, write: Write) -> None:
        PRESENT.set(caller_of(call))

        async def tell(part: Any) -> None:
            if part.WhichOneof("content") == "status":
                told(call, rpc.name, part.status)
            await write(part)

        try:
            await check()
            await serve(call, request, tell)
        except Exception as error:
            await tell(rpc.response(status=status_of(error, call, rpc.name)))

    return answer


def talked(rpc: Rpc, serve: Dialogue, check: Check) -> Dialogue:
    """The same, with an error as its last answer and as its end: Node's client reads the first,
    others wait until they hear of the second."""

    async def answer(call: GrpcCall, read: Read, write: Write) -> None:
        PRESENT.set(caller_of(call))
        try:
            await check()
            await serve(call, read, write)
        except Exception as error:
            found = status_of(error, call, rpc.name)
            told(call, rpc.name, found)
            await write(rpc.response(status=found))
            raise CallFailed(_grpc_status(found.code), found.message) from error

    return answer


def _grpc_status(code: int) -> GrpcStatus:
    """gRPC's own status for a call that ends with this code."""
    if code in UNAVAILABLE:
        return GrpcStatus.UNAVAILABLE
    if code == Code.NOT_IMPLEMENTED:
        return GrpcStatus.UNIMPLEMENTED
    return GrpcStatus.INVALID_ARGUMENT if 40000 <= code < 50000 else GrpcStatus.INTERNAL
