"""Runs on a faulty disk (docs/guarantees.md R3).

The store lies on an ext4 on a loop device, whose file is served by a `FaultyDevice`: the page cache
and the journal of the kernel are real, the disk below them is ours. Under load the disk begins to
fail at a seeded moment. Then the power goes, and the disk is looked at.

These rules must hold whatever fails. Sync flush loses nothing that it acknowledged, async flush
nothing older than its bound. A broker whose log could not be written refuses sends, acknowledges
nothing any more, says so and stays readable. A flipped bit or a lost write is never delivered as a
message.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import random
import re
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path

from saturnmq import Producer, PullConsumer
from saturnmq.drills.kernel.device import FAULTS as DEVICE_FAULTS
from saturnmq.drills.kernel.device import LOG_FRAME, FaultyDevice
from saturnmq.drills.kernel.fuse import file_of
from saturnmq.drills.kernel.images import Judge, LogImage
from saturnmq.drills.kernel.load import TOPIC, AckedMessage, Bodies, Load
from saturnmq.drills.kernel.mounts import make_ext4, mounted
from saturnmq.drills.kernel.report import ImageLoss, KernelRun
from saturnmq.drills.kernel.server import STORE, SaturnServer, saturn, store_options
from saturnmq.protocol.frame import FRAME_BYTES_MIN, HEAD
from saturnmq.protocol.message import Message

DISK_BYTES = 512 << 20
MOUNT = "loop,noatime"
FLIP = "bit flip"
FAULTS = (*DEVICE_FAULTS, FLIP)
SILENT = (FLIP, "lost write")  # the disk says nothing
AIMED = 0.7  # so many faults are meant for the log, the others for whatever is written next
HIT_S = 10.0  # so long an armed fault may wait for a write that meets it
AFTER_S = 0.6  # of load after the first fault
SETTLED_S = 1.5  # flushes and checkpoints are less far apart
NOTICE_S = 1.0  # so long after a failed write of the log acknowledgements may still be under way
LIVENESS_S = 20.0
_Place = tuple[int, int]  # queue id, queue offset
ENDED = "had stopped taking writes"  # how a fenced broker ends, with exit status 1
LOUD = re.compile("CommitLog.*(cut|damage|gap)")  # a broker's report of damage that it found


@dataclass
class _Life:
    """The events until the power went."""

    acks: list[AckedMessage]
    refused: int
    bodies: Bodies
    cut_at: float
    wrong: list[str] = field(default_factory=list)
    damaged: set[_Place] = field(default_factory=set)  # messages that the disk lost silently
    straddling: int = 0  # the most frames beside them that reach over the borders of the damage


def block_error(
    directory: Path,
    run: KernelRun,
    on_wrong: Callable[[Path, str], None] = lambda image, name: None,
) -> None:
    """One life of a broker on a disk that fails as `run.kind` says."""
    chance = random.Random(run.seed)
    options = store_options(run.seed)
    disk = directory / "disk.img"
    make_ext4(disk, DISK_BYTES)
    with contextlib.closing(FaultyDevice(disk, chance)) as device:
        life = _live(device, directory, run, options, chance)
        run.faults = dict(device.counts)
    run.acked, run.refused = len(life.acks), life.refused
    if run.kind == FLIP:
        life.damaged = {_flip(disk, chance)}
    look = _look_for_silent_damage if run.kind in SILENT else _look
    run.violations = life.wrong + look(disk, directory, run, options, life)
    if run.violations:
        on_wrong(disk, f"seed-{run.seed}-{run.kind.replace(' ', '-')}.img")


def _live(
    device: FaultyDevice,
    directory: Path,
    run: KernelRun,
    options: dict[str, int],
    chance: random.Random,
) -> _Life:
    fault = DEVICE_FAULTS.get(run.kind)
    mount = directory / "live"
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(file_of(device, directory / "faulty.img"))
        stack.enter_context(mounted(file, mount, MOUNT))
        server = stack.enter_context(saturn(directory / "cluster", mount, run.flush, options))
        load = stack.enter_context(Load(server.nameservers, run.rate, run.seed))
        load.until_acked(1)
        time.sleep(chance.uniform(0.1, 1.2))
        wrong = []
        if fault is not None:
            aimed = not fault.flushes and chance.random() < AIMED
            device.arm(fault, LOG_FRAME if aimed else b"")
            if not device.hit.wait(HIT_S):
                wrong.append(f"the drill armed {run.kind!r} and nothing met it in {HIT_S:.0f} s")
            time.sleep(AFTER_S)
            if fault.error and (aimed or fault.flushes):
                wrong += _fenced(server, load)
                if chance.random() < 0.5:
                    wrong += _ended(server)
        if run.kind in SILENT:
            load.stop()
            _settle(server, chance)
        device.power_cut()
        acks = [ack for ack in load.acks if ack.at < device.cut_at]
        refused = sum(at < device.cut_at for at, _ in load.refused)
        server.kill()
        life = _Life(acks, refused, load.bodies, device.cut_at, wrong)
        life.damaged = {place for _, _, place in _frames(device.lost)}
        life.straddling = 2 if device.lost else 0
        return life


def _settle(server: SaturnServer, chance: random.Random) -> None:
    """Let everything acknowledged come to the disk, and the checkpoint that says so."""
    if chance.random() < 0.5:
        server.stop()
    else:
        time.sleep(SETTLED_S)


def _fenced(server: SaturnServer, load: Load) -> list[str]:
    """A broker whose log could not be written: readable, and nothing else."""
    wrong = []
    deadline = time.monotonic() + NOTICE_S
    while not load.refused and time.monotonic() < deadline:
        time.sleep(0.01)
    acked = len(load.acks)
    if not load.refused:
        wrong.append(f"the log could not be written and {acked} sends were acknowledged, none not")
    before = {(ack.queue_id, ack.queue_offset): ack.number for ack in load.acks}
    got = consume(server.nameservers, before.keys())
    if lacking := before.keys() - got.keys():
        wrong.append(f"{len(lacking)} acknowledged messages cannot be read after a failed flush")
    wrong += _strange(got, before, load.bodies)
    if len(load.acks) > acked:
        wrong.append(f"{len(load.acks) - acked} sends were acknowledged after a failed flush")
    if not server.status().get("refusesWrites"):
        wrong.append("the broker's status does not say that it refuses writes")
    return wrong


def _ended(server: SaturnServer) -> list[str]:
    """Stop a fenced broker in good order: it must not pass for a broker that flushed all it had."""
    server.stop()
    return [] if ENDED in server.printed() else ["the broker ended without saying what failed"]


def _look(
    disk: Path, directory: Path, run: KernelRun, options: dict[str, int], life: _Life
) -> list[str]:
    """After the power cut: everything that the flush mode covers is there."""
    with mounted(disk, directory / "image", MOUNT):
        root = directory / "image" / STORE
        log = LogImage(root / "commitlog")
        match = log.match(life.acks, life.bodies)
        judge = Judge(log, match.held, sync=run.flush == "sync", options=options)
        wrong = match.wrong[:5] + judge.look(root, life.cut_at).wrong
    loss = ImageLoss.of([ack.at for ack in match.missing])
    run.losses.append(loss)
    return wrong + loss.violations(sync=run.flush == "sync")


def _look_for_silent_damage(
    disk: Path, directory: Path, run: KernelRun, options: dict[str, int], life: _Life
) -> list[str]:
    """A real broker on the damaged disk delivers whatever is whole, and nothing else."""
    acked = {(ack.queue_id, ack.queue_offset): ack.number for ack in life.acks}
    with (
        mounted(disk, directory / "image", MOUNT) as mount,
        saturn(directory / "again", mount, run.flush, options) as server,
    ):
        with _complaints() as complaints:
            got = consume(server.nameservers, acked.keys() - life.damaged, patience_s=5.0)
        with Producer("after", server.nameservers) as producer:
            sent = producer.send(Message(TOPIC, b"after the damage"))
        told = complaints or LOUD.search(server.printed())
    wrong = _strange(got, acked, life.bodies)
    if not sent.ok:
        wrong.append(f"I12: a send after the damage was answered {sent.status.name}")
    lacking = acked.keys() - got.keys()
    if len(lacking - life.damaged) > life.straddling:
        wrong.append(
            f"I11: {len(life.damaged)} messages were damaged, and {len(lacking)} of {len(acked)} "
            f"acknowledged ones are not delivered, among them {min(lacking - life.damaged)}"
        )
    if lacking and not told:
        wrong.append(f"I11: {len(lacking)} acknowledged messages vanished without a word")
    run.losses.append(ImageLoss(len(lacking)))
    return wrong


@contextlib.contextmanager
def _complaints() -> Iterator[list[str]]:
    """Errors that the clients of this process log."""
    found: list[str] = []
    log, handler = logging.getLogger("saturnmq.client"), logging.Handler(logging.ERROR)
    # A handler of one method needs no class.
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield found
    finally:
        log.removeHandler(handler)


def _strange(got: dict[_Place, bytes], acked: dict[_Place, int], bodies: Bodies) -> list[str]:
    """Delivered messages that were never sent, or that came in the place of an acknowledged one."""
    found = {place: bodies.number(body) for place, body in got.items()}
    return [
        f"I2: queue {place[0]} offset {place[1]} delivers message {number}, "
        f"acknowledged there: {acked.get(place)}"
        for place, number in found.items()
        if number is None or acked.get(place, number) != number
    ][:5]


def consume(
    nameservers: list[str],
    wanted: Set[_Place],
    *,
    patience_s: float = LIVENESS_S,
) -> dict[_Place, bytes]:
    """Bodies by (queue, offset), read until all `wanted` are there or none came for long."""
    got: dict[_Place, bytes] = {}
    consumer = PullConsumer(f"look-{time.monotonic_ns()}", nameservers, from_beginning=True)
    consumer.subscribe(TOPIC)
    with consumer:
        deadline = time.monotonic() + patience_s
        while not wanted <= got.keys() and time.monotonic() < deadline:
            for message in consumer.poll(timeout_s=0.2):
                got[message.queue_id, message.queue_offset] = bytes(message.body)
                deadline = time.monotonic() + patience_s
    return got


def _frames(data: bytes | mmap.mmap) -> Iterator[tuple[int, int, _Place]]:
    """(start, size, place) of what looks like a frame of the log in a stretch of the disk."""
    at = data.find(LOG_FRAME)
    while at >= 0:
        start = at - 4
        if start >= 0 and start + HEAD.size <= len(data):
            size, _, _, queue_id, _, queue_offset, *_ = HEAD.unpack_from(data, start)
            if FRAME_BYTES_MIN <= size <= 4096:
                yield start, size, (queue_id, queue_offset)
        at = data.find(LOG_FRAME, at + 1)


def _flip(disk: Path, chance: random.Random) -> _Place:
    """Turn one bit of one frame of the log on the medium; which one's."""
    with open(disk, "r+b") as file, mmap.mmap(file.fileno(), 0) as medium:
        start, size, place = chance.choice(list(_frames(medium)))
        medium[start + chance.randrange(size)] ^= 1 << chance.randrange(8)
    return place
