"""One directory, brokers of both makes in turn: whatever the one acknowledged, the other has.

Messages are found by queue offset, key, unique id and offset id, topics and queues go on where they
were, a group's offsets and what waits for its delay as well; after an orderly stop the files are
again what `StoreFiles.check` asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from interop_files import StoreFiles
from interop_messages import QUEUES, TOPIC, Sent, Speaker, send_until_killed, speaking, until
from interop_nodes import ROCKETMQ, SATURNMQ, Node, Nodes
from interop_reading import committed_offsets, consume_some, read_back, read_topic
from saturnmq.aio import Admin, Message
from saturnmq.cli.free_ports import free_block
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
LATER = "interop-later"
LATER_LEVEL = 3  # 10 s: often longer than its broker has left


@dataclass
class Directory:
    """A store that brokers of both makes open in turn, and what must be in it."""

    nodes: Nodes
    files: StoreFiles
    figures: Counter[str]
    port: int = field(default_factory=lambda: free_block("127.0.0.1", 4) + 2)
    settings: dict[str, object] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    said: dict[str, bytes] = field(default_factory=dict)
    later: set[bytes] = field(default_factory=set)
    committed: dict = field(default_factory=dict)
    speakers: int = 0

    def open(self, make: str) -> Node:
        # Offset ids name the port: every broker of this directory has the same.
        sizes = {
            "mappedFileSizeCommitLog": self.files.segment_bytes,
            "mappedFileSizeConsumeQueue": self.files.queue_bytes,
            "maxHashSlotNum": self.files.slots,
            "maxIndexNum": self.files.items,
        }
        return self.nodes.broker(make, self.files.root, self.port, {**sizes, **self.settings})

    def turn(self, make: str, *, kill: bool = False, after_crash: bool = False) -> None:
        """One broker: checks what it finds, goes on with it, ends."""
        node = self.open(make)
        nameserver = self.nodes.nameserver(make)
        if make == ROCKETMQ and self.sent:
            self._read_by_mqadmin(nameserver)
        asyncio.run(self._turn(nameserver, node, kill=kill, after_crash=after_crash))
        if not kill:
            node.stop()
        assert (self.files.root / "abort").exists() == kill
        self.check_command()

    def visit(self, make: str) -> None:
        """One broker that is killed in the first seconds of its life."""
        node = self.open(make)

        async def send() -> None:
            async with self._speaking(self.nodes.nameserver(make), node) as speaker:
                await send_until_killed(speaker, node)

        asyncio.run(send())

    def check_command(self) -> None:
        """`saturnmq store check`, without being told any size that the files tell."""
        command = [sys.executable, "-m", "saturnmq", "store", "check", str(self.files.root)]
        sizes = ["--index-slots", str(self.files.slots), "--index-items", str(self.files.items)]
        done = subprocess.run(
            [*command, *sizes, "--json"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.figures["messages seen sound by `store check`"] += json.loads(done.stdout)["messages"]

    def kept(self) -> list[Sent]:
        """What was sent and is not in a segment that was deleted."""
        start = self.files.log_start
        return [each for each in self.sent if each.physical_offset >= start]

    async def _turn(self, nameserver: str, node: Node, *, kill: bool, after_crash: bool) -> None:
        if self.sent:
            self.figures.update(await read_back(nameserver, self.kept(), self.said))
            now = await committed_offsets(nameserver, list(self.committed))
            if after_crash:  # offsets are saved every few seconds
                assert all(now[queue] <= at for queue, at in self.committed.items())
            else:
                assert now == self.committed
            self.figures["consumer offsets carried over"] += len(now)
        await self._arrived_later(nameserver)
        async with self._speaking(nameserver, node) as speaker:
            await send_mixed(speaker)
            await self._send_later(speaker)
            self.committed = await consume_some(
                nameserver, [speaker.queue(queue_id) for queue_id in range(QUEUES)]
            )
            if kill:
                await send_until_killed(speaker, node)

    @contextlib.asynccontextmanager
    async def _speaking(self, nameserver: str, node: Node) -> AsyncIterator[Speaker]:
        self.speakers += 1
        async with speaking(nameserver, node.address, seed=self.speakers) as speaker:
            yield speaker
        self.sent += speaker.sent
        self.said |= speaker.said

    def _read_by_mqadmin(self, nameserver: str) -> None:
        """RocketMQ's own client reads at least what was acknowledged."""
        printed = self.nodes.mqadmin("printMsg", "-n", nameserver, "-t", TOPIC, "-d", "false")
        count = sum(line.startswith("MSGID:") for line in printed.splitlines())
        assert count >= len(self.kept()), printed[-1000:]
        self.figures["messages printed by mqadmin"] += count

    async def _send_later(self, speaker: Speaker) -> None:
        await speaker.admin.create_topic(LATER, 1)
        queue = speaker.queue(0, LATER)
        for number in range(5):
            body = f"{self.speakers}/{number} later".encode()
            message = Message(LATER, body, delay_level=LATER_LEVEL)
            await speaker.producer.send(message, queue=queue)
            self.later.add(body)

    async def _arrived_later(self, nameserver: str) -> None:
        """What was sent with a delay to a broker before comes, be it twice after a crash."""
        bodies: set[bytes] = set()

        async def there() -> bool:
            found = await read_topic(nameserver, LATER)
            bodies.update(bytes(message.body) for message in found.values())
            return self.later <= bodies

        if self.later:
            await until(there, f"{len(self.later)} delayed messages")
        assert bodies == self.later
        self.figures["delayed messages carried over"] += len(bodies)


