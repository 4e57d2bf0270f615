"""`saturnmq produce`: messages from lines."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
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
    emit,
    fail,
    pairs,
    progress_bar,
    time_ms,
)
from saturnmq.protocol.checked import INT32_MAX

WINDOW = 20_000  # sends under way at most: bounds memory, not speed
ENDS = ("commit", "rollback", "unknown")
LATER, SENDING = "When it is delivered", "How it is sent"

Properties = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="NAME=VALUE", help="A property of each. Repeat for more."),
]


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
    properties: Properties = None,
    after: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Deliver each so much later.", rich_help_panel=LATER
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help=f"Deliver each then: {TIME_HELP}.", rich_help_panel=LATER
        ),
    ] = None,
    delay_level: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=INT32_MAX,
            help="Deliver each after the wait of this level of the broker (messageDelayLevel); a "
            "level above its last one is that one.",
            rich_help_panel=LATER,
        ),
    ] = None,
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered",
            help="Lines of one key go to one queue, in their order.",
            rich_help_panel=SENDING,
        ),
    ] = False,
    one_way: Annotated[
        bool,
        typer.Option(
            "--one-way",
            help="Ask for no acknowledgement: some may be lost.",
            rich_help_panel=SENDING,
        ),
    ] = False,
    transaction: Annotated[
        str | None,
        typer.Option(
            metavar="commit|rollback|unknown",
            help="Send each in a transaction that ends so; of an unknown end the broker asks the "
            "group.",
            rich_help_panel=SENDING,
        ),
    ] = None,
    group: Annotated[
        str, typer.Option(help="Producer group.", rich_help_panel=SENDING)
    ] = "saturnmq-cli",
    acks: Annotated[
        bool,
        typer.Option(
            "--acks", help="Print what became of each line, one JSON object a line, as it comes."
        ),
    ] = False,
    compression: Annotated[
        str | None,
        typer.Option(
            metavar="zstd",
            help="Compress batches as a whole, for a topic with queue.type=BatchCQ.",
            rich_help_panel=SENDING,
        ),
    ] = None,
    trace: WriteTraces = False,
    namespace: ClientNamespace = "",
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Send every line as one message.

    Exit status 0 only if all of them were acknowledged. Ctrl-C stops reading; what was read is
    still sent.
    """
    from saturnmq.protocol.topics import check_topic

    check_topic(topic)
    waits = [way for way in (after, at, delay_level) if way is not None]
    if len(waits) > 1:
        fail("give --after, --at or --delay-level")
    if ordered and key_field is None:
        fail("--ordered wants --key-field, which says whose order is kept")
    if transaction not in (None, *ENDS):
        fail(f"--transaction {transaction!r}: it ends by {', '.join(ENDS)}")
    if transaction is not None and (waits or one_way):
        fail("a message in a transaction is neither delivered later nor sent one-way")
    if compression is not None and transaction is not None:
        fail("a topic of batches takes no messages of transactions: leave --compression out")
    if one_way and acks:
        fail("--one-way asks for no acknowledgement, so --acks has nothing to print")
    form = LineForm(
        topic,
        key_field,
        tag,
        ordered,
        after,
        None if at is None else time_ms(at, "--at"),
        delay_level or 0,
        pairs(properties, "--property"),
    )
    options: dict[str, Any] = {"trace": trace, "namespace": namespace}
    if compression is not None:
        options["compression"] = compression
    producer, send = _sender(addresses(nameserver), group, transaction, one_way, options)
    with contextlib.ExitStack() as stack:
        lines = Lines(stack.enter_context(open(file, "rb")) if file else sys.stdin.buffer)
        stack.enter_context(producer)
        bar = stack.enter_context(progress_bar())
        sending = stack.enter_context(LineSender(send, form, acks))
        task = bar.add_task(f"producing to {topic}", total=None)
        for line in lines:
            sending.send(line.rstrip(b"\r\n"))
            if sending.sent % 1_000 == 0:
                bar.update(task, completed=sending.acked)
    sent, acked = sending.sent, sending.acked
    done = "sent" if one_way else "acknowledged"
    if as_json:
        counts = {"sent": sent} if one_way else {"sent": sent, "acknowledged": acked}
        emit({"topic": topic, **counts, "failed": sent - acked})
    else:
        summary = f"{acked:,} of {sent:,} messages {done}"
        print(summary, file=sys.stderr if acks else sys.stdout)
    if acked != sent:
        fail(f"{sent - acked:,} not {done}; the last: {sending.problem}")
    raise typer.Exit(130 if lines.interrupted else 0)


