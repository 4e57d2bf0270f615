"""`saturnmq produce` and `consume`: messages in from lines, out to lines."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    TIME_HELP,
    AsJson,
    Nameserver,
    addresses,
    emit,
    fail,
    progress_bar,
    time_ms,
)
from saturnmq.cli.topics import admin, named

WINDOW = 20_000  # sends under way at most: bounds memory, not speed
POLL_MOST = 1_000
POP_MOST = 32
INVISIBLE_S = 60.0  # of a message that is being printed


def produce(
    topic: str,
    file: Annotated[
        Path | None, typer.Argument(help="A file of lines; standard input if left out.")
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(
            help="Key of each message: a field of its JSON object, or column N of CSV, from 0."
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of every message.")] = None,
    ordered: Annotated[
        bool,
        typer.Option("--ordered", help="Lines of one key go to one queue, in their order."),
    ] = False,
    after: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Deliver each so much later.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Deliver each then: {TIME_HELP}.")
    ] = None,
    group: Annotated[str, typer.Option(help="Producer group.")] = "saturnmq-cli",
    acks: Annotated[
        bool,
        typer.Option(
            "--acks", help="Print what became of each line, one JSON object a line, as it comes."
        ),
    ] = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Send every line as one message.

    Exit status 0 only if all of them were acknowledged. Ctrl-C stops reading; what was read is
    still sent.
    """
    from saturnmq import Producer
    from saturnmq.protocol.topics import check_topic

    check_topic(topic)
    if after is not None and at is not None:
        fail("give --after or --at")
    if ordered and key_field is None:
        fail("--ordered wants --key-field, which says whose order is kept")
    form = LineForm(
        topic, key_field, tag, ordered, after, None if at is None else time_ms(at, "--at")
    )
    if file is not None and not file.is_file():
        fail(f"{file}: no such file")
    with contextlib.ExitStack() as stack:
        lines = Lines(stack.enter_context(open(file, "rb")) if file else sys.stdin.buffer)
        producer = stack.enter_context(Producer(nameservers=addresses(nameserver), group=group))
        bar = stack.enter_context(progress_bar())
        sending = stack.enter_context(LineSender(producer, form, acks))
        task = bar.add_task(f"producing to {topic}", total=None)
        for line in lines:
            sending.send(line.rstrip(b"\r\n"))
            if sending.sent % 1_000 == 0:
                bar.update(task, completed=sending.acked)
    sent, acked = sending.sent, sending.acked
    if as_json:
        emit({"topic": topic, "sent": sent, "acknowledged": acked, "failed": sent - acked})
    else:
        summary = f"{acked:,} of {sent:,} messages acknowledged"
        print(summary, file=sys.stderr if acks else sys.stdout)
    if acked != sent:
        fail(f"{sent - acked:,} not acknowledged; the last: {sending.problem}")
    raise typer.Exit(130 if lines.interrupted else 0)


@dataclass(frozen=True)
class LineForm:
    """How a line becomes a message."""

    topic: str
    key_field: str | None
    tag: str | None
    ordered: bool
    after_s: float | None
    at_ms: int | None

    def message(self, body: bytes) -> Any:
        """ValueError: the line has no key."""
        from saturnmq import Message, deliver_after, deliver_at

        key = _key(body, self.key_field) if self.key_field else None
        message = Message(self.topic, body, tag=self.tag, keys=() if key is None else key)
        if self.ordered:
            message.sharding_key = key
        if self.after_s is not None:
            deliver_after(message, self.after_s)
        elif self.at_ms is not None:
            deliver_at(message, self.at_ms / 1000)
        return message


class Lines:
    """The lines of a stream, until its end or Ctrl-C.

    Often both come at once, because Ctrl-C also ends the program that writes the lines. So it may
    interrupt the reading only, not the clean-up after it.
    """

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._stream = stream
        self._reading = False
        self.interrupted = False

    def __iter__(self) -> Iterator[bytes]:
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._reading = True
            for line in self._stream:
                self._reading = False
                yield line
                if self.interrupted:
                    break
                self._reading = True
        except KeyboardInterrupt:
            pass
        finally:
            self._reading = False
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, *_: object) -> None:
        self.interrupted = True
        if self._reading:
            raise KeyboardInterrupt


