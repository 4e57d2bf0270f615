"""The same messages to a real RocketMQ and to SaturnMQ: the files they leave are the same.

Equal to the byte but for times, hosts, the CRC over them, the order of properties (RocketMQ's is
that of a Java hash map) and the delivery times in SCHEDULE_TOPIC_XXXX's queue entries, which are
checked against the store times of their frames.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from interop_files import SCHEDULE, Entry, StoreFiles
from interop_messages import GROUPS_FILE, everything, speaking
from interop_nodes import ROCKETMQ, SATURNMQ, Nodes
from saturnmq.cli.free_ports import free_block
from saturnmq.protocol.frame import Frame, has_crc_property
from saturnmq.protocol.ids import decode_message_id

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
SIZES = (1 << 20, 20_000, 500, 2000)
KEYS = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
GIVEN_ID = "0" * 12  # unique ids begin so, unless a broker made them


@pytest.mark.parametrize("crc", ["true", "false"])
def test_frames_queues_and_index_are_those_of_a_real_rocketmq(
    nodes: Nodes, tmp_path: Path, figures: Counter[str], crc: str
) -> None:
    settings = {**dict(zip(KEYS, SIZES, strict=True)), "enabledAppendPropCRC": crc}
    stores = {}
    for make in (ROCKETMQ, SATURNMQ):
        store = StoreFiles(tmp_path / make, *SIZES)
        (store.root / "config").mkdir(parents=True)
        (store.root / "config" / "subscriptionGroup.json").write_text(json.dumps(GROUPS_FILE))
        broker = nodes.broker(make, store.root, free_block("127.0.0.1", 4) + 2, settings)
        asyncio.run(tell(nodes.nameserver(make), broker.address))
        broker.stop()
        assert not (store.root / "abort").exists()
        store.check()
        stores[make] = store
    theirs, ours = stores[ROCKETMQ], stores[SATURNMQ]

    frames = list(zip(theirs.frames(), ours.frames(), strict=True))
    for their, our in frames:
        assert comparable(our) == comparable(their)
        for frame in (their, our):  # reading it has checked that the CRC is right
            assert has_crc_property(frame.raw_properties) is (crc == "true")
    assert ours.blanks() == theirs.blanks()

    last = frames[-1][1].physical_offset  # its unique id is the broker's own
    our_queues, their_queues = (without(last, store.queues()) for store in (ours, theirs))
    assert our_queues == their_queues
    indexed = ours.indexed([our for _, our in frames])
    their_indexed = theirs.indexed([their for their, _ in frames])
    assert [pair for pair in indexed if pair[1] != last] == [
        pair for pair in their_indexed if pair[1] != last
    ]
    assert len(indexed) == len(their_indexed)

    figures["frames compared"] += len(frames)
    figures["queue entries compared"] += sum(len(entries) for entries in our_queues.values())
    figures["index items compared"] += len(indexed)
    same_order = sum(list(our.properties) == list(their.properties) for their, our in frames)
    figures["frames with properties in the same order"] += same_order


async def tell(nameserver: str, address: str) -> None:
    async with speaking(nameserver, address, seed=7) as made:
        await everything(made)


def without(
    offset: int, queues: dict[tuple[str, int], dict[int, Entry]]
) -> dict[tuple[str, int], dict[int, Entry]]:
    """All entries but one; no delivery times, which `check` has held against the store times."""
    return {
        (topic, queue_id): {
            at: entry._replace(code=0) if topic == SCHEDULE else entry
            for at, entry in entries.items()
            if entry.offset != offset
        }
        for (topic, queue_id), entries in queues.items()
    }


def comparable(frame: Frame) -> dict[str, object]:
    """Every field that does not depend on the clock, on ports or on the order of properties."""
    names = [
        "size",
        "body_crc",
        "queue_id",
        "flag",
        "queue_offset",
        "physical_offset",
        "sys_flag",
        "reconsume_times",
        "prepared_offset",
        "body",
        "topic",
    ]
    fields: dict[str, object] = {name: getattr(frame, name) for name in names}
    properties = dict(frame.properties)
    properties.pop("__CRC32#", None)
    if not has_given_id(frame):
        fields["size"] = frame.size - len(properties.pop("UNIQ_KEY", ""))
    if "ORIGIN_MESSAGE_ID" in properties:
        host, _port, offset = decode_message_id(properties["ORIGIN_MESSAGE_ID"])
        properties["ORIGIN_MESSAGE_ID"] = f"{host} {offset}"
    fields["properties"] = properties
    fields["hosts"] = frame.born_host[:-4], frame.store_host[:-4]
    return fields


def has_given_id(frame: Frame) -> bool:
    return frame.properties.get("UNIQ_KEY", "").startswith(GIVEN_ID)
