"""SimDisk: the `Disk` door (store/disk.py) of one simulated machine, with a power switch.

A file is an array of 4 KiB pages in two images: `current`, what reads and mappings show, and
`durable`, what the platters hold. Writing changes `current` only; a flush copies the pages it
names to `durable`. A name in a directory is changed at once for the running system and durably
only by `sync_dir`.

When the power goes (`power_off`), every page whose two images differ is, independently of the
others, kept, dropped, or torn at a 512-byte border; every directory change since the last
`sync_dir` of its directory is, independently and in no order, kept or dropped. What survives is
the disk's content when `power_on` hands it to the next incarnation; views that the dead one still
holds point into the void. Between syncs the kernel may also write pages back by itself, so that a
page on the platters can be older than its last state and newer than its last flush.

Faults (fault-model §5, F4 to F7): `plan` makes an operation fail a number of times. A failed
flush marks its pages clean, as ext4 does: later flushes skip them and succeed although the
platters never got the bytes (§4 rule 1). `step` is called before every primitive operation, so
that a test can cut the power at each boundary in turn.

Durable from the start, because the file systems we run on make them so in practice: directories
themselves.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import posixpath
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from saturnmq.drills.sim.trace import Trace
from saturnmq.protocol.errors import DirectoryLocked, StoreDamaged
from saturnmq.store.disk import Advice, Disk, Entry

PAGE = 4096
SECTOR = 512


class PowerLoss(BaseException):
    """Raised at the operation where the power went; not an Exception, so that no code under test
    handles it.
    """


@dataclass
class FaultPlan:
    """`operation` on paths matching `pattern` fails with `error` the next `times` times (None: for
    ever).
    """

    operation: str
    pattern: str
    error: int
    times: int | None = 1
    hits: int = 0


@dataclass
class Inode:
    """One file. `clean_lies` are the pages that a failed flush left clean without writing them."""

    current: bytearray
    durable: bytearray
    mtime_ms: int
    clean_lies: dict[int, bytes] = field(default_factory=dict)

    def dirty_pages(self, start: int = 0, end: int | None = None) -> list[int]:
        """Page numbers whose images differ, within the byte range."""
        stop = len(self.current) if end is None else min(end, len(self.current))
        first, last = start // PAGE, (stop + PAGE - 1) // PAGE
        if len(self.durable) < len(self.current):
            self.durable.extend(bytes(len(self.current) - len(self.durable)))
        low, high = first * PAGE, last * PAGE
        # Slices of bytearrays compare with memcmp; memoryviews compare item by item, fifty times
        # slower.
        current, durable = self.current, self.durable
        if current[low:high] == durable[low:high]:
            return []
        return [
            page
            for page in range(first, last)
            if current[page * PAGE : (page + 1) * PAGE] != durable[page * PAGE : (page + 1) * PAGE]
        ]


@dataclass
class _Change:
    """A directory change that is not durable yet: remove `source` if it still names `inode`, then
    set `target`.
    """

    source: str | None
    target: str | None
    inode: Inode


class SimLock:
    """The store directory's lock: held by one running process, released by its death."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._disk.locks.pop(self._path, None)


