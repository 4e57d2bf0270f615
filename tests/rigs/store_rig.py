"""A store on the simulated disk, with a clock the test moves; shared by the tests of the store."""

from __future__ import annotations

import random

import pytest
from saturnmq.drills.sim.disk import PAGE, SimDisk, SimSegment
from saturnmq.protocol.kernels import decode_frames
from saturnmq.store.message_store import MessageStore, PendingMessage, StoreConfig

SEGMENT = 8192
CONFIG = StoreConfig(
    root="/store",
    commitlog_segment_bytes=SEGMENT,
    consumequeue_segment_bytes=400,
    index_slots=50,
    index_items=40,
    zero_ahead_bytes=4096,
)


class Clock:
    """The part of a runtime that the store uses."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now


def new_disk(seed: int = 1) -> SimDisk:
    return SimDisk(random.Random(seed))


def files_have_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system names only what lies between holes, in pages."""

    def written(segment: SimSegment, position: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for page in range(position - position % PAGE, segment.size, PAGE):
            if any(segment.view[page:][:PAGE]):
                begin = found.pop()[0] if found and found[-1][1] == page else max(page, position)
                found.append((begin, min(page + PAGE, segment.size)))
        return found

    monkeypatch.setattr(SimSegment, "written", written)


def open_store(disk, clock=None, config=CONFIG) -> MessageStore:
    return MessageStore.open(config, disk, clock or Clock())


def message(body: bytes, topic: str = "T", queue: int = 0, tag: str = "A", key: str = "k"):
    properties = f"TAGS\x01{tag}\x02KEYS\x01{key}\x02".encode()
    return PendingMessage(topic, queue, body, properties)


def dispatch(store: MessageStore) -> None:
    while store.reput():
        pass


def flush(store: MessageStore) -> None:
    ticket = store.begin_flush()
    if ticket is not None:
        ticket.run()
        store.complete_flush(ticket)


def bodies(store: MessageStore, queue: int = 0, topic: str = "T") -> list[bytes]:
    found, offset = [], store.min_offset(topic, queue)
    while offset < store.max_offset(topic, queue):
        result = store.get_message(topic, queue, offset, 32)
        if result.next_begin_offset <= offset:
            break
        found += [m.body for m in decode_frames(result.data, True)]
        offset = result.next_begin_offset
    return found
