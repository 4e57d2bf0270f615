"""Calling the user's listener: sync ones in worker threads, async ones on the loop, many messages
per hop.

A hop to a thread costs some tens of microseconds, so a worker gets a run of messages and calls the
listener slice by slice. The length of a run and the number of runs under way follow from the
measured speed of the listener. A fast listener computes. It gets one thread, because more would
only pass Python's lock around. Its runs last about 2 ms: the loop gets the lock for certain when
the worker comes back for more, and otherwise only after a switch interval (5 ms). A slow listener
waits for something: it gets one slice at a time, so that many threads can share its queue. A run
that takes far longer than the pace predicts loses its remaining messages (consuming.py).

A listener returns None or SUCCESS, or RETRY (SUSPEND), or a `Retry`, or it raises. Any exception,
SystemExit, KeyboardInterrupt and a CancelledError of its own included, is a failure like RETRY and
ends neither the client nor the process; so is any other return value. Ordinary exceptions are
logged one by one; a breach of these rules is reported to the application (ClientCore.report_error),
each kind once a minute with the number of messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import islice
from typing import Any, cast

from saturnmq.client.consumer.process_queue import MessageRun
from saturnmq.client.consumer.results import ConsumeResult, Retry
from saturnmq.client.option_checks import check_options
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.door import Runtime, Workers
from saturnmq.runtime.errors import (
    ConfigError,
    ListenerError,
    ListenerRaisedExit,
    WrongListenerResult,
)

log = logging.getLogger(__name__)

RUN_S = 0.002
QUICK_S = 0.0003
RUN_MOST = 8192
# Threads for a listener that takes at most so many seconds per message; a slower one gets all
# threads.
THREADS_FOR = ((5e-6, 1), (50e-6, 2))

TELL_EVERY_S = 60.0

SUCCESS, RETRY, SUSPEND = ConsumeResult.SUCCESS, ConsumeResult.RETRY, ConsumeResult.SUSPEND

Messages = Sequence[ReceivedMessage]
Verdict = ConsumeResult | Retry | None  # None is a success
Listener = Callable[[list[ReceivedMessage]], Verdict | Awaitable[Verdict]]
OneListener = Callable[[ReceivedMessage], Verdict | Awaitable[Verdict]]
Listeners = tuple[Listener | None, OneListener | None]
Around = Callable[[Listeners], Listeners]
Begun = asyncio.Future[float]  # of a run in a thread: the seconds that it took
ErrorReport = Callable[[ListenerError], None]


CALLING: ContextVar[Caller | None] = ContextVar("CALLING", default=None)
"""The caller whose listener runs in this thread or task."""


class Caller:
    """The listener of one consumer and its pace."""

    def __init__(
        self,
        runtime: Runtime,
        batch_size: int,
        threads: int,
        report_error: ErrorReport,
        around: Around | None = None,
    ) -> None:
        """`around` takes the listeners that the application gave, and returns those to call."""
        self.runtime = runtime
        self._report_error = report_error
        self._reported_at: dict[str, float] = {}  # by kind of fault: the last report
        self._unreported: dict[str, int] = {}  # messages with faults of a kind since that report
        self._workers: Workers | None = None
        self._around = around
        self._given: Listeners = (None, None)
        self._many: Listener | None = None
        self._one: OneListener | None = None
        self.batch_size = batch_size
        self.threads = threads
        self._is_async = False
        # Messages and the seconds they took; older ones weigh less.
        self._handled = self._took = 0.0

    def set(self, listener: Listener | None, listener_one: OneListener | None) -> None:
        """Set the listener: `listener` with a list, or `listener_one` with each message."""
        if (listener is None) == (listener_one is None):
            raise ConfigError("give either listener (gets a list) or listener_one (gets a message)")
        check_options({"listener": listener, "listener_one": listener_one})
        if self.ready and self._given != (listener, listener_one):
            raise ConfigError("the consumer has a listener; use another consumer for another one")
        self._given = self._many, self._one = listener, listener_one
        if self._around is not None:
            self._many, self._one = self._around(self._given)
        if listener_one is not None:
            self.batch_size = 1
        self._is_async = is_async(listener or listener_one)

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
        """The number of messages to hand over at once: whole slices."""
        size, pace = self.batch_size, self.pace
        if pace <= 0.0:
            return size
        wanted = min(RUN_MOST, int(RUN_S / pace))
        return max(size, wanted - wanted % size)

    @property
    def parallel(self) -> int:
        """The number of runs that may be under way."""
        pace = self.pace
        if pace > 0.0 and not self._is_async:
            for seconds, threads in THREADS_FOR:
                if pace <= seconds:
                    return min(threads, self.threads)
        return self.threads

    def is_quick(self, messages: int) -> bool:
        """Whether the listener takes less than QUICK_S for so many messages, as far as is known."""
        return 0.0 < self.pace * messages < QUICK_S

    def stalled(self) -> None:
        """A run takes far longer than the pace predicts: forget the pace."""
        self._handled = self._took = 0.0

    def close(self) -> None:
        """No further run will come."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def begin(
        self,
        chunk: MessageRun,
        go_on: Callable[[], bool] | None = None,
        *,
        stop_at_failure: bool = False,
    ) -> Begun | None:
        """Give `chunk` to a thread, without a task; None: the listener is async, `run` calls it."""
        if self._is_async:
            return None
        if self._workers is None:
            self._workers = self.runtime.workers(self.threads, name="saturnmq-listener")
        each = self._each if self._one is not None else self._slices
        call = partial(each, chunk, go_on, stop_at_failure=stop_at_failure)
        return self._workers.run(partial(self._in_thread, call))

    def _in_thread(self, call: Callable[[], float]) -> float:
        before = CALLING.set(self)
        try:
            return call()
        finally:
            CALLING.reset(before)

    async def run(
        self,
        chunk: MessageRun,
        go_on: Callable[[], bool] | None = None,
        *,
        stop_at_failure: bool = False,
        begun: Begun | None = None,
    ) -> None:
        """One attempt at `chunk`, which `begin` may have `begun`; the chunk records how far it
        came.

        The attempt ends early when the chunk is ended or when `go_on`, asked before every slice,
        returns False. With `stop_at_failure` the first failed slice ends it and does not count as
        handled.
        """
        try:
            if begun is None:
                begun = self.begin(chunk, go_on, stop_at_failure=stop_at_failure)
            if begun is None:
                before = CALLING.set(self)
                try:
                    took = await self._run_async(chunk, go_on, stop_at_failure=stop_at_failure)
                finally:
                    with contextlib.suppress(ValueError):  # another task closed this one
                        CALLING.reset(before)
            else:
                took = await begun
        finally:
            for kind, fault in chunk.faults.items():
                self._report(kind, fault)
        self.note(chunk, took)

    def note(self, chunk: MessageRun, took: float) -> None:
        """An attempt at `chunk` is over after so many seconds."""
        if chunk.handled:
            self._handled = 0.7 * self._handled + chunk.handled
            self._took = 0.7 * self._took + max(took, 1e-9)

    def _report(self, kind: str, fault: ListenerError) -> None:
        now = self.runtime.monotonic()
        fault.messages += self._unreported.pop(kind, 0)
        if now - self._reported_at.get(kind, -TELL_EVERY_S) < TELL_EVERY_S:
            self._unreported[kind] = fault.messages
            return
        self._reported_at[kind] = now
        self._report_error(fault)

    def _each(
        self, chunk: MessageRun, go_on: Callable[[], bool] | None, *, stop_at_failure: bool
    ) -> float:
        """The run of a listener that takes single messages; every line in it costs time."""
        began = self.runtime.monotonic()
        listener = cast(OneListener, self._one)
        for message in chunk.upcoming:
            if chunk.ended or (go_on is not None and not go_on()):
                break
            try:
                result = listener(message)
            except BaseException as error:
                result = _raised(chunk, (message,), error)
            if result is not None and result is not SUCCESS:
                failed = _failed(chunk, (message,), result)
                chunk.failed.extend(failed)
                if failed and stop_at_failure:
                    break
            chunk.handled += 1
        return self.runtime.monotonic() - began

    def _slices(
        self, chunk: MessageRun, go_on: Callable[[], bool] | None, *, stop_at_failure: bool
    ) -> float:
        began = self.runtime.monotonic()
        listener = cast(Listener, self._many)
        for batch in self._batches(chunk, go_on):
            try:
                # A list of its own: the listener may change it.
                result = listener(list(batch))
            except BaseException as error:
                result = _raised(chunk, batch, error)
            if not _note(chunk, batch, result, stop_at_failure=stop_at_failure):
                break
        return self.runtime.monotonic() - began

    async def _run_async(
        self, chunk: MessageRun, go_on: Callable[[], bool] | None, *, stop_at_failure: bool
    ) -> float:
        began, task = self.runtime.monotonic(), asyncio.current_task()
        for batch in self._batches(chunk, go_on):
            try:
                call = self._one(batch[0]) if self._one is not None else self._call_many(batch)
                result = await cast(Awaitable[object], call)
            except BaseException as error:
                if _is_ended(task):
                    raise
                result = _raised(chunk, batch, error)
            if not _note(chunk, batch, result, stop_at_failure=stop_at_failure):
                break
        return self.runtime.monotonic() - began

    def _batches(self, chunk: MessageRun, go_on: Callable[[], bool] | None) -> Iterator[Messages]:
        while batch := list(islice(chunk.upcoming, self.batch_size)):
            if chunk.ended or (go_on is not None and not go_on()):
                return
            yield batch

    def _call_many(self, batch: Messages) -> object:
        return cast(Listener, self._many)(list(batch))


