"""Unforeseen failures, in a request or a background task: each is a bug of ours.

A request that fails so is answered with SYSTEM_ERROR (1). A task that fails so begins again after a
pause (`runtime/supervision.py`). Both are logged with their trace and counted, and the broker's
status tells them. Tasks after whose failure data is in doubt are not among these: they write the
log or change the node's role, and the process ends with them (`Runtime.spawn`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from saturnmq.runtime.errors import SaturnError

log = logging.getLogger(__name__)

SHOWN = 200  # characters of the last failure


class Failures:
    """The failures of one broker since its start."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self.heard: Callable[[str], None] = lambda _: None

    def of_task(self, error: SaturnError) -> None:
        """A task failed; the error says which, and its cause why."""
        log.critical("%s", error, exc_info=error.__cause__)
        self._note(str(error))

    def of_request(self, code: int, error: Exception) -> None:
        """A request failed; who asked is told, and the endpoint logs it."""
        self._note(f"request {code}: {type(error).__name__}: {error}")

    def _note(self, what: str) -> None:
        self.count += 1
        self.last = what[:SHOWN]
        self.heard(what)
