"""Offsets of a pull consumer that the application keeps itself: in its database, beside the results
of the messages, so that both are written together or not at all.

The brokers learn nothing of them: tools show no lag of the group, and an operator's reset moves
only consumers that are online.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from saturnmq.client.consumer.offset_store import WrittenOffsets
from saturnmq.client.core import ClientCore
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.namespaces import Namespace
from saturnmq.runtime.errors import InvalidParameter, OffsetsNotSaved


class OwnOffsetStore(Protocol):
    """The interface of an `offset_store`. `async` methods run on the client's loop, others
    in a thread; calls of one consumer's `save` never overlap."""

    def load(self, queue: MessageQueue) -> int | Awaitable[int | None] | None:
        """The offset of the next message to consume; None if the queue was never consumed."""

    def save(self, offsets: Mapping[MessageQueue, int]) -> Awaitable[None] | None:
        """Keep these offsets; the others stay as they are."""


class OwnOffsets(WrittenOffsets):
    """The table of offsets over the application's store."""

    def __init__(
        self, core: ClientCore, group: str, store: OwnOffsetStore, namespace: Namespace
    ) -> None:
        super().__init__(core)
        self._group = group
        self._store = store
        self._namespace = namespace

    async def load(
        self, queue: MessageQueue, *, stored_only: bool = False, begins: bool = False
    ) -> int | None:
        """The offset in the application's store; whatever that raises is raised."""
        offset = await self._call(self._store.load, self._namespace.plain_queue(queue))
        if offset is not None and (not isinstance(offset, int) or offset < 0):
            raise InvalidParameter(
                f"offset_store.load says {offset!r} for {queue}: it must say an offset from 0 on, "
                "or None"
            )
        return offset

    async def _write(self, queues: set[MessageQueue]) -> OffsetsNotSaved | None:
        """Have the application save these offsets."""
        changed = {queue: self.offsets[queue] for queue in sorted(queues)}
        self.dirty -= changed.keys()
        try:
            named = {self._namespace.plain_queue(each): at for each, at in changed.items()}
            await self._call(self._store.save, named)
        except BaseException as error:  # SystemExit, too: it would end the loop
            self.dirty |= changed.keys() & self.offsets.keys()
            if isinstance(error, asyncio.CancelledError):  # by the end of the loop
                raise
            failed = OffsetsNotSaved(
                f"group {self._group}: offset_store.save failed: {error!r}; "
                f"{len(changed)} offsets are saved later, or their messages come again"
            )
            failed.__cause__ = error
            return failed
        return None

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        result = await self._core.runtime.run_blocking(function, *args)
        return await result if inspect.isawaitable(result) else result
