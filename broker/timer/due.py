"""The moment for which a message waits, and by which clock.

A producer asks with one of three properties, in RocketMQ's order: TIMER_DELAY_SEC, TIMER_DELAY_MS
(a delay), TIMER_DELIVER_MS (a moment of wall time). The broker that takes the message decides, and
writes its decision into the message for every node of the group:

    SATURN_TIMER = "<shelf> <due>"            looked at when it is due
                 | "<shelf> <due> <moment>"   looked at before, to be written into the log anew

`shelf` is `d` for a delay, in ms of the delay clock (`delay_clock.py`), or `m` for a moment of wall
time. TIMER_OUT_MS is what RocketMQ reads: wall time, rounded down to whole seconds by its rule. A
message that RocketMQ wrote has no SATURN_TIMER. Its moment is TIMER_DELIVER_MS, or the end of the
second of TIMER_OUT_MS, for a delay as well: RocketMQ wrote down nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from saturnmq.broker.timer.entries import DELIVER, ROLL
from saturnmq.protocol import properties as names
from saturnmq.runtime.errors import MessageIllegal

DELAYS, MOMENTS = "d", "m"
SHELVES = (DELAYS, MOMENTS)
PRECISION_MS = 1000  # of TIMER_OUT_MS
MOMENT_MAX = 1 << 62
_UNITS = {names.TIMER_DELAY_SEC: 1000, names.TIMER_DELAY_MS: 1}


@dataclass(frozen=True, slots=True)
class Due:
    """When a message is due by the clock of its shelf, and when it is looked at."""

    shelf: str
    due: int
    moment: int

    @property
    def kind(self) -> int:
        return DELIVER if self.moment == self.due else ROLL

    def encode(self) -> str:
        text = f"{self.shelf} {self.due}"
        return text if self.moment == self.due else f"{text} {self.moment}"


def limited(shelf: str, due: int, now: int, window_ms: int) -> Due:
    """A message is looked at after `window_ms` at the latest: it stays in the log for longer."""
    assert window_ms > 0, f"messages are written anew after {window_ms} ms"
    return Due(shelf, due, min(due, now + window_ms))


def asked_for(
    properties: Mapping[str, str], wall_ms: int, delay_ms: int, max_ms: int
) -> tuple[str, int, int] | None:
    """(shelf, due, milliseconds to go) of a message as its producer asks for it; None if it is due
    at once. `wall_ms` and `delay_ms` are the two clocks. MessageIllegal: a value is no number, or
    beyond the limit."""
    name = next((each for each in _UNITS if each in properties), names.TIMER_DELIVER_MS)
    text = properties.get(name)
    if text is None:
        return None
    number = _number(name, text)
    wait = number * _UNITS[name] if name in _UNITS else number - wall_ms
    if wait <= 0:
        return None
    if wait > max_ms:
        raise MessageIllegal(
            f"timer message illegal, the delay time should not be bigger than the max delay "
            f"{max_ms}ms: {name}={text} is {wait} ms ahead (timerMaxDelaySec)"
        )
    if name in _UNITS:
        return DELAYS, delay_ms + wait, wait
    return MOMENTS, number, wait


def rocketmq_moment(deliver_ms: int) -> int:
    """TIMER_OUT_MS of a message that RocketMQ would deliver at this moment: it delivers at the end
    of the second that begins then."""
    return (deliver_ms - 1) // PRECISION_MS * PRECISION_MS


def found_in(properties: Mapping[str, str], store_timestamp: int, window_ms: int) -> Due:
    """The due time of a message in the log. One whose properties say nothing is due at once."""
    own = properties.get(names.SATURN_TIMER, "").split()
    if len(own) in (2, 3) and own[0] in SHELVES and all(_is_moment(word) for word in own[1:]):
        return Due(own[0], int(own[1]), int(own[-1]))
    due = 0
    for name, added in ((names.TIMER_DELIVER_MS, 0), (names.TIMER_OUT_MS, PRECISION_MS)):
        text = properties.get(name, "")
        if _is_moment(text):
            due = int(text) + added
            break
    return limited(MOMENTS, due, store_timestamp, window_ms)


def _is_moment(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18 and int(text) <= MOMENT_MAX


def _number(name: str, text: str) -> int:
    try:
        number = int(text) if len(text) <= 20 else None
    except ValueError:
        number = None
    if number is None:
        raise MessageIllegal(
            f"timer message illegal, {name}={text[:40]!r} is no number of "
            + ("seconds" if name == names.TIMER_DELAY_SEC else "milliseconds")
        )
    return number
