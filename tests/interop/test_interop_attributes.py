"""The same changes of attributes at a broker of RocketMQ's and at one of ours: taken or refused
alike, with the same attributes after each."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from interop_nodes import ROCKETMQ, SATURNMQ, Nodes
from saturnmq.cli.free_ports import free_block
from saturnmq.protocol.asking import connect
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime

pytestmark = [pytest.mark.quick, pytest.mark.interop, pytest.mark.timeout(300)]

# Topic, changes; in this order.
CHANGES = [
    ("plain", ""),
    ("plain", "-message.type"),
    ("plain", "+message.type=FIFO"),
    ("plain", "+message.type=DELAY,+reserve.time=5"),
    ("plain", ""),
    ("plain", "+message.type=NORMAL,-message.type"),
    ("plain", "+message.type=NORMAL,+message.type=FIFO"),
    ("plain", "-reserve.time,"),
    ("plain", ","),
    ("plain", ",+reserve.time=7"),
    ("plain", "+cleanup.policy=DELETE"),
    ("plain", "-queue.type"),
    ("plain", "+colour=red"),
    ("plain", "-colour"),
    ("plain", "reserve.time=5"),
    ("plain", "+reserve.time"),
    ("plain", "-reserve.time=5"),
    ("plain", "++reserve.time=5"),
    ("plain", "+=5"),
    ("plain", "+reserve.time="),
    ("plain", "+reserve.time=-1"),
    ("plain", "+reserve.time=-2"),
    ("plain", "+reserve.time=9223372036854775807"),
    ("plain", "+reserve.time=9223372036854775808"),
    ("plain", "+reserve.time=soon"),
    ("plain", "+message.type=fifo"),
    ("plain", "+message.type=MIXED"),
    ("plain", "-message.type,-reserve.time"),
    ("typed", "-message.type"),
    ("typed", "+message.type=TRANSACTION,+cleanup.policy=DELETE,+queue.type=SimpleCQ"),
    ("typed", "+cleanup.policy=DELETE"),
    ("typed", "-queue.type"),
    ("typed", "+message.type=UNSPECIFIED"),
    ("batched", "+queue.type=BatchCQ"),
    ("batched", "+queue.type=SimpleCQ"),
    ("odd", "+queue.type=other"),
    ("odd", "+cleanup.policy=delete"),
]
REFUSED_BY_US = [
    ("compacted", "+cleanup.policy=COMPACTION"),
    ("prioritized", "+message.type=PRIORITY"),
]
Outcome = tuple[str, str, bool, dict[str, str] | None]


async def outcomes(address: str) -> list[Outcome]:
    """For each change, whether it was taken, and the attributes of its topic after it."""
    endpoint = await connect(NativeRuntime(), *split_address(address), lambda *_: None)

    async def ask(code: RequestCode, ext: dict[str, str]) -> Command:
        return await endpoint.request(Command.request(code, ext), 10.0)

    found: list[Outcome] = []
    for topic, changes in (*CHANGES, *REFUSED_BY_US):
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
            "attributes": changes,
        }
        answer = await ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        told = await ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        attributes = json.loads(bytes(told.body))["attributes"] if told.code == 0 else None
        found.append((topic, changes, answer.code == 0, attributes))
    endpoint.close()
    return found


def test_both_brokers_take_the_same_changes_and_refuse_the_same(
    nodes: Nodes, jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    ports = {make: free_block("127.0.0.1", 4) + 2 for make in (ROCKETMQ, SATURNMQ)}
    found = {}
    for make, port in ports.items():
        nodes.broker(make, tmp_path / make, port, {})
        found[make] = asyncio.run(outcomes(f"127.0.0.1:{port}"))
    differ = [pair for pair in zip(*found.values(), strict=True) if pair[0] != pair[1]]
    assert [(theirs[:2], theirs[2], ours[2]) for theirs, ours in differ] == [
        (change, True, False) for change in REFUSED_BY_US
    ]
    assert {outcome[2] for outcome in found[SATURNMQ][: len(CHANGES)]} == {True, False}
    figures["changes of attributes"] += len(CHANGES)
