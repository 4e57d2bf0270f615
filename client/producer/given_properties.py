"""The properties that an application gives a message, as they stand in a batch. Pure."""

from __future__ import annotations

from saturnmq.client.producer.batch_reference import EXTRA_BYTES_MAX
from saturnmq.protocol.properties import UNIQ_KEY, WAIT, encode_properties
from saturnmq.runtime.errors import MessageIllegal

ID_BYTES = 32  # of the ids that are made here; an application may give a longer one


def identity(unique_id: str) -> bytes:
    """UNIQ_KEY and WAIT, encoded."""
    return f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02".encode()


def encode_given(properties: dict[str, str]) -> tuple[bytes, str]:
    """The encoded properties without UNIQ_KEY and WAIT, and the UNIQ_KEY if one was given.
    MessageIllegal: they are too long, or hold a byte that ends fields."""
    if not properties:
        return b"", ""
    uid = properties.get(UNIQ_KEY, "")
    if uid or WAIT in properties:
        properties = {k: v for k, v in properties.items() if k not in (UNIQ_KEY, WAIT)}
    for name, value in properties.items():
        if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise MessageIllegal(f"property {name!r} holds a byte 1 or 2: they end fields")
    extra = encode_properties(properties)
    size = len(extra) + max(0, len(uid.encode()) - ID_BYTES)
    if size > EXTRA_BYTES_MAX:
        raise MessageIllegal(
            f"properties of {size} B exceed the limit of {EXTRA_BYTES_MAX} B: "
            "shorten keys or user properties"
        )
    return extra, uid
