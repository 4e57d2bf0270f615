"""Many frames at once, in plain Python: the reference of `frame_kernel/`, same signatures.

The package runs on these functions where no kernel could be compiled, and the property tests
compare the kernel with them. Import the functions from `kernels`, which chooses.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from saturnmq.protocol.batch import crc_differs, iterate_batch, properties_with_zeros
from saturnmq.protocol.frame import (
    FRAME_BYTES_MIN,
    INNER_BATCH,
    SYS_FLAG_AT,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
    WRAPPED,
    Blank,
    Damage,
    End,
    Frame,
    NeedMore,
    crc32,
    decode_frame,
    encode_frame,
    is_torn,
    own_properties,
    size_of,
)
from saturnmq.protocol.jhash import index_hash, tags_code
from saturnmq.protocol.properties import INNER_BASE, INNER_NUM

Buffer = bytes | bytearray | memoryview
Run = tuple[str, int, int, int, bytes]
"""(topic, queue id, first queue offset, count, 20 * count bytes of ConsumeQueue entries)."""

ENTRY = struct.Struct(">qiq")  # ConsumeQueue: physical offset, frame size, tags code
BATCH_UNIT = struct.Struct(">qiqqqhii")
"""BatchConsumeQueue: those three, store time, first queue offset, messages, -1, 0."""
INNER_NUM_MAX = 32_767  # messages of an inner batch: a signed 16-bit integer counts them
INDEX_ITEM = struct.Struct(">iqq")  # key hash, physical offset, store time
assert ENTRY.size == 20, "i64, i32 and i64"
assert BATCH_UNIT.size == 46, "four i64, i32, i16 and two i32"
assert INDEX_ITEM.size == 20, "i32 and two i64"
SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
UNKNOWN_LEVEL_DELAY_MS = 1000


class ScanStatus(StrEnum):
    """Why a scan stopped at `next_pos`. The kernel returns the bare strings."""

    END = "end"
    """All was seen, or zeros begin there."""
    BLANK = "blank"
    """The segment is over, and `next_pos` is behind it."""
    MORE = "more"
    """The stretch cuts off a frame: give a longer one."""
    DAMAGE = "damage"
    """No sound frame is there; `why` tells the reason."""


class Scan(NamedTuple):
    """The content of a stretch of log."""

    next_pos: int
    status: str  # of ScanStatus
    why: str
    runs: list[Run]
    index_items: bytes
    last_store_ts: int
    messages: int
    batches: Sequence[Run] = ()
    """Of each inner batch a run with the 46 bytes of its unit instead of entries."""


def write_message(
    out: bytearray | memoryview,
    pos: int,
    physical_offset: int,
    queue_offset: int,
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_ts: int,
    born_host: bytes,
    store_ts: int,
    store_host: bytes,
    reconsume: int,
    prepared_offset: int,
    body: Buffer,
    topic: bytes,
    properties: bytes,
    crc_property: bool = False,
) -> int:
    """Write one frame at `pos` of `out`; returns its size."""
    frame = encode_frame(
        physical_offset=physical_offset,
        queue_offset=queue_offset,
        queue_id=queue_id,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_ts,
        born_host=born_host,
        store_timestamp=store_ts,
        store_host=store_host,
        reconsume_times=reconsume,
        prepared_offset=prepared_offset,
        body=body,
        topic=topic,
        properties=properties,
        crc_property=crc_property,
    )
    end = pos + len(frame)
    if pos < 0 or end > len(out):
        raise ValueError(f"a frame of {len(frame)} B at {pos} does not fit in {len(out)} B")
    out[pos:end] = frame
    return len(frame)


def write_batch(
    body: Buffer,
    out: bytearray | memoryview,
    pos: int,
    physical_offset: int,
    queue_offset: int,
    queue_id: int,
    sys_flag: int,
    born_ts: int,
    born_host: bytes,
    store_ts: int,
    store_host: bytes,
    reconsume: int,
    topic: bytes,
    crc_property: bool = False,
) -> tuple[int, array[int]]:
    """Write every entry of a checked batch body as a frame from `pos` on: returns (count, frame
    sizes).

    All or nothing: when an entry is malformed or its claimed CRC differs, the written part is
    zeroed again and MessageIllegal names the entry.
    """
    sizes = array("i")
    at = pos
    try:
        # The whole body is parsed before anything is written.
        entries = []
        for number, entry in enumerate(iterate_batch(body)):
            if not crc_property and is_torn(own_properties(entry.properties)):
                raise properties_with_zeros(number)
            entries.append(entry)
        for number, entry in enumerate(entries):
            if entry.crc and entry.crc != crc32(entry.body):
                raise crc_differs(number, entry.crc, crc32(entry.body))
            size = write_message(
                out,
                at,
                physical_offset + at - pos,
                queue_offset + number,
                queue_id,
                entry.flag,
                sys_flag,
                born_ts,
                born_host,
                store_ts,
                store_host,
                reconsume,
                0,
                entry.body,
                topic,
                entry.properties,
                crc_property,
            )
            sizes.append(size)
            at += size
    except BaseException:
        out[pos:at] = bytes(at - pos)
        raise
    return len(sizes), sizes


def scan_frames(
    view: Buffer,
    pos: int,
    end: int,
    physical_base: int,
    verify_crc: bool = False,
    index: bool = True,
    delay_ms: tuple[int, ...] = (),
) -> Scan:
    """Read the frames in [pos, end) of `view`; `physical_base` is the offset of its first byte.

    Frames of one queue that follow each other become one run. PREPARED and ROLLBACK frames get no
    ConsumeQueue entry, ROLLBACK frames no index item. Inner batches are runs of their own kind.
    """
    runs: list[tuple[str, int, int, bytearray]] = []
    batches: list[Run] = []
    items = bytearray()
    messages = last_store_ts = 0
    key: tuple[bytes, int, int] | None = None  # topic, queue and next queue offset of the open run
    status = why = ""
    while not status:
        outcome = decode_frame(view, pos, end, verify_crc)
        match outcome:
            case Frame():
                topic = _text(outcome.topic)
                if topic is None:
                    status, why = ScanStatus.DAMAGE, "topic is not UTF-8"
                    break
                if outcome.physical_offset != physical_base + pos:
                    status = ScanStatus.DAMAGE
                    why = (
                        f"frame says offset {outcome.physical_offset}, "
                        f"it lies at {physical_base + pos}"
                    )
                    break
                if verify_crc and is_torn(outcome.raw_properties):
                    status, why = ScanStatus.DAMAGE, "the last properties are zeros"
                    break
                properties = outcome.properties
                transaction = outcome.sys_flag & TRANSACTION_MASK
                if transaction == TRANSACTION_NONE and outcome.sys_flag & INNER_BATCH:
                    batches.append(batch_run(outcome))
                    key = None
                elif transaction in (TRANSACTION_NONE, TRANSACTION_COMMIT):
                    if key != (outcome.topic, outcome.queue_id, outcome.queue_offset):
                        runs.append((topic, outcome.queue_id, outcome.queue_offset, bytearray()))
                    code = _entry_code(outcome, properties, delay_ms)
                    runs[-1][3].extend(ENTRY.pack(outcome.physical_offset, outcome.size, code))
                    key = (outcome.topic, outcome.queue_id, outcome.queue_offset + 1)
                if index and transaction != TRANSACTION_ROLLBACK:
                    for name in _keys(properties):
                        items += INDEX_ITEM.pack(
                            index_hash(topic, name),
                            outcome.physical_offset,
                            outcome.store_timestamp,
                        )
                last_store_ts = outcome.store_timestamp
                messages += 1
                pos += outcome.size
            case Blank(size=size):
                pos += size
                status = ScanStatus.BLANK
            case End():
                status = ScanStatus.END
            case NeedMore():
                status = ScanStatus.MORE
            case Damage(why=reason):
                status, why = ScanStatus.DAMAGE, reason
    return Scan(
        pos,
        status,
        why,
        [(t, q, first, len(entries) // 20, bytes(entries)) for t, q, first, entries in runs],
        bytes(items),
        last_store_ts,
        messages,
        batches,
    )


def has_wrapped(frames: Buffer) -> bool:
    """Whether one of these whole frames holds a batch of messages. The search ends with what is no
    frame."""
    pos, end = 0, len(frames)
    while pos + FRAME_BYTES_MIN <= end:
        if frames[pos + SYS_FLAG_AT + 3] & WRAPPED == WRAPPED:
            return True
        size = size_of(frames, pos)
        if not FRAME_BYTES_MIN <= size <= end - pos:
            return False
        pos += size
    return False


def batch_run(frame: Frame) -> Run:
    """The run of an inner batch (`Scan.batches`), with count 0 if it does not tell how many
    messages it has from which queue offset on. RocketMQ gives such a frame no place, either."""
    properties = frame.properties
    count = _number(properties.get(INNER_NUM, ""))
    if (
        not 0 < count <= INNER_NUM_MAX
        or _number(properties.get(INNER_BASE, "")) != frame.queue_offset
    ):
        count = 0
    unit = BATCH_UNIT.pack(
        frame.physical_offset,
        frame.size,
        tags_code(properties.get("TAGS")),
        frame.store_timestamp,
        frame.queue_offset,
        count,
        -1,
        0,
    )
    return frame.topic.decode(), frame.queue_id, frame.queue_offset, count, unit


def _number(text: str) -> int:
    """A decimal number of a property; -1 if it is none."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else -1


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _keys(properties: dict[str, str]) -> list[str]:
    """The index keys of a message: UNIQ_KEY first, then each of KEYS."""
    keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    return keys + [key for key in properties.get("KEYS", "").split(" ") if key]


def _entry_code(frame: Frame, properties: dict[str, str], delay_ms: tuple[int, ...]) -> int:
    """The tags code; for a delayed message the time when it is due (levels above the last count as
    the last)."""
    if frame.topic == SCHEDULE_TOPIC:
        text = properties.get("DELAY", "")
        level = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if level > 0:
            level = min(level, len(delay_ms))
            return frame.store_timestamp + (
                delay_ms[level - 1] if level else UNKNOWN_LEVEL_DELAY_MS
            )
    return tags_code(properties.get("TAGS"))
