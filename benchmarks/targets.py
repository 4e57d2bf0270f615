"""What a benchmark's figures are held against."""

from __future__ import annotations

from typing import NamedTuple


class BenchTarget(NamedTuple):
    """What was asked for; `at_most` for times and costs."""

    value: float
    at_most: bool = False

    def missed(self, figure: float) -> bool:
        return figure > self.value if self.at_most else figure < self.value
