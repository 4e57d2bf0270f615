"""Is the store sound, and does the archive have what it has?

python examples/audit.py /data/broker-a/store [/data/archive]

The same as `saturnmq pipeline audit`, as a function whose result can be looked at.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.jobs.audit import Audited, audit
from saturnmq.pipeline.session import spark_session


def check(spark: SparkSession, store: str | Path, archive: str | None = None) -> Audited:
    found = audit(spark, Where.store(str(store)), archive)
    print(f"{found.messages:,} messages in {found.queues} queues")
    for finding in found.damage:
        print("damage:", finding)
    return found


if __name__ == "__main__":
    sys.exit(0 if check(spark_session("audit"), *sys.argv[1:]).sound else 1)
