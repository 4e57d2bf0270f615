"""Nodes whose rules are the machine of replication (`machine_node.py`), and everything between
them: connections, a nameserver, an operator, and what goes wrong.

Every step of a world is an action, a tuple that names what happens next. `World.actions` lists all
that may; `World.act` does one, and then looks whether all promises hold (`machine_promises.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from machine_node import DAMAGED, Disk, Message, Node
from machine_operator import Promotion
from machine_promises import Broken, Promises
from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.introductions import Check, Hello, Join, MemberState
from saturnmq.broker.replication.kinship import is_foreign
from saturnmq.broker.replication.role import State
from saturnmq.client.admin.replicas import Replica
from saturnmq.store.log.epochs import Epoch

Action = tuple[Any, ...]
COPYING = 999  # the number of a connection that copies back
LATE_S = 20.0  # longer than a promotion takes
QUIET = (  # what happens by itself
    *("dial", "down", "finish", "flush", "hear", "idle", "operate", "poll", "promises"),
    *("register", "report", "save", "send", "timer", "up", "work"),
)
TROUBLES = (  # what goes wrong, or is asked for; a budget says how often
    *("abandon", "break", "copy", "damage", "die", "fail", "fault", "force", "forget", "hours"),
    *("isolate", "kill", "late", "lose_front", "lose_log", "pause", "power", "promote", "stale"),
    *("stop", "wipe", "write"),
)
FUSES = ("die", "fail", "fault")  # dies before it, it fails, it is reported so and is saved


@dataclass
class Transfer:
    """A piece of the log on its way: one message, or none."""

    offset: int
    message: Message | None
    confirmed: int


@dataclass
class Report:
    end: int


@dataclass
class Lost:
    """The other side has closed the connection."""


@dataclass
class Link:
    """From a slave to the node that it dialled."""

    slave: str
    master: str
    up: list[Join | Report | Lost] = field(default_factory=list)
    down: list[Hello | Transfer | e.Accepted | e.Refused | e.GroupTold | Lost] = field(
        default_factory=list
    )
    gone: frozenset[str] = frozenset()  # the sides that have closed it
    # the master's
    next: int | None = None  # what it sends
    counts: bool = False
    reported: int = -1
    told: int = -1  # how far it confirms
    # the slave's
    hello: Hello | None = None
    joined: bool = False
    coming: tuple[Epoch, ...] = ()
    said: int = -1  # what it has reported

    def other(self, name: str) -> str:
        return self.master if name == self.slave else self.slave


class World:
    """A master and so many slaves; a send waits for `required` copies."""

    def __init__(
        self,
        slaves: int = 1,
        required: int = 2,
        *,
        sync_flush: bool = True,
        slow: bool = False,
        **budget: int,
    ) -> None:
        """`slow`: what a step awaits takes time, in which others act."""
        self.required, self.sync_flush, self.slow = required, sync_flush, slow
        self.nodes: dict[str, Node] = {}
        for broker_id in range(slaves + 1):
            self.add("abcd"[broker_id], broker_id, required)
        self.links: dict[int, Link] = {}
        self.promises = Promises()
        self.written = self.drawn = 0
        self.now = 0.0
        self.away = ""  # the one node that nobody reaches
        self.nameserver: tuple[int, str, str] | None = None  # epoch, address, identity
        self.promotion: Promotion | None = None
        self.refused = ""  # why an operator promoted nobody
        self.late: tuple[str, e.Event] | None = None  # in the socket of a node
        self.copy: tuple[str, Disk] | None = None  # of a disk, to be put back later
        self.damaged = ""  # the node that has lost something, and has not got it again
        self.budget = dict.fromkeys(TROUBLES, 0) | budget
        assert len(self.budget) == len(TROUBLES), f"{budget} has something unknown"
        self.trace: list[tuple[str, e.Event | None, list[e.Instruction]]] = []

    def add(self, name: str, broker_id: int, required: int) -> None:
        sync_flush = self.sync_flush
        self.nodes[name] = Node(name, broker_id, required, sync_flush=sync_flush, draw=self._draw)

    def _draw(self) -> str:
        self.drawn += 1
        return f"{self.drawn:032x}"

    # -- what may happen

    def actions(self) -> Iterator[Action]:
        for name, node in self.nodes.items():
            if self.budget["isolate"] and not self.away:
                yield ("isolate", name)
            if node.machine is None:
                yield ("start", name)
                yield from self._damages(name)
            else:
                yield from self._quiet(node)
                yield from self._troubles(node)
        for number, link in self.links.items():
            yield from self._of_link(number, link)
        if self.away:
            yield ("heal",)
        if self.late is not None:
            yield ("arrive",)
        if self.promotion is not None:
            if self._may_operate(self.promotion):
                yield ("operate",)
            elif self.budget["abandon"]:
                yield ("give_up",)
            if self.budget["abandon"]:
                yield ("abandon",)
        if self.budget["forget"] and self.nameserver:
            yield ("forget",)
        if self.budget["hours"]:
            yield ("hours",)

    def _quiet(self, node: Node) -> Iterator[Action]:
        name = node.name
        if node.awaited is not None:
            yield ("finish", name)
        for what in node.asks:
            yield ("poll", name, what)
        if node.work is not None:
            yield ("work", name)
        if node.promises is not None:
            yield ("promises", name)
        for what in sorted(node.timers):
            yield ("timer", name, what)
        if node.role.snapshot() != node.disk.role and node.awaited is None:
            yield ("save", name)
        if node.disk.flushed < node.disk.end:
            yield ("flush", name)
        if name != self.away:
            if self._registers(node):
                yield ("register", name)
            if self._hears(node) is not None:
                yield ("hear", name)
        if self._dials(node):
            yield ("dial", name)

    def _troubles(self, node: Node) -> Iterator[Action]:
        name, budget = node.name, self.budget
        if budget["write"] and node.leads:
            yield ("write", name)
        for what in ("kill", "stop"):
            if budget[what]:
                yield (what, name)
        if budget["power"] and self._may_damage(name):
            yield ("power", name)
        for what in FUSES:
            if budget[what] and node.fuse is None:
                yield from ((what, name, count) for count in (1, 2, 3, 4))
        if budget["pause"] and node.leads:
            yield ("pause", name)
        for what in ("promote", "force"):
            if budget[what] and self.promotion is None and not node.leads:
                yield (what, name)
        if budget["break"] and isinstance(node.work, e.CopyBack):
            yield ("break", name)
        if budget["stale"]:
            yield from (("stale", name, what) for what in node.asks)

    def _damages(self, name: str) -> Iterator[Action]:
        if not self._may_damage(name):
            return
        for what in ("wipe", "lose_log", "lose_front", "damage"):
            if self.budget[what] and self.nodes[name].disk.log:
                yield (what, name)
        if self.copy is not None and self.copy[0] == name:
            yield ("restore", name)
        elif self.copy is None and self.budget["copy"]:
            yield ("copy", name)

    def _may_damage(self, name: str) -> bool:
        """One node at a time loses what it had, and another one has all that counts."""
        if self.damaged and not self._has_all(self.damaged):
            return False
        return any(self._has_all(other) for other in self.nodes if other != name)

    def _has_all(self, name: str) -> bool:
        promises = self.promises
        return self.nodes[name].disk.has_all({*promises.acked, *promises.shown})

    def _of_link(self, number: int, link: Link) -> Iterator[Action]:
        if self.away in (link.slave, link.master):
            yield ("idle", number)
            return
        if link.up and link.master not in link.gone:
            yield ("up", number)
        if link.down and link.slave not in link.gone:
            yield ("down", number)
        if link.next is not None and not link.gone:
            master = self.nodes[link.master]
            waits = any(isinstance(each, Transfer) for each in link.down)
            if not waits and (link.next < master.disk.end or link.told < master.confirmed):
                yield ("send", number)
        if link.joined and not link.gone and link.said != self.nodes[link.slave].disk.end:
            yield ("report", number)

    def reaches(self, one: str, other: str) -> bool:
        return other in self.nodes and self.nodes[other].runs and self.away not in (one, other)

    def _link_of(self, slave: str) -> int | None:
        found = (n for n, x in self.links.items() if x.slave == slave and slave not in x.gone)
        return next(found, None)

    def _dials(self, node: Node) -> bool:
        slave = node.is_(State.SLAVE) and node.dials and self._link_of(node.name) is None
        return bool(slave) and self.reaches(node.name, node.dials)

    # -- what happens

    def act(self, action: Action) -> None:
        kind, *rest = action
        getattr(self, f"_on_{kind}")(*rest)
        for node in self.nodes.values():
            if node.machine is not None:
                done = node.confirm()
                node.machine.note_floor(node.facts(), self.now)
                if not node.is_foreign:
                    self.promises.acknowledged(node, done, self._members())
                    self.promises.showed(node)
        nodes = self._members()
        self.promises.check(nodes, [node for node in nodes if self._can_acknowledge(node)])

    def _members(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.is_foreign]

    def _can_acknowledge(self, node: Node) -> bool:
        """Whether this master has so many slaves that a new message may be acknowledged."""
        following = [
            link
            for number, link in self.links.items()
            if link.master == node.name and not link.gone and link.counts and link.joined
        ]
        return node.leads and len(following) >= node.role.required - 1

    def _spend(self, what: str) -> None:
        self.budget[what] -= 1

    def _on_start(self, name: str) -> None:
        node = self.nodes[name]
        node.start()
        self.tell(node, e.Started())

    def _on_kill(self, name: str) -> None:
        self._spend("kill")
        self._down(self.nodes[name])

    def _on_stop(self, name: str) -> None:
        self._spend("stop")
        self._down(self.nodes[name], clean=True)

    def _on_power(self, name: str) -> None:
        """What was not flushed is gone."""
        self._spend("power")
        node = self.nodes[name]
        self._down(node)
        node.disk = node.disk.cut(max(node.disk.flushed, node.disk.start))
        self._lost(name)

    def _down(self, node: Node, *, clean: bool = False) -> None:
        node.ends(clean=clean)
        for number, link in [*self.links.items()]:
            if node.name in (link.slave, link.master):
                self._close(number, node)
        if self.late is not None and self.late[0] == node.name:
            self.late = None

    def _on_die(self, name: str, count: int) -> None:
        self._set_fuse("die", name, count)

    def _on_fail(self, name: str, count: int) -> None:
        self._set_fuse("fail", name, count)

    def _on_fault(self, name: str, count: int) -> None:
        self._set_fuse("fault", name, count)

    def _set_fuse(self, what: str, name: str, count: int) -> None:
        self._spend(what)
        self.nodes[name].fuse = count, what

    def _on_pause(self, name: str) -> None:
        self._spend("pause")
        self.tell(self.nodes[name], e.Paused())

    def _on_isolate(self, name: str) -> None:
        self._spend("isolate")
        self.away = name

    def _on_heal(self) -> None:
        self.away = ""

    def _on_hours(self) -> None:
        """Time passes."""
        self._spend("hours")
        self.now += LATE_S

    def _on_wipe(self, name: str) -> None:
        self._spend("wipe")
        self.nodes[name].clean, self.nodes[name].is_foreign = True, False
        self._new_disk(name, Disk())

    def _on_lose_log(self, name: str) -> None:
        self._spend("lose_log")
        disk = self.nodes[name].disk
        missing = ((disk.start, disk.end),)
        self._new_disk(name, Disk(disk.role, amnesia="its log is gone", missing=missing))

    def _on_lose_front(self, name: str) -> None:
        self._spend("lose_front")
        disk = self.nodes[name].disk
        first = disk.start + (len(disk.log) + 1) // 2
        why, missing = "the first segments are gone", ((disk.start, first),)
        log = disk.part(first, disk.end)
        left = replace(disk, start=first, log=log, amnesia=why, missing=missing)
        self._new_disk(name, left)

    def _on_damage(self, name: str) -> None:
        """A bit of its first message flips."""
        self._spend("damage")
        disk = self.nodes[name].disk
        self._new_disk(name, replace(disk, log=(DAMAGED, *disk.log[1:])))

    def _new_disk(self, name: str, disk: Disk) -> None:
        self.nodes[name].disk = disk
        self._lost(name)

    def _lost(self, name: str) -> None:
        self.damaged = name
        self.promises.lost_disk(self.nodes[name])

    def _on_copy(self, name: str) -> None:
        self._spend("copy")
        self.copy = name, self.nodes[name].disk

    def _on_restore(self, name: str) -> None:
        assert self.copy is not None, "there is one"
        self.nodes[name].clean = True
        self._new_disk(name, self.copy[1])
        self.copy = "", Disk()

    def _on_write(self, name: str) -> None:
        self._spend("write")
        node = self.nodes[name]
        self.written += 1
        message = node.role.log_epoch, self.written
        node.append(node.disk.end, message)
        node.waiting = (*node.waiting, (node.disk.end, message))

    def _on_flush(self, name: str) -> None:
        self.nodes[name].flush()

    def _on_save(self, name: str) -> None:
        self.nodes[name].save()

    def _on_finish(self, name: str) -> None:
        node = self.nodes[name]
        node.busy = True
        self._finish(node)
        node.busy = False
        self._run(node)

    def _on_timer(self, name: str, what: str) -> None:
        node = self.nodes[name]
        node.timers -= {what}
        self.tell(node, e.Again(what))

    # -- questions

    def _on_poll(self, name: str, what: str, *, keep: bool = False) -> None:
        node = self.nodes[name]
        ask = node.asks[what] if keep else node.asks.pop(what)
        if ask.nameservers and self.away != name:
            self._register(node)
            self._tell_master(node)
        members = [self.nodes[x].member() for x in ask.addresses if self.reaches(name, x)]
        if node.runs:
            self.tell(node, e.Polled(what, tuple(members)))

    def _on_stale(self, name: str, what: str) -> None:
        """It is asked again before all have answered: what it hears is old soon."""
        self._spend("stale")
        self._on_poll(name, what, keep=True)

    def _on_promises(self, name: str) -> None:
        node = self.nodes[name]
        asked, node.promises = node.promises, None
        assert asked is not None, "it asks"
        fence = e.Fence(0, asked.fence, asked.term)
        count = sum(
            self.reaches(name, other) and self._request(other, fence) for other in asked.addresses
        )
        self.tell(node, e.Promised(asked.fence, count))

    def _registers(self, node: Node) -> bool:
        """A nameserver takes no master of a lower epoch than it knows, nor one of another group."""
        known = self.nameserver
        if node.is_(State.SLAVE, State.FENCED):
            return False
        if known is None:
            return True
        return not is_foreign(known[2], node.group) and node.role.log_epoch > known[0]

    def _register(self, node: Node) -> None:
        if self._registers(node):
            self.nameserver = node.role.log_epoch, node.name, node.group

    def _on_register(self, name: str) -> None:
        self._register(self.nodes[name])

    def _hears(self, node: Node) -> e.NameserverTold | None:
        """What the nameserver tells this node that is new to it."""
        if self.nameserver is None or is_foreign(self.nameserver[2], node.group):
            return None
        epoch, master, _ = self.nameserver
        role = node.role
        if role.state is not State.SLAVE:
            master = "" if master == node.name else master
            return e.NameserverTold(epoch, master, master) if epoch > role.log_epoch else None
        new = master not in (node.name, node.dials) and epoch >= min(
            role.promised_epoch, node.newest
        )
        return e.NameserverTold(epoch, master, master) if new else None

    def _tell_master(self, node: Node) -> None:
        told = self._hears(node)
        if told is not None:
            node.newest = max(node.newest, told.epoch)
            self.tell(node, told)

    def _on_hear(self, name: str) -> None:
        self._tell_master(self.nodes[name])

    def _on_forget(self) -> None:
        """The nameserver is restarted."""
        self._spend("forget")
        self.nameserver = None

    # -- connections

    def _on_dial(self, name: str) -> None:
        taken = {*self.links}
        for node in self.nodes.values():
            taken |= {event.link for event in node.inbox if isinstance(event, e.LinkLost)}
        number = min({*range(1, len(taken) + 2)} - taken)
        master = self.nodes[name].dials
        self.links[number] = Link(name, master, down=[self.nodes[master].hello()])

    def _on_idle(self, number: int) -> None:
        """Both sides have waited for too long."""
        link = self.links[number]
        for name in (link.slave, link.master):
            self._close(number, self.nodes[name])
        self._over(number)

    def _close(self, number: int, by: Node) -> None:
        """What is on its way to the other side still comes there, and then the end."""
        link = self.links.get(number)
        if link is None or by.name in link.gone:
            return
        link.gone |= {by.name}
        mine, theirs = (link.down, link.up) if by.name == link.slave else (link.up, link.down)
        mine.clear()
        theirs.append(Lost())
        if len(link.gone) == 2 or not self.nodes[link.other(by.name)].runs:
            self._over(number)
        if by.runs:
            self.tell(by, e.LinkLost(number))

    def _over(self, number: int) -> None:
        self.links.pop(number, None)

    def _on_up(self, number: int) -> None:
        link = self.links[number]
        master = self.nodes[link.master]
        match link.up.pop(0):
            case Lost():
                self._close(number, master)
            case Report(end):
                link.reported = end
                self._recount(master)
            case Join() as join:
                link.reported = -1
                self.tell(master, e.Joined(number, join))

    def _on_down(self, number: int) -> None:
        link = self.links[number]
        slave = self.nodes[link.slave]
        match link.down.pop(0):
            case Lost():
                self._close(number, slave)
            case Hello() as hello:
                link.joined, link.hello = False, hello
                self.tell(slave, e.Greeted(number, hello))
            case Transfer() as transfer:
                self._receives(number, link, slave, transfer)
            case e.Refused() as refused:
                self._close(number, slave)
                self.tell(slave, refused)
            case told:
                self.tell(slave, told)

    def _on_send(self, number: int) -> None:
        link = self.links[number]
        master = self.nodes[link.master]
        offset = link.next
        assert offset is not None, "it is sent"
        if not master.disk.start <= offset <= master.disk.end:
            self._close(number, master)
            return
        (message,) = master.disk.part(offset, offset + 1) or (None,)
        link.next = offset + (message is not None)
        link.told = master.confirmed
        link.down.append(Transfer(offset, message, master.confirmed))

    def _receives(self, number: int, link: Link, slave: Node, transfer: Transfer) -> None:
        offset, message = transfer.offset, transfer.message
        fits = not slave.disk.log or slave.disk.end == offset
        if not link.joined or not fits or message == DAMAGED:
            self._close(number, slave)
            return
        if message is not None:
            while link.coming and link.coming[0].start <= offset + 1:
                first, *rest = link.coming
                slave.open(*first)
                self.tell(slave, e.EpochBegan(first.number))
                link.coming = tuple(rest)
            slave.append(offset, message)
        slave.master_confirmed, slave.hears = transfer.confirmed, True
        assert link.hello is not None, "it has joined"
        target = max(link.hello.settled, transfer.confirmed)
        if not slave.role.caught_up and slave.disk.end >= target:
            self.tell(slave, e.Reached(number))

    def _on_report(self, number: int) -> None:
        link = self.links[number]
        link.said = self.nodes[link.slave].disk.end
        link.up = [each for each in link.up if not isinstance(each, Report)]
        link.up.append(Report(link.said))

    def _recount(self, node: Node) -> None:
        """What enough slaves have reported is replicated; it never falls."""
        if not node.is_(State.MASTER, State.FENCED):
            return
        needed = node.role.required - 1
        have = sorted(
            link.reported
            for link in self.links.values()
            if link.master == node.name and link.next is not None and link.counts
        )[::-1]
        if 0 < needed <= len(have):
            node.replicated = max(node.replicated, min(have[needed - 1], node.disk.end))

    # -- copies

    def _on_work(self, name: str, most: int = 1 << 30) -> None:
        node = self.nodes[name]
        work, node.work = node.work, None
        match work:
            case e.CopyBack(member):
                self.tell(node, e.CopiedBack(self._copy_back(node, member, most)))
            case e.Adopt(address):
                error = "" if self.reaches(name, address) else "it does not answer"
                self.tell(node, e.Adopted(error))
            case e.Mend(ranges):
                for gap, address in ranges:
                    self._mend(node, gap, address)
                self.tell(node, e.Mended())

    def _on_break(self, name: str) -> None:
        """The copy ends too early."""
        self._spend("break")
        self._on_work(name, most=1)

    def _copy_back(self, node: Node, member: MemberState, most: int) -> str:
        """Why not all of it came; empty if it did."""
        if not self.reaches(node.name, member.address):
            return "it does not answer"
        other, disk, number = self.nodes[member.address], node.disk, COPYING
        offset = disk.end if disk.log else other.disk.start
        check = self._check(node, offset, other.disk.start)
        join = Join(**node.introduction(), tail=True, offset=offset, check=check)
        self.links[number] = Link(node.name, other.name)
        self._ask(other, e.Joined(number, join))
        link = self.links.get(number)
        if link is None or link.next is None:
            self._over(number)
            return "it refuses"
        messages = other.disk.part(offset, member.end)[:most]
        for message in messages:
            if message == DAMAGED:
                break
            node.append(node.disk.end if node.disk.log else offset, message)
        self._over(number)
        self._ask(other, e.LinkLost(number))
        return "" if node.disk.end >= member.end else "it closed the connection"

    def _mend(self, node: Node, gap: e.Range, address: str) -> None:
        if not self.reaches(node.name, address):
            return
        disk, there = node.disk, self.nodes[address].disk.part(*gap)
        if DAMAGED not in there and len(there) == gap[1] - gap[0]:
            log = (*disk.part(disk.start, gap[0]), *there, *disk.part(gap[1], disk.end))
            node.disk = replace(disk, log=log)

    # -- operators

    def _found(self) -> tuple[dict[str, Replica], int]:
        """The members that answer, and how many there are at least."""
        found = {x.name: x.replica() for x in self.nodes.values() if x.runs and x.name != self.away}
        named = {name for member in found.values() for name in member.others.values()}
        if self.nameserver is not None:
            named.add(self.nameserver[1])
        return found, len({*found, *named})

    def _on_promote(self, name: str, *, force: bool = False) -> None:
        promotion = Promotion(name, force)
        self.refused = promotion.begin(*self._found())
        if not self.refused:
            self._spend("force" if force else "promote")
            self.promotion = promotion

    def _on_force(self, name: str) -> None:
        """An operator lets go of what may be lost."""
        self._on_promote(name, force=True)

    def _may_operate(self, promotion: Promotion) -> bool:
        wanted = promotion.waits_for()
        return not wanted or self.nodes[promotion.target].disk.end >= wanted

    def _on_operate(self) -> None:
        promotion = self.promotion
        assert promotion is not None, "it goes on"
        if not promotion.go_on(self._order):
            promotion.over = bool(promotion.begin(*self._found()))
        if promotion.over:
            self.promotion = None

    def _on_give_up(self) -> None:
        """The target has not caught up in time."""
        self._spend("abandon")
        promotion, self.promotion = self.promotion, None
        assert promotion is not None, "it goes on"
        promotion.back(self._order)

    def _on_abandon(self) -> None:
        """The operator's process dies."""
        self._spend("abandon")
        self.promotion = None

    def _order(self, name: str, event: e.Event | None) -> Replica | None:
        node = self.nodes[name]
        if not node.runs or name == self.away:
            return None
        if event is not None and self.budget["late"] and self.late is None:
            self._spend("late")
            self.late = name, event
            return None
        if event is not None and not self._request(name, event):
            return None
        return node.replica()

    def _on_arrive(self) -> None:
        """What an operator does not wait for any more."""
        assert self.late is not None, "something is late"
        (name, event), self.late = self.late, None
        self.tell(self.nodes[name], event)

    def _request(self, name: str, event: e.Event) -> bool:
        """Whether the node does this."""
        node = self.nodes[name]
        node.answers.clear()
        self._ask(node, event)
        return isinstance(node.answers.get(0), e.Answer)

    def _ask(self, node: Node, event: e.Event) -> None:
        """And wait until it is done."""
        self.tell(node, event)
        while node.awaited is not None:
            self._on_finish(node.name)

    # -- the executor

    def tell(self, node: Node, event: e.Event) -> None:
        """Events are taken one after the other, an awaited outcome before all others."""
        node.inbox.append(event)
        self._run(node)

    def _run(self, node: Node) -> None:
        if node.busy:
            return
        node.busy = True
        while node.runs and node.awaited is None and node.inbox:
            self._step(node, node.inbox.pop(0))
        node.busy = False

    def _step(self, node: Node, event: e.Event) -> None:
        assert node.machine is not None, "it runs"
        out = node.machine.step(event, node.facts(), self.now)
        try:
            node.machine.validate()
        except AssertionError as error:
            raise Broken(f"{node.name} contradicts itself: {error}") from error
        self.trace.append((node.name, event, out))
        for instruction in out:
            self.promises.look_at(node, instruction)
            if not isinstance(instruction, e.Awaited):
                self._do(node, instruction)
                continue
            node.awaited = instruction
            at_once = isinstance(instruction, e.TakeEpochs | e.Settle | e.Compare)
            if at_once or not self.slow:
                self._finish(node)

    def _let_go(self, node: Node) -> None:
        """It is promoted: by force, or where no mode promises more."""
        if node.role.forced[-1:] == [node.role.promised_epoch] or node.role.required == 1:
            self.promises.let_go()

    def _finish(self, node: Node) -> None:
        """What the disk takes part in is done, or fails."""
        awaited, node.awaited = node.awaited, None
        assert awaited is not None, "it waits"
        what = self._burn(node)
        if what == "die":
            self._down(node)
            return
        saved = what == "fault" and isinstance(awaited, e.Save)
        if not what and isinstance(awaited, e.Open):
            self.promises.opens(node, awaited, self._members())
            if node.role.state is State.FENCED:
                self._let_go(node)
        error = node.carry_out(awaited) if what == "" or saved else ""
        self._step(node, e.Done("the disk is full" if what else error))

    def _burn(self, node: Node) -> str:
        """What happens to this; empty: nothing."""
        if node.fuse is None:
            return ""
        count, what = node.fuse
        node.fuse = (count - 1, what) if count > 1 else None
        return what if count == 1 else ""

    def _do(self, node: Node, instruction: e.Instruction) -> None:
        match instruction:
            case e.After(what, _):
                node.timers |= {what}
            case e.Ask(what):
                node.asks[what] = instruction
            case e.AskPromises():
                node.work, node.promises = None, instruction
            case e.CopyBack() | e.Adopt() | e.Mend():
                node.work = instruction
            case e.Lead(promoted):
                self._lead(node, promoted)
            case e.Retire(why):
                node.waiting = () if why else node.waiting
            case e.Freeze():
                node.master_confirmed = node.confirmed
            case e.Register():
                self._lead_told(node)
            case e.Dial(_, ha_address):
                self._dial(node, ha_address)
            case e.HangUp():
                node.work = None
                self._hang_up(node)
            case e.GiveUp(link, _):
                self._close(link, node)
            case e.SayJoin(link, fields, at):
                self._say_join(node, link, fields, at)
            case e.DropSlaves():
                for number, link in [*self.links.items()]:
                    if link.master == node.name:
                        self._close(number, node)
            case e.Answer(request) | e.Decline(request):
                node.answers[request] = instruction
            case e.GoOn(number) | e.Count(number) | e.Accept(number) | e.Refuse(number):
                self._to_slave(node, number, instruction)
            case e.Differs(number):
                self._differs(node, number, instruction.check)

    def _to_slave(self, node: Node, number: int, instruction: e.Instruction) -> None:
        link = self.links.get(number)
        if link is None or node.name in link.gone:
            return
        match instruction:
            case e.GoOn(_, offset):
                link.next = offset
                self._tell_group(node)
            case e.Count():
                link.counts = True
                self.promises.counts(node, self.nodes[link.slave])
                self._recount(node)
            case e.Accept():
                link.down.append(e.Accepted(number))
            case e.Refuse(_, why, free_id):
                link.down.append(e.Refused(number, why, free_id))
                self._close(number, node)

    def _tell_group(self, node: Node) -> None:
        told = e.GroupTold(node.role.required, dict(node.role.replicas))
        for link in self.links.values():
            if link.master == node.name and link.next is not None and not link.gone:
                link.down.append(told)

    def _differs(self, node: Node, number: int, check: Check) -> None:
        """Whose frames are damaged is mended by the other one."""
        link = self.links.get(number)
        if link is None:
            return
        slave, gap = self.nodes[link.slave], (check.start, check.end)
        for damaged, sound in ((node, slave), (slave, node)):
            for at in range(*gap):
                if DAMAGED in damaged.disk.part(at, at + 1):
                    self._mend(damaged, (at, at + 1), sound.name)
        self._to_slave(node, number, e.Refuse(number, "the two logs differ within one epoch"))

    def _lead_told(self, node: Node) -> None:
        if self.away != node.name:
            self._register(node)

    def _lead(self, node: Node, promoted: bool) -> None:
        if promoted:
            node.replicated = max(node.replicated, node.confirmed)
        self._lead_told(node)
        for link in self.links.values():
            if link.master == node.name and link.next is None and not link.gone:
                link.down.append(node.hello())

    def _dial(self, node: Node, address: str) -> None:
        final = node.config.ha_master_address and not node.role.decided
        if not final and address not in ("", node.name, node.dials):
            node.dials = address
            self._hang_up(node)

    def _hang_up(self, node: Node) -> None:
        number = self._link_of(node.name)
        if number is not None:
            self._close(number, node)

    def _check(self, node: Node, at: int, first: int) -> Check:
        """The checksum of its log before this place."""
        disk = node.disk
        begin = min(max(disk.start, first), at) if disk.log else at
        return Check(begin, at, node.crc(begin, at))

    def _say_join(self, node: Node, number: int, fields: dict[str, Any], at: int) -> None:
        link = self.links.get(number)
        if link is None or node.name in link.gone:
            return
        place: dict[str, Any] = {}
        if at >= 0:
            assert link.hello is not None, "it has been greeted"
            place = {"offset": at, "check": self._check(node, at, link.hello.start)}
            if not fields:
                newest = max((epoch.number for epoch in node.disk.epochs), default=0)
                link.coming = tuple(x for x in link.hello.epochs if x.number > newest)
                link.said = -1
            link.joined = not fields
        link.up.append(Join(**node.introduction(), **place, **fields))
