"""The verdict on the chores of a drill (`chores.py`), from their history. Pure.

Beside the kinds of `history.py` and `waits_checker.py` there are:

| kind | who | the rest |
|---|---|---|
| `held` | topic | value, read from the queue when all was over; broker, queue, offset |
| `delete`, `made` | topic | its deletion begins; it is there again |
| `reset`, `was reset` | topic | its group is to be set, and was set, to where `note` says |
"""

from __future__ import annotations

from saturnmq.drills.failover.checker import DrillVerdict
from saturnmq.drills.failover.history import History
from saturnmq.drills.failover.waits_checker import NEVER, EventIndex, delay_s, number_of, told

REMADE, RESET, GROWN, DELAYED, FAILING = "remade", "reset", "grown", "delayed", "failing"
# Messages that a member had pulled before a deletion may still be on their way to the listener.
IN_FLIGHT_S = 2.0


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
        self.index = EventIndex(history)
        self.events, self.at = self.index.events, self.index.at

    def run(self) -> None:
        verdict, index = self.verdict, self.index
        for topic in (REMADE, RESET, GROWN, DELAYED, FAILING):
            acked = index.acked(topic)
            verdict.counts[f"acknowledged to {topic}"] = len(acked)
            if not acked:
                verdict.add("nothing happened", [f"no message to {topic} was acknowledged"])
        verdict.counts["dead letters"] = len(self.events["dead"])
        index.phantoms(verdict, "deliver", "failed", "dead", "held")
        self._remade()
        self._resets()
        for topic in (GROWN, DELAYED):
            verdict.add(f"I1 never delivered to {topic}", index.missing(topic))
        index.delays(verdict, DELAYED, delay_s)
        index.retries(verdict, FAILING)

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
                    ends = [at for at in made if at > self.index.sent_at(event.value)]
                    if ends and event.at > ends[0] + grace:
                        back.append(f"{told(event)}, the topic was made again at {ends[0]:.2f} s")
        self.verdict.add("deleted and came back", back)
        alive = [
            event
            for event in self.index.acked(REMADE)
            if not begun or self.index.sent_at(event.value) > begun[-1]
        ]
        gone = [told(e) for e in alive if not self.at["held", e.value]]
        self.verdict.add("I1 lost from a topic that was made again", gone)
        missed = [told(e) for e in alive if not self.at["deliver", e.value]]
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
        for event in self.index.acked(RESET):
            since = max((at for at in back if at >= event.at), default=0.0)
            if any(at >= max(since, self.index.sent_at(event.value)) for at in ahead):
                continue
            if not any(e.at >= since for e in self.at["deliver", event.value]):
                (not_again if since else missed).append(told(event))
        self.verdict.add("skipped by a group that was reset", missed)
        self.verdict.add("not repeated after a reset to the beginning", not_again)
