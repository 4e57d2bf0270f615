"""A node that takes the place of a running one: it loads all it needs first, then ends the other
and serves. The node is away for as short as can be, and one that cannot even load ends nothing.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

STOP_TIMEOUT_S = 20.0  # a node that does not listen to SIGTERM gets SIGKILL then


def start_time(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None when it has ended or is a
    zombie. With it a pid is unambiguous.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold spaces
    return None if fields[0] in "ZX" else int(fields[19])


def relieve(pid: int, started: int) -> None:
    """End the process of that number and start time, and return when it has ended."""
    try:
        process = os.pidfd_open(pid)  # from here on the number cannot become a stranger's
    except ProcessLookupError:
        return
    try:
        if start_time(pid) != started:
            return
        ended = select.poll()  # select() takes no descriptors above 1023
        ended.register(process, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(process, number)
            if ended.poll(STOP_TIMEOUT_S * 1000):
                return
    finally:
        os.close(process)
    raise TimeoutError(f"process {pid} did not end within {STOP_TIMEOUT_S:.0f} s of SIGKILL")
