"""`saturnmq message`: stored messages by id, key, place or time, their traces, recalls, and their
consumption once more."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Annotated, Any

import typer
from saturnmq.cli.consuming import facts
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    TIME_HELP,
    AsJson,
    Nameserver,
    addresses,
    emit,
    fail,
    local_time,
    table,
    time_ms,
)
from saturnmq.cli.topics import admin, chosen_queues, named

message_app = typer.Typer(help="Look at single messages, and recall them.", no_args_is_help=True)

OFFSET_ID_DIGITS = (32, 56)  # of a broker with an IPv4 address, and with an IPv6 one


@message_app.command("find")
def find(
    place: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="The topic, as --topic.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Needed for all but an offset id.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="Message id, either kind.")] = None,
    key: Annotated[str | None, typer.Option(help="A key of the message.")] = None,
    offset: Annotated[
        str | None, typer.Option(help="Offset in a queue (of every queue, or see --queue), or id.")
    ] = None,
    queue: Annotated[
        int | None, typer.Option(min=0, help="With --offset: only this queue.")
    ] = None,
    broker: Annotated[str | None, typer.Option(help="With --offset: only this broker.")] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help=f"Stored from then on: {TIME_HELP}."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Stored until then, inclusive.")
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="At most that many.")] = 32,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Find stored messages by id, by key, by offset or by time.

    Exit status 1 when there is none. A key gives the newest messages, a time alone the first ones;
    --from and --to narrow both. The id of a message is found with its topic, or without when it is
    an offset id, which names the broker.
    """
    from saturnmq.client.admin.message_finding import RESULTS

    if None not in (place, topic) and place != topic:
        fail(f"TOPIC {place!r} and --topic {topic!r}: give one of them")
    topic = place if topic is None else topic
    timed = (begin, end) != (None, None)
    ways = [message_id, key, offset]
    if sum(way is not None for way in ways) > 1 or not (timed or any(ways)):
        fail("message find wants one of --id ID, --key KEY, --offset OFFSET and --from/--to TIME")
    if timed and key is None and any(ways):
        fail("--from and --to go with --key or stand alone")
    if (queue, broker) != (None, None) and offset is None:
        fail("--queue and --broker go with --offset")
    if offset is not None and len(offset) in OFFSET_ID_DIGITS:
        message_id, offset = offset, None
    if topic is None and message_id is None:
        fail("a topic is needed: only an offset id says where its message is")
    first = 0 if begin is None else time_ms(begin, "--from")
    last = None if end is None else time_ms(end, "--to")
    if last is not None and last < first:
        fail(f"--from {begin} is later than --to {end}")
    with admin(nameserver) as client, named(topic or "", client):
        if message_id is not None:
            found = [client.find_message(message_id, topic)]
        elif key is not None:
            found = client.find_by_key(topic, key, limit, begin_ms=first, end_ms=last)
        elif offset is not None:
            found = _at_offset(client, topic, offset, queue, broker)
        else:
            found = client.find_by_time(topic, first, last, limit)
    if not found and not as_json:
        what = f" with key {key!r}" if key is not None else f" at offset {offset}" if offset else ""
        fail(f"no message{what} in topic {topic}{' in that time' if timed else ''}")
    _show(found, as_json)
    if not found:
        raise typer.Exit(1)
    # A broker gives no more messages of a key than that, whatever it is asked for.
    if key is not None and len(found) >= min(limit, RESULTS):
        hint = f"the newest {len(found):,}; older ones: --to {found[0].store_timestamp}"
        print(hint, file=sys.stderr)
    elif key is None and timed and len(found) >= limit:
        hint = f"the first {len(found):,}; later ones: --from {found[-1].store_timestamp}"
        print(hint, file=sys.stderr)


