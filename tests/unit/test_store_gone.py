"""A file of the log that is deleted under a running store: noticed, told, and nothing more is
promised."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import config, connected, run, send, started, until
from saturnmq.runtime.errors import ServiceNotAvailable
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import MessageStore
from store_rig import CONFIG, SEGMENT, Clock, bodies, dispatch, flush, message, new_disk, open_store


def delete(path: Path) -> None:
    path.unlink()


def put_another_there(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    os.replace(path.with_suffix(".copy"), path)


def cut_short(path: Path) -> None:
    os.truncate(path, SEGMENT - 4096)


def lose_the_mount(path: Path) -> None:
    path.parent.rename(path.parent.with_suffix(".gone"))


def fill(store: MessageStore, count: int = 60) -> None:
    for number in range(count):
        store.put(message(b"%d" % number + bytes(150)))
    dispatch(store)


@pytest.mark.parametrize("harm", [delete, put_another_there, cut_short, lose_the_mount])
@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_that_is_gone_ends_all_writing(tmp_path: Path, harm, number: int) -> None:
    store = MessageStore.open(replace(CONFIG, root=str(tmp_path)), NativeDisk(), Clock())
    fill(store)
    flush(store)
    store.check_files()
    path = tmp_path / "commitlog" / f"{number * SEGMENT:020d}"
    harm(path)
    if harm is lose_the_mount:
        path = path.with_name(f"{0:020d}")
    with pytest.raises(OSError, match=f"running broker.*{path.name}"):
        store.check_files()
    assert store.failed is not None
    assert str(path) in store.failed
    with pytest.raises(ServiceNotAvailable, match=path.name):
        store.put(message(b"x"))
    assert store.begin_flush() is None
    if harm is not cut_short:
        assert len(bodies(store)) == 60  # what the files hold is there as long as the process
    store.close()
    assert (tmp_path / "abort").exists()


@pytest.mark.parametrize("harm", [delete, put_another_there])
def test_a_flush_of_a_file_that_is_gone_has_failed(tmp_path: Path, harm) -> None:
    store = MessageStore.open(replace(CONFIG, root=str(tmp_path)), NativeDisk(), Clock())
    fill(store, 5)
    harm(tmp_path / "commitlog" / f"{0:020d}")
    ticket = store.begin_flush()
    assert ticket is not None
    with pytest.raises(OSError, match="running broker") as caught:
        ticket.run()
    store.complete_flush(ticket, caught.value)
    assert store.watermarks.flushed == 0
    assert "running broker" in (store.failed or "")
    store.close()


def test_the_simulated_disk_tells_it_too_and_the_next_start_misses_it() -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    disk.unlink(f"/store/commitlog/{0:020d}")
    with pytest.raises(OSError, match="running broker"):
        store.check_files()
    store.close()
    assert open_store(disk).missing == [(0, SEGMENT)]


@pytest.mark.parametrize("beside", [True, False])
def test_what_the_cleaner_takes_is_not_missed(beside: bool, monkeypatch) -> None:
    disk, clock = new_disk(), Clock()
    disk.now_ms = clock.now_ms
    store = open_store(disk, clock)
    fill(store, 120)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    clock.now += 100 * 3_600_000
    store.clean_on_request()

    def clean() -> None:
        ticket = store.begin_clean()
        assert ticket is not None
        store.check_files()
        ticket.run()

    look = disk.names_file

    def look_while_the_cleaner_works(*of) -> bool:
        monkeypatch.undo()
        clean()
        return look(*of)

    if beside:
        monkeypatch.setattr(disk, "names_file", look_while_the_cleaner_works)
    else:
        clean()
    store.check_files()
    assert store.watermarks.start > 0
    store.truncate(store.watermarks.start + 1000)
    store.check_files()
    assert store.failed is None


def test_a_broker_notices_by_itself_and_refuses_sends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await send(client, b"one")).code == 0
        [segment] = [
            path
            for path in tmp_path.rglob("commitlog/*")
            if path.name == f"{0:020d}" and path.is_file()
        ]
        marks = broker.store.watermarks
        await until(lambda: marks.flushed == marks.appended)
        segment.unlink()  # no flush will come by
        await until(lambda: broker.failed is not None)
        assert str(segment) in broker.failed
        assert "check the disk, then restart the broker" in caplog.text
        refused = await send(client, b"two")
        assert refused.code != 0
        assert segment.name in refused.remark
        await broker.close()

    run(body)


def test_a_look_that_fails_is_no_all_clear(tmp_path: Path, monkeypatch) -> None:
    store = MessageStore.open(replace(CONFIG, root=str(tmp_path)), NativeDisk(), Clock())
    fill(store, 5)

    def refuse(_: int, path: str = "") -> tuple[int, ...]:
        raise OSError(errno.EIO, "planned", path)

    with monkeypatch.context() as patch:
        patch.setattr("saturnmq.store.files._identity", refuse)
        with pytest.raises(OSError, match="planned"):
            store.check_files()
    assert "planned" in (store.failed or "")
    store.close()
