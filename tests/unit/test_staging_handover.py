"""The master changes while an atomic batch is appended: the next one has it whole, or nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, pull, run, send, started, until
from failover_rig import Group
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import TERM
from saturnmq.runtime.native import NativeRuntime
from staging_rig import CHUNKS, KEY, TOPIC, publishing


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_a_master_is_fenced_when_its_batch_is_whole_and_the_next_one_has_all_of_it(
    tmp_path: Path, role: str
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, role=role) as group:
            old, new = group.master, group.slave
            client = await connected(runtime, old)
            assert (await ask(client, 17, TOPIC)).code == 0
            assert await group.send_all(old, b"before") == [0]
            publish = await publishing(client, old)
            code, state = await group.role(old, RequestCode.FENCE, epoch=5 * TERM)
            assert (code, old.store.in_group) == (0, False)
            end: Any = state["end"] if isinstance(state, dict) else -1
            assert end == old.store.watermarks.appended
            await until(lambda: new.store.watermarks.appended >= end)
            code, _ = await group.role(new, RequestCode.PROMOTE, epoch=5 * TERM, end=end)
            assert code == 0
            published = await publish
            assert (published.code, published.ext["rows"]) == (0, str(3 * CHUNKS))
            await until(lambda: new.store.max_offset("orders", 0) == 1 + 3 * CHUNKS)

    run(body)


def test_an_attempt_that_was_dropped_is_staged_again_beside_its_files(tmp_path: Path) -> None:
    """Its sink repeats a chunk whose answer was lost, while the files of before are deleted."""

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, stage_memory_bytes=0))
        client = await connected(runtime, broker)
        assert (await ask(client, 17, TOPIC)).code == 0
        chunk = bytes(encode_batch([(b"row", b"UNIQ_KEY\x01U\x02", 0)]))
        place = {**KEY, "seq": 0, "topic": "orders", "queueId": 0}
        assert (await ask(client, RequestCode.STAGE, place, chunk)).code == 0
        for _ in range(20):
            dropped = ask(client, RequestCode.ABORT_STAGE, KEY)
            answers = await asyncio.gather(dropped, ask(client, RequestCode.STAGE, place, chunk))
            assert [(each.code, each.remark) for each in answers] == [(0, None)] * 2
        broker.messaging.staging.validate()
        await until(lambda: len(list((tmp_path / "staging").iterdir())) == 1)
        await broker.close()

    run(body)


def test_a_batch_is_given_up_when_its_node_is_master_no_more(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await ask(client, 17, TOPIC)).code == 0
        assert (await send(client, b"before")).code == 0
        end = broker.store.watermarks.appended
        publish = await publishing(client, broker)
        broker.context.role.depose("another node leads")
        refused = await publish
        assert (refused.code, "another node leads" in str(refused.remark)) == (2, True)
        assert (broker.store.in_group, broker.store.watermarks.appended) == (False, end)
        assert (await send(client, b"after")).code == 2
        assert (await pull(client, 0)).code == 0
        broker.messaging.staging.validate()
        await broker.close()

    run(body)
