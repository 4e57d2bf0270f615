"""The jobs of `saturnmq pipeline`, each a function that takes a SparkSession.

    from saturnmq.pipeline.jobs.audit import audit
    from saturnmq.pipeline.session import spark_session
    audit(spark_session("audit", "local[4]"), Where.store("/data/broker-a"))

Their work runs in tasks that read, check and write by themselves: rows do not enter the JVM, which
plans, retries and counts (`tasks.py`). Paths must mean the same to the driver and the workers.
"""
