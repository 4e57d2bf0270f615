"""SimDisk: the `Disk` door (store/disk.py) of one simulated machine, with a power switch.

A file is an array of 4 KiB pages in two images (`pages.py`): writing changes what reads and
mappings show, a flush makes the pages it names durable. A name in a directory is changed at once
for the running system and durably only by `sync_dir`.

When the power goes (`power_off`), every page that is not durable is, independently of the others,
kept, dropped, or torn at a 512-byte border. Every directory change since the last `sync_dir` of its
directory is, independently and in no order, kept or dropped, and so is the length of a file that
was never synced. The surviving content is the disk that `power_on` hands to the next incarnation;
views that the dead one still holds point into the void. Between syncs the kernel may also write
pages back by itself, so that a page on the platters can be older than its last state and newer than
its last flush.

Faults (docs/guarantees.md F4 to F7): `plan` makes an operation fail a number of times; a write that
fails has written a part. `total_bytes` is the disk's size and may be changed. `flip` is bit rot.

`step` is called before every primitive operation and inside writes. There a test can cut the power
at each boundary in turn, or take an image of the disk after a power loss (`crash_image`) or after
the death of the process (`kill_image`), without disturbing the run.

Directories are durable from the start: the file systems we run on make them so in practice.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import posixpath
import random
from collections.abc import Callable, Sequence
from functools import lru_cache

from saturnmq.drills.sim.disk_events import FaultPlan, PowerLoss, SimLock
from saturnmq.drills.sim.pages import PAGE, SECTOR, Fates, Inode, Names, PowerCutOdds
from saturnmq.drills.sim.trace import Trace
from saturnmq.runtime.errors import DirectoryLocked, StoreDamaged
from saturnmq.store.disk import Advice, Disk, Entry

__all__ = ["PAGE", "SECTOR", "FaultPlan", "PowerCutOdds", "PowerLoss", "SimDisk", "SimSegment"]

USUAL = PowerCutOdds()
normpath = lru_cache(posixpath.normpath)  # the same names again and again
_ROOTS = frozenset(("", ".", "/"))


class SimSegment:
    """A mapped file of fixed size. All handles of a file share its `current` image."""

    descriptor = -1

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path
        self.size = len(inode.current)
        self.view = memoryview(inode.current)

    def flush(self, start: int, end: int) -> None:
        self._disk.flush_pages(self.path, self._inode, start, end)

    def write(self, pos: int, data: bytes | bytearray | memoryview) -> None:
        disk, inode, size = self._disk, self._inode, len(data)
        if not 0 <= pos <= self.size - size:
            raise ValueError(f"{size} B at {pos} do not fit in {self.size} B")
        disk.writing = (self.path, pos, bytes(data))
        try:
            disk.begin("write", self.path)
        except OSError:
            if disk.on:
                inode.put(pos, data[: size // 2])
            raise
        if disk.step is None:
            inode.put(pos, data)
            return
        done = 0
        for stop in _inner_borders(pos, size):
            inode.put(pos + done, data[done:stop])
            disk.step("write", self.path)
            done = stop
        inode.put(pos + done, data[done:])

    def zero(self, start: int, end: int) -> None:
        self._disk.begin("zero", self.path)
        end = min(end, self.size)
        if start < end:
            middle = (start + end) // 2
            self._inode.put(start, bytes(middle - start))
            if self._disk.step is not None:
                self._disk.step("zero", self.path)
            self._inode.put(middle, bytes(end - middle))

    def read(self, position: int, size: int) -> bytes:
        self._disk.begin("read", self.path)
        return bytes(self._inode.current[position : position + size])

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def forget(self, start: int, end: int) -> None:
        self._disk.begin("forget", self.path)
        self._inode.forget(start, end)

    def is_cached(self, start: int, end: int) -> bool:
        return True

    def cache(self, start: int, end: int) -> None:
        raise AssertionError("all of it is in memory")

    def in_place(self) -> bool:
        return self._disk.names_file(self.path, self._inode)

    def advise(self, advice: Advice) -> None:
        self._disk.begin("advise", self.path)

    def written(self, position: int) -> list[tuple[int, int]]:
        return self._inode.written(position)

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # somebody holds a slice: it stays valid
            self.view.release()


class SimSpare:
    """A mapped file without a name yet, which no image of the disk has."""

    def __init__(self, disk: SimDisk, directory: str, inode: Inode) -> None:
        self._disk = disk
        self._directory = directory
        self._inode = inode

    def give_name(self, path: str) -> SimSegment:
        return self._disk.give_name(normpath(path), self._inode)

    def advise(self, advice: Advice) -> None:
        self._disk.begin("advise", self._directory)

    def close(self) -> None:
        self._disk.let_go(self._inode)


def _inner_borders(pos: int, size: int) -> list[int]:
    """The places where a crash may interrupt a write: every page's border, and one within."""
    borders = set(range(PAGE - pos % PAGE, size, PAGE))
    if size > 1:
        borders.add(size // 2)
    return sorted(borders)


class SimDisk:
    """One machine's disk. Give the store `disk`; keep it to cut the power and to plan faults."""

    def __init__(
        self,
        rng: random.Random,
        trace: Trace | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        total_bytes: int = 1 << 40,
        writeback: float = 0.05,
        memory_bytes: int = 8 << 30,
    ) -> None:
        self._rng = rng
        self.trace = trace
        self.now_ms = now_ms
        self.total_bytes = total_bytes
        self._memory_bytes = memory_bytes
        self._writeback = writeback
        self._names = Names()
        self._dirs: dict[str, bool] = dict.fromkeys(_ROOTS, True)
        self._nameless: list[Inode] = []
        self.locks: dict[str, bool] = {}
        self.plans: list[FaultPlan] = []
        self.step: Callable[[str, str], None] | None = None
        self.on = True
        self.writing: tuple[str, int, bytes] | None = None  # the last write: path, place, bytes
        self.fates = Fates()

    # faults

    def plan(
        self, operation: str, error: int = errno.EIO, pattern: str = "*", times: int | None = 1
    ) -> FaultPlan:
        """Makes the next `times` operations of this name on matching paths fail."""
        plan = FaultPlan(operation, pattern, error, times)
        self.plans.append(plan)
        return plan

    def begin(self, operation: str, path: str) -> None:
        """Every operation passes here first: the crash point before it, its fault, its line in the
        trace.
        """
        if not self.on:
            raise OSError(errno.EIO, "the machine is off", path)
        if self.step is not None:
            self.step(operation, path)
        if self.trace is not None:
            self.trace.note(f"disk.{operation}", path)
        if self.plans:
            self._fail_if_planned(operation, path)

    def _fail_if_planned(self, operation: str, path: str) -> None:
        for plan in self.plans:
            if plan.operation == operation and fnmatch.fnmatch(path, plan.pattern):
                if plan.times is not None and plan.hits >= plan.times:
                    continue
                plan.hits += 1
                self._note("fault.disk", f"{operation} {path} {plan.error}")
                raise OSError(plan.error, f"planned failure of {operation}", path)

    def _note(self, kind: str, text: str = "") -> None:
        if self.trace is not None:
            self.trace.note(kind, text)

    def paths(self) -> list[str]:
        """The names of all files."""
        return sorted(self._names.current)

    def durable_paths(self, directory: str) -> list[str]:
        """The names of the files in `directory` that a power loss would leave for sure."""
        return self._names.durable_paths(directory)

    def content(self, path: str) -> bytes:
        """The content that a reader of the file sees, also while the machine is off."""
        return bytes(self._find(path).current)

    def platters(self, path: str) -> bytes:
        """The durable content of the file that has this name durably."""
        return self._names.durable(path)

    def flip(self, path: str, position: int, bit: int) -> None:
        """Bit rot, in the page cache and on the platters."""
        inode = self._find(path)
        for content in (inode.current, inode.durable):
            content[position] ^= 1 << bit

    def lose(self, *paths: str) -> None:
        """Files go, durably; who has them open keeps them."""
        for path in paths:
            self._find(path)
            self._names.remove(path)
            self._names.sync(posixpath.dirname(path))
            self._note("disk.lost", path)

    def restore(self, image: SimDisk) -> None:
        """All there is now is what `image` has; nobody may use either."""
        self._names, self._dirs = image._names.copy(), dict(image._dirs)
        self._note("disk.restored")

    # the power switch

    def power_off(self) -> None:
        """Decides what the platters hold; until `power_on` every operation fails."""
        self.on = False
        image = self.crash_image(self._rng)
        self._names, self._dirs = image._names, image._dirs
        self._nameless.clear()
        self.locks.clear()
        self.fates.add(image.fates)
        fates = self.fates
        self._note("disk.off", f"kept {fates.kept} dropped {fates.dropped} torn {fates.torn}")

    def power_on(self) -> None:
        self.on = True

    def kill(self) -> None:
        """End the process while the machine lives: no written byte is lost, flushed or not.

        Until `power_on` the disk may not be used: a dead process uses none.
        """
        self.on = False
        self._nameless.clear()
        self.locks.clear()
        self._note("disk.killed")

    def crash_image(self, rng: random.Random, outcome: PowerCutOdds = USUAL) -> SimDisk:
        """The disk that a machine would find whose power went now; this one goes on unharmed."""
        image = self._another(rng)
        image._names = self._names.after_power_loss(rng, outcome, image.fates)
        for path in image._names.current:  # a name that is back has its directory
            while (path := posixpath.dirname(path)) not in image._dirs:
                image._dirs[path] = True
        return image

    def kill_image(self, rng: random.Random) -> SimDisk:
        """The disk that the next process would find if this one died now: nothing is lost, and
        what was not synced still is not.
        """
        image = self._another(rng)
        image._names = self._names.copy()
        return image

    def _another(self, rng: random.Random) -> SimDisk:
        image = SimDisk(
            rng, None, self.now_ms, self.total_bytes, self._writeback, self._memory_bytes
        )
        image._dirs = dict(self._dirs)
        return image

    # pages

    def flush_pages(self, path: str, inode: Inode, start: int, end: int) -> None:
        """Makes the pages of [start, end) durable, or fails and marks them clean (see the module's
        document).
        """
        try:
            self.begin("flush", path)
        except OSError:
            inode.lie(start, end)
            raise
        inode.flush(start, end)
        if self._writeback and self._rng.random() < self._writeback:
            self._write_back_something()

    def _write_back_something(self) -> None:
        """The kernel's own write-back: one random dirty page reaches the platters unasked."""
        inode = self._names.current[self._rng.choice(sorted(self._names.current))]
        pages = inode.dirty_pages()
        if pages:
            inode.write_back(self._rng.choice(pages))

    # names

    def _find(self, path: str) -> Inode:
        inode = self._names.current.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def names_file(self, path: str, inode: Inode) -> bool:
        """Whether `path` is a name of this file. Changes nothing, so no crash point lies before."""
        if not self.on:
            raise OSError(errno.EIO, "the machine is off", path)
        return self._names.current.get(path) is inode

    def _require_dir(self, path: str) -> None:
        directory = posixpath.dirname(path)
        if directory not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)

    # the Disk door

    def buffer(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def mutex(self) -> contextlib.AbstractContextManager[object]:
        """One thread only: nothing to guard."""
        return contextlib.nullcontext()

    def list(self, directory: str) -> list[Entry]:
        directory = normpath(directory)
        self.begin("list", directory)
        prefix = "" if directory == "." else directory.rstrip("/") + "/"
        start = len(prefix)
        entries = [
            Entry(path[start:], len(inode.current), False, inode.mtime_ms)
            for path, inode in self._names.current.items()
            if path.startswith(prefix) and path.find("/", start) < 0
        ]
        entries += [
            Entry(path[start:], 0, True, 0)
            for path in self._dirs
            if path.startswith(prefix) and path.find("/", start) < 0 and path not in _ROOTS
        ]
        return sorted(entries)

    def make_dirs(self, directory: str, *, durable: bool = True) -> None:
        path = normpath(directory)
        self.begin("make_dirs", path)
        while path not in self._dirs:
            self._dirs[path] = True
            path = posixpath.dirname(path)

    def exists(self, path: str) -> bool:
        path = normpath(path)
        self.begin("exists", path)
        return path in self._names.current or path in self._dirs

    def create_segment(self, path: str, size: int, *, durable: bool = True) -> SimSegment:
        path = normpath(path)
        self._begin_new(path)
        self._require_space(path, size)
        # The name comes when the file has its size, durably so unless nobody asked for that.
        inode = Inode(bytearray(size), bytearray(size), self.now_ms(), sized=durable)
        self._names.add(path, inode)
        if durable:
            try:
                self.sync_dir(posixpath.dirname(path))
            except OSError:
                self._names.remove(path)
                raise
        return SimSegment(self, path, inode)

    def create_mapped(self, path: str, size: int, room: int) -> SimSegment:
        path = normpath(path)
        self._begin_new(path)
        self._require_space(path, room)
        inode = Inode(bytearray(size), bytearray(size), self.now_ms(), sized=False, room=set())
        inode.room = inode.missing_room(0, room)
        self._names.add(path, inode)
        return SimSegment(self, path, inode)

    def make_spare(self, directory: str, size: int, room: int) -> SimSpare:
        directory = normpath(directory)
        self.begin("make_spare", directory)
        self._require_dir(posixpath.join(directory, "spare"))
        self._require_space(directory, room)
        inode = Inode(bytearray(size), bytearray(size), self.now_ms(), sized=False, room=set())
        inode.room = inode.missing_room(0, room)
        self._nameless.append(inode)
        return SimSpare(self, directory, inode)

    def give_name(self, path: str, inode: Inode) -> SimSegment:
        """Name a file that has none."""
        self._begin_new(path)
        self.let_go(inode)
        self._names.add(path, inode)
        return SimSegment(self, path, inode)

    def let_go(self, inode: Inode) -> None:
        self._nameless = [other for other in self._nameless if other is not inode]

    def open_mapped(self, path: str, size: int) -> SimSegment:
        return self.open_segment(path, size)

    def make_room(self, path: str, start: int, end: int) -> None:
        path = normpath(path)
        self.begin("make_room", path)
        inode = self._find(path)
        missing = inode.missing_room(start, end)
        self._require_space(path, PAGE * len(missing))
        if inode.room is not None:
            inode.room |= missing

    def sync_file(self, path: str) -> None:
        path = normpath(path)
        inode = self._find(path)
        self.flush_pages(path, inode, 0, len(inode.current))

    def together(self, calls: Sequence[Callable[[], None]]) -> None:
        for call in calls:
            call()

    def open_segment(self, path: str, size: int) -> SimSegment:
        path = normpath(path)
        self.begin("open_segment", path)
        inode = self._find(path)
        if len(inode.current) != size:
            raise StoreDamaged(
                f"{path} is {len(inode.current)} bytes long, the configured segment size is {size}"
            )
        return SimSegment(self, path, inode)

    def open_readonly(self, path: str) -> SimSegment:
        path = normpath(path)
        self.begin("open_readonly", path)
        return SimSegment(self, path, self._find(path))

    def read_file(self, path: str) -> bytes:
        path = normpath(path)
        self.begin("read_file", path)
        return bytes(self._find(path).current)

    def write_file(self, path: str, data: bytes) -> None:
        path = normpath(path)
        self._write_synced(path, data)
        self.sync_dir(posixpath.dirname(path))

    def _write_synced(self, path: str, data: bytes) -> None:
        self.begin("write_file", path)
        self._require_dir(path)
        inode = self._names.current.get(path)
        self._require_space(path, len(data) - (inode.used_bytes if inode else 0))
        if inode is None:
            inode = Inode(bytearray(data), bytearray(len(data)), self.now_ms(), sized=False)
            self._names.add(path, inode)
        else:
            inode.overwrite(data)
        self.flush_pages(path, inode, 0, len(data))

    def replace_file(
        self, path: str, data: bytes, *, keep_backup: bool = True, keep_room: bool = False
    ) -> None:
        path = normpath(path)
        self._write_synced(path + ".tmp", data)
        oldest = self._names.current.get(path + ".bak") if keep_room else None
        if keep_backup and path in self._names.current:
            self.begin("link", path + ".bak")
            self._names.add(path + ".bak", self._names.current[path])
        self._rename(path + ".tmp", path)
        if oldest is not None:
            self._names.add(path + ".tmp", oldest)
        for name in (path + ".bak", path + ".tmp") if keep_room else ():
            if name not in self._names.current:
                self._names.add(name, Inode(bytearray(data), bytearray(data), self.now_ms()))
        self.sync_dir(posixpath.dirname(path))

    def rename(self, old: str, new: str) -> None:
        old, new = normpath(old), normpath(new)
        self._rename(old, new)
        self.sync_dir(posixpath.dirname(new))
        if posixpath.dirname(old) != posixpath.dirname(new):
            self.sync_dir(posixpath.dirname(old))

    def _rename(self, old: str, new: str) -> None:
        self.begin("rename", f"{old} {new}")
        self._find(old)
        self._require_dir(new)
        self._names.move(old, new)

    def unlink(self, path: str) -> None:
        path = normpath(path)
        self.begin("unlink", path)
        if path in self._names.current:
            self._names.remove(path)
            self.sync_dir(posixpath.dirname(path))

    def remove_tree(self, path: str, *, durable: bool = True) -> None:
        path = normpath(path)
        self.begin("remove_tree", path)
        for child in sorted(self._names.current, reverse=True):
            if child.startswith(path + "/"):
                self._names.remove(child)
                if durable:
                    self.sync_dir(posixpath.dirname(child))
        for child in list(self._dirs):
            if child == path or child.startswith(path + "/"):
                del self._dirs[child]

    def sync_dir(self, directory: str) -> None:
        directory = normpath(directory)
        self.begin("sync_dir", directory)
        self._names.sync(directory)

    def lock(self, path: str) -> SimLock:
        path = normpath(path)
        self.begin("lock", path)
        self._require_dir(path)
        if path in self.locks:
            raise DirectoryLocked(
                f"{posixpath.dirname(path)} is in use by another broker (it holds {path}): "
                "stop that one or choose another directory"
            )
        self.locks[path] = True
        if path not in self._names.current:
            self._names.add(path, Inode(bytearray(b"lock"), bytearray(b"lock"), self.now_ms()))
        return SimLock(self.locks, path)

    def locked(self, path: str) -> bool:
        path = normpath(path)
        self.begin("locked", path)
        return path in self.locks

    def free_space(self, path: str) -> tuple[int, int]:
        self.begin("free_space", path)
        return self.total_bytes, self.total_bytes - self.used_bytes

    def memory_bytes(self) -> int:
        return self._memory_bytes

    def _begin_new(self, path: str) -> None:
        self.begin("create_segment", path)
        self._require_dir(path)
        if path in self._names.current:
            raise FileExistsError(errno.EEXIST, "file exists", path)

    def _require_space(self, path: str, size: int) -> None:
        free = self.total_bytes - self.used_bytes
        if size > free:
            raise OSError(errno.ENOSPC, f"{size} bytes do not fit, {free} are free", path)

    @property
    def used_bytes(self) -> int:
        named = sum(inode.used_bytes for inode in self._names.current.values())
        return named + sum(inode.used_bytes for inode in self._nameless)


_check: type[Disk] = SimDisk  # the type checker compares both here
