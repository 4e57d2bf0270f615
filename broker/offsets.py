"""Consumer offsets: per group, topic and queue, where the group goes on.

`config/consumerOffset.json`: `{"dataVersion":DV,"offsetTable":{"<topic>@<group>":{"<queue>":n}}}`,
written by this module every 5 s if something changed, read at start, copied by slaves (code 43).

Rule (store-format row 3.25): a commit below the known offset is ignored; only an explicit reset
moves an offset back. A reset is also pending for the queue's next pull, which answers
PULL_OFFSET_MOVED once (remoting §2.2 OFFSET_RESET); commits are ignored until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saturnmq.broker.documents import Saveable

SEPARATOR = "@"


class ConsumerOffsets(Saveable):
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._table: dict[tuple[str, str], dict[int, int]] = {}  # (topic, group) -> queue -> next
        self._resets: dict[tuple[str, str, int], int] = {}
        self._counter = 0

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """False if it would move back (or a reset is pending)."""
        if (topic, group, queue_id) in self._resets:
            return False
        queues = self._table.setdefault((topic, group), {})
        known = queues.get(queue_id)
        if known is not None and offset <= known:
            return offset == known
        queues[queue_id] = offset
        self._touch()
        return True

    def reset(self, group: str, topic: str, queue_id: int, offset: int, *, notify: bool) -> None:
        """Set the offset whatever it was; with `notify` the next pull is told to move."""
        self._table.setdefault((topic, group), {})[queue_id] = offset
        if notify:
            self._resets[topic, group, queue_id] = offset
        self._touch()

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        if not self._resets:
            return None
        return self._resets.pop((topic, group, queue_id), None)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._table.get((topic, group), {}).get(queue_id)

    def topics_of(self, group: str) -> list[str]:
        return sorted(topic for topic, owner in self._table if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        return sorted(group for name, group in self._table if name == topic)

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        for key in [k for k in self._table if k[0] == topic or k[1] == group]:
            del self._table[key]
            self._touch()

    def clamp(self, max_offset: Callable[[str, int], int]) -> list[tuple[str, str, int, int, int]]:
        """After recovery: no offset lies behind its queue's end. What was lowered."""
        lowered = []
        for (topic, group), queues in self._table.items():
            for queue_id, offset in queues.items():
                end = max_offset(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    lowered.append((topic, group, queue_id, offset, end))
                    self._touch()
        return lowered

    def merge(self, document: Mapping[str, Any]) -> None:
        """Take over another table (the file's, the master's); offsets only rise."""
        table = document.get("offsetTable") or {}
        for key, queues in table.items():
            parts = str(key).split(SEPARATOR)
            if len(parts) != 2:
                continue  # topic@group@broadcast of 5.x: not ours
            known = self._table.setdefault((parts[0], parts[1]), {})
            for queue_id, offset in queues.items():
                if int(offset) > known.get(int(queue_id), -1):
                    known[int(queue_id)] = int(offset)
                    self._dirty = True

    def snapshot(self) -> dict[str, Any]:
        return {
            "dataVersion": {
                "counter": self._counter,
                "stateVersion": 0,
                "timestamp": self._now_ms(),
            },
            "offsetTable": {
                f"{topic}{SEPARATOR}{group}": {str(q): n for q, n in sorted(queues.items())}
                for (topic, group), queues in sorted(self._table.items())
                if queues
            },
        }

    def items(self) -> Iterable[tuple[tuple[str, str], dict[int, int]]]:
        return self._table.items()

    def _touch(self) -> None:
        self._counter += 1
        self._dirty = True
