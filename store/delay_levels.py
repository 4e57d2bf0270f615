"""`messageDelayLevel`: how long the messages of each delay level wait.

Delays separated by spaces, level 1 first, each a number and one of RocketMQ's units s, m, h, d. The
store writes what comes of it into the queues of SCHEDULE_TOPIC_XXXX, as the tags code: the time at
which a message is due. A level above the highest counts as the highest.
"""

from __future__ import annotations

from saturnmq.runtime.errors import ConfigError

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX = 64  # that the kernel looks at
DIGITS_MAX = 11  # of any unit: a moment after such a wait is still a number of 64 bits
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_levels(text: str) -> tuple[int, ...]:
    """Milliseconds of each level; ConfigError if the text is no list of delays."""
    parts = text.split()
    if not 1 <= len(parts) <= LEVELS_MAX:
        raise ConfigError(
            f"messageDelayLevel has {len(parts)} levels; give 1 to {LEVELS_MAX}, such as '1s 5s 1m'"
        )
    try:
        delays = tuple(delay_ms(part) for part in parts)
    except ConfigError as error:
        raise ConfigError(f"messageDelayLevel: {error}") from None
    assert all(delay >= 0 for delay in delays), f"{text!r} makes {delays}"
    return delays


def delay_ms(text: str) -> int:
    """The milliseconds of a delay such as `30s`; ConfigError if the text is none."""
    number, unit = text[:-1], _UNITS_MS.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdigit()):
        raise ConfigError(f"{text!r} is no delay; give a number and s, m, h or d, such as 30s")
    if len(number) > DIGITS_MAX:
        raise ConfigError(f"{text!r} is no delay: its number has more than {DIGITS_MAX} digits")
    return int(number) * unit


def delay_text(milliseconds: int) -> str:
    """A delay in the largest unit that needs no fraction; below a second, milliseconds."""
    for unit, length in reversed(_UNITS_MS.items()):
        if milliseconds and not milliseconds % length:
            return f"{milliseconds // length}{unit}"
    return f"{milliseconds}ms"


DEFAULT_DELAYS_MS = parse_levels(DEFAULT_LEVELS)
