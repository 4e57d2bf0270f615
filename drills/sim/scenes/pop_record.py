"""The deliveries that members of a popping group got, and what is wrong with them.

Time is the virtual time of the world; the wall clocks of nodes need not agree with it. A time
begins when its broker records it, which is not before the member asked, and an acknowledgement
counts when the broker records it, which is not before the member asked either. So a delivery holds
its message, and in an ordered group its queue, from its arrival to the end of the time after that
question, or to the question of its acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, groupby, pairwise
from operator import attrgetter

from saturnmq.drills.sim.history import Place
from saturnmq.drills.sim.verdict import told

EARLY_S = 0.002  # brokers count milliseconds
WAIT_S = 1.0  # of one receive: the less, the closer is the verdict


@dataclass
class PopDelivery:
    """One delivery of a message, and what its member did with it."""

    place: Place
    value: str
    pop: int  # the number of the question that it answers
    at: float
    until: float  # nobody else may have it before
    number: int  # of attempts before
    member: str
    ack_asked: float | None = None
    acked: float | None = None  # when the answer came

    @property
    def key(self) -> str:
        """A message by its place in the log: a value may be stored more than once."""
        return f"{self.place} {self.value}"

    def holds_at(self, at: float) -> bool:
        """Whether the message is still out at this time, later than its arrival."""
        is_done = self.ack_asked is not None and self.ack_asked <= at
        return at < self.until - EARLY_S and not is_done

    @property
    def was_late(self) -> bool:
        """Whether its time may have been over before it came."""
        return self.at >= self.until - EARLY_S

    def __str__(self) -> str:
        return f"{self.key} to {self.member} at {self.at:.3f}"


@dataclass
class PopRecord:
    """All deliveries of one group. `excused`: whether the record of what a broker of this group
    promised at this time may be gone from its log."""

    excused: Callable[[str, float], bool]
    deliveries: dict[str, list[PopDelivery]] = field(default_factory=dict)  # by key
    acked: set[str] = field(default_factory=set)
    # When the acknowledgements were asked for that may have been done.
    ack_asked: dict[str, list[float]] = field(default_factory=dict)

    def add(self, delivery: PopDelivery) -> None:
        self.deliveries.setdefault(delivery.key, []).append(delivery)

    def ask(self, key: str, at: float) -> None:
        """An acknowledgement was asked for."""
        self.ack_asked.setdefault(key, []).append(at)

    def refuse(self, key: str, at: float) -> None:
        """The acknowledgement that was asked for at this time was not done. Another delivery of the
        message may have been acknowledged meanwhile."""
        self.ack_asked[key].remove(at)
        if not self.ack_asked[key]:
            del self.ack_asked[key]

    def verdict(self) -> list[str]:
        """The violations in any group."""
        twice, after, uncounted = [], [], []
        for deliveries in self.deliveries.values():
            for one, two in combinations(deliveries, 2):
                text = f"{one} and to {two.member} at {two.at:.3f}"
                if two.at < one.until - EARLY_S and not self._forgotten(one):
                    twice.append(f"{text}, its time was not over before {one.until:.3f}")
                done = one.acked
                if done is None or two.at <= done + WAIT_S:
                    continue
                if not self.excused(one.place.group, done):
                    after.append(f"{text}, acknowledged at {done:.3f}")
            in_time = [each for each in deliveries if not each.was_late]
            for one, two in pairwise(in_time):
                if two.number <= one.number and not self._forgotten(one):
                    uncounted.append(f"{one} after {one.number} attempts, {two} after {two.number}")
        found = told("I18 pop: given out twice within its invisible time", twice)
        found += told("I18 pop: given out after its acknowledgement", after)
        return found + told("I18 pop: an attempt was not counted", uncounted)

    def order_verdict(self, stored: Mapping[Place, str]) -> list[str]:
        """The violations in an ordered group, whose messages are these."""
        return [*self._unlocked(), *self._passed_over(stored)]

    def _unlocked(self) -> list[str]:
        """Messages of a queue that was held."""
        found = []
        for deliveries in self._by(lambda each: (each.place.group, each.place.queue)):
            for one, two in combinations(deliveries, 2):
                is_held = one.pop != two.pop and one.holds_at(two.at) and not two.was_late
                if is_held and not self._forgotten(one):
                    found.append(f"{two}, and {one} was out until {one.until:.3f}")
        return told("I18 pop: more of an ordered queue while messages of it are out", found)

    def _passed_over(self, stored: Mapping[Place, str]) -> list[str]:
        """Messages that came before an earlier one of their queue was acknowledged."""
        found = []
        for deliveries in self._by(attrgetter("pop", "place.group", "place.queue")):
            last, offsets = deliveries[-1], {each.place.offset for each in deliveries}
            before = (
                (place, f"{place} {value}")
                for place, value in stored.items()
                if (place.group, place.queue) == (last.place.group, last.place.queue)
                and place.offset < max(offsets)
                and place.offset not in offsets
            )
            open_ = [key for _, key in before if min(self.ack_asked.get(key, [last.at])) >= last.at]
            if open_ and not self._forgotten(last):
                found.append(f"{last}, before {open_[0]} was acknowledged")
        return told("I18 pop: an ordered queue went past a message", found)

    def _by(self, key: Callable[[PopDelivery], tuple[object, ...]]) -> Iterator[list[PopDelivery]]:
        """All deliveries with the same key, in the order in which they came."""
        each = [one for deliveries in self.deliveries.values() for one in deliveries]
        each.sort(key=lambda one: (key(one), one.at))
        for _, group in groupby(each, key):
            yield list(group)

    def _forgotten(self, one: PopDelivery) -> bool:
        return self.excused(one.place.group, one.at)
