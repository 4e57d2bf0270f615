"""What a simulated run promised and what was delivered, and the checks between the two.

Every message carries a unique value, `lane/counter`: a lane is one sender that writes to one
queue, one message after the other. Checks, by their names in the fault model: I1 no acked loss,
I2 no phantom and no corruption, I3 rejected means never, I4 one message per (queue, offset) and
no gaps, I5 order per queue.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field


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


@dataclass
class History:
    """Filled while the run goes on; `check` is pure."""

    invoked: dict[str, int] = field(default_factory=dict)  # value -> lane
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)  # value -> (queue, offset)
    unknown: dict[str, str] = field(default_factory=dict)  # value -> why
    rejected: dict[str, str] = field(default_factory=dict)
    delivered: list[tuple[int, int, str | None]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)  # value -> times delivered
    highest: dict[int, int] = field(default_factory=dict)  # queue -> highest delivered offset

    def deliver(self, queue: int, offset: int, body: bytes) -> None:
        value = read_body(body)
        self.delivered.append((queue, offset, value))
        self.highest[queue] = max(offset, self.highest.get(queue, -1))
        if value is not None:
            self.seen[value] = self.seen.get(value, 0) + 1

    @property
    def outstanding(self) -> list[str]:
        """Acknowledged values that nobody has received yet."""
        return [value for value in self.acked if value not in self.seen]

    @property
    def duplicates(self) -> int:
        return sum(self.seen.values()) - len(self.seen)

    def check(self, ordered: bool) -> list[str]:
        """All broken invariants, each as a line; `ordered` asks for I5 on what the consumer saw."""
        errors = [
            f"I1 acked message lost: {value} at queue {self.acked[value][0]} offset "
            f"{self.acked[value][1]}"
            for value in self.outstanding
        ]
        names: dict[tuple[int, int], str] = {}
        newest: dict[int, int] = {}
        for queue, offset, value in self.delivered:
            if value is None or value not in self.invoked:
                errors.append(f"I2 phantom or damaged message {value!r} at {queue}:{offset}")
                continue
            if value in self.rejected:
                errors.append(f"I3 rejected message delivered: {value} ({self.rejected[value]})")
            first = names.setdefault((queue, offset), value)
            if first != value:
                errors.append(f"I4 {queue}:{offset} was {first} and became {value}")
            if ordered and offset > newest.get(queue, -1) + 1:
                errors.append(f"I5 {queue}: offset {offset} after {newest.get(queue, -1)}: a skip")
            newest[queue] = max(offset, newest.get(queue, -1))
        for value, place in self.acked.items():
            if value in self.seen and names.get(place, value) != value:
                errors.append(f"I4 {value} was acked at {place}, there lies {names[place]}")
        for queue, top in self.highest.items():
            missing = [n for n in range(top + 1) if (queue, n) not in names]
            if missing:
                errors.append(f"I4 queue {queue}: offsets never delivered: {missing[:10]}")
        return errors + self._check_lanes()

    def _check_lanes(self) -> list[str]:
        """A lane's acknowledged offsets rise in the order of its sends."""
        errors = []
        last: dict[int, tuple[int, str]] = {}
        for value, lane in self.invoked.items():
            if value not in self.acked:
                continue
            offset = self.acked[value][1]
            before = last.get(lane)
            if before is not None and offset <= before[0]:
                errors.append(f"I5 {value} at {offset} after {before[1]} at {before[0]}")
            last[lane] = (offset, value)
        return errors
