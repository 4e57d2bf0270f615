"""The log of one node: standard error, or a file that is both its standard streams and is rotated.

| setting | what |
|---|---|
| `--log-file`, `SATURNMQ_LOG_FILE` | the file; none: standard error |
| `--log-bytes`, `SATURNMQ_LOG_BYTES` | beyond it the file becomes `FILE.1`, that `FILE.2`, ... |
| `--log-files`, `SATURNMQ_LOG_FILES` | so many of those are kept |
| `SATURNMQ_LOG` | the level |

The streams lead to the file itself, so that a trace of Python's faulthandler, which knows a
descriptor only, is in it, too. Requests must not write more log than they are: of the lines that
one place in the code writes, `LINES_MAX` in `WINDOW_S` are written, `TRACES_MAX` of them with the
trace of an exception, and the rest is counted; a line has `LINE_MAX` characters.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from saturnmq.cli import bad_access
from saturnmq.runtime.errors import ConfigError

LEVEL_VARIABLE = "SATURNMQ_LOG"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LINES_MAX = 50
TRACES_MAX = 3
WINDOW_S = 10.0
LINE_MAX = 4096
PRIVATE = 0o600
_STREAMS = (1, 2)


class LogSettings(NamedTuple):
    """The settings above."""

    path: Path | None
    bytes_max: int
    files: int


class LogCallSite(NamedTuple):
    """The line of code that writes a line of the log."""

    logger: str
    number: int


class Repeats:
    """Counts what each place writes. Pure: it is told the time."""

    def __init__(self) -> None:
        self._windows: dict[LogCallSite, tuple[float, int]] = {}  # when each began, lines since

    def number(self, place: LogCallSite, now: float) -> int:
        """The number of one more line of `place`, from 1 on."""
        began, count = self._windows.get(place, (now, 0))
        self._windows[place] = began, count + 1
        return count + 1

    def over(self, now: float) -> Iterator[tuple[LogCallSite, int]]:
        """End the windows whose time is over; those of which lines were left out, and how many."""
        ended = [place for place, (began, _) in self._windows.items() if now - began >= WINDOW_S]
        for place in ended:
            _, count = self._windows.pop(place)
            if count > LINES_MAX:
                yield place, count - LINES_MAX


class NodeLog(logging.StreamHandler[TextIO]):
    """Writes to standard error, which is the file of its settings from now on."""

    def __init__(
        self, settings: LogSettings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self._settings = settings
        self._monotonic = monotonic
        self._repeats = Repeats()
        if settings.path is not None:
            _lead_to(_open(settings.path))

    def emit(self, record: logging.LogRecord) -> None:
        now = self._monotonic()
        self._tell_left_out(now)
        number = self._repeats.number(LogCallSite(record.name, record.lineno), now)
        if number > LINES_MAX:
            return
        if number > TRACES_MAX and record.exc_info:
            record = logging.makeLogRecord(record.__dict__ | {"exc_info": None, "exc_text": None})
        super().emit(record)
        self._rotate_if_due()

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if len(text) <= LINE_MAX:
            return text
        part = LINE_MAX // 2  # a trace tells the most at its end
        return f"{text[:part]} [{len(text) - 2 * part} characters are left out] {text[-part:]}"

    def close(self) -> None:
        self._tell_left_out(float("inf"))
        super().close()

    def _tell_left_out(self, now: float) -> None:
        for place, count in self._repeats.over(now):
            told = logging.makeLogRecord(
                {
                    "name": place.logger,
                    "levelno": logging.WARNING,
                    "levelname": "WARNING",
                    "msg": "%d more lines like those of line %d of this module were left out",
                    "args": (count, place.number),
                }
            )
            super().emit(told)

    def _rotate_if_due(self) -> None:
        path, bytes_max, _ = self._settings
        if path is None or os.fstat(_STREAMS[-1]).st_size < bytes_max:
            return
        # After any failure the streams lead to a file that exists: the next line tries again.
        with contextlib.suppress(OSError):
            self._rotate(path)

    def _rotate(self, path: Path) -> None:
        fresh = path.with_name(path.name + ".new")
        opened = _open(fresh)
        try:
            for number in range(self._settings.files, 0, -1):
                older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
                with contextlib.suppress(FileNotFoundError):
                    older.replace(path.with_name(f"{path.name}.{number}"))
            fresh.replace(path)
        except OSError:
            os.close(opened)
            raise
        _lead_to(opened)


def start(settings: LogSettings) -> None:
    """Log this process from now on; a signal that ends it for a fault of its memory leaves a trace
    of every thread there, and of SIGBUS the name of the file. ConfigError: no such level."""
    level = os.environ.get(LEVEL_VARIABLE, "").strip().upper() or "INFO"
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"{LEVEL_VARIABLE} is {level!r}; it must be one of {', '.join(LEVELS)}")
    logging.basicConfig(level=level, handlers=[NodeLog(settings)])
    faulthandler.enable(_STREAMS[-1])
    bad_access.name_files(_STREAMS[-1])


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE)


def _lead_to(opened: int) -> None:
    for stream in _STREAMS:
        os.dup2(opened, stream)
    os.close(opened)
