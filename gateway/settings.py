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
PUSH = frozenset({Kind.PUSH_CONSUMER, Kind.LITE_PUSH_CONSUMER})
BATCH = 32
POLL_MIN_MS, POLL_MAX_MS = 5_000, 20_000
SEND_ATTEMPTS = 3
DELAYS_S = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""The waits between deliveries: the delay levels of RocketMQ."""


def polling_ms(wanted_ms: int) -> int:
    """The time for which a receive waits, if the client asks for this."""
    return min(max(wanted_ms, POLL_MIN_MS), POLL_MAX_MS)


def completed(asked: Any, *, body_max: int, attempts: int, fifo: bool) -> Any:
    """The settings for a client that sent these. `attempts`: how often its group gets a message.
    CallRefused: they are those of no client."""
    found = v2.Settings()
    found.CopyFrom(asked)
    found.metric.Clear()
    found.metric.on = False
    match asked.WhichOneof("pub_sub"):
        case "publishing":
            found.backoff_policy.CopyFrom(_sending())
            found.publishing.max_body_size = body_max
            found.publishing.validate_message_type = True
        case "subscription":
            language = asked.user_agent.language
            found.backoff_policy.CopyFrom(_delivering(attempts, language))
            subscription = found.subscription
            subscription.fifo = fifo
            subscription.receive_batch_size = BATCH
            poll_ms = POLL_MAX_MS
            if asked.client_type not in PUSH and subscription.HasField("long_polling_timeout"):
                poll_ms = polling_ms(milliseconds(subscription.long_polling_timeout))
            subscription.long_polling_timeout.FromMilliseconds(poll_ms)
        case _:
            raise CallRefused(
                Code.BAD_REQUEST, "the settings have neither publishing nor subscription"
            )
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
