"""Subscription groups: settings such as a group's retries, and whether it may consume at all.

`config/subscriptionGroup.json`: `{"dataVersion":DV,"forbiddenTable":{},"subscriptionGroupTable":
{"<group>":{..}}}`, with every field RocketMQ writes; unknown fields of a file are kept as they are.
A group whose settings are out of their bounds is left out, and the log says so. A group that no
operator created appears with its first heartbeat, if `auto_create_groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from saturnmq.broker import bodies
from saturnmq.broker.tables.attributes import changed_of_group
from saturnmq.broker.tables.request_modes import KEY as MODES
from saturnmq.broker.tables.request_modes import POP, RequestMode, joined, request_modes
from saturnmq.broker.tables.table_memory import TableText
from saturnmq.broker.tables.table_persistence import Document, LazyRows, Versioned, readable
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.checked import INT32_MAX
from saturnmq.protocol.route import DataVersion
from saturnmq.protocol.topics import SYSTEM_GROUPS, check_group
from saturnmq.runtime.errors import MalformedFrame

READ_FORBIDDEN = 4  # a bit of the numbers in `forbiddenTable`: {group: {topic: bits}}
DEFAULTS: dict[str, Any] = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


class SubscriptionGroup:
    """One group's settings, as RocketMQ's document."""

    __slots__ = ("_size", "document", "name")

    def __init__(self, name: str, document: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.document: dict[str, Any] = {**DEFAULTS, **(document or {}), "groupName": name}
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes of its part of the table's JSON text."""
        if not self._size:
            self._size = len(fastjson.dumps({self.name: self.document}))
        return self._size

    @property
    def consume_enable(self) -> bool:
        return bool(self.document["consumeEnable"])

    @property
    def broadcast_enable(self) -> bool:
        return bool(self.document["consumeBroadcastEnable"])

    @property
    def attributes(self) -> dict[str, str]:
        found = self.document["attributes"]  # a file may say anything
        return found if isinstance(found, dict) else {}

    @property
    def retry_queues(self) -> int:
        return int(self.document["retryQueueNums"])

    @property
    def retry_max(self) -> int:
        return int(self.document["retryMaxTimes"])

    def retry_limit(self, asked: int) -> int:
        """The number of retries of a message: the number that its consumer asks for (RocketMQ's
        clients always ask, for 16 by default), or, if that is below 0, the group's setting. A group
        with a negative setting has no retries."""
        return asked if asked >= 0 else self.retry_max

    @property
    def broker_id(self) -> int:
        return int(self.document["brokerId"])

    @property
    def sys_flag(self) -> int:
        return int(self.document["groupSysFlag"])

    @property
    def slow_broker_id(self) -> int:
        return int(self.document["whichBrokerWhenConsumeSlowly"])

    @property
    def notify_changes(self) -> bool:
        return bool(self.document["notifyConsumerIdsChangedEnable"])

    @property
    def request_modes(self) -> dict[str, RequestMode]:
        """How the group reads topics, where that was set."""
        return request_modes(self.document)

    @property
    def popped_topics(self) -> list[str]:
        """The topics that the group pops."""
        if MODES not in self.document:  # that of nearly every group
            return []
        return sorted(topic for topic, how in self.request_modes.items() if how.mode == POP)

    def with_request_mode(self, topic: str, mode: RequestMode) -> SubscriptionGroup:
        """The same settings with another mode for a topic. InvalidParameter: there are too many."""
        modes = joined(self.document.get(MODES, {}), {topic: mode.to_json()})
        return SubscriptionGroup(self.name, {**self.document, MODES: modes})


