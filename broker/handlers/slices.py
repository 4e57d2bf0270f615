"""Answers that take long to make, made in steps: between two steps the loop serves other requests
(`runtime/steps.py`). An answer that takes only one step is sent at once, unless other long work is
under way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from saturnmq.broker.context import Context, answer, answer_failure
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import SQL_EXPRESSION
from saturnmq.runtime.steps import at_once

QUEUES = 256  # in one slice: about a millisecond
QUICK_BYTES = 4096  # a body up to this size is read at once
CONDITION_BYTES = 1024  # the same for SQL92 conditions, which take longer to parse
STEP_BYTES = 64 << 10  # JSON up to this size is decoded in one step

T = TypeVar("T")

Work = Generator[None, None, Command]
"""It yields between two steps, and returns the answer."""


def answer_with(c: Context, endpoint: Endpoint, request: Command, work: Work) -> None:
    """Answer with the result of the work, if the client still waits for it; if it fails, with its
    error. The work must not use the request's body after its first step."""

    async def go_on() -> None:
        try:
            reply = await c.steps.run_while(work, lambda: not endpoint.closed)
        finally:
            endpoint.end_work()
        if reply is not None:
            answer(endpoint, request, reply)

    if c.steps.take():
        try:
            next(work)
        except StopIteration as done:
            answer(endpoint, request, done.value)
            return
    request.body = b""
    endpoint.begin_work()
    c.runtime.spawn(answer_failure(c, endpoint, request, go_on()), name="answer-in-steps")


def of(
    items: Iterable[Any], make: Callable[[list[Any]], bytes], size: int = QUEUES
) -> Iterator[bytes]:
    """The result of `make` for each slice of the items; empty results are left out."""
    assert size > 0, f"slices of {size}"
    left = iter(items)
    while taken := list(islice(left, size)):
        if made := make(taken):
            yield made


def joined(request: Command, slices: Iterator[bytes], whole: Callable[[bytes], bytes]) -> Work:
    """Make an answer whose body is `whole` of the slices, joined by commas."""
    made: list[bytes] = []
    for each in slices:
        if made:
            yield
        made.append(each)
    return request.reply(0, body=whole(b",".join(made)))


def read_body(
    c: Context,
    endpoint: Endpoint,
    request: Command,
    read: Callable[[Command], Generator[None, None, T]],
    take: Callable[[T], None],
) -> None:
    """Read the request's body with `read`, which may need steps, and have `take` answer it, unless
    the connection is closed by then. If one of them fails, its error is the answer.

    A thread reads a body that is too large for one step: a large document, or conditions. For other
    bodies a thread does not help: the loop waits for the interpreter while a thread has it, also
    while the thread waits for a processor."""
    size, body = len(request.body), bytes(request.body)
    conditions = SQL_EXPRESSION.encode() in body
    if size <= (CONDITION_BYTES if conditions else QUICK_BYTES):
        take(at_once(read(request)))
        return
    request.body = body

    async def read_and_take() -> None:
        try:
            if conditions or size > STEP_BYTES:
                found = await c.aside.run(lambda: at_once(read(request)))
            else:
                found = await c.steps.run(read(request))
        finally:
            request.body = b""
            endpoint.end_work()
        if not endpoint.closed:
            take(found)

    endpoint.begin_work()
    c.runtime.spawn(answer_failure(c, endpoint, request, read_and_take()), name="read-body")
