"""A stream: messages per tag and minute of their making, late ones included for ten minutes.

python examples/stream_counts.py 127.0.0.1:9876 orders /data/checkpoints/counts

The group makes the query's progress visible where other consumers' is (`saturnmq group lag`), and
the listener tells how far it is behind. The checkpoint stays the truth.
"""

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, window
from saturnmq.pipeline.listener import LagListener
from saturnmq.pipeline.session import spark_session


def start(
    spark: SparkSession, endpoints: str, topic: str, checkpoint: str, trigger: dict[str, Any]
) -> Any:
    messages = (
        spark.readStream.format("saturnmq")
        .option("endpoints", endpoints)
        .option("subscribe", topic)
        .option("columns", "tags,bornTimestamp")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        .option("group", "example-counts")
        .load()
    )
    counted = (
        messages.withWatermark("bornTimestamp", "10 minutes")
        .groupBy(window(col("bornTimestamp"), "1 minute"), "tags")
        .count()
    )
    writer = counted.writeStream.outputMode("complete").format("memory").queryName("counts")
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


if __name__ == "__main__":
    session = spark_session("stream_counts")
    listener = LagListener()
    session.streams.addListener(listener)
    query = start(session, *sys.argv[1:4], trigger={"processingTime": "5 seconds"})
    while not query.awaitTermination(10):
        session.table("counts").orderBy("window", "tags").show(20, truncate=False)
        for lag in listener.lags.values():
            print(f"{lag.total:,} messages behind, {lag.max:,} in the worst queue")
