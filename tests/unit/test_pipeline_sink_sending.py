"""At least once: chunks reach scripted brokers through refusals and failures, or are told."""

import client_fakes as fakes
import pytest
from cluster_rig import until
from saturnmq import Admin
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConnectionLost, TopicNotExist
from served_rig import served

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from saturnmq.pipeline.access import Decoding, Where  # noqa: E402
from saturnmq.pipeline.chunking import NOW, Chunk  # noqa: E402
from saturnmq.pipeline.columns import select  # noqa: E402
from saturnmq.pipeline.places import open_access  # noqa: E402
from saturnmq.pipeline.plan import Range  # noqa: E402
from saturnmq.pipeline.sending import (  # noqa: E402
    ChunkSender,
    ProducerKey,
    SinkFailed,
    producers,
)
from saturnmq.pipeline.sink_options import parse  # noqa: E402


@pytest.fixture
def cluster():
    with fakes.threaded("a", "b") as cluster:
        yield cluster
        producers.close_idle()


def send(address, chunks, *, keyed=False, **options):
    given = parse({"endpoints": address, "topic": "T", **options})
    key = ProducerKey(address, given.producer_group, given.retry_timeout_ms, given.ack_mode)
    with producers.use(key) as producer:
        sending = ChunkSender(producer, given, keyed=keyed)
        for chunk in chunks:
            sending.put(chunk)
        sending.finish()


def chunk(*bodies, queue=None, topic="T", born_ms=NOW, sys_flag=0):
    body = bytes(encode_batch([(body, b"UNIQ_KEY\x01%b\x02" % body, 0) for body in bodies]))
    return Chunk(topic, queue, born_ms, sys_flag, len(bodies), len(body), [body])


def stored(cluster):
    return sorted(body for broker in cluster.brokers.values() for body in broker.bodies())


def test_a_chunk_whose_queue_a_key_chose_goes_to_another_when_that_is_gone(cluster):
    def refuse(cmd):
        return (29, "out of range") if int(cmd.ext["e"]) >= cluster.queues else None

    send(cluster.address, [chunk(b"warm", queue=MessageQueue("T", "a", 1))], keyed=True)
    for broker in cluster.brokers.values():
        broker.answer = refuse
    cluster.queues = 1
    send(cluster.address, [chunk(b"x", queue=MessageQueue("T", "a", 1))], keyed=True)
    assert stored(cluster) == [b"warm", b"x"]
    with pytest.raises(SinkFailed, match="out of range"):
        send(cluster.address, [chunk(b"y", queue=MessageQueue("T", "a", 1))])


def test_chunks_go_round_and_named_queues_are_obeyed(cluster):
    queue = MessageQueue("T", "b", 1)
    open_ = [chunk(b"%d" % n) for n in range(8)]
    send(cluster.address, [*open_, chunk(b"x", b"y", queue=queue, born_ms=5, sys_flag=0x301)])
    assert stored(cluster) == sorted([b"%d" % n for n in range(8)] + [b"x", b"y"])
    assert all(len(broker.bodies()) >= 4 for broker in cluster.brokers.values())
    assert [body for body, _ in cluster.brokers["b"].log[1]][-2:] == [b"x", b"y"]
    batches = cluster.brokers["b"].sent(RequestCode.SEND_BATCH_MESSAGE)
    assert ("769", "5") in [(ext["f"], ext["g"]) for ext in batches]


def test_a_refusal_or_a_dead_broker_costs_no_row(cluster):
    calls = iter(range(10**6))
    cluster.brokers["a"].answer = lambda cmd: (2, "busy") if next(calls) % 2 else None
    chunks = [chunk(b"%03d" % n) for n in range(40)]
    send(cluster.address, chunks[:20])
    cluster.on_loop(cluster.brokers["b"].stop)
    send(cluster.address, chunks[20:])
    assert sorted(set(stored(cluster))) == [b"%03d" % n for n in range(40)]


