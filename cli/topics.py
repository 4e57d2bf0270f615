"""`saturnmq topic`: which topics there are on the brokers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from saturnmq.cli.each_server import EachServer
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    AsJson,
    DryRun,
    Nameserver,
    Yes,
    addresses,
    emit,
    fail,
    may_destroy,
    pairs,
    shared_secret,
    table,
    tell_names,
)
from saturnmq.protocol.message_types import MESSAGE_TYPES
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.protocol.topics import check_topic
from saturnmq.runtime.errors import nearest

topic_app = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True)

Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", help="NAME=VALUE, an attribute. Repeat for more."),
]
Without = Annotated[list[str] | None, typer.Option(help="The name of an attribute to remove.")]


def admin(nameserver: str, namespace: str = "") -> Any:
    servers = addresses(nameserver)
    from saturnmq import Admin

    return Admin(nameservers=servers, namespace=namespace, **shared_secret())


def attribute_changes(
    given: Sequence[str] | None, without: Sequence[str] | None
) -> dict[str, str | None]:
    """The new values of attributes by --attribute and --without; None removes one."""
    values = pairs(given, "--attribute")
    for name in without or ():
        if name in values:
            fail(f"--attribute {name}={values[name]} and --without {name}: give one of them")
    return {**values, **dict.fromkeys(without or ())}


@contextlib.contextmanager
def named(topic: str, client: Any) -> Iterator[None]:
    """An unknown topic is answered with the nearest one that exists."""
    from saturnmq.runtime.errors import RouteNotFound, TopicNotExist

    try:
        yield
    except (RouteNotFound, TopicNotExist) as problem:
        known = client.list_topics(internal=False)
        fail(f"{problem}{'' if topic in known else nearest(topic, known)}")


def tell_missed(client: Any) -> list[str]:
    """Name the brokers that a change on every master has missed."""
    from saturnmq.client.cluster_view import groups_in

    missed = list(groups_in(client.cluster()).led_by_none)
    if missed:
        print(
            f"saturnmq: {', '.join(missed)}: no master now, so nothing was made there; repeat this "
            "when it has one",
            file=sys.stderr,
        )
    return missed


def kv_entries(namespace: str, key: str, nameserver: str) -> EachServer[str | None]:
    """The value that each nameserver has for a key; None: it has none."""

    def ask(address: str) -> str | None:
        with admin(address) as client:
            value: str | None = client.kv_config(namespace).get(key)
            return value

    return EachServer("nameserver", addresses(nameserver), ask)


def _order_left(topic: str, nameserver: str) -> str:
    """The order configuration that a nameserver has for a topic; empty if none has."""
    from saturnmq.protocol.route import ORDER_TOPIC_CONFIG

    answers = kv_entries(ORDER_TOPIC_CONFIG, topic, nameserver).found
    return next(filter(None, answers.values()), "")


def chosen_queues(
    topic: str, every: Sequence[Any], queue: int | None, broker: str | None
) -> list[Any]:
    """Those of the queues of a topic that a command names; there is at least one."""
    brokers = sorted({each.broker_name for each in every})
    if broker is not None and broker not in brokers:
        fail(f"topic {topic} is not on a broker {broker!r}{nearest(broker, brokers)}")
    here = [each for each in every if broker in (None, each.broker_name)]
    found = [each for each in here if queue in (None, each.queue_id)]
    if not found:
        numbers = [each.queue_id for each in here]
        there = f" {queue}: they are 0 to {max(numbers)}" if numbers else ""
        fail(f"topic {topic} has no queue{there}")
    return found


@topic_app.command("create")
def create(
    topic: str,
    queues: Annotated[int, typer.Option(min=1, max=QUEUES_MAX, help="Queues on each master.")] = 8,
    write_queues: Annotated[
        int | None,
        typer.Option(min=1, max=QUEUES_MAX, help="Queues to write to, if another number."),
    ] = None,
    read_queues: Annotated[
        int | None,
        typer.Option(min=1, max=QUEUES_MAX, help="Queues to read from, if another number."),
    ] = None,
    kind: Annotated[str | None, typer.Option("--type", help=" | ".join(MESSAGE_TYPES))] = None,
    attribute: Attributes = None,
    order: Annotated[
        bool, typer.Option("--order", help="Tell nameservers the queues of this ordered topic.")
    ] = False,
    yes: Yes = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Create a topic on every master, or change its number of queues.

    Asks before it takes queues away in which messages are left.
    """
    from saturnmq.runtime.errors import RouteNotFound, TopicNotExist

    check_topic(topic)
    if kind is not None and kind.upper() not in MESSAGE_TYPES:
        fail(f"--type {kind!r}: it is one of {', '.join(MESSAGE_TYPES)}")
    reads = queues if read_queues is None else read_queues
    with admin(nameserver) as client:
        with contextlib.suppress(RouteNotFound, TopicNotExist):  # a new one
            _ask_about(topic, reads, client.undrained(topic, reads), yes)
        client.create_topic(
            topic,
            queues=queues,
            write_queues=write_queues,
            read_queues=read_queues,
            message_type=kind and kind.upper(),
            attributes=pairs(attribute, "--attribute"),
            order=order,
        )
        missed = tell_missed(client)
        queues_made = client.describe_topic(topic)
    if not order and (conf := _order_left(topic, nameserver)):
        print(
            f"saturnmq: nameservers have the order {conf} for {topic} already; to have none: "
            f"saturnmq admin kv delete ORDER_TOPIC_CONFIG {topic}",
            file=sys.stderr,
        )
    if as_json:
        emit({"topic": topic, "queues": _rows(queues_made), "missed": missed})
    else:
        _show_queues(topic, queues_made)


