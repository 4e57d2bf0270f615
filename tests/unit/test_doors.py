"""Conformance of the doors: one suite each for Disk and Runtime, run on the real and the simulated
one alike.

What passes on both is what the logic may rely on; a fake that is kinder or harsher than the real
thing would make the simulator prove nothing.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import EARLY_S, SimRuntime
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import ConfigError, ConnectFailed, DirectoryLocked, StoreDamaged
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import Advice, Disk, NativeDisk

DEADLINE_S = 10.0


# -- the disk -------------------------------------------------------------------------------------


@pytest.fixture(params=["native", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    if request.param == "native":
        return NativeDisk(), str(tmp_path)
    simulated = SimDisk(random.Random(1))
    simulated.make_dirs("/store")
    return simulated, "/store"


def test_a_written_file_reads_back_and_is_listed_with_its_size(disk: tuple[Disk, str]) -> None:
    door, root = disk
    door.write_file(f"{root}/abort", b"4711")
    assert door.read_file(f"{root}/abort") == b"4711"
    assert door.exists(f"{root}/abort")
    assert [(e.name, e.size, e.is_dir) for e in door.list(root)] == [("abort", 4, False)]


def test_listing_is_sorted_and_does_not_descend(disk: tuple[Disk, str]) -> None:
    door, root = disk
    door.make_dirs(f"{root}/topic/0")
    door.write_file(f"{root}/b", b"")
    door.write_file(f"{root}/a", b"")
    assert [(e.name, e.is_dir) for e in door.list(root)] == [
        ("a", False),
        ("b", False),
        ("topic", True),
    ]
    assert [e.name for e in door.list(f"{root}/topic")] == ["0"]


def test_a_missing_directory_lists_as_empty(disk: tuple[Disk, str]) -> None:
    door, root = disk
    assert door.list(f"{root}/nothing") == []
    assert not door.exists(f"{root}/nothing")


def test_reading_a_missing_file_says_so(disk: tuple[Disk, str]) -> None:
    door, root = disk
    with pytest.raises(FileNotFoundError):
        door.read_file(f"{root}/missing")
    with pytest.raises(FileNotFoundError):
        door.open_segment(f"{root}/missing", 4096)


def test_writing_into_a_missing_directory_says_so(disk: tuple[Disk, str]) -> None:
    door, root = disk
    with pytest.raises(FileNotFoundError):
        door.write_file(f"{root}/missing/file", b"x")
    with pytest.raises(FileNotFoundError):
        door.create_segment(f"{root}/missing/segment", 4096)


def test_replacing_keeps_the_previous_content_as_backup(disk: tuple[Disk, str]) -> None:
    door, root = disk
    path = f"{root}/topics.json"
    door.replace_file(path, b"one")
    assert not door.exists(path + ".bak")
    door.replace_file(path, b"two")
    door.replace_file(path, b"three")
    assert door.read_file(path) == b"three"
    assert door.read_file(path + ".bak") == b"two"
    assert [e.name for e in door.list(root)] == ["topics.json", "topics.json.bak"]


def test_three_files_that_take_turns_keep_room_for_the_next_content(
    disk: tuple[Disk, str],
) -> None:
    door, root = disk
    path = f"{root}/role.json"
    contents = [b'{"epoch": %d}' % number for number in range(6)]
    for number, content in enumerate(contents):
        door.replace_file(path, content, keep_room=True)
        assert door.read_file(path) == content
        assert door.read_file(path + ".bak") == contents[max(0, number - 1)]
        names = ["role.json", "role.json.bak", "role.json.tmp"]
        assert [e.name for e in door.list(root)] == names
    door.replace_file(path, b"{}", keep_room=True)  # a shorter one has no rest of the one before
    assert door.read_file(path) == b"{}"


def test_replacing_without_backup_leaves_one_file(disk: tuple[Disk, str]) -> None:
    door, root = disk
    door.replace_file(f"{root}/f", b"one", keep_backup=False)
    door.replace_file(f"{root}/f", b"two", keep_backup=False)
    assert [e.name for e in door.list(root)] == ["f"]
    assert door.read_file(f"{root}/f") == b"two"


def test_a_rename_replaces_its_target(disk: tuple[Disk, str]) -> None:
    door, root = disk
    door.write_file(f"{root}/old", b"old")
    door.write_file(f"{root}/new", b"new")
    door.rename(f"{root}/old", f"{root}/new")
    assert [e.name for e in door.list(root)] == ["new"]
    assert door.read_file(f"{root}/new") == b"old"


def test_unlinking_twice_is_no_error(disk: tuple[Disk, str]) -> None:
    door, root = disk
    door.write_file(f"{root}/f", b"x")
    door.unlink(f"{root}/f")
    door.unlink(f"{root}/f")
    assert door.list(root) == []


def test_removing_a_tree_removes_all_of_it(disk: tuple[Disk, str]) -> None:
    door, root = disk
    door.make_dirs(f"{root}/topic/0")
    door.write_file(f"{root}/topic/0/f", b"x")
    door.remove_tree(f"{root}/topic")
    assert door.list(root) == []
    assert not door.exists(f"{root}/topic")


def test_a_new_segment_is_zero_and_writable_in_full(disk: tuple[Disk, str]) -> None:
    door, root = disk
    segment = door.create_segment(f"{root}/00000000000000000000", 12288)
    assert segment.size == 12288
    assert bytes(segment.view) == bytes(12288)
    segment.view[5000:5004] = b"data"
    segment.flush(5000, 5004)
    assert segment.read(4998, 8) == b"\0\0data\0\0"
    segment.close()
    again = door.open_segment(f"{root}/00000000000000000000", 12288)
    assert bytes(again.view[5000:5004]) == b"data"
    again.close()


def test_creating_a_segment_twice_is_refused_and_leaves_the_first(disk: tuple[Disk, str]) -> None:
    door, root = disk
    segment = door.create_segment(f"{root}/s", 4096)
    segment.write(0, b"first")
    segment.close()
    with pytest.raises(FileExistsError):
        door.create_segment(f"{root}/s", 4096)
    assert door.read_file(f"{root}/s") == b"first".ljust(4096, b"\0")


def test_a_segment_of_another_size_is_damage(disk: tuple[Disk, str]) -> None:
    door, root = disk
    door.create_segment(f"{root}/s", 4096).close()
    with pytest.raises(StoreDamaged, match="4096"):
        door.open_segment(f"{root}/s", 8192)


def test_zeroing_clears_exactly_its_range(disk: tuple[Disk, str]) -> None:
    door, root = disk
    segment = door.create_segment(f"{root}/s", 16384)
    segment.view[:] = b"\xff" * 16384
    segment.zero(4096, 12288)
    assert bytes(segment.view) == b"\xff" * 4096 + bytes(8192) + b"\xff" * 4096
    segment.close()


def test_what_is_written_shows_in_the_view_and_stays(disk: tuple[Disk, str]) -> None:
    door, root = disk
    segment = door.create_segment(f"{root}/s", 1 << 20)
    segment.write(5000, b"data")
    segment.write((1 << 20) - 3, memoryview(b"end"))
    assert bytes(segment.view[4999:5005]) == b"\0data\0"
    segment.close()
    again = door.open_segment(f"{root}/s", 1 << 20)
    assert again.read(5000, 4) == b"data"
    assert bytes(again.view[-4:]) == b"\0end"
    again.close()


@pytest.mark.parametrize("advice", list(Advice))
def test_advice_changes_no_byte_and_does_not_keep_a_segment_open(
    disk: tuple[Disk, str], advice: Advice
) -> None:
    door, root = disk
    door.make_dirs(f"{root}/s", durable=False)
    segment = door.create_segment(f"{root}/s/0", 64 << 10, durable=False)
    segment.write(100, b"here")
    segment.advise(advice)
    segment.flush(0, 64 << 10)
    segment.forget(0, 64 << 10)
    buffer = memoryview(bytearray(10))
    assert segment.read_into(98, buffer) == 10
    assert bytes(buffer) == b"\0\0here\0\0\0\0"
    assert segment.read_into((64 << 10) - 4, buffer) == 4
    segment.close()
    assert door.open_segment(f"{root}/s/0", 64 << 10).view[100:104] == b"here"


def test_a_buffer_is_memory_of_its_size(disk: tuple[Disk, str]) -> None:
    buffer = disk[0].buffer(8192)
    buffer[8190:] = b"ok"
    assert (len(buffer), bytes(buffer[8189:])) == (8192, b"\0ok")


def test_a_slice_outlives_the_closed_segment(disk: tuple[Disk, str]) -> None:
    door, root = disk
    segment = door.create_segment(f"{root}/s", 4096)
    segment.view[:5] = b"bytes"
    held = segment.view[:5]
    segment.close()
    assert bytes(held) == b"bytes"


def test_a_file_opened_to_read_gives_its_bytes_and_its_size(disk: tuple[Disk, str]) -> None:
    door, root = disk
    door.write_file(f"{root}/f", b"0123456789")
    file = door.open_readonly(f"{root}/f")
    buffer = bytearray(4)
    assert file.size == 10
    assert file.read_into(8, memoryview(buffer)) == 2
    assert (bytes(buffer), file.read(2, 3)) == (b"89\0\0", b"234")
    assert file.written(0)[-1][1] == 10
    file.close()
    file.close()
    with pytest.raises(FileNotFoundError):
        door.open_readonly(f"{root}/nothing")


def test_a_lock_is_seen_without_being_taken(disk: tuple[Disk, str]) -> None:
    door, root = disk
    assert not door.locked(f"{root}/lock")
    lock = door.lock(f"{root}/lock")
    assert door.locked(f"{root}/lock")
    lock.release()
    assert not door.locked(f"{root}/lock")


def test_another_process_sees_the_lock(tmp_path: Path) -> None:
    look = (
        "import sys; from saturnmq.store.disk import NativeDisk; "
        "print(NativeDisk().locked(sys.argv[1]))"
    )

    def seen() -> str:
        command = [sys.executable, "-c", look, f"{tmp_path}/lock"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    lock = NativeDisk().lock(f"{tmp_path}/lock")
    assert seen() == "True"
    lock.release()
    assert seen() == "False"


def test_the_lock_can_be_taken_again_after_its_release(disk: tuple[Disk, str]) -> None:
    door, root = disk
    lock = door.lock(f"{root}/lock")
    assert door.read_file(f"{root}/lock") == b"lock"
    lock.release()
    lock.release()
    door.lock(f"{root}/lock").release()


def test_free_space_is_within_the_total(disk: tuple[Disk, str]) -> None:
    door, root = disk
    total, free = door.free_space(root)
    assert 0 < free <= total
    with door.mutex():
        pass


def test_the_machine_has_memory(disk: tuple[Disk, str]) -> None:
    assert disk[0].memory_bytes() > 1 << 20


def test_the_simulated_lock_refuses_a_second_holder() -> None:
    # fcntl locks are per process, so only the simulated disk can show this within one.
    door = SimDisk(random.Random(1))
    door.make_dirs("/store")
    door.lock("/store/lock")
    with pytest.raises(DirectoryLocked):
        door.lock("/store/lock")


# -- the runtime ----------------------------------------------------------------------------------

Body = Callable[[Runtime], Awaitable[None]]


def on_native(body: Body) -> None:
    async def main() -> None:
        runtime = NativeRuntime()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await body(runtime)
        finally:
            runtime.close()

    asyncio.run(main())


def on_simulated(body: Body) -> None:
    loop = SimLoop(random.Random(1))
    runtime = SimRuntime(loop, SimNetwork(loop, 1), 1, "node", early_s=EARLY_S)
    try:
        loop.run_until_complete(body(runtime))
        assert loop.failures == []
        assert runtime.deaths == []
    finally:
        loop.close()


@pytest.fixture(params=[on_native, on_simulated], ids=["native", "simulated"])
def run(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    return request.param


class Collector(asyncio.BufferedProtocol):
    """Keeps what it reads in a small buffer's worth of chunks; echoes it if told to."""

    def __init__(self, echo: bool = False) -> None:
        self.buffer = bytearray(777)
        self.echo = echo
        self.received = bytearray()
        self.transport: asyncio.Transport | None = None
        self.lost = asyncio.get_running_loop().create_future()
        self.progress = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]
        if self.echo and self.transport is not None:
            self.transport.write(bytes(self.buffer[:nbytes]))
        self.progress.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)

    async def until(self, size: int) -> None:
        while len(self.received) < size:
            self.progress.clear()
            await self.progress.wait()


