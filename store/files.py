"""Files as the disk door (`disk.py`) gives them, and the real ones.

A segment stays open, and is mapped. Of a file of which there are many nothing but the mapping is
kept: it is synced through that (msync), with the errors of all writes since it was mapped.

`write` uses the mapping for small pieces only: the kernel must take the write permission from every
mapped page it writes back and interrupt the other processors for it, and the next store into that
page faults. Measured for 1 GiB with one more running thread, synced every 160 MiB: 3.1 s of
processor time through the mapping, 0.35 s with pwrite; but 3 us for a system call against 0.2 us
for a kilobyte that is copied to a mapped page.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import mmap
import os
from collections.abc import Iterator
from typing import Protocol

MAPPED_WRITE = 2048  # above it a system call costs less than the share of a page's faults
_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module does not name it
_MLOCK_ONFAULT = 1
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MS_SYNC = 4
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_STATX_INO, _STATX_SIZE = 0x100, 0x200
_READ = 256 << 10
_ZEROS = memoryview(bytes(128 << 10))  # the kernel lets in one writer of a file at a time


class Advice(enum.Enum):
    """The uses of a mapping in RocketMQ's options (docs/internals/format.md 6.2)."""

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


class MappedFile(Protocol):
    """A file of fixed size whose bytes are one writable mapping."""

    path: str
    size: int

    @property
    def view(self) -> memoryview:
        """All of it."""

    def flush(self, start: int, end: int) -> None:
        """Make [start, end) durable; blocking, callable from any thread; raises OSError."""

    def read(self, pos: int, n: int) -> bytes:
        """Read without the mapping: a media error is an OSError here, not a SIGBUS."""

    def read_into(self, pos: int, buffer: memoryview) -> int:
        """As `read`, into `buffer`: how many bytes it holds, fewer only at the file's end."""

    def written(self, pos: int) -> list[tuple[int, int]]:
        """The ranges from `pos` on that may hold something other than zeros."""

    def write(self, pos: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `pos`; `view` shows it at once. After an OSError any part of it
        may be there."""

    def zero(self, start: int, end: int) -> None:
        """Write zeroes to [start, end); callable from any thread."""

    def advise(self, advice: Advice) -> None:
        """Tell the kernel how the mapping is used; blocking. A refused lock is an OSError."""

    def close(self) -> None:
        """Unmap and close."""


class SegmentFile(MappedFile, Protocol):
    """A mapped file that stays open."""

    @property
    def descriptor(self) -> int:
        """Of the open file; -1 if there is none, or none any more."""

    def forget(self, start: int, end: int) -> None:
        """Drop what the page cache holds of [start, end) and need not write: the next read tells
        what the disk has. After a failed sync the cache tells what it lost."""

    def is_cached(self, start: int, end: int) -> bool:
        """Whether memory holds [start, end): reading `view` there waits for no disk."""

    def cache(self, start: int, end: int) -> None:
        """Blocking, callable from any thread: have memory hold it. A media error is an OSError."""

    def in_place(self) -> bool:
        """Whether its path still names this very file, whole; callable from any thread. Bytes
        written to a deleted or replaced file are gone when it is closed, even if they were
        synced."""


class SpareFile(Protocol):
    """A mapped file that has no name yet, and is gone if it never gets one."""

    def give_name(self, path: str) -> MappedFile:
        """The file, which has this name from now on. OSError: it cannot have it."""

    def advise(self, advice: Advice) -> None:
        """As `MappedFile.advise`."""

    def close(self) -> None:
        """Let it go, unless it has a name."""


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """The kernel names no file where it was given a descriptor: an operator must know which."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


class NativeReadFile:
    """A file by its descriptor; see `ReadFile`."""

    def __init__(self, path: str, size: int, fd: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd

    def read(self, pos: int, n: int) -> bytes:
        with naming(self.path):
            return os.pread(self._fd, n, pos)

    def read_into(self, pos: int, buffer: memoryview) -> int:
        done = 0
        with naming(self.path):
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


def open_to_read(path: str) -> NativeReadFile:
    fd = os.open(path, os.O_RDONLY)
    return NativeReadFile(path, os.fstat(fd).st_size, fd)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.restype = address
    libc.mmap.argtypes = (address, size, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.msync.argtypes = (address, size, ctypes.c_int)
    libc.mincore.argtypes = (address, size, ctypes.c_char_p)
    return libc


_LIBC = _libc()


def _last_error(path: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)


class _Statx(ctypes.Structure):
    """`struct statx`: what is asked for here."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("_before", ctypes.c_char * 28),
        ("ino", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("_between", ctypes.c_char * 88),
        ("dev_major", ctypes.c_uint32),
        ("dev_minor", ctypes.c_uint32),
        ("_rest", ctypes.c_char * 112),
    )


def _identity(fd: int, path: str = "") -> tuple[int, int, int, int]:
    """The device (major, minor), the inode and the size of an open file, or of a path.

    `os.stat` would ask for the times of the file, too. The next write must differ from a time that
    was asked for, so it gets a new one (Linux 6.13), and the next sync of the file may have to
    write its inode as well: that took as long as the data.
    """
    found = _Statx()
    flags = 0 if path else _AT_EMPTY_PATH
    if _LIBC.statx(fd, os.fsencode(path), flags, _STATX_INO | _STATX_SIZE, ctypes.byref(found)):
        raise _last_error(path)
    return found.dev_major, found.dev_minor, found.ino, found.size


class ReadOpened:
    """The reads of a file that no descriptor is kept of: it is opened for each of them."""

    __slots__ = ()

    def _open_to_read(self) -> ReadFile:
        raise NotImplementedError

    def read(self, pos: int, n: int) -> bytes:
        with contextlib.closing(self._open_to_read()) as file:
            return file.read(pos, n)

    def read_into(self, pos: int, buffer: memoryview) -> int:
        with contextlib.closing(self._open_to_read()) as file:
            return file.read_into(pos, buffer)

    def written(self, pos: int) -> list[tuple[int, int]]:
        with contextlib.closing(self._open_to_read()) as file:
            return file.written(pos)


class NativeMapped(ReadOpened):
    """A mapped file that no descriptor is kept of; see `MappedFile`."""

    def __init__(self, path: str, size: int, fd: int) -> None:
        self.path = path
        self.size = size
        # The mmap module would keep a second descriptor for a file: so it maps memory, and the file
        # takes the place of that.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, size, flags)
        first = ctypes.c_char.from_buffer(self._map)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        at = ctypes.addressof(first)
        found = _LIBC.mmap(at, size, access, mmap.MAP_SHARED | _MAP_FIXED, fd, 0)
        del first  # it would keep the mapping from closing
        if found != at:
            raise _last_error(path)
        self.view = memoryview(self._map)

    def flush(self, start: int, end: int) -> None:
        """All of it, as fdatasync does, and with what became of writes since it was mapped."""
        try:
            first = ctypes.c_char.from_buffer(self._map)
        except ValueError:  # closed: whoever deletes a file needs none of it
            return
        failed = _LIBC.msync(ctypes.addressof(first), self.size, _MS_SYNC)
        del first
        if failed:
            raise _last_error(self.path)

    def _open_to_read(self) -> ReadFile:
        return open_to_read(self.path)

    def write(self, pos: int, data: bytes | bytearray | memoryview) -> None:
        self.view[pos : pos + len(data)] = data

    def zero(self, start: int, end: int) -> None:
        self.view[start:end] = bytes(end - start)

    def advise(self, advice: Advice) -> None:
        if advice is Advice.RANDOM:
            self._map.madvise(mmap.MADV_RANDOM)
        elif advice is Advice.WARM:
            self._map.madvise(_MADV_POPULATE_WRITE)
        else:
            first = ctypes.c_char.from_buffer(self._map)
            lock = advice is Advice.LOCK
            args = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(self.size)
            failed = _LIBC.mlock2(*args, _MLOCK_ONFAULT) if lock else _LIBC.munlock(*args)
            del first  # it would keep the mapping from closing
            if failed:
                number = ctypes.get_errno()
                why = (
                    f"cannot lock {self.size} bytes in memory ({os.strerror(number)}): raise the "
                    "limit (ulimit -l) or leave lockInMemory off"
                )
                raise OSError(number, why, self.path)

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # someone holds a slice: unmapped when it goes
            self.view.release()
            self._map.close()


def give_name(fd: int, path: str) -> None:
    """Give a file without a name this one, which must be free."""
    # src_dir_fd makes Python use linkat with AT_SYMLINK_FOLLOW, which /proc needs
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)


class NativeSpare:
    """See `SpareFile`. It needs a descriptor as long as it has no name."""

    def __init__(self, mapped: NativeMapped, fd: int) -> None:
        self._mapped = mapped
        self._fd = fd

    def give_name(self, path: str) -> NativeMapped:
        give_name(self._fd, path)
        os.close(self._fd)
        self._fd = -1
        self._mapped.path = path
        return self._mapped

    def advise(self, advice: Advice) -> None:
        self._mapped.advise(advice)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._mapped.close()


class NativeSegment(NativeReadFile, NativeMapped):
    """A mapped file that stays open; see `SegmentFile`."""

    def __init__(self, path: str, size: int, fd: int) -> None:
        NativeReadFile.__init__(self, path, size, fd)
        NativeMapped.__init__(self, path, size, fd)

    @property
    def descriptor(self) -> int:
        return self._fd

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
        try:  # not `naming`, which takes eight calls: each message is written
            done = os.pwrite(self._fd, data, pos)
            while done < size:
                done += os.pwrite(self._fd, memoryview(data)[done:], pos + done)
        except OSError as error:
            error.filename = error.filename or self.path
            raise

    def zero(self, start: int, end: int) -> None:
        with naming(self.path):
            while start < end:
                start += os.pwrite(self._fd, _ZEROS[: end - start], start)

    def forget(self, start: int, end: int) -> None:
        os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def is_cached(self, start: int, end: int) -> bool:
        try:
            first = ctypes.c_char.from_buffer(self._map)
        except ValueError:  # closed: a reader will notice
            return True
        start -= start % mmap.PAGESIZE
        pages = ctypes.create_string_buffer((end - start + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        failed = _LIBC.mincore(ctypes.addressof(first) + start, end - start, pages)
        del first  # it would keep the mapping from closing
        # Pages that are still being read do not count as there.
        return bool(failed) or b"\0" not in pages.raw

    def cache(self, start: int, end: int) -> None:
        buffer = memoryview(bytearray(min(_READ, end - start)))
        try:
            while start < end and (count := os.preadv(self._fd, [buffer[: end - start]], start)):
                start += count
        except OSError as error:
            if error.errno != errno.EBADF:  # else it was closed meanwhile
                error.filename = self.path
                raise

    def in_place(self) -> bool:
        try:
            mine = _identity(self._fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return True  # its owner has closed it: it need not be anywhere
        try:
            there = _identity(_AT_FDCWD, self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return there == (*mine[:-1], self.size)

    def close(self) -> None:
        NativeReadFile.close(self)
        NativeMapped.close(self)
