"""From one topic to another, exactly once: what is killed goes on where it was, nothing is doubled.

python examples/exactly_once.py 127.0.0.1:9876 orders orders-checked /data/checkpoints/checked

Kill it at any moment and start it again: an epoch that was written, but not finished, is repeated
by Spark and recognised by the brokers. The rule: keep the query and its number of partitions as
they are while an epoch is unfinished. The sharding key keeps the messages of an order in one queue.
"""

import sys
from typing import Any

from pyspark.sql import SparkSession
from saturnmq.pipeline.session import spark_session


def start(
    spark: SparkSession, endpoints: str, source: str, target: str, checkpoint: str, **trigger: Any
) -> Any:
    orders = (
        spark.readStream.format("saturnmq")
        .option("endpoints", endpoints)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    checked = orders.where("length(body) > 0").selectExpr(
        "body", "tags", "keys", "keys AS shardingKey", "bornTimestamp"
    )
    return (
        checked.writeStream.format("saturnmq")
        .option("endpoints", endpoints)
        .option("topic", target)
        .option("delivery", "exactly-once")
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .start()
    )


if __name__ == "__main__":
    start(
        spark_session("exactly_once"), *sys.argv[1:5], processingTime="1 second"
    ).awaitTermination()
