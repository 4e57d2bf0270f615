"""Answers that take long to make, a step at a time: between two steps others are served
(`protocol/steps.py`). What takes one step only is answered at once, unless other long work is under
way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any

from saturnmq.broker.context import Context, answer, answer_failure
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command

QUEUES = 256  # of one slice: about a millisecond

Work = Generator[None, None, Command]
"""It yields between two steps, and returns the answer."""


def answer_with(c: Context, endpoint: Endpoint, request: Command, work: Work) -> None:
    """Answer with what the work returns, if somebody waits for it still; an error of it is the
    answer. The work has no use of the request's body behind its first step."""

    async def go_on() -> None:
        reply = await c.steps.run(work, lambda: not endpoint.closed)
        if reply is not None:
            answer(endpoint, request, reply)

    if c.steps.take():
        try:
            next(work)
        except StopIteration as done:
            answer(endpoint, request, done.value)
            return
    request.body = b""
    c.runtime.spawn(answer_failure(c, endpoint, request, go_on()), name="answer-in-steps")


def of(
    items: Iterable[Any], make: Callable[[list[Any]], bytes], size: int = QUEUES
) -> Iterator[bytes]:
    """What `make` makes of each slice of the items; slices of which it makes nothing are left
    out."""
    left = iter(items)
    while taken := list(islice(left, size)):
        if made := make(taken):
            yield made


def joined(request: Command, slices: Iterator[bytes], whole: Callable[[bytes], bytes]) -> Work:
    """Makes an answer whose body is `whole` of the slices, joined by commas."""
    made: list[bytes] = []
    for each in slices:
        if made:
            yield
        made.append(each)
    return request.reply(0, body=whole(b",".join(made)))
