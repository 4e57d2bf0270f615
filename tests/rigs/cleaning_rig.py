"""A store with messages in many segments, its disk and its clock, for tests of its cleaning."""

from __future__ import annotations

from datetime import datetime

from saturnmq.store.message_store import MessageStore, StoreConfig
from store_rig import CONFIG, Clock, dispatch, flush, message, new_disk, open_store

HOUR = 3_600_000
NOON = int(datetime(2026, 5, 5, 12).timestamp() * 1000)
FOUR = int(datetime(2026, 5, 9, 4, 30).timestamp() * 1000)


class World:
    """By default about ten segments; `count` messages."""

    def __init__(self, config: StoreConfig = CONFIG, count: int = 300) -> None:
        self.clock = Clock()
        self.clock.now = NOON
        self.disk = new_disk()
        self.disk.now_ms = self.clock.now_ms
        self.config = config
        self.store = self.open()
        for number in range(count):
            self.store.put(message(b"%d" % number + bytes(150), key=f"k{number}"))
        self.save()

    def open(self) -> MessageStore:
        return open_store(self.disk, self.clock, self.config)

    def save(self) -> None:
        dispatch(self.store)
        flush(self.store)
        self.store.flush_derived()
        self.store.checkpoint()

    def clean(self) -> bool:
        self.store.watch_space()
        ticket = self.store.begin_clean()
        if ticket is not None:
            ticket.run()
        return ticket is not None

    def use(self, percent: int) -> None:
        """Make the disk as large as what is on it now is `percent` of it."""
        used = self.disk.total_bytes - self.disk.free_space("/")[1]
        self.disk.total_bytes = -(-used * 100 // percent)

    @property
    def segments(self) -> list[str]:
        return [e.name for e in self.disk.list("/store/commitlog") if not e.is_dir]

    @property
    def waiting(self) -> list[str]:
        return [e.name for e in self.disk.list("/store/commitlog/deleted")]
