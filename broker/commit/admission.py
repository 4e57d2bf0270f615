"""Whether a message is taken, and into which queue of which topic.

Checks come in RocketMQ's order (docs/internals/protocol.md 2.1): order topic on an unwriteable
broker 16, bad name 29, a topic only the broker writes 16, unknown and not creatable 17, queue id
out of range 29. The topic's own write bit is not looked at: clients do that, through the route.
"""

from __future__ import annotations

from saturnmq.broker.context import REJECTED, Context, check_permission
from saturnmq.broker.tables.attributes import check_kept
from saturnmq.broker.tables.topics import WRITE, Topic
from saturnmq.protocol.ids import encode_address
from saturnmq.protocol.topics import NOT_SENDABLE, RETRY_PREFIX, REVIVE_PREFIX, check_topic
from saturnmq.runtime.errors import (
    GroupNotExist,
    InSyncReplicasNotEnough,
    InvalidParameter,
    NoPermission,
    SystemBusy,
    TopicNotExist,
)

HOSTS_MOST = 10_000


class Admission:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._hosts: dict[str, bytes] = {}

    def check_leads(self) -> None:
        """Check that this node is the master. SystemBusy says why it takes no messages."""
        c = self._c
        if refusal := c.role.refuses(c.runtime.monotonic()) or c.unelected():
            raise SystemBusy(f"{REJECTED}{refusal}; send to the master")

    def check_ready(self) -> None:
        """Check that this node takes messages now; a SaturnError says why it does not."""
        c = self._c
        self.check_leads()
        if c.role.required > 1 and c.copies_in_sync() < c.config.min_in_sync_replicas:
            raise InSyncReplicasNotEnough(
                f"[IN_SYNC_REPLICAS_NOT_ENOUGH]{c.copies_in_sync()} copies are in sync, "
                f"minInSyncReplicas is {c.config.min_in_sync_replicas}: nothing was stored"
            )
        if c.ledger.full:
            raise SystemBusy(
                f"[OVERLOAD]system busy, start flow control for a while: {len(c.ledger)} sends "
                f"wait for their ack, the limit (maxPendingAcks) is {c.ledger.limit}"
            )

    def checked_queue(
        self, name: str, queue_id: int, default_topic: str = "", default_queues: int = 4
    ) -> tuple[Topic, int]:
        """The addressed queue (a negative id: any), with its topic, which is created if allowed; a
        SaturnError says why there is none."""
        c = self._c
        topic = c.topics.get(name)
        if topic is None:
            check_topic(name)
        if topic is not None and topic.order:
            check_permission(c, WRITE, "sending")
        if name in NOT_SENDABLE or name.startswith(REVIVE_PREFIX):
            raise NoPermission(f"topic {name} is written by the broker only")
        if topic is None:
            topic = self._create(name, default_topic, default_queues)
        elif topic.attributes:
            check_kept(name, topic.attributes)
        if queue_id < 0:
            queue_id = c.runtime.random.randrange(max(topic.write_queues, 1))
        if queue_id >= topic.queues:
            raise InvalidParameter(
                f"queue id {queue_id} of topic {name} is out of range; it has {topic.queues} "
                "queues, ask the nameserver for its route"
            )
        return topic, queue_id

    def _create(self, name: str, default_topic: str, default_queues: int) -> Topic:
        c = self._c
        if name.startswith(RETRY_PREFIX):
            group = c.groups.get_or_create(name.removeprefix(RETRY_PREFIX))
            if group is None:
                raise GroupNotExist(f"group {name.removeprefix(RETRY_PREFIX)} does not exist")
            return c.topics.ensure(name, max(group.retry_queues, 1))
        created = None
        if c.config.auto_create_topics:
            created = c.topics.auto_create(name, default_topic, default_queues)
        if created is None:
            raise TopicNotExist(
                f"topic[{name}] not exist, apply first please! (create it with `saturnmq topic "
                f"create {name}`)"
            )
        return created

    def born_host(self, address: str) -> bytes:
        """The sender's address as a frame stores it; senders are few and send often."""
        found = self._hosts.get(address)
        if found is None:
            if len(self._hosts) > HOSTS_MOST:
                self._hosts.clear()
            try:
                found = encode_address(address)
            except ValueError:  # a peer without an IP address (a simulated one, a proxy)
                found = bytes(8)
            self._hosts[address] = found
        return found
