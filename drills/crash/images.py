"""One crash image: recovered (perhaps crashing again on the way), checked, recovered again.

The outcomes of a crash: `kill` leaves everything that was written, in the page cache still; the
others are power losses. `nothing` keeps only what was synced, `pages` all pages but no name,
`names` all names but no page, `chance` decides for each page and name.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import cast

from saturnmq.drills.crash.checks import Checker, Expected
from saturnmq.drills.crash.report import CrashReport
from saturnmq.drills.sim.disk import PowerCutOdds, PowerLoss, SimDisk
from saturnmq.runtime.door import Runtime
from saturnmq.store.message_store import MessageStore, StoreConfig

KILL = "kill"
OUTCOMES = (KILL, "nothing", "pages", "names", "chance")
_FIXED = {
    "nothing": PowerCutOdds(0.0, 0.0, 0.0),
    "pages": PowerCutOdds(1.0, 0.0, 0.0),
    "names": PowerCutOdds(0.0, 0.0, 1.0),
}
# Nothing changes there: the boundary before them is the one before the next change.
READS = frozenset(
    (
        "list",
        "exists",
        "read",
        "read_file",
        "open_segment",
        "open_readonly",
        "free_space",
        "lock",
        "advise",
    )
)
NESTED_MAX = 3


class ImageClock:
    """The part of a runtime that the store uses."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms


def open_store(config: StoreConfig, disk: SimDisk, clock: ImageClock) -> MessageStore:
    return MessageStore.open(config, disk, cast(Runtime, clock))


def crash(disk: SimDisk, outcome: str, rng: random.Random, report: CrashReport) -> SimDisk:
    """The content of `disk` that the next process finds after this crash."""
    if outcome == KILL:
        report.faults["process killed"] += 1
        return disk.kill_image(rng)
    fate = _FIXED.get(outcome)
    if fate is None:
        kept = rng.random()
        fate = PowerCutOdds(kept, (1 - kept) * rng.random(), rng.random())
    image = disk.crash_image(rng, fate)
    report.faults["power lost"] += 1
    report.faults["pages dropped"] += image.fates.dropped
    report.faults["pages torn"] += image.fates.torn
    report.faults["pages kept"] += image.fates.kept
    report.faults["changes of names dropped"] += image.fates.names_dropped
    return image


class Recoverer:
    """Opens images and says what is wrong with them."""

    def __init__(
        self,
        config: StoreConfig,
        clock: ImageClock,
        checker: Checker,
        report: CrashReport,
        nested: float,
    ) -> None:
        self._config = config
        self._clock = clock
        self._checker = checker
        self._report = report
        self._nested = nested

    def recover(self, image: SimDisk, expected: Expected, rng: random.Random) -> list[str]:
        """Recover `image` twice; what is wrong."""
        self._report.images += 1
        for _ in range(NESTED_MAX):
            if rng.random() >= self._nested:
                break
            image, outcome = self._crash_inside(image, rng)
            if outcome != KILL:
                expected = replace(expected, required=expected.flushed)
        store, wrong = self._open(image, expected)
        if store is None:
            return wrong
        end = store.watermarks.appended
        if not wrong:
            way = rng.choice(("close", KILL, "nothing", "chance"))
            if way == "close":
                store.close()
                again = image
            else:
                again = crash(image, way, rng, self._report)
            exact = replace(expected, required=end, end=end)
            store, wrong = self._open(again, exact)
            wrong = [f"after {way}: {text}" for text in wrong]
        return wrong

    def _open(self, image: SimDisk, expected: Expected) -> tuple[MessageStore | None, list[str]]:
        self._report.recoveries += 1
        try:
            store = open_store(self._config, image, self._clock)
            store.validate()
        except Exception as error:
            return None, [f"I10 the store does not open: {type(error).__name__}: {error}"]
        return store, self._checker.store(image, store, expected)

    def _crash_inside(self, image: SimDisk, rng: random.Random) -> tuple[SimDisk, str]:
        """Begin to recover and crash at some boundary of it, or behind it: (image, outcome)."""
        left = rng.choice((rng.randint(1, 8), rng.randint(1, 60)))
        outcome = rng.choice((KILL, "nothing", "chance"))
        found: list[SimDisk] = []

        def step(operation: str, path: str) -> None:
            nonlocal left
            if found:
                raise PowerLoss(operation)
            if operation not in READS:
                left -= 1
                if left == 0:
                    found.append(crash(image, outcome, rng, self._report))
                    raise PowerLoss(operation)

        image.step = step
        try:
            open_store(self._config, image, self._clock)
        except (PowerLoss, Exception):
            if not found:
                raise
        image.step = None
        if not found:  # recovered, or refused: as it is after the death of that process
            return crash(image, outcome, rng, self._report), outcome
        self._report.faults["crash while recovering"] += 1
        return found[0], outcome