def _sender(
    nameservers: list[str],
    group: str,
    transaction: str | None,
    one_way: bool,
    options: Mapping[str, Any],
) -> tuple[Any, Callable[[Any], Any]]:
    """A producer, and the way in which it sends a message: it gives a handle, a Transaction that
    has ended, or nothing."""
    from saturnmq import Producer, TransactionProducer, TransactionState

    if transaction is None:
        producer = Producer(group, nameservers, **options)
        return producer, producer.send_oneway if one_way else producer.send_async
    state = TransactionState[transaction.upper()]

    def check(message: Any) -> TransactionState:
        return TransactionState.UNKNOWN  # another member of the group has to say it

    dealer = TransactionProducer(group, nameservers, check=check, **options)
    return dealer, partial(dealer.send_in_transaction, local=lambda message, arg: state)


@dataclass(frozen=True)
class LineForm:
    """How a line becomes a message."""

    topic: str
    key_field: str | None = None
    tag: str | None = None
    ordered: bool = False
    after_s: float | None = None
    at_ms: int | None = None
    delay_level: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from saturnmq.protocol.properties import RESERVED

        if taken := sorted(RESERVED & self.properties.keys()):
            fail(f"--property {taken[0]}: the system gives that name a meaning; take another")
        if self.tag is not None and "||" in self.tag:
            fail(f"--tag {self.tag!r}: '||' separates the tags that a consumer asks for")

    def message(self, body: bytes) -> Any:
        """ValueError: the line has no key."""
        from saturnmq import Message, deliver_after, deliver_at

        key = _key(body, self.key_field) if self.key_field else None
        message = Message(
            self.topic,
            body,
            tag=self.tag,
            keys=() if key is None else key,
            properties=self.properties,
            delay_level=self.delay_level,
        )
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

    def __init__(self, send: Callable[[Any], Any], form: LineForm, acks: bool) -> None:
        """`send` as `_sender` gives it."""
        self._send = send
        self._form = form
        self._acks = acks
        self._room = threading.Semaphore(WINDOW)
        self._waiting: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._settler = threading.Thread(target=self._settle_all, daemon=True)
        self._unprinted: OSError | None = None
        self.sent = self.acked = 0
        self.problem = ""

    def __enter__(self) -> LineSender:
        self._settler.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for everything under way."""
        self._waiting.put(None)
        self._settler.join()
        if self._unprinted is not None:
            raise self._unprinted

    def send(self, body: bytes) -> None:
        """Send one line; a line that cannot be sent counts as not acknowledged, and the next ones
        go on."""
        from saturnmq import SaturnError

        self._room.acquire()
        self.sent += 1
        handle: Any
        try:
            handle = self._send(self._form.message(body))
        except (SaturnError, ValueError) as problem:
            handle = problem
        self._waiting.put((self.sent, handle))

    def _settle_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            line, handle = item
            outcome = self._settle(line, handle)
            self._room.release()
            if self._acks and self._unprinted is None:
                try:
                    print(json.dumps(outcome), flush=self._waiting.empty())
                except OSError as problem:  # the reader left, or a disk is full
                    self._unprinted = problem

    def _settle(self, line: int, handle: Any) -> dict[str, Any]:
        from saturnmq import SaturnError

        try:
            if isinstance(handle, Exception):
                raise handle
            stored, facts = _outcome(handle)
        except (SaturnError, ValueError) as problem:
            self.problem = f"line {line}: {problem}"
            return {"line": line, "status": type(problem).__name__, "error": str(problem)}
        if stored:
            self.acked += 1
        else:
            self.problem = f"line {line}: stored, but {facts['status']}"
        return {"line": line, **facts}


def _outcome(handle: Any) -> tuple[bool, dict[str, Any]]:
    """Whether a message is stored as safely as its broker's mode says, and its place; waits for
    that. A one-way message has no outcome."""
    from saturnmq import Transaction, recall_handle

    if handle is None:
        return True, {}
    is_transaction = isinstance(handle, Transaction)
    result = handle.result if is_transaction else handle.result()
    facts: dict[str, Any] = {"status": result.status.value, "id": result.message_id}
    if is_transaction:  # the place of its half is of no use to anybody
        facts |= {"transaction": handle.state.name.lower(), "confirmed": handle.confirmed}
    else:
        facts |= {
            "broker": result.queue.broker_name,
            "queue": result.queue.queue_id,
            "offset": result.queue_offset,
        }
        recall = recall_handle(result)
        facts |= {"recall": recall} if recall else {}
    return result.ok, facts


def _key(body: bytes, field: str) -> str:
    if field.isdigit():
        import csv

        try:
            row = next(csv.reader([body.decode("utf-8", "replace")]), [])
        except csv.Error as problem:
            raise ValueError(f"--key-field {field}: {problem}: {body[:60]!r}") from None
        if int(field) >= len(row):
            raise ValueError(f"--key-field {field}: there are {len(row)} columns in {body[:60]!r}")
        return row[int(field)]
    try:
        return str(json.loads(body)[field])
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"--key-field {field}: no JSON object: {body[:60]!r}") from None
    except KeyError:
        raise ValueError(f"--key-field {field}: not in {body[:60]!r}") from None
