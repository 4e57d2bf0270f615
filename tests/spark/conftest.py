"""What modules of this folder share: a cluster, topics. Where pyspark or a Java is missing their
tests are skipped, and say why.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_rig import make_topic, running
from saturnmq.cli.launcher import Settings
from saturnmq.pipeline.session import why_not

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    own = [item for item in items if HERE in item.path.parents]
    missing = why_not() if own else None
    if missing is None:
        return
    skip = pytest.mark.skip(reason=missing.partition("\n")[0])
    for item in own:
        item.add_marker(skip)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Two brokers, for modules that have no cluster of their own. Who kills one brings it back."""
    with running(tmp_path_factory.mktemp("brokers"), Settings(masters=2)) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster, request):
    """A topic of the test's own, with as many queues on each broker as the module says."""
    name = request.node.name.replace("[", "-").replace("]", "")
    return make_topic(cluster, name, request.module.QUEUES)
