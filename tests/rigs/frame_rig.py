"""Frames of the log that differ from a plain one in a few fields."""

from __future__ import annotations

from typing import Any

from saturnmq.protocol.frame import encode_frame

PLAIN: dict[str, Any] = {
    "physical_offset": 0,
    "queue_offset": 0,
    "queue_id": 0,
    "flag": 0,
    "sys_flag": 0,
    "born_timestamp": 1,
    "born_host": bytes(8),
    "store_timestamp": 1,
    "store_host": bytes(8),
    "reconsume_times": 0,
    "prepared_offset": 0,
    "body": b"",
    "topic": b"T",
    "properties": b"",
}


def plain_frame(size: int = 0, /, **fields: Any) -> bytes:
    """A frame with these fields; its body makes it `size` bytes long if that is given."""
    if size:
        fields["body"] = b"x" * (size - len(encode_frame(**{**PLAIN, **fields})))
    return encode_frame(**{**PLAIN, **fields})
