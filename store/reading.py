"""Reads of a start: with read(), because behind a mapping a bad sector would be a SIGBUS. One that
fails is a StoreDamaged that names the file, the place and what an operator can do. And which names
of files are numbers, and those of which directories are queues.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator

from saturnmq.protocol.checked import INT32_MAX, INT64_MAX
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.disk import Disk, ReadFile

_DIGITS = 20  # of the name of a segment
OF_LOG = "replace the disk and copy the directory from a slave, or set this file aside"
OF_DERIVED = "replace the disk, or move its directory away: it is built again from the log"


def read(file: ReadFile, pos: int, size: int, way_out: str) -> bytes:
    assert pos >= 0, f"{file.path} was to be read at {pos}"
    assert size >= 0, f"{size} bytes of {file.path} were to be read"
    try:
        return file.read(pos, size)
    except OSError as error:
        raise cannot_be_read(file.path, error, way_out, pos) from error


def read_into(file: ReadFile, pos: int, buffer: memoryview, way_out: str) -> int:
    try:
        return file.read_into(pos, buffer)
    except OSError as error:
        raise cannot_be_read(file.path, error, way_out, pos) from error


def is_bad_sector(error: OSError) -> bool:
    """And not, say, a right that is missing."""
    return error.errno == errno.EIO


def cannot_be_read(path: str, error: OSError, way_out: str, pos: int = -1) -> StoreDamaged:
    place = f" at {pos}" if pos >= 0 else ""
    return StoreDamaged(f"{path} cannot be read{place}: {error}; {way_out}")


def number_of(name: str, most: int = INT64_MAX) -> int | None:
    """The number that a file or a directory is named by; None: it is none that a broker writes."""
    if not (name.isascii() and name.isdigit() and len(name) <= _DIGITS):
        return None
    number = int(name)
    return number if number <= most else None


def queues_in(disk: Disk, directory: str) -> Iterator[tuple[str, int]]:
    """The queues, by topic and number, that have directories in `directory`; names below a topic
    that are no numbers are skipped."""
    for topic in disk.list(directory):
        if topic.is_dir:
            for entry in disk.list(posixpath.join(directory, topic.name)):
                queue_id = number_of(entry.name, INT32_MAX)
                if entry.is_dir and queue_id is not None:
                    yield topic.name, queue_id
