"""Syncs without a thread: what the kernel tells, what it does not take, and a broker with both."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from broker_rig import config, connected, run, send, started
from saturnmq.protocol.codes import ResponseCode
from saturnmq.runtime.datasync import AT_ONCE, NUMBERS, AioEvent, AioRequest, Datasync, Numbers
from saturnmq.runtime.native import NativeRuntime

CALLS = NUMBERS.get(platform.machine(), Numbers(0, 0, 0, 0))
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not any(CALLS), reason="the numbers of its calls are not known"
)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = request.param()
    yield loop
    loop.close()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    number = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    yield number
    os.close(number)


class Kernel:
    """System calls that a test answers: each sync ends, with `result`, when it is told to."""

    def __init__(self, *, refuses: int = 0, takes_none: bool = False) -> None:
        self.refuses = refuses  # the number of a call, and no other
        self.takes_none = takes_none
        self.asked: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.given_back = False

    def __call__(self, number: int, *arguments: Any) -> int:
        if number == self.refuses:
            return -errno.EAGAIN
        if number == CALLS.submit:
            request = AioRequest.from_address(arguments[2][0])
            assert request.opcode == 3  # IOCB_CMD_FDSYNC
            self.asked.append((request.data, request.resfd))
            return 0 if self.takes_none else 1
        if number == CALLS.getevents:
            events, given = arguments[3], self.ended[: arguments[2]]
            del self.ended[: len(given)]
            for place, (data, result) in enumerate(given):
                events[place] = AioEvent(data=data, result=result)
            return len(given)
        if number == CALLS.destroy:
            self.given_back = True
        return 0

    def end(self, place: int, result: int) -> None:
        data, told = self.asked[place]
        self.ended.append((data, result))
        os.eventfd_write(told, 1)


def test_the_kernel_syncs_files(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    syncs = Datasync(loop)
    for _ in range(3):
        os.write(fd, b"some bytes")
        begun = [syncs.begin(fd) for _ in range(AT_ONCE)]
        assert syncs.begin(fd) is None  # so many at once
        for each in begun:
            assert each is not None
            assert loop.run_until_complete(asyncio.wait_for(each, 10)) is None
    syncs.close()


def test_a_failed_sync_is_told_to_the_one_who_asked(loop: asyncio.AbstractEventLoop) -> None:
    kernel = Kernel()
    syncs = Datasync(loop, kernel)
    bad, good, given_up = (syncs.begin(7) for _ in range(3))
    assert bad is not None
    assert good is not None
    assert given_up is not None
    given_up.cancel()
    kernel.end(1, 0)
    kernel.end(2, 0)
    kernel.end(0, -errno.EIO)
    assert loop.run_until_complete(good) is None
    with pytest.raises(OSError, match="Input/output") as told:
        loop.run_until_complete(bad)
    assert told.value.errno == errno.EIO
    syncs.close()
    assert kernel.given_back


@pytest.mark.parametrize(
    "kernel", [Kernel(refuses=CALLS.setup), Kernel(refuses=CALLS.submit), Kernel(takes_none=True)]
)
def test_what_the_kernel_does_not_take_has_not_begun(
    loop: asyncio.AbstractEventLoop, kernel: Kernel
) -> None:
    syncs = Datasync(loop, kernel)
    assert syncs.begin(7) is None
    syncs.close()


def test_without_a_descriptor_nothing_begins(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "eventfd", lacking)
    kernel = Kernel()
    syncs = Datasync(loop, kernel)
    assert syncs.begin(7) is None
    assert kernel.given_back
    syncs.close()


def test_a_file_that_cannot_be_synced_is_left_to_the_caller(
    loop: asyncio.AbstractEventLoop,
) -> None:
    ends = os.pipe()
    syncs = Datasync(loop)
    assert syncs.begin(ends[0]) is None
    assert syncs.begin(1 << 20) is None  # no file at all
    syncs.close()
    for each in ends:
        os.close(each)


def test_structures_are_those_of_the_kernel() -> None:
    assert (ctypes.sizeof(AioRequest), ctypes.sizeof(AioEvent)) == (64, 32)


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_send_waits_for_its_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_kernel: bool
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, flush_disk_type="SYNC_FLUSH"))
        client = await connected(runtime, broker)
        taken: list[bool] = []
        datasync = runtime.datasync

        def counted(number: int) -> asyncio.Future[None] | None:
            begun = datasync(number) if by_kernel else None
            taken.append(begun is not None)
            return begun

        monkeypatch.setattr(runtime, "datasync", counted)
        for number in range(3):
            assert (await send(client, b"%d" % number)).code == 0
            marks = broker.store.watermarks
            assert marks.flushed == marks.appended
        assert set(taken) == {by_kernel}
        assert len(taken) >= 3
        await broker.close()

    run(body)


def test_a_failed_sync_by_the_kernel_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, flush_disk_type="SYNC_FLUSH"))
        client = await connected(runtime, broker)

        def fails(_: int) -> asyncio.Future[None]:
            failed: asyncio.Future[None] = runtime.create_future()
            failed.set_exception(OSError(errno.EIO, os.strerror(errno.EIO)))
            return failed

        monkeypatch.setattr(runtime, "datasync", fails)
        assert (await send(client, b"lost?")).code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert "commitlog" in str(broker.store.failed)
        monkeypatch.undo()
        assert (await send(client, b"more")).code != 0  # nothing is tried again
        await broker.close(clean=False)

    run(body)


def test_a_log_that_was_deleted_before_a_sync_acknowledges_nothing(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, flush_disk_type="SYNC_FLUSH"))
        client = await connected(runtime, broker)
        assert (await send(client, b"there")).code == 0
        for each in tmp_path.rglob("commitlog/0*"):
            each.unlink()
        assert (await send(client, b"nowhere")).code == ResponseCode.FLUSH_DISK_TIMEOUT
        await broker.close(clean=False)

    run(body)
