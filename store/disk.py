"""The disk door: everything the store does to files goes through a `Disk` (fault model, section 6).

Two implementations exist: `NativeDisk` here (mmap, fdatasync, fcntl lock) and the simulator's
page-model disk. A segment is allocated in full before it is mapped: a sparse mapping turns a full
disk into SIGBUS. It gets its name only once it has its full size (O_TMPFILE + link), so that no
crash leaves a short segment behind. Nothing here retries a failed sync: after an error the page
cache may claim bytes the disk does not have.

`write` uses the mapping for small pieces only: the kernel must take the write permission from every
mapped page it writes back and interrupt the other processors for it, and the next store into that
page faults. Measured for 1 GiB with one more running thread, synced every 160 MiB: 3.1 s of
processor time through the mapping, 0.35 s with pwrite; but 3 us for a system call against 0.2 us
for a kilobyte that is copied to a mapped page.

What is made here only its owner may read or write, whatever the umask is: messages, roles, offsets.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from saturnmq.protocol.errors import DirectoryLocked, StoreDamaged
from saturnmq.protocol.runtime import is_short_of_descriptors

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
MAPPED_WRITE = 2048  # above it a system call costs less than the share of a page's faults
_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module does not name it
_MLOCK_ONFAULT = 1
_FLOCK = "@hhqqi4x"  # struct flock: type, whence, start, length, pid
_ZEROS = memoryview(bytes(128 << 10))  # the kernel lets in one writer of a file at a time


class Entry(NamedTuple):
    """One name in a directory."""

    name: str
    size: int
    is_dir: bool
    mtime_ms: int


def remedy(error: OSError) -> str:
    """Text: what ends this error of a file that could not be made or opened."""
    if is_short_of_descriptors(error):
        return "close connections, or allow more open files (ulimit -n, fs.file-max)"
    if error.errno == errno.ENOMEM:
        return "free memory, or allow more mappings (vm.max_map_count)"
    return "free space on the disk"


class Advice(enum.Enum):
    """What RocketMQ's options say about a mapping (store-format.md section 6)."""

    WARM = "warm"  # every page in memory and writable before the first write
    RANDOM = "random"  # no read-ahead
    LOCK = "lock"  # pages that were touched stay in memory
    UNLOCK = "unlock"


class ReadFile(Protocol):
    """A file that is only looked at: nothing is mapped, so a media error is an OSError and not a
    SIGBUS, and a directory that may not be written to will do."""

    path: str
    size: int

    def read(self, pos: int, n: int) -> bytes:
        """At most `n` bytes from `pos`, fewer only at the file's end."""

    def read_into(self, pos: int, buffer: memoryview) -> int:
        """As `read`, into `buffer`: how many bytes it holds."""

    def written(self, pos: int) -> list[tuple[int, int]]:
        """The ranges from `pos` on that may hold something other than zeros."""

    def close(self) -> None:
        """Give it back; closing twice is no error."""


