"""The cleaner: deletes old files (docs/internals/format.md 7). It deletes whole CommitLog segments,
oldest first, then the queue entries and index items for them.

A pass runs for one of three reasons: the hour is in `deleteWhen`, the disk is used beyond
`diskMaxUsedSpaceRatio`, or a request asks for it. It takes segments that were last written more
than `fileReservedTime` hours ago. It never takes the current segment, nor one that is not flushed
and dispatched. A message is deleted whether it was consumed or not. `cleanFileForciblyEnable`, on
in RocketMQ and here only in its `broker.conf`, deletes any segment while the disk is used beyond
`diskSpaceCleanForciblyRatio`. Without it a full disk refuses sends and unexpired segments stay.

A segment is renamed to `deleted/<name>.delete` and deleted 60 s later, at the next start, or with
the next pass when the disk is short. The sub-directory is there because RocketMQ refuses a store
with such a file beside the segments, and ignores sub-directories. The newest such file stays until
a checkpoint says where the log begins now: it tells the next start who took the segments
(store/recovery/amnesia.py). No queue entry points at a segment that is gone: a pass raises the
queues' least offsets first. Readers keep their mapping of a deleted file.
"""

from __future__ import annotations

import logging
import posixpath
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from saturnmq.store.config import StoreConfig
from saturnmq.store.derived.derived import Derived
from saturnmq.store.disk import Disk
from saturnmq.store.log.commitlog import CommitLog
from saturnmq.store.reading import number_of

log = logging.getLogger(__name__)

DELETED = "deleted"
_HOUR_MS = 3_600_000
MANUAL_PASSES = 20  # RocketMQ: one request stands for so many passes


