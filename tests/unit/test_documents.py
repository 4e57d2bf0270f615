"""Tables of any size are saved and told between other requests, as they were when it began."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, run, started
from saturnmq.broker.documents import STEP_ROWS, Document, Rows, Saveable, encode
from saturnmq.protocol import jsonx
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.native import NativeRuntime
from saturnmq.protocol.remoting import Command

MANY = 10 * STEP_ROWS


class Table(Saveable):
    def document(self) -> Document:
        rows: list[Any] = [None] * STEP_ROWS + [(f"k{n}", n) for n in range(MANY)]
        nothing: list[Any] = [None]
        return {
            "n": 1,
            "rows": Rows(rows),
            "none": Rows(nothing),
            "left out": Rows(nothing, leave_out_empty=True),
        }


def test_a_document_is_encoded_in_steps_and_is_its_snapshot() -> None:
    work, steps = encode(Table().document()), 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            text = done.value
            break
        steps += 1
    assert steps >= 11
    wanted = {"n": 1, "rows": {f"k{n}": n for n in range(MANY)}, "none": {}}
    assert jsonx.loads(text) == wanted == Table().snapshot()


@pytest.mark.parametrize("saved", [True, False])
def test_a_table_of_many_offsets_is_made_between_other_requests(
    tmp_path: Path, saved: bool
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"})
        offsets = broker.context.offsets
        for number in range(MANY):
            offsets.commit(f"g{number}", "T", 0, number)
        if saved:
            much = asyncio.ensure_future(broker._saver.save(offsets))
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
        table = jsonx.loads(text)["offsetTable"]
        assert table == {f"T@g{number}": {"0": number} for number in range(MANY)}
        await broker._saver.save(offsets)
        assert jsonx.loads(file.read_bytes())["offsetTable"]["T@g0"] == {"0": 7}
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)
