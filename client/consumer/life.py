"""The start and the end of a consumer, which the application may cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from saturnmq.client.consumer.listening import CALLING, Caller
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import ClientClosed


class Life:
    """A start that fails or is cancelled begins anew with the next call. The end goes on to its end
    when its caller is cancelled, or the consumer would stay a member of its group that reads
    nothing; whoever closes it again waits for that."""

    def __init__(self, runtime: Runtime, caller: Caller | None = None) -> None:
        """`caller` calls the consumer's listener, if it has one."""
        self._runtime = runtime
        self._caller = caller
        self._end: asyncio.Task[None] | None = None
        self.started = False
        self.closing = False

    @property
    def runs(self) -> bool:
        """Whether it was started, and its end has not begun."""
        return self.started and not self.closing

    async def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, unless that was done or is under way. ClientClosed: its end has begun."""
        if self.closing:
            raise ClientClosed("the consumer is closed; make a new one")
        if self.started:
            return
        self.started = True
        try:
            await work()
        except BaseException:
            self.started = False
            raise

    async def close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work`, once. A listener that asks for it does not wait: `work` waits for the
        listener."""
        if self._end is None:
            self.closing = True
            self._end = self._runtime.spawn(work(), name="close")
        if self._caller is None or CALLING.get() is not self._caller:
            await asyncio.shield(self._end)
