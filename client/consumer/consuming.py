"""From a process queue to the listener and back: concurrently, or in order. Loop thread only.

Concurrent: runs of any queue side by side, as many as the listener's pace asks for. A run that
lasts far longer than that pace keeps only the messages it has begun and does not count any more: a
call that takes long must not hold up messages that were handed over together with its own. A failed
message goes back to its broker, which delivers it again later. So does a message that a listener
has not finished after `consume_timeout_s` (RocketMQ's 15 minutes): a call that hangs must not hold
up the committed offset of its queue for ever. In order: one run per queue, under the broker's lock;
a failed slice stays first in line, and a call that hangs holds up its queue, for other members of
the group as well. Both cases are reported to the application.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.listening import Begun, Caller
from saturnmq.client.consumer.process_queue import MessageRun, ProcessQueue
from saturnmq.client.consumer.results import DEAD_LETTER, Retry
from saturnmq.client.consumer.send_back import SendBack
from saturnmq.client.core import ClientCore
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.door import Handle
from saturnmq.runtime.errors import ListenerError, ListenerStuck

log = logging.getLogger(__name__)

LOCAL_RETRY_S = 5.0
SUSPEND_S = 1.0  # before an ordered queue is tried again, also after an error of ours
SEND_BACKS_AT_ONCE = 64
STALL_S = 0.1
TIMEOUT_DELAY_LEVEL = 3


class Consumption:
    """The common part of all kinds: the runs under way and their outcome."""

    BOUND = "consume_timeout_s"
    """The parameter that says how long a listener may take."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        caller: Caller,
        send_back: SendBack,
        timeout_s: float,
    ) -> None:
        self._core = core
        self._timeout_s = timeout_s
        self._runtime = core.runtime
        self._group = group
        self._caller = caller
        self._send_back = send_back
        self._runs: dict[MessageRun, AssignedQueue] = {}  # under way: the run of the listener
        self._idle = asyncio.Event()
        self.suspended = False

    def begin(self, held: AssignedQueue, asked_at: float) -> None:
        """Start on a queue that is ours from now on; its lock was asked for at `asked_at`
        (monotonic)."""

    def arrived(self, held: AssignedQueue) -> None:
        """There are messages to consume."""
        raise NotImplementedError

    def suspend(self) -> None:
        """Call the listener no more until `resume`. Runs under way end with their present call; the
        rest of their messages waits with the others."""
        self.suspended = True
        for chunk, held in self._runs.items():
            held.state.split(chunk)

    def resume(self) -> None:
        """Call the listener again."""
        self.suspended = False

    def look_after(self) -> None:
        """Look for listeners that hang; called every few seconds."""
        now = self._runtime.monotonic()
        for chunk, held in list(self._runs.items()):
            if chunk.stands_still_s(now) > self._timeout_s:
                self._overdue(held, chunk)

    def _overdue(self, held: AssignedQueue, chunk: MessageRun) -> None:
        """The listener has finished nothing for `consume_timeout_s`: act on it."""
        raise NotImplementedError

    def _report_stuck(self, held: AssignedQueue, chunk: MessageRun, consequence: str) -> None:
        """Reports to the application, every `consume_timeout_s`, that the listener does not
        return."""
        now = self._runtime.monotonic()
        if chunk.reported_at >= 0.0 and now - chunk.reported_at < self._timeout_s:
            return
        chunk.reported_at = now
        message = chunk.messages[min(chunk.handled, len(chunk.messages) - 1)]
        self._core.report_error(
            ListenerStuck(
                f"group {self._group}: the listener has not finished {message} of {held.queue} for "
                f"{chunk.stands_still_s(now):.0f} s: {consequence}. Give what it waits for a "
                f"time-out, or raise {self.BOUND} ({self._timeout_s:g})"
            )
        )

    async def end(self, at_most_s: float) -> bool:
        """Waits for the runs under way; their queues are all dropped, so no other begins. False if
        some did not end.
        """
        try:
            async with asyncio.timeout(at_most_s):
                while self._runs:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _report_end(self, held: AssignedQueue, error: BaseException) -> None:
        """Reports that a task that calls the listener was ended by `error` and begins anew. Called
        from a timer: when all tasks are cancelled because the loop ends, no timer runs any more.
        """
        reported = ListenerError(
            f"consuming {held.queue} in group {self._group} was ended by {error!r} and goes on"
        )
        reported.__cause__ = error
        self._core.report_error(reported)

    def _began(self, held: AssignedQueue, chunk: MessageRun) -> None:
        self._runs[chunk] = held
        chunk.begin(self._runtime.monotonic())

    def _ended(self, chunk: MessageRun) -> None:
        del self._runs[chunk]
        chunk.begun = -1.0
        if not self._runs:
            self._idle.set()


