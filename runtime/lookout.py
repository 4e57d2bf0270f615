"""Looking for what is about to come for a while, before a thread or a loop sleeps.

An idle processor of a virtual machine halts. To sleep there and to be woken takes 20 us and more,
as long as a broker needs for a message, and waking it costs the other side as much again. Whoever
looks again and again meanwhile has the bytes at once, and takes processor time for that: so they
look for `most_s` at most and give way to all others at each look. The others may do the work that
brings the bytes: a slave on the same processor, whose report the answer waits for. But if they take
the processor for longer and the bytes are not there then, looking stops, because one that sleeps
gets a processor back earlier. After a look in vain the next ones are left out, ever more of them
the longer it goes on; many at once if others need the processor.
"""

from __future__ import annotations

import os
from collections.abc import Callable

# Looking once takes 1 us. A node of the same group has the processor for less than this, a program
# that computes for more.
STEP_MAX_S = 100e-6
LEFT_OUT_MOST = 63
LEFT_TO_OTHERS = 15


class LooksInVain:
    """How many looks are left out after those in vain."""

    def __init__(self) -> None:
        self._left_out = 0
        self._to_leave_out = 0

    def leaves_out(self) -> bool:
        """Whether this look is left out."""
        if self._to_leave_out:
            self._to_leave_out -= 1
            return True
        return False

    def found(self) -> None:
        self._left_out = 0

    def missed(self) -> None:
        self._left_out = self._to_leave_out = min(2 * self._left_out + 1, LEFT_OUT_MOST)

    def gave_way(self) -> None:
        """Others had the processor for long: they need it."""
        self._left_out = self._to_leave_out = LEFT_TO_OTHERS


class Lookout:
    """Of a thread that waits for an answer; one for each connection."""

    def __init__(
        self,
        now: Callable[[], float],
        is_there: Callable[[], object],
        most_s: float,
        give_way: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._now = now
        self._is_there = is_there
        self._most_s = most_s
        self._give_way = give_way
        self._in_vain = LooksInVain()

    def look(self) -> bool:
        """Whether the answer came; if not, the caller sleeps until it does."""
        if self._in_vain.leaves_out():
            return False
        now, is_there, give_way = self._now, self._is_there, self._give_way
        begun = before = now()
        while not is_there():
            give_way()
            at = now()
            if at - before > STEP_MAX_S:
                if is_there():  # they brought it
                    break
                self._in_vain.gave_way()
                return False
            if at - begun > self._most_s:
                self._in_vain.missed()
                return False
            before = at
        self._in_vain.found()
        return True


class LoopLookout:
    """Of a loop, which is kept from sleeping for a while after each request."""

    def __init__(
        self,
        now: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        give_way: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._now = now
        self._soon = call_soon
        self._give_way = give_way
        self._in_vain = LooksInVain()
        self._begun: float | None = None  # the first look since a request came
        self._looks = False
        self._gave_way = False  # at the last look
        self._most_s = 0.0

    def heard(self, most_s: float) -> None:
        """A request came; the next one may follow within `most_s` of the work that it makes: on a
        slow processor that alone takes longer."""
        if self._looks:
            self._in_vain.found()
        elif self._in_vain.leaves_out():
            return
        else:
            self._looks = True
            self._soon(self._look)
        self._begun, self._most_s, self._gave_way = None, most_s, False

    def _look(self) -> None:
        at = self._now()
        if self._begun is None:
            self._begun = at
        self._give_way()
        now = self._now()
        self._looks = False
        if self._gave_way:  # the loop has heard nothing since
            self._gave_way = False
            self._in_vain.gave_way()
        elif now - at > STEP_MAX_S:  # they may have brought what it waits for
            self._looks = self._gave_way = True
            self._soon(self._look)
        elif now - self._begun > self._most_s:
            self._in_vain.missed()
        else:
            self._looks = True
            self._soon(self._look)
