"""The log of a node: rotated, private, no longer than what it tells of, and with the trace of a
process that its memory ends."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from saturnmq.cli.node_log import LINES_MAX, TRACES_MAX, WINDOW_S, LogSettings, NodeLog

PATIENCE_S = 20.0
# Logs from as many places as lines: nothing is left out. Then a signal that a bad access raises.
WRITER = """
import logging, os, sys
from pathlib import Path
from saturnmq.cli import node_log
node_log.start(node_log.LogSettings(Path(sys.argv[1]), 10_000, 2))
for number in range(400):
    logging.getLogger(f"saturnmq.{number}").info("line %d " + "x" * 60, number)
print("printed", flush=True)
os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGSEGV])
def test_a_log_is_rotated_and_ends_with_the_trace_of_a_bad_access(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "log.txt"
    path.write_text("of a run before\n" * 1000)  # never rotated until now
    command = [sys.executable, "-c", WRITER, str(path), str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-number, "", "")
    files = [path, path.with_name("log.txt.1"), path.with_name("log.txt.2")]
    assert sorted(tmp_path.iterdir()) == files
    texts = [file.read_text() for file in reversed(files)]
    assert [10_000 <= len(text) < 10_200 for text in texts[:2]] == [True, True]
    assert len(texts[2]) < 15_000
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    lines = [int(line) for line in re.findall(r" line (\d+) x", "".join(texts))]
    assert lines == list(range(lines[0], 400))
    behind = texts[2].partition("printed\n")[2]
    assert "Fatal Python error: " in behind
    assert 'File "<string>", line 9' in behind


# A store's file that is cut short while a process has it mapped, and read there.
READER = """
import os, sys
from pathlib import Path
from saturnmq.cli import node_log
from saturnmq.store.disk import NativeDisk
node_log.start(node_log.LogSettings(Path(sys.argv[1]), 10_000_000, 2))
disk, path = NativeDisk(), sys.argv[2]
disk.create_mapped(path, 100_000, 4096).close()
file = disk.open_mapped(path, 100_000)
os.truncate(path, 8192)
bytes(file.view[8190:8300])
"""


def test_a_bad_access_names_the_file_and_the_byte(tmp_path: Path) -> None:
    log, path = tmp_path / "log.txt", tmp_path / "a segment"
    command = [sys.executable, "-c", READER, str(log), str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGBUS, "", "")
    told, _, trace = log.read_text().partition("\n")
    found = re.fullmatch(r"SIGBUS at byte (\d+) of (.+): it was cut short, or .*", told)
    assert found is not None, told
    assert 8192 <= int(found[1]) < 8300
    assert found[2] == str(path)
    assert trace.startswith("Fatal Python error: Bus error")
    assert 'File "<string>", line 11' in trace


def test_a_log_that_keeps_no_older_files_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    script = WRITER.replace("10_000, 2", "10_000, 0")
    subprocess.run([sys.executable, "-c", script, str(path), "9"], check=False)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_size < 10_200
    assert "line 399" in path.read_text()


class Written:
    """A log in memory whose clock stands until it is told to go on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.text = io.StringIO()
        self.handler = NodeLog(LogSettings(None, 1, 0), lambda: self.now)
        self.handler.setStream(self.text)
        self.logger = logging.Logger("saturnmq.test")
        self.logger.addHandler(self.handler)

    def flood(self, count: int, *args: object) -> None:
        for _ in range(count):
            self.logger.warning("the same %s", *args or ("line",))

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


def test_of_many_lines_from_one_place_the_first_are_written_and_the_others_counted() -> None:
    written = Written()
    written.flood(LINES_MAX + 7)
    assert len(written.lines) == LINES_MAX
    written.logger.warning("another place")
    assert written.lines[-1].endswith("another place")
    written.now = WINDOW_S
    written.flood(1)
    counted, line = written.lines[-2:]
    assert re.search(r"WARNING saturnmq.test 7 more lines like those of line \d+", counted)
    assert line.endswith("the same line")
    written.flood(LINES_MAX)
    written.handler.close()
    assert "saturnmq.test 1 more lines" in written.lines[-1]
    written.now = 2 * WINDOW_S
    written.flood(1)
    assert written.lines[-1].endswith("the same line")


def test_a_line_has_an_end_and_traces_are_few() -> None:
    written = Written()
    written.flood(1, "x" * 1_000_000)
    assert len(written.text.getvalue()) < 5_000
    assert "characters are left out" in written.lines[0]
    for _ in range(LINES_MAX):
        try:
            raise ValueError("of a request")
        except ValueError:
            written.logger.exception("it failed")
    assert written.text.getvalue().count("Traceback") == TRACES_MAX
    assert written.text.getvalue().count("it failed") == LINES_MAX


@contextmanager
def nameserver(home: Path, **environ: str) -> Iterator[tuple[subprocess.Popen[bytes], str, int]]:
    """A node with its log in `home`, and where it listens."""
    ready, log = home / "ready.json", home / "log.txt"
    command = [sys.executable, "-m", "saturnmq", "nameserver", "--port", "0"]
    command += ["--ready-file", str(ready), "--log-file", str(log)]
    node = subprocess.Popen(command, env={**os.environ, **environ})
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not ready.exists():
            assert node.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        host, _, port = json.loads(ready.read_text())["address"].rpartition(":")
        yield node, host, int(port)
    finally:
        node.kill()
        node.wait()


def test_requests_do_not_write_more_log_than_they_are(tmp_path: Path) -> None:
    wrong = bytes.fromhex("7fffffff") + bytes(60)  # a frame of 2 GiB is announced
    with nameserver(tmp_path) as (node, host, port):
        for _ in range(300):
            with socket.create_connection((host, port), PATIENCE_S) as link:
                link.sendall(wrong)
                assert link.recv(1) == b""
        node.terminate()
        assert node.wait(PATIENCE_S) == 0
    text = (tmp_path / "log.txt").read_text()
    assert text.count("malformed frame from") == LINES_MAX
    assert "250 more lines" in text
    assert "authenticated" not in text, "only this machine reaches it"
    assert len(text) < 300 * len(wrong)


@pytest.mark.parametrize("level", ["verbose", "10"])
def test_a_level_that_there_is_not_is_named_before_the_node_starts(
    tmp_path: Path, level: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "saturnmq", "nameserver", f"--log-file={tmp_path / 'log.txt'}"],
        env=os.environ | {"SATURNMQ_LOG": level},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(
        f"saturnmq: SATURNMQ_LOG is {level.upper()!r}; it must be one of"
    )
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("level", ["", " "])
def test_a_level_that_is_left_blank_is_the_usual_one(tmp_path: Path, level: str) -> None:
    code = (
        "import logging; from saturnmq.cli import node_log; "
        "node_log.start(node_log.LogSettings(None, 1000, 1)); print(logging.getLogger().level)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SATURNMQ_LOG": level},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == (f"{logging.INFO}\n", "")
