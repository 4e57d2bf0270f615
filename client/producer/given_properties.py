"""The properties that an application gives a message, as they stand in a batch. Pure."""

from __future__ import annotations

from saturnmq.client.producer.batch_reference import EXTRA_BYTES_MAX
from saturnmq.protocol.frame import is_torn
from saturnmq.protocol.properties import UNIQ_KEY, WAIT, encode_properties
from saturnmq.runtime.errors import MessageIllegal

ID_BYTES = 32  # of the ids that are made here; an application may give a longer one


def identity(unique_id: str) -> bytes:
    """UNIQ_KEY and WAIT, encoded."""
    return f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02".encode()


def encode_given(properties: dict[str, str]) -> tuple[bytes, str]:
    """The encoded properties without UNIQ_KEY and WAIT, and the UNIQ_KEY if one was given.
    MessageIllegal: they are too long, or no reader would see them as they are. Java's
    `putUserProperty` refuses empty names and values, too."""
    if not properties:
        return b"", ""
    for name, value in properties.items():
        _check(name, value)
    uid = properties.get(UNIQ_KEY, "")
    if uid or WAIT in properties:
        properties = {k: v for k, v in properties.items() if k not in (UNIQ_KEY, WAIT)}
    extra = encode_properties(properties)
    if is_torn(identity(uid) + extra):
        raise MessageIllegal(
            "the last property ends with a zero byte: leave it out, the message would look like "
            "a frame that a crash tore"
        )
    size = len(extra) + max(0, len(uid.encode()) - ID_BYTES)
    if size > EXTRA_BYTES_MAX:
        raise MessageIllegal(
            f"properties of {size} B exceed the limit of {EXTRA_BYTES_MAX} B: "
            "shorten keys or user properties"
        )
    return extra, uid


def _check(name: object, value: object) -> None:
    for text in (name, value):
        if not isinstance(text, str):
            raise MessageIllegal(
                f"property {name!r} has a {type(text).__name__}, {text!r}: give text"
            )
        if not text:
            raise MessageIllegal(
                f"property {name!r} is {value!r}: names and values have at least one character, "
                "readers pass over others; leave it out"
            )
        if "\x01" in text or "\x02" in text:
            raise MessageIllegal(f"property {name!r} holds a byte 1 or 2: they end fields")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise MessageIllegal(
                f"property {name!r}: {text!r} has no UTF-8 ({error.reason}); replace the character "
                f"at {error.start}"
            ) from None
