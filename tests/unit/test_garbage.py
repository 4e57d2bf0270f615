"""A node's collector looks at what is new, and what ends leaves it nothing to find."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_rig import ask, config, connected, pull, run, send, started, until
from saturnmq.cli import garbage
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.runtime.native import NativeRuntime


@pytest.fixture
def restored() -> Iterator[None]:
    """The collector is left as it was found."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.enable()


@pytest.fixture
def collector(restored: None) -> None:
    garbage.begin()


class Thing:
    other: object = None


def test_a_node_that_begins_to_serve_does_not_look_at_what_its_start_made(
    restored: None,
) -> None:
    seen: list[dict[str, int]] = []
    gc.disable()  # none comes by chance
    gc.callbacks.append(lambda phase, info: seen.append(info))
    try:
        garbage.begin()
        assert seen == []
        assert gc.get_freeze_count() > 10_000, "the objects of the start"
    finally:
        gc.callbacks.pop()


def test_what_was_alive_at_a_collection_is_not_looked_at_again(collector: None) -> None:
    first, second = Thing(), Thing()
    first.other, second.other = second, first
    cycle = weakref.ref(first)
    del first, second
    kept = [[number] for number in range(2 * garbage.YOUNG * garbage.MIDDLE)]
    garbage.look()
    assert cycle() is None
    assert not {id(each) for each in kept} & {id(each) for each in gc.get_objects()}
    looked_at = gc.get_freeze_count()
    garbage.look()
    assert gc.get_freeze_count() <= looked_at, "nothing is new"


def test_a_connection_that_ends_leaves_nothing_that_only_a_collection_frees(
    tmp_path: Path, collector: None
) -> None:
    beat = {
        "clientID": "c",
        "consumerDataSet": [
            {"groupName": "G", "subscriptionDataSet": [{"topic": "orders", "subString": "*"}]}
        ],
    }

    def closed() -> int:
        return sum(isinstance(each, Endpoint) and each.closed for each in gc.get_objects())

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        gc.disable()
        for number in range(5):
            client = await connected(runtime, broker)
            assert (await send(client, b"x")).code == 0
            await pull(client, 0)
            held = asyncio.ensure_future(pull(client, 9, sysFlag=6, suspendTimeoutMillis=9000))
            await pull(client, 0, subscription="a = 1 OR " * 80 + "b = 2", expressionType="SQL92")
            await ask(client, RequestCode.HEART_BEAT, {}, fastjson.dumps(beat))
            await ask(client, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
            await ask(client, 9999)
            client.close()
            await asyncio.wait([held])
            held.exception()
            del client, held, number
        await until(lambda: closed() == 0)
        await broker.close()

    run(body)
