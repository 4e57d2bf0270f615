"""The wall clock as retention sees it: a step ahead counts when it has stood for a day."""

from __future__ import annotations

from typing import Any

import pytest
from saturnmq.broker.commit.retention import RetentionClock

DAY_S = 86_400.0


class Clocks:
    """Stands where a runtime does; the wall clock goes on with the steady one."""

    def __init__(self) -> None:
        self.ahead_ms = 1_700_000_000_000
        self.steady = 50.0

    def monotonic(self) -> float:
        return self.steady

    def now_ms(self) -> int:
        return self.ahead_ms + int(self.steady * 1000)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def retention(clocks: Any) -> RetentionClock:
    return RetentionClock(clocks)


@pytest.mark.parametrize("step_ms", [60_000, 1, 0, -1, -60_001, -(10**9)])
def test_a_minute_ahead_and_any_step_back_count_at_once(clocks: Clocks, step_ms: int) -> None:
    clock = retention(clocks)
    for _ in range(3):
        clocks.steady += 1.0
        clocks.ahead_ms += step_ms
        assert clock.now_ms() == clocks.now_ms()


def test_a_step_ahead_counts_when_it_has_stood_for_a_day(
    clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    clock = retention(clocks)
    for step_ms in (60_001, 3_600_000):  # the second after the first is believed
        caplog.clear()
        clocks.steady += 0.5
        clocks.ahead_ms += step_ms
        for seconds in (0.0, 0.5, DAY_S - 1.0):
            clocks.steady += seconds
            assert clock.now_ms() == clocks.now_ms() - step_ms
        clocks.steady += 0.5
        assert clock.now_ms() == clocks.now_ms()
        clocks.steady += 1.0
        assert clock.now_ms() == clocks.now_ms()
        [warning] = caplog.messages
        assert f"went {step_ms // 1000} s ahead" in warning
        assert "for 24 hours nothing" in warning


def test_a_clock_that_is_set_right_was_not_ahead(clocks: Clocks) -> None:
    clock = retention(clocks)
    clocks.ahead_ms += 10**9
    clock.now_ms()
    clocks.steady += DAY_S - 1.0
    clocks.ahead_ms -= 10**9
    assert clock.now_ms() == clocks.now_ms()
    clocks.ahead_ms += 10**9
    clocks.steady += 2.0
    assert clock.now_ms() == clocks.now_ms() - 10**9, "its day begins anew"
