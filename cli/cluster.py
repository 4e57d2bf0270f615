"""`saturnmq cluster`: a whole cluster on this machine, as processes below one data directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from saturnmq.cli.launcher import LocalCluster, Settings, default_data
from saturnmq.cli.output import AsJson, emit, fail, table

app = typer.Typer(
    help="Start, watch, break and stop a cluster on this machine.", no_args_is_help=True
)

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Directory of the cluster (default $SATURNMQ_DATA or saturnmq-data)."
    ),
]
NodeName = Annotated[str, typer.Argument(help="A node as `cluster status` names it.")]


@app.command()
def up(
    nameservers: Annotated[int, typer.Option(help="How many nameservers.")] = 1,
    masters: Annotated[int, typer.Option(help="How many masters.")] = 1,
    slaves: Annotated[int, typer.Option(help="How many slaves for each master.")] = 0,
    data: Data = None,
    base_port: Annotated[
        int, typer.Option(min=0, max=65535, help="First port; the rest follow. 0 = any free ports.")
    ] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    flush: Annotated[str, typer.Option(help="async, or sync: ack when on the disk.")] = "async",
    replication: Annotated[
        str | None,
        typer.Option(help="async, or sync: ack when a slave has it. Default sync with slaves."),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of broker.toml for every broker."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a cluster and return when all of it serves."""
    for option in options or ():
        if "=" not in option:
            fail(f"--set wants KEY=VALUE, not {option!r}")
    settings = Settings(
        nameservers=nameservers,
        masters=masters,
        slaves=slaves,
        host=host,
        base_port=base_port,
        flush=flush,
        replication=replication or ("sync" if slaves else "async"),
        broker_options=dict(option.split("=", 1) for option in options or ()),
    )
    _show(LocalCluster.up(data or default_data(), settings), as_json)


@app.command()
def status(data: Data = None, as_json: AsJson = False) -> None:
    """The nodes, their addresses and whether they serve.

    Exit status 1 when one does not live or takes no sends.
    """
    cluster = LocalCluster.load(data or default_data())
    refusals = _refusals(cluster)
    _show(cluster, as_json, refusals)
    if refusals or not all(node.alive() for node in cluster.nodes):
        raise typer.Exit(1)


@app.command()
def kill(node: NodeName, data: Data = None, as_json: AsJson = False) -> None:
    """SIGKILL one node."""
    cluster = LocalCluster.load(data or default_data())
    cluster.kill(node)
    _show(cluster, as_json)


@app.command()
def restart(node: NodeName, data: Data = None, as_json: AsJson = False) -> None:
    """Start one node again on its ports and data.

    A node that runs is stopped in order first.
    """
    cluster = LocalCluster.load(data or default_data())
    cluster.restart(node)
    _show(cluster, as_json)


@app.command()
def down(data: Data = None, as_json: AsJson = False) -> None:
    """Stop every node; the data stays."""
    cluster = LocalCluster.load(data or default_data())
    cluster.down()
    _show(cluster, as_json)


def _refusals(cluster: LocalCluster) -> dict[str, str]:
    """Masters that live but take no sends, by name, and why."""
    from saturnmq import Admin, SaturnError

    found = {}
    with Admin(cluster.nameservers, timeout=3.0) as admin:
        for node in cluster.nodes:
            if node.kind != "master" or not node.alive():
                continue
            try:
                reason = admin.broker_status(node.address).get("refusesWrites")
            except SaturnError as error:
                reason = f"no answer: {error}"
            if reason:
                found[node.name] = reason
    return found


def _show(cluster: LocalCluster, as_json: bool, refusals: dict[str, str] | None = None) -> None:
    facts = cluster.describe()
    for node in facts["nodes"]:
        node["refuses"] = (refusals or {}).get(node["name"], "")
    if as_json:
        emit(facts)
        return
    table(
        f"cluster in {cluster.data}",
        ["name", "kind", "address", "pid", "state"],
        [
            (
                node["name"],
                node["kind"],
                node["address"],
                str(node["pid"] or "-"),
                (node["refuses"] or "serving") if node["alive"] else "stopped",
            )
            for node in facts["nodes"]
        ],
    )
    if all(node["alive"] for node in facts["nodes"]):
        print(f"export SATURNMQ_NAMESERVER={','.join(cluster.nameservers)}")
