"""The options of the sink and the columns it takes: each mistake is named with its way out."""

import pytest
from saturnmq.pipeline import sink_options
from saturnmq.pipeline.sink_options import SinkOptions, check_columns, parse, selector_for
from saturnmq.protocol import compression
from saturnmq.runtime.errors import ConfigError, SaturnError

types = pytest.importorskip("pyspark.sql.types", reason="pyspark is not installed")

GIVEN = {"endpoints": "127.0.0.1:9876", "topic": "orders"}


def schema(ddl):
    """A StructType of `name TYPE, ...`, without a session."""
    known = {
        "BINARY": types.BinaryType(),
        "STRING": types.StringType(),
        "INT": types.IntegerType(),
        "BIGINT": types.LongType(),
        "TIMESTAMP": types.TimestampType(),
        "MAP": types.MapType(types.StringType(), types.StringType()),
    }
    columns = [column.split() for column in ddl.split(", ")]
    return types.StructType([types.StructField(name, known[kind]) for name, kind in columns])


def test_options_are_read_whatever_the_case_of_their_names():
    options = parse(
        {
            **GIVEN,
            "DELIVERY": "exactly-once",
            "queueselector": "ShardingKey",
            "chunkBytes": "64k",
            "compression": "zstd",
            "compressionThreshold": "1",
            "producergroup": "G",
            "retryTimeoutMs": "500",
            "writeId": "job-7",
            "brokers": "b, a,b",
            "ignoreextracolumns": "TRUE",
            "checkpointLocation": "somewhere",  # Spark's own, in every stream's options
        }
    )
    assert options == SinkOptions(
        "127.0.0.1:9876",
        "orders",
        "exactly-once",
        "shardingKey",
        65536,
        "all",
        compression.ZSTD,
        1,
        "G",
        500,
        "job-7",
        ("a", "b"),
        True,
    )
    assert parse(GIVEN) == SinkOptions("127.0.0.1:9876", "orders")
    assert parse({**GIVEN, "compression": "none"}).compression is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queueSelecter": "x"}, r"unknown sink option 'queueSelecter'; did you mean 'queueSelect"),
        ({"path": "orders"}, "unknown sink option 'path'; here it is called 'topic'"),
        ({"kafka.acks": "1"}, "unknown sink option 'kafka.acks'; here it is called 'ackMode'"),
        ({"endpoints": None}, "option endpoints is missing; give nameservers, as HOST:9876"),
        ({"endpoints": ""}, "option endpoints names no nameserver; write HOST:PORT"),
        ({"endpoints": "host"}, "option endpoints: 'host' is no nameserver; write HOST:PORT"),
        ({"delivery": "exactly-onse"}, "did you mean 'exactly-once'.*; it is one of at-least-once"),
        ({"queueSelector": "key"}, "queueSelector is 'key'.*it is one of roundRobin, shardingKey"),
        ({"chunkBytes": "1 bit"}, "chunkBytes is '1 bit'; write bytes from 4096 to 4194304"),
        ({"chunkBytes": "12"}, "chunkBytes is '12'; write bytes from 4096 to 4194304"),
        (
            {"retryTimeoutMs": "1s"},
            "retryTimeoutMs is '1s'; write a whole number from 1 to 86",
        ),
        ({"compression": "gzip"}, "compression is 'gzip'.*it is one of none, lz4, zstd, zlib"),
        ({"ackMode": "1"}, "ackMode is '1'; it is one of all, stored"),
        ({"topic": "a b"}, "option topic: topic 'a b'"),
        ({"topic": ""}, "option topic: the topic name is empty"),
        ({"producerGroup": "a b"}, "option producerGroup: group 'a b'"),
        ({"endpoints": "host:0"}, "option endpoints: 'host:0' is no nameserver; write HOST:PORT"),
        ({"ignoreExtraColumns": "yes"}, "ignoreExtraColumns is 'yes'; write true or false"),
        ({"writeId": "x"}, "option writeId is for delivery=exactly-once"),
        ({"brokers": "a"}, "option brokers is for delivery=exactly-once"),
        ({"delivery": "exactly-once", "writeId": "\n"}, "writeId is ''; write 1 to 120 printable"),
        ({"delivery": "exactly-once", "topic": None}, "a column needs option brokers"),
        ({"delivery": "exactly-once", "ackMode": "stored"}, "ackMode=stored does not go with"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_right(changes, said):
    given = {key: text for key, text in {**GIVEN, **changes}.items() if text is not None}
    with pytest.raises(SaturnError, match=said):
        parse(given)


def test_columns_are_taken_by_name_and_type():
    options = parse(GIVEN)
    every = (
        "body BINARY, topic STRING, tags STRING, keys STRING, properties MAP, flag INT, "
        "queueId BIGINT, brokerName STRING, shardingKey STRING, bornTimestamp TIMESTAMP"
    )
    assert check_columns(schema(every), options) == tuple(sink_options.COLUMNS)
    lenient = parse({**GIVEN, "ignoreExtraColumns": "true"})
    assert check_columns(schema("queueOffset BIGINT, body STRING"), lenient) == ("body",)


@pytest.mark.parametrize(
    ("ddl", "changes", "said"),
    [
        (
            "body BINARY, tag STRING",
            {},
            "the sink has no column 'tag'; did you mean 'tags'.*body B",
        ),
        ("Body BINARY", {}, "no column 'Body'; did you mean 'body'"),
        ("body BINARY, queueOffset BIGINT", {}, "drop it, or give ignoreExtraColumns=true"),
        ("body INT", {}, r"column 'body' is INT, not BINARY or STRING; cast it"),
        ("body STRING, queueId STRING", {}, "column 'queueId' is STRING, not INT or BIGINT"),
        ("body STRING, body STRING", {}, "column 'body' is there twice"),
        ("keys STRING", {}, "column 'body' is missing"),
        ("body STRING", {"topic": None}, "no topic; give option 'topic', or a column 'topic'"),
        ("body STRING, deliveryTimestamp TIMESTAMP", {}, "a Producer sends timed messages"),
        ("deliveryTimestamp BIGINT", {"ignoreExtraColumns": "true"}, "a Producer sends timed mess"),
        ("body STRING", {"queueSelector": "shardingKey"}, "needs a column 'shardingKey'"),
        ("body STRING", {"queueSelector": "column"}, "needs a column 'queueId'"),
        ("body STRING, brokerName STRING", {}, "'brokerName' names no queue without .* 'queueId'"),
        (
            "body STRING, brokerName STRING, shardingKey STRING",
            {},
            "'brokerName' names no queue without",
        ),
    ],
)
def test_a_wrong_column_is_named_with_what_is_right(ddl, changes, said):
    given = {key: text for key, text in {**GIVEN, **changes}.items() if text is not None}
    with pytest.raises(ConfigError, match=said):
        check_columns(schema(ddl), parse(given))


def test_no_column_that_is_refused_is_offered():
    with pytest.raises(ConfigError) as told:
        check_columns(schema("body INT"), parse(GIVEN))
    assert "bornTimestamp TIMESTAMP" in str(told.value)
    assert "deliveryTimestamp" not in str(told.value)


def test_the_columns_suggest_the_selector():
    options = parse(GIVEN)
    assert selector_for(("body",), options) == "roundRobin"
    assert selector_for(("body", "shardingKey"), options) == "shardingKey"
    assert selector_for(("body", "shardingKey", "queueId"), options) == "column"
    asked = parse({**GIVEN, "queueSelector": "roundRobin"})
    assert selector_for(("body", "queueId"), asked) == "roundRobin"
    assert selector_for(("body", "brokerName"), asked) == "roundRobin"