def is_async(listener: object) -> bool:
    """Whether the listener is to be awaited."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def _note(chunk: MessageRun, batch: Messages, result: object, *, stop_at_failure: bool) -> bool:
    """False if the run ends here."""
    if result is not None and result is not SUCCESS:
        failed = _failed(chunk, batch, result)
        chunk.failed.extend(failed)
        if failed and stop_at_failure:
            chunk.handled += len(batch) - len(failed)
            return False
    chunk.handled += len(batch)
    return True


def _failed(chunk: MessageRun, batch: Messages, result: object) -> Messages:
    """The messages of `batch` that come again after `result`, which is not success. Records a fault
    if it is no verdict at all."""
    if result is RETRY or result is SUSPEND:
        return batch
    if isinstance(result, Retry):
        again = batch[result.done :]
        retries = chunk.retries or {}
        retries.update((message.queue_offset, result) for message in again)
        chunk.retries = retries
        return again
    kind = f"returned {type(result)}"
    if kind not in chunk.faults:
        chunk.faults[kind] = WrongListenerResult(
            f"the listener returned {result!r} for {batch[0]}, and gets it again: return None or "
            "ConsumeResult.SUCCESS when done, ConsumeResult.RETRY for another time; a listener "
            "that awaits is declared with `async def`"
        )
    chunk.faults[kind].messages += len(batch)
    if inspect.iscoroutine(result):
        result.close()  # otherwise Python warns about it each time
    return batch


def _raised(chunk: MessageRun, batch: Messages, error: BaseException) -> ConsumeResult:
    """Records a call of the listener that raised `error`."""
    if isinstance(error, Exception):
        log.error(
            "the listener failed on %d messages from %s", len(batch), batch[0], exc_info=error
        )
        return RETRY
    kind = f"raised {type(error)}"
    if kind not in chunk.faults:
        chunk.faults[kind] = ListenerRaisedExit(
            f"the listener raised {error!r} on {batch[0]}, and gets it again: that ends neither "
            "the client nor the process; to end them, tell another thread or task"
        )
        chunk.faults[kind].__cause__ = error
    chunk.faults[kind].messages += len(batch)
    return RETRY


def _is_ended(task: asyncio.Task[Any] | None) -> bool:
    """Whether `task` is cancelled, or closed with its loop: then the listener itself raised
    nothing."""
    try:
        return task is None or asyncio.current_task() is not task or task.cancelling() > 0
    except RuntimeError:  # no loop is running any more
        return True
