"""The message to send, in plain Python: the reference of the kernel's class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from saturnmq.protocol import properties as names


class Message:
    """A message to send. Tag, keys and the rest live in `properties`, as they do on the wire."""

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
            self.tag = tag
        if keys:
            self.keys = keys
        if sharding_key:
            self.sharding_key = sharding_key
        if delay_level:
            self.delay_level = delay_level

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
        self._set(names.KEYS, value if isinstance(value, str) else names.KEY_SEPARATOR.join(value))

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
        return rebuild, (type(self), self.topic, self.body, self.properties, self.flag)


def rebuild(
    kind: type[Message], topic: str, body: bytes, properties: dict[str, str], flag: int
) -> Message:
    """Rebuild a message from its pickle."""
    return kind(topic, body, properties=properties, flag=flag)
