"""Frames to Arrow, in plain Python: the reference of `arrow_kernel.pyx`, same class, same answers.

A `Builder` fills one `pyarrow.RecordBatch` after the other. It stops at what it cannot take, and
says why; what happens then is the business of `decoding.py`. Rules:

- Text is UTF-8; what is not is replaced as Python's "replace" does, as every reader of ours does.
- `keys`, `tags` and `messageId` come from the last pair of that name with a value; the map has each
  name once, with its last value.
- A time outside the years 1 to 9999 becomes the nearest end: Spark has no others.
- The size of a row is its body and its raw properties, each if a column needs it. A batch ends
  before the row that would bring it above the limit, and holds at least one.
"""

from __future__ import annotations

import enum
import functools
import struct
from typing import Any, NamedTuple

import pyarrow as pa
from saturnmq.pipeline.columns import CORRUPT, Columns
from saturnmq.protocol.compression import COMPRESSED_FLAG
from saturnmq.protocol.frame import FRAME_BYTES_MIN, Damage, Frame, NeedMore, decode_frame
from saturnmq.protocol.ids import decode_host, offset_message_id
from saturnmq.protocol.jhash import tags_code
from saturnmq.protocol.properties import find_property

Buffer = bytes | bytearray | memoryview

ROWS_MAX = 16_384
"""Rows of a batch at most: more make Spark no faster (measured), and cost memory."""
BYTES_MAX = 8 << 20
"""Bytes of bodies and properties in a batch at most; one row may have more."""
US_MIN, US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
ENTRY = struct.Struct(">qiq")  # ConsumeQueue: physical offset, frame size, tags code
FILLER = 0, 0x7FFFFFFF
FROM_PROPERTIES = frozenset({"keys", "tags", "messageId", "properties"})


class Stop(enum.IntEnum):
    """Why a builder went no further."""

    END = 0  # everything was taken
    FULL = 1  # the batch has no room for the next row: finish it and go on
    DAMAGE = 2  # the next frame is not the expected one


class Packed(NamedTuple):
    """A row whose body is compressed."""

    row: int
    sys_flag: int
    place: int  # where the builder finds the frame: its byte in `data`, or its number in `entries`


