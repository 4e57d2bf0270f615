"""Fail-over: who is the master of this group, and what this node does when that changes.

The rules, all about one danger: two nodes that both acknowledge.

- A term of a master is an epoch (`protocol/epochs.py` counts them): two nodes that cannot hear each
  other never open the same one, and a promotion outranks restarts. It is written down before it is
  acted on.
- A master starts UNSURE: nameservers and the replicas that it knows are asked for a higher epoch
  first. So it does after a pause of its own. Who does not answer within ASK_S does not count: with
  nobody to ask it goes on, and what it then acknowledges is what its ack mode promises.
- A master whose sends wait for copies is RECOVERING at every start, until enough slaves have told
  what they have (`kinship.py`): its disk may be wiped, or an older copy. So is every master that
  finds less than it once had, and one that hears while it leads that its group had confirmed what
  its log has not. What the furthest slave has more is copied back, with its epochs and tables.
  A slave's disk may be such a copy, too: it counts for a promotion when it has caught up again.
- FENCE makes a node promise never to serve or follow a lower epoch: a master stops taking writes,
  goes on sending what it has, and waits to learn its new master. PROMOTE makes a node master. If
  none comes, a master that was not reached goes on above it (`reclaiming.py`).
- Who learns that it is deposed answers its waiting sends with "unknown", follows the new master
  and cuts what that one does not have, into a side file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from saturnmq.broker.asking import ASK_S, member_at
from saturnmq.broker.context import Context, answer, integer
from saturnmq.broker.ha_master import HaMaster, SlaveConnection
from saturnmq.broker.ha_slave import HaSlave
from saturnmq.broker.identity import agree, belong, draw
from saturnmq.broker.introductions import Check, Member, introduce
from saturnmq.broker.kinship import founded_by_mistake, is_outranked
from saturnmq.broker.mending import Mending
from saturnmq.broker.reclaiming import Reclaiming
from saturnmq.broker.recovering import Recovering, Steps, lost
from saturnmq.broker.registration import Registration
from saturnmq.broker.role import MASTER_ID, State
from saturnmq.protocol import checked, jsonx
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.epochs import EPOCH_MAX, TERM, is_own, next_promotion, next_restart
from saturnmq.protocol.errors import (
    InvalidParameter,
    MalformedFrame,
    NoPermission,
    SaturnError,
)
from saturnmq.protocol.remoting import Command
from saturnmq.store.message_store import Truncated

log = logging.getLogger(__name__)

LOOK_S = 1.0  # how often a fenced node looks for its new master


@dataclass
class Doors:
    """What the broker does for its fail-over."""

    save: Callable[[], Awaitable[None]]  # the role is on the disk when this returns
    cut_torn: Callable[[], Awaitable[None]]  # a last frame that never came whole
    # What the topic table says of the log behind its end is over: a master writes anew there. Not
    # before it is one: until then the same bytes may come back.
    keep_within: Callable[[], Awaitable[None]]
    cut: Callable[[int, str], Awaitable[None]]  # the log, at this offset, and why
    put_back: Callable[[Truncated], Awaitable[None]]  # what of it goes on at the log's end
    wake: Callable[[], None]  # the turn looks again at what is confirmed
    lead: Callable[[], None]  # begin what only a master does
    retire: Callable[[], None]  # end it
    merge_back: Callable[[str], Awaitable[None]]  # the tables of a slave that may know more
    adopt: Callable[[str], Awaitable[None]]  # topics and groups, too: this node has forgotten them


class FailoverService:
    def __init__(
        self,
        context: Context,
        master: HaMaster,
        slave: HaSlave,
        registration: Registration,
        mending: Mending,
        doors: Doors,
    ) -> None:
        self._c = context
        self._master = master
        self._slave = slave
        self._registration = registration
        self._mending = mending
        self._doors = doors
        context.role.on_unsure = self.unsure
        master.on_joined, master.on_higher_epoch = self.slave_joined, self.higher_epoch
        master.on_differs = self._differs
        registration.on_higher_epoch = self.nameserver_knows
        self._lock = asyncio.Lock()
        self._recovering = Recovering(
            context,
            self._lock,
            mending,
            Steps(
                cut=doors.cut,
                put_back=doors.put_back,
                cut_torn=doors.cut_torn,
                wake=doors.wake,
                adopt=doors.adopt,
                open_term=self._open_term,
                lead=self._lead,
                call_back=master.drop_slaves,
            ),
        )
        master.on_classic = self._recovering.hear_classic
        self._reclaiming = Reclaiming(context, self._lock, self._open_above)
        master.on_promise = self._reclaiming.hear
        # Why nobody can be elected now; None: nobody ever is (electing.py).
        self.no_failover: Callable[[], str | None] = lambda: None
        self._looking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    def close(self) -> None:
        self._recovering.close()
        self._reclaiming.close()
        for task in (self._looking, self._asking):
            if task is not None:
                task.cancel()

    # the start

    async def begin(self) -> None:
        """Find out what this node is, as far as that takes a bounded time."""
        c = self._c
        role, store = c.role, c.store
        role.epoch = max(role.epoch, role.term)
        role.alive_at = c.runtime.monotonic()
        agree(c)
        found = store.recovery
        flushed = c.config.sync_flush and not found.lost  # then all it acknowledged is here
        may_lack = not found.clean and role.required > 1 and bool(role.replicas) and not flushed
        if what := lost(c):
            log.critical("this node has lost what it had: %s", what)
            role.has_lost(what)
        elif role.required > 1:  # what it reported may be gone: its disk may be an older copy
            role.behind(True)
        if role.state is State.SLAVE:
            return
        if role.epoch > max(role.term, role.had_term):  # by a promotion that fenced it
            role.depose(f"it has promised to serve no epoch below {role.epoch}")
            self._look_for_master()
            return
        self._recovering.may_lack = may_lack or bool(role.lacks)
        if role.required > 1 or role.lacks:
            role.next_state = State.RECOVERING
            self._recovering.wait()
        await self._ask()
        if role.state is State.UNSURE:
            self.unsure()

    def unsure(self) -> None:
        """Called by the role: this node stood still, or has just begun."""
        if self._asking is None or self._asking.done():
            log.warning("asking whether this node still is the master")
            self._asking = self._c.runtime.spawn(self._ask_until_sure(), name="ask-for-epochs")

    async def _ask_until_sure(self) -> None:
        while self._c.role.state is State.UNSURE:
            await self._ask()
            if self._c.role.state is State.UNSURE:
                await self._c.runtime.sleep(ASK_S)

    async def _ask(self) -> None:
        """Take writes unless somebody knows of a higher epoch, or has to be heard first."""
        c = self._c
        replicas = [address for address in c.role.replicas.values() if address != c.address]
        _, *members = await asyncio.gather(
            self._registration.ask_all(ASK_S), *(member_at(c, address) for address in replicas)
        )
        for member in members:
            if member is not None and c.role.state is State.UNSURE:
                self._hear(member)
        if c.role.state is not State.UNSURE:
            return
        better = self._recovering.furthest() is not None or self._recovering.mendable()
        if c.role.next_state is State.MASTER and better:
            c.role.next_state = State.RECOVERING  # its sends wait for nobody, who yet has more
        if c.role.next_state is State.MASTER and not await self._open_term():
            return
        c.role.sure()
        if c.role.state is State.MASTER:
            self._lead()
        else:
            self._doors.wake()  # what needs no slave's word can be read
            self._recovering.try_now()

    def _hear(self, member: Member) -> None:
        """Another node of the group has told what it has."""
        role = self._c.role
        if is_outranked(role.term, self._c.config.broker_id, member):
            leads = member.state == State.MASTER.name.lower()
            where = (member.address, member.ha_address) if leads else ("", "")
            self.higher_epoch(member.epoch, f"{member.address} knows of it", *where)
        elif member.state == State.SLAVE.name.lower():
            self._recovering.hear(member)

    async def _open_term(self) -> bool:
        """A new epoch for every start, because this log may be an older copy of what others have:
        nobody writes in one epoch twice. False if it cannot be written down, which is tried
        again."""
        c, before = self._c, self._c.role.state
        try:
            await self._doors.keep_within()
            if c.role.state is not before:
                return False  # somebody knew of a higher epoch meanwhile
            fresh = not c.epochs.entries
            known = max(c.role.epoch, self._recovering.known_epoch)
            if not c.role.leads_since_start or known > c.role.term:
                self._open(next_restart(known, c.config.broker_id), fresh=fresh)
            c.store.settle()
        except OSError as error:  # a full disk is not full for ever
            log.error("the new epoch cannot be written down, trying again: %s", error)
            c.role.why = f"its new epoch cannot be written down: {error}"
            return False
        c.role.leads_since_start = True
        return True

    def _open(self, number: int, *, fresh: bool = False) -> None:
        """Without letting anything else happen: news of another master must not come between."""
        c = self._c
        start = 0 if fresh else c.store.watermarks.appended
        identity = c.role.identity or draw(c)
        c.epochs.open(number, start, identity)
        belong(c, identity)
        c.role.promise(number)
        c.role.has(number)
        log.info("epoch %d begins at %d", number, start)

    def _open_above(self, fence: int) -> None:
        """This master goes on in a term that a promotion has not reached."""
        c = self._c
        self._open(next_promotion(c.epochs.last, fence, c.config.broker_id))
        self._master.drop_slaves()  # they join in the new epoch
        self._registration.topics_changed()

    def _lead(self) -> None:
        role = self._c.role
        role.lead(self._c.runtime.monotonic())
        role.lacks = ""
        role.behind(False)
        self._recovering.may_lack = False
        self._recovering.forget()
        self._doors.lead()
        self._master.announce()
        self._doors.wake()
        self._registration.topics_changed()  # as the master of this epoch

    # slaves

    def slave_joined(self, connection: SlaveConnection) -> None:
        """A slave of ours has said who it is."""
        c, join = self._c, connection.join
        assert join is not None, "it was just read"
        role = c.role
        if role.state is State.MASTER and join.conflict:
            self._forgot(join.conflict)
        elif role.state is State.MASTER and founded_by_mistake(
            role.identity, c.store.watermarks.appended, role.replicas, join
        ):
            self._forgot(f"{join.address} has the log of a group of this name, and this node none")
        elif role.state is State.MASTER and join.epoch > role.term:
            self._forgot(f"{join.address} knows of epoch {join.epoch}, which this node opened")
        waits = role.state in (State.RECOVERING, State.UNSURE)
        if waits:  # before it is known: a new one has nothing to tell
            self._recovering.hear(join)
        if join.broker_id != MASTER_ID and not role.is_slave and join.identity == role.identity:
            role.knows(join.broker_id, join.address)
            c.runtime.spawn(self._name(connection), name="name-replica")
            if join.offset is not None and not join.asks:
                c.runtime.spawn(self._merge_back(join.address), name="merge-back")

    async def _name(self, connection: SlaveConnection) -> None:
        """Its reports count when the file says that it belongs to the group: a start of this node
        that did not know of it would not wait for its word."""
        while connection.is_open:
            try:
                await self._doors.save()
            except OSError as error:
                log.error("%s is not written down, trying again: %s", connection.name, error)
                await self._c.runtime.sleep(ASK_S)
                continue
            connection.is_named = True
            self._master.recount()
            return

    async def _merge_back(self, address: str) -> None:
        try:
            await self._doors.merge_back(address)
        except (SaturnError, OSError) as error:
            log.info("tables of slave %s not merged: %s", address, error)

    def _forgot(self, why: str) -> None:
        """This master lacks what its group had confirmed: no more writes before it has that."""
        log.critical("no more writes: %s", why)
        role = self._c.role
        role.recover(why)
        role.has_lost(why)
        self._recovering.may_lack = True
        self._retire("a slave has what this log lacks: the outcome is unknown")
        self._master.drop_slaves()  # they join again, and tell what they have

    def _differs(self, connection: SlaveConnection, check: Check) -> None:
        self._c.runtime.spawn(self._mend(connection, check), name="mend-log")

    async def _mend(self, connection: SlaveConnection, check: Check) -> None:
        """Find out which of two logs is damaged; this one is mended if it is."""
        where = f"the two logs differ between {check.start} and {check.end} within one epoch"
        try:
            mended = await self._mending.mend(check.start, check.end, connection.name)
        except (SaturnError, OSError) as error:
            connection.refuse(f"{where}; the master's is damaged and not mended: {error}")
            return
        if mended:
            connection.refuse(f"{where}; the master's was damaged and is mended: join again")
        else:
            connection.refuse(f"{where}; the frames of the master's are sound", differs=check)

    # roles from outside

    def nameserver_knows(self, epoch: int, why: str, master: str, ha_address: str) -> None:
        """Of a higher epoch of this group."""
        role = self._c.role
        if master or not is_own(epoch, self._c.config.broker_id):
            self.higher_epoch(epoch, why, master, ha_address)
        elif epoch > max(role.term, role.had_term, role.epoch):
            self._recovering.known_epoch = epoch
            what = f"{why}: epoch {epoch}, which this node opened, is not in its log"
            if role.state is State.MASTER:
                self._forgot(what)
            elif role.state in (State.UNSURE, State.RECOVERING):
                role.has_lost(role.lacks or what)
                self._recovering.may_lack = True
                if role.state is State.UNSURE:
                    role.next_state = State.RECOVERING

    def higher_epoch(self, epoch: int, why: str, master: str = "", ha_address: str = "") -> None:
        """There is a master of a higher epoch than this node's."""
        c = self._c
        if epoch <= c.role.term and c.role.state is not State.FENCED:
            return
        if c.role.is_slave and c.role.state is not State.FENCED:
            if master:
                self._slave.master_is(master, ha_address)
            return
        if c.role.state is not State.FENCED:
            log.critical("this node is deposed: epoch %d has begun (%s)", epoch, why)
        c.role.promise(epoch)
        c.role.depose(f"epoch {epoch} has begun ({why})")
        if master:  # and has confirmed what nobody here knows
            c.role.behind(True)
        self._retire(
            "stored here, but this node is not the master any more: the outcome is unknown"
        )
        self._master.drop_slaves()
        self._look_for_master()
        if master and ha_address:
            c.runtime.spawn(self._follow(master, ha_address), name="follow")

    def _retire(self, why: str) -> None:
        """End what only a master does, and tell those who wait for an acknowledgement."""
        self._doors.retire()
        self._c.ledger.fail_all(ResponseCode.FLUSH_SLAVE_TIMEOUT, why)

    def _look_for_master(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = self._c.runtime.spawn(self._look(), name="look-for-master")

    async def _look(self) -> None:
        """Until this node knows whom to follow."""
        c = self._c
        while c.role.state is State.FENCED:
            await self._registration.ask_all(ASK_S)
            for address in [a for a in c.role.replicas.values() if a != c.address]:
                member = await member_at(c, address)
                if member and member.state == "master" and member.epoch >= c.role.epoch:
                    await self._follow(member.address, member.ha_address)
            await c.runtime.sleep(LOOK_S)

    async def _follow(self, master: str, ha_address: str) -> None:
        """Become a slave of this master."""
        c = self._c
        async with self._lock:
            if c.role.state is not State.FENCED:
                return
            member = await member_at(c, master)
            if member is None or member.epoch < c.role.epoch:
                return  # it is looked for again
            free = member.free_id or c.config.broker_id or 1
            undo = c.role.undo()
            # Of what it has beyond that its consumers see nothing before the new master says so.
            c.master_confirmed = c.store.watermarks.confirmed
            c.role.promise(member.epoch)
            c.role.follow(free)
            c.role.behind(True)  # until it has what the new master had confirmed
            try:
                await self._doors.save()
            except OSError as error:
                log.error("the new role cannot be written down, trying again: %s", error)
                undo(member.epoch)
                return
        log.warning("this node is a slave now (id %d), following %s", free, ha_address)
        self._master.drop_slaves()
        self._slave.master_is(master, ha_address)
        self._registration.topics_changed()

    # requests

    def on_state(self, endpoint: Endpoint, request: Command) -> None:
        answer(endpoint, request, request.reply(0, body=jsonx.dumps(self.state())))

    def on_fence(self, endpoint: Endpoint, request: Command) -> None:
        term = integer(request.ext, "term", -1)
        self._later(endpoint, request, self._fence(_epoch(request), term))

    def on_promote(self, endpoint: Endpoint, request: Command) -> None:
        ext = request.ext
        work = self._promote(
            _epoch(request),
            integer(ext, "end", 0),
            force=ext.get("force") == "true",
            insist=ext.get("insist") == "true",
        )
        self._later(endpoint, request, work)

    def _later(self, endpoint: Endpoint, request: Command, work: Awaitable[None]) -> None:
        """Answer with this node's state when the work is done, or with why it is not."""
        request.body = b""

        async def run() -> None:
            try:
                await work
            except SaturnError as error:
                answer(endpoint, request, request.reply(error.code, remark=str(error)))
            except OSError as error:
                reply = request.reply(ResponseCode.SYSTEM_ERROR, remark=f"the disk: {error}")
                answer(endpoint, request, reply)
            else:
                self.on_state(endpoint, request)

        self._c.runtime.spawn(run(), name="change-role")

    async def _fence(self, epoch: int, term: int) -> None:
        """`term`: that of a master, which goes on above a promotion that did not come; -1: it is
        for a promotion."""
        c = self._c
        async with self._lock:
            if epoch <= c.role.epoch:
                raise NoPermission(
                    f"epoch {epoch} is not above {c.role.epoch}, which this node knows already"
                )
            if term >= 0 and (
                not c.role.is_slave or c.epochs.last > term or c.role.epoch > epoch - TERM
            ):
                raise NoPermission(
                    f"there is a newer master than that of epoch {term}: this node knows of epoch "
                    f"{c.role.epoch}, and its log of {c.epochs.last}"
                )
            undo = c.role.undo()
            c.role.promise(epoch)
            leads = not c.role.is_slave
            try:
                await self._doors.save()
            except OSError:
                if not c.store.failed:  # else it takes no writes anyway
                    undo(epoch)
                    raise
            if leads:
                log.warning("fenced for epoch %d: no more writes", epoch)
                # Its slaves may still fetch what it has: the next master is one of them.
                c.role.depose(f"fenced for epoch {epoch}")
                self._doors.retire()
                self._look_for_master()
            else:
                self._slave.drop()  # its master is of a lower epoch

    async def _promote(self, epoch: int, end: int, *, force: bool, insist: bool) -> None:
        """With `force` whoever asks has looked at the others, too; with `insist` an operator lets
        go of what may be lost."""
        c = self._c
        async with self._lock:
            role, marks = c.role, c.store.watermarks
            if role.state is State.MASTER:
                raise NoPermission(f"this node is the master of epoch {role.epoch} already")
            if role.state in (State.RECOVERING, State.UNSURE) and not force:
                raise NoPermission(f"{role.refuses(c.runtime.monotonic())} (force: at once)")
            if epoch < role.epoch:
                raise NoPermission(
                    f"epoch {epoch} is below {role.epoch}, which this node knows already"
                )
            if marks.appended < end:
                raise NoPermission(
                    f"the log of this node ends at {marks.appended}, a moment ago it was {end}"
                )
            if c.store.failed:
                raise NoPermission(f"this node takes no writes: {c.store.failed}")
            if role.lacks and not insist:
                raise NoPermission(
                    f"this node ({c.address}) has lost what it had: {role.lacks}. Promote another "
                    "member; or go on without: --force"
                )
            if not role.caught_up and not force:
                raise NoPermission(
                    f"this node ({c.address}) may lack what its group has confirmed: acknowledged "
                    "messages would be lost; start the others of the group, or promote by force"
                )
            undo = role.undo()
            role.state = State.FENCED
            self._slave.drop()  # nothing comes from the old master any more
            number = next_promotion(c.epochs.last, max(epoch, role.epoch), c.config.broker_id)
            try:
                await self._doors.cut_torn()
                await self._doors.keep_within()
                role.becomes_master(number)
                if insist:
                    role.forces(number)
                    role.cut_by_force(marks.appended)
                await self._doors.save()
                if role.epoch > number:
                    raise NoPermission(f"epoch {role.epoch} has begun meanwhile")
                if c.store.amnesia:
                    c.store.settle()
                self._open(number)
            except BaseException:
                undo(number)
                self._slave.drop()
                raise
            role.leads_since_start = True
            # What its old master confirmed is the group's; the rest once enough copies have it.
            marks.replicated = marks.confirmed
            log.warning("this node is the master of epoch %d", role.epoch)
            self._master.expect_slaves()
            self._lead()

    def state(self) -> dict[str, Any]:
        """The body of REPLICA_STATE."""
        c = self._c
        role, marks, now = c.role, c.store.watermarks, c.runtime.monotonic()
        replicas = [x for x in self._master.connections if x.is_replica]
        return {
            **introduce(c),
            "flushed": marks.flushed,
            "confirmed": marks.confirmed,
            "forced": role.forced,
            "required": role.required,
            "total": c.config.total_replicas,
            "caughtUp": role.caught_up,
            "freeId": self._master.free_id(),
            "inSyncChanges": self._master.in_sync_changes,
            "inSync": [x.broker_id for x in replicas if x.lag.in_sync],
            "lagBytes": {str(x.broker_id): x.lag.size(marks.appended) for x in replicas},
            "lagMs": {
                str(x.broker_id): round(1000 * x.lag.seconds(marks.appended, now)) for x in replicas
            },
            "bytesPerS": {str(x.broker_id): x.sent_per_s for x in replicas},
            "master": c.address if not role.is_slave else self._slave.master_address,
            "truncated": [{"file": cut.file, **cut.to_json()} for cut in c.store.truncated()],
            "refuses": c.store.failed or c.store.refuses or role.refuses(now) or c.unelected(),
            "noFailover": self.no_failover(),
            "trouble": (self._slave.refused if role.is_slave else "")
            or "; ".join(sorted(set(self._registration.foreign.values()))),
        }


def _epoch(request: Command) -> int:
    try:
        return checked.integer(request.ext, "epoch", least=1, most=EPOCH_MAX)
    except MalformedFrame as error:
        raise InvalidParameter(str(error)) from None
