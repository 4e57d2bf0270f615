"""All messages that wait for their time, and how far the log was read for them.

The log is the truth: the queue of rmq_sys_wheel_timer has the messages, and the markers say which
of them wait no more (`settlements.py`). The state follows from the log up to a queue offset and
a marker, so a node can go on from a saved copy (`saving.py`), or read everything again.

A master knows its own settlements before they are confirmed, and does not take them twice (`own`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saturnmq.broker.timer.due import MOMENTS, SHELVES, Due
from saturnmq.broker.timer.entries import SETTLED
from saturnmq.broker.timer.runs import Run, RunPart
from saturnmq.broker.timer.settlements import Settlement
from saturnmq.broker.timer.shelf import Shelf, Waiting
from saturnmq.protocol import checked


class PendingMessages:
    def __init__(self) -> None:
        self.shelves = {name: Shelf() for name in SHELVES}
        self.next_offset = 0  # of the queue
        self.next_marker = 0
        self.own: set[int] = set()  # markers of this node that were not read back
        self.topics: Counter[str] = Counter()
        self.before: list[tuple[int, int]] = []  # what a RocketMQ broker had delivered
        self.unreadable = 0  # messages whose frames could not be read

    def __len__(self) -> int:
        """Messages that wait; those settled out of their order count twice."""
        return sum(map(len, self.shelves.values()))

    def validate(self) -> None:
        """AssertionError: no log makes this."""
        for shelf in self.shelves.values():
            shelf.validate()
        assert self.next_offset >= 0, f"read up to {self.next_offset}"
        assert self.next_marker >= 0, f"read up to the marker {self.next_marker}"
        assert all(number > 0 for number in self.topics.values()), self.topics

    # learning

    def came(self, offset: int, due: Due, topic: str) -> None:
        """A message waits."""
        self.shelves[due.shelf].add(due.moment, offset, due.kind)
        self.topics[topic] += 1

    def settle(self, what: Settlement) -> None:
        """Messages wait no more."""
        for name, places in what.places.items():
            for moment, offset in places:
                self.shelves[name].add(moment, offset, SETTLED)
        self.count(what)
        if what.before is not None:
            end, until = what.before
            others = [each for each in self.before if each[0] > end or each[1] > until]
            self.before = [*others, what.before]

    def count(self, what: Settlement) -> None:
        """Count the messages of a settlement out."""
        for topic, number in what.topics.items():
            left = self.topics[topic] - number
            if left > 0:
                self.topics[topic] = left
            else:
                del self.topics[topic]

    def take_due(self, name: str, now: int, most: int) -> list[Waiting]:
        """Let due messages leave a shelf; see `Shelf.take_due`."""
        return self.shelves[name].take_due(now, most, self._is_over(name))

    def _is_over(self, name: str) -> Callable[[int, int], bool]:
        return self.came_from_rocketmq if name == MOMENTS and self.before else _never

    def came_from_rocketmq(self, moment: int, offset: int) -> bool:
        """Whether a RocketMQ broker had delivered this message, which was due at this moment of
        wall time."""
        return any(offset < end and moment <= until for end, until in self.before)

    def put_back(self, name: str, waiting: Iterable[Waiting]) -> None:
        """Messages that had left wait on: they could not be delivered."""
        for entry in waiting:
            self.shelves[name].add(*entry)

    # the saved copy

    def document(self) -> dict[str, Any]:
        """The state, but for entries that are in no run."""
        return {
            "nextOffset": self.next_offset,
            "nextMarker": max(self.next_marker, max(self.own, default=-1) + 1),
            "unreadable": self.unreadable,
            "topics": dict(self.topics),
            "before": [list(known) for known in self.before],
            "shelves": {
                name: [
                    {"files": [list(part) for part in run.parts], "position": run.position}
                    for run in shelf.runs
                    if len(run)
                ]
                for name, shelf in self.shelves.items()
            },
        }

    @classmethod
    def restored(cls, document: Mapping[str, Any]) -> PendingMessages:
        """Read a saved copy. MalformedFrame: a value in it is impossible."""
        pending = cls()
        pending.next_offset = checked.integer(document, "nextOffset")
        pending.next_marker = checked.integer(document, "nextMarker")
        pending.unreadable = checked.integer(document, "unreadable", 0)
        for topic, number in checked.table(document, "topics").items():
            pending.topics[str(topic)] = checked.as_integer(number, "messages of a topic", 1)
        for known in checked.items(document, "before"):
            end, until = (checked.as_integer(number, "a place") for number in known)
            pending.before.append((end, until))
        shelves = checked.table(document, "shelves")
        for name in SHELVES:
            for row in checked.items(shelves, name):
                fields = checked.as_table(row, "a run")
                parts = tuple(
                    RunPart(
                        checked.as_text(file, "a file"), checked.as_integer(count, "entries", 1)
                    )
                    for file, count in checked.items(fields, "files")
                )
                total = sum(part.entries for part in parts)
                position = checked.integer(fields, "position", most=total)
                pending.shelves[name].runs.append(Run(parts, position))
        return pending


def _never(_moment: int, _offset: int) -> bool:
    return False
