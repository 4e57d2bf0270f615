"""Known bugs, kept to be found again: each mutant re-introduces one published failure of a log
store while it is active, and the crash drill must find it (docs/guarantees.md 8.3).

A mutant replaces functions of the store, or of its disk, from outside and only here: no switch for
it exists in the store. The table is also a list of what the drill is known to see.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from saturnmq.drills.sim.disk import SimDisk, SimSegment
from saturnmq.drills.sim.pages import Inode
from saturnmq.runtime.errors import SaturnError
from saturnmq.store import message_store
from saturnmq.store.derived import consumequeue, derived
from saturnmq.store.derived.consumequeue import ConsumeQueue
from saturnmq.store.derived.indexfile import Index
from saturnmq.store.derived.queue_files import QueueFiles
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.derived.reput import Reput
from saturnmq.store.log import commitlog, truncated
from saturnmq.store.log.cleaner import Cleaner
from saturnmq.store.log.commitlog import CommitLog
from saturnmq.store.log.flush_ticket import FlushTicket
from saturnmq.store.log.truncated import SideFiles, Truncated
from saturnmq.store.message_store import MessageStore
from saturnmq.store.recovery import recovery
from saturnmq.store.recovery.checkpoint import AbortMark


@dataclass(frozen=True, slots=True)
class Patch:
    """`make` gets what `owner` has under this name and gives what replaces it."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`failure` says what is broken and where that was seen (#n: apache/rocketmq), `found_by` the
    invariant and the situation that show it.
    """

    name: str
    failure: str
    found_by: str
    patches: tuple[Patch, ...]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patch in self.patches:
                before = vars(patch.owner)[patch.name]
                setattr(patch.owner, patch.name, patch.make(before))
                stack.callback(setattr, patch.owner, patch.name, before)
            yield


def _nothing(original: Any) -> Any:
    return lambda *args, **kwargs: None


def _first_at_zero(original: Any) -> Any:
    return lambda self, since, first: original(self, since, 0)


def _false(original: Any) -> Any:
    return lambda *args, **kwargs: False


def _acknowledge_first(original: Any) -> Any:
    def begin_flush(self: MessageStore) -> FlushTicket | None:
        ticket: FlushTicket | None = original(self)
        if ticket is not None:
            self.watermarks.flushed = ticket.target
        return ticket

    return begin_flush


def _try_again(original: Any) -> Any:
    def run(self: FlushTicket) -> None:
        try:
            original(self)
        except OSError:
            original(self)

    return run


def _newest_range_only(original: Any) -> Any:
    def ticket(self: CommitLog, flushed: int, store_timestamp: int) -> FlushTicket:
        found: FlushTicket = original(self, flushed, store_timestamp)
        del found.ranges[:-1]
        return found

    return ticket


def _show_everything(original: Any) -> Any:
    def get_message(self: MessageStore, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **{**kwargs, "visible": None})

    return get_message


def _in_place(original: Any) -> Any:
    def replace_file(
        self: SimDisk, path: str, data: bytes, *, keep_backup: bool = True, **more: bool
    ) -> None:
        if keep_backup:
            self.write_file(path, data)
        else:
            original(self, path, data, keep_backup=keep_backup, **more)

    return replace_file


def _rename_unsynced(original: Any) -> Any:
    unflushed = Mutant("", "", "", (Patch(Inode, "flush", _nothing),))

    def replace_file(self: SimDisk, path: str, data: bytes, **keep: bool) -> None:
        with unflushed.active():
            original(self, path, data, **keep)

    return replace_file


def _unsynced_name(original: Any) -> Any:
    def create_segment(self: SimDisk, path: str, size: int, *, durable: bool = True) -> Any:
        return original(self, path, size, False)

    return create_segment


def _unsynced_spare(original: Any) -> Any:
    def create(self: QueueFiles, path: str, size: int) -> Any:
        is_spare = self._spares is not None and bool(self._spares._ready)
        file = original(self, path, size)
        if is_spare:
            self._new.pop(path)
        return file

    return create


def _last_segment_only(original: Any) -> Any:
    def start(log: CommitLog, *args: Any) -> int:
        begin: int = original(log, *args)
        return max(begin, log.series.segments[-1].start)

    return start


def _unchecked(original: Any) -> Any:
    def dispatch(self: Reput, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **{**kwargs, "verify_crc": False})

    return dispatch


def _cut_at_checkpoint(original: Any) -> Any:
    def recover(log: CommitLog, derived: Any, page: Any, **kwargs: Any) -> Any:
        found = original(log, derived, page, **kwargs)
        if log.start <= page.flushed < found.end:
            found.end = page.flushed
            log.truncate(found.end)
            derived.truncate(found.end, log.store_time_at)
        return found

    return recover


def _forget_offsets(original: Any) -> Any:
    return lambda self: self.next.clear()


def _full_for_ever(original: Any) -> Any:
    def room(self: Any, size: int) -> Any:
        try:
            if getattr(self, "full", False):
                raise OSError(errno.ENOSPC, "was full once")
            return original(self, size)
        except OSError:
            self.full = True
            raise

    return room


def _keep_nothing(original: Any) -> Any:
    def save(self: SideFiles, read: Any, start: int, end: int, **facts: Any) -> Truncated:
        return Truncated("", start, end)

    return save


def _copy_unsynced(original: Any) -> Any:
    def copy(disk: SimDisk, path: str, read: Any, facts: Truncated) -> None:
        with contextlib.ExitStack() as stack:
            flush = SimSegment.flush
            stack.callback(setattr, SimSegment, "flush", flush)
            setattr(SimSegment, "flush", lambda self, start, end: None)  # noqa: B010
            original(disk, path, read, facts)

    return copy


def _offset_for_a_refusal(original: Any) -> Any:
    def put(self: Any, message: Any, **kwargs: Any) -> Any:
        try:
            return original(self, message, **kwargs)
        except SaturnError:
            key = message.topic, message.queue_id
            self._queues.next[key] = self._queues.next.get(key, 0) + 1
            raise

    return put


def _abort_cleared_first(original: Any) -> Any:
    def close(self: Any) -> None:
        self._abort.clear()
        original(self)

    return close


def _clean_everything(original: Any) -> Any:
    def plan(self: Any, now_ms: int, safe: int) -> Any:
        return original(self, now_ms, self._log.end)

    return plan


def _without_groups(original: Any) -> Any:
    def dispatch(self: Reput, *args: Any, **kwargs: Any) -> Any:
        step = original(self, *args, **{**kwargs, "limit": None})
        step.groups = []
        return step

    return dispatch


class _NoBlank:
    """A stand-in for the struct BLANK."""

    @staticmethod
    def pack(left: int, magic: int) -> bytes:
        return bytes(8)


_ALL = (
    Mutant(
        "ack-before-flush",
        "the acknowledgement does not wait for the disk (NATS by default, Jepsen 2025)",
        "I1: power loss behind begin_flush",
        (Patch(MessageStore, "begin_flush", _acknowledge_first),),
    ),
    Mutant(
        "retry-after-eio",
        "a failed sync is tried again and then believed (#2706, docs/guarantees.md S2)",
        "I1: power loss after the sync that failed once",
        (Patch(FlushTicket, "run", _try_again),),
    ),
    Mutant(
        "flush-newest-only",
        "after a roll only the newest segment is synced",
        "I1: power loss after a flush across two segments",
        (Patch(CommitLog, "ticket", _newest_range_only),),
    ),
    Mutant(
        "dirty-read",
        "consumers read what is not flushed (#8239)",
        "I9: a read during a flush window",
        (Patch(MessageStore, "get_message", _show_everything),),
    ),
    Mutant(
        "volatile-truncation",
        "the invalid tail is cut in memory only, stale records come back (#10666)",
        "I10: bytes behind the end are on the platters after a recovery",
        (Patch(commitlog, "zero_tail", _false),),
    ),
    Mutant(
        "volatile-queue-cut",
        "queue entries behind the end are forgotten in memory only",
        "I8: stale entries behind the new ones after a second crash",
        (Patch(consumequeue, "zero_tail", _false),),
    ),
    Mutant(
        "config-in-place",
        "a config file is overwritten in place (#9328, #3401, #6096)",
        "config: power loss inside a save leaves neither old nor new",
        (Patch(SimDisk, "replace_file", _in_place),),
    ),
    Mutant(
        "rename-before-sync",
        "a file is renamed over the old one before it was synced (Pillai et al., OSDI 2014)",
        "config: power loss after the rename leaves an empty file",
        (Patch(SimDisk, "replace_file", _rename_unsynced),),
    ),
    Mutant(
        "directory-not-synced",
        "a segment's name is not durable when its messages are acknowledged",
        "I1: power loss takes the whole segment",
        (Patch(SimDisk, "create_segment", _unsynced_name),),
    ),
    Mutant(
        "spare-unsynced",
        "the name that a spare file of a queue was given is not durable",
        "I8: queue entries are missing after a power loss",
        (Patch(QueueFiles, "create", _unsynced_spare),),
    ),
    Mutant(
        "checkpoint-leads",
        "the checkpoint counts on queue entries that were not synced (#678)",
        "I8: queue entries are missing after a power loss",
        (Patch(QueueTable, "flush", _nothing),),
    ),
    Mutant(
        "last-segment-only",
        "recovery reads the newest segment only (#1434, #467)",
        "I8: queues lack what stood in the segments before",
        (Patch(recovery, "_start", _last_segment_only),),
    ),
    Mutant(
        "crash-taken-for-clean",
        "derived files are trusted after a crash",
        "I8: torn queue files or index after a power loss",
        (Patch(AbortMark, "present", _false),),
    ),
    Mutant(
        "abort-cleared-first",
        "the stop counts as clean before everything is synced",
        "I8: power loss inside close",
        (Patch(MessageStore, "close", _abort_cleared_first),),
    ),
    Mutant(
        "index-trusted",
        "the index file that was being filled is trusted after a crash: chains lead into zeroes",
        "I8: chains and items of the index after a power loss",
        (Patch(Index, "restore", _nothing),),
    ),
    Mutant(
        "crc-unchecked",
        "recovery takes frames without looking at their checksums",
        "I2: a frame torn in its body",
        (Patch(Reput, "dispatch", _unchecked),),
    ),
    Mutant(
        "valid-tail-cut",
        "recovery cuts valid messages behind the checkpoint",
        "I1: the death of the process loses what was appended",
        (Patch(message_store, "recover", _cut_at_checkpoint),),
    ),
    Mutant(
        "offsets-forgotten",
        "the table of queue offsets is not rebuilt at the start",
        "I4: an offset is given twice",
        (Patch(QueueTable, "reset_next", _forget_offsets),),
    ),
    Mutant(
        "refusal-takes-offset",
        "a refused message takes a queue offset: a gap for ever",
        "I4: ENOSPC, then the next message of that queue",
        (Patch(MessageStore, "put", _offset_for_a_refusal),),
    ),
    Mutant(
        "full-for-ever",
        "a broker whose disk was full never resumes (#331, #2398)",
        "I12: a send after space returned",
        (Patch(CommitLog, "room", _full_for_ever),),
    ),
    Mutant(
        "no-blank",
        "the rest of a full segment is not marked",
        "I2: the log cannot be read across segments",
        (Patch(commitlog, "BLANK", lambda original: _NoBlank),),
    ),
    Mutant(
        "clean-unsynced",
        "cleaning deletes segments whose queue entries are not on the disk",
        "I8, I4: queue offsets begin anew after a power loss",
        (Patch(Cleaner, "plan", _clean_everything),),
    ),
    Mutant(
        "half-a-group",
        "recovery keeps what is there of a group that was not written whole",
        "I2: a crash while a group is being appended",
        (Patch(Reput, "dispatch", _without_groups),),
    ),
    Mutant(
        "cut-unsaved",
        "a deposed node cuts its log without keeping what nobody else has",
        "I7: a crash while it truncates",
        (Patch(SideFiles, "save", _keep_nothing),),
    ),
    Mutant(
        "cut-before-copy-synced",
        "what a truncation cuts off is copied, but the copy is not synced first",
        "I7: a power loss while it truncates",
        (Patch(truncated, "_copy", _copy_unsynced),),
    ),
    Mutant(
        "deletion-forgotten",
        "a start knows nothing of deleted topics",
        "I8: the queues of a deleted topic begin where they began before",
        (Patch(message_store, "read_tombstones", lambda original: lambda disk, root: {}),),
    ),
    Mutant(
        "deleted-built-again",
        "queues that are built from the log have the messages of deleted topics again",
        "I8: a crash behind a deletion whose messages no checkpoint covers",
        (Patch(derived, "without_deleted", lambda original: lambda runs, tombstones: runs),),
    ),
    Mutant(
        "deleted-begins-at-0",
        "a topic that is made again counts from 0, as in RocketMQ",
        "I4: a queue offset that a message of the deleted topic had",
        (Patch(ConsumeQueue, "bury", _first_at_zero),),
    ),
)
MUTANTS = {mutant.name: mutant for mutant in _ALL}
