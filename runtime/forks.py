"""The clients of a parent process in a child of os.fork(): there they neither work nor do harm.

A child shares its parent's connections, but has none of the threads that read them. Data that the
child wrote would mix with the parent's requests, data that it read would be missing at the parent,
and a lock that a thread held stays locked for ever. So, in the child and before anything else runs
there, every heir's `forked` is called: connections are cut, which the parent does not notice, and
clients refuse every use with ClientForked. A client that is made in the child works as any other.
"""

import contextlib
import os
import weakref
from typing import Protocol

from .errors import ClientForked


class Heir(Protocol):
    """An object that would do harm in a child."""

    def forked(self) -> None:
        """Called in the child. It takes no lock and waits for nothing."""


_heirs: weakref.WeakSet[Heir] = weakref.WeakSet()
_kept: list[Heir] = []  # their finalisers would do what only the parent may
_pid = _parent = os.getpid()


def register(heir: Heir) -> None:
    """Have `heir.forked` called in each child of this process."""
    _heirs.add(heir)


def refusal() -> ClientForked:
    """The error for every use of an inherited object."""
    return ClientForked(
        f"this client belongs to process {_parent}, which forked: make a new one in process {_pid}"
    )


class Socket:
    """A socket and its number, which may belong to another socket by the time of a fork."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._identity = _identity(number)

    def cut(self) -> None:
        """Cut this process off: its number leads nowhere from now on; the parent keeps the
        connection."""
        with contextlib.suppress(OSError):
            if _identity(self._number) == self._identity:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, self._number, inheritable=False)
                os.close(nowhere)


def _identity(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


class ForkedLock:
    """The replacement of a lock that may be locked for ever: it refuses every use."""

    def __enter__(self) -> object:
        raise refusal()

    def __exit__(self, *_: object) -> None: ...


def _in_child() -> None:
    global _pid, _parent
    _parent, _pid = _pid, os.getpid()
    heirs = list(_heirs)
    _heirs.clear()
    _kept.extend(heirs)
    for heir in heirs:
        heir.forked()


if hasattr(os, "register_at_fork"):  # missing where processes cannot fork
    os.register_at_fork(after_in_child=_in_child)