@topic_app.command("alter")
def alter(
    topic: str,
    write_queues: Annotated[
        int | None, typer.Option(min=1, max=QUEUES_MAX, help="Queues to write to, on each master.")
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option(min=1, max=QUEUES_MAX, help="Queues to read from, on each master.")
    ] = None,
    perm: Annotated[
        int | None, typer.Option(help="The permissions of clients: 2 write, 4 read, 6 both.")
    ] = None,
    attribute: Attributes = None,
    without: Without = None,
    yes: Yes = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Change the queues, the permissions or the attributes of a topic; values that are not given
    stay.

    To remove queues, first lower the number to write to. When the groups have consumed the other
    queues, lower the number to read from. Messages left in those could not be read any more, so the
    command asks before it removes them.
    """
    attributes = attribute_changes(attribute, without)
    if write_queues is None and read_queues is None and perm is None and not attributes:
        fail(
            "nothing to change: give --write-queues, --read-queues, --perm, --attribute or "
            "--without"
        )
    with admin(nameserver) as client, named(topic, client):
        if read_queues is not None:
            _ask_about(topic, read_queues, client.undrained(topic, read_queues), yes)
        client.alter_topic(
            topic,
            write_queues=write_queues,
            read_queues=read_queues,
            perm=perm,
            attributes=attributes,
        )
        rows = _settings(client.topic_settings(topic))
    if as_json:
        emit({"topic": topic, "brokers": rows})
        return
    _show_settings(topic, rows)


def _settings(found: Any) -> list[dict[str, Any]]:
    return [
        {
            "broker": broker,
            "write_queues": config.write_queues,
            "read_queues": config.read_queues,
            "perm": config.perm,
            "order": config.order,
            "attributes": config.attributes,
        }
        for broker, config in sorted(found.items())
    ]


def _show_settings(title: str, rows: list[dict[str, Any]]) -> None:
    shown = [{**row, "attributes": as_text(row["attributes"])} for row in rows]
    table(title, list(shown[0]) if shown else [], [list(row.values()) for row in shown])


def as_text(attributes: dict[str, str]) -> str:
    """Attributes in a cell of a table."""
    return ", ".join(f"{name}={value}" for name, value in sorted(attributes.items()))


def _ask_about(topic: str, read_queues: int, left: Any, yes: bool) -> None:
    """Before messages become unreadable."""
    if not left:
        return
    by_group: dict[str, int] = {}
    for row in left:
        by_group[row.group] = by_group.get(row.group, 0) + row.messages
    whose = ", ".join(
        f"{count:,} messages that "
        + (f"group {group} has not consumed" if group else "no group has consumed")
        for group, count in by_group.items()
    )
    print(f"queues from {read_queues} on of {topic} still hold {whose}", file=sys.stderr)
    if yes:
        return
    if not sys.stdin.isatty():
        fail("they could not be read any more: let the groups consume them first, or pass --yes")
    typer.confirm("They cannot be read any more then. Go on?", abort=True, err=True)


@topic_app.command("list")
def list_topics(
    everything: Annotated[
        bool, typer.Option("--all", help="Also retry, dead-letter and system topics.")
    ] = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """The names of the topics."""
    with admin(nameserver) as client:
        names = client.list_topics(internal=everything)
    tell_names("topics", names, as_json)


@topic_app.command("describe")
def describe(
    topic: str, nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False
) -> None:
    """The settings of a topic, and its queues with their offsets."""
    with admin(nameserver) as client, named(topic, client):
        settings = _settings(client.topic_settings(topic))
        queues = client.describe_topic(topic)
    if as_json:
        emit({"topic": topic, "queues": _rows(queues), "brokers": settings})
        return
    _show_settings(topic, settings)
    _show_queues("queues", queues)


@topic_app.command("queue")
def queue(
    topic: str,
    number: Annotated[int, typer.Option("--queue", min=0, help="The number of the queue.")],
    broker: Annotated[
        str | None, typer.Option(help="The broker, if the topic is on several.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, help="The first entry. Default: of those that there are.")
    ] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="At most that many.")] = 32,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Look into a queue of a topic: where in the log its messages are.

    `message find --offset` shows the messages; `store dump` looks into the files of a broker that
    does not run.
    """
    with admin(nameserver) as client, named(topic, client):
        every = client.describe_topic(topic)
        meant = chosen_queues(topic, [row.queue for row in every], number, broker)
        rows = [row for row in every if row.queue in meant]
        if len(rows) > 1:
            names = ", ".join(row.queue.broker_name for row in rows)
            fail(f"queue {number} is on {len(rows)} brokers: choose one with --broker ({names})")
        at = rows[0].min_offset if offset is None else offset
        # A broker knows no queue in which nothing was ever stored.
        entries = client.queue_entries(rows[0].queue, at, count) if rows[0].max_offset else []
    if as_json:
        emit(_rows(rows)[0] | {"entries": [entry._asdict() for entry in entries]})
        return
    title = f"{topic}: queue {number} on {rows[0].queue.broker_name}"
    columns = ["offset", "log offset", "bytes", "tag hash"]
    table(f"{title}, {rows[0].min_offset:,} to {rows[0].max_offset:,}", columns, entries)


@topic_app.command("delete")
def delete(
    topic: str,
    yes: Yes = False,
    dry_run: DryRun = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with its messages, and the offsets of the groups that consume it.

    Repeat it when a nameserver was away: the topic may have order configuration left there.
    """
    from saturnmq.runtime.errors import RouteNotFound, TopicNotExist

    with admin(nameserver) as client, named(topic, client):
        try:
            queues = client.describe_topic(topic)
        except (RouteNotFound, TopicNotExist):
            if not _order_left(topic, nameserver):
                raise
            queues = []
        lags = {
            group: sum(row.lag for row in client.group_lag(group, topic))
            for group in client.groups_of_topic(topic)
        }
        messages = sum(row.max_offset - row.min_offset for row in queues)
        facts = {
            "topic": topic,
            "messages": messages,
            "queues": _rows(queues),
            "groups": [{"group": group, "lag": lag} for group, lag in lags.items()],
        }

        def show() -> None:
            _show_queues(f"{topic}: {messages:,} messages go", queues)
            if lags:
                table("groups whose offsets go", ["group", "not consumed"], lags.items())

        question = f"Delete topic {topic} and its {messages:,} messages?"
        if not may_destroy(facts, show, question, yes=yes, dry_run=dry_run, as_json=as_json):
            return
        client.delete_topic(topic)
    if as_json:
        emit({**facts, "done": True})
    else:
        print(f"deleted topic {topic}")


def message_count(client: Any, topic: str) -> int:
    """The messages of a topic that there need not be."""
    from saturnmq.runtime.errors import RouteNotFound, TopicNotExist

    try:
        return sum(row.max_offset - row.min_offset for row in client.describe_topic(topic))
    except (RouteNotFound, TopicNotExist):
        return 0


def _rows(queues: Any) -> list[dict[str, Any]]:
    return [
        {
            "broker": row.queue.broker_name,
            "queue": row.queue.queue_id,
            "first": row.min_offset,
            "end": row.max_offset,
        }
        for row in queues
    ]


def _show_queues(title: str, queues: Any) -> None:
    table(title, ["broker", "queue", "first", "end"], [list(row.values()) for row in _rows(queues)])