class Builder:
    """Fills batches of `columns`; the arguments are the decoder's.

    `verify` makes a wrong checksum damage. With `tags` only messages with one of them are taken.
    """

    def __init__(
        self,
        columns: Columns,
        broker: str,
        *,
        verify: bool = False,
        tags: frozenset[str] | None = None,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._schema = columns.arrow_schema()
        self._columns = columns
        self._broker = broker
        self._verify = verify
        self._tags = None if tags is None else {tag.encode() for tag in tags}
        self._codes = None if tags is None else {tags_code(tag) for tag in tags}
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._body = "body" in columns
        self._properties = not FROM_PROPERTIES.isdisjoint(columns.names)
        self._start()

    def _start(self) -> None:
        self.rows = 0
        self._bytes = 0
        self._values: dict[str, list[Any]] = {name: [] for name in self._columns.names}
        self._packed: list[Packed] = []

    def walk(self, data: Buffer, pos: int) -> tuple[int, Stop]:
        """Take the frames that lie back to back in `data` from `pos` to its end: where it stopped,
        and why."""
        while pos < len(data):
            if self.rows == self._rows_max:
                return pos, Stop.FULL
            frame = decode_frame(data, pos, None, self._verify)
            if not isinstance(frame, Frame):
                return pos, Stop.DAMAGE
            if not self._take(frame, pos, data[pos : pos + frame.size]):
                return pos, Stop.FULL
            pos += frame.size
        return pos, Stop.END

    def read(
        self, log: Buffer, base: int, entries: Buffer, number: int, first: int
    ) -> tuple[int, Stop]:
        """Take the frames that ConsumeQueue `entries` from `number` on name, in a stretch of log
        that begins at physical offset `base`: the entry it stopped at, and why. Entry 0 is the one
        of queue offset `first`. Fillers are passed over, with `tags` also what cannot have one."""
        while number < len(entries) // ENTRY.size:
            if self.rows == self._rows_max:
                return number, Stop.FULL
            offset, size, code = ENTRY.unpack_from(entries, ENTRY.size * number)
            skipped = self._codes is not None and _low_half(code) not in self._codes
            if (offset, size) != FILLER and not skipped:
                at = offset - base
                if wrong_entry(log, base, offset, size, first + number, self._verify):
                    return number, Stop.DAMAGE
                frame = decode_frame(log, at, at + size, False)
                assert isinstance(frame, Frame)
                if not self._take(frame, number, log[at : at + size]):
                    return number, Stop.FULL
            number += 1
        return number, Stop.END

    def add_corrupt(self, text: str) -> None:
        """A row of nulls, with `text` in the column `_corrupt`."""
        for name, values in self._values.items():
            values.append(text if name == CORRUPT else None)
        self.rows += 1

    def finish(self) -> tuple[pa.RecordBatch, list[Packed]]:
        """The batch so far, maybe of no row, and its rows with compressed bodies (none without the
        column); the next one begins."""
        arrays = [pa.array(self._values[field.name], field.type) for field in self._schema]
        batch, packed = pa.RecordBatch.from_arrays(arrays, schema=self._schema), self._packed
        self._start()
        return batch, packed

    def _take(self, frame: Frame, place: int, raw: Buffer) -> bool:
        """Add a row, unless its tag is not wanted; False, and nothing done, if it has no room."""
        if (
            self._tags is not None
            and find_property(frame.raw_properties, b"TAGS") not in self._tags
        ):
            return True
        size = len(frame.body) * self._body + len(frame.raw_properties) * self._properties
        if self.rows and self._bytes + size > self._bytes_max:
            return False
        properties = frame.properties if self._properties else {}
        row = {
            "topic": str(frame.topic, "utf-8", "replace"),
            "brokerName": self._broker,
            "queueId": frame.queue_id,
            "queueOffset": frame.queue_offset,
            "storeTimestamp": microseconds(frame.store_timestamp),
            "bornTimestamp": microseconds(frame.born_timestamp),
            "keys": properties.get("KEYS"),
            "tags": properties.get("TAGS"),
            "body": frame.body,
            "properties": list(properties.items()),
            "messageId": properties.get("UNIQ_KEY") or _offset_id(frame),
            "physicalOffset": frame.physical_offset,
            "size": frame.size,
            "flag": frame.flag,
            "sysFlag": frame.sys_flag,
            "bornHost": decode_host(frame.born_host),
            "storeHost": decode_host(frame.store_host),
            "reconsumeTimes": frame.reconsume_times,
            "bodyCrc": frame.body_crc,
            CORRUPT: None,
        }
        if "crcOk" in self._values:
            row["crcOk"] = isinstance(decode_frame(raw, 0, None, True), Frame)
        for name, values in self._values.items():
            values.append(row[name])
        if self._body and frame.sys_flag & COMPRESSED_FLAG:
            self._packed.append(Packed(self.rows, frame.sys_flag, place))
        self.rows += 1
        self._bytes += size
        return True


def wrong_frame(data: Buffer, pos: int, verify: bool) -> str:
    """The fault of the frame that should begin at `pos`; empty if it is sound."""
    outcome = decode_frame(data, pos, None, verify)
    if isinstance(outcome, Frame):
        return ""
    if isinstance(outcome, Damage):
        return outcome.why
    if isinstance(outcome, NeedMore):
        return f"a frame of {outcome.size} B is cut off after {len(data) - pos} B"
    return "no frame begins here"


def wrong_entry(
    log: Buffer, base: int, offset: int, size: int, queue_offset: int, verify: bool
) -> str:
    """The fault of the frame that a ConsumeQueue entry names; empty if it is sound."""
    at = offset - base
    if size < FRAME_BYTES_MIN or not 0 <= at <= len(log) - size:
        return (
            f"the queue entry of offset {queue_offset} names {size} B at {offset}, which is no "
            f"frame between {base} and {base + len(log)}"
        )
    outcome = decode_frame(log, at, at + size, verify)
    if not isinstance(outcome, Frame | NeedMore):
        return wrong_frame(log[at : at + size], 0, verify)
    if not isinstance(outcome, Frame) or outcome.size != size:
        return f"the frame has {outcome.size} B, its queue entry says {size} B"
    if outcome.physical_offset != offset:
        return f"the frame says that it lies at {outcome.physical_offset}"
    if outcome.queue_offset != queue_offset:
        return (
            f"the frame has queue offset {outcome.queue_offset}, its entry that of {queue_offset}"
        )
    return ""


@functools.lru_cache(maxsize=256)
def constant(text: str) -> pa.Array:
    """`text` ROWS_MAX times: a column that is the same in all rows is a slice of this."""
    return pa.array([text] * ROWS_MAX, pa.string())


def microseconds(ms: int) -> int:
    return min(max(ms * 1000, US_MIN), US_MAX)


def _low_half(code: int) -> int:
    """The 32 bits of a tags code that are the hash."""
    return ((code & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _offset_id(frame: Frame) -> str:
    host = frame.store_host
    return offset_message_id(host[:-4], int.from_bytes(host[-4:], "big"), frame.physical_offset)
