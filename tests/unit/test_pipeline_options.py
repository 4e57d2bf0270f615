"""What the source can be told; the first line of an error says what to change."""

from __future__ import annotations

import pytest
from saturnmq.pipeline import sink_options
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.columns import DEFAULT
from saturnmq.pipeline.options import NAMES, OPTIONS, parse, place_options
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError, SaturnError

LEAST = {"endpoints": "h:9876", "subscribe": "orders"}


def options(streaming=False, **given):
    chosen = {**LEAST, **given}
    return parse({k.lower(): v for k, v in chosen.items() if v is not None}, streaming=streaming)


def test_what_is_not_said_has_kafkas_defaults():
    found = options()
    assert found.where.nameservers == ("h:9876",)
    assert (found.subscribe, found.fail_on_data_loss, found.mode) == (("orders",), True, "FAILFAST")
    assert found.max_bytes_per_partition == 128 << 20
    assert found.where.chunk_bytes == 2 << 20
    assert found.max_trigger_delay_ms == 15 * 60_000
    assert found.starting is found.ending is None
    assert found.columns.names == DEFAULT


def test_every_option_is_read():
    found = options(
        endpoints="a:1; b:2",
        subscribe=None,
        topic="x, y,x",
        startingTimestamp="17",
        startingOffsets="earliest",
        endingOffsets='{"x":{"b":{"0":9}}}',
        startingOffsetsByTimestampStrategy="LATEST",
        failOnDataLoss="false",
        minPartitions="3",
        maxRecordsPerPartition="100",
        maxBytesPerPartition="64m",
        partitions="7",
        columns="topic, queueOffset,properties",
        subExpression="A || B",
        readFrom="slave",
        chunkBytes="1m",
        pullTimeoutMs="5000",
        mode="permissive",
        verify="true",
        decompress="false",
        pushdown="true",
        group="g",
        waitForTopic="true",
        **{"fetchOffset.numRetries": "9", "fetchOffset.retryIntervalMs": "10"},
    )
    assert found.where.nameservers == ("a:1", "b:2")
    assert (found.where.retries, found.where.retry_interval_ms) == (9, 10)
    assert (found.where.read_from, found.where.chunk_bytes) == ("slave", 1 << 20)
    assert found.subscribe == ("x", "y")
    assert found.starting.timestamp == 17
    assert found.ending.offsets == {MessageQueue("x", "b", 0): 9}
    assert found.latest_if_no_match
    assert not found.fail_on_data_loss
    assert (found.min_partitions, found.max_rows_per_partition, found.partitions) == (3, 100, 7)
    assert found.max_bytes_per_partition == 64 << 20
    assert found.columns.names == ("topic", "queueOffset", "properties")
    assert (found.expression, found.mode, found.pushdown) == ("A || B", "PERMISSIVE", True)
    stream = options(
        streaming=True,
        maxOffsetsPerTrigger="10",
        minOffsetsPerTrigger="5",
        maxTriggerDelay="30s",
        maxBytesPerTrigger="1g",
        startingOffsets="latest",
    )
    assert (stream.max_offsets_per_trigger, stream.min_offsets_per_trigger) == (10, 5)
    assert (stream.max_trigger_delay_ms, stream.max_bytes_per_trigger) == (30_000, 1 << 30)
    store = options(endpoints=None, store="/s", brokerName="broker-a", trustTail="true")
    assert (store.where.path, store.where.broker_name, store.where.trust_tail) == (
        "/s",
        "broker-a",
        True,
    )
    sql = options(subExpression="sql: a > 5")
    assert (sql.expression, sql.expression_type) == ("a > 5", "SQL92")
    assert options(includeBody="false").columns.names == DEFAULT[:-1]
    assert options(mode="PERMISSIVE").columns.names == (*DEFAULT, "_corrupt")
    assert options(subscribe=None, assign='{"t":{"b":[3]}}').assign == (MessageQueue("t", "b", 3),)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"startingOffset": "x"},
            "unknown source option 'startingoffset'; did you mean 'startingOffsets'?",
        ),
        ({"kafka.bootstrap.servers": "x"}, "here it is called 'endpoints'"),
        ({"nameServer": "x"}, "here it is called 'endpoints'"),
        ({"colour": "red"}, "unknown source option 'colour'"),
        ({"columns": "topic,boddy"}, "no column 'boddy'; did you mean 'body'?"),
        ({"columns": ","}, "option columns is empty"),
        ({"subscribe": None}, "no topic is chosen; give one of subscribe"),
        ({"subscribePattern": "a.*"}, "subscribe and subscribePattern are given together"),
        ({"subscribe": None, "subscribePattern": "a("}, "no regular expression"),
        ({"subscribe": "a b"}, "option subscribe: topic 'a b' has a character outside"),
        ({"subscribe": "*"}, "option subscribe: topic '*' has a character outside"),
        ({"endpoints": None}, "give endpoints (nameservers, HOST:9876,...) or store"),
        ({"store": "/x"}, "store and endpoints are given together"),
        ({"endpoints": "localhost"}, "'localhost' is no nameserver; write HOST:PORT"),
        ({"endpoints": "127.0.0.1:99999"}, "option endpoints: '127.0.0.1:99999' is no nameserver"),
        ({"endpoints": "127.0.0.1:0"}, "'127.0.0.1:0' is no nameserver; write HOST:PORT"),
        ({"endpoints": "http://127.0.0.1:9876"}, "'http://127.0.0.1:9876' is no nameserver"),
        ({"trustTail": "true"}, "option trustTail goes with store"),
        ({"startingOffsets": "latest"}, "leaves a batch nothing to read"),
        ({"startingOffsets": "earlyest"}, "did you mean 'earliest'?"),
        ({"startingOffsets": "group"}, "needs the option group"),
        ({"startingOffsets": '{"o":{"b":{"0":-1}}}'}, "o.b.0 is -1 (latest)"),
        ({"endingOffsets": "earliest"}, "option endingOffsets is 'earliest'"),
        ({"endingOffsets": '{"o":{"b":{"0":-2}}}'}, "o.b.0 is -2 (earliest)"),
        ({"startingOffsets": '{"o":{"b":5}}'}, "startingOffsets: o.b is 5"),
        (
            {"startingOffsets": '{"o":{"b":{"0":1}},"o":{"b":{"0":2}}}'},
            "startingOffsets: 'o' is there twice in one object; write it as",
        ),
        ({"startingOffsets": '{"o":{"b":{"0":1,"0":2}}}'}, "'0' is there twice in one object"),
        (
            {"startingOffsets": '{"o":{"b":{"0":1,"00":2}}}'},
            "o.b.0 is there twice; write",
        ),
        (
            {"subscribe": None, "assign": '{"o":{"b":[0],"b":[1]}}'},
            "assign: 'b' is there twice in one object; write it as",
        ),
        ({"maxOffsetsPerTrigger": "5"}, "for spark.readStream only; leave it out of read"),
        ({"minPartitions": "0"}, "option minPartitions is '0'; write a whole number from 1 on"),
        ({"maxBytesPerPartition": "x"}, "option maxBytesPerPartition is 'x'; write bytes"),
        ({"chunkBytes": "1"}, "option chunkBytes is '1'; write bytes from 65536 to 8388608"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss is 'yes'; write true or false"),
        ({"mode": "FAILFASTER"}, "did you mean 'FAILFAST'?; it is one of FAILFAST"),
        ({"readFrom": "slaves"}, "did you mean 'slave'?"),
        ({"subExpression": "||"}, "names no tag"),
        ({"group": "a b"}, "option group: group 'a b' has a character outside"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp is 'yesterday'"),
    ],
)
def test_what_is_wrong_is_told_in_the_first_line(given, line):
    with pytest.raises(SaturnError) as caught:
        options(**given)
    assert line in str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets is for spark.read only"),
        ({"pushdown": "true"}, "option pushdown is for spark.read only"),
        ({"maxTriggerDelay": "soon"}, "write a time such as 500ms, 30s or 15m"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            "minOffsetsPerTrigger 9 is above maxOffsetsPerTrigger 5; lower it",
        ),
    ],
)
def test_what_is_wrong_for_a_stream_is_told(given, line):
    with pytest.raises(SaturnError) as caught:
        options(streaming=True, **given)
    assert line in str(caught.value).splitlines()[0]


