"""How long acknowledgements take, as RocketMQ's tools show it (`putLatency99`, `putLatency999`):
the time from the append to the answer, in which the log becomes as safe as the ack mode demands.

Answers are counted by powers of two of their microseconds, so a percentile is exact to its power
and interpolated between. It covers the present minute and the last whole one. Pure: times come as
arguments.
"""

from __future__ import annotations

WINDOW_S = 60.0
POWERS = 40  # 2^40 us are 12 days


class PutLatency:
    def __init__(self, now: float) -> None:
        self._since = now
        self._before = [0] * POWERS
        self.counts = [0] * POWERS
        """By the power of two above the microseconds. The first has the answers that waited for
        nothing; whoever gives one counts it here."""

    def waited(self, seconds: float) -> None:
        """Count an answer that had to wait."""
        micros = max(int(seconds * 1e6), 1)
        self.counts[min(micros.bit_length(), POWERS - 1)] += 1

    def turn(self, now: float) -> None:
        """Begin another minute when one is over."""
        if now - self._since >= WINDOW_S:
            is_next = now - self._since < 2 * WINDOW_S
            self._before = self.counts if is_next else [0] * POWERS
            self._since, self.counts = now, [0] * POWERS

    def percentile_ms(self, part: float) -> float | None:
        """The milliseconds within which this part of the answers was given; None: there was
        none."""
        counts = [a + b for a, b in zip(self._before, self.counts, strict=True)]
        wanted, total = part * sum(counts), 0
        for power, count in enumerate(counts):
            if count and total + count >= wanted:
                least, most = (1 << power - 1, 1 << power) if power else (0, 0)
                return (least + (most - least) * (wanted - total) / count) / 1000
            total += count
        return None

    def status(self) -> dict[str, str]:
        """The figures in the broker's runtime information; none if nothing was stored lately."""
        parts = {"putLatency99": 0.99, "putLatency999": 0.999}
        found = {name: self.percentile_ms(part) for name, part in parts.items()}
        return {name: f"{value:.2f}" for name, value in found.items() if value is not None}
