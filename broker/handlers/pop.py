"""Pop over Remoting: POP_MESSAGE, PEEK_MESSAGE, NOTIFICATION and POLLING_INFO
(docs/internals/protocol.md 2.10). Acknowledgements: `pop_acks.py`.

The service (`broker/pop/service.py`) decides; this module checks requests, waits for messages, and
writes answers as RocketMQ does. A pop that finds nothing is held under (topic, group) until a
message becomes visible in the topic, a message is to be given out again, or its time ends. Queues
are looked at in steps if they are many, or if a condition must be evaluated. If something comes
meanwhile they are looked at again, for it may be in a queue that was looked at before.

| answer | when |
|---|---|
| 0 | messages; NOTIFICATION: always |
| 209 | too many requests wait (maxPopPollingSize) |
| 210 | nothing came in time, or `pollTime` is 0 |
| 2 | this node is no master, or has not read yet which messages are out |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from saturnmq.broker.commit.acknowledgement import Acknowledgement
from saturnmq.broker.commit.admission import Admission
from saturnmq.broker.context import (
    REJECTED,
    Context,
    answer,
    answer_failure,
    cached,
    check_permission,
)
from saturnmq.broker.handlers.arrival_notes import ArrivalNotes
from saturnmq.broker.handlers.held_pulls import HeldPulls
from saturnmq.broker.handlers.subscriptions import check_enabled, reading_group
from saturnmq.broker.pop.orders import PopOrder, Popped
from saturnmq.broker.pop.service import PopService
from saturnmq.broker.tables.topics import READ
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.pop_handle import ORDERED, kind_of, topic_of_kind
from saturnmq.protocol.pop_headers import (
    EndPollHeader,
    NotificationHeader,
    PeekHeader,
    PollingInfoHeader,
    PopHeader,
)
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Subscription
from saturnmq.runtime.errors import (
    InvalidParameter,
    SaturnError,
    SystemBusy,
)
from saturnmq.store.message_store import Arrival

BATCH_MAX = 32  # messages of one pop, as in RocketMQ
HOLD_MAX_MS = 60_000
HELD_BYTES = 2000  # of a request that waits
LOOKED_AT = 64  # queues in one turn of the loop: about half a millisecond
TRIED = 32  # held requests in one turn

Places = Sequence[tuple[str, int]]
NAME = "held-pops"  # of their tasks
Trying = Generator[None, None, None]
"""Looks at held requests; yields between two turns of the loop."""


@dataclass(slots=True, eq=False)
class HeldPop:
    """A POP_MESSAGE, or a NOTIFICATION, that waits."""

    endpoint: Endpoint
    request: Command
    order: PopOrder
    poll_ms: int
    only_tells: bool  # a NOTIFICATION
    done: bool = False
    due: int = 0
    missed: bool = False  # something came while it was looked for in steps

    @property
    def queue(self) -> tuple[str, str]:
        return self.order.topic, self.order.group

    @property
    def size(self) -> int:
        return HELD_BYTES

    @property
    def wants_all(self) -> bool:
        """Whether it finds nothing only if no other consumer of its group does."""
        order = self.order
        return order.queue_id < 0 and order.codes is None and order.sql is None


class PopRequests:
    def __init__(
        self,
        context: Context,
        service: PopService,
        admission: Admission,
        acknowledgement: Acknowledgement,
    ) -> None:
        self._c = context
        self._runtime = context.runtime
        self._steps = context.steps
        self._service = service
        self._admission = admission
        self._acknowledgement = acknowledgement
        self.held: HeldPulls[HeldPop] = HeldPulls(context.config.max_held_pops)
        self._groups: dict[str, dict[str, None]] = {}  # that wait for a topic, or did
        self._arrived: ArrivalNotes[str] = ArrivalNotes()  # topics
        self._missed: dict[tuple[str, str], None] = {}  # woken while nobody could look
        self._looking: dict[tuple[str, str], dict[HeldPop, None]] = {}  # in steps
        self._serving: set[tuple[str, str]] = set()  # those whose held requests are being tried
        service.on_ready = self._ready
        service.on_end = self._refuse_all

    # pops

    def on_pop(self, endpoint: Endpoint, request: Command, header: PopHeader) -> None:
        request.body = b""
        if header.max_messages > BATCH_MAX or header.max_messages < 1:
            raise InvalidParameter(
                f"maxMsgNums is {header.max_messages}: one pop gets 1 to {BATCH_MAX} messages"
            )
        self._check(header.group, header.topic)
        check_enabled(self._c, header.expression_type)
        selected = Subscription.parse(
            header.topic, header.subscription or None, 0, header.expression_type
        )
        order = PopOrder(
            header.group,
            header.topic,
            header.queue_id,
            header.max_messages,
            header.invisible_ms,
            header.init_mode == 1,
            header.ordered,
            header.attempt_id,
            selected.filter_codes,
            selected.sql,
        )
        self._begin(HeldPop(endpoint, request, order, header.poll_ms, only_tells=False))

    def on_notification(
        self, endpoint: Endpoint, request: Command, header: NotificationHeader
    ) -> None:
        request.body = b""
        self._check(header.group, header.topic)
        order = PopOrder(
            header.group,
            header.topic,
            header.queue_id,
            ordered=header.ordered,
            attempt_id=header.attempt_id,
        )
        self._begin(HeldPop(endpoint, request, order, header.poll_ms, only_tells=True))

    def on_peek(self, endpoint: Endpoint, request: Command, header: PeekHeader) -> None:
        self._check(header.group, header.topic)
        most = max(1, min(header.max_messages, BATCH_MAX))
        order = PopOrder(header.group, header.topic, header.queue_id, most)
        frames, rest = b"", 0
        for topic, queue_id in list(self._service.queues(order))[:LOOKED_AT]:
            result = self._service.peek(order, topic, queue_id)
            rest += max(0, result.max_offset - result.next_begin_offset)
            if result.count and not frames:
                frames = result.data
        ext = {"popTime": str(self._runtime.now_ms()), "invisibleTime": "0", "reviveQid": "0"}
        code = ResponseCode.SUCCESS if frames else ResponseCode.PULL_NOT_FOUND
        remark = "FOUND" if frames else "NO_MESSAGE_IN_QUEUE"
        reply = request.reply(code, remark, {**ext, "restNum": str(rest)}, frames)
        answer(endpoint, request, reply)

    def on_polling_info(
        self, endpoint: Endpoint, request: Command, header: PollingInfoHeader
    ) -> None:
        waiting = self.held.by_queue.get((header.topic, header.group), {})
        number = sum(held.order.queue_id == header.queue_id for held in waiting)
        answer(endpoint, request, request.reply(0, ext={"pollingNum": str(number)}))

    def on_end_poll(self, endpoint: Endpoint, request: Command, header: EndPollHeader) -> None:
        """Answer a pop that waits: its consumer has gone, though not the connection."""
        held = self.dropped(endpoint, header.opaque)
        if held is not None:
            self._nothing(held, ResponseCode.POLLING_TIMEOUT)
        answer(endpoint, request, request.reply(0))

    def _check(self, group_name: str, topic_name: str) -> None:
        """Check that this node serves pops now, and that this group may read this topic."""
        c = self._c
        self._admission.check_ready()
        self._service.check_serves()
        check_permission(c, READ, "popping")
        c.topics.readable(topic_name)
        reading_group(c, group_name, topic_name)

    def _begin(self, held: HeldPop) -> None:
        held.poll_ms = min(held.poll_ms, HOLD_MAX_MS)  # in all, however often it is looked at
        places = list(self._service.queues(held.order))
        if held.order.sql is None and len(places) <= LOOKED_AT:
            if not self._try(held, places):
                self._hold(held)
            return
        self._begin_in_steps(held, places)

    def _begin_in_steps(self, held: HeldPop, places: Places) -> None:
        self._note_group(held)
        self._looking.setdefault(held.queue, {})[held] = None
        self._later(held, self._begin_later(held, places))

    async def _begin_later(self, held: HeldPop, places: Places) -> None:
        until = self._runtime.monotonic() + held.poll_ms / 1000
        try:
            while not await self._try_in_steps(held, places):
                held.poll_ms = int((until - self._runtime.monotonic()) * 1000)
                if held.done:
                    return
                if not held.missed or held.poll_ms <= 0:
                    self._hold(held)
                    return
                held.missed = False
        finally:
            looking = self._looking[held.queue]
            del looking[held]
            if not looking:
                del self._looking[held.queue]

    def _later(self, held: HeldPop, work: Any) -> None:
        answered = answer_failure(self._c, held.endpoint, held.request, work)
        self._runtime.spawn(answered, name="pop")

    def _try(self, held: HeldPop, places: Places) -> bool:
        """Answer if there are messages in these queues."""
        popped = self._service.begin()
        found = self._look(held, popped, places)
        if found:
            self._reply(held, popped)
        return found

    async def _try_in_steps(self, held: HeldPop, places: Places) -> bool:
        popped = self._service.begin()
        size = 1 if held.order.sql is not None else LOOKED_AT
        for start in range(0, len(places), size):
            await self._steps.next()
            if held.endpoint.closed or held.done:
                return False
            self._service.check_serves()
            if not self._service.serves:
                self._missed[held.queue] = None
            elif self._look(held, popped, places[start : start + size]):
                self._reply(held, popped)
                return True
        return False

    def _look(self, held: HeldPop, popped: Popped, places: Places) -> bool:
        order = held.order
        if held.only_tells:
            found = any(self._service.has_messages(order, *place) for place in places)
            if found:
                self._tell(held, found=True)
            return found
        for place in places:
            try:
                self._service.look(order, popped, *place)
            except SaturnError:
                if not popped.count:
                    raise
                break  # the others come with the next pop
            if popped.count >= order.most:
                break
        return popped.count > 0

    # waiting

    def _hold(self, held: HeldPop) -> None:
        if held.endpoint.closed:
            return
        if held.poll_ms <= 0:
            self._nothing(held, ResponseCode.POLLING_TIMEOUT)
            return
        if len(self.held) >= self.held.limit:
            other = self.held.to_give_way(held.endpoint)
            if other is None:
                self._nothing(held, ResponseCode.POLLING_FULL)
                return
            self.held.forget(other)
            self._nothing(other, ResponseCode.POLLING_FULL)
        self.held.add(held, self._runtime.monotonic() + held.poll_ms / 1000)
        self._note_group(held)

    def _note_group(self, held: HeldPop) -> None:
        self._groups.setdefault(held.order.topic, {})[held.order.group] = None

    @property
    def waits(self) -> bool:
        """Whether a request waits for messages, or is being looked for in steps."""
        return self.held.count > 0 or bool(self._looking)

    def dropped(self, endpoint: Endpoint, opaque: int) -> HeldPop | None:
        """Forget a request whose answer nobody waits for any more; None if it waits for nothing,
        so that its answer comes."""
        if (found := self.held.dropped(endpoint, opaque)) is not None:
            return found
        for held in (held for each in self._looking.values() for held in each):
            if held.endpoint is endpoint and held.request.opaque == opaque and not held.done:
                held.done = True
                return held
        return None

    def closed(self, endpoint: Endpoint) -> None:
        """Forget the requests of a closed connection."""
        waiting = self.held.of(endpoint)
        if waiting:
            self._steps.start(self.held.forget_all(waiting), NAME)

    def arrived(self, dispatched: int, arrivals: Iterable[Arrival]) -> None:
        """Note the topics with new entries up to `dispatched`; see `PullService.arrived`."""
        if not self.waits and dispatched <= self._c.visible:
            return
        self._arrived.add(dispatched, {arrival.topic: None for arrival in arrivals})

    def wake(self) -> None:
        """Answer requests whose messages became visible."""
        if not self._arrived:
            return
        for topic in self._arrived.take(self._c.visible):
            for group in list(self._groups.get(topic, ())):
                self._wake(topic, group)

    def wake_all(self) -> None:
        """Look at every held request again."""
        for topic, groups in list(self._groups.items()):
            for group in list(groups):
                self._wake(topic, group)

    def _ready(self, group: str, topic: str) -> None:
        """Messages of a lane are to be given out again; the topic may be one of retries."""
        if kind_of(topic):
            topic = topic[len(topic_of_kind("", group, kind_of(topic))) :]
        self._wake(topic, group)

    def _wake(self, topic: str, group: str) -> None:
        key = topic, group
        looking = self._looking.get(key, {})
        for held in looking:
            held.missed = True
        if key in self._serving:
            self._missed[key] = None
            return
        if not self.held.by_queue.get(key):
            if looking:
                return
            groups = self._groups.get(topic, {})
            groups.pop(group, None)
            if not groups:
                self._groups.pop(topic, None)
            return
        if not self._service.serves:
            self._missed[key] = None
            return
        self._steps.start(self._serve(key), NAME)

    def _serve(self, key: tuple[str, str]) -> Trying:
        """Try the requests that wait for a topic in a group's name, each once, or until one finds
        nothing that would have got anything."""
        waiting = deque(self.held.take_queue(key) or ())
        tried = failed = 0
        self._serving.add(key)
        try:
            while waiting:
                held = waiting.popleft()
                if held.done or held.endpoint.closed:
                    self.held.forget(held)
                    continue
                if not self._service.serves:
                    waiting.appendleft(held)
                    self._missed[key] = None
                    return
                tried += 1
                if self._retry(held):
                    self.held.forget(held)
                else:
                    waiting.append(held)
                    failed += 1
                    if held.wants_all or failed >= len(waiting):
                        return
                if not tried % TRIED:
                    yield
        finally:
            self._serving.discard(key)
            for held in waiting:
                if not held.done:
                    self.held.put_back(held)

    def _retry(self, held: HeldPop) -> bool:
        """Try a request that was held; whether it was answered, or is being tried in steps."""
        try:
            places = list(self._service.queues(held.order))
            if held.order.sql is None and len(places) <= LOOKED_AT:
                return self._try(held, places)
        except SaturnError as error:
            reply = held.request.reply(error.code, str(error))
            answer(held.endpoint, held.request, reply)
            return True
        rest_ms = int((held.due / 100 - self._runtime.monotonic()) * 1000)
        again = HeldPop(held.endpoint, held.request, held.order, max(1, rest_ms), held.only_tells)
        self._begin_in_steps(again, places)
        return True

    def expire(self, now: float) -> None:
        """Answer the requests whose time is over."""
        missed, self._missed = self._missed, {}
        for topic, group in missed:
            self._wake(topic, group)
        for held in iter(partial(self.held.take_due, now), None):
            if not held.endpoint.closed:
                self._nothing(held, ResponseCode.POLLING_TIMEOUT)

    def _refuse_all(self) -> None:
        """Answer all that wait: this node serves no pops any more."""
        for held in list(self.held.take_all()):
            self.held.forget(held)
            if not held.endpoint.closed:
                busy = SystemBusy(f"{REJECTED}this node is no master any more; ask the master")
                answer(held.endpoint, held.request, held.request.reply(busy.code, str(busy)))

    # answers

    def _tell(self, held: HeldPop, *, found: bool, full: bool = False) -> None:
        ext = {"hasMsg": str(found).lower(), "pollingFull": str(full).lower()}
        answer(held.endpoint, held.request, held.request.reply(0, ext=ext))

    def _nothing(self, held: HeldPop, code: int) -> None:
        if held.only_tells:
            self._tell(held, found=False, full=code == ResponseCode.POLLING_FULL)
            return
        order = held.order
        self._c.statistics.pulled(order.group, order.topic, 0)
        ext = self._fields(order, self._runtime.now_ms(), 0)
        answer(held.endpoint, held.request, held.request.reply(code, "NO_MESSAGE_IN_QUEUE", ext))

    @staticmethod
    def _fields(order: PopOrder, pop_ms: int, rest: int) -> dict[str, str]:
        return {
            "popTime": str(pop_ms),
            "invisibleTime": str(order.invisible_ms),
            "reviveQid": str(ORDERED if order.ordered else 0),
            "restNum": str(rest),
        }

    def _reply(self, held: HeldPop, popped: Popped) -> None:
        if held.only_tells:
            return
        readings = [
            reading
            for run in popped.runs
            for result in run.results
            if (reading := cached(self._c, result)) is not None
        ]
        if not readings:
            self._reply_now(held, popped)
            return

        async def reply() -> None:
            for reading in readings:
                await reading
            self._reply_now(held, popped)

        self._later(held, reply())

    def _reply_now(self, held: HeldPop, popped: Popped) -> None:
        starts, offsets, counts, frames = [], [], [], []
        for queue in popped.by_queue():
            name = f"{kind_of(queue.topic)} {queue.queue_id}"
            starts.append(f"{name} {queue.offsets[0]}")
            offsets.append(f"{name} {','.join(map(str, queue.offsets))}")
            frames.append(queue.frames)
            if held.order.ordered:
                counts += [
                    f"{kind_of(queue.topic)} qo{queue.queue_id}%{offset} {attempts}"
                    for offset, attempts in zip(queue.offsets, queue.attempts, strict=True)
                    if attempts
                ]
                counts.append(f"{name} {min(queue.attempts)}")
        ext = self._fields(held.order, popped.pop_ms, popped.rest)
        ext |= {"startOffsetInfo": ";".join(starts), "msgOffsetInfo": ";".join(offsets)}
        if counts:
            ext["orderCountInfo"] = ";".join(counts)
        reply = held.request.reply(0, "FOUND", ext, b"".join(frames))
        self._acknowledgement.answer_at(held.endpoint, reply, popped.end)
