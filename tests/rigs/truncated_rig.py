"""Side files of truncations, made by a store that is cut."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.properties import encode_properties
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import AtomicBatchPart, MessageStore, PendingMessage
from store_rig import CONFIG, Clock, dispatch

BORN = 1_600_000_000_000


def pending(
    body: bytes, topic: str = "orders", queue: int = 0, unique_id: str = "", **properties: str
) -> PendingMessage:
    """A message to store, with `unique_id`, or its body as that."""
    given = {"UNIQ_KEY": unique_id or body.decode(), **properties}
    return PendingMessage(topic, queue, body, encode_properties(given), born_timestamp=BORN)


def cut_off(
    root: Path, messages: Iterable[PendingMessage | list[bytes]], *, age_s: float = 1.0
) -> Path:
    """The side file of a store below `root` that had these messages, or the rows of a sink, and
    lost them all; they were stored `age_s` ago."""
    clock = Clock()
    clock.now = int((time.time() - age_s) * 1000)
    store = MessageStore.open(replace(CONFIG, root=str(root)), NativeDisk(), clock)
    for each in messages:
        if isinstance(each, list):
            data = bytes(encode_batch((row, b"", 0) for row in each))
            count, size = store.measure_part("orders", data)
            list(
                store.append_group(
                    b"{}", [AtomicBatchPart("orders", 0, count, size, lambda d=data: d)]
                )
            )
        else:
            store.put(each)
    dispatch(store)
    store.truncate(0, reason="deposed", epoch=3)
    store.close()
    return Path(store.truncated()[0].file)
