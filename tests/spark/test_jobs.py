"""The jobs in Spark tasks against a running cluster and its store; what they find and write file by
file is tested without Spark (test_pipeline_jobs_*.py).
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter, defaultdict

import pipeline_store_rig
import pytest
from cluster_rig import make_topic, running
from pipeline_store_rig import SIZES, damage_a_body, made, opened, overwrite, put, segments
from pyarrow.parquet import ParquetFile
from saturnmq import Admin, Message, Producer
from saturnmq.cli.main import app
from saturnmq.pipeline import session
from saturnmq.pipeline.access import Decoding, Where
from saturnmq.pipeline.columns import select
from saturnmq.pipeline.jobs.archive import archive, archive_by_spark, read_archive
from saturnmq.pipeline.jobs.audit import audit
from saturnmq.pipeline.jobs.rebuild import rebuild
from saturnmq.pipeline.jobs.replay import replay
from saturnmq.pipeline.jobs.report import report
from saturnmq.pipeline.jobs.tasks import JobFailed, run
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import Range
from saturnmq.runtime.errors import ConfigError, TopicNotExist
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.tombstones import KEY
from saturnmq.store.disk import NativeDisk
from saturnmq.store.inspect.rebuild import rebuild as rebuild_in_place
from typer.testing import CliRunner

ROWS = 2000
KEYS = 7


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(tmp_path_factory.mktemp("jobs")) as cluster:
        with Admin(cluster.nameservers[0]) as admin:
            for topic in ("orders", "again", "kept", "plain"):
                admin.create_topic(topic, 4)
        produce(cluster, range(ROWS))
        yield cluster


@pytest.fixture(scope="module")
def archived(spark, cluster, tmp_path_factory):
    """An archive of the first messages."""
    to = tmp_path_factory.mktemp("archived") / "orders"
    result = archive(spark, where(cluster), ["orders"], str(to))
    assert (result.number, result.messages, result.not_there) == (1, ROWS, 0)
    return str(to)


def produce(cluster, numbers):
    with Producer("jobs", cluster.nameservers[0]) as producer:
        for n in numbers:
            message = Message(
                "orders",
                b"b%d" % n,
                tag=f"t{n % 3}",
                keys=[f"k{n}", "all"],
                properties={"number": str(n)},
                sharding_key=f"s{n % KEYS}",
            )
            producer.send_async(message)


def where(cluster):
    return Where.brokers(cluster.nameservers[0])


def store(cluster):
    path = next(cluster.data.glob("*/store/commitlog")).parent
    return Where.store(str(path), trust_tail=True)


def contents(cluster, topic):
    """Messages of each queue in order: the number and all that a replay keeps."""
    names = ("queueId", "body", "keys", "tags", "properties")
    found = defaultdict(list)
    with open_access(where(cluster)) as access:
        for queue, (low, high) in access.bounds([topic]).items():
            for batch in access.batches([Range(*queue, low, high)], Decoding(select(names))):
                for row in batch.to_pylist():
                    own = {k: v for k, v in row["properties"] if k in ("number", "__SHARDINGKEY")}
                    kept = row | {"properties": tuple(sorted(own.items()))}
                    found[queue.queue_id].append(tuple(kept.values()))
    return found


def rows_of(queues):
    return Counter(row[1:] for rows in queues.values() for row in rows)


def in_order(queues):
    """Every sharding key's messages lie in one queue and rise."""
    last, place = {}, {}
    for queue, rows in queues.items():
        for row in rows:
            number, key = (value for _, value in sorted(row[4], reverse=True))
            assert place.setdefault(key, queue) == queue
            assert last.get(key, -1) < int(number)
            last[key] = int(number)
    return len(last) == KEYS


def test_an_archive_reads_back_by_topic_and_hour(spark, archived):
    frame = read_archive(spark, archived)
    assert frame.columns[0] == "topic"
    assert frame.columns[-1] == "hour"
    assert dict(frame.dtypes)["storeTimestamp"] == "timestamp"
    hour = "date_format(storeTimestamp, 'yyyy-MM-dd-HH') AS stored"
    found = frame.selectExpr("topic", "hour", hour, "body").collect()
    assert {row.topic for row in found} == {"orders"}
    assert all(row.hour == row.stored for row in found)
    assert Counter(bytes(row.body) for row in found) == Counter(b"b%d" % n for n in range(ROWS))


