"""`saturnmq admin`: what brokers and nameservers tell of themselves, and work they are asked to do
now."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli.each_server import EachServer, nodes
from saturnmq.cli.kv import kv_app
from saturnmq.cli.launcher import LauncherError, LocalCluster, default_data
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    AsJson,
    DryRun,
    Nameserver,
    addresses,
    counted,
    emit,
    pairs,
    table,
    write_file,
)
from saturnmq.cli.topics import admin

app = typer.Typer(help="Look after brokers and nameservers.", no_args_is_help=True)
app.add_typer(kv_app, name="kv")

Broker = Annotated[
    str | None, typer.Option("--broker", help="Only the brokers of this name. Default: all.")
]
LocalData = Annotated[
    Path | None, typer.Option("--data", help="Directory of the local cluster that names the node.")
]
CatchUp = Annotated[float, typer.Option(min=0.1, help="Seconds that a slave has to catch up.")]


@app.command()
def status(
    broker: Broker = None, nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False
) -> None:
    """Show the positions of each broker, how full its disk is, the longest stop of its loop, and
    whether it takes sends.

    Exit status 1 when a master does not, or a group has none. `-`: a slave takes none, and
    RocketMQ's brokers do not tell all.
    """
    from saturnmq import SaturnError
    from saturnmq.client.cluster_view import groups_in

    with admin(nameserver) as client:
        chosen = nodes(client, broker)
        without_master = "no master now: bring it back, or promote a slave"
        rows: list[dict[str, Any]] = [
            {"broker": name, "id": 0, "refusesWrites": without_master}
            for name in groups_in(chosen).led_by_none
        ]
        for node in chosen:
            try:
                facts = client.broker_status(node.address)
            except SaturnError as error:
                facts = {"refusesWrites": f"no answer: {error}"}
            rows.append({"broker": node.broker_name, "id": node.broker_id, **facts})
    rows.sort(key=lambda row: (row["broker"], row["id"]))
    if as_json:
        emit(rows)
    else:
        table(
            "",
            ["broker", "id", "log from", "to", "flush behind", "disk", "loop stood", "sends"],
            [
                (
                    row["broker"],
                    str(row["id"]),
                    row.get("commitLogMinOffset", "-"),
                    row.get("commitLogMaxOffset", "-"),
                    f"{row['flushBehindMs']} ms" if "flushBehindMs" in row else "-",
                    f"{100 * float(row['commitLogDiskRatio']):.0f} %"
                    if "commitLogDiskRatio" in row
                    else "-",
                    f"{row['longestStopMs']} ms" if "longestStopMs" in row else "-",
                    row.get("refusesWrites", "-") or ("-" if row["id"] else "taken"),
                )
                for row in rows
            ],
        )
        for row in rows:
            for note in _notes(row):
                print(f"{row['broker']} {row['id']}: {note}")
    if any(row.get("refusesWrites") for row in rows):
        raise typer.Exit(1)


def _notes(row: dict[str, Any]) -> Iterator[str]:
    """The facts of a broker that an operator should know, beside its line in the table."""

    def number(name: str) -> int:
        return int(row.get(name) or 0)

    for count, what in (("memoryRefused", "requests"), ("connectionsRefused", "connections")):
        if number(count):
            yield (
                f"{row[count]} {what} were refused since its start; {row['memoryUsedBytes']} of "
                f"{row['memoryBudgetBytes']} bytes (memoryBudgetBytes) and {row['connections']} of "
                f"{row['connectionsMax']} connections (maxConnections) are in use"
            )
    if number("timedWaiting") or number("timedLatestMs"):
        late = ""
        if "timedLatestMs" in row:  # a slave delivers nothing
            late = f", deliveries were up to {row['timedLatestMs']} ms late in the last two minutes"
        yield f"{number('timedWaiting'):,} timed messages wait{late}"
    if number("popsOpen"):
        yield (
            f"{number('popsOpen'):,} of at most {number('popsOpenMax'):,} popped messages are not "
            f"acknowledged, by group: {row['popsOpenByGroup'].replace(';', ', ')}"
        )
    if row.get("popGroupsHeldBack"):
        yield (
            f"{row['popGroupsHeldBack'].replace(';', ', ')} get no new messages by pop until they "
            "acknowledge some (maxPoppedMessages, popGroupShare)"
        )
    if number("differingGroups"):
        yield (
            f"in {row['differingGroups']} groups members subscribe differently, and messages are "
            "dropped or left; its log names them (saturnmq group describe)"
        )
    if number("transactionsExpired"):
        yield (
            f"{row['transactionsExpired']} transactions expired undecided since its start; their "
            "messages are in TRANS_CHECK_MAX_TIME_TOPIC"
        )
    if number("unforeseenFailures"):
        yield (
            f"{row['unforeseenFailures']} requests or tasks failed in an unforeseen way, the last: "
            f"{row['lastUnforeseenFailure']} (its log has the traces; please report them)"
        )


@app.command()
def clean(
    unused: Annotated[
        bool, typer.Option("--unused", help="The queues of topics that are gone, instead.")
    ] = False,
    broker: Broker = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Delete expired segments now, not only at the hour of deletion (deleteWhen)."""
    with admin(nameserver) as client:
        delete = client.delete_unused if unused else client.delete_expired
        asked = EachServer.of_brokers(client, broker, delete)
    if as_json:
        emit(list(asked.found))
    elif asked.found:
        print(f"asked {counted(len(asked.found), 'broker')}: {', '.join(asked.found)}")
    asked.end()


