"""File systems on files: what the rigs ask of the kernel, through `mkfs`, `mount` and `umount`.

Every mount is a context that leaves nothing behind, whatever ends it: `mount -o loop` makes loop
devices that vanish with their mount, and the programs run in sessions of their own so that a
Ctrl-C does not end an `umount` half-way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from saturnmq.runtime.errors import SaturnError

HOST_BYTES = 4 << 30  # sparse
DISK_BYTES = 1 << 30  # sparse too
BUSY_S = 5.0  # the kernel lets go of a loop device a moment later than of its file system
_FICLONE = 0x40049409
_CAP_SYS_ADMIN = 21
# Program, the Debian package that has it.
_PROGRAMS = (("mount", "mount"), ("umount", "mount"), ("mkfs.ext4", "e2fsprogs"))
_REFLINK_PROGRAMS = (("mkfs.xfs", "xfsprogs"),)


class RigUnavailable(SaturnError):
    """This machine cannot run the kernel rigs"""


def why_not(*, reflink: bool = True, fuse: bool = True) -> str | None:
    """Why the rigs cannot run here, or None: root's rights, devices, programs."""
    if os.geteuid() != 0 or not _may_mount():
        return "kernel rigs mount file systems: they need root with CAP_SYS_ADMIN"
    for device in ("/dev/loop-control", *(["/dev/fuse"] if fuse else [])):
        if not os.path.exists(device):
            return f"kernel rigs need {device}: load the kernel module, or leave the container"
    for program, package in (*_PROGRAMS, *(_REFLINK_PROGRAMS if reflink else ())):
        if shutil.which(program) is None:
            return f"kernel rigs need {program}: install the package {package}"
    return None


def _may_mount() -> bool:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let a Ctrl-C or SIGTERM wait for the end of a step that starts something: half-way through,
    nobody would know what there is to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    before = {
        number: signal.signal(number, lambda *args: arrived.append(args))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late, _ in arrived[:1]:
            signal.raise_signal(late)


def run(*command: str | Path, pass_fds: Sequence[int] = ()) -> None:
    """Run a program of the system; its complaint is the error's text."""
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        raise RigUnavailable(f"{' '.join(map(str, command))} failed: {text}")


@contextlib.contextmanager
def mounted(
    source: str | Path,
    target: Path,
    options: str,
    *,
    kind: str | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator[Path]:
    """`source` mounted at `target`, which is made if it is missing."""
    if not target.exists():
        target.mkdir(parents=True)
    command: list[str | Path] = ["mount", *(["-i", "-t", kind] if kind else []), "-o", options]
    try:
        with undisturbed():
            run(*command, source, target, pass_fds=pass_fds)
        yield target
    finally:
        _unmount(target)


def _unmount(target: Path) -> None:
    # Not os.path.ismount: what is mounted may not answer any more.
    name = str(target).replace(" ", "\\040")
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    if all(line.split()[1] != name for line in mounts):
        return
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            run("umount", target)
            return
        except RigUnavailable:
            if time.monotonic() > deadline:  # only a bug of ours can be: let go of it all the same
                run("umount", "--lazy", target)
                raise
        time.sleep(0.1)


def make_ext4(path: Path, size: int = DISK_BYTES) -> None:
    """A sparse file with an empty ext4: small journal, few inodes, nothing left for later."""
    with open(path, "wb") as file:
        file.truncate(size)
    lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
    run("mkfs.ext4", "-q", "-F", "-E", lazy, "-J", "size=16", "-N", "4096", path)


@contextlib.contextmanager
def reflink_host(directory: Path) -> Iterator[Path]:
    """A mounted XFS whose files can be cloned in no time; gone afterwards."""
    image = directory / "host.img"
    try:
        with open(image, "wb") as file:
            file.truncate(HOST_BYTES)
        run("mkfs.xfs", "-q", "-f", "-m", "reflink=1", image)
        with mounted(image, directory / "host", "loop,noatime,discard") as host:
            yield host
    finally:
        image.unlink(missing_ok=True)


def clone(source: Path, target: Path) -> None:
    """Make `target` a copy of `source` as it is at one instant, sharing its blocks.

    Of a loop device's file that is what reached the device: what the page cache above it holds
    back is missing, as after a power cut.
    """
    with open(source, "rb") as old, open(target, "wb") as new:
        fcntl.ioctl(new, _FICLONE, old.fileno())
