"""The command `saturnmq store restore-truncated`: it reads side files of truncations, asks the
cluster which of their messages are still wanted, tells it, and sends those.

The files are read three times, and only read: each is checked, then the copies of each message are
compared (a consumer that gave one back, or a delay, left several), then its messages are judged,
and sent, some thousand at a time. Memory: about 300 bytes for each message that is looked at.

Nothing is written down of what was restored. The cluster knows: restored messages keep their unique
ids, and what is older than what its brokers keep is left out.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from saturnmq.cli.output import bytes_bar, finding_line, table
from saturnmq.client.admin.restoring import (
    Item,
    Purpose,
    Restorer,
    RestoreVerdict,
    delay_levels_at,
    purpose,
)
from saturnmq.client.core import ClientCore
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frame import Frame, decode_frame
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import brokers_in
from saturnmq.protocol.topics import GROUPS_TOPIC
from saturnmq.runtime import native
from saturnmq.runtime.errors import RouteNotFound, SaturnError
from saturnmq.store.delay_levels import DEFAULT_LEVELS, parse_levels
from saturnmq.store.disk import Disk
from saturnmq.store.inspect.verify import Progress, Sizes, check_side_file, open_log
from saturnmq.store.inspect.verify_report import Finding
from saturnmq.store.log.atomic_batches import read_marker
from saturnmq.store.log.log_files import LogReader, Stretch
from saturnmq.store.log.truncated import DIRECTORY, SideFile, Truncated, find, find_all

CHUNK_MESSAGES = 1000
CHUNK_BYTES = 16 << 20


class RestoreSelection(NamedTuple):
    """The messages to look at; None = all. Times of the store in ms, both inclusive."""

    topic: str | None = None
    key: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def has(self, message: ReceivedMessage, topic: str) -> bool:
        stored = message.store_timestamp
        return (
            self.topic in (None, topic)
            and (self.key is None or self.key in message.keys)
            and (self.since_ms is None or stored >= self.since_ms)
            and (self.until_ms is None or stored <= self.until_ms)
        )


@dataclass
class RestoreTally:
    """The messages of one topic in one file, by what becomes of them."""

    verdicts: Counter[RestoreVerdict] = field(default_factory=Counter)
    sent: int = 0
    refused: int = 0

    @property
    def messages(self) -> int:
        return self.verdicts.total()

    @property
    def present(self) -> int:
        return self.verdicts[RestoreVerdict.PRESENT]

    @property
    def wanted(self) -> int:
        return self.verdicts[RestoreVerdict.WANTED]

    @property
    def left_out(self) -> dict[RestoreVerdict, int]:
        known = (RestoreVerdict.PRESENT, RestoreVerdict.WANTED)
        return {verdict: n for verdict, n in self.verdicts.items() if verdict not in known}


@dataclass
class FileReport:
    """The messages found in one file, and their fate."""

    side: Truncated
    damage: list[Finding]
    notes: list[Finding]
    topics: dict[str, RestoreTally] = field(default_factory=dict)

    def tally(self, topic: str) -> RestoreTally:
        return self.topics.setdefault(topic, RestoreTally())

    def to_json(self) -> dict[str, Any]:
        side = self.side
        return {
            "file": side.file,
            "from": side.start,
            "to": side.end,
            "epoch": side.epoch,
            "cut": side.time_ms,
            "reason": side.reason,
            "damage": [asdict(finding) for finding in self.damage],
            "notes": [asdict(finding) for finding in self.notes],
            "topics": [
                {
                    "topic": topic,
                    "messages": tally.messages,
                    "present": tally.present,
                    "wanted": tally.wanted,
                    "left_out": {v.name.lower(): n for v, n in tally.left_out.items()},
                    "sent": tally.sent,
                    "refused": tally.refused,
                }
                for topic, tally in sorted(self.topics.items())
            ],
        }


def side_files(disk: Disk, paths: Sequence[str], sizes: Sizes) -> list[Truncated]:
    """The side files at these paths, each once: files, directories of some, or stores.
    StoreDamaged if one is nothing of that."""
    found = [side for path in paths for side in _side_files(disk, path, sizes)]
    return list({posixpath.normpath(side.file): side for side in found}.values())


def _side_files(disk: Disk, path: str, sizes: Sizes) -> list[Truncated]:
    named = find(disk, path)
    if named is not None:
        return [named]
    try:
        here = [find(disk, posixpath.join(path, entry.name)) for entry in disk.list(path)]
    except NotADirectoryError:
        return [SideFile.open(disk, path).facts]  # which says what its name should be
    sides = [side for side in here if side is not None] or find_all(disk, path)
    if not sides and posixpath.basename(posixpath.normpath(path)) != DIRECTORY:
        open_log(disk, path, sizes)  # which says what is wrong with it if it is no store
    return sides


class Restoration:
    """One run of the command over some side files."""

    def __init__(
        self, disk: Disk, sides: Sequence[Truncated], sizes: Sizes, wanted: RestoreSelection
    ) -> None:
        self._disk = disk
        self._sizes = sizes
        self._wanted = wanted
        self._best: dict[tuple[str, str], tuple[tuple[bool, int, bool], int, int]] = {}
        self.files = [FileReport(side, [], []) for side in sides]
        self.refusals: list[str] = []
        self.place = ""  # all before it is settled

    # -- the files alone -----------------------------------------------------------------------

    def read(self, progress: Progress) -> None:
        """Check every frame, and find the best copy of each message."""
        done = 0
        for number, report in enumerate(self.files):
            side = report.side
            told = check_side_file(self._disk, side.file, self._sizes, self._part(progress, done))
            report.damage, report.notes = told.damage, told.notes
            for message, meant in self._messages(number):
                if isinstance(meant, Purpose):
                    copy = meant.rank, -number, -message.physical_offset
                    self._best[meant.key] = max(copy, self._best.get(meant.key, copy))
            done += side.size

    def _part(self, progress: Progress, done: int) -> Progress:
        total = sum(report.side.size for report in self.files)
        return lambda here, _: progress(done + here, total)

    def _messages(self, number: int) -> Iterator[tuple[ReceivedMessage, Purpose | RestoreVerdict]]:
        """The part of a file that is examined."""
        files = SideFile(self._disk, self.files[number].side, self._sizes.segment_bytes)
        group_end = 0
        try:
            for piece in LogReader(files, index=False).read(files.start):
                if not isinstance(piece, Stretch):
                    continue
                for message in decode_frames(bytes(piece.frames)):
                    meant = purpose(message)
                    if message.topic == GROUPS_TOPIC:
                        group_end = max(group_end, _group_end(message))
                    elif message.physical_offset < group_end:
                        meant = RestoreVerdict.SINK
                    topic = meant.topic if isinstance(meant, Purpose) else message.topic
                    if self._wanted.has(message, topic):
                        yield message, meant
        finally:
            files.close()

    # -- with the cluster ----------------------------------------------------------------------

    async def run(self, restorer: Restorer, *, send: bool, progress: Progress) -> None:
        """Judge all messages, and with `send` send those that are wanted."""
        done = 0
        for number, report in enumerate(self.files):
            part = self._part(progress, done)
            for chunk in self._chunks(number):
                first = chunk[0].message.physical_offset
                self.place = f"{report.side.file}, log offset {first}"
                await self._settle(restorer, report, chunk, send)
                part(first - report.side.start, 0)
            done += report.side.size
        progress(done, done)

    def _chunks(self, number: int) -> Iterator[list[Item]]:
        """The messages that a cluster has to be asked about; the others are counted."""
        report = self.files[number]
        name = posixpath.basename(report.side.file)
        chunk: list[Item] = []
        size = 0
        for message, meant in self._messages(number):
            offset = message.physical_offset
            if isinstance(meant, RestoreVerdict):
                report.tally(message.topic).verdicts[meant] += 1
                continue
            if self._best[meant.key][1:] != (-number, -offset):
                report.tally(meant.topic).verdicts[RestoreVerdict.REPEATED] += 1
                continue
            chunk.append(Item(message, meant, f"{name}@{offset}"))
            size += message.frame_size
            if len(chunk) >= CHUNK_MESSAGES or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    async def _settle(
        self, restorer: Restorer, report: FileReport, chunk: list[Item], send: bool
    ) -> None:
        verdicts = await restorer.judge(chunk)
        for item, verdict in zip(chunk, verdicts, strict=True):
            report.tally(item.purpose.topic).verdicts[verdict] += 1

        def settled(item: Item, refusal: SaturnError | None) -> None:
            tally = report.tally(item.purpose.topic)
            if refusal is None:
                tally.sent += 1
            else:
                tally.refused += 1
                self.refusals.append(f"{item.origin} of topic {item.purpose.topic}: {refusal}")

        if send:
            pairs = zip(chunk, verdicts, strict=True)
            await restorer.send([i for i, v in pairs if v is RestoreVerdict.WANTED], settled)

    # -- the outcome ---------------------------------------------------------------------------

    def total(self, count: Callable[[RestoreTally], int]) -> int:
        return sum(count(tally) for report in self.files for tally in report.topics.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "files": [report.to_json() for report in self.files],
            "messages": self.total(lambda tally: tally.messages),
            "present": self.total(lambda tally: tally.present),
            "wanted": self.total(lambda tally: tally.wanted),
            "left_out": self.total(lambda tally: sum(tally.left_out.values())),
            "sent": self.total(lambda tally: tally.sent),
            "refused": self.total(lambda tally: tally.refused),
        }


def _group_end(message: ReceivedMessage) -> int:
    """The end of a marker's atomic batch."""
    frame = decode_frame(message.frame, 0, None, False)
    return read_marker(frame).end if isinstance(frame, Frame) else 0


