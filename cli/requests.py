"""`saturnmq request` and `reply`: questions and answers of a shell."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli.messages import LineForm, Lines, Properties
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    AsJson,
    ClientNamespace,
    Nameserver,
    addresses,
    fail,
    pairs,
)
from saturnmq.cli.topics import admin, named

GROUP = "saturnmq-cli"
TIMEOUT_MOST_S = 86_400.0


def request(
    topic: str,
    file: Annotated[
        Path | None, typer.Argument(help="A file of lines; standard input if left out.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of every request.")] = None,
    properties: Properties = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.01, max=TIMEOUT_MOST_S, metavar="SECONDS", help="The wait for each reply."
        ),
    ] = 3.0,
    namespace: ClientNamespace = "",
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Send every line as a request, wait for its reply, and print that.

    With --json one object a line. Exit status 1 when a request got no reply.
    """
    from saturnmq import Producer, SaturnError
    from saturnmq.protocol.topics import check_topic

    check_topic(topic)
    form = LineForm(topic, tag=tag, properties=pairs(properties, "--property"))
    asked = answered = 0
    problem = ""
    with contextlib.ExitStack() as stack:
        lines = Lines(stack.enter_context(open(file, "rb")) if file else sys.stdin.buffer)
        producer = stack.enter_context(Producer(GROUP, addresses(nameserver), namespace=namespace))
        for line in lines:
            asked += 1
            began = time.monotonic()
            try:
                reply = producer.request(form.message(line.rstrip(b"\r\n")), timeout=timeout)
            except SaturnError as error:
                problem = f"line {asked}: {error}"
                if as_json:
                    status = type(error).__name__
                    print(json.dumps({"line": asked, "status": status, "error": str(error)}))
                else:
                    print(f"saturnmq: {problem}", file=sys.stderr)
            else:
                answered += 1
                _print_reply(asked, bytes(reply.body), time.monotonic() - began, as_json)
            sys.stdout.flush()
    if answered != asked:
        fail(f"{asked - answered:,} of {asked:,} requests got no reply; the last: {problem}")
    raise typer.Exit(130 if lines.interrupted else 0)


def _print_reply(line: int, body: bytes, seconds: float, as_json: bool) -> None:
    if as_json:
        text = body.decode("utf-8", "replace")
        ms = round(seconds * 1000, 3)
        print(json.dumps({"line": line, "status": "OK", "ms": ms, "reply": text}))
    else:
        sys.stdout.buffer.write(body + b"\n")


def reply(
    topic: str,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="The program that answers.")
    ],
    group: Annotated[str, typer.Option(help="Consumer group: its members share the requests.")],
    tag: Annotated[str, typer.Option(help="Requests to take: 'A || B', or * for all.")] = "*",
    count: Annotated[
        int, typer.Option("-n", "--count", min=0, help="End after that many; 0 = never.")
    ] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Programs that run at once, at most.")] = 4,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.01, max=TIMEOUT_MOST_S, metavar="SECONDS", help="The time that a program has."
        ),
    ] = 3.0,
    namespace: ClientNamespace = "",
    nameserver: Nameserver = DEFAULT_NAMESERVER,
) -> None:
    """Answer requests: COMMAND runs for each one, gets it as a line, and prints the reply.

    A request whose program fails, or prints nothing, gets no reply and does not come again. Write
    `--` before a program that has options of its own.
    """
    from saturnmq import Producer, PushConsumer

    replies = Replies(command, timeout, count)
    with admin(nameserver, namespace) as client, named(topic, client):
        client.route(topic)
    options: dict[str, Any] = {"nameservers": addresses(nameserver), "namespace": namespace}
    with Producer(GROUP, **options) as producer:
        consumer = PushConsumer(
            group,
            listener_one=lambda message: replies.answer(producer, message),
            consume_threads=workers,
            **options,
        )
        consumer.subscribe(topic, tag)
        with consumer:
            replies.over.wait()
            consumer.suspend()
    print(f"{replies.given:,} replies, {replies.failed:,} requests without one", file=sys.stderr)


class Replies:
    """The programs that answer requests; any thread."""

    def __init__(self, command: list[str], timeout_s: float, count: int) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._count = count
        self._lock = threading.Lock()
        self.given = self.failed = 0
        self.over = threading.Event()

    def answer(self, producer: Any, message: Any) -> None:
        """Run the program for one request, and send what it prints."""
        from saturnmq import SaturnError

        problem = ""
        try:
            done = subprocess.run(
                self._command,
                input=bytes(message.body) + b"\n",
                stdout=subprocess.PIPE,
                timeout=self._timeout_s,
                check=False,
            )
            if done.returncode:
                problem = f"{self._command[0]} ends with status {done.returncode}"
            else:
                producer.reply(message, done.stdout.removesuffix(b"\n"))
        except (OSError, subprocess.TimeoutExpired, SaturnError) as error:
            problem = str(error)
        if problem:
            print(f"saturnmq: no reply to {message.message_id}: {problem}", file=sys.stderr)
        with self._lock:
            self.failed += bool(problem)
            self.given += not problem
            if self._count and self.given + self.failed >= self._count:
                self.over.set()
