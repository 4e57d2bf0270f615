"""Each broadcasting consumer keeps its own offsets, and no two keep them in one file."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from consumer_world import Q0, World, consumer
from saturnmq.client.consumer.local_files import LocalFiles
from saturnmq.client.consumer.offset_store import LocalOffsets
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.core import new_core
from saturnmq.runtime.errors import ConfigError, InvalidParameter, OffsetsLocked, OffsetsNotSaved

OFFSETS = b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:%d}}'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def backlog(count: int = 10) -> World:
    world = World(queues=1)
    for n in range(count):
        world.send(0, b"%d" % n)
    return world


def broadcaster(world: World, got: list[int], **options: Any) -> PushConsumer:
    return consumer(
        world,
        listener_one=lambda message: got.append(message.queue_offset),
        broadcasting=True,
        **options,
    )


def test_consumers_of_different_names_each_get_everything_and_go_on_where_they_were() -> None:
    world = backlog()

    async def main() -> None:
        one: list[int] = []
        two: list[int] = []
        async with broadcaster(world, one):
            await world.until(lambda: len(one) == 10)
        world.send(0, b"late")
        async with broadcaster(world, one), broadcaster(world, two, instance_name="two"):
            await world.until(lambda: len(two) == 11 and len(one) == 11)
        world.send(0, b"later")
        async with broadcaster(world, two, instance_name="two"):
            await world.until(lambda: len(two) == 12)
        async with broadcaster(world, one):
            await world.until(lambda: len(one) == 12)
        assert sorted(one) == sorted(two) == list(range(12))

    world.run(main)


def test_a_second_consumer_of_one_name_in_a_process_is_told_and_the_first_goes_on() -> None:
    world = backlog()
    got: list[Any] = []

    async def main() -> None:
        async with broadcaster(world, got):
            with pytest.raises(OffsetsLocked, match="instance_name") as told:
                await broadcaster(world, []).start()
            assert f"process {os.getpid()}" in str(told.value)
            assert ".saturnmq/offsets/DEFAULT/G/offsets.json" in str(told.value)
            await world.until(lambda: len(got) == 10)
        again = broadcaster(world, got)  # the name is free when the first has closed
        await again.start()
        await again.close()

    world.run(main)


def test_a_name_belongs_to_a_process_until_it_ends(home: Path) -> None:
    program = """
import sys
from saturnmq.client.consumer.local_files import LocalFiles

