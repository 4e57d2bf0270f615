"""An audit against an archive: its files, whatever is left of their messages elsewhere, and its
messages beside those of a store.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline_store_rig import (
    NO_CHECKSUMS,
    archived,
    audited,
    list_differently,
    made,
    opened,
    overwrite,
    put,
    segments,
)
from saturnmq.pipeline.jobs.archive import read_archive
from saturnmq.pipeline.jobs.audit import Audited
from saturnmq.pipeline.jobs.manifest import Archive, DataFile
from saturnmq.runtime.errors import StoreDamaged


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store", 120, step_ms=100_000)


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def whats(found: Audited) -> str:
    return "\n".join(each.what for each in found.damage)


def rewritten(to: Path, change: Callable[[pa.Table], pa.Table]) -> DataFile:
    """The first file with several rows, changed, its manifest telling of its new rows and size,
    without checksums."""
    kept = Archive(str(to))
    file = next(each for each in kept.manifests()[0].files if each.rows > 3)
    table = change(pq.ParquetFile(kept.full(file)).read())
    pq.write_table(table, kept.full(file))
    size = os.path.getsize(kept.full(file))
    list_differently(to, file, NO_CHECKSUMS | {"rows": table.num_rows, "bytes": size})
    return file


def test_an_archive_of_all_is_sound(root: Path, to: Path) -> None:
    archived(root, to)
    found = audited(root, to)
    assert found.sound, whats(found)
    assert (found.archived, found.digests.rows) == (120, 120)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("a row less", lambda table: table.slice(1)),
        ("a row more", lambda table: pa.concat_tables([table, table.slice(0, 1)])),
        (
            "another body",
            lambda table: table.set_column(
                table.schema.get_field_index("body"),
                table.schema.field("body"),
                pa.array([b"x", *table["body"].to_pylist()[1:]], pa.binary()),
            ),
        ),
        (
            "two rows changed places",
            lambda table: table.set_column(
                table.schema.get_field_index("keys"),
                table.schema.field("keys"),
                pa.array(table["keys"].to_pylist()[::-1], pa.string()),
            ),
        ),
    ],
)
def test_a_changed_archive_is_found_by_queue_and_hour(root, to, name, change) -> None:
    archived(root, to)
    file = rewritten(to, change)
    text = whats(audited(root, to))
    assert f"queue {file.topic}/{file.queue_id} of store, hour {file.hour}: here" in text


def test_a_missing_or_broken_file_of_the_archive_is_found(root: Path, to: Path) -> None:
    archived(root, to)
    kept = Archive(str(to))
    first, second, *_ = kept.manifests()[0].files
    os.unlink(kept.full(first))
    Path(kept.full(second)).write_bytes(b"PAR1")
    found = audited(root, to)
    told = {each.path: each.what for each in found.damage}
    assert told[kept.full(first)] == "archive: a file is missing"
    assert told[kept.full(second)].startswith("archive: a file has 4 B, its manifest says")


def test_only_what_both_should_hold_is_compared(root: Path, to: Path) -> None:
    archived(root, to)
    store = opened(root)
    put(store, 60, seed=8)  # not archived
    store.close()
    found = audited(root, to)
    assert found.sound, whats(found)
    assert found.archived == 120
    for path in segments(root)[:3]:  # no longer in the store
        path.unlink()
    found = audited(root, to)
    assert found.sound, whats(found)
    assert 0 < found.archived < 120
    assert found.archived + found.only_archived == 120
    [note] = [each.what for each in found.notes if each.what.startswith("archive")]
    assert f"{found.only_archived} messages have nothing to be compared with" in note


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def filled_with_junk(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def with_a_flipped_bit(path: Path) -> None:
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    body = next(each for each in columns if each.path_in_schema == "body")
    at = body.data_page_offset + body.total_compressed_size - 1
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x10]))


def replaced_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("checksums", "change", "what"),
    [
        (True, emptied, "a file has 0 B, its manifest says"),
        (True, filled_with_junk, "the footer of a file has another checksum"),
        (False, filled_with_junk, "a file cannot be read"),
        (True, with_a_flipped_bit, "a file has another checksum than its manifest says"),
        (False, with_a_flipped_bit, "a file cannot be read"),
        (True, Path.unlink, "a file is missing"),
        (True, replaced_by_a_directory, "something else of its name"),
    ],
)
def test_a_file_whose_messages_no_store_has_is_checked(
    root: Path, to: Path, checksums: bool, change, what
) -> None:
    archived(root, to)
    if not checksums:
        for each in Archive(str(to)).manifests()[0].files:
            list_differently(to, each, NO_CHECKSUMS)
    for path in segments(root)[:3]:
        path.unlink()
    kept = Archive(str(to))
    sound = audited(root, to)
    file = kept.manifests()[0].files[0]  # of the first hour
    change(Path(kept.full(file)))
    found = audited(root, to)
    assert (found.archived, sound.sound) == (sound.archived, True)
    assert [(what in each.what, each.path) for each in found.damage] == [(True, kept.full(file))]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (emptied, "a file has 0 B, its manifest says"),
        (Path.unlink, "a file is missing"),
        (replaced_by_a_directory, "something else of its name"),
    ],
)
def test_an_archive_that_lacks_a_file_is_not_read(root: Path, to: Path, change, what) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    archived(root, to)
    kept = Archive(str(to))
    path = Path(kept.full(kept.manifests()[0].files[0]))
    change(path)
    with pytest.raises(StoreDamaged, match=f"restore {path} from a copy.*{what}"):
        read_archive(None, str(to))


def with_column(table: pa.Table, name: str, values: list) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.types[at]))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: with_column(t, "topic", ["T9"] * len(t)), "rows of topic 'T9', its man"),
        (lambda t: with_column(t, "queueId", [7] * len(t)), "rows of queueId 7, its manifest"),
        (lambda t: with_column(t, "queueId", [None] * len(t)), "rows without queueId"),
        (
            lambda t: with_column(t, "storeTimestamp", [0] * len(t)),
            "rows of the hour 1970-01-01-00, its manifest says",
        ),
        (
            lambda t: with_column(t, "queueOffset", range(1000, 1000 + len(t))),
            "rows outside of the offsets",
        ),
        (lambda t: t.take([0, 2, 1, *range(3, len(t))]), "rows that are not in the queue's"),
    ],
)
def test_rows_that_cannot_be_those_of_their_file_are_found(
    root: Path, to: Path, change, what
) -> None:
    archived(root, to)
    shutil.rmtree(root / "consumequeue")  # there is nothing to compare with
    file = rewritten(to, change)
    path = Archive(str(to)).full(file)
    assert f"archive: a file has {what}" in "".join(
        each.what for each in audited(root, to).damage if each.path == path
    )


def edited(to: Path, number: int, change: Callable[[dict], object]) -> str:
    path = to / "_manifest" / f"{number:08d}.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return str(path)


def range_of(document: dict) -> list[int]:
    return document["ranges"]["T1"]["store"]["1"]


def set_range(start: int, end: int) -> Callable[[dict], object]:
    """Both ends of a queue's range are moved by so much."""

    def change(document: dict) -> None:
        found = range_of(document)
        found[:] = found[0] + start, found[1] + end

    return change


