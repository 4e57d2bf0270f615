"""Pulls and long polling: PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361.

A pull reads at the requested offset and is answered with raw CommitLog frames. If there is nothing
yet and the consumer allows it, the request is held under (topic, queue) until a message becomes
*visible* there (dispatched and below the visible watermark, invariant I9), or its time ends.
If its filter drops all messages, a held request remembers how far it has looked, and is answered
with that position within `PROGRESS_S`: its group's offset must follow, but not message by message.
A request that reads by its group's subscription begins anew if a heartbeat has changed that. A read
with an SQL92 condition may end before the queue does, without a message (20). The client asks
again, and other requests come in between; one turn of the loop does only one such read. A held
request costs one small object; those of a closed connection go when they are looked at. If a
message may be for many requests, or many end at one time, the loop looks at some of them in each
turn.

Each answer of a read has suggestWhichBrokerId, nextBeginOffset, minOffset and maxOffset: a Java
client fails without any of the four.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from functools import partial

from saturnmq.broker.context import (
    REJECTED,
    Context,
    answer,
    answer_failure,
    cached,
    check_permission,
)
from saturnmq.broker.handlers.arrival_notes import ArrivalNotes
from saturnmq.broker.handlers.held_pulls import HeldPull, HeldPulls
from saturnmq.broker.handlers.queue_facts import QueueFacts
from saturnmq.broker.handlers.subscriptions import (
    is_long,
    of_group,
    of_request,
    read_ahead,
    reading_group,
)
from saturnmq.broker.tables.clients import BROADCASTING
from saturnmq.broker.tables.lost_offsets import commit, lost_from, moves_of, term_of
from saturnmq.broker.tables.subscription_groups import SubscriptionGroup
from saturnmq.broker.tables.topics import READ, Topic
from saturnmq.protocol import headers
from saturnmq.protocol.codes import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    ResponseCode,
)
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import NoPermission, SaturnError, SystemBusy, TopicNotExist
from saturnmq.store.message_store import Arrival, GetResult

PROGRESS_S = 0.3  # a pull is held no longer than this once its filter has dropped messages
HOLD_MAX_S = 60.0
BATCH_MAX = 32_768  # messages one pull may ask for
BYTES_MAX = 8 << 20  # of one answer; the frame limit of a connection is 16 MiB
JAVA_BATCH = 32  # the most that RocketMQ itself returns from memory
LOOKED_AT = 32  # held pulls in one turn: half a millisecond
SQL_WEIGHT = 16  # a pull with a condition takes as long as this many others at most

CODES = {
    "FOUND": ResponseCode.SUCCESS,
    "NO_MATCHED_MESSAGE": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "MESSAGE_WAS_REMOVING": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "OFFSET_FOUND_NULL": ResponseCode.PULL_NOT_FOUND,
    "OFFSET_OVERFLOW_ONE": ResponseCode.PULL_NOT_FOUND,
    "NO_MESSAGE_IN_QUEUE": ResponseCode.PULL_OFFSET_MOVED,  # 19 if offset 0 was asked for
    "NO_MATCHED_LOGIC_QUEUE": ResponseCode.PULL_OFFSET_MOVED,
    "OFFSET_TOO_SMALL": ResponseCode.PULL_OFFSET_MOVED,
    "OFFSET_OVERFLOW_BADLY": ResponseCode.PULL_OFFSET_MOVED,
}


NAME = "held-pulls"  # of their tasks
Looking = Generator[None, None, None]
"""Looks at held pulls; yields between two turns of the loop."""


class PullService:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._facts = QueueFacts(context)
        self._role = context.role
        self._runtime = context.runtime
        self._steps = context.steps
        self.held: HeldPulls[HeldPull] = HeldPulls(context.config.max_held_pulls)
        self._arrived: ArrivalNotes[tuple[str, int]] = ArrivalNotes()  # queues
        self._expiring: asyncio.Task[None] | None = None

    def on_pull(self, endpoint: Endpoint, request: Command, header: headers.PullHeader) -> None:
        request.body = b""  # the request may outlive the read buffer
        if not is_long(header):
            self._take(endpoint, request, header)
            return

        async def take() -> None:
            await read_ahead(self._c, header)
            self._take(endpoint, request, header)

        self._answer_later(endpoint, request, take())

    def _answer_later(
        self, endpoint: Endpoint, request: Command, work: Coroutine[None, None, None]
    ) -> None:
        answered = answer_failure(self._c, endpoint, request, work)
        self._runtime.spawn(answered, name="pull")

    def _take(self, endpoint: Endpoint, request: Command, header: headers.PullHeader) -> None:
        c = self._c
        if c.role.is_slave and not c.config.slave_read:
            raise SystemBusy(f"{REJECTED}this slave serves no pulls (slaveReadEnable=false)")
        flags, queue_id = header.sys_flag, header.queue_id
        group, topic = self._checked(header.group, header.topic, queue_id)
        if flags & PULL_SUBSCRIPTION:
            subscription = of_request(c, header.topic, header)
        else:
            subscription = of_group(c, header.group, header.topic, header.sub_version)
        if flags & PULL_COMMIT_OFFSET and not c.role.is_slave and header.commit_offset >= 0:
            place = header.group, header.topic, queue_id
            commit(c, header, place, header.commit_offset)
        c.pull_offsets.note(header.group, topic.name, queue_id, header.queue_offset)
        pull = HeldPull(
            endpoint,
            request,
            header,
            topic.name,
            queue_id,
            header.queue_offset,
            max(1, min(header.max_messages, BATCH_MAX)),
            max(1, min(header.max_bytes, BYTES_MAX)),
            subscription.filter_codes,
            subscription.sql,
            group,
        )
        if pull.sql is None or c.steps.take():
            self._begin(pull)
        else:
            self._answer_later(endpoint, request, self._begin_later(pull))

    async def _begin_later(self, pull: HeldPull) -> None:
        await self._steps.next()
        if not pull.endpoint.closed:
            self._begin(pull)

    def _begin(self, pull: HeldPull) -> None:
        if self._was_moved(pull):
            return
        suspends = pull.header.sys_flag & PULL_SUSPEND
        if suspends and pull.offset == self._c.store.max_offset(pull.topic, pull.queue_id):
            self._hold(pull, pull.header.suspend_ms / 1000)  # the usual case: it has read all
            return
        result, code = self._read(pull)
        if suspends and self._worth_holding(result, code):
            self._hold(pull, pull.header.suspend_ms / 1000)
            self._look_on(pull, result)
            return
        self._reply_result(pull, result, code)

    def _was_moved(self, pull: HeldPull) -> bool:
        """Answer with another offset, if there is one: the offset of a reset that the group has not
        heard of yet (only the master answers so, because commits arrive there and are ignored until
        then; a slave sends the member there), or the place up to which the queue's messages were
        lost."""
        header, moved, offsets = pull.header, None, self._c.offsets
        place = header.group, pull.topic, pull.queue_id
        code, why = ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET"
        if not self._role.is_slave:
            moved = offsets.move_for(*place, pull.offset, header.moves)
        elif offsets.has_missed(*place, header.moves):
            code, why = ResponseCode.PULL_RETRY_IMMEDIATELY, "the master tells another offset"
            moved = pull.offset
        if moved is None:
            why = "OFFSET_LOST"
            moved = lost_from(self._c, header, pull.topic, pull.queue_id, pull.offset)
        if moved is None:
            return False
        low, high = self._facts.bounds(pull.topic, pull.queue_id)
        self._reply(pull, code, why, moved, low, high, slow=False)
        return True

    def _checked(
        self, group_name: str, topic_name: str, queue_id: int
    ) -> tuple[SubscriptionGroup, Topic]:
        c = self._c
        check_permission(c, READ, "pulling")
        group = reading_group(c, group_name, topic_name)
        online = c.clients.consumer_group(group_name)
        if online and online.message_model == BROADCASTING and not group.broadcast_enable:
            raise NoPermission(f"subscription group [{group_name}] may not broadcast")
        return group, c.topics.readable(topic_name, queue_id)

    def _read(self, pull: HeldPull) -> tuple[GetResult, int]:
        result = self._c.store.get_message(
            pull.topic,
            pull.queue_id,
            pull.offset,
            pull.max_count,
            pull.max_bytes,
            pull.codes,
            self._c.visible,
            override_limits=pull.max_count > JAVA_BATCH,
            correct=self._corrects,
            sql=pull.sql,
        )
        code = CODES[result.status]
        if result.status in ("NO_MESSAGE_IN_QUEUE", "NO_MATCHED_LOGIC_QUEUE") and pull.offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        if code == ResponseCode.PULL_OFFSET_MOVED and self._role.lacks:
            code = ResponseCode.PULL_NOT_FOUND  # the messages that were there come back
        elif code == ResponseCode.PULL_OFFSET_MOVED and not self._corrects:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY  # a slave may lag: its consumer stays
        return result, code

    @property
    def _corrects(self) -> bool:
        """Whether this node corrects a pull outside of a queue's offsets: not if it has lost a part
        of its log."""
        c = self._c
        return not c.role.lacks and (not c.role.is_slave or c.config.offset_check_in_slave)

    # long polling

    @staticmethod
    def _worth_holding(result: GetResult, code: int) -> bool:
        """Whether no wanted message lies between the pull's offset and the queue's end."""
        return code == ResponseCode.PULL_NOT_FOUND or (
            result.status == "NO_MATCHED_MESSAGE" and result.next_begin_offset >= result.max_offset
        )

    def _look_on(self, pull: HeldPull, result: GetResult) -> None:
        """Move the pull on to the end of this read, whose messages the filter dropped; the client
        hears of it soon."""
        if result.next_begin_offset > pull.offset:
            pull.offset = result.next_begin_offset
            if not pull.progress:
                pull.progress = True
                self.held.move_up(pull, self._runtime.monotonic() + PROGRESS_S)

    def _hold(self, pull: HeldPull, seconds: float) -> None:
        if pull.endpoint.closed:
            return
        held = self.held
        if held.count >= held.limit:
            other = held.to_give_way(pull.endpoint)
            if other is None:
                raise SystemBusy(
                    f"{len(held)} pulls are held, the limit is maxHeldPulls: try again later, or "
                    "raise it"
                )
            held.forget(other)
            self._look_at(other, self._answer_late)
        held.add(pull, self._runtime.monotonic() + max(0.0, min(seconds, HOLD_MAX_S)))

    def closed(self, endpoint: Endpoint) -> None:
        """Forget the pulls of a closed connection."""
        pulls = self.held.of(endpoint)
        if pulls:
            self._steps.start(self.held.forget_all(pulls), NAME)

    def arrived(self, dispatched: int, arrivals: Iterable[Arrival]) -> None:
        """Note the queues with new entries up to `dispatched`. Entries that are not visible yet are
        noted even if no pull waits: a pull that comes meanwhile finds nothing and must be woken."""
        if not self.held.count and dispatched <= self._c.visible:
            return
        self._arrived.add(dispatched, {(a.topic, a.queue_id): None for a in arrivals})

    def wake(self) -> None:
        """Answer held pulls whose messages became visible."""
        if not self._arrived:
            return
        for key in self._arrived.take(self._c.visible):
            waiting = self.held.take_queue(key)
            if waiting:
                self._steps.start(self._each(waiting, self._retry), NAME)

    def wake_all(self) -> None:
        """Look at every held pull again (after a role change, an offset reset, a close)."""
        self._steps.start(self._each(self.held.take_all(), self._retry), NAME)

    def _each(self, pulls: Iterable[HeldPull], look: Callable[[HeldPull], None]) -> Looking:
        """Look at LOOKED_AT of them in a turn."""
        looked = 0
        for pull in pulls:
            if looked >= LOOKED_AT:
                looked = 0
                yield
            looked += SQL_WEIGHT if pull.sql else 1
            self._look_at(pull, look)

    def _look_at(self, pull: HeldPull, look: Callable[[HeldPull], None]) -> None:
        """Look at one. If its queue cannot be read now, it gets the error, and not the others."""
        try:
            look(pull)
        except SaturnError as refused:
            self.held.forget(pull)
            answer(pull.endpoint, pull.request, pull.request.reply(refused.code, str(refused)))

    def _retry(self, pull: HeldPull) -> None:
        """Look again at a pull that was taken; hold it again if it still waits."""
        if pull.done or pull.endpoint.closed:
            self.held.forget(pull)
            return
        if self._c.topics.get(pull.topic) is None:
            raise TopicNotExist(f"topic {pull.topic} was deleted")
        if self._was_moved(pull):
            self.held.forget(pull)
            return
        self._renew(pull)
        result, code = self._read(pull)
        if self._worth_holding(result, code):
            self._look_on(pull, result)
            self.held.put_back(pull)
        else:
            self.held.forget(pull)
            self._reply_result(pull, result, code)

    def expire(self, now: float) -> None:
        """Answer the pulls whose suspend time is over with the messages there are."""
        if self._expiring is None or self._expiring.done():
            due = iter(partial(self.held.take_due, now), None)
            self._expiring = self._steps.start(self._each(due, self._answer_late), NAME)

    def _answer_late(self, pull: HeldPull) -> None:
        """Answer an overdue pull with the messages there are."""
        if not pull.endpoint.closed:
            self._renew(pull)
            result, code = self._read(pull)
            self._reply_result(pull, result, code)

    def _renew(self, pull: HeldPull) -> None:
        """Take the newest subscription for a pull that was held; a read by another one begins where
        the client asked for. SaturnError: there is none any more."""
        header = pull.header
        if header.sys_flag & PULL_SUBSCRIPTION:
            return
        newest = of_group(self._c, header.group, pull.topic, header.sub_version)
        if (newest.filter_codes, newest.sql) != (pull.codes, pull.sql):
            pull.codes, pull.sql = newest.filter_codes, newest.sql
            pull.offset = header.queue_offset

    # answers

    def _reply_result(self, pull: HeldPull, result: GetResult, code: int) -> None:
        reading = cached(self._c, result) if code == ResponseCode.SUCCESS else None
        if reading is None:
            self._reply_with(pull, result, code)
            return

        async def reply() -> None:
            await reading
            self._reply_with(pull, result, code)

        self._answer_later(pull.endpoint, pull.request, reply())

    def _reply_with(self, pull: HeldPull, result: GetResult, code: int) -> None:
        self._c.statistics.pulled(pull.header.group, pull.topic, result.count)
        self._reply(
            pull,
            code,
            result.status,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
            slow=result.suggest_slave,
            pieces=result.pieces if code == ResponseCode.SUCCESS else (),
        )

    def _reply(
        self,
        pull: HeldPull,
        code: int,
        remark: str,
        next_offset: int,
        low: int,
        high: int,
        *,
        slow: bool,
        pieces: Sequence[memoryview] = (),
    ) -> None:
        group = pull.group
        suggested = group.slow_broker_id if slow else group.broker_id
        if not self._c.config.slave_read:
            suggested = 0
        answer(
            pull.endpoint,
            pull.request,
            pull.request.reply(
                code,
                remark,
                {
                    "suggestWhichBrokerId": str(suggested),
                    "nextBeginOffset": str(next_offset),
                    "minOffset": str(low),
                    "maxOffset": str(high),
                    "topicSysFlag": "0",
                    "groupSysFlag": str(group.sys_flag),
                    **term_of(self._c, pull.header),
                    **moves_of(self._c, pull.header),
                },
                pieces[0] if pieces else b"",
                pieces[1:],
            ),
        )
