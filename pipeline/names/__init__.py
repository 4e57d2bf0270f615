"""What Spark finds: it imports every module called `pyspark_*` when a format is first looked up.

So it must load nothing but what names the source.
"""