def in_another_directory(document: dict) -> None:
    file = document["files"][0]
    file["path"] = file["path"].replace("topic=T0", "topic=T9")


@pytest.mark.parametrize(
    ("number", "change", "what"),
    [
        (2, set_range(0, -1), "the manifest covers"),
        (1, set_range(1, 0), "the manifest covers 1 to"),
        (1, lambda document: document["ranges"]["T1"]["store"].pop("1"), "covers 0 to 0"),
        (2, set_range(-1, 0), "those before it reach to"),
        (1, lambda document: document["files"].append(document["files"][0]), "is listed twice"),
        (
            1,
            lambda document: document["files"].append(
                document["files"][0] | {"path": document["files"][0]["path"] + "x.parquet"}
            ),
            "its files have",
        ),
        (1, in_another_directory, "is in another directory than topic=T0/hour="),
    ],
)
def test_a_manifest_that_contradicts_itself_or_those_before_is_found(
    root: Path, to: Path, number: int, change, what: str
) -> None:
    archived(root, to)
    store = opened(root)
    put(store, 60, seed=8)
    store.close()
    archived(root, to)
    assert audited(root, to).sound
    path = edited(to, number, change)
    told = [each.what for each in audited(root, to).damage if each.path == path]
    assert any(what in each for each in told), told


def test_covered_messages_that_are_in_no_file_are_a_note(root: Path, to: Path) -> None:
    archived(root, to)
    shutil.rmtree(root / "consumequeue")
    path = edited(to, 1, lambda document: document["files"].pop())
    [note] = [each.what for each in audited(root, to).notes if each.path == path]
    assert "were not archived, they are in no file" in note


def test_a_file_of_a_topic_that_is_gone_is_checked(root: Path, to: Path) -> None:
    archived(root, to)
    shutil.rmtree(root / "consumequeue" / "T0")
    kept = Archive(str(to))
    file = next(each for each in kept.manifests()[0].files if each.topic == "T0")
    emptied(Path(kept.full(file)))
    assert kept.full(file) in {each.path for each in audited(root, to).damage}


def test_a_store_that_lacks_what_was_archived_is_found(root: Path, to: Path) -> None:
    store = opened(root)
    put(store, 1, seed=8)
    store.close()
    archived(root, to)
    shorter = made(root.with_name("shorter"), 120, step_ms=100_000)
    assert "the archive reaches to" in whats(audited(shorter, to))
