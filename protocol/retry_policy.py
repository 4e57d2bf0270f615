"""The retry policy of a consumer group, `groupRetryPolicy` in its settings: how long a message
waits before each further delivery. Pure.

    {"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000,...]}}
    {"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}}

Times are in milliseconds. The names, the defaults and the rules are RocketMQ's. Its proxy is the
only reader there: it tells clients of the gRPC API the policy, and counts by it the wait of a
message that a push consumer did not finish. Brokers keep it, and their delay levels stay what they
are. Here the gateway is the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saturnmq.runtime.errors import MalformedFrame

from . import checked

KEY = "groupRetryPolicy"
CUSTOMIZED, EXPONENTIAL = "CUSTOMIZED", "EXPONENTIAL"
WAITS_MAX = 1_000  # of one policy
DOUBLINGS_MAX = 32  # RocketMQ lets a wait grow no further
SKIPPED = 2
"""A broker begins its retries at the third delay level, and so does a message that nobody
finished."""


@dataclass(frozen=True, slots=True)
class CustomizedRetryPolicy:
    """A wait for each delivery, the last one for all further deliveries."""

    waits_ms: tuple[int, ...] = tuple(
        seconds * 1000 for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
    )

    def wait_ms(self, failures: int) -> int:
        """The wait of a message that was delivered so often before, and that nobody finished."""
        return self.waits_ms[min(max(failures, 0) + SKIPPED, len(self.waits_ms) - 1)]


@dataclass(frozen=True, slots=True)
class ExponentialRetryPolicy:
    """Waits that grow by a factor, up to a bound."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2

    def wait_ms(self, failures: int) -> int:
        """As `CustomizedRetryPolicy.wait_ms`."""
        growth: int = self.multiplier ** min(max(failures, 0), DOUBLINGS_MAX)
        return min(self.max_ms, self.initial_ms * growth)


GroupRetryPolicy = CustomizedRetryPolicy | ExponentialRetryPolicy
DEFAULT_POLICY = CustomizedRetryPolicy()


def retry_policy_of(settings: Mapping[str, Any]) -> GroupRetryPolicy:
    """The policy in the settings of a group; a part that they do not name is the default.
    MalformedFrame: it is of another form."""
    policy = checked.table(settings, KEY)
    kind = checked.text(policy, "type", CUSTOMIZED)
    if kind not in (CUSTOMIZED, EXPONENTIAL):
        raise MalformedFrame(
            f"the type of {KEY} is {kind!r:.60}, not {CUSTOMIZED} or {EXPONENTIAL}"
        )
    exponential = _exponential(checked.table(policy, "exponentialRetryPolicy"))
    customized = _customized(checked.table(policy, "customizedRetryPolicy"))
    return exponential if kind == EXPONENTIAL else customized


def _customized(fields: Mapping[str, Any]) -> CustomizedRetryPolicy:
    if fields.get("next") is None:
        return DEFAULT_POLICY
    waits = checked.items(fields, "next", WAITS_MAX)
    if not waits:
        raise MalformedFrame("next of customizedRetryPolicy names no delay")
    return CustomizedRetryPolicy(
        tuple(checked.as_integer(wait, "a delay of next") for wait in waits)
    )


def _exponential(fields: Mapping[str, Any]) -> ExponentialRetryPolicy:
    own = ExponentialRetryPolicy()
    return ExponentialRetryPolicy(
        checked.integer(fields, "initial", own.initial_ms),
        checked.integer(fields, "max", own.max_ms),
        checked.integer(fields, "multiplier", own.multiplier),
    )


def retry_policy_json(policy: GroupRetryPolicy) -> dict[str, Any]:
    """The policy as settings have it."""
    if isinstance(policy, CustomizedRetryPolicy):
        return {"type": CUSTOMIZED, "customizedRetryPolicy": {"next": list(policy.waits_ms)}}
    return {
        "type": EXPONENTIAL,
        "exponentialRetryPolicy": {
            "initial": policy.initial_ms,
            "max": policy.max_ms,
            "multiplier": policy.multiplier,
        },
    }
