"""Follows a page of the documents from top to bottom, as its reader would.

A page has one directory, one shell environment and ports of its own. Each kind of block has its
treatment:

| block | |
|---|---|
| `sh` | run by bash; it must end with status 0 |
| `python` | run by Python, or with `title="FILE"` written to that file |
| `toml`, `properties` with `title="FILE"` | written to that file |
| `text` | what the block before it prints; see `same` for what may differ |

A comment in the line above a block says more of it:

    <!-- not run: why -->
    <!-- status 1 -->           it ends with that status
    <!-- another terminal -->   it goes on until the page ends
    <!-- repeated -->           it is run again until it prints what the block after it tells

REWRITE_PAGES=1 writes what the blocks print into the pages: read the difference.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from saturnmq.cli.free_ports import free_block

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60
RUN = ("sh", "python")
FILES = ("toml", "properties", "python")
# The ports that pages write: of nameservers and local clusters, and of single brokers.
PORTS = (range(9876, 9936), range(10909, 10949))
# Stores of RocketMQ's own sizes take gigabytes each; and how full the disk is says nothing here.
SMALL = {
    "SATURNMQ_COMMITLOG_SEGMENT_BYTES": "8388608",
    "SATURNMQ_INDEX_SLOTS": "1000",
    "SATURNMQ_INDEX_ITEMS": "4000",
    "SATURNMQ_DISK_ENOUGH_BYTES": "1",
}
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?"
    r'^```(?P<kind>\w*)(?: title="(?P<title>[^"\n]*)")?\n(?P<text>.*?)^```$',
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, title and text, the mark above it, and where its text is."""

    kind: str
    title: str
    text: str
    mark: str
    place: tuple[int, int]
    line: int

    @property
    def why_not_run(self) -> str:
        found = re.fullmatch(r"not run: (\S.*)", self.mark)
        return found[1] if found else ""

    @property
    def status(self) -> int:
        return int(self.mark.removeprefix("status ")) if self.mark.startswith("status ") else 0

    @property
    def wrong(self) -> str:
        """Why the block is neither run nor excused; empty if all is well."""
        known = self.why_not_run or re.fullmatch(
            r"status [1-9]|another terminal|repeated", self.mark
        )
        if self.mark and not known:
            return f"line {self.line}: nobody knows the mark {self.mark!r}"
        if self.why_not_run or self.kind in (*RUN, "text") or (self.kind in FILES and self.title):
            return ""
        return f"line {self.line}: a block of kind {self.kind!r} is not run and does not say why"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        kind, title, mark = found["kind"], found["title"] or "", found["mark"] or ""
        line = text.count("\n", 0, found.start("text"))
        yield Block(kind, title, found["text"], mark, found.span("text"), line)


def unseen(page: Path) -> list[int]:
    """The lines of `page` that open or close a block which `blocks` does not find, as it finds none
    that is indented."""
    rest = _BLOCK.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())
    return [n for n, line in enumerate(rest.splitlines(), 1) if line.lstrip(" >").startswith("```")]


def same(told: str, seen: str) -> bool:
    """Whether a page tells what was seen. `...` stands for anything. Ids, times, parts of a disk
    and numbers of three digits and more may differ, and how a table is drawn."""
    parts = [re.escape(part.strip()) for part in _blurred(told).split("...")]
    return re.fullmatch(r"\s*.*".join(parts), _blurred(seen)) is not None


def _blurred(text: str) -> str:
    text = re.sub(r"[\u2500-\u257f]+", " ", text)
    text = re.sub(r"\b[0-9A-F]{32}\b|\d{4}-\d\d-\d\d[ T][\d:.]+|\b\d+(\.\d+)? (ms|s|%)", "#", text)
    text = re.sub(r"\b\d{1,3}(,\d{3})+\b|\d{3,}", "#", text)
    return " ".join(text.split())


