"""The index gets the keys of a message after those who wait for it: nobody may notice."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, pull, run, send, started, until
from saturnmq.broker.broker import Broker
from saturnmq.drills.sim.disk import PowerCutOdds
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.errors import ServiceNotAvailable
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.derived.indexfile import Index, IndexFile
from saturnmq.store.message_store import MessageStore
from store_rig import CONFIG, Clock, dispatch, flush, message, new_disk, open_store

EVER = 1 << 60


def found(store: MessageStore, key: str) -> list[bytes]:
    frames = store.query_by_key("T", key, 32, 0, EVER)
    return [decode_frames(frame, True)[0].body for frame in frames]


def dispatched(*keys: str) -> tuple[Any, MessageStore]:
    """A store that has dispatched a message of each key, the last one without the index."""
    disk = new_disk()
    store = open_store(disk)
    for key in keys:
        store.put(message(key.encode(), key=key))
        assert store.reput()
    return disk, store


def test_the_keys_of_what_was_dispatched_are_found_at_once() -> None:
    _, store = dispatched("a", "b")
    assert found(store, "b") == [b"b"]
    assert found(store, "a") == [b"a"]
    store.close()


@pytest.mark.parametrize("kind", ["power", "kill"])
@pytest.mark.parametrize("keys", ["a", "ab"])
def test_no_checkpoint_says_that_the_index_has_what_it_lacks(kind: str, keys: str) -> None:
    disk, store = dispatched(*keys)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    rng = random.Random(1)
    kept = PowerCutOdds(kept=0.0, torn=0.0, names=0.0)
    image = disk.crash_image(rng, kept) if kind == "power" else disk.kill_image(rng)
    again = open_store(image)
    assert [found(again, key) for key in keys] == [[key.encode()] for key in keys]
    again.close()
    store.settle_index()
    store.flush_derived()
    store.checkpoint()
    assert store.watermarks.dispatched == again.watermarks.dispatched
    store.close()


@pytest.mark.parametrize("keys", ["a", "ab"])
def test_a_store_that_is_closed_has_all_in_its_index(keys: str) -> None:
    """RocketMQ reads nothing again after a clean end."""
    disk, store = dispatched(*keys)
    store.close()
    index = Index(disk, "/store/index", CONFIG.index_slots, CONFIG.index_items, Clock().now_ms)
    index.load(clean=True)
    for key in keys:
        assert [*index.candidates("T", key, 0, EVER)]
    index.close()


def test_what_a_cut_takes_is_not_indexed_afterwards() -> None:
    _, store = dispatched("a", "b")
    first = store.get_message("T", 0, 0, 1)
    store.truncate(len(first.data), reason="a test")
    store.put(message(b"c", key="c"))
    dispatch(store)
    assert [found(store, key) for key in "abc"] == [[b"a"], [], [b"c"]]
    store.close()


def test_where_the_index_has_no_room_sends_are_refused_until_it_has() -> None:
    disk, store = dispatched("a")
    plan = disk.plan("create_segment", errno.ENOSPC, "*/index/*", times=None)
    store.settle_index()
    assert found(store, "a") == []
    for _ in range(2):
        with pytest.raises(ServiceNotAvailable, match=r"no room for the queue and index files"):
            store.put(message(b"x"))
        assert store.reput() == []
    plan.times = 0
    store.settle_index()
    store.put(message(b"b", key="b"))
    dispatch(store)
    assert (found(store, "a"), found(store, "b")) == ([b"a"], [b"b"])
    store.close()


def test_a_consumer_gets_a_message_for_which_the_index_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And requests that come later find the room that there is again, without a send."""
    insert, is_full = IndexFile.insert, False
    held_then: list[int] = []
    broker: Broker

    def no_room(file: IndexFile, items: memoryview) -> int:
        held_then.append(len(broker.messaging.pulls.held))
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return insert(file, items)

    monkeypatch.setattr(IndexFile, "insert", no_room)

    async def body(runtime: NativeRuntime) -> None:
        nonlocal is_full, broker
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        newest = {"topic": "orders", "queueId": 0}
        assert (await send(other, b"first")).code == 0
        for _ in range(2):  # the second one finds it in the index
            await ask(client, RequestCode.GET_MAX_OFFSET, newest)
        is_full = True
        waits = runtime.spawn(pull(client, 1, sysFlag=6, suspendTimeoutMillis=20_000))
        await until(lambda: len(broker.messaging.pulls.held) == 1)
        assert (await send(other, b"second")).code == 0
        reply = await waits
        assert [m.body for m in decode_frames(reply.body, True)] == [b"second"]
        assert held_then == [0, 0], "the pull was answered before"
        refused = await send(other, b"third")
        assert refused.code != 0
        assert "no room for the queue and index files" in refused.remark
        is_full = False
        await ask(client, RequestCode.GET_MAX_OFFSET, newest)
        assert (await send(other, b"third")).code == 0
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)
