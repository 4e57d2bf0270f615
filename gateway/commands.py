"""The questions of brokers to clients, as commands over Telemetry streams, and the answers.

| request of a broker | command | answer |
|---|---|---|
| CHECK_TRANSACTION_STATE 39 | recover_orphaned_transaction | the call EndTransaction |
| CONSUME_MESSAGE_DIRECTLY 309 | verify_message | verify_message_result |
| GET_CONSUMER_RUNNING_INFO 307, with stacks | print_thread_stack_trace | thread_stack_trace |

The gateway itself answers 307 without stacks. As RocketMQ's proxy it never sends
`reconnect_endpoints`, which is for clients behind a balancer: they connect to the same address
again, and none asks for a route. After a hand-over that is the wrong node as before, and a node
that ends says so by GOAWAY, to all of them. The clients' sources of August 2026 show its effects:

| client | its answer |
|---|---|
| Java to 5.2.1, Go | a flag is set that the client does not read |
| Java, newer | another connection; the stream is cancelled, and opened again after a second |
| Node | another stream; the old one has no listeners then, and if it fails the process ends |
| others | none |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import Any

from saturnmq.gateway import v2
from saturnmq.gateway.clients import Client
from saturnmq.gateway.codes import OK, Code
from saturnmq.gateway.handles import TransactionId
from saturnmq.gateway.messages import delivered
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol import properties as names
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.headers import RunningInfoHeader
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    ConnectionLost,
    MalformedFrame,
    NoPermission,
    SaturnError,
    SystemError_,
    UnsupportedRequest,
)

log = logging.getLogger(__name__)

STACKS_MAX = 1 << 20  # characters of a client's stacks that are passed on
_OUTCOMES = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
"""The answers to verify_message, as RocketMQ's proxy tells them."""

_ANSWERS = ("thread_stack_trace", "verify_message_result", "verify_message_command")
"""The last one is how Node.js's client says that it verifies no messages."""


class Commands:
    """The questions that clients have not answered yet. Loop thread only."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._nonces = count(1)
        self._waiting: dict[str, tuple[Client, asyncio.Future[Any]]] = {}

    def told(self, client: Client, command: Command) -> None:
        """The broker tells a client something."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            try:
                self.tell(client, recovery(command))
            except SaturnError as error:
                log.warning("a question about a transaction cannot be sent on: %s", error)

    def tell(self, client: Client, command: Any) -> None:
        """Send a command without waiting for it to be sent."""
        self._runtime.spawn(_told(client, command), name="telemetry")

    async def asked(self, client: Client, command: Command) -> Command:
        """The client's answer to a request of the broker. SaturnError: it gives none."""
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return command.reply(0, body=await self._running_info(client, command))
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return command.reply(0, body=await self._verified(client, command))
        raise UnsupportedRequest(f"a client of gRPC answers no request {command.code}")

    def answered(self, client: Client, answer: Any) -> None:
        """A client sent a command that is no settings."""
        kind = answer.WhichOneof("command")
        if kind not in _ANSWERS:
            return
        asked, waiting = self._waiting.get(getattr(answer, kind).nonce, (None, None))
        if asked is client and waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _ask(self, client: Client, command: Callable[[str], Any]) -> Any:
        """The client's answer to the command with this nonce."""
        nonce, waiting = str(next(self._nonces)), self._runtime.create_future()
        self._waiting[nonce] = client, waiting
        try:
            if not await client.tell(command(nonce)):
                raise SystemError_(f"{client.client_id} has no Telemetry stream at this node")
            await asyncio.wait((waiting, client.gone), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ConnectionLost(f"{client.client_id} has ended before it answered")
            return waiting.result()
        finally:
            del self._waiting[nonce]

    async def _running_info(self, client: Client, command: Command) -> bytes:
        info = client.running_info()
        if RunningInfoHeader.decode(command.ext).stacks:
            answer = await self._ask(
                client,
                lambda nonce: v2.TelemetryCommand(
                    status=OK,
                    print_thread_stack_trace_command=v2.PrintThreadStackTraceCommand(nonce=nonce),
                ),
            )
            _check(answer)
            info["jstack"] = answer.thread_stack_trace.thread_stack_trace[:STACKS_MAX]
        return fastjson.dumps(info)

    async def _verified(self, client: Client, command: Command) -> bytes:
        found = _only_message(command, checked.text(command.ext, "brokerName", ""))
        topic = found.properties.get(names.RETRY_TOPIC) or found.topic
        message = delivered(found, v2.Resource(name=topic), None)
        begun = self._runtime.monotonic()
        answer = await self._ask(
            client,
            lambda nonce: v2.TelemetryCommand(
                status=OK,
                verify_message_command=v2.VerifyMessageCommand(nonce=nonce, message=message),
            ),
        )
        outcome = _OUTCOMES.get(answer.status.code or Code.OK)
        if outcome is None:
            _check(answer)
        return fastjson.dumps(
            {
                "order": False,
                "autoCommit": True,
                "consumeResult": outcome,
                "remark": "from a client of gRPC",
                "spentTimeMills": int((self._runtime.monotonic() - begun) * 1000),
            }
        )


def _check(answer: Any) -> None:
    """SaturnError: the client says that it does not do this."""
    code, why = answer.status.code or Code.OK, answer.status.message[:1000]
    if code == Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
        raise NoPermission(f"the client verifies no messages that are in order: {why}")
    if code != Code.OK:
        raise SystemError_(f"the client answers {code}: {why}")


async def _told(client: Client, command: Any) -> None:
    try:
        await client.tell(command)
    except Exception as error:  # whatever the door raises: the stream has ended
        log.info("client %s was not told: %r", client.client_id, error)


def _only_message(command: Command, broker: str = "") -> ReceivedMessage:
    """MalformedFrame: the broker's own request is wrong."""
    found = decode_frames(bytes(command.body), False, broker)
    if len(found) != 1:
        raise MalformedFrame(f"it has {len(found)} messages, not 1")
    return found[0]


def recovery(command: Command) -> Any:
    """The question how a transaction ended. MalformedFrame: the broker's own is wrong."""
    message, ext = _only_message(command), command.ext
    transaction = TransactionId(
        message.message_id,
        checked.integer(ext, "tranStateTableOffset"),
        checked.integer(ext, "commitLogOffset"),
        checked.text(ext, "bname"),
    )
    question = v2.RecoverOrphanedTransactionCommand(
        message=delivered(message, v2.Resource(name=message.topic), None),
        transaction_id=str(transaction),
    )
    return v2.TelemetryCommand(status=OK, recover_orphaned_transaction_command=question)
