"""`saturnmq group`: who consumes what, how far, and from where on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from saturnmq.cli.dead_letters import dlq_app
from saturnmq.cli.group_settings import (
    alter,
    create,
    known_group,
    mode,
    show_group,
)
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    TIME_HELP,
    AsJson,
    DryRun,
    Nameserver,
    Yes,
    counted,
    emit,
    fail,
    may_destroy,
    table,
    tell_names,
    time_ms,
)
from saturnmq.cli.topics import admin, chosen_queues, message_count, named

group_app = typer.Typer(
    help="Create, list and describe groups; set their offsets.", no_args_is_help=True
)

group_app.add_typer(dlq_app, name="dlq")

# Below it a plain number is an offset, from it on (March 1973) a time in milliseconds.
TIMES_FROM = 10**11

group_app.command("create")(create)
group_app.command("alter")(alter)
group_app.command("mode")(mode)


@group_app.command("list")
def list_groups(
    everything: Annotated[bool, typer.Option("--all", help="Also groups of the system.")] = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """The names of the groups."""
    from saturnmq.protocol.topics import SYSTEM_GROUPS

    with admin(nameserver) as client:
        names = [name for name in client.list_groups() if everything or name not in SYSTEM_GROUPS]
    tell_names("groups", names, as_json)


@group_app.command("describe")
def describe(
    group: str, nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False
) -> None:
    """The settings of a group on each master, its members, and the queues that they work on.

    A queue that waits for its listener has another owner as soon as the listener returns.
    """
    from saturnmq import SaturnError

    with admin(nameserver) as client:
        known_group(client, group)
        found = client.describe_group(group)
        queues: list[dict[str, Any]] = []
        silent: dict[str, str] = {}
        for name in sorted({member.client_id for at in found for member in at.members}):
            try:
                queues += (_work(name, row) for row in client.member_queues(group, name))
            except SaturnError as error:
                silent[name] = str(error)
    show_group(group, found, as_json, queues, silent)


def _work(client_id: str, row: Any) -> dict[str, Any]:
    return {
        "client": client_id,
        "topic": row.queue.topic,
        "broker": row.queue.broker_name,
        "queue": row.queue.queue_id,
        "cached": row.cached,
        "last_consumed": row.last_consumed_ms,
        "awaited": row.awaited,
    }


@group_app.command("stacks")
def stacks(
    group: str,
    client_id: Annotated[
        str, typer.Argument(metavar="CLIENT", help="A member, as `group describe` names it.")
    ],
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show what a member of a group is doing: the stacks of its threads, as it prints them."""
    with admin(nameserver) as client:
        known_group(client, group)
        text = client.member_stacks(group, client_id)
    if as_json:
        emit({"group": group, "client": client_id, "stacks": text})
    else:
        print(text)


