"""The plan of a replay: every row once, queues in their order, and the same plan every time."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline_store_rig import archived, list_differently, made, opened, put
from saturnmq.cli.main import app
from saturnmq.pipeline.encoding import Encoder
from saturnmq.pipeline.jobs import replay_plan
from saturnmq.pipeline.jobs.manifest import Archive, DataFile
from saturnmq.pipeline.jobs.replay import Replayed, _send
from saturnmq.pipeline.jobs.replay_plan import ReplayPlan, plan
from saturnmq.pipeline.jobs.tasks import cause
from saturnmq.pipeline.sink_task import Written
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError, MessageIllegal, StoreDamaged
from typer.testing import CliRunner


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store", 120, step_ms=100_000)


@pytest.fixture
def to(root: Path, tmp_path: Path) -> str:
    archived(root, str(tmp_path / "archive"))
    return str(tmp_path / "archive")


def sent(of: ReplayPlan) -> dict[int, list[tuple[int, int]]]:
    """(step, queue offset) of each queue, in the order in which they are sent."""
    found = defaultdict(list)
    for number, step in enumerate(of.steps):
        for task in step:
            for part in task.parts:
                tables = [
                    pq.ParquetFile(piece.path).read_row_groups(range(piece.first, piece.end))
                    for piece in part
                ]
                table = pa.concat_tables(tables)
                if len(part) > 1:
                    table = table.sort_by("queueOffset")
                for row in table.select(["queueId", "queueOffset"]).to_pylist():
                    found[row["queueId"]].append((number, row["queueOffset"]))
    return found


def test_every_row_is_sent_once_and_in_the_order_of_its_queue(to, monkeypatch) -> None:
    assert len(plan(to, "T1").steps) == 1
    monkeypatch.setattr(replay_plan, "SLICE_BYTES", 500)
    found = plan(to, "T1")
    assert len(found.steps) > 2
    queues = sent(found)
    assert sum(map(len, queues.values())) == found.rows == 60
    for rows in queues.values():
        assert rows == sorted(rows)
        assert [offset for _, offset in rows] == list(range(len(rows)))
    for step in found.steps:  # no queue in two tasks of a step
        for a, b in ((a, b) for a in step for b in step if a is not b):
            assert not {p.path for part in a.parts for p in part} & {
                p.path for part in b.parts for p in part
            }


def test_what_is_archived_later_changes_nothing_before(root, to, monkeypatch) -> None:
    monkeypatch.setattr(replay_plan, "SLICE_BYTES", 2000)
    before = plan(to, "T0")
    store = opened(root)
    put(store, 40, seed=9)
    store.close()
    archived(root, to)
    after = plan(to, "T0")
    assert after.steps[: len(before.steps)] == before.steps
    assert len(after.steps) > len(before.steps)
    assert after.identity == before.identity


def test_an_archive_is_itself_wherever_it_lies_and_another_one_in_its_place_is_not(
    root, to, tmp_path
) -> None:
    first = plan(to, "T0").identity
    moved = shutil.move(to, str(tmp_path / "moved"))
    assert plan(moved, "T0").identity == first
    assert plan(moved, "T1").identity != first
    archived(root, to)
    assert plan(to, "T0").identity != first


def test_files_of_a_queue_whose_offsets_overlap_are_sorted_together(to, monkeypatch) -> None:
    """As where the broker's clock went back over an hour's end."""
    kept = Archive(to)
    queue = MessageQueue("T1", "store", 1)
    files = [file for file in kept.manifests()[0].files if file.queue == queue][:2]
    one, other = (pq.ParquetFile(kept.full(file)).read() for file in files)
    rows, written = pa.concat_tables([one, other]), {}
    for file, table in zip(files, (rows[::2], rows[1::2]), strict=True):
        pq.write_table(table, kept.full(file))
        size = os.path.getsize(kept.full(file))
        written[file.path] = {"rows": table.num_rows, "bytes": size, "footer_bytes": 0}
    whole = DataFile.__init__

    def overlapping(self, *arguments, **named):
        if named and named["path"] in written:
            named |= {"first": files[0].first, "end": files[1].end} | written[named["path"]]
        whole(self, *arguments, **named)

    monkeypatch.setattr(DataFile, "__init__", overlapping)
    offsets = [offset for _, offset in sent(plan(to, "T1"))[1]]
    assert offsets == sorted(offsets)


def test_of_an_archive_with_a_damaged_file_nothing_is_sent(to: str) -> None:
    kept = Archive(to)
    file = next(file for file in kept.manifests()[0].files if file.topic == "T1" and file.rows > 3)
    path = Path(kept.full(file))
    table = pq.ParquetFile(path).read()
    path.write_bytes(b"")
    with pytest.raises(StoreDamaged, match=rf"restore {path} from a copy.* a file has 0 B"):
        plan(to, "T1")
    assert plan(to, "T0").rows == 60
    pq.write_table(table.slice(1), path)
    listed = {"bytes": path.stat().st_size, "crc": None, "footer_bytes": 0}
    list_differently(Path(to), file, listed)
    with pytest.raises(StoreDamaged, match=f"a file has {file.rows - 1} rows, its manifest says"):
        plan(to, "T1")


def test_other_parquet_is_known_by_its_files(tmp_path: Path) -> None:
    directory = tmp_path / "files"
    (directory / "_hidden").mkdir(parents=True)
    table = pa.table({"body": pa.array([b"x", b"y"], pa.binary())})
    for name in ("b.parquet", "a.parquet", "_hidden/c.parquet", ".d.parquet"):
        pq.write_table(table, directory / name)
    (directory / "notes.txt").write_text("no Parquet")
    found = plan(str(directory), None)
    paths = [piece.path for task in found.steps[0] for part in task.parts for piece in part]
    assert [Path(path).name for path in paths] == ["a.parquet", "b.parquet"]
    assert found.columns == {"body": pa.binary()}
    assert plan(str(directory / "a.parquet"), None).rows == 2
    pq.write_table(table, directory / "e.parquet")
    assert plan(str(directory), None).identity != found.identity
    with pytest.raises(ConfigError, match="there is no Parquet of topic 'T'"):
        plan(str(directory), "T")
    pq.write_table(pa.table({"body": ["text"]}), directory / "f.parquet")
    with pytest.raises(ConfigError, match="column 'body' is string in"):
        plan(str(directory), None)
    (directory / "a.parquet").write_bytes(b"no Parquet")
    with pytest.raises(ConfigError, match=r"a\.parquet is no Parquet"):
        plan(str(directory), None)


class EncodingWriter:
    """As the sink's writer up to the requests."""

    def __init__(self, *columns: str) -> None:
        self._columns = columns

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        encoder, rows = Encoder(self._columns), 0
        for batch in batches:
            assert batch.schema.names == list(self._columns)
            rows += sum(piece.rows for piece in encoder.encode(batch, None, b"0" * 24, 0, 1 << 20))
        return Written(rows)


