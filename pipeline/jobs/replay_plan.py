"""Which rows of Parquet files a replay sends in which step and task: a pure function of the files,
since the sink knows again what it has by the numbers of step and task.

A lane is what must arrive in order: a queue of an archive, or a file of other Parquet. Each is cut
into slices at row groups, about SLICE_BYTES each; step n takes the nth slice of every lane, and a
task of it some neighbouring lanes. Of an archive each manifest has its own steps, one manifest's
after the other's, so that what is added later changes nothing before.

The files of a queue are one an hour of store time. Where a clock went back their offsets overlap;
such files are sorted together.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from saturnmq.pipeline.jobs.manifest import (
    SPARK_LOG,
    Archive,
    DataFile,
    Manifest,
    local,
    partition,
)
from saturnmq.pipeline.jobs.tasks import first_line
from saturnmq.runtime.errors import ConfigError, StoreDamaged, nearest

SLICE_BYTES = 32 << 20  # of one lane in one step; another size makes every replay another write
_VERSION = "1"  # of the plan: likewise


@dataclass(frozen=True, slots=True)
class Piece:
    """Row groups [first, end) of a Parquet file; `bytes` as they are before compression."""

    path: str
    first: int
    end: int
    rows: int
    bytes: int


Together = tuple[Piece, ...]
"""Pieces that are read one after the other if there is one, else sorted by queue offset."""


@dataclass(frozen=True, slots=True)
class Task:
    """The messages that one task of a step sends, in this order."""

    parts: tuple[Together, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for part in self.parts for piece in part)

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for part in self.parts for piece in part)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The steps, what names their source, and the columns that all its files have."""

    steps: tuple[tuple[Task, ...], ...]
    identity: str
    columns: dict[str, pa.DataType]

    @property
    def rows(self) -> int:
        return sum(task.rows for step in self.steps for task in step)


def plan(path: str, topic: str | None) -> ReplayPlan:
    """Plan a replay of the archive or the Parquet at `path`; `topic`: only messages from there.

    ConfigError if there is nothing, or several topics and none is named. StoreDamaged if a file is
    not what the archive's manifests say.
    """
    archive = Archive(path)
    manifests = archive.manifests()
    if manifests:
        return _of_archive(archive, manifests, topic)
    finished = _finished(archive.path) if archive.is_of_spark else None
    return _of_files(archive.path, topic, finished)


def _of_archive(archive: Archive, manifests: Sequence[Manifest], topic: str | None) -> ReplayPlan:
    topics = sorted({queue.topic for each in manifests for queue in each.ranges})
    if topic is None and len(topics) == 1:
        topic = topics[0]
    if topic is None:
        raise ConfigError(f"say which topic to replay: {archive.path} has {', '.join(topics)}")
    if topic not in topics:
        hint = nearest(topic, topics) or f"; it has {', '.join(topics)}"
        raise ConfigError(f"{archive.path} has no topic {topic!r}{hint}")
    steps: list[tuple[Task, ...]] = []
    schemas = _Schemas()
    for manifest in manifests:
        lanes = defaultdict(list)
        for file in manifest.files:
            if file.topic == topic:
                lanes[file.queue].append(file)
        steps += _steps(
            [
                [
                    [_archived(archive, file, schemas) for file in files]
                    for files in _overlapping(lanes[queue])
                ]
                for queue in sorted(lanes)
            ]
        )
    # not the path, where another archive may lie one day
    identity = f"{_VERSION} {manifests[0].run} {topic}"
    return ReplayPlan(tuple(steps), identity, schemas.common)


def _archived(archive: Archive, file: DataFile, schemas: _Schemas) -> _Footer:
    """StoreDamaged if the file is not what its manifest lists."""
    footer = _Footer(archive.check(file), schemas)
    if footer.rows != file.rows:
        fault = f"a file has {footer.rows:,} rows, its manifest says {file.rows:,}"
        raise archive.damaged(footer.path, fault)
    return footer


def _of_files(path: str, topic: str | None, finished: set[str] | None) -> ReplayPlan:
    """`finished`: the names of the only files that count, if not all do."""
    files = sorted(_parquet_files(path))
    if finished is not None:
        files = [file for file in files if os.path.basename(file) in finished]
    if topic is not None:
        mark = partition(topic, "").split("/")[0]
        files = [file for file in files if mark in file.split(os.sep)]
    if not files:
        of = "" if topic is None else f" of topic {topic!r}"
        raise ConfigError(f"there is no Parquet{of} at {path}: no file named *.parquet")
    schemas = _Schemas()
    footers = [_Footer(file, schemas) for file in files]
    facts = [_VERSION]
    facts += [f"{os.path.relpath(each.path, path)} {each.size} {each.rows}" for each in footers]
    identity = hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()
    return ReplayPlan(tuple(_steps([[[each]] for each in footers])), identity, schemas.common)


