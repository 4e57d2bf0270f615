"""Programs in Java over RocketMQ's client, told by lines: each line is answered by one that begins
with "> ", because RocketMQ's logging prints lines of its own. An answer has a deadline."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ANSWER_S = 90.0


class JavaProgram:
    """A running program."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def tell(self, *words: object) -> str:
        """The answer to a line. A program that does not answer in time is ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(ANSWER_S, self._process.kill)
        timer.start()
        try:
            print(*words, file=self._process.stdin, flush=True)
            for line in self._process.stdout:
                if line.startswith("> "):
                    return line.removeprefix("> ").strip()
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        raise AssertionError(f"no answer to {words}\n{tail}")


@contextmanager
def java_program(
    jars: Path, program: str, *arguments: str, log: Path, options: Sequence[str] = ()
) -> Iterator[JavaProgram]:
    """Runs a Java program of this directory, in one file, until the block ends."""
    if shutil.which("javac") is None:
        pytest.skip("no `javac` on the path to run RocketMQ's client with")
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", f"-Duser.home={log.parent}", *options]
    command += ["-cp", f"{jars}/*", str(Path(__file__).with_name(program)), *arguments]
    with open(log, "w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            yield JavaProgram(process, log)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
