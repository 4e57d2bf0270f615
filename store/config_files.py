"""config/*.json: small tables with a previous copy beside them (docs/internals/format.md 10.1).

Written as strict JSON, read as fastjson writes it (integer keys without quotes). A file that is
damaged or empty, or lies in a bad sector, falls back to `<file>.bak`; when both are bad the start
is refused, so that an empty table never replaces a good one (docs/guarantees.md S5).
"""

from __future__ import annotations

from typing import Any

from saturnmq.protocol import fastjson
from saturnmq.runtime.errors import MalformedFrame, StoreDamaged
from saturnmq.store.disk import Disk
from saturnmq.store.reading import is_bad_sector


class ConfigFile:
    """One JSON document on disk; with `keep_room` a full disk has room for its next version."""

    def __init__(self, disk: Disk, path: str, *, keep_room: bool = False) -> None:
        self._disk = disk
        self.path = path
        self._keep_room = keep_room

    def load(self) -> dict[str, Any] | None:
        """The document, or None if neither it nor its backup exists."""
        problems = []
        for path in (self.path, self.path + ".bak"):
            if not self._disk.exists(path):
                continue
            try:
                data = self._disk.read_file(path)
                if not data.strip(b" \0\r\n\t"):
                    problems.append(f"{path} is empty")
                    continue
                document = fastjson.loads(data)
                if isinstance(document, dict):
                    return document
                problems.append(f"{path} holds no JSON object")
            except (ValueError, MalformedFrame) as error:
                problems.append(f"{path}: {error}")
            except OSError as error:
                if not is_bad_sector(error):
                    raise
                problems.append(f"{path} cannot be read: {error}")
        if problems:
            raise StoreDamaged(
                "; ".join(problems) + ": restore one of them, or delete both to start empty"
            )
        return None

    def save(self, document: Any) -> None:
        """Replace the file; blocking."""
        self.write(fastjson.dumps(document))

    def write(self, text: bytes) -> None:
        """The same with what is JSON already."""
        assert text.startswith(b"{"), f"{self.path} was to hold {text[:20]!r}, no JSON object"
        self._disk.replace_file(self.path, text, keep_room=self._keep_room)
