"""The columns of the Spark source: what may be chosen, and the schemas that follow."""

from __future__ import annotations

import pickle

import pytest
from saturnmq.pipeline import columns
from saturnmq.runtime.errors import ConfigError

pa = pytest.importorskip("pyarrow", reason="the pipeline needs pyarrow: saturnmq[spark]")


def spark_types():
    return pytest.importorskip("pyspark.sql.types", reason="needs pyspark: saturnmq[spark]")


def test_the_default_columns_are_those_of_the_document_in_its_order():
    assert columns.select().ddl() == (
        "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, "
        "storeTimestamp TIMESTAMP, bornTimestamp TIMESTAMP, keys STRING, tags STRING, body BINARY"
    )


def test_flags_take_the_body_away_and_add_properties_and_corrupt():
    chosen = columns.select(include_body=False, include_properties=True, corrupt=True)
    assert chosen.names == (*columns.DEFAULT[:-1], "properties", "_corrupt")
    assert "body" not in chosen
    assert len(chosen) == 10


def test_names_come_in_the_order_asked_for():
    chosen = columns.select(["size", "topic", "messageId"])
    assert chosen.names == ("size", "topic", "messageId")
    assert chosen.arrow_schema().names == ["size", "topic", "messageId"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["queueOfset"], "no column 'queueOfset'; did you mean 'queueOffset'?"),
        (["QUEUEID"], "no column 'QUEUEID'; did you mean 'queueId'?"),
        (["_CORRUPT"], "did you mean '_corrupt'?"),
        (["partition"], "no column 'partition'; the columns are topic STRING"),
        (["topic", "size", "topic"], "'topic' is chosen twice"),
        ([], "no column is chosen; take some of these: topic STRING"),
    ],
)
def test_a_wrong_choice_is_refused_and_names_the_right_ones(names, text):
    with pytest.raises(ConfigError) as caught:
        columns.select(names)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrow_and_spark_schema_agree_exactly_as_spark_compares_them():
    spark_types()
    from pyspark.sql.pandas.types import to_arrow_schema

    chosen = columns.select(columns.COLUMNS)
    schema = chosen.spark_schema()
    assert to_arrow_schema(schema, timezone="UTC").equals(chosen.arrow_schema())
    fields = [f"{column.name}:{column.type.lower()}" for column in columns.COLUMNS.values()]
    assert schema.simpleString() == f"struct<{','.join(fields)}>"


def test_a_users_schema_picks_columns_and_keeps_their_nullability():
    types = spark_types()
    from pyspark.sql.pandas.types import to_arrow_schema

    given = types.StructType(
        [
            types.StructField("body", types.BinaryType()),
            types.StructField("queueId", types.IntegerType(), False),
            types.StructField(
                "properties", types.MapType(types.StringType(), types.StringType(), False), False
            ),
        ]
    )
    chosen = columns.from_spark_schema(given)
    assert chosen.names == ("body", "queueId", "properties")
    assert chosen.spark_schema() == given
    assert chosen.arrow_schema().equals(to_arrow_schema(given, timezone="UTC"))


def test_a_users_schema_of_wrong_names_or_types_is_refused_with_the_right_ones():
    types = spark_types()

    def refused(name, kind, nullable=True):
        schema = types.StructType([types.StructField(name, kind, nullable)])
        with pytest.raises(ConfigError) as caught:
            columns.from_spark_schema(schema)
        return str(caught.value)

    assert "did you mean 'queueOffset'?" in refused("queue_offset", types.LongType())
    text = refused("queueOffset", types.IntegerType())
    assert text.startswith("column queueOffset has the type BIGINT, the schema says INT; ")
    assert "topic STRING, brokerName STRING" in text
    assert "the schema says TIMESTAMP_NTZ" in refused("bornTimestamp", types.TimestampNTZType())
    assert "the schema says VARCHAR(9)" in refused("keys", types.VarcharType(9))
    wrong_map = types.MapType(types.StringType(), types.BinaryType())
    assert "the schema says MAP<STRING,BINARY>" in refused("properties", wrong_map)
    assert "column tags is null in a message without it" in refused(
        "tags", types.StringType(), False
    )


def test_a_choice_travels_to_a_worker():
    chosen = columns.select(["properties", "crcOk"])
    assert pickle.loads(pickle.dumps(chosen)) == chosen
