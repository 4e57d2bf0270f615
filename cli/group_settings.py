"""`saturnmq group create`, `alter` and `mode`: the settings of a group, and how it reads topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from saturnmq.cli.each_server import nodes
from saturnmq.cli.output import DEFAULT_NAMESERVER, AsJson, Nameserver, emit, fail, table
from saturnmq.cli.topics import (
    Attributes,
    Without,
    admin,
    as_text,
    attribute_changes,
    named,
    tell_missed,
)
from saturnmq.protocol.checked import INT32_MAX
from saturnmq.protocol.retry_policy import (
    KEY,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    retry_policy_json,
    retry_policy_of,
)
from saturnmq.runtime.errors import ConfigError, nearest
from saturnmq.store.delay_levels import delay_ms, delay_text

MaxRetries = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=INT32_MAX,
        help="Deliveries of a failing message after the first, before %DLQ%; 16 if new.",
    ),
]
RetryQueues = Annotated[
    int | None,
    typer.Option(min=0, max=INT32_MAX, help="Queues for retries; with 0 there are none. 1 if new."),
]
RetryPolicy = Annotated[
    str | None,
    typer.Option(
        metavar="WAIT,..|WAIT*N..MOST",
        help="The waits between deliveries that gRPC clients are told: each one, as 1s,30s,10m, or "
        "a first one that grows by a factor, as 5s*2..2h.",
    ),
]
Orderly = Annotated[
    bool | None,
    typer.Option("--orderly/--no-orderly", help="Tell gRPC clients to consume in order."),
]
Enabled = Annotated[
    bool | None, typer.Option("--enable/--disable", help="Whether the group may consume.")
]
Broadcast = Annotated[
    bool | None,
    typer.Option(
        "--broadcast/--no-broadcast", help="Whether each member may consume all messages."
    ),
]
NotifyMembers = Annotated[
    bool | None,
    typer.Option("--notify/--no-notify", help="Tell members at once that others came or went."),
]
BrokerId = Annotated[
    int | None,
    typer.Option(min=0, max=INT32_MAX, help="The broker id that members read from; 0 if new."),
]
SlowBrokerId = Annotated[
    int | None,
    typer.Option(
        min=0, max=INT32_MAX, help="The broker id for members that are far behind; 1 if new."
    ),
]
FromMin = Annotated[
    bool | None,
    typer.Option("--from-min/--no-from-min", help="consumeFromMinEnable: nothing reads it."),
]
ConsumeTimeout = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=INT32_MAX,
        metavar="MINUTES",
        help="consumeTimeoutMinute: nothing reads it, as in RocketMQ.",
    ),
]


def _command(
    verb: Callable[[Any, str, dict[str, Any]], list[str] | None], about: str
) -> Callable[..., None]:
    """A command that gives a group settings with `verb`, which may return the brokers that it
    missed: the same options for each."""

    def command(
        group: str,
        max_retries: MaxRetries = None,
        retry_queues: RetryQueues = None,
        retry_policy: RetryPolicy = None,
        orderly: Orderly = None,
        enabled: Enabled = None,
        broadcast: Broadcast = None,
        notify_members: NotifyMembers = None,
        broker_id: BrokerId = None,
        slow_broker_id: SlowBrokerId = None,
        from_min: FromMin = None,
        consume_timeout: ConsumeTimeout = None,
        attribute: Attributes = None,
        without: Without = None,
        nameserver: Nameserver = DEFAULT_NAMESERVER,
        as_json: AsJson = False,
    ) -> None:
        attributes = attribute_changes(attribute, without)
        settings = {
            "max_retries": max_retries,
            "retry_queues": retry_queues,
            "retry_policy": None if retry_policy is None else policy_in(retry_policy),
            "orderly": orderly,
            "enabled": enabled,
            "broadcast": broadcast,
            "notify_members": notify_members,
            "broker_id": broker_id,
            "slow_broker_id": slow_broker_id,
            "from_min": from_min,
            "consume_timeout_min": consume_timeout,
            "attributes": attributes or None,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        with admin(nameserver) as client:
            missed = verb(client, group, given)
            show_group(group, client.describe_group(group), as_json, missed=missed)

    command.__doc__ = about
    return command


def _create(client: Any, group: str, settings: dict[str, Any]) -> list[str]:
    client.create_group(group, **settings)
    return tell_missed(client)


def _alter(client: Any, group: str, settings: dict[str, Any]) -> None:
    if not settings:
        fail("nothing to change: `saturnmq group alter --help` has the settings")
    known_group(client, group)
    client.alter_group(group, **settings)


create = _command(
    _create,
    "Create a group on every master. Where it is there already, the settings that are given "
    "change, and the others stay.",
)
alter = _command(
    _alter,
    "Change settings of a group on every master that has it; those that are not given stay.",
)


def mode(
    group: str,
    topic: str,
    how: Annotated[str, typer.Argument(metavar="pull|pop")],
    share: Annotated[
        int,
        typer.Option(
            min=0,
            max=INT32_MAX,
            help="Each member pops its own queues and those of so many others; 0: all queues.",
        ),
    ] = 0,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Have a group pull or pop a topic. Push consumers that run follow, but for ordered and
    broadcasting ones, which always pull. The group must be there: `group create`.
    """
    if how not in ("pull", "pop"):
        fail(f"{how!r}: it is pull or pop")
    with admin(nameserver) as client, named(topic, client):
        known_group(client, group)  # a broker would make it
        client.set_request_mode(group, topic, how.upper(), share=share)
    if as_json:
        emit({"group": group, "topic": topic, "mode": how, "share": share})
    else:
        print(f"group {group} has {topic} by {how}")


