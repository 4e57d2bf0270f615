"""Faults of a broker's disk while the broker does not run, or without its knowledge: the stores of
`Processes` are directories that can be changed from outside.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from saturnmq.drills.sim.history import make_body

NEWEST_BYTES = 4 << 20  # of a log, in which bits rot


def empty(directory: Path) -> None:
    """Without what was in it: a disk that is new, or not mounted."""
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def lose_commitlog(store: Path) -> None:
    empty(store / "commitlog")


def copy(store: Path, to: Path) -> None:
    """Copy a store as a backup does: file by file, whether the broker runs or not."""
    shutil.copytree(store, to)


def restore(backup: Path) -> Callable[[Path], None]:
    def act(store: Path) -> None:
        empty(store)
        shutil.copytree(backup, store, dirs_exist_ok=True)

    return act


def _segments(store: Path) -> list[Path]:
    return sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())


def delete_segment(chance: random.Random) -> Callable[[Path], None]:
    """Delete one of the full segments, which the running broker has open and keeps open."""

    def act(store: Path) -> None:
        written = [path for path in _segments(store) if path.read_bytes().strip(b"\0")]
        chance.choice(written[:-1] or written).unlink()

    return act


def flip_bit(chance: random.Random, values: Sequence[str], padding: int) -> Callable[[Path], None]:
    """Flip a bit in the body of one of these messages, near the end of the log."""

    def act(store: Path) -> None:
        left = NEWEST_BYTES
        for path in reversed(_segments(store)):
            content = bytearray(path.read_bytes())
            end = len(content.rstrip(b"\0"))
            for value in chance.sample(values, len(values)):
                at = content.find(make_body(value, padding), max(0, end - left), end)
                if at >= 0:
                    content[at + len(value)] ^= 1 << chance.randrange(8)
                    path.write_bytes(content)
                    return
            left -= end
            if left <= 0:
                break
        raise AssertionError(f"{store} has none of {len(values)} messages in its newest 4 MiB")

    return act


def cut(position: int) -> Callable[[Path], None]:
    """Cut the log at this position, as if the rest had never reached the disk."""

    def act(store: Path) -> None:
        for path in _segments(store):
            first, size = int(path.name), path.stat().st_size
            begin = max(0, position - first)
            if begin < size:
                with open(path, "r+b") as file:
                    file.seek(begin)
                    file.write(bytes(size - begin))

    return act
