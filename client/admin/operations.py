"""The common part of an Admin: its core, the askers of each kind of server, and the names in its
namespace.

An Admin with a namespace gives and gets plain names: `wire` makes the brokers' names of them, and
`plain` the names in an answer plain again.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from saturnmq.client.admin.access import AccessAdmin
from saturnmq.client.admin.broker_admin import BrokerAdmin
from saturnmq.client.admin.group_admin import GroupAdmin
from saturnmq.client.admin.message_finding import MessageFinder
from saturnmq.client.admin.nameserver_admin import NameserverAdmin
from saturnmq.client.cluster_view import BrokerGroups, groups_in, nodes_of
from saturnmq.client.core import ClientCore
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.namespaces import Namespace

T = TypeVar("T")


class Operations:
    """Askers for the operations of an Admin."""

    def __init__(self, core: ClientCore, timeout: float, namespace: Namespace) -> None:
        self.core = core
        self.timeout = timeout
        self._namespace = namespace
        self._wire = namespace.wrap
        self._finder = MessageFinder(core, timeout)
        self._groups = GroupAdmin(core, timeout)
        self._brokers = BrokerAdmin(core, timeout)
        self._nameservers = NameserverAdmin(core, timeout)
        self._access = AccessAdmin(core, timeout)

    async def _broker_groups(self) -> BrokerGroups:
        return groups_in(await nodes_of(self.core, self.timeout))

    async def _masters(self) -> dict[str, str]:
        """The address of every master, by the name of its broker group."""
        return (await self._broker_groups()).masters

    async def _serving(self) -> dict[str, str]:
        """The address of every master, or of a slave where there is none now."""
        return (await self._broker_groups()).serving

    def _names(self, names: list[str]) -> list[str]:
        """Those names of topics or groups that are in the namespace, plain."""
        return [self._namespace.plain(name) for name in names if self._namespace.holds(name)]

    def _plain(self, answer: T) -> T:
        """The answer with plain names of topics and groups: in queues, in messages, and in the
        fields `queue` and `group` of rows."""
        if not self._namespace.name:
            return answer
        return cast(T, self._converted(answer))

    def _converted(self, answer: Any) -> Any:
        if isinstance(answer, MessageQueue):
            return self._namespace.plain_queue(answer)
        if isinstance(answer, ReceivedMessage):
            answer.topic = self._namespace.plain(answer.topic)
        elif isinstance(answer, dict):
            return {self._converted(key): value for key, value in answer.items()}
        elif isinstance(answer, list):
            return [self._converted(each) for each in answer]
        elif isinstance(answer, tuple):  # a row
            row: Any = answer
            if "queue" in row._fields:
                row = row._replace(queue=self._namespace.plain_queue(row.queue))
            if getattr(row, "group", None):
                row = row._replace(group=self._namespace.plain(row.group))
            return row
        return answer
