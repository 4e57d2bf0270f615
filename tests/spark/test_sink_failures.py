"""The sink's writers through failures of tasks, drivers and brokers: what is there, and how often.

The writers are called as Spark calls them, pickled and with a TaskContext, but without Spark: so
the moment of each failure is chosen, between two batches of a task.
"""

from __future__ import annotations

import itertools
import pickle
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from cluster_rig import make_topic, running
from saturnmq import Admin, Producer
from saturnmq.cli.launcher import Settings
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.message import Message
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import StringType, StructField, StructType  # noqa: E402
from saturnmq.pipeline import sink, sink_task, staged  # noqa: E402
from saturnmq.pipeline.access import Decoding, Where  # noqa: E402
from saturnmq.pipeline.columns import select  # noqa: E402
from saturnmq.pipeline.places import open_access  # noqa: E402
from saturnmq.pipeline.plan import Range  # noqa: E402
from saturnmq.pipeline.sending import SinkFailed, producers  # noqa: E402

SCHEMA = StructType([StructField(name, StringType()) for name in ("body", "shardingKey")])
QUEUES = 3
ROWS = 600
BATCHES = 6


class Context:
    """What a task asks of its TaskContext."""

    def __init__(self, partition: int, properties: dict[str, str]) -> None:
        self._partition = partition
        self._properties = properties

    def partitionId(self) -> int:
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


@pytest.fixture
def task(monkeypatch):
    """`task(writer, batches, partition)`: what Spark does with them in a task."""

    def run(writer, batches, partition=0, **properties):
        context = Context(partition, properties)
        monkeypatch.setattr(pyspark.TaskContext, "_taskContext", context)
        return pickle.loads(pickle.dumps(writer)).write(batches)

    yield run
    producers.close_idle()
    sink_task.staging_clients.close_idle()


@pytest.fixture
def group(tmp_path):
    """A master and two slaves, one of which has what is acknowledged."""
    options = {"slaveSyncInterval": 100, "registerNameServerPeriod": 300}
    settings = Settings(masters=1, slaves=2, replication="sync", broker_options=options)
    with running(tmp_path / "group", settings) as cluster:
        yield cluster


def await_topic(cluster, node, name):
    """Tables follow the log by themselves: until the slave knows of a topic."""
    request = Command.request(RequestCode.GET_TOPIC_CONFIG, {"topic": name})
    with closing(Channel(NativeRuntime(), cluster.node(node).address, 3.0)) as channel:
        deadline = time.monotonic() + 20.0
        while channel.request(request, 3.0).code != ResponseCode.SUCCESS:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def writer_for(cluster, topic, make=sink.batch_writer, **options):
    given = {
        "endpoints": cluster.nameservers[0],
        "topic": topic,
        "delivery": "exactly-once",
        "queueSelector": "roundRobin",
        "chunkBytes": "4096",
        **options,
    }
    return make(given, SCHEMA, False)


def batches(shuffled=None, between=lambda number: None) -> Iterator[pa.RecordBatch]:
    """ROWS rows in BATCHES batches; `between(n)` is called before batch n."""
    numbers = list(range(ROWS))
    if shuffled is not None:
        random.Random(shuffled).shuffle(numbers)
    size = ROWS // BATCHES
    for batch in range(BATCHES):
        between(batch)
        own = numbers[batch * size : (batch + 1) * size]
        yield pa.record_batch(
            {"body": [f"{n}" for n in own], "shardingKey": [f"k{n}" for n in own]}
        )


def await_dispatch(cluster):
    """What is acknowledged is seen a moment later. Logs are dispatched in their order: when a
    message that comes last is seen, all before it are, and so are those that should not be there.
    """
    make_topic(cluster, "last", QUEUES)
    with (
        Producer("testers", cluster.nameservers[0]) as producer,
        open_access(Where.brokers(cluster.nameservers[0])) as access,
    ):
        for queue in producer.queues("last"):
            offset = producer.send(Message("last", b"x"), queue=queue).queue_offset
            deadline = time.monotonic() + 20.0
            while access.bounds(["last"])[queue][1] <= offset:
                assert time.monotonic() < deadline
                time.sleep(0.005)


def stored(cluster, topic, column="body") -> Counter[str]:
    """How often each body is in the topic, or what else messages have."""
    await_dispatch(cluster)
    with open_access(Where.brokers(cluster.nameservers[0])) as access:
        found: Counter[str] = Counter()
        for queue, (start, end) in access.bounds([topic]).items():
            for batch in access.batches([Range(*queue, start, end)], Decoding(select([column]))):
                found.update(batch.column(0).cast(pa.string()).to_pylist())
        return found


ONCE = Counter({f"{n}": 1 for n in range(ROWS)})


@pytest.mark.parametrize("selector", ["roundRobin", "shardingKey"])
def test_a_task_that_runs_again_after_it_published_adds_nothing(cluster, topic, task, selector):
    """Its rows come in another order, as they may after a shuffle."""
    writer = writer_for(cluster, topic, queueSelector=selector)
    first = task(writer, batches())
    again = task(writer, batches(shuffled=1))
    assert (first.rows, first.new, again.rows, again.new) == (ROWS, ROWS, ROWS, 0)
    writer.commit([first])
    assert stored(cluster, topic) == ONCE


def test_copies_of_a_task_at_once_add_their_rows_once(cluster, topic, task):
    writer = writer_for(cluster, topic)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda n: task(writer, batches(shuffled=n)), range(3)))
    assert sorted(written.new for written in found) == [0, 0, ROWS]
    assert stored(cluster, topic) == ONCE


