"""The settings of a consumer group, as a master keeps them: RocketMQ's SubscriptionGroupConfig.

Each setting is explained at its place in `GroupSettings`; `GroupChanges` has the same names. A
change is read, changed and written back, master by master: what it does not name stays, also
fields that are unknown here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

from saturnmq.protocol import checked
from saturnmq.protocol.checked import INT32_MAX, INT64_MAX
from saturnmq.protocol.retry_policy import KEY as RETRY_POLICY
from saturnmq.protocol.retry_policy import (
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    retry_policy_json,
    retry_policy_of,
)
from saturnmq.runtime.errors import ConfigError, MalformedFrame


class GroupSettings(NamedTuple):
    """The settings of a group at one master."""

    max_retries: int
    """How often a failed message is delivered again before it goes to %DLQ%<group>; 0 is never. It
    counts for consumers without a `max_reconsume` of their own; Java's consumers send 16. An
    ordered consumer without `max_reconsume` tries its message again in place, without limit."""
    retry_queues: int
    """The queues of %RETRY%<group>; with 0 a message that failed does not come again."""
    retry_policy: GroupRetryPolicy
    """The waits between deliveries, for clients of the gRPC API (docs/clients.md)."""
    orderly: bool
    """Whether clients of the gRPC API consume in order; a consumer here says `ordered` itself."""
    enabled: bool
    """Whether the group may consume."""
    broadcast: bool
    """Whether its members may each consume all messages."""
    notify_members: bool
    """Whether members are told at once that others came or went."""
    broker_id: int
    """The broker id that members read from."""
    slow_broker_id: int
    """The broker id that members read from while they are far behind."""
    from_min: bool
    """Kept for RocketMQ's tools: nothing reads it, in RocketMQ neither."""
    consume_timeout_min: int
    """The same."""
    attributes: dict[str, str]
    """`priority.factor`, which RocketMQ 5.4 reads."""


class GroupChanges(TypedDict, total=False):
    """New values of settings, by their names in `GroupSettings`; the others stay."""

    max_retries: int
    retry_queues: int
    retry_policy: GroupRetryPolicy
    orderly: bool
    enabled: bool
    broadcast: bool
    notify_members: bool
    broker_id: int
    slow_broker_id: int
    from_min: bool
    consume_timeout_min: int
    attributes: Mapping[str, str | None]  # None removes one


_NUMBERS = {  # RocketMQ's name of each, and its value where a document lacks it
    "max_retries": ("retryMaxTimes", 16),
    "retry_queues": ("retryQueueNums", 1),
    "broker_id": ("brokerId", 0),
    "slow_broker_id": ("whichBrokerWhenConsumeSlowly", 1),
    "consume_timeout_min": ("consumeTimeoutMinute", 15),
}
_FLAGS = {
    "orderly": ("consumeMessageOrderly", False),
    "enabled": ("consumeEnable", True),
    "broadcast": ("consumeBroadcastEnable", True),
    "notify_members": ("notifyConsumerIdsChangedEnable", True),
    "from_min": ("consumeFromMinEnable", True),
}
_FIELDS = {name: field for name, (field, _) in (*_NUMBERS.items(), *_FLAGS.items())}
_ATTRIBUTES = "attributes"


def check_changes(changes: GroupChanges) -> None:
    """ConfigError: no master would take them, or they make no sense."""
    unknown = changes.keys() - GroupChanges.__annotations__.keys()
    if unknown:
        raise ConfigError(
            f"a group has no setting {', '.join(sorted(unknown))}; it has "
            f"{', '.join(GroupChanges.__annotations__)}"
        )
    for name in _NUMBERS.keys() & changes.keys():
        number: object = changes.get(name)
        if not isinstance(number, int) or abs(number) > INT64_MAX:
            raise ConfigError(f"{name} is {number!r:.60}, no number of 64 bits")
    retries = changes.get("max_retries", 0)
    if retries < 0:
        raise ConfigError(f"max_retries is {retries}; give the number of retries, 0 for none")
    if "retry_policy" in changes:
        _check_policy(changes["retry_policy"])


def _check_policy(policy: GroupRetryPolicy) -> None:
    if not isinstance(policy, GroupRetryPolicy):
        raise ConfigError(f"retry_policy is {policy!r:.60}; docs/clients.md has the kinds")
    try:
        retry_policy_of({RETRY_POLICY: retry_policy_json(policy)})
    except MalformedFrame as error:
        raise ConfigError(f"retry_policy: {error}") from None
    if isinstance(policy, ExponentialRetryPolicy) and not (
        policy.multiplier >= 1 and policy.initial_ms <= policy.max_ms
    ):
        raise ConfigError(
            f"retry_policy: a first wait of {policy.initial_ms} ms that grows by a factor of "
            f"{policy.multiplier} to {policy.max_ms} ms; waits grow by a factor of at least 1, to "
            "a bound that is no less than the first"
        )


def changed(document: Mapping[str, Any], group: str, changes: GroupChanges) -> dict[str, Any]:
    """The settings to send for a group that has these; empty for a new group."""
    found = {**document, "groupName": group}
    found.pop(_ATTRIBUTES, None)  # in a request they are changes, and those not named stay
    for name, value in changes.items():
        if name == "retry_policy":
            found[RETRY_POLICY] = retry_policy_json(changes["retry_policy"])
        elif name == "attributes":
            found[_ATTRIBUTES] = {
                f"-{key}" if new is None else f"+{key}": new or ""
                for key, new in changes["attributes"].items()
            }
        else:
            found[_FIELDS[name]] = value
    return found


def settings_in(document: Mapping[str, Any]) -> GroupSettings:
    """The settings in a master's document. MalformedFrame: it is none."""

    numbers = {
        name: checked.integer(document, field, default, least=-INT32_MAX)
        for name, (field, default) in _NUMBERS.items()
    }
    flags = {name: bool(document.get(field, default)) for name, (field, default) in _FLAGS.items()}
    attributes = {
        checked.as_text(name, "an attribute"): checked.as_text(value, name)
        for name, value in checked.table(document, _ATTRIBUTES).items()
    }
    values: dict[str, Any] = {**numbers, **flags}
    policy = retry_policy_of(document)
    return GroupSettings(retry_policy=policy, attributes=attributes, **values)
