"""For all tests: how long an example takes says nothing on machines that do other work too; and
those that share the one Spark session run in one process.
"""

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.hookimpl(optionalhook=True)  # where xdist is installed
def pytest_xdist_make_scheduler(config, log):
    """Each test goes to whichever process is free, those of `tests/spark` all to one: a session
    takes seconds to start and hundreds of megabytes to have."""
    from xdist.scheduler import LoadScopeScheduling

    class SparkTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

    return SparkTogether(config, log)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The session: two cores, few partitions of a shuffle, pushdown allowed. It takes seconds to
    start and hundreds of megabytes to have."""
    from saturnmq.pipeline.session import spark_session

    settings = {
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse"),
        "spark.sql.streaming.stopTimeout": "30s",
    }
    session = spark_session("saturnmq tests", "local[2]", settings)
    yield session
    session.stop()
