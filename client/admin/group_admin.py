"""Consumer groups for operators: their settings and members, how far they are, and their offsets.

Every master keeps settings and offsets for itself; a slave gets them from its master, and tells
them while there is none. Codes 14 29 30 31 200 201 203 207 208 222 307 314 343 352 401 402 of
docs/internals/protocol.md 2.3 and 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from saturnmq.client.admin.group_settings import (
    GroupChanges,
    GroupSettings,
    changed,
    check_changes,
    settings_in,
)
from saturnmq.client.admin.member_questions import running_info
from saturnmq.client.admin.message_finding import masters_of
from saturnmq.client.admin.nameserver_admin import NameserverAdmin
from saturnmq.client.admin.offset_resets import OffsetReset, OffsetResets
from saturnmq.client.admin.settings_at import group_at
from saturnmq.client.cluster_view import BrokerGroups
from saturnmq.client.consumer.starting import ask_offset
from saturnmq.client.core import ClientCore
from saturnmq.client.server_requests import offset_table
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.checked import INT32_MAX
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import RETRY_PREFIX, check_group, dlq_topic, retry_topic
from saturnmq.runtime.errors import (
    ConsumerNotOnline,
    GroupNotExist,
    InvalidParameter,
    QueryNotFound,
    UnsupportedRequest,
)

Mode = Literal["PULL", "POP"]
MODES: tuple[Mode, ...] = ("PULL", "POP")


class QueueLag(NamedTuple):
    """The progress of a group on one queue."""

    queue: MessageQueue
    committed: int
    end: int
    last_timestamp_ms: int

    @property
    def lag(self) -> int:
        return max(0, self.end - max(0, self.committed))


class GroupMember(NamedTuple):
    """One consumer of a group, as it is connected to a broker."""

    client_id: str
    address: str
    language: str
    reads: str = ""
    """Its subscriptions, if the members of the group differ in them."""


class PoppedTopic(NamedTuple):
    """A topic that a group was told to pop."""

    topic: str
    share: int
    """Each member pops its own queues and those of so many others; below 1 all queues."""


class GroupAtBroker(NamedTuple):
    """A group at one master: its settings, who consumes there, and which topics it pops."""

    broker_name: str
    settings: GroupSettings
    members: tuple[GroupMember, ...]
    pops: tuple[PoppedTopic, ...]

    @property
    def max_retries(self) -> int:
        return self.settings.max_retries

    @property
    def orderly(self) -> bool:
        return self.settings.orderly

    @property
    def enabled(self) -> bool:
        return self.settings.enabled


class QueueAtMember(NamedTuple):
    """One queue that a consumer works on, as the consumer reports it."""

    queue: MessageQueue
    cached: int
    """Messages that it has pulled and not consumed."""
    last_consumed_ms: int
    """The time at which it last began to consume; 0 if it never did."""
    awaited: bool
    """The queue is to be handed over and waits for its listener to return."""


class GroupAdmin:
    """Asks the brokers of a cluster, whose names and addresses the caller gives: masters are told
    of changes, and a slave is asked where there is no master now."""

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self._core = core
        self._timeout = timeout
        self.resets = OffsetResets(core, timeout)

    # -- groups --------------------------------------------------------------------------------

    async def create(self, brokers: BrokerGroups, group: str, changes: GroupChanges) -> None:
        """Create the group on every master; where it is there already, change it."""
        check_group(group)
        check_changes(changes)
        for address in brokers.to_change(brokers.masters).values():
            found = await self._found(address, group)
            await self._set(address, group, found or {}, changes)

    async def alter(self, brokers: BrokerGroups, group: str, changes: GroupChanges) -> None:
        """Change the group at every broker that has it. GroupNotExist: none has it."""
        check_changes(changes)
        asked = brokers.serving.items()
        everywhere = {name: await self._found(address, group) for name, address in asked}
        found = {name: known for name, known in everywhere.items() if known is not None}
        if not found:
            raise GroupNotExist(f"no broker knows a group {group!r}")
        masters = brokers.to_change(found)
        for name, settings in found.items():
            await self._set(masters[name], group, settings, changes)

    async def _set(
        self, address: str, group: str, found: Mapping[str, Any], changes: GroupChanges
    ) -> None:
        body = fastjson.dumps(changed(found, group, changes))
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    async def _found(self, address: str, group: str) -> dict[str, Any] | None:
        return await group_at(self._core, address, group, self._timeout)

    async def delete(self, brokers: BrokerGroups, group: str) -> None:
        """Delete the group with its offsets, its retry topic and its dead-letter topic."""
        check_group(group)
        # RocketMQ 4 has another name for the second field.
        ext = {"groupName": group, "cleanOffset": "true", "removeOffset": "true"}
        missed = [
            name
            for name, address in brokers.led_by_none.items()
            if await self._found(address, group) is not None
        ]
        for address in brokers.to_change([*missed, *brokers.masters]).values():
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, dict(ext))
        for address in brokers.slaves:  # it copies all tables of its master
            retries = {"topic": retry_topic(group)}
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, retries)
        nameservers = NameserverAdmin(self._core, self._timeout)
        done = f"group {group!r} is deleted on the brokers"
        then = "the routes of its topics end there when the brokers register"
        await nameservers.forget_topics((retry_topic(group), dlq_topic(group)), done, then)

    async def names(self, brokers: dict[str, str]) -> list[str]:
        """The names of all groups."""
        found: set[str] = set()
        for address in brokers.values():
            answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
            table = checked.table(checked.document(answer.body), "subscriptionGroupTable")
            found.update(checked.as_text(name, "a group") for name in table)
        return sorted(found)

    async def describe(self, brokers: dict[str, str], group: str) -> list[GroupAtBroker]:
        """The group at every broker that has it. GroupNotExist: none has it."""
        found = []
        for name, address in brokers.items():
            known = await self._found(address, group)
            if known is not None:
                members = await self._members(address, group)
                pops = await self._pops(address, group)
                found.append(GroupAtBroker(name, settings_in(known), members, pops))
        if not found:
            raise GroupNotExist(f"no broker knows a group {group!r}")
        return found

    async def _members(self, address: str, group: str) -> tuple[GroupMember, ...]:
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        try:
            answer = await self._ask(address, code, {"consumerGroup": group})
        except ConsumerNotOnline:
            return ()
        listed = checked.items(checked.document(answer.body), "connectionSet")
        return tuple(
            GroupMember(
                checked.text(each, "clientId", ""),
                checked.text(each, "clientAddr", ""),
                checked.text(each, "language", ""),
                checked.text(each, "saturnReads", ""),
            )
            for each in (checked.as_table(item, "a member") for item in listed)
        )

    async def _pops(self, address: str, group: str) -> tuple[PoppedTopic, ...]:
        """The topics that a group pops at a master."""
        try:
            answer = await self._ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {})
        except UnsupportedRequest:  # RocketMQ's before version 5 know no pop
            return ()
        table = checked.table(checked.document(answer.body), "messageRequestModeMap")
        found = {
            checked.as_text(topic, "a topic"): checked.table(checked.as_table(groups, topic), group)
            for topic, groups in table.items()
        }
        return tuple(
            PoppedTopic(topic, checked.integer(how, "popShareQueueNum", 0, least=-INT32_MAX))
            for topic, how in sorted(found.items())
            if how.get("mode") == "POP"
        )

    async def set_mode(self, group: str, topic: str, mode: str, share: int) -> None:
        """Have the group pull or pop a topic, at every master of it."""
        check_group(group)
        if mode not in MODES:
            raise InvalidParameter(f"mode {mode!r}: it is one of {', '.join(MODES)}")
        if abs(share) > INT32_MAX:
            raise InvalidParameter(f"share {share}: give a number of members, 0 for all queues")
        body = fastjson.dumps(
            {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
        )
        for address in await masters_of(self._core, topic):
            await self._ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body)

    async def at_member(
        self, brokers: dict[str, str], group: str, client_id: str
    ) -> list[QueueAtMember]:
        """The queues that a member works on, asked through the first broker that it is connected
        to."""
        info = await running_info(self._core, brokers, group, client_id, self._timeout)
        return sorted(
            QueueAtMember(
                checked.as_queue(key),
                checked.integer(item, "cachedMsgCount", 0),
                checked.integer(item, "lastConsumeTimestamp", 0),
                item.get("droped") is True,  # the spelling is RocketMQ's
            )
            for key, value in checked.table(info, "mqTable").items()
            for item in (checked.as_table(value, "what is known of a queue"),)
        )

    async def of_topic(self, brokers: dict[str, str], topic: str) -> list[str]:
        """The groups that consume the topic or have offsets of it."""
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        return await self._names_at(brokers, code, {"topic": topic}, "groupList")

    # -- offsets -------------------------------------------------------------------------------

    async def lag(self, brokers: dict[str, str], group: str, topic: str | None) -> list[QueueLag]:
        """The group's progress on every queue it has consumed, of one topic or of all."""
        rows: dict[MessageQueue, QueueLag] = {}
        ext = {"consumerGroup": group} | ({} if topic is None else {"topic": topic})
        for address in brokers.values():
            answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, dict(ext))
            table = checked.table(checked.document(answer.body), "offsetTable")
            for key, value in table.items():
                item = checked.as_table(value, "the offsets of a queue")
                queue = checked.as_queue(key)
                rows[queue] = QueueLag(
                    queue,
                    checked.integer(item, "consumerOffset", 0, least=-1),
                    checked.integer(item, "brokerOffset", 0),
                    checked.integer(item, "lastTimestamp", 0),
                )
        return sorted(rows.values())

    async def clone(
        self, brokers: BrokerGroups, source: str, target: str, topic: str | None
    ) -> dict[MessageQueue, int]:
        """Give a group the offsets of another one; returns those that the brokers tell."""
        check_group(target)
        ext = {"srcGroup": source, "destGroup": target, "offline": "true"}
        ext |= {} if topic is None else {"topic": topic}
        found: dict[MessageQueue, int] = {}
        missing: QueryNotFound | None = None
        told = False
        missed = [
            name
            for name, address in brokers.led_by_none.items()
            if await self._topics_of({name: address}, source)
        ]
        for address in brokers.to_change([*missed, *brokers.masters]).values():
            try:
                answer = await self._ask(address, RequestCode.CLONE_GROUP_OFFSET, dict(ext))
            except QueryNotFound as error:
                missing = error
                continue
            told = True
            if len(answer.body):  # RocketMQ's has none
                found.update(offset_table(bytes(answer.body)))
        if missing is not None and not told:
            raise missing
        return found

    async def preview_clone(
        self, brokers: dict[str, str], source: str, target: str, topic: str | None
    ) -> list[OffsetReset]:
        """The changes that `clone` with the same arguments would make now, queue by queue."""
        topics = await self._topics_of(brokers, source) if topic is None else [topic]
        rows = []
        for each in topics:
            for queue in await self.resets.queues(each, None, None):
                offset = await self.resets.committed(source, queue)
                if offset is None:
                    continue
                first = await ask_offset(self._core, RequestCode.GET_MIN_OFFSET, queue)
                rows.append(
                    OffsetReset(queue, await self.resets.committed(target, queue), first, offset)
                )
        return rows

    async def _topics_of(self, brokers: dict[str, str], group: str) -> list[str]:
        """The topics that a group reads or has offsets in, without its own for retries."""
        code = RequestCode.QUERY_TOPICS_BY_CONSUMER
        found = await self._names_at(brokers, code, {"group": group}, "topicList")
        return [name for name in found if not name.startswith(RETRY_PREFIX)]

    async def _names_at(
        self, brokers: dict[str, str], code: int, ext: dict[str, str], key: str
    ) -> list[str]:
        """The names that the brokers list under `key` of their answers' bodies."""
        found: set[str] = set()
        for address in brokers.values():
            answer = await self._ask(address, code, dict(ext))
            listed = checked.items(checked.document(answer.body), key)
            found.update(checked.as_text(name, f"a name in {key}") for name in listed)
        return sorted(found)

    async def _ask(
        self, address: str, code: int, ext: dict[str, str], body: bytes = b""
    ) -> Command:
        return await self._core.invoke(address, Command.request(code, ext, body), self._timeout)
