"""Ctrl-C at a moment when a command must not be cut off."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupt_later() -> Iterator[None]:
    """Let the block end before Ctrl-C counts; a second one counts at once. An error of the block
    goes before it. Signals come to the main thread, so in another one there is nothing to do, nor
    where they are ignored, as in a job in the background."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield
        return
    came = False

    def note(*_: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
