"""The entry point for Spark. Spark imports every module called `pyspark_*` when a format is first
looked up, and registers its DefaultSource.

So it must load nothing but what names the source.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)


class DefaultSource(DataSource):
    """The format "saturnmq"; docs/pipeline.md has its options and columns."""

    @classmethod
    def name(cls) -> str:
        return "saturnmq"

    def schema(self) -> Any:
        """The schema of a read without a schema of the user's."""
        from saturnmq.pipeline.options import parse

        return parse(self.options, streaming=None).columns.spark_schema()

    def reader(self, schema: Any) -> DataSourceReader:
        from saturnmq.pipeline.source import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        from saturnmq.pipeline.streaming import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        from saturnmq.pipeline.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        from saturnmq.pipeline.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
