"""`saturnmq consume`: messages out to lines."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Generator
from typing import Annotated, Any

import typer
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    TIME_HELP,
    AsJson,
    ClientNamespace,
    Nameserver,
    WriteTraces,
    addresses,
    fail,
    time_ms,
)
from saturnmq.cli.topics import admin, named

POLL_MOST, POLL_S = 1_000, 60.0
POP_MOST, POP_S = 32, 15.0
INVISIBLE_S = 60.0  # of a message that is being printed
PLACES = ("first", "last")
START, MEMBERS = "Where a new group starts", "How the group shares messages"

Lists = Generator[list[Any], None, None]


def consume(
    topic: str,
    group: Annotated[str, typer.Option(help="Consumer group: it remembers how far it came.")],
    tag: Annotated[str, typer.Option(help="Tags to take: 'A || B', or * for all.")] = "*",
    sql: Annotated[
        str | None, typer.Option(help="Messages to take: \"price > 3 AND region = 'eu'\" (SQL92).")
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--count", min=0, help="End after that many; 0 = never.")
    ] = 0,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="End when no message came for so long."),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="With the oldest message, however large the topic is.",
            rich_help_panel=START,
        ),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="first|last|TIME",
            help=f"There; of a time, with the first message stored from then on: {TIME_HELP}.",
            rich_help_panel=START,
        ),
    ] = None,
    pop: Annotated[
        bool,
        typer.Option(
            "--pop",
            help="Receive and acknowledge each message, beside others that do so.",
            rich_help_panel=MEMBERS,
        ),
    ] = False,
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered",
            help="Each queue in its order, by one member at a time.",
            rich_help_panel=MEMBERS,
        ),
    ] = False,
    broadcasting: Annotated[
        bool,
        typer.Option(
            "--broadcasting",
            help="Every member gets every message, and keeps its place in a local file. A message "
            "that cannot be printed does not come again.",
            rich_help_panel=MEMBERS,
        ),
    ] = False,
    instance: Annotated[
        str | None,
        typer.Option(
            help="With --broadcasting: the name by which this member finds its place again.",
            rich_help_panel=MEMBERS,
        ),
    ] = None,
    trace: WriteTraces = False,
    namespace: ClientNamespace = "",
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Print the body of every message.

    With --json one object a line. Ends after -n messages, after --timeout without any, or with
    Ctrl-C, and the group goes on behind the last one printed. With fewer than -n messages the exit
    status is 1.

    A new group starts with the oldest message of a topic that is still in its broker's memory from
    the first message on, and at the end of a larger one.
    """
    from saturnmq import Sql

    if sql is not None and tag != "*":
        fail("give --tag or --sql; a condition may name the tag: TAGS = 'A'")
    if broadcasting and (pop or ordered):
        fail("--broadcasting goes with neither --pop nor --ordered: they share messages out")
    if instance is not None and not broadcasting:
        fail("--instance goes with --broadcasting: only then a member keeps its place for itself")
    expression = tag if sql is None else Sql(sql)
    with admin(nameserver, namespace) as client, named(topic, client):
        client.route(topic)
    options = {
        "nameservers": addresses(nameserver),
        "consume_from": _start(start, from_beginning),
        "trace": trace,
        "namespace": namespace,
    }
    wanted = Wanted(count, timeout)
    if ordered and not pop:
        _listen(group, topic, expression, wanted, as_json, {**options, "ordered": True})
    elif broadcasting:
        own = {"broadcasting": True} | ({} if instance is None else {"instance_name": instance})
        _listen(group, topic, expression, wanted, as_json, {**options, **own})
    else:
        lists = (
            _popped(group, topic, expression, wanted, {**options, "ordered": ordered})
            if pop
            else _polled(group, topic, expression, wanted, options)
        )
        with contextlib.closing(lists):
            for messages in lists:
                # An error here leaves all of these undone: they come again.
                for message in messages:
                    _print_message(message, as_json)
                sys.stdout.flush()
    if wanted.came < count:
        fail(f"{wanted.came:,} of {count:,} messages came, and no other in {timeout:g} s")


