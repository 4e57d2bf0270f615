"""`fdatasync` without a thread: the kernel's asynchronous I/O (io_submit(2)) tells a loop when it
ends.

A thread would have to be woken for each sync, and would wake the loop after it: on a virtual
machine that is as long as a fast disk needs. The kernel's own worker runs on the processor that
asked for the sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Callable
from typing import NamedTuple


class Numbers(NamedTuple):
    """Of the system calls io_setup and so on."""

    setup: int
    destroy: int
    getevents: int
    submit: int


NUMBERS = {"x86_64": Numbers(206, 207, 208, 209), "aarch64": Numbers(0, 1, 4, 2)}
FDSYNC = 3  # IOCB_CMD_FDSYNC
RESFD = 1  # IOCB_FLAG_RESFD: `resfd` is told
AT_ONCE = 8


class AioRequest(ctypes.Structure):
    """`struct iocb` of linux/aio_abi.h, on a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("resfd", ctypes.c_uint32),
    )


class AioEvent(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


def system_call() -> Callable[..., int]:
    """`syscall(2)`, which returns a negative error number after a failure."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long

    def call(*arguments: object) -> int:
        result: int = libc.syscall(*arguments)
        return result if result >= 0 else -ctypes.get_errno()

    return call


class Datasync:
    """The syncs of one loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Callable[..., int] | None = None
    ) -> None:
        """`call`: the system call, for tests."""
        self._loop = loop
        self._under_way: dict[int, asyncio.Future[None]] = {}
        self._count = 0
        self._context = ctypes.c_ulong(0)
        self._events = (AioEvent * AT_ONCE)()
        self._told = -1
        if sys.platform != "linux" or sys.byteorder != "little":
            return
        numbers = NUMBERS.get(platform.machine())
        if numbers is None:
            return
        self._numbers, self._call = numbers, call or system_call()
        if self._call(numbers.setup, AT_ONCE, ctypes.byref(self._context)) < 0:
            return  # forbidden here, or too many are in use
        try:
            self._told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:  # no descriptor is left: that is no failed sync
            self._call(numbers.destroy, self._context)
            return
        loop.add_reader(self._told, self._ended)

    def begin(self, fd: int) -> asyncio.Future[None] | None:
        """Begin to sync the file; the future has an OSError if that fails. None: the system does
        not take it, and nothing has begun."""
        if self._told < 0 or len(self._under_way) == AT_ONCE:
            return None
        self._count += 1
        request = AioRequest(data=self._count, opcode=FDSYNC, fd=fd, flags=RESFD, resfd=self._told)
        requests = (ctypes.c_void_p * 1)(ctypes.addressof(request))
        if self._call(self._numbers.submit, self._context, 1, requests) != 1:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        self._under_way[self._count] = future
        return future

    def _ended(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._told)
        count = self._call(self._numbers.getevents, self._context, 0, AT_ONCE, self._events, None)
        for event in self._events[: max(count, 0)]:
            future = self._under_way.pop(event.data)
            if future.done():  # cancelled
                continue
            if event.result < 0:
                future.set_exception(OSError(-event.result, os.strerror(-event.result)))
            else:
                future.set_result(None)

    def close(self) -> None:
        """Give the files back. It waits for syncs that are under way."""
        if self._told >= 0:
            self._loop.remove_reader(self._told)
            os.close(self._told)
            self._told = -1
            self._call(self._numbers.destroy, self._context)


__all__ = ["Datasync"]
