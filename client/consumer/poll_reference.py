"""The part of a pull consumer's round that every poll passes through, in plain Python.

`poll_kernel.pyx` is its compiled twin; `poll_turns.py` chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any


class QueueTurn:
    """A queue, and its messages that are at hand."""

    __slots__ = ("held", "idle", "upcoming")

    def __init__(self, held: Any) -> None:
        self.held = held
        self.idle = True  # there were no more messages when the loop looked last
        self.upcoming: Iterator[Any] = iter([])


class PollTurns:
    """The queues in turn. Polls of any thread draw; the loop's thread does all else.

    `last_turn` and `last`: of the last poll, whose messages are not done with, the turn, and how
    many they are, or more.
    """

    __slots__ = ("_next", "_turns", "last", "last_turn")

    def __init__(self) -> None:
        self._turns: list[QueueTurn] = []
        self._next = 0
        self.last_turn: QueueTurn | None = None
        self.last = 0

    def add(self, turn: QueueTurn) -> None:
        self._turns.append(turn)

    def remove(self, turn: QueueTurn) -> None:
        self._turns.remove(turn)

    def clear(self) -> None:
        self._turns.clear()

    def give(self, most: int) -> list[Any]:
        """At most `most` messages of the next queue that has some; empty if the loop must be
        asked."""
        for _ in range(len(self._turns)):
            if self._next >= len(self._turns):
                self._next = 0
            turn = self._turns[self._next]
            messages = self._draw(turn, most)
            if messages:
                self._next += 1
                return messages
            if not turn.idle:
                break
            self._next += 1
        return []

    def _draw(self, turn: QueueTurn, most: int) -> list[Any]:
        # Before the messages are drawn: the loop must not take them for those of an earlier poll.
        self.last_turn = turn
        if most == 1:
            self.last = 1
            for message in turn.upcoming:
                return [message]
            return []
        if most < 1:
            return []
        self.last = most
        messages = list(islice(turn.upcoming, most))
        self.last = len(messages)
        return messages


__all__ = ["PollTurns", "QueueTurn"]
