"""The traffic of this broker, as RocketMQ's tools show it: totals, rates, totals of days.

A master counts, batch by batch, new queue entries when they are dispatched, so that retries, dead
letters and delayed copies count as in RocketMQ; and answers to pulls. `sample`, called once a
second, notes the totals. A rate is the difference of two notes divided by the time between them; if
the process is younger than the asked time, the rate is that since its start. Counts of a topic, and
of a group that reads it, go with the topic; those of a group go with it, too.

Times are seconds of the steady clock; `now_ms` is wall time and says which day it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from datetime import datetime
from typing import NamedTuple

from saturnmq.broker.tables.counted_spans import CountedSpans, Risen
from saturnmq.store.derived.derived import Arrival

SPANS_S = (10, 60, 600)  # of the three rates of a figure
MINUTE_S = 60  # of the one rate of a topic or group
NOTE_MINUTES_S = 10
TOTALS = {"BROKER_PUT_NUMS": "put", "BROKER_GET_NUMS": "transferred"}  # RocketMQ's names


class Totals(NamedTuple):
    """The totals since the start."""

    put: int = 0  # messages
    found: int = 0  # pulls that got something
    missed: int = 0  # pulls that got nothing
    transferred: int = 0  # messages that pulls got
    timed: int = 0  # timed messages that were delivered


class Day(NamedTuple):
    """Messages put and got by the last two midnights, local time; 0 before the start."""

    put_yesterday: int = 0
    put_today: int = 0
    got_yesterday: int = 0
    got_today: int = 0


class Statistics:
    def __init__(self, now: float, now_ms: int) -> None:
        self.totals = Totals()
        self.day = Day()
        self._date = datetime.fromtimestamp(now_ms / 1000).date()
        self._notes: deque[tuple[float, Totals]] = deque([(now, self.totals)], SPANS_S[-1] + 1)
        self._put: dict[str, int] = {}
        self._got: dict[tuple[str, str], int] = {}  # by group and topic
        # Copies of both, as many as a minute has, and one more.
        self._minutes: deque[tuple[float, dict[str, int], dict[tuple[str, str], int]]]
        self._minutes = deque([(now, {}, {})], MINUTE_S // NOTE_MINUTES_S + 1)
        self._put_spans: CountedSpans[str] = CountedSpans(now)
        self._got_spans: CountedSpans[tuple[str, str]] = CountedSpans(now)
        self._total_spans: CountedSpans[str] = CountedSpans(now)

    def __len__(self) -> int:
        """The number of topics, and of groups that read one, that have counts."""
        return len(self._put) + len(self._got)

    def validate(self) -> None:
        """AssertionError: a total, or the time of a note, has fallen."""
        for figure in (*self.totals, *self.day, *self._put.values(), *self._got.values()):
            assert figure >= 0, f"{figure} messages or pulls"
        (at, then), (now, newest) = self._notes[0], self._notes[-1]
        assert at <= now, f"notes from {at} to {now}"
        assert all(a <= b <= c for a, b, c in zip(then, newest, self.totals, strict=True)), then
        assert self._minutes[0][0] <= self._minutes[-1][0], "minutes are out of order"

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Count new entries of queues."""
        put, (total, *others) = self._put, self.totals
        for arrival in arrivals:
            topic, count = arrival.topic, arrival.messages
            put[topic] = put.get(topic, 0) + count
            total += count
        self.totals = Totals(total, *others)

    def delivered_timed(self, count: int) -> None:
        """Count timed messages whose time has come."""
        self.totals = self.totals._replace(timed=self.totals.timed + count)

    def pulled(self, group: str, topic: str, count: int) -> None:
        """Count a pull that was answered with so many messages."""
        assert count >= 0, f"a pull got {count} messages of {topic}"
        put, found, missed, transferred, timed = self.totals
        if not count:
            self.totals = Totals(put, found, missed + 1, transferred, timed)
            return
        self.totals = Totals(put, found + 1, missed, transferred + count, timed)
        key = group, topic
        self._got[key] = self._got.get(key, 0) + count

    def sample(
        self, now: float, now_ms: int, topics: Container[str], groups: Container[str]
    ) -> None:
        """Note the totals; forget the topics and groups that are not among these any more."""
        assert now >= self._notes[-1][0], f"a note at {now} behind {self._notes[-1][0]}"
        self._notes.append((now, self.totals))
        date = datetime.fromtimestamp(now_ms / 1000).date()
        if date != self._date:
            self._date, day = date, self.day
            self.day = Day(day.put_today, self.totals.put, day.got_today, self.totals.transferred)
        if now - self._minutes[-1][0] >= NOTE_MINUTES_S:
            self._put = {topic: count for topic, count in self._put.items() if topic in topics}
            self._got = {
                (group, topic): count
                for (group, topic), count in self._got.items()
                if topic in topics and group in groups
            }
            self._minutes.append((now, dict(self._put), dict(self._got)))
            if self._put_spans.is_due(now):
                self._put_spans.note(now, self._put)
                self._got_spans.note(now, self._got)
                self._total_spans.note(now, self.totals._asdict())

    def rates(self, name: str, now: float) -> str:
        """The rates a second of a field of the totals, or of found and missed together ("asked"),
        over the last 10, 60 and 600 seconds, as RocketMQ writes them."""
        return " ".join(f"{self.rate(name, now, span):.2f}" for span in SPANS_S)

    def rate(self, name: str, now: float, span: float = MINUTE_S) -> float:
        """The rate a second of a field of the totals, over so many seconds."""
        since, then = self._note_before(now - span)
        return _per_second(_value(self.totals, name) - _value(then, name), now - since)

    def _note_before(self, at: float) -> tuple[float, Totals]:
        """The newest note that is not younger than this, or the oldest one."""
        return next((note for note in reversed(self._notes) if note[0] <= at), self._notes[0])

    def topic_rate(self, topic: str, now: float) -> float:
        """The messages put a second, over the last minute."""
        since, put, _ = self._minutes[0]
        return _per_second(self._put.get(topic, 0) - put.get(topic, 0), now - since)

    def group_rate(self, group: str, topics: Iterable[str], now: float) -> float:
        """The messages of these topics that the group got a second, over the last minute."""
        since, _, got = self._minutes[0]
        keys = [(group, topic) for topic in topics]
        return _per_second(
            sum(self._got.get(key, 0) - got.get(key, 0) for key in keys), now - since
        )

    def spans(self, figure: str, key: str, now: float) -> tuple[Risen, Risen, Risen] | None:
        """A figure of RocketMQ's in the last minute, hour and day; None if it is not counted.
        `key`: the topic of TOPIC_PUT_NUMS, `topic@group` of GROUP_GET_NUMS, anything of
        BROKER_PUT_NUMS and BROKER_GET_NUMS."""
        if figure in TOTALS:
            name = TOTALS[figure]
            total = _value(self.totals, name)
            before = _value(self._note_before(now - MINUTE_S)[1], name)
            minute = Risen(total - before, self.rate(name, now))
            return minute, *self._total_spans.hour_and_day(name, total, now)
        since, put, got = self._minutes[0]
        if figure == "TOPIC_PUT_NUMS" and key in self._put:
            count = self._put[key]
            minute = _span(count - put.get(key, 0), now - since)
            return minute, *self._put_spans.hour_and_day(key, count, now)
        topic, _, group = key.rpartition("@")
        if figure == "GROUP_GET_NUMS" and (group, topic) in self._got:
            count = self._got[group, topic]
            minute = _span(count - got.get((group, topic), 0), now - since)
            return minute, *self._got_spans.hour_and_day((group, topic), count, now)
        return None


def _span(count: int, seconds: float) -> Risen:
    return Risen(max(count, 0), _per_second(count, seconds))


def _value(totals: Totals, name: str) -> int:
    if name == "asked":
        return totals.found + totals.missed
    value: int = getattr(totals, name)
    return value


def _per_second(count: int, seconds: float) -> float:
    return max(count, 0) / seconds if seconds > 0 else 0.0
