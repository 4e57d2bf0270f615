"""The archive on disk: Parquet files, and the manifests that alone say which of them count.

    <path>/topic=<name>/hour=<yyyy-mm-dd-hh>/<number>-<run>-<n>.parquet   store time, UTC
    <path>/_manifest/<number, 8 digits>.json                              from 1, no gaps
    <path>/_temporary/<run>/                                              of runs that are not done

A run writes its files, gives them their names, and then makes the next manifest with one hard link,
which fails if another run was faster. So a manifest is there whole or not at all, and with it all
that the run archived. A file that no manifest lists is nothing: the next run removes it.

A manifest says which messages it covers (`ranges`: [first, end) of each queue), where the next run
goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import posixpath
import re
import reprlib
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

from saturnmq.pipeline.access import named_path
from saturnmq.pipeline.columns import select
from saturnmq.pipeline.jobs.checksums import crc_of_last
from saturnmq.pipeline.jobs.tasks import attempt_name
from saturnmq.protocol.checked import INT32_MAX, INT64_MAX
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError, SaturnError, StoreDamaged
from saturnmq.store.reading import number_of

Kind = TypeVar("Kind")
VERSION = 1
MANIFESTS = "_manifest"
TEMPORARY = "_temporary"
SPARK_LOG = "_spark_metadata"  # of Spark's own file sink, which writes archives of another kind
PLACED = "placed.json"  # in a run's directory: the names it is about to give
LOCK = "lock"  # beside it: held while the run lives
# The columns that every archive has: it is arranged by them.
NEEDED = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")
_UINT32_MAX = (1 << 32) - 1
_HOUR = re.compile(r"[0-9]{1,4}(-[0-9]{2}){3}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # Hadoop takes hdfs:/x for hdfs:///x

Ranges = dict[MessageQueue, tuple[int, int]]


class ArchiveChanged(SaturnError):
    """Another run added to this archive meanwhile; what this one read is not in it: run again"""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file: messages of one queue and hour, in the queue's order, whose offsets lie in
    [first, end)."""

    path: str  # from the archive's own
    topic: str
    broker: str
    queue_id: int
    hour: str
    first: int
    end: int
    rows: int
    bytes: int
    # CRC-32 of the whole, and of the last bytes, the footer. Older archives have none.
    crc: int | None = None
    footer_bytes: int = 0
    footer_crc: int = 0

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)

    @classmethod
    def from_json(cls, value: Any) -> DataFile:
        """ValueError names the value that is wrong."""
        place = _text(value, "path")
        if place.startswith("/") or ".." in place.split("/"):
            raise ValueError(f"path {place!r} leads out of the archive")
        hour = _text(value, "hour")
        if _HOUR.fullmatch(hour) is None:
            raise ValueError(f"hour {hour!r} is not written as 2026-11-21-13")
        if unknown := value.keys() - {each.name for each in fields(cls)}:
            raise ValueError(f"file {place!r} has the unknown {', '.join(sorted(unknown))}")
        size = _number(value, "bytes")
        return cls(
            path=place,
            topic=_text(value, "topic"),
            broker=_text(value, "broker"),
            queue_id=_number(value, "queue_id", INT32_MAX),
            hour=hour,
            first=_number(value, "first"),
            end=_number(value, "end"),
            rows=_number(value, "rows"),
            bytes=size,
            crc=None if value.get("crc") is None else _number(value, "crc", _UINT32_MAX),
            footer_bytes=_number({"footer_bytes": 0} | value, "footer_bytes", size),
            footer_crc=_number({"footer_crc": 0} | value, "footer_crc", _UINT32_MAX),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that one run added."""

    number: int
    run: str
    columns: tuple[str, ...]
    ranges: Ranges
    files: tuple[DataFile, ...]
    made: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def to_json(self) -> dict[str, Any]:
        ranges: dict[str, dict[str, dict[str, list[int]]]] = {}
        for queue, (first, end) in sorted(self.ranges.items()):
            brokers = ranges.setdefault(queue.topic, {})
            brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = [first, end]
        return {
            "version": VERSION,
            "number": self.number,
            "run": self.run,
            "made": self.made,
            "columns": list(self.columns),
            "ranges": ranges,
            "files": [asdict(file) for file in self.files],
        }

    @classmethod
    def from_json(cls, value: Any) -> Manifest:
        """ValueError names the value that is wrong."""
        if (version := _member(value, "version", int)) != VERSION:
            raise ValueError(f"version {version}, this is for {VERSION}")
        columns = _member(value, "columns", list)
        if not all(type(name) is str for name in columns) or set(NEEDED) - set(columns):
            raise ValueError(f"columns are {columns}, {', '.join(NEEDED)} must be among them")
        return cls(
            _number(value, "number"),
            _text(value, "run"),
            select(columns).names,
            _ranges(_member(value, "ranges", dict)),
            tuple(map(DataFile.from_json, _member(value, "files", list))),
            _text(value, "made"),
        )


def _member(value: Any, name: str, kind: type[Kind]) -> Kind:
    """The value under `name`; ValueError unless it is of this kind."""
    found = value.get(name) if isinstance(value, dict) else None
    if type(found) is not kind:
        raise ValueError(f"{name} is {reprlib.repr(found)}, not of the kind {kind.__name__}")
    return found


def _number(value: Any, name: str, most: int = INT64_MAX) -> int:
    found = _member(value, name, int)
    if not 0 <= found <= most:
        raise ValueError(f"{name} is {found}, not from 0 to {most}")
    return found


def _text(value: Any, name: str) -> str:
    return _checked(_member(value, name, str), name)


def _checked(text: str, name: str) -> str:
    """ValueError for what cannot be the name of a topic, a broker or a file."""
    text.encode()
    if not text or "\0" in text:
        raise ValueError(f"{name} is {text!r}, not a name")
    return text


def _ranges(topics: dict[str, Any]) -> Ranges:
    found: Ranges = {}
    for topic in topics:
        brokers = _member(topics, topic, dict)
        for broker in brokers:
            queues = _member(brokers, broker, dict)
            for text in queues:
                ends = _member(queues, text, list)
                queue_id = number_of(text, INT32_MAX)
                if queue_id is None:
                    raise ValueError(f"{text!r} is no queue of {topic}")
                named = dict(zip(("first", "end"), ends, strict=False))
                first, end = _number(named, "first"), _number(named, "end")
                if first > end or len(ends) > 2:
                    raise ValueError(f"{topic} {broker}/{text} has the range {ends}")
                queue = MessageQueue(_checked(topic, "topic"), _checked(broker, "broker"), queue_id)
                found[queue] = first, end
    return found


class Archive:
    """The archive at a local path (or one that every machine has mounted), which need not exist."""

    def __init__(self, path: str) -> None:
        self.path = local(path)
        self._manifests = os.path.join(self.path, MANIFESTS)
        self._temporary = os.path.join(self.path, TEMPORARY)

    def manifests(self) -> list[Manifest]:
        """All, in order. StoreDamaged if one is missing or none that we understand; ConfigError if
        Spark's file sink has written here as well."""
        found, faults = self.read()
        if faults:
            path, fault = faults[0]
            raise StoreDamaged(f"{path} {fault}; restore it from a copy")
        return found

    def read(self) -> tuple[list[Manifest], list[tuple[str, str]]]:
        """Those that can be read, in order, and (path, fault) of those that cannot or are missing.
        ConfigError if Spark's file sink has written here as well."""
        found: list[Manifest] = []
        faults: list[tuple[str, str]] = []
        number = 0
        for name in self._names():
            number += 1
            if name != manifest_name(number):
                faults.append((self.manifest(number), f"is missing, {name} follows it"))
                number = number_of(name.removesuffix(".json")) or number - 1
            path = os.path.join(self._manifests, name)
            try:
                with open(path, "rb") as file:
                    manifest = Manifest.from_json(json.load(file))
                if name != manifest_name(manifest.number):
                    raise ValueError(f"number is {manifest.number}")
                found.append(manifest)
            except (OSError, ValueError, ConfigError, RecursionError) as error:
                faults.append((path, f"is no manifest: {str(error) or repr(error)}"))
        if (found or faults) and self.is_of_spark:
            raise ConfigError(
                f"move {MANIFESTS} or {SPARK_LOG} away to use the archive of the other: "
                f"{self.path} holds two, one of them of --spark-sink; messages may be in both"
            )
        return found, faults

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self._manifests)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in names if name.endswith(".json") and name[0] != ".")

    @property
    def is_of_spark(self) -> bool:
        """Whether Spark's own file sink has written here."""
        return os.path.isdir(os.path.join(self.path, SPARK_LOG))

    def existing(self) -> list[Manifest]:
        """The same as `manifests`; ConfigError if there is none."""
        found = self.manifests()
        if not found:
            raise self.nothing()
        return found

    def nothing(self) -> ConfigError:
        """The error of a directory without manifests."""
        return ConfigError(f"{self.path} is no archive: it has no {MANIFESTS}/00000001.json")

    def manifest(self, number: int) -> str:
        """The full path of a manifest."""
        return os.path.join(self._manifests, manifest_name(number))

    def full(self, file: DataFile) -> str:
        """The full path of a file."""
        return os.path.join(self.path, file.path)

    def fault_of(self, file: DataFile) -> str:
        """Why a listed file cannot be what was archived, by its size and its footer alone; empty if
        it can."""
        try:
            found = os.stat(self.full(file))
        except (FileNotFoundError, NotADirectoryError):
            return "a file is missing"
        if not stat.S_ISREG(found.st_mode):
            return "there is no file, but something else of its name"
        if found.st_size != file.bytes:
            return f"a file has {found.st_size:,} B, its manifest says {file.bytes:,} B"
        if file.footer_bytes and crc_of_last(self.full(file), file.footer_bytes) != file.footer_crc:
            return "the footer of a file has another checksum than its manifest says"
        return ""

    def check(self, file: DataFile) -> str:
        """The full path of a listed file; StoreDamaged if it cannot be what was archived."""
        path = self.full(file)
        if fault := self.fault_of(file):
            raise self.damaged(path, fault)
        return path

    def damaged(self, path: str, fault: str) -> StoreDamaged:
        """The error of a file that is not what was archived."""
        return StoreDamaged(
            f"restore {path} from a copy, or archive to another directory what the topics still "
            f"have: {fault}; `saturnmq pipeline audit --archive {self.path}` finds all such files"
        )

    # -- writing ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def run(self) -> Iterator[ArchiveRun]:
        """A run, whose leftovers go when it ends; those of dead ones go first."""
        run, lock = self._begin()
        with lock:
            self._clear_dead_runs()
            try:
                yield run
            finally:
                self._clear(run.directory)

    def _begin(self) -> tuple[ArchiveRun, BinaryIO]:
        while True:
            name = attempt_name()
            directory = os.path.join(self._temporary, name)
            os.makedirs(directory)
            # another run may take it for a dead one's before it is locked
            with contextlib.suppress(FileNotFoundError):
                lock = open(os.path.join(directory, LOCK), "wb")  # noqa: SIM115  held by the run
                fcntl.flock(lock, fcntl.LOCK_EX)
                if os.path.exists(lock.name):
                    return ArchiveRun(self, name, directory), lock
                lock.close()

    def _clear_dead_runs(self) -> None:
        for name in os.listdir(self._temporary):
            directory = os.path.join(self._temporary, name)
            with (
                contextlib.suppress(FileNotFoundError, BlockingIOError),
                open(os.path.join(directory, LOCK), "ab") as lock,
            ):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the living hold theirs
                self._clear(directory)

    def _clear(self, directory: str) -> None:
        """Remove a run's directory, and what it put in place unless its manifest is there."""
        try:
            with open(os.path.join(directory, PLACED), "rb") as file:
                placed = json.load(file)
        except (FileNotFoundError, ValueError, RecursionError):
            placed = []  # a name is given only when all are written down
        listed = {file.path for manifest in self.manifests() for file in manifest.files}
        for path in placed:
            if path not in listed:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.path, path))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._manifests, f".{os.path.basename(directory)}"))
        shutil.rmtree(directory, ignore_errors=True)

    def add(self, manifest: Manifest) -> None:
        """Make it count, at once and for good; ArchiveChanged if its number is taken."""
        os.makedirs(self._manifests, exist_ok=True)
        target = self.manifest(manifest.number)
        attempt = os.path.join(self._manifests, f".{manifest.run}")
        write_durably(attempt, json.dumps(manifest.to_json(), indent=1).encode())
        try:
            os.link(attempt, target)
        except FileExistsError:
            raise ArchiveChanged(
                f"run again: another run made {target} meanwhile, what this one read is not in it"
            ) from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise ConfigError(
                f"archive to another file system: that of {self.path} has no hard links, without "
                "which two runs could both take the same place"
            ) from error
        finally:
            os.unlink(attempt)
        sync_directory(self._manifests)


