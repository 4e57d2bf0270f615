"""The output of `saturnmq store dump`: each record as a dictionary for programs and as a line for
people.
"""

from __future__ import annotations

import base64
import json
import posixpath
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple

from saturnmq.cli.output import visible
from saturnmq.protocol.fastjson import loads
from saturnmq.protocol.frame import MAGIC_AT, Frame
from saturnmq.protocol.kernels import ReceivedMessage, decode_frames
from saturnmq.runtime.errors import MalformedFrame, StoreDamaged
from saturnmq.store.derived.consumequeue import ENTRY, FILLER, UNIT
from saturnmq.store.derived.index_items import HEADER, ITEM
from saturnmq.store.disk import Disk
from saturnmq.store.inspect.verify import Sizes, directories, found_sizes, open_frames, open_log
from saturnmq.store.inspect.verify_index import IndexSizes
from saturnmq.store.log.log_files import NOTHING, Gap, LogReader, SegmentFiles
from saturnmq.store.log.truncated import find_all
from saturnmq.store.recovery.checkpoint import AbortMark, Checkpoint

_BODY_SHOWN = 60
_HEADER_NAMES = ("begin_time", "end_time", "begin_offset", "end_offset", "used_slots", "count")
_FILLED = ENTRY.unpack(FILLER)


class DumpRecord(NamedTuple):
    """One thing found; `line` shows the same in short."""

    fields: dict[str, Any]
    line: str


class DumpSelection(NamedTuple):
    """The records to show; None = all."""

    begin: int | None = None
    end: int | None = None
    topic: str | None = None
    queue: int | None = None

    def has(self, topic: str, queue: int, offset: int) -> bool:
        return (
            self.topic in (None, topic)
            and self.queue in (None, queue)
            and (self.begin is None or offset >= self.begin)
            and (self.end is None or offset < self.end)
        )


def frames(disk: Disk, root: str, sizes: Sizes, wanted: DumpSelection) -> Iterator[DumpRecord]:
    """The frames of the log; gaps are told on standard error."""
    files = open_frames(disk, root, sizes)
    reader = LogReader(files, index=False)
    begin = files.start
    if wanted.begin is not None and wanted.begin > begin:
        begin = wanted.begin
        if not isinstance(reader.frame_at(begin), Frame):
            found = reader.next_frame(begin)
            if found is None:
                return
            begin = found
    for piece in reader.read(begin):
        if wanted.end is not None and piece.start >= wanted.end:
            return
        if isinstance(piece, Gap):
            told = f"{piece.end - piece.start} bytes at {piece.start} hold no frames: {piece.why}"
            print(f"saturnmq: {told}", file=sys.stderr)
            continue
        for message in decode_frames(piece.frames):
            if wanted.has(message.topic, message.queue_id, message.physical_offset):
                yield _frame(message)
    if reader.stopped_by not in ("", NOTHING):
        print(f"saturnmq: the log ends at {reader.end}: {reader.stopped_by}", file=sys.stderr)


