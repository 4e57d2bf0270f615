"""Deleted consumer groups: which of their offsets do not count any more.

A node that was away still has the offsets of a group that was deleted meanwhile, and its master
merges them when it joins. So a deletion begins a new generation of the group's marks
(`progress.py`), above all that the master knows. Marks below it do not count, wherever they come
from. If the group comes back, its marks begin in that generation.

`"deletedTable"` of `config/consumerOffset.json`: `{"<group>":<first generation that counts>}`,
copied by slaves with the offsets. The newest KEPT_MAX deletions are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saturnmq.broker.tables.table_persistence import readable
from saturnmq.protocol import checked

KEY = "deletedTable"
KEPT_MAX = 5000  # they are read in one step: two milliseconds
ENTRY_BYTES = 15  # of one in the table's text, without the name


class DeletedGroups:
    def __init__(self) -> None:
        self._first: dict[str, int] = {}  # generations; the newest deletion is the last
        self.text_bytes = 0

    def __len__(self) -> int:
        return len(self._first)

    def first(self, group: str) -> int:
        """The generation in which the marks of this group begin."""
        return self._first.get(group, 0)

    def add(self, group: str, newest: int) -> None:
        """Let no mark of this group count up to generation `newest`."""
        self._put(group, (newest | 1) + 1)  # an even one: nobody has to follow a reset

    def merge(self, document: Mapping[str, Any]) -> bool:
        """Take the deletions in another node's document; whether one is new here."""
        before = self._first
        table = checked.table(document, KEY)
        theirs = dict(readable(table, _first, "the deletion of group"))
        new = {group: first for group, first in theirs.items() if first > before.get(group, 0)}
        for group, first in new.items():
            self._put(group, first)
        return bool(new)

    def to_json(self) -> dict[str, int]:
        return dict(self._first)

    def validate(self) -> None:
        """AssertionError: a generation cannot be, or the bytes are counted wrongly."""
        assert all(not first & 1 for first in self._first.values()), "a deletion is no reset"
        assert len(self) <= KEPT_MAX, f"{len(self)} deletions are kept"
        counted = sum(ENTRY_BYTES + len(group) for group in self._first)
        assert self.text_bytes == counted, f"{self.text_bytes} bytes, not {counted}"

    def _put(self, group: str, first: int) -> None:
        if self._first.pop(group, None) is None:
            self.text_bytes += ENTRY_BYTES + len(group)
        self._first[group] = first
        if len(self) > KEPT_MAX:
            oldest = next(iter(self._first))
            del self._first[oldest]
            self.text_bytes -= ENTRY_BYTES + len(oldest)


def _first(group: str, generation: object) -> tuple[str, int]:
    return group, checked.as_integer(generation, "its generation") & ~1
