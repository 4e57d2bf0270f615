"""`run_kernel_drill`: power cuts and runs on a faulty disk, over flush modes and rates."""

from __future__ import annotations

import itertools
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from saturnmq.cli.launcher import LauncherError
from saturnmq.drills.kernel.block_errors import FAULTS, block_error
from saturnmq.drills.kernel.mounts import RigUnavailable, reflink_host, run, why_not
from saturnmq.drills.kernel.power_cuts import power_cuts
from saturnmq.drills.kernel.report import ROCKETMQ, SATURNMQ, KernelReport, KernelRun
from saturnmq.drills.kernel.rocketmq import why_not as why_no_rocketmq
from saturnmq.drills.silence_logs import quiet
from saturnmq.runtime.errors import InvalidParameter, SaturnError

RATES = (20, 1_000, 20_000)
FLUSHES = {"sync": ("sync",), "async": ("async",), "both": ("sync", "async")}
CUTS_PER_LIFE = 100  # of a broker, at most
ERROR_RATE = 500  # messages per second on a faulty disk
Progress = Callable[[int, int, str], None]  # done, total, what is going on


def run_kernel_drill(
    *,
    images: int = 1_000,
    errors: int = 100,
    seed: int = 0,
    flush: str = "both",
    rates: Sequence[int] = RATES,
    progress: Progress = lambda done, total, text: None,
    keep: Path | None = None,
    server: str = SATURNMQ,
) -> KernelReport:
    """`images` power cuts and `errors` runs on a faulty disk, shared out over the flush modes
    ("sync", "async" or "both") and the rates (messages per second).

    Images that show a violation are copied to the directory `keep`. With `server` "rocketmq" the
    power cuts hit a real RocketMQ, and what it loses is measured, not judged. RigUnavailable says
    what this machine lacks.
    """
    if server not in (SATURNMQ, ROCKETMQ):
        raise InvalidParameter(f"server is {server!r}; it must be {SATURNMQ} or {ROCKETMQ}")
    if server == ROCKETMQ and errors:
        raise InvalidParameter(f"errors is {errors}; runs on a faulty disk are for {SATURNMQ} only")
    if flush not in FLUSHES:
        raise InvalidParameter(f"flush is {flush!r}; it must be one of {', '.join(FLUSHES)}")
    reason = why_not(reflink=images > 0, fuse=errors > 0)
    if server == ROCKETMQ:
        reason = reason or why_no_rocketmq()
    if reason is not None:
        raise RigUnavailable(reason)
    report = KernelReport(seed, platform.platform())
    begin, done, total = time.monotonic(), 0, images + errors

    def step(text: str) -> None:
        nonlocal done
        done += 1
        report.seconds = time.monotonic() - begin
        progress(done, total, text)

    def keep_image(image: Path, name: str) -> None:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            run("cp", "--sparse=always", image, keep / name)

    @contextmanager
    def started(life: KernelRun) -> Iterator[Path]:
        """A directory for one life; what breaks it is a finding, the others go on."""
        report.runs.append(life)
        with _workshop() as directory:
            try:
                yield directory
            except (OSError, SaturnError, LauncherError) as problem:
                if _interrupted(problem):
                    raise
                life.violations.append(f"the run broke: {problem}")

    progress(0, total, "")
    lives = _lives(images, [(mode, rate) for rate in rates for mode in FLUSHES[flush]])
    with quiet("saturnmq.store"):  # recovery warns of every tail it cuts
        for number, (mode, rate, count) in enumerate(lives):
            looked_at = partial(step, f"power cuts, {mode} flush, {rate:,} msg/s")
            life = KernelRun("power cut", seed + number, mode, rate, server)
            with started(life) as directory, reflink_host(directory) as host:
                power_cuts(host, directory, life, count, looked_at, keep_image)
        kinds = itertools.cycle(itertools.product(FAULTS, FLUSHES[flush]))
        for number, (fault, mode) in enumerate(itertools.islice(kinds, errors)):
            life = KernelRun(fault, seed + number, mode, ERROR_RATE)
            with started(life) as directory:
                block_error(directory, life, keep_image)
            step(f"{fault}, {mode} flush")
    return report


def _interrupted(problem: BaseException | None) -> bool:
    """Whether it came of cleaning up after a Ctrl-C."""
    while problem is not None and not isinstance(problem, KeyboardInterrupt | SystemExit):
        problem = problem.__context__
    return problem is not None


def _lives(images: int, kinds: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    """(flush, rate, images) of each broker: an equal share for every kind, in small parts."""
    shares = [images // len(kinds) + (n < images % len(kinds)) for n in range(len(kinds))]
    while any(shares):
        for n, (mode, rate) in enumerate(kinds):
            part = min(shares[n], CUTS_PER_LIFE)
            shares[n] -= part
            if part:
                yield mode, rate, part


@contextmanager
def _workshop() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="saturnmq-drill-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
