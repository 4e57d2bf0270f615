"""The retry policy of a group, as RocketMQ's settings have it (its own tests have these waits)."""

from __future__ import annotations

from typing import Any

import pytest
from saturnmq.protocol.retry_policy import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    retry_policy_json,
    retry_policy_of,
)

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("policy", "waits_ms"),
    [
        (CustomizedRetryPolicy(), {-1: 10_000, 0: 10_000, 10: 540_000, 100: 2 * HOUR_MS}),
        (CustomizedRetryPolicy((4000, 5000)), {0: 5000, 9: 5000}),
        (ExponentialRetryPolicy(), {-1: 5000, 0: 5000, 10: 5_120_000, 100: 2 * HOUR_MS}),
        (ExponentialRetryPolicy(1, 1 << 40, 2), {32: 1 << 32, 33: 1 << 32}),
    ],
)
def test_a_message_waits_longer_with_each_delivery_that_nobody_finished(
    policy: GroupRetryPolicy, waits_ms: dict[int, int]
) -> None:
    assert {failures: policy.wait_ms(failures) for failures in waits_ms} == waits_ms


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({}, CustomizedRetryPolicy()),
        ({"groupRetryPolicy": None}, CustomizedRetryPolicy()),
        ({"groupRetryPolicy": {"type": "CUSTOMIZED"}}, CustomizedRetryPolicy()),
        ({"groupRetryPolicy": {"type": "EXPONENTIAL"}}, ExponentialRetryPolicy()),
        (
            {"groupRetryPolicy": {"customizedRetryPolicy": {"next": ["7", 8]}}},
            CustomizedRetryPolicy((7, 8)),
        ),
        (
            {"groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 9}}},
            ExponentialRetryPolicy(5000, 9, 2),
        ),
    ],
)
def test_a_part_of_the_policy_that_settings_do_not_name_is_the_default(
    settings: dict[str, Any], policy: GroupRetryPolicy
) -> None:
    assert retry_policy_of(settings) == policy


@pytest.mark.parametrize(
    "policy", [CustomizedRetryPolicy((1, 2, 3)), ExponentialRetryPolicy(10, 1000, 3)]
)
def test_a_policy_that_was_written_reads_as_itself(policy: GroupRetryPolicy) -> None:
    assert retry_policy_of({"groupRetryPolicy": retry_policy_json(policy)}) == policy
