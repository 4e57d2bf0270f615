"""The acknowledgements and deliveries that the clients of a simulated cluster got.

Every message carries a unique value, `lane/counter.attempt`: a lane is one sender that waits for
each answer before it sends on. A lane is bound to one queue, or it leaves the choice to the
producer. Filled while a run goes on; `verdict.py` judges it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


def make_body(value: str, padding: int) -> bytes:
    """`value|crc|padding`: the checksum is over value and padding, made before anything else sees
    them.
    """
    filler = (value * (padding // max(1, len(value)) + 1))[:padding].encode()
    return b"%s|%08x|%s" % (value.encode(), zlib.crc32(value.encode() + filler), filler)


def read_body(body: bytes) -> str | None:
    """The value, or None if the body is not one that `make_body` made."""
    parts = body.split(b"|", 2)
    if len(parts) != 3:
        return None
    value, crc, filler = parts
    if crc != b"%08x" % zlib.crc32(value + filler):
        return None
    return value.decode()


LATER = -1  # the queue of a message that comes to its queue when its time has come


class Place(NamedTuple):
    """The place of a message."""

    group: str
    queue: int
    offset: int

    def __str__(self) -> str:
        return f"{self.group} {self.queue}:{self.offset}"


class Ack(NamedTuple):
    """A promise: the message lies there, `by` the broker of this name."""

    place: Place
    at: float
    by: str


class Delivery(NamedTuple):
    """A message that a listener got; `value` None: a body that no sender sent, or a damaged one."""

    at: float
    place: Place
    value: str | None


@dataclass
class SimHistory:
    """`invoked`: value -> its lane, in the order of the sends; `begun`: when that was. `unknown`,
    `rejected`: why.
    """

    invoked: dict[str, str] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    acked: dict[str, Ack] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)  # by consumer group
    first_seen: dict[str, dict[str, Delivery]] = field(default_factory=dict)

    ends: dict[tuple[str, int], int] = field(default_factory=dict)  # acknowledged, by queue
    # Messages that a group's listener asked for again and has not got, by group and value.
    sent_back: dict[tuple[str, str], Delivery] = field(default_factory=dict)
    taken: set[tuple[str, str]] = field(default_factory=set)  # by a listener, and delivered again

    def invoke(self, value: str, lane: str, at: float) -> None:
        self.invoked[value] = lane
        self.begun[value] = at

    def ack(self, value: str, ack: Ack) -> None:
        self.acked[value] = ack
        queue = ack.place.group, ack.place.queue
        self.ends[queue] = max(ack.place.offset + 1, self.ends.get(queue, 0))

    def reader(self, group: str) -> None:
        """There is a consumer group of this name."""
        self.deliveries[group] = []
        self.first_seen[group] = {}

    def deliver(
        self, group: str, at: float, place: Place, body: bytes, *, again: bool = False
    ) -> Delivery:
        """`again`: it comes from the group's own retry topic, so its place is another."""
        delivery = Delivery(at, place, read_body(body))
        if not again:
            self.deliveries[group].append(delivery)
        if (value := delivery.value) is not None:
            before = self.first_seen[group].setdefault(value, delivery)
            if self.sent_back.pop((group, value), None) is None and before is not delivery:
                self.taken.add((group, value))
        return delivery

    def send_back(self, group: str, delivery: Delivery) -> None:
        """The listener wants it once more. If a member had taken it before, the group has it, and
        who got it a second time may find nobody to ask."""
        if delivery.value is not None and (group, delivery.value) not in self.taken:
            self.sent_back[group, delivery.value] = delivery

    def lanes(self) -> Iterator[list[str]]:
        """The acknowledged values of each lane, in the order of the sends."""
        lanes: dict[str, list[str]] = {}
        for value, lane in self.invoked.items():
            if value in self.acked:
                lanes.setdefault(lane, []).append(value)
        yield from lanes.values()

    @property
    def delivered(self) -> int:
        return sum(map(len, self.deliveries.values()))

    @property
    def duplicates(self) -> int:
        return self.delivered - sum(map(len, self.first_seen.values()))
