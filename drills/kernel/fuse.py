"""One file that a block device of ours stands behind: the FUSE protocol as far as that needs.

The kernel mounts the file system over a plain file (rootmode is a regular file's), so that there is
one inode, number 1, and no directory. Its reads, writes and fsyncs come here one at a time, past
the page cache of the file itself (FOPEN_DIRECT_IO): what a loop device on it asks for is exactly
what the device sees, in the order it asked.

Request: u32 size, u32 opcode, u64 unique, u64 inode, u32 uid, u32 gid, u32 pid, u32; then what the
opcode needs. Reply: u32 size, i32 -errno, u64 unique; then data. (linux/fuse.h)
"""

from __future__ import annotations

import contextlib
import errno
import stat
import struct
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Protocol

from saturnmq.drills.kernel.mounts import mounted, undisturbed

GETATTR, OPEN, READ, WRITE, RELEASE, FSYNC, FLUSH, INIT = 3, 14, 15, 16, 18, 20, 25, 26
_WITHOUT_REPLY = frozenset({2, 36, 42})  # FORGET, INTERRUPT, BATCH_FORGET
_REQUEST = struct.Struct("<IIQQIIII")
_REPLY = struct.Struct("<IiQ")
_WRITE_MAX = 1 << 20
_INIT = struct.Struct("<IIIIHHIIHHI28x")
_PROTOCOL = 7, 31
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_ATTR = struct.Struct("<QII 6Q 10I")  # valid for, padding; fuse_attr
_FOPEN_DIRECT_IO = 1


class BlockDevice(Protocol):
    """The operations of the file; any call may raise OSError."""

    size: int

    def read(self, pos: int, n: int) -> bytes: ...
    def write(self, pos: int, data: memoryview) -> None: ...
    def flush(self) -> None: ...


@contextlib.contextmanager
def file_of(device: BlockDevice, path: Path) -> Iterator[Path]:
    """`path`, a file whose content is `device`; a thread of this process answers for it.

    Never touch what is mounted from it through a mapping in this process: the page fault would
    wait, with the interpreter's lock, for that thread.
    """
    path.touch()
    with open("/dev/fuse", "r+b", buffering=0) as kernel:
        server = threading.Thread(target=_serve, args=(kernel, device), name="fuse", daemon=True)
        fd = kernel.fileno()
        options = f"fd={fd},rootmode={stat.S_IFREG:o},user_id=0,group_id=0"
        with mounted("saturnmq", path, options, kind="fuse.saturnmq", pass_fds=[fd]):
            with undisturbed():
                server.start()
            yield path
        server.join()  # its next read says that it is unmounted


def _serve(kernel: FileIO, device: BlockDevice) -> None:
    with kernel:  # closed, so that nobody waits for a thread that died
        _answer_all(kernel, device)


def _answer_all(kernel: FileIO, device: BlockDevice) -> None:
    while True:
        try:
            request = memoryview(kernel.read(_WRITE_MAX + 8192))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                continue
            raise
        _, opcode, unique, *_ = _REQUEST.unpack_from(request)
        if opcode in _WITHOUT_REPLY:
            continue
        data, status = b"", 0
        try:
            data = _answer(device, opcode, request[_REQUEST.size :])
        except OSError as error:
            status = -(error.errno or errno.EIO)
        with contextlib.suppress(FileNotFoundError):  # the asker was killed meanwhile
            kernel.write(_REPLY.pack(_REPLY.size + len(data), status, unique) + data)


def _answer(device: BlockDevice, opcode: int, data: memoryview) -> bytes:
    if opcode == READ:
        _, pos, size = struct.unpack_from("<QQI", data)
        return device.read(pos, size)
    if opcode == WRITE:
        _, pos, size = struct.unpack_from("<QQI", data)
        device.write(pos, data[40 : 40 + size])
        return struct.pack("<II", size, 0)
    if opcode == FSYNC:
        device.flush()
    elif opcode == GETATTR:
        mode = stat.S_IFREG | 0o600
        return _ATTR.pack(
            *(3600, 0, 0),
            *(1, device.size, device.size // 512, 0, 0, 0),  # inode, sizes, times
            *(0, 0, 0, mode, 1, 0, 0, 0, 4096, 0),
        )
    elif opcode == OPEN:
        return struct.pack("<QII", 0, _FOPEN_DIRECT_IO, 0)
    elif opcode == INIT:
        read_ahead = struct.unpack_from("<I", data, 8)[0]
        flags = _BIG_WRITES | _MAX_PAGES
        pages = _WRITE_MAX // 4096
        return _INIT.pack(*_PROTOCOL, read_ahead, flags, 16, 12, _WRITE_MAX, 1, pages, 0, 0)
    elif opcode not in (FLUSH, RELEASE):
        raise OSError(errno.ENOSYS, "not needed for one file")
    return b""
