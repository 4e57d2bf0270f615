"""Waiting for the route of a topic: its brokers, or all of them, may be about to start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from saturnmq.runtime.errors import RouteNotFound, SaturnError, TopicNotExist

if TYPE_CHECKING:
    from saturnmq.client.producer.sending import Sender

AGAIN_S = 0.2


async def until_routed(
    sender: Sender, topic: str, patience_s: float, is_found: Callable[[], object]
) -> float:
    """Ask for the route of `topic` until it is found; the seconds that are left. TopicNotExist:
    there is no such topic. Another SaturnError: it was not found in so many seconds, or before the
    producer was closed."""
    core = sender.core
    deadline = core.runtime.monotonic() + patience_s
    while True:
        try:
            known = core.routes.route(topic) is not None
            await core.route(topic, refresh=known and not is_found(), create=True)
            if is_found():
                return max(0.0, deadline - core.runtime.monotonic())
            error: SaturnError = RouteNotFound(
                f"topic {topic!r} has no writable queue: no master serves it now"
            )
        except TopicNotExist:
            raise
        except SaturnError as failure:
            error = failure
        sender.accumulator.routeless[topic] = error
        if core.runtime.monotonic() >= deadline or sender.closed or core.closed:
            raise error
        await core.runtime.sleep(AGAIN_S)
