"""The small files of a broker, and the offsets of a broadcasting consumer: spoiled, then read.

A reader accepts a file or refuses it by a typed error. If it accepts the content, it can write it
and read the same again. For some inputs a whole broker starts with the file: it refuses to start
and names the file, or it serves, and its tables are saved.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.delay.delivery import DelayService
from saturnmq.broker.exactly_once.sinks import SinkTable
from saturnmq.broker.replication.elector import SavedMemory
from saturnmq.broker.replication.role import Role
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.broker.tables.subscription_groups import GroupTable
from saturnmq.broker.tables.table_persistence import Saveable
from saturnmq.broker.tables.topics import TopicTable
from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.offset_store import LocalOffsets
from saturnmq.client.producer.producer import Producer
from saturnmq.drills.fuzz.corpus import TABLES
from saturnmq.drills.fuzz.inprocess import Violation
from saturnmq.drills.fuzz.mutations import bent, spoiled, written
from saturnmq.drills.fuzz.scene import ROOT, SMALL, FuzzScene, disk_of, files_of
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol import fastjson
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SaturnError
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.log.epochs import Epochs
from saturnmq.store.message_store import MessageStore, StoreConfig
from saturnmq.store.recovery.checkpoint import Checkpoint

STARTS = 250  # of so many inputs one starts a broker
BYTES_MAX = 1 << 20  # of a file: what is there 50 times may be so within another that is
SERVES_S = 5.0  # of virtual time
CONFIG = ROOT + "/config/"
EPOCHS, CHECKPOINT = ROOT + "/epochFileCheckpoint", ROOT + "/checkpoint"
OFFSETS = "/home/offsets.json"
SINK = {
    "first": 0, "newest": 0, "touched": 1, "finished": 1, "finishedEnd": 0, "brokers": ["broker-a"],
    "brokersAt": 0, "brokersEnd": 0, "epochs": {"2": {"0": [1, 100, 0, 0, "a"]}},
}  # fmt: skip
WRITTEN: dict[str, Any] = {
    CONFIG + "sinks.json": {"end": 0, "next": 0, "sinks": {"s": SINK}},
    CONFIG + "election.json": {
        "cluster": 7,
        "revision": 3,
        "recordChanged": 2,
        "members": ["10.0.0.1:10911"],
        "forgot": "",
    },
}
LOCAL = {MessageQueue("orders", "broker-a", 0): 7}


class Files:
    """The target."""

    def __init__(self, seed: int) -> None:
        self._files = lived(seed)
        self._seed = seed
        self._disk = disk_of(self._files, seed)
        self._store = MessageStore.open(
            StoreConfig(root=ROOT, **SMALL), disk_of(self._files, seed), cast(Runtime, _Still())
        )
        self._readers: dict[str, Callable[[], None]] = {
            name: partial(self._table, name, make)
            for name, make in {
                "topics": lambda: TopicTable(_now_ms, lambda: None, lambda: 1000),
                "subscriptionGroup": lambda: GroupTable(_now_ms, auto_create=True),
                "consumerOffset": lambda: ConsumerOffsets(_now_ms),
                "delayOffset": self._delays,
                "sinks": lambda: SinkTable(self._store, _now_ms),
                "role": lambda: Role(BrokerConfig(root=ROOT)),
                "election": SavedMemory,
            }.items()
        }
        self._readers |= {EPOCHS: self._epochs, CHECKPOINT: self._checkpoint, OFFSETS: self._local}
        self._names = sorted(self._readers)
        self._kept = iter(TABLES)

    def close(self) -> None:
        self._store.close()

    def turn(self, rng: random.Random) -> list[str]:
        kept = next(self._kept, None)
        name = rng.choice(self._names) if kept is None else kept[0]
        path = name if name.startswith("/") else f"{CONFIG}{name}.json"
        data = self._another(rng, path) if kept is None else kept[1]
        if rng.randrange(STARTS) == 0 and path.startswith(ROOT):
            return [self._start(path, data)]
        self._disk.write_file(path, data)
        try:
            self._readers[name]()
        except SaturnError:
            return [f"{name}: refused"]
        return [f"{name}: read"]

    def _another(self, rng: random.Random, path: str) -> bytes:
        data = self._files[path]
        if not path.endswith(".json") or rng.random() < 0.3:
            for _ in range(rng.choice((1, 1, 1, 3))):
                data = spoiled(rng, data)
            return data
        if path == OFFSETS:  # its keys are queues: no strict JSON
            key, value = rng.choice(_QUEUES), written(bent(rng, 7))
            return b'{"offsetTable":{%b:%b}}' % (key, value)
        document = json.loads(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            document = bent(rng, document)
        return written(document)[:BYTES_MAX]

    # the readers

    def _table(self, name: str, make: Callable[[], Any]) -> None:
        first = _loaded(make(), ConfigFile(self._disk, f"{CONFIG}{name}.json").load() or {})
        again = _loaded(make(), fastjson.loads(first))
        if first != again:
            raise Violation(f"{name}: what was written is read as another: {first!r}, {again!r}")

    def _delays(self) -> DelayService:
        context: Any = SimpleNamespace(store=self._store, runtime=_Still())
        return DelayService(context, context)

    def _epochs(self) -> None:
        fastjson.dumps(Epochs.load(self._disk, ROOT, 1 << 40).to_json())

    def _checkpoint(self) -> None:
        page = Checkpoint.load(self._disk, ROOT)
        page.save(self._disk, ROOT)
        if Checkpoint.load(self._disk, ROOT) != page:
            raise Violation(f"the checkpoint is read as another: {page}")

    def _local(self) -> None:
        asyncio.run(self._opened_and_written())

    async def _opened_and_written(self) -> None:
        core: Any = SimpleNamespace(runtime=_Still())
        offsets = LocalOffsets(core, _Unlocked(self._disk), OFFSETS)
        await offsets.open()
        for queue in LOCAL:
            offsets.update(queue, 1 << 40)
        await offsets.commit()

    # the whole broker

    def _start(self, path: str, data: bytes) -> str:
        disk = disk_of({**self._files, path: data}, self._seed)
        scene = FuzzScene(self._seed)

        async def body() -> str:
            nameserver = await scene.nameserver()
            try:
                broker = await scene.broker(disk, nameserver)
            except SaturnError:
                return "a broker refuses to start"
            return await _served(scene, broker, nameserver)

        try:
            return scene.run(body)
        finally:
            scene.close()


async def _served(scene: FuzzScene, broker: Broker, nameserver: str) -> str:
    await scene.node("time").sleep(SERVES_S)
    if broker.failures.count:
        raise Violation(f"it failed in a way that nobody foresaw: {broker.failures.last}")
    state = broker.context.role.state_name
    client = scene.node("client")
    async with Admin(nameserver, runtime=client) as admin:
        if state == "master":
            await admin.create_topic("another", 1)
            await admin.route("another")
    await broker.close()
    if broker.failed:
        raise Violation(f"it ends badly: {broker.failed}")
    return f"a broker serves, {state}"


def lived(seed: int) -> dict[str, bytes]:
    """The files of a broker that has seen some of everything, and was stopped in order."""
    scene, disk = FuzzScene(seed), SimDisk(random.Random(seed))

    async def body() -> None:
        nameserver = await scene.nameserver()
        broker = await scene.broker(disk, nameserver)
        client = scene.node("client")
        async with Admin(nameserver, runtime=client) as admin:
            for topic in ("orders", "old"):
                await admin.create_topic(topic, 2)
            await admin.create_group("readers")
            async with Producer("writers", nameserver, runtime=client) as producer:
                for number in range(6):
                    delay = 1 + number % 3 if number > 3 else 0
                    await producer.send(Message("orders", b"%d" % number, delay_level=delay))
                await producer.send(Message("old", b"x"))
            await admin.reset_offsets("readers", "orders", 0)
            await admin.delete_topic("old")
        broker.context.role.add_replica(1, "10.0.0.9:10911")
        await broker.close()

    scene.run(body)
    scene.close()
    files = files_of(disk)
    files |= {path: fastjson.dumps(document) for path, document in WRITTEN.items()}
    files[OFFSETS] = b'{"offsetTable":' + fastjson.dumps_mq_map(LOCAL) + b"}"
    return {path: data for path, data in files.items() if not path.endswith(".bak")}


def _loaded(table: Saveable, document: dict[str, Any]) -> bytes:
    """The text that the table would write after it loaded the document, without its version."""
    table.load(document)
    document = table.snapshot()
    document.pop("dataVersion", None)
    return fastjson.dumps(document)


def _now_ms() -> int:
    return 1


class _Still:
    """A runtime whose time stands, and whose workers are done at once."""

    now_ms = staticmethod(_now_ms)

    @staticmethod
    def monotonic() -> float:
        return 1.0

    @staticmethod
    def spawn(work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        return asyncio.create_task(work, name=name)

    @staticmethod
    async def run_blocking(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class _Unlocked:
    """Files of a home directory."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def read(self, path: str) -> bytes | None:
        return self._disk.read_file(path)

    def replace(self, path: str, data: bytes) -> None:
        fastjson.loads(data)

    def lock(self, path: str) -> str | None:
        return None

    def unlock(self, path: str) -> None: ...


_QUEUES = (
    b'{"brokerName":"broker-a","queueId":0,"topic":"orders"}',
    b'{"brokerName":"broker-a","queueId":%d,"topic":"orders"}' % (1 << 70),
    b'{"brokerName":"broker-a","queueId":-1,"topic":""}',
    b'{"brokerName":7,"queueId":0,"topic":"orders"}',
    b'{"topic":"orders"}',
    b'"orders"',
    b"7",
    b"{}",
    b"[]",
)
