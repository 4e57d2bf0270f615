"""RocketMQ's clients of version 5 for Java, Go and Node in order: many messages of many message
groups, one of which fails until it is a dead letter.

A queue whose messages are out and not acknowledged waits, with all groups in it, as with
RocketMQ's brokers. So a failing message holds up the groups of its queue, and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_rig import running
from interop_grpc import CLIENTS, until
from saturnmq import Admin, PullConsumer
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = pytest.mark.timeout(240)

GROUPS, EACH = 20, 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("fifo") / "cluster", Settings(masters=2)) as made:
        yield made


@pytest.mark.parametrize("kind", [*CLIENTS, "java-accelerated"])
def test_groups_keep_their_order_and_a_failing_message_is_a_dead_letter_soon(
    cluster: LocalCluster, kind: str, tmp_path: Path, figures: Counter[str]
) -> None:
    language, *accelerated = kind.split("-")
    topic, group = f"{kind}-T", f"{kind}-G"
    with Admin(cluster.nameservers) as admin:
        admin.create_topic(topic, 4, message_type="FIFO")
        admin.create_group(group, orderly=True, max_retries=1)
    endpoint = cluster.describe()["nodes"][0]["grpc"]
    with CLIENTS[language](endpoint, tmp_path) as client:
        client.tell("producer", topic)
        client.send(topic, "bad", group="group-0")
        sent = [(f"group-{n % GROUPS}", str(n)) for n in range(GROUPS * EACH)]
        for name, body in sent:
            client.send(topic, body, group=name)
        client.tell("push", group, topic, "tag", "*", *accelerated)
        got = client.seen(group, len(sent) + 2)
        # It was delivered once, for a minute: the client gave it up, not the broker.
        until(lambda: f"%DLQ%{group}" in topics(cluster))
        client.tell("leave", group)
    for n in range(GROUPS):
        order = [each.body for each in got if each.group == f"group-{n}" and each.body != "bad"]
        assert order == [body for name, body in sent if name == f"group-{n}"]
    places = [place for place, each in enumerate(got) if each.body == "bad"]
    assert [got[place].attempt for place in places] == [1, 2]
    between = {each.group for each in got[places[0] : places[1]]}
    assert len(between) > 1, "the failing message held up all groups"
    follows = next(
        i for i, each in enumerate(got) if each.group == "group-0" and each.body != "bad"
    )
    if (
        language != "go"
    ):  # Go's client goes on with the next message while one waits to be tried again
        assert follows > places[1], "a message of its group came before it was given up"
    assert dead_letters(cluster, f"%DLQ%{group}") == ["bad"]
    figures["messages in order of clients over gRPC"] += len(sent)


def topics(cluster: LocalCluster) -> set[str]:
    with Admin(cluster.nameservers) as admin:
        return set(admin.list_topics())


def dead_letters(cluster: LocalCluster, topic: str) -> list[str]:
    ours = PullConsumer("ours", nameservers=cluster.nameservers, from_beginning=True)
    ours.subscribe(topic)
    found: list[str] = []

    def have_come() -> bool:
        found.extend(each.body.decode() for each in ours.poll(timeout_s=1.0))
        return bool(found)

    with ours:
        until(have_come)
    return found
