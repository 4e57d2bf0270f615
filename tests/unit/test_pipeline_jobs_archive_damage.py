"""Archives whose manifests or footers are damaged: each is named, the rest still looked at."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

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
)
from saturnmq.pipeline.jobs.archive import read_archive
from saturnmq.pipeline.jobs.manifest import Archive, DataFile
from saturnmq.pipeline.jobs.replay_plan import plan
from saturnmq.runtime.errors import ConfigError, StoreDamaged


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store", 60, step_ms=100_000)


@pytest.fixture
def to(root: Path) -> Path:
    """An archive of two runs."""
    to = root.with_name("archive")
    archived(root, to)
    store = opened(root)
    put(store, 30, seed=8)
    store.close()
    archived(root, to)
    return to


def damage(root: Path, to: Path) -> dict[str, str]:
    return {each.path: each.what for each in audited(root, to).damage}


def a_file(to: Path, number: int = 0) -> tuple[DataFile, Path]:
    kept = Archive(str(to))
    file = next(each for each in kept.manifests()[number].files if each.rows > 2)
    return file, Path(kept.full(file))


# -- manifests ------------------------------------------------------------------------------------


def of_file(name: str, value: object) -> Callable[[dict], object]:
    return lambda document: document["files"][0].update({name: value})


def of_range(value: object) -> Callable[[dict], object]:
    return lambda document: document["ranges"]["T0"]["store"].update({"0": value})


def of_all(name: str, value: object) -> Callable[[dict], object]:
    return lambda document: document.update({name: value})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (of_all("version", 2), "version 2, this is for 1"),
        (of_all("version", True), "version is True"),
        (of_all("number", "x"), "number is 'x'"),
        (of_all("number", 5), "number is 5"),
        (of_all("run", None), "run is None"),
        (of_all("made", 7), "made is 7"),
        (of_all("columns", []), "must be among them"),
        (of_all("columns", [1, 2]), "must be among them"),
        (of_all("columns", "body"), "columns is 'body'"),
        (lambda document: document["columns"].append("bdy"), "there is no column 'bdy'"),
        (of_all("files", None), "files is None"),
        (lambda document: document["files"].append([]), "path is None"),
        (of_all("ranges", []), "ranges is "),
        (of_range([-5, 10]), "first is -5, not from 0"),
        (of_range([0, 10**30]), "end is 1000000000000000000000000000000, not from 0"),
        (of_range([7, 0]), "T0 store/0 has the range [7, 0]"),
        (of_range([0, 7, 9]), "T0 store/0 has the range [0, 7, 9]"),
        (of_range([0]), "end is None"),
        (of_range([0, 7.5]), "end is 7.5"),
        (of_range("07"), "0 is '07'"),
        (lambda document: document["ranges"]["T0"]["store"].update({"-1": [0, 5]}), "'-1' is no"),
        (lambda document: document["ranges"]["T0"].update({"": {"0": [0, 5]}}), "broker is ''"),
        (of_file("path", 5), "path is 5"),
        (of_file("path", "a\0b"), "path is 'a\\x00b'"),
        (of_file("path", "\ud800"), "surrogates not allowed"),
        (of_file("path", "../../x.parquet"), "leads out of the archive"),
        (of_file("path", "/x.parquet"), "leads out of the archive"),
        (of_file("topic", None), "topic is None"),
        (of_file("broker", ""), "broker is ''"),
        (of_file("queue_id", "0"), "queue_id is '0'"),
        (of_file("queue_id", 1 << 31), "queue_id is 2147483648, not from 0"),
        (of_file("hour", "today"), "hour 'today' is not written as"),
        (of_file("first", "x"), "first is 'x'"),
        (of_file("end", None), "end is None"),
        (of_file("rows", -1), "rows is -1"),
        (of_file("bytes", "5"), "bytes is '5'"),
        (of_file("crc", "x"), "crc is 'x'"),
        (of_file("footer_bytes", 1 << 40), "footer_bytes is 1099511627776"),
        (of_file("foo", 1), "has the unknown foo"),
    ],
)
def test_an_odd_value_in_a_manifest_is_told_with_its_path(
    root: Path, to: Path, change: Callable[[dict], object], told: str
) -> None:
    path = to / "_manifest" / "00000001.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    _, other_path = a_file_of_second(to)
    overwrite(other_path, 4, b"\xff")
    found = damage(root, to)
    assert f"this file is no manifest: {told}" in found[str(path)] or told in found[str(path)]
    assert "another checksum" in found[str(other_path)]
    for use in (lambda: archived(root, to), lambda: plan(str(to), "T0")):
        with pytest.raises(StoreDamaged, match=f"{path} is no manifest"):
            use()


def a_file_of_second(to: Path) -> tuple[DataFile, Path]:
    kept = Archive(str(to))
    found, _ = kept.read()
    file = found[-1].files[0]
    return file, Path(kept.full(file))


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"\xff", b"[" * 100_000])
def test_of_an_archive_without_a_readable_manifest_each_is_told(
    root: Path, to: Path, text: bytes
) -> None:
    paths = sorted((to / "_manifest").iterdir())
    for path in paths:
        path.write_bytes(text)
    assert set(damage(root, to)) == set(map(str, paths))


def test_a_missing_manifest_is_told_and_those_behind_it_are_checked(root: Path, to: Path) -> None:
    _, path = a_file_of_second(to)
    gone = to / "_manifest" / "00000001.json"
    gone.unlink()
    path.unlink()
    found = damage(root, to)
    assert "is missing, 00000002.json follows it" in found[str(gone)]
    assert found[str(path)] == "archive: a file is missing"


# -- footers --------------------------------------------------------------------------------------


def footer_of(path: Path) -> range:
    size = path.stat().st_size
    length = int.from_bytes(path.read_bytes()[-8:-4], "little")
    return range(size - 8 - length, size - 8)


def damage_statistics(path: Path) -> None:
    """Let a footer say that its last row was stored an hour earlier."""
    column = next(
        each
        for each in map(pq.ParquetFile(path).metadata.row_group(0).column, range(99))
        if each.path_in_schema == "storeTimestamp"
    )
    latest = struct.pack("<q", column.statistics.max_raw)
    earlier = struct.pack("<q", column.statistics.max_raw - 3_600_000_000)
    data = path.read_bytes()
    begin = footer_of(path).start
    path.write_bytes(data[:begin] + data[begin:].replace(latest, earlier))


def test_statistics_that_are_not_those_of_the_rows_are_found(root: Path, to: Path) -> None:
    file, path = a_file(to)
    damage_statistics(path)
    assert "the footer of a file has another checksum" in damage(root, to)[str(path)]
    for use in (lambda: read_archive(None, str(to)), lambda: plan(str(to), file.topic)):
        with pytest.raises(StoreDamaged, match=f"restore {path} from a copy.*another checksum"):
            use()
    list_differently(to, file, NO_CHECKSUMS)
    assert "storeTimestamp from" in damage(root, to)[str(path)]
    assert "by its footer" in damage(root, to)[str(path)]


@pytest.mark.timeout(180)
def test_no_flipped_bit_of_a_footer_ends_an_audit_or_a_plan(root: Path, to: Path) -> None:
    file, path = a_file(to)
    sound = path.read_bytes()
    list_differently(to, file, NO_CHECKSUMS)
    assert audited(root, to).sound
    found = 0
    footer = footer_of(path)
    for at in footer[::41]:
        path.write_bytes(sound)
        overwrite(path, at, bytes([sound[at] ^ 1 << at % 8]))
        assert set(damage(root, to)) <= {str(path), str(to)}, at
        found += not audited(root, to).sound
        with contextlib.suppress(ConfigError, StoreDamaged):
            plan(str(to), file.topic)
    assert found > len(footer[::41]) // 4
    path.write_bytes(sound)
    listed = {"footer_bytes": len(footer) + 8, "footer_crc": file.footer_crc, "crc": file.crc}
    list_differently(to, file, listed)
    assert audited(root, to).sound
    for at in (footer[0], footer[len(footer) // 2], footer[-1]):
        path.write_bytes(sound)
        overwrite(path, at, bytes([sound[at] ^ 1]))
        assert "another checksum" in damage(root, to)[str(path)]
    path.write_bytes(sound)
    overwrite(path, 0, b"Q")  # nobody reads it
    assert "another checksum" in damage(root, to)[str(path)]