@app.command()
def settings(
    broker: Broker = None, nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False
) -> None:
    """Show the settings of each broker, as it runs now."""
    with admin(nameserver) as client:
        asked = EachServer.of_brokers(client, broker, client.broker_settings)
    _tell_settings(asked.found, as_json)
    asked.end()


def _tell_settings(found: dict[str, dict[str, str]], as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    for address, values in found.items():
        table(address, ["setting", "value"], sorted(values.items()))


Settings = Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="RocketMQ's keys.")]


def _changes(settings: list[str]) -> dict[str, str]:
    """Names and values without the spaces that a line of a configuration file has around them."""
    stripped = ["=".join(part.strip() for part in text.split("=", 1)) for text in settings]
    return pairs(stripped, "setting")


@app.command("set")
def set_(
    settings: Settings,
    broker: Broker = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Change settings of running brokers, until they stop.

    docs/configuration.md says which can be changed; a change that shall stay belongs in the
    broker's file as well.
    """
    changes = _changes(settings)
    with admin(nameserver) as client:
        asked = EachServer.of_brokers(
            client, broker, lambda address: client.change_settings(address, changes)
        )
    changed = list(asked.found)
    if as_json:
        emit({"settings": changes, "brokers": changed})
    elif changed:
        print(f"changed {', '.join(changes)} on {len(changed)} brokers: {', '.join(changed)}")
    asked.end()


@app.command("nameserver-settings")
def nameserver_settings(
    nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False
) -> None:
    """Show the settings of each nameserver, as it runs now."""

    def ask(address: str) -> dict[str, str]:
        with admin(address) as client:
            return dict(client.nameserver_settings()[address])

    asked = EachServer("nameserver", addresses(nameserver), ask)
    _tell_settings(asked.found, as_json)
    asked.end()


@app.command("nameserver-set")
def nameserver_set(
    settings: Settings, nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False
) -> None:
    """Change settings of running nameservers, of each that is given, until they stop."""
    changes = _changes(settings)

    def change(address: str) -> None:
        with admin(address) as client:
            client.change_nameserver_settings(changes)

    asked = EachServer("nameserver", addresses(nameserver), change)
    changed = list(asked.found)
    if as_json:
        emit({"settings": changes, "nameservers": changed})
    elif changed:
        print(f"changed {', '.join(changes)} on {', '.join(changed)}")
    asked.end()


@app.command()
def export(
    file: Annotated[
        Path | None, typer.Argument(help="The file to write; standard output if left out.")
    ] = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
) -> None:
    """Write topics, groups and settings of the cluster as one JSON document.

    Secrets are hidden in it. `admin status --json` has the figures and the state of each broker.
    """
    with admin(nameserver) as client:
        text = json.dumps(client.export(), indent=2, sort_keys=True) + "\n"
    if file is None:
        sys.stdout.write(text)
    else:
        write_file(file, text)


@app.command()
def probe(
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Sends to each.")] = 3,
    broker: Broker = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Send messages to each master, to the topic of its own name, and show what becomes of them.

    Exit status 1 when one was not acknowledged, or a broker has no master.
    """
    from saturnmq import SaturnError

    rows: list[dict[str, Any]] = []
    with admin(nameserver) as client:
        for name in sorted({node.broker_name for node in nodes(client, broker)}):
            for _ in range(count):
                row: dict[str, Any] = {"broker": name, "ok": False, "ms": None}
                try:
                    sent = client.probe(name)
                except SaturnError as error:
                    rows.append({**row, "status": str(error)})
                    break
                ok = sent.status.value == "SEND_OK"
                ms = round(sent.milliseconds, 3)
                rows.append({**row, "ok": ok, "ms": ms, "status": sent.status.value})
    if as_json:
        emit(rows)
    else:
        columns = ["broker", "ms", "status"]
        table("", columns, [[row[name] for name in columns] for row in rows])
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)


@app.command()
def producers(nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False) -> None:
    """Show the producers that are connected to brokers, by their group."""
    with admin(nameserver) as client:
        found = client.producers()
    if as_json:
        emit([each._asdict() for each in found])
        return
    table("", ["group", "client", "address", "language"], found)


