"""`saturnmq pipeline archive`: each message once, whatever kills a run."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from cluster_rig import until
from kill_rig import killed_at
from pipeline_store_rig import SIZES, TOPICS, archived, audited, made, opened, put, segments, where
from saturnmq import Admin, Message, Producer
from saturnmq.cli.main import app
from saturnmq.pipeline.access import DataLoss, Where
from saturnmq.pipeline.jobs.archive import Archived, archive, archive_by_spark, read_archive
from saturnmq.pipeline.jobs.audit import audit
from saturnmq.pipeline.jobs.manifest import Archive, ArchiveChanged
from saturnmq.pipeline.jobs.replay_plan import plan
from saturnmq.pipeline.places import open_access
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError, StoreDamaged
from served_rig import served
from typer.testing import CliRunner


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store", 120, step_ms=100_000)


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def rows(to: Path) -> list[dict]:
    """What the manifests list."""
    kept = Archive(str(to))
    return [
        row
        for manifest in kept.manifests()
        for file in manifest.files
        for row in pq.ParquetFile(kept.full(file)).read().to_pylist()
    ]


def names(to: Path) -> list[str]:
    return sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.is_file())


def test_every_message_lies_in_the_archive_once_by_topic_and_hour(root: Path, to: Path) -> None:
    result = archived(root, to)
    assert (result.number, result.messages, result.not_there) == (1, 120, 0)
    found = rows(to)
    assert Counter((row["topic"], row["queueId"]) for row in found).total() == 120
    assert len({(row["topic"], row["queueId"], row["queueOffset"]) for row in found}) == 120
    kept = Archive(str(to))
    for file in kept.manifests()[0].files:
        table = pq.ParquetFile(kept.full(file)).read()
        hours = {f"{time:%Y-%m-%d-%H}" for time in table["storeTimestamp"].to_pylist()}
        assert hours == {file.hour}
        assert file.path.startswith(f"topic={file.topic}/hour={file.hour}/")
        offsets = table["queueOffset"].to_pylist()
        assert offsets == sorted(offsets)
        assert (file.first, file.end, file.rows) == (offsets[0], offsets[-1] + 1, len(offsets))
    assert len({file.hour for file in kept.manifests()[0].files}) == 5
    assert dict(found[0]["properties"])["TAGS"] == found[0]["tags"]
    assert {name.split("/")[0] for name in names(to)} == {"_manifest", "topic=T0", "topic=T1"}


def test_the_next_run_adds_what_is_new_and_nothing_if_nothing_is(root: Path, to: Path) -> None:
    archived(root, to)
    before = names(to)
    assert archived(root, to).number == 0
    assert names(to) == before
    store = opened(root)
    put(store, 30, seed=8)
    store.close()
    result = archived(root, to)
    assert (result.number, result.messages) == (2, 30)
    assert len(rows(to)) == 150
    assert audited(root, to).sound


def test_small_tasks_write_the_same_rows(root: Path, to: Path) -> None:
    archived(root, to, max_bytes=2000)
    archived(root, to.with_name("whole"))
    by_place = lambda row: (row["topic"], row["queueId"], row["queueOffset"])  # noqa: E731
    assert sorted(rows(to), key=by_place) == sorted(rows(to.with_name("whole")), key=by_place)


def test_many_hours_take_few_descriptors(tmp_path: Path, to: Path) -> None:
    root = made(tmp_path / "year", 300, step_ms=3_600_000)  # each in an hour of its own
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, limits[1]))
    try:
        done = archived(root, to)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (done.messages, done.files) == (300, 300)
    assert len({(row["topic"], row["queueId"], row["queueOffset"]) for row in rows(to)}) == 300
    assert audited(root, to).sound


def test_an_archive_keeps_its_columns(root: Path, to: Path) -> None:
    columns = ["topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "messageId"]
    archived(root, to, columns=columns)
    assert list(rows(to)[0]) == columns
    assert archived(root, to).number == 0
    assert audited(root, to).sound
    with pytest.raises(ConfigError, match="archive these columns to another directory"):
        archived(root, to, columns=[*columns, "body"])
    with pytest.raises(ConfigError, match="add columns queueOffset"):
        archived(root, to, columns=["topic", "brokerName", "queueId", "storeTimestamp"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": ["T9"]}, "there is no topic 'T9'; there are T0, T1"),
        ({"topics": []}, "name a topic; there are T0, T1"),
        ({"topics": ["T0", ""]}, "the topic name is empty"),
        ({"topics": ["T" * 200]}, "has 200 characters; at most"),
        ({"columns": ["topics"]}, "there is no column 'topics'; did you mean 'topic'"),
        ({"compression": "snapy"}, "'snapy' is none of them; did you mean 'snappy'"),
        ({"mode": "PERMISSIVE"}, "take mode FAILFAST or DROPMALFORMED"),
    ],
)
def test_what_makes_no_sense_says_what_to_change(root, to, options, text) -> None:
    with pytest.raises(ConfigError, match=text):
        archived(root, to, **options)
    assert not rows(to)


def test_an_archive_elsewhere_is_for_spark(root: Path) -> None:
    with pytest.raises(ConfigError, match="give a directory that is mounted here: hdfs://x/y"):
        archive(None, where(root), TOPICS, "hdfs://x/y")


def test_messages_deleted_before_they_were_archived_are_told(root: Path, to: Path) -> None:
    archived(root, to)
    store = opened(root)
    put(store, 60, seed=8)
    store.close()
    for path in segments(root)[:-2]:
        path.unlink()
    with pytest.raises(DataLoss, match="were deleted before they were archived"):
        archived(root, to)
    assert len(rows(to)) == 120
    result = archived(root, to, fail_on_data_loss=False)
    assert 0 < result.messages < 60


def test_a_queue_that_is_gone_is_told(root: Path, to: Path) -> None:
    archived(root, to)
    shutil.rmtree(root / "consumequeue" / "T0" / "2")
    with pytest.raises(DataLoss, match=r"T0 store/2 is gone"):
        archived(root, to)
    assert archived(root, to, topics=["T1"]).number == 0
    assert archived(root, to, fail_on_data_loss=False).number == 0


def test_a_broker_that_is_away_or_behind_is_waited_for(tmp_path: Path, to: Path) -> None:
    with served(tmp_path / "broker") as nameserver, ThreadPoolExecutor(1) as thread:
        with Admin(nameserver) as admin:
            admin.create_topic("T", queues=1)
        with Producer(nameservers=nameserver) as producer:
            producer.send(Message("T", b"0"))
            place = Where.brokers(nameserver, retries=600, retry_interval_ms=50)
            assert archive(None, place, ["T"], str(to)).messages == 1
            [path] = (to / "_manifest").iterdir()
            document = json.loads(path.read_text())
            document["ranges"]["T"]["broker-a"]["0"] = [0, 2]
            path.write_text(json.dumps(document))
            following = thread.submit(archive, None, place, ["T"], str(to))
            assert not wait([following], timeout=0.3).done
            for body in (b"1", b"2"):
                producer.send(Message("T", body))
            assert following.result(30).ranges in ({}, {MessageQueue("T", "broker-a", 0): (2, 3)})
        with Admin(nameserver) as admin:
            admin.delete_topic("T")
        place = replace(place, retries=0)
        with pytest.raises(DataLoss, match="T broker-a/0 is gone"):
            archive(None, place, ["T"], str(to))
        assert archive(None, place, ["T"], str(to), fail_on_data_loss=False).messages == 0


def test_stores_of_several_brokers_share_an_archive_by_name(root: Path, to: Path) -> None:
    other = made(root.with_name("other"), 30)
    for path, name in ((root, "a"), (other, "b")):
        place = Where.store(str(path), trust_tail=True, broker_name=name)
        archive(None, place, TOPICS, str(to))
    assert Counter(row["brokerName"] for row in rows(to)) == {"a": 120, "b": 30}
    with pytest.raises(ConfigError, match=r"say what the broker of .* is called"):
        archived(other, to)
    for path, name in ((root, "a"), (other, "b")):
        place = Where.store(str(path), trust_tail=True, broker_name=name)
        found = audit(None, place, str(to), sizes=SIZES)
        assert found.sound, found.damage
    assert not audited(other, to).archived


def test_a_store_that_ends_before_the_archive_is_told(root: Path, to: Path) -> None:
    earlier = root.with_name("earlier")
    made(earlier, 60, step_ms=100_000)
    archived(root, to)
    with pytest.raises(DataLoss, match="was it truncated"):
        archived(earlier, to)


def test_new_messages_at_the_offsets_of_lost_ones_are_archived(tmp_path: Path, to: Path) -> None:
    with (
        served(tmp_path) as nameserver,
        Admin(nameserver) as admin,
        Producer(nameservers=nameserver) as producer,
    ):
        place = Where.brokers(nameserver, retries=0)
        admin.create_topic("T", queues=1)

        def archived_after(*bodies: bytes, fail: bool = False) -> int:
            for body in bodies:
                end = producer.send(Message("T", body)).queue_offset + 1
            with open_access(place) as access:
                until(lambda: [*access.bounds(["T"]).values()] == [(0, end)], "all can be read")
            return archive(None, place, ["T"], str(to), fail_on_data_loss=fail).messages

        assert archived_after(b"0", b"1") == 2
        manifest = to / "_manifest" / "00000001.json"  # as if the broker had lost 2 to 5
        manifest.write_text(re.sub(r"(\[\s*0,\s*)2(\s*\])", r"\g<1>5\2", manifest.read_text()))
        with pytest.raises(DataLoss, match="ends at 3, the archive has it up to 5"):
            archived_after(b"2", fail=True)
        assert archived_after(b"3") == 0  # it goes on here
        assert archived_after(b"4", b"5", b"6") == 3
    assert sorted(row["body"] for row in rows(to)) == [b"0", b"1", b"4", b"5", b"6"]


@pytest.mark.parametrize("path", ["hdfs:/x", "hdfs:///x", "s3a://bucket/x", "dbfs:/x"])
def test_no_local_directory_is_made_for_another_file_system(path: str) -> None:
    with pytest.raises(ConfigError, match=f"{path} is not reached as a file"):
        Archive(path)


@pytest.mark.parametrize("path", ["/a", "/a:/b", "a:b", "file:/a", "file:///a", "x/y:/z"])
def test_a_path_without_a_scheme_or_with_that_of_files_is_local(path: str) -> None:
    assert Archive(path).path == os.path.abspath(path.removeprefix("file:").replace("///", "/"))


def test_a_run_that_found_all_lost_does_not_say_that_nothing_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("saturnmq.pipeline.session.spark_session", lambda *_: Mock())
    monkeypatch.setattr(
        "saturnmq.pipeline.jobs.archive.archive", lambda *_, **__: Archived("/a", 3, not_there=5)
    )
    done = CliRunner().invoke(app, ["pipeline", "archive", "T", "--to", "/a", "--ignore-data-loss"])
    assert done.exit_code == 0, done.output
    assert "5 messages are not in it: they were lost or damaged" in done.output


def test_of_two_runs_at_once_the_second_adds_nothing_and_says_so(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Archive.add
    done: list[Archived] = []

    def second_comes_first(self: Archive, manifest) -> None:
        if not done:
            done.append(Archived(""))
            done.append(archived(root, to))
        add(self, manifest)

    monkeypatch.setattr(Archive, "add", second_comes_first)
    with pytest.raises(ArchiveChanged, match="run again: another run made"):
        archived(root, to)
    assert done[1].messages == 120
    assert len(rows(to)) == 120
    listed = {file.path for file in Archive(str(to)).manifests()[0].files}
    assert {name for name in names(to) if name.endswith(".parquet")} == listed
    assert audited(root, to).sound


def test_a_directory_holds_archives_of_one_kind(root: Path, to: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    (to / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"give another directory, or --spark-sink: {to} holds"):
        archived(root, to)
    assert os.listdir(to) == ["_spark_metadata"]
    other = to.with_name("other")
    archived(root, other)
    with pytest.raises(ConfigError, match=f"leave out --spark-sink: file:{other} holds"):
        archive_by_spark(None, where(root), TOPICS, f"file:{other}")
    (other / "_spark_metadata").mkdir()
    both = f"move _manifest or _spark_metadata away .* {other} holds two"
    for use in (
        lambda: read_archive(None, str(other)),
        lambda: audited(root, other),
        lambda: plan(str(other), "T0"),
        lambda: archive_by_spark(None, where(root), TOPICS, str(other)),
    ):
        with pytest.raises(ConfigError, match=both):
            use()


# -- kills ----------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_a_run_killed_at_any_step_leaves_all_or_nothing_and_the_next_one_clears_up(
    tmp_path: Path, to: Path
) -> None:
    root = made(tmp_path / "few", 7)
    number, seen = 0, set()
    while killed_at(number, lambda: archived(root, to)):
        seen.add(len(rows(to)))
        archived(root, to)
        assert len(rows(to)) == 7, number
        listed = {file.path for file in Archive(str(to)).manifests()[0].files}
        assert set(names(to)) == listed | {"_manifest/00000001.json"}, number
        shutil.rmtree(to)
        number += 1
    assert number > 30
    assert seen == {0, 7}
    assert audited(root, to).sound


def test_a_run_that_lives_is_left_alone(root: Path, to: Path) -> None:
    with Archive(str(to)).run() as living:
        (Path(living.directory) / "x.parquet").write_bytes(b"x")
        archived(root, to)
        assert (Path(living.directory) / "x.parquet").exists()
    assert not Path(living.directory).exists()


def test_manifests_that_are_damaged_or_missing_are_told(root: Path, to: Path) -> None:
    archived(root, to)
    first = to / "_manifest" / "00000001.json"
    text = first.read_text()
    for wrong in ("{", "{}", text.replace('"version": 1', '"version": 2')):
        first.write_text(wrong)
        with pytest.raises(StoreDamaged, match="is no manifest"):
            Archive(str(to)).manifests()
    first.rename(first.with_name("00000002.json"))
    with pytest.raises(StoreDamaged, match=r"00000001.json is missing"):
        Archive(str(to)).manifests()
    with pytest.raises(ConfigError, match="is no archive"):
        Archive(str(root)).existing()