class Wanted:
    """How many messages are to come, and how long the next one may take."""

    def __init__(self, count: int, timeout_s: float | None) -> None:
        """Without end: 0 and None."""
        self._count = count or math.inf
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self.came = 0
        self.note(0)

    def note(self, count: int) -> None:
        """So many came; 0: the wait begins now."""
        self.came += count
        self._since = time.monotonic()

    @property
    def left_s(self) -> float:
        """Seconds that the next one may take."""
        return max(0.0, self._since + self._timeout_s - time.monotonic())

    def most(self, most: int) -> int:
        """How many to take next, `most` at most."""
        return int(min(most, self._count - self.came))

    @property
    def is_over(self) -> bool:
        return self.came >= self._count or self.left_s <= 0


def _start(start: str | None, from_beginning: bool) -> str | int:
    if from_beginning and start is not None:
        fail("give --from-beginning or --from")
    if start is None:
        return "first" if from_beginning else "last"
    return start if start in PLACES else time_ms(start, "--from")


def _polled(
    group: str, topic: str, expression: Any, wanted: Wanted, options: dict[str, Any]
) -> Lists:
    """Lists of messages, each consumed for the group when the next one is asked for."""
    from saturnmq import PullConsumer
    from saturnmq.protocol.topics import retry_topic

    consumer = PullConsumer(group, **options)
    consumer.subscribe(topic, expression)
    consumer.subscribe(retry_topic(group))  # messages that other members of the group sent back
    with consumer:
        wanted.note(0)
        while not wanted.is_over:
            wait_s = min(POLL_S, wanted.left_s)
            messages = consumer.poll(timeout_s=wait_s, max_messages=wanted.most(POLL_MOST))
            yield messages
            if messages:
                wanted.note(len(messages))


def _popped(
    group: str, topic: str, expression: Any, wanted: Wanted, options: dict[str, Any]
) -> Lists:
    """The same for a group whose members receive messages for a time."""
    from saturnmq import SimpleConsumer

    consumer = SimpleConsumer(group, **options)
    consumer.subscribe(topic, expression)
    with consumer:
        wanted.note(0)
        while not wanted.is_over:
            wait_s = min(POP_S, wanted.left_s)
            messages = consumer.receive(wanted.most(POP_MOST), INVISIBLE_S, wait_s)
            yield messages
            if messages:
                consumer.ack(messages)
                wanted.note(len(messages))


def _listen(
    group: str,
    topic: str,
    expression: Any,
    wanted: Wanted,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Print messages as a listener gets them, one after the other."""
    from saturnmq import ConsumeResult, PushConsumer

    over = threading.Event()
    problems: list[BaseException] = []

    def take(message: Any) -> ConsumeResult:
        try:
            _print_message(message, as_json)
            sys.stdout.flush()
        except BaseException as problem:
            problems.append(problem)
        else:
            wanted.note(1)
        if problems or wanted.is_over:
            consumer.suspend()
            over.set()
        return ConsumeResult.RETRY if problems else ConsumeResult.SUCCESS

    consumer = PushConsumer(group, listener_one=take, consume_threads=1, **options)
    consumer.subscribe(topic, expression)
    with consumer:
        wanted.note(0)
        while not over.wait(min(POLL_S, wanted.left_s)) and not wanted.is_over:
            pass
    if problems:
        raise problems[0]


def _print_message(message: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts(message)))
    else:
        sys.stdout.buffer.write(bytes(message.body) + b"\n")


def facts(message: Any) -> dict[str, Any]:
    """The facts of one received message, as JSON can hold them."""
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "id": message.message_id,
        "offset_id": message.offset_message_id,
        "tag": message.tag,
        "keys": message.keys if isinstance(message.keys, str) else list(message.keys),
        "stored": message.store_timestamp,
        "born": message.born_timestamp,
        "deliveries": message.reconsume_times,
        "properties": dict(message.properties),
        "body": bytes(message.body).decode("utf-8", "replace"),
    }