def test_of_sparks_file_sink_only_finished_files_are_sent(tmp_path: Path) -> None:
    """A micro-batch that failed wrote its rows to a file that its repetition wrote, too."""
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for number, name in enumerate(("part-0 a.parquet", "part-0 b.parquet", "part-1 c.parquet")):
        table = pa.table({"queueId": [number], "queueOffset": [number], "body": [b"x"]})
        pq.write_table(table, tmp_path / name)

    def line(name: str) -> str:
        path = (tmp_path / name).as_uri()
        return json.dumps({"path": path, "size": 1, "isDir": False, "action": "add"})

    (log / "0.compact").write_text(f"v1\n{line('part-0 b.parquet')}")
    (log / "1").write_text(f"v1\n{line('part-1 c.parquet')}\n")
    (log / ".1.crc").write_bytes(b"crc")
    finished = plan(str(tmp_path), None)
    assert finished.rows == 2
    assert sorted(sent(finished)) == [1, 2]
    for damaged in ("v9\n", "", "v1\n{", "v1\n[]", "v1\n{}"):
        (log / "1").write_text(damaged)
        with pytest.raises(StoreDamaged, match="_spark_metadata/1 is no log"):
            plan(str(tmp_path), None)


@pytest.mark.parametrize("rate", [0.0, 1e6])
def test_a_message_that_cannot_be_sent_is_named_by_its_place(tmp_path: Path, rate: float) -> None:
    rows = {
        "topic": ["T"] * 3,
        "brokerName": ["b"] * 3,
        "queueId": [1] * 3,
        "queueOffset": [7, 8, 9],
        "body": pa.array([b"x", b"y", bytes(4 << 20)], pa.binary()),
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    [[task]] = plan(str(tmp_path), None).steps
    with pytest.raises(MessageIllegal) as caught:
        _send(task, writer=EncodingWriter("body"), columns=("body",), rate=rate)
    text = str(caught.value)
    assert text.startswith("the message of topic T, brokerName b, queueId 1, queueOffset 9 has 419")
    assert "compress bodies (option compression)" in text
    pq.write_table(pa.table({"body": rows["body"]}), tmp_path / "a.parquet")
    [[task]] = plan(str(tmp_path), None).steps
    with pytest.raises(MessageIllegal, match="row 2 of a batch has 419"):
        _send(task, writer=EncodingWriter("body"), columns=("body",), rate=0.0)


def test_the_command_can_compress(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Mock(return_value=Replayed("T", "id", 0, 0, 0, 0))
    monkeypatch.setattr("saturnmq.pipeline.session.spark_session", lambda *_: Mock())
    monkeypatch.setattr("saturnmq.pipeline.jobs.replay.replay", given)
    done = CliRunner().invoke(app, ["pipeline", "replay", "/a", "T", "--compression", "zstd"])
    assert done.exit_code == 0, done.output
    assert given.call_args.kwargs["options"] == {"compression": "zstd"}


def test_of_several_topics_one_must_be_named(to: str) -> None:
    with pytest.raises(ConfigError, match=r"say which topic to replay: .* has T0, T1"):
        plan(to, None)


def test_the_cause_of_a_failed_job_is_told_without_what_is_around_it() -> None:
    text = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed
Traceback (most recent call last):
  File "decoding.py", line 7, in frames
saturnmq.pipeline.decoding.DamagedFrame: damaged message in x, offset 3

\tat org.apache.spark.api.python.BasePythonRunner
OSError: [Errno 28] No space left on device
"""
    assert cause(text) == "damaged message in x, offset 3"
    assert cause("OSError: [Errno 28] No space left") == "[Errno 28] No space left"
    assert cause("something else\nat java") == "something else"
