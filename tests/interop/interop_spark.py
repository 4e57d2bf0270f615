"""What Spark reads of a RocketMQ broker and what RocketMQ's own consumer prints of it, in one form:
by place (topic, queue, offset) the values of all columns.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from interop_files import StoreFiles
from interop_messages import (
    GROUPS_FILE,
    TOPIC,
    Sent,
    Speaker,
    everything,
    send_until_killed,
    speaking,
)
from interop_nodes import BROKER, ROCKETMQ, Node, Nodes
from saturnmq.cli.free_ports import free_block
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.columns import COLUMNS
from saturnmq.pipeline.places import open_access
from saturnmq.protocol.codes import RequestCode

ALL = tuple(name for name in COLUMNS if name != "_corrupt")
EVERY_TOPIC = ".*|%.*"
BY_CONSUMER = {"MIN_OFFSET", "MAX_OFFSET"}  # properties that a consumer adds
COMPRESSIONS = ("ZLIB", "LZ4", "ZSTD")  # of RocketMQ's producer

Place = tuple[str, int, int]
Rows = dict[Place, dict[str, Any]]

_PRINTED = re.compile(
    r"MSGID: (?P<messageId>\S*) MessageExt \[brokerName=(?P<brokerName>\S+), "
    r"queueId=(?P<queueId>\d+), storeSize=(?P<size>\d+), "
    r"queueOffset=(?P<queueOffset>\d+), sysFlag=(?P<sysFlag>\d+), "
    r"bornTimestamp=(?P<bornTimestamp>\d+), bornHost=/(?P<bornHost>\S+), "
    r"storeTimestamp=(?P<storeTimestamp>\d+), storeHost=/(?P<storeHost>\S+), msgId=\S+, "
    r"commitLogOffset=(?P<physicalOffset>\d+), bodyCRC=(?P<bodyCrc>\d+), "
    r"reconsumeTimes=(?P<reconsumeTimes>\d+), preparedTransactionOffset=0, "
    r"toString\(\)=Message\{topic='(?P<topic>.*?)', flag=(?P<flag>-?\d+), "
    r"properties=\{(?P<properties>.*?)\}, body=(?:\[(?P<body>.*?)\]|null), transactionId='.*?'\}\]"
)
_TEXTS = {"messageId", "brokerName", "bornHost", "storeHost", "topic", "properties", "body"}


@dataclass
class Spoken:
    """A RocketMQ broker that was told everything, running or stopped as a test wants it."""

    nodes: Nodes
    files: StoreFiles
    port: int = field(default_factory=lambda: free_block("127.0.0.1", 4) + 2)
    sent: list[Sent] = field(default_factory=list)
    said: dict[str, bytes] = field(default_factory=dict)
    _node: Node | None = None

    @property
    def nameserver(self) -> str:
        return self.nodes.nameserver(ROCKETMQ)

    @property
    def store(self) -> str:
        return str(self.files.root)

    def up(self) -> Node:
        if self._node is None:
            files = self.files
            settings = {
                "mappedFileSizeCommitLog": files.segment_bytes,
                "mappedFileSizeConsumeQueue": files.queue_bytes,
                "maxHashSlotNum": files.slots,
                "maxIndexNum": files.items,
                "enablePropertyFilter": "true",
            }
            self._node = self.nodes.broker(ROCKETMQ, files.root, self.port, settings)
        return self._node

    def down(self) -> None:
        """An orderly stop."""
        if self._node is not None:
            self._node.stop()
            self._node = None

    def speak_on(self) -> None:
        """A few messages more."""
        asyncio.run(self._speak(self.up(), 13, _some))

    def kill(self) -> None:
        """SIGKILL while several producers wait for acknowledgements."""
        node = self.up()
        asyncio.run(self._speak(node, 12, lambda speaker: send_until_killed(speaker, node)))
        self._node = None

    def tell(self) -> None:
        """Every form a message can take; compressed ones from RocketMQ's own producer as well."""
        config = self.files.root / "config"
        config.mkdir(parents=True)
        (config / "subscriptionGroup.json").write_text(json.dumps(GROUPS_FILE))
        asyncio.run(self._speak(self.up(), 11, everything))
        for name in COMPRESSIONS:
            arguments = ["-n", self.nameserver, "-t", TOPIC, "-b", BROKER, "-i", "1"]
            arguments += ["-p", long_text(name), "-k", f"java {name}", "-c", "TagA"]
            java = [f"-Drocketmq.message.compressType={name}"]
            printed = self.nodes.mqadmin("sendMessage", *arguments, java=java)
            assert "SEND_OK" in printed, printed[-1000:]

    def configure(self, name: str, value: str) -> None:
        """Change a setting of the running broker."""

        address = self.up().address

        async def ask() -> None:
            async with speaking(self.nameserver, address, seed=0) as speaker:
                body = f"{name}={value}".encode()
                answer = await speaker.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
                assert answer.code == 0, answer.remark

        asyncio.run(ask())

    def printed(self, topic: str) -> Rows:
        """What RocketMQ's consumer reads of a topic, every body inflated."""
        arguments = ("-n", self.nameserver, "-t", topic, "-d", "false")
        java = ("-Dfile.encoding=UTF-8", "-Dsun.stdout.encoding=UTF-8")
        found = {}
        for line in self.nodes.mqadmin("printMsg", *arguments, java=java).splitlines():
            if line.startswith("MSGID:"):
                match = _PRINTED.match(line)
                assert match, line[:1000]
                row = _typed(match.groupdict())
                found[_place(row)] = row
        return found

    def progress(self, group: str) -> dict[int, int]:
        """By queue the group's offset of TOPIC, as `mqadmin consumerProgress` prints it."""
        printed = self.nodes.mqadmin("consumerProgress", "-n", self.nameserver, "-g", group)
        lines = [line.split() for line in printed.splitlines() if line.startswith(TOPIC)]
        return {int(words[2]): int(words[4]) for words in lines}

    def ends(self, topic: str) -> dict[int, int]:
        """By queue the next offset, as the broker says it."""
        with open_access(Where.brokers(self.nameserver)) as access:
            bounds = access.bounds([topic])
        return {queue.queue_id: high for queue, (_, high) in bounds.items()}

    def brokers(self, **options: str) -> dict[str, str]:
        """Options that read the broker."""
        self.up()
        return {"endpoints": self.nameserver, "columns": ",".join(ALL), **options}

    def directory(self, **options: str) -> dict[str, str]:
        """Options that read its files."""
        return {"store": self.store, "brokerName": BROKER, "columns": ",".join(ALL), **options}

    async def _speak(
        self, node: Node, seed: int, tell: Callable[[Speaker], Awaitable[None]]
    ) -> None:
        async with speaking(self.nameserver, node.address, seed) as speaker:
            await tell(speaker)
        self.sent += speaker.sent
        self.said |= speaker.said


