"""The message as users see it: what they send, and what they receive.

A `Message` is a plain mutable value. A `ReceivedMessage` (received.py) is a window on a frame
inside a pull reply and decodes what is asked for: most consumers read the body and perhaps the tag,
so the rest is never touched. It keeps the whole reply alive; copy the body out to keep a message
for long.
"""

from __future__ import annotations

from collections.abc import Sequence

from saturnmq.protocol import properties as names
from saturnmq.protocol.kernels import MessageFields, ReceivedMessage
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.properties import decode_properties, encode_properties


class Message(MessageFields):
    """A message to send. Tag, keys and the rest live in `properties`, as they do on the wire."""

    __slots__ = ()

    @property
    def tag(self) -> str | None:
        return self.properties.get(names.TAGS)

    @tag.setter
    def tag(self, value: str | None) -> None:
        self._set(names.TAGS, value)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(names.KEYS, "").split()

    @keys.setter
    def keys(self, value: str | Sequence[str]) -> None:
        self._set(names.KEYS, value if isinstance(value, str) else names.KEY_SEPARATOR.join(value))

    @property
    def sharding_key(self) -> str | None:
        return self.properties.get(names.SHARDING_KEY)

    @sharding_key.setter
    def sharding_key(self, value: str | None) -> None:
        self._set(names.SHARDING_KEY, value)

    @property
    def delay_level(self) -> int:
        return int(self.properties.get(names.DELAY, "0"))

    @delay_level.setter
    def delay_level(self, value: int) -> None:
        self._set(names.DELAY, str(value) if value else None)

    @property
    def unique_id(self) -> str | None:
        """Set by the producer when the message is sent."""
        return self.properties.get(names.UNIQ_KEY)

    def _set(self, name: str, value: str | None) -> None:
        if value:
            self.properties[name] = value
        else:
            self.properties.pop(name, None)

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} B, {self.properties})"

    def __reduce__(self) -> tuple[object, ...]:
        return _remake, (self.topic, self.body, self.properties, self.flag)


def _remake(topic: str, body: bytes, properties: dict[str, str], flag: int) -> Message:
    return Message(topic, body, properties=properties, flag=flag)


__all__ = [
    "Message",
    "MessageQueue",
    "ReceivedMessage",
    "decode_properties",
    "encode_properties",
]
