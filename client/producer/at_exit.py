"""The end of the interpreter: messages that producers accepted and nobody waited for are sent or
reported.

After the last line of a program, an exception that nobody caught or sys.exit(), all producers that
are open have EXIT_S seconds together to get their messages acknowledged; the threads of clients
still run then. Afterwards stderr says how many messages are left, and why. Nothing can be done
after os._exit() or a signal that kills the process.

Consumers need nothing: messages that are not committed are delivered again.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

from saturnmq.client.producer.batch import ProducerBatch

EXIT_S = 10.0


class UnsentMessages(NamedTuple):
    """Messages that a producer accepted and that may not be stored."""

    group: str
    messages: int
    reason: str


# A method of a producer: send the waiting messages, for at most so many seconds, and close.
Settle = Callable[[float], UnsentMessages | None]

_open: set[weakref.WeakMethod[Settle]] = set()


def remember(settle: Settle) -> None:
    """From now on the end of the program calls `settle`, if its producer still lives."""
    _open.add(weakref.WeakMethod(settle, _open.discard))


def forget(settle: Settle) -> None:
    """The producer is closed; the end of the program calls `settle` no more."""
    _open.discard(weakref.WeakMethod(settle))


def loss(group: str, batches: Iterable[ProducerBatch], why_open: str) -> UnsentMessages | None:
    """The messages of `batches` that failed, or that are not over because of `why_open`; None if
    all are stored."""
    lost = [batch for batch in batches if not batch.done or batch.error is not None]
    if not lost:
        return None
    reason = next((repr(batch.error) for batch in lost if batch.error is not None), why_open)
    return UnsentMessages(group, sum(batch.count for batch in lost), reason)


def _settle_all() -> None:
    deadline = time.monotonic() + EXIT_S
    for method in list(_open):
        settle = method()
        lost = None if settle is None else settle(max(0.0, deadline - time.monotonic()))
        if lost is not None and sys.stderr is not None:
            print(
                f"saturnmq: the program ended, and {lost.messages} messages that producer "
                f"{lost.group!r} had accepted may be lost: {lost.reason}. Wait for them with "
                "flush() or close() to hear of it earlier",
                file=sys.stderr,
                flush=True,
            )


atexit.register(_settle_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.clear)  # they are the parent's
