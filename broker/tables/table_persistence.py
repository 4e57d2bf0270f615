"""Saving the broker's small JSON files, all of them one way.

A table is turned into its document on the event loop (at one moment, without locks) and written in
a thread. For a large table the loop only makes a copy at that moment, which takes 10 ms for a
million entries; its rows are made and encoded in steps. `TablePersistence.save` never runs twice at
once for one file. A save that fails is logged and tried again in the next round: the table in
memory stays the truth.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from saturnmq.protocol import checked, fastjson
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SaturnError, SystemError_
from saturnmq.runtime.steps import Steps
from saturnmq.store.config_files import ConfigFile

log = logging.getLogger(__name__)

T = TypeVar("T")

TOLD_MAX = 10  # refused entries of one table that are logged one by one
SAVE_S = 1.0
BUSY_SHARE = 0.1  # of the time may go into writing tables, unless `interval_s` asks for more


def readable(table: Mapping[Any, Any], read: Callable[[Any, Any], T], what: str) -> Iterator[T]:
    """The result of `read` for each entry. A refused entry is left out, and logged: it must not
    keep the others from being served."""
    refused = 0
    for key, value in table.items():
        try:
            yield read(key, value)
        except SaturnError as error:
            refused += 1
            if refused <= TOLD_MAX:
                told = checked.shown(value, 500)
                log.error("%s %.100r is left out: %s: %s", what, key, error, told)
    if refused > TOLD_MAX:
        log.error("%d more like this are left out", refused - TOLD_MAX)


STEP_ROWS, STEP_TEXTS = 500, 5000  # made in one step: about a millisecond

Row = tuple[str, Any]


class LazyRows:
    """A large table in a document: rows that are made later, from a copy of the present table. A
    row may be None: nothing yet."""

    def __init__(self, rows: Iterable[Row | None], *, leave_out_empty: bool = False) -> None:
        self._rows = rows
        self.leave_out_empty = leave_out_empty

    def all(self) -> dict[str, Any]:
        return dict(row for row in self._rows if row is not None)

    def encoded(self) -> Generator[None, None, bytes]:
        """Make the JSON object of all rows, some in each step."""
        parts: list[bytes] = []
        rows = iter(self._rows)
        while taken := list(islice(rows, STEP_ROWS)):
            if made := dict(row for row in taken if row is not None):
                parts.append(fastjson.dumps(made)[1:-1])
            yield
        return b"{%b}" % b",".join(parts)


class EncodedRows(LazyRows):
    """Rows whose JSON text is known, `"name":value`, because they are written again and again."""

    def __init__(self, rows: Iterable[bytes]) -> None:
        super().__init__(())
        self._texts = rows

    def all(self) -> dict[str, Any]:
        rows: dict[str, Any] = fastjson.loads(b"{%b}" % b",".join(self._texts))
        return rows

    def encoded(self) -> Generator[None, None, bytes]:
        parts: list[bytes] = []
        texts = iter(self._texts)
        while taken := list(islice(texts, STEP_TEXTS)):
            parts += taken
            yield
        return b"{%b}" % b",".join(parts)


Document = dict[str, Any]
"""Large tables in it are `LazyRows`."""


def encode(document: Document) -> Generator[None, None, bytes]:
    """Make the JSON text of a document in steps."""
    made: dict[str, Any] = {}
    for key, value in document.items():
        if not isinstance(value, LazyRows):
            made[key] = value
            continue
        table = yield from value.encoded()
        assert (table[:1], table[-1:]) == (b"{", b"}"), f"{key} was encoded as {table[:20]!r}"
        if table != b"{}" or not value.leave_out_empty:
            made[key] = fastjson.encoded(table)
    return fastjson.dumps(made)


class Saveable(ABC):
    """A table that knows whether it changed since it was last written; `changes` counts its changes
    since the start."""

    changes = 0
    _written = 0

    @property
    def dirty(self) -> bool:
        return self.changes != self._written

    def clean(self) -> None:
        assert self._written <= self.changes, (self._written, self.changes)
        self._written = self.changes

    def mark_dirty(self) -> None:
        self.changes += 1

    @abstractmethod
    def document(self) -> Document:
        """The document to write, as the table is at this moment."""

    @abstractmethod
    def load(self, document: Mapping[str, Any]) -> None:
        """Take over the document of a file at the start. MalformedFrame: it has another shape."""

    def snapshot(self) -> dict[str, Any]:
        """The same document with all rows made."""
        made = {}
        for key, value in self.document().items():
            made[key] = value.all() if isinstance(value, LazyRows) else value
            if isinstance(value, LazyRows) and value.leave_out_empty and not made[key]:
                del made[key]
        return made


class Versioned(Saveable):
    """A table whose document has a version."""

    @property
    @abstractmethod
    def data_version(self) -> dict[str, int]: ...


class EncodedTable:
    """The text of a table that changes seldom: encoded once for all requests between two
    changes."""

    def __init__(self, table: Versioned, more: Callable[[Document], Document]) -> None:
        self._table = table
        self._more = more
        self._state: object = None
        self._text = b""

    def text(self) -> bytes | None:
        """The encoded text; None: the table has changed since."""
        return self._text if self._state == self._now() else None

    def encoded(self) -> Generator[None, None, bytes]:
        state, document = self._now(), self._table.document()
        text = yield from encode(document | self._more(document))
        self._state, self._text = state, text
        return text

    def _now(self) -> object:
        return self._table.changes, self._table.data_version


class TablePersistence:
    """The service that writes changed tables to their files."""

    def __init__(
        self,
        runtime: Runtime,
        steps: Steps,
        guard: Callable[[Awaitable[None]], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._steps = steps
        self._guard = guard  # a save that was begun ends, even if its caller is cancelled
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._tables: list[tuple[Saveable, ConfigFile]] = []

    def add(self, table: Saveable, file: ConfigFile) -> None:
        """Add a table, but not before it is loaded: it must not replace a good file."""
        assert all(table is not known for known, _ in self._tables), f"{file.path} twice"
        self._tables.append((table, file))

    async def save_changed(self) -> None:
        """Save all changed tables: they are on disk when this returns. One call runs at a time: two
        writers would mix up a file."""
        async with self._writing:
            await self._save_changed()

    async def save(self, table: Saveable) -> None:
        """Save one table: it is on disk when this returns. OSError: it is not."""
        await self._guard(self._save(table))

    async def _save(self, table: Saveable) -> None:
        async with self._writing:
            for mine, file in self._tables:
                if mine is table and table.dirty:
                    await self._write(table, file)

    async def _save_changed(self) -> None:
        for table, file in self._tables:
            if not table.dirty:
                continue
            try:
                await self._write(table, file)
            except OSError as error:
                log.error("cannot save a table, trying again at the next round: %s", error)

    async def _write(self, table: Saveable, file: ConfigFile) -> None:
        assert self._writing.locked(), f"two would write {file.path}"
        document = table.document()
        table.clean()
        try:
            data = await self._steps.run(encode(document))
            await self._runtime.run_blocking(file.write, data)
        except BaseException:
            table.mark_dirty()
            raise

    @property
    def unsaved(self) -> list[str]:
        """The files of tables with unsaved changes."""
        return [file.path for table, file in self._tables if table.dirty]

    def wake(self) -> None:
        """Save soon: a topic or a group appeared, which is rare and should not be forgotten."""
        self._changed.set()

    async def run(self, interval_s: float) -> None:
        """Save changes within a second, the time that a crash may forget (docs/guarantees.md I6).
        Large tables, which take long to write, are written less often, but at least every
        `interval_s`, as in RocketMQ."""
        now = self._runtime.monotonic
        pause = min(SAVE_S, interval_s)
        while True:
            timer = self._runtime.call_later(pause, self._changed.set)
            await self._changed.wait()
            timer.cancel()
            self._changed.clear()
            begun = now()
            await self._guard(self.save_changed())
            pause = min(max(SAVE_S, (now() - begun) / BUSY_SHARE), interval_s)
            assert pause > 0, f"tables are looked at every {pause} s"


async def save_all(save: Callable[[Saveable], Awaitable[None]], *tables: Saveable) -> None:
    """Save changed tables: they are on disk when this returns. SystemError_: they are not."""
    try:
        for table in tables:
            await save(table)
    except OSError as error:
        raise SystemError_(
            f"in effect until the broker stops, but not saved: {error}; free space on its disk "
            "and repeat it"
        ) from error
