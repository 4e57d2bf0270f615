"""Queue locks of ordered consumption: (group, queue) -> the client that may consume it.

A client asks for its locks every 20 s by LOCK_BATCH_MQ 41, and releases them by 42. A lock expires
60 s after its owner last asked for it (the client itself trusts it for only 30 s), and is then free
for any client. Locks are in the memory of the master: the next one knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from saturnmq.protocol.message import MessageQueue

LOCK_SECONDS = 60.0


class QueueLockTable:
    def __init__(self) -> None:
        self._owners: dict[str, dict[MessageQueue, tuple[str, float]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def validate(self) -> None:
        """AssertionError: locks are counted wrongly, or kept for ever."""
        counted = sum(map(len, self._owners.values()))
        assert self._count == counted, f"{self._count} locks are known of {counted}"
        for group, owners in self._owners.items():
            for queue, (client_id, until) in owners.items():
                assert until > 0, f"{client_id} has locked {queue} of {group} until {until}"

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now: float
    ) -> list[MessageQueue]:
        """Lock queues; return those that now belong to `client_id`."""
        owners = self._owners.setdefault(group, {})
        before = len(owners)
        granted = []
        for queue in queues:
            owner, until = owners.get(queue, (client_id, 0.0))
            if owner == client_id or until <= now:
                owners[queue] = (client_id, now + LOCK_SECONDS)
                granted.append(queue)
        assert len(owners) >= before, f"{before - len(owners)} locks went"
        assert all(owners[queue][0] == client_id for queue in granted), (client_id, granted)
        self._count += len(owners) - before
        return granted

    def unknown(self, group: str, queues: Iterable[MessageQueue]) -> int:
        """The number of these queues that no client has asked for lately."""
        owners = self._owners.get(group, {})
        return sum(queue not in owners for queue in queues)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        owners = self._owners.get(group, {})
        for queue in queues:
            if queue in owners and owners[queue][0] == client_id:
                del owners[queue]
                self._count -= 1
        assert self._count >= 0, f"{self._count} locks"

    def clear(self) -> None:
        """Forget all locks."""
        self._owners.clear()
        self._count = 0

    def expire(self, now: float) -> None:
        """Forget the expired locks."""
        for group in list(self._owners):
            owners = {queue: held for queue, held in self._owners[group].items() if held[1] > now}
            self._count -= len(self._owners[group]) - len(owners)
            assert self._count >= len(owners), f"{self._count} locks, {len(owners)} of {group}"
            if owners:
                self._owners[group] = owners
            else:
                del self._owners[group]

    def holds_any(self, group: str, now: float) -> bool:
        """Whether the group consumes in order at present."""
        return any(until > now for _, until in self._owners.get(group, {}).values())
