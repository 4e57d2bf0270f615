"""The attributes of topics and groups: which there are, how a request changes them, and which are
not kept here.

A request to create or change a topic (code 17) names changes: `+message.type=FIFO,-reserve.time`.
The settings of a group (code 200) have them as a table. Attributes that a request does not name
stay. The rules are RocketMQ's (AttributeUtil), and so are the texts of refusals, but for those of
values; RocketMQ answers them with 1, this broker with 29.

| of a topic | values | changes later | effect |
|---|---|---|---|
| message.type | one of `MESSAGE_TYPES` | yes | `broker/commit/message_types.py` |
| cleanup.policy | DELETE, COMPACTION | no | COMPACTION is refused |
| queue.type | SimpleCQ, BatchCQ | no | `broker/commit/inner_batches.py` |
| reserve.time | -1 and above | yes | none: RocketMQ's tiered storage reads it |

| of a group | values | changes later | effect |
|---|---|---|---|
| priority.factor | 0 to 100 | yes | none: there are no priorities |

Pure. A table that RocketMQ wrote may hold what is refused here: such a topic is neither written nor
read (`check_kept`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.inner_batch import BATCHED, QUEUE_TYPE
from saturnmq.protocol.message_types import MESSAGE_TYPE, MESSAGE_TYPES, MIXED
from saturnmq.runtime.errors import InvalidParameter, NoPermission

DIGITS_MAX = 20  # of a number of 64 bits, with its sign

CLEANUP_POLICY = "cleanup.policy"
RESERVE_TIME = "reserve.time"

PRIORITY = "PRIORITY"  # a message type of RocketMQ's 5.4

NOT_KEPT = {
    (CLEANUP_POLICY, "COMPACTION"): (
        "this version does not compact topics, and would delete the last value of a key with its "
        "segment (docs/topics.md)"
    ),
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


def _is_number(least: int, most: int) -> Callable[[str], bool]:
    def is_number(value: str) -> bool:
        digits = value.removeprefix("-")
        is_short = len(value) <= DIGITS_MAX and digits.isascii() and digits.isdigit()
        return is_short and least <= int(value) <= most

    return is_number


_OF_TOPICS = {
    MESSAGE_TYPE: _Attribute(
        True, _one_of(*MESSAGE_TYPES, PRIORITY), f"one of {', '.join(MESSAGE_TYPES)}"
    ),
    CLEANUP_POLICY: _Attribute(False, _one_of("DELETE", "COMPACTION"), "DELETE"),
    QUEUE_TYPE: _Attribute(False, _one_of("SimpleCQ", BATCHED), "SimpleCQ or BatchCQ"),
    RESERVE_TIME: _Attribute(True, _is_number(-1, INT64_MAX), "a number from -1 on"),
}


_OF_GROUPS = {
    "priority.factor": _Attribute(True, _is_number(0, 100), "a number from 0 to 100"),
}


def changed(
    topic: str, current: Mapping[str, str] | None, changes: str, *, allow_mixed: bool
) -> dict[str, str]:
    """The attributes of `topic` after `changes`; `current` is None for a new topic.
    InvalidParameter: the changes are not well-formed, or not possible."""
    owner = f"topic {topic}"
    named = changes.rstrip(",")  # as Java splits it
    parsed = [_parsed(owner, change) for change in named.split(",")] if named else []
    result = _changed(owner, _OF_TOPICS, current, parsed)
    for name, value in result.items():
        if value == (current or {}).get(name):
            continue
        if (why := NOT_KEPT.get((name, value))) is not None:
            raise InvalidParameter(f"{owner}: {name}={value} is not supported: {why}")
        if (name, value) == (QUEUE_TYPE, BATCHED) and "%" in topic:
            raise InvalidParameter(f"{owner}: retry topics and dead letters have no batches")
        if (name, value) == (MESSAGE_TYPE, MIXED) and not allow_mixed:
            raise InvalidParameter(
                f"{owner}: MIXED message type is not supported. (enableMixedMessageType of the "
                "broker allows it)"
            )
    return result


def changed_of_group(
    group: str, current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """The attributes of a group, as `changed`; its settings name them with their signs."""
    owner = f"group {group}"
    parsed = [
        _parsed(owner, f"{signed}={value}" if value else signed)
        for signed, value in changes.items()
    ]
    return _changed(owner, _OF_GROUPS, current, parsed)


def _changed(
    owner: str,
    attributes: Mapping[str, _Attribute],
    current: Mapping[str, str] | None,
    changes: Sequence[tuple[str, str, str]],
) -> dict[str, str]:
    result = dict(current or {})
    seen: set[str] = set()
    for sign, name, value in changes:
        if name in seen:
            raise InvalidParameter(f"{owner}: alter duplication key. key: {name:.127}")
        seen.add(name)
        known = attributes.get(name)
        if known is None:
            raise InvalidParameter(
                f"{owner}: unsupported key: {name:.127}; there are {', '.join(attributes)}"
            )
        if sign == "-":
            _check_removal(owner, current, name)
        if current is not None and not known.is_changeable:
            raise InvalidParameter(
                f"{owner}: attempt to update an unchangeable attribute. key: {name}; it is given "
                "when the topic is created"
            )
        if sign == "-":
            del result[name]
        elif known.is_value(value):
            result[name] = value
        else:
            raise InvalidParameter(f"{owner}: {name} is {value!r:.127}; it is {known.values}")
    return result


def _parsed(owner: str, change: str) -> tuple[str, str, str]:
    """The sign, the name and the value of one change."""
    signed, equals, value = change.partition("=")
    sign, name = signed[:1], signed[1:]
    if sign != ("+" if equals else "-") or not name or "+" in name or "-" in name:
        raise InvalidParameter(
            f"{owner}: kv string format wrong. {change!r:.127} is neither +name=value nor -name"
        )
    return sign, name, value


def _check_removal(owner: str, current: Mapping[str, str] | None, name: str) -> None:
    if current is None:
        raise InvalidParameter(
            f"{owner}: only add attribute is supported while creating topic. key: {name}"
        )
    if name not in current:
        raise InvalidParameter(f"{owner}: attempt to delete a nonexistent key: {name}")


def check_kept(topic: str, attributes: Mapping[str, str]) -> None:
    """NoPermission: the topic has an attribute that this broker would not keep. Priorities are the
    exception: their messages are all there, in another order."""
    policy = attributes.get(CLEANUP_POLICY, "")
    if (why := NOT_KEPT.get((CLEANUP_POLICY, policy))) is not None:
        raise NoPermission(
            f"topic {topic} has {CLEANUP_POLICY}={policy}: {why}; serve it with RocketMQ"
        )
