"""A hot key: one customer has most of the messages, so one task of a groupBy has most of the work.

python examples/salting.py 127.0.0.1:9876 orders

Reading is no matter: the source cuts a long queue into ranges of equal bytes. What stays skewed is
the query's own shuffle. Salting counts in two steps: each key is split over a number of parts by
chance, and the parts are added up. It fits whatever can be put together from parts: counts, sums,
the largest; not a median. Spark does this by itself for simple counts (partial aggregation); the
example has a collect_set, which it cannot.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import (
    array_distinct,
    col,
    collect_list,
    collect_set,
    count,
    flatten,
    rand,
    size,
    sum,
)
from saturnmq.pipeline.session import spark_session

SALTS = 16


def tags_of_keys(spark: SparkSession, endpoints: str, topic: str) -> DataFrame:
    """Messages of each key and how many different tags they have."""
    messages = (
        spark.read.format("saturnmq")
        .option("endpoints", endpoints)
        .option("subscribe", topic)
        .option("columns", "keys,tags")
        .load()
    )
    salted = messages.withColumn("salt", (rand() * SALTS).cast("int"))
    parts = salted.groupBy("keys", "salt").agg(
        count("*").alias("part"), collect_set("tags").alias("tags")
    )
    whole = parts.groupBy("keys").agg(
        sum("part").alias("messages"), array_distinct(flatten(collect_list("tags"))).alias("tags")
    )
    return whole.select("keys", "messages", size("tags").alias("tags")).orderBy(
        col("messages").desc()
    )


if __name__ == "__main__":
    tags_of_keys(spark_session("salting"), *sys.argv[1:]).show(20, truncate=False)
