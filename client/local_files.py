"""The file door of broadcasting consumers on a real file system (see offset_store.FileDoor)."""

from __future__ import annotations

import os
from pathlib import Path


class LocalFiles:
    """Reads and atomically replaces small files; `~` is the user's home."""

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).expanduser().read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        target = Path(path).expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(target.name + ".tmp")
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
