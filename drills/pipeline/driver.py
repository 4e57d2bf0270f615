"""The process that is killed: one job of the pipeline in a session of its own, then the same job
once more, which must change nothing.

    python -m saturnmq.drills.pipeline.driver JOB NAMESERVER[,...] DIRECTORY

Prints `ready` when Spark is up, `done` when the job is, `again` when it is for the second time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from saturnmq.pipeline.access import Where
from saturnmq.pipeline.jobs.archive import archive
from saturnmq.pipeline.jobs.replay import KEEP, replay
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.session import spark_session

SOURCE, REPLAYED, STREAMED = "drill-in", "drill-replayed", "drill-streamed"
MASTER = "local[2,20]"  # two tasks at a time, each tried twenty times
EPOCHS = 10


class Driver:
    """The jobs."""

    def __init__(self, spark: Any, nameservers: str, directory: Path) -> None:
        self.spark = spark
        self.nameservers = nameservers
        self.directory = directory
        self.archive_path = str(directory / "archive")

    def archive(self) -> None:
        archive(self.spark, Where.brokers(self.nameservers), [SOURCE], self.archive_path)

    def replay(self) -> None:
        replay(self.spark, self.archive_path, REPLAYED, self.nameservers, queues=KEEP)

    def stream(self) -> None:
        with open_access(Where.brokers(self.nameservers)) as access:
            rows = sum(end - first for first, end in access.bounds([SOURCE]).values())
        source = self.spark.readStream.format("saturnmq").option("endpoints", self.nameservers)
        source = source.options(subscribe=SOURCE, startingOffsets="earliest")
        source = source.option("maxOffsetsPerTrigger", str(max(1, rows // EPOCHS)))
        sink = source.load().select("body", "keys", "tags", "queueId", "brokerName").writeStream
        sink = sink.format("saturnmq").option("endpoints", self.nameservers)
        sink = sink.options(topic=STREAMED, delivery="exactly-once")
        sink = sink.option("checkpointLocation", str(self.directory / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination()


JOBS = {"archive": Driver.archive, "replay": Driver.replay, "stream": Driver.stream}


def main() -> None:
    job, nameservers, directory = sys.argv[1:]
    spark = spark_session(f"drill {job}", MASTER)
    driver = Driver(spark, nameservers, Path(directory))
    print("ready", flush=True)
    JOBS[job](driver)
    print("done", flush=True)
    JOBS[job](driver)
    print("again", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