class SegmentFile(Protocol):
    """A file of fixed size whose bytes are one writable mapping."""

    path: str
    size: int
    view: memoryview

    def flush(self, start: int, end: int) -> None:
        """Make [start, end) durable; blocking, callable from any thread; raises OSError."""

    def write(self, pos: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `pos`; `view` shows it at once. After an OSError any part of it
        may be there."""

    def zero(self, start: int, end: int) -> None:
        """Write zeroes to [start, end); callable from any thread."""

    def read(self, pos: int, n: int) -> bytes:
        """Read without the mapping: a media error is an OSError here, not a SIGBUS."""

    def read_into(self, pos: int, buffer: memoryview) -> int:
        """As `read`, into `buffer`: how many bytes it holds, fewer only at the file's end."""

    def forget(self, start: int, end: int) -> None:
        """Drop what the page cache holds of [start, end) and need not write: the next read tells
        what the disk has. After a failed sync the cache tells what it lost."""

    def advise(self, advice: Advice) -> None:
        """Tell the kernel how the mapping is used; blocking. A refused lock is an OSError."""

    def written(self, pos: int) -> list[tuple[int, int]]:
        """The ranges from `pos` on that may hold something other than zeros."""

    def in_place(self) -> bool:
        """Whether its path still names this very file, whole; callable from any thread. What is
        written to a file that was deleted or replaced is gone when it is closed, however well it
        was synced."""

    def close(self) -> None:
        """Unmap and close."""


class Lock(Protocol):
    """A held directory lock."""

    def release(self) -> None:
        """Give it back."""


class Disk(Protocol):
    """What the store needs from a file system."""

    def list(self, directory: str) -> list[Entry]: ...
    def make_dirs(self, directory: str, durable: bool = True) -> None: ...
    def exists(self, path: str) -> bool: ...
    def create_segment(self, path: str, size: int, durable: bool = True) -> SegmentFile: ...
    def open_segment(self, path: str, size: int) -> SegmentFile: ...
    def open_readonly(self, path: str) -> ReadFile: ...
    def read_file(self, path: str) -> bytes: ...
    def write_file(self, path: str, data: bytes) -> None: ...
    def replace_file(self, path: str, data: bytes, keep_backup: bool = True) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def remove_tree(self, path: str, durable: bool = True) -> None: ...
    def sync_dir(self, directory: str) -> None: ...
    def lock(self, path: str) -> Lock: ...
    def locked(self, path: str) -> bool: ...
    def free_space(self, path: str) -> tuple[int, int]: ...
    def memory_bytes(self) -> int: ...
    def buffer(self, size: int) -> memoryview: ...
    def mutex(self) -> AbstractContextManager[object]: ...


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """The kernel names no file where it was given a descriptor: an operator must know which."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


class _NativeReadFile:
    """A file by its descriptor; see `ReadFile`."""

    def __init__(self, path: str, size: int, fd: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd

    def read(self, pos: int, n: int) -> bytes:
        with _naming(self.path):
            return os.pread(self._fd, n, pos)

    def read_into(self, pos: int, buffer: memoryview) -> int:
        done = 0
        with _naming(self.path):
            while done < len(buffer):
                count = os.preadv(self._fd, [buffer[done:]], pos + done)
                if not count:
                    break
                done += count
        return done

    def written(self, pos: int) -> list[tuple[int, int]]:
        # All of them before any is read: what the kernel reads ahead of a reader counts as written.
        ranges = []
        while pos < self.size:
            try:
                start = os.lseek(self._fd, pos, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole: allocated, never written
                    break
                raise
            pos = os.lseek(self._fd, start, os.SEEK_HOLE)
            ranges.append((start, pos))
        return ranges

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _NativeSegment(_NativeReadFile):
    """A mapped file; see `SegmentFile`."""

    def __init__(self, path: str, size: int, fd: int) -> None:
        super().__init__(path, size, fd)
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.view = memoryview(self._map)

    def flush(self, start: int, end: int) -> None:
        fd = self._fd
        # Another thread may close it, before or meanwhile: whoever deletes a file needs none of it.
        if end <= start or fd < 0:
            return
        try:
            os.fdatasync(fd)  # releases the GIL and covers mapped pages
        except OSError as error:
            if error.errno != errno.EBADF or self._fd >= 0:
                error.filename = self.path
                raise

    def write(self, pos: int, data: bytes | bytearray | memoryview) -> None:
        size = len(data)
        if size <= MAPPED_WRITE:
            self.view[pos : pos + size] = data
            return
        try:
            done = os.pwrite(self._fd, data, pos)
            while done < size:
                done += os.pwrite(self._fd, memoryview(data)[done:], pos + done)
        except OSError as error:
            error.filename = self.path
            raise

    def zero(self, start: int, end: int) -> None:
        with _naming(self.path):
            while start < end:
                start += os.pwrite(self._fd, _ZEROS[: end - start], start)

    def forget(self, start: int, end: int) -> None:
        os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def in_place(self) -> bool:
        try:
            mine = os.fstat(self._fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return True  # its owner has closed it: it need not be anywhere
        try:
            there = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        same = there.st_dev, there.st_ino, there.st_size
        return same == (mine.st_dev, mine.st_ino, self.size)

    def advise(self, advice: Advice) -> None:
        if advice is Advice.RANDOM:
            self._map.madvise(mmap.MADV_RANDOM)
        elif advice is Advice.WARM:
            self._map.madvise(_MADV_POPULATE_WRITE)
        else:
            first = ctypes.c_char.from_buffer(self._map)
            lock = advice is Advice.LOCK
            call = ctypes.CDLL(None, use_errno=True)
            args = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(self.size)
            failed = call.mlock2(*args, _MLOCK_ONFAULT) if lock else call.munlock(*args)
            del first  # it would keep the mapping from closing
            if failed:
                number = ctypes.get_errno()
                raise OSError(
                    number,
                    f"cannot lock {self.size} bytes in memory ({os.strerror(number)}): raise the "
                    "limit (ulimit -l) or leave lockInMemory off",
                    self.path,
                )

    def close(self) -> None:
        super().close()
        with contextlib.suppress(BufferError):  # someone holds a slice: unmapped when it goes
            self.view.release()
            self._map.close()


# fcntl locks hold between processes only, and closing any descriptor of the file gives them up:
# what this process holds is kept here, and its file is not opened again.
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

    def make_dirs(self, directory: str, durable: bool = True) -> None:
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

    def create_segment(self, path: str, size: int, durable: bool = True) -> SegmentFile:
        """Allocate and map all of it first: a full disk is ENOSPC here. Whatever fails, nothing is
        left behind: a file of that name would keep the segment from ever being made.

        Without `durable` neither file nor name is synced: for files that can be built again, whose
        writer syncs both before it relies on them.
        """
        directory = os.path.dirname(path)
        named = False
        try:
            fd = os.open(directory, os.O_TMPFILE | os.O_RDWR, FILE_MODE)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
            named = True
        try:
            with _naming(path):
                os.posix_fallocate(fd, 0, size)
                segment = _NativeSegment(path, size, fd)
                if durable:
                    os.fsync(fd)
            if not named:
                # src_dir_fd makes Python use linkat with AT_SYMLINK_FOLLOW, which /proc needs
                os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
                named = True
            if durable:
                self.sync_dir(directory)
            return segment
        except BaseException:
            os.close(fd)
            if named:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise

    def open_segment(self, path: str, size: int) -> SegmentFile:
        fd = os.open(path, os.O_RDWR)
        actual = os.fstat(fd).st_size
        if actual != size:
            os.close(fd)
            raise StoreDamaged(
                f"{path} is {actual} bytes long, the configured segment size is {size}: "
                "set the size it was written with, or move the file away"
            )
        return _NativeSegment(path, size, fd)

    def open_readonly(self, path: str) -> ReadFile:
        fd = os.open(path, os.O_RDONLY)
        return _NativeReadFile(path, os.fstat(fd).st_size, fd)

    def read_file(self, path: str) -> bytes:
        with _naming(path), open(path, "rb") as file:
            return file.read()

    def write_file(self, path: str, data: bytes) -> None:
        """Create or overwrite and make durable (for files whose content does not matter)."""
        self._write_synced(path, data)
        self.sync_dir(os.path.dirname(path))

    def _write_synced(self, path: str, data: bytes) -> None:
        with _naming(path), open(path, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def replace_file(self, path: str, data: bytes, keep_backup: bool = True) -> None:
        """Atomically replace; the previous content stays as `<path>.bak`.

        RocketMQ renames the old file away first, which leaves a moment without any; here the
        backup is a hard link, so that one of the two complete files always has the name.
        """
        fresh = path + ".tmp"
        self._write_synced(fresh, data)
        if keep_backup and os.path.exists(path):
            backup = path + ".bak"
            link = backup + ".tmp"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
            os.link(path, link)
            os.replace(link, backup)
        os.replace(fresh, path)
        self.sync_dir(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)
        self.sync_dir(os.path.dirname(new))
        if os.path.dirname(old) != os.path.dirname(new):
            self.sync_dir(os.path.dirname(old))

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            self.sync_dir(os.path.dirname(path))

    def remove_tree(self, path: str, durable: bool = True) -> None:
        """Remove a directory and everything below it, the last name first and, if `durable`, each
        for good: of segments a crash in between leaves the oldest ones."""
        for entry in reversed(self.list(path)):
            child = os.path.join(path, entry.name)
            if entry.is_dir:
                self.remove_tree(child, durable)
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
            with _naming(directory):
                os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock:
        """Take RocketMQ's lock: fcntl on byte [0, 1) of a file that reads `lock`."""
        taken = DirectoryLocked(
            f"{os.path.dirname(path)} is in use by another broker (it holds {path}): "
            "stop that one or choose another directory"
        )
        real = os.path.realpath(path)
        if real in _held_here:
            raise taken
        fd = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(fd)
            raise taken from error
        _held_here.add(real)
        held = _NativeLock(fd, real)
        try:
            with _naming(path):
                os.pwrite(fd, b"lock", 0)
                os.fsync(fd)
        except OSError:
            held.release()
            raise
        return held

    def locked(self, path: str) -> bool:
        """Whether somebody holds this lock; does not take it, not even for a moment."""
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
        """Physical memory of the machine: what its page cache can hold at most."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
