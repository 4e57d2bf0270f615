"""The brokers at which a task of an exactly-once sink publishes, when it was published in part."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from saturnmq.client.producer.staging import Pinned, Published
from saturnmq.pipeline.sending import SinkFailed
from saturnmq.pipeline.staged import Staging
from saturnmq.protocol.message_queue import MessageQueue

NAMES = ("a", "b")


class Brokers:
    """The client of a task; `known`: the rows of its partition that a broker has published."""

    def __init__(self, **known: int) -> None:
        self.known = known
        self.asked: list[str] = []
        self.places: list[tuple[str, int]] = []

    def queues(self, broker: str, topic: str) -> int:
        return 2 if broker in NAMES else 0

    def stage(self, pinned: Pinned, epoch: int, partition: int, *, broker: str) -> Any:
        stage = SimpleNamespace(rows=0, abort=lambda: None)

        def add(topic: str, queue_id: int, body: bytes, rows: int, **_: object) -> None:
            stage.rows += rows
            self.places.append((broker, queue_id))

        def publish() -> Published:
            self.asked.append(broker)
            there = self.known.get(broker)
            return Published(stage.rows if there is None else there, there is not None, 0)

        stage.add, stage.publish = add, publish
        return stage


def task(brokers: Brokers, names: tuple[str, ...] = NAMES) -> Staging:
    published: Mapping[Any, Any] = {(3, 0): tuple(brokers.known)} if brokers.known else {}
    return Staging(brokers, Pinned("s", names, 2, published), 3, 0)  # type: ignore[arg-type]


def put(staging: Staging, rows: int, broker: str | None = None) -> None:
    queue = None if broker is None else MessageQueue("T", broker, 1)
    chunk = SimpleNamespace(
        topic="T", queue=queue, rows=rows, sys_flag=0, born_ms=1, body=lambda: b"x" * rows
    )
    staging.put(chunk)  # type: ignore[arg-type]


def test_what_a_broker_has_is_looked_at_before_anything_is_published_at_another() -> None:
    brokers = Brokers(b=5)
    staging = task(brokers)
    put(staging, 4, "a")
    put(staging, 5, "b")
    assert staging.finish() == 4
    assert brokers.asked == ["b", "a"]
    brokers = Brokers(b=5)
    staging = task(brokers)
    put(staging, 6, "a")
    put(staging, 3, "b")
    with pytest.raises(SinkFailed, match=r"published with 5 rows, now it has 3.*undo that"):
        staging.finish()
    assert brokers.asked == ["b"], "its rows would be there twice"


def test_rows_that_go_elsewhere_than_where_they_were_published_are_refused() -> None:
    brokers = Brokers(b=5)
    staging = task(brokers)
    put(staging, 5, "a")
    with pytest.raises(SinkFailed, match="published at broker 'b', which gets none of its rows"):
        staging.finish()
    assert brokers.asked == []


def test_a_partition_stays_at_a_broker_of_a_former_list_that_published_it() -> None:
    brokers = Brokers(z=5)
    staging = task(brokers)
    put(staging, 5)
    assert staging.finish() == 0
    assert (brokers.asked, brokers.places) == (["z"], [("z", 0)])
