"""The settings that a client gets for those that it sent. Pure.

They are its own, with the fields filled that its kind of client cannot do without:

- A producer needs an exponential back-off: Java's, C#'s and Node.js's refuse any other.
- A push consumer needs a back-off between deliveries. Node.js's reads an exponential one only,
  Python's a customized one only; here alone the language of a client matters.
- `max_body_size`, `receive_batch_size` and `long_polling_timeout` of 0 are taken by their word.
"""

from __future__ import annotations

from typing import Any

from saturnmq.gateway import v2
from saturnmq.gateway.checks import milliseconds
from saturnmq.gateway.codes import CallRefused, Code

Kind: Any = v2.ClientType
CONSUMERS = frozenset({Kind.PUSH_CONSUMER, Kind.SIMPLE_CONSUMER, Kind.PULL_CONSUMER})
LITE = frozenset({Kind.LITE_PUSH_CONSUMER, Kind.LITE_SIMPLE_CONSUMER})
BATCH = 32
POLL_MIN_MS, POLL_MAX_MS = 5_000, 20_000
SEND_ATTEMPTS = 3
DELAYS_S = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""The waits between deliveries: the delay levels of RocketMQ."""


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


def completed(asked: Any, *, body_max: int, attempts: int, fifo: bool) -> Any:
    """The settings for a client that sent these, which `check_settings` has seen. `attempts`: how
    often its group gets a message."""
    found = v2.Settings()
    found.CopyFrom(asked)
    found.metric.Clear()
    found.metric.on = False
    if asked.client_type == Kind.PRODUCER:
        found.backoff_policy.CopyFrom(_sending())
        found.publishing.max_body_size = body_max
        found.publishing.validate_message_type = True
        return found
    found.backoff_policy.CopyFrom(_delivering(attempts, asked.user_agent.language))
    subscription = found.subscription
    subscription.fifo = fifo
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


def _delivering(attempts: int, language: int) -> Any:
    policy = v2.RetryPolicy(max_attempts=attempts)
    if language == v2.Language.NODE_JS:
        backoff = policy.exponential_backoff
        backoff.initial.FromSeconds(5)
        backoff.max.FromSeconds(7200)
        backoff.multiplier = 2
    else:
        for seconds in DELAYS_S:
            policy.customized_backoff.next.add().FromSeconds(seconds)
    return policy
