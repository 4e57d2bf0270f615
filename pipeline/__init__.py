"""The data pipeline on Spark: a source, a sink and jobs, through PySpark.

After `pip install 'saturnmq[spark]'` there is the format "saturnmq" for `spark.read`, `readStream`,
`write` and `writeStream`, and `saturnmq pipeline` for the jobs.
"""
