"""Topics of batches: the same requests to a real RocketMQ and to SaturnMQ leave the same frames and
units, RocketMQ's client writes and reads them at both, and either broker goes on with the other's
directory.

Equal to the byte but for times, ports, the CRC over them and the order of properties.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from interop_nodes import ROCKETMQ, SATURNMQ, Node, Nodes, java
from saturnmq import Admin, Message, MessageQueue, Producer, PullConsumer
from saturnmq.cli.free_ports import free_block
from saturnmq.protocol.asking import connect
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.compression import ZSTD, compress, sys_flag_of
from saturnmq.protocol.frame import INNER_BATCH, NEED_UNWRAP, WRAPPED, Frame, decode_frame
from saturnmq.protocol.frame_reference import BATCH_UNIT
from saturnmq.protocol.jhash import tags_code
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import NativeDisk
from saturnmq.store.inspect.verify import check

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
TOPIC = "batches"
SIZES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000}
UNIT_FILE = 46 * 1000
SIZES |= {"mapperFileSizeBatchConsumeQueue": UNIT_FILE}
FIELDS = {"a": "P", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "g": "1", "h": "0", "j": "0"}


def started(nodes: Nodes, make: str, root: Path) -> Node:
    is_new = not root.exists()
    node = nodes.broker(make, root, free_block("127.0.0.1", 4) + 2, dict(SIZES))
    if not is_new:
        return node
    with Admin(nodes.nameserver(make)) as admin:
        admin.create_topic(TOPIC, queues=2, attributes={"queue.type": "BatchCQ"})
    return node


def packed(first: int, count: int) -> bytes:
    return bytes(
        encode_batch(
            (b"%d" % n, b"UNIQ_KEY\x01%032d\x02TAGS\x01t%d\x02" % (n, n % 2), 0)
            for n in range(first, first + count)
        )
    )


async def tell(address: str) -> list[tuple[int, str]]:
    """The code and the queue offset of each answer."""
    endpoint = await connect(NativeRuntime(), *split_address(address), lambda *_: None)
    found = []
    first = 0
    for count, kind in ((3, ""), (1, "single"), (7, "zipped"), (200, "zipped"), (5, "")):
        properties = f"UNIQ_KEY\x01{first:032d}\x02WAIT\x01true\x02"
        body, code, flags = packed(first, count), 320, 0
        if kind == "single":
            body, code = b"%d" % first, 310
            properties += f"TAGS\x01t{first % 2}\x02"
        elif kind == "zipped":
            body, code = compress(body, ZSTD, 3), 310
            flags = WRAPPED | sys_flag_of(ZSTD)
            properties += f"INNER_NUM\x01{count}\x02"
        ext = {**FIELDS, "f": str(flags), "i": properties, "m": str(code == 320).lower()}
        answer = await endpoint.request(Command.request(code, ext, body), 10.0)
        found.append((answer.code, answer.ext.get("queueOffset", "")))
        first += count
    endpoint.close()
    return found


def frames_of(root: Path) -> list[Frame]:
    data, at, found = (root / "commitlog" / ("0" * 20)).read_bytes(), 0, []
    while isinstance(frame := decode_frame(data, at), Frame):
        if frame.topic == TOPIC.encode():
            found.append(frame)
        at += frame.size
    return found


def units_of(root: Path, queue: int = 0) -> list[tuple[int, ...]]:
    path = root / "batchconsumequeue" / TOPIC / str(queue) / ("0" * 20)
    data = path.read_bytes()
    assert len(data) == UNIT_FILE
    return [unit for unit in BATCH_UNIT.iter_unpack(data) if unit[1]]


def comparable(frame: Frame) -> dict[str, object]:
    """A single message is an inner batch of one in ours only."""
    names = ("body", "queue_id", "flag", "queue_offset", "sys_flag", "reconsume_times")
    fields: dict[str, object] = {name: getattr(frame, name) for name in names}
    properties = dict(frame.properties)
    properties.pop("__CRC32#", None)
    if not frame.sys_flag & NEED_UNWRAP:
        fields["sys_flag"] = frame.sys_flag & ~INNER_BATCH
        for name in ("INNER_NUM", "INNER_BASE"):
            properties.pop(name, None)
    return {**fields, "properties": properties}


def test_frames_and_units_are_those_of_a_real_rocketmq(
    nodes: Nodes, tmp_path: Path, figures: Counter[str]
) -> None:
    told, stores = {}, {}
    for make in (ROCKETMQ, SATURNMQ):
        root = stores[make] = tmp_path / make
        node = started(nodes, make, root)
        told[make] = asyncio.run(tell(node.address))
        node.stop()
    assert told[SATURNMQ] == told[ROCKETMQ]
    assert [code for code, _ in told[SATURNMQ]] == [0] * 5
    theirs, ours = frames_of(stores[ROCKETMQ]), frames_of(stores[SATURNMQ])
    assert list(map(comparable, ours)) == list(map(comparable, theirs))
    for root, frames in ((stores[make], found) for make, found in (
        (ROCKETMQ, theirs), (SATURNMQ, ours)
    )):  # fmt: skip
        assert units_of(root) == [
            (
                frame.physical_offset,
                frame.size,
                tags_code(frame.properties.get("TAGS")),
                frame.store_timestamp,
                frame.queue_offset,
                int(frame.properties.get("INNER_NUM", "1")),
                -1,
                0,
            )
            for frame in frames
        ]
    figures["frames of batches compared"] += len(ours)
    figures["units of batches compared"] += len(ours)


def lines(first: int, end: int) -> list[str]:
    return [f"{n} {n} t{n % 2}" for n in range(first, end)]


def read_by_ours(nameserver: str, first: int, end: int) -> list[str]:
    queue = MessageQueue(TOPIC, "broker-a", 0)
    found: list[str] = []
    with PullConsumer("ours", nameserver, auto_commit=False) as consumer:
        consumer.assign([queue])
        consumer.seek(queue, first)
        while len(found) < end - first:
            polled = consumer.poll(10.0)
            assert polled, f"{len(found)} of {end - first} came"
            found += [f"{m.queue_offset} {bytes(m.body).decode()} {m.tag}" for m in polled]
    return found


@pytest.mark.quick
@pytest.mark.parametrize("make", [ROCKETMQ, SATURNMQ])
def test_clients_of_both_makes_write_and_read_batches_at_both_brokers(
    nodes: Nodes, jars: Path, tmp_path: Path, figures: Counter[str], make: str
) -> None:
    node = started(nodes, make, tmp_path / "store")
    nameserver = nodes.nameserver(make)

    def told(*what: str) -> list[str]:
        printed = java(jars, "Batches.java", nameserver, what[0], TOPIC, *what[1:], home=tmp_path)
        return [line.removeprefix("> ") for line in printed if line.startswith("> ")]

    assert told("send", "0", "0") == ["SEND_OK 0", "SEND_OK 3", "SEND_OK 4"]
    with Producer(nameservers=nameserver, compression="zstd") as producer:
        batch = [Message(TOPIC, b"%d" % n, tag=f"t{n % 2}") for n in range(9, 400)]
        results = producer.send_batch(batch, queue=MessageQueue(TOPIC, "broker-a", 0))
    assert [result.queue_offset for result in results] == list(range(9, 400))
    assert told("read", "0", "0") == [*lines(0, 400), "400"]
    assert told("read", "0", "5") == [*lines(4, 400), "400"]
    assert read_by_ours(nameserver, 0, 400) == lines(0, 400)
    # RocketMQ's broker begins this reply with a message that is in no batch.
    assert read_by_ours(nameserver, 3, 400) == lines(3, 400)
    assert read_by_ours(nameserver, 5, 400) == lines(5, 400)
    figures["messages of batches read"] += 1_988
    node.stop()


@pytest.mark.parametrize("first", [ROCKETMQ, SATURNMQ])
def test_each_broker_goes_on_with_the_batches_of_the_other(
    nodes: Nodes, tmp_path: Path, figures: Counter[str], first: str
) -> None:
    root = tmp_path / "store"
    second = SATURNMQ if first == ROCKETMQ else ROCKETMQ
    node = started(nodes, first, root)
    assert [code for code, _ in asyncio.run(tell(node.address))] == [0] * 5
    node.stop()
    before = units_of(root)
    if first == ROCKETMQ:
        assert not check(NativeDisk(), str(root)).damage
    node = started(nodes, second, root)
    nameserver = nodes.nameserver(second)
    assert read_by_ours(nameserver, 0, 216) == lines(0, 216)
    assert asyncio.run(tell(node.address))[0] == (0, "216")
    node.stop()
    assert units_of(root)[: len(before)] == before
    node = started(nodes, first, root)
    found = read_by_ours(nodes.nameserver(first), 0, 432)
    assert found == [*lines(0, 216), *(f"{216 + n} {n} t{n % 2}" for n in range(216))]
    node.stop()
    figures["directories with batches that changed hands"] += 2
