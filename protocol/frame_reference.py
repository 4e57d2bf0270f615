"""Many frames at once, in plain Python: the reference of `frame_kernel.pyx`, same signatures.

The package runs on these where no kernel could be compiled, and the property tests hold the kernel
against them. Whoever needs one of the functions imports `kernels`, which chooses.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from saturnmq.protocol.batch import crc_differs, iterate_batch
from saturnmq.protocol.compression import COMPRESSED_FLAG, decompress
from saturnmq.protocol.errors import MalformedFrame
from saturnmq.protocol.frame import (
    BORN_HOST_V6,
    HEAD,
    MAGIC_V2,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
    Blank,
    Damage,
    End,
    Frame,
    NeedMore,
    crc32,
    decode_frame,
    encode_frame,
)
from saturnmq.protocol.jhash import index_hash, tags_code
from saturnmq.protocol.properties import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    SHARDING_KEY,
    TAGS,
    decode_properties,
)

Buffer = bytes | bytearray | memoryview
Run = tuple[str, int, int, int, bytes]
"""(topic, queue id, first queue offset, count, 20 * count bytes of ConsumeQueue entries)."""

ENTRY = struct.Struct(">qiq")  # ConsumeQueue: physical offset, frame size, tags code
INDEX_ITEM = struct.Struct(">iqq")  # key hash, physical offset, store time
SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
UNKNOWN_LEVEL_DELAY_MS = 1000


class Scan(NamedTuple):
    """What a stretch of log holds.

    `status` tells why the scan stopped at `next_pos`: `end` (all seen, or zeros from there on),
    `blank` (the segment is over; next_pos is behind it), `more` (a frame that the stretch cuts
    off; give a longer one), `damage` (`why`).
    """

    next_pos: int
    status: str
    why: str
    runs: list[Run]
    index_items: bytes
    last_store_ts: int
    messages: int


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
    """Write one frame at `pos` of `out`; its size."""
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
    """Write every entry of a checked batch body as a frame from `pos` on: (count, frame sizes).

    All or nothing: when an entry is malformed or its claimed CRC differs, what was written is
    zeroed again and MessageIllegal names the entry.
    """
    sizes = array("i")
    at = pos
    try:
        # The whole body is taken apart before anything is written.
        for number, entry in enumerate(list(iterate_batch(body))):
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
    ConsumeQueue entry, ROLLBACK frames no index item.
    """
    runs: list[tuple[str, int, int, bytearray]] = []
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
                    status, why = "damage", "topic is not UTF-8"
                    break
                if outcome.physical_offset != physical_base + pos:
                    status = "damage"
                    why = (
                        f"frame says offset {outcome.physical_offset}, "
                        f"it lies at {physical_base + pos}"
                    )
                    break
                properties = outcome.properties
                transaction = outcome.sys_flag & TRANSACTION_MASK
                if transaction in (TRANSACTION_NONE, TRANSACTION_COMMIT):
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
                status = "blank"
            case End():
                status = "end"
            case NeedMore():
                status = "more"
            case Damage(why=reason):
                status, why = "damage", reason
    return Scan(
        pos,
        status,
        why,
        [(t, q, first, len(entries) // 20, bytes(entries)) for t, q, first, entries in runs],
        bytes(items),
        last_store_ts,
        messages,
    )


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
    """The tags code; for a delayed message the time it is due (levels above the last are it)."""
    if frame.topic == SCHEDULE_TOPIC:
        text = properties.get("DELAY", "")
        level = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if level > 0:
            level = min(level, len(delay_ms))
            return frame.store_timestamp + (
                delay_ms[level - 1] if level else UNKNOWN_LEVEL_DELAY_MS
            )
    return tags_code(properties.get("TAGS"))


class FrameView:
    """One frame inside a bytes object: every field is read when it is asked for."""

    __slots__ = ("_body", "_data", "_pos", "_properties", "_sys_flag", "_topic", "broker_name")

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self._data = data
        self._pos = pos
        self._sys_flag: int = struct.unpack_from(">i", data, pos + 36)[0]
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None
        self._topic: str | None = None
        self.broker_name = ""

    def _at(self, code: str, offset: int) -> int:
        value: int = struct.unpack_from(code, self._data, self._pos + offset)[0]
        return value

    def _after_hosts(self, offset: int) -> int:
        """`offset` as if the hosts were IPv4, moved on by what they are longer."""
        behind_born = 12 if self._sys_flag & BORN_HOST_V6 else 0
        behind_store = 12 if self._sys_flag & STORE_HOST_V6 and offset >= 72 else 0
        return offset + behind_born + behind_store

    @property
    def topic(self) -> str:
        """The topic; consumers see that of a retried message set back to the original one."""
        if self._topic is None:
            self._topic = str(self.raw_topic, "utf-8", "replace")
        return self._topic

    @topic.setter
    def topic(self, value: str) -> None:
        self._topic = value

    @property
    def body(self) -> bytes:
        """The body as it was sent; a compressed one is unpacked once."""
        if not self.sys_flag & COMPRESSED_FLAG:
            return self.raw_body
        if self._body is None:
            self._body = decompress(self.raw_body, self.sys_flag)
        return self._body

    @property
    def tag(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties)
        return self._properties

    @property
    def frame_size(self) -> int:
        return self._at(">i", 0)

    @property
    def body_crc(self) -> int:
        return self._at(">i", 8)

    @property
    def queue_id(self) -> int:
        return self._at(">i", 12)

    @property
    def flag(self) -> int:
        return self._at(">i", 16)

    @property
    def queue_offset(self) -> int:
        return self._at(">q", 20)

    @property
    def physical_offset(self) -> int:
        return self._at(">q", 28)

    @property
    def sys_flag(self) -> int:
        return self._sys_flag

    @property
    def born_timestamp(self) -> int:
        return self._at(">q", 40)

    @property
    def raw_born_host(self) -> bytes:
        start = self._pos + HEAD.size
        return self._data[start : start + (20 if self._sys_flag & BORN_HOST_V6 else 8)]

    @property
    def store_timestamp(self) -> int:
        return self._at(">q", self._after_hosts(56))

    @property
    def raw_store_host(self) -> bytes:
        start = self._pos + self._after_hosts(64)
        return self._data[start : start + (20 if self._sys_flag & STORE_HOST_V6 else 8)]

    @property
    def reconsume_times(self) -> int:
        return self._at(">i", self._after_hosts(72))

    @property
    def prepared_offset(self) -> int:
        return self._at(">q", self._after_hosts(76))

    @property
    def raw_body(self) -> bytes:
        start = self._pos + self._after_hosts(84) + 4
        return self._data[start : start + self.stored_body_size]

    @property
    def stored_body_size(self) -> int:
        return self._at(">i", self._after_hosts(84))

    def _topic_at(self) -> tuple[int, int]:
        """Where the topic starts in the data, and its length."""
        at = self._pos + self._after_hosts(84) + 4 + self.stored_body_size
        if self._at(">I", 4) == MAGIC_V2:
            return at + 2, int.from_bytes(self._data[at : at + 2], "big")
        return at + 1, self._data[at]

    @property
    def raw_topic(self) -> bytes:
        start, size = self._topic_at()
        return self._data[start : start + size]

    @property
    def raw_properties(self) -> bytes:
        start, size = self._topic_at()
        return self._data[start + size + 2 : self._pos + self.frame_size]

    @property
    def frame(self) -> bytes:
        """The frame itself, as it lies in the log."""
        return self._data[self._pos : self._pos + self.frame_size]


def decode_frames(
    data: Buffer,
    verify_crc: bool,
    kind: type[Any],
    broker_name: str = "",
    tags: frozenset[str] | None = None,
) -> list[Any]:
    """A `kind` (FrameView or a subclass) for each frame of `data`, whole frames only, whose tag is
    in `tags` if there are any.
    """
    owned = data if isinstance(data, bytes) else bytes(data)
    found = []
    pos = 0
    while pos < len(owned):
        outcome = decode_frame(owned, pos, None, verify_crc)
        if not isinstance(outcome, Frame):
            raise MalformedFrame(f"no whole frame at byte {pos} of {len(owned)}: {outcome}")
        view = kind(owned, pos)
        view.broker_name = broker_name
        if not tags or view.tag in tags:
            found.append(view)
        pos += outcome.size
    return found


ResponseBuffer = bytearray
"""Memory for one large response; the kernel's is recycled and its messages refer to it."""


class MessageFields:
    """What a message to send is made of; `message.Message` adds the names of its properties."""

    __slots__ = ("body", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        flag: int = 0,
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        self.properties: dict[str, str] = dict(properties) if properties else {}
        if tag:
            self.properties[TAGS] = tag
        if keys:
            self.properties[KEYS] = keys if isinstance(keys, str) else KEY_SEPARATOR.join(keys)
        if sharding_key:
            self.properties[SHARDING_KEY] = sharding_key
        if delay_level:
            self.properties[DELAY] = str(delay_level)
