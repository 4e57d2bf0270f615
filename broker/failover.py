"""Fail-over: who is the master of this group, and what this node does when that changes.

The rules, all about one danger: two nodes that both acknowledge.

- A term of a master is an epoch (`protocol/epochs.py` counts them): two nodes that cannot hear each
  other never open the same one, and a promotion outranks restarts. It is written down before it is
  acted on.
- A master starts UNSURE: nameservers and the replicas that it knows are asked for a higher epoch
  first. So it does after a pause of its own. Who does not answer within ASK_S does not count: with
  nobody to ask it goes on, and what it then acknowledges is what its ack mode promises.
- A restarted SYNC_MASTER with ASYNC_FLUSH that did not stop in order may lack acknowledged
  messages that slaves have (the power failed before its disk had them). It is RECOVERING until so
  many slaves have joined that one of them must have whatever was acknowledged, and copies the
  longest tail back.
- FENCE makes a node promise never to serve or follow a lower epoch: a master stops taking writes,
  goes on sending what it has, and waits to learn its new master. PROMOTE makes a node master.
- Who learns that it is deposed answers its waiting sends with "unknown", follows the new master
  and cuts what that one does not have, into a side file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from saturnmq.broker.context import Context, answer, integer
from saturnmq.broker.ha_master import HaMaster, SlaveConnection
from saturnmq.broker.ha_slave import HaSlave
from saturnmq.broker.registration import Registration
from saturnmq.broker.role import MASTER_ID, State
from saturnmq.broker.tail_copy import TailCopy
from saturnmq.protocol import jsonx
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint, connect
from saturnmq.protocol.epochs import next_promotion, next_restart
from saturnmq.protocol.errors import (
    NoPermission,
    SaturnError,
    error_for,
)
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.runtime import split_address
from saturnmq.store.epochs import Epoch

log = logging.getLogger(__name__)

ASK_S = 1.0  # how long the others have to say whether they know of a higher epoch
LOOK_S = 1.0  # how often a fenced node looks for its new master


@dataclass
class Doors:
    """What the broker does for its fail-over."""

    save: Callable[[], Awaitable[None]]  # the role is on the disk when this returns
    cut_torn: Callable[[], Awaitable[None]]  # a last frame that never came whole
    wake: Callable[[], None]  # the turn looks again at what is confirmed
    lead: Callable[[], None]  # begin what only a master does
    retire: Callable[[], None]  # end it
    merge_back: Callable[[str], Awaitable[None]]  # the tables of a slave that may know more


@dataclass
class _Heard:
    """A slave of a master that recovers."""

    ha_address: str
    end: int
    epochs: list[Epoch]


class FailoverService:
    def __init__(
        self,
        context: Context,
        master: HaMaster,
        slave: HaSlave,
        registration: Registration,
        doors: Doors,
    ) -> None:
        self._c = context
        self._master = master
        self._slave = slave
        self._registration = registration
        self._doors = doors
        context.role.on_unsure = self.unsure
        master.on_joined, master.on_higher_epoch = self.slave_joined, self.higher_epoch
        registration.on_higher_epoch = self.higher_epoch
        self._lock = asyncio.Lock()
        self._heard: dict[int, _Heard] = {}
        self._recovering: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    def close(self) -> None:
        for task in (self._recovering, self._looking, self._asking):
            if task is not None:
                task.cancel()

    # the start

    async def begin(self) -> None:
        """Find out what this node is, as far as that takes a bounded time."""
        c = self._c
        role, store = c.role, c.store
        role.epoch = max(role.epoch, role.term)
        role.alive_at = c.runtime.monotonic()
        found = store.recovery
        flushed = c.config.sync_flush and not found.lost  # then all it acknowledged is here
        may_lack = not found.clean and role.required > 1 and bool(role.replicas) and not flushed
        if may_lack:  # a slave, too: what it had reported it may have lost
            role.behind(True)
        if role.state is State.SLAVE:
            return
        if role.epoch > role.term:
            role.depose(f"it has promised to serve no epoch below {role.epoch}")
            self._look_for_master()
            return
        if may_lack:
            role.next_state, role.why = State.RECOVERING, self._missing()
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
        """Take writes unless somebody knows of a higher epoch."""
        c = self._c
        replicas = [address for address in c.role.replicas.values() if address != c.address]
        _, *states = await asyncio.gather(
            self._registration.ask_all(ASK_S), *map(self._state_of, replicas)
        )
        known = [state for state in states if state is not None]
        for state in known:
            if int(state["epoch"]) > c.role.term and c.role.state is State.UNSURE:
                self.higher_epoch(int(state["epoch"]), f"{state['address']} knows of it")
        if c.role.state is not State.UNSURE:
            return
        if c.role.next_state is State.MASTER:
            try:
                self._open_term()
            except OSError as error:  # a full disk is not full for ever
                log.error("the new epoch cannot be written down, trying again: %s", error)
                c.role.why = f"its new epoch cannot be written down: {error}"
                return
        c.role.sure()
        if c.role.state is State.MASTER:
            self._lead()
        else:
            self._try_to_recover()

    def _open_term(self) -> None:
        """A new epoch where the log may have lost, or never had, what others have."""
        c = self._c
        fresh = not c.epochs.entries
        if fresh or (not c.store.recovery.clean and not c.role.leads_since_start):
            self._open(next_restart(c.role.epoch, c.config.broker_id), fresh=fresh)
        c.role.leads_since_start = True

    def _open(self, number: int, *, fresh: bool = False) -> None:
        """Without letting anything else happen: news of another master must not come between."""
        c = self._c
        start = 0 if fresh else c.store.watermarks.appended
        c.epochs.open(number, start)
        c.role.promise(number)
        c.role.term = number
        log.info("epoch %d begins at %d", number, start)

    def _lead(self) -> None:
        self._c.role.lead(self._c.runtime.monotonic())
        self._c.role.behind(False)
        self._heard.clear()
        self._doors.lead()
        self._master.announce()
        self._doors.wake()
        self._registration.topics_changed()  # as the master of this epoch

    # a restarted master that may have lost what it acknowledged

    def _missing(self) -> str:
        role = self._c.role
        missing = sorted(set(role.replicas) - set(self._heard))
        return (
            f"of the slaves {sorted(role.replicas)} it has not heard {missing}; they may have "
            "acknowledged messages that this log lost. Start them, or say `saturnmq admin promote "
            f"{self._c.config.broker_name} {self._c.address} --force` to go on without"
        )

    def slave_joined(self, connection: SlaveConnection) -> None:
        """A slave of ours has said who it is."""
        c, join = self._c, connection.join
        role, broker_id, address = c.role, int(join["brokerId"]), str(join["address"])
        if broker_id != MASTER_ID and not role.is_slave:
            role.knows(broker_id, address)
            if "from" in join:
                c.runtime.spawn(self._merge_back(address), name="merge-back")
        if role.state in (State.RECOVERING, State.UNSURE):
            epochs = [Epoch(int(number), int(start)) for number, start in join["epochs"]]
            self._heard[broker_id] = _Heard(str(join["haAddress"]), int(join["end"]), epochs)
            self._try_to_recover()

    async def _merge_back(self, address: str) -> None:
        try:
            await self._doors.merge_back(address)
        except (SaturnError, OSError) as error:
            log.info("tables of slave %s not merged: %s", address, error)

    def _try_to_recover(self) -> None:
        """With n slaves, of which required - 1 have what was acknowledged, one of any
        n - required + 2 has it."""
        role = self._c.role
        if role.state is not State.RECOVERING:
            return
        role.why = self._missing()
        slaves = len(role.replicas)
        if len(self._heard) < max(1, min(slaves, slaves - role.required + 2)):
            return
        if self._recovering is None or self._recovering.done():
            self._recovering = self._c.runtime.spawn(self._recover(), name="recover-tail")

    async def _recover(self) -> None:
        async with self._lock:
            c = self._c
            if c.role.state is not State.RECOVERING:
                return
            end = c.store.watermarks.appended
            ahead = [
                heard
                for heard in self._heard.values()
                if heard.end > end and self._is_prefix_of(heard)
            ]
            if ahead:
                longest = max(ahead, key=lambda heard: heard.end)
                log.warning(
                    "%s has %d bytes of this log that were lost here: copying them back",
                    longest.ha_address,
                    longest.end - end,
                )
                try:
                    await TailCopy(c, self._doors.wake).run(longest.ha_address, longest.end)
                    await self._doors.cut_torn()
                except (SaturnError, OSError) as error:
                    log.error("the tail was not copied, trying again: %s", error)
                    self._heard.clear()
                    c.role.why = f"{self._missing()}; the last try failed: {error}"
                    return
            if c.role.state is not State.RECOVERING:
                return  # somebody knew of a higher epoch meanwhile
            try:
                self._open_term()
            except OSError as error:
                log.error("the new epoch cannot be written down, trying again: %s", error)
                self._heard.clear()
                return
            self._lead()

    def _is_prefix_of(self, heard: _Heard) -> bool:
        end = self._c.store.watermarks.appended
        if not self._c.epochs.entries or not end:
            return True
        common = self._c.epochs.common(end, heard.epochs, heard.end)
        return common is not None and common[1] == end

    # roles from outside

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
        self._step_down()
        if master and ha_address:
            c.runtime.spawn(self._follow(master, ha_address), name="follow")

    def _step_down(self) -> None:
        self._doors.retire()
        self._c.ledger.fail_all(
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            "stored here, but this node is not the master any more: the outcome is unknown",
        )
        self._master.drop_slaves()
        self._look_for_master()

    def _look_for_master(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = self._c.runtime.spawn(self._look(), name="look-for-master")

    async def _look(self) -> None:
        """Until this node knows whom to follow."""
        c = self._c
        while c.role.state is State.FENCED:
            await self._registration.ask_all(ASK_S)
            for address in [a for a in c.role.replicas.values() if a != c.address]:
                state = await self._state_of(address)
                if state and state["role"] == "master" and int(state["epoch"]) >= c.role.epoch:
                    await self._follow(str(state["address"]), str(state["haAddress"]))
            await c.runtime.sleep(LOOK_S)

    async def _follow(self, master: str, ha_address: str) -> None:
        """Become a slave of this master."""
        c = self._c
        async with self._lock:
            if c.role.state is not State.FENCED:
                return
            state = await self._state_of(master)
            if state is None or int(state["epoch"]) < c.role.epoch:
                return  # it is looked for again
            free = int(state.get("freeId") or c.config.broker_id or 1)
            undo = c.role.undo()
            # Of what it has beyond that its consumers see nothing before the new master says so.
            c.master_confirmed = c.store.watermarks.confirmed
            c.role.promise(int(state["epoch"]))
            c.role.follow(free)
            c.role.behind(True)  # until it has what the new master had confirmed
            try:
                await self._doors.save()
            except OSError as error:
                log.error("the new role cannot be written down, trying again: %s", error)
                undo(int(state["epoch"]))
                return
        log.warning("this node is a slave now (id %d), following %s", free, ha_address)
        self._master.drop_slaves()
        self._slave.master_is(master, ha_address)
        self._registration.topics_changed()

    async def _state_of(self, address: str) -> dict[str, Any] | None:
        """REPLICA_STATE of another node; None if it does not answer."""
        try:
            async with asyncio.timeout(ASK_S):
                endpoint = await connect(self._c.runtime, *split_address(address))
                try:
                    reply = await endpoint.request(
                        Command.request(RequestCode.REPLICA_STATE, {}), ASK_S
                    )
                finally:
                    endpoint.close()
            if reply.code:
                raise error_for(reply.code, reply.remark)
            state = jsonx.loads(bytes(reply.body))
            return state if isinstance(state, dict) else None
        except (SaturnError, OSError, TimeoutError, ValueError) as error:
            log.debug("%s does not tell its state: %s", address, error)
            return None

    # requests

    def on_state(self, endpoint: Endpoint, request: Command) -> None:
        answer(endpoint, request, request.reply(0, body=jsonx.dumps(self.state())))

    def on_fence(self, endpoint: Endpoint, request: Command) -> None:
        epoch = integer(request.ext, "epoch")
        self._later(endpoint, request, self._fence(epoch))

    def on_promote(self, endpoint: Endpoint, request: Command) -> None:
        epoch = integer(request.ext, "epoch")
        force, end = request.ext.get("force") == "true", integer(request.ext, "end", 0)
        self._later(endpoint, request, self._promote(epoch, end, force=force))

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

    async def _fence(self, epoch: int) -> None:
        c = self._c
        async with self._lock:
            if epoch <= c.role.epoch:
                raise NoPermission(
                    f"epoch {epoch} is not above {c.role.epoch}, which this node knows already"
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

    async def _promote(self, epoch: int, end: int, *, force: bool) -> None:
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
                role.becomes_master(number)
                await self._doors.save()
                if role.epoch > number:
                    raise NoPermission(f"epoch {role.epoch} has begun meanwhile")
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
        taken = set(role.replicas)
        return {
            "brokerName": c.config.broker_name,
            "brokerId": role.broker_id,
            "address": c.address,
            "haAddress": self._registration.ha_address,
            "role": role.state_name,
            "epoch": role.epoch,
            "epochs": c.epochs.to_json(),
            "start": marks.start,
            "end": marks.appended,
            "flushed": marks.flushed,
            "confirmed": marks.confirmed,
            "required": role.required,
            "total": c.config.total_replicas,
            "replicas": {str(i): address for i, address in sorted(role.replicas.items())},
            "caughtUp": role.caught_up,
            "freeId": min(set(range(1, len(taken) + 2)) - taken),
            "inSync": [x.broker_id for x in replicas if x.lag.in_sync],
            "lagBytes": {str(x.broker_id): x.lag.size(marks.appended) for x in replicas},
            "lagMs": {
                str(x.broker_id): round(1000 * x.lag.seconds(marks.appended, now)) for x in replicas
            },
            "bytesPerS": {str(x.broker_id): x.sent_per_s for x in replicas},
            "master": c.address if not role.is_slave else self._slave.master_address,
            "truncated": [{"file": cut.file, **cut.to_json()} for cut in c.store.truncated()],
            "refuses": c.store.failed or c.store.refuses or role.refuses(now),
            "trouble": self._slave.refused if role.is_slave else "",
        }
