"""The tasks that a consumer runs beside the application's calls."""

from __future__ import annotations

import asyncio
from typing import Any

from saturnmq.runtime.supervision import Supervisor, Work


class ConsumerTasks:
    """The tasks of one consumer; their names say which group it is in."""

    def __init__(self, supervisor: Supervisor, group: str) -> None:
        self._supervisor, self._group = supervisor, group
        self._tasks: list[asyncio.Task[Any]] = []

    def keep(self, work: Work, what: str) -> None:
        """Run `work` until `cancel`, again when it fails."""
        self._tasks.append(self._supervisor.keep(work, name=f"{what} {self._group}"))

    def once(self, work: Work, what: str) -> None:
        """Run `work` to its end."""
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self._supervisor.once(work, name=f"{what} {self._group}"))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