def test_rows_of_one_queue_keep_their_order_through_failures(cluster):
    calls = iter(range(10**6))
    cluster.brokers["a"].answer = lambda cmd: (2, "busy") if next(calls) % 3 == 0 else None
    queue = MessageQueue("T", "a", 0)
    send(cluster.address, [chunk(b"%03d" % n, queue=queue) for n in range(50)])
    assert cluster.brokers["a"].bodies() == [b"%03d" % n for n in range(50)]


def test_what_the_ack_mode_asks_for_is_waited_for_or_told(cluster):
    for broker in cluster.brokers.values():
        broker.answer = lambda cmd: (12, "late")
    with pytest.raises(SinkFailed, match=r"2 rows for topic 'T'.*broker . queue .*ackMode=stored"):
        send(cluster.address, [chunk(b"1", b"2")])
    assert len(stored(cluster)) == 6  # two more tries
    send(cluster.address, [chunk(b"3")], ackMode="stored")
    assert stored(cluster).count(b"3") == 1


def test_rows_that_nobody_takes_in_time_are_named_with_their_broker(cluster):
    cluster.brokers["a"].answer = lambda cmd: (14, "disk full")
    queue = MessageQueue("T", "a", 0)
    said = r"1 rows for topic 'T' are not acknowledged by broker a queue 0: see that it serves, or "
    with pytest.raises(SinkFailed, match=said + "raise retryTimeoutMs=300.*disk full"):
        send(cluster.address, [chunk(b"1", queue=queue)], retryTimeoutMs="300")


def test_what_cannot_be_sent_at_all_is_told_at_once(cluster):
    cluster.brokers["a"].answer = cluster.brokers["b"].answer = lambda cmd: (13, "body too large")
    with pytest.raises(SinkFailed, match=r"1 rows .* the broker says why\. body too large"):
        send(cluster.address, [chunk(b"1")])
    with pytest.raises(TopicNotExist, match=r"'other'.*a and b may have it, without a master"):
        send(cluster.address, [chunk(b"1", topic="other")])
    cluster.registered = list(cluster.known)
    with pytest.raises(TopicNotExist, match=r"'other'.*saturnmq topic create"):
        send(cluster.address, [chunk(b"1", topic="other")])


def test_no_nameserver_is_told_with_the_option_to_correct():
    said = "no nameserver answers: correct option 'endpoints' .now '127.0.0.1:1'"
    with pytest.raises(ConnectionLost, match=said):
        send("127.0.0.1:1", [chunk(b"1")], retryTimeoutMs="200")
    producers.close_idle()


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_rows_may_be_born_before_1970(tmp_path, delivery):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from saturnmq.pipeline.sink_task import TaskIdentity
    from saturnmq.pipeline.writing import write_rows

    born = [-86_400_000_000, -1000, 253_402_300_800_000_000]
    times = pa.array(born, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    batch = pa.record_batch({"body": [b"x"] * len(born), "bornTimestamp": times})
    with served(tmp_path) as nameserver, open_access(Where.brokers(nameserver)) as access:
        with Admin(nameserver) as admin:
            admin.create_topic("T", queues=1)
        given = parse({"endpoints": nameserver, "topic": "T", "delivery": delivery})
        identity = TaskIdentity("sink", 0, 0)
        written = write_rows([batch], tuple(batch.schema.names), given, identity, None)
        assert written.rows == len(born)
        whole = Range("T", "broker-a", 0, 0, len(born))
        until(lambda: access.bounds(["T"])[whole.queue] == (0, len(born)), "all can be read")
        decoding = Decoding(select(["bornTimestamp"]))
        found = [batch.column(0).cast(pa.int64()) for batch in access.batches([whole], decoding)]
    # Arrow's readers take no time behind the year 9999
    assert pa.concat_arrays(found).to_pylist() == [*born[:2], 253_402_300_799_999_999]
