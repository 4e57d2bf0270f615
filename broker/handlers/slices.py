"""Answers that take long to make, a step at a time: between two steps others are served
(`runtime/steps.py`). What takes one step only is answered at once, unless other long work is under
way.
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

QUEUES = 256  # of one slice: about a millisecond
QUICK_BYTES = 4096  # of a body that is read at once
CONDITION_BYTES = 1024  # of one with SQL92 conditions, which take longer to parse
STEP_BYTES = 64 << 10  # of one whose JSON is decoded in one step

T = TypeVar("T")

Work = Generator[None, None, Command]
"""It yields between two steps, and returns the answer."""


def answer_with(c: Context, endpoint: Endpoint, request: Command, work: Work) -> None:
    """Answer with what the work returns, if somebody waits for it still; an error of it is the
    answer. The work has no use of the request's body behind its first step."""

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


def read_body(
    c: Context,
    endpoint: Endpoint,
    request: Command,
    read: Callable[[Command], Generator[None, None, T]],
    take: Callable[[T], None],
) -> None:
    """Have `take` answer what `read` finds in the request's body, which may need steps; nobody has
    it if the connection is closed by then. An error of them is the answer.

    A thread reads what no step has room for: a large document, conditions. It is no help
    otherwise: the loop waits for the interpreter while a thread has it, also while the thread waits
    for a processor."""
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
