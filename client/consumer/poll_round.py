"""The queues of a pull consumer in turn, and the messages that poll() gives next, at hand for any
thread.

A visit to the loop costs a thread more than a hundred small messages do. So each queue with
messages has a run of them at hand, and polls take turns with the runs; the loop is asked when one
is empty. The loop's thread alone begins and ends runs. Polls draw from their iterators: a step of a
list's iterator is atomic, so the loop, which draws the rest to put it back, and a poll never get
the same message.

Offsets follow when the loop asks: a part of the consumer that reads them calls `settle` first, and
one that changes a queue calls `recall`, after which the next poll asks the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from operator import length_hint

from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.consumption_traces import ConsumptionTraces
from saturnmq.client.consumer.poll_turns import PollTurns, QueueTurn
from saturnmq.client.consumer.polled_offsets import PolledOffsets
from saturnmq.client.consumer.process_queue import MessageRun
from saturnmq.client.consumer.pulling import OWN_COUNT
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.runtime import forks


class PollRound:
    """The round of all queues, and how far polls have come in them."""

    def __init__(
        self,
        polled: PolledOffsets,
        traces: ConsumptionTraces | None,
        *,
        auto_commit: bool,
    ) -> None:
        self._polled = polled
        self._auto_commit = auto_commit
        self._traces = traces
        self._round = PollTurns()
        # At most so many messages for a poll; empty if the loop must be asked.
        self.give: Callable[[int], list[ReceivedMessage]]
        self.give = self._round.give if traces is None else self._give_traced
        self._turns: dict[MessageQueue, QueueTurn] = {}
        self._running: dict[QueueTurn, MessageRun] = {}
        self._paused: set[MessageQueue] = set()
        self._left: set[MessageQueue] = set()  # queues of topics that are not subscribed now
        self._foreign = False  # it belongs to the process that forked this one
        forks.register(self)

    # -- any thread ---------------------------------------------------------------------------
    def _give_traced(self, most: int) -> list[ReceivedMessage]:
        messages = self._round.give(most)
        if messages and self._traces is not None:
            self._traces.polled(messages)
        return messages

    # -- the loop thread ----------------------------------------------------------------------
    def add(self, held: AssignedQueue) -> None:
        """A queue is read from now on."""
        turn = self._turns[held.queue] = QueueTurn(held)
        self._round.add(turn)

    def remove(self, held: AssignedQueue) -> None:
        """The queue is not read here any more."""
        self.recall()
        self._round.remove(self._turns.pop(held.queue))
        self._paused.discard(held.queue)
        self._left.discard(held.queue)

    def arrived(self, held: AssignedQueue) -> None:
        """`held` may have messages."""
        turn = self._turns[held.queue]
        if turn.idle:
            self._begin(turn)

    def take(self, most: int) -> list[ReceivedMessage]:
        """At most `most` messages of one queue; empty if none are ready."""
        if self._foreign:
            raise forks.refusal()
        while not (messages := self.give(most)):
            self.settle()
            for turn in self._turns.values():
                if not turn.idle and turn not in self._running:
                    self._begin(turn)
            if not self._running:
                break
        self.settle()
        return messages

    def _begin(self, turn: QueueTurn) -> None:
        """Have the next messages of a queue at hand, those of one pull, if there are some."""
        silent = turn.held.queue in self._paused | self._left
        run = None if silent else turn.held.state.take(OWN_COUNT)
        turn.idle = run is None
        if run is not None:
            run.begin(0.0)
            turn.upcoming = run.upcoming
            self._running[turn] = run

    def settle(self) -> None:
        """Note how far polls have come."""
        for turn, run in list(self._running.items()):
            self._settle(turn, run)

    def _settle(self, turn: QueueTurn, run: MessageRun) -> None:
        queue, size = turn.held.queue, len(run.messages)
        run.handled = size - length_hint(turn.upcoming)
        done = run.handled - (self._round.last if turn is self._round.last_turn else 0)
        if self._auto_commit and 0 < done < size:
            self._polled.note(queue, run.messages[done].queue_offset)
        if run.handled == size:
            self._end(turn, run)
        # When no message is left, the offset behind the filtered ones may be committed too.
        self._polled[queue] = turn.held.state.commit_offset()
        if self._auto_commit and done == size:
            self._polled.note(queue, self._polled[queue])

    def _end(self, turn: QueueTurn, run: MessageRun) -> None:
        del self._running[turn]
        turn.held.state.finish(run)
        turn.held.space.set()

    def recall(self) -> None:
        """Settle, and put the messages that no poll has taken back into their queues."""
        self.settle()
        for turn, run in list(self._running.items()):
            turn.held.state.split(run)
            self._end(turn, run)
            self._polled[turn.held.queue] = turn.held.state.commit_offset()

    def pause(self, queues: set[MessageQueue]) -> None:
        """Give no messages of these queues."""
        self.recall()
        self._paused |= queues

    def resume(self, queues: set[MessageQueue]) -> None:
        """Give messages of these queues again."""
        self._paused -= queues
        for turn in self._turns.values():
            self.arrived(turn.held)

    def keep_to(self, topics: Container[str]) -> None:
        """Give messages of the queues of these topics only."""
        self.recall()
        self._left = {queue for queue in self._turns if queue.topic not in topics}
        for turn in self._turns.values():
            self.arrived(turn.held)

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues that are paused."""
        return frozenset(self._paused)

    def forked(self) -> None:
        """A child has to ask the loop, and is refused."""
        self._round.clear()
        self._foreign = True