@dataclass(frozen=True, slots=True)
class ArchiveRun:
    """One run that writes to an archive; its tasks write to `directory`."""

    archive: Archive
    name: str
    directory: str

    def commit(
        self,
        number: int,
        columns: Sequence[str],
        ranges: Ranges,
        written: Sequence[DataFile],
        *,
        durable: bool = True,
    ) -> Manifest:
        """Put the files, whose paths are in `directory`, in their places and make the manifest."""
        files = []
        for count, file in enumerate(written):
            name = f"{number:08d}-{self.name[:12]}-{count:05d}.parquet"
            place = posixpath.join(partition(file.topic, file.hour), name)
            files.append(DataFile(**(asdict(file) | {"path": place})))
        paths = [file.path for file in files]
        write_durably(os.path.join(self.directory, PLACED), json.dumps(paths).encode())
        directories = {os.path.dirname(self.archive.full(file)) for file in files}
        for directory in sorted(directories):
            os.makedirs(directory, exist_ok=True)
        for before, after in zip(written, files, strict=True):
            os.rename(os.path.join(self.directory, before.path), self.archive.full(after))
        if durable:
            above = {os.path.dirname(directory) for directory in directories}
            for directory in sorted(directories | above | {self.archive.path}):
                sync_directory(directory)
        manifest = Manifest(number, self.name, tuple(columns), ranges, tuple(files))
        self.archive.add(manifest)
        return manifest


