"""A disk that takes no more, from any one operation on, in the transitions of a group: the start
of a master, a slave that joins, a log that is cut or copied back, a promotion.

Each scene is played once for each operation: from that one on the disk of one node refuses. The
node says so and names the file, nothing that was acknowledged is lost, and the group is whole again
when there is room, or after the end of the process or of the machine at that moment.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from machines_rig import Machine, World, run
from saturnmq.broker.replication.role import State
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import TERM

NEEDS_ROOM = frozenset({"create_segment", "make_dirs", "write_file", "link", "rename"})
WRITES = NEEDS_ROOM | {"write", "zero", "flush", "sync_dir", "unlink", "remove_tree"}
USUAL: dict[str, Any] = {
    "nameservers": ("10.0.0.9:9876",),
    "register_ms": 1000,
    "slave_sync_ms": 200,
    "ha_reconnect_ms": 200,
    "slave_timeout_ms": 500,
    "store_options": {"commitlog_segment_bytes": 64 << 10, "consumequeue_segment_bytes": 400},
}
LARGE = b"." * 30_000
MOST = 200  # operations of one transition


class Refusal:
    """The disk refuses these operations, from the n-th on."""

    def __init__(self, machine: Machine, first: int, error: int) -> None:
        self._disk = machine.disk
        self._first, self._error = first, error
        self._refuses = NEEDS_ROOM if error == errno.ENOSPC else WRITES
        self._count = 0
        self.paths: list[str] = []
        self._disk.step = self._step

    def _step(self, operation: str, path: str) -> None:
        needless = operation == "make_dirs" and self._disk._dirs.get(path)
        if operation not in self._refuses or needless:
            return
        self._count += 1
        if self._count >= self._first:
            self.paths.append(path)
            raise OSError(self._error, os.strerror(self._error), path)

    def end(self) -> None:
        self._disk.step = None


class Scene:
    """A master and its slave; `node` is the one whose disk fails in the transition."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.a = world.machine("a", "10.0.0.2", **{"role": "SYNC_MASTER", **self.settings()})
        settings = {**self.settings(), "role": "SLAVE", "broker_id": 1}
        self.b = world.machine("b", "10.0.0.3", **settings)
        self.node = self.a
        self.acknowledged: list[bytes] = []

    def settings(self) -> dict[str, Any]:
        return {**USUAL, "store_options": dict(USUAL["store_options"])}

    async def prepare(self) -> None:
        await self.world.nameserver()
        await self.a.boot()
        await self.b.boot()
        await self.until(self.whole)
        for number in range(3):
            await self.send(self.a, b"on both %d" % number)
        await self.until(self.whole)

    async def begin(self) -> str:
        """What is answered, if anything is asked for."""
        raise NotImplementedError

    async def again(self) -> None:
        """What an operator repeats."""

    async def send(self, machine: Machine, body: bytes) -> None:
        await machine.send(body)
        self.acknowledged.append(body)

    async def promote(self, machine: Machine, *, force: bool = False) -> str:
        """Why it is not master; empty if it is."""
        epoch = max(each.broker.context.role.promised_epoch for each in self.started()) + TERM
        for code in (RequestCode.FENCE, RequestCode.PROMOTE):
            ext = {"epoch": epoch - epoch % TERM, "force": str(force).lower()}
            reply = await machine.ask(code, ext)
            if reply.code:
                return str(reply.remark)
        return ""

    async def until(self, check: Callable[[], bool], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not check():
                await asyncio.sleep(0.02)

    def started(self) -> list[Machine]:
        return [each for each in (self.a, self.b) if hasattr(each, "broker")]

    def leaders(self) -> list[Machine]:
        return [each for each in (self.a, self.b) if leads(each)]

    def whole(self) -> bool:
        """One leads, and the other one has all that it has."""
        if len(self.leaders()) != 1:
            return False
        (master,) = self.leaders()
        slave = self.b if master is self.a else self.a
        if slave.runtime.off or not slave.broker.address:
            return False
        ours, theirs = (each.broker.context for each in (master, slave))
        return (
            ours.copies_in_sync() == 2
            and theirs.role.state is State.SLAVE
            and theirs.role.caught_up
            and theirs.store.watermarks.appended == ours.store.watermarks.appended
        )

    done = whole

    async def end(self) -> None:
        """Both have all that was acknowledged, whoever leads."""
        (master,) = self.leaders()
        slave = self.b if master is self.a else self.a
        await self.send(master, b"in the end")
        await self.until(self.whole)
        assert log_of(master) == log_of(slave)
        epochs = [each.broker.context.epochs.entries for each in (master, slave)]
        assert epochs[0] == epochs[1]
        await self.has_all(master)
        await master.kill()
        assert await self.promote(slave) == ""
        await master.boot()  # its copy confirms what the new master does not know to be so
        await self.until(self.whole)
        await self.has_all(slave)

    async def has_all(self, machine: Machine) -> None:
        found = await machine.bodies()
        missing = [body[:20] for body in self.acknowledged if found.count(body) != 1]
        assert not missing, f"{machine.name} lacks, or has twice, {missing}"


def leads(machine: Machine) -> bool:
    there = not machine.runtime.off and bool(machine.broker.address)
    return there and machine.broker.context.role.state is State.MASTER


def log_of(machine: Machine) -> bytes:
    store = machine.broker.store
    at, parts = store.watermarks.start, []
    while data := store.read_log(at, 1 << 20):
        parts.append(bytes(data))
        at += len(data)
    return b"".join(parts)


def complaint(machine: Machine) -> str:
    """What a node says of itself that keeps it from its work."""
    if machine.runtime.off or not machine.broker.address:
        return ""
    state = machine.broker.replica_state()
    return f"{state['trouble']} {state['refuses']}"


class MasterStarts(Scene):
    async def prepare(self) -> None:
        await super().prepare()
        await self.a.kill()

    async def begin(self) -> str:
        await self.a.boot()
        return ""


class LoneMasterStarts(MasterStarts):
    """Nobody else has what it has."""

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "flush_disk_type": "SYNC_FLUSH", "role": "ASYNC_MASTER"}

    async def prepare(self) -> None:
        await self.world.nameserver()
        await self.a.boot()
        await self.until(self.whole)
        for number in range(3):
            await self.send(self.a, b"here %d" % number)
        await self.a.kill()

    def whole(self) -> bool:
        return leads(self.a)

    done = whole

    async def end(self) -> None:
        await self.send(self.a, b"in the end")
        await self.has_all(self.a)


