"""Work that is killed at any of its changes of the file system."""

from __future__ import annotations

import os
from collections.abc import Callable

STEPS = ("makedirs", "rename", "link", "unlink", "fsync", "rmdir")


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child that dies before its `number`th change of the file system; whether it
    did."""
    child = os.fork()
    if child == 0:
        left = [number]

        def counted(real):
            def step(*arguments, **options):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)
                return real(*arguments, **options)

            return step

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9
