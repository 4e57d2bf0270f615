"""The saved copy of the waiting messages: what makes a start short.

`<root>/timer/pending.json` says which runs (`runs.py`) hold the messages, how far each was read,
and the place in the log up to which all of that is so: `{"logEnd":P,"entry":E,...}`. It is written
when the log up to P is confirmed and synced. So no crash and no ordinary truncation makes it wrong;
a start reads what follows P. A forced truncation before P makes it void, and then the log is read
from its beginning. The same holds for a copy that is damaged.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from saturnmq.broker.context import Context
from saturnmq.broker.timer.entries import merged
from saturnmq.broker.timer.pending import PendingMessages
from saturnmq.broker.timer.runs import FILE_ENTRIES, Run, RunFolder, RunPart
from saturnmq.broker.timer.shelf import Shelf
from saturnmq.protocol import checked
from saturnmq.protocol.topics import TIMER_TOPIC
from saturnmq.runtime.errors import MalformedFrame, StoreDamaged
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.disk import Disk

log = logging.getLogger(__name__)

SETTLE_S = 0.05  # between two looks whether the log is safe up to a place
SETTLES = 200  # such looks
TIMER_CHECK = struct.Struct(">3q")  # the beginning of RocketMQ's file


class SavePlan(NamedTuple):
    """A state to be written: its document, and the runs of each shelf."""

    document: dict[str, Any]
    runs: Mapping[str, list[Run]]


class SavedPending:
    def __init__(self, context: Context, disk: Disk) -> None:
        path = f"{context.config.root}/timer"
        self._c = context
        self._disk = disk
        self.folder = RunFolder(disk, path)
        self._file = ConfigFile(disk, f"{path}/pending.json")
        self._saving = asyncio.Lock()

    # the start

    def load(self) -> PendingMessages:
        """Blocking: the saved copy, or an empty one if it does not fit the log."""
        self.folder.open()
        pending = self._restored(*self._read())
        if pending is None:
            self.forget()
            return PendingMessages()
        return pending  # also if nothing waits: it says how far the log was read

    def delivered_by_rocketmq(self) -> tuple[int, int] | None:
        """Blocking: the queue offset up to which a RocketMQ broker of this directory had read the
        timed messages, and the moment up to which it had delivered them, by its `timercheck`."""
        path = f"{self._c.config.root}/config/timercheck"
        if not self._disk.exists(path):
            return None
        data = self._disk.read_file(path)[: TIMER_CHECK.size]
        if len(data) < TIMER_CHECK.size:
            return None
        read_ms, _, offset = TIMER_CHECK.unpack(data)
        return (offset, read_ms) if offset > 0 and read_ms > 0 else None

    async def reload(self) -> PendingMessages:
        """The same after a change of the log. If the copy does not fit the log any more, or lacks
        damaged messages, which may be mended now, it is gone durably when this returns."""
        run_blocking = self._c.runtime.run_blocking
        async with self._saving:
            pending = self._restored(*await run_blocking(self._read))
            if pending is None or pending.unreadable:
                await run_blocking(self.forget)
                return PendingMessages()
            return pending

    def _read(self) -> tuple[dict[str, Any] | None, frozenset[str]]:
        """Blocking: the document, and the names of the files with runs."""
        try:
            return self._file.load(), frozenset(self.folder.names())
        except StoreDamaged as error:
            log.error("the saved copy of timed messages is of no use: %s", error)
            return None, frozenset()

    def _restored(
        self, document: dict[str, Any] | None, files: frozenset[str]
    ) -> PendingMessages | None:
        if document is None:
            return None
        try:
            pending = PendingMessages.restored(document)
            self._check(document, pending, files)
        except (MalformedFrame, StoreDamaged) as error:
            log.warning("timed messages are read from the log: their saved copy %s", error)
            return None
        return pending

    def _check(
        self, document: dict[str, Any], pending: PendingMessages, files: frozenset[str]
    ) -> None:
        store = self._c.store
        end = checked.integer(document, "logEnd")
        if end > store.watermarks.appended or store.recovery.missing:
            raise StoreDamaged(f"is of a log that reached to {end}")
        if pending.next_offset > store.max_offset(TIMER_TOPIC, 0):
            raise StoreDamaged("is of a longer queue")
        entry = checked.integer(document, "entry", -1, least=-1)
        found = self._last_entry(pending.next_offset)
        if -1 not in (entry, found) and entry != found:
            raise StoreDamaged(f"has message {pending.next_offset - 1} at {entry}, not at {found}")
        for shelf in pending.shelves.values():
            for part in (part for run in shelf.runs for part in run.parts):
                if part.name not in files:
                    raise StoreDamaged(f"lacks the file {part.name}")

    def _last_entry(self, offset: int) -> int:
        """The place in the log of the last message before a queue offset; -1: unknown."""
        store = self._c.store
        if offset <= store.min_offset(TIMER_TOPIC, 0):
            return -1
        entry = bytes(store.entries(TIMER_TOPIC, 0, offset - 1, 1)[:8])
        return int.from_bytes(entry, "big") if len(entry) == 8 else -1

    def forget(self) -> None:
        """Blocking: the copy is void."""
        self._disk.unlink(self._file.path)
        self._disk.unlink(self._file.path + ".bak")
        self.folder.keep(())

    # while the broker runs

    def plan(self, pending: PendingMessages) -> SavePlan:
        """The present state, to be written by `save`. No message may be on its way out."""
        for shelf in pending.shelves.values():
            shelf.freeze()
            shelf.drop_empty()
        runs = {name: list(shelf.runs) for name, shelf in pending.shelves.items()}
        document = pending.document()
        document |= {
            "logEnd": self._c.store.watermarks.appended,
            "entry": self._last_entry(pending.next_offset),
        }
        return SavePlan(document, runs)

    async def save(
        self, plan: SavePlan, pending: PendingMessages, still: Callable[[], bool]
    ) -> bool:
        """Write a planned state. False: it was given up, because `still` says that the state is
        void, or because the log did not become safe soon enough."""
        async with self._saving:
            marks, run_blocking = self._c.store.watermarks, self._c.runtime.run_blocking
            for name, runs in plan.runs.items():
                rows = plan.document["shelves"][name]
                for run, row in zip(runs, rows, strict=True):
                    if not run.parts:
                        block, _ = run.block_at(self.folder, 0)
                        run.parts = (await run_blocking(self.folder.write, block),)
                    row["files"] = [list(part) for part in run.parts]
            end = plan.document["logEnd"]
            for _ in range(SETTLES):
                if not still():
                    return False
                if min(marks.confirmed, marks.flushed) >= end:
                    break
                await self._c.runtime.sleep(SETTLE_S)
            else:
                return False
            await run_blocking(self._file.save, plan.document)
            present = [run for shelf in pending.shelves.values() for run in shelf.runs]
            kept = [run for runs in plan.runs.values() for run in runs] + present
            await run_blocking(self.folder.keep, {part.name for run in kept for part in run.parts})
            return True

    async def merge(self, shelf: Shelf, still: Callable[[], bool]) -> bool:
        """Make one run of several of about the same size, block by block in a thread, while
        messages go on leaving them. False: there are none, or `still` says that they are void."""
        async with self._saving:
            old = shelf.mergeable()
            if not old:
                return False
            run_blocking = self._c.runtime.run_blocking
            for run in old:
                run.last = b""  # earlier ones say nothing: later arrivals may sort before them
            entries = merged([run.entries(self.folder) for run in old])
            parts: list[RunPart] = []
            while (part := await run_blocking(self._write_some, entries)) is not None:
                parts.append(part)
                if not still():
                    return False
            new = Run(tuple(parts))
            while len(new):
                last = max(run.last for run in old)
                await run_blocking(self._catch_up, new, last)
                if not still():
                    return False
                if new.pass_over(max(run.last for run in old)):
                    break
            shelf.replace(old, new)
            return True

    def _write_some(self, entries: Iterator[bytes]) -> RunPart | None:
        taken = bytearray()
        for entry in islice(entries, FILE_ENTRIES):  # to join them would keep each as an object
            taken += entry
        return self.folder.write(bytes(taken)) if taken else None

    def _catch_up(self, run: Run, last: bytes) -> None:
        run.skip_to(self.folder, last)
        if len(run):
            run.show(run.block_at(self.folder, run.position))
