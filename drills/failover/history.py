"""The history of a drill: what every client asked for and got, and what was done to the cluster.

One `Event` a line, in the order in which things happened; the drill's processes share one clock.
Values name their sender and count up: `key-0-17` is the 17th message of `key-0`.

| kind | who | the rest |
|---|---|---|
| `invoke` | sender | value; `note` is IN_ORDER if its sender is promised order |
| `ok` | sender | value, and where it lies: broker, queue, offset; `node` is the address that \
acknowledged it, `position` the offset in its log |
| `fail` | sender | value; `note` the definite refusal |
| `unknown` | sender | value; stored or not, nobody knows; `note` why |
| `deliver` | group | broker, queue, offset, value; `note`: AGAIN if the listener wants it again, \
else what is wrong with it |
| `committed` | group | broker, queue, and the offset the broker holds |
| `read` | a reader | broker: old messages could be read; `note` is when it asked |
| `leads` | a node | broker: it is the master of this group from now on, as it says |
| `fault`, `heal` | what is done | broker: the group hurt, or empty |
| `struck` | a fault | it is done: what began before may have been in time |
| `calm` | | all faults have ended |

`note` of `leads` and of a promotion is `epoch N`. Written as JSON lines, empty fields left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

IN_ORDER, AGAIN = "in order", "again"
ONCE = "once"  # senders that repeat nothing


class Event(NamedTuple):
    """Something that happened `at` seconds after the drill's load began."""

    at: float
    kind: str
    who: str = ""
    value: str = ""
    broker: str = ""
    queue: int = -1
    offset: int = -1
    note: str = ""
    node: str = ""
    position: int = -1

    def to_json(self) -> str:
        defaults = Event._field_defaults
        pairs = zip(Event._fields, self, strict=True)
        told = {name: value for name, value in pairs if value != defaults.get(name)}
        return json.dumps(told)

    @classmethod
    def from_json(cls, line: str) -> Event:
        fields: dict[str, Any] = json.loads(line)
        return cls(**fields)


@dataclass
class History:
    """All events so far; `now` gives the seconds since the load began."""

    now: Callable[[], float] = lambda: 0.0
    events: list[Event] = field(default_factory=list)

    def add(self, kind: str, who: str = "", value: str = "", **rest: Any) -> Event:
        event = Event(self.now(), kind, who, value, **rest)
        self.events.append(event)
        return event

    def of(self, *kinds: str) -> Iterator[Event]:
        return (event for event in self.events if event.kind in kinds)

    def struck_at(self, fault: Event) -> float:
        """When this fault was done; when it began, if that is not known."""
        done = (e.at for e in self.of("struck") if e.who == fault.who and e.at >= fault.at)
        return next(done, fault.at)

    def write(self, path: Path) -> None:
        with open(path, "w") as file:
            file.writelines(f"{event.to_json()}\n" for event in self.events)

    @classmethod
    def read(cls, lines: Iterable[str]) -> History:
        return cls(events=[Event.from_json(line) for line in lines if line.strip()])
