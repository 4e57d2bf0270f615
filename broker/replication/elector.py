"""Election at work: executes the instructions of `election.py`, and reports their outcomes to it.

One task asks etcd one thing at a time; a watch only says when to look again. A campaign, which may
take seconds, runs beside it, so that the lease is renewed meanwhile. `config/election.json` keeps
the rules' knowledge of etcd through restarts:

| key | meaning |
|---|---|
| cluster | the id of etcd's cluster |
| revision | etcd had at least this revision |
| recordChanged | the revision of the newest record of this group that was seen |
| members | the addresses that it named as members |
| forgot | why this etcd is not believed any more, until the file and its .bak are removed |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from saturnmq.broker.context import Context
from saturnmq.broker.etcd.door import Etcd, EtcdError, LeaseLost
from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.election import (
    READ_S,
    Campaign,
    Commit,
    Election,
    Facts,
    Follow,
    Grant,
    Instruction,
    Poll,
    Read,
    Renew,
    Revoke,
)
from saturnmq.broker.replication.group_record import Memory, addresses
from saturnmq.broker.replication.ha_master import HaMaster
from saturnmq.broker.replication.ha_slave import HaSlave
from saturnmq.broker.replication.identity import known
from saturnmq.broker.replication.role import State
from saturnmq.broker.tables.table_persistence import Document, Saveable
from saturnmq.protocol import checked
from saturnmq.runtime.errors import SaturnError

log = logging.getLogger(__name__)

LOOK_S = 0.1  # between two looks at this node's state
REVOKE_S = 1.0  # a stop in order waits so long for etcd
NOBODY: frozenset[str] = frozenset()
UINT64_MAX = (1 << 64) - 1


@dataclass
class Ballot:
    """The tools that a broker needs to take part in elections."""

    etcd: Etcd
    # Makes this node the master, as `admin promote` does. Arguments: its group and address, the
    # addresses of other members, and the campaign. A SaturnError says why it failed.
    promote: Callable[[str, str, list[str], Campaign], Awaitable[None]]
    # Raises the SaturnError with which such a promotion, by force or not, would be refused now.
    check: Callable[[str, str, list[str], bool], Awaitable[None]]


class SavedMemory(Saveable):
    """`config/election.json`."""

    def __init__(self) -> None:
        self.memory = Memory()
        self._noted: object = None

    def note(self) -> None:
        """Note changes worth saving. Revisions rise all the time: they are written along with other
        changes."""
        memory = self.memory
        known = (memory.cluster, memory.record_changed, memory.forgot)
        if known != self._noted:
            self._noted = known
            self.mark_dirty()

    def document(self) -> Document:
        memory = self.memory
        return {
            "cluster": memory.cluster,
            "revision": memory.revision,
            "recordChanged": memory.record_changed,
            "members": sorted(memory.members),
            "forgot": memory.forgot,
        }

    def load(self, document: Mapping[str, Any]) -> None:
        self.memory = Memory(
            checked.integer(document, "cluster", 0, most=UINT64_MAX),
            checked.integer(document, "revision", 0),
            checked.integer(document, "recordChanged", 0),
            addresses(document, "members"),
            checked.text(document, "forgot", ""),
        )


class ElectionService:
    def __init__(
        self,
        context: Context,
        ballot: Ballot,
        saved: SavedMemory,
        master: HaMaster,
        slave: HaSlave,
        *,
        tell: Callable[[e.Event], None],
        wake: Callable[[], None],
    ) -> None:
        self._c = context
        self._role = context.role
        self._runtime = context.runtime
        self._etcd, self._ballot = ballot.etcd, ballot
        self._saved = saved
        self._master, self._slave = master, slave
        self._tell = tell
        self._wake_turn = wake
        config = context.config
        names = (quote(config.cluster_name, safe=""), quote(config.broker_name, safe=""))
        self._prefix = "/saturnmq/{}/{}/".format(*names)
        self._election = Election(
            self._prefix,
            context.address,
            context.ha_address,
            saved.memory,
            lease_s=config.election_lease_s,
            priority=config.election_priority,
            unclean=config.elect_unclean,
        )
        self._look = asyncio.Event()
        self._campaign: asyncio.Task[None] | None = None  # or a poll
        # Until this time the master of this term needs no other node. Kept here, because it is
        # asked for in every turn.
        self._alone_until, self._alone_term = 0.0, 0
        self._told = ""

    def validate(self) -> None:
        """AssertionError: no answer of etcd leads to what this node believes."""
        self._election.validate()
        assert self._c.address not in self._election.counting(self._role.identity), "it counts"
        assert self._alone_term >= 0, f"it needs nobody's word in epoch {self._alone_term}"

    # for the broker

    def witnesses(self) -> frozenset[str]:
        """The nodes that must have a message before this master acknowledges it."""
        role = self._role
        if role.required > 1 and not self._c.config.elect_unclean:
            return NOBODY  # the copies that each send waits for are enough
        now = self._runtime.monotonic()
        if now < self._alone_until and role.log_epoch == self._alone_term:
            return NOBODY
        return self._election.witnesses(now, self._facts())

    def counts(self, address: str) -> bool:
        """Whether the reports of this slave count for an acknowledgement."""
        counting = self._election.counting(self._role.identity)
        return not counting or address in counting

    def refuses_group(self, identity: str) -> str:
        """Why this node follows no master of the group of this identity; empty if it may. A node
        with a log knows its group by itself (joining.py)."""
        return "" if known(self._c) else self._election.refuses_group(identity)

    def refuses(self) -> str:
        """Why this master should take no writes: a node that could be elected would lack them."""
        missing = self.witnesses() - self._master.followers()
        if not missing:
            return ""
        return (
            f"it has no lease from etcd, and {', '.join(sorted(missing))}, which could be elected, "
            "does not follow it"
        )

    def trouble(self) -> str:
        """Why no fail-over is possible now; empty if one is."""
        return self._election.trouble(self._runtime.monotonic(), self._facts())

    # the tasks

    async def run(self) -> None:
        runtime = self._runtime
        while True:
            self._look.clear()
            what = self._election.step(runtime.monotonic(), self._facts())
            if what is not None:
                await self._do(what)
                self._note()
                continue
            timer = runtime.call_later(LOOK_S, self._look.set)
            await self._look.wait()
            timer.cancel()

    async def watch(self) -> None:
        """Look at once when a key has changed."""
        while True:
            await self._runtime.sleep(READ_S)  # a read says where to begin
            revision = self._election.memory.revision
            try:
                async for news in self._etcd.watch(self._prefix, revision + 1):
                    if news.changes:
                        self._election.changed()
                        self._look.set()
            except EtcdError as error:
                log.info("the watch of %s begins again: %s", self._prefix, error)

    async def close(self) -> None:
        """Give the lease back, so that other nodes need not wait for its end."""
        if self._campaign is not None:
            self._campaign.cancel()
        revoke = self._election.stop()
        if revoke is not None:
            try:
                async with asyncio.timeout(REVOKE_S):
                    await self._etcd.revoke(revoke.lease)
            except (EtcdError, TimeoutError) as error:
                log.info("the lease is not given back: %s", error)
        await self._etcd.close()

    async def _do(self, what: Instruction) -> None:
        election, etcd = self._election, self._etcd
        sent_at = self._runtime.monotonic()
        try:
            match what:
                case Read():
                    election.saw(await etcd.read(self._prefix), sent_at)
                case Grant(seconds):
                    election.granted(await etcd.grant(seconds), sent_at)
                case Renew(lease):
                    election.renewed(await etcd.keep(lease), sent_at)
                case Revoke(lease):
                    await etcd.revoke(lease)
                case Commit(guards, writes):
                    await etcd.commit(guards, writes)
                case Poll(force):
                    self._campaign = self._runtime.spawn(self._poll(force=force), name="poll")
                case Campaign():
                    work = self._run_campaign(what)
                    self._campaign = self._runtime.spawn(work, name="campaign")
                case Follow(epoch, master, ha_address):
                    why = "etcd's record names it"
                    self._tell(e.Superseded(epoch, why, master, ha_address))
        except LeaseLost as error:
            log.warning("the lease from etcd is lost: %s", error)
            election.lost()
        except EtcdError as error:
            election.failed(str(error), self._runtime.monotonic())

    async def _run_campaign(self, campaign: Campaign) -> None:
        c = self._c
        log.warning("this node is %s", "preferred" if campaign.asks else "elected")
        try:
            await self._ballot.promote(c.config.broker_name, c.address, self._others(), campaign)
        except (SaturnError, OSError) as error:
            log.error("elected, but not promoted in epoch %d: %s", campaign.epoch, error)
        finally:
            led = c.role.state is State.MASTER
            self._election.campaign_ended(c.runtime.monotonic(), led=led)
            self._look.set()

    async def _poll(self, *, force: bool) -> None:
        c, why = self._c, "it was not asked to its end"
        try:
            await self._ballot.check(c.config.broker_name, c.address, self._others(), force)
            why = ""
        except (SaturnError, OSError) as error:
            why = f"this node cannot be elected: {error}"
        finally:
            self._election.polled(c.runtime.monotonic(), why)
            self._look.set()

    def _others(self) -> list[str]:
        """The addresses of the other members, as this node and etcd know them."""
        c = self._c
        return sorted({*c.role.replicas.values(), *self._election.members()} - {c.address})

    def _note(self) -> None:
        """Act on a change of the rules' knowledge: how long this master may acknowledge alone,
        which notes to save, and whether a fail-over is possible."""
        facts, now = self._facts(), self._runtime.monotonic()
        self._alone_term = facts.term
        self._alone_until = self._election.holds_until(facts)
        self._master.recount()
        self._wake_turn()
        self._saved.note()
        trouble = self._election.trouble(now, facts)
        if trouble != self._told:
            self._told = trouble
            level = logging.CRITICAL if self._election.refused else logging.WARNING
            if trouble:
                log.log(level, "no fail-over is possible: %s", trouble)
            else:
                log.info("a fail-over is possible")

    def _facts(self) -> Facts:
        c = self._c
        role, store = c.role, c.store
        leads = role.state is State.MASTER
        return Facts(
            leads=leads,
            follows=role.state is State.SLAVE,
            deposed=role.state is State.FENCED,
            term=role.log_epoch,
            epoch=role.promised_epoch,
            identity=role.identity if leads else known(c),
            end=store.watermarks.appended,
            required=role.required,
            hears_master=self._slave.hears_master(c.config.election_lease_s),
            unfit=store.failed or role.lacks or "",
            may_lack=not role.caught_up,
            in_sync=self._master.in_sync() if leads else {},
            confirmed=store.watermarks.confirmed,
            replicas=frozenset(role.replicas.values()) - {c.address},
        )
