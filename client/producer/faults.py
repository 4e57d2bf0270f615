"""Latency fault tolerance: which brokers to avoid for how long. Pure; time comes in as an argument.

RocketMQ's MQFaultStrategy with the project's own table: a send that took 550 ms or more takes its
broker out for 3 s, one of 1000 ms or more for 60 s; a failed send counts as the slowest row. If
every broker is out, the one that comes back first is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from saturnmq.runtime.errors import ConfigError

LatencyTable = Sequence[tuple[float, float]]
DEFAULT_TABLE: LatencyTable = ((550.0, 3.0), (1000.0, 60.0))


class FaultStrategy:
    """Back-off per broker name; `table` rows are (latency in ms, seconds out), rising."""

    def __init__(self, table: LatencyTable = DEFAULT_TABLE) -> None:
        rows = [(float(latency), float(out)) for latency, out in table]
        if any(a[0] >= b[0] for a, b in itertools.pairwise(rows)):
            raise ConfigError(f"latency table {rows} must rise in its first column")
        if any(latency < 0 or out < 0 for latency, out in rows):
            raise ConfigError(f"latency table {rows} must not hold negative numbers")
        self._rows = rows
        self._until: dict[str, float] = {}

    def back_off(self, latency_ms: float) -> float:
        """Seconds that a send of this latency takes its broker out for."""
        for latency, out in reversed(self._rows):
            if latency_ms >= latency:
                return out
        return 0.0

    def succeeded(self, broker: str, latency_ms: float, now: float) -> None:
        out = self.back_off(latency_ms)
        if out > 0.0:
            self._until[broker] = now + out
        else:
            self.back_online(broker)  # it answers fast again

    def failed(self, broker: str, now: float) -> None:
        if self._rows:
            self._until[broker] = now + self._rows[-1][1]

    def back_online(self, broker: str) -> None:
        """Use the broker again: something proved that it is well."""
        self._until.pop(broker, None)

    def available(self, broker: str, now: float) -> bool:
        until = self._until.get(broker)
        return until is None or until <= now

    def least_bad(self, brokers: Iterable[str]) -> str | None:
        """The broker whose back-off ends first; None without brokers."""
        return min(brokers, key=lambda broker: (self._until.get(broker, 0.0), broker), default=None)
