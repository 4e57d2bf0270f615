"""Frames to the batches that Spark, Parquet and the jobs take: the one decoder of the pipeline.

Frames come in two ways: back to back, as a broker sends them (`Decoder.frames`), and out of a
mapped segment of the CommitLog, as entries of a ConsumeQueue name them (`Decoder.entries`). Batches
own their memory: the source may be unmapped while they are in use.

A frame is checked before it is copied: size, magic, the lengths within it; with entries also that
it has the offsets it should have; its checksums if `verify`. A wrong frame, and a compressed body
that cannot be inflated, is damage. `mode` says what becomes of it, in the words of Spark's readers:

| mode | damage |
|---|---|
| FAILFAST | DamagedFrame, naming the file or the broker and the offset |
| DROPMALFORMED | is left out and counted in `Decoder.dropped` |
| PERMISSIVE | is a row of nulls; `_corrupt`, if chosen, says where and what |

Behind damage among frames that lie back to back, the next one begins where the broken one says that
it ends, if that is true, else at the next place where the checksums of a frame hold. Entries are
independent of each other.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any, Literal, get_args

import pyarrow as pa
from saturnmq.pipeline import kernels
from saturnmq.pipeline.arrow_reference import (
    BYTES_MAX,
    ENTRY,
    ROWS_MAX,
    Buffer,
    Packed,
    Stop,
    wrong_entry,
    wrong_frame,
)
from saturnmq.pipeline.columns import BODY, Columns
from saturnmq.protocol.compression import decompress
from saturnmq.protocol.frame import MAGIC_V1, MAGIC_V2, Frame, decode_frame
from saturnmq.runtime.errors import ConfigError, MessageIllegal, StoreDamaged, nearest

Mode = Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]
MODES: tuple[str, ...] = get_args(Mode)
_MAGIC = re.compile(b"|".join(re.escape(m.to_bytes(4, "big")) for m in (MAGIC_V1, MAGIC_V2)))


class DamagedFrame(StoreDamaged):
    """A frame cannot be read, and the query is to fail on the first"""

    def __init__(self, where: str, offset: int, why: str) -> None:
        super().__init__(
            f"damaged message in {where}, offset {offset}: {why}; to read past damage set the "
            "option mode to DROPMALFORMED or PERMISSIVE, to mend it copy the file from a replica"
        )
        self.where = where
        self.offset = offset
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.offset, self.why)


class Decoder:
    """Decodes into `columns`. `broker` is the name in the column brokerName; with `decompress`
    bodies are inflated; with `verify` checksums must hold; with `tags` only messages that have one
    of these tags are given. `rows_max` and `bytes_max` limit a batch."""

    def __init__(
        self,
        columns: Columns,
        *,
        broker: str,
        decompress: bool = True,
        verify: bool = False,
        mode: Mode = "FAILFAST",
        tags: frozenset[str] | None = None,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(
                f"mode {mode!r} is unknown{nearest(mode.upper(), MODES)}; use one of {MODES}"
            )
        never_null = [field.name for field in columns if not field.nullable]
        if mode == "PERMISSIVE" and never_null:
            raise ConfigError(
                "mode PERMISSIVE makes rows of nulls of what is damaged; drop NOT NULL from "
                f"{', '.join(never_null)} in the schema, or take another mode"
            )
        if not kernels.COMPILED and not kernels.FORCED:
            warnings.warn(
                "the compiled kernel of saturnmq is missing here, so decoding is a hundred times "
                "slower: install the wheel on this machine instead of shipping .py files",
                RuntimeWarning,
                stacklevel=2,
            )
        self.columns = columns
        self.broker = broker
        self.dropped = 0
        self._decompress = decompress and BODY in columns
        self._verify = verify
        self._mode = mode
        self._tags = tags
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._idle: list[kernels.Builder] = []  # empty ones; a builder is dear beside a small chunk

    def frames(self, data: Buffer, *, where: str = "", base: int = 0) -> Iterator[pa.RecordBatch]:
        """The batches of frames that lie back to back and fill `data`. Damage is reported in
        `where` (the broker without) at `base` + its byte in `data`."""
        where = where or f"the frames of broker {self.broker}"
        builder = self._builder()
        pos, stop = 0, Stop.FULL
        while stop != Stop.END:
            pos, stop = builder.walk(data, pos)
            if stop == Stop.DAMAGE:
                why = wrong_frame(data, pos, self._verify)
                if self._shown(where, base + pos, why):
                    builder.add_corrupt(_corrupt(where, base + pos, why))
                pos = _behind_damage(memoryview(data), pos)
            else:
                for batch, packed in _finished(builder):
                    places = [base + item.place for item in packed]
                    yield from self._inflated(batch, packed, where, places)
        self._idle.append(builder)

    def entries(
        self, log: Buffer, base: int, entries: Buffer, first: int, *, where: str
    ) -> Iterator[pa.RecordBatch]:
        """The batches of the frames that `entries` of a ConsumeQueue name, 20 bytes each; the first
        is that of queue offset `first`. All lie in `log`, which begins at physical offset `base`.
        Damage is reported in `where`, the file, at its physical offset. Entries that only fill a
        gap are passed over."""
        if len(entries) % ENTRY.size:
            raise StoreDamaged(
                f"the queue entries from offset {first} on for {where} have {len(entries)} B, "
                f"which is no multiple of {ENTRY.size}: rebuild the ConsumeQueue"
            )
        builder = self._builder()
        number, stop = 0, Stop.FULL
        while stop != Stop.END:
            number, stop = builder.read(log, base, entries, number, first)
            if stop == Stop.DAMAGE:
                offset, size, _ = ENTRY.unpack_from(entries, ENTRY.size * number)
                why = wrong_entry(log, base, offset, size, first + number, self._verify)
                if self._shown(where, offset, why):
                    builder.add_corrupt(_corrupt(where, offset, why))
                number += 1
            else:
                for batch, packed in _finished(builder):
                    places = [
                        ENTRY.unpack_from(entries, ENTRY.size * item.place)[0] for item in packed
                    ]
                    yield from self._inflated(batch, packed, where, places)
        self._idle.append(builder)

    def _builder(self) -> kernels.Builder:
        if self._idle:
            return self._idle.pop()
        return kernels.Builder(
            self.columns,
            self.broker,
            verify=self._verify,
            tags=self._tags,
            rows_max=self._rows_max,
            bytes_max=self._bytes_max,
        )

    def _shown(self, where: str, offset: int, why: str) -> bool:
        """Whether this damage becomes a row; if not it is counted, or raised."""
        if self._mode == "FAILFAST":
            raise DamagedFrame(where, offset, why)
        self.dropped += self._mode == "DROPMALFORMED"
        return self._mode == "PERMISSIVE"

    def _inflated(
        self, batch: pa.RecordBatch, packed: list[Packed], where: str, places: list[int]
    ) -> Iterator[pa.RecordBatch]:
        """`batch` with the bodies of its `packed` rows inflated, in as many parts as that takes,
        and without those that cannot be. `places` says where the packed rows came from."""
        if not packed or not self._decompress:
            yield batch
            return
        column = self.columns.names.index(BODY)
        bodies = batch.column(column).to_pylist()
        by_row = {
            item.row: (item.sys_flag, place) for item, place in zip(packed, places, strict=True)
        }
        start = size = 0

        def part(end: int) -> Iterator[pa.RecordBatch]:
            if end > start:
                yield batch.slice(start, end - start).set_column(
                    column, batch.schema.field(column), pa.array(bodies[start:end], pa.binary())
                )
                bodies[start:end] = [None] * (end - start)

        for row in range(batch.num_rows):
            sys_flag, place = by_row.get(row, (0, 0))
            if sys_flag:
                try:
                    bodies[row] = decompress(bodies[row], sys_flag)
                except MessageIllegal as error:
                    yield from part(row)
                    start, size = row + 1, 0
                    if self._shown(where, place, str(error)):
                        builder = self._builder()
                        builder.add_corrupt(_corrupt(where, place, str(error)))
                        yield builder.finish()[0]
                        self._idle.append(builder)
                    continue
            size += len(bodies[row] or b"")
            if row > start and size > self._bytes_max:
                yield from part(row)
                start, size = row, len(bodies[row] or b"")
        yield from part(batch.num_rows)


def _finished(builder: kernels.Builder) -> Iterator[tuple[pa.RecordBatch, list[Packed]]]:
    """The builder's batch, if it has rows."""
    if builder.rows:
        yield builder.finish()


def _corrupt(where: str, offset: int, why: str) -> str:
    return f"{where}, offset {offset}: {why}"


def _behind_damage(data: memoryview, pos: int) -> int:
    """The start of the next frame behind damage at `pos`; the end if there is none."""
    size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
    if size >= 8 and pos + size <= len(data):
        end = pos + size
        if end == len(data) or isinstance(decode_frame(data, end, None, False), Frame):
            return end
    for magic in _MAGIC.finditer(data, pos + 5):
        if isinstance(decode_frame(data, magic.start() - 4, None, True), Frame):
            return magic.start() - 4
    return len(data)
