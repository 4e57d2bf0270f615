"""A bug in the middle of a send ends that send with an error, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from producer_world import A0, Cluster, Make, clusters
from saturnmq.client.producer.results import SendStatus
from saturnmq.protocol.message import MessageQueue
from saturnmq.runtime.errors import TaskFailed


@pytest.fixture
def cluster() -> Iterator[Make]:
    with clusters() as make:
        yield make


def broken(*_: Any, **__: Any) -> Any:
    raise ValueError("a bug")


def ends_with_the_bug(world: Cluster, queue: MessageQueue | None, outcome: str) -> None:
    """A message, and the one behind it, fail and say why; later ones are stored."""
    handles = [world.send(queue), world.send(queue)]
    for handle in handles:
        error = world.outcome(handle)
        assert isinstance(error, TaskFailed)
        assert (error.outcome, "ValueError('a bug')" in str(error)) == (outcome, True)
    assert world.idle()
    assert world.runtime.deaths
    world.runtime.deaths.clear()  # they were expected


@pytest.mark.parametrize("queue", [None, A0])
def test_a_bug_before_a_batch_leaves_fails_what_waits_in_its_lane(
    cluster: Make, monkeypatch: pytest.MonkeyPatch, queue: MessageQueue | None
) -> None:
    world = cluster({"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(world.sender, "_place", broken)
        ends_with_the_bug(world, queue, "rejected")
    assert world.outcome(world.send(queue)) is SendStatus.OK


@pytest.mark.parametrize("queue", [None, A0])
@pytest.mark.parametrize("place", ["connected", "broker_address"])
def test_a_bug_in_an_attempt_fails_its_batch(
    cluster: Make, monkeypatch: pytest.MonkeyPatch, queue: MessageQueue | None, place: str
) -> None:
    world = cluster({"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(world, place, broken)
        ends_with_the_bug(world, queue, "unknown")
    assert world.outcome(world.send(queue)) is SendStatus.OK


@pytest.mark.parametrize("queue", [None, A0])
def test_a_bug_in_taking_an_answer_fails_its_batch(
    cluster: Make, monkeypatch: pytest.MonkeyPatch, queue: MessageQueue | None
) -> None:
    world = cluster({"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(world.sender.faults, "succeeded", broken)
        ends_with_the_bug(world, queue, "unknown")
    assert world.outcome(world.send(queue)) is SendStatus.OK
