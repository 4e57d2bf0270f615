"""Programs over RocketMQ's clients, in Java, Go, Node, Rust and C++, told by lines. Each line is
answered by one that begins with "> ": the clients print lines of their own. An answer has a
deadline."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from interop_cache import cpp_program, go_program, rust_program
from interop_nodes import java_command
from saturnmq.aio import Admin
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command

ANSWER_S = 150.0
SCENARIOS_AT_ONCE = 6
# A consumer of 5.4 first rebalances 1 s after its start, when its second heartbeat may be on its
# way. If so it does not tell the broker its new subscription, whose pulls the broker then refuses
# (25, as RocketMQ's does) until the next heartbeat, 30 s later; the same after each rebalance that
# changes its queues, so the programs also send heartbeats every second. And a member may learn of
# its retry topic between two rebalances, 20 s apart.
SOON = (
    "-Drocketmq.client.rebalance.minInterval=200",
    "-Drocketmq.client.rebalance.waitInterval=2000",
)


class ClientProgram:
    """A running program."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def tell(self, *words: object) -> str:
        """The answer to a line. A program that does not answer in time is ended."""
        self.begin(*words)
        return self.answer(f"to {words}")

    def begin(self, *words: object) -> None:
        """Tell a line; the answer may come later."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is missed when it shall answer
            print(*words, file=self._process.stdin, flush=True)

    def answer(self, what: str) -> str:
        """The next answer. A program that does not answer in time is ended."""
        assert self._process.stdout is not None
        timer = threading.Timer(ANSWER_S, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith("> "):
                    return line.removeprefix("> ").strip()
        finally:
            timer.cancel()
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        raise AssertionError(f"no answer {what}\n{tail}")


class Scenarios:
    """Scenarios.java, a few scenarios at once."""

    def __init__(self, program: ClientProgram) -> None:
        self._program = program
        self._answers: dict[str, str] = {}

    def begin(self, scenario: str, topic: str) -> None:
        self._program.begin(scenario, topic)

    def outcome(self, topic: str) -> str:
        """Of the scenario on this topic, when it is over: "ok ..", or "failed .."."""
        while topic not in self._answers:
            of_topic, _, outcome = self._program.answer(f"of the scenario on {topic}").partition(
                " "
            )
            self._answers[of_topic] = outcome
        return self._answers[topic]


@contextmanager
def scenarios(
    jars: Path, nameserver: str, home: Path, options: Sequence[str] = ()
) -> Iterator[Scenarios]:
    arguments = (nameserver, str(SCENARIOS_AT_ONCE))
    with java_program(
        jars, "Scenarios.java", *arguments, log=home / "java.log", options=options
    ) as program:
        yield Scenarios(program)


@contextmanager
def java_program(
    jars: Path, program: str, *arguments: str, log: Path, options: Sequence[str] = ()
) -> Iterator[ClientProgram]:
    """Runs a Java program of this directory, in one file, until the block ends."""
    home = [f"-Duser.home={log.parent}", f"-Drocketmq.client.logRoot={log.parent}"]
    command = java_command(jars, program, *arguments, options=[*home, *SOON, *options])
    with client_program(command, log) as running:
        yield running


def let_group_pop(nameserver: str, topic: str, group: str) -> None:
    """Tell every broker that push consumers of this group pop."""
    body = {"consumerGroup": group, "mode": "POP", "popShareQueueNum": 0, "topic": topic}

    async def tell() -> None:
        async with Admin(nameserver) as admin:
            for broker in await admin.cluster():
                command = Command.request(
                    RequestCode.SET_MESSAGE_REQUEST_MODE, {}, fastjson.dumps(body)
                )
                answer = await admin.core.invoke(broker.address, command, 10.0)
                assert answer.code == 0, answer.remark

    asyncio.run(tell())


def go_client(directory: str = "goclient") -> str:
    """The built program of this directory; skips where it cannot be built."""
    return str(go_program(Path(__file__).parent / directory))


def rust_client(directory: str = "grpcrust") -> str:
    """The built program of this directory; skips where it cannot be built."""
    return str(rust_program(Path(__file__).parent / directory))


def cpp_client(name: str = "GrpcClient.cpp") -> str:
    """The built program of this file; skips where it cannot be built."""
    return str(cpp_program(Path(__file__).with_name(name)))


@contextmanager
def client_program(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[ClientProgram]:
    """Runs a program that is told by lines, until the block ends. `environment`: variables beside
    those of this process."""
    with open(log, "w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            yield ClientProgram(process, log)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
