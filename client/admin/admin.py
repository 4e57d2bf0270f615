"""The asynchronous admin: topics, routes, clusters, groups and messages, over the codes of
docs/internals/protocol.md 2.3, 2.5 and 3; its synchronous face is blocking_faces.Admin. It
asks nameservers for routes and every master of a topic for the rest. It works against RocketMQ's
own servers, except for replicas and promotions, which are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Unpack

from saturnmq.client.admin import promotion
from saturnmq.client.admin.broker_admin import BrokerAdmin, BrokerNode, ConnectedProducer
from saturnmq.client.admin.dead_letters import letters_of, resend_all
from saturnmq.client.admin.group_admin import (
    END,
    GroupAdmin,
    GroupAtBroker,
    Mode,
    OffsetReset,
    QueueAtMember,
    QueueLag,
)
from saturnmq.client.admin.group_settings import GroupChanges
from saturnmq.client.admin.handover import Drained, Succession
from saturnmq.client.admin.message_finding import RESULTS, MessageFinder, serving
from saturnmq.client.admin.promotion import Promoter, Promotion
from saturnmq.client.admin.replicas import Replica, find_replicas
from saturnmq.client.admin.topic_settings import (
    QueueCounts,
    QueueOffsets,
    TopicSettings,
    Undrained,
    ask_queue_offsets,
    delete_topic,
    with_type,
)
from saturnmq.client.core import DEFAULT_NAMESERVER, ClientCore, ErrorListener, new_core
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicConfig, TopicRoute
from saturnmq.protocol.signing import Signing
from saturnmq.protocol.topics import TRACE_TOPIC, check_topic, dlq_topic
from saturnmq.protocol.trace import TraceRecord
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import QueryNotFound, RouteNotFound, TopicNotExist

QUERY_TIMEOUT_S = 5.0
Boundary = Literal["LOWER", "UPPER"]


class Admin:
    """Administration of a cluster: topics, groups, offsets and single messages; on one event loop.

    Errors are SaturnErrors; an error that a broker answers keeps its class (`saturnmq.errors`).
    """

    timeout: float
    """Seconds that a server has for one answer."""

    def __init__(
        self,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        core: ClientCore | None = None,
        runtime: Runtime | None = None,
        timeout: float = QUERY_TIMEOUT_S,
        on_error: ErrorListener | None = None,
        replication_secret: str = "",
        replication_secret_required: bool = True,
    ) -> None:
        """
        nameservers: "HOST:PORT[,...]" or a sequence of them
        timeout: seconds that a server has for one answer
        on_error: called with each error that no call of the application can raise; it runs on the
            client's loop and must return at once
        replication_secret: the brokers' `replicationSecret`, if they have one: needed to change
            their roles
        replication_secret_required: with a secret, believe only brokers that sign with it; False
            while a running cluster gets one
        """
        signing = Signing(replication_secret, replication_secret_required)
        self.core = core or new_core(nameservers, runtime, signing=signing)
        if on_error is not None:
            self.core.on_error(on_error)
        self._own_core = core is None
        self.timeout = timeout
        self._finder = MessageFinder(self.core, timeout)
        self._groups = GroupAdmin(self.core, timeout)
        self._brokers = BrokerAdmin(self.core, timeout)

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

    # -- cluster and topics --------------------------------------------------------------------

    async def cluster(self) -> list[BrokerNode]:
        """Every broker that the nameserver knows."""
        return await self._brokers.nodes()

    async def replicas(self, group: str | None = None) -> list[Replica]:
        """Every member of a broker group, or of all groups: role, epoch and end of its log."""
        return await find_replicas(self.core, group)

    async def promote(
        self,
        group: str,
        node: str | int,
        *,
        force: bool = False,
        timeout: float = promotion.TIMEOUT_S,
    ) -> Promotion:
        """Make `node` (an address or a broker id) the master of its group.

        A master that answers hands over, and nothing is lost. Without one, `force` is needed where
        acknowledged messages could be lost.
        """
        return await Promoter(self.core, group, force=force, timeout_s=timeout).run(node)

    async def hand_over(
        self,
        group: str,
        node: str | int | None = None,
        *,
        timeout: float = promotion.TIMEOUT_S,
    ) -> Promotion:
        """Change the master of a healthy group: to `node` (an address or a broker id), or to the
        slave that `brokerElectionPriority` prefers, or to the one that is furthest ahead.

        Nothing is forced, and no acknowledged message is lost: NoPermission says why no node hands
        over or takes over; then nothing has changed. The slave has `timeout` seconds to come near;
        the group takes no sends for two seconds at most. A cancelled call, or `close`, ends as soon
        as one of the two leads.
        """
        return await Succession(self.core, timeout_s=timeout).hand_over(group, node)

    async def preview_hand_over(self, group: str, node: str | int | None = None) -> Replica:
        """The node that would take over."""
        return await Succession(self.core).preview(group, node)

    async def drain(self, node: str, *, timeout: float = promotion.TIMEOUT_S) -> list[Drained]:
        """Hand over each group that a node leads, so that it can be stopped: `node` is an address,
        a host (all brokers on it), or an id that only one broker has.

        NoPermission says why one of the groups cannot be handed over; then nothing has changed.
        `risk` says what the stop of the node costs nevertheless.
        """
        return await Succession(self.core, timeout_s=timeout).drain(node)

    async def preview_drain(self, node: str) -> list[Drained]:
        """The changes that `drain` would make."""
        return await Succession(self.core).drain(node, preview=True)

    async def broker_status(self, address: str) -> dict[str, str]:
        """The state that the broker at `address` reports, as mqadmin's brokerStatus shows it.

        `refusesWrites` says why it takes no sends, and is empty if it does; `flushBehindMs` is the
        time for which the oldest message that is not on the disk has waited; `longestStopMs` is the
        longest time that its event loop stood still since the start, `longestBusyStopMs` the part
        of it that the loop computed.
        """
        return await self._brokers.status(address)

    async def broker_settings(self, address: str) -> dict[str, str]:
        """All settings of the broker at `address`, by RocketMQ's key; secrets are hidden."""
        return await self._brokers.settings(address)

    async def change_settings(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the broker at `address` until it stops, all or none. NoPermission: one
        of them is fixed while it runs. InvalidParameter: a value is out of its range."""
        await self._brokers.change(address, settings)

    async def producers(self) -> list[ConnectedProducer]:
        """The producers that are connected to any broker, each client of a group once. A client
        tells of itself with its heartbeats."""
        return await self._brokers.producers([node.address for node in await self.cluster()])

    async def delete_expired(self, address: str) -> None:
        """Have the broker at `address` delete what its retention no longer keeps, whatever the
        hour."""
        await self._brokers.delete_expired(address)

    async def list_topics(self) -> list[str]:
        """The names of all topics that the nameserver knows."""
        command = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return await self.core.ask_nameserver(command, _topics, self.timeout)

    topics = list_topics

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route as a nameserver gives it now."""
        return await self.core.route(topic, refresh=True)

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
        order: an ordered topic, whose queues nameservers know (docs/topics.md).
        """
        check_topic(topic)
        wanted = QueueCounts(
            queues if read_queues is None else read_queues,
            queues if write_queues is None else write_queues,
            perm,
        )
        named = with_type(message_type, attributes or {})
        masters = {
            node.broker_name: node.address
            for node in await self.cluster()
            if node.broker_id == 0 and cluster in (None, node.cluster)
        }
        if not masters:
            raise RouteNotFound("no master is registered: start a broker, or name its cluster")
        settings = TopicSettings(self.core, self.timeout, wait_s)
        await settings.create(topic, wanted, masters, named, order=order)

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
        read queues.
        """
        wanted = QueueCounts(read_queues, write_queues, perm)
        await TopicSettings(self.core, self.timeout, wait_s).alter(topic, wanted, attributes or {})

    async def topic_settings(self, topic: str) -> dict[str, TopicConfig]:
        """The queues, permissions, order flag and attributes of the topic, by broker name."""
        found = await TopicSettings(self.core, self.timeout, 0.0).found(topic)
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
        there. A new topic of that name begins empty, at the offsets where the old one ended."""
        nodes = await self.cluster()
        masters = [node.address for node in nodes if node.broker_id == 0]
        slaves = [node.address for node in nodes if node.broker_id != 0]
        await delete_topic(self.core, topic, masters, slaves, self.timeout)

    async def describe_topic(self, topic: str) -> list[QueueOffsets]:
        """Every queue of the topic with its first and its end offset, asked of the masters."""
        masters = await serving(self.core, topic)
        return await ask_queue_offsets(self.core, masters, topic, self.timeout)

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
        await self._groups.create(await self._masters(), group, settings)

    async def alter_group(self, group: str, **settings: Unpack[GroupChanges]) -> None:
        """Change these settings of the group on every master that has it; the others stay. The
        names are those of `create_group`. GroupNotExist: no master has it."""
        await self._groups.alter(await self._masters(), group, settings)

    async def set_request_mode(self, group: str, topic: str, mode: Mode, *, share: int = 0) -> None:
        """Have the group pull or pop a topic, as mqadmin's setConsumeMode does; push consumers that
        run follow at once. With a `share` each member pops its own queues and those of so many
        others, otherwise all."""
        await self._groups.set_mode(group, topic, mode, share)

    async def delete_group(self, group: str) -> None:
        """Delete the group on every master, with its offsets and its retry and dead-letter topics.

        A connected member creates the group again with its next heartbeat.
        """
        await self._groups.delete(await self._masters(), group)

    async def list_groups(self) -> list[str]:
        """The names of all subscription groups on the masters."""
        return await self._groups.names(await self._masters())

    async def describe_group(self, group: str) -> list[GroupAtBroker]:
        """The settings and the members of the group at every master that has it. GroupNotExist: no
        master has it."""
        return await self._groups.describe(await self._masters(), group)

    async def member_queues(self, group: str, client_id: str) -> list[QueueAtMember]:
        """The queues that a connected member of the group works on, as the member reports them."""
        return await self._groups.at_member(await self._masters(), group, client_id)

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that consume the topic, or have offsets of it."""
        return await self._groups.of_topic(await self._masters(), topic)

    async def group_lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """The group's progress on every queue it has consumed, of one topic or of all."""
        return await self._groups.lag(await self._masters(), group, topic)

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
        the new offset. Returns it for each queue.
        """
        return await self._groups.reset(group, topic, timestamp_ms, queue, offset)

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
        return await self._groups.preview_reset(group, topic, timestamp_ms, queue, offset)

    async def clone_offsets(
        self, source: str, target: str, topic: str | None = None
    ) -> dict[MessageQueue, int]:
        """Give a group the offsets of another one, in one topic or in all, also back. Members that
        consume now continue there. Returns the offset for each queue; a RocketMQ broker does not
        tell them. QueryNotFound: the other group has no offset there."""
        return await self._groups.clone(await self._masters(), source, target, topic)

    async def preview_clone(
        self, source: str, target: str, topic: str | None = None
    ) -> list[OffsetReset]:
        """The changes that `clone_offsets` with the same arguments would make now, queue by
        queue."""
        return await self._groups.preview_clone(await self._masters(), source, target, topic)

    async def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, boundary: Boundary = "LOWER"
    ) -> int:
        """LOWER: the offset of the first message of `queue` stored at or after a time, the queue's
        end if there is none. UPPER: the offset of the last one stored at or before it, or of the
        first message if there is none."""
        return await self._finder.offset_by_time(queue, timestamp_ms, boundary)

    # -- messages ------------------------------------------------------------------------------

    async def message_by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """The message that an offset message id (of a SendResult) names; asks the broker in it."""
        return await self._finder.by_offset_id(offset_message_id)

    async def find_message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """A message by its id: an offset message id, or with its topic its unique id."""
        return await self._finder.by_id(message_id, topic)

    async def find_by_id(self, message_id: str, topic: str | None = None) -> ReceivedMessage | None:
        """As `find_message`, but None when there is no such message."""
        try:
            return await self.find_message(message_id, topic)
        except QueryNotFound:
            return None

    async def find_by_offset(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """The message at `offset` of `queue`; None when there is none."""
        return await self._finder.by_offset(queue, offset)

    async def find_by_key(
        self,
        topic: str,
        key: str,
        limit: int = RESULTS,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
    ) -> list[ReceivedMessage]:
        """The newest `limit` messages of a topic that carry `key`, oldest first, of those stored
        from `begin_ms` to `end_ms` (both inclusive; None is no bound).

        A broker gives at most its `maxMsgsNumBatch` (64): for older ones end before the first.
        """
        return await self._finder.by_key(topic, key, limit, begin_ms, end_ms)

    async def find_by_time(
        self, topic: str, begin_ms: int, end_ms: int | None = None, limit: int = RESULTS
    ) -> list[ReceivedMessage]:
        """The oldest `limit` messages of a topic that were stored from `begin_ms` to `end_ms` (both
        inclusive; None is no bound), oldest first."""
        return await self._finder.by_time(topic, begin_ms, end_ms, limit)

    async def message_trace(self, message_id: str, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """The records of a message, by its unique id, that clients with traces turned on have
        written, ours or Java's; oldest first. `topic`: the topic of the traces."""
        return await self._finder.traces(message_id, topic)

    # -- dead letters --------------------------------------------------------------------------

    async def dead_letters(
        self, group: str, begin_ms: int = 0, end_ms: int | None = None, limit: int = RESULTS
    ) -> list[ReceivedMessage]:
        """The oldest `limit` messages that a group has given up, of those given up from `begin_ms`
        to `end_ms` (both inclusive; None is no bound), oldest first."""
        try:
            return await self._finder.by_time(dlq_topic(group), begin_ms, end_ms, limit)
        except TopicNotExist:
            return []

    async def resend_dead_letters(
        self, group: str, ids: Sequence[str] | None = None, *, to_topic: bool = False
    ) -> int:
        """Let a group consume again what it has given up, or of that the messages with these ids.
        Returns the number of copies; the letters stay until they expire. With `to_topic` every
        group of the original topic gets the copies; an ordered group needs that."""
        letters = letters_of(self._finder, group, ids)
        return await resend_all(self.core, group, letters, to_topic=to_topic, timeout=self.timeout)

    # -- asking --------------------------------------------------------------------------------

    async def _masters(self) -> dict[str, str]:
        """The address of every master, by the name of its broker group."""
        nodes = await self.cluster()
        return {node.broker_name: node.address for node in nodes if node.broker_id == 0}


def _topics(answer: Command) -> list[str]:
    listed = checked.items(checked.document(answer.body), "topicList")
    return sorted(checked.as_text(topic, "a topic") for topic in listed)
