"""Received messages, in plain Python: the reference of the kernel's class and of its decoding.

A pull reply is frames as they lie in the log, one behind the other. A message is a window on its
frame: fields are decoded on demand, and a result is kept only where a second read would be
expensive (topic, properties; an unpacked body until the next is unpacked).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeVar

from saturnmq.protocol.compression import COMPRESSED_FLAG, Unpacked, unpack
from saturnmq.protocol.frame import (
    BORN_HOST_V6,
    HEAD,
    MAGIC_V2,
    STORE_HOST_V6,
    WRAPPED,
    Frame,
    decode_frame,
)
from saturnmq.protocol.ids import decode_host, offset_message_id
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.properties import decode_properties
from saturnmq.runtime.errors import MalformedFrame

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class ReceivedMessage:
    """A message as the broker delivered it: one frame inside a bytes object. Every field is read on
    demand.
    """

    __slots__ = (
        "_data",
        "_in_place",
        "_pos",
        "_properties",
        "_sys_flag",
        "_topic",
        "_unpacked",
        "broker_name",
    )

    def __init__(self, data: bytes, pos: int = 0) -> None:
        if pos < 0 or not isinstance(decode_frame(data, pos, None, False), Frame):
            raise MalformedFrame(f"no whole frame at byte {pos} of {len(data)}")
        self._open(data, pos)

    def _open(self, data: bytes, pos: int) -> None:
        self._data = data
        self._pos = pos
        self._sys_flag: int = struct.unpack_from(">i", data, pos + 36)[0]
        self._properties: dict[str, str] | None = None
        self._unpacked: Unpacked | None = None
        self._topic: str | None = None
        self._in_place = 0  # attempts since it was delivered
        self.broker_name = ""

    def _at(self, code: str, offset: int) -> int:
        value: int = struct.unpack_from(code, self._data, self._pos + offset)[0]
        return value

    def _after_hosts(self, offset: int) -> int:
        """`offset`, given for IPv4 hosts, moved by the extra length of the hosts."""
        behind_born = 12 if self._sys_flag & BORN_HOST_V6 else 0
        behind_store = 12 if self._sys_flag & STORE_HOST_V6 and offset >= 72 else 0
        return offset + behind_born + behind_store

    @property
    def topic(self) -> str:
        """The topic; for consumers a retried message has its original topic again."""
        if self._topic is None:
            self._topic = str(self.raw_topic, "utf-8", "replace")
        return self._topic

    @topic.setter
    def topic(self, value: str) -> None:
        self._topic = value

    @property
    def body(self) -> bytes:
        """The body as it was sent. A compressed one is unpacked, and unpacked again if the body of
        another message was unpacked meanwhile: keep a body that is needed for longer.
        """
        if not self.sys_flag & COMPRESSED_FLAG:
            return self.raw_body
        body = None if self._unpacked is None else self._unpacked.body
        if body is None:
            body, self._unpacked = unpack(self.raw_body, self.sys_flag)
        return body

    @property
    def tag(self) -> str | None:
        """The tag that the message was sent with; None if it has none."""
        return self.properties.get("TAGS")

    @property
    def properties(self) -> dict[str, str]:
        """All properties, those of the application and those that the system adds."""
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties)
        return self._properties

    @property
    def keys(self) -> list[str]:
        """The keys by which the message can be found."""
        return self.properties.get("KEYS", "").split()

    @property
    def sharding_key(self) -> str | None:
        """The key whose messages share a queue; None if the message has none."""
        return self.properties.get("__SHARDINGKEY")

    @property
    def delay_level(self) -> int:
        """The delay level that the message was sent with; 0 if it was not delayed."""
        text = self.properties.get("DELAY", "0")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    @property
    def born_host(self) -> str:
        """The address of the producer, `ip:port`."""
        return decode_host(self.raw_born_host)

    @property
    def store_host(self) -> str:
        """The address of the broker that stored the message first, `ip:port`."""
        return decode_host(self.raw_store_host)

    @property
    def offset_message_id(self) -> str:
        """The id that names the broker's address and the physical offset."""
        host = self.raw_store_host
        return offset_message_id(host[:-4], int.from_bytes(host[-4:], "big"), self.physical_offset)

    @property
    def message_id(self) -> str:
        """The producer's unique id, or the offset id of a message that has none."""
        return self.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def queue(self) -> MessageQueue:
        """The queue that the message lies in."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def frame_size(self) -> int:
        """The bytes of the whole frame."""
        return self._at(">i", 0)

    @property
    def body_crc(self) -> int:
        """The CRC32 of the body as it is stored."""
        return self._at(">i", 8)

    @property
    def queue_id(self) -> int:
        """The number of the queue."""
        return self._at(">i", 12)

    @property
    def flag(self) -> int:
        """The flag that the application gave; the system ignores it."""
        return self._at(">i", 16)

    @property
    def queue_offset(self) -> int:
        """The place in the queue, counted in messages."""
        return self._at(">q", 20)

    @property
    def physical_offset(self) -> int:
        """The place in the CommitLog, in bytes."""
        return self._at(">q", 28)

    @property
    def sys_flag(self) -> int:
        """The bits that say how body and hosts are written (docs/internals/format.md 2.1)."""
        return self._sys_flag

    @property
    def born_timestamp(self) -> int:
        """The producer's clock when the message was sent, in ms since 1970."""
        return self._at(">q", 40)

    @property
    def raw_born_host(self) -> bytes:
        """The producer's address and port as they are stored."""
        start = self._pos + HEAD.size
        return self._data[start : start + (20 if self._sys_flag & BORN_HOST_V6 else 8)]

    @property
    def store_timestamp(self) -> int:
        """The broker's clock when the message was stored, in ms since 1970."""
        return self._at(">q", self._after_hosts(56))

    @property
    def raw_store_host(self) -> bytes:
        """The broker's address and port as they are stored."""
        start = self._pos + self._after_hosts(64)
        return self._data[start : start + (20 if self._sys_flag & STORE_HOST_V6 else 8)]

    @property
    def reconsume_times(self) -> int:
        """The number of times that the message was sent back and delivered again. A listener that
        consumes in order gets a failed message again in place, and finds these attempts in it, too.
        """
        return self._at(">i", self._after_hosts(72)) + self._in_place

    @reconsume_times.setter
    def reconsume_times(self, value: int) -> None:
        self._in_place = value - self._at(">i", self._after_hosts(72))

    @property
    def prepared_offset(self) -> int:
        """The place in the CommitLog of a committed message's half; 0 without a transaction."""
        return self._at(">q", self._after_hosts(76))

    @property
    def raw_body(self) -> bytes:
        """The body as it is stored, compressed or not."""
        start = self._pos + self._after_hosts(84) + 4
        return self._data[start : start + self.stored_body_size]

    @property
    def stored_body_size(self) -> int:
        """The bytes of the body as it is stored."""
        return self._at(">i", self._after_hosts(84))

    def _topic_at(self) -> tuple[int, int]:
        """The start of the topic in the data, and its length."""
        at = self._pos + self._after_hosts(84) + 4 + self.stored_body_size
        if self._at(">I", 4) == MAGIC_V2:
            return at + 2, int.from_bytes(self._data[at : at + 2], "big")
        return at + 1, self._data[at]

    @property
    def raw_topic(self) -> bytes:
        """The topic as bytes of UTF-8."""
        start, size = self._topic_at()
        return self._data[start : start + size]

    @property
    def raw_properties(self) -> bytes:
        """The properties as they are stored."""
        start, size = self._topic_at()
        return self._data[start + size + 2 : self._pos + self.frame_size]

    @property
    def frame(self) -> bytes:
        """The frame itself, as it lies in the log."""
        return self._data[self._pos : self._pos + self.frame_size]

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage({self.topic!r}, queue {self.queue_id}, offset {self.queue_offset}, "
            f"{self.stored_body_size} B, {self.properties})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        # A copy in another process keeps this frame only, not the reply it came in.
        return rebuild, (self.frame, self.broker_name, self._topic, self.reconsume_times)


def rebuild(
    frame: bytes, broker_name: str, topic: str | None, reconsume_times: int
) -> ReceivedMessage:
    """A received message from its pickle, by the kernel or by the reference of this process."""
    from saturnmq.protocol import kernels  # kernels imports this module

    message = kernels.ReceivedMessage(frame, 0)
    message.broker_name = broker_name
    message._topic = topic
    message.reconsume_times = reconsume_times
    return message


def decode_frames(
    data: Buffer,
    verify_crc: bool = False,
    broker_name: str = "",
    tags: frozenset[str] | None = None,
) -> list[ReceivedMessage]:
    """The messages of a pull reply (with `tags` only those that have one of them); MalformedFrame
    if it is not made of whole frames.
    """
    owned = data if isinstance(data, bytes) else bytes(data)
    found = []
    pos = 0
    while pos < len(owned):
        outcome = decode_frame(owned, pos, None, verify_crc)
        if not isinstance(outcome, Frame):
            raise MalformedFrame(f"no whole frame at byte {pos} of {len(owned)}: {outcome}")
        message = ReceivedMessage.__new__(ReceivedMessage)
        message._open(owned, pos)
        message.broker_name = broker_name
        if not tags or message.tag in tags:
            found.append(message)
        pos += outcome.size
    return found


def decode_plain(
    data: Buffer,
    verify_crc: bool = False,
    broker_name: str = "",
    tags: frozenset[str] | None = None,
) -> list[ReceivedMessage] | None:
    """As `decode_frames`; None if one of the frames, or of those before the first that is not
    whole, holds a batch of messages (`inner_batch.py`): it must be unwrapped first."""
    owned = data if isinstance(data, bytes) else bytes(data)
    pos = 0
    while isinstance(outcome := decode_frame(owned, pos, None, verify_crc), Frame):
        if outcome.sys_flag & WRAPPED == WRAPPED:
            return None
        pos += outcome.size
    return decode_frames(owned, verify_crc, broker_name, tags)


ResponseBuffer = bytearray
"""Memory for one large response; the kernel's is recycled and its messages refer to it."""


def upcoming(messages: list[T]) -> Iterator[T]:
    """The messages one after the other, for a listener. A step is atomic, as with any list.

    The kernel's also forgets, when the next one is asked for, what was decoded of the last one:
    properties and an unpacked body. The same memory serves for the next one then, while a pull has
    more of them than the processor's cache. If anybody but the list and the caller holds the
    message, nothing is forgotten: the application may have kept it, or changed its properties.
    """
    return iter(messages)