def _parquet_files(path: str) -> Iterator[str]:
    path = local(path)
    if os.path.isfile(path):
        yield path
    for directory, below, names in os.walk(path):
        below[:] = [name for name in below if name[0] not in "._"]
        for name in names:
            if name.endswith(".parquet") and name[0] not in "._":
                yield os.path.join(directory, name)


def _finished(path: str) -> set[str]:
    """The names of the files that Spark's file sink has finished at `path`, by its log. A batch
    that failed leaves files behind, whose rows are in others, too. The log has one file a batch,
    and some of many (`N.compact`): a line `v1`, then one of JSON each."""
    log = os.path.join(path, SPARK_LOG)
    found: set[str] = set()
    for name in sorted(os.listdir(log)):
        if not name.removesuffix(".compact").isdecimal():
            continue
        at = os.path.join(log, name)
        try:
            with open(at, encoding="utf-8") as file:
                version, *lines = file.read().splitlines()
            if version != "v1":
                raise ValueError(f"its version is {version!r}, not 'v1'")
            found |= {posixpath.basename(unquote(json.loads(line)["path"])) for line in lines}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(f"{at} is no log of Spark's file sink: {error!r}") from error
    return found


def _overlapping(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """The files of a queue by offset, those together whose offsets overlap."""
    group: list[DataFile] = []
    end = 0
    for file in sorted(files, key=lambda each: (each.first, each.path)):
        if group and file.first >= end:
            yield group
            group = []
        group.append(file)
        end = max(end, file.end)
    if group:
        yield group


class _Schemas:
    """The columns that all files have; ConfigError where one has different types."""

    def __init__(self) -> None:
        self.common: dict[str, pa.DataType] = {}
        self._first = True

    def add(self, path: str, schema: pa.Schema) -> None:
        found = dict(zip(schema.names, schema.types, strict=True))
        if self._first:
            self.common, self._first = found, False
        for name, kind in list(self.common.items()):
            if name not in found:
                del self.common[name]
            elif found[name] != kind:
                raise ConfigError(
                    f"column {name!r} is {found[name]} in {path}, {kind} in files before: make "
                    "them alike"
                )


class _Footer:
    """The metadata of a Parquet file."""

    def __init__(self, path: str, schemas: _Schemas) -> None:
        self.path = path
        self.size = os.path.getsize(path)
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                self._metadata = file.metadata
        except Exception as error:  # out of a damaged footer Arrow makes whatever it may
            raise ConfigError(f"{path} is no Parquet: {first_line(error)}") from error
        schemas.add(path, schema)
        self.rows: int = self._metadata.num_rows

    def pieces(self) -> Iterator[Piece]:
        """Cut a file at row groups into pieces of about SLICE_BYTES each."""
        first = rows = size = 0
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            rows, size = rows + group.num_rows, size + group.total_byte_size
            if size >= SLICE_BYTES:
                yield Piece(self.path, first, number + 1, rows, size)
                first, rows, size = number + 1, 0, 0
        if rows:
            yield Piece(self.path, first, self._metadata.num_row_groups, rows, size)


def _steps(lanes: Sequence[Sequence[Sequence[_Footer]]]) -> Iterator[tuple[Task, ...]]:
    for slices in zip_longest(*map(_slices, lanes)):
        yield tuple(_joined([each for each in slices if each is not None]))


def _slices(lane: Sequence[Sequence[_Footer]]) -> Iterator[Task]:
    parts: list[Together] = []
    for files in lane:
        pieces = [tuple(file.pieces()) for file in files]
        if len(files) > 1:
            parts.append(tuple(piece for of_file in pieces for piece in of_file))
        else:
            parts += [(piece,) for piece in pieces[0]]
    yield from _joined([Task((part,)) for part in parts])


def _joined(tasks: Iterable[Task]) -> Iterator[Task]:
    """Neighbours as one, up to SLICE_BYTES and the rest of the last one."""
    open_task = Task(())
    for task in tasks:
        open_task = Task(open_task.parts + task.parts)
        if open_task.bytes >= SLICE_BYTES:
            yield open_task
            open_task = Task(())
    if open_task.parts:
        yield open_task
