"""The message to send, in plain Python: the reference of the kernel's class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from saturnmq.protocol import properties as names
from saturnmq.runtime.errors import InvalidParameter, MessageIllegal

ARGUMENTS = {names.TAGS: "tag", names.KEYS: "keys", names.SHARDING_KEY: "sharding_key"}
"""The names that the constructor has for properties."""


class Message:
    """A message to send. Tag, keys and the rest live in `properties`, as they do on the wire."""

    __slots__ = ("_body", "flag", "properties", "topic")

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
        if not isinstance(topic, str):
            refuse("topic", topic, "give its name as text")
        self.topic = topic
        self.body = body
        self.flag = flag
        self.properties: dict[str, str] = dict(properties) if properties else {}
        if tag:
            self.tag = tag
        if keys:
            self.keys = keys
        if sharding_key:
            self.sharding_key = sharding_key
        if delay_level:
            self.delay_level = delay_level

    @property
    def body(self) -> bytes | bytearray | memoryview:
        """The bytes to send. Another buffer than bytes, a bytearray or a view of bytes is copied
        when it is given."""
        return self._body

    @body.setter
    def body(self, value: bytes | bytearray | memoryview) -> None:
        self._body = plain_body(value)

    @property
    def tag(self) -> str | None:
        """The tag that consumers filter by."""
        return self.properties.get(names.TAGS)

    @tag.setter
    def tag(self, value: str | None) -> None:
        self._set(names.TAGS, value)

    @property
    def keys(self) -> list[str]:
        """The keys by which the message can be found; spaces separate several in a string."""
        return self.properties.get(names.KEYS, "").split()

    @keys.setter
    def keys(self, value: str | Sequence[str]) -> None:
        self._set(names.KEYS, value if isinstance(value, str) else joined_keys(value))

    @property
    def sharding_key(self) -> str | None:
        """Messages with the same key go to the same queue, in order."""
        return self.properties.get(names.SHARDING_KEY)

    @sharding_key.setter
    def sharding_key(self, value: str | None) -> None:
        self._set(names.SHARDING_KEY, value)

    @property
    def delay_level(self) -> int:
        """The number of the delay level; 0 delivers at once."""
        return int(self.properties.get(names.DELAY, "0"))

    @delay_level.setter
    def delay_level(self, value: int) -> None:
        self._set(names.DELAY, level_text(value) if value else None)

    @property
    def unique_id(self) -> str | None:
        """Set by the producer when the message is sent."""
        return self.properties.get(names.UNIQ_KEY)

    def _set(self, name: str, value: str | None) -> None:
        if value:
            if not isinstance(value, str):
                refuse(name, value, "give text")
            self.properties[name] = value
        else:
            self.properties.pop(name, None)

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} B, {self.properties})"

    def __reduce__(self) -> tuple[object, ...]:
        return reduced(self)


def plain_body(body: Any) -> bytes | bytearray | memoryview:
    """A body of which `len` counts bytes: `body` itself, or a copy of another buffer's bytes.
    MessageIllegal: it is no buffer."""
    if isinstance(body, (bytes, bytearray)):
        return body
    try:
        view = memoryview(body)
    except TypeError:
        raise MessageIllegal(
            f"the body is of type {type(body).__name__}: give bytes, a bytearray, a memoryview or "
            "another buffer; text as text.encode()"
        ) from None
    is_bytes = view.format == "B" and view.ndim == 1 and view.c_contiguous
    return body if isinstance(body, memoryview) and is_bytes else view.tobytes()


def joined_keys(keys: Sequence[str]) -> str:
    """Several keys as one text. InvalidParameter: one is no text."""
    try:
        return names.KEY_SEPARATOR.join(keys)
    except TypeError:
        refuse(names.KEYS, keys, "give a text, or a sequence of texts")


def level_text(level: int) -> str:
    """A delay level as it travels. InvalidParameter: it is none."""
    if type(level) is not int or level < 0:
        refuse("delay_level", level, "give the number of a level from 1 on, or 0 for no delay")
    return str(level)


def refuse(name: str, value: object, way_out: str) -> NoReturn:
    """Raise InvalidParameter for a value that a message cannot have."""
    raise InvalidParameter(f"{ARGUMENTS.get(name, name)} of a message is {value!r:.60}: {way_out}")


def reduced(message: Message) -> tuple[object, ...]:
    """The pickle of a message; a subclass may have attributes, and a constructor, of its own."""
    state: Any = object.__getstate__(message)
    own, slots = state if isinstance(state, tuple) else (state, None)
    added = {**(own or {}), **(slots or {})}
    for name in Message.__slots__:
        added.pop(name, None)
    fields = (message.topic, message.body, message.properties, message.flag)
    return rebuild, (type(message), *fields, added)


def rebuild(
    kind: type[Message],
    topic: str,
    body: bytes,
    properties: dict[str, str],
    flag: int,
    added: Mapping[str, object] | None = None,
) -> Message:
    """Rebuild a message from its pickle."""
    message = kind.__new__(kind)
    message.topic, message.body, message.flag = topic, body, flag
    message.properties = dict(properties)
    for name, value in (added or {}).items():
        setattr(message, name, value)
    return message
