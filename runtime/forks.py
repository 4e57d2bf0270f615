"""What a child process of os.fork() has of its parent's clients: nothing that works, or harms.

A child shares its parent's connections, but has none of the threads that read them. What it wrote
would mix with the parent's requests, what it read the parent would miss, and a lock that a thread
held stays locked for ever. So, in the child and before anything else runs there, every heir is told
(`forked`): connections are cut, which the parent does not notice, and clients refuse every use with
ClientForked. A client that is made in the child is a client as any other.
"""

import contextlib
import os
import weakref
from typing import Protocol

from .errors import ClientForked


class Heir(Protocol):
    """What would do harm in a child."""

    def forked(self) -> None:
        """This is a child now. Takes no lock, waits for nothing."""


_heirs: weakref.WeakSet[Heir] = weakref.WeakSet()
_kept: list[Heir] = []  # an end of theirs would do what only the parent may
_pid = _parent = os.getpid()


def tell(heir: Heir) -> None:
    """Have `heir` told when the process forks, in the child."""
    _heirs.add(heir)


def refusal() -> ClientForked:
    """The error of every use of what was inherited."""
    return ClientForked(
        f"this client belongs to process {_parent}, which forked: make a new one in process {_pid}"
    )


class Socket:
    """A socket as it is known by its number, which may be another's by the time of a fork."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._identity = _identity(number)

    def cut(self) -> None:
        """This process's number leads to nowhere from now on; the parent keeps the connection."""
        with contextlib.suppress(OSError):
            if _identity(self._number) == self._identity:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, self._number, inheritable=False)
                os.close(nowhere)


def _identity(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


class ForkedLock:
    """Stands where a lock was that may be locked for ever: who wants it is refused."""

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


if hasattr(os, "register_at_fork"):  # not where processes cannot fork
    os.register_at_fork(after_in_child=_in_child)
