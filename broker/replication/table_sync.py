"""Copying a group's tables: topics, subscription groups, consumer offsets, delay progress, users.

A slave takes over its master's tables (codes 21, 201, 43, 45), and its users and rules (390007).
Our slaves ask every second, because an unchanged table costs next to nothing: ext `saturnKnown` of
the request carries the version that the slave has, which the master gave in ext `saturnVersion` of
an earlier reply. If nothing changed since, the reply is empty and says `saturnUnchanged`. A version
names the table's process and its state, so it means the same after a restart or a fail-over. A Java
master does not know this protocol and is asked every 10 s.

A node that does not lead (ext `saturnLeads`) has nothing to copy: a deposed master that came back
with another disk has empty tables. A master that lost its own tables takes those of the slave that
gives it back its log (`adopt`). Else only the master changes topics and groups, except for
deletions: a topic that this node deleted while it was master stays deleted, and its new master
hears of it (`TopicTable`). Offsets and delays are merged (`broker/tables/progress.py`). The master
merges them back when a slave joins that may have served consumers meanwhile. The delay progress of
a master counts once this log reaches as far as the master's did then: before, the delivered copies
may be missing here. Offsets count at once, with the epochs of the master's log: this log may lack
messages that are already consumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from saturnmq.broker.access.table import super_user
from saturnmq.broker.context import Context
from saturnmq.broker.delay.delivery import DelayService
from saturnmq.broker.replication.asking import connection_to
from saturnmq.broker.replication.role import State
from saturnmq.broker.tables.offsets import GroupOffset
from saturnmq.broker.tables.table_persistence import Saveable
from saturnmq.broker.timer.delay_clock import DelayClock
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.epochs import term_in
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import SCHEDULE_TOPIC
from saturnmq.runtime.errors import (
    MalformedFrame,
    NoPermission,
    SaturnError,
    SystemBusy,
    UnsupportedRequest,
    error_for,
)
from saturnmq.store.derived.consumequeue import last_physical
from saturnmq.store.message_store import Arrival

log = logging.getLogger(__name__)

JAVA_PAUSE_S = 10.0
RETRY_S = 0.5
TIMEOUT_S = 5.0


class TableSync:
    def __init__(
        self,
        context: Context,
        delays: DelayService,
        delay_clock: DelayClock,
        delete: Callable[[], Awaitable[None]],
    ) -> None:
        """`delete` applies the deletions in the topic table."""
        self._c = context
        self._offsets = context.offsets
        self._role = context.role
        self._store = context.store
        self._topics = context.topics
        self._delays = delays
        self._delay_clock = delay_clock
        self._delete = delete
        self.master_address: Callable[[], str] = lambda: ""  # of this slave's master, if it has one
        self._copying = asyncio.Lock()
        self._endpoint: Endpoint | None = None
        self._address = ""
        # The last version of each table at the master, and the count of our changes when we had
        # taken it over.
        self._known: dict[int, tuple[str, int]] = {}
        self._groups: set[str] = set()  # the groups in the master's last answer
        self._gone: set[str] = set()  # groups that the master has no more, with offsets still here
        # A copy of the delays that counts once the log reaches this offset, and when it came.
        self._waiting: tuple[int, dict[str, Any], float] | None = None
        self._knows_waits = False  # for the messages in its log when it joined its master
        self._wanted = asyncio.Event()
        self._keeps_access = False  # the master has no users and rules; told once
        self.trouble = ""  # why the tables could not be copied; told once

    # on a slave

    async def run(self) -> None:
        """While this node is a slave, take over the tables of its master."""
        while True:
            pause, address = RETRY_S, self.master_address()
            if address and self._role.state is State.SLAVE:
                try:
                    pause, trouble = await self.copy_from(address), ""
                except (SaturnError, OSError) as error:
                    trouble = str(error)
                    if trouble != self.trouble:
                        log.info("tables of the master not copied: %s", trouble)
                self.trouble = trouble
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            self._wanted.clear()

    def arrived(self, _: int, arrivals: Iterable[Arrival]) -> None:
        """Make topics and queues of new messages, so that acknowledged messages can be read here
        even if the master dies before its tables come again."""
        if self._role.is_slave and self._topics.restore(
            (arrival.topic, arrival.queue_id, last_physical(arrival.entries))
            for arrival in arrivals
        ):
            self._wanted.set()  # the master has the rest of the entry

    async def copy_now(self) -> None:
        """Take over the master's tables. SystemBusy: it cannot be asked now."""
        address = self.master_address()
        try:
            if not address:
                raise SystemBusy("it does not know its master")
            await self.copy_from(address)
        except (SaturnError, OSError) as error:
            raise SystemBusy(f"this slave cannot copy its master's tables: {error}") from error

    async def copy_from(self, address: str) -> float:
        """Take over this master's tables; return the seconds until the next look."""
        async with self._copying:
            return await self._copy_from(address)

    async def _copy_from(self, address: str) -> float:
        c = self._c
        if self._endpoint is None or self._endpoint.closed or self._address != address:
            self.close()
            self._known.clear()
            self._groups.clear()
            self._gone.clear()
            self._waiting = None
            self._endpoint, self._address = await connection_to(c, address), address
        endpoint, code = self._endpoint, RequestCode
        if c.guard is not None:
            await self._copy_access(endpoint)
        take = partial(self._take_topics, c.store.watermarks.appended)
        await self._copy(endpoint, code.GET_ALL_TOPIC_CONFIG, c.topics, take)
        if c.store.tombstones != c.topics.deleted:
            await self._delete()
        await self._copy(
            endpoint, code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, c.groups, self._take_groups
        )
        if self._gone:
            await c.steps.run(c.offsets.forget(self._gone))
            self._gone = set()
        reply = await self._copy(
            endpoint, code.GET_ALL_CONSUMER_OFFSET, c.offsets, self._take_offsets
        )
        if reply is not None:
            c.offsets.of_log = term_in(reply)
        self._take_delays()
        await self._copy(endpoint, code.GET_ALL_DELAY_OFFSET, self._delays, None)
        self._take_delays()
        pause = c.config.slave_sync_ms / 1000
        speaks_ours = all(version for version, _ in self._known.values())
        return pause if speaks_ours else max(pause, JAVA_PAUSE_S)

    async def _copy(
        self,
        endpoint: Endpoint,
        code: int,
        table: Saveable,
        take: Callable[[dict[str, Any]], Awaitable[None]] | None,
    ) -> Command | None:
        """Ask for a table, and take it; return the answer. None: nothing has changed."""
        version, changes = self._known.get(code, ("", -1))
        ext = {"saturnKnown": version} if version and changes == table.changes else {}
        follows = self._follows()
        reply = await self._ask(endpoint, code, ext)
        self._check_follows(follows)
        if reply.ext.get("saturnLeads") == "false":
            raise SystemBusy(f"{self._address} leads the group no more, or not yet")
        if clock := reply.ext.get("saturnDelayClock"):
            self._delay_clock.heard(checked.as_integer(clock, "the master's clock"))
        if reply.ext.get("saturnUnchanged") == "true":
            return None
        document = _document(reply)
        if take is None:
            self._compare_levels(reply.ext.get("saturnDelayLevels"))
            end = int(reply.ext.get("saturnLogEnd", "0"))
            self._waiting = end, document, self._c.runtime.monotonic()
        else:
            await take(document)
        self._known[code] = reply.ext.get("saturnVersion", ""), table.changes
        return reply

    def _follows(self) -> tuple[State, int, str]:
        """This node's state, its epoch, and the address of its master."""
        return self._role.state, self._role.promised_epoch, self.master_address()

    def _check_follows(self, before: tuple[State, int, str]) -> None:
        """SystemBusy: the node follows another master by now, or was promoted; then its own tables
        count."""
        if self._follows() != before:
            raise SystemBusy(f"this node follows {self._address} no more: its answer came too late")

    async def _take_topics(self, as_of: int, document: dict[str, Any]) -> None:
        self._topics.replace_all(document, as_of)
        self._topics.restore(self._store.last_entries())  # topics that came meanwhile

    async def _take_groups(self, document: dict[str, Any]) -> None:
        self._c.groups.replace_all(document)
        had, self._groups = self._groups, {group.name for group in self._c.groups}
        self._gone = (self._gone | had) - self._groups

    async def _access_at(self, endpoint: Endpoint) -> dict[str, Any]:
        """The users and rules of a slave; none if it checks nobody."""
        try:
            return _document(await self._ask(endpoint, RequestCode.GET_ALL_ACCESS, {}))
        except (NoPermission, UnsupportedRequest) as error:
            log.warning("no users and rules are taken over from a slave: %s", error)
            return {}

    async def _copy_access(self, endpoint: Endpoint) -> None:
        """Take over users and rules; of a master that checks nobody, this node keeps its own."""
        try:
            await self._copy(
                endpoint, RequestCode.GET_ALL_ACCESS, self._c.access, self._take_access
            )
        except (NoPermission, UnsupportedRequest) as error:
            if not self._keeps_access:
                log.warning(
                    "%s checks no users: this node keeps its own (%s)", self._address, error
                )
            self._keeps_access = True

    async def _take_access(self, document: dict[str, Any]) -> None:
        self._c.access.replace_all(document)

    async def _take_offsets(self, document: dict[str, Any]) -> None:
        """Read the offsets in steps, and take them in one."""
        c, follows = self._c, self._follows()
        changes = c.topics.changes
        marks = await c.steps.run(c.offsets.read(document))
        self._check_follows(follows)
        if c.topics.changes != changes:  # one may have been deleted meanwhile
            marks = c.offsets.of_living(marks)
        c.offsets.take(document, marks)

    def _compare_levels(self, theirs: str | None) -> None:
        ours = self._store.config.delay_levels
        if theirs is not None and theirs.split() != ours.split():
            log.warning(
                "messageDelayLevel is %r here and %r at the master: if promoted, this node would "
                "deliver waiting messages at other times; set both alike",
                ours,
                theirs,
            )

    def _take_delays(self) -> None:
        """Take the master's delay progress once its deliveries are in this log, too."""
        if self._waiting is not None and self._store.watermarks.appended >= self._waiting[0]:
            _, document, heard = self._waiting
            self._delays.merge(document)
            if not self._knows_waits:
                self._delays.take_over_waits(document, heard)
                self._knows_waits = True
            self._waiting = None

    def joined(self) -> None:
        """Lower marks behind the end of this log, which is a part of the master's now: their
        messages are lost, or the marks come again with the next copy."""
        self._clamp()
        self._delay_clock.left_master()
        self._knows_waits = False
        self._waiting = None
        self._known.pop(RequestCode.GET_ALL_DELAY_OFFSET, None)
        self._wanted.set()

    def truncated(self) -> None:
        """Ask for the delay progress anew: the log was cut, and only the master knows which delayed
        messages were delivered in the part that is gone."""
        self._delays.distrust()

    # on a master

    def begin_term(self) -> None:
        """Begin as master: marks behind the ends of its queues are of lost messages."""
        first = self._c.config.first_user
        if first is not None and self._c.guard is not None:
            self._c.access.begin(super_user(first))
        # Some received frames were not dispatched yet when the old master died.
        self._topics.restore(self._store.last_entries())
        for table in (self._offsets, self._delays):
            table.trust()
        for place, had, end in self._clamp():
            log.warning(
                "group %s had consumed %s queue %d up to %d but the log ends at %d: the tail "
                "was lost",
                place.group,
                place.topic,
                place.queue_id,
                had,
                end,
            )

    def end_term(self) -> None:
        """End as master: marks that only this node knows may be of messages that it will lose."""
        for table in (self._offsets, self._delays):
            table.distrust()

    async def merge_back(self, address: str) -> None:
        """Take the offsets and delays that a slave which has just joined knows better."""
        endpoint = await connection_to(self._c, address)
        try:
            offsets = _document(await self._ask(endpoint, RequestCode.GET_ALL_CONSUMER_OFFSET, {}))
            delays = _document(await self._ask(endpoint, RequestCode.GET_ALL_DELAY_OFFSET, {}))
            topics = _document(await self._ask(endpoint, RequestCode.GET_ALL_TOPIC_CONFIG, {}))
        finally:
            endpoint.close()
        await self._merge_deleted(topics)
        self._offsets.merge(offsets)
        self._delays.merge(delays)

    async def adopt(self, address: str) -> None:
        """Take over the tables of a slave, because this node has forgotten its own; topics and
        groups only if they are newer."""
        c = self._c
        endpoint = await connection_to(c, address)
        try:
            topics = _document(await self._ask(endpoint, RequestCode.GET_ALL_TOPIC_CONFIG, {}))
            groups = _document(
                await self._ask(endpoint, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
            )
            access = {} if c.guard is None else await self._access_at(endpoint)
        finally:
            endpoint.close()
        if _counter(topics) > c.topics.data_version["counter"]:
            await self._take_topics(c.store.watermarks.appended, topics)
            if c.store.tombstones != c.topics.deleted:
                await self._delete()
        if _counter(groups) > c.groups.data_version["counter"]:
            c.groups.replace_all(groups)
        if access and _counter(access) > c.access.data_version["counter"]:
            c.access.replace_all(access)
        await self.merge_back(address)

    async def _merge_deleted(self, document: dict[str, Any]) -> None:
        c, last_of = self._c, Counter[str]()
        for topic, _, last in c.store.last_entries():
            last_of[topic] = max(last_of[topic], last)
        c.topics.merge_deleted(document, last_of.__getitem__)
        if c.store.tombstones != c.topics.deleted:
            await self._delete()

    # both

    def _clamp(self) -> list[tuple[GroupOffset, int, int]]:
        store = self._store
        self._offsets.of_log = {}
        self._delays.clamp(lambda level: store.max_offset(SCHEDULE_TOPIC, level - 1))
        return self._offsets.clamp(lambda at: store.max_offset(at.topic, at.queue_id))

    async def _ask(self, endpoint: Endpoint, code: int, ext: dict[str, str]) -> Command:
        reply = await endpoint.request(Command.request(code, ext), TIMEOUT_S)
        if reply.code:
            raise error_for(reply.code, reply.remark)
        return reply

    def close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None


def _document(reply: Command) -> dict[str, Any]:
    document = fastjson.loads(bytes(reply.body))
    if not isinstance(document, dict):
        raise MalformedFrame(f"a table is {type(document).__name__}, not an object")
    return document


def _counter(document: dict[str, Any]) -> int:
    version = checked.table(document, "dataVersion")
    return checked.integer(version, "counter", 0)
