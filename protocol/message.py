"""The message as users see it: what they send, and what they receive.

A `Message` is a plain mutable value. A `ReceivedMessage` is a window on a frame inside a pull reply
and decodes what is asked for: most consumers read the body and perhaps the tag, so the rest is
never touched. It keeps the whole reply alive; copy the body out to keep a message for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from saturnmq.protocol import properties as names
from saturnmq.protocol.ids import decode_host, offset_message_id
from saturnmq.protocol.kernels import FrameView, MessageFields
from saturnmq.protocol.properties import decode_properties, encode_properties


class MessageQueue(NamedTuple):
    """One queue of a topic. Sorts as RocketMQ's rebalance does: topic, broker, number."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # The text a consistent-hash rebalance hashes: all clients of a group must agree on it.
        return (
            f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, "
            f"queueId={self.queue_id}]"
        )


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


if TYPE_CHECKING:
    _Fields = FrameView
else:
    _Fields = object


class MessageView(_Fields):
    """What a received message derives from the fields of its frame (see `ReceivedMessage`).

    Apart from it so that tests can put it over the reference and over the kernel.
    """

    __slots__ = ()

    @property
    def keys(self) -> list[str]:
        return self.properties.get(names.KEYS, "").split()

    @property
    def sharding_key(self) -> str | None:
        return self.properties.get(names.SHARDING_KEY)

    @property
    def delay_level(self) -> int:
        text = self.properties.get(names.DELAY, "0")
        return int(text) if text.isascii() and text.isdigit() else 0

    @property
    def born_host(self) -> str:
        return decode_host(self.raw_born_host)

    @property
    def store_host(self) -> str:
        return decode_host(self.raw_store_host)

    @property
    def offset_message_id(self) -> str:
        host = self.raw_store_host
        return offset_message_id(host[:-4], int.from_bytes(host[-4:], "big"), self.physical_offset)

    @property
    def message_id(self) -> str:
        """The producer's unique id, or the offset id of a message that has none."""
        return self.properties.get(names.UNIQ_KEY) or self.offset_message_id

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage({self.topic!r}, queue {self.queue_id}, offset {self.queue_offset}, "
            f"{self.stored_body_size} B, {self.properties})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        # A copy in another process keeps this frame only, not the reply it came in.
        return _rebuild, (self.frame, self.broker_name, self._topic)


class ReceivedMessage(MessageView, FrameView):
    """A message as the broker delivered it."""

    __slots__ = ()


def _remake(topic: str, body: bytes, properties: dict[str, str], flag: int) -> Message:
    return Message(topic, body, properties=properties, flag=flag)


def _rebuild(frame: bytes, broker_name: str, topic: str | None) -> ReceivedMessage:
    message = ReceivedMessage(frame, 0)
    message.broker_name = broker_name
    message._topic = topic
    return message


__all__ = [
    "Message",
    "MessageQueue",
    "MessageView",
    "ReceivedMessage",
    "decode_properties",
    "encode_properties",
]