class Concurrent(Consumption):
    """Runs of all queues side by side; queues take turns."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        caller: Caller,
        send_back: SendBack,
        *,
        broadcasting: bool,
        timeout_s: float,
    ) -> None:
        super().__init__(core, group, caller, send_back, timeout_s)
        self._broadcasting = broadcasting
        self._round: deque[AssignedQueue] = deque()
        self._long: set[MessageRun] = set()  # runs under way that last too long
        self._later: list[tuple[AssignedQueue, MessageRun]] = []  # to be tried again on resume
        self._back_slots = asyncio.Semaphore(SEND_BACKS_AT_ONCE)

    def arrived(self, held: AssignedQueue) -> None:
        if not held.queued:
            held.queued = True
            self._round.append(held)
        self._dispatch()

    def _dispatch(self) -> None:
        """Starts runs while there is work and room."""
        while self._round and self._has_room() and not self.suspended:
            turn = self._round.popleft()
            chunk = None if turn.state.dropped else turn.state.take(self._caller.run_length)
            if chunk is None:
                turn.queued = False
                continue
            turn.queued = turn.state.waiting
            if turn.queued:
                self._round.append(turn)
            self._start(turn, chunk)

    def resume(self) -> None:
        super().resume()
        later, self._later = self._later, []
        for held, chunk in later:
            self._again(held, chunk)
        self._dispatch()

    def _has_room(self) -> bool:
        runs = len(self._runs)
        return runs < self._caller.threads and runs - len(self._long) < self._caller.parallel

    def _stalls(self, held: AssignedQueue, chunk: MessageRun) -> None:
        """A fast listener gets long runs and few threads; if it blocks after all, other threads
        must help.
        """
        self._long.add(chunk)
        self._caller.stalled()
        held.state.split(chunk)
        self.arrived(held)

    def _start(self, held: AssignedQueue, chunk: MessageRun) -> None:
        self._began(held, chunk)
        begun = self._caller.begin(chunk)
        stall = self._runtime.call_later(STALL_S, self._stalls, held, chunk)
        if begun is None:
            self._run_in_task(held, chunk, stall)
        else:
            begun.add_done_callback(partial(self._returned, held, chunk, stall))

    def _run_in_task(
        self, held: AssignedQueue, chunk: MessageRun, stall: Handle, begun: Begun | None = None
    ) -> None:
        work = partial(self._consume, held, chunk, stall, begun)
        self._core.tasks.once(work, name="listener run")

    def _returned(
        self, held: AssignedQueue, chunk: MessageRun, stall: Handle, begun: Begun
    ) -> None:
        """A thread has ended a run. Where all is done no task is needed for it."""
        if begun.cancelled():  # the loop ends
            return
        if begun.exception() is not None or not self._is_done(chunk):
            self._run_in_task(held, chunk, stall, begun)
            return
        self._caller.note(chunk, begun.result())
        held.state.last_consume = self._runtime.monotonic()
        held.state.finish(chunk)
        self._over(chunk, stall)
        self._go_on(held)

    def _is_done(self, chunk: MessageRun) -> bool:
        """Whether an attempt that ended leaves nothing to do, to send or to report."""
        all_handled = chunk.handled == len(chunk.messages)
        return all_handled and not (chunk.failed or chunk.given_up)

    async def _consume(
        self, held: AssignedQueue, chunk: MessageRun, stall: Handle, begun: Begun | None
    ) -> None:
        try:
            await self._caller.run(chunk, begun=begun)
            chunk.begun = -1.0
            if not chunk.given_up:
                await self._settle(held, chunk)
        except BaseException as error:
            self._runtime.call_later(LOCAL_RETRY_S, self._after_failure, held, chunk, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._over(chunk, stall)
        self._go_on(held)

    def _over(self, chunk: MessageRun, stall: Handle) -> None:
        stall.cancel()
        self._long.discard(chunk)
        self._ended(chunk)

    def _go_on(self, held: AssignedQueue) -> None:
        held.space.set()
        self.arrived(held)

    async def _settle(self, held: AssignedQueue, chunk: MessageRun) -> None:
        """After an attempt: failed messages go back, messages that were not reached wait here."""
        held.state.last_consume = self._runtime.monotonic()
        failed, rest = chunk.failed, list(chunk.messages[chunk.handled :])
        if failed and self._broadcasting:
            log.error("group %s broadcasts: %d failed messages dropped", self._group, len(failed))
        elif failed:
            held.state.keep(chunk, [*failed, *rest])
            rest = [*await self._hand_back(failed, chunk.retries or {}), *rest]
        held.state.keep(chunk, rest)
        # Neither consumed nor sent back: tried again from here; the offset waits for them.
        if rest:
            self._runtime.call_later(LOCAL_RETRY_S, self._again, held, chunk)

    def _after_failure(self, held: AssignedQueue, chunk: MessageRun, error: BaseException) -> None:
        if held.state.holds(chunk):
            self._report_end(held, error)
            held.state.keep(chunk, [*chunk.failed, *chunk.messages[chunk.handled :]])
        self._again(held, chunk)

    def _again(self, held: AssignedQueue, chunk: MessageRun) -> None:
        if self.suspended:
            self._later.append((held, chunk))
        elif held.state.holds(chunk):
            self._start(held, chunk)

    async def _hand_back(
        self, messages: Sequence[ReceivedMessage], retries: Mapping[int, Retry], level: int = 0
    ) -> list[ReceivedMessage]:
        """Send messages back, to wait for the level of their own or else for this one. Return those
        that no broker took."""

        async def back(message: ReceivedMessage) -> bool:
            own = retries.get(message.queue_offset)
            async with self._back_slots:
                return await self._send_back(message, level if own is None else own.delay_level)

        taken = await asyncio.gather(*(back(message) for message in messages))
        return [message for message, ok in zip(messages, taken, strict=True) if not ok]

    def _overdue(self, held: AssignedQueue, chunk: MessageRun) -> None:
        if chunk.given_up or not held.state.holds(chunk):
            self._report_stuck(held, chunk, "others have its messages, but it still holds a thread")
        elif self._broadcasting:
            self._report_stuck(held, chunk, "messages consumed since are not committed")
        else:
            chunk.give_up()
            give_up = partial(self._give_up, held, chunk)
            self._core.tasks.keep(give_up, name="listener time-out")

    async def _give_up(self, held: AssignedQueue, chunk: MessageRun) -> None:
        rest = [*chunk.failed, *chunk.messages[chunk.handled :]]
        self._report_stuck(held, chunk, f"{len(rest)} messages go back, to be delivered again")
        while rest and held.state.holds(chunk):
            rest = await self._hand_back(rest, {}, TIMEOUT_DELAY_LEVEL)
            held.state.keep(chunk, rest)
            if rest:
                await self._runtime.sleep(LOCAL_RETRY_S)
        held.space.set()


class InOrder(Consumption):
    """One run per queue at a time, in offset order, while the broker's lock is held."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        caller: Caller,
        send_back: SendBack,
        *,
        max_reconsume: int,
        suspend_s: float,
        timeout_s: float,
    ) -> None:
        super().__init__(core, group, caller, send_back, timeout_s)
        self._max_reconsume = max_reconsume
        self._suspend_s = suspend_s
        self._waiting: set[AssignedQueue] = set()

    def resume(self) -> None:
        super().resume()
        for held in self._waiting:
            held.wake()

    def begin(self, held: AssignedQueue, asked_at: float) -> None:
        held.state.lock(asked_at)
        self._go_on(held)

    def _go_on(self, held: AssignedQueue) -> None:
        self._core.tasks.once(partial(self._consume, held), name=f"consume {held.queue}")

    def _after_failure(self, held: AssignedQueue, error: BaseException) -> None:
        if not held.state.dropped:
            self._report_end(held, error)
            self._go_on(held)

    def arrived(self, held: AssignedQueue) -> None:
        held.data.set()

    def _overdue(self, held: AssignedQueue, chunk: MessageRun) -> None:
        self._report_stuck(held, chunk, "no member gets more of this queue before it returns")

    async def _consume(self, held: AssignedQueue) -> None:
        try:
            await self._consume_in_order(held)
        except BaseException as error:
            self._runtime.call_later(SUSPEND_S, self._after_failure, held, error)
            if not isinstance(error, Exception):
                raise

    async def _consume_in_order(self, held: AssignedQueue) -> None:
        state = held.state
        while not state.dropped:
            if not state.waiting or not self._may_call(state):
                await self._wait(held)
                continue
            chunk = state.take(self._caller.run_length)
            while chunk is not None and state.holds(chunk):
                if not self._may_call(state):
                    await self._wait(held)
                    continue
                if await self._run(held, chunk):
                    chunk = None
                else:
                    await self._runtime.sleep(self._pause(chunk))

    def _may_call(self, state: ProcessQueue) -> bool:
        return not self.suspended and state.locked(self._runtime.monotonic())

    async def _wait(self, held: AssignedQueue) -> None:
        """Wait for messages, for a lock, for the end of the suspension, or until it is dropped."""
        held.data.clear()
        self._waiting.add(held)
        try:
            await held.wait_for_data()
        finally:
            self._waiting.discard(held)

    def _pause(self, chunk: MessageRun) -> float:
        """The seconds before the next attempt at `chunk`."""
        own = (chunk.retries or {}).get(chunk.first_offset)
        return self._suspend_s if own is None or own.suspend_s is None else own.suspend_s

    async def _run(self, held: AssignedQueue, chunk: MessageRun) -> bool:
        """One attempt at `chunk`; True once all of it is done. A failed slice stays first in
        line.
        """
        state, clock = held.state, self._runtime.monotonic
        held.begin(chunk)
        self._began(held, chunk)
        try:
            await self._caller.run(chunk, lambda: state.locked(clock()), stop_at_failure=True)
            state.last_consume = clock()
            if chunk.handled:
                chunk.attempts = 0
            rest: list[Any] = list(chunk.messages[chunk.handled :])
            if chunk.failed:
                chunk.attempts += 1
                own = (chunk.retries or {}).get(chunk.failed[0].queue_offset)
                is_over = 0 <= self._max_reconsume < chunk.attempts
                is_over = is_over or (own is not None and own.delay_level == DEAD_LETTER)
                if is_over and all(
                    [await self._send_back(message, DEAD_LETTER) for message in chunk.failed]
                ):
                    rest, chunk.attempts = rest[len(chunk.failed) :], 0
                else:
                    for message in chunk.failed:
                        message.reconsume_times += 1
            if state.holds(chunk) or state.dropped:
                state.keep(chunk, rest)
            held.space.set()
            return not rest
        except BaseException:
            state.keep(chunk, chunk.messages[chunk.handled :])
            state.put_back(chunk)
            raise
        finally:
            self._ended(chunk)
            held.end()
