"""Replication between a real RocketMQ and SaturnMQ, either way round, over the classic protocol.

A master of one make is followed by a slave of the other, registered with a nameserver of the
master's make. Both are killed and come back while messages are sent. In the end the slave alone
serves what was acknowledged, its log is the master's to the byte, and queues, index and tables say
the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from interop_files import StoreFiles
from interop_messages import QUEUES, Sent, Speaker, speaking, until
from interop_nodes import ROCKETMQ, SATURNMQ, Node, Nodes
from interop_reading import consume_some, read_back
from saturnmq.aio import Admin, SendStatus
from saturnmq.cli.free_ports import free_block
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.ha import GREETING
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import SaturnError

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
SIZES = (1 << 20, 20_000, 500, 2000)
KEYS = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
# What a slave copies: request, and the table in its answer.
TABLES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: "topicConfigTable",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "offsetTable",
    RequestCode.GET_ALL_DELAY_OFFSET: "offsetTable",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "subscriptionGroupTable",
}
TABLES_S = 180.0  # RocketMQ's slave copies them once a minute


@dataclass
class Pair:
    """A master and a slave of different makes, and what must be on both."""

    nodes: Nodes
    figures: Counter[str]
    home: Path
    master_make: str
    slave_make: str
    sync: bool
    sent: list[Sent] = field(default_factory=list)
    said: dict[str, bytes] = field(default_factory=dict)
    speakers: int = 0

    def __post_init__(self) -> None:
        ports = free_block("127.0.0.1", 8)
        self.ports = {"master": ports + 2, "slave": ports + 6}
        self.files = {name: StoreFiles(self.home / name, *SIZES) for name in self.ports}
        self.nameserver = self.nodes.nameserver(self.master_make)
        self.master = self.start("master")

    def start(self, name: str) -> Node:
        group = "sync" if self.sync else "async"  # nameservers remember the epoch of each
        make, broker_id, role = self.master_make, 0, f"{group.upper()}_MASTER"
        if name == "slave":
            make, broker_id, role = self.slave_make, 1, "SLAVE"
        settings: dict[str, object] = {
            **dict(zip(KEYS, SIZES, strict=True)),
            "brokerName": f"broker-{group}",
            "brokerId": broker_id,
            "brokerRole": role,
            "slaveReadEnable": "true",
        }
        if self.sync and name == "master":
            settings["inSyncReplicas"] = 2
        return self.nodes.broker(
            make, self.files[name].root, self.ports[name], settings, nameserver=self.nameserver
        )

    def join(self) -> None:
        self.slave = self.start("slave")
        asyncio.run(self.until_caught_up())

    @contextlib.asynccontextmanager
    async def speaking(self) -> AsyncIterator[Speaker]:
        await self._until_taken()
        self.speakers += 1
        async with speaking(self.nameserver, self.master.address, seed=self.speakers) as speaker:
            yield speaker
        self.sent += speaker.sent
        self.said |= speaker.said

    def talk(self) -> None:
        """Messages of several kinds; a group commits offsets."""

        async def send() -> None:
            async with self.speaking() as speaker:
                await self._until_acknowledged(speaker)
                for _ in range(5):
                    await speaker.send(speaker.message(300) for _ in range(40))
                    await speaker.send_batch([speaker.message(200) for _ in range(100)])
                    await speaker.send([speaker.message(60_000, packs=True)])
                    await speaker.send([speaker.message(60_000)])
                waiting = speaker.message(100, delay_level=2)
                await speaker.producer.send(waiting, queue=speaker.queue(0))
                queues = [speaker.queue(queue_id) for queue_id in range(QUEUES)]
                await consume_some(self.nameserver, queues)

        asyncio.run(send())

    async def _until_taken(self) -> None:
        """A master of ours that comes back from a crash first waits for its slave."""
        async with Admin(self.nameserver, timeout=10.0) as admin:

            async def takes() -> bool:
                with contextlib.suppress(SaturnError):  # RocketMQ's, while its log is empty
                    status = await admin.broker_status(self.master.address)
                    return not status.get("refusesWrites")
                return self.master.make == ROCKETMQ

            await until(takes, f"{self.master.make} takes sends\n{self.master.tail()}")

    async def _until_acknowledged(self, speaker: Speaker) -> None:
        """A master that just came back may not have its slave yet."""

        async def sent() -> bool:
            with contextlib.suppress(SaturnError):
                message = speaker.message(10)
                result = await speaker.producer.send(message, queue=speaker.queue(0))
                if result.status is SendStatus.OK:
                    speaker.note([message], [result])
                    return True
            return False

        await until(sent, f"{self.master.make} acknowledges\n{self.master.tail()}")

    async def unacknowledged(self) -> SendStatus:
        """What a send gets without the slave."""
        async with self.speaking() as speaker:
            result = await speaker.producer.send(speaker.message(10), queue=speaker.queue(0))
            return result.status

    async def until_caught_up(self) -> None:
        async with Admin(self.nameserver, timeout=10.0) as admin:

            async def same_end() -> bool:
                with contextlib.suppress(SaturnError):  # RocketMQ's, while its log is empty
                    ends = {await log_end(admin, node) for node in (self.master, self.slave)}
                    return len(ends) == 1
                return False

            await until(same_end, f"the slave is at the end of the log\n{self.slave.tail()}")

    async def until_equal(self) -> None:
        """The slave has the log and the tables of the master."""
        await self.until_caught_up()
        async with Admin(self.nameserver, timeout=10.0) as admin:
            for code, name in TABLES.items():
                await self._until_copied(admin, code, name)

    async def _until_copied(self, admin: Admin, code: int, name: str) -> None:
        missing: dict[str, Any] = {}

        async def copied() -> bool:
            nonlocal missing
            wanted, found = [
                await table(admin, node, code, name) for node in (self.master, self.slave)
            ]
            missing = {
                key: (value, found.get(key))
                for key, value in wanted.items()
                if not covers(code, found.get(key), value)
            }
            return not missing

        try:
            await until(copied, f"the slave has the {name} of {code}", TABLES_S)
        except AssertionError as problem:
            raise AssertionError(f"{problem}: {missing}") from None
        self.figures["tables copied"] += 1


async def log_end(admin: Admin, node: Node) -> int:
    return int((await admin.broker_status(node.address))["commitLogMaxOffset"])


async def table(admin: Admin, node: Node, code: int, name: str) -> dict[str, Any]:
    answer = await admin.core.invoke(node.address, Command.request(code), 10.0)
    return {str(key): value for key, value in fastjson.loads(answer.body)[name].items()}


def covers(code: int, found: Any, wanted: Any) -> bool:
    """Whether an entry was copied. Offsets only rise: a killed master may come back with older ones
    than its slave has."""
    if code == RequestCode.GET_ALL_DELAY_OFFSET:
        return found is not None and found >= wanted
    if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
        return found is not None and all(found.get(k, -1) >= v for k, v in wanted.items())
    return bool(found == wanted)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("master", "slave"),
    [(ROCKETMQ, SATURNMQ), (SATURNMQ, ROCKETMQ)],
    ids=["saturnmq-follows", "rocketmq-follows"],
)
def test_a_slave_of_the_other_make_has_what_its_master_has(
    nodes: Nodes, tmp_path: Path, figures: Counter[str], master: str, slave: str, sync: bool
) -> None:
    pair = Pair(nodes, figures, tmp_path, master, slave, sync)
    if sync:  # without a slave nothing is acknowledged
        pair.join()
        pair.talk()
    else:  # one that comes later starts where the master lets it
        pair.talk()
        pair.join()
    pair.talk()

    pair.slave.kill()
    if sync:
        status = asyncio.run(pair.unacknowledged())
        assert status is not SendStatus.OK
        figures[f"{status.value} of a {master} without its slave"] += 1
    else:
        pair.talk()
    pair.join()
    pair.talk()

    pair.master.kill()
    pair.master = pair.start("master")
    pair.talk()
    asyncio.run(pair.until_equal())

    pair.master.stop()
    start = pair.files["slave"].log_start
    kept = [each for each in pair.sent if each.physical_offset >= start]
    assert len(kept) > 1000
    figures.update(asyncio.run(read_back(pair.nameserver, kept, pair.said, port=pair.slave.port)))
    pair.slave.stop()
    compare(pair, figures)


def test_a_real_master_passes_over_the_greeting_of_our_slave(nodes: Nodes, tmp_path: Path) -> None:
    """Our slave says -1 before its first report: in one piece or, as TCP pleases, in several."""
    pair = Pair(nodes, Counter(), tmp_path, ROCKETMQ, SATURNMQ, sync=False)
    pair.talk()
    pair.talk()
    files = pair.files["master"]
    *_, last = files.frames()
    start = last.physical_offset - last.physical_offset % files.segment_bytes
    segment = (files.root / "commitlog" / f"{start:020d}").read_bytes()
    for sizes in ((16,), (8, 8), (3, 8, 5), (11, 5)):
        opening = struct.pack(">qq", GREETING, 0)
        with socket.create_connection(("127.0.0.1", pair.master.port + 1), 10) as link:
            for size in sizes:
                link.sendall(opening[:size])
                opening = opening[size:]
                time.sleep(0.2)  # so that each piece travels alone
            offset, size = struct.unpack(">qi", receive(link, 12))
            assert offset == start > 0, "an empty slave starts at the last segment"
            assert receive(link, size) == segment[:size]
    pair.master.stop()


def receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        assert part, "the master closed the connection"
        data += part
    return data


def compare(pair: Pair, figures: Counter[str]) -> None:
    """The files of both after an orderly stop."""
    master, slave = pair.files["master"], pair.files["slave"]
    for make, files in ((pair.master_make, master), (pair.slave_make, slave)):
        files.check(twice=make == ROCKETMQ)
    frames = slave.frames()
    end = frames[-1].physical_offset + frames[-1].size
    for path in sorted((slave.root / "commitlog").glob("[0-9]*")):
        size = min(end - int(path.name), slave.segment_bytes)
        assert (
            path.read_bytes()[:size] == (master.root / "commitlog" / path.name).read_bytes()[:size]
        )
        figures["bytes of the log compared"] += max(0, size)
    start = slave.log_start
    queues = [
        {
            (key, at): entry
            for key, entries in files.queues().items()
            for at, entry in entries.items()
            if entry.offset >= start
        }
        for files in (master, slave)
    ]
    assert queues[0] == queues[1]
    figures["queue entries compared"] += len(queues[0])
    figures["frames replicated"] += len(frames)
