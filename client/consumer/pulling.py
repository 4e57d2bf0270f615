"""One pull: choose a replica, ask, decode, filter. Shared by the push and the pull consumer.

RocketMQ's rules (docs/internals/protocol.md 2.2, 6): the next pull of a queue goes to the broker id
that the last answer suggested; 19 and 20 move the offset without messages; 21 means the offset lies
outside the queue. Our additions: when a replica fails the next one is asked at once, and the failed
one is passed over for a few seconds; a slave can never move a reader backwards or past messages
that the master still has; a broker that answers in our own language is asked for up to 2048
messages and 1 MiB at once (ext `saturnLimits`) instead of RocketMQ's 32.

A damaged message must not end its queue (docs/guarantees.md I11): after an answer that fails its
checks messages are asked for one by one, of each replica in turn; a message that is damaged on all
of them is reported and passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked, kernels
from saturnmq.protocol.codes import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    RequestCode,
    ResponseCode,
)
from saturnmq.protocol.epochs import term_in
from saturnmq.protocol.inner_batch import unwrapped
from saturnmq.protocol.makes import is_ours
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.namespaces import NO_NAMESPACE, Namespace
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Subscription
from saturnmq.protocol.topics import RETRY_PREFIX
from saturnmq.runtime.errors import (
    MalformedFrame,
    RouteNotFound,
    SaturnError,
    SubscriptionNotExist,
)

log = logging.getLogger(__name__)

FOREIGN_COUNT, FOREIGN_BYTES = 32, 256 << 10
OWN_COUNT, OWN_BYTES = 2048, 2 << 20  # 2 MiB gave a tenth more messages of 1 KiB than 1 MiB
AVOID_S = 3.0
HOLD_S = 15.0
IDLE_PULLS = 100  # pulls a second, for a consumer of many queues without a given hold time
HOLD_MAX_S = 60.0  # brokers hold no longer
# A broker looks for expired long polls every 5 s only; the client must outwait that.
ANSWER_MARGIN_S = 10.0

FOUND = int(ResponseCode.SUCCESS)
OFFSET_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)
RETRY_AT_ONCE = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
PULL_CODES = frozenset(
    int(code)
    for code in (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)


@dataclass(slots=True)
class Pulled:
    """The result of one pull. `moved`: the offset asked for is not in the queue, start at
    `next_offset`; `by_order`: it moved because the group's offset was reset.
    """

    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    size: int = 0  # bytes
    moved: bool = False
    by_order: bool = False
    stalled: bool = False  # nothing moved, and the answer came at once: ask again a little later
    # The broker's report of its log (`term_in`); a reader that goes on from `next_offset` notes
    # it.
    term: dict[str, str] = field(default_factory=dict)

    @property
    def at_end(self) -> bool:
        """Whether nothing was behind these messages when the broker answered."""
        return self.next_offset >= self.max_offset

    def log_move(self, queue: MessageQueue, asked: int) -> None:
        """Log that the reader of `queue`, which asked for `asked`, goes on elsewhere."""
        log.warning(
            "offset %d of %s was reset or is outside the queue, continuing at %d",
            asked,
            queue,
            self.next_offset,
        )


@dataclass(slots=True)
class Careful:
    """The state of a queue that is read one message at a time after a damaged answer."""

    left: int  # at most so many messages are in front of the damaged one
    damaged_at: set[str] = field(default_factory=set)  # replicas whose copy is damaged


class Puller:
    """Pulls for one group; remembers for each queue which replica to ask."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        subscriptions: Mapping[str, Subscription],
        *,
        verify_crc: bool = True,
        hold_s: float | None = None,
        namespace: Namespace = NO_NAMESPACE,
        max_count: int = OWN_COUNT,
        max_bytes: int = OWN_BYTES,
    ) -> None:
        self._core = core
        self._group = group
        self._subscriptions = subscriptions
        self._verify_crc = verify_crc
        self._namespace = namespace
        self._hold_s = hold_s
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._suggested: dict[MessageQueue, int] = {}
        self._avoid: dict[str, float] = {}
        self._own: set[str] = set()
        self._careful: dict[MessageQueue, Careful] = {}
        self._asking: dict[MessageQueue, tuple[int, str]] = {}

    def _usual_hold(self) -> float:
        return min(max(HOLD_S, len(self._asking) / IDLE_PULLS), HOLD_MAX_S)

    def misplaced(self, queue: MessageQueue) -> bool:
        """Whether a pull under way waits for a broker whose role has changed."""
        if queue not in self._asking:
            return False
        broker_id, address = self._asking[queue]
        return self._core.routes.brokers().get(queue.broker_name, {}).get(broker_id) != address

    def choose(self, queue: MessageQueue) -> tuple[int, str]:
        """(broker id, address) to ask next: the suggested one, the master, any; failing ones
        last.
        """
        replicas = self._core.routes.brokers().get(queue.broker_name)
        if not replicas:
            self._core.refresh_soon(queue.topic)
            raise RouteNotFound(f"no broker {queue.broker_name} in the route of {queue.topic}")
        wanted = self._suggested.get(queue, 0)
        now = self._core.runtime.monotonic()
        order = sorted(replicas, key=lambda broker_id: (broker_id != wanted, broker_id))
        for broker_id in order:
            if self._avoid.get(replicas[broker_id], 0.0) <= now:
                return broker_id, replicas[broker_id]
        return order[0], replicas[order[0]]

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        commit_offset: int = -1,
        suspend_s: float | None = None,
        max_count: int | None = None,
    ) -> Pulled:
        """Pulls once from `offset`, waiting up to `suspend_s`, `hold_s` by default, for a first
        message."""
        if suspend_s is None:
            suspend_s = self._usual_hold() if self._hold_s is None else self._hold_s
        if queue in self._careful:
            max_count = 1
        while True:
            broker_id, address = self.choose(queue)
            ext = self._request(
                queue, offset, broker_id, address, commit_offset, suspend_s, max_count
            )
            request = Command.request(RequestCode.PULL_MESSAGE, ext)
            self._asking[queue] = broker_id, address
            try:
                answer = await self._core.invoke(
                    address, request, suspend_s + ANSWER_MARGIN_S, ok=PULL_CODES
                )
                pulled = self._read_header(queue, offset, answer)
                break
            except SaturnError as error:
                if isinstance(error, MalformedFrame):
                    log.warning("%s answers a pull of %s with nonsense: %s", address, queue, error)
                self._avoid[address] = self._core.runtime.monotonic() + AVOID_S
                self._suggested.pop(queue, None)
                self._core.refresh_soon(queue.topic)
                _, other = self.choose(queue)
                if self._avoid.get(other, 0.0) > self._core.runtime.monotonic():
                    raise
                log.info("pull of %s from %s failed, now from %s: %s", queue, address, other, error)
            finally:
                self._asking.pop(queue, None)
        try:
            pulled = self._read(queue, offset, broker_id, address, answer, pulled)
        except MalformedFrame as error:
            self._avoid[address] = self._core.runtime.monotonic() + AVOID_S
            return self._pass_damage(queue, offset, address, pulled.next_offset, error)
        if pulled.messages and pulled.next_offset <= pulled.messages[-1].queue_offset:
            self._avoid[address] = self._core.runtime.monotonic() + AVOID_S
            raise MalformedFrame(
                f"{address} says next offset {pulled.next_offset} after a message at "
                f"{pulled.messages[-1].queue_offset} of {queue}"
            )
        careful = self._careful.get(queue)
        if careful is not None and pulled.messages:
            careful.damaged_at.clear()
            careful.left -= 1
            if careful.left <= 0:
                del self._careful[queue]
        return pulled

    def _pass_damage(
        self, queue: MessageQueue, offset: int, address: str, behind: int, error: MalformedFrame
    ) -> Pulled:
        """Ask again, one by one, or skip a message that no replica has whole."""
        nothing = Pulled([], offset, stalled=True)
        careful = self._careful.get(queue)
        if careful is None:
            log.warning("%s answered with damage in %s from %d: %s", address, queue, offset, error)
            self._careful[queue] = Careful(self._max_count)
            return nothing
        careful.damaged_at.add(address)
        replicas = self._core.routes.brokers().get(queue.broker_name)
        if not replicas or not careful.damaged_at.issuperset(replicas.values()):
            return nothing
        log.error(
            "the message at %d of %s is damaged on every broker that has it and is passed over: %s",
            offset,
            queue,
            error,
        )
        careful.damaged_at.clear()
        careful.left = min(careful.left, 1)  # the next whole message ends the careful reading
        return Pulled([], max(behind, offset + 1))

    def _request(
        self,
        queue: MessageQueue,
        offset: int,
        broker_id: int,
        address: str,
        commit_offset: int,
        suspend_s: float,
        max_count: int | None,
    ) -> dict[str, str]:
        subscription = self._subscription(queue)
        flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_s > 0 else 0)
        if commit_offset >= 0 and broker_id == 0:
            flags |= PULL_COMMIT_OFFSET
        own = address in self._own
        count = min(self._max_count, OWN_COUNT if own else FOREIGN_COUNT)
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count if max_count is None else min(count, max_count)),
            "sysFlag": str(flags),
            "commitOffset": str(max(0, commit_offset)),
            "suspendTimeoutMillis": str(int(suspend_s * 1000)),
            "subscription": subscription.expression,
            "subVersion": str(subscription.sub_version),
            "expressionType": subscription.expression_type,
            "maxMsgBytes": str(min(self._max_bytes, OWN_BYTES if own else FOREIGN_BYTES)),
            "bname": queue.broker_name,
        }
        if own:
            ext["saturnLimits"] = "true"
        return ext | self._core.terms.get((self._group, queue), {})

    def _read_header(self, queue: MessageQueue, offset: int, answer: Command) -> Pulled:
        """The answer without its messages. A MalformedFrame is the fault of the replica, not of the
        messages."""
        ext = answer.ext
        pulled = Pulled(
            [],
            checked.integer(ext, "nextBeginOffset", None if answer.code == FOUND else offset),
            checked.integer(ext, "minOffset", 0),
            checked.integer(ext, "maxOffset", 0),
            len(answer.body),
            term=term_in(answer),
        )
        self._suggested[queue] = checked.integer(ext, "suggestWhichBrokerId", 0)
        return pulled

    def _read(
        self,
        queue: MessageQueue,
        offset: int,
        broker_id: int,
        address: str,
        answer: Command,
        pulled: Pulled,
    ) -> Pulled:
        if is_ours(answer):
            self._own.add(address)
        else:
            self._own.discard(address)
        if broker_id != 0 and self._slave_misleads(queue, offset, pulled):
            self._avoid[address] = self._core.runtime.monotonic() + AVOID_S
            return Pulled([], offset, stalled=True)
        if broker_id != 0 and pulled.min_offset > offset:  # no master has the rest
            pulled.next_offset = max(pulled.next_offset, pulled.min_offset)
        if answer.code == RETRY_AT_ONCE:
            pulled.stalled = pulled.next_offset == offset
            if pulled.stalled:  # its report about its log does not apply to this offset
                pulled.term = {}
        elif answer.code == OFFSET_MOVED:
            pulled.moved, pulled.by_order = True, answer.remark == "OFFSET_RESET"
        elif answer.code == FOUND:
            pulled.messages = self._decode(queue, offset, answer.body)
        return pulled

    def _slave_misleads(self, queue: MessageQueue, offset: int, pulled: Pulled) -> bool:
        # A slave that lags answers from a shorter queue, one that started late from a younger one.
        # It either says where to go on, or, by RocketMQ's default, only what it has.
        if min(pulled.next_offset, pulled.max_offset) < offset:
            return True
        master = self._core.broker_address(queue.broker_name)
        return pulled.min_offset > offset and master is not None

    def _subscription(self, queue: MessageQueue) -> Subscription:
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:  # its topic was left, and the next rebalance gives it up
            raise SubscriptionNotExist(f"topic {queue.topic} is not subscribed any more")
        return subscription

    def _decode(
        self, queue: MessageQueue, offset: int, body: bytes | bytearray | memoryview
    ) -> list[ReceivedMessage]:
        # The broker filters by a 32-bit hash: other tags may slip through.
        how = self._verify_crc, queue.broker_name, self._subscription(queue).tags
        messages = kernels.decode_plain(body, *how)
        if messages is None:
            messages = kernels.decode_frames(unwrapped(body, offset), *how)
        if queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.topic = message.properties.get("RETRY_TOPIC") or message.topic
        if self._namespace.name:
            for message in messages:
                message.topic = self._namespace.plain(message.topic)
        return messages
