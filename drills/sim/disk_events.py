"""Events of a simulated disk: its power goes, an operation fails as planned, a lock is held."""

from __future__ import annotations

from dataclasses import dataclass


class PowerLoss(BaseException):
    """Raised at the operation where the power went; not an Exception, so that no code under test
    handles it.
    """


@dataclass
class FaultPlan:
    """`operation` on paths matching `pattern` fails with `error` the next `times` times (None: for
    ever).
    """

    operation: str
    pattern: str
    error: int
    times: int | None = 1
    hits: int = 0


class SimLock:
    """The store directory's lock: held by one running process, released by its death."""

    def __init__(self, locks: dict[str, bool], path: str) -> None:
        self._locks = locks
        self._path = path
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._locks.pop(self._path, None)
