"""The clock of delays: steps of wall clocks, other masters and restarts never set it ahead."""

from __future__ import annotations

import random

import pytest
from saturnmq.broker.timer.delay_clock import APART_MS, ROUNDED_MS, DelayClock

SET_BACK_MS = APART_MS + ROUNDED_MS


class Clocks:
    """A machine: its steady clock in seconds, and its wall clock, which may be stepped."""

    def __init__(self, steady: float, wall_ms: float) -> None:
        self.steady, self.wall_ms = steady, wall_ms

    def monotonic(self) -> float:
        return self.steady

    def now_ms(self) -> int:
        return int(self.wall_ms)

    def pass_s(self, seconds: float) -> None:
        self.steady += seconds
        self.wall_ms += seconds * 1000


class Node:
    """A node with the file of its clock."""

    def __init__(self, machine: Clocks) -> None:
        self.machine = machine
        self.file: dict[str, int] = {}
        self.clock = DelayClock(machine)

    def save(self) -> None:
        if self.clock.dirty:
            self.file = self.clock.document()
            self.clock.clean()

    def restart(self, down_s: float) -> None:
        self.machine.pass_s(down_s)
        self.machine.steady -= random.Random(down_s).uniform(0, 1000)  # another boot
        self.clock = DelayClock(self.machine)
        self.clock.load(self.file)


def test_a_restarted_master_does_not_go_on_ahead_of_the_clock_that_it_took_over_as_a_slave():
    """The drill `semantics` saw messages come 20 ms early."""
    node = Node(Clocks(50.0, 1_000_000))
    node.save()
    before = node.clock.now_ms()
    node.clock.heard(before - 40)
    node.save()
    node.clock.begin_term()
    node.restart(down_s=2.0)
    assert node.clock.now_ms() <= before - 40 + 2000


@pytest.mark.parametrize("seed", range(50))
def test_no_life_sets_the_clock_ahead_or_back_by_more_than_the_slack_of_each_start(seed):
    luck = random.Random(seed)
    node = Node(Clocks(luck.uniform(0, 1e4), luck.uniform(1e12, 2e12)))
    node.save()
    node.clock.begin_term()
    truth, starts = float(node.clock.now_ms()), 0
    for _ in range(200):
        seconds = luck.uniform(0, 3)
        truth += seconds * 1000
        what = luck.random()
        if what < 0.1:
            node.restart(seconds)
            starts += 1
        elif what < 0.2:  # the next master has a clock of its own, whose answer takes its time
            node.machine.pass_s(seconds)
            node.clock.left_master()
            truth = float(node.clock.now_ms() + luck.randrange(-500, 500))
            node.clock.heard(int(truth))
            starts = 0
        elif what < 0.4:
            node.machine.wall_ms += luck.choice((-1, 1)) * luck.choice((0.5, 1.5, 20, 99, 3e6))
            node.machine.pass_s(seconds)
        else:
            node.machine.pass_s(seconds)
        node.save()  # as every second
        shows = node.clock.now_ms()
        assert truth - (starts + 1) * (2 * SET_BACK_MS) <= shows <= truth + 1