@pytest.mark.parametrize("name", ["br[a]", "cur{a,b}", "st*r?", "back\\slash"])
def test_an_archive_is_read_whatever_its_directory_is_called(spark, archived, tmp_path, name):
    copy = tmp_path / name
    shutil.copytree(archived, copy)
    assert read_archive(spark, str(copy)).count() == ROWS


def test_a_flipped_bit_in_an_archive_is_no_row(spark, archived, tmp_path):
    copy = tmp_path / "flipped"
    shutil.copytree(archived, copy)
    path = next(iter(copy.rglob("*.parquet")))
    group = ParquetFile(path).metadata.row_group(0)
    body = next(
        column
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema == "body"
    )
    at = body.data_page_offset + body.total_compressed_size - 1
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x10]))
    with pytest.raises(Exception, match="CRC"):
        read_archive(spark, str(copy)).select("body").collect()


def test_cluster_and_store_agree_with_the_archive(spark, cluster, archived):
    by_brokers = audit(spark, where(cluster), archived)
    assert by_brokers.sound, by_brokers.damage
    assert (by_brokers.messages, by_brokers.archived) == (ROWS, ROWS)
    by_files = audit(spark, store(cluster), archived)
    assert by_files.sound, by_files.damage
    assert by_files.totals() == by_brokers.totals()


