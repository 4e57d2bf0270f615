"""The attributes of a topic: which there are, how a request changes them, which are not kept here.

A request to create or change a topic (code 17) names changes: `+message.type=FIFO,-reserve.time`.
Attributes that it does not name stay. The rules and the texts of refusals are RocketMQ's
(AttributeUtil); RocketMQ answers them with 1, this broker with 29.

| attribute | values | changes later | effect |
|---|---|---|---|
| message.type | one of `MESSAGE_TYPES` | yes | `broker/commit/message_types.py` |
| cleanup.policy | DELETE, COMPACTION | no | COMPACTION is refused |
| queue.type | SimpleCQ, BatchCQ | no | BatchCQ is refused |
| reserve.time | -1 and above | yes | none: RocketMQ's tiered storage reads it |

Pure. A table that RocketMQ wrote may hold what is refused here: such a topic is neither written nor
read (`check_kept`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from saturnmq.protocol.checked import INT64_MAX
from saturnmq.runtime.errors import InvalidParameter, NoPermission

MESSAGE_TYPE = "message.type"
CLEANUP_POLICY = "cleanup.policy"
QUEUE_TYPE = "queue.type"
RESERVE_TIME = "reserve.time"

NORMAL, FIFO, DELAY, TRANSACTION = "NORMAL", "FIFO", "DELAY", "TRANSACTION"
MIXED, UNSPECIFIED, PRIORITY = "MIXED", "UNSPECIFIED", "PRIORITY"
MESSAGE_TYPES = (NORMAL, FIFO, DELAY, TRANSACTION, MIXED, UNSPECIFIED)

NOT_KEPT = {
    (CLEANUP_POLICY, "COMPACTION"): (
        "this version does not compact topics, and would delete the last value of a key with its "
        "segment (docs/topics.md)"
    ),
    (QUEUE_TYPE, "BatchCQ"): "this version has one entry a message in every queue",
    (MESSAGE_TYPE, PRIORITY): "this version reads queues without regard to priorities",
}
"""Values of RocketMQ that promise something that this broker would not keep."""


@dataclass(frozen=True)
class _Attribute:
    is_changeable: bool
    is_value: Callable[[str], bool]
    values: str


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


def _is_reserve_time(value: str) -> bool:
    digits = value.removeprefix("-")
    return digits.isascii() and digits.isdigit() and -1 <= int(value) <= INT64_MAX


_KNOWN = {
    MESSAGE_TYPE: _Attribute(
        True, _one_of(*MESSAGE_TYPES, PRIORITY), f"one of {', '.join(MESSAGE_TYPES)}"
    ),
    CLEANUP_POLICY: _Attribute(False, _one_of("DELETE", "COMPACTION"), "DELETE"),
    QUEUE_TYPE: _Attribute(False, _one_of("SimpleCQ", "BatchCQ"), "SimpleCQ"),
    RESERVE_TIME: _Attribute(True, _is_reserve_time, "a number from -1 on"),
}


def changed(
    topic: str, current: Mapping[str, str] | None, changes: str, *, allow_mixed: bool
) -> dict[str, str]:
    """The attributes of `topic` after `changes`; `current` is None for a new topic.
    InvalidParameter: the changes are not well-formed, or not possible."""
    result = dict(current or {})
    seen: set[str] = set()
    for change in changes.split(",") if changes else ():
        sign, name, value = _parsed(topic, change)
        if name in seen:
            raise InvalidParameter(f"topic {topic}: alter duplication key. key: {name:.127}")
        seen.add(name)
        known = _KNOWN.get(name)
        if known is None:
            raise InvalidParameter(
                f"topic {topic}: unsupported key: {name:.127}; a topic has the attributes "
                f"{', '.join(_KNOWN)}"
            )
        if sign == "-":
            _check_removal(topic, current, name)
        if current is not None and not known.is_changeable:
            raise InvalidParameter(
                f"topic {topic}: attempt to update an unchangeable attribute. key: {name}; "
                "create another topic with it"
            )
        if sign == "-":
            del result[name]
            continue
        if not known.is_value(value):
            raise InvalidParameter(f"topic {topic}: {name} is {value!r:.127}; it is {known.values}")
        if (why := NOT_KEPT.get((name, value))) is not None:
            raise InvalidParameter(f"topic {topic}: {name}={value} is not supported: {why}")
        if (name, value) == (MESSAGE_TYPE, MIXED) and not allow_mixed:
            raise InvalidParameter(
                f"topic {topic}: MIXED message type is not supported. (enableMixedMessageType of "
                "the broker allows it)"
            )
        result[name] = value
    return result


def _parsed(topic: str, change: str) -> tuple[str, str, str]:
    """The sign, the name and the value of one change."""
    signed, equals, value = change.partition("=")
    sign, name = signed[:1], signed[1:]
    if sign != ("+" if equals else "-") or not name or "+" in name or "-" in name:
        raise InvalidParameter(
            f"topic {topic}: kv string format wrong. {change!r:.127} is neither +name=value nor "
            "-name"
        )
    return sign, name, value


def _check_removal(topic: str, current: Mapping[str, str] | None, name: str) -> None:
    if current is None:
        raise InvalidParameter(
            f"topic {topic}: only add attribute is supported while creating topic. key: {name}"
        )
    if name not in current:
        raise InvalidParameter(f"topic {topic}: attempt to delete a nonexistent key: {name}")


def check_kept(topic: str, attributes: Mapping[str, str]) -> None:
    """NoPermission: the topic has an attribute that this broker would not keep. Priorities are the
    exception: their messages are all there, in another order."""
    for name in (CLEANUP_POLICY, QUEUE_TYPE):
        if (why := NOT_KEPT.get((name, attributes.get(name, "")))) is not None:
            raise NoPermission(
                f"topic {topic} has {name}={attributes[name]}: {why}; serve it with RocketMQ"
            )
