"""For all tests: how long an example takes says nothing on machines that do other work too; and
those that share a Spark session run in one process.
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
