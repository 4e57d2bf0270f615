"""`saturnmq pipeline audit` of a store's files: a sound one is, and each planted fault is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pipeline_store_rig import SIZES, START_MS, made, opened, overwrite, put, segments
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.jobs.audit import Audited, audit
from saturnmq.protocol.frame import Frame, decode_frame, encode_frame
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.derived.consumequeue import ENTRY
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import PendingMessage
from saturnmq.store.recovery.checkpoint import Checkpoint


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store")


def audited(root: Path, **options) -> Audited:
    return audit(None, Where.store(str(root)), sizes=SIZES, **options)


def whats(found: Audited) -> str:
    return "\n".join(f"{each.what} x{each.count}" for each in found.damage)


def queue_file(root: Path, topic: str = "T1", queue_id: int = 1, number: int = 0) -> Path:
    return sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())[number]


def frames(path: Path) -> list[tuple[int, Frame]]:
    """Those of one file, with their positions."""
    data, at, found = path.read_bytes(), 0, []
    while isinstance(frame := decode_frame(data, at), Frame):
        found.append((at, frame))
        at += frame.size
    return found


def encoded(frame: Frame, **changed) -> bytes:
    names = (
        *("physical_offset", "queue_offset", "queue_id", "flag", "sys_flag", "born_timestamp"),
        *("born_host", "store_timestamp", "store_host", "reconsume_times", "prepared_offset"),
        *("body", "topic"),
    )
    fields = {name: getattr(frame, name) for name in names} | changed
    crc_property = b"__CRC32#" in frame.raw_properties
    return encode_frame(**fields, properties=frame.raw_properties, crc_property=crc_property)


def test_a_sound_store_is_sound_and_adds_up(root: Path) -> None:
    found = audited(root)
    assert found.sound
    assert not found.notes
    assert (found.messages, found.queues, found.repeated) == (200, 6, 0)
    totals = found.totals()
    assert sum(each["messages"] for each in totals) == 200
    assert {each["broker"] for each in totals} == {"store"}
    assert len({each["hour"] for each in totals}) == 1


def test_a_copy_has_the_same_checksums_and_a_longer_one_others(root: Path) -> None:
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    assert audited(copy).totals() == audited(root).totals()
    store = opened(copy)
    put(store, 1, seed=9)
    store.close()
    assert audited(copy).totals() != audited(root).totals()


def test_hours_are_those_of_the_store_time(tmp_path: Path) -> None:
    found = audited(made(tmp_path / "store", 30, step_ms=600_000))
    assert START_MS // 3_600_000 * 3_600_000 == 1_763_737_200_000
    hours = sorted({each["hour"] for each in found.totals()})
    assert hours[:2] == ["2025-11-21-15", "2025-11-21-16"]
    assert len(hours) == 6


def test_a_flipped_bit_in_a_body_is_found(root: Path) -> None:
    at, frame = next(each for each in frames(segments(root)[2]) if each[1].body)
    path = segments(root)[2]
    place = at + frame.size - len(frame.raw_properties) - 4 - len(frame.topic)
    overwrite(path, place, bytes([path.read_bytes()[place] ^ 0x10]))
    found = audited(root)
    assert "hold no frames: body CRC" in whats(found)
    assert "are missing, from queue offset" in whats(found)
    assert str(path) in {each.path for each in found.damage}
    assert found.messages == 199


def test_a_flipped_bit_in_a_header_is_found(root: Path) -> None:
    at, frame = frames(segments(root)[1])[3]
    data = frame.born_timestamp ^ 1
    overwrite(segments(root)[1], at + 40, data.to_bytes(8, "big"))
    assert "hold no frames: frame CRC" in whats(audited(root))


def test_a_frame_of_another_place_is_found(root: Path) -> None:
    path = segments(root)[1]
    at, frame = frames(path)[2]
    overwrite(path, at, encoded(frame, physical_offset=frame.physical_offset - 8))
    assert "frame says offset" in whats(audited(root))


def test_a_missing_file_of_the_log_is_found(root: Path) -> None:
    gone = frames(segments(root)[2])
    segments(root)[2].unlink()
    found = audited(root)
    assert "log: no segment holds 16384 to 24576" in whats(found)
    assert sum(e.count for e in found.damage if "are missing, from" in e.what) == len(gone)


def test_the_last_file_of_the_log_missing_is_found(root: Path) -> None:
    segments(root)[-1].unlink()
    assert "entries point behind the log's end" in whats(audited(root))


def test_a_missing_file_of_a_queue_is_found(root: Path) -> None:
    lost = queue_file(root)
    lost.unlink()
    assert "queue T1/1: entries are missing x20" in whats(audited(root))


def test_a_cut_entry_of_a_queue_is_found(root: Path) -> None:
    overwrite(queue_file(root), 5 * 20 + 10, bytes(10))
    assert "queue T1/1: entries are wrong x1" in whats(audited(root))


def test_a_queue_file_cut_short_is_found(root: Path) -> None:
    with queue_file(root).open("r+b") as file:
        file.truncate(390)
    assert "it is 390 bytes long" in whats(audited(root))


def test_a_wrong_tags_code_is_found(root: Path) -> None:
    path = queue_file(root)
    offset, size, code = ENTRY.unpack_from(path.read_bytes(), 60)
    overwrite(path, 60, ENTRY.pack(offset, size, code + 1))
    found = audited(root)
    assert whats(found) == "queue T1/1: tags codes are wrong x1"
    assert (found.damage[0].path, found.damage[0].position) == (str(path), 60)


def test_an_entry_of_no_frame_is_found(root: Path) -> None:
    path = queue_file(root, number=-1)
    used = len(path.read_bytes().rstrip(b"\0"))
    at = -(-used // 20) * 20
    overwrite(path, at, ENTRY.pack(100, 200, 0))
    assert "queue T1/1: entries point at nothing x1" in whats(audited(root))


def test_a_message_that_is_there_twice_is_found(root: Path) -> None:
    store = opened(root)
    put(store, 3)  # the same seed: the ids of the first messages again
    store.close()
    found = audited(root)
    assert found.repeated == 2  # the first of them has no id
    assert "ids of messages come again in their topic" in whats(found)
    assert found.damage[0].count == 2
    allowed = audited(root, allow_repeated=True)
    assert allowed.sound
    assert allowed.notes[0].count == 2


def test_an_id_may_come_again_in_a_retry_topic_and_in_another_one(root: Path) -> None:
    store = opened(root)
    again = b"UNIQ_KEY\x01u3-1\x02"
    for topic in ("%RETRY%g", "%RETRY%g", "%DLQ%g", "Other"):
        store.put(PendingMessage(topic, 0, b"", again))
    while store.reput():
        pass
    store.close()
    assert audited(root).repeated == 0


def test_a_hole_in_a_queue_is_found(root: Path) -> None:
    """A frame that says it is the message after the next, as do its entry and all behind it."""
    path = segments(root)[-1]
    at, last = frames(path)[-1]
    moved = last.queue_offset + 2
    overwrite(path, at, encoded(last, queue_offset=moved))
    name = f"{last.topic.decode()}/{last.queue_id}"
    text = whats(audited(root))
    assert (
        f"messages of queue {name} are missing" in text or f"queue {name}: there is a hole" in text
    )
    assert f"queue {name}: entries are" in text


def test_two_frames_of_one_queue_offset_are_found(root: Path) -> None:
    path = segments(root)[-1]
    at, last = frames(path)[-1]
    overwrite(path, at, encoded(last, queue_offset=last.queue_offset - 1))
    name = f"{last.topic.decode()}/{last.queue_id}"
    text = whats(audited(root))
    assert (
        "two frames have the same queue offset" in text or f"queue offsets of {name} come" in text
    )


def test_a_torn_end_is_a_note(root: Path) -> None:
    disk = NativeDisk()
    page = Checkpoint.load(disk, str(root))
    page.flushed = page.derived = 8192
    page.save(disk, str(root))
    (root / "abort").write_bytes(b"1")
    path = segments(root)[-1]
    at, _ = frames(path)[-1]
    overwrite(path, at + 60, b"\xff")
    found = audited(root)
    assert "its end is torn" in "; ".join(each.what for each in found.notes)
    assert found.sound, whats(found)


def test_beside_a_running_broker_what_it_writes_is_its_business(root: Path) -> None:
    store = opened(root)
    try:
        put(store, 10, seed=5)
        assert audited(root).sound
    finally:
        store.close()


def test_a_cluster_without_archive_is_nothing_to_audit() -> None:
    with pytest.raises(ConfigError, match="give an archive to compare with"):
        audit(None, Where.brokers("127.0.0.1:1"))
