"""What the store's inner loops reach, without network and client.

    python benchmarks/store_kernels.py [--json] [--quick] [--directory DIR]

Each figure is the best of several runs in one process and one thread, on warm memory; of dispatch,
which writes to new pages of files, it is the median of many. Beside it stands what the Python
references reach, measured the same way in a child process with fewer messages, and the ratio of the
two. Messages are as our client sends them: a body, UNIQ_KEY and WAIT, a claimed CRC; frames get the
CRC property. `--quick` is for tests: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from saturnmq.protocol import kernels
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.store.derived import Derived
from saturnmq.store.disk import NativeDisk
from saturnmq.store.indexfile import Index
from saturnmq.store.message_store import MessageStore, StoreConfig
from saturnmq.store.queues import Queues
from saturnmq.store.reput import DELAY_MS
from targets import Target

BATCH_BYTES = 1 << 20  # what our client sends at most
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
TOPIC = b"benchmark"
NOW = 1_700_000_000_000
RUNS = 5
PROPERTIES_MAX = 32_767
MIB = 1 << 20


TARGETS = {
    "append 100 B, msg/s": Target(4e6),
    "append 1 KiB, GB/s": Target(2.0),
    "dispatch 100 B, msg/s": Target(10e6),
    "recovery 1 KiB, GB/s": Target(1.0),
    "get 32 messages, us": Target(5.0, at_most=True),
}


class Clock:
    """The part of a runtime that the store uses."""

    def now_ms(self) -> int:
        return NOW


def best(work: Callable[[], Any], runs: int = RUNS) -> float:
    """Seconds of the quickest run: what disturbs only ever adds."""
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken)


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
        files = Index(self._disk, f"{directory}/index", 5_000_000, 20_000_000, Clock().now_ms)
        queues = Queues(self._disk, f"{directory}/consumequeue", 6_000_000)
        self.derived = Derived(queues, files if index else None)

    def __call__(self) -> None:
        scan = kernels.scan_frames(self.frames, 0, len(self.frames), 0, False, self.index, DELAY_MS)
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
                frames, 0, len(frames), 0, crc, index, DELAY_MS
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
    )
    store = MessageStore.open(config, NativeDisk(), Clock())
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
        store = MessageStore.open(config, NativeDisk(), Clock())
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


def measure(directory: str, scale: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    figures.update(append_figures(scale))
    figures.update(dispatch_figures(directory, scale))
    figures.update(recovery_figures(directory, scale))
    figures.update(read_figures(directory, scale))
    return figures


def reference(directory: str, scale: float) -> dict[str, float]:
    """The same in a process that uses the Python references."""
    command = [sys.executable, __file__, "--figures-only", str(scale), "--directory", directory]
    environment = {**os.environ, "SATURNMQ_KERNELS": "python"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def machine() -> dict[str, Any]:
    """What the figures depend on; `checksum` tells that two runs wrote the same frames."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    append = Append(100, 0.1)
    append()
    return {
        "processor": model or platform.processor(),
        "processors": os.cpu_count(),
        "memory_gib": round(NativeDisk().memory_bytes() / (1 << 30), 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "kernels": kernels.COMPILED,
        "checksum": f"{zlib.crc32(append.frames):08x}",
    }


def print_table(facts: dict[str, Any]) -> None:
    print(", ".join(f"{name} {value}" for name, value in facts["machine"].items()))
    print(f"{'work':44} {'figure':>12} {'reference':>12} {'ratio':>7}  target")
    for row in facts["rows"]:
        target = TARGETS.get(row["work"])
        text = ""
        if target is not None:
            sign = "at most" if target.at_most else "at least"
            missed = ": missed" if target.missed(row["figure"]) else ": reached"
            text = f"{sign} {target.value:,g}{missed}"
        print(
            f"{row['work']:44} {row['figure']:12,.4g} {row['reference']:12,.4g} "
            f"{row['ratio']:7,.1f}  {text}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--quick", action="store_true", help="hardly any work: for tests")
    parser.add_argument("--directory", help="where to put files (default: the temporary directory)")
    parser.add_argument("--figures-only", type=float, metavar="SCALE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="store-kernels-", dir=options.directory)
    try:
        if options.figures_only is not None:
            print(json.dumps(measure(directory, options.figures_only)))
            return
        scale = 0.002 if options.quick else 1.0
        slow = reference(directory, min(scale, 0.02))
        fast = measure(directory, scale)
    finally:
        shutil.rmtree(directory)
    rows = []
    for work, figure in fast.items():
        faster = slow[work] / figure if work.endswith(", us") else figure / slow[work]
        rows.append({"work": work, "figure": figure, "reference": slow[work], "ratio": faster})
    targets = {work: target.value for work, target in TARGETS.items()}
    facts = {"machine": machine(), "rows": rows, "targets": targets}
    if options.json:
        print(json.dumps(facts))
    else:
        print_table(facts)


if __name__ == "__main__":
    main()