async def _some(speaker: Speaker) -> None:
    await speaker.send(speaker.message(300) for _ in range(40))


def long_text(end: str) -> str:
    """A body that RocketMQ's producer compresses: it has more than 4 KiB."""
    return "saturn " * 3000 + end


def batch(spark: Any, options: dict[str, str]) -> Rows:
    """A batch read, by place."""
    return rows(spark.read.format("saturnmq").options(**options).load())


def stream(spark: Any, options: dict[str, str], directory: Path) -> tuple[Rows, Any]:
    """What a query wrote that ends when all is read, by place; and the query."""
    frame = spark.readStream.format("saturnmq").options(**options).load()
    output = str(directory / "out")
    writer = frame.writeStream.format("parquet").option("path", output)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return rows(spark.read.parquet(output)), query


def rows(frame: Any) -> Rows:
    """The rows of a frame with all columns, none of them twice."""
    found: Rows = {}
    for row in frame.toArrow().to_pylist():
        made = dict(row) | {"properties": dict(row["properties"])}
        for name in ("storeTimestamp", "bornTimestamp"):
            made[name] = _ms(row[name])
        assert found.setdefault(_place(made), made) is made, "a row came twice"
    return found


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _place(row: dict[str, Any]) -> Place:
    return row["topic"], row["queueId"], row["queueOffset"]


def _typed(texts: dict[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {k: v if k in _TEXTS else int(v) for k, v in texts.items()}
    pairs = [pair.split("=", 1) for pair in texts["properties"].split(", ") if pair]
    row["properties"] = {name: value for name, value in pairs if name not in BY_CONSUMER}
    row["keys"] = row["properties"].get("KEYS")
    row["tags"] = row["properties"].get("TAGS")
    row["body"] = bytes(int(number) & 255 for number in (texts["body"] or "").split(", ") if number)
    row["crcOk"] = True
    return row
