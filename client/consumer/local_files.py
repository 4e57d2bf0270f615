"""The file door of broadcasting consumers on a real file system (see offset_store.FileDoor).

The lock is an advisory one (flock) on `<path>.lock`, a file of its own because `replace` puts a new
file in place of the old one. It holds the process id of its owner and ends with the process.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import Lock
from typing import IO


class LocalFiles:
    """Reads, locks and atomically replaces small files; `~` is the user's home."""

    def __init__(self) -> None:
        self._locked: dict[str, IO[str]] = {}
        self._replacing = Lock()

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).expanduser().read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        target = Path(path).expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(target.name + ".tmp")
        with self._replacing:  # an earlier call that nobody waits for any more may still run
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def lock(self, path: str) -> str | None:
        target = Path(path + ".lock").expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("a+")  # it may be somebody else's: nothing is cut off
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with file:
                if not isinstance(error, BlockingIOError):
                    raise
                file.seek(0)
                return f"process {file.read().strip() or 'unknown'}"
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._locked[path] = file
        return None

    def unlock(self, path: str) -> None:
        file = self._locked.pop(path, None)
        if file is not None:
            with file:
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have the file open as well
