"""Answers that take long to make, a slice at a time: between two slices others are served.

A request about each queue of a topic with 65,536 queues takes a quarter of a second. What fits into
one slice is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from saturnmq.broker.context import Context, answer, answer_failure
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command

QUEUES = 256  # of one slice: about a millisecond


def of(items: Iterable[Any], make: Callable[[list[Any]], bytes]) -> Iterator[bytes]:
    """What `make` makes of each slice of the items; slices of which it makes nothing are left
    out."""
    left = iter(items)
    while taken := list(islice(left, QUEUES)):
        if made := make(taken):
            yield made


def answer_with(
    c: Context,
    endpoint: Endpoint,
    request: Command,
    slices: Iterator[bytes],
    whole: Callable[[bytes], bytes],
) -> None:
    """Answer with `whole` of the slices, joined by commas."""
    made = list(islice(slices, 2))

    def reply() -> None:
        answer(endpoint, request, request.reply(0, body=whole(b",".join(made))))

    async def go_on() -> None:
        while True:
            await c.runtime.sleep(0)
            more = next(slices, None)
            if more is None or endpoint.closed:
                break
            made.append(more)
        reply()

    if len(made) < 2:
        reply()
        return
    request.body = b""
    c.runtime.spawn(answer_failure(c, endpoint, request, go_on()), name="answer-in-slices")
