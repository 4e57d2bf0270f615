"""How far streaming queries are behind the ends of their queues.

A Python source cannot report metrics of its own; but it reports the latest offsets, and their
distance from a batch's end is the lag. `LagListener` computes what Kafka's source reports:

    listener = LagListener()
    spark.streams.addListener(listener)
    ...
    listener.lags[query.id].max     # also min, avg, total, and by queue

Every lag is also given to `report`, by default a line of the log at level INFO.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from saturnmq.pipeline.offsets import Offsets, from_json
from saturnmq.runtime.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchLag:
    """Messages between a batch's end and the ends of the queues when the batch was planned."""

    query_id: str
    batch_id: int
    by_queue: Offsets
    rows: int  # of the batch
    rows_per_s: float
    duration_ms: dict[str, int]  # by phase, as Spark names them

    @property
    def min(self) -> int:
        return min(self.by_queue.values(), default=0)

    @property
    def max(self) -> int:
        return max(self.by_queue.values(), default=0)

    @property
    def avg(self) -> float:
        return self.total / len(self.by_queue) if self.by_queue else 0.0

    @property
    def total(self) -> int:
        return sum(self.by_queue.values())


def lag_of(progress: Any) -> BatchLag | None:
    """The lag of a `StreamingQueryProgress`; None if no source of it is ours."""
    by_queue: Offsets = {}
    ours = False
    for source in progress.sources:
        try:
            end, latest = (from_json(_object(t)) for t in (source.endOffset, source.latestOffset))
        except (ConfigError, ValueError, TypeError, RecursionError):
            continue  # another source's offsets
        ours = True
        by_queue |= {q: max(0, high - end.get(q, 0)) for q, high in latest.items()}
    if not ours:
        return None
    return BatchLag(
        str(progress.id),
        progress.batchId,
        by_queue,
        progress.numInputRows,
        progress.processedRowsPerSecond,
        dict(progress.durationMs),
    )


def _object(text: str | None) -> dict[str, Any]:
    value = json.loads(text or "")
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _logged(lag: BatchLag) -> None:
    log.info(
        "query %s batch %d: %d rows, behind by %d (min) %.0f (avg) %d (max)",
        lag.query_id,
        lag.batch_id,
        lag.rows,
        lag.min,
        lag.avg,
        lag.max,
    )


class LagListener(StreamingQueryListener):
    """Keeps the newest lag of every query, by its id."""

    def __init__(self, report: Callable[[BatchLag], None] = _logged) -> None:
        self.lags: dict[str, BatchLag] = {}
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        lag = lag_of(event.progress)
        if lag is not None:
            self.lags[lag.query_id] = lag
            self._report(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """The lag is what it was."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Its last lag stays."""