files = LocalFiles()
assert files.lock("~/.saturnmq/offsets/DEFAULT/G/offsets.json") is None
print("locked", flush=True)
sys.stdin.read()
"""
    world = backlog()
    got: list[Any] = []
    other = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"

        async def main() -> None:
            with pytest.raises(OffsetsLocked, match=f"process {other.pid}"):
                await broadcaster(world, []).start()
            other.kill()
            other.wait(30)
            async with broadcaster(world, got):
                await world.until(lambda: len(got) == 10)

        world.run(main)
    finally:
        other.kill()
        other.communicate()


@pytest.mark.parametrize(("name", "first"), [("DEFAULT", 7), ("two", 0)])
def test_a_file_of_the_time_before_names_is_read_once_by_the_default_name(
    name: str, first: int, home: Path
) -> None:
    old = home / ".saturnmq/offsets/G/offsets.json"
    old.parent.mkdir(parents=True)
    old.write_bytes(OFFSETS % 7)
    world = backlog()

    async def main() -> None:
        got: list[int] = []
        async with broadcaster(world, got, instance_name=name):
            await world.until(lambda: len(got) == 10 - first)
        old.write_bytes(OFFSETS % 3)  # of no use any more
        async with broadcaster(world, got, instance_name=name):
            world.send(0, b"late")
            await world.until(lambda: len(got) == 11 - first)
        assert sorted(got) == list(range(first, 11))

    world.run(main)


@pytest.mark.parametrize(
    "content",
    [b'{"offsetTable": {"half', OFFSETS % -2, OFFSETS.replace(b"%d", b"{}"), b'{"offsetTable":7}'],
)
def test_a_file_that_holds_something_else_ends_the_start_and_is_let_go(
    content: bytes, home: Path
) -> None:
    world = backlog()
    got: list[Any] = []
    file = home / "offsets.json"
    file.write_bytes(content)

    async def main() -> None:
        made = broadcaster(world, got, offsets_path=str(file))
        with pytest.raises(ConfigError, match="remove it"):
            await made.start()
        file.unlink()
        async with made:
            await world.until(lambda: len(got) == 10)

    world.run(main)


@pytest.mark.parametrize(("number", "first"), [(b"7", 7), (b'{"value":7}', 7), (b"-1", 0)])
def test_a_number_is_read_as_any_version_of_java_writes_it(
    number: bytes, first: int, home: Path
) -> None:
    world = backlog()
    got: list[Any] = []
    file = home / "offsets.json"
    file.write_bytes(OFFSETS.replace(b"%d", number))

    async def main() -> None:
        async with broadcaster(world, got, offsets_path=str(file)):
            await world.until(lambda: len(got) == 10 - first)
        assert sorted(got) == list(range(first, 10))

    world.run(main)


def test_a_place_that_cannot_be_used_ends_the_start(home: Path) -> None:
    world = backlog()
    (home / "file").write_bytes(b"")

    async def main() -> None:
        with pytest.raises(ConfigError, match="offsets_path"):
            await broadcaster(world, [], offsets_path=str(home / "file/offsets.json")).start()

    world.run(main)


def test_folders_that_somebody_removed_are_made_again(tmp_path: Path) -> None:
    files, path = LocalFiles(), str(tmp_path / "a" / "b" / "offsets.json")
    assert files.read(path) is None
    for data in (b"1", b"2"):
        files.replace(path, data)
        assert files.read(path) == data


class SlowFiles(LocalFiles):
    """Its first write ends when the test says so."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.written: list[bytes] = []

    def replace(self, path: str, data: bytes) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.go_on.wait(30)
        self.written.append(data)


def test_a_write_waits_for_the_one_before() -> None:
    async def body() -> None:
        files = SlowFiles()
        core = new_core("127.0.0.1:1", None)
        offsets = LocalOffsets(core, files, "offsets.json")
        offsets.update(Q0, 1)
        first = asyncio.create_task(offsets.commit())
        await asyncio.to_thread(files.begun.wait, 30)
        offsets.update(Q0, 2)
        second = asyncio.create_task(offsets.commit())
        await asyncio.wait([second], timeout=0.2)
        assert files.written == [], "the second write overlaps with the first"
        files.go_on.set()
        await asyncio.gather(first, second)
        assert [data[-4:] for data in files.written] == [b":1}}", b":2}}"]

    asyncio.run(body())


def test_offsets_that_cannot_be_saved_are_told_once_and_saved_later(home: Path) -> None:
    world = backlog()
    got: list[Any] = []
    told: list[Any] = []
    file = home / "place/offsets.json"

    async def main() -> None:
        made = broadcaster(world, got, offsets_path=str(file), on_error=told.append)
        async with made:
            await world.until(lambda: len(got) == 10)
            file.with_name("offsets.json.tmp").mkdir()  # in the way
            world.send(0, b"late")
            await world.until(lambda: told != [])
            await world.runtime.sleep(20.0)
            assert [type(error) for error in told] == [OffsetsNotSaved]
            file.with_name("offsets.json.tmp").rmdir()
            await world.until(lambda: file.exists() and file.read_bytes() == OFFSETS % 11)
            written = file.stat().st_mtime_ns
            await world.runtime.sleep(20.0)
            assert file.stat().st_mtime_ns == written, "nothing changed"
            file.with_name("offsets.json.tmp").mkdir()
            world.send(0, b"later")
            await world.until(lambda: len(told) == 2)
            file.with_name("offsets.json.tmp").rmdir()
        assert file.read_bytes() == OFFSETS % 12

    world.run(main)


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 300])
def test_names_that_are_no_folder_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameter, match="instance"):
        broadcaster(World(queues=1), [], instance_name=name)
