"""The stacks of a process as text: of its threads, and of the tasks of one event loop. They tell an
operator what a client is doing, as Java's jstack does.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable
from typing import Any

CHARACTERS_MOST = 1 << 20


def stacks(tasks: Iterable[asyncio.Task[Any]] = ()) -> str:
    """The stacks of all threads and of these tasks, the innermost call last. A text that is too
    long ends with a line that says so. Reads source files: not for a loop's thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    # Other threads go on as soon as a source file is read, and a frame whose call has ended knows
    # its caller no more. So the frames of all are taken first.
    taken = [
        (number, list(traceback.walk_stack(frame)))
        for number, frame in sys._current_frames().items()
    ]
    parts = []
    for number, walked in taken:
        lines = traceback.StackSummary.extract(iter(reversed(walked))).format()
        parts.append(f"thread {names.get(number, '?')} ({number}):\n{''.join(lines)}")
    for task in tasks:
        frames = task.get_stack()
        if frames:
            shown = "".join(
                line for frame in frames for line in traceback.format_stack(frame, limit=1)
            )
            parts.append(f"task {task.get_name()}:\n{shown}")
    text = "\n".join(parts)
    if len(text) > CHARACTERS_MOST:
        left_out = len(text) - CHARACTERS_MOST
        text = f"{text[:CHARACTERS_MOST]}\n... {left_out} characters more are left out\n"
    return text