async def delays_in(core: ClientCore) -> tuple[int, ...]:
    """The delays of the levels, as a master of the cluster has them: all should have the same."""
    command = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    brokers = await core.ask_nameserver(command, brokers_in)
    masters = sorted(data.master for data in brokers if data.master is not None)
    if not masters:
        raise RouteNotFound("no master is registered: start one, or promote a slave")
    return parse_levels(await delay_levels_at(core, masters[0]) or DEFAULT_LEVELS)


def settle(
    work: Restoration, nameservers: Sequence[str], *, send: bool, expired_too: bool
) -> BaseException | None:
    """Do all that needs the cluster; what ended it early, an interrupt included."""

    async def main(runtime: Any) -> None:
        core = ClientCore(runtime, nameservers)
        await core.start()
        try:
            restorer = Restorer(core, await delays_in(core), expired_too=expired_too)
            await work.run(restorer, send=send, progress=progress)
        finally:
            await core.close()

    try:
        with bytes_bar("restoring" if send else "asking the cluster") as progress:
            native.run(main)
    except (SaturnError, KeyboardInterrupt, SystemExit) as problem:
        return problem
    return None


def show(work: Restoration, send: bool) -> None:
    """The outcome for people."""
    for report in work.files:
        side = report.side
        why = f", {side.reason}" if side.reason else ""
        print(f"{side.file}: log {side.start:,} to {side.end:,}{why}")
        for finding in report.notes:
            print(f"note    {finding_line(finding)}")
        for finding in report.damage:
            print(f"DAMAGE  {finding_line(finding)}")
        rows = [
            (
                topic,
                tally.messages,
                tally.present,
                tally.wanted,
                tally.sent if send else None,
                "; ".join(f"{count:,} {why.value}" for why, count in tally.left_out.items()),
            )
            for topic, tally in sorted(report.topics.items())
        ]
        if rows:
            table(
                "", ["topic", "messages", "in the cluster", "to be sent", "sent", "left out"], rows
            )
    facts = work.to_json()
    left_out = f"{facts['left_out']:,} are left out"
    if not work.files:
        print("nothing was cut off: there is no side file")
    elif send:
        print(
            f"sent {facts['sent']:,} of {facts['wanted']:,} messages that were wanted; "
            f"{facts['present']:,} are in the cluster, {left_out}"
        )
    else:
        print(
            f"{facts['messages']:,} messages: {facts['present']:,} are in the cluster, {left_out}, "
            f"{facts['wanted']:,} would be sent" + ("; --send does it" if facts["wanted"] else "")
        )
