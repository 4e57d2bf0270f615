"""Requests of servers to a client, on the connections that the client opened to them.

| code | from | what |
|---|---|---|
| 39 | broker | how did this transaction end |
| 40 | broker | the members of a group changed |
| 220 221 | broker | go on from other offsets; which are yours |
| 307 309 | broker | tell of yourself; consume this message now |
| 326 | broker | a reply to a message |
| ROUTE_CHANGED | nameserver (ours) | these topics' routes changed |

Each goes to the group it names. A request that cannot be read, or is not for a group here, is
answered with an error and changes nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SaturnError, UnsupportedRequest, error_for
from saturnmq.runtime.stacks import stacks
from saturnmq.runtime.supervision import Supervisor

TOPICS_MAX = 65_536  # that one nameserver's message says changed


class ConsumerHandler(Protocol):
    """The interface that a consumer registers under its group name."""

    def heartbeat_data(self) -> dict[str, Any]:
        """Its entry of `consumerDataSet` in the heartbeat (docs/internals/protocol.md 2.4)."""

    def on_ids_changed(self) -> None:
        """The group's members changed: rebalance at once (code 40)."""

    def running_info(self) -> dict[str, Any]:
        """ConsumerRunningInfo (code 307); mqTable is keyed by MessageQueue."""


class ConsumerRequests(Protocol):
    """Optional methods of a consumer, looked up by name."""

    def on_route_changed(self, topic: str) -> None:
        """A route has changed."""

    def on_reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Continue at `offsets` (220)."""

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        """Its offsets of `topic` (221)."""

    def consume_directly(
        self, ext: dict[str, str], frame: bytes
    ) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Hand one message to the listener now (309)."""


class ProducerRequests(Protocol):
    """Optional methods of a producer, looked up by name."""

    def check_transaction(self, ext: dict[str, str], frame: bytes, address: str) -> None:
        """The broker at `address` asks how a transaction ended (39)."""


class ServerRequests:
    """Answers for the groups of one client. Loop thread only."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Supervisor,
        address_of: Callable[[Endpoint], str],
        routes_changed: Callable[[str, list[str]], None],
    ) -> None:
        """`routes_changed` is called with the address of the nameserver and the topics."""
        self._runtime = runtime
        self._tasks = tasks
        self._address_of = address_of
        self._routes_changed = routes_changed
        self.consumers: dict[str, ConsumerHandler] = {}
        # A handler may have the methods of ProducerRequests, and on_reply(ext, body) (326).
        self.producers: dict[str, Any] = {}

    def handle(self, endpoint: Endpoint, cmd: Command) -> None:
        """Handle one request; the endpoint answers with an error that is raised."""
        ext, code = cmd.ext, cmd.code
        body = bytes(cmd.body)
        if code == RequestCode.ROUTE_CHANGED:
            topics = checked.items({"topics": fastjson.loads(body)}, "topics", TOPICS_MAX)
            self._routes_changed(
                self._address_of(endpoint), [checked.as_text(topic, "a topic") for topic in topics]
            )
        elif code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            for group, handler in list(self.consumers.items()):
                if ext.get("consumerGroup") in (None, group):
                    handler.on_ids_changed()
        elif code == RequestCode.CHECK_TRANSACTION_STATE:
            self._tell_producers("check_transaction", ext, body, self._address_of(endpoint))
        elif code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            self._tell_producers("on_reply", ext, body)
            endpoint.send(cmd.reply(), cmd)
        else:
            self._ask_consumer(endpoint, cmd, body)

    def _tell_producers(self, method: str, *args: Any) -> None:
        for handler in list(self.producers.values()):
            call = getattr(handler, method, None)
            if call is not None:
                call(*args)

    def _ask_consumer(self, endpoint: Endpoint, cmd: Command, body: bytes) -> None:
        ext, code = cmd.ext, cmd.code
        method = _CONSUMER_METHODS.get(code)
        if method is None:
            raise UnsupportedRequest(f"request type {code} not supported by this client")
        group = ext.get("consumerGroup") or ext.get("group") or ""
        consumer = self.consumers.get(group)
        answer = getattr(consumer, method, None)
        if consumer is None or answer is None:
            raise error_for(ResponseCode.SYSTEM_ERROR, f"group {group!r} does not do this here")
        topic = ext.get("topic", "")
        if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            answer(topic, offset_table(body))
            endpoint.send(cmd.reply(), cmd)
        elif code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            table = fastjson.dumps_mq_map(answer(topic))
            reply = b'{"consumerTable":{},"messageQueueTable":' + table + b"}"
            endpoint.send(cmd.reply(body=reply), cmd)
        elif code == RequestCode.GET_CONSUMER_RUNNING_INFO and ext.get("jstackEnable") != "true":
            endpoint.send(cmd.reply(body=_running_info_json(answer())), cmd)
        else:  # these take their time
            work = partial(self._consume_directly, endpoint, cmd, partial(answer, ext, body))
            if code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                work = partial(self._tell_stacks, endpoint, cmd, answer)
            self._tasks.once(
                work,
                name="answer a broker",
                failed=lambda error: endpoint.send(cmd.reply(error.code, str(error)), cmd),
            )

    async def _tell_stacks(
        self, endpoint: Endpoint, cmd: Command, running_info: Callable[[], dict[str, Any]]
    ) -> None:
        text = await self._runtime.run_blocking(stacks, list(asyncio.all_tasks()))
        reply = cmd.reply(body=_running_info_json(running_info() | {"jstack": text}))
        endpoint.send(reply, cmd)

    async def _consume_directly(
        self, endpoint: Endpoint, cmd: Command, consume: Callable[[], Any]
    ) -> None:
        try:
            result = consume()
            if inspect.isawaitable(result):
                result = await result
            reply = cmd.reply(body=fastjson.dumps(result))
        except SaturnError as error:
            reply = cmd.reply(error.code, str(error))
        endpoint.send(reply, cmd)


_CONSUMER_METHODS: dict[int, str] = {
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "on_reset_offsets",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "consumer_status",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "running_info",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consume_directly",
}


def offset_table(body: bytes) -> dict[MessageQueue, int]:
    """`{"offsetTable": {queue: offset}}`, as brokers send it (220) and answer it (222)."""
    table = checked.table(checked.document(body), "offsetTable")
    return {checked.as_queue(q): checked.as_integer(at, "an offset") for q, at in table.items()}


def _running_info_json(info: dict[str, Any]) -> bytes:
    parts = []
    for name, value in info.items():
        keyed = name in ("mqTable", "mqPopTable")
        text = fastjson.dumps_mq_map(value) if keyed else fastjson.dumps(value)
        parts.append(fastjson.dumps(name) + b":" + text)
    return b"{" + b",".join(parts) + b"}"
