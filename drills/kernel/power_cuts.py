"""Power cuts under load (docs/guarantees.md R2).

The store lies on an ext4 on a loop device, whose file lies on an XFS. A clone of that file, taken
in one step, is what the device held at that instant: whatever the page cache above it had not
written is missing, as after a power cut. Clones are taken at seeded moments while a real broker
serves a real producer, and looked at when the load is over, so that looking does not slow the
broker down. Kernel and broker decide what is in an image: a seed repeats sizes and moments only.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from saturnmq.drills.kernel.images import ImageVerdict, Judge, LogImage, PowerCut
from saturnmq.drills.kernel.load import Load
from saturnmq.drills.kernel.mounts import clone, make_ext4, mounted
from saturnmq.drills.kernel.report import ROCKETMQ, KernelRun
from saturnmq.drills.kernel.rocketmq import rocketmq
from saturnmq.drills.kernel.server import STORE, Server, saturn, store_options

MOUNT = "loop,noatime"
LOOK = "loop,noatime,barrier=0"  # an image must outlive no power cut of this machine
PAUSE_S = (0.002, 0.05)  # between two cuts
ROCKETMQ_PAUSE_S = (0.1, 0.7)  # it may sync every ten seconds only
SHOWN = 5  # violations of a kind in the log itself
NESTED = 4  # one image in so many suffers a second power cut while it recovers

OnImage = Callable[[], None]
OnWrong = Callable[[Path, str], None]  # an image and the name to keep it under


def power_cuts(
    host: Path,
    directory: Path,
    run: KernelRun,
    count: int,
    on_image: OnImage = lambda: None,
    on_wrong: OnWrong = lambda image, name: None,
    *,
    flush: str = "",
) -> None:
    """`count` power cuts of one broker's life; `host` is where files can be cloned.

    The broker is told `flush` instead of `run.flush` where the drill itself is under test.
    """
    options = store_options(run.seed)

    def server(mount: Path) -> AbstractContextManager[Server]:
        make = rocketmq if run.server == ROCKETMQ else partial(saturn, options=options)
        return make(directory / "cluster", mount, flush or run.flush)

    disk = host / "disk.img"
    cuts: list[PowerCut] = []
    try:
        log, load = live(disk, directory / "live", server, run, count, cuts)
        match = log.match(load.acks, load.bodies)
        run.violations += match.wrong[:SHOWN]
        run.violations += [f"I1: not in the log: {ack}" for ack in match.missing[:SHOWN]]
        judge = Judge(log, match.held, sync=run.flush == "sync", options=options)
        for number, cut in enumerate(cuts):
            if run.server == ROCKETMQ:
                verdict = _read(judge, cut, directory)
            else:
                verdict = _look(judge, cut, directory, random.Random(f"{run.seed}/{number}"))
            run.losses.append(verdict.loss)
            run.violations += [f"image {number}: {text}" for text in verdict.wrong]
            if verdict.wrong:
                on_wrong(cut.image, f"seed-{run.seed}-image-{number}.img")
            cut.image.unlink()
            on_image()
    finally:
        for path in host.glob("*.img"):
            path.unlink()


def live(
    disk: Path,
    mount: Path,
    server: Callable[[Path], AbstractContextManager[Server]],
    run: KernelRun,
    count: int,
    cuts: list[PowerCut],
) -> tuple[LogImage, Load]:
    """Put a broker on `disk` under load, take the cuts, kill it; the log it had and the load."""
    chance = random.Random(run.seed)
    pause = ROCKETMQ_PAUSE_S if run.server == ROCKETMQ else PAUSE_S
    make_ext4(disk)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mounted(disk, mount, MOUNT))
        broker = stack.enter_context(server(mount))
        load = stack.enter_context(Load(broker.nameservers, run.rate, run.seed))
        load.until_acked(1)
        for number in range(count):
            time.sleep(chance.uniform(*pause))
            image = disk.with_name(f"cut-{number}.img")
            at = time.monotonic()
            clone(disk, image)
            cuts.append(PowerCut(image, at, time.monotonic() - at))
        load.stop()
        broker.kill()
        run.acked, run.refused = len(load.acks), len(load.refused)
        run.seconds_of_load = round(load.seconds, 2)
        return LogImage(mount / STORE / "commitlog"), load


def _read(judge: Judge, cut: PowerCut, directory: Path) -> ImageVerdict:
    """Measure an image of RocketMQ's disk as it lies."""
    with mounted(cut.image, directory / "image", LOOK) as image:
        end = LogImage(image / STORE / "commitlog").end
    return ImageVerdict(end, judge.loss(end, cut.at))


def _look(judge: Judge, cut: PowerCut, directory: Path, chance: random.Random) -> ImageVerdict:
    """Mount an image and look at it; one in `NESTED` first suffers a second power cut."""
    root = directory / "image" / STORE
    if chance.randrange(NESTED):
        with mounted(cut.image, directory / "image", LOOK):
            return judge.look(root, cut.at)
    second = cut.image.with_suffix(".second.img")
    early = chance.random() < 0.5  # while it recovers, or when it has
    with mounted(cut.image, directory / "image", LOOK):

        def cut_again(*_: int) -> None:
            if not second.exists():
                clone(cut.image, second)

        store = judge.open(root, cut_again if early else None)
        end = store.watermarks.appended
        cut_again()
        store.close()
    with mounted(second, directory / "image", LOOK):
        verdict = judge.look_again(root, cut.at, end)
    second.unlink()
    return verdict
