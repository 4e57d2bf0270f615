"""Names the file of a SIGBUS: an access to a mapped file that has no such byte any more, or whose
sector cannot be read. Python's faulthandler tells the line of code only.

The handler writes the line, puts back the one that was there before (faulthandler's), and returns.
Then the same access fails again, and that one writes its trace and ends the process.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

_SA_SIGINFO = 4


class _SignalInfo(ctypes.Structure):
    """The begin of siginfo_t; `code` is positive for a signal of the kernel's own."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


class _Action(ctypes.Structure):
    """struct sigaction of glibc and musl on 64 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_SignalInfo), ctypes.c_void_p)
_installed: list[Any] = []  # the kernel calls it: it must stay alive


def mapped_at(address: int, maps: str) -> str:
    """The file that is mapped at this address, and the byte of it; `maps` as in /proc/self/maps."""
    for line in maps.splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        start, end = (int(number, 16) for number in span.split("-"))
        if path and start <= address < end:
            return f"byte {int(offset, 16) + address - start} of {path[0]}"
    return "no file that is mapped"


def name_files(descriptor: int) -> None:
    """From now on a SIGBUS writes to `descriptor` which file it was."""
    libc = ctypes.CDLL(None)
    before = _Action()

    def tell(number: int, info: Any, _context: object) -> None:
        libc.sigaction(number, ctypes.byref(before), None)
        if info.contents.code <= 0:  # somebody sent it: no access will fail again
            os.kill(os.getpid(), number)
            return
        file = mapped_at(info.contents.address or 0, Path("/proc/self/maps").read_text())
        text = f"SIGBUS at {file}: it was cut short, or the disk cannot read it\n"
        os.write(descriptor, text.encode(errors="replace"))

    handler = _HANDLER(tell)
    _installed.append(handler)
    action = _Action(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO)
    libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before))