async def pair(runtime: Runtime, echo: bool = False) -> tuple[Collector, Collector]:
    accepted: list[Collector] = []

    def factory() -> Collector:
        accepted.append(Collector(echo))
        return accepted[-1]

    listener = await runtime.listen("127.0.0.1", 0, factory)
    host, _, port = listener.address.rpartition(":")
    client = Collector()
    await runtime.connect(host, int(port), client)
    assert client.transport is not None
    client.transport.write(b"!")
    while not accepted or accepted[0].transport is None:
        await runtime.sleep(0.001)
    await accepted[0].until(1)
    if echo:
        await client.until(1)
    listener.close()
    return client, accepted[0]


def test_bytes_keep_their_order_whatever_the_chunks(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        client, server = await pair(runtime, echo=True)
        assert client.transport is not None
        data = random.Random(5).randbytes(200_000)
        for start in range(0, len(data), 9_999):
            client.transport.writelines([data[start : start + 5], data[start + 5 : start + 9_999]])
        await client.until(1 + len(data))
        assert bytes(server.received) == b"!" + data
        assert bytes(client.received) == b"!" + data
        client.transport.close()
        await client.lost

    run(body)


def test_closing_delivers_what_was_written_first(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        client, server = await pair(runtime)
        assert client.transport is not None
        client.transport.write(b"x" * 100_000)
        client.transport.close()
        assert client.transport.is_closing()
        assert await client.lost is None
        assert await server.lost is None
        assert bytes(server.received) == b"!" + b"x" * 100_000

    run(body)


def test_aborting_is_noticed_by_both_ends(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        client, server = await pair(runtime)
        assert client.transport is not None
        client.transport.abort()
        await client.lost
        await server.lost

    run(body)


def test_both_ends_know_each_others_address(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        client, server = await pair(runtime)
        assert client.transport is not None
        assert server.transport is not None
        here = client.transport.get_extra_info("sockname")
        there = client.transport.get_extra_info("peername")
        assert server.transport.get_extra_info("peername")[:2] == here[:2]
        assert server.transport.get_extra_info("sockname")[:2] == there[:2]
        client.transport.close()
        await client.lost

    run(body)


def test_a_paused_reader_reads_nothing_until_it_resumes(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        client, server = await pair(runtime)
        assert client.transport is not None
        assert server.transport is not None
        server.transport.pause_reading()
        client.transport.write(b"later")
        await runtime.sleep(0.05)
        assert bytes(server.received) == b"!"
        server.transport.resume_reading()
        await server.until(6)
        client.transport.close()
        await client.lost

    run(body)


def test_connecting_to_nobody_fails_with_its_type(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        listener = await runtime.listen("127.0.0.1", 0, Collector)
        host, _, port = listener.address.rpartition(":")
        with pytest.raises(ConfigError):
            await runtime.listen(host, int(port), Collector)
        listener.close()
        await runtime.sleep(0.01)
        with pytest.raises(ConnectFailed):
            await runtime.connect(host, int(port), Collector())

    run(body)


def test_time_advances_by_the_sleep_short_of_a_millisecond_at_most(
    run: Callable[[Body], None],
) -> None:
    async def body(runtime: Runtime) -> None:
        wall, start = runtime.now_ms(), runtime.monotonic()
        await runtime.sleep(0.02)
        assert runtime.monotonic() - start >= 0.019
        assert runtime.now_ms() - wall >= 18

    run(body)


def test_callbacks_run_in_order_and_can_be_cancelled(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        seen: list[str] = []
        runtime.call_soon(seen.append, "first")
        runtime.call_soon(seen.append, "second")
        runtime.call_soon(seen.append, "never").cancel()
        runtime.call_later(0.03, seen.append, "fourth")
        runtime.call_later(0.01, seen.append, "third")
        runtime.call_later(0.01, seen.append, "never").cancel()
        await runtime.sleep(0.06)
        assert seen == ["first", "second", "third", "fourth"]

    run(body)


def test_blocking_calls_return_or_raise(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        assert await runtime.run_blocking(max, 3, 4) == 4
        with pytest.raises(ZeroDivisionError):
            await runtime.run_blocking(divmod, 1, 0)
        with pytest.raises(RuntimeError, match="raised StopIteration") as raised:
            await asyncio.wait_for(runtime.run_blocking(next, iter(())), 10)
        assert isinstance(raised.value.__cause__, StopIteration)

    run(body)


def test_spawned_tasks_run_and_give_their_result(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        future = runtime.create_future()

        async def work() -> int:
            return await future + 1

        task = runtime.spawn(work(), name="work")
        runtime.call_soon(future.set_result, 41)
        assert await task == 42

    run(body)


def test_workers_return_or_raise(run: Callable[[Body], None]) -> None:
    async def body(runtime: Runtime) -> None:
        workers = runtime.workers(2, name="test")
        assert await workers.run(max, 3, 4) == 4
        with pytest.raises(ZeroDivisionError):
            await workers.run(divmod, 1, 0)
        workers.close()

    run(body)


def test_a_signal_unwinds_the_main_task_before_its_handler_is_called() -> None:
    """Raised in the middle of a callback of the loop it would be lost."""
    program = """
import asyncio, os, signal, sys
from saturnmq.runtime import native

signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


async def main(runtime):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)  # a second one does not cut it short
        await asyncio.sleep(0.05)
        print("unwound", flush=True)


native.run(main)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (128 + 15, b"unwound\n"), done.stderr
