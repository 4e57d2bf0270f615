"""What the pipeline's inner loops reach: frames to Arrow and back, without Spark and network.

    python benchmarks/pipeline_kernels.py [--json] [--quick]

How figures are taken says kernel_figures.py; here a second is one of processor time: nothing waits,
and what else the machine does disturbs less. Frames have six properties, about 300 bytes of a frame
besides the body, and lie in one stretch of warm memory, as they do in a log whose segment is in the
page cache. "All columns" are all but the map, which has a line of its own, and the two that tell
of damage: `crcOk` reads every body once more, `_corrupt` is for what cannot be read. GB/s count
bodies.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator

import pyarrow as pa
from kernel_figures import best, main
from saturnmq.pipeline.columns import COLUMNS, Columns, select
from saturnmq.pipeline.decoding import Decoder
from saturnmq.pipeline.encoding import Encoder
from saturnmq.protocol import kernels
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.frame_reference import ENTRY
from targets import BenchTarget

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
NOW = 1_700_000_000_000
TOPIC = b"benchmark"
PREFIX = b"0123456789ABCDEF01234567"
ROWS = 10_000  # of a batch that Spark hands to a sink
CHUNK_BYTES = 1 << 20
RUNS = 10
ALL = select([name for name in COLUMNS if name not in ("properties", "crcOk", "_corrupt")])

TARGETS = {
    "decode 100 B, all columns, rows/s": BenchTarget(2.0e6),
    "decode 1 KiB, all columns, GB/s": BenchTarget(1.8),
}


class FrameLog:
    """Frames and the queue entries that name them."""

    def __init__(self, body_bytes: int, count: int) -> None:
        body = bytes(i * 7 & 0xFF for i in range(body_bytes))
        batch = bytearray()
        for n in range(count):
            properties = (
                f"UNIQ_KEY\x017F000001000051AF{n:016X}\x02WAIT\x01true\x02KEYS\x01order-{n:08d}\x02"
                f"TAGS\x01TagA\x02trace\x01{n % 97:020d}\x02"
            )
            encode_batch_item(batch, body, properties.encode())
        _, size = kernels.check_batch(batch, len(TOPIC), 0, True, 4 << 20)
        frames = bytearray(size)
        _, sizes = kernels.write_batch(
            bytes(batch), frames, 0, 0, 0, 0, 0, NOW, HOST, NOW, HOST, 0, TOPIC, True
        )
        self.frames, self.count, self.body_bytes = bytes(frames), count, body_bytes
        entries, at = bytearray(), 0
        for size in sizes:
            entries += ENTRY.pack(at, size, 0)
            at += size
        self.entries = bytes(entries)

    def decode(self, columns: Columns, verify: bool = False) -> Callable[[], None]:
        decoder = Decoder(columns, broker="broker-a", verify=verify)

        def work() -> None:
            batches = decoder.entries(self.frames, 0, self.entries, 0, where="")
            assert sum(batch.num_rows for batch in batches) == self.count

        return work

    def walk(self, columns: Columns) -> Callable[[], None]:
        """The same frames in chunks, as a broker sends them."""
        decoder = Decoder(columns, broker="broker-a")
        frame_bytes = len(self.frames) // self.count  # all have the same size
        size = max(1, CHUNK_BYTES // frame_bytes) * frame_bytes

        def work() -> None:
            rows = 0
            for at in range(0, len(self.frames), size):
                for batch in decoder.frames(memoryview(self.frames)[at : at + size]):
                    rows += batch.num_rows
            assert rows == self.count

        return work


def decoding_figures(scale: float) -> Iterator[tuple[str, float]]:
    for label, body_bytes, count in (("100 B", 100, 50_000), ("1 KiB", 1024, 25_000)):
        log = FrameLog(body_bytes, max(50, int(count * scale)))
        for what, work in (
            ("all columns", log.decode(ALL)),
            ("all columns, in 1 MiB chunks", log.walk(ALL)),
            ("default columns", log.decode(select())),
            ("default columns and the map", log.decode(select(include_properties=True))),
            ("default columns, checksums verified", log.decode(select(), verify=True)),
            ("all but the body", log.decode(select(include_body=False))),
        ):
            rows = log.count / best(work, RUNS, time.process_time)
            yield f"decode {label}, {what}, rows/s", rows
            if what != "all but the body":
                yield f"decode {label}, {what}, GB/s", rows * body_bytes / 1e9


def encoding_figures(scale: float) -> Iterator[tuple[str, float]]:
    count = max(50, int(ROWS * scale))
    texts = {"keys": [f"order-{n:08d}" for n in range(count)], "tags": ["TagA"] * count}
    pairs = [[*((name, texts[name.lower()][n]) for name in ("KEYS", "TAGS"))] for n in range(count)]
    more = [("UNIQ_KEY", "7F000001000051AF" * 2), ("WAIT", "true"), ("trace", "0" * 20)]
    maps = pa.array([pair + more for pair in pairs], pa.map_(pa.string(), pa.string()))
    for label, body_bytes in (("100 B", 100), ("1 KiB", 1024)):
        columns = {"body": [bytes(i * 7 & 0xFF for i in range(body_bytes))] * count, **texts}
        for what, given in (
            ("body, keys, tags", columns),
            ("body, keys, tags and the map", {**columns, "properties": maps}),
        ):
            batch = pa.record_batch(given)
            encoder = Encoder(batch.schema.names)

            def work(batch: pa.RecordBatch = batch, encoder: Encoder = encoder) -> None:
                fresh = batch.slice(0)  # a task sees each batch once
                pieces = encoder.encode(fresh, None, PREFIX, 0, CHUNK_BYTES)
                assert sum(piece.rows for piece in pieces) == batch.num_rows

            yield f"encode {label}, {what}, rows/s", count / best(work, 3 * RUNS, time.process_time)


def measure(directory: str, scale: float) -> dict[str, float]:
    del directory  # everything is in memory
    return {**dict(decoding_figures(scale)), **dict(encoding_figures(scale))}


def checksum() -> int:
    """Of frames as every run decodes them."""
    return zlib.crc32(FrameLog(100, 100).frames)


if __name__ == "__main__":
    main(__file__, __doc__, measure, TARGETS, checksum)
