"""The body of SEND_BATCH_MESSAGE: many messages for one queue, back to back.

    i32 size of this entry | i32 magic 0 | i32 crc | i32 flag | i32 n, body | i16 n, properties

Producers write it; the broker turns it into ordinary frames. The crc field is 0 from Java
producers. Ours puts the body's CRC there, which Java brokers ignore and our broker checks: a body
that changed between the producer's memory and the log is refused instead of stored with a fresh,
valid CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from saturnmq.protocol.frame import (
    CRC_PROPERTY_BYTES,
    crc32,
    is_torn,
    message_size,
    own_properties,
    stored_properties_size,
)
from saturnmq.protocol.message_reference import plain_body
from saturnmq.protocol.properties import PROPERTIES_BYTES_MAX
from saturnmq.runtime.errors import MessageIllegal

SIZES = "saturnSizes"
"""Ext field of a batch: with "true" the reply has the first offset id and, as its body, an i32 per
frame with its size. Otherwise it has RocketMQ's comma-joined list of all ids."""

ENTRY_HEAD = struct.Struct(">iiiii")
ENTRY_BYTES_MIN = ENTRY_HEAD.size + 2
assert ENTRY_HEAD.size == 20, "five i32"
assert ENTRY_BYTES_MIN == 22


class BatchEntry(NamedTuple):
    flag: int
    crc: int  # as the producer gave it; 0: not given
    body: memoryview
    properties: bytes


def encode_batch_item(
    out: bytearray,
    body: bytes | bytearray | memoryview,
    properties: bytes,
    flag: int = 0,
    with_crc: bool = True,
) -> None:
    """Append one entry to `out`."""
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise _properties_too_large(len(properties), PROPERTIES_BYTES_MAX)
    body = plain_body(body)
    size = ENTRY_BYTES_MIN + len(body) + len(properties)
    out += ENTRY_HEAD.pack(size, 0, crc32(body) if with_crc else 0, flag, len(body))
    out += body
    out += len(properties).to_bytes(2, "big")
    out += properties


def put_batch_item(
    buffer: bytearray,
    at: int,
    body: bytes | bytearray | memoryview,
    id_head: bytes,
    number: int,
    extra: bytes,
    flag: int = 0,
) -> int:
    """Write one entry into `buffer` at byte `at`; returns the position of the next one, or -1 if it
    does not fit.

    The properties are UNIQ_KEY, made of `id_head` and `number` as four hex digits (see
    `ids.UniqueIds.batch_head`), WAIT=true, and the encoded ones of `extra`; with `number` -1 they
    are `extra` alone.
    """
    properties = extra
    if number >= 0:
        properties = b"UNIQ_KEY\x01%b%04X\x02WAIT\x01true\x02%b" % (id_head, number, extra)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise _properties_too_large(len(properties), PROPERTIES_BYTES_MAX)
    body = memoryview(plain_body(body))  # of the bytes that are there now
    size = ENTRY_BYTES_MIN + len(body) + len(properties)
    if at + size > len(buffer):
        return -1
    ENTRY_HEAD.pack_into(buffer, at, size, 0, crc32(body), flag, len(body))
    at += ENTRY_HEAD.size
    buffer[at : at + len(body)] = body
    at += len(body)
    buffer[at : at + 2] = len(properties).to_bytes(2, "big")
    buffer[at + 2 : at + 2 + len(properties)] = properties
    return at + 2 + len(properties)


def encode_batch(items: Iterable[tuple[bytes, bytes, int]]) -> bytearray:
    """A whole batch body of (body, properties, flag)."""
    out = bytearray()
    for body, properties, flag in items:
        encode_batch_item(out, body, properties, flag)
    return out


def iterate_batch(batch: bytes | bytearray | memoryview) -> Iterator[BatchEntry]:
    """The entries of a batch body; MessageIllegal names the first malformed one."""
    data = memoryview(batch)
    pos, number = 0, 0
    while pos < len(data):
        left = len(data) - pos
        if left < ENTRY_BYTES_MIN:
            raise malformed(number, pos)
        size, _, crc, flag, body_bytes = ENTRY_HEAD.unpack_from(data, pos)
        if size < ENTRY_BYTES_MIN or size > left or not 0 <= body_bytes <= size - ENTRY_BYTES_MIN:
            raise malformed(number, pos)
        body_at = pos + ENTRY_HEAD.size
        properties_at = body_at + body_bytes + 2
        properties_bytes = int.from_bytes(data[properties_at - 2 : properties_at], "big")
        if properties_at + properties_bytes != pos + size:
            raise malformed(number, pos)
        yield BatchEntry(
            flag,
            crc,
            data[body_at : body_at + body_bytes],
            bytes(data[properties_at : pos + size]),
        )
        pos += size
        number += 1


def check_batch(
    batch: bytes | bytearray | memoryview,
    topic_len: int,
    host6: int,
    crc_property: bool,
    max_body: int,
    max_properties: int = PROPERTIES_BYTES_MAX,
) -> tuple[int, int]:
    """Returns (messages, bytes of their frames); MessageIllegal if any entry cannot be stored.

    `host6` is the number of IPv6 hosts in a frame, 0 to 2.
    """
    limit = min(max_properties, PROPERTIES_BYTES_MAX)
    count = total = 0
    for entry in iterate_batch(batch):
        if len(entry.body) > max_body:
            raise body_too_large(count, len(entry.body), max_body)
        properties_size = stored_properties_size(entry.properties, crc_property)
        if properties_size > limit:
            raise properties_too_large(count, properties_size, limit)
        if not crc_property and is_torn(own_properties(entry.properties)):
            raise properties_with_zeros(count)
        total += message_size(len(entry.body), topic_len, properties_size) + 12 * int(host6)
        count += 1
    if not count:
        raise MessageIllegal("the batch is empty; send at least one message")
    return count, total


def malformed(number: int, pos: int) -> MessageIllegal:
    return MessageIllegal(f"batch entry {number} at byte {pos} is malformed: its lengths disagree")


def body_too_large(number: int, size: int, limit: int) -> MessageIllegal:
    return MessageIllegal(
        f"batch entry {number}: body of {size} B exceeds the limit of {limit} B (maxMessageSize)"
    )


def properties_too_large(number: int, size: int, limit: int) -> MessageIllegal:
    return MessageIllegal(
        f"batch entry {number}: properties of {size} B exceed the limit of {limit} B"
    )


def properties_with_zeros(number: int) -> MessageIllegal:
    return MessageIllegal(
        f"batch entry {number}: the last {CRC_PROPERTY_BYTES + 1} B of properties hold a zero "
        "byte, which would look like a frame that a crash tore; leave it out"
    )


def crc_differs(number: int, claimed: int, actual: int) -> MessageIllegal:
    return MessageIllegal(
        f"batch entry {number}: body CRC is {actual}, the producer sent {claimed}; send it again"
    )


def _properties_too_large(size: int, limit: int) -> MessageIllegal:
    return MessageIllegal(
        f"properties of {size} B exceed the limit of {limit} B "
        f"(a CRC property takes {CRC_PROPERTY_BYTES} more); shorten keys or user properties"
    )
