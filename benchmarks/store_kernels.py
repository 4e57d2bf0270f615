"""What the store's inner loops reach, without network and client.

    python benchmarks/store_kernels.py [--json] [--quick] [--directory DIR]

How figures are taken says kernel_figures.py; of dispatch, which writes to new pages of files, each
is the median of many runs. Messages are as our client sends them: a body, UNIQ_KEY and WAIT, a
claimed CRC; frames get the CRC property.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from kernel_figures import RUNS, best, main
from saturnmq.protocol import kernels
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.jhash import tags_code
from saturnmq.protocol.sql92 import Sql
from saturnmq.store.delay_levels import DEFAULT_DELAYS_MS
from saturnmq.store.derived.derived import Derived
from saturnmq.store.derived.indexfile import Index
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import MessageStore, StoreConfig
from targets import BenchTarget

BATCH_BYTES = 1 << 20  # what our client sends at most
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
TOPIC = b"benchmark"
NOW = 1_700_000_000_000
PROPERTIES_MAX = 32_767
MIB = 1 << 20


TARGETS = {
    "append 100 B, msg/s": BenchTarget(4e6),
    "append 1 KiB, GB/s": BenchTarget(2.0),
    "dispatch 100 B, msg/s": BenchTarget(10e6),
    "recovery 1 KiB, GB/s": BenchTarget(1.0),
    "get 32 messages, us": BenchTarget(5.0, at_most=True),
    "look for a tag of 1 %, entries/s": BenchTarget(20e6),
    "look for price > 990, msg/s": BenchTarget(1e6),
    "look by a range and a list, msg/s": BenchTarget(1e6),
    "look by texts, msg/s": BenchTarget(1e6),
}
CONDITIONS = {
    "look for price > 990, msg/s": "price > 990",
    "look by a range and a list, msg/s": "price BETWEEN 10 AND 59 AND region IN ('eu', 'us')",
    "look by texts, msg/s": "note CONTAINS 'e7' AND TAGS IS NOT NULL AND NOT (region = 'eu')",
}


class StoreClock:
    """The part of a runtime that the store uses."""

    def now_ms(self) -> int:
        return NOW


def batch(body_bytes: int, total: int = BATCH_BYTES) -> tuple[bytes, int]:
    """A batch body of about `total` bytes, and its messages."""
    out, count = bytearray(), 0
    body = bytes(i * 7 & 0xFF for i in range(body_bytes))
    while len(out) < total:
        unique = f"UNIQ_KEY\x01{'7F000001000051AF' + '0' * 12}{count:04X}\x02WAIT\x01true\x02"
        encode_batch_item(out, body, unique.encode(), 0, True)
        count += 1
    return bytes(out), count


class Append:
    """check_batch and write_batch of one batch into memory that is warm, as the writer does."""

    def __init__(self, body_bytes: int, scale: float, crc_property: bool = True) -> None:
        self.body, self.count = batch(body_bytes, int(BATCH_BYTES * scale))
        self.crc_property = crc_property
        _, self.bytes = self._check()
        self.frames = bytearray(self.bytes)

    def _check(self) -> tuple[int, int]:
        return kernels.check_batch(
            self.body, len(TOPIC), 0, self.crc_property, 4 << 20, PROPERTIES_MAX
        )

    def __call__(self) -> None:
        self._check()
        view = memoryview(self.frames)
        kernels.write_batch(
            self.body, view, 0, 0, 0, 0, 0, NOW, HOST, NOW, HOST, 0, TOPIC, self.crc_property
        )


def append_figures(scale: float) -> Iterator[tuple[str, float]]:
    small, large = Append(100, scale), Append(1024, scale)
    bare = Append(100, scale, crc_property=False)
    yield "append 100 B, msg/s", small.count / best(small, 20)
    yield "append 100 B without CRC property, msg/s", bare.count / best(bare, 20)
    seconds = best(large, 20)
    yield "append 1 KiB, GB/s", large.bytes / seconds / 1e9
    yield "append 1 KiB, msg/s", large.count / seconds


class Dispatch:
    """Frames in memory to files: scan_frames, queue entries, and if asked index items."""

    def __init__(self, directory: str, scale: float, index: bool) -> None:
        append = Append(100, scale)
        append()
        self.frames, self.count = bytes(append.frames), append.count
        self.index = index
        self.first = 0
        self._disk = NativeDisk()
        files = Index(self._disk, f"{directory}/index", 5_000_000, 20_000_000, StoreClock().now_ms)
        queues = QueueTable(self._disk, f"{directory}/consumequeue", 6_000_000)
        self.derived = Derived(queues, files if index else None)

    def __call__(self) -> None:
        scan = kernels.scan_frames(
            self.frames, 0, len(self.frames), 0, False, self.index, DEFAULT_DELAYS_MS
        )
        runs = [(*run[:2], self.first, *run[3:]) for run in scan.runs]  # the queue goes on
        self.first += self.count
        self.derived.append(scan._replace(runs=runs), [])


def dispatch_figures(directory: str, scale: float) -> Iterator[tuple[str, float]]:
    for index in (False, True):
        work = Dispatch(f"{directory}/dispatch-{index}", scale, index)
        runs = 100 if scale == 1 else 3
        for _ in range(runs):  # files are made, and every page of the index's slots is touched
            work()
        seconds = statistics.median(best(work, 1) for _ in range(runs))
        work.derived.close()
        yield f"dispatch{' and index' if index else ''} 100 B, msg/s", work.count / seconds
    append = Append(100, scale)
    append()
    frames = bytes(append.frames)
    for name, crc, index in (
        ("", False, False),
        (" with index items", False, True),
        (" with CRC", True, True),
    ):
        seconds = best(
            lambda crc=crc, index=index: kernels.scan_frames(
                frames, 0, len(frames), 0, crc, index, DEFAULT_DELAYS_MS
            ),
            20,
        )
        yield f"scan{name} 100 B, msg/s", append.count / seconds


def filled(directory: str, body_bytes: int, log_bytes: int) -> tuple[StoreConfig, MessageStore]:
    """A store whose log has about so many bytes, all dispatched."""
    config = StoreConfig(
        root=directory,
        commitlog_segment_bytes=256 * MIB,
        index_slots=500_000,
        index_items=2_000_000,
        zero_ahead_bytes=0,
        disk_enough_bytes=1024 * MIB,
    )
    store = MessageStore.open(config, NativeDisk(), StoreClock())
    body, _ = batch(body_bytes)
    number = 0
    while store.watermarks.appended < log_bytes:
        store.put_batch("benchmark", number % 4, body, born_host=HOST, store_host=HOST)
        number += 1
        while store.reput():
            pass
    return config, store


def recovery_figures(directory: str, scale: float) -> Iterator[tuple[str, float]]:
    """All of the log again, checksums on, queues and index built, from the page cache."""
    config, store = filled(f"{directory}/recovery", 1024, int(384 * MIB * scale))
    store.close()
    taken, busy = [], []
    for _ in range(5 if scale == 1 else 1):
        Path(config.root, "abort").write_bytes(b"1")
        Path(config.root, "checkpoint").unlink()
        begin, begin_busy = time.perf_counter(), time.process_time()
        store = MessageStore.open(config, NativeDisk(), StoreClock())
        taken.append(time.perf_counter() - begin)
        busy.append(time.process_time() - begin_busy)
        size, count = store.recovery.end, store.recovery.messages
        store.close()
    yield "recovery 1 KiB, GB/s", size / min(taken) / 1e9
    yield "recovery 1 KiB, GB per processor second", size / min(busy) / 1e9
    yield "recovery 1 KiB, msg/s", count / min(taken)


def read_figures(directory: str, scale: float) -> Iterator[tuple[str, float]]:
    _, store = filled(f"{directory}/read", 100, int(16 * MIB * max(scale, 0.1)))
    most = store.max_offset("benchmark", 0)
    calls = max(10, int(200 * scale))  # few: a longer run would not be left alone
    codes = frozenset({0})

    def read() -> None:
        for call in range(calls):
            result = store.get_message("benchmark", 0, call * 37 % (most - 32), 32)
            assert result.count == 32, result

    def read_tagged() -> None:
        for call in range(calls):
            store.get_message("benchmark", 0, call * 37 % (most - 32), 32, codes=codes)

    yield "get 32 messages, us", best(read, 100) / calls * 1e6
    yield "get 32 messages by tag, us", best(read_tagged, 100) / calls * 1e6
    store.close()


def sorted_batch(first: int) -> bytes:
    """A batch of messages with a tag of a hundred and three other properties of an application."""
    out = bytearray()
    for number in range(first, first + 1000):
        properties = (
            f"TAGS\x01t{number % 100}\x02price\x01{number * 7 % 1000}\x02"
            f"region\x01{('eu', 'us', 'asia', 'africa')[number % 4]}\x02note\x01see {number:x}\x02"
            f"UNIQ_KEY\x01{'7F000001000051AF' + '0' * 8}{number:08X}\x02WAIT\x01true\x02"
        )
        encode_batch_item(out, bytes(100), properties.encode(), 0, True)
    return bytes(out)


def filter_figures(directory: str, scale: float) -> Iterator[tuple[str, float]]:
    """A whole queue, as a client of ours asks for it: 2,048 messages and 1 MiB in a reply. A second
    is one of processor time."""
    config = StoreConfig(
        root=f"{directory}/filter", commitlog_segment_bytes=256 * MIB, zero_ahead_bytes=0,
        disk_enough_bytes=1024 * MIB,
    )  # fmt: skip
    store = MessageStore.open(config, NativeDisk(), StoreClock())
    for first in range(0, max(2000, int(400_000 * scale)), 1000):
        store.put_batch("benchmark", 0, sorted_batch(first), born_host=HOST, store_host=HOST)
        while store.reput():
            pass
    most = store.max_offset("benchmark", 0)

    def look(codes: frozenset[int] | None, sql: Sql | None) -> None:
        offset = found = 0
        while offset < most:
            result = store.get_message(
                "benchmark", 0, offset, 2048, MIB, codes, override_limits=True, sql=sql
            )
            offset = result.next_begin_offset
            found += result.count
        assert 0 < found < most / 10, f"{found} of {most} pass"

    tagged = frozenset([tags_code("t7")])
    yield (
        "look for a tag of 1 %, entries/s",
        most / best(lambda: look(tagged, None), 20, time.process_time),
    )
    for work, condition in CONDITIONS.items():
        sql = Sql(condition)
        yield work, most / best(lambda sql=sql: look(None, sql), RUNS, time.process_time)
    store.close()


def measure(directory: str, scale: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    figures.update(append_figures(scale))
    figures.update(dispatch_figures(directory, scale))
    figures.update(recovery_figures(directory, scale))
    figures.update(read_figures(directory, scale))
    figures.update(filter_figures(directory, scale))
    return figures


def checksum() -> int:
    """Of frames as every run writes them."""
    append = Append(100, 0.1)
    append()
    return zlib.crc32(append.frames)


if __name__ == "__main__":
    main(__file__, __doc__, measure, TARGETS, checksum)
