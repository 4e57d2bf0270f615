"""The content of the stores after a drill's cluster has stopped: I7 and I8, and the values.

The logs of a group's nodes are compared byte by byte, every frame is checked, and derived files are
compared with the result of a rebuild (`store/inspect/verify.py`). Values are read from the longest
log of the group, and from the side files of truncations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from saturnmq.drills.failover.backend import BROKER, Backend, DrillNode
from saturnmq.drills.failover.checker import Aftermath
from saturnmq.drills.sim.history import Place, read_body
from saturnmq.protocol import kernels
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.disk import Disk, NativeDisk
from saturnmq.store.inspect.verify import check, open_log
from saturnmq.store.log import truncated
from saturnmq.store.log.epochs import Epoch, Epochs
from saturnmq.store.log.log_files import LogReader, SegmentFiles, Stretch

_CHUNK = 1 << 20


def stop_and_look(backend: Backend, topic: str) -> Aftermath:
    """Stop the brokers in order, masters before their slaves: these have all there is to get."""
    nodes = [node for node in backend.nodes if node.kind == BROKER]
    for node in nodes:
        if backend.alive(node.name):
            backend.stop(node.name)
    return look(nodes, backend.stores(backend.directory / "stores"), topic)


def look(nodes: Iterable[DrillNode], stores: Mapping[str, Path], topic: str) -> Aftermath:
    """Everything about the stopped brokers among `nodes`."""
    disk = NativeDisk()
    stored: dict[Place, str] = {}
    saved: set[str] = set()
    problems: list[str] = []
    groups: dict[str, list[str]] = {}
    epochs: dict[str, Sequence[Epoch]] = {}
    for node in nodes:
        if node.kind == BROKER:
            groups.setdefault(node.group, []).append(node.name)
            saved.update(_saved(disk, stores[node.name], topic))
            problems += _derived(disk, node.name, stores[node.name])
    for group, names in sorted(groups.items()):
        logs = [_NodeLog(disk, name, stores[name]) for name in names]
        longest = max(logs, key=lambda log: log.end)
        problems += [text for log in logs for text in log.differs(longest)]
        for queue, offset, value in _messages(longest.stretches, topic):
            stored[Place(group, queue, offset)] = value
        epochs[group] = Epochs.load(disk, str(stores[longest.name]), longest.end).entries
        for log in logs:
            log.files.close()
    return Aftermath(stored, frozenset(saved), problems, epochs)


def _saved(disk: Disk, store: Path, topic: str) -> Iterator[str]:
    """The values in what this node cut off its log."""
    for facts in truncated.find_all(disk, str(store)):
        files = truncated.SideFile(disk, facts)
        for _, _, value in _messages(_stretches(LogReader(files, index=False), files.start), topic):
            yield value
        files.close()


def _stretches(reader: LogReader, start: int) -> list[bytes]:
    """Whole frames, as they follow each other."""
    return [bytes(piece.frames) for piece in reader.read(start) if isinstance(piece, Stretch)]


def _messages(stretches: Iterable[bytes], topic: str) -> Iterator[tuple[int, int, str]]:
    """Queue, offset and value of the topic's messages."""
    for frames in stretches:
        for message in kernels.decode_frames(frames):
            if message.topic == topic:
                value = read_body(bytes(message.body)) or ""
                yield message.queue_id, message.queue_offset, value


class _NodeLog:
    """The CommitLog of one node."""

    def __init__(self, disk: Disk, name: str, store: Path) -> None:
        self.name = name
        self.files: SegmentFiles = open_log(disk, str(store))
        self._reader = LogReader(self.files, index=False)
        self.stretches = _stretches(self._reader, self.files.start)

    @property
    def end(self) -> int:
        return self._reader.end

    def differs(self, master: _NodeLog) -> list[str]:
        """Where this log differs from the master's; a log that only lacks the end has not caught
        up."""
        if self is master:
            return []
        if self.files.start != master.files.start:  # drills are too short for retention
            starts = f"{self.files.start} and {master.files.start}"
            return [f"I16 the logs of {self.name} and {master.name} begin at {starts}"]
        offset, end = self.files.start, min(self.end, master.end)
        while offset < end:
            size = min(_CHUNK, end - offset)
            here, there = self.files.read(offset, size), master.files.read(offset, size)
            if here != there:
                at = offset + _first_difference(here, there)
                return [f"I7 divergence: the logs of {self.name} and {master.name} differ at {at}"]
            if not here:
                break
            offset += len(here)
        if self.end < master.end:
            behind = master.end - self.end
            return [f"I12 {self.name} is {behind} bytes behind {master.name} after the drill"]
        return []


def _first_difference(a: bytes, b: bytes) -> int:
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return index
    return min(len(a), len(b))


def _derived(disk: Disk, name: str, store: Path) -> list[str]:
    try:
        report = check(disk, str(store))
    except StoreDamaged as problem:
        return [f"I8 {name}: {problem}"]
    return [
        f"I8 {name}: {finding.what} ({finding.count} times) in {finding.path}"
        for finding in report.damage
    ]
