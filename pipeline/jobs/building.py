"""A directory that a job fills: its content appears when it is complete, and one job at a time
works at it.

The work lies in `.building` in it until then, with a lock that is held while the job lives. So what
a job leaves that was killed looks like no result, and another one at the same moment is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from saturnmq.pipeline.jobs.manifest import LOCK, sync_directory
from saturnmq.pipeline.jobs.tasks import attempt_name
from saturnmq.runtime.errors import ConfigError, DirectoryLocked

BUILDING = ".building"


@contextlib.contextmanager
def building(to: str) -> Iterator[str]:
    """A directory to work in; what is in it at the end moves to `to`, which is made if need be.

    ConfigError if there is something in `to`, DirectoryLocked while another job builds there.
    """
    work = os.path.join(to, BUILDING)
    if os.path.isdir(work):
        raise _refusal(to, work)
    _check_empty(to)
    os.makedirs(to, exist_ok=True)
    with _taken(to, work):
        try:
            _check_empty(to)
            yield work
            for name in sorted(os.listdir(work)):
                if name != LOCK:
                    os.rename(os.path.join(work, name), os.path.join(to, name))
            sync_directory(to)
        finally:
            shutil.rmtree(work, ignore_errors=True)  # a task may still write


@contextlib.contextmanager
def _taken(to: str, work: str) -> Iterator[None]:
    """Make `work`, with its lock; DirectoryLocked or ConfigError if it is there."""
    attempt = f"{work}-{attempt_name()}"  # it appears with the lock held: who finds it can tell
    os.mkdir(attempt)
    with open(os.path.join(attempt, LOCK), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.rename(attempt, work)
        except OSError:
            shutil.rmtree(attempt)
            if not os.path.isdir(work):
                raise
            raise _refusal(to, work) from None
        yield


def _refusal(to: str, work: str) -> ConfigError | DirectoryLocked:
    try:
        with open(os.path.join(work, LOCK), "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return DirectoryLocked(f"another job builds in {to}: wait for it, or choose another one")
    except FileNotFoundError:
        pass  # it was killed while it cleared up, or it has just ended
    return ConfigError(
        f"remove {to}, or choose another directory: it has what a job left that was killed "
        f"({work}), and is no result"
    )


def _check_empty(to: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if any(not name.startswith(BUILDING) for name in os.listdir(to)):
            raise ConfigError(f"choose another directory to build in: {to} is not empty")
