"""An application over rocketmq-spring at a cluster of ours. SpringClient.java checks what it gets
itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import interop_nodes
import pytest
from cluster_rig import make_topic, running
from interop_clients import java_program
from saturnmq.cli.launcher import Settings

SPRING = "2.3.4"


@pytest.mark.quick
@pytest.mark.timeout(300)
def test_a_spring_application_sends_and_listens(tmp_path: Path, figures: Counter[str]) -> None:
    jars = interop_nodes.spring_jars(SPRING)
    # Producers are asked about open transactions every second, not every 30.
    settings = Settings(broker_options={"transactionCheckInterval": 1_000})
    with running(tmp_path / "cluster", settings) as cluster:
        for topic in ("spring", "spring-ordered", "spring-asked"):
            make_topic(cluster, topic, 4)
        arguments = ("SpringClient.java", cluster.nameservers[0], "spring")
        with java_program(jars, *arguments, log=tmp_path / "java.log") as spring:
            answer = spring.tell("run")
    assert answer.startswith("ok "), answer
    figures["applications with rocketmq-spring"] += 1