@group_app.command("lag")
def lag(
    group: str,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show how far a group is behind, for each queue."""
    with admin(nameserver) as client, named(topic or "", client):
        known_group(client, group)
        found = client.group_lag(group, topic)
        if topic is not None and not found:
            client.route(topic)  # there is nothing of a topic that does not exist
    rows = [
        {
            "topic": row.queue.topic,
            "broker": row.queue.broker_name,
            "queue": row.queue.queue_id,
            "committed": row.committed,
            "end": row.end,
            "lag": row.lag,
        }
        for row in found
    ]
    total = sum(row["lag"] for row in rows)
    if as_json:
        emit({"group": group, "lag": total, "queues": rows})
        return
    columns = ["topic", "broker", "queue", "committed", "end", "lag"]
    behind = f"{total:,} behind" if rows else "has committed nothing yet"
    table(f"{group}: {behind}", columns, [[row[name] for name in columns] for row in rows])


@group_app.command("delete")
def delete(
    group: str,
    yes: Yes = False,
    dry_run: DryRun = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Delete a group: its offsets, and the messages that it shall get again or has given up.

    A member that is still connected makes a new group of that name.
    """
    from saturnmq.protocol.topics import dlq_topic, retry_topic

    with admin(nameserver) as client:
        known_group(client, group)
        behind: dict[str, int] = {}
        for row in client.group_lag(group):
            behind[row.queue.topic] = behind.get(row.queue.topic, 0) + row.lag
        behind.pop(retry_topic(group), None)
        retries, dead = (message_count(client, of(group)) for of in (retry_topic, dlq_topic))
        members = sorted({m.client_id for at in client.describe_group(group) for m in at.members})
        facts = {
            "group": group,
            "topics": [{"topic": topic, "lag": count} for topic, count in behind.items()],
            "retry_messages": retries,
            "dead_letters": dead,
            "members": members,
        }

        def show() -> None:
            title = f"{group}: its offsets, {retries:,} retries and {dead:,} dead letters go"
            table(title, ["topic", "not consumed"], behind.items())
            if members:
                print(f"still connected: {', '.join(members)}")

        question = f"Delete group {group} with its offsets?"
        if not may_destroy(facts, show, question, yes=yes, dry_run=dry_run, as_json=as_json):
            return
        client.delete_group(group)
    if as_json:
        emit({**facts, "done": True})
    else:
        print(f"deleted group {group}")


@group_app.command("reset-offset")
def reset_offset(
    group: str,
    topic: str,
    to: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|TIME|OFFSET",
            help=f"TIME: {TIME_HELP}; the first message stored from then on. "
            "A number below 10^11 is an OFFSET and wants --queue.",
        ),
    ],
    queue: Annotated[int | None, typer.Option(min=0, help="Only this queue.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only the queues of this broker.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Set from where on a group reads a topic.

    Members that consume now are told. Messages before the new offset are skipped, those from it on
    come again.
    """
    goal = Goal.parse(to)
    with admin(nameserver) as client, named(topic, client):
        known_group(client, group)
        places = _places(client, topic, queue, broker)
        if goal.offset is not None and queue is None:
            fail(f"--to {to} is an offset: say of which queue, --queue N")
        if goal.offset is not None and len(places) > 1:
            names = ", ".join(place.broker_name for place in places)
            fail(f"queue {queue} is on {len(places)} brokers: choose one with --broker ({names})")
        # Without --queue and --broker all of a topic is one request to each broker.
        chosen = [None] if queue is None and broker is None else places
        preview = [
            row
            for place in chosen
            for row in client.preview_reset(group, topic, **goal.arguments(place))
        ]
        if not _may_move(group, topic, preview, yes=yes, dry_run=dry_run, as_json=as_json):
            return
        for place in chosen:
            client.reset_offsets(group, topic, **goal.arguments(place))
    _tell_moved(group, topic, preview, as_json)


@group_app.command("skip")
def skip(
    group: str,
    topic: str,
    yes: Yes = False,
    dry_run: DryRun = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Have a group go on at the end of a topic: it never gets what it has not consumed by now.

    Members that consume now are told. The same as reset-offset --to latest.
    """
    with admin(nameserver) as client, named(topic, client):
        known_group(client, group)
        preview = client.preview_reset(group, topic)
        if not _may_move(group, topic, preview, yes=yes, dry_run=dry_run, as_json=as_json):
            return
        client.reset_offsets(group, topic)
    _tell_moved(group, topic, preview, as_json)


@group_app.command("clone-offset")
def clone_offset(
    source: str,
    group: str,
    topic: Annotated[str | None, typer.Option(help="Only this topic. Default: all.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Set the offsets of GROUP to those of the group SOURCE, forward or back.

    Members of GROUP that consume now are told.
    """
    if source == group:
        fail("a group has its own offsets already: name two groups")
    with admin(nameserver) as client, named(topic or "", client):
        known_group(client, source)
        known_group(client, group)
        preview = client.preview_clone(source, group, topic)
        if not preview:
            fail(f"group {source} has committed nothing" + (f" in {topic}" if topic else ""))
        if not _may_move(group, topic, preview, yes=yes, dry_run=dry_run, as_json=as_json):
            return
        client.clone_offsets(source, group, topic)
    _tell_moved(group, topic, preview, as_json)


def _moves(group: str, topic: str | None, preview: Sequence[Any]) -> dict[str, Any]:
    """The changes of a reset, as JSON tells them; with their topics if they are of several."""
    rows = [
        ({} if topic else {"topic": row.queue.topic})
        | {
            "broker": row.queue.broker_name,
            "queue": row.queue.queue_id,
            "from": row.committed,
            "to": row.target,
            "repeated": row.repeated,
            "skipped": row.skipped,
        }
        for row in preview
    ]
    repeated, skipped = (sum(row[name] for row in rows) for name in ("repeated", "skipped"))
    return {
        "group": group,
        "topic": topic,
        "repeated": repeated,
        "skipped": skipped,
        "queues": rows,
    }


def _may_move(
    group: str,
    topic: str | None,
    preview: Sequence[Any],
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Show the changes, and ask whether to make them."""
    facts = _moves(group, topic, preview)
    where = topic or "all topics"

    def show() -> None:
        columns = list(facts["queues"][0]) if facts["queues"] else []
        title = (
            f"{group} on {where}: {facts['repeated']:,} messages come again, "
            f"{facts['skipped']:,} are skipped"
        )
        table(title, columns, [list(row.values()) for row in facts["queues"]])

    question = f"Set the offsets of {group} on {where}?"
    return may_destroy(facts, show, question, yes=yes, dry_run=dry_run, as_json=as_json)


def _tell_moved(group: str, topic: str | None, preview: Sequence[Any], as_json: bool) -> None:
    if as_json:
        emit({**_moves(group, topic, preview), "done": True})
    else:
        print(f"set the offsets of {counted(len(preview), 'queue')}")


@dataclass(frozen=True)
class Goal:
    """The goal of a reset: a time, or an offset of one queue."""

    timestamp_ms: int
    offset: int | None = None

    @staticmethod
    def parse(text: str) -> Goal:
        if text in ("earliest", "latest"):
            return Goal(0 if text == "earliest" else -1)
        moment = time_ms(text, "--to")
        if text.isdigit() and moment < TIMES_FROM:
            return Goal(-1, moment)
        return Goal(moment)

    def arguments(self, queue: Any) -> dict[str, Any]:
        """The arguments of Admin.reset_offsets and preview_reset; `queue` is None for all."""
        return {"timestamp_ms": self.timestamp_ms, "queue": queue, "offset": self.offset}


def _places(client: Any, topic: str, queue: int | None, broker: str | None) -> list[Any]:
    """The queues of a topic that are meant; there is at least one."""
    from saturnmq import MessageQueue

    every = [
        MessageQueue(topic, data.broker_name, number)
        for data in client.route(topic).queues
        for number in range(data.read_queues)
    ]
    return chosen_queues(topic, every, queue, broker)
