"""One Spark session for all tests of this folder, in one process: it takes seconds to start and
hundreds of megabytes to have.

Where pyspark or a Java is missing the tests are skipped, and say why.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from saturnmq.pipeline.session import prepare, spark_session
from saturnmq.protocol.errors import SaturnError

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    own = [item for item in items if HERE in item.path.parents]
    if not own:
        return
    try:
        prepare()
    except SaturnError as error:
        missing = pytest.mark.skip(reason=str(error).partition("\n")[0])
        for item in own:
            item.add_marker(missing)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The session: two cores, few partitions of a shuffle, pushdown allowed."""
    settings = {
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse"),
        "spark.sql.streaming.stopTimeout": "30s",
    }
    session = spark_session("saturnmq tests", "local[2]", settings)
    yield session
    session.stop()
