"""The traces of one client: records of its messages, sent to the topic of traces.

Producers and consumers add records on any thread; a task on the loop sends them, many in one
message, found by the ids and keys in its KEYS (protocol/trace.py). Traces never hold up what they
are about: when too many wait, or a broker does not take them, they are dropped and counted.

A client without traces has no Tracer and does nothing of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from typing import Literal

from saturnmq.client.core import ClientCore
from saturnmq.client.single_send import single_send
from saturnmq.protocol.codes import STORED
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY, WAIT
from saturnmq.protocol.topics import AUTO_CREATE_TOPIC, GROUP_BYTES_MAX, TRACE_TOPIC, check_topic
from saturnmq.protocol.trace import TraceRecord, bodies_of
from saturnmq.runtime.errors import RouteNotFound, SaturnError

log = logging.getLogger(__name__)

WAITING_MOST = 65_536  # records
FLUSH_S = 1.0
TOGETHER = 256  # records that are encoded without a pause of the loop
BODY_MOST = 128_000  # bytes, as in RocketMQ
KEYS_MOST = 16_000  # bytes; a message has at most 32,767 of properties
SEND_S = 5.0
END_S = 1.0  # at least, even if the client ends at once
TELL_EVERY_S = 60.0
GROUP_PREFIX = "_INNER_TRACE_PRODUCER-"

Trace = bool | str
"""An option of clients: whether to trace, or the topic to trace to."""


def topic_of(trace: Trace) -> str:
    """The topic of traces that the option names; InvalidParameter: it cannot be a topic."""
    return check_topic(trace if isinstance(trace, str) else TRACE_TOPIC)


class Tracer:
    """Collects the records of one producer or consumer, and sends them. `add` may be called on any
    thread, the rest on the loop's."""

    def __init__(
        self, core: ClientCore, group: str, role: Literal["PUB", "SUB"], topic: str
    ) -> None:
        self.topic = topic
        self.group = group
        self.dropped = 0
        self.now_ms = core.runtime.now_ms
        self._core = core
        self._sender = f"{GROUP_PREFIX}{group}"[: GROUP_BYTES_MAX - 6] + f"-{role}-1"
        self._calls = itertools.count()  # one step of C: threads share it
        self._head = f"{core.runtime.random.getrandbits(96):024X}"
        self._waiting: deque[TraceRecord] = deque()
        self._turn = core.runtime.random.randrange(1 << 16)
        self._told_at = -TELL_EVERY_S
        self._told = 0
        self._ids: UniqueIds | None = None
        self._task: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()

    def begin(self) -> None:
        """Send what is added from now on; the core is started. Again: no difference."""
        if self._task is not None:
            return
        core, runtime = self._core, self._core.runtime
        self._ids = UniqueIds(runtime, core.local_ip, core.pid, salt=runtime.random.getrandbits(32))
        self._task = core.tasks.keep(self._run, name=f"traces of {self.group}")

    def add(self, record: TraceRecord) -> None:
        """Have `record` sent soon; dropped if too many wait. Any thread."""
        if len(self._waiting) >= WAITING_MOST:
            self.dropped += 1
        else:
            self._waiting.append(record)

    def request_id(self) -> str:
        """An id for one call of a listener. Any thread."""
        return f"{self._head}{next(self._calls) & 0xFFFFFFFF:08X}"

    async def close(self, seconds: float = SEND_S) -> None:
        """Send what waits, for so many seconds at most."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async with self._sending:  # records on their way are not cancelled with it
                    self._task.cancel()
                while self._waiting:
                    await self._send_some()
        self._task.cancel()
        self._drop(len(self._waiting), "the client was closed")
        self._waiting.clear()

    async def _run(self) -> None:
        while True:
            await self._core.runtime.sleep(FLUSH_S)
            while self._waiting:
                await self._send_some()
            self._tell()

    async def _send_some(self) -> None:
        async with self._sending:
            waiting = self._waiting
            records = [waiting.popleft() for _ in range(min(TOGETHER, len(waiting)))]
            for keys, text, count in bodies_of(records, body_most=BODY_MOST, keys_most=KEYS_MOST):
                try:
                    await self._send(keys, text.encode())
                except SaturnError as error:
                    self._drop(count, error)
                except asyncio.CancelledError:
                    self._drop(count, "the client was closed")
                    raise

    def _drop(self, count: int, why: object) -> None:
        self.dropped += count
        if count:
            log.debug("group %s: %d traces dropped: %s", self.group, count, why)

    def _tell(self) -> None:
        now, dropped = self._core.runtime.monotonic(), self.dropped
        if dropped > self._told and now - self._told_at >= TELL_EVERY_S:
            log.warning("group %s: %d traces dropped", self.group, dropped - self._told)
            self._told, self._told_at = dropped, now

    async def _send(self, keys: list[str], body: bytes) -> None:
        core = self._core
        await core.route(self.topic, create=True)
        led = [
            (queue, address)
            for queue in core.publish_queues(self.topic)
            if (address := core.broker_address(queue.broker_name)) is not None
        ]
        if not led:
            core.refresh_soon(self.topic)
            raise RouteNotFound(f"topic {self.topic} has no master that takes traces now")
        assert self._ids is not None, "begin() is called first"
        self._turn += 1
        queue, address = led[self._turn % len(led)]
        properties = {
            UNIQ_KEY: self._ids.next(),
            WAIT: "true",
            KEYS: KEY_SEPARATOR.join(keys),
        }
        command = single_send(
            queue,
            self._sender,
            body,
            properties,
            born_ms=core.runtime.now_ms(),
            template=AUTO_CREATE_TOPIC,
            template_queues=core.default_topic_queues,
        )
        try:
            await core.invoke(address, command, SEND_S, STORED)
        except SaturnError:
            core.refresh_soon(self.topic)
            raise


__all__ = ["Trace", "Tracer", "topic_of"]