@message_app.command("recall")
def recall(
    handle: Annotated[
        str, typer.Argument(metavar="HANDLE", help="The `recall` of `produce --acks`.")
    ],
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """End the wait of a timed message: it is never delivered.

    Exit status 1 when it was delivered or recalled already.
    """
    from saturnmq import Producer

    with Producer(nameservers=addresses(nameserver), group="saturnmq-cli") as producer:
        message_id = producer.recall(handle)
    if as_json:
        emit({"recalled": message_id})
    else:
        print(f"recalled {message_id}")


@message_app.command("consume-directly")
def consume_directly(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Message id, either kind.")],
    group: Annotated[str, typer.Option(help="The group whose consumer gets the message.")],
    topic: Annotated[str | None, typer.Option(help="Needed for all but an offset id.")] = None,
    client_id: Annotated[
        str | None, typer.Option("--client", help="The member. Default: any that is connected.")
    ] = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Have a connected consumer consume a stored message now, and show its verdict.

    The offsets of its group stay as they are. Exit status 1 when the listener fails.
    """
    with admin(nameserver) as client, named(topic or "", client):
        message = client.find_message(message_id, topic)
        if client_id is None:
            members = [m.client_id for at in client.describe_group(group) for m in at.members]
            if not members:
                fail(f"no member of group {group} is connected")
            client_id = members[0]
        outcome = client.consume_message_directly(message, group, client_id)
    if as_json:
        emit({"client": client_id, **outcome._asdict()})
    else:
        remark = f": {outcome.remark}" if outcome.remark else ""
        print(f"{client_id}: {outcome.result} after {outcome.milliseconds} ms{remark}")
    if not outcome.success:
        raise typer.Exit(1)


@message_app.command("trace")
def trace(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The unique id of a message.")],
    topic: Annotated[
        str | None, typer.Option(help="The topic of traces, if it is not RMQ_SYS_TRACE_TOPIC.")
    ] = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show what clients recorded of a message: its send, its consumption, the end of its
    transaction, its recall.

    Only clients with traces turned on record anything, Java clients or ours (`trace=True`). Exit
    status 1 when there is no record.
    """
    from saturnmq.protocol.topics import TRACE_TOPIC
    from saturnmq.runtime.errors import RouteNotFound, TopicNotExist

    records: list[Any] = []
    with admin(nameserver) as client:
        if topic is not None:
            with named(topic, client):
                records = client.message_trace(message_id, topic)
        else:
            topic = TRACE_TOPIC
            with contextlib.suppress(RouteNotFound, TopicNotExist):  # the first traces make it
                records = client.message_trace(message_id)
    if as_json:
        emit({"id": message_id, "records": [_trace_facts(record) for record in records]})
    elif records:
        columns = ["record", "group", "client", "time", "ms", "outcome", "more"]
        table("", columns, [_trace_row(record) for record in records])
    else:
        fail(
            f"no record of message {message_id} in topic {topic}: only clients with traces turned "
            "on record anything (trace=True, or `saturnmq produce --trace` and `consume --trace`)"
        )
    if not records:
        raise typer.Exit(1)


def _trace_facts(record: Any) -> dict[str, Any]:
    facts = dataclasses.asdict(record)
    return {**facts, "kind": record.kind.value}


def _trace_row(record: Any) -> list[Any]:
    kind = record.kind.value
    more = {
        "Pub": f"{record.topic} at {record.store_host}",
        "SubBefore": f"retries {record.retries}",
        "EndTransaction": f"{record.transaction_state} at {record.store_host}",
        "Recall": record.topic,
    }.get(kind, "")
    outcome = "" if kind == "SubBefore" else "success" if record.success else "failed"
    took = record.cost_ms if kind in ("Pub", "SubAfter") else ""
    return [
        *(kind, record.group, record.client_host, local_time(record.timestamp_ms), took),
        *(outcome, more),
    ]


def _at_offset(
    client: Any, topic: str | None, text: str, queue: int | None, broker: str | None
) -> list[Any]:
    """The message at that offset of each queue that has one."""
    if not (text.isascii() and text.isdigit()):
        fail(f"--offset {text!r} is neither a number nor an offset id of 32 or 56 digits")
    offset = int(text)
    every = client.describe_topic(topic)
    meant = chosen_queues(str(topic), [row.queue for row in every], queue, broker)
    found = [
        client.find_by_offset(row.queue, offset)
        for row in every
        if row.queue in meant and row.min_offset <= offset < row.max_offset
    ]
    return [message for message in found if message is not None]


def _show(found: list[Any], as_json: bool) -> None:
    rows = [facts(message) for message in found]
    if as_json:
        emit({"messages": rows})
        return
    columns = ["broker", "queue", "offset", "id", "tag", "keys", "body"]
    shown = [
        {
            **row,
            "keys": row["keys"] if isinstance(row["keys"], str) else " ".join(row["keys"]),
            "body": row["body"][:60],
        }
        for row in rows
    ]
    if shown:
        table("", columns, [[row[name] for name in columns] for row in shown])
