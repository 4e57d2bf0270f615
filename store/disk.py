"""The disk door: everything the store does to files goes through a `Disk` (docs/guarantees.md 8.2).

Two implementations exist: `NativeDisk` here (mmap, fdatasync, fcntl lock) and the simulator's
page-model disk. A segment is allocated in full before it is mapped: a sparse mapping turns a full
disk into SIGBUS. Files of which there are many (`create_mapped`) have their full size as well, but
room for what comes next only: `make_room` makes more before that is written. A file gets its name
only once it has its full size (O_TMPFILE + link), so that no crash leaves a short one behind.
Nothing here retries a failed sync: after an error the page cache may claim bytes the disk does not
have.

Only the owner may read or write the files made here, whatever the umask is: messages, roles,
offsets.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from saturnmq.runtime.door import MORE_DESCRIPTORS, is_short_of_descriptors
from saturnmq.runtime.errors import DirectoryLocked, StoreDamaged
from saturnmq.runtime.memory import memory_bytes
from saturnmq.store.files import (
    Advice,
    MappedFile,
    NativeMapped,
    NativeSegment,
    NativeSpare,
    ReadFile,
    SegmentFile,
    SpareFile,
    give_name,
    naming,
    open_to_read,
)

__all__ = [
    "Advice",
    "DirectoryLock",
    "Disk",
    "Entry",
    "MappedFile",
    "NativeDisk",
    "ReadFile",
    "SegmentFile",
    "SpareFile",
]

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
_SYNCS = 8  # at a time
_FLOCK = "@hhqqi4x"  # struct flock: type, whence, start, length, pid


class Entry(NamedTuple):
    """One name in a directory."""

    name: str
    size: int
    is_dir: bool
    mtime_ms: int


def remedy(error: OSError) -> str:
    """Text: what ends this error of a file that could not be made or opened."""
    if is_short_of_descriptors(error):
        return MORE_DESCRIPTORS
    if error.errno == errno.ENOMEM:
        return "free memory, or allow more mappings (vm.max_map_count)"
    return "free space on the disk"


class DirectoryLock(Protocol):
    """A held directory lock."""

    def release(self) -> None:
        """Give it back."""


class Disk(Protocol):
    """The operations that the store needs from a file system."""

    def list(self, directory: str) -> list[Entry]: ...
    def make_dirs(self, directory: str, *, durable: bool = True) -> None: ...
    def exists(self, path: str) -> bool: ...
    def create_segment(self, path: str, size: int, *, durable: bool = True) -> SegmentFile: ...
    def open_segment(self, path: str, size: int) -> SegmentFile: ...
    def create_mapped(self, path: str, size: int, room: int) -> MappedFile: ...
    def open_mapped(self, path: str, size: int) -> MappedFile: ...
    def make_spare(self, directory: str, size: int, room: int) -> SpareFile: ...
    def make_room(self, path: str, start: int, end: int) -> None: ...
    def sync_file(self, path: str) -> None: ...
    def together(self, calls: Sequence[Callable[[], None]]) -> None: ...
    def open_readonly(self, path: str) -> ReadFile: ...
    def read_file(self, path: str) -> bytes: ...
    def write_file(self, path: str, data: bytes) -> None: ...
    def replace_file(
        self, path: str, data: bytes, *, keep_backup: bool = True, keep_room: bool = False
    ) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def remove_tree(self, path: str, *, durable: bool = True) -> None: ...
    def sync_dir(self, directory: str) -> None: ...
    def lock(self, path: str) -> DirectoryLock: ...
    def locked(self, path: str) -> bool: ...
    def free_space(self, path: str) -> tuple[int, int]: ...
    def memory_bytes(self) -> int: ...
    def buffer(self, size: int) -> memoryview: ...
    def mutex(self) -> AbstractContextManager[object]: ...


_Made = TypeVar("_Made", bound=NativeMapped)


def _made(path: str, size: int, room: int, fd: int) -> NativeMapped:
    os.ftruncate(fd, size)
    os.posix_fallocate(fd, 0, room)
    return _mapped(path, size, fd)


def _mapped(path: str, size: int, fd: int) -> NativeMapped:
    file = NativeMapped(path, size, fd)
    # Or the first touch reads megabytes ahead: zeros, which wait in memory and count as written.
    file.advise(Advice.RANDOM)
    return file


def _open_sized(path: str, size: int) -> int:
    fd = os.open(path, os.O_RDWR)
    actual = os.fstat(fd).st_size
    if actual != size:
        os.close(fd)
        raise StoreDamaged(
            f"{path} is {actual} bytes long, the configured segment size is {size}: "
            "set the size it was written with, or move the file away"
        )
    return fd


# fcntl locks hold between processes only, and closing any descriptor of the file releases them. So
# this set has the files that this process has locked, and such a file is not opened again.
_held_here: set[str] = set()


class _NativeLock:
    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _held_here.discard(self._path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _in_place(path: str, flags: int) -> int:
    """Open it to be overwritten in the blocks that it has."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_nlink > 1:  # a crash left it with another name, whose content counts
            os.unlink(path)
    fd = os.open(path, flags & ~os.O_TRUNC, FILE_MODE)
    os.fchmod(fd, FILE_MODE)
    return fd


