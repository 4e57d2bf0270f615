"""RocketMQ's own clients over TLS (`tls.enable`), which nodes of ours take beside plain text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import interop_nodes
import pytest
from cluster_rig import make_topic, running
from interop_clients import scenarios
from saturnmq.cli.launcher import Settings

SCENARIOS = ("sync", "batch", "large", "transactions", "orderly", "retry", "pull", "lite-members")


@pytest.mark.quick
@pytest.mark.timeout(240)
@pytest.mark.parametrize("version", ["4.9.8", "5.4.0"])
def test_java_clients_work_over_tls(tmp_path: Path, version: str, figures: Counter[str]) -> None:
    jars = interop_nodes.client_jars(version)
    settings = Settings(broker_options={"transactionCheckInterval": 1_000})
    with (
        running(tmp_path / "cluster", settings) as cluster,
        scenarios(jars, cluster.nameservers[0], tmp_path, ["-Dtls.enable=true"]) as client,
    ):
        for scenario in SCENARIOS:
            make_topic(cluster, f"tls-{scenario}", 4)
            client.begin(scenario, f"tls-{scenario}")
        for scenario in SCENARIOS:
            outcome = client.outcome(f"tls-{scenario}")
            assert outcome.startswith("ok "), f"{scenario}: {outcome}"
            figures["scenarios of Java clients"] += 1


@pytest.mark.quick
@pytest.mark.timeout(180)
def test_nodes_without_tls_refuse_it(tmp_path: Path) -> None:
    jars = interop_nodes.client_jars("5.4.0")
    with (
        running(tmp_path / "cluster", Settings(tls="off")) as cluster,
        scenarios(jars, cluster.nameservers[0], tmp_path, ["-Dtls.enable=true"]) as client,
    ):
        make_topic(cluster, "tls-sync", 4)
        client.begin("sync", "tls-sync")
        assert not client.outcome("tls-sync").startswith("ok ")
