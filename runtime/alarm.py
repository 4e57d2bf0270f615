"""A timer for fractions of a millisecond.

The timers of uvloop and of asyncio's selectors count whole milliseconds, and round up. Linux has
finer ones, which are files (timerfd_create(2)) that a loop can wait for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

CLOCK_MONOTONIC = 1
FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
COARSE_S = 0.001  # what the timers of loops count in


class FineAlarm:
    """One call at a time, `seconds` after `set`. Where the system has no such file, or no
    descriptor is left, the loop's own timer does, later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._fd = -1
        self._coarse: asyncio.TimerHandle | None = None  # without a file
        if self._libc is not None:
            self._fd = self._libc.timerfd_create(CLOCK_MONOTONIC, FLAGS)
        if self._fd >= 0:
            loop.add_reader(self._fd, self._rang)

    def set(self, seconds: float) -> None:
        if self._fd < 0 or self._libc is None:
            seconds = max(seconds, COARSE_S)  # less would be none
            self._coarse = self._loop.call_later(seconds, self._ring)
            return
        # struct itimerspec: the interval, which is none, and the time, each in s and ns.
        whole, rest = divmod(max(1, int(seconds * 1e9)), 1_000_000_000)
        when = (ctypes.c_long * 4)(0, 0, whole, rest)
        self._libc.timerfd_settime(self._fd, 0, when, None)

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a forked child has read it
            os.read(self._fd, 8)  # the number of times that it rang
        self._ring()

    def close(self) -> None:
        """Give the file back; it does not ring any more."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._coarse is not None:
            self._coarse.cancel()
