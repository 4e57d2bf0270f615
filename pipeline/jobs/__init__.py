"""The jobs of `saturnmq pipeline`, each a function that takes a SparkSession.

    from saturnmq.pipeline.jobs import archive, audit, rebuild, replay, report, session
    spark = session.start("local[4]")
    audit.audit(spark, store="/data/broker-a")

Their work runs in tasks that read, check and write by themselves: rows do not enter the JVM, which
plans, retries and counts (`tasks.py`). Paths must mean the same to the driver and the workers.
"""
