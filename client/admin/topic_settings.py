"""Creating, changing and deleting topics: the queues that a topic has on its brokers, its
permissions and its attributes.

A topic shrinks in RocketMQ's order: reduce the write queues, wait until the groups have consumed
the others, reduce the read queues. Messages left in a queue beyond the read queues can be read only
after the number rises again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from saturnmq.client.admin.nameserver_admin import NameserverAdmin
from saturnmq.client.admin.settings_at import topic_at
from saturnmq.client.cluster_view import BrokerGroups, without_master
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import PERM_READ, PERM_WRITE, RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.message_types import MESSAGE_TYPE, MESSAGE_TYPES
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import QueueData, TopicConfig, order_conf
from saturnmq.protocol.topics import AUTO_CREATE_TOPIC
from saturnmq.runtime.errors import InvalidParameter, RouteNotFound, TopicNotExist

PAUSE_S = 0.05


Attributes = Mapping[str, str | None]
"""New values of attributes; None removes one."""


def with_type(message_type: str | None, attributes: Attributes) -> dict[str, str | None]:
    """These attributes, with the type of the topic's messages if one is given."""
    if message_type is None:
        return dict(attributes)
    if message_type not in MESSAGE_TYPES:
        raise InvalidParameter(
            f"message type {message_type!r}: it is one of {', '.join(MESSAGE_TYPES)}"
        )
    if attributes.get(MESSAGE_TYPE, message_type) != message_type:
        raise InvalidParameter(
            f"message type {message_type} and the attribute {MESSAGE_TYPE}="
            f"{attributes[MESSAGE_TYPE]}: give one of them"
        )
    return {**attributes, MESSAGE_TYPE: message_type}


def _changes(attributes: Attributes) -> str:
    """These attributes as a request names them. InvalidParameter: a broker would read a name or a
    value as another one."""
    for name, value in attributes.items():
        if not name or set(name) & set("+-,=") or set(value or "") & set(",="):
            raise InvalidParameter(
                f"attribute {name!r:.127} with value {value!r:.127}: a name has none of the "
                "characters +-,= and a value none of ,="
            )
    return ",".join(
        f"-{name}" if value is None else f"+{name}={value}" for name, value in attributes.items()
    )