def test_a_replay_adds_what_is_missing_and_nothing_twice(spark, cluster, archived, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(archived, copy)
    servers = cluster.nameservers[0]
    first = replay(spark, str(copy), "again", servers)
    assert (first.messages, first.new, first.skipped) == (ROWS, ROWS, 0)
    second = replay(spark, archived, "again", servers)  # the same archive, wherever it lies
    assert (second.messages, second.new, second.skipped) == (ROWS, 0, 1)
    produce(cluster, range(ROWS, ROWS + 300))
    assert archive(spark, where(cluster), ["orders"], str(copy)).messages == 300
    third = replay(spark, str(copy), "again", servers)
    assert (third.messages, third.new, third.skipped) == (ROWS + 300, 300, 1)
    there, here = contents(cluster, "orders"), contents(cluster, "again")
    assert rows_of(there) == rows_of(here)
    assert in_order(there)
    assert in_order(here)
    assert audit(spark, where(cluster), str(copy)).sound


def test_a_replay_can_keep_queues_and_a_rate(spark, cluster, archived):
    servers = cluster.nameservers[0]
    begin = time.monotonic()
    done = replay(spark, archived, "kept", servers, queues="keep", rate=4000)
    assert time.monotonic() - begin > ROWS / 4000 * 0.8
    assert done.new == ROWS
    there, here = contents(cluster, "orders"), contents(cluster, "kept")
    assert here == {queue: rows[: len(here[queue])] for queue, rows in there.items()}


def test_a_message_that_was_sent_compressed_is_replayed_compressed(spark, cluster, tmp_path):
    servers, to = cluster.nameservers[0], str(tmp_path / "big")
    body = b"z" * (4 << 20)
    for topic in ("big", "big-again"):
        make_topic(cluster, topic, 1)
    with Producer("big", servers) as producer:
        producer.send_batch([Message("big", b"small%d" % n) for n in range(3)])
        producer.send(Message("big", body, keys=["k"]))
    assert archive(spark, where(cluster), ["big"], to).messages == 4
    with pytest.raises(JobFailed, match=r"queueOffset 3 has .* \(option compression\)"):
        replay(spark, to, "big-again", servers)
    assert replay(spark, to, "big-again", servers, options={"compression": "zlib"}).new == 4
    assert [row[1] for row in contents(cluster, "big-again")[0]][-1] == body


def test_what_cannot_be_replayed_says_what_to_change(spark, cluster, archived, tmp_path):
    servers = cluster.nameservers[0]
    with pytest.raises((ConfigError, TopicNotExist), match="there is no topic 'agai'; did you"):
        replay(spark, archived, "agai", servers)
    with pytest.raises(ConfigError, match="has no topic 'order'; did you mean 'orders'"):
        replay(spark, archived, "again", servers, source_topic="order")
    with pytest.raises(ConfigError, match="'kep' is none of them; did you mean 'keep'"):
        replay(spark, archived, "again", servers, queues="kep")
    with pytest.raises(ConfigError, match="there is no Parquet"):
        replay(spark, str(tmp_path), "again", servers)
    other = str(tmp_path / "other")
    spark.range(3).selectExpr("id AS number").coalesce(1).write.parquet(other)
    with pytest.raises(ConfigError, match=r"name a column 'body' at .* it has number"):
        replay(spark, other, "again", servers)
    wrong = str(tmp_path / "wrong")
    spark.range(3).selectExpr("'x' AS body", "id AS tags").coalesce(1).write.parquet(wrong)
    with pytest.raises(ConfigError, match=r"column 'tags' at .* is int64: make it string"):
        replay(spark, wrong, "again", servers)


def test_the_plain_path_archives_once_too_and_any_parquet_can_be_replayed(spark, cluster, tmp_path):
    to = str(tmp_path / "plain[a]")
    first = archive_by_spark(spark, where(cluster), ["orders"], to)
    assert first.messages >= ROWS
    assert archive_by_spark(spark, where(cluster), ["orders"], to).messages == 0
    assert set(read_archive(spark, to).columns) > {"body", "topic", "hour"}
    with pytest.raises(ConfigError, match=r"or --spark-sink: .* an archive of Spark's file sink"):
        archive(spark, where(cluster), ["orders"], to)
    assert not (tmp_path / "plain[a]" / "_temporary").exists()
    servers = cluster.nameservers[0]
    for new in (first.messages, 0):
        done = replay(spark, to, "plain", servers, source_topic="orders")
        assert (done.messages, done.new) == (first.messages, new)
    assert rows_of(contents(cluster, "plain")) == rows_of(contents(cluster, "orders"))


def test_the_plain_path_refuses_an_archive_of_the_other_kind(spark, cluster, archived, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(archived, copy)
    with pytest.raises(ConfigError, match=r"leave out --spark-sink: .* holds an archive"):
        archive_by_spark(spark, where(cluster), ["orders"], str(copy))
    assert not (copy / "_checkpoint").exists()


def test_the_plain_path_has_hours_of_utc_in_every_time_zone(spark, tmp_path, monkeypatch):
    # 02:30 UTC: a time that the clocks of Berlin left out on this day.
    monkeypatch.setattr(pipeline_store_rig, "START_MS", 1_774_751_400_000)
    root, to = made(tmp_path / "store", count=20), str(tmp_path / "plain")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        archive_by_spark(spark, Where.store(str(root), trust_tail=True), ["T0", "T1"], to)
        hours = {row.hour for row in read_archive(spark, to).collect()}
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert hours == {"2026-03-29-02"}


def test_the_plain_path_takes_no_damaged_body(spark, tmp_path):
    root = made(tmp_path / "store", count=20)
    damage_a_body(segments(root)[0])
    with pytest.raises(JobFailed, match="body CRC"):
        archive_by_spark(
            spark, Where.store(str(root), trust_tail=True), ["T0", "T1"], str(tmp_path / "to")
        )


def test_topics_that_look_like_numbers_are_text_in_an_archive(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("saturnmq.pipeline.jobs.archive.is_local", lambda _: False)
    rows = [("0123", "2026-11-21-13", b"a"), ("7", "2026-11-21-14", b"b")]
    to = str(tmp_path / "numbers")
    frame = spark.createDataFrame(rows, "topic string, hour string, body binary")
    frame.write.partitionBy("topic", "hour").parquet(to)
    found = read_archive(spark, to)
    assert dict(found.dtypes) == {"body": "binary", "topic": "string", "hour": "string"}
    assert sorted((row.topic, row.hour, bytes(row.body)) for row in found.collect()) == rows


def test_a_report_tells_of_topics_and_groups(spark, cluster):
    found = report(spark, where(cluster), ["orders"])
    usage = found.to_json()["topics"][0]
    assert usage["messages"] >= ROWS
    assert usage["keys"][0] == ("all", usage["messages"])
    assert len(usage["queues"]) == 4
    by_files = report(spark, store(cluster), ["orders"]).to_json()["topics"][0]
    for name in ("messages", "bytes", "tags", "hours", "size"):
        assert by_files[name] == usage[name]


def test_a_rebuild_in_tasks_equals_one_in_place(spark, tmp_path):
    root = made(tmp_path / "store")
    built = rebuild(spark, str(root), str(tmp_path / "built"), SIZES)
    rebuild_in_place(NativeDisk(), str(root), lambda: 1_763_740_000_000, SIZES)
    assert built.messages == 200
    for kind in ("consumequeue", "index"):
        pairs = zip(
            sorted(path for path in (root / kind).rglob("*") if path.is_file()),
            sorted(path for path in (tmp_path / "built" / kind).rglob("*") if path.is_file()),
            strict=True,
        )
        for one, other in pairs:
            assert one.read_bytes() == other.read_bytes()
            assert kind == "index" or one.relative_to(root).parts == other.parts[-4:]


def test_jobs_leave_out_what_was_deleted_with_its_topic(spark, tmp_path):
    root = made(tmp_path / "store")
    store = opened(root)
    stone = store.tombstone("T0")
    put(store, 60, seed=4)
    store.close()
    NativeDisk().make_dirs(f"{root}/config")
    ConfigFile(NativeDisk(), f"{root}/config/topics.json").save({KEY: {"T0": stone.to_json()}})
    rebuild(spark, str(root), str(tmp_path / "built"), SIZES)
    assert audit(spark, Where.store(str(root), trust_tail=True), sizes=SIZES).damage == []
    rebuild_in_place(NativeDisk(), str(root), lambda: 1_763_740_000_000, SIZES)
    built, ours = tmp_path / "built/consumequeue", root / "consumequeue"
    paths = sorted(path.relative_to(ours) for path in ours.rglob("*") if path.is_file())
    assert paths == sorted(p.relative_to(built) for p in built.rglob("*") if p.is_file())
    for path in paths:
        assert (ours / path).read_bytes() == (built / path).read_bytes()


def test_faults_are_found_in_tasks_as_well(spark, tmp_path):
    root = made(tmp_path / "store", 120)
    overwrite(segments(root)[1], 4000, b"\xff" * 8)
    found = audit(spark, Where.store(str(root), trust_tail=True), sizes=SIZES)
    assert any("hold no frames" in each.what for each in found.damage)
    again = audit(None, Where.store(str(root), trust_tail=True), sizes=SIZES)
    assert found.damage == again.damage
    assert found.totals() == again.totals()


def test_the_error_of_a_task_begins_with_its_cause(spark, tmp_path):
    root = made(tmp_path / "store", 120)
    path = segments(root)[1]
    overwrite(path, 4000, b"\xff" * 4000)
    with pytest.raises(JobFailed) as caught:
        archive(spark, Where.store(str(root), trust_tail=True), ["T0"], str(tmp_path / "to"))
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"damaged message in {path}, offset")
    assert "set the option mode to DROPMALFORMED" in first
    assert not list((tmp_path / "to").rglob("*.parquet"))


def test_progress_reaches_the_end(spark):
    seen = []
    found = run(spark, str, [1, 2, 3], [5, 5, 10], lambda done, total: seen.append((done, total)))
    assert found == ["1", "2", "3"]
    assert seen[-1] == (20, 20)


def test_the_command_says_what_it_found_by_its_status(spark, tmp_path, monkeypatch):
    class Shared:
        """The tests' session, which goes on when the command is done."""

        sparkContext = spark.sparkContext

        def stop(self):
            pass

    def run_command(*arguments):
        return CliRunner().invoke(app, ["pipeline", *arguments])

    monkeypatch.setattr(session, "spark_session", lambda *_: Shared())
    root = made(tmp_path / "store", 60)
    place = ("--store", str(root), "--trust-tail")
    done = run_command("audit", *place, "--json", "--segment-bytes", str(SIZES.segment_bytes))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["messages"] == 60
    done = run_command("archive", "T0", "T1", "--to", str(tmp_path / "to"), *place)
    assert "60 messages in" in done.stdout
    assert (
        "nothing new" in run_command("archive", "T0", "--to", str(tmp_path / "to"), *place).stdout
    )
    done = run_command("report", "--to", str(tmp_path / "usage"), *place)
    assert "60 messages in 2 topics" in done.stdout
    assert (tmp_path / "usage.html").exists()
    done = run_command("rebuild", "--store", str(root), "--to", str(tmp_path / "built"), "--json")
    assert json.loads(done.stdout)["queues"] == 6
    overwrite(segments(root)[1], 4000, b"\xff" * 8)
    done = run_command("audit", *place)
    assert done.exit_code == 1
    assert "DAMAGE  log:" in done.stdout
    done = run_command("archive", "T0", "--to", str(tmp_path / "x"), "--store", str(tmp_path))
    assert done.exit_code == 2
    assert "is no store" in done.output
    assert run_command("audit").exit_code == 2
    assert run_command("audit", "--stor", "x").exit_code == 2
