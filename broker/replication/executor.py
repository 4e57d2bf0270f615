"""Executes the instructions of the machine of replication, and reports their outcomes to it.

All events about this node's role come here, in order. The awaited instruction of a step ends before
the next event is looked at. All other work runs beside: copies, questions to other nodes, timers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from saturnmq.broker.context import Context
from saturnmq.broker.registration import Registrar
from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.asking import ASK_S, answer_of, member_at
from saturnmq.broker.replication.ha_master import HaMaster
from saturnmq.broker.replication.ha_slave import HaSlave
from saturnmq.broker.replication.identity import adopt, agree, draw
from saturnmq.broker.replication.introductions import Check, MemberState
from saturnmq.broker.replication.kinship import has_joined
from saturnmq.broker.replication.log_checksum import tail_checksum
from saturnmq.broker.replication.machine import Machine
from saturnmq.broker.replication.mending import Mending
from saturnmq.broker.replication.role import State
from saturnmq.broker.replication.tail_copy import TailCopy
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Handle
from saturnmq.runtime.errors import SaturnError, StoreDamaged
from saturnmq.store.log.epochs import Epoch
from saturnmq.store.message_store import Truncated

log = logging.getLogger(__name__)


@dataclass
class Doors:
    """The actions of the broker that instructions need."""

    save: Callable[[], Awaitable[None]]  # the role is on the disk when this returns
    saved_soon: Callable[[], None]
    cut_torn: Callable[[], Awaitable[None]]  # remove a last frame that never came whole
    # Entries of the topic table about offsets behind the log's end do not count any more: a master
    # writes anew there. Before it is one, the same bytes may come back.
    keep_within: Callable[[], Awaitable[None]]
    cut: Callable[[int, str], Awaitable[None]]  # truncate the log at this offset, for this reason
    put_back: Callable[[Truncated], Awaitable[None]]  # append the part that continues the log
    wake: Callable[[], None]  # have the advancer confirm again
    lead: Callable[[], None]  # begin the work of a master
    retire: Callable[[], None]  # end it
    merge_back: Callable[[str], Awaitable[None]]  # merge the tables of a slave that may know more
    adopt: Callable[[str], Awaitable[None]]  # take a slave's tables: its own are forgotten


class Executor:
    def __init__(
        self,
        context: Context,
        master: HaMaster,
        slave: HaSlave,
        registration: Registrar,
        mending: Mending,
        doors: Doors,
    ) -> None:
        self._c = context
        self._role = context.role
        self._runtime = context.runtime
        self._store = context.store
        self._master = master
        self._slave = slave
        self._registration = registration
        self._mending = mending
        self._doors = doors
        config = context.config
        me = e.Me(
            group=config.broker_name,
            broker_id=config.broker_id,
            address=context.address,
            segment_bytes=context.store.config.commitlog_segment_bytes,
            sync_flush=config.sync_flush,
            sync_from_last_file=config.sync_from_last_file,
            total_replicas=config.total_replicas,
        )
        self.machine = Machine(me, context.role)
        self._events: deque[e.Event] = deque()
        self._busy = False  # with a step, or with its awaited instruction
        self._awaited: asyncio.Task[None] | None = None
        self._asks: dict[str, asyncio.Task[None]] = {}
        self._work: asyncio.Task[None] | None = None  # part of a recovery, or of a join
        self._copy: TailCopy | None = None
        self._timers: dict[str, Handle] = {}
        self._side: Truncated | None = None  # the side file of the last cut
        self._closed = False
        self.on_answer: Callable[[e.Answer | e.Decline], None] = lambda _: None  # to a request

    def validate(self) -> None:
        """AssertionError: no step is under way, and something waits for its end."""
        assert self._awaited is None or self._busy, "a step is awaited, and none is under way"
        assert self._busy or self._closed or not self._events, f"{self._events} wait"
        if not self._busy:  # else the role may not be written down yet
            self.machine.validate()

    async def begin(self) -> None:
        """Find out this node's role, as far as a bounded time allows."""
        c = self._c
        c.role.alive_at = c.runtime.monotonic()
        agree(c)
        self.tell(e.Started())
        if (asking := self._asks.get("sure")) is not None:
            await asyncio.wait([asking])
        while self._awaited is not None:
            await asyncio.wait([self._awaited])

    def close(self) -> None:
        self._closed = True
        self._events.clear()
        for task in (self._awaited, self._work, *self._asks.values()):
            if task is not None:
                task.cancel()
        for timer in self._timers.values():
            timer.cancel()

    # -- events

    def tell(self, event: e.Event) -> None:
        if self._closed:
            return
        self._events.append(event)
        if not self._busy:
            self._run(self._events.popleft())

    def tell_once(self, event: e.Event) -> None:
        """Take an event, unless an equal one already waits for its turn."""
        if event not in self._events:
            self.tell(event)

    def paused(self) -> None:
        """Report that this process stood still: other nodes may have acted meanwhile."""
        self.tell_once(e.Paused())

    def note_floor(self) -> None:
        self.machine.note_floor(self._log(), self._runtime.monotonic())

    def nameserver_told(self, epoch: int, master: str, ha_address: str) -> None:
        self.tell_once(e.NameserverTold(epoch, master, ha_address))

    def _run(self, event: e.Event) -> None:
        """Run steps until no event is left, or an awaited instruction takes time."""
        assert isinstance(event, e.Done) or not self._busy, f"{event} beside another step"
        self._busy = True
        while not self._closed:
            awaited = self._step(event)
            if awaited is not None:
                outcome = self._at_once(awaited)
                if outcome is None:
                    work = self._carry_out(awaited)
                    self._awaited = self._runtime.spawn(work, name="replication-step")
                    return
                event = outcome
            elif self._events:
                event = self._events.popleft()
            else:
                break
        self._awaited = None
        self._busy = False

    def _step(self, event: e.Event) -> e.Awaited | None:
        """Run one step and its instructions; return the awaited one, which is not done yet."""
        role = self._role
        before = role.state, role.why
        try:
            instructions = self.machine.step(event, self._log(), self._runtime.monotonic())
        except Exception:  # a bug: no writes rather than wrong ones
            log.critical("the rules failed at %s: no more writes", event, exc_info=True)
            self.close()
            role.depose("its rules failed, see its log; start it again")
            self._doors.retire()
            raise
        if (role.state, role.why) != before:
            level = logging.INFO if role.state in (State.MASTER, State.SLAVE) else logging.WARNING
            what = f"{role.state.value}: {role.why}" if role.why else role.state.value
            log.log(level, "this node %s", what)
            self._doors.wake()
        for instruction in instructions:
            if isinstance(instruction, e.Awaited):
                return instruction
            self._do(instruction)
        return None

    def _log(self) -> e.LogState:
        store, epochs = self._store, self._c.epochs
        marks = store.watermarks
        hears = self._slave.knows_confirmed
        return e.LogState(
            start=marks.start,
            end=marks.appended,
            confirmed=min(marks.confirmed, marks.dispatched) if hears else -1,
            epochs=tuple(epochs.entries),
            identity=epochs.identity,
            amnesia=store.amnesia,
            missing=tuple(store.missing),
            gaps=tuple(store.recovery.gaps),
            clean=store.recovery.clean,
            torn=bool(store.recovery.lost),
            failed=store.failed or "",
        )

    # -- awaited instructions

    def _at_once(self, awaited: e.Awaited) -> e.Done | None:
        """Execute an instruction that takes no time; None: this one takes time."""
        c = self._c
        try:
            match awaited:
                case e.TakeEpochs(epochs, identity):
                    adopt(c, identity)
                    c.epochs.replace(epochs)
                case e.Settle():
                    c.store.settle()
                case e.Compare(check):
                    if tail_checksum(c, check.start, check.end) != check.crc:
                        return e.Done("the checksums differ")
                case _:
                    return None
        except (SaturnError, OSError) as error:
            return e.Done(str(error) or type(error).__name__)
        return e.Done()

    async def _carry_out(self, awaited: e.Awaited) -> None:
        error = ""
        try:
            match awaited:
                case e.Save():
                    await self._doors.save()
                case e.Open(number, start):
                    await self._open(number, start)
                case e.Cut(offset, why):
                    await self._cut(offset, why)
                case e.CutTorn():
                    await self._doors.cut_torn()
                case e.PutBack(epochs):
                    await self._put_back(epochs)
        except (SaturnError, OSError) as failed:
            error = str(failed) or type(failed).__name__
        except Exception as failed:
            log.exception("%s failed", awaited)
            error = f"{type(failed).__name__}: {failed}"
        self._run(e.Done(error))

    async def _open(self, number: int, start: int) -> None:
        c = self._c
        assert start <= c.store.watermarks.appended, f"epoch {number} begins at {start}"
        await self._doors.keep_within()
        c.store.settle()
        identity = c.role.identity or draw(c)
        c.epochs.open(number, start, identity)
        adopt(c, identity)
        log.info("epoch %d begins at %d", number, start)

    async def _cut(self, offset: int, why: str) -> None:
        store, before = self._store, self._store.truncated()
        end = store.watermarks.appended
        log.warning("cutting the log from %d to %d: %s", end, offset, why)
        assert offset <= end, f"the log ends at {end}, it is to be cut at {offset}"
        await self._doors.cut(offset, why)
        assert store.watermarks.appended <= offset, f"{store.watermarks.appended} is left"
        self._side = next((side for side in store.truncated() if side not in before), None)

    async def _put_back(self, epochs: tuple[Epoch, ...]) -> None:
        side, end = self._side, self._store.watermarks.appended
        if side is not None and side.start <= end < side.end and epochs:
            self._c.epochs.replace(epochs)
            await self._doors.put_back(side)

    # -- instructions that run beside

    def _do(self, instruction: e.Instruction) -> None:
        c = self._c
        match instruction:
            case e.Say(text, alarm):
                log.log(logging.CRITICAL if alarm else logging.WARNING, "%s", text)
            case e.SaveSoon():
                self._doors.saved_soon()
            case e.After(what, seconds):
                self._after(what, seconds)
            case e.Ask():
                self._ask(instruction)
            case e.AskPromises():
                self._beside(self._ask_promises(instruction))
            case e.CopyBack(member):
                self._beside(self._told(e.CopiedBack, self._copy_back(member)))
            case e.Adopt(address):
                self._beside(self._told(e.Adopted, self._doors.adopt(address)))
            case e.Mend(ranges):
                self._beside(self._told(e.Mended, self._mend(ranges)))
            case e.Lead(promoted):
                self._lead(promoted=promoted)
            case e.Retire(why):
                self._doors.retire()
                if why:
                    c.ledger.fail_all(ResponseCode.FLUSH_SLAVE_TIMEOUT, why)
            case e.Freeze():
                c.master_confirmed = c.store.watermarks.confirmed
            case e.Register():
                self._registration.topics_changed()
            case e.LookForMaster():
                self._registration.look_for_master()
            case e.Dial(address, ha_address):
                self._slave.master_is(address, ha_address)
            case e.HangUp():
                self._hang_up()
            case e.GiveUp(link, why):
                self._slave.give_up(link, why)
            case e.SayJoin(link, fields, at):
                self._slave.say_join(link, fields, at)
            case e.GoOn(link, offset):
                self._master.go_on(link, offset)
            case e.Count(link):
                self._master.count(link)
            case e.Accept(link):
                self._master.accept(link)
            case e.Refuse(link, why, free_id):
                self._master.refuse(link, why, free_id=free_id)
            case e.Differs(link, check):
                c.runtime.spawn(self._differs(link, check), name="mend-log")
            case e.MergeBack(address):
                c.runtime.spawn(self._merge_back(address), name="merge-back")
            case e.DropSlaves():
                self._master.drop_slaves()
            case e.Answer() | e.Decline():
                self.on_answer(instruction)

    def _after(self, what: str, seconds: float) -> None:
        assert seconds > 0, f"{what} again in {seconds} s"
        if (timer := self._timers.pop(what, None)) is not None:
            timer.cancel()

        def over() -> None:
            self._timers.pop(what, None)
            self.tell(e.Again(what))

        self._timers[what] = self._runtime.call_later(seconds, over)

    def _ask(self, ask: e.Ask) -> None:
        if (before := self._asks.pop(ask.what, None)) is not None:
            before.cancel()
        if not ask.addresses and not (ask.nameservers and self._c.config.nameservers):
            self.tell(e.Polled(ask.what, ()))  # there is nobody to ask
            return
        self._asks[ask.what] = self._runtime.spawn(self._poll(ask), name=f"ask-{ask.what}")

    async def _poll(self, ask: e.Ask) -> None:
        asked = [self._members_at(ask.addresses)]
        if ask.nameservers:
            asked.append(self._registered_members(ask.addresses))
        found = tuple(itertools.chain.from_iterable(await asyncio.gather(*asked)))
        if ask.tables:
            identity, term = self._role.identity, self._role.promised_epoch
            joined = [m.address for m in found if has_joined(identity, term, m)]
            await asyncio.gather(*map(self._merge_back, joined))
        self.tell(e.Polled(ask.what, found))

    async def _members_at(self, addresses: Iterable[str]) -> list[MemberState]:
        told = await asyncio.gather(*(member_at(self._c, address) for address in addresses))
        return [member for member in told if member is not None]

    async def _registered_members(self, known: tuple[str, ...]) -> list[MemberState]:
        """The other nodes registered under this node's name: it may have forgotten its group."""
        await self._registration.ask_all(ASK_S)
        registered = await self._registration.members(ASK_S)
        return await self._members_at(sorted(registered - {*known}))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = self._runtime.spawn(work, name="replication-work")

    async def _told(self, outcome: Callable[[str], e.Event], work: Awaitable[None]) -> None:
        """Do this work, and report its outcome unless it is not wanted any more."""
        mine, error = asyncio.current_task(), ""
        try:
            await work
        except (SaturnError, OSError) as failed:
            error = str(failed) or type(failed).__name__
        if self._work is mine:
            self.tell(outcome(error))

    async def _copy_back(self, member: MemberState) -> None:
        """Copy the rest of this member's log. If this log is damaged before that place, mend it for
        the next try."""
        copy = self._copy = TailCopy(self._c, self._doors.wake)
        end = self._store.watermarks.appended
        log.warning(
            "%s has the log up to %d, this one ends at %d: copying it back",
            member.address,
            member.end,
            end,
        )
        try:
            await copy.run(member)
        except StoreDamaged as refused:
            what = await self._mending.answer(copy.differs, member.address)
            raise StoreDamaged(f"{refused}{what}") from refused

    async def _mend(self, ranges: tuple[tuple[e.Range, str], ...]) -> None:
        for (start, end), address in ranges:
            await self._mending.try_to_mend(start, end, address)

    async def _ask_promises(self, asked: e.AskPromises) -> None:
        promises = [self._promises(address, asked) for address in asked.addresses]
        self.tell(e.Promised(asked.fence, sum(await asyncio.gather(*promises))))

    async def _promises(self, address: str, asked: e.AskPromises) -> bool:
        """Whether the member there promises to serve and follow no node below that epoch."""
        ext = {"epoch": str(asked.fence), "term": str(asked.term)}
        try:
            await answer_of(self._c, address, Command.request(RequestCode.FENCE, ext))
        except (SaturnError, OSError, TimeoutError, ValueError) as error:
            log.info("%s does not promise epoch %d: %s", address, asked.fence, error)
            return False
        return True

    def _hang_up(self) -> None:
        self._slave.drop()
        if self._copy is not None:
            self._copy.close()
        self._work = None

    def _lead(self, *, promoted: bool) -> None:
        marks = self._store.watermarks
        assert self._role.state is State.MASTER, f"leads as {self._role.state.name}"
        if promoted:
            # Messages that the old master confirmed stay so; the others need enough copies first.
            marks.replicated = marks.confirmed
            self._master.expect_slaves()
            # Those that this node granted when it led before: their owners may have given them back
            # to another master.
            self._c.locks.clear()
        self._doors.lead()
        self._master.announce()
        self._doors.wake()
        self._registration.topics_changed()  # as the master of this epoch

    async def _merge_back(self, address: str) -> None:
        try:
            await self._doors.merge_back(address)
        except (SaturnError, OSError) as error:
            log.info("tables of slave %s not merged: %s", address, error)

    async def _differs(self, link: int, check: Check) -> None:
        """Find out which of two logs is damaged, and mend this one if it is."""
        where = f"the two logs differ between {check.start} and {check.end} within one epoch"
        address = self._master.name_of(link)
        try:
            mended = await self._mending.mend(check.start, check.end, address)
        except (SaturnError, OSError) as error:
            why = f"{where}; the master's is damaged and not mended: {error}"
            self._master.refuse(link, why)
            return
        if mended:
            why = f"{where}; the master's was damaged and is mended: join again"
            self._master.refuse(link, why)
            self._master.drop_slaves()  # the others may have copied the damage: they join again
        else:
            why = f"{where}; the frames of the master's are sound"
            self._master.refuse(link, why, differs=check)
