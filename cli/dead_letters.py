"""`saturnmq group dlq`: what a group has given up, and how it gets that again."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from saturnmq.cli.group_settings import known_group
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    TIME_HELP,
    AsJson,
    DryRun,
    Nameserver,
    emit,
    fail,
    local_time,
    table,
    time_ms,
)
from saturnmq.cli.topics import admin

dlq_app = typer.Typer(
    help="The dead letters of a group: list them, or let the group have them again.",
    no_args_is_help=True,
)


@dlq_app.command("list")
def list_letters(
    group: str,
    limit: Annotated[int, typer.Option(min=1, help="The oldest so many.")] = 64,
    since: Annotated[str, typer.Option(help=f"Given up from then on: {TIME_HELP}.")] = "0",
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """The messages that a group has given up, oldest first."""
    with admin(nameserver) as client:
        letters = [
            _facts(letter)
            for letter in client.dead_letters(group, time_ms(since, "--since"), limit=limit)
        ]
        if not letters:  # those of a group that was deleted may still be there
            known_group(client, group)
    if as_json:
        emit({"group": group, "dead_letters": letters})
    elif not letters:
        print(f"group {group} has given no message up")
    else:
        columns = ["id", "topic", "tag", "keys", "deliveries", "given up at"]
        rows = [
            [*(letter[name] for name in _SHOWN), local_time(letter["given_up_ms"])]
            for letter in letters
        ]
        table(f"{group}: dead letters", columns, rows)


_SHOWN = ("id", "topic", "tag", "keys", "deliveries")


def _facts(letter: Any) -> dict[str, Any]:
    from saturnmq.client.admin.dead_letters import origin_of

    return {
        "id": letter.message_id,
        "topic": origin_of(letter),
        "tag": letter.tag or "",
        "keys": " ".join(letter.keys),
        "deliveries": letter.reconsume_times,
        "given_up_ms": letter.store_timestamp,
        "broker": letter.broker_name,
        "offset": letter.queue_offset,
    }


@dlq_app.command("resend")
def resend(
    group: str,
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="This message; may be given several times.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    to_topic: Annotated[
        bool,
        typer.Option(
            "--to-topic",
            help="To the original topic, where every group consumes them; an ordered group, and "
            "one that only pops, needs that.",
        ),
    ] = False,
    dry_run: DryRun = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Let a group consume dead letters again. The letters stay: a second call sends them twice."""
    from saturnmq.cli.topics import message_count
    from saturnmq.protocol.topics import dlq_topic

    if everything == bool(ids):
        fail("say which: --id ID, several times if need be, or --all")
    with admin(nameserver) as client:
        there = message_count(client, dlq_topic(group))
        if not there:
            known_group(client, group)
        resent = 0
        if not dry_run and there:
            resent = client.resend_dead_letters(group, ids or None, to_topic=to_topic)
    if as_json:
        emit({"group": group, "dead_letters": there, "resent": resent})
    elif dry_run:
        print(f"{len(ids) if ids else there:,} of {there:,} dead letters would be sent again")
    else:
        print(f"{resent:,} of {there:,} dead letters sent again")
    if ids and not dry_run and resent < len(set(ids)):
        fail(f"{len(set(ids)) - resent} of the ids are no dead letters of group {group}")
