"""Calling the user's listener: sync ones in worker threads, async ones on the loop, many messages
per hop.

A hop to a thread costs some tens of microseconds, so a worker gets a run of messages and calls the
listener slice by slice. How long the run is, and how many runs may be under way, follows from how
fast the listener proved to be. A fast one computes: it gets one thread, because more would only
pass Python's lock about, and runs of about 2 ms, because the loop gets the lock for certain when
the worker comes back for more, and after a switch interval (5 ms) otherwise. A slow one waits for
something: it gets one slice at a time, so that many threads can share its queue.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

from saturnmq.client.results import ConsumeResult
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.runtime import Runtime, Workers

log = logging.getLogger(__name__)

RUN_S = 0.002
RUN_MOST = 8192
# Threads for a listener of at most so many seconds per message; a slower one gets all there are.
THREADS_FOR = ((5e-6, 1), (50e-6, 2))

RETRY, SUSPEND = ConsumeResult.RETRY, ConsumeResult.SUSPEND

Messages = Sequence[ReceivedMessage]
Listener = Callable[[list[ReceivedMessage]], Any]
OneListener = Callable[[ReceivedMessage], Any]


class Run(Protocol):
    """What a run under way is asked before every slice, from the worker's thread."""

    @property
    def dropped(self) -> bool: ...


class Caller:
    """The listener of one consumer and its pace."""

    def __init__(self, runtime: Runtime, batch_size: int, threads: int) -> None:
        if batch_size < 1 or threads < 1:
            raise ConfigError(
                f"consume_message_batch_max_size {batch_size} and consume_threads {threads} "
                "must be at least 1"
            )
        self._runtime = runtime
        self._workers: Workers | None = None
        self._many: Listener | None = None
        self._one: OneListener | None = None
        self.batch_size = batch_size
        self.threads = threads
        self._is_async = False
        # Messages and the seconds they took, older ones weighing less.
        self._handled = self._took = 0.0

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
    def pace(self) -> float:
        """Seconds per message; 0 while it is not known."""
        return self._took / self._handled if self._handled else 0.0

    @property
    def run_length(self) -> int:
        """How many messages to hand over at once: whole slices."""
        size, pace = self.batch_size, self.pace
        if pace <= 0.0:
            return size
        wanted = min(RUN_MOST, int(RUN_S / pace))
        return max(size, wanted - wanted % size)

    @property
    def parallel(self) -> int:
        """How many runs may be under way."""
        pace = self.pace
        if pace > 0.0 and not self._is_async:
            for seconds, threads in THREADS_FOR:
                if pace <= seconds:
                    return min(threads, self.threads)
        return self.threads

    def stalled(self) -> None:
        """A run takes far longer than the pace says: what was known of it is void."""
        self._handled = self._took = 0.0

    def close(self) -> None:
        """No further run will come."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    async def run(
        self,
        messages: Messages,
        run: Run,
        go_on: Callable[[], bool] | None = None,
        *,
        stop_at_failure: bool = False,
    ) -> tuple[int, list[ReceivedMessage]]:
        """(how many were handled, the failed ones among them).

        It ends early when `run` is dropped or `go_on`, asked before every slice, says no; with
        `stop_at_failure` the first failed slice ends it and is not counted as handled.
        """
        if self._is_async:
            outcome = await self._run_async(messages, run, go_on, stop_at_failure)
        else:
            if self._workers is None:
                self._workers = self._runtime.workers(self.threads, name="saturnmq-listener")
            work = self._each if self._one is not None else self._slices
            outcome = await self._workers.run(work, messages, run, go_on, stop_at_failure)
        handled, failed, took = outcome
        if handled:
            self._handled = 0.7 * self._handled + handled
            self._took = 0.7 * self._took + max(took, 1e-9)
        return handled, failed

    def _each(
        self, messages: Messages, run: Run, go_on: Callable[[], bool] | None, stop_at_failure: bool
    ) -> tuple[int, list[ReceivedMessage], float]:
        """The run of a listener that takes single messages; every line in it counts."""
        began = self._runtime.monotonic()
        listener = cast(OneListener, self._one)
        handled = 0
        failed: list[ReceivedMessage] = []
        for message in messages:
            if run.dropped or (go_on is not None and not go_on()):
                break
            try:
                result = listener(message)
            except Exception:
                log.exception("the listener failed on %s", message)
                result = RETRY
            if result is RETRY or result is SUSPEND:
                failed.append(message)
                if stop_at_failure:
                    break
            handled += 1
        return handled, failed, self._runtime.monotonic() - began

    def _slices(
        self, messages: Messages, run: Run, go_on: Callable[[], bool] | None, stop_at_failure: bool
    ) -> tuple[int, list[ReceivedMessage], float]:
        began = self._runtime.monotonic()
        listener = cast(Listener, self._many)
        handled = 0
        failed: list[ReceivedMessage] = []
        for start in range(0, len(messages), self.batch_size):
            if run.dropped or (go_on is not None and not go_on()):
                break
            # A list of its own: the listener may do with it what it likes.
            batch = list(messages[start : start + self.batch_size])
            try:
                result = listener(batch)
            except Exception:
                log.exception(
                    "the listener failed on %d messages from %s", len(batch), messages[start]
                )
                result = RETRY
            if result is RETRY or result is SUSPEND:
                failed.extend(messages[start : start + self.batch_size])
                if stop_at_failure:
                    break
            handled = min(len(messages), start + self.batch_size)
        return handled, failed, self._runtime.monotonic() - began

    async def _run_async(
        self, messages: Messages, run: Run, go_on: Callable[[], bool] | None, stop_at_failure: bool
    ) -> tuple[int, list[ReceivedMessage], float]:
        began = self._runtime.monotonic()
        handled = 0
        failed: list[ReceivedMessage] = []
        for start in range(0, len(messages), self.batch_size):
            if run.dropped or (go_on is not None and not go_on()):
                break
            batch = list(messages[start : start + self.batch_size])
            try:
                call = self._one(batch[0]) if self._one is not None else self._call_many(batch)
                result = await cast(Awaitable[object], call)
            except Exception:
                log.exception(
                    "the listener failed on %d messages from %s", len(batch), messages[start]
                )
                result = RETRY
            if result is RETRY or result is SUSPEND:
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
