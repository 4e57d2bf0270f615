"""The settings that a client gets for those that it sent. Pure.

They are its own, with the fields filled that its kind of client cannot do without:

- A producer needs an exponential back-off: Java's, C#'s and Node.js's refuse any other.
- A push consumer needs the back-off between deliveries that its group has
  (`protocol/retry_policy.py`). Node.js's reads an exponential one only, Python's a customized one
  only: they get the nearest of that form. Here alone the language of a client matters.
- `max_body_size`, `receive_batch_size` and `long_polling_timeout` of 0 are taken by their word.
"""

from __future__ import annotations

from typing import Any

from saturnmq.gateway import v2
from saturnmq.gateway.checks import INVISIBLE_MAX_MS, milliseconds
from saturnmq.gateway.codes import CallRefused, Code
from saturnmq.gateway.topics import GroupFacts
from saturnmq.protocol.retry_policy import (
    DEFAULT_POLICY,
    WAITS_MAX,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
)

Kind: Any = v2.ClientType
CONSUMERS = frozenset({Kind.PUSH_CONSUMER, Kind.SIMPLE_CONSUMER, Kind.PULL_CONSUMER})
LITE = frozenset({Kind.LITE_PUSH_CONSUMER, Kind.LITE_SIMPLE_CONSUMER})
BATCH = 32
POLL_MIN_MS, POLL_MAX_MS = 5_000, 20_000
SEND_ATTEMPTS = 3


def no_lite_topics() -> CallRefused:
    """The error of all that needs lite topics."""
    return CallRefused(
        Code.NOT_IMPLEMENTED, "there are no lite topics here: use a push or a simple consumer"
    )


def check_client_type(kind: int) -> None:
    """CallRefused: clients of this type are not served."""
    if kind in LITE:
        raise no_lite_topics()
    if kind not in CONSUMERS and kind != Kind.PRODUCER:
        raise CallRefused(
            Code.UNRECOGNIZED_CLIENT_TYPE,
            f"client_type is {kind}: a client is a producer, or a push, simple or pull consumer",
        )


def check_settings(asked: Any) -> None:
    """CallRefused: they are those of no client."""
    check_client_type(asked.client_type)
    wanted = "publishing" if asked.client_type == Kind.PRODUCER else "subscription"
    found = asked.WhichOneof("pub_sub") or "neither publishing nor subscription"
    if found != wanted:
        raise CallRefused(
            Code.BAD_REQUEST,
            f"the settings of a {Kind(asked.client_type).name} need {wanted}; they have {found}",
        )


def polling_ms(wanted_ms: int) -> int:
    """The time for which a receive waits, if the client asks for this."""
    return min(max(wanted_ms, POLL_MIN_MS), POLL_MAX_MS)


def completed(asked: Any, *, body_max: int, group: GroupFacts) -> Any:
    """The settings for a client that sent these, which `check_settings` has seen.

    `group`: that of a consumer.
    """
    found = v2.Settings()
    found.CopyFrom(asked)
    found.metric.Clear()
    found.metric.on = False
    if asked.client_type == Kind.PRODUCER:
        found.backoff_policy.CopyFrom(_sending())
        found.publishing.max_body_size = body_max
        found.publishing.validate_message_type = True
        return found
    found.backoff_policy.CopyFrom(_delivering(group, asked.user_agent.language))
    subscription = found.subscription
    subscription.fifo = group.fifo
    subscription.receive_batch_size = BATCH
    poll_ms = POLL_MAX_MS
    is_pushed = asked.client_type == Kind.PUSH_CONSUMER
    if not is_pushed and subscription.HasField("long_polling_timeout"):
        poll_ms = polling_ms(milliseconds(subscription.long_polling_timeout))
    subscription.long_polling_timeout.FromMilliseconds(poll_ms)
    return found


def _sending() -> Any:
    policy = v2.RetryPolicy(max_attempts=SEND_ATTEMPTS)
    backoff = policy.exponential_backoff
    backoff.initial.FromMilliseconds(10)
    backoff.max.FromSeconds(1)
    backoff.multiplier = 2
    return policy


def _delivering(group: GroupFacts, language: int) -> Any:
    policy = v2.RetryPolicy(max_attempts=group.attempts)
    waits = _readable(group.retry_policy, group.attempts, language)
    if isinstance(waits, ExponentialRetryPolicy):
        backoff = policy.exponential_backoff
        backoff.initial.FromMilliseconds(_askable(waits.initial_ms))
        backoff.max.FromMilliseconds(_askable(waits.max_ms))
        backoff.multiplier = waits.multiplier
    else:
        for wait_ms in waits.waits_ms:
            policy.customized_backoff.next.add().FromMilliseconds(_askable(wait_ms))
    return policy


def _readable(policy: GroupRetryPolicy, attempts: int, language: int) -> GroupRetryPolicy:
    """The policy in a form that clients of a language read."""
    if language == v2.Language.NODE_JS and isinstance(policy, CustomizedRetryPolicy):
        if policy == DEFAULT_POLICY:
            return ExponentialRetryPolicy()
        return ExponentialRetryPolicy(policy.waits_ms[0], max(policy.waits_ms))
    if language == v2.Language.PYTHON and isinstance(policy, ExponentialRetryPolicy):
        waits = range(min(max(attempts - 1, 1), WAITS_MAX))
        return CustomizedRetryPolicy(tuple(map(policy.wait_ms, waits)))
    return policy


def _askable(wait_ms: int) -> int:
    """A wait that a client may ask for, as it does when it gives a message back."""
    return min(wait_ms, INVISIBLE_MAX_MS)
