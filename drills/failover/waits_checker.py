"""The verdict on messages that wait, from a history: delays and retries (I14). Pure.

Kinds of events are those of `history.py`, and:

| kind | who | the rest |
|---|---|---|
| `deliver` | topic | value, consumed; broker, queue, offset; `note`: how often it was handed back |
| `failed` | topic | the same, refused by the listener |
| `dead` | topic | the same, from the dead-letter queue |

Times are those of one steady clock, that of the drill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from saturnmq.drills.failover.checker import LIVENESS_S, DrillVerdict
from saturnmq.drills.failover.history import Event, History

DELAYS_S = (1.0, 5.0, 10.0)  # of the levels from 1 on
RETRY_S = 10.0  # the delay of the first retry
MOST_RETRIES = 1
NEVER = 1_000_000  # refusals of a message that is never consumed
# A due message is delivered within this time, once the faults have ended.
HELD_S = LIVENESS_S


class EventIndex:
    """The events of a history by what a verdict asks for."""

    def __init__(self, history: History) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.at: dict[tuple[str, str], list[Event]] = defaultdict(list)  # by kind and value
        for event in history.events:
            self.events[event.kind].append(event)
            if event.value:
                self.at[event.kind, event.value].append(event)
        self.calm_at = next((event.at for event in self.events["calm"]), 0.0)

    def acked(self, topic: str) -> list[Event]:
        return [event for event in self.events["ok"] if event.who == topic]

    def missing(self, topic: str) -> list[str]:
        """The acknowledged messages that were never consumed."""
        return [told(e) for e in self.acked(topic) if not self.at["deliver", e.value]]

    def sent_at(self, value: str) -> float:
        return self.at["invoke", value][0].at

    def phantoms(self, verdict: DrillVerdict, *kinds: str) -> None:
        """Add the messages that nobody sent, or that were refused, among events of these kinds."""
        got = [event for kind in kinds for event in self.events[kind]]
        verdict.add("I2 phantom", [told(e) for e in got if not self.at["invoke", e.value]])
        refused = [told(e) for e in got if self.at["fail", e.value]]
        verdict.add("I3 refused and yet delivered", refused)

    def delays(self, verdict: DrillVerdict, topic: str, delay_s: Callable[[str], float]) -> None:
        """Add the messages of a topic that came before their delay, or too late."""
        early, held = [], []
        for event in self.events["deliver"]:
            if event.who == topic and self.at["invoke", event.value]:
                sent, delay = self.sent_at(event.value), delay_s(event.value)
                text = f"{event.value} after {event.at - sent:.3f} s, its delay is {delay:g} s"
                if event.at < sent + delay:
                    early.append(text)
                if event.at > max(sent, self.calm_at) + delay + HELD_S:
                    held.append(text)
        verdict.add("I14 early", early)
        verdict.add("I14 held", held)

    def retries(self, verdict: DrillVerdict, topic: str) -> None:
        """Add the refused messages of a topic that are lost, came again too soon or too late, or
        died with a retry left."""
        lost, early, held, unearned = [], [], [], []
        for event in self.acked(topic):
            if not self.at["deliver", event.value] and not self.at["dead", event.value]:
                lost.append(told(event))
        tried = [e for kind in ("failed", "deliver") for e in self.events[kind] if e.who == topic]
        for event in tried:
            retries = int(event.note)
            if not retries:
                continue
            before = [e for e in self.at["failed", event.value] if int(e.note) == retries - 1]
            if not before:
                early.append(f"{told(event)} as retry {retries}, nobody refused it before")
                continue
            waited = event.at - before[0].at
            text = f"{event.value} was tried again after {waited:.3f} s"
            if waited < RETRY_S:
                early.append(text)
            if event.at > max(before[-1].at, self.calm_at) + RETRY_S + HELD_S:
                held.append(text)
        for event in self.events["dead"]:
            refused = {e.note for e in self.at["failed", event.value]}
            if len(refused) <= MOST_RETRIES:
                unearned.append(f"{told(event)}, refused {len(refused)} times")
        verdict.add("I1 lost on the way to another attempt", lost)
        verdict.add("I14 a retry came early", early)
        verdict.add("I14 a retry was held", held)
        verdict.add("dead with retries left", unearned)


def number_of(value: str) -> int:
    return int(value.rpartition("-")[2])


def delay_s(value: str) -> float:
    """The delay of a message whose sender takes the levels in turns."""
    return DELAYS_S[number_of(value) % len(DELAYS_S)]


def told(event: Event) -> str:
    return f"{event.value} at {event.broker} {event.queue}:{event.offset} ({event.at:.2f} s)"
