# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""What every poll passes through, compiled; `poll_reference.py` is its readable twin."""

cimport cython

from itertools import islice


@cython.final
cdef class QueueTurn:
    """A queue, and its messages that are at hand."""

    cdef public object held, upcoming
    cdef public bint idle

    def __init__(self, held):
        self.held = held
        self.idle = True
        self.upcoming = iter(())


@cython.final
cdef class PollTurns:
    """The queues in turn. Polls of any thread draw; the loop's thread does all else."""

    cdef list _turns
    cdef Py_ssize_t _next
    cdef public QueueTurn last_turn
    cdef public Py_ssize_t last

    def __init__(self):
        self._turns = []

    def add(self, QueueTurn turn not None):
        self._turns.append(turn)

    def remove(self, QueueTurn turn not None):
        self._turns.remove(turn)

    def clear(self):
        self._turns.clear()

    def give(self, Py_ssize_t most):
        """At most `most` messages of the next queue that has some; empty if the loop must be
        asked."""
        cdef QueueTurn turn
        cdef list messages
        for _ in range(len(self._turns)):
            if self._next >= len(self._turns):
                self._next = 0
            turn = <QueueTurn>self._turns[self._next]
            messages = self.draw(turn, most)
            if messages:
                self._next += 1
                return messages
            if not turn.idle:
                break
            self._next += 1
        return []

    cdef list draw(self, QueueTurn turn, Py_ssize_t most):
        cdef list messages
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
