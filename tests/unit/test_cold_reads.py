"""What has to be read from the disk is waited for beside the loop."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, pull, run, send, started
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.native import NativeRuntime
from saturnmq.store import lookup
from saturnmq.store.files import NativeSegment

BODY = b"x" * 1000


@pytest.fixture(params=["not in memory", "large"])
def cold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was written a moment ago."""
    monkeypatch.setattr(lookup, "RECENT", 0)
    if request.param == "large":
        monkeypatch.setattr(lookup, "LARGE", 1)
    else:
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
        assert "the log cannot be read there" in reply.remark
        assert broker.failures.count == 0
        client.close()
        await broker.close()

    run(body)
