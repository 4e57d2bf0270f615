"""`saturnmq produce`, `consume` and `message find`: messages in from lines, out to lines."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    AsJson,
    Nameserver,
    addresses,
    emit,
    fail,
    progress_bar,
    table,
)
from saturnmq.cli.topics import admin

message_app = typer.Typer(help="Look at single messages.", no_args_is_help=True)
WINDOW = 20_000  # sends under way at most: bounds memory, not speed


def produce(
    topic: str,
    file: Annotated[
        Path | None, typer.Argument(help="A file of lines; standard input if left out.")
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(help="Key of each message: a field of its JSON object, or column N of CSV."),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of every message.")] = None,
    group: Annotated[str, typer.Option(help="Producer group.")] = "saturnmq-cli",
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Send every line as one message; exit status 0 only if all were acknowledged."""
    from saturnmq import Message, Producer

    if file is not None and not file.is_file():
        fail(f"{file}: no such file")
    sent = acked = 0
    problems: deque[str] = deque(maxlen=1)
    waiting: deque[Any] = deque()

    def settle(handle: Any) -> None:
        nonlocal acked
        try:
            result = handle.result()
        except Exception as problem:  # every one is counted and the last is printed
            problems.append(str(problem) or type(problem).__name__)
        else:
            if result.ok:
                acked += 1
            else:
                problems.append(f"stored, but {result.status.value}")

    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(open(file, "rb")) if file else sys.stdin.buffer
        producer = stack.enter_context(Producer(nameservers=addresses(nameserver), group=group))
        bar = stack.enter_context(progress_bar())
        task = bar.add_task(f"producing to {topic}", total=None)
        for line in lines:
            body = line.rstrip(b"\r\n")
            keys = _key(body, key_field) if key_field else ()
            waiting.append(producer.send_async(Message(topic, body, tag=tag, keys=keys)))
            sent += 1
            if len(waiting) >= WINDOW:
                settle(waiting.popleft())
                bar.update(task, completed=acked)
        for handle in waiting:
            settle(handle)
        bar.update(task, completed=acked)
    if as_json:
        emit({"topic": topic, "sent": sent, "acknowledged": acked, "failed": sent - acked})
    else:
        print(f"{acked:,} of {sent:,} messages acknowledged")
    if acked != sent:
        fail(f"{sent - acked} not acknowledged; the last: {problems[-1]}")


def _key(body: bytes, field: str) -> str:
    if field.isdigit():
        import csv

        row = next(csv.reader([body.decode("utf-8", "replace")]), [])
        if int(field) >= len(row):
            fail(f"--key-field {field}: the line has {len(row)} columns: {body[:60]!r}")
        return row[int(field)]
    try:
        return str(json.loads(body)[field])
    except (ValueError, TypeError):
        fail(f"--key-field {field}: the line is no JSON object: {body[:60]!r}")
    except KeyError:
        fail(f"--key-field {field}: not in {body[:60]!r}")


def consume(
    topic: str,
    group: Annotated[str, typer.Option(help="Consumer group: it remembers how far it came.")],
    tag: Annotated[str, typer.Option(help="Tags to take: 'A || B', or * for all.")] = "*",
    count: Annotated[
        int, typer.Option("-n", "--count", min=0, help="End after that many; 0 = never.")
    ] = 0,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Where a new group starts: oldest message.")
    ] = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Print the body of every message, or with --json one object a line."""
    from saturnmq import ConsumeResult, PushConsumer

    enough = threading.Event()
    lock = threading.Lock()
    taken = 0

    def listener(messages: Any) -> ConsumeResult:
        nonlocal taken
        with lock:
            if count and taken >= count:
                # More than was asked for: it stays first in its queue, for the next one who asks.
                # That is why -n consumes in order: the other kind would send it back to the broker.
                return ConsumeResult.SUSPEND
            for message in messages:
                if as_json:
                    print(json.dumps(facts(message)))
                else:
                    sys.stdout.buffer.write(bytes(message.body) + b"\n")
            sys.stdout.flush()
            taken += len(messages)
            if count and taken >= count:
                enough.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        group,
        nameservers=addresses(nameserver),
        listener=listener,
        ordered=bool(count),
        consume_from="first" if from_beginning else "last",
        consume_message_batch_max_size=1 if count else 32,
    )
    consumer.subscribe(topic, tag)
    with consumer, contextlib.suppress(KeyboardInterrupt):
        enough.wait()


def facts(message: Any) -> dict[str, Any]:
    """One received message as JSON can say it."""
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


@message_app.command("find")
def find(
    topic: Annotated[str | None, typer.Option(help="Topic; needed with --key.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="Message id, either kind.")] = None,
    key: Annotated[str | None, typer.Option(help="A key of the message.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most that many.")] = 32,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Find stored messages by id or key; exit status 1 when there is none."""
    if (message_id is None) == (key is None):
        fail("message find wants one of --id ID and --key KEY")
    if key is not None and topic is None:
        fail("--key needs --topic: keys are indexed for each topic")
    with admin(nameserver) as client:
        if key is not None:
            found = list(client.find_by_key(topic, key, limit))
        else:
            one = client.find_message(message_id, topic)
            found = [] if one is None else [one]
    if as_json:
        emit({"messages": [facts(message) for message in found]})
    else:
        table(
            "",
            ["broker", "queue", "offset", "id", "tag", "keys", "body"],
            [
                (
                    row["broker"],
                    row["queue"],
                    row["offset"],
                    row["id"],
                    row["tag"],
                    row["keys"] if isinstance(row["keys"], str) else " ".join(row["keys"]),
                    row["body"][:60],
                )
                for row in map(facts, found)
            ],
        )
    if not found:
        raise typer.Exit(1)