def _frame(message: ReceivedMessage) -> DumpRecord:
    frame, body, properties = message.frame, message.raw_body, message.properties
    fields: dict[str, Any] = {
        "size": len(frame),
        "magic": f"0x{frame[MAGIC_AT:][:4].hex()}",
        "body_crc": message.body_crc,
        "queue_id": message.queue_id,
        "flag": message.flag,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "sys_flag": message.sys_flag,
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_offset,
    }
    text = _text(body)
    if text is None:
        fields["body_base64"] = base64.b64encode(body).decode()
    else:
        fields["body"] = text
    fields |= {"topic": message.topic, "properties": properties}
    shown = f"{len(body)} B" if text is None else json.dumps(text[:_BODY_SHOWN])
    if text is not None and len(text) > _BODY_SHOWN:
        shown += f"... {len(body)} B"
    marks = [f"tag={properties['TAGS']}"] if "TAGS" in properties else []
    marks += [f"keys={properties['KEYS']}"] if "KEYS" in properties else []
    line = (
        f"{message.physical_offset:>14} {_moment(message.store_timestamp)} "
        f"{message.topic}/{message.queue_id}@{message.queue_offset} {len(frame)} B "
        f"{' '.join([*marks, shown])}"
    )
    return DumpRecord(fields, visible(line))


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _moment(stamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(stamp_ms / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(stamp_ms)


def queue_entries(
    disk: Disk, root: str, sizes: Sizes, wanted: DumpSelection
) -> Iterator[DumpRecord]:
    """The entries of the ConsumeQueues; `begin` and `end` are log offsets here, too."""
    open_log(disk, root, sizes)
    for topic, queue, files in _queues(disk, root, found_sizes(disk, root, sizes)):
        if wanted.topic not in (None, topic) or wanted.queue not in (None, queue):
            continue
        for start, end in files.written(0, UNIT):
            for at in range(start, end, UNIT << 10):
                data = files.read(at, min(UNIT << 10, end - at))
                whole = data[: len(data) // UNIT * UNIT]
                for index, entry in enumerate(ENTRY.iter_unpack(whole), at // UNIT):
                    offset, size, _ = entry
                    if size and wanted.has(topic, queue, offset):
                        yield _queue_entry(topic, queue, index, entry)
        files.close()


def _queues(disk: Disk, root: str, sizes: Sizes) -> Iterator[tuple[str, int, SegmentFiles]]:
    for topic in directories(disk, posixpath.join(root, "consumequeue")):
        found = {posixpath.basename(path): path for path in directories(disk, topic)}
        for name in sorted(filter(str.isdecimal, found), key=int):
            files = SegmentFiles(disk, found[name], sizes.queue_file_bytes)
            yield posixpath.basename(topic), int(name), files


def _queue_entry(topic: str, queue: int, index: int, entry: tuple[int, int, int]) -> DumpRecord:
    offset, size, code = entry
    fields = {
        "topic": topic,
        "queue_id": queue,
        "queue_offset": index,
        "physical_offset": offset,
        "size": size,
        "tags_code": code,
        "filler": entry == _FILLED,
    }
    shown = "filler" if fields["filler"] else f"{offset:>14} {size} B tags code {code}"
    return DumpRecord(fields, f"{topic}/{queue}@{index} {shown}")


def index_items(disk: Disk, root: str, sizes: Sizes, wanted: DumpSelection) -> Iterator[DumpRecord]:
    """The items of the IndexFiles, whose headers come before them."""
    open_log(disk, root, sizes)
    directory = posixpath.join(root, "index")
    for entry in disk.list(directory):
        if entry.is_dir or not entry.name.isdigit():
            continue
        found = IndexSizes.of(entry.size, sizes.index_slots, sizes.index_items)
        if found is None:
            raise StoreDamaged(
                f"{directory}/{entry.name}: {entry.size} bytes do not tell its slots and items: "
                "give --index-slots or --index-items"
            )
        file = disk.open_readonly(posixpath.join(directory, entry.name))
        try:
            header = HEADER.unpack(file.read(0, HEADER.size))
            yield _index_header(entry.name, found, header)
            count = min(header[5], found.items)
            base = HEADER.size + 4 * found.slots
            for first in range(1, count, 1024):
                step = min(1024, count - first)
                data = file.read(base + ITEM.size * first, ITEM.size * step)
                for number, item in enumerate(ITEM.iter_unpack(data), first):
                    if wanted.has("", 0, item[1]):
                        yield _index_item(entry.name, number, header[0], item)
        finally:
            file.close()


def _index_header(name: str, sizes: IndexSizes, header: tuple[int, ...]) -> DumpRecord:
    fields = {"file": name, **asdict(sizes), **dict(zip(_HEADER_NAMES, header, strict=True))}
    begin, end = _moment(header[0]), _moment(header[1])
    line = (
        f"{name} {begin} to {end}, offsets {header[2]} to {header[3]}, "
        f"{header[5] - 1} of {sizes.items - 1} items, {header[4]} of {sizes.slots} slots used"
    )
    return DumpRecord(fields, line)


def _index_item(name: str, number: int, begin: int, item: tuple[int, int, int, int]) -> DumpRecord:
    key_hash, offset, seconds, previous = item
    fields = {
        "file": name,
        "item": number,
        "key_hash": key_hash,
        "physical_offset": offset,
        "seconds": seconds,
        "previous": previous,
    }
    when = _moment(begin + 1000 * seconds)
    return DumpRecord(
        fields, f"  {number:>9} hash {key_hash:>10} {offset:>14} {when} -> {previous}"
    )


def summary(disk: Disk, root: str, sizes: Sizes) -> dict[str, Any]:
    """Summarise the directory without reading any message."""
    log = open_log(disk, root, sizes)
    queues = list(_queues(disk, root, found_sizes(disk, root, sizes)))
    index = [e for e in disk.list(posixpath.join(root, "index")) if e.name.isdigit()]
    page = asdict(Checkpoint.load(disk, root))
    header = HEADER.unpack(page["index_header"])
    page["index_header"] = dict(zip(_HEADER_NAMES, header, strict=True))
    return {
        "directory": root,
        "running": disk.locked(posixpath.join(root, "lock")),
        "abort": AbortMark(disk, root).present(),
        "commitlog": {
            "files": len(log.segments),
            "file_bytes": log.segment_bytes,
            "start": log.start,
            "end_of_files": log.end,
            "odd": [f"{odd.path}: {odd.why}" for odd in log.odd],
        },
        "queues": {
            "count": len(queues),
            "topics": len({topic for topic, _, _ in queues}),
            "files": sum(len(files.segments) for _, _, files in queues),
        },
        "index": {"files": len(index), "file_bytes": sorted({e.size for e in index})},
        "truncated": {
            posixpath.basename(side.file): side.to_json() for side in find_all(disk, root)
        },
        "checkpoint": page,
        "config": {
            entry.name: _table_sizes(disk.read_file(posixpath.join(root, "config", entry.name)))
            for entry in disk.list(posixpath.join(root, "config"))
            if entry.name.endswith(".json")
        },
    }


def _table_sizes(data: bytes) -> Any:
    """The number of entries of each table in a config file."""
    try:
        document = loads(data)
    except MalformedFrame as error:
        return f"cannot be read: {error}"
    if not isinstance(document, dict):
        return "no table"
    return {
        name: len(value)
        for name, value in document.items()
        if isinstance(value, dict | list) and name != "dataVersion"
    }
