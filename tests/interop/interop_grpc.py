"""RocketMQ's clients of version 5 for Java, Go, Node, Rust and C++, as programs told by lines.

Each program has the same lines (a body is one word; `-` is nothing):

    producer TOPIC...                      starts its producer
    send TOPIC BODY [tag= key= group= at=MS n=]
                                           ID HANDLE; `n` is a property of the user
    recall TOPIC HANDLE
    transaction TOPIC BODY end=commit|rollback|open
                                           asked about a body it commits what begins with `commit`
    simple GROUP TOPIC tag|sql EXPRESSION  starts a simple consumer; `_` is a space
    receive GROUP INVISIBLE_S              one call; its messages
    ack GROUP BODY
    hide GROUP BODY SECONDS                changes the invisible time
    push GROUP TOPIC tag|sql EXPRESSION [accelerated]
                                           starts a push consumer, which fails on `bad...`; Java's
                                           may work on the groups of a queue at once
    seen GROUP COUNT SECONDS               what the listener of a push consumer got, as soon as it
                                           is so many messages, or at the end of the time
    leave GROUP                            closes a consumer
    batch TOPIC BODY...                    several messages in one call: Rust's client alone can

A message is BODY,ATTEMPT,ID,TAG,KEYS,GROUP,N. `ack` and `hide` take BODY@ATTEMPT for the message as
it came at that attempt. A line is answered by `ok ...` or `failed ...`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import interop_clients
import interop_nodes
from interop_cache import node_package
from interop_clients import ClientProgram, client_program, java_program

JAVA, NODE = "5.2.0", "1.0.8"  # Go's is in grpcgo/go.mod
WAIT_S = 40.0


class Failed(AssertionError):
    """The client's call failed."""


class Got(NamedTuple):
    """A message as a client has it."""

    body: str
    attempt: int
    message_id: str
    tag: str
    keys: str
    group: str
    n: str


def messages(text: str) -> list[Got]:
    found = []
    for word in text.split():
        body, attempt, *rest = word.split(",")
        found.append(Got(body, int(attempt), *rest))
    return found


class GrpcClient:
    """A client of one language."""

    def __init__(self, program: ClientProgram) -> None:
        self._program = program

    def tell(self, *words: object) -> str:
        """What the program says behind its `ok`."""
        answer = self._program.tell(*words)
        if not answer.startswith("ok"):
            raise Failed(f"{words}: {answer}")
        return answer.removeprefix("ok").strip()

    def send(self, topic: str, body: str, **fields: object) -> tuple[str, str]:
        """The message's id, and its recall handle."""
        words = [f"{name}={value}" for name, value in fields.items()]
        message_id, _, handle = self.tell("send", topic, body, *words).partition(" ")
        return message_id, handle

    def receive(self, group: str, invisible_s: int = 15) -> list[Got]:
        return messages(self.tell("receive", group, invisible_s))

    def take(self, group: str, count: int, seconds: float = WAIT_S) -> list[Got]:
        """So many messages, or those that came in time; each is acknowledged."""
        found: list[Got] = []
        deadline = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < deadline:
            for each in self.receive(group):
                self.tell("ack", group, each.body)
                found.append(each)
        return found

    def seen(self, group: str, count: int) -> list[Got]:
        """What the listener of a push consumer got: so many messages, if they came in time."""
        return messages(self.tell("seen", group, count, int(WAIT_S)))

    @contextmanager
    def consumer(self, kind: str, group: str, topic: str, *expression: str) -> Iterator[None]:
        self.tell(kind, group, topic, *(expression or ("tag", "*")))
        try:
            yield
        finally:
            self.tell("leave", group)


@contextmanager
def java_client(
    endpoint: str, home: Path, ca: Path | None = None, namespace: str = ""
) -> Iterator[GrpcClient]:
    """`ca`: use TLS; the certificate that clients which check certificates trust. None: plain
    text. The same for the other languages."""
    jars = interop_nodes.grpc_jars(JAVA)
    arguments = (endpoint, security(ca), namespace)
    with java_program(jars, "GrpcClient.java", *arguments, log=home / "java.log") as program:
        yield GrpcClient(program)


@contextmanager
def go_client(
    endpoint: str, home: Path, ca: Path | None = None, namespace: str = ""
) -> Iterator[GrpcClient]:
    program = interop_clients.go_client("grpcgo")
    command = [program, endpoint, security(ca), namespace, str(home)]
    with client_program(command, home / "go.log") as running:
        yield GrpcClient(running)


@contextmanager
def node_client(
    endpoint: str, home: Path, ca: Path | None = None, namespace: str = ""
) -> Iterator[GrpcClient]:
    package = node_package("rocketmq-client-nodejs", NODE)
    source = Path(__file__).with_name("GrpcClient.js")
    command = ["node", str(source), endpoint, security(ca), namespace, str(package)]
    trusted = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(ca)} if ca else {}
    with client_program(command, home / "node.log", trusted) as program:
        yield GrpcClient(program)


@contextmanager
def rust_client(endpoint: str, home: Path) -> Iterator[GrpcClient]:
    with client_program(
        [interop_clients.rust_client(), endpoint, "plain"], home / "rust.log"
    ) as made:
        yield GrpcClient(made)


@contextmanager
def cpp_client(
    endpoint: str, home: Path, ca: Path | None = None, namespace: str = ""
) -> Iterator[GrpcClient]:
    command = [interop_clients.cpp_client(), endpoint, security(ca), namespace]
    with client_program(command, home / "cpp.log", {"HOME": str(home)}) as program:
        yield GrpcClient(program)


def security(ca: Path | None) -> str:
    return "tls" if ca else "plain"


CLIENTS = {"java": java_client, "go": go_client, "node": node_client}
# C++'s crashes where a broker cannot be reached while it receives (docs/interop.md).
WITH_CPP = {**CLIENTS, "cpp": cpp_client}


def until(check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, "it did not come in time"