class MasterLostItsTail(MasterStarts):
    """What was not flushed went with the power; its slave has it."""

    async def prepare(self) -> None:
        await Scene.prepare(self)
        for number in range(3):
            await self.send(self.a, b"acknowledged %d" % number + LARGE)
        await self.a.lose_power()


class MasterLostItsDisk(MasterStarts):
    async def prepare(self) -> None:
        await super().prepare()
        self.a.new_disk()


class SlaveComes(Scene):
    """With an empty disk."""

    async def prepare(self) -> None:
        await super().prepare()
        self.node = self.b
        await self.b.kill()
        self.b.new_disk()

    async def begin(self) -> str:
        await self.b.boot()
        return ""


class OldMasterIsCut(Scene):
    """It took what nobody confirmed, and finds a successor."""

    async def prepare(self) -> None:
        await super().prepare()
        for nodes in (["a"], ["b", "nameserver"]), (["b", "nameserver"], ["a"]):
            self.world.network.partition(*nodes)
        for number in range(3):
            assert (await self.a.put(b"on the old one only %d" % number + LARGE)).code != 0
        assert await self.promote(self.b) == ""
        for number in range(3):
            assert (await self.b.put(b"on the new one %d" % number + LARGE)).code != 0
        self.acknowledged += [b"on the new one %d" % number + LARGE for number in range(3)]

    async def begin(self) -> str:
        self.world.network.heal()
        return ""

    async def end(self) -> None:
        kept = b"".join(
            self.a.disk.content(path)
            for path in self.a.disk.paths()
            if path.startswith("/store/truncated/") and path.endswith(".log")
        )
        assert kept.count(b"on the old one only") >= 3
        await super().end()


class SlaveIsPromoted(Scene):
    async def prepare(self) -> None:
        await super().prepare()
        self.node = self.b
        await self.a.kill()

    async def begin(self) -> str:
        return await self.promote(self.b)

    async def again(self) -> None:
        why = "" if leads(self.b) else await self.promote(self.b)
        # Its disk may be an older copy, for all that it knows after a start.
        assert not why or "may lack what its group has confirmed" in why
        if self.a.runtime.off:
            await self.a.boot()
        await patiently(self.whole, 5.0)
        if not self.leaders():  # both answer, and none has more
            assert await self.promote(self.a, force=True) == ""

    def done(self) -> bool:
        return leads(self.b)


