"""A node whose rules are the machine of replication, and its disk, as small as can be: a message is
one byte long, a log a tuple of them.

What the machine awaits is done here; all else by the world (`machine_world.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.introductions import Hello, MemberState
from saturnmq.broker.replication.machine import Machine
from saturnmq.broker.replication.role import Role, State
from saturnmq.client.admin.replicas import Replica
from saturnmq.store.log.epochs import Epoch

GROUP = "g"
SEGMENT = 1 << 30
Message = tuple[int, int]  # the epoch that it was written in, and its number
DAMAGED: Message = (0, 0)


@dataclass(frozen=True)
class Disk:
    role: dict[str, Any] | None = None  # config/role.json
    start: int = 0
    log: tuple[Message, ...] = ()
    flushed: int = 0
    epochs: tuple[Epoch, ...] = ()
    identity: str = ""  # as the epoch file says
    amnesia: str = ""
    missing: tuple[e.Range, ...] = ()
    confirmed: int = 0  # as the checkpoint says

    @property
    def end(self) -> int:
        return self.start + len(self.log)

    @property
    def promise(self) -> int:
        """Below this epoch the node serves and follows nothing, whatever happens to it. A start
        forgets what was opened behind the end of the log."""
        opened = (number for number, start in self.epochs if start <= self.end)
        return max([int((self.role or {}).get("epoch", 0)), *opened])

    def part(self, start: int, end: int) -> tuple[Message, ...]:
        return self.log[start - self.start : end - self.start]

    def has_all(self, messages: set[Message]) -> bool:
        return messages <= set(self.log)

    def appended(self, offset: int, *messages: Message) -> Disk:
        """An empty log begins wherever its first byte belongs."""
        assert not self.log or offset == self.end, f"{offset} is not the end, {self.end}"
        return replace(self, start=self.start if self.log else offset, log=(*self.log, *messages))

    def cut(self, offset: int) -> Disk:
        log = self.part(self.start, offset)
        start = self.start if log else 0
        return replace(self, start=start, log=log, flushed=start + len(log))


class Node:
    def __init__(
        self, name: str, broker_id: int, required: int, *, sync_flush: bool, draw: Callable[[], str]
    ) -> None:
        """`draw`: an identity."""
        self.name, self._sync_flush = name, sync_flush
        self.draw = draw
        self.configure(broker_id, required)
        self.disk = Disk()
        self.is_foreign = False  # it is of another group of this name
        self.clean = True  # it was closed, and not killed
        self.fuse: tuple[int, str] | None = None  # what happens when the disk has done so much
        self.side: tuple[int, tuple[Message, ...]] = (0, ())  # what the last cut took, from where
        self.machine: Machine | None = None  # None: it does not run
        self._forget()

    def _forget(self) -> None:
        """All that a process that ends forgets."""
        self.inbox: list[e.Event] = []
        self.busy = False  # in a step
        self.awaited: e.Awaited | None = None
        self.confirmed = self.replicated = 0
        self.master_confirmed: int | None = None
        self.hears = False  # how far its master confirms
        self.newest = 0  # epoch that the nameserver has told it of
        self.waiting: tuple[tuple[int, Message], ...] = ()  # sends: where each ends
        self.timers: frozenset[str] = frozenset()
        self.asks: dict[str, e.Ask] = {}
        self.work: e.CopyBack | e.Adopt | e.Mend | None = None
        self.promises: e.AskPromises | None = None
        self.answers: dict[int, e.Answer | e.Decline] = {}
        self.gaps: tuple[e.Range, ...] = ()
        self.failed = ""  # why the disk takes nothing more
        self.left: tuple[int, Message] | None = None  # by the write that failed
        self.dials = self.config.ha_master_address.partition(":")[0]

    def configure(self, broker_id: int, required: int, master: str = "") -> None:
        """For its next start. `master`: the name of the node that its haMasterAddress is of."""
        role = "SLAVE" if broker_id else ("SYNC_MASTER" if required > 1 else "ASYNC_MASTER")
        self.config = BrokerConfig(
            broker_name=GROUP,
            broker_id=broker_id,
            role=role,
            in_sync_replicas=required,
            ha_master_address=f"{master}:10912" if master else "",
        )
        self.me = e.Me(GROUP, broker_id, self.name, SEGMENT, sync_flush=self._sync_flush)
        self.dials = master

    # -- what it is

    @property
    def role(self) -> Role:
        assert self.machine is not None, f"{self.name} is down"
        return self.machine.role

    @property
    def runs(self) -> bool:
        return self.machine is not None

    def is_(self, *states: State) -> bool:
        return self.machine is not None and self.machine.role.state in states

    @property
    def leads(self) -> bool:
        return self.is_(State.MASTER)

    @property
    def group(self) -> str:
        """The identity that its log belongs to."""
        return self.role.identity if self.disk.log else ""

    def facts(self) -> e.LogState:
        disk = self.disk
        return e.LogState(
            start=disk.start,
            end=disk.end,
            confirmed=min(self.confirmed, disk.end) if self.hears else -1,
            epochs=disk.epochs,
            identity=disk.identity,
            amnesia=disk.amnesia,
            missing=disk.missing,
            gaps=tuple(gap for gap in self.gaps if DAMAGED in disk.part(*gap)),
            clean=self.clean,
            failed=self.failed,
        )

    def member(self) -> MemberState:
        return MemberState(**self._facts())

    def _facts(self) -> dict[str, Any]:
        role, disk = self.role, self.disk
        assert self.machine is not None, "it runs"
        return {
            "name": GROUP,
            "identity": role.identity,
            "broker_id": role.broker_id,
            "address": self.name,
            "ha_address": self.name,
            "state": role.state_name,
            "epoch": role.promised_epoch,
            "epochs": list(disk.epochs),
            "start": disk.start,
            "end": disk.end,
            "floor": role.floor,
            "lacks": role.lacks,
            "free_id": self.machine.slaves.free_id(),
            "leads_in": role.leads_in,
            "forced": frozenset(role.forced),
            "decided": role.decided,
            "replicas": dict(role.replicas),
        }

    def hello(self) -> Hello:
        return Hello(
            **self._facts(),
            confirmed=self.confirmed,
            segment_bytes=SEGMENT,
            sync_flush=self.me.sync_flush,
            required=self.role.required,
        )

    def introduction(self) -> dict[str, Any]:
        """The fields of a JOIN that say who it is."""
        return {**self._facts(), "free_id": 0}

    def replica(self) -> Replica:
        """As an operator sees it."""
        role, disk = self.role, self.disk
        return Replica(
            group=GROUP,
            broker_id=role.broker_id,
            address=self.name,
            role=role.state_name,
            identity=role.identity,
            epoch=role.promised_epoch,
            epochs=tuple(disk.epochs),
            start=disk.start,
            end=disk.end,
            confirmed=self.confirmed,
            floor=role.floor,
            lacks=role.lacks,
            required=role.required,
            caught_up=role.caught_up,
            others=dict(role.replicas),
        )

    def crc(self, start: int, end: int) -> int:
        return zlib.crc32(repr(self.disk.part(start, end)).encode())

    # -- its life

    def start(self) -> None:
        """Recover the store, and read role.json."""
        disk = self.disk
        self.disk = replace(disk, epochs=tuple(x for x in disk.epochs if x.start <= disk.end))
        role = Role(self.config)
        role.log_epoch = self.disk.epochs[-1].number if self.disk.epochs else 0
        if disk.role is not None:
            role.load(disk.role)
            # Names stand for addresses here, which those of the file are not.
            role.replicas = {int(i): name for i, name in disk.role["replicas"].items()}
        self._agree(role)
        damaged = [disk.start + i for i, each in enumerate(disk.log) if each == DAMAGED]
        self.gaps = tuple((at, at + 1) for at in damaged)
        if role.is_slave:
            self.master_confirmed = min([disk.confirmed, *damaged])
        self.machine = Machine(self.me, role)

    def _agree(self, role: Role) -> None:
        """As `broker/replication/identity.py` has it."""
        told = {x for x in (role.identity, self.disk.identity) if x}
        if len(told) > 1:
            raise AssertionError(f"the files of {self.name} are of several groups: it never starts")
        for identity in told:
            self.disk = replace(self.disk, identity=identity)
            role.belongs(identity)

    def ends(self, *, clean: bool = False) -> None:
        """The process; what the kernel has is on the disk."""
        if clean:
            self.save()
        if self.left is not None:
            self.disk = self.disk.appended(*self.left)
        self.machine = None
        self.clean = clean
        self.fuse = None
        self._forget()

    def save(self) -> None:
        self.disk = replace(self.disk, role=self.role.snapshot(), confirmed=self.confirmed)

    def append(self, offset: int, message: Message) -> None:
        self.disk = self.disk.appended(offset, message)
        if self.me.sync_flush:
            self.flush()

    def flush(self) -> None:
        self.disk = replace(self.disk, flushed=self.disk.end)

    def open(self, number: int, start: int) -> None:
        self.disk = replace(self.disk, epochs=(*self.disk.epochs, Epoch(number, start)))

    # -- what a step awaits

    def carry_out(self, awaited: e.Awaited) -> str:
        """Why it failed; empty if it did not."""
        disk = self.disk
        match awaited:
            case e.Save():
                self.save()
            case e.Open(number, start):
                identity = self.role.identity or self.draw()
                self.open(number, start)
                self.disk = replace(self.disk, identity=identity, amnesia="", missing=())
            case e.Cut(offset, _):
                if offset < disk.end:
                    first = max(offset, disk.start)
                    self.side = first, disk.part(first, disk.end)
                    self.disk = disk.cut(offset)
                self.confirmed = min(self.confirmed, offset)
                self.replicated = min(self.replicated, offset)
            case e.TakeEpochs(epochs, identity):
                if identity and identity != disk.identity and disk.identity and disk.log:
                    return f"this log belongs to the group {disk.identity}, not to {identity}"
                identity = identity or disk.identity
                self.disk = replace(disk, epochs=tuple(epochs), identity=identity)
            case e.Settle():
                self.disk = replace(disk, amnesia="", missing=())
            case e.Compare(check):
                same = self.crc(check.start, check.end) == check.crc
                return "" if same else "the checksums differ"
            case e.PutBack(epochs):
                self._put_back(epochs)
        return ""

    def _put_back(self, epochs: tuple[Epoch, ...]) -> None:
        start, messages = self.side
        end = self.disk.end
        if start <= end < start + len(messages) and epochs:
            rest = messages[end - start :]
            self.disk = replace(self.disk.appended(end, *rest), epochs=tuple(epochs))
            self.flush()

    # -- how far it confirms

    def confirm(self) -> list[Message]:
        """Raise it to what the ack mode allows; the sends that are acknowledged by that."""
        role, position = self.role, self.disk.end
        if role.state is State.SLAVE:
            if self.master_confirmed is not None:
                position = min(position, self.master_confirmed)
        elif role.state is State.UNSURE or (role.state is State.RECOVERING and role.required > 1):
            return []
        else:
            position = min(position, self.disk.flushed if self.me.sync_flush else position)
            if role.required > 1:
                position = min(position, self.replicated)
            if role.state is State.RECOVERING:
                position = min([position, *(start for start, _ in self.gaps)])
        self.confirmed = max(self.confirmed, position)
        done = [message for end, message in self.waiting if end <= self.confirmed]
        self.waiting = tuple(each for each in self.waiting if each[0] > self.confirmed)
        return done
