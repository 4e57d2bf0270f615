"""A topic as a DataFrame: how many messages of each tag came in each hour.

python examples/read_batch.py 127.0.0.1:9876 orders
python examples/read_batch.py /data/broker-a/store orders      # the same from files, no broker
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from saturnmq.pipeline.session import spark_session


def counts(spark: SparkSession, place: str, topic: str) -> DataFrame:
    where = "store" if Path(place).is_dir() else "endpoints"
    messages = (
        spark.read.format("saturnmq")
        .option(where, place)
        .option("subscribe", topic)
        # Spark does not tell a Python source which columns a query needs: name them.
        .option("columns", "tags,storeTimestamp")
        .load()
    )
    hour = messages.selectExpr("tags", "date_trunc('HOUR', storeTimestamp) AS hour")
    return hour.groupBy("hour", "tags").count().orderBy("hour", "tags")


if __name__ == "__main__":
    counts(spark_session("read_batch"), *sys.argv[1:]).show(100, truncate=False)
