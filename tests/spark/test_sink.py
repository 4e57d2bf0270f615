"""`df.write.format("saturnmq")` and `writeStream` against real brokers, read back by the source."""

from __future__ import annotations

import datetime
import shutil
from collections import defaultdict

import pytest
from saturnmq.protocol.jhash import jhash
from saturnmq.protocol.message_queue import MessageQueue

QUEUES = 3
BROKERS = ("broker-0", "broker-1")


def write(df, cluster, topic, mode="append", **options):
    writer = df.write.format("saturnmq").mode(mode).option("endpoints", cluster.nameservers[0])
    writer.options(topic=topic, **options).save()


def read(spark, cluster, topic, *columns):
    reader = spark.read.format("saturnmq").option("endpoints", cluster.nameservers[0])
    if columns:
        reader = reader.option("columns", ",".join(columns))
    return reader.option("subscribe", topic).load()


def error_of(action):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own, around ours
        action()
    return str(caught.value)


def test_rows_come_back_as_they_were_written(spark, cluster, topic):
    born = datetime.datetime(2020, 1, 2, 3, 4, 5, 678000)
    rows = [
        (
            b"body %03d" % n * (400 if n % 10 == 0 else 1),
            f"tag{n % 3}" if n % 4 else None,
            f"k{n} all" if n % 5 else None,
            {"a": str(n), "b": "ä"} if n % 2 else None,
            n,
            born if n < 100 else born + datetime.timedelta(days=1),
        )
        for n in range(200)
    ]
    ddl = (
        "body BINARY, tags STRING, keys STRING, properties MAP<STRING,STRING>, flag INT, "
        "bornTimestamp TIMESTAMP"
    )
    df = spark.createDataFrame(rows, ddl).coalesce(1)
    write(df, cluster, topic, compression="zstd", compressionThreshold="1000")
    names = ("body", "tags", "keys", "properties", "flag", "bornTimestamp", "messageId", "sysFlag")
    found = read(spark, cluster, topic, *names).collect()
    assert len({row.messageId for row in found}) == 200
    assert {bool(row.sysFlag & 1) for row in found if len(row.body) > 1000} == {True}
    own = {"UNIQ_KEY", "WAIT", "KEYS", "TAGS", "__CRC32#"}
    back = [
        (
            bytes(row.body),
            row.tags,
            row.keys,
            {name: value for name, value in row.properties.items() if name not in own} or None,
            row.flag,
            row.bornTimestamp,
        )
        for row in found
    ]
    for expected, row in zip(rows, sorted(back, key=lambda row: row[4]), strict=True):
        assert row[1:] == expected[1:]
        assert row[0] == expected[0]


def test_a_key_keeps_its_queue_and_its_order(spark, cluster, topic):
    df = spark.range(0, 600, 1, 2).selectExpr(
        "cast(id as string) as body", "concat('k', id % 7) as shardingKey"
    )
    write(df, cluster, topic, chunkBytes="4096")
    found = read(spark, cluster, topic, "brokerName", "queueId", "queueOffset", "body")
    by_key = defaultdict(list)
    for row in found.orderBy("brokerName", "queueId", "queueOffset").collect():
        number = int(bytes(row.body))
        by_key[number % 7].append((row.brokerName, row.queueId, number))
    queues = [MessageQueue(topic, broker, n) for broker in BROKERS for n in range(QUEUES)]
    for key, places in by_key.items():
        expected = queues[abs(jhash(f"k{key}")) % len(queues)]
        assert {place[:2] for place in places} == {(expected.broker_name, expected.queue_id)}
        for partition in (range(300), range(300, 600)):
            numbers = [number for *_, number in places if number in partition]
            assert numbers == [number for number in partition if number % 7 == key]


def test_columns_say_the_queue_and_the_topic(spark, cluster, topic):
    rows = [(f"{n}", topic, BROKERS[n % 2], n % QUEUES) for n in range(60)]
    df = spark.createDataFrame(rows, "body STRING, topic STRING, brokerName STRING, queueId INT")
    writer = df.coalesce(1).write.format("saturnmq").mode("append")
    writer.option("endpoints", cluster.nameservers[0]).save()
    found = read(spark, cluster, topic, "body", "brokerName", "queueId").collect()
    assert sorted((int(bytes(r.body)), r.brokerName, r.queueId) for r in found) == [
        (n, BROKERS[n % 2], n % QUEUES) for n in range(60)
    ]


@pytest.mark.parametrize(
    ("ddl", "mode", "options", "said"),
    [
        ("'x' as body", "overwrite", {}, "a topic cannot be overwritten: use .mode('append')"),
        ("'x' as body", "append", {"chunkByte": "1"}, "did you mean 'chunkBytes'"),
        ("'x' as bodi", "append", {}, "no column 'bodi'; did you mean 'body'"),
        ("id as body", "append", {}, "column 'body' is BIGINT, not BINARY or STRING"),
    ],
)
def test_a_mistake_is_told_before_a_task_runs(spark, cluster, ddl, mode, options, said):
    df = spark.range(1).selectExpr(ddl)
    assert said in error_of(lambda: write(df, cluster, "any", mode, **options))


def test_what_the_brokers_lack_is_told(spark, cluster):
    df = spark.range(1).selectExpr("'x' as body")
    assert "no route of topic 'nowhere'" in error_of(lambda: write(df, cluster, "nowhere"))


def test_a_write_without_rows_sends_nothing_and_succeeds(spark, cluster, topic):
    df = spark.range(0, 10, 1, 4).where("id < 1").selectExpr("cast(id as string) as body")
    write(df.where("false"), cluster, topic)
    write(df, cluster, topic)  # three partitions of four are empty
    assert read(spark, cluster, topic).count() == 1


def test_the_same_write_twice_adds_nothing(spark, cluster, topic):
    df = spark.range(0, 500, 1, 4).selectExpr("cast(id as string) as body")
    options = {"delivery": "exactly-once", "writeId": "job-1"}
    write(df, cluster, topic, **options)
    write(df, cluster, topic, **options)
    assert read(spark, cluster, topic).count() == 500
    write(df, cluster, topic, **{**options, "writeId": "job-2"})
    assert read(spark, cluster, topic).count() == 1000


def test_an_epoch_that_runs_again_adds_nothing(spark, cluster, topic, tmp_path):
    """The driver died between the tasks of an epoch and its commit: Spark repeats it."""
    source = tmp_path / "in"
    checkpoint = tmp_path / "checkpoint"
    every = "cast(id as string) as body, concat('k', id % 7) as shardingKey"
    spark.range(0, 300, 1, 2).selectExpr(*every.split(", ", 1)).write.parquet(str(source))

    def run():
        stream = spark.readStream.schema("body STRING, shardingKey STRING").parquet(str(source))
        query = (
            stream.writeStream.format("saturnmq")
            .option("endpoints", cluster.nameservers[0])
            .option("topic", topic)
            .option("delivery", "exactly-once")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None
        return sum(progress.numInputRows for progress in query.recentProgress)

    assert run() == 300
    assert read(spark, cluster, topic).count() == 300
    shutil.rmtree(checkpoint / "commits")
    assert run() == 300
    found = [int(bytes(row.body)) for row in read(spark, cluster, topic).collect()]
    assert sorted(found) == list(range(300))
