"""The verdict on the chores of a drill (`chores.py`), from their history. Pure.

Beside `invoke`, `ok`, `fail`, `unknown` and `calm` (`history.py`) there are:

| kind | who | the rest |
|---|---|---|
| `deliver` | topic | value, consumed; broker, queue, offset; `note`: how often it was handed back |
| `failed` | topic | the same, refused by the listener |
| `dead` | topic | the same, from the dead-letter queue |
| `held` | topic | the same, read from the queue when all was over |
| `delete`, `made` | topic | its deletion begins; it is there again |
| `reset`, `was reset` | topic | its group is to be set, and was set, to where `note` says |

Times are those of one steady clock, that of the drill.
"""

from __future__ import annotations

from collections import defaultdict

from saturnmq.drills.failover.checker import LIVENESS_S, DrillVerdict
from saturnmq.drills.failover.history import Event, History

REMADE, RESET, GROWN, DELAYED, FAILING = "remade", "reset", "grown", "delayed", "failing"
DELAYS_S = (1.0, 5.0, 10.0)  # of the levels from 1 on
RETRY_S = 10.0  # the delay of the first retry
MOST_RETRIES = 1
NEVER = 1_000_000
# A due message is delivered within this time, once the faults have ended.
HELD_S = LIVENESS_S
# Messages that a member had pulled before a deletion may still be on their way to the listener.
IN_FLIGHT_S = 2.0


def number_of(value: str) -> int:
    return int(value.rpartition("-")[2])


def delay_s(value: str) -> float:
    """The delay that a message to DELAYED is sent with; levels take turns."""
    return DELAYS_S[number_of(value) % len(DELAYS_S)]


def fate(value: str) -> int:
    """How often the listener of FAILING refuses the message: one of ten always, two once."""
    last = number_of(value) % 10
    return NEVER if last == 3 else int(last in (6, 9))


def check_chores(history: History, verdict: DrillVerdict) -> None:
    """Add what is wrong to `verdict`, and the counts."""
    _ChoresCheck(history, verdict).run()


class _ChoresCheck:
    def __init__(self, history: History, verdict: DrillVerdict) -> None:
        self.verdict = verdict
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.at: dict[tuple[str, str], list[Event]] = defaultdict(list)  # by kind and value
        for event in history.events:
            self.events[event.kind].append(event)
            if event.value:
                self.at[event.kind, event.value].append(event)
        self.calm_at = next((event.at for event in self.events["calm"]), 0.0)

    def run(self) -> None:
        verdict = self.verdict
        for topic in (REMADE, RESET, GROWN, DELAYED, FAILING):
            acked = self._acked(topic)
            verdict.counts[f"acknowledged to {topic}"] = len(acked)
            if not acked:
                verdict.add("nothing happened", [f"no message to {topic} was acknowledged"])
        verdict.counts["dead letters"] = len(self.events["dead"])
        self._phantoms()
        self._remade()
        self._resets()
        for topic in (GROWN, DELAYED):
            verdict.add(f"I1 never delivered to {topic}", self._missing(topic))
        self._delays()
        self._retries()

    def _acked(self, topic: str) -> list[Event]:
        return [event for event in self.events["ok"] if event.who == topic]

    def _missing(self, topic: str) -> list[str]:
        return [_told(e) for e in self._acked(topic) if not self.at["deliver", e.value]]

    def _sent_at(self, value: str) -> float:
        return self.at["invoke", value][0].at

    def _phantoms(self) -> None:
        got = [e for kind in ("deliver", "failed", "dead", "held") for e in self.events[kind]]
        self.verdict.add("I2 phantom", [_told(e) for e in got if not self.at["invoke", e.value]])
        self.verdict.add(
            "I3 refused and yet delivered", [_told(e) for e in got if self.at["fail", e.value]]
        )

    # -- deletions ---------------------------------------------------------------------------------

    def _remade(self) -> None:
        """A life of a topic ends when its deletion begins, since its messages may be gone from
        then on; none of them comes when the topic was made again."""
        made = [event.at for event in self.events["made"]]
        begun = [event.at for event in self.events["delete"]]
        back = []
        for kind, grace in (("deliver", IN_FLIGHT_S), ("held", 0.0)):
            for event in self.events[kind]:
                if event.who == REMADE and self.at["invoke", event.value]:
                    ends = [at for at in made if at > self._sent_at(event.value)]
                    if ends and event.at > ends[0] + grace:
                        back.append(f"{_told(event)}, the topic was made again at {ends[0]:.2f} s")
        self.verdict.add("deleted and came back", back)
        alive = [
            event
            for event in self._acked(REMADE)
            if not begun or self._sent_at(event.value) > begun[-1]
        ]
        gone = [_told(e) for e in alive if not self.at["held", e.value]]
        self.verdict.add("I1 lost from a topic that was made again", gone)
        missed = [_told(e) for e in alive if not self.at["deliver", e.value]]
        self.verdict.add("I1 never delivered of a topic that was made again", missed)

    # -- resets ------------------------------------------------------------------------------------

    def _resets(self) -> None:
        """Check resets. After one to the beginning, all messages that were there come again. After
        one to the end, messages sent before it was done need not come. No other message is left
        out."""
        back = [e.at for e in self.events["reset"] if e.note == "beginning"]
        ahead = [e.at for e in self.events["was reset"] if e.note == "end"]
        missed: list[str] = []
        not_again: list[str] = []
        for event in self._acked(RESET):
            since = max((at for at in back if at >= event.at), default=0.0)
            if any(at >= max(since, self._sent_at(event.value)) for at in ahead):
                continue
            if not any(e.at >= since for e in self.at["deliver", event.value]):
                (not_again if since else missed).append(_told(event))
        self.verdict.add("skipped by a group that was reset", missed)
        self.verdict.add("not repeated after a reset to the beginning", not_again)

    # -- delays, retries ---------------------------------------------------------------------------

    def _delays(self) -> None:
        early, held = [], []
        for event in self.events["deliver"]:
            if event.who == DELAYED and self.at["invoke", event.value]:
                sent, delay = self._sent_at(event.value), delay_s(event.value)
                text = f"{event.value} after {event.at - sent:.3f} s, its delay is {delay:g} s"
                if event.at < sent + delay:
                    early.append(text)
                if event.at > max(sent, self.calm_at) + delay + HELD_S:
                    held.append(text)
        self.verdict.add("I14 early", early)
        self.verdict.add("I14 held", held)

    def _retries(self) -> None:
        lost, early, held, unearned = [], [], [], []
        for event in self._acked(FAILING):
            if not self.at["deliver", event.value] and not self.at["dead", event.value]:
                lost.append(_told(event))
        tried = self.events["failed"] + [e for e in self.events["deliver"] if e.who == FAILING]
        for event in tried:
            retries = int(event.note)
            if not retries:
                continue
            before = [e for e in self.at["failed", event.value] if int(e.note) == retries - 1]
            if not before:
                early.append(f"{_told(event)} as retry {retries}, nobody refused it before")
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
                unearned.append(f"{_told(event)}, refused {len(refused)} times")
        self.verdict.add("I1 lost on the way to another attempt", lost)
        self.verdict.add("I14 a retry came early", early)
        self.verdict.add("I14 a retry was held", held)
        self.verdict.add("dead with retries left", unearned)


def _told(event: Event) -> str:
    return f"{event.value} at {event.broker} {event.queue}:{event.offset} ({event.at:.2f} s)"