@app.command()
def replicas(
    group: Annotated[str | None, typer.Argument(help="A broker name. Default: all.")] = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show the master of each broker group, its slaves, and how far these lag behind."""
    with admin(nameserver) as client:
        found = client.replicas(group)
    if as_json:
        emit([_replica(replica) for replica in found])
        return
    table(
        "",
        [
            "group",
            "node",
            "id",
            "role",
            "epoch",
            "log ends at",
            "bytes behind",
            "ms behind",
            "in sync",
            "cut off",
            "note",
        ],
        [
            (
                replica.group,
                replica.address,
                replica.broker_id if replica.broker_id >= 0 else None,
                replica.role,
                replica.epoch if replica.answers else None,
                replica.end if replica.answers else None,
                replica.lag_bytes,
                replica.lag_ms,
                replica.in_sync,
                sum(cut.end - cut.start for cut in replica.truncated) or None,
                _note(replica),
            )
            for replica in found
        ],
    )


def _note(replica: Any) -> str:
    """The faults of a replica. A slave rightly takes no sends."""
    trouble = replica.trouble if replica.role == "slave" else replica.refuses
    forced = ""
    if replica.role == "master" and replica.epochs and replica.epochs[-1][0] in replica.forced:
        forced = f"epoch {replica.epochs[-1][0]} was opened by force"
    alone = f"no fail-over: {replica.no_failover}" if replica.no_failover else ""
    let_in = f"lets in: {', '.join(replica.let_in)}" if replica.let_in else ""
    wrong = replica.error or trouble or replica.trouble or replica.lacks or replica.full
    return str(wrong or forced or alone or let_in)


def _replica(replica: Any) -> dict[str, Any]:
    facts = asdict(replica)
    del facts["slave_reports"]  # each slave has its part of that
    return facts


@app.command()
def promote(
    group: Annotated[str, typer.Argument(help="The broker name.")],
    node: Annotated[
        str,
        typer.Argument(help="The new master: HOST:PORT, broker id, or a node of `cluster status`."),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Also where acknowledged messages may be lost by it.")
    ] = False,
    timeout: CatchUp = 10.0,
    data: LocalData = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Make a slave the master of its group, in a new epoch.

    A master that answers hands over: nothing is lost. One that does not is deposed, and follows
    when it comes back.
    """
    with admin(nameserver) as client:
        result = client.promote(group, _address(node, data), force=force, timeout=timeout)
    _tell(result, as_json)


@app.command()
def handover(
    group: Annotated[str, typer.Argument(help="The broker name.")],
    node: Annotated[
        str | None,
        typer.Argument(
            help="The new master: HOST:PORT, broker id, or a node of `cluster status`. Default: "
            "the preferred one (brokerElectionPriority), or the one in sync that is furthest ahead."
        ),
    ] = None,
    timeout: CatchUp = 10.0,
    dry_run: DryRun = False,
    data: LocalData = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Change the master of a group while all is well.

    Loses nothing and fails no send; forces nothing: without a master that hands over, or a slave
    in sync that takes over, it is refused and nothing changes.
    """
    wanted = None if node is None else _address(node, data)
    with admin(nameserver) as client:
        if dry_run:
            successor = client.preview_hand_over(group, wanted)
            facts = {"group": group, "master": successor.address, "done": False}
            emit(facts) if as_json else print(f"{successor.address} would take {group} over")
            return
        _tell(client.hand_over(group, wanted, timeout=timeout), as_json)


def _tell(result: Any, as_json: bool) -> None:
    """Say what became of a promotion."""
    if as_json:
        emit(asdict(result))
        return
    how = f"{result.old_master} handed over" if result.handed_over else "no node handed over"
    print(
        f"{result.master} is the master of {result.group} in epoch {result.epoch}, "
        f"from offset {result.start:,}; {how}"
    )


@app.command()
def drain(
    node: Annotated[
        str,
        typer.Argument(
            help="HOST:PORT, HOST (all its brokers), broker id, or a node of `cluster status`."
        ),
    ],
    timeout: CatchUp = 10.0,
    dry_run: DryRun = False,
    data: LocalData = None,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Hand over each group that a node leads, and say when it is safe to stop.

    Refused, with nothing changed, where no other node can take over.
    """
    with admin(nameserver) as client:
        address = _address(node, data)
        drained = (
            client.preview_drain(address) if dry_run else client.drain(address, timeout=timeout)
        )
    if as_json:
        emit([{**asdict(each), "done": not dry_run} for each in drained])
        return
    for each in drained:
        if each.led:
            would = "would hand" if dry_run else "handed"
            print(f"{each.node} {would} {each.group} over to {each.master}")
        end = f", but {each.risk}" if each.risk else ": it is safe to stop"
        leads = "would lead" if dry_run else "leads"
        print(f"{each.node} {leads} nothing{end}")


def _address(node: str, data: Path | None) -> str:
    """The address of a node of the local cluster; anything else as it is."""
    if node.isdigit() or ":" in node:
        return node
    try:
        cluster = LocalCluster.load(data or default_data())
        return cluster.node(node).registers_as()
    except (LauncherError, OSError):
        if data is not None:
            raise
        return node