class GroupTable(Versioned):
    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        auto_create: bool,
        room_for: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`room_for` refuses a new group if there is no room for it."""
        self._now_ms = now_ms
        self._room_for = room_for
        self.auto_create = auto_create
        self._groups = {name: SubscriptionGroup(name) for name in sorted(SYSTEM_GROUPS)}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._counter = 0
        self._timestamp = now_ms()
        self._told_ms = 0  # the time of the version that was loaded
        self._text = TableText("groups", self._sizes)

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SubscriptionGroup]:
        return iter(self._groups.values())

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def get(self, name: str) -> SubscriptionGroup | None:
        return self._groups.get(name)

    def validate(self) -> None:
        """AssertionError: the entries, and what is counted of them, do not fit together."""
        for name, group in self._groups.items():
            assert name == group.name == group.document["groupName"], (
                f"{group.name} is kept as {name}"
            )
            assert group.document.keys() >= DEFAULTS.keys(), f"{name} lacks settings"
        missing = SYSTEM_GROUPS - self._groups.keys()
        assert not missing or self._counter, f"{missing} are missing, and nothing was deleted"
        assert self._counter >= 0, f"version {self._counter} of the groups"
        self._text.validate()

    def get_or_create(self, name: str) -> SubscriptionGroup | None:
        """The group, which its first use may create; None if there is none."""
        found = self._groups.get(name)
        if found is None and self.auto_create:
            found = SubscriptionGroup(check_group(name))
            self.make_room(found)
            self.put(found)
        return found

    def changed(self, name: str, settings: Mapping[str, Any]) -> SubscriptionGroup:
        """The group with new settings. Attributes and request modes that they do not name stay.
        InvalidParameter: they name attributes that a group cannot have, or too many modes."""
        before = self._groups.get(name)
        had = None if before is None else before.attributes
        named = checked.table(settings, "attributes")
        attributes = changed_of_group(name, had, named)
        changes = {**settings, "attributes": attributes}
        if before is not None and MODES in before.document:  # RocketMQ's settings do not have them
            changes[MODES] = joined(before.document[MODES], checked.table(settings, MODES))
        return SubscriptionGroup(name, changes)

    def forbids(self, group: str, topic: str) -> bool:
        """Whether an operator has forbidden the group to read this topic."""
        return bool(self._forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN)

    def forbid(self, group: str, topic: str, *, forbidden: bool) -> None:
        """Forbid the group to read this topic, or allow it again. SystemBusy: the table has no
        room."""
        topics = dict(self._forbidden.get(group, {}))
        bits = topics.pop(topic, 0)
        bits = bits | READ_FORBIDDEN if forbidden else bits & ~READ_FORBIDDEN
        self._set_forbidden(group, {**topics, topic: bits} if bits else topics)
        self._touch()

    def _set_forbidden(self, group: str, topics: dict[str, int]) -> None:
        before = self._forbidden.get(group, {})
        more = _forbidden_bytes(group, topics) - _forbidden_bytes(group, before)
        self._text.check(more)
        self._text.grow(more)
        # A new table: a slave may be being sent the old one.
        others = {name: each for name, each in self._forbidden.items() if name != group}
        self._forbidden = {**others, group: topics} if topics else others

    def _sizes(self) -> Iterator[int]:
        yield from (group.size for group in self)
        yield from (_forbidden_bytes(group, topics) for group, topics in self._forbidden.items())

    def make_room(self, group: SubscriptionGroup) -> None:
        """Make room for a new or changed group. SystemBusy: the table has none."""
        if group.name not in self._groups:
            self._room_for(f"group {group.name}")
        self._text.check(self._more(group))

    def _more(self, group: SubscriptionGroup) -> int:
        before = self._groups.get(group.name)
        return group.size - (before.size if before else 0)

    def put(self, group: SubscriptionGroup) -> None:
        self._text.grow(self._more(group))
        self._groups[group.name] = group
        self._touch()

    def delete(self, name: str) -> bool:
        group = self._groups.pop(name, None)
        if group is None:
            return False
        self._text.grow(-group.size)
        self._set_forbidden(name, {})
        self._touch()
        return True

    @property
    def data_version(self) -> dict[str, int]:
        return {"counter": self._counter, "stateVersion": 0, "timestamp": self._timestamp}

    def document(self) -> Document:
        groups = [*self._groups.items()]
        return {
            "dataVersion": self.data_version,
            "forbiddenTable": self._forbidden,
            "subscriptionGroupTable": LazyRows((name, group.document) for name, group in groups),
        }

    def load(self, document: Mapping[str, Any]) -> None:
        """Read the file. MalformedFrame: it is no table of groups, and nothing has changed."""
        self._read(document, {})

    def _read(self, document: Mapping[str, Any], known: Mapping[str, SubscriptionGroup]) -> None:
        """The same. Settings that are `known` are not checked again, which takes far longer."""
        version = DataVersion.from_json(checked.table(document, "dataVersion"))
        forbidden = checked.table(document, "forbiddenTable")
        table = checked.table(document, "subscriptionGroupTable")
        read = partial(_group, known)
        self._groups |= {group.name: group for group in readable(table, read, "group")}
        self._forbidden = dict(readable(forbidden, _forbidden, "what is forbidden to group"))
        self._text.count()
        self._counter, self._told_ms = version.counter, version.timestamp

    def replace_all(self, document: Mapping[str, Any]) -> None:
        """Take over the master's table, on a slave. MalformedFrame: as `load`."""
        before, groups = self.snapshot(), self._groups
        self._groups = {name: SubscriptionGroup(name) for name in sorted(SYSTEM_GROUPS)}
        try:
            self._read(document, groups)
        except MalformedFrame:
            self._groups = groups
            raise
        self._timestamp = self._told_ms or self._timestamp
        if self.snapshot() != before:
            self.mark_dirty()

    def _touch(self) -> None:
        self._counter += 1
        self._timestamp = self._now_ms()
        self.mark_dirty()


def _group(
    known: Mapping[str, SubscriptionGroup], name: str, settings: object
) -> SubscriptionGroup:
    same = known.get(name)
    if same is not None and same.document == settings:
        return same
    return SubscriptionGroup(name, bodies.group_settings(checked.as_table(settings, "its entry")))


def _forbidden_bytes(group: str, topics: Mapping[str, int]) -> int:
    """The bytes that its entry has in the table's JSON text."""
    return len(fastjson.dumps({group: topics})) if topics else 0


def _forbidden(group: str, topics: object) -> tuple[str, dict[str, int]]:
    bits = checked.as_table(topics, "its entry")
    return group, {
        checked.as_text(topic, "a topic"): checked.as_integer(bit, "its bits", most=INT32_MAX)
        for topic, bit in bits.items()
    }
