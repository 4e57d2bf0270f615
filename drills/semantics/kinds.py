"""The kinds of messages in the drill `semantics`. A value is `kind-number` (for FIFO messages
`fifo.lane-number`), and its number decides what its sender and its consumers do with it. So the
verdict knows what must come of a message without being told.
"""

from __future__ import annotations

from saturnmq.drills.failover.waits_checker import NEVER, number_of

RETRY, LEVELS, TIMED, DEALS, POP, FIFO = "retry", "levels", "timed", "deals", "pop", "fifo"
SHARES = {RETRY: 20, LEVELS: 15, TIMED: 15, DEALS: 20, POP: 15, FIFO: 15}  # of 100 messages
COMMIT, ROLLBACK, ASK = "commit", "rollback", "ask"
TIMES_S = (0.5, 1.0, 2.0, 5.0, 8.0)  # of timed messages
INVISIBLE_S = 5.0
# The age at which brokers ask about an open transaction, and the time between two questions.
TRANSACTION_S, QUESTION_S = 3.0, 2.0


def refusals(value: str) -> int:
    """How often the listener refuses a message of RETRY: 9 of 100 once, 1 always."""
    number = number_of(value)
    if number % 100 == 3:
        return NEVER
    return int(number % 10 == 3)


def time_s(value: str) -> float:
    """The time for which a message of TIMED waits."""
    return TIMES_S[number_of(value) % len(TIMES_S)]


def by_moment(value: str) -> bool:
    """Whether it names a moment of wall time; otherwise a delay."""
    return number_of(value) % 3 == 0


def is_recalled(value: str) -> bool:
    return number_of(value) % 20 == 4  # of those that wait for 8 s


def fate(value: str) -> str:
    """How the sender of a message of DEALS ends its transaction: 30 % are rolled back; 10 % it
    leaves open, so that the broker has to ask."""
    last = number_of(value) % 10
    if last == 5:
        return ASK
    return ROLLBACK if last in (1, 4, 7) else COMMIT


def answer(value: str) -> str:
    """The answer to the broker's question about it: half of those left open are rolled back."""
    told = fate(value)
    if told != ASK:
        return told
    return COMMIT if number_of(value) % 20 == 5 else ROLLBACK


def is_left_out(value: str) -> bool:
    """Whether its first receiver does not acknowledge a message of POP."""
    return number_of(value) % 20 == 7


def lane_of(value: str) -> str:
    """The sender of a message of FIFO."""
    return value.rpartition("-")[0]