class Reader:
    """Follows pages below `directory`; `with` ends what they started."""

    def __init__(self, directory: Path) -> None:
        self._home = directory
        self._environment = {
            "HOME": str(directory),
            "PATH": f"{self._programs()}:{os.environ['PATH']}",
            "COLUMNS": "160",
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
            **SMALL,
        }
        self._firsts = [free_block("127.0.0.1", len(ports)) for ports in PORTS]
        self._running: list[subprocess.Popen[str]] = []

    def _programs(self) -> Path:
        """A directory with `saturnmq` and `python` as they are in this process."""
        programs = self._home / ".programs"
        programs.mkdir()
        python = shlex.quote(sys.executable)
        for name, command in (("saturnmq", f"{python} -m saturnmq"), ("python", python)):
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (programs / name).chmod(0o755)
        return programs

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._running:
            process.wait(TIMEOUT_S)
        for cluster in self._home.rglob("cluster.json"):
            self._run(["saturnmq", "cluster", "down", "--data", str(cluster.parent)])

    def follow(self, page: Path) -> None:
        """Do what the page says; AssertionError where something else comes of it."""
        new: list[tuple[tuple[int, int], str]] = []
        try:
            self._follow(page, new)
        finally:
            self._write(page, new)

    def _follow(self, page: Path, new: list[tuple[tuple[int, int], str]]) -> None:
        seen = ""
        of_page = list(blocks(page))
        for block, after in zip(of_page, [*of_page[1:], None], strict=True):
            where = f"{page.relative_to(ROOT)}, line {block.line}"
            if block.why_not_run:
                continue
            if block.kind == "text":
                if os.environ.get("REWRITE_PAGES") and not same(block.text, seen):
                    new.append((block.place, self._as_told(seen)))
                else:
                    assert same(block.text, seen), f"{where} tells:\n{block.text}\nseen:\n{seen}"
            elif block.title:
                (self._home / block.title).write_text(self._here(block.text))
            else:
                status, seen = self._do(block)
                deadline = time.monotonic() + TIMEOUT_S
                while block.mark == "repeated" and time.monotonic() < deadline:
                    told = after.text if after is not None and after.kind == "text" else ""
                    if not told or same(told, seen):
                        break
                    status, seen = self._do(block)
                assert status == block.status, f"{where} ends with {status}:\n{block.text}{seen}"

    def _do(self, block: Block) -> tuple[int, str]:
        text = self._here(block.text)
        if block.kind == "python":
            return self._run(["python", "-c", text])
        if block.mark == "another terminal":
            log = (self._home / f"terminal-{len(self._running)}.log").open("w")
            command = ["bash", "-ec", text]
            self._running.append(
                subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                    cwd=self._home,
                    env=self._environment,
                )
            )
            return 0, ""
        kept = self._home / ".environment"
        status, seen = self._run(["bash", "-eo", "pipefail", "-c", f"{text}\nenv -0 > {kept}"])
        if status == 0:
            pairs = kept.read_text().rstrip("\0").split("\0")
            self._environment = dict(pair.split("=", 1) for pair in pairs)
        return status, seen

    def _run(self, command: list[str]) -> tuple[int, str]:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            cwd=self._home,
            env=self._environment,
        )
        try:
            seen, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what bash has started, too
            process.communicate()
            raise
        assert "Traceback" not in seen, seen
        return process.returncode, seen.replace(str(self._home), "/home/you")

    def _here(self, text: str) -> str:
        """The text with ports that are free here."""
        places = {
            number: first + number - ports.start
            for ports, first in zip(PORTS, self._firsts, strict=True)
            for number in ports
        }
        return _numbers_replaced(text, places)

    def _as_told(self, text: str) -> str:
        places = {
            first + number - ports.start: number
            for ports, first in zip(PORTS, self._firsts, strict=True)
            for number in ports
        }
        in_cells = re.sub(
            r"\b(\d{4,5})( +│)",
            lambda found: _numbers_replaced(found[1], places).ljust(len(found[1])) + found[2],
            text,
        )
        return _numbers_replaced(in_cells, places).rstrip("\n") + "\n"

    @staticmethod
    def _write(page: Path, new: list[tuple[tuple[int, int], str]]) -> None:
        text = page.read_text()
        for (start, end), told in reversed(new):
            text = text[:start] + told + text[end:]
        if new:
            page.write_text(text)


def _numbers_replaced(text: str, places: Mapping[int, int]) -> str:
    def other(found: re.Match[str]) -> str:
        return str(places.get(int(found[0]), found[0]))

    return re.sub(r"\b\d{4,5}\b", other, text)
