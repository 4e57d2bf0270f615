"""The synchronous PushConsumer, PullConsumer, SimpleConsumer and Admin.

Written by tools/blocking_faces.py from the asynchronous classes; do not edit. Change those, and
run it again: `make lint` checks that this file is what it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

from saturnmq.client.admin import admin, promotion
from saturnmq.client.admin.access import AclInfo, UserInfo
from saturnmq.client.admin.admin import QUERY_TIMEOUT_S, Boundary
from saturnmq.client.admin.broker_admin import ConnectedProducer, SendProbe
from saturnmq.client.admin.group_admin import GroupAtBroker, Mode, QueueAtMember, QueueLag
from saturnmq.client.admin.group_settings import GroupChanges
from saturnmq.client.admin.handover import Drained
from saturnmq.client.admin.member_questions import DirectConsumption
from saturnmq.client.admin.message_finding import RESULTS, QueueEntry
from saturnmq.client.admin.offset_resets import END, OffsetReset
from saturnmq.client.admin.promotion import Promotion
from saturnmq.client.admin.replicas import Replica
from saturnmq.client.admin.topic_settings import QueueOffsets, Undrained
from saturnmq.client.cluster_view import BrokerNode
from saturnmq.client.consumer import pull_consumer, push_consumer, simple_consumer
from saturnmq.client.consumer.consuming import SUSPEND_S
from saturnmq.client.consumer.listening import Listener, OneListener
from saturnmq.client.consumer.offset_store import COMMIT_INTERVAL_S, INSTANCE
from saturnmq.client.consumer.own_offsets import OwnOffsetStore
from saturnmq.client.consumer.popping import INVISIBLE_S
from saturnmq.client.consumer.process_queue import FlowLimits
from saturnmq.client.consumer.push_consumer import CONSUME_TIMEOUT_S
from saturnmq.client.consumer.subscriptions import TopicOrPattern
from saturnmq.client.core import DEFAULT_NAMESERVER, ErrorListener
from saturnmq.client.facade import Facade
from saturnmq.client.tls import Tls
from saturnmq.client.tracing import Trace
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.route import TopicConfig, TopicRoute
from saturnmq.protocol.subscription import Expression
from saturnmq.protocol.topics import TRACE_TOPIC
from saturnmq.protocol.trace import TraceRecord

__all__ = ["Admin", "PullConsumer", "PushConsumer", "SimpleConsumer"]


class PushConsumer(Facade[push_consumer.PushConsumer]):
    """A member of a consumer group that gets messages through a listener.

        consumer = PushConsumer("readers", "127.0.0.1:9876", listener=work)
        consumer.subscribe("orders", "new || changed")

    A message is consumed when the listener has returned None or ConsumeResult.SUCCESS for it; until
    then it is not committed, and another member gets it if this one fails.

    A call returns when what it asks for is done. Any thread may call, but for the client's own:
    in an `async` listener and in `on_error` use saturnmq.aio.
    """

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._target.group

    @property
    def ordered(self) -> bool:
        """Whether each queue is consumed in its order, by one listener at a time."""
        return self._target.ordered

    @property
    def broadcasting(self) -> bool:
        """Whether each member consumes all messages."""
        return self._target.broadcasting

    @property
    def consume_from(self) -> str | int:
        """The start of a group without an offset: "first", "last" or a time in ms."""
        return self._target.consume_from

    def __init__(
        self,
        group: str,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        listener: Listener | None = None,
        listener_one: OneListener | None = None,
        ordered: bool = False,
        orderly: bool = False,
        broadcasting: bool = False,
        from_beginning: bool = False,
        consume_from: str | int = "last",
        consume_message_batch_max_size: int = 32,
        consume_threads: int = 20,
        max_reconsume: int = -1,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        suspend_s: float = SUSPEND_S,
        pop_invisible_s: float = INVISIBLE_S,
        rebalance: str = "AVG",
        rebalance_interval_s: float = 20.0,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        hold_s: float | None = None,
        max_cached_messages: int = FlowLimits().messages,
        max_cached_bytes: int = FlowLimits().bytes,
        verify_crc: bool = True,
        trace: Trace = False,
        namespace: str = "",
        tls: Tls = None,
        credentials: Credentials | None = None,
        client_id: str | None = None,
        on_error: ErrorListener | None = None,
        instance_name: str = INSTANCE,
        offsets_path: str | None = None,
    ) -> None:
        """ConfigError names settings that are wrong or exclude each other.

        nameservers: "HOST:PORT[,...]" or a sequence of them
        listener: called with a list of messages of one queue; may be `async`
        listener_one: called with each message instead
        ordered: consume each queue in its order; `orderly` is RocketMQ's word for it
        broadcasting: every member consumes all messages; its offsets are kept in a local file
        from_beginning: short for consume_from="first"
        consume_from: the start of a group without an offset: "first", "last" or a time in ms
        consume_message_batch_max_size: most messages in one call of `listener`
        consume_threads: threads for a listener that is not `async`
        max_reconsume: deliveries after which a failing message goes to the dead-letter topic; -1 is
            16, and no limit for an ordered consumer
        consume_timeout_s: a message whose listener takes longer is delivered again, elsewhere; an
            ordered queue stands still instead, for all members. Both are reported to `on_error`
        suspend_s: seconds after which an ordered consumer tries a failed message again, 0.01 to 30
        pop_invisible_s: the seconds that a listener has for messages of a topic that the group was
            told to pop (docs/pop.md), 5 to 300; then other members get them
        rebalance: how members share queues: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH or STICKY
        rebalance_interval_s: seconds between two requests for the members
        commit_interval_s: seconds between two commits of what is consumed
        hold_s: seconds that a broker may hold a pull that finds nothing, 0.1 to 60; 15 by default,
            longer with over 1,500 queues; RocketMQ's brokers look every 5 s whether they are over
        max_cached_messages, max_cached_bytes: what is pulled ahead of the listener, for each queue
        verify_crc: check every message's CRC-32 of its body
        trace: True writes traces of each message to RMQ_SYS_TRACE_TOPIC; or the topic for traces
        namespace: topics and groups are NAMESPACE%NAME for the brokers, as with RocketMQ's clients
        tls: True, or the context, encrypts; None is as SATURNMQ_CLIENT_TLS says
        credentials: the user; None is as SATURNMQ_ACCESS_KEY and SATURNMQ_SECRET_KEY say
        client_id: the name of this client among the members of its group; unique by default
        on_error: called with each error that no call of the application can raise; it runs on the
            client's loop and must return at once
        instance_name: tells broadcasting consumers of one user apart: each finds its offsets by it
        offsets_path: the file of a broadcasting consumer's offsets, by default
            ~/.saturnmq/offsets/<instance_name>/<group>/offsets.json
        """
        super().__init__(
            lambda runtime: push_consumer.PushConsumer(
                group,
                nameservers,
                listener=listener,
                listener_one=listener_one,
                ordered=ordered,
                orderly=orderly,
                broadcasting=broadcasting,
                from_beginning=from_beginning,
                consume_from=consume_from,
                consume_message_batch_max_size=consume_message_batch_max_size,
                consume_threads=consume_threads,
                max_reconsume=max_reconsume,
                consume_timeout_s=consume_timeout_s,
                suspend_s=suspend_s,
                pop_invisible_s=pop_invisible_s,
                rebalance=rebalance,
                rebalance_interval_s=rebalance_interval_s,
                commit_interval_s=commit_interval_s,
                hold_s=hold_s,
                max_cached_messages=max_cached_messages,
                max_cached_bytes=max_cached_bytes,
                verify_crc=verify_crc,
                trace=trace,
                namespace=namespace,
                tls=tls,
                credentials=credentials,
                client_id=client_id,
                on_error=on_error,
                instance_name=instance_name,
                offsets_path=offsets_path,
                runtime=runtime,
            )
        )

    def subscribe(
        self,
        topic: TopicOrPattern,
        expression: Expression = "*",
        listener: Listener | None = None,
        *,
        listener_one: OneListener | None = None,
    ) -> None:
        """Adds a topic (or changes its expression: `*`, tags joined by `||`, or a condition over
        properties that the brokers look at, `Sql("price > 3")`). `re.compile("orders-.*")` is a
        pattern: all topics with such a name, as they come and go.

        The listener is the consumer's, for all its topics; give it here or to the constructor.
        """
        self._call(
            lambda: self._target.subscribe(topic, expression, listener, listener_one=listener_one)
        )

    def unsubscribe(self, topic: TopicOrPattern) -> None:
        """Drops a topic or a pattern; its queues go to the other members at the next rebalance."""
        self._call(lambda: self._target.unsubscribe(topic))

    def start(self) -> Self:
        """Joins the group and begins to consume. Cancelled, it begins anew with the next call."""
        return super().start()

    def suspend(self) -> None:
        """Calls the listener no more, until resume(). Calls that run go on to their end; queues,
        locks and the messages that are pulled already stay here and wait. Of topics that the group
        was told to pop no more messages are popped, and those that wait here go to other members
        when their time is over.
        """
        self._call(self._target.suspend)

    def resume(self) -> None:
        """Calls the listener again."""
        self._call(self._target.resume)

    def close(self) -> None:
        """Lets running listeners end, commits, gives queues and locks back, leaves the group.

        A listener that does not return within ten seconds is reported (`on_error`), as is a commit
        that fails, and the messages come again. The lock of its ordered queue is not given back:
        the next owner gets the queue when the lock expires at the broker, 60 s later, even if the
        listener has not returned. A caller that is cancelled leaves all this to go on; close()
        again waits for it.
        """
        return super().close()


class PullConsumer(Facade[pull_consumer.PullConsumer]):
    """A member of a group, or a reader of given queues, that polls.

        consumer = PullConsumer("readers", "127.0.0.1:9876")
        consumer.subscribe("orders")    # shares the queues with the other members
        consumer.assign(queues)         # or: reads exactly these

    Messages are pulled ahead; poll() gives those of one queue, in their order.

    With auto_commit a poll() says that the messages of the polls before it are done with, and so
    does close(), or the end of a `with` block that raised nothing. When the block raises, the
    messages of its last poll are not committed: they come again. Without auto_commit only commit()
    commits.

    A call returns when what it asks for is done. Any thread may call, but for the client's own:
    in an `async` listener and in `on_error` use saturnmq.aio.
    """

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._target.group

    @property
    def auto_commit(self) -> bool:
        """Whether each poll() commits the messages of the polls before it."""
        return self._target.auto_commit

    @property
    def consume_from(self) -> str | int:
        """The start of a group without an offset: "first", "last" or a time in ms."""
        return self._target.consume_from

    def __init__(
        self,
        group: str,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        from_beginning: bool = False,
        consume_from: str | int = "last",
        auto_commit: bool = True,
        rebalance: str = "AVG",
        rebalance_interval_s: float = 20.0,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        hold_s: float | None = None,
        max_cached_messages: int = 16384,
        max_cached_bytes: int = 32 << 20,
        verify_crc: bool = True,
        offset_store: OwnOffsetStore | None = None,
        namespace: str = "",
        trace: Trace = False,
        tls: Tls = None,
        credentials: Credentials | None = None,
        client_id: str | None = None,
        on_error: ErrorListener | None = None,
    ) -> None:
        """ConfigError names settings that are wrong or exclude each other.

        nameservers: "HOST:PORT[,...]" or a sequence of them
        from_beginning: short for consume_from="first"
        consume_from: the start of a group without an offset: "first", "last" or a time in ms
        auto_commit: each poll() commits the messages of the polls before it
        rebalance: how members share queues: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH or STICKY
        rebalance_interval_s: seconds between two requests for the members
        commit_interval_s: seconds between two commits
        hold_s: seconds that a broker may hold a pull that finds nothing, 0.1 to 60; 15 by default,
            longer with over 1,500 queues; RocketMQ's brokers look every 5 s whether they are over
        max_cached_messages, max_cached_bytes: what is pulled ahead of poll(), for each queue
        verify_crc: check every message's CRC-32 of its body
        offset_store: has `load(queue)` and `save(offsets)`, and keeps the offsets, not the brokers
        namespace: topics and groups are NAMESPACE%NAME for the brokers, as with RocketMQ's clients
        trace: True writes traces of each message to RMQ_SYS_TRACE_TOPIC; or the topic for traces
        tls: True, or the context, encrypts; None is as SATURNMQ_CLIENT_TLS says
        credentials: the user; None is as SATURNMQ_ACCESS_KEY and SATURNMQ_SECRET_KEY say
        client_id: the name of this client among the members of its group; unique by default
        on_error: called with each error that no call of the application can raise; it runs on the
            client's loop and must return at once
        """
        super().__init__(
            lambda runtime: pull_consumer.PullConsumer(
                group,
                nameservers,
                from_beginning=from_beginning,
                consume_from=consume_from,
                auto_commit=auto_commit,
                rebalance=rebalance,
                rebalance_interval_s=rebalance_interval_s,
                commit_interval_s=commit_interval_s,
                hold_s=hold_s,
                max_cached_messages=max_cached_messages,
                max_cached_bytes=max_cached_bytes,
                verify_crc=verify_crc,
                offset_store=offset_store,
                namespace=namespace,
                trace=trace,
                tls=tls,
                credentials=credentials,
                client_id=client_id,
                on_error=on_error,
                runtime=runtime,
            )
        )

    def subscribe(self, topic: TopicOrPattern, expression: Expression = "*") -> None:
        """Shares the topic's queues with the group's other members. `expression`: `*`, tags joined
        by `||`, or a condition over properties, `Sql("price > 3")`. `re.compile("orders-.*")` is a
        pattern: all topics with such a name, as they come and go.
        """
        self._call(lambda: self._target.subscribe(topic, expression))

    def unsubscribe(self, topic: TopicOrPattern) -> None:
        """Leaves a topic or a pattern: polls give no more messages of it, and its queues go to the
        other members. Messages of the last poll that are not committed come to them again.
        """
        self._call(lambda: self._target.unsubscribe(topic))

    def assign(self, queues: Iterable[MessageQueue], expression: Expression = "*") -> None:
        """Reads exactly `queues`, even if others read them, too; replaces an earlier assign()."""
        self._call(lambda: self._target.assign(queues, expression))

    def start(self) -> Self:
        """Connects, joins the group (subscribe) and begins to read ahead."""
        return super().start()

    def close(self) -> None:
        """Commits (with auto_commit, everything polled) and leaves the group."""
        return super().close()

    def poll(self, timeout_s: float = 5.0, max_messages: int = 1024) -> list[ReceivedMessage]:
        """Up to `max_messages` of one queue, waiting up to `timeout_s`; empty if none came."""
        return self._target.round.give(max_messages) or self._wait(
            self._target.poll(timeout_s, max_messages), self._target._put_back
        )

    def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Commits the offsets polled so far, or `offsets` (next to read), and waits for that. One
        below the committed offset changes nothing: seek() goes back. InvalidParameter: one lies
        outside its queue. Others: not confirmed or saved; the next commit tries again.
        """
        self._wait(self._target.commit(offsets))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """The next poll of `queue` starts at `offset`. The committed offset follows, backwards too,
        at the next commit() or, with auto_commit, at the next poll().
        """
        self._call(lambda: self._target.seek(queue, offset))

    def seek_to(self, queue: MessageQueue, place: str | int) -> int:
        """As seek(), to "first" or "last", the ends of the queue, or to the first message stored at
        a time in ms or later; returns the offset.
        """
        return self._wait(self._target.seek_to(queue, place))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """poll() gives no messages of these queues until resume(), or until they come anew."""
        self._call(lambda: self._target.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """poll() gives messages of these queues again."""
        self._call(lambda: self._target.resume(queues))

    def paused(self) -> list[MessageQueue]:
        """The queues that are paused."""
        return self._call(self._target.paused)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset of `queue` on the broker; None if there is none."""
        return self._wait(self._target.committed(queue))

    def lag(self, queue: MessageQueue | None = None) -> int:
        """Messages between what was polled and the end of the queue (or of all my queues)."""
        return self._wait(self._target.lag(queue))

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return self._call(self._target.assignment)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message that poll() gives of `queue`."""
        return self._call(lambda: self._target.position(queue))


class SimpleConsumer(Facade[simple_consumer.SimpleConsumer]):
    """A member of a group that receives messages for a time, and acknowledges each.

        consumer = SimpleConsumer("workers", "127.0.0.1:9876")
        consumer.subscribe("orders")
        for message in consumer.receive(invisible_s=60):
            work(message)
            consumer.ack(message)

    While a message is invisible, no other member gets it. A message that is not acknowledged in its
    time comes again, to any member, with one more in `reconsume_times`; after the last attempt it
    is a dead letter of the group.

    A call returns when what it asks for is done. Any thread may call, but for the client's own:
    in an `async` listener and in `on_error` use saturnmq.aio.
    """

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._target.group

    @property
    def ordered(self) -> bool:
        """Whether a queue waits until its messages before are acknowledged."""
        return self._target.ordered

    @property
    def consume_from(self) -> str | int:
        """The start of a group without an offset: "first", "last" or a time in ms."""
        return self._target.consume_from

    def __init__(
        self,
        group: str,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        from_beginning: bool = False,
        consume_from: str | int = "last",
        ordered: bool = False,
        verify_crc: bool = True,
        trace: Trace = False,
        namespace: str = "",
        tls: Tls = None,
        credentials: Credentials | None = None,
        client_id: str | None = None,
        on_error: ErrorListener | None = None,
    ) -> None:
        """nameservers: "HOST:PORT[,...]" or a sequence of them
        from_beginning: short for consume_from="first"
        consume_from: the start of a group without an offset: "first", "last" or a time in ms. With
            "last" a queue that still has its very first message is read from there in any case
        ordered: of each queue messages are out once at a time; the next ones come when all are
            acknowledged, or their time is over
        verify_crc: check every message's CRC-32 of its body
        trace: True writes traces of each message to RMQ_SYS_TRACE_TOPIC; or the topic for traces
        namespace: topics and groups are NAMESPACE%NAME for the brokers, as with RocketMQ's clients
        tls: True, or the context, encrypts; None is as SATURNMQ_CLIENT_TLS says
        credentials: the user; None is as SATURNMQ_ACCESS_KEY and SATURNMQ_SECRET_KEY say
        client_id: the name of this client among the members of its group; unique by default
        on_error: called with each error that no call of the application can raise; it runs on the
            client's loop and must return at once
        """
        super().__init__(
            lambda runtime: simple_consumer.SimpleConsumer(
                group,
                nameservers,
                from_beginning=from_beginning,
                consume_from=consume_from,
                ordered=ordered,
                verify_crc=verify_crc,
                trace=trace,
                namespace=namespace,
                tls=tls,
                credentials=credentials,
                client_id=client_id,
                on_error=on_error,
                runtime=runtime,
            )
        )

    def subscribe(self, topic: TopicOrPattern, expression: Expression = "*") -> None:
        """Receive messages of this topic, from the next receive() on. `expression`: `*`, tags
        joined by `||`, or a condition over properties, `Sql("price > 3")`.
        `re.compile("orders-.*")` is a pattern: all topics with such a name, as they come and go.
        """
        self._call(lambda: self._target.subscribe(topic, expression))

    def unsubscribe(self, topic: TopicOrPattern) -> None:
        """Receive no more messages of this topic, or of this pattern. Those that were received can
        still be acknowledged.
        """
        self._call(lambda: self._target.unsubscribe(topic))

    def start(self) -> Self:
        """Connects and joins the group."""
        return super().start()

    def close(self) -> None:
        """Leaves the group. Messages that are not acknowledged come to other members when their
        time is over.
        """
        return super().close()

    def receive(
        self, max_messages: int = 16, invisible_s: float = 30.0, wait_s: float = 15.0
    ) -> list[ReceivedMessage]:
        """Up to `max_messages` (32 at most), invisible to other members for `invisible_s` seconds;
        waits up to `wait_s` for the first; empty if none came. An error of the brokers is raised
        if none of them could be asked.
        """
        return self._wait(self._target.receive(max_messages, invisible_s, wait_s))

    def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Say that messages are done with. NoMessage: one of them is not, because its time is over,
        or it was acknowledged before; the others are.
        """
        self._wait(self._target.ack(messages))

    def dead_letter(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Give messages up: each becomes a dead letter of the group now, whatever attempts it has
        left, and its queue goes on, also when it is `ordered`. NoMessage: the time of one is over,
        or it was acknowledged; it is a dead letter all the same, and may come again.
        """
        self._wait(self._target.dead_letter(messages))

    def change_invisible_duration(self, message: ReceivedMessage, invisible_s: float) -> None:
        """Let the invisible time of a message begin anew, with this length: longer to go on working
        on it, or shorter to give it back. NoMessage: its time is over, or it was acknowledged.
        """
        self._wait(self._target.change_invisible_duration(message, invisible_s))


class Admin(Facade[admin.Admin]):
    """Administration of a cluster: topics, groups, offsets, single messages and users; on one event
    loop.

    Errors are SaturnErrors; an error that a broker answers keeps its class (`saturnmq.errors`).

    A call returns when what it asks for is done. Any thread may call, but for the client's own:
    in an `async` listener and in `on_error` use saturnmq.aio.
    """

    @property
    def timeout(self) -> float:
        """Seconds that a server has for one answer."""
        return self._target.timeout

    def __init__(
        self,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        timeout: float = QUERY_TIMEOUT_S,
        namespace: str = "",
        tls: Tls = None,
        credentials: Credentials | None = None,
        on_error: ErrorListener | None = None,
        replication_secret: str = "",
        replication_secret_required: bool = True,
    ) -> None:
        """nameservers: "HOST:PORT[,...]" or a sequence of them
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
        super().__init__(
            lambda runtime: admin.Admin(
                nameservers,
                timeout=timeout,
                namespace=namespace,
                tls=tls,
                credentials=credentials,
                on_error=on_error,
                replication_secret=replication_secret,
                replication_secret_required=replication_secret_required,
                runtime=runtime,
            )
        )

    def start(self) -> Self:
        """Connect."""
        return super().start()

    def close(self) -> None:
        """Leave the cluster; an operation under way fails."""
        return super().close()

    def list_topics(self, *, internal: bool = True) -> list[str]:
        """The names of all topics that the nameserver knows. Without `internal` those that users
        made: no topics of the system, of clusters and brokers, of retries and dead letters.
        """
        return self._wait(self._target.list_topics(internal=internal))

    topics = list_topics

    def route(self, topic: str) -> TopicRoute:
        """The topic's route as a nameserver gives it now."""
        return self._wait(self._target.route(topic))

    def create_topic(
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
        self._wait(
            self._target.create_topic(
                topic,
                queues,
                read_queues=read_queues,
                write_queues=write_queues,
                message_type=message_type,
                perm=perm,
                attributes=attributes,
                order=order,
                cluster=cluster,
                wait_s=wait_s,
            )
        )

    def alter_topic(
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
        self._wait(
            self._target.alter_topic(
                topic,
                write_queues=write_queues,
                read_queues=read_queues,
                perm=perm,
                attributes=attributes,
                wait_s=wait_s,
            )
        )

    def topic_settings(self, topic: str) -> dict[str, TopicConfig]:
        """The queues, permissions, order flag and attributes of the topic, by broker name."""
        return self._wait(self._target.topic_settings(topic))

    def undrained(self, topic: str, read_queues: int) -> list[Undrained]:
        """The messages that could not be read any more if the topic had only so many read queues on
        each broker: those that a group has not consumed, or all if no group consumes the topic.
        """
        return self._wait(self._target.undrained(topic, read_queues))

    def delete_topic(self, topic: str) -> None:
        """Delete the topic, its messages and the offsets of groups in it, everywhere. When this
        returns the topic stays deleted, also after a crash and the promotion of any slave that is
        there. A new topic of that name begins empty, at the offsets where the old one ended.

        RouteNotFound, and nothing deleted, if a broker that has the topic has no master now.
        """
        self._wait(self._target.delete_topic(topic))

    def describe_topic(self, topic: str) -> list[QueueOffsets]:
        """Every queue of the topic with its first and its end offset, asked of the masters."""
        return self._wait(self._target.describe_topic(topic))

    offsets = describe_topic

    def create_group(self, group: str, **settings: Unpack[GroupChanges]) -> None:
        """Create the subscription group on every master. Where it is there already, the settings
        that are named change and the others stay.

        max_retries: deliveries of a failed message after the first, before it goes to %DLQ%<group>
        orderly: passed to clients of the gRPC API; a consumer here says `ordered` itself
        enabled, broadcast, notify_members, retry_queues, retry_policy, broker_id, slow_broker_id,
            from_min, consume_timeout_min, attributes: docs/clients.md

        ConfigError: `max_retries` is below 0, or there is no such setting.
        """
        self._wait(self._target.create_group(group, **settings))

    def alter_group(self, group: str, **settings: Unpack[GroupChanges]) -> None:
        """Change these settings of the group on every broker that has it; the others stay. The
        names are those of `create_group`. GroupNotExist: none has it. RouteNotFound, and nothing
        changed, if one of them has no master now.
        """
        self._wait(self._target.alter_group(group, **settings))

    def set_request_mode(self, group: str, topic: str, mode: Mode, *, share: int = 0) -> None:
        """Have the group pull or pop a topic, as mqadmin's setConsumeMode does; push consumers that
        run follow at once. With a `share` each member pops its own queues and those of so many
        others, otherwise all.
        """
        self._wait(self._target.set_request_mode(group, topic, mode, share=share))

    def delete_group(self, group: str) -> None:
        """Delete the group on every broker, with its offsets and its retry and dead-letter topics.
        When this returns it stays deleted, also after the promotion of any slave that is there.
        RouteNotFound, and nothing deleted, if a broker that has it has no master now.

        A connected member creates the group again with its next heartbeat.
        """
        self._wait(self._target.delete_group(group))

    def list_groups(self) -> list[str]:
        """The names of all subscription groups on the brokers."""
        return self._wait(self._target.list_groups())

    def describe_group(self, group: str) -> list[GroupAtBroker]:
        """The settings and the members of the group at every broker that has it. GroupNotExist:
        none has it.
        """
        return self._wait(self._target.describe_group(group))

    def member_queues(self, group: str, client_id: str) -> list[QueueAtMember]:
        """The queues that a connected member of the group works on, as the member reports them."""
        return self._wait(self._target.member_queues(group, client_id))

    def member_stacks(self, group: str, client_id: str) -> str:
        """The stacks of the threads of a connected member of the group, as the member prints them:
        where it is, and what it waits for.
        """
        return self._wait(self._target.member_stacks(group, client_id))

    def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that consume the topic, or have offsets of it."""
        return self._wait(self._target.groups_of_topic(topic))

    def group_lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """The group's progress on every queue it has consumed, of one topic or of all."""
        return self._wait(self._target.group_lag(group, topic))

    def reset_offsets(
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
        return self._wait(
            self._target.reset_offsets(group, topic, timestamp_ms, queue=queue, offset=offset)
        )

    def preview_reset(
        self,
        group: str,
        topic: str,
        timestamp_ms: int = END,
        *,
        queue: MessageQueue | None = None,
        offset: int | None = None,
    ) -> list[OffsetReset]:
        """The changes that `reset_offsets` with the same arguments would make now, queue by
        queue.
        """
        return self._wait(
            self._target.preview_reset(group, topic, timestamp_ms, queue=queue, offset=offset)
        )

    def clone_offsets(
        self, source: str, target: str, topic: str | None = None
    ) -> dict[MessageQueue, int]:
        """Give a group the offsets of another one, in one topic or in all, also back. Members that
        consume now continue there. Returns the offset for each queue; a RocketMQ broker does not
        tell them. QueryNotFound: the other group has no offset there.
        """
        return self._wait(self._target.clone_offsets(source, target, topic))

    def preview_clone(
        self, source: str, target: str, topic: str | None = None
    ) -> list[OffsetReset]:
        """The changes that `clone_offsets` with the same arguments would make now, queue by
        queue.
        """
        return self._wait(self._target.preview_clone(source, target, topic))

    def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, boundary: Boundary = "LOWER"
    ) -> int:
        """LOWER: the offset of the first message of `queue` stored at or after a time, the queue's
        end if there is none. UPPER: the offset of the last one stored at or before it, or of the
        first message if there is none.
        """
        return self._wait(self._target.offset_by_time(queue, timestamp_ms, boundary))

    def cluster(self) -> list[BrokerNode]:
        """Every broker that any nameserver knows."""
        return self._wait(self._target.cluster())

    def replicas(self, group: str | None = None) -> list[Replica]:
        """Every member of a broker group, or of all groups: role, epoch and end of its log."""
        return self._wait(self._target.replicas(group))

    def promote(
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
        return self._wait(self._target.promote(group, node, force=force, timeout=timeout))

    def hand_over(
        self, group: str, node: str | int | None = None, *, timeout: float = promotion.TIMEOUT_S
    ) -> Promotion:
        """Change the master of a healthy group: to `node` (an address or a broker id), or to the
        slave that `brokerElectionPriority` prefers, or to the one that is furthest ahead.

        Nothing is forced, and no acknowledged message is lost: NoPermission says why no node hands
        over or takes over; then nothing has changed. The slave has `timeout` seconds to come near;
        the group takes no sends for two seconds at most. A cancelled call, or `close`, ends as soon
        as one of the two leads.
        """
        return self._wait(self._target.hand_over(group, node, timeout=timeout))

    def preview_hand_over(self, group: str, node: str | int | None = None) -> Replica:
        """The node that would take over."""
        return self._wait(self._target.preview_hand_over(group, node))

    def drain(self, node: str, *, timeout: float = promotion.TIMEOUT_S) -> list[Drained]:
        """Hand over each group that a node leads, so that it can be stopped: `node` is an address,
        a host (all brokers on it), or an id that only one broker has.

        NoPermission says why one of the groups cannot be handed over; then nothing has changed. A
        group that fails nevertheless, because a node ends or falls behind meanwhile, ends the
        drain: the groups before it stay handed over, and the error names them. `risk` says what
        the stop of the node costs nevertheless.
        """
        return self._wait(self._target.drain(node, timeout=timeout))

    def preview_drain(self, node: str) -> list[Drained]:
        """The changes that `drain` would make."""
        return self._wait(self._target.preview_drain(node))

    def broker_status(self, address: str) -> dict[str, str]:
        """The state that the broker at `address` reports, as mqadmin's brokerStatus shows it.

        `refusesWrites` says why it takes no sends, and is empty if it does or is a sound slave;
        `flushBehindMs` is the time for which the oldest message that is not on the disk has waited;
        `longestStopMs` is the longest time that its event loop stood still since the start,
        `longestBusyStopMs` the part of it that the loop computed.
        """
        return self._wait(self._target.broker_status(address))

    def broker_settings(self, address: str) -> dict[str, str]:
        """All settings of the broker at `address`, by RocketMQ's key; secrets are hidden."""
        return self._wait(self._target.broker_settings(address))

    def change_settings(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the broker at `address` until it stops, all or none. NoPermission: one
        of them is fixed while it runs. InvalidParameter: a value is out of its range.
        """
        self._wait(self._target.change_settings(address, settings))

    def producers(self) -> list[ConnectedProducer]:
        """The producers that are connected to any broker, each client of a group once. A client
        tells of itself with its heartbeats.
        """
        return self._wait(self._target.producers())

    def delete_expired(self, address: str) -> None:
        """Have the broker at `address` delete what its retention no longer keeps, whatever the
        hour.
        """
        self._wait(self._target.delete_expired(address))

    def delete_unused(self, address: str) -> None:
        """Have the broker at `address` delete the queues of topics that it has no more. Topics and
        their messages are deleted by `delete_topic`; this is for what is left of others.
        """
        self._wait(self._target.delete_unused(address))

    def probe(self, broker_name: str) -> SendProbe:
        """Send a message to the topic that the master with this name has for itself, and see how
        long the acknowledgement takes. The error that refuses it is raised.
        """
        return self._wait(self._target.probe(broker_name))

    def export(self) -> dict[str, Any]:
        """The cluster as it is configured, to be kept as JSON: `topics` and `groups` by broker name
        and name, as RocketMQ writes them, and `settings` by the address of each broker and
        nameserver. Secrets are hidden.
        """
        return self._wait(self._target.export())

    def nameserver_settings(self) -> dict[str, dict[str, str]]:
        """All settings of each nameserver, by its address and RocketMQ's key. A nameserver answers
        for RocketMQ's controller as well, with the same settings. If one does not answer, its error
        is raised when all were asked.
        """
        return self._wait(self._target.nameserver_settings())

    def change_nameserver_settings(self, settings: Mapping[str, str]) -> None:
        """Change settings of every nameserver until it stops. NoPermission: one of them is fixed
        while it runs. InvalidParameter: a value is out of its range. An error is raised when all
        were asked, and names those that failed.
        """
        self._wait(self._target.change_nameserver_settings(settings))

    def kv_config(self, namespace: str) -> dict[str, str]:
        """The entries in a namespace of the nameservers' key-value configuration; empty if there
        are none. Such a namespace has nothing to do with that of clients; the order of topics is
        in ORDER_TOPIC_CONFIG.
        """
        return self._wait(self._target.kv_config(namespace))

    def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        """Write an entry at every nameserver. An error names those that missed it."""
        self._wait(self._target.put_kv_config(namespace, key, value))

    def delete_kv_config(self, namespace: str, key: str) -> None:
        """Delete an entry at every nameserver. An error names those that missed it."""
        self._wait(self._target.delete_kv_config(namespace, key))

    def message_by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """The message that an offset message id (of a SendResult) names; asks the broker in it."""
        return self._wait(self._target.message_by_offset_id(offset_message_id))

    def find_message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """A message by its id: an offset message id, or with its topic its unique id."""
        return self._wait(self._target.find_message(message_id, topic))

    def find_by_id(self, message_id: str, topic: str | None = None) -> ReceivedMessage | None:
        """As `find_message`, but None when there is no such message. A broker that does not answer
        may have it, and a unique id without its topic names no broker: these are errors.
        """
        return self._wait(self._target.find_by_id(message_id, topic))

    def find_by_offset(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """The message at `offset` of `queue`; None when there is none."""
        return self._wait(self._target.find_by_offset(queue, offset))

    def queue_entries(
        self, queue: MessageQueue, offset: int = 0, count: int = RESULTS
    ) -> list[QueueEntry]:
        """At most `count` entries of `queue` from `offset` on, as its broker has them in its
        ConsumeQueue. InvalidParameter: the offset is outside the queue.
        """
        return self._wait(self._target.queue_entries(queue, offset, count))

    def find_by_key(
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
        return self._wait(
            self._target.find_by_key(topic, key, limit, begin_ms=begin_ms, end_ms=end_ms)
        )

    def find_by_time(
        self, topic: str, begin_ms: int, end_ms: int | None = None, limit: int = RESULTS
    ) -> list[ReceivedMessage]:
        """The oldest `limit` messages of a topic that were stored from `begin_ms` to `end_ms` (both
        inclusive; None is no bound), oldest first.
        """
        return self._wait(self._target.find_by_time(topic, begin_ms, end_ms, limit))

    def consume_message_directly(
        self, message: ReceivedMessage, group: str, client_id: str
    ) -> DirectConsumption:
        """Have a connected push consumer of the group consume a stored message now, whatever the
        group has consumed; its offsets do not change. SystemError_: it is not connected to the
        message's broker, or has no listener.
        """
        return self._wait(self._target.consume_message_directly(message, group, client_id))

    def message_trace(self, message_id: str, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """The records of a message, by its unique id, that clients with traces turned on have
        written, ours or Java's; oldest first. `topic`: the topic of the traces.
        """
        return self._wait(self._target.message_trace(message_id, topic))

    def dead_letters(
        self, group: str, begin_ms: int = 0, end_ms: int | None = None, limit: int = RESULTS
    ) -> list[ReceivedMessage]:
        """The oldest `limit` messages that a group has given up, of those given up from `begin_ms`
        to `end_ms` (both inclusive; None is no bound), oldest first.
        """
        return self._wait(self._target.dead_letters(group, begin_ms, end_ms, limit))

    def resend_dead_letters(
        self, group: str, ids: Sequence[str] | None = None, *, to_topic: bool = False
    ) -> int:
        """Let a group consume again what it has given up, or of that the messages with these ids.
        Returns the number of copies; the letters stay until they expire, and a message that was
        given up more than once is sent once. With `to_topic` every group of the original topic gets
        the copies; an ordered group, and one that only pops, needs that. A letter that is refused
        keeps no other from the group: the error at the end says how many were sent.
        """
        return self._wait(self._target.resend_dead_letters(group, ids, to_topic=to_topic))

    def create_user(self, name: str, password: str, *, kind: str = "Normal") -> list[str]:
        """Create a user. `kind` is "Normal", or "Super" for one who may do everything.
        NoPermission: there is another one of this name.
        """
        return self._wait(self._target.create_user(name, password, kind=kind))

    def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        kind: str | None = None,
        status: str | None = None,
    ) -> list[str]:
        """Change a user; what is None stays. `status` is "enable" or "disable". NoPermission: there
        is no such user.
        """
        return self._wait(
            self._target.update_user(name, password=password, kind=kind, status=status)
        )

    def delete_user(self, name: str) -> list[str]:
        """Delete a user and its rules, if there is one."""
        return self._wait(self._target.delete_user(name))

    def get_user(self, name: str) -> UserInfo | None:
        """A user, as one broker knows it; None if it does not."""
        return self._wait(self._target.get_user(name))

    def list_users(self, filter: str = "") -> list[UserInfo]:
        """The users whose names contain `filter`, as one broker knows them."""
        return self._wait(self._target.list_users(filter))

    def create_acl(
        self,
        subject: str,
        resources: Iterable[str],
        actions: Iterable[str],
        decision: str,
        source_ips: Iterable[str] = (),
    ) -> list[str]:
        """Give a user a rule for each resource, in place of the one that it has for it; other rules
        stay. NoPermission: there is no such user.

        subject: the user, by its name or as User:NAME
        resources: each "Topic:NAME", "Group:NAME" or "Cluster:NAME", a NAME that ends in * for all
            that begin so; or "*" for everything
        actions: of "All", "Pub", "Sub", "Create", "Update", "Delete", "Get" and "List"
        decision: "Allow" or "Deny"
        source_ips: addresses and networks of clients that the rule is for; empty for all
        """
        return self._wait(
            self._target.create_acl(subject, resources, actions, decision, source_ips)
        )

    update_acl = create_acl

    def delete_acl(
        self, subject: str, resource: str | None = None, policy_type: str | None = None
    ) -> list[str]:
        """Delete the rule of a user for a resource, in the policy "Custom" or "Default" (None is
        "Custom"); without a resource all its rules. NoPermission: it has none.
        """
        return self._wait(self._target.delete_acl(subject, resource, policy_type))

    def get_acl(self, subject: str) -> AclInfo | None:
        """The rules of a user, as one broker knows them; None if it has none."""
        return self._wait(self._target.get_acl(subject))

    def list_acls(self, subject: str = "", resource: str = "") -> list[AclInfo]:
        """The rules whose subject and resource contain these texts, as one broker knows them, by
        user.
        """
        return self._wait(self._target.list_acls(subject, resource))