def reached(manifests: Sequence[Manifest]) -> dict[MessageQueue, int]:
    """The offset at which the next run goes on in each queue."""
    return {queue: end for each in manifests for queue, (_, end) in each.ranges.items()}


def covered(manifests: Sequence[Manifest]) -> Ranges:
    """The range of each queue that lies in the archive: from the first offset to the last one's
    end."""
    result: Ranges = {}
    for each in manifests:
        for queue, (first, end) in each.ranges.items():
            result[queue] = (result[queue][0] if queue in result else first, end)
    return result


def is_local(path: str) -> bool:
    """Whether plain file operations reach it: no scheme, or file:."""
    return path.startswith("file:") or _SCHEME.match(path) is None


def local(path: str) -> str:
    """A path of ours; ConfigError if it is not local, or empty."""
    if not is_local(path):
        raise ConfigError(f"give a directory that is mounted here: {path} is not reached as a file")
    return os.path.abspath(named_path(path.removeprefix("file://").removeprefix("file:")))


def partition(topic: str, hour: str) -> str:
    """The directory of a topic's messages of an hour."""
    return f"topic={quote(topic, safe='')}/hour={hour}"


def hour_name(hour: int) -> str:
    """`2026-11-21-13` for an hour counted from 1970, UTC."""
    return f"{_EPOCH + timedelta(hours=hour):%Y-%m-%d-%H}"


def manifest_name(number: int) -> str:
    return f"{number:08d}.json"


def write_durably(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
