"""The files of all ConsumeQueues: thousands, few of which are in use at a time.

A file is mapped when it is used first, and no descriptor of it is kept. When too many are mapped
one goes that was not used since it was looked at last (second chance), but none with something in
it that is not synced: the error of a late write would go with it. Room on the disk is made as a
file grows (`room.py`), and new files are spare ones (`spares.py`).
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial

from saturnmq.runtime.errors import SystemBusy
from saturnmq.store.derived.room import FIRST, Room, Rooms
from saturnmq.store.derived.spares import Spares
from saturnmq.store.disk import Advice, Disk, MappedFile, ReadFile, remedy
from saturnmq.store.files import ReadOpened

MAPPED_MOST = 8192
MAPPED_LIMIT = 16_000  # the kernel has 65,530 mappings for a process (vm.max_map_count)
_LOOK = 8  # at so many of the oldest for one that may go
SPARES = 16  # two steps of reput may need them
_CROWD = 4  # times as many are mapped at most, if none is synced meanwhile: a start makes thousands


class QueueFile(ReadOpened):
    """One file of a queue; see `SegmentFile`. Only `flush` may be called by others than the owner
    of the store."""

    __slots__ = ("_files", "_mapping", "_room", "_syncing", "dirty", "is_in_use", "path", "size")

    def __init__(
        self, files: QueueFiles, path: str, size: int, mapping: MappedFile | None, room: int
    ) -> None:
        self.path = path
        self.size = size
        self.dirty = False  # something may not be durable
        self.is_in_use = True  # since it was looked at last
        self._syncing = False
        self._files = files
        self._mapping = mapping
        self._room = Room(files.rooms, path, size, room)

    def _mapped(self) -> MappedFile:
        if self._mapping is None:
            self._mapping = self._files.disk.open_mapped(self.path, self.size)
            self._files.note_mapped(self)
        self.is_in_use = True
        if self._files.is_crowded:
            self._files.unmap_some(self)
        return self._mapping

    @property
    def view(self) -> memoryview:
        """A view for a reader. SystemBusy: the file cannot be opened now."""
        try:
            return self._mapped().view
        except OSError as error:
            raise SystemBusy(
                f"{self.path} cannot be opened: {error}; {remedy(error)}, then try again"
            ) from error

    @property
    def is_clean(self) -> bool:
        """All of it is durable."""
        return not (self.dirty or self._syncing)

    def write(self, pos: int, data: bytes | bytearray | memoryview) -> None:
        room, end = self._room, pos + len(data)
        if end > room.enough or pos < room.begin:
            room.claim(pos, end)
        mapping = self._mapping
        if mapping is None or self._files.is_crowded:
            mapping = self._mapped()
        self.is_in_use = True
        mapping.write(pos, data)
        if not self.dirty:
            self._files.note_dirty(self)

    def zero(self, start: int, end: int) -> None:
        """Zero a range that was written before."""
        self._mapped().zero(start, end)
        self._files.note_dirty(self)

    def flush(self, start: int, end: int) -> None:
        """Blocking, may run beside the owner: what was written before is durable then."""
        if not self.dirty:
            return
        self._syncing = True  # or the owner might unmap what is no longer dirty
        self._files.dirty.pop(self, None)
        self.dirty = False  # before the sync: what is written meanwhile goes with the next one
        mapping = self._mapping
        try:
            if mapping is not None:
                mapping.flush(start, end)
            else:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    self._files.disk.sync_file(self.path)
        except OSError:
            self._files.note_dirty(self)
            raise
        finally:
            self._syncing = False

    def _open_to_read(self) -> ReadFile:
        return self._files.disk.open_readonly(self.path)

    def advise(self, advice: Advice) -> None:
        if advice is Advice.WARM:
            self._room.claim(0, self.size)
        self._mapped().advise(advice)

    def unmap(self) -> None:
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.close()

    def close(self) -> None:
        self._files.forget(self)
        self.unmap()


class QueueFiles:
    """All of them: which are mapped, and what of them is not durable."""

    def __init__(self, disk: Disk, rooms: Rooms | None = None, most: int = MAPPED_MOST) -> None:
        self.disk = disk
        self.rooms = Rooms(disk) if rooms is None else rooms
        assert 0 < most <= MAPPED_LIMIT, f"{most} mapped files, the limit is {MAPPED_LIMIT}"
        self._most = most
        self._mapped: OrderedDict[QueueFile, None] = OrderedDict()
        self.is_crowded = False  # more are mapped than should be
        self.dirty: dict[QueueFile, None] = {}
        self._new: dict[str, None] = {}  # paths whose names may not be durable
        self.trusted = True  # files that are there are durable: not after a crash
        self._spares: Spares | None = None

    def open(self, path: str, size: int) -> QueueFile:
        """A file that is there."""
        file = QueueFile(self, path, size, None, 0)
        if not self.trusted:
            self.note_dirty(file)
            self._new[path] = None
        return file

    def keep_spares(self, directory: str, size: int, *, is_warm: bool) -> None:
        """Have new files of this size made ahead."""
        room = min(FIRST, size)
        self._spares = Spares(self.rooms, directory, size, room, SPARES, is_warm=is_warm)
        self._spares.want()

    def create(self, path: str, size: int) -> QueueFile:
        room, spares, mapping = min(FIRST, size), self._spares, None
        if spares is not None and spares.size != size:  # a file of a queue of batches
            spares = None
        if spares is not None:
            mapping = spares.take(path)
            spares.want()
        if spares is None or mapping is None:
            mapping = self.disk.create_mapped(path, size, room)
        else:
            room = spares.room
        assert mapping.size == size, f"{path} has {mapping.size} bytes, {size} were asked for"
        file = QueueFile(self, path, size, mapping, room)
        self._new[path] = None
        self.note_mapped(file)
        self.unmap_some(file)
        return file

    def note_mapped(self, file: QueueFile) -> None:
        mapped = self._mapped
        if len(mapped) >= _CROWD * self._most:
            self.flush()
        assert file not in mapped, f"{file.path} is mapped already"
        mapped[file] = None
        self.is_crowded = len(mapped) > self._most

    def unmap_some(self, file: QueueFile) -> None:
        """Unmap some of the files before `file`, which is in use."""
        mapped = self._mapped
        for _ in range(_LOOK):
            self.is_crowded = len(mapped) > self._most
            if not self.is_crowded:
                break
            oldest = next(iter(mapped))
            if oldest.is_clean and not oldest.is_in_use and oldest is not file:
                assert oldest not in self.dirty, f"{oldest.path} is not durable"
                del mapped[oldest]
                oldest.unmap()
            else:
                oldest.is_in_use = False
                mapped.move_to_end(oldest)

    def note_dirty(self, file: QueueFile) -> None:
        if not file.dirty:
            file.dirty = True
            self.dirty[file] = None

    def forget(self, file: QueueFile) -> None:
        """Forget a closed file."""
        self._mapped.pop(file, None)
        self.dirty.pop(file, None)
        file.dirty = False

    def flush(self) -> None:
        """Blocking, may run beside the owner: what was written before is durable then, with the
        names of new files and directories, up to that of the store."""
        new = list(self._new)
        for path in new:  # first: a name that comes meanwhile goes with the next flush
            del self._new[path]
        try:
            self.disk.together([partial(file.flush, 0, file.size) for file in list(self.dirty)])
            self.disk.together([partial(self._sync_dir, path) for path in sorted(_above(new))])
        except OSError:
            self._new |= dict.fromkeys(new)
            raise

    def close(self) -> None:
        if self._spares is not None:
            self._spares.close()

    def _sync_dir(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # its topic was deleted meanwhile
            self.disk.sync_dir(directory)


def _above(paths: Iterable[str]) -> set[str]:
    """The directories of queue, topic, queues and store that lead to these files."""
    found: set[str] = set()
    for path in paths:
        directory = path
        for _ in range(4):
            directory = posixpath.dirname(directory)
            found.add(directory)
    return found
