"""`spark.read.format("saturnmq")` against real brokers and their store directories.

What needs no session of Spark is asked of the reader as Spark would ask it: partitions, then read.
"""

from __future__ import annotations

import datetime
import json
import shutil
import time
from collections import Counter

import pytest
from cluster_rig import running
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan
from pyspark_saturnmq import DefaultSource
from saturnmq import Admin, Message, Producer
from saturnmq.cli.launcher import Settings
from saturnmq.pipeline.access import DataLoss
from saturnmq.pipeline.columns import COLUMNS, DEFAULT
from saturnmq.pipeline.decoding import DamagedFrame
from saturnmq.pipeline.offsets import dumps
from saturnmq.pipeline.places import open_access
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError

QUEUES, ROWS, SEGMENT = 3, 3000, 256 << 10
BROKERS = ("broker-0", "broker-1")
PLACES = [MessageQueue("orders", broker, n) for broker in BROKERS for n in range(QUEUES)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two brokers with `orders`: message n lies in queue n % 6, in order."""
    settings = Settings(masters=2, broker_options={"mappedFileSizeCommitLog": SEGMENT})
    with running(tmp_path_factory.mktemp("source"), settings) as cluster:
        with Admin(cluster.nameservers[0]) as admin:
            admin.create_topic("orders", QUEUES)
            admin.create_topic("other", 1)
        with Producer(nameservers=cluster.nameservers[0]) as producer:
            for n in range(ROWS):
                message = Message("orders", b"m%d" % n, tag="AB"[n // 6 % 2], keys=[f"k{n}", "all"])
                message.properties["number"] = str(n)
                producer.send_async(message, queue=PLACES[n % 6])
        yield cluster


def options(cluster, **more):
    return {"endpoints": cluster.nameservers[0], "subscribe": "orders", **more}


def lower(given):
    return {key.lower(): str(value) for key, value in given.items() if value is not None}


def reader(given):
    source = DefaultSource(lower(given))
    return source.reader(source.schema())


def rows(given):
    """What a batch read gives, as Spark would have it."""
    made = reader(given)
    return [
        row
        for partition in made.partitions()
        for batch in made.read(partition)
        for row in batch.to_pylist()
    ]


def numbers(found):
    return sorted(int(row["body"][1:]) for row in found)


def in_order(found):
    by_queue = {}
    for row in found:
        place = row["brokerName"], row["queueId"]
        assert by_queue.get(place, -1) < row["queueOffset"], place
        by_queue[place] = row["queueOffset"]
    return True


def load(spark, given):
    return spark.read.format("saturnmq").options(**given).load()


def error_of(action):
    """The first line of ours in what Spark raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own, around ours
        action()
    text = str(caught.value)
    lines = [line for line in text.splitlines() if line.startswith("saturnmq.")]
    return lines[-1] if lines else text


# -- rows and columns ----------------------------------------------------------------------------


def test_all_messages_come_with_all_their_columns(spark, cluster):
    names = [name for name in COLUMNS if name != "_corrupt"]
    frame = load(spark, options(cluster, columns=",".join(names)))
    assert frame.columns == names
    found = frame.collect()
    assert sorted(int(row.body[1:]) for row in found) == list(range(ROWS))
    for row in found[::97]:
        n = int(row.body[1:])
        assert MessageQueue(row.topic, row.brokerName, row.queueId) == PLACES[n % 6]
        assert row.queueOffset == n // 6
        assert (row.tags, row.keys) == ("AB"[n // 6 % 2], f"k{n} all")
        assert row.properties["number"] == str(n)
        assert row.messageId == row.properties["UNIQ_KEY"]
        assert row.crcOk
        assert row.size > len(row.body)
        delay = row.storeTimestamp - row.bornTimestamp
        assert datetime.timedelta(0) <= delay < datetime.timedelta(minutes=1)
    default = load(spark, options(cluster))
    assert tuple(default.columns) == DEFAULT


def test_a_schema_of_the_users_picks_columns(spark, cluster):
    chosen = spark.read.format("saturnmq").schema("queueOffset BIGINT, tags STRING")
    found = chosen.options(**options(cluster)).load().groupBy("tags").count().collect()
    assert {row.tags: row["count"] for row in found} == {"A": ROWS // 2, "B": ROWS // 2}
    wrong = spark.read.format("saturnmq").schema("queueOffset INT").options(**options(cluster))
    assert "column queueOffset has the type BIGINT, the schema says INT" in error_of(
        lambda: wrong.load().count()
    )


def test_the_store_directories_have_the_same_messages(spark, cluster):
    whole = Counter()
    for number, broker in enumerate(BROKERS):
        given = {
            "store": str(cluster.data / f"master-{number}" / "store"),
            "subscribe": "orders",
            "brokerName": broker,
            "trustTail": "true",  # its broker is running
        }
        frame = load(spark, given)
        whole.update((row.brokerName, bytes(row.body)) for row in frame.collect())
        assert in_order(rows(given))
    found = load(spark, options(cluster)).collect()
    assert whole == Counter((row.brokerName, bytes(row.body)) for row in found)
    assert set(whole.values()) == {1}


def test_filters_are_pushed_down_on_request(spark, cluster):
    wanted = "queueId = 1 AND queueOffset >= 100 AND queueOffset < 300 AND tags = 'A'"
    plain = load(spark, options(cluster)).where(wanted)
    pushed = load(spark, options(cluster, pushdown="true")).where(wanted)
    assert sorted(pushed.collect()) == sorted(plain.collect())
    assert pushed.count() == 2 * 100
    made = reader(options(cluster, pushdown="true"))
    filters = [
        GreaterThanOrEqual(("queueOffset",), 100),
        LessThan(("queueOffset",), 300),
        In(("queueId",), (1, 2)),
        EqualTo(("brokerName",), "broker-1"),
        EqualTo(("tags",), "A"),
    ]
    assert list(made.pushFilters(filters)) == filters  # Spark looks again
    ranges = [item for part in made.partitions() for item in part.value]
    assert {(r.broker, r.queue_id, r.start, r.end) for r in ranges} == {
        ("broker-1", 1, 100, 301),
        ("broker-1", 2, 100, 301),
    }
    time_ = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    made.pushFilters([LessThan(("storeTimestamp",), time_)])
    assert made.partitions() == []


# -- where it begins and ends --------------------------------------------------------------------


def test_offsets_times_and_groups_say_where_to_begin_and_end(cluster):
    start = dict.fromkeys(PLACES, 100) | {PLACES[0]: -2}
    end = dict.fromkeys(PLACES, 110) | {PLACES[1]: -1}
    found = rows(options(cluster, startingOffsets=dumps(start), endingOffsets=dumps(end)))
    per_queue = Counter((row["brokerName"], row["queueId"]) for row in found)
    counts = [110, ROWS // 6 - 100, 10, 10, 10, 10]
    assert [per_queue[q.broker_name, q.queue_id] for q in PLACES] == counts
    assert in_order(found)

    all_of_it = rows(options(cluster))
    times = sorted(int(row["storeTimestamp"].timestamp() * 1000) for row in all_of_it)
    middle = times[len(times) // 2]
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    later = rows(options(cluster, startingTimestamp=middle, **latest))
    earlier = rows(options(cluster, endingTimestamp=middle))
    assert numbers(rows(options(cluster, endingTimestamp=1 << 42))) == list(range(ROWS))
    assert numbers(later + earlier) == list(range(ROWS))
    assert {row["storeTimestamp"].timestamp() * 1000 >= middle for row in later} == {True}
    by_queue = dumps(dict.fromkeys(PLACES, middle))
    same = rows(options(cluster, startingOffsetsByTimestamp=by_queue, **latest))
    assert numbers(same) == numbers(later)

    with open_access(reader(options(cluster))._where) as access:
        access.commit("readers", dict.fromkeys(PLACES[:2], 400))
    rest = rows(options(cluster, startingOffsets="group", group="readers"))
    assert len(rest) == ROWS - 2 * 400


def test_tags_are_filtered_at_the_broker_and_in_the_store(cluster):
    found = rows(options(cluster, subExpression="A || C"))
    assert {row["tags"] for row in found} == {"A"}
    assert len(found) == ROWS // 2
    store = {"store": str(cluster.data / "master-0" / "store"), "brokerName": "broker-0"}
    read = rows({**store, "subscribe": "orders", "trustTail": "true", "subExpression": "B"})
    assert {row["tags"] for row in read} == {"B"}
    assert len(read) == ROWS // 4


def test_conditions_are_looked_at_by_the_broker_and_in_the_store(spark, cluster):
    condition = "sql:TAGS = 'A' AND number BETWEEN 100 AND 1100"
    wanted = [n for n in range(100, 1101) if n // 6 % 2 == 0]
    given = options(cluster, subExpression=condition)
    assert numbers(rows(given)) == wanted
    table = load(spark, given)
    assert table.count() == len(wanted)
    assert table.where("queueId = 0").count() == sum(1 for n in wanted if n % 6 in (0, 3))
    found = []
    for name in ("broker-0", "broker-1"):
        root = cluster.data / name.replace("broker", "master") / "store"
        store = {"store": str(root), "brokerName": name, "trustTail": "true"}
        found += rows({**store, "subscribe": "orders", "subExpression": condition})
    assert numbers(found) == wanted


def test_a_pattern_and_an_assignment_choose_queues(cluster):
    ranges = [
        item.topic
        for part in reader(options(cluster, subscribe=None, subscribePattern="ord.*")).partitions()
        for item in part.value
    ]
    assert set(ranges) == {"orders"}
    everything = reader(options(cluster, subscribe=None, subscribePattern=".*")).partitions()
    assert {item.topic for part in everything for item in part.value} <= {"orders", "other"}
    assign = json.dumps({"orders": {"broker-1": [2]}})
    found = rows(options(cluster, subscribe=None, assign=assign))
    assert numbers(found) == list(range(5, ROWS, 6))


def test_tasks_are_as_many_as_asked_for(cluster):
    assert len(reader(options(cluster)).partitions()) == 1  # it is not worth more
    made = reader(options(cluster, minPartitions=5))
    partitions = made.partitions()
    assert len(partitions) == 5
    assert numbers(row for p in partitions for b in made.read(p) for row in b.to_pylist()) == list(
        range(ROWS)
    )
    limited = reader(options(cluster, maxRecordsPerPartition=700)).partitions()
    assert all(sum(r.rows for r in part.value) <= 700 for part in limited)
    small = reader(options(cluster, maxBytesPerPartition="50k")).partitions()
    assert all(sum(r.bytes for r in part.value) <= 50 << 10 for part in small)
    assert len(small) > 10


# -- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"subscribe": "order"},
            "topic 'order' does not exist; did you mean 'orders'?; create it",
        ),
        (
            {"subscribe": None, "assign": '{"orders":{"broker-1":[7]}}'},
            "option assign names orders broker-1/7, which does not exist; there are orders",
        ),
        (
            {"startingOffsets": '{"orders":{"broker-0":{"0":5}}}'},
            "startingOffsets does not name orders broker-0/1; name every queue",
        ),
        (
            {"startingOffsets": '{"orders":{"broker-x":{"0":5}}}'},
            "startingOffsets: orders broker-x/0 is not read here; the queues are",
        ),
        (
            {"startingOffsets": dumps(dict.fromkeys(PLACES, 9999))},
            "orders broker-0/0 has offsets 0 to 500, 9999 is beyond its end; write one of them",
        ),
        (
            {
                "startingOffsets": dumps(dict.fromkeys(PLACES, 20)),
                "endingOffsets": dumps(dict.fromkeys(PLACES, 10)),
            },
            "the start 20 of orders broker-0/0 is behind its end 10; let the starting option",
        ),
        (
            {"startingTimestamp": str(1 << 42)},
            "startingTimestamp: no message of orders broker-0/0 was stored at",
        ),
        (
            {"subExpression": "sql:a > 'x'"},
            "correct option subExpression: SQL92 expression \"a > 'x'\", character 5",
        ),
    ],
)
def test_what_is_wrong_is_told_in_the_first_line(cluster, given, line):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each has its own class
        rows(options(cluster, **given))
    assert line in str(caught.value).splitlines()[0]


def test_spark_shows_our_first_line(spark, cluster):
    wrong = options(cluster, startingOffsetz="earliest")
    assert "did you mean 'startingOffsets'?" in error_of(lambda: load(spark, wrong))
    gone = {**options(cluster), "endpoints": "127.0.0.1:1", "fetchOffset.numRetries": "0"}
    assert "no answer of any nameserver of 127.0.0.1:1 (option endpoints)" in error_of(
        lambda: load(spark, gone).count()
    )
    damaged = options(cluster, subscribe="none")
    assert "topic 'none' does not exist" in error_of(lambda: load(spark, damaged).count())


def test_waiting_for_a_topic_begins_empty(cluster):
    assert rows(options(cluster, subscribe="later", waitForTopic="true")) == []


# -- damage and loss in a store ------------------------------------------------------------------


@pytest.fixture
def snapshot(cluster, tmp_path):
    """A copy of a broker's store, the broker running."""
    root = tmp_path / "store"
    shutil.copytree(
        cluster.data / "master-0" / "store", root, ignore=shutil.ignore_patterns("lock", "abort")
    )
    return root


def of_store(root, **more):
    base = {"store": str(root), "subscribe": "orders", "trustTail": "true"}
    return {**base, "brokerName": "broker-0", **more}


def test_damage_is_told_dropped_or_shown(snapshot):
    whole = rows(of_store(snapshot, columns="queueId,queueOffset,physicalOffset,body"))
    victim = whole[700]
    log = snapshot / "commitlog" / f"{victim['physicalOffset'] // SEGMENT * SEGMENT:020d}"
    with open(log, "r+b") as file:  # the magic of the frame
        file.seek(victim["physicalOffset"] % SEGMENT + 4)
        file.write(b"\0\0\0\0")
    with pytest.raises(DamagedFrame) as caught:
        rows(of_store(snapshot))
    line = str(caught.value).splitlines()[0]
    assert f"{log}, offset {victim['physicalOffset']}" in line
    assert "DROPMALFORMED or PERMISSIVE" in line
    rest = rows(of_store(snapshot, mode="DROPMALFORMED"))
    assert len(rest) == len(whole) - 1
    assert victim["body"] not in {row["body"] for row in rest}
    shown = rows(of_store(snapshot, mode="PERMISSIVE"))
    assert len(shown) == len(whole)
    [corrupt] = [row for row in shown if row["_corrupt"] is not None]
    assert str(log) in corrupt["_corrupt"]
    assert corrupt["body"] is None


def test_a_store_that_does_not_say_how_far_it_is_confirmed_wants_trust(snapshot):
    (snapshot / "checkpoint").unlink()
    (snapshot / "abort").write_bytes(b"")
    with pytest.raises(ConfigError, match="give trustTail=true"):
        rows(of_store(snapshot, trustTail=None))
    trusted = rows(of_store(snapshot))
    (snapshot / "abort").unlink()  # stopped in order: all of it counts
    assert rows(of_store(snapshot, trustTail=None)) == trusted


def test_a_torn_tail_is_not_read(snapshot):
    whole = rows(of_store(snapshot, columns="physicalOffset,size,queueId"))
    last = max(whole, key=lambda row: row["physicalOffset"])
    log = snapshot / "commitlog" / f"{last['physicalOffset'] // SEGMENT * SEGMENT:020d}"
    with open(log, "r+b") as file:
        file.seek(last["physicalOffset"] % SEGMENT + 60)
        file.write(bytes(last["size"] - 60))
    assert len(rows(of_store(snapshot))) == len(whole) - 1


def test_deleted_files_are_a_loss(snapshot):
    whole = rows(of_store(snapshot, columns="queueId,queueOffset,physicalOffset"))
    oldest = min((snapshot / "commitlog").iterdir())
    oldest.unlink()
    left = [row for row in whole if row["physicalOffset"] >= SEGMENT]
    assert 0 < len(left) < len(whole)
    found = rows(of_store(snapshot, columns="queueId,queueOffset,physicalOffset"))
    assert found == left  # earliest is what there is
    zeros = dumps(dict.fromkeys(PLACES[:3], 0))
    with pytest.raises(DataLoss) as caught:
        rows(of_store(snapshot, startingOffsets=zeros))
    assert "set failOnDataLoss=false" in str(caught.value).splitlines()[0]
    given = of_store(snapshot, startingOffsets=zeros, failOnDataLoss="false")
    assert len(rows(given)) == len(left)


def test_reading_beside_a_broker_that_writes_gives_what_is_confirmed(cluster):
    """Without trustTail: the checkpoint follows within a second or so, and nothing is torn."""
    store = {"store": str(cluster.data / "master-1" / "store"), "subscribe": "other"}
    queue = MessageQueue("other", "broker-1", 0)
    sent = 0
    deadline = time.monotonic() + 60
    with Producer(nameservers=cluster.nameservers[0]) as producer:
        while True:
            for _ in range(200):
                producer.send_async(Message("other", b"m%d" % sent), queue=queue)
                sent += 1
            found = rows(store)
            assert [row["queueOffset"] for row in found] == list(range(len(found)))
            assert set(numbers(found)) <= set(range(sent))
            if len(found) > 1000:
                break
            assert time.monotonic() < deadline, "the checkpoint does not follow"