class Space(NamedTuple):
    """The use of the disk, and the actions that it asks for."""

    percent: int
    full: bool  # beyond diskSpaceWarningLevelRatio: no more sends
    short: bool  # beyond diskSpaceCleanForciblyRatio: delete at once, whatever its age
    above_normal: bool  # beyond diskMaxUsedSpaceRatio: delete what is expired

    @classmethod
    def judge(cls, total: int, free: int, config: StoreConfig, *, was_full: bool = False) -> Space:
        """RocketMQ's rule: a disk that was full is so until it is no longer short. Ours: with
        `diskSpaceEnoughBytes` free no level counts."""
        percent = -(-100 * (total - free) // total) if total else 100
        if 0 < config.disk_enough_bytes <= free:
            return cls(percent, full=False, short=False, above_normal=False)
        levels = config.disk_levels
        short, full = percent > levels.forcibly, percent > levels.warning
        short, full = short or full, full or (was_full and short)
        assert short or not full, f"a disk at {percent} % is full and not short"
        return cls(percent, full, short, percent > levels.normal)


@dataclass(slots=True)
class CleanTicket:
    """Files of one pass; `run` deletes them in any thread. After an OSError it holds those that are
    left, and `run` may be called again. A file that cannot be deleted holds up no other one; a
    segment that cannot be renamed holds up the newer ones, and what belongs to them."""

    disk: Disk
    over: list[str] = field(default_factory=list)  # to be deleted: segments of earlier passes
    segments: list[str] = field(default_factory=list)  # to be renamed, oldest first
    files: list[str] = field(default_factory=list)  # to be deleted then: queues, index

    def run(self) -> None:
        problems = self._delete(self.over)
        while self.segments:  # one after the other: a crash leaves no hole
            self._put_aside(self.segments[0])
            del self.segments[0]
        problems += self._delete(self.files)
        if problems:
            raise problems[0]

    def _delete(self, paths: list[str]) -> list[OSError]:
        """Delete these files; `paths` holds those that are left then. The errors."""
        left, problems = [], []
        for path in paths:
            try:
                self.disk.unlink(path)
            except OSError as error:
                left.append(path)
                problems.append(error)
        paths[:] = left
        return problems

    def _put_aside(self, path: str) -> None:
        aside = deleted_path(path)
        if self.disk.exists(path):
            self.disk.rename(path, aside)
        else:  # an earlier run renamed it, and could not sync the names
            self.disk.sync_dir(posixpath.dirname(aside))
            self.disk.sync_dir(posixpath.dirname(path))


def deleted_path(path: str) -> str:
    """The path where a renamed segment waits for its deletion."""
    directory, name = posixpath.split(path)
    return posixpath.join(directory, DELETED, name + ".delete")


class Cleaner:
    """Decides on the owner's side; its tickets do the work on the disk."""

    def __init__(self, disk: Disk, commitlog: CommitLog, derived: Derived, config: StoreConfig):
        self._disk = disk
        self._log = commitlog
        self._derived = derived
        self._config = config
        self._directory = commitlog.series.directory
        self._waiting: dict[str, int] = {}  # renamed segments and when they may be deleted
        self._ticket = CleanTicket(disk)  # of the last pass
        self._warned = False
        self.manual = 0
        self.space = Space(0, full=False, short=False, above_normal=False)

    def taken_to(self) -> int:
        """Blocking, at start: up to where the segments went that still wait for their end, -1 if
        none does."""
        directory = posixpath.join(self._directory, DELETED)
        for entry in self._disk.list(directory):
            if entry.name.endswith(".delete") and not entry.is_dir:
                self._waiting[posixpath.join(directory, entry.name)] = 0
        return max(map(self._end_of, self._waiting), default=-1)

    def finish_leftovers(self, recorded: int) -> None:
        """Blocking, at start: delete what a pass before left; see `_over`."""
        self._ticket.over += self._over(recorded, 0)
        try:
            self._ticket.run()
        except OSError as error:
            log.error("a deleted segment stays, trying again with the next pass: %s", error)

    def _over(self, recorded: int, now_ms: int) -> list[str]:
        """Take out the files whose time has come, of a log that begins at `recorded` or behind it
        according to the checkpoint."""
        newest = max(self._waiting, default="")
        not_yet = set(map(deleted_path, self._ticket.segments))
        over = [
            path
            for path, due in self._waiting.items()
            if path not in not_yet
            and (now_ms >= due or self.space.short)
            and (path != newest or self._end_of(path) <= recorded)
        ]
        for path in over:
            del self._waiting[path]
        return over

    def _end_of(self, path: str) -> int:
        name = posixpath.basename(path).removesuffix(".delete")
        start = number_of(name)
        return -1 if start is None else start + self._log.segment_bytes

    def finish_pass(self) -> None:
        """Blocking: do what the last pass left, because files of these names may come again."""
        self._ticket.run()

    def look(self) -> Space:
        """Measure the disk. Segments that wait for deletion count as free already, unless they
        cannot be deleted."""
        before, self.space = self.space, self._judge()
        if self.space.full and not before.full:
            log.error(
                "the disk of %s is used to %d %%: no more sends until it is at %d %% again",
                self._config.root,
                self.space.percent,
                self._config.disk_levels.forcibly,
            )
        elif before.full and not self.space.full:
            log.warning("the disk is used to %d %% now: sends go on", self.space.percent)
        return self.space

    def _judge(self, more: int = 0) -> Space:
        total, free = self._disk.free_space(self._config.root)
        waiting = len(self._waiting) - len(self._ticket.segments)  # these could not be renamed
        free += (waiting + more) * self._log.segment_bytes
        return Space.judge(total, min(free, total), self._config, was_full=self.space.full)

    def plan(self, now_ms: int, safe: int, recorded: int) -> CleanTicket | None:
        """Take out what is to be deleted now, nothing at or behind `safe`; None: nothing is.
        `recorded`: where the log begins according to the checkpoint.

        The rest of a pass that failed comes first, and no newer segment before it: a hole between
        the segments would end the log at the next start.
        """
        ticket = self._ticket
        ticket.over += self._over(recorded, now_ms)
        if ticket.segments:
            return ticket
        by_time = datetime.fromtimestamp(now_ms / 1000).hour in self._config.delete_hours
        if by_time or self.space.short or self.space.above_normal or self.manual:
            self.manual = max(self.manual - 1, 0)
            self._take_segments(now_ms, safe, ticket)
            useless = self.space.above_normal and not ticket.segments
            if useless and not self._warned:
                log.warning(
                    "the disk is used to %d %% but no segment may be deleted: none is older than "
                    "%d hours",
                    self.space.percent,
                    self._config.file_reserved_hours,
                )
            self._warned = useless
        return ticket if ticket.over or ticket.segments or ticket.files else None

    def _take_segments(self, now_ms: int, safe: int, ticket: CleanTicket) -> None:
        at_once = self.space.short and self._config.clean_forcibly
        written = {e.name: e.mtime_ms for e in self._disk.list(self._directory) if not e.is_dir}
        segments = self._log.series.segments
        early: list[int | None] = []  # of each that is taken: how old it is, if it has not expired
        for segment in segments[: min(self._config.delete_batch_max, len(segments) - 1)]:
            mtime = written.get(posixpath.basename(segment.file.path), now_ms)
            age = now_ms - mtime
            expired = age >= self._config.file_reserved_hours * _HOUR_MS
            enough = not self._judge(
                len(early)
            ).short  # unexpired segments go only as far as needed
            if segment.end > safe or not (expired or (at_once and not enough)):
                break
            early.append(None if expired else age)
        count = len(early)
        if not count:
            return
        assert count < len(segments), f"{count} of {len(segments)} segments: the last one stays"
        end = segments[count - 1].end
        assert end <= safe, f"deleted up to {end}, only {safe} is flushed and dispatched"
        if not self._waiting:
            self._disk.make_dirs(posixpath.join(self._directory, DELETED))
        for path in self._derived.drop_before(end):  # an error half-way forgets none of them
            ticket.files.append(path)
        grace = 0 if at_once else self._config.delete_grace_ms
        for young in early:
            path = self._log.series.take_oldest()
            ticket.segments.append(path)
            self._waiting[deleted_path(path)] = now_ms + grace
            if young is None:
                log.info("%s is deleted", path)
            else:
                log.error(
                    "%s is deleted with all its messages, consumed or not, %.1f hours after the "
                    "last was written (fileReservedTime is %d): the disk is used to %d %%, and "
                    "cleanFileForciblyEnable is true; set it to false to refuse sends instead",
                    path,
                    max(young, 0) / _HOUR_MS,
                    self._config.file_reserved_hours,
                    self.space.percent,
                )