def test_a_condition_that_cannot_be_parsed_is_told_before_anything_is_asked():
    for place in ({}, {"endpoints": None, "store": "/s"}):
        assert options(**place, subExpression="sql:a > 5").expression == "a > 5"
        with pytest.raises(SaturnError) as caught:
            options(**place, subExpression="sql:a > > 5")
        line = str(caught.value)
        assert line.startswith("correct option subExpression: SQL92 expression 'a > > 5'")
        assert "character 5: " in line
    with pytest.raises(SaturnError, match="it is empty; write a condition"):
        options(subExpression="sql:")


def test_names_are_those_of_the_documentation():
    assert len({name.lower() for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("table", [OPTIONS, sink_options.OPTIONS])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "9" * 5000,
        "-" + "9" * 5000,
        "9" * 5000 + "m",
        '{"T":{"b":{"0":' + "9" * 5000 + "}}}",
        '{"T":{"b":{"' + "9" * 5000 + '":0}}}',
        '{"T":{"b":[' + "9" * 5000 + "]}}",
    ],
)
def test_whatever_the_text_of_an_option_it_is_taken_or_refused_by_name(table, text) -> None:
    for name, option in table.items():
        try:
            option.read(name, text)
        except ConfigError as error:
            assert name in str(error)  # noqa: PT017  most take one of the texts


@pytest.mark.parametrize(
    "where",
    [
        Where.store("/s", broker_name="broker-a", trust_tail=True),
        Where.store("/s"),
        Where.brokers("a:1,b:2", read_from="slave", chunk_bytes=1 << 20, timeout_ms=7, group="g"),
        Where.brokers("a:1", retries=3, retry_interval_ms=5),
    ],
)
def test_the_options_of_a_place_name_that_place(where):
    given = {name.lower(): value for name, value in place_options(where).items()}
    assert parse(given | {"subscribe": "orders"}, streaming=None).where == where
