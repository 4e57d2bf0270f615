"""RocketMQ's Go client, unmodified, at a cluster of ours. goclient/ checks what it gets itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from cluster_rig import make_topic, running
from interop_clients import Scenarios, client_program, go_client
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = [pytest.mark.quick, pytest.mark.timeout(300)]
GO_SCENARIOS = ("send", "orderly", "retry", "delay", "transactions")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # Producers are asked about open transactions every second, not every 30.
    settings = Settings(broker_options={"transactionCheckInterval": 1_000})
    with running(tmp_path_factory.mktemp("clients") / "cluster", settings) as made:
        yield made


@pytest.fixture(scope="module")
def go_program(
    cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scenarios]:
    """It has begun all scenarios, each on a topic of its name."""
    log = tmp_path_factory.mktemp("go") / "go.log"
    with client_program([go_client(), cluster.nameservers[0]], log) as program:
        begun = Scenarios(program)
        for scenario in GO_SCENARIOS:
            begun.begin(scenario, make_topic(cluster, f"go-{scenario}", 4))
        yield begun


@pytest.mark.parametrize("scenario", GO_SCENARIOS)
def test_the_go_client_does_what_it_does_with_rocketmq(
    go_program: Scenarios, scenario: str, figures: Counter[str]
) -> None:
    outcome = go_program.outcome(f"go-{scenario}")
    assert outcome.startswith("ok "), outcome
    figures["scenarios of the Go client"] += 1
