"""`saturnmq admin`: what brokers tell of themselves, and work they are asked to do now."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from saturnmq.cli.output import DEFAULT_NAMESERVER, AsJson, Nameserver, emit, fail, table
from saturnmq.cli.topics import admin
from saturnmq.protocol.errors import nearest

app = typer.Typer(help="Look after brokers.", no_args_is_help=True)

Broker = Annotated[
    str | None, typer.Option("--broker", help="Only the brokers of this name. Default: all.")
]


def _nodes(client: Any, broker: str | None) -> list[Any]:
    nodes = client.cluster()
    chosen = [node for node in nodes if broker in (None, node.broker_name)]
    if not chosen:
        names = sorted({node.broker_name for node in nodes})
        fail(f"no broker is called {broker!r}{nearest(broker or '', names)}")
    return chosen


@app.command()
def status(
    broker: Broker = None, nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False
) -> None:
    """How far each broker is, how full its disk is and whether it takes sends.

    Exit status 1 when one does not.
    """
    from saturnmq import SaturnError

    rows = []
    with admin(nameserver) as client:
        for node in _nodes(client, broker):
            try:
                facts = client.broker_status(node.address)
            except SaturnError as error:
                facts = {"refusesWrites": f"no answer: {error}"}
            rows.append({"broker": node.broker_name, "id": node.broker_id, **facts})
    if as_json:
        emit(rows)
    else:
        table(
            "",
            ["broker", "id", "log from", "to", "flush behind", "disk", "sends"],
            [
                (
                    row["broker"],
                    str(row["id"]),
                    row.get("commitLogMinOffset", "-"),
                    row.get("commitLogMaxOffset", "-"),
                    f"{row.get('flushBehindMs', '-')} ms",
                    f"{100 * float(row.get('commitLogDiskRatio') or 0):.0f} %",
                    row["refusesWrites"] or "taken",
                )
                for row in rows
            ],
        )
    if any(row["refusesWrites"] for row in rows):
        raise typer.Exit(1)


@app.command()
def clean(
    broker: Broker = None, nameserver: Nameserver = DEFAULT_NAMESERVER, as_json: AsJson = False
) -> None:
    """Delete expired segments now, not only at the hour of deletion (deleteWhen)."""
    with admin(nameserver) as client:
        nodes = _nodes(client, broker)
        for node in nodes:
            client.delete_expired(node.address)
    if as_json:
        emit([node.address for node in nodes])
    else:
        print(f"asked {len(nodes)} brokers: {', '.join(node.address for node in nodes)}")