class SlaveIsPromotedBesideItsMaster(SlaveIsPromoted):
    """Which goes on if the promotion is not written down."""

    async def prepare(self) -> None:
        await Scene.prepare(self)
        self.node = self.b

    async def again(self) -> None:
        if not self.whole():
            await super().again()
        if leads(self.a) and not self.whole():  # the other one is promised to an epoch of nobody
            assert await self.promote(self.a) == ""


ENDINGS: dict[str, Callable[[Machine], Awaitable[None]] | None] = {
    "there is room": None,
    "it is killed": Machine.kill,
    "its power is cut": Machine.lose_power,
}


async def play(world: World, kind: type[Scene], first: int, error: int, ending: str) -> bool:
    """False: there are not so many operations."""
    scene = kind(world)
    await scene.prepare()
    refusal = Refusal(scene.node, first, error)
    node, starts = scene.node, True
    try:
        said = await scene.begin()
    except Exception as problem:
        said, starts = str(problem), False
    if starts:
        await patiently(lambda: bool(refusal.paths) or scene.done(), 20.0)
        if not refusal.paths:
            assert scene.done(), complaint(node)
            return False
        await asyncio.sleep(2.5)  # it tries again
        said += complaint(node)
    if not starts or not scene.done():
        assert os.strerror(error) in said, f"{refusal.paths}: {said!r}"
        assert any(path in said for path in refusal.paths), f"{refusal.paths}: {said!r}"
    end = ENDINGS[ending] or (None if starts else Machine.kill)
    if end is not None:
        await end(node)
    refusal.end()
    if end is not None:
        await node.boot()
    await scene.again()
    await patiently(scene.whole, 60.0)
    assert scene.whole(), [complaint(each) for each in (scene.a, scene.b)]
    await scene.end()
    return True


async def patiently(check: Callable[[], bool], seconds: float) -> None:
    for _ in range(round(seconds / 0.05)):
        if check():
            return
        await asyncio.sleep(0.05)


SCENES = (
    LoneMasterStarts,
    MasterStarts,
    MasterLostItsTail,
    MasterLostItsDisk,
    SlaveComes,
    OldMasterIsCut,
    SlaveIsPromoted,
    SlaveIsPromotedBesideItsMaster,
)


def test_a_log_that_was_cut_does_not_grow_before_the_tables_know_of_it() -> None:
    """Should it die then, they would take new messages for those that were cut."""

    async def body(world: World) -> None:
        scene = OldMasterIsCut(world)
        await scene.prepare()
        assert (await scene.a.put(b"waits for long", level=14)).code != 0
        scene.a.disk.plan("write_file", errno.ENOSPC, "/store/config/delayOffset.json*", times=None)
        await scene.begin()
        store = scene.a.broker.store
        await scene.until(lambda: bool(store.truncated()))
        end = store.watermarks.appended
        await asyncio.sleep(4.0)  # it tries again
        assert store.watermarks.appended == end
        assert "delayOffset.json" in complaint(scene.a)
        delays = scene.a.broker.messaging.delays
        assert delays.document()["stale"], "only the master knows which it has delivered"
        scene.a.disk.plans.clear()
        await scene.until(scene.whole)
        assert store.watermarks.appended > end
        await scene.end()

    run(body)


# So many are played of each kind: one in so many operations.
EVERY = {"there is room": 3, "it is killed": 5, "its power is cut": 20}


@pytest.mark.parametrize("kind", SCENES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (errno.ENOSPC, "there is room"),
        (errno.ENOSPC, "it is killed"),
        (errno.EIO, "its power is cut"),
    ],
    ids=["full", "full and killed", "failed"],
)
def test_every_moment(kind: type[Scene], error: int, ending: str) -> None:
    first, there_are_more = 1 - EVERY[ending], True

    async def once(world: World) -> None:
        nonlocal there_are_more
        there_are_more = await play(world, kind, first, error, ending)

    while there_are_more:
        first += EVERY[ending]
        assert first <= MOST
        run(once)
