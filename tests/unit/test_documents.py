"""Tables of any size are saved and told between other requests, as they were when it began."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, run, started
from saturnmq.broker.replication import role
from saturnmq.broker.tables.table_persistence import (
    STEP_ROWS,
    Document,
    EncodedTable,
    LazyRows,
    Versioned,
    encode,
)
from saturnmq.broker.tables.topics import Topic, TopicTable
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.native import NativeRuntime
from saturnmq.runtime.steps import at_once

MANY = 10 * STEP_ROWS


class Table(Versioned):
    data_version = {"counter": 1}  # noqa: RUF012

    def document(self) -> Document:
        rows: list[Any] = [None] * STEP_ROWS + [(f"k{n}", n) for n in range(MANY)]
        nothing: list[Any] = [None]
        return {
            "n": 1,
            "rows": LazyRows(rows),
            "none": LazyRows(nothing),
            "left out": LazyRows(nothing, leave_out_empty=True),
        }

    def load(self, document: Mapping[str, Any]) -> None:
        raise NotImplementedError


def test_a_document_is_encoded_in_steps_and_is_its_snapshot() -> None:
    assert sum(1 for _ in encode(Table().document())) >= 11
    text = at_once(encode(Table().document()))
    wanted = {"n": 1, "rows": {f"k{n}": n for n in range(MANY)}, "none": {}}
    assert fastjson.loads(text) == wanted == Table().snapshot()


def test_a_table_is_encoded_once_until_it_changes() -> None:
    table = Table()
    encoded = EncodedTable(table, lambda document: {"twice": document["n"]})
    assert encoded.text() is None
    text = at_once(encoded.encoded())
    assert fastjson.loads(text) == {**table.snapshot(), "twice": 1}
    assert encoded.text() is text
    table.mark_dirty()
    assert encoded.text() is None
    work = encoded.encoded()
    next(work)
    table.mark_dirty()
    at_once(work)
    assert encoded.text() is None, "it changed meanwhile"


def test_of_a_table_of_topics_the_one_that_changed_is_encoded_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = []
    to_json = Topic.to_json

    def counted(topic: Topic) -> dict[str, Any]:
        encoded.append(topic.name)
        return to_json(topic)

    monkeypatch.setattr(Topic, "to_json", counted)
    table = TopicTable(lambda: 0, lambda: None, lambda: 0)
    for number in range(100):
        table.put(Topic(f"t{number}", 1, 1))
        at_once(encode(table.document()))
    table.put(Topic("t7", 2, 2))
    written = fastjson.loads(at_once(encode(table.document())))["topicConfigTable"]
    assert encoded == [*(f"t{number}" for number in range(100)), "t7"]
    assert {name: row["readQueueNums"] for name, row in written.items() if name in "t6t7"} == {
        "t6": 1,
        "t7": 2,
    }


@pytest.mark.parametrize("saved", [True, False])
def test_a_table_of_many_offsets_is_made_between_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    # A master that stood still for longer begins a new term, which takes back marks behind the ends
    # of queues, as those of this test are.
    monkeypatch.setattr(role, "PAUSE_S", 600.0)

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"})
        offsets = broker.context.offsets
        for number in range(MANY):
            offsets.commit(f"g{number}", "T", 0, number)
        if saved:
            much = asyncio.ensure_future(broker.ground.persistence.save(offsets))
        else:
            request = Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET)
            much = client.request(request, 10.0)
        await asyncio.sleep(0)
        for _ in range(3):
            assert (await ask(other, RequestCode.GET_BROKER_HA_STATUS)).code == 0
            assert not much.done()
            offsets.commit("g0", "T", 0, 7)
        reply = await much
        file = tmp_path / "config/consumerOffset.json"
        text = reply.body if reply is not None else file.read_bytes()
        table = fastjson.loads(text)["offsetTable"]
        assert table == {f"T@g{number}": {"0": number} for number in range(MANY)}
        await broker.ground.persistence.save(offsets)
        assert fastjson.loads(file.read_bytes())["offsetTable"]["T@g0"] == {"0": 7}
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)
