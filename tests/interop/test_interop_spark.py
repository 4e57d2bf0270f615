"""Spark's source, sink and jobs on a real RocketMQ: its broker, running, and its files, while it
runs, after an orderly stop and after `kill -9`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interop_files import StoreFiles
from interop_messages import GROUP, QUEUES, TOPIC
from interop_nodes import BROKER, nodes
from interop_spark import COMPRESSIONS, EVERY_TOPIC, Rows, Spoken, batch, long_text, stream
from saturnmq import Admin
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.places import open_access
from saturnmq.store.inspect.verify import Sizes

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'saturnmq[spark]'")

from saturnmq.pipeline.jobs.archive import archive, read_archive
from saturnmq.pipeline.jobs.audit import audit
from saturnmq.pipeline.jobs.rebuild import rebuild
from saturnmq.pipeline.jobs.replay import replay
from saturnmq.pipeline.jobs.report import report

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
FILE_SIZES = (1 << 20, 20_000, 500, 2000)
SIZES = Sizes(*FILE_SIZES)
EARLIEST = {"startingOffsets": "earliest"}
COMPRESSED = 1  # bit of sysFlag
REPEATED = "log: ids of messages come again in their topic"
WRITTEN = 3000
ROW = (
    "concat('row ', id, repeat(' saturn', int(id % 7 = 0) * 900)) AS body",
    "if(id % 3 = 0, NULL, concat('t', id % 5)) AS tags",
    "concat('k', id, ' all') AS keys",
    "map('number', string(id), 'größe', 'x') AS properties",
    "int(id % 2 * 7) AS flag",
)


@pytest.fixture(scope="module")
def java(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spoken]:
    home = tmp_path_factory.mktemp("nodes")
    with nodes(home, jars) as started:
        made = Spoken(started, StoreFiles(home / "store", *FILE_SIZES))
        made.tell()
        yield made
        made.down()


def topic_of(java: Spoken, name: str) -> str:
    """A topic of the test's own."""
    java.up()
    with Admin(java.nameserver) as admin:
        admin.create_topic(name, QUEUES)
    return name


def error_of(action: Callable[[], object]) -> str:
    """The first line of ours in what Spark raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own, around ours
        action()
    lines = [line for line in str(caught.value).splitlines() if line.startswith("saturnmq.")]
    return lines[-1] if lines else str(caught.value)


def of_topic(found: Rows, topic: str = TOPIC) -> Rows:
    return {place: row for place, row in found.items() if place[0] == topic}


def as_printed(found: Rows) -> Rows:
    """RocketMQ's consumer takes the bit away when it inflates a body."""
    return {place: row | {"sysFlag": row["sysFlag"] & ~COMPRESSED} for place, row in found.items()}


# -- the source ----------------------------------------------------------------------------------