class SimSegment:
    """A mapped file of fixed size. Every handle of a file shares its `current` image, as mappings
    do.
    """

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path
        self.size = len(inode.current)
        self.view = memoryview(inode.current)

    def flush(self, start: int, end: int) -> None:
        self._disk.flush_pages(self.path, self._inode, start, end)

    def write(self, pos: int, data: bytes | bytearray | memoryview) -> None:
        self._disk.begin("write", self.path)
        if not 0 <= pos <= self.size - len(data):
            raise ValueError(f"{len(data)} B at {pos} do not fit in {self.size} B")
        self._inode.current[pos : pos + len(data)] = data

    def zero(self, start: int, end: int) -> None:
        self._disk.begin("zero", self.path)
        end = min(end, self.size)
        if start < end:
            self._inode.current[start:end] = bytes(end - start)

    def read(self, position: int, size: int) -> bytes:
        self._disk.begin("read", self.path)
        return bytes(self._inode.current[position : position + size])

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def forget(self, start: int, end: int) -> None:
        self._disk.begin("forget", self.path)
        for page, lie in list(self._inode.clean_lies.items()):
            begin = page * PAGE
            stop = begin + len(lie)
            if start < stop and begin < end and self._inode.current[begin:stop] == lie:
                self._inode.current[begin:stop] = self._inode.durable[begin:stop]
                del self._inode.clean_lies[page]

    def advise(self, advice: Advice) -> None:
        self._disk.begin("advise", self.path)

    def written(self, position: int) -> list[tuple[int, int]]:
        return [(position, self.size)]

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # somebody holds a slice: it stays valid
            self.view.release()


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
        self.trace = trace if trace is not None else Trace()
        self.now_ms = now_ms
        self.total_bytes = total_bytes
        self._memory_bytes = memory_bytes
        self._writeback = writeback
        self._files: dict[str, Inode] = {}
        self._durable_files: dict[str, Inode] = {}
        self._changes: dict[str, list[_Change]] = {}
        self._dirs: dict[str, bool] = {"/": True, ".": True, "": True}
        self.locks: dict[str, bool] = {}
        self.plans: list[FaultPlan] = []
        self.step: Callable[[str, str], None] | None = None
        self.on = True
        self.torn = self.dropped = self.kept = 0

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
        self.trace.note(f"disk.{operation}", path)
        self._fail_if_planned(operation, path)

    def _fail_if_planned(self, operation: str, path: str) -> None:
        for plan in self.plans:
            if plan.operation == operation and fnmatch.fnmatch(path, plan.pattern):
                if plan.times is not None and plan.hits >= plan.times:
                    continue
                plan.hits += 1
                self.trace.note("fault.disk", f"{operation} {path} {plan.error}")
                raise OSError(plan.error, f"planned failure of {operation}", path)

    # the power switch

    def power_off(self) -> None:
        """Decides what the platters hold; until `power_on` every operation fails."""
        self.on = False
        for directory in sorted(self._changes):
            for change in self._changes[directory]:
                if self._rng.random() < 0.5:
                    self._make_durable(change)
        self._changes.clear()
        inodes: dict[int, Inode] = {}
        for path in sorted(self._durable_files):
            inode = self._durable_files[path]
            inodes.setdefault(id(inode), inode)
        for inode in inodes.values():
            self._tear(inode)
        survivors = {
            key: Inode(bytearray(inode.durable), bytearray(inode.durable), inode.mtime_ms)
            for key, inode in inodes.items()
        }
        self._durable_files = {
            path: survivors[id(inode)] for path, inode in sorted(self._durable_files.items())
        }
        self._files = dict(self._durable_files)
        self.locks.clear()
        self.trace.note("disk.off", f"kept {self.kept} dropped {self.dropped} torn {self.torn}")

    def power_on(self) -> None:
        self.on = True

    def kill(self) -> None:
        """The process dies, the machine lives: nothing written is lost, also what was not flushed.

        Until `power_on` nobody may use the disk: the dead have no hands.
        """
        self.on = False
        self.locks.clear()
        self.trace.note("disk.killed")

    def _tear(self, inode: Inode) -> None:
        for page in inode.dirty_pages():
            begin, end = page * PAGE, min((page + 1) * PAGE, len(inode.current))
            fate = self._rng.random()
            if page in inode.clean_lies and inode.clean_lies[page] == inode.current[begin:end]:
                fate = 1.0
            if fate < 0.4:
                self.kept += 1
                inode.durable[begin:end] = inode.current[begin:end]
            elif fate < 0.6:
                self.torn += 1
                border = begin + SECTOR * self._rng.randint(1, PAGE // SECTOR - 1)
                if self._rng.random() < 0.5:
                    inode.durable[begin:border] = inode.current[begin:border]
                else:
                    inode.durable[border:end] = inode.current[border:end]
            else:
                self.dropped += 1

    # pages

    def flush_pages(self, path: str, inode: Inode, start: int, end: int) -> None:
        """Makes the pages of [start, end) durable, or fails and marks them clean (see the module's
        document).
        """
        try:
            self.begin("flush", path)
        except OSError:
            for page in inode.dirty_pages(start, end):
                inode.clean_lies[page] = bytes(inode.current[page * PAGE : (page + 1) * PAGE])
            raise
        for page in inode.dirty_pages(start, end):
            begin, stop = page * PAGE, min((page + 1) * PAGE, len(inode.current))
            content = bytes(inode.current[begin:stop])
            if inode.clean_lies.get(page) == content:
                continue
            inode.clean_lies.pop(page, None)
            inode.durable[begin:stop] = content
        if self._rng.random() < self._writeback:
            self._write_back_something()

    def _write_back_something(self) -> None:
        """The kernel's own write-back: one random dirty page reaches the platters unasked."""
        paths = sorted(self._files)
        inode = self._files[self._rng.choice(paths)]
        pages = inode.dirty_pages()
        if pages:
            page = self._rng.choice(pages)
            if page not in inode.clean_lies:
                begin, end = page * PAGE, min((page + 1) * PAGE, len(inode.current))
                inode.durable[begin:end] = inode.current[begin:end]

    # names

    def _change(self, source: str | None, target: str | None, inode: Inode) -> None:
        change = _Change(source, target, inode)
        directory = posixpath.dirname(target if target is not None else source or "")
        self._changes.setdefault(directory, []).append(change)

    def _make_durable(self, change: _Change) -> None:
        if change.source is not None and self._durable_files.get(change.source) is change.inode:
            del self._durable_files[change.source]
        if change.target is not None:
            self._durable_files[change.target] = change.inode

    def _find(self, path: str) -> Inode:
        inode = self._files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _require_dir(self, path: str) -> None:
        directory = posixpath.dirname(path)
        if directory not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)

    # the Disk door

    def mutex(self) -> contextlib.AbstractContextManager[object]:
        """One thread only: nothing to guard."""
        return contextlib.nullcontext()

    def list(self, directory: str) -> list[Entry]:
        directory = posixpath.normpath(directory)
        self.begin("list", directory)
        entries = [
            Entry(posixpath.basename(path), len(inode.current), False, inode.mtime_ms)
            for path, inode in self._files.items()
            if posixpath.dirname(path) == directory
        ]
        entries += [
            Entry(posixpath.basename(path), 0, True, 0)
            for path in self._dirs
            if path not in {"", ".", "/"} and posixpath.dirname(path) == directory
        ]
        return sorted(entries)

    def make_dirs(self, directory: str) -> None:
        path = posixpath.normpath(directory)
        self.begin("make_dirs", path)
        while path not in self._dirs:
            self._dirs[path] = True
            path = posixpath.dirname(path)

    def exists(self, path: str) -> bool:
        path = posixpath.normpath(path)
        self.begin("exists", path)
        return path in self._files or path in self._dirs

    def create_segment(self, path: str, size: int, durable: bool = True) -> SimSegment:
        path = posixpath.normpath(path)
        self.begin("create_segment", path)
        self._require_dir(path)
        if path in self._files:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        self._require_space(path, size)
        # The name comes when the file has its size: a crash leaves all of it or nothing.
        inode = Inode(bytearray(size), bytearray(size), self.now_ms())
        self._name(path, inode)
        if durable:
            self.sync_dir(posixpath.dirname(path))
        return SimSegment(self, path, inode)

    def open_segment(self, path: str, size: int) -> SimSegment:
        path = posixpath.normpath(path)
        self.begin("open_segment", path)
        inode = self._find(path)
        if len(inode.current) != size:
            raise StoreDamaged(
                f"{path} is {len(inode.current)} bytes long, the configured segment size is {size}"
            )
        return SimSegment(self, path, inode)

    def read_file(self, path: str) -> bytes:
        path = posixpath.normpath(path)
        self.begin("read_file", path)
        return bytes(self._find(path).current)

    def write_file(self, path: str, data: bytes) -> None:
        path = posixpath.normpath(path)
        self._write_synced(path, data)
        self.sync_dir(posixpath.dirname(path))

    def _write_synced(self, path: str, data: bytes) -> None:
        self.begin("write_file", path)
        self._require_dir(path)
        self._require_space(path, len(data))
        # Like O_TRUNC: the old content is gone, the new one is there after the flush.
        inode = Inode(bytearray(data), bytearray(len(data)), self.now_ms())
        self._name(path, inode)
        self.flush_pages(path, inode, 0, len(data))

    def replace_file(self, path: str, data: bytes, keep_backup: bool = True) -> None:
        path = posixpath.normpath(path)
        self._write_synced(path + ".tmp", data)
        if keep_backup and path in self._files:
            self.begin("link", path + ".bak")
            self._name(path + ".bak", self._files[path])
        self._rename(path + ".tmp", path)
        self.sync_dir(posixpath.dirname(path))

    def rename(self, old: str, new: str) -> None:
        new = posixpath.normpath(new)
        old = posixpath.normpath(old)
        self._rename(old, new)
        self.sync_dir(posixpath.dirname(new))
        if posixpath.dirname(old) != posixpath.dirname(new):
            self.sync_dir(posixpath.dirname(old))

    def _rename(self, old: str, new: str) -> None:
        self.begin("rename", f"{old} {new}")
        inode = self._find(old)
        self._require_dir(new)
        del self._files[old]
        self._files[new] = inode
        self._change(old, new, inode)

    def unlink(self, path: str) -> None:
        path = posixpath.normpath(path)
        self.begin("unlink", path)
        inode = self._files.pop(path, None)
        if inode is not None:
            self._change(path, None, inode)
            self.sync_dir(posixpath.dirname(path))

    def remove_tree(self, path: str) -> None:
        path = posixpath.normpath(path)
        self.begin("remove_tree", path)
        for child in sorted(self._files):
            if child.startswith(path + "/"):
                self._change(child, None, self._files.pop(child))
                self.sync_dir(posixpath.dirname(child))
        for child in list(self._dirs):
            if child == path or child.startswith(path + "/"):
                del self._dirs[child]

    def sync_dir(self, directory: str) -> None:
        directory = posixpath.normpath(directory)
        self.begin("sync_dir", directory)
        for change in self._changes.pop(directory, []):
            self._make_durable(change)

    def lock(self, path: str) -> SimLock:
        path = posixpath.normpath(path)
        self.begin("lock", path)
        self._require_dir(path)
        if path in self.locks:
            raise DirectoryLocked(
                f"{posixpath.dirname(path)} is in use by another broker (it holds {path}): "
                "stop that one or choose another directory"
            )
        self.locks[path] = True
        if path not in self._files:
            self._name(path, Inode(bytearray(b"lock"), bytearray(b"lock"), self.now_ms()))
        return SimLock(self, path)

    def free_space(self, path: str) -> tuple[int, int]:
        self.begin("free_space", path)
        return self.total_bytes, self.total_bytes - self._used()

    def memory_bytes(self) -> int:
        return self._memory_bytes

    def _name(self, path: str, inode: Inode) -> None:
        self._files[path] = inode
        self._change(None, path, inode)

    def _require_space(self, path: str, size: int) -> None:
        free = self.total_bytes - self._used()
        if size > free:
            raise OSError(errno.ENOSPC, f"{size} bytes do not fit, {free} are free", path)

    def _used(self) -> int:
        return sum(len(inode.current) for inode in self._files.values())


_check: type[Disk] = SimDisk  # the type checker compares both here