class QueueOffsets(NamedTuple):
    """One queue of a topic: offsets from min_offset up to, not including, max_offset."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int


async def ask_queue_offsets(
    core: ClientCore, addresses: Iterable[str], topic: str, timeout: float
) -> list[QueueOffsets]:
    """The offsets of every queue of the topic on these brokers."""
    rows = []
    for address in addresses:
        request = Command.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        answer = await core.invoke(address, request, timeout)
        table = checked.table(checked.document(answer.body), "offsetTable")
        for key, value in table.items():
            item = checked.as_table(value, "the offsets of a queue")
            rows.append(
                QueueOffsets(
                    checked.as_queue(key),
                    checked.integer(item, "minOffset", 0),
                    checked.integer(item, "maxOffset", 0),
                    checked.integer(item, "lastUpdateTimestamp", 0),
                )
            )
    return sorted(rows)


async def delete_topic(core: ClientCore, topic: str, brokers: BrokerGroups, timeout: float) -> None:
    """Delete the topic on these masters, on their slaves, which copy what the masters have deleted
    by then, and at the nameservers."""
    missed = await _missed(core, topic, brokers, timeout)
    masters = brokers.to_change([*missed, *brokers.masters])
    for address in (*masters.values(), *brokers.slaves):
        command = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        await core.invoke(address, command, timeout)
    done = f"topic {topic!r} is deleted on the brokers"
    await NameserverAdmin(core, timeout).forget_topics([topic], done)


async def _missed(core: ClientCore, topic: str, brokers: BrokerGroups, timeout: float) -> list[str]:
    """The broker groups that have the topic, and no master now."""
    found = []
    for name, address in brokers.led_by_none.items():
        if await topic_at(core, address, topic, timeout) is not None:
            found.append(name)
    return found


class Undrained(NamedTuple):
    """The messages of a queue that a group has not consumed. `group` is None when no group consumes
    the topic."""

    queue: MessageQueue
    group: str | None
    messages: int


class QueueCounts(NamedTuple):
    """The settings that a broker is to have for a topic; None leaves a setting as it is."""

    read: int | None
    write: int | None
    perm: int | None

    def check(self) -> None:
        """Raise InvalidParameter for a value that makes no sense."""
        for count, what in ((self.read, "read"), (self.write, "write")):
            if count is not None and count < 1:
                raise InvalidParameter(
                    f"{count} {what} queues: a topic has at least 1 on each master"
                )
        if self.read is not None and self.write is not None and self.read < self.write:
            raise InvalidParameter(
                f"{self.write} write queues and {self.read} read queues: messages in the others "
                "could not be read; give as many read queues, or fewer write queues"
            )
        if self.perm not in (None, PERM_READ, PERM_WRITE, PERM_READ | PERM_WRITE):
            raise InvalidParameter(f"perm {self.perm}: it is 2 (write), 4 (read) or 6 (both)")

    def are_in(self, route: QueueData) -> bool:
        """Whether a nameserver reports these settings for a broker. It may report fewer
        permissions, because those of the broker itself count as well."""
        return (
            self.read in (None, route.read_queues)
            and self.write in (None, route.write_queues)
            and (self.perm is None or not route.perm & ~self.perm)
        )


class TopicSettings:
    """Sets a topic on its masters."""

    def __init__(self, core: ClientCore, timeout_s: float, wait_s: float) -> None:
        """`wait_s` bounds the time until the nameserver reports the topic."""
        self._core = core
        self._timeout_s = timeout_s
        self._wait_s = wait_s

    async def create(
        self,
        topic: str,
        queues: QueueCounts,
        brokers: BrokerGroups,
        attributes: Attributes,
        *,
        order: bool,
    ) -> None:
        """Make `topic` on the masters, or change it there. All numbers must be given. The
        nameservers learn the queues of an ordered topic, which are those on all brokers."""
        queues.check()
        changes = _changes(attributes)
        write = int(queues.write or 0)
        missed = await _missed(self._core, topic, brokers, self._timeout_s) if order else []
        masters = brokers.to_change([*missed, *brokers.masters])
        for address in masters.values():
            config = TopicConfig(topic, int(queues.read or 0), write, int(queues.perm or 0))
            config.order = order
            await self._set(address, config, changes)
        if order:
            conf = order_conf(dict.fromkeys(sorted(masters), write))
            nameservers = NameserverAdmin(self._core, self._timeout_s)
            await nameservers.order_topic(topic, conf)
        await self._until_routed(topic, set(masters), queues)

    async def alter(self, topic: str, queues: QueueCounts, attributes: Attributes) -> None:
        """Change `topic` on every broker that has it; a value that is not given stays, broker by
        broker. RouteNotFound, and nothing changed, if one of them has no master now."""
        queues.check()
        changes = _changes(attributes)
        found = await self.found(topic)
        for name, (address, config) in found.items():
            if address != self._core.broker_address(name):
                raise without_master(name)
            config.read_queues = queues.read or config.read_queues
            config.write_queues = queues.write or config.write_queues
            config.perm = queues.perm or config.perm
            if queues.read or queues.write:
                QueueCounts(config.read_queues, config.write_queues, None).check()
        for address, config in found.values():
            await self._set(address, config, changes)
        await self._until_routed(topic, set(found), queues)

    async def found(self, topic: str) -> dict[str, tuple[str, TopicConfig]]:
        """The address of the master, or of a slave where there is none now, and its settings of
        `topic`, by broker name."""
        route = await self._core.route(topic, refresh=True)
        found = {}
        for name in sorted(data.broker_name for data in route.brokers):
            address = self._core.broker_address(name, master=False)
            if address is None:
                raise RouteNotFound(f"broker {name!r} of topic {topic!r} has no node now")
            document = await topic_at(self._core, address, topic, self._timeout_s)
            if document is None:
                raise TopicNotExist(f"topic {topic!r} does not exist on broker {name!r}")
            found[name] = address, TopicConfig.from_json({"topicName": topic, **document})
        return found

    async def _set(self, address: str, config: TopicConfig, changes: str) -> None:
        ext = {
            "topic": config.name,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": str(config.read_queues),
            "writeQueueNums": str(config.write_queues),
            "perm": str(config.perm),
            "topicFilterType": config.filter_type,
            "topicSysFlag": str(config.sys_flag),
            "order": str(config.order).lower(),
        }
        if changes:  # a broker keeps attributes that are not named
            ext["attributes"] = changes
        command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        await self._core.invoke(address, command, self._timeout_s)

    async def _until_routed(self, topic: str, brokers: set[str], queues: QueueCounts) -> None:
        runtime = self._core.runtime
        deadline = runtime.monotonic() + self._wait_s
        while True:
            try:
                route = await self._core.route(topic, refresh=True)
                here = {data.broker_name for data in route.queues if queues.are_in(data)}
                if brokers <= here:
                    return
                missing = f"{sorted(brokers - here)} not in the route yet"
            except (TopicNotExist, RouteNotFound) as error:
                missing = str(error)
            if runtime.monotonic() >= deadline:
                raise RouteNotFound(
                    f"topic {topic!r} is set but not announced after {self._wait_s:g} s: {missing}"
                )
            await runtime.sleep(PAUSE_S)
