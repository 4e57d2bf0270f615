"""The range of a batch in each queue, where messages have expired, and the choice of queues."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from saturnmq.pipeline.access import DataLoss
from saturnmq.pipeline.options import SourceOptions, parse
from saturnmq.pipeline.plan import Range
from saturnmq.pipeline.resolve_offsets import Bounds, is_chosen, ranges
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError

CUT, WHOLE = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
BOUNDS = {CUT: Bounds(1000, 1200), WHOLE: Bounds(0, 50)}
NOBODY: Any = SimpleNamespace()  # an Access that is not asked


def options(start: int | None, end: int, fail: bool) -> SourceOptions:
    """Of a batch that names `start` (None: the earliest) and `end` of the queue that is cut."""
    given = {"endpoints": "127.0.0.1:9876", "subscribe": "T", "failOnDataLoss": str(fail).lower()}
    if start is not None:
        given["startingOffsets"] = json.dumps({"T": {"b": {"0": start, "1": 0}}})
    given["endingOffsets"] = json.dumps({"T": {"b": {"0": end, "1": 10}}})
    return parse(given, streaming=False)


def found(start: int | None, end: int, fail: bool = False) -> tuple[int, int]:
    cut, whole = ranges(NOBODY, options(start, end, fail), BOUNDS)
    assert whole == Range(*WHOLE, 0, 10)
    return cut.start, cut.end


@pytest.mark.parametrize(
    ("start", "end", "lost", "left"),
    [
        (0, 10, "messages 0 to 10 of T b/0: they are deleted", (1000, 1000)),
        (0, 1000, "messages 0 to 1000 of T", (1000, 1000)),
        (900, 1100, "messages 900 to 1000 of T", (1000, 1100)),
    ],
)
def test_messages_of_a_batch_that_have_expired_are_lost_and_no_others(
    caplog: pytest.LogCaptureFixture, start: int, end: int, lost: str, left: tuple[int, int]
) -> None:
    with pytest.raises(DataLoss, match=lost):
        found(start, end, fail=True)
    with caplog.at_level(logging.WARNING):
        assert found(start, end) == left
    assert [record.getMessage().startswith(f"data loss: {lost}") for record in caplog.records] == [
        True
    ]


@pytest.mark.parametrize(("start", "end"), [(None, 10), (7, 7)])
def test_an_expired_range_without_messages_is_empty_and_no_loss(start, end) -> None:
    assert found(start, end, fail=True) == (1000, 1000)


@pytest.mark.parametrize(("start", "end"), [(20, 10), (1100, 1050), (1100, 10)])
@pytest.mark.parametrize("fail", [True, False])
def test_a_start_behind_its_end_is_a_mistake_whatever_has_expired(start, end, fail) -> None:
    with pytest.raises(ConfigError, match=f"the start {start} of T b/0 is behind its end {end};"):
        found(start, end, fail)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"subscribe": "a,T"}, True),
        ({"subscribe": "a"}, False),
        ({"subscribePattern": "[T-Z]"}, True),
        ({"subscribePattern": "T."}, False),
        ({"assign": '{"T":{"b":[0,1]}}'}, True),
        ({"assign": '{"T":{"b":[1]}}'}, False),
    ],
)
def test_options_choose_a_queue_whether_it_is_there_or_not(given: dict, chosen: bool) -> None:
    options = parse({"endpoints": "127.0.0.1:9876", **given}, streaming=True)
    assert is_chosen(options, CUT) is chosen