def known_group(client: Any, group: str) -> None:
    """End with the nearest name if there is no such group."""
    groups = client.list_groups()
    if group not in groups:
        nodes(client, None)  # without any nobody was asked
        fail(f"no group {group!r}{nearest(group, groups)}")


def show_group(
    group: str,
    found: Any,
    as_json: bool,
    queues: Sequence[dict[str, Any]] = (),
    silent: Mapping[str, str] | None = None,
    missed: Sequence[str] | None = None,
) -> None:
    """The settings of a group on each master, its members, and the queues that they work on;
    `silent`: why a member does not tell of its queues. `missed`: the brokers that a change may have
    left out."""
    settings = _settings_of(found)
    members = [
        {
            "client": member.client_id,
            "address": member.address,
            "language": member.language,
            "broker": at.broker_name,
            "reads": member.reads,
        }
        for at in found
        for member in at.members
    ]
    if as_json:
        facts: dict[str, Any] = {"group": group, "brokers": settings, "members": members}
        facts |= {"queues": list(queues), "silent": dict(silent or {})}
        emit(facts if missed is None else {**facts, "missed": missed})
        return
    _show_settings(group, settings)
    columns = ["client", "address", "language", "broker"]
    if any(row["reads"] for row in members):
        columns.append("reads")
    table("members", columns, [[row[name] for name in columns] for row in members])
    if "reads" in columns:
        print(
            "These members subscribe differently: messages that some of them want are dropped or "
            "left by others."
        )
    columns = ["client", "topic", "broker", "queue", "cached", "awaited"]
    heads = [*columns[:-1], "waits for its listener"]
    table("queues", heads, [[row[name] for name in columns] for row in queues])
    for name, problem in (silent or {}).items():
        print(f"{name} does not say what it works on: {problem}")


def _settings_of(found: Sequence[Any]) -> list[dict[str, Any]]:
    """The settings of a group at each broker, as JSON tells them."""
    return [
        {
            "broker": at.broker_name,
            **at.settings._asdict(),
            "retry_policy": retry_policy_json(at.settings.retry_policy),
            "pops": [each._asdict() for each in at.pops],
        }
        for at in found
    ]


def _show_settings(group: str, rows: Sequence[dict[str, Any]]) -> None:
    """A line for each setting, a column for each broker."""
    shown = [
        {
            **row,
            "retry_policy": policy_text(retry_policy_of({KEY: row["retry_policy"]})),
            "attributes": as_text(row["attributes"]),
            "pops": ", ".join(each["topic"] for each in row["pops"]),
        }
        for row in rows
    ]
    heads = ["setting", *(row.pop("broker") for row in shown)]
    table(group, heads, [[name, *(row[name] for row in shown)] for name in shown[0]])


def policy_in(text: str) -> Any:
    """The retry policy that `--retry-policy` names."""
    try:
        first, times, growth = text.partition("*")
        if not times:
            return CustomizedRetryPolicy(tuple(delay_ms(wait) for wait in text.split(",")))
        factor, _, most = growth.partition("..")
        if not (factor.isascii() and factor.isdigit()):
            fail(f"--retry-policy {text!r}: {factor!r} is no factor, as 2 in 5s*2..2h")
        return ExponentialRetryPolicy(delay_ms(first), delay_ms(most), int(factor))
    except ConfigError as problem:
        fail(f"--retry-policy {text!r}: {problem}. Give waits, as 1s,30s,10m, or 5s*2..2h")


def policy_text(policy: Any) -> str:
    """The policy in a cell of a table."""
    if isinstance(policy, CustomizedRetryPolicy):
        return ",".join(map(delay_text, policy.waits_ms))
    first, most = delay_text(policy.initial_ms), delay_text(policy.max_ms)
    return f"{first}*{policy.multiplier}..{most}"
