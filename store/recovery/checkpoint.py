"""checkpoint, abort and lock: what tells the next start how the last run ended.

`checkpoint` is one page of 4096 bytes; RocketMQ's part (docs/internals/format.md 1.5):

    0   i64  physicMsgTimestamp      store time of the last flushed message
    8   i64  logicsMsgTimestamp      store time of the last message in flushed queues
    16  i64  indexMsgTimestamp       end time of the last full, flushed IndexFile
    24  i64  masterFlushedOffset
    32  i64  confirmPhyOffset

Ours, in the part RocketMQ leaves alone: timestamps cannot say where to start exactly (#678).

    64  8s   b"SATURN03"
    72  i64  derived: every queue entry of frames below it is durable
    80  i64  number of queues that existed then
    88  i64  flushed: every byte of the log below it is durable
    96  i64  name of the index file that is being filled, 0: there is none, -1: not known
    104 40s  its header, all of whose items are durable (store/derived/indexfile.py)
    144 16s  identity of the group that the log belongs to, zeros: unknown
    160 i64  start: where the log begins, -1: it never did, or nobody knows
    168 i64  promised: the log was durable up to here once, and a start found less (amnesia.py);
             -1: none did
    176 i32  CRC-32 of bytes 0..176: it no longer holds when a RocketMQ broker ran since

A page of b"SATURN02" ends before the identity; its CRC is at 144 and covers what is before.

Replaced as a whole (written beside, renamed), never in place. `abort` exists while a broker runs.
"""

from __future__ import annotations

import posixpath
import struct
import zlib
from dataclasses import dataclass

from saturnmq.store.derived.indexfile import INDEX_NAME_MAX
from saturnmq.store.disk import Disk
from saturnmq.store.reading import cannot_be_read

PAGE = 4096
OURS_AT = 64
_ROCKETMQ = struct.Struct(">qqqqq")
_OURS = struct.Struct(">8sqqqq40s16sqq")
_OURS_BEFORE = struct.Struct(">8sqqqq40s")
MAGIC = b"SATURN03"
MAGIC_BEFORE = b"SATURN02"
assert _ROCKETMQ.size == 40, "five i64"
assert _OURS.size == 112, "it ends at 176, where its CRC is"
assert _OURS_BEFORE.size == 80, "it ends at 144, where its CRC is"
assert _ROCKETMQ.size <= OURS_AT
assert OURS_AT + _OURS.size + 4 <= PAGE
assert len(MAGIC) == len(MAGIC_BEFORE) == 8
NO_INDEX, INDEX_UNKNOWN = 0, -1
_WAY_OUT = (
    "replace the disk and copy the directory from a slave, or delete this file: then all of the "
    "log is read, and nobody knows what of it was durable"
)


@dataclass(slots=True)
class Checkpoint:
    """The page; `derived`, `flushed`, `start` and `promised` are -1, and `identity` (32 hex
    digits) is empty, when this file says nothing about them.
    """

    physic: int = 0
    logics: int = 0
    index: int = 0
    master_flushed: int = 0
    confirm: int = 0
    derived: int = -1
    queues: int = 0
    flushed: int = -1
    index_name: int = NO_INDEX
    index_header: bytes = bytes(40)
    identity: str = ""
    start: int = -1
    promised: int = -1

    @classmethod
    def load(cls, disk: Disk, root: str) -> Checkpoint:
        path = posixpath.join(root, "checkpoint")
        if not disk.exists(path):
            return cls()
        try:
            data = disk.read_file(path).ljust(PAGE, b"\0")
        except OSError as error:
            raise cannot_be_read(path, error, _WAY_OUT) from error
        found = cls(*_ROCKETMQ.unpack_from(data))
        layout = {MAGIC: _OURS, MAGIC_BEFORE: _OURS_BEFORE}.get(data[OURS_AT:][: len(MAGIC)])
        if layout is not None and data[_crc_at(layout) :][:4] == _crc(data, layout):
            _, found.derived, found.queues, found.flushed, *more = layout.unpack_from(data, OURS_AT)
            found.index_name, found.index_header, *more = more
            if not INDEX_UNKNOWN <= found.index_name <= INDEX_NAME_MAX:
                found.index_name = INDEX_UNKNOWN
            if more:
                identity, found.start, found.promised = more
                found.identity = identity.hex() if any(identity) else ""
        return found

    def validate(self, flushed: int) -> None:
        """AssertionError: no store whose log is flushed up to `flushed` writes such a page. A page
        that is read may say anything."""
        assert self.flushed <= flushed, f"{self.flushed} would be saved, {flushed} is flushed"
        for value in (self.derived, self.flushed, self.promised):
            assert value >= -1, f"the checkpoint says {value}"
        assert self.confirm >= 0, f"confirmed {self.confirm}"
        assert self.queues >= 0, f"{self.queues} queues"
        assert len(self.index_header) == 40, f"{len(self.index_header)} bytes of an index header"
        assert self.index_name >= INDEX_UNKNOWN, f"the index file {self.index_name}"
        assert len(self.identity) in (0, 32), f"the identity {self.identity!r}"
        assert self.derived <= max(self.flushed, 0) or self.flushed < 0, (
            f"{self.derived} is derived, {self.flushed} is flushed"
        )

    def save(self, disk: Disk, root: str) -> None:
        page = bytearray(PAGE)
        _ROCKETMQ.pack_into(
            page, 0, self.physic, self.logics, self.index, self.master_flushed, self.confirm
        )
        if self.derived >= 0 or self.flushed >= 0 or self.promised >= 0 or self.identity:
            _OURS.pack_into(
                page,
                OURS_AT,
                MAGIC,
                self.derived,
                self.queues,
                self.flushed,
                self.index_name,
                self.index_header,
                bytes.fromhex(self.identity),
                self.start,
                self.promised,
            )
            at = _crc_at(_OURS)
            page[at : at + 4] = _crc(page, _OURS)
        disk.replace_file(posixpath.join(root, "checkpoint"), bytes(page), keep_backup=False)


def _crc_at(layout: struct.Struct) -> int:
    return OURS_AT + layout.size


def _crc(page: bytes | bytearray, layout: struct.Struct) -> bytes:
    return zlib.crc32(page[: _crc_at(layout)]).to_bytes(4, "big")


class AbortMark:
    """The file `abort`: there while a broker runs, gone after a clean stop."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = posixpath.join(root, "abort")

    def present(self) -> bool:
        return self._disk.exists(self._path)

    def set(self, text: bytes = b"1") -> None:
        self._disk.write_file(self._path, text)

    def clear(self) -> None:
        self._disk.unlink(self._path)