def test_rows_are_the_messages_that_a_consumer_of_rocketmq_prints(
    spark: Any, java: Spoken, figures: Counter[str]
) -> None:
    by_broker = batch(spark, java.brokers(subscribePattern=EVERY_TOPIC))
    printed = java.printed(TOPIC)
    assert as_printed(of_topic(by_broker)) == printed
    for each in java.sent:
        row = by_broker[each.queue.topic, each.queue.queue_id, each.queue_offset]
        assert (row["messageId"], row["body"]) == (each.message_id, each.body)
        assert (row["keys"] or "").split() == list(each.keys)
        assert row["physicalOffset"] == each.physical_offset
    by_keys = {row["keys"]: row for row in printed.values()}
    packed = [by_keys[f"java {name}"] for name in COMPRESSIONS]
    assert [row["body"].decode() for row in packed] == [long_text(name) for name in COMPRESSIONS]
    assert all(row["size"] < len(row["body"]) for row in packed)
    # the files of the running broker have the same, and the retry and dead-letter topics
    by_files = batch(spark, java.directory(subscribePattern=EVERY_TOPIC, trustTail="true"))
    assert by_files == by_broker
    assert {f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", TOPIC} <= {topic for topic, *_ in by_files}
    figures["rows of Spark that RocketMQ's consumer prints"] += len(printed)
    figures["rows equal over broker and files"] += len(by_files)


def test_streams_read_the_same_and_tell_their_group(
    spark: Any, java: Spoken, tmp_path: Path, figures: Counter[str]
) -> None:
    whole = batch(spark, java.brokers(subscribe=TOPIC))
    limits = {"subscribe": TOPIC, "maxOffsetsPerTrigger": "2000", **EARLIEST}
    by_broker = java.brokers(**limits, group=GROUP)
    found, query = stream(spark, by_broker, tmp_path / "broker")
    assert found == whole
    batches = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert len(batches) > 2
    # Spark tells a source of a batch once the next begins
    told = java.progress(GROUP)
    assert sum(told.values()) >= sum(batches[:-1])
    rest = batch(spark, java.brokers(subscribe=TOPIC, startingOffsets="group", group=GROUP))
    assert rest == {place: row for place, row in whole.items() if place[2] >= told[place[1]]}
    by_files = java.directory(**limits, trustTail="true")
    found, _ = stream(spark, by_files, tmp_path / "files")
    assert found == whole
    figures["rows of streams"] += 2 * len(whole)


def test_tags_and_conditions_are_filtered_over_both(
    spark: Any, java: Spoken, figures: Counter[str]
) -> None:
    whole = batch(spark, java.brokers(subscribe=TOPIC))
    for tags in ("TagA", "BB", "TagB || 标签-🪐", "nobody-has-this"):
        wanted = {p: row for p, row in whole.items() if row["tags"] in tags.split(" || ")}
        asked = {"subscribe": TOPIC, "subExpression": tags}
        assert batch(spark, java.brokers(**asked)) == wanted  # the hash of BB is that of Aa
        assert batch(spark, java.directory(**asked, trustTail="true")) == wanted
        figures["rows found by tag"] += len(wanted)

    def by_sql(text: str) -> Rows:
        return batch(spark, java.brokers(subscribe=TOPIC, subExpression=f"sql:{text}"))

    found = by_sql("TAGS IN ('Aa', 'BB') AND colour IS NOT NULL")
    assert found == {
        place: row
        for place, row in whole.items()
        if row["tags"] in ("Aa", "BB") and "colour" in row["properties"]
    }
    condition = "sql:TAGS IN ('Aa', 'BB') AND colour IS NOT NULL"
    by_files = java.directory(subscribe=TOPIC, subExpression=condition, trustTail="true")
    assert batch(spark, by_files) == found
    figures["rows found by SQL92"] += len(found)
    assert by_sql("nobodyHasThis > 5") == {}
    # to a pull with this RocketMQ's broker gives every message
    assert "correct option subExpression" in error_of(lambda: by_sql("this is (no"))
    java.configure("enablePropertyFilter", "false")
    try:
        error = error_of(lambda: by_sql("colour IS NOT NULL"))
    finally:
        java.configure("enablePropertyFilter", "true")
    assert "does not support consumer to filter message by SQL92" in error


def test_a_time_is_found_by_the_broker_as_in_its_files(spark: Any, java: Spoken) -> None:
    whole = batch(spark, java.brokers(subscribe=TOPIC))
    times = sorted(row["storeTimestamp"] for row in whole.values())
    first, last = times[len(times) // 3], times[len(times) // 3 * 2]
    wanted = {p: row for p, row in whole.items() if first <= row["storeTimestamp"] < last}
    assert 0 < len(wanted) < len(whole)
    asked = {"subscribe": TOPIC, "startingTimestamp": str(first), "endingTimestamp": str(last)}
    assert batch(spark, java.brokers(**asked)) == wanted
    assert batch(spark, java.directory(**asked, trustTail="true")) == wanted
    late = {"subscribe": TOPIC, "startingTimestamp": str(times[-1] + 1)}
    for options in (java.brokers(**late), java.directory(**late, trustTail="true")):
        error = error_of(lambda options=options: batch(spark, options))
        assert "no message of" in error
        at_end = options | {"startingOffsetsByTimestampStrategy": "latest"}
        assert batch(spark, at_end) == {}


# -- the sink ------------------------------------------------------------------------------------


def test_a_sink_writes_at_least_once_what_a_consumer_of_rocketmq_prints(
    spark: Any, java: Spoken, tmp_path: Path, figures: Counter[str]
) -> None:
    for number, compression in enumerate(("none", "zlib", "lz4", "zstd")):
        topic = topic_of(java, f"from-spark-{compression}")
        frame = spark.range(WRITTEN).repartition(2, "id").selectExpr(*ROW)
        writer = frame.write.format("saturnmq").mode("append").option("topic", topic)
        packing = {"compression": compression, "compressionThreshold": "1000"}
        writer.options(endpoints=java.nameserver, chunkBytes="100k", **packing).save()
        found = java.printed(topic)
        assert len({row["messageId"] for row in found.values()}) == WRITTEN == len(found)
        wanted = {
            (row.body, row.tags, row.keys, row.flag, tuple(sorted(row.properties.items())))
            for row in frame.collect()
        }
        own = {"UNIQ_KEY", "WAIT", "KEYS", "TAGS"}
        assert wanted == {
            (
                row["body"].decode(),
                row["tags"],
                row["keys"],
                row["flag"],
                tuple(sorted((k, v) for k, v in row["properties"].items() if k not in own)),
            )
            for row in found.values()
        }
        long = [row for row in found.values() if len(row["body"]) > 1000]
        assert all((row["size"] < len(row["body"])) is (number > 0) for row in long)
        assert as_printed(batch(spark, java.brokers(subscribe=topic))) == found
        figures["rows of the sink that RocketMQ's consumer prints"] += len(found)


def test_an_epoch_that_is_repeated_has_the_same_ids(
    spark: Any, java: Spoken, tmp_path: Path, figures: Counter[str]
) -> None:
    topic = topic_of(java, "from-a-stream")
    columns = {"columns": "body,keys,tags"}
    frame = spark.readStream.format("saturnmq").options(
        **{**java.brokers(subscribe=TOPIC, subExpression="TagA", **EARLIEST), **columns}
    )

    def write() -> None:
        writer = frame.load().writeStream.format("saturnmq").option("topic", topic)
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        query = writer.option("endpoints", java.nameserver).start()
        assert query.awaitTermination(120)

    write()
    once = batch(spark, java.brokers(subscribe=topic))
    for name in ("0", ".0.crc"):  # Spark died before it noted the epoch
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    write()
    twice = batch(spark, java.brokers(subscribe=topic))
    assert len(twice) == 2 * len(once) > 0
    bodies = {row["messageId"]: row["body"] for row in once.values()}
    assert Counter(row["messageId"] for row in twice.values()) == dict.fromkeys(bodies, 2)
    assert all(bodies[row["messageId"]] == row["body"] for row in twice.values())
    figures["rows of a repeated epoch with the ids of the first time"] += len(once)


def test_exactly_once_is_refused_before_anything_is_sent(
    spark: Any, java: Spoken, tmp_path: Path
) -> None:
    topic = topic_of(java, "not-exactly-once")
    said = "exactly-once needs a SaturnMQ broker, 'broker-a' is none"
    once = {"endpoints": java.nameserver, "topic": topic, "delivery": "exactly-once"}

    def write() -> None:
        frame = spark.range(10).selectExpr("string(id) AS body")
        frame.write.format("saturnmq").mode("append").options(**once).save()

    def write_stream() -> None:
        source = {**java.brokers(subscribe=TOPIC, **EARLIEST), "columns": "body"}
        frame = spark.readStream.format("saturnmq").options(**source).load()
        writer = frame.writeStream.format("saturnmq").options(**once).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    archive(spark, Where.brokers(java.nameserver), [TOPIC], str(tmp_path / "archive"))
    for action in (
        write,
        write_stream,
        lambda: replay(spark, str(tmp_path / "archive"), topic, java.nameserver),
    ):
        assert said in error_of(action)
    assert set(java.ends(topic).values()) == {0}


# -- the files after the broker, and the jobs ----------------------------------------------------


def test_what_an_orderly_stop_leaves_is_what_the_broker_gave(
    spark: Any, java: Spoken, figures: Counter[str]
) -> None:
    served = batch(spark, java.brokers(subscribePattern=EVERY_TOPIC))
    ends, groups = java.ends(TOPIC), java.progress(GROUP)
    java.down()
    assert batch(spark, java.directory(subscribePattern=EVERY_TOPIC)) == served
    trusting = java.directory(subscribePattern=EVERY_TOPIC, trustTail="true")
    assert batch(spark, trusting) == served
    with open_access(Where.store(java.store, broker_name=BROKER)) as access:
        high = {queue.queue_id: end for queue, (_, end) in access.bounds([TOPIC]).items()}
        known = access.committed(GROUP, TOPIC)
    assert high == ends
    assert {queue.queue_id: offset for queue, offset in known.items()} == groups
    figures["rows of a store that stopped in order"] += len(served)


def test_jobs_take_a_store_of_rocketmqs_for_one_of_ours(
    spark: Any, java: Spoken, tmp_path: Path, figures: Counter[str]
) -> None:
    to, derived = tmp_path / "archive", tmp_path / "derived"
    java.up()
    served = batch(spark, java.brokers(subscribe=TOPIC))
    by_broker = archive(spark, Where.brokers(java.nameserver), [TOPIC], str(to))
    java.down()
    store = Where.store(java.store, broker_name=BROKER)
    by_files = archive(spark, store, [TOPIC], str(tmp_path / "archive of files"))
    assert (by_files.messages, by_files.ranges) == (by_broker.messages, by_broker.ranges)
    assert archive(spark, store, [TOPIC], str(to)).messages == 0  # has all of it
    kept = read_archive(spark, str(to)).select("queueId", "queueOffset", "body").collect()
    bodies = {(TOPIC, row.queueId, row.queueOffset): bytes(row.body) for row in kept}
    assert bodies == {place: row["body"] for place, row in served.items()}

    # an epoch that a sink repeated has its ids twice
    audited = audit(spark, store, str(to), sizes=SIZES, allow_repeated=True)
    assert audited.damage == []
    assert {note.what.partition(",")[0] for note in audited.notes} <= {REPEATED}
    assert audited.archived == len(served)
    frames = java.files.frames()
    assert audited.messages == len(frames)
    assert audited.queues >= len(java.files.queues())

    rebuilt = rebuild(spark, java.store, str(derived), SIZES)
    assert rebuilt.messages == len(frames)
    assert queue_files(derived) == queue_files(java.files.root)
    ours = StoreFiles(derived, *FILE_SIZES)
    assert ours.indexed([]) == java.files.indexed(frames)

    page = report(spark, store)
    usage = page.topics[TOPIC]
    assert usage.total.messages == len(served)
    assert usage.total.bytes == sum(row["size"] for row in served.values())
    tags = Counter(row["tags"] for row in served.values() if row["tags"])
    assert dict(usage.tags.most(len(tags))) == tags
    figures["rows archived from a broker and from its files"] += 2 * len(served)
    figures["frames audited"] += audited.messages
    figures["queue files rebuilt to the byte"] += len(queue_files(derived))


def queue_files(root: Path) -> dict[str, bytes]:
    """All files of ConsumeQueues that hold anything."""
    files = (path for path in (root / "consumequeue").glob("*/*/*") if path.is_file())
    return {str(path.relative_to(root)): data for path in files if any(data := path.read_bytes())}


def test_what_kill_9_leaves_is_read_to_the_last_whole_message(
    spark: Any, java: Spoken, figures: Counter[str]
) -> None:
    before = len(java.sent)
    java.kill()
    assert len(java.sent) - before >= 500
    asked = {"subscribePattern": EVERY_TOPIC}
    assert "trustTail=true" in error_of(lambda: batch(spark, java.directory(**asked)))
    found = batch(spark, java.directory(**asked, trustTail="true"))
    there = {each.physical_offset: each for each in java.files.frames()}
    assert {row["physicalOffset"] for row in found.values()} <= there.keys()
    acknowledged = {(s.queue.topic, s.queue.queue_id, s.queue_offset): s for s in java.sent}
    assert {each.physical_offset for each in java.sent} <= there.keys()
    # RocketMQ's queues are written behind its log: what was not yet is there after its next start
    missing = acknowledged.keys() - found.keys()
    served = batch(spark, java.brokers(**asked))
    assert acknowledged.keys() <= served.keys()
    assert {place: served[place] for place in found} == found
    assert batch(spark, java.directory(**asked, trustTail="true")) == served
    # its next start wrote down how far it was then; what it takes now lies behind that
    java.speak_on()
    served = batch(spark, java.brokers(**asked))
    java.down()
    assert batch(spark, java.directory(**asked)) == served
    figures["rows of a store that was killed"] += len(found)
    figures["acknowledged rows not yet in its queues"] += len(missing)
