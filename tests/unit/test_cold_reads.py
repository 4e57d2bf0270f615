"""What has to be read from the disk is waited for beside the loop."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, pull, run, send, slave_config, started, until
from saturnmq.broker.replication import ha_master
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.derived import lookup
from saturnmq.store.files import NativeSegment

BODY = b"x" * 1000


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was written a moment ago, and memory holds nothing."""
    monkeypatch.setattr(lookup, "RECENT", 0)
    monkeypatch.setattr(NativeSegment, "is_cached", lambda *_: False)


def read_pull(client: Any) -> Any:
    return pull(client, 0)


def read_range(client: Any) -> Any:
    fields = {"topic": "orders", "queueId": 0, "offset": 0, "end": 3, "maxBytes": 1 << 20}
    return ask(client, RequestCode.READ_QUEUE, fields)


@pytest.mark.parametrize("read", [read_pull, read_range])
def test_others_are_served_while_the_disk_reads_for_one(
    tmp_path: Path, cold: None, monkeypatch: pytest.MonkeyPatch, read: Callable[[Any], Any]
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    cache = NativeSegment.cache

    def slow(segment: NativeSegment, start: int, end: int) -> None:
        begun.set()
        assert may_end.wait(30)
        cache(segment, start, end)

    monkeypatch.setattr(NativeSegment, "cache", slow)

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client, other = await connected(runtime, broker), await connected(runtime, broker)
        for _ in range(3):
            await send(client, BODY)
        waits = asyncio.ensure_future(read(client))
        await runtime.run_blocking(begun.wait, 30)
        assert (await send(other, BODY)).code == 0
        assert not waits.done()
        may_end.set()
        reply = await waits
        assert reply.code == 0
        assert [m.queue_offset for m in decode_frames(reply.body, False)] == [0, 1, 2]
        for endpoint in (client, other):
            endpoint.close()
        await broker.close()

    run(body)


def test_a_bad_sector_is_told_to_the_one_who_reads_there(
    tmp_path: Path, cold: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(segment: NativeSegment, start: int, end: int) -> None:
        raise OSError(errno.EIO, "Input/output error", segment.path)

    monkeypatch.setattr(NativeSegment, "cache", bad)

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await send(client, BODY)
        reply = await pull(client, 0)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "these messages cannot be read from the log" in reply.remark
        assert broker.failures.count == 0
        client.close()
        await broker.close()

    run(body)


def test_others_are_served_while_the_disk_reads_for_a_slave_that_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "RECENT", 0)
    monkeypatch.setattr(ha_master, "READ_AHEAD", 3000)
    may_read = threading.Semaphore(0)
    read_from: list[int] = []
    cache = NativeSegment.cache

    def slow(segment: NativeSegment, start: int, end: int) -> None:
        read_from.append(start)
        assert may_read.acquire(timeout=30)
        cache(segment, start, end)

    monkeypatch.setattr(NativeSegment, "cache", slow)

    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "m", role="ASYNC_MASTER"))
        client = await connected(runtime, master)
        for _ in range(5):
            await send(client, BODY)
        slave = await started(runtime, slave_config(tmp_path / "s", master))
        await until(lambda: bool(read_from))
        assert (await send(client, BODY)).code == 0
        assert slave.store.watermarks.appended == 0
        may_read.release()
        await until(lambda: slave.store.watermarks.appended > 0)
        may_read.release(1000)
        end = master.store.watermarks.appended
        await until(lambda: slave.store.watermarks.appended == end)
        assert read_from == sorted(set(read_from)), "each part once"
        client.close()
        await slave.close()
        await master.close()

    run(body)


def test_a_slave_for_which_the_disk_cannot_read_is_told_of_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lookup, "RECENT", 0)

    def bad(segment: NativeSegment, start: int, end: int) -> None:
        raise OSError(errno.EIO, "Input/output error", segment.path)

    monkeypatch.setattr(NativeSegment, "cache", bad)

    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "m", role="ASYNC_MASTER"))
        client = await connected(runtime, master)
        await send(client, BODY)
        slave = await started(runtime, slave_config(tmp_path / "s", master))
        await until(lambda: "cannot read the log for it" in caplog.text)
        assert slave.store.watermarks.appended == 0
        assert (await send(client, BODY)).code == 0
        client.close()
        await slave.close()
        await master.close()

    run(body)
