"""The values that options of clients and time-outs of calls may have, in one table.

An option that is none of these has its check where it is used: a name, a strategy, a start.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from saturnmq.runtime.errors import ConfigError, InvalidParameter

P = ParamSpec("P")
S = TypeVar("S")

SECONDS_MOST = 1e9  # 31 years: what clocks and timers of all kinds can count
SOCKET_MOST_S = 86_400.0  # sockets count milliseconds in 32 bits
COUNT_MOST = (1 << 31) - 1
BYTES_MOST = 1 << 40


@dataclass(frozen=True, slots=True)
class OptionBounds:
    """Numbers from `least` to `most`."""

    least: float
    most: float
    what: str = "seconds"
    note: str = ""
    """The meaning of a value of them, or of None."""
    or_none: bool = False

    def fault(self, name: str, value: Any) -> str:
        """Text: the fault of a value; empty if it has none."""
        if value is None and self.or_none:
            return ""
        kind = numbers.Real if self.what == "seconds" else numbers.Integral
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if is_number and self.least <= value <= self.most:  # not so of NaN
            return ""
        bounds = f"{self.least:.15g} to {self.most:.15g}"
        return f"{name} is {value!r:.60}: give {bounds} {self.what}{self.note}"


_COUNT = OptionBounds(1, COUNT_MOST, "as a whole number")
_SIZE = OptionBounds(1, BYTES_MOST, "bytes")
_PERIOD = OptionBounds(0.001, SECONDS_MOST)
BOUNDS = {
    "send_timeout": OptionBounds(0.001, SOCKET_MOST_S),
    "retries": OptionBounds(0, COUNT_MOST, "as a whole number", "; 0 is one attempt only"),
    "delivery_timeout": _PERIOD,
    "absence_timeout": OptionBounds(0, SECONDS_MOST),
    "batch_bytes": _SIZE,
    "buffer_bytes": _SIZE,
    "in_flight": _COUNT,
    "linger": OptionBounds(0, 60, note="; 0 never waits"),
    "max_message_bytes": _SIZE,
    "compress_above": OptionBounds(0, BYTES_MOST, "bytes", ", or None for never", or_none=True),
    "consume_message_batch_max_size": _COUNT,
    "consume_threads": _COUNT,
    "max_reconsume": OptionBounds(-1, COUNT_MOST, "as a whole number", "; -1 is the usual number"),
    "consume_timeout_s": _PERIOD,
    "suspend_s": OptionBounds(0.01, 30),  # RocketMQ's bounds, as the next ones
    "pop_invisible_s": OptionBounds(5, 300),
    "rebalance_interval_s": _PERIOD,
    "commit_interval_s": _PERIOD,
    "hold_s": OptionBounds(0.1, 60, note=": a broker holds a pull no longer", or_none=True),
    "max_cached_messages": _COUNT,
    "max_cached_bytes": _SIZE,
    "timeout": OptionBounds(0.001, SECONDS_MOST),  # of an Admin
}
CALLABLES = ("listener", "listener_one", "on_error", "check")
TIMEOUT = OptionBounds(0, SECONDS_MOST)
ENDLESS = OptionBounds(0, SECONDS_MOST, note=", or None for no limit", or_none=True)


def check_options(given: Mapping[str, object]) -> None:
    """ConfigError names the first of these options with a value that makes no sense."""
    for name, value in given.items():
        if name in BOUNDS and (fault := BOUNDS[name].fault(name, value)):
            raise ConfigError(fault)
        if name in CALLABLES and value is not None and not callable(value):
            raise ConfigError(f"{name} is {value!r:.60}: give a function, or leave it out")


def check_timeout(
    seconds: float | None, name: str = "timeout", *, allowed: OptionBounds = ENDLESS
) -> None:
    """InvalidParameter: nobody can wait for so many seconds."""
    if fault := allowed.fault(name, seconds):
        raise InvalidParameter(fault)


def checked(make: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """A constructor whose options are checked before it runs."""
    known = signature(make)

    @wraps(make)
    def checking(self: S, /, *args: P.args, **options: P.kwargs) -> None:
        check_options(known.bind(self, *args, **options).arguments)
        make(self, *args, **options)

    return checking
