"""The asynchronous admin: topics, routes, clusters, groups and messages, over the codes of
docs/internals/protocol.md 2.3, 2.5 and 3; its synchronous face is blocking_faces.Admin. It
asks nameservers for routes and every master of a topic for the rest. It works against RocketMQ's
own servers, except for replicas and promotions, which are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Unpack

from saturnmq.client.admin.access_operations import AccessOperations
from saturnmq.client.admin.cluster_operations import ClusterOperations
from saturnmq.client.admin.group_admin import (
    GroupAtBroker,
    Mode,
    PoppedTopic,
    QueueAtMember,
    QueueLag,
)
from saturnmq.client.admin.group_settings import GroupChanges
from saturnmq.client.admin.member_questions import stacks_of
from saturnmq.client.admin.message_finding import serving
from saturnmq.client.admin.message_operations import MessageOperations
from saturnmq.client.admin.offset_resets import END, OffsetReset
from saturnmq.client.admin.topic_settings import (
    QueueCounts,
    QueueOffsets,
    TopicSettings,
    Undrained,
    ask_queue_offsets,
    delete_topic,
    with_type,
)
from saturnmq.client.cluster_view import groups_in, nodes_of, topics_of, user_topics_of
from saturnmq.client.core import DEFAULT_NAMESERVER, ClientCore, ErrorListener, new_core
from saturnmq.client.option_checks import checked
from saturnmq.client.tls import Tls
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.namespaces import namespace_of
from saturnmq.protocol.route import TopicConfig, TopicRoute
from saturnmq.protocol.signing import Signing
from saturnmq.protocol.topics import check_topic
from saturnmq.runtime.door import Runtime

QUERY_TIMEOUT_S = 5.0
Boundary = Literal["LOWER", "UPPER"]


class Admin(ClusterOperations, MessageOperations, AccessOperations):
    """Administration of a cluster: topics, groups, offsets, single messages and users; on one event
    loop.

    Errors are SaturnErrors; an error that a broker answers keeps its class (`saturnmq.errors`).
    """

    timeout: float
    """Seconds that a server has for one answer."""

    @checked
    def __init__(
        self,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        core: ClientCore | None = None,
        runtime: Runtime | None = None,
        timeout: float = QUERY_TIMEOUT_S,
        namespace: str = "",
        tls: Tls = None,
        credentials: Credentials | None = None,
        on_error: ErrorListener | None = None,
        replication_secret: str = "",
        replication_secret_required: bool = True,
    ) -> None:
        """
        nameservers: "HOST:PORT[,...]" or a sequence of them
        timeout: seconds that a server has for one answer
        namespace: topics and groups are NAMESPACE%NAME for the brokers, as with RocketMQ's clients;
            lists have those of the namespace only
        tls: True, or the context, encrypts; None is as SATURNMQ_CLIENT_TLS says
        credentials: the user; None is as SATURNMQ_ACCESS_KEY and SATURNMQ_SECRET_KEY say
        on_error: called with each error that no call of the application can raise; it runs on the
            client's loop and must return at once
        replication_secret: the brokers' `replicationSecret`, if they have one: needed to change
            their roles
        replication_secret_required: with a secret, believe only brokers that sign with it; False
            while a running cluster gets one
        """
        signing = Signing(replication_secret, replication_secret_required)
        own = core or new_core(
            nameservers, runtime, signing=signing, tls=tls, credentials=credentials
        )
        super().__init__(own, timeout, namespace_of(namespace))
        if on_error is not None:
            self.core.on_error(on_error)
        self._own_core = core is None

    async def start(self) -> Admin:
        """Connect."""
        if self._own_core:
            await self.core.start()
        return self

    async def close(self) -> None:
        """Leave the cluster; an operation under way fails."""
        if self._own_core:
            await self.core.close()

    async def __aenter__(self) -> Admin:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- topics --------------------------------------------------------------------------------

    async def list_topics(self, *, internal: bool = True) -> list[str]:
        """The names of all topics that the nameserver knows. Without `internal` those that users
        made: no topics of the system, of clusters and brokers, of retries and dead letters."""
        if internal:
            return self._names(await topics_of(self.core, self.timeout))
        nodes = await nodes_of(self.core, self.timeout)
        return self._names(await user_topics_of(self.core, nodes, self.timeout))

    topics = list_topics

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route as a nameserver gives it now."""
        return await self.core.route(self._wire(topic), refresh=True)

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        message_type: str | None = None,
        perm: int = 6,
        attributes: Mapping[str, str] | None = None,
        order: bool = False,
        cluster: str | None = None,
        wait_s: float = 10.0,
    ) -> None:
        """Create the topic on every master, or change it; returns when the route names it. It has
        `queues` queues on each, or `read_queues` and `write_queues`.

        message_type: NORMAL, FIFO, DELAY, TRANSACTION, MIXED or UNSPECIFIED; a new topic for which
            none is given is NORMAL, an existing one stays what it is.
        attributes: others (docs/topics.md has them); those that are not named stay.
        order: an ordered topic, whose queues nameservers know (docs/topics.md). RouteNotFound, and
            nothing changed, if a broker that has the topic has no master now.
        """
        topic = check_topic(self._wire(topic))
        wanted = QueueCounts(
            queues if read_queues is None else read_queues,
            queues if write_queues is None else write_queues,
            perm,
        )
        named = with_type(message_type, attributes or {})
        nodes = [each for each in await self.cluster() if cluster in (None, each.cluster)]
        settings = TopicSettings(self.core, self.timeout, wait_s)
        await settings.create(topic, wanted, groups_in(nodes), named, order=order)

    async def alter_topic(
        self,
        topic: str,
        *,
        write_queues: int | None = None,
        read_queues: int | None = None,
        perm: int | None = None,
        attributes: Mapping[str, str | None] | None = None,
        wait_s: float = 10.0,
    ) -> None:
        """Change the numbers of queues, the permissions (2 write, 4 read, 6 both) or the attributes
        (None removes one) on every broker that has the topic; a value that is not given stays.
        Returns when the route names it.

        To shrink a topic, reduce the write queues; when `undrained` reports no messages, reduce the
        read queues. InvalidParameter: a topic would have more queues to write to than to read from.
        """
        wanted = QueueCounts(read_queues, write_queues, perm)
        settings = TopicSettings(self.core, self.timeout, wait_s)
        await settings.alter(self._wire(topic), wanted, attributes or {})

    async def topic_settings(self, topic: str) -> dict[str, TopicConfig]:
        """The queues, permissions, order flag and attributes of the topic, by broker name."""
        found = await TopicSettings(self.core, self.timeout, 0.0).found(self._wire(topic))
        for _, config in found.values():
            config.name = self._namespace.plain(config.name)
        return {name: config for name, (_, config) in found.items()}

    async def undrained(self, topic: str, read_queues: int) -> list[Undrained]:
        """The messages that could not be read any more if the topic had only so many read queues on
        each broker: those that a group has not consumed, or all if no group consumes the topic."""
        groups = await self.groups_of_topic(topic)
        if groups:
            left = [
                Undrained(row.queue, group, row.lag)
                for group in groups
                for row in await self.group_lag(group, topic)
            ]
        else:
            left = [
                Undrained(row.queue, None, row.max_offset - row.min_offset)
                for row in await self.describe_topic(topic)
            ]
        return sorted(row for row in left if row.messages and row.queue.queue_id >= read_queues)

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic, its messages and the offsets of groups in it, everywhere. When this
        returns the topic stays deleted, also after a crash and the promotion of any slave that is
        there. A new topic of that name begins empty, at the offsets where the old one ended.

        RouteNotFound, and nothing deleted, if a broker that has the topic has no master now.
        """
        brokers = await self._broker_groups()
        await delete_topic(self.core, self._wire(topic), brokers, self.timeout)

    async def describe_topic(self, topic: str) -> list[QueueOffsets]:
        """Every queue of the topic with its first and its end offset, asked of the masters."""
        topic = self._wire(topic)
        masters = await serving(self.core, topic)
        return self._plain(await ask_queue_offsets(self.core, masters, topic, self.timeout))

    offsets = describe_topic

    # -- groups --------------------------------------------------------------------------------

    async def create_group(self, group: str, **settings: Unpack[GroupChanges]) -> None:
        """Create the subscription group on every master. Where it is there already, the settings
        that are named change and the others stay.

        max_retries: deliveries of a failed message after the first, before it goes to %DLQ%<group>
        orderly: passed to clients of the gRPC API; a consumer here says `ordered` itself
        enabled, broadcast, notify_members, retry_queues, retry_policy, broker_id, slow_broker_id,
            from_min, consume_timeout_min, attributes: docs/clients.md

        ConfigError: `max_retries` is below 0, or there is no such setting.
        """
        await self._groups.create(await self._broker_groups(), self._wire(group), settings)

    async def alter_group(self, group: str, **settings: Unpack[GroupChanges]) -> None:
        """Change these settings of the group on every broker that has it; the others stay. The
        names are those of `create_group`. GroupNotExist: none has it. RouteNotFound, and nothing
        changed, if one of them has no master now."""
        await self._groups.alter(await self._broker_groups(), self._wire(group), settings)

    async def set_request_mode(self, group: str, topic: str, mode: Mode, *, share: int = 0) -> None:
        """Have the group pull or pop a topic, as mqadmin's setConsumeMode does; push consumers that
        run follow at once. With a `share` each member pops its own queues and those of so many
        others, otherwise all."""
        await self._groups.set_mode(self._wire(group), self._wire(topic), mode, share)

    async def delete_group(self, group: str) -> None:
        """Delete the group on every broker, with its offsets and its retry and dead-letter topics.
        When this returns it stays deleted, also after the promotion of any slave that is there.
        RouteNotFound, and nothing deleted, if a broker that has it has no master now.

        A connected member creates the group again with its next heartbeat.
        """
        await self._groups.delete(await self._broker_groups(), self._wire(group))

    async def list_groups(self) -> list[str]:
        """The names of all subscription groups on the brokers."""
        return self._names(await self._groups.names(await self._serving()))

    async def describe_group(self, group: str) -> list[GroupAtBroker]:
        """The settings and the members of the group at every broker that has it. GroupNotExist:
        none has it."""
        found = await self._groups.describe(await self._serving(), self._wire(group))
        return [each._replace(pops=self._popped(each.pops)) for each in found]

    def _popped(self, pops: Iterable[PoppedTopic]) -> tuple[PoppedTopic, ...]:
        """Those in the namespace, with plain names."""
        return tuple(
            each._replace(topic=self._namespace.plain(each.topic))
            for each in pops
            if self._namespace.holds(each.topic)
        )

    async def member_queues(self, group: str, client_id: str) -> list[QueueAtMember]:
        """The queues that a connected member of the group works on, as the member reports them."""
        brokers, group = await self._serving(), self._wire(group)
        return self._plain(await self._groups.at_member(brokers, group, client_id))

    async def member_stacks(self, group: str, client_id: str) -> str:
        """The stacks of the threads of a connected member of the group, as the member prints them:
        where it is, and what it waits for."""
        return await stacks_of(self.core, await self._serving(), self._wire(group), client_id)

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that consume the topic, or have offsets of it."""
        return self._names(await self._groups.of_topic(await self._serving(), self._wire(topic)))

    async def group_lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """The group's progress on every queue it has consumed, of one topic or of all."""
        wanted = None if topic is None else self._wire(topic)
        return self._plain(await self._groups.lag(await self._serving(), self._wire(group), wanted))

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        timestamp_ms: int = END,
        *,
        queue: MessageQueue | None = None,
        offset: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Set the group to the first message at or after a time; -1 is the end, 0 the beginning.

        With `queue`, only that queue is set. With `offset` too, the group gets exactly that offset;
        InvalidParameter says that it is outside the queue. Members that consume now continue at
        the new offset. Returns it for each queue. UnsupportedRequest, and nothing changed there: a
        broker of RocketMQ 5.1 or older moves members in all queues of a topic only.
        """
        group, topic = self._wire(group), self._wire(topic)
        only = None if queue is None else self._namespace.wrap_queue(queue)
        return self._plain(
            await self._groups.resets.reset(group, topic, timestamp_ms, only, offset)
        )

    async def preview_reset(
        self,
        group: str,
        topic: str,
        timestamp_ms: int = END,
        *,
        queue: MessageQueue | None = None,
        offset: int | None = None,
    ) -> list[OffsetReset]:
        """The changes that `reset_offsets` with the same arguments would make now, queue by
        queue."""
        group, topic = self._wire(group), self._wire(topic)
        only = None if queue is None else self._namespace.wrap_queue(queue)
        return self._plain(
            await self._groups.resets.preview(group, topic, timestamp_ms, only, offset)
        )

    async def clone_offsets(
        self, source: str, target: str, topic: str | None = None
    ) -> dict[MessageQueue, int]:
        """Give a group the offsets of another one, in one topic or in all, also back. Members that
        consume now continue there. Returns the offset for each queue; a RocketMQ broker does not
        tell them. QueryNotFound: the other group has no offset there."""
        source, target = self._wire(source), self._wire(target)
        wanted = None if topic is None else self._wire(topic)
        found = await self._groups.clone(await self._broker_groups(), source, target, wanted)
        return self._plain(found)

    async def preview_clone(
        self, source: str, target: str, topic: str | None = None
    ) -> list[OffsetReset]:
        """The changes that `clone_offsets` with the same arguments would make now, queue by
        queue."""
        source, target = self._wire(source), self._wire(target)
        wanted = None if topic is None else self._wire(topic)
        found = await self._groups.preview_clone(await self._serving(), source, target, wanted)
        return self._plain(found)

    async def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, boundary: Boundary = "LOWER"
    ) -> int:
        """LOWER: the offset of the first message of `queue` stored at or after a time, the queue's
        end if there is none. UPPER: the offset of the last one stored at or before it, or of the
        first message if there is none."""
        queue = self._namespace.wrap_queue(queue)
        return await self._finder.offset_by_time(queue, timestamp_ms, boundary)
