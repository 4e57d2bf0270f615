"""Files in the directory of a local cluster. Only the owner may read them: a log may show messages,
settings a password."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Let one cluster command at a time work in a data directory."""
    with open(root / ".lock", "w", opener=private) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read."""
    return os.open(path, flags, 0o600)


def write_private(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape", opener=private) as file:
        file.write(text)


def toml(options: dict[str, Any]) -> str:
    """The text of a configuration. JSON strings, numbers and booleans are TOML as they stand, but
    for JSON's escapes of characters beyond 16 bits."""
    return "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in options.items()
    )
