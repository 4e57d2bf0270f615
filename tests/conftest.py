"""For all tests: how long an example takes says nothing on machines that do other work too, nor
does how full their disk is; and those that share the one Spark session run in one process.
"""

import pytest
from hypothesis import settings
from saturnmq.store.disk import NativeDisk

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


@pytest.fixture(scope="session", autouse=True)
def _a_disk_with_space():
    """A store refuses sends on a disk that is used to 90 %. (Clusters of the launcher look at the
    bytes that are free instead.)"""
    measure = NativeDisk.free_space

    def free_space(disk, path):
        total, free = measure(disk, path)
        return total, max(free, total // 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeDisk, "free_space", free_space)
        yield


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
