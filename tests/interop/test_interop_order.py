"""The order configuration of a topic, written by ours and by mqadmin, as RocketMQ's producer has
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from interop_mqadmin import Mqadmin
from interop_nodes import ROCKETMQ, SATURNMQ, Nodes
from saturnmq import Admin, Producer
from saturnmq.cli.free_ports import free_block

pytestmark = [pytest.mark.quick, pytest.mark.interop, pytest.mark.timeout(300)]


def test_java_producers_write_an_ordered_topic_where_its_configuration_says(
    nodes: Nodes,
    shared_mqadmin: Callable[[], Mqadmin],
    tmp_path: Path,
    figures: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def java_queues(nameserver: str) -> list[str]:
        return shared_mqadmin().tell("queues", nameserver, "ordered").split(" ")

    monkeypatch.setenv("SATURNMQ_ORDER_MESSAGES", "1")
    nameserver = nodes.nameserver(SATURNMQ)
    nodes.broker(SATURNMQ, tmp_path / "store", free_block("127.0.0.1", 4) + 2, {})
    with Admin(nameserver) as admin:
        admin.create_topic("ordered", write_queues=2, read_queues=4, order=True)
        (broker,) = admin.topic_settings("ordered")
        assert java_queues(nameserver) == [f"{broker}:0", f"{broker}:1"]
        conf = f"gone:1;{broker}:1"
        nodes.mqadmin(
            "updateOrderConf", "-n", nameserver, "-t", "ordered", "-m", "put", "-v", conf
        )  # fmt: skip
        expected = ["gone:0", f"{broker}:0"]
        assert java_queues(nameserver) == expected
        with Producer(nameservers=nameserver) as producer:
            ours = [f"{q.broker_name}:{q.queue_id}" for q in producer.queues("ordered")]
        assert ours == expected
        assert admin.topic_settings("ordered")[broker].order
    route = nodes.mqadmin("topicRoute", "-n", nameserver, "-t", "ordered")
    assert f'"orderTopicConf":"{conf}"' in route.replace(" ", "")
    figures["order configurations"] += 2


def test_a_nameserver_goes_on_with_the_order_configurations_of_the_other_make(
    nodes: Nodes, figures: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = nodes.home / "namesrv" / "kvConfig.json"
    kept.parent.mkdir(exist_ok=True)
    monkeypatch.setenv("SATURNMQ_KV_CONFIG", str(kept))
    confs = {"first": "a:1", "second": "a:2;b:2", "third": "c:16"}
    known: dict[str, str] = {}
    for make, (topic, conf) in zip((ROCKETMQ, SATURNMQ, ROCKETMQ), confs.items(), strict=True):
        nameserver = nodes.nameserver(make)
        order = ("updateOrderConf", "-n", nameserver, "-t")
        for before, expected in known.items():
            assert f"orderConf=[{expected}]" in nodes.mqadmin(*order, before, "-m", "get")
        nodes.mqadmin(*order, topic, "-m", "put", "-v", conf)
        known[topic] = conf
        nodes.stop_nameserver(make)
    figures["order configurations"] += len(confs)
