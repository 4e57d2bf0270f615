"""Files that are written around the page cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from saturnmq.pipeline.jobs import direct_file
from saturnmq.pipeline.jobs.direct_file import BLOCK, DirectFile

KIB = 1 << 10


@pytest.fixture
def writer() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def written(path: Path, writer: ThreadPoolExecutor, *parts: bytes) -> bytes:
    file = DirectFile(str(path), writer, durable=True)
    for part in parts:
        assert file.write(part) == len(part)
    assert file.tell() == sum(map(len, parts))
    file.close()
    assert file.closed
    return path.read_bytes()


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [1],
        [4096],
        [4097, 3],
        [BLOCK],
        [BLOCK - 1, 1, 1],
        [BLOCK + 1],
        [300 * KIB] * 45,
        [3 * BLOCK + 17, 5],
    ],
)
def test_what_is_written_is_in_the_file(
    tmp_path: Path, writer: ThreadPoolExecutor, sizes: list[int]
) -> None:
    parts = [os.urandom(size) for size in sizes]
    assert written(tmp_path / "file", writer, *parts) == b"".join(parts)


def test_a_file_system_that_knows_no_such_way_is_written_to_as_ever(
    tmp_path: Path, writer: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        fd = opened(path, flags & ~os.O_DIRECT, mode)
        if flags & os.O_DIRECT:  # the file is there by then
            os.close(fd)
            raise OSError(errno.EINVAL, "Invalid argument", path)
        return fd

    monkeypatch.setattr(os, "open", refusing)
    part = os.urandom(BLOCK + 5)
    assert written(tmp_path / "file", writer, part) == part


def test_a_file_that_is_there_is_not_written_over(
    tmp_path: Path, writer: ThreadPoolExecutor
) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(FileExistsError):
        DirectFile(str(tmp_path / "file"), writer, durable=False)
    assert (tmp_path / "file").read_bytes() == b"kept"


@pytest.mark.parametrize("size", [10, BLOCK, 3 * BLOCK])
def test_an_error_of_the_disk_is_told_at_the_latest_at_the_end(
    tmp_path: Path, writer: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(direct_file, "_write", full)
    file = DirectFile(str(tmp_path / "file"), writer, durable=False)

    def write_all() -> None:
        file.write(bytes(size))
        file.close()

    with pytest.raises(OSError, match="No space"):
        write_all()
    file.abandon()
    assert file.closed


def test_a_writer_of_parquet_that_is_given_up_says_nothing(
    tmp_path: Path, writer: ThreadPoolExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = pa.record_batch({"n": list(range(1000))})
    file = DirectFile(str(tmp_path / "file"), writer, durable=False)
    parquet = pq.ParquetWriter(file, batch.schema)
    parquet.write_batch(batch)
    file.abandon()
    del parquet
    assert capsys.readouterr().err == ""


def test_parquet_can_be_read_back(tmp_path: Path, writer: ThreadPoolExecutor) -> None:
    table = pa.table({"n": list(range(100_000)), "text": [f"text {n}" for n in range(100_000)]})
    file = DirectFile(str(tmp_path / "file"), writer, durable=False)
    with pq.ParquetWriter(file, table.schema) as parquet:
        parquet.write_table(table, 10_000)
    file.close()
    assert pq.read_table(tmp_path / "file").equals(table)
