"""The number of fields in a message of protobuf, before it is parsed. Pure.

A field takes two bytes at least, and a parsed message of no fields 36 to 63: so a request of 16 MiB
could become a gigabyte. Messages that are too short for so many are not looked at.
"""

from __future__ import annotations

from typing import Any

FIELDS_MAX = 100_000
FIELD_BYTES = 2  # at least
_FIXED = {1: 8, 5: 4}  # bytes of a value, by its wire type


class TooManyFields(ValueError):
    """More than FIELDS_MAX."""


def check_fields(data: bytes, descriptor: Any) -> None:
    """TooManyFields. Bytes that are no message are left to the parser."""
    if len(data) > FIELDS_MAX * FIELD_BYTES:
        _count(data, 0, len(data), descriptor, 0)


def _count(data: bytes, at: int, end: int, descriptor: Any, count: int) -> int:
    """`count` and the fields between `at` and `end`. A group, which is unknown, counts as what is
    in it."""
    while at < end:
        count += 1
        if count > FIELDS_MAX:
            raise TooManyFields(f"more than {FIELDS_MAX} fields")
        key, at = _integer(data, at, end)
        wire_type = key & 7
        if wire_type == 0:
            _, at = _integer(data, at, end)
        elif wire_type == 2:
            size, at = _integer(data, at, end)
            field = descriptor.fields_by_number.get(key >> 3)
            if field is not None and field.message_type is not None:
                count = _count(data, at, min(at + size, end), field.message_type, count)
            at += size
        elif wire_type in _FIXED:
            at += _FIXED[wire_type]
        elif wire_type > 5:
            return count  # there is no such type
    return count


def _integer(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return value, end
