"""Calling the user's listener: sync ones in worker threads, async ones on the loop, many messages
per hop.

A hop to a thread costs some tens of microseconds, so a worker gets a run of messages and calls the
listener slice by slice. How long the run is follows from how fast the listener proved to be: about
20 ms of work, and one slice at a time for a slow one, so that many threads can share its queue.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from saturnmq.client.results import ConsumeResult
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.runtime import Runtime

log = logging.getLogger(__name__)

RUN_S = 0.02
RUN_MOST = 8192
# Faster than this a listener computes rather than waits, and Python threads only pass the lock
# about.
COMPUTING_S = 50e-6
COMPUTING_THREADS = 2


RETRIES = (ConsumeResult.RETRY, ConsumeResult.SUSPEND)

Messages = Sequence[ReceivedMessage]
Listener = Callable[[list[ReceivedMessage]], Any]
OneListener = Callable[[ReceivedMessage], Any]


class Caller:
    """The listener of one consumer and its pace."""

    def __init__(self, runtime: Runtime, batch_size: int, threads: int) -> None:
        if batch_size < 1 or threads < 1:
            raise ConfigError(
                f"consume_message_batch_max_size {batch_size} and consume_threads {threads} "
                "must be at least 1"
            )
        self._runtime = runtime
        self._many: Listener | None = None
        self._one: OneListener | None = None
        self.batch_size = batch_size
        self._threads = threads
        self._is_async = False
        self._pace = 0.0  # seconds per message, smoothed; 0 = not known

    def set(self, listener: Listener | None, listener_one: OneListener | None) -> None:
        """The listener to call: `listener` with a list, or `listener_one` with each message."""
        if (listener is None) == (listener_one is None):
            raise ConfigError("give either listener (gets a list) or listener_one (gets a message)")
        if self.ready and (self._many, self._one) != (listener, listener_one):
            raise ConfigError("the consumer has a listener; use another consumer for another one")
        self._many, self._one = listener, listener_one
        if listener_one is not None:
            self.batch_size = 1
        self._is_async = _is_async(listener or listener_one)

    @property
    def ready(self) -> bool:
        """Whether a listener was given."""
        return self._many is not None or self._one is not None

    @property
    def run_length(self) -> int:
        """How many messages to hand over at once: whole slices."""
        size = self.batch_size
        if self._pace <= 0.0:
            return size
        wanted = min(RUN_MOST, int(RUN_S / self._pace))
        return max(size, wanted - wanted % size)

    @property
    def parallel(self) -> int:
        """How many runs may be under way."""
        if self._is_async or self._pace == 0.0 or self._pace > COMPUTING_S:
            return self._threads
        return min(self._threads, COMPUTING_THREADS)

    async def run(
        self, messages: Messages, go_on: Callable[[], bool], *, stop_at_failure: bool = False
    ) -> tuple[int, list[ReceivedMessage]]:
        """(how many were handled, the failed ones among them).

        Before every slice `go_on` is asked (from a worker thread for a sync listener); with
        `stop_at_failure` the first failed slice ends the run and is not counted as handled.
        """
        if self._is_async:
            outcome = await self._run_async(messages, go_on, stop_at_failure)
        else:
            outcome = await self._runtime.run_blocking(
                self._run_sync, messages, go_on, stop_at_failure
            )
        handled, failed, took = outcome
        if handled:
            pace = took / handled
            self._pace = pace if self._pace == 0.0 else 0.7 * self._pace + 0.3 * pace
            self._pace = max(self._pace, 1e-9)
        return handled, failed

    def _run_sync(
        self, messages: Messages, go_on: Callable[[], bool], stop_at_failure: bool
    ) -> tuple[int, list[ReceivedMessage], float]:
        began = self._runtime.monotonic()
        handled = 0
        failed: list[ReceivedMessage] = []
        if self._one is not None:
            listener_one = self._one
            for message in messages:
                try:
                    if not go_on():
                        break
                    if listener_one(message) in RETRIES:
                        failed.append(message)
                except Exception:
                    log.exception("the listener failed on %s", message)
                    failed.append(message)
                if failed and stop_at_failure:
                    break
                handled += 1
            return handled, failed, self._runtime.monotonic() - began
        listener = cast(Listener, self._many)
        for start in range(0, len(messages), self.batch_size):
            if not go_on():
                break
            batch = list(messages[start : start + self.batch_size])
            try:
                bad = listener(batch) in RETRIES
            except Exception:
                log.exception("the listener failed on %d messages from %s", len(batch), batch[0])
                bad = True
            if bad:
                failed.extend(messages[start : start + self.batch_size])
                if stop_at_failure:
                    break
            handled = min(len(messages), start + self.batch_size)
        return handled, failed, self._runtime.monotonic() - began

    async def _run_async(
        self, messages: Messages, go_on: Callable[[], bool], stop_at_failure: bool
    ) -> tuple[int, list[ReceivedMessage], float]:
        began = self._runtime.monotonic()
        handled = 0
        failed: list[ReceivedMessage] = []
        for start in range(0, len(messages), self.batch_size):
            if not go_on():
                break
            batch = list(messages[start : start + self.batch_size])
            try:
                call = self._one(batch[0]) if self._one is not None else self._call_many(batch)
                result = await cast(Awaitable[object], call)
                bad = result in RETRIES
            except Exception:
                log.exception("the listener failed on %d messages from %s", len(batch), batch[0])
                bad = True
            if bad:
                failed.extend(messages[start : start + self.batch_size])
                if stop_at_failure:
                    break
            handled = min(len(messages), start + self.batch_size)
        return handled, failed, self._runtime.monotonic() - began

    def _call_many(self, batch: list[ReceivedMessage]) -> object:
        return cast(Listener, self._many)(batch)


def _is_async(listener: object) -> bool:
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004 - an object with an async __call__
    )
