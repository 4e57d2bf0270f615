"""Into lake tables, exactly once. Not run by our tests: the libraries are not ours, and not needed.

Start Spark with `spark.jars.packages` of Delta (io.delta:delta-spark) or Iceberg
(org.apache.iceberg:iceberg-spark-runtime) and their settings; their documentation says which.

The rule behind both, and behind our own archive: Spark may hand the same epoch over twice, so the
table has to remember (query, epoch). `saturnmq pipeline archive` needs neither for plain Parquet.
"""

from typing import Any

from pyspark.sql import DataFrame, SparkSession


def messages(spark: SparkSession, endpoints: str, topic: str) -> DataFrame:
    stream = spark.readStream.format("saturnmq").option("endpoints", endpoints)
    stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
    # One big batch costs a table less than many small ones.
    stream = stream.option("maxBytesPerTrigger", "512m").option("minOffsetsPerTrigger", 100_000)
    return stream.option("maxTriggerDelay", "5m").load()


def to_delta(spark: SparkSession, endpoints: str, topic: str, path: str, checkpoint: str) -> Any:
    """Delta skips a transaction whose application and version it has seen."""
    query_id = f"saturnmq-{topic}"  # of the application, stays the same over restarts

    def write(batch: DataFrame, epoch: int) -> None:
        writer = batch.write.format("delta").mode("append")
        writer.option("txnAppId", query_id).option("txnVersion", epoch).save(path)

    stream = messages(spark, endpoints, topic).writeStream.foreachBatch(write)
    return stream.option("checkpointLocation", checkpoint).start()


def to_iceberg(spark: SparkSession, endpoints: str, topic: str, table: str, checkpoint: str) -> Any:
    """Iceberg's stream writer notes query and epoch in the snapshot, and skips what it has seen."""
    stream = messages(spark, endpoints, topic).writeStream.format("iceberg").outputMode("append")
    return stream.option("checkpointLocation", checkpoint).toTable(table)