async def send_mixed(speaker: Speaker) -> None:
    """Single sends, batches, compressed and large bodies; the log rolls, the queues as well."""
    chance = random.Random(speaker.seed)
    for _ in range(10):
        await speaker.send(speaker.message(chance.randrange(1, 900)) for _ in range(40))
        await speaker.send_batch([speaker.message(chance.randrange(1, 600)) for _ in range(100)])
        await speaker.send([speaker.message(chance.randrange(5000, 90_000), packs=True)])
        await speaker.send([speaker.message(chance.randrange(5000, 90_000))])


@pytest.fixture
def directory(nodes: Nodes, tmp_path: Path, figures: Counter[str]) -> Directory:
    return Directory(nodes, StoreFiles(tmp_path / "store", 1 << 20, 20_000, 500, 2000), figures)


HANDS = pytest.mark.parametrize(
    "makes",
    [(ROCKETMQ, SATURNMQ, ROCKETMQ), (SATURNMQ, ROCKETMQ, SATURNMQ)],
    ids=["rocketmq-first", "saturnmq-first"],
)


@HANDS
def test_a_directory_goes_from_hand_to_hand(directory: Directory, makes: tuple[str, ...]) -> None:
    for make in makes:
        directory.turn(make)
        directory.figures["frames checked with queues and index"] += directory.files.check()


@HANDS
def test_a_directory_goes_from_hand_to_hand_by_kill_9(
    directory: Directory, makes: tuple[str, ...]
) -> None:
    # Recovering, RocketMQ holds every frame against the CRC among its properties.
    directory.settings |= {"enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"}
    directory.turn(makes[0], kill=True)
    directory.turn(makes[1], kill=True, after_crash=True)
    directory.turn(makes[2], after_crash=True)
    directory.figures["frames checked with queues and index"] += directory.files.check(twice=True)


@HANDS
def test_a_visitor_killed_at_once_leaves_what_it_acknowledged(
    directory: Directory, makes: tuple[str, ...]
) -> None:
    directory.turn(makes[0])
    directory.visit(makes[1])
    directory.turn(makes[2], after_crash=True)
    directory.figures["frames checked with queues and index"] += directory.files.check(twice=True)


def test_rocketmq_opens_what_cleaning_left_and_what_lacks_a_file_set_aside(
    directory: Directory,
) -> None:
    log = directory.files.root / "commitlog"
    directory.turn(SATURNMQ)
    oldest, *_, newest = sorted(path for path in log.iterdir() if path.is_file())
    long_ago = oldest.stat().st_mtime - 100 * 3600  # fileReservedTime is 72 hours
    os.utime(oldest, (long_ago, long_ago))
    stray = log / f"{int(newest.name) + directory.files.segment_bytes:020d}"
    stray.write_bytes(b"not as long as a segment")

    node = directory.open(SATURNMQ)
    nameserver = directory.nodes.nameserver(SATURNMQ)

    async def clean() -> None:
        async with Admin(nameserver) as admin:
            request = Command.request(RequestCode.DELETE_EXPIRED_COMMITLOG)
            await admin.core.invoke(node.address, request, 10.0)

            async def gone() -> bool:
                return not oldest.exists()

            await until(gone, f"{oldest} is deleted")

    asyncio.run(clean())
    node.stop()
    assert (log / "deleted" / f"{oldest.name}.delete").exists()
    assert (log / "set-aside" / stray.name).exists()
    assert 0 < len(directory.kept()) < len(directory.sent)
    for make in (ROCKETMQ, SATURNMQ):
        directory.turn(make)
        directory.figures["frames checked with queues and index"] += directory.files.check()


def test_saturnmq_opens_what_the_cleaning_of_rocketmq_left(directory: Directory) -> None:
    directory.turn(ROCKETMQ)
    # It unlinks the oldest segment, and may end before it looks at queues and index.
    min((directory.files.root / "commitlog").iterdir()).unlink()
    assert 0 < len(directory.kept()) < len(directory.sent)
    for make in (SATURNMQ, ROCKETMQ):
        directory.turn(make)
        directory.figures["frames checked with queues and index"] += directory.files.check()


def test_rocketmq_opens_what_store_rebuild_made(directory: Directory) -> None:
    directory.turn(ROCKETMQ)
    sizes = ["--index-slots", str(directory.files.slots)]
    sizes += ["--index-items", str(directory.files.items), "--yes"]
    command = [sys.executable, "-m", "saturnmq", "store", "rebuild", str(directory.files.root)]
    subprocess.run([*command, *sizes], check=True, capture_output=True)
    directory.files.check()
    directory.turn(ROCKETMQ)
    directory.figures["frames checked with queues and index"] += directory.files.check()
