"""Batches of a producer with compression="zstd": other threads compress them, their order holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from saturnmq.client.producer import zipping
from saturnmq.client.producer.zipping import AT_ONCE, Zipper
from saturnmq.runtime.supervision import Supervisor


class Threads:
    """A runtime whose blocking calls end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, asyncio.Future[bytes]]] = []

    def spawn(self, work: Any, *, name: str) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)

    async def run_blocking(self, function: Callable[..., bytes], body: bytes, *args: int) -> bytes:
        done = asyncio.get_running_loop().create_future()
        self.calls.append((body, done))
        await done
        return b"packed " + body

    async def end(self, body: bytes) -> None:
        [done] = [done for each, done in self.calls if each == body]
        done.set_result(b"")
        for _ in range(5):
            await asyncio.sleep(0)


def batch(body: bytes) -> Any:
    return SimpleNamespace(body=body, packed=b"", done=False, single=False)


def played(main: Callable[[Threads, Callable[[Any], None], list[bytes]], Any]) -> None:
    async def body() -> None:
        threads, sent = Threads(), list[bytes]()
        zipper = Zipper(threads, Supervisor(threads, lambda *_: None))  # type: ignore[arg-type]

        def take(one: Any) -> None:
            zipper.take(one, lambda: sent.append(one.packed))

        await main(threads, take, sent)
        assert all(done.done() for _, done in threads.calls)

    asyncio.run(body())


def test_batches_leave_in_their_order_whichever_is_compressed_first() -> None:
    async def main(threads: Threads, take: Callable[[Any], None], sent: list[bytes]) -> None:
        for body in (b"a", b"b", b"c", b"d"):
            take(batch(body))
        await asyncio.sleep(0)
        assert [body for body, _ in threads.calls] == [b"a", b"b"], f"{AT_ONCE} at once"
        await threads.end(b"b")
        assert sent == [], "the first one is not ready"
        await threads.end(b"c")
        await threads.end(b"a")
        assert sent == [b"packed a", b"packed b", b"packed c"]
        await threads.end(b"d")
        assert sent[3:] == [b"packed d"]
        take(batch(b"e"))
        await asyncio.sleep(0)
        await threads.end(b"e")
        assert sent[4:] == [b"packed e"], "it begins again"

    played(main)


def test_a_batch_that_is_over_meanwhile_is_not_sent_and_holds_up_no_other() -> None:
    async def main(threads: Threads, take: Callable[[Any], None], sent: list[bytes]) -> None:
        late = batch(b"a")
        take(late)
        take(batch(b"b"))
        await asyncio.sleep(0)
        late.done = True
        await threads.end(b"b")
        assert sent == []
        await threads.end(b"a")
        assert sent == [b"packed b"]

    played(main)


def test_a_batch_that_was_compressed_is_not_compressed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compress(body: bytes, kind: int, level: int) -> bytes:
        return b"packed " + body

    monkeypatch.setattr(zipping, "compress", compress)
    one = SimpleNamespace(body=b"a", packed=b"", sys_flag=0, count=3)
    assert zipping.zipped(one, {"i": ""}).body == b"packed a"  # type: ignore[arg-type]
    one.packed = b"before"
    assert zipping.zipped(one, {"i": ""}).body == b"before"  # type: ignore[arg-type]
