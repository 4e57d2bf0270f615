"""RocketMQ's own mqadmin, many commands in one JVM: AdminCommands.java, which also plays a consumer
and a producer."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from interop_clients import SOON
from interop_nodes import java_talk

COMMAND_S = 60


@dataclass
class Printed:
    """The output of a command, and whether it ended in time."""

    ended: bool
    text: str


class Mqadmin:
    """The running JVM."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, *words: str) -> str:
        """The answer to a line of AdminCommands.java."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("\t".join(words), file=self._process.stdin, flush=True)
        said = next(each for each in self._process.stdout if each.startswith("> "))
        answer = said.removeprefix("> ").rstrip("\n")
        assert not answer.startswith("failed "), answer
        return answer

    def run(self, *words: str, within_s: int = COMMAND_S) -> Printed:
        """Run a command of mqadmin. One that does not end in time is interrupted."""
        state, _, told = self.tell("run", str(within_s), *words).partition(" ")
        lines = base64.b64decode(told).decode().splitlines()
        text = "\n".join(line for line in lines if "|-" not in line)  # of logback
        return Printed(state == "done", text)


@contextmanager
def mqadmin_jvm(jars: Path, home: Path, nameserver: str = "") -> Iterator[Mqadmin]:
    """`nameserver`: for the commands that are not told one. Some of them write files to `home`."""
    options = [
        *SOON,
        "-Djava.security.manager=allow",
        f"-Djava.io.tmpdir={home}",
        f"-Drocketmq.home.dir={home}",
    ]
    with java_talk(
        jars,
        "AdminCommands.java",
        nameserver,
        log=home / "mqadmin.log",
        options=options,
        cwd=home,
    ) as process:
        yield Mqadmin(process)