class NativeDisk:
    """The real disk."""

    def buffer(self, size: int) -> memoryview:
        """Memory that no file backs, taken from the system page by page when it is used."""
        return memoryview(mmap.mmap(-1, size))

    def mutex(self) -> AbstractContextManager[object]:
        """Guard state shared with the thread that prepares segments ahead."""
        return threading.Lock()

    def list(self, directory: str) -> list[Entry]:
        """Names sorted; a missing directory is empty."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                stat = entry.stat()
                found.append(
                    Entry(entry.name, stat.st_size, entry.is_dir(), stat.st_mtime_ns // 1_000_000)
                )
        return sorted(found)

    def make_dirs(self, directory: str, *, durable: bool = True) -> None:
        """Create a directory and what is missing above it; sync the new names if `durable`."""
        missing = []
        path = os.path.abspath(directory)
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, DIRECTORY_MODE)
            if durable:
                self.sync_dir(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def create_segment(self, path: str, size: int, *, durable: bool = True) -> SegmentFile:
        """Allocate and map all of it first: a full disk is ENOSPC here. A failure leaves nothing
        behind: a file of that name would keep the segment from ever being made.

        Without `durable` neither file nor name is synced: for files that can be built again, whose
        writer syncs both before it relies on them.
        """

        def make(fd: int) -> NativeSegment:
            os.posix_fallocate(fd, 0, size)
            segment = NativeSegment(path, size, fd)
            if durable:
                os.fsync(fd)
            return segment

        segment, _ = self._create(path, make)
        if durable:
            try:
                self.sync_dir(os.path.dirname(path))
            except BaseException:
                segment.close()
                os.unlink(path)
                raise
        return segment

    def create_mapped(self, path: str, size: int, room: int) -> MappedFile:
        """As `create_segment` without `durable`, but only the first `room` bytes are allocated: no
        others may be written before `make_room`."""
        mapped, fd = self._create(path, partial(_made, path, size, room))
        os.close(fd)
        return mapped

    def make_spare(self, directory: str, size: int, room: int) -> SpareFile:
        """Blocking: what `create_mapped` makes, without a name yet. OSError: the file system knows
        no such files, or has no room."""
        with naming(directory):
            fd = os.open(directory, os.O_TMPFILE | os.O_RDWR, FILE_MODE)
            try:
                return NativeSpare(_made(directory, size, room, fd), fd)
            except BaseException:
                os.close(fd)
                raise

    @staticmethod
    def _create(path: str, make: Callable[[int], _Made]) -> tuple[_Made, int]:
        """A new file, which `make` has made ready before it gets its name, and its descriptor."""
        named = False
        try:
            fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR, FILE_MODE)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
            named = True
        try:
            with naming(path):
                made = make(fd)
            if not named:
                give_name(fd, path)
        except BaseException:
            os.close(fd)
            if named:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise
        return made, fd

    def open_segment(self, path: str, size: int) -> SegmentFile:
        fd = _open_sized(path, size)
        try:
            return NativeSegment(path, size, fd)
        except BaseException:
            os.close(fd)
            raise

    def open_mapped(self, path: str, size: int) -> MappedFile:
        fd = _open_sized(path, size)
        try:
            return _mapped(path, size, fd)
        finally:
            os.close(fd)

    def make_room(self, path: str, start: int, end: int) -> None:
        """Blocking: allocate [start, end) of the file; what it holds stays. ENOSPC: on a full disk,
        instead of a SIGBUS later."""
        if start < end:
            fd = os.open(path, os.O_RDWR)
            try:
                with naming(path):
                    os.posix_fallocate(fd, start, end - start)
            finally:
                os.close(fd)

    def sync_file(self, path: str) -> None:
        """Blocking: make durable what the file holds."""
        fd = os.open(path, os.O_RDONLY)
        try:
            with naming(path):
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def together(self, calls: Sequence[Callable[[], None]]) -> None:
        """Blocking: syncs, side by side: those that wait for the disk at the same time share what
        it does. The first error, when all have ended."""
        left = iter(calls)

        def work() -> None:
            for call in left:  # a list's iterator gives each to one thread
                call()

        if len(calls) <= _SYNCS:
            work()
            return
        with ThreadPoolExecutor(_SYNCS, thread_name_prefix="saturnmq-sync") as pool:
            ended = [pool.submit(work) for _ in range(_SYNCS)]
        for future in ended:
            future.result()

    def open_readonly(self, path: str) -> ReadFile:
        return open_to_read(path)

    def read_file(self, path: str) -> bytes:
        with naming(path), open(path, "rb") as file:
            return file.read()

    def write_file(self, path: str, data: bytes) -> None:
        """Create or overwrite and make durable (for files whose content does not matter)."""
        self._write_synced(path, data)
        self.sync_dir(os.path.dirname(path))

    def _write_synced(self, path: str, data: bytes, *, in_place: bool = False) -> None:
        opener = _in_place if in_place else _private
        with naming(path), open(path, "wb", opener=opener) as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())

    def replace_file(
        self, path: str, data: bytes, *, keep_backup: bool = True, keep_room: bool = False
    ) -> None:
        """Atomically replace; the previous content stays as `<path>.bak`.

        RocketMQ renames the old file away first, which leaves a moment without any; here the
        backup is a hard link, so that one of the two complete files always has the name.

        With `keep_room` a full disk has room for the next content of this size: three files take
        turns, and the oldest one waits as `<path>.tmp` to be overwritten in place.
        """
        fresh, backup = path + ".tmp", path + ".bak"
        link, oldest = backup + ".tmp", backup + ".old"
        self._write_synced(fresh, data, in_place=keep_room)
        if keep_backup and os.path.exists(path):
            for left in (link, oldest):  # by a crash
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(left)
            os.link(path, link)
            if keep_room and os.path.exists(backup):
                os.link(backup, oldest)
            os.replace(link, backup)
        os.replace(fresh, path)
        if keep_room and os.path.exists(oldest):
            os.replace(oldest, fresh)
        self.sync_dir(os.path.dirname(path))
        for missing in (backup, fresh) if keep_room else ():
            if not os.path.exists(missing):
                with contextlib.suppress(OSError):  # no room to keep
                    self._write_synced(missing, data)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)
        self.sync_dir(os.path.dirname(new))
        if os.path.dirname(old) != os.path.dirname(new):
            self.sync_dir(os.path.dirname(old))

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            self.sync_dir(os.path.dirname(path))

    def remove_tree(self, path: str, *, durable: bool = True) -> None:
        """Remove a directory and everything below it, the last name first and, if `durable`, each
        for good: of segments a crash in between leaves the oldest ones."""
        for entry in reversed(self.list(path)):
            child = os.path.join(path, entry.name)
            if entry.is_dir:
                self.remove_tree(child, durable=durable)
            elif durable:
                self.unlink(child)
            else:
                os.unlink(child)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)
            if durable:
                self.sync_dir(os.path.dirname(path))

    def sync_dir(self, directory: str) -> None:
        fd = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with naming(directory):
                os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> DirectoryLock:
        """Take RocketMQ's lock: fcntl on byte [0, 1) of a file that reads `lock`."""
        taken = (
            f"{os.path.dirname(path)} is in use by another broker (it holds {path}): "
            "stop that one or choose another directory"
        )
        real = os.path.realpath(path)
        if real in _held_here:
            raise DirectoryLocked(taken)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(fd)
            raise DirectoryLocked(taken) from error
        _held_here.add(real)
        held = _NativeLock(fd, real)
        try:
            with naming(path):
                os.pwrite(fd, b"lock", 0)
                os.fsync(fd)
        except OSError:
            held.release()
            raise
        return held

    def locked(self, path: str) -> bool:
        """Whether a process holds this lock. The call never takes it, not even for a moment."""
        if os.path.realpath(path) in _held_here:
            return True
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            answer = fcntl.fcntl(fd, fcntl.F_GETLK, wanted)
        finally:
            os.close(fd)
        return int(struct.unpack(_FLOCK, answer)[0]) != fcntl.F_UNLCK

    def free_space(self, path: str) -> tuple[int, int]:
        """Bytes of the file system that holds `path`: what its users may use, and what is free."""
        stat = os.statvfs(path)
        used = stat.f_blocks - stat.f_bfree  # the rest, but for what is kept for root
        return (used + stat.f_bavail) * stat.f_frsize, stat.f_bavail * stat.f_frsize

    def memory_bytes(self) -> int:
        """The memory of the machine, or of the container: the most that its page cache can hold."""
        return memory_bytes()
