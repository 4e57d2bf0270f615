"""Latency fault tolerance: the table, failures as the slowest row, the least bad of all."""

import pytest
from saturnmq.client.producer.faults import FaultStrategy
from saturnmq.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("latency", "out"), [(0, 0), (549, 0), (550, 3), (999, 3), (1000, 60), (99999, 60)]
)
def test_the_default_table(latency, out):
    assert FaultStrategy().back_off(latency) == out


def test_a_slow_send_takes_the_broker_out_and_time_brings_it_back():
    faults = FaultStrategy()
    faults.succeeded("a", 600, now=10.0)
    assert not faults.available("a", 12.9)
    assert faults.available("a", 13.0)
    assert faults.available("b", 12.9)


def test_a_fast_send_or_a_proof_brings_a_broker_back_at_once():
    faults = FaultStrategy()
    for broker in ("a", "b", "c"):
        faults.succeeded(broker, 600, now=10.0)
    faults.succeeded("a", 549, now=11.0)
    faults.back_online("b")
    assert [faults.available(broker, 11.0) for broker in ("a", "b", "c")] == [True, True, False]
    assert faults.least_bad(["c", "b"]) == "b"


def test_a_row_of_zero_seconds_takes_nobody_out_and_a_latency_of_zero_is_one():
    faults = FaultStrategy([(0, 0), (100, 1)])
    faults.succeeded("a", 99, now=0.0)
    assert faults.available("a", 0.0)
    faults.succeeded("a", 100, now=0.0)
    assert not faults.available("a", 0.9)
    assert FaultStrategy([(0, 2)]).back_off(0) == 2


def test_a_failure_counts_as_the_slowest_row():
    faults = FaultStrategy([(100, 1), (200, 7)])
    faults.failed("a", now=0.0)
    assert not faults.available("a", 6.9)
    assert faults.available("a", 7.0)


def test_when_all_are_out_the_first_to_return_is_used():
    faults = FaultStrategy()
    faults.failed("a", 0.0)
    faults.succeeded("b", 600, 1.0)
    assert faults.least_bad(["a", "b"]) == "b"
    assert faults.least_bad([]) is None


def test_an_empty_table_never_backs_off():
    faults = FaultStrategy([])
    faults.failed("a", 0.0)
    assert faults.available("a", 0.0)


@pytest.mark.parametrize("table", [[(5, 1), (5, 2)], [(5, 1), (4, 1)], [(-1, 1)], [(1, -1)]])
def test_a_table_that_cannot_be_meant_is_refused(table):
    with pytest.raises(ConfigError):
        FaultStrategy(table)
