"""The settings of a consumer group, as a master keeps them: RocketMQ's SubscriptionGroupConfig.

Each setting is explained at its place in `GroupSettings`; `GroupChanges` has the same names. A
change is read, changed and written back, master by master: what it does not name stays, also
fields that are unknown here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

from saturnmq.protocol import checked
from saturnmq.protocol.checked import INT32_MAX
from saturnmq.protocol.retry_policy import (
    KEY as RETRY_POLICY,
)
from saturnmq.protocol.retry_policy import (
    GroupRetryPolicy,
    retry_policy_json,
    retry_policy_of,
)
from saturnmq.runtime.errors import ConfigError


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


_FIELDS = {
    "max_retries": "retryMaxTimes",
    "retry_queues": "retryQueueNums",
    "orderly": "consumeMessageOrderly",
    "enabled": "consumeEnable",
    "broadcast": "consumeBroadcastEnable",
    "notify_members": "notifyConsumerIdsChangedEnable",
    "broker_id": "brokerId",
    "slow_broker_id": "whichBrokerWhenConsumeSlowly",
    "from_min": "consumeFromMinEnable",
    "consume_timeout_min": "consumeTimeoutMinute",
}
_ATTRIBUTES = "attributes"


def check_changes(changes: GroupChanges) -> None:
    """ConfigError: no master would take them."""
    retries = changes.get("max_retries", 0)
    if retries < 0:
        raise ConfigError(f"max_retries is {retries}; give the number of retries, 0 for none")
    unknown = changes.keys() - GroupChanges.__annotations__.keys()
    if unknown:
        raise ConfigError(
            f"a group has no setting {', '.join(sorted(unknown))}; it has "
            f"{', '.join(GroupChanges.__annotations__)}"
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

    def number(field: str, default: int) -> int:
        return checked.integer(document, field, default, least=-INT32_MAX)

    def flag(field: str) -> bool:
        return bool(document.get(field, True))

    attributes = checked.table(document, _ATTRIBUTES)
    return GroupSettings(
        max_retries=number("retryMaxTimes", 16),
        retry_queues=number("retryQueueNums", 1),
        retry_policy=retry_policy_of(document),
        orderly=bool(document.get("consumeMessageOrderly")),
        enabled=flag("consumeEnable"),
        broadcast=flag("consumeBroadcastEnable"),
        notify_members=flag("notifyConsumerIdsChangedEnable"),
        broker_id=number("brokerId", 0),
        slow_broker_id=number("whichBrokerWhenConsumeSlowly", 1),
        from_min=flag("consumeFromMinEnable"),
        consume_timeout_min=number("consumeTimeoutMinute", 15),
        attributes={
            checked.as_text(name, "an attribute"): checked.as_text(value, name)
            for name, value in attributes.items()
        },
    )