class LineSender:
    """Lines under way. A thread waits for their acknowledgements in the order of the lines, so
    that they are told while standard input is still open.
    """

    def __init__(self, producer: Any, form: LineForm, acks: bool) -> None:
        self._producer = producer
        self._form = form
        self._acks = acks
        self._room = threading.Semaphore(WINDOW)
        self._waiting: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._settler = threading.Thread(target=self._settle_all, daemon=True)
        self._silent = False
        self.sent = self.acked = 0
        self.problem = ""

    def __enter__(self) -> LineSender:
        self._settler.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for everything under way."""
        self._waiting.put(None)
        self._settler.join()
        if self._silent:
            raise BrokenPipeError

    def send(self, body: bytes) -> None:
        """Send one line; a line that cannot be sent counts as not acknowledged, and the next ones
        go on."""
        from saturnmq import SaturnError

        self._room.acquire()
        self.sent += 1
        handle: Any
        try:
            handle = self._producer.send_async(self._form.message(body))
        except (SaturnError, ValueError) as problem:
            handle = problem
        self._waiting.put((self.sent, handle))

    def _settle_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            line, handle = item
            outcome = self._settle(line, handle)
            self._room.release()
            if self._acks and not self._silent:
                try:
                    print(json.dumps(outcome), flush=self._waiting.empty())
                except BrokenPipeError:
                    self._silent = True

    def _settle(self, line: int, handle: Any) -> dict[str, Any]:
        from saturnmq import SaturnError, recall_handle

        try:
            if isinstance(handle, Exception):
                raise handle
            result = handle.result()
        except (SaturnError, ValueError) as problem:
            self.problem = f"line {line}: {problem}"
            return {"line": line, "status": type(problem).__name__, "error": str(problem)}
        if result.ok:
            self.acked += 1
        else:
            self.problem = f"line {line}: stored, but {result.status.value}"
        recall = recall_handle(result)
        return {
            "line": line,
            "status": result.status.value,
            "id": result.message_id,
            "broker": result.queue.broker_name,
            "queue": result.queue.queue_id,
            "offset": result.queue_offset,
            **({"recall": recall} if recall else {}),
        }


def _key(body: bytes, field: str) -> str:
    if field.isdigit():
        import csv

        row = next(csv.reader([body.decode("utf-8", "replace")]), [])
        if int(field) >= len(row):
            raise ValueError(f"--key-field {field}: there are {len(row)} columns in {body[:60]!r}")
        return row[int(field)]
    try:
        return str(json.loads(body)[field])
    except (ValueError, TypeError):
        raise ValueError(f"--key-field {field}: no JSON object: {body[:60]!r}") from None
    except KeyError:
        raise ValueError(f"--key-field {field}: not in {body[:60]!r}") from None


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
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="A new group starts with the oldest message, however large the topic is.",
        ),
    ] = False,
    pop: Annotated[
        bool,
        typer.Option(
            "--pop", help="Receive and acknowledge each message, beside others that do so."
        ),
    ] = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Print the body of every message.

    With --json one object a line. Ends after -n messages or with Ctrl-C, and the group goes on
    behind the last one printed.

    A new group starts with the oldest message of a topic that is still in its broker's memory from
    the first message on, and at the end of a larger one.
    """
    from saturnmq import Sql

    if sql is not None and tag != "*":
        fail("give --tag or --sql; a condition may name the tag: TAGS = 'A'")
    expression = tag if sql is None else Sql(sql)
    with admin(nameserver) as client, named(topic, client):
        client.route(topic)
    read = _popped if pop else _polled
    lists = read(group, addresses(nameserver), topic, expression, count, from_beginning)
    with contextlib.closing(lists):
        for messages in lists:
            # An error here leaves all of these undone: they come again.
            for message in messages:
                _print_message(message, as_json)
            sys.stdout.flush()


def _polled(
    group: str, nameservers: Any, topic: str, expression: Any, count: int, from_beginning: bool
) -> Generator[list[Any], None, None]:
    """Lists of messages, each consumed for the group when the next one is asked for."""
    from saturnmq import PullConsumer
    from saturnmq.protocol.topics import retry_topic

    consumer = PullConsumer(group, nameservers=nameservers, from_beginning=from_beginning)
    consumer.subscribe(topic, expression)
    consumer.subscribe(retry_topic(group))  # messages that other members of the group sent back
    taken = 0
    with consumer:
        while not count or taken < count:
            most = min(POLL_MOST, count - taken) if count else POLL_MOST
            messages = consumer.poll(timeout_s=60.0, max_messages=most)
            yield messages
            taken += len(messages)


def _popped(
    group: str, nameservers: Any, topic: str, expression: Any, count: int, from_beginning: bool
) -> Generator[list[Any], None, None]:
    """The same for a group whose members receive messages for a time."""
    from saturnmq import SimpleConsumer

    consumer = SimpleConsumer(group, nameservers=nameservers, from_beginning=from_beginning)
    consumer.subscribe(topic, expression)
    taken = 0
    with consumer:
        while not count or taken < count:
            most = min(POP_MOST, count - taken) if count else POP_MOST
            messages = consumer.receive(most, invisible_s=INVISIBLE_S)
            yield messages
            if messages:
                consumer.ack(messages)
            taken += len(messages)


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
