"""`spark.readStream.format("saturnmq")`: how far batches go, restarts, groups and lags."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from cluster_rig import make_topic, running, until
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark_saturnmq import DefaultSource
from saturnmq import Admin, Message, Producer
from saturnmq.pipeline.access import DataLoss
from saturnmq.pipeline.listener import BatchLag, LagListener
from saturnmq.pipeline.offsets import from_json, start_in
from saturnmq.pipeline.places import open_access
from saturnmq.protocol.message_queue import MessageQueue

QUEUES = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(tmp_path_factory.mktemp("streams")) as cluster:
        yield cluster


def produce(cluster, topic, *counts):
    """So many messages into each queue; returns when a consumer may see them."""
    with Producer(nameservers=cluster.nameservers[0]) as producer:
        for queue_id, count in enumerate(counts):
            queue = MessageQueue(topic, "broker-0", queue_id)
            for n in range(count):
                producer.send_async(Message(topic, b"%d/%d" % (queue_id, n)), queue=queue)
        producer.flush()
    made = reader(cluster, topic)
    deadline = time.monotonic() + 30
    while True:
        with open_access(made._where) as access:
            ends = {q.queue_id: high for q, (_, high) in access.bounds([topic]).items()}
        if all(ends[queue_id] >= count for queue_id, count in enumerate(counts)):
            return
        assert time.monotonic() < deadline, ends
        time.sleep(0.01)


def options(cluster, topic, **more):
    base = {"endpoints": cluster.nameservers[0], "startingOffsets": "earliest"}
    return base | ({} if "subscribePattern" in more else {"subscribe": topic}) | more


def reader(cluster, topic, **more):
    """What Spark has on the driver for a query."""
    source = DefaultSource({k.lower(): str(v) for k, v in options(cluster, topic, **more).items()})
    return source.streamReader(source.schema())


def ends(offset):
    return [offset for _, offset in sorted(from_json(offset).items())]


def taken(made, start):
    return made.latestOffset(json.loads(json.dumps(start)), made.getDefaultReadLimit())


def stream(spark, cluster, topic, checkpoint, output, **more):
    """Run the query over what there is, to Parquet."""
    frame = spark.readStream.format("saturnmq").options(**options(cluster, topic, **more)).load()
    frame = frame.selectExpr("queueId", "queueOffset", "cast(body AS STRING) AS body")
    writer = frame.writeStream.format("parquet").option("path", str(output))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return query


def test_a_query_that_goes_on_reads_everything_once(spark, cluster, topic, tmp_path):
    produce(cluster, topic, 50, 30, 0, 20)
    lags: list[BatchLag] = []
    listener = LagListener(lags.append)
    spark.streams.addListener(listener)
    output, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    more = {"maxOffsetsPerTrigger": "60", "group": "streamers"}
    try:
        query = stream(spark, cluster, topic, checkpoint, output, **more)
        deadline = time.monotonic() + 30
        while len(lags) < 2:
            assert time.monotonic() < deadline, "no progress is reported"
            time.sleep(0.01)
    finally:
        spark.streams.removeListener(listener)
    assert [lag.total for lag in lags] == [40, 0]
    assert (lags[0].min, lags[0].max) == (0, 20)
    assert listener.lags[str(query.id)] == lags[-1]
    with open_access(reader(cluster, topic)._where) as access:
        committed = access.committed("streamers", topic)
    assert sum(committed.values()) >= 60  # Spark tells a source of a batch once the next begins
    produce(cluster, topic, 5, 0, 7, 0)
    # The last batch is done but its commit is lost: it runs again, with other options.
    last = max((int(f.name), f) for f in (checkpoint / "commits").iterdir() if f.name.isdigit())
    for file in (last[1], last[1].with_name(f".{last[0]}.crc")):
        file.unlink()
    stream(spark, cluster, topic, checkpoint, output, partitions="1")
    found = spark.read.parquet(str(output)).collect()
    places = sorted((row.queueId, row.queueOffset) for row in found)
    assert places == [(q, n) for q, count in enumerate((55, 30, 7, 20)) for n in range(count)]
    assert len(offsets_of(checkpoint)) == 3


def offsets_of(checkpoint: Path):
    return [f for f in (checkpoint / "offsets").iterdir() if f.name.isdigit()]


def test_a_limit_is_shared_over_the_queues(cluster, topic):
    produce(cluster, topic, 100, 10, 0, 1)
    made = reader(cluster, topic, maxOffsetsPerTrigger=21)
    start = made.initialOffset()
    assert ends(start) == [0, 0, 0, 0]
    assert made.getDefaultReadLimit() == ReadMaxRows(21)
    first = taken(made, start)
    assert (sum(ends(first)), ends(first)[2:]) == (21, [0, 1])
    assert ends(first)[0] > ends(first)[1] >= 2
    at = first
    for _ in range(4):
        at = taken(made, at)
    assert sum(ends(at)) == 105
    at = taken(made, at)
    assert ends(at) == [100, 10, 0, 1]
    assert taken(made, at) == at  # nothing new is the same text
    assert ends(made.latestOffset(start, ReadAllAvailable())) == [100, 10, 0, 1]
    assert ends(made.reportLatestOffset()) == [100, 10, 0, 1]


def test_a_limit_of_bytes_is_kept_but_for_one_message(cluster, topic):
    produce(cluster, topic, 100, 100, 0, 1)
    made = reader(cluster, topic, maxBytesPerTrigger=8000)
    start = made.initialOffset()
    end = taken(made, start)
    read = [item for part in made.partitions(start, end) for item in part.value]
    weight = sum(item.bytes for item in read)
    assert 4000 < weight <= 8000 + 200
    assert ends(end)[3] == 1
    tiny = reader(cluster, topic, maxBytesPerTrigger=1)
    assert ends(taken(tiny, start)) == [1, 1, 0, 1]


def test_too_few_messages_are_waited_for_but_not_for_ever(cluster, topic):
    produce(cluster, topic, 5)
    made = reader(cluster, topic, minOffsetsPerTrigger=10, maxTriggerDelay="200ms")
    start = made.initialOffset()
    first = taken(made, start)  # the first batch waits for nobody
    assert sum(ends(first)) == 5
    produce(cluster, topic, 3)
    begun = time.monotonic()
    while taken(made, first) == first:
        assert time.monotonic() < begun + 10
        time.sleep(0.01)
    assert time.monotonic() >= begun
    assert sum(ends(taken(made, first))) in (5, 8)
    patient = reader(cluster, topic, minOffsetsPerTrigger=4, maxTriggerDelay="1h")
    at = taken(patient, start)
    produce(cluster, topic, 2)
    assert taken(patient, at) == at
    produce(cluster, topic, 2)
    assert sum(ends(taken(patient, at))) == sum(ends(at)) + 4


def test_available_now_ends_where_it_began_to_look(cluster, topic):
    produce(cluster, topic, 6, 6)
    made = reader(cluster, topic, maxOffsetsPerTrigger=5, minOffsetsPerTrigger=5)
    at = made.initialOffset()
    made.prepareForTriggerAvailableNow()
    produce(cluster, topic, 3, 3, 3)
    seen = []
    while (following := taken(made, at)) != at:
        at = following
        seen.append(sum(ends(at)))
    assert seen == [5, 10, 12]


def test_available_now_reads_what_a_broker_has_that_was_away_when_it_began(cluster, topic):
    produce(cluster, topic, 6, 6)
    at = reader(cluster, topic).initialOffset()
    made = reader(cluster, topic)
    cluster.kill("master-0")
    try:
        with open_access(made._where) as access:
            until(lambda: not access.queues(topic), "the nameserver drops the broker")
        made.prepareForTriggerAvailableNow()
    finally:
        cluster.start("master-0")
        cluster.await_routes()
    at = taken(made, at)
    assert ends(at) == [6, 6, 0, 0]
    produce(cluster, topic, 9)
    assert taken(made, at) == at


def test_available_now_goes_on_beside_a_deleted_topic(cluster, topic):
    produce(cluster, topic, 6)
    start = reader(cluster, topic).initialOffset()
    start["deleted"] = {"broker-0": {"0": 5}}
    quick = {"subscribe": f"{topic},deleted", "fetchOffset.numRetries": 0}
    made = reader(cluster, topic, failOnDataLoss="false", **quick)
    made.prepareForTriggerAvailableNow()
    assert ends(taken(made, start)) == [5, 6, 0, 0, 0]
    careful = reader(cluster, topic, **quick)
    careful.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match="deleted broker-0/0: the queue is gone"):
        taken(careful, start)
    fewer = reader(cluster, topic, **quick | {"subscribe": topic})
    with pytest.raises(DataLoss, match="deleted broker-0/0: the checkpoint has it, the options do"):
        taken(fewer, start)


def test_a_batch_goes_on_without_a_topic_that_was_deleted_since_its_plan(cluster, topic):
    doomed = make_topic(cluster, f"{topic}-doomed", QUEUES)
    produce(cluster, topic, 6)
    produce(cluster, doomed, 5, 5)
    both = {"subscribe": f"{topic},{doomed}", "failOnDataLoss": "false", "partitions": 1}
    made = reader(cluster, topic, **both)
    start = made.initialOffset()
    end = taken(made, start)
    planned = made.partitions(start, end)
    with Admin(cluster.nameservers[0]) as admin:
        admin.delete_topic(doomed)
    assert rows(made, planned) == 6
    again = reader(cluster, topic, **both)  # the query was started again
    assert rows(again, again.partitions(start, end)) == 6
    careful = reader(cluster, topic, **both | {"failOnDataLoss": "true"})
    with pytest.raises(DataLoss, match=f"0 to 5 of {doomed} broker-0/0: their topic is deleted"):
        rows(careful, careful.partitions(start, end))


def rows(made, partitions):
    return sum(batch.num_rows for part in partitions for batch in made.read(part))


def test_a_query_goes_on_when_its_topic_has_fewer_queues(cluster, topic):
    produce(cluster, topic, 5, 5, 5)
    made = reader(cluster, topic)
    start = made.initialOffset()
    end = taken(made, start)
    planned = [part.value for part in made.partitions(start, end)]
    produce(cluster, topic, 0, 0, 1)
    with Admin(cluster.nameservers[0]) as admin, open_access(made._where) as access:
        admin.alter_topic(topic, read_queues=2, write_queues=2)
        until(lambda: len(access.queues(topic)) == 2, "the route has fewer queues")
    again = reader(cluster, topic)
    repeated = again.partitions(start, end)
    assert [part.value for part in repeated] == planned
    assert rows(again, repeated) == 15
    following = taken(again, end)
    assert ends(following) == [5, 5, 6, 0]
    assert rows(again, again.partitions(end, following)) == 1
    assert ends(reader(cluster, topic).initialOffset()) == [0, 0]


def test_a_batch_that_is_repeated_is_cut_as_the_first_time(cluster, topic):
    produce(cluster, topic, 200, 100, 50)
    given = {"maxRecordsPerPartition": 40, "partitions": 3}
    made = reader(cluster, topic, **given)
    start = made.initialOffset()
    end = taken(made, start)
    first = [part.value for part in made.partitions(start, end)]
    assert len(first) >= 9
    other = reader(cluster, topic, partitions=1, maxBytesPerPartition="1g")
    again = other.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    assert [part.value for part in again] == first


def test_a_first_batch_that_is_repeated_begins_where_it_began(cluster, topic):
    """Spark asks for the start again, and other options would give another one."""
    produce(cluster, topic, 20, 10, 5)
    made = reader(cluster, topic, maxOffsetsPerTrigger=14)
    end = taken(made, made.initialOffset())
    planned = [part.value for part in made.partitions({}, end)]
    other = reader(cluster, topic, startingOffsets="latest")
    again = other.partitions(other.initialOffset(), json.loads(json.dumps(end)))
    assert [part.value for part in again] == planned
    assert rows(other, again) == 14
    following = taken(other, end)
    assert start_in(following) is None
    assert rows(other, other.partitions(end, following)) == 21


def test_a_query_whose_first_batch_was_not_finished_reads_everything_once(
    spark, cluster, topic, tmp_path
):
    produce(cluster, topic, 9, 4)
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    stream(spark, cluster, topic, checkpoint, output)
    for path in (*(checkpoint / "commits").iterdir(), *output.rglob("*")):
        if path.is_file():  # as if the driver had died before the end of its first batch
            path.unlink()
    stream(spark, cluster, topic, checkpoint, output, startingOffsets="latest")
    assert spark.read.parquet(str(output)).count() == 13


def test_a_topic_that_comes_later_is_read_from_its_beginning(cluster):
    made = reader(cluster, "comes-later", waitForTopic="true", startingOffsets="latest")
    start = made.initialOffset()
    assert start == {}
    assert taken(made, start) == {}
    make_topic(cluster, "comes-later", 2)
    produce(cluster, "comes-later", 3, 4)
    deadline = time.monotonic() + 10
    while (end := taken(made, start)) == {}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ends(end) == [3, 4]
    [part] = made.partitions(start, end)
    read = [row["body"] for batch in made.read(part) for row in batch.to_pylist()]
    assert len(read) == 7


def test_what_is_lost_ends_the_query_unless_told_otherwise(cluster, topic, monkeypatch):
    produce(cluster, topic, 5, 5)
    quick = {"fetchOffset.numRetries": 0}
    made = reader(cluster, topic, **quick)
    beyond = {topic: {"broker-0": {"0": 9, "1": 5, "2": 0, "3": 0}}}
    with pytest.raises(DataLoss, match="its newest messages were lost; set failOnDataLoss=false"):
        taken(made, beyond)
    gone = {topic: {"broker-0": {"0": 0, "1": 5}, "broker-9": {"0": 4}}}
    with pytest.raises(DataLoss, match="the queue is gone"):
        taken(made, gone)
    careless = reader(cluster, topic, failOnDataLoss="false", **quick)
    assert ends(taken(careless, gone)) == [5, 5, 4]
    after = taken(careless, beyond)  # new messages get the offsets of those that were lost
    assert ends(after) == [5, 5, 0, 0]
    assert careless.partitions(beyond, after) == []
    produce(cluster, topic, 3)
    assert ends(taken(careless, after)) == [8, 5, 0, 0]
    monkeypatch.setattr(made._place, "end_in_log", lambda _: None)  # its master is away
    far = {topic: {"broker-0": {"0": 99, "1": 5, "2": 0, "3": 0}}}
    assert taken(made, far) == far


def test_a_query_goes_on_where_a_queue_that_lost_its_end_ends_now(spark, cluster, topic, tmp_path):
    produce(cluster, topic, 5)
    output, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    stream(spark, cluster, topic, checkpoint, output)
    [offsets] = offsets_of(checkpoint)
    offsets.write_text(offsets.read_text().replace('"0":5', '"0":9'))
    offsets.with_name(f".{offsets.name}.crc").unlink()
    careless = {"failOnDataLoss": "false", "fetchOffset.numRetries": "0"}
    stream(spark, cluster, topic, checkpoint, output, **careless)
    produce(cluster, topic, 3)
    stream(spark, cluster, topic, checkpoint, output, **careless)
    found = spark.read.parquet(str(output)).collect()
    assert sorted(row.queueOffset for row in found) == list(range(8))


def test_a_nameserver_that_is_started_again_is_waited_for(cluster, topic):
    produce(cluster, topic, 5)
    made = reader(cluster, topic, subscribePattern=topic)
    start = made.initialOffset()
    cluster.kill("nameserver-0")
    try:
        with ThreadPoolExecutor(2) as threads:
            both = (made, reader(cluster, topic))
            looks = [threads.submit(taken, each, start) for each in both]
            assert not wait(looks, timeout=0.3).done
            cluster.start("nameserver-0")
            cluster.await_routes()
            assert [ends(look.result(30)) for look in looks] == [[5, 0, 0, 0]] * 2
    finally:
        if not cluster.node("nameserver-0").alive():
            cluster.start("nameserver-0")


def test_a_replica_that_is_behind_is_waited_for(cluster, topic):
    produce(cluster, topic, 5, 5)
    made = reader(cluster, topic)
    start = {topic: {"broker-0": {"0": 7, "1": 5, "2": 0, "3": 0}}}
    with ThreadPoolExecutor(1) as thread:
        end = thread.submit(taken, made, start)
        assert not wait([end], timeout=0.3).done
        produce(cluster, topic, 2)
        assert end.result(30) == start
        produce(cluster, topic, 1)
        assert ends(taken(made, start)) == [8, 5, 0, 0]


def test_a_query_goes_on_at_once_beside_queues_that_it_has_told_to_be_gone(cluster, topic):
    produce(cluster, topic, 5, 5)
    waits = {"fetchOffset.numRetries": 2, "fetchOffset.retryIntervalMs": 500}
    made = reader(cluster, topic, group="g", failOnDataLoss="false", **waits)
    start = {topic: {"broker-0": {"0": 0, "1": 5}, "broker-9": {"0": 4}}}
    begun = time.monotonic()
    end = taken(made, start)
    told = time.monotonic()
    assert taken(made, start) == end
    assert told - begun > 1 > time.monotonic() - told
    made.commit(end)
    with open_access(made._where) as access:
        committed = access.committed("g", topic)
    assert {queue.queue_id: offset for queue, offset in committed.items()} == {0: 5, 1: 5}