def test_a_task_that_fails_leaves_nothing_to_see(cluster, topic, task):
    writer = writer_for(cluster, topic)

    def fail(number):
        if number == BATCHES - 1:
            raise OSError("the input broke")

    with pytest.raises(OSError, match="the input broke"):
        task(writer, batches(between=fail))
    assert stored(cluster, topic) == Counter()
    assert task(writer, batches()).new == ROWS
    assert stored(cluster, topic) == ONCE


def test_another_driver_goes_on_with_the_same_write(cluster, topic, task):
    """The first one died when one of two partitions was published; its job is run again."""
    first = writer_for(cluster, topic, writeId="replay")
    task(first, batches(), partition=0)
    second = writer_for(cluster, topic, writeId="replay")
    again = task(second, batches(), partition=0)
    other = task(second, batches(), partition=1)
    assert (again.new, other.new) == (0, ROWS)
    second.commit([again, other])
    third = writer_for(cluster, topic, writeId="replay")
    assert task(third, batches(), partition=0).new == 0
    assert stored(cluster, topic) == ONCE + ONCE  # of two partitions


def test_other_rows_under_the_same_marker_are_told(cluster, topic, task):
    """The query, its partitions or the data behind a write id changed: neither answer is right."""
    task(writer_for(cluster, topic, writeId="w"), batches())
    with pytest.raises(SinkFailed, match=r"partition 0 of epoch 0 .* published with 600 rows, now"):
        task(writer_for(cluster, topic, writeId="w"), itertools.islice(batches(), 2))


def test_topics_of_a_column_are_written_once_by_the_brokers_named(cluster, topic, task):
    other = make_topic(cluster, topic + "-2", QUEUES)
    given = {
        "endpoints": cluster.nameservers[0],
        "delivery": "exactly-once",
        "brokers": "broker-0,broker-1",
        "writeId": "w",
    }
    schema = StructType([StructField(name, StringType()) for name in ("body", "topic")])
    rows = pa.record_batch({"body": list("abcd"), "topic": [topic, other] * 2})
    assert [task(sink.batch_writer(given, schema, False), [rows]).new for _ in range(2)] == [4, 0]
    assert stored(cluster, topic) == Counter("ac")
    assert stored(cluster, other) == Counter("bd")


def test_a_stream_knows_its_epochs(cluster, topic, task):
    def epoch(number):
        return {sink.QUERY_ID: "query-1", sink.EPOCH: str(number)}

    writer = writer_for(cluster, topic, sink.stream_writer)
    first = task(writer, batches(), **epoch(0))
    writer.commit([first, sink.Written()], 0)
    assert task(writer, batches(), **epoch(0)).new == 0
    second = task(writer, batches(), **epoch(1))
    writer.abort([second, None], 1)  # another task failed; what is published stays
    assert (first.new, second.new, task(writer, batches(), **epoch(1)).new) == (ROWS, ROWS, 0)
    writer.commit([second, None], 1)
    with pytest.raises(SinkFailed, match="at epoch 0, and this stream has finished epoch 1"):
        task(writer, batches(), **epoch(0))  # its checkpoint was emptied
    assert task(writer, batches(), **epoch(1)).new == 0
    assert stored(cluster, topic) == ONCE + ONCE
    with pytest.raises(
        ConfigError, match=r"give delivery=at-least-once, .*batchId' of the task is"
    ):
        task(writer, batches(), **{sink.QUERY_ID: "query-1"})
    with pytest.raises(ConfigError, match=r"'writeId' is for df\.write: drop it"):
        writer_for(cluster, topic, sink.stream_writer, writeId="x")


def test_a_broker_that_restarts_forgets_its_stages_and_gets_them_again(
    cluster, topic, task, monkeypatch
):
    monkeypatch.setattr(staged, "MEMORY_BYTES_MAX", 20_000)  # the rest is kept in a file
    writer = writer_for(cluster, topic, queueSelector="shardingKey")

    def restart(number):
        if number == 3:
            for node in ("master-0", "master-1"):
                cluster.kill(node)
                cluster.restart(node)

    assert task(writer, batches(between=restart)).new == ROWS
    assert task(writer, batches()).new == 0
    assert stored(cluster, topic) == ONCE


def test_at_least_once_outlives_a_broker(cluster, topic, task):
    writer = writer_for(cluster, topic, delivery="at-least-once")

    def fail(number):
        if number == 2:
            cluster.kill("master-0")
        if number == 5:
            cluster.restart("master-0")

    assert task(writer, batches(between=fail)).rows == ROWS
    found = stored(cluster, topic)
    assert set(found) == set(ONCE)


def test_at_least_once_a_task_that_runs_again_gives_the_same_ids(cluster, topic, task):
    writer = writer_for(cluster, topic, sink.stream_writer, delivery="at-least-once")
    context = {sink.QUERY_ID: "query-2", sink.EPOCH: "5"}
    for _ in range(2):
        task(writer, batches(), **context)
    assert set(stored(cluster, topic, "messageId").values()) == {2}
    task(writer, batches(), partition=1, **context)
    assert Counter(stored(cluster, topic, "messageId").values()) == {2: ROWS, 1: ROWS}


@pytest.mark.parametrize("when", ["before it is published", "after it is published"])
def test_a_promotion_loses_and_doubles_nothing(group, task, when):
    topic = make_topic(group, "orders", QUEUES)
    await_topic(group, "slave-0-1", topic)
    writer = writer_for(group, topic)

    def promote(number=BATCHES - 1):
        if number == BATCHES - 1:
            group.kill("master-0")
            with Admin(group.nameservers[0]) as admin:
                admin.promote("broker-0", 1, force=True)

    if when == "before it is published":
        assert task(writer, batches(between=promote)).new == ROWS
    else:
        assert task(writer, batches()).new == ROWS
        promote()
    assert task(writer, batches(shuffled=1)).new == 0
    assert stored(group, topic) == ONCE
