"""`saturnmq cluster`: a whole cluster on this machine, as processes below one data directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from saturnmq._version import VERSION
from saturnmq.cli import node_environment
from saturnmq.cli.grpc_gateway import TLS_HELP, TlsMode
from saturnmq.cli.launcher import LauncherError, LocalCluster, Settings, default_data
from saturnmq.cli.output import AsJson, DryRun, emit, fail, pairs, shared_secret, table
from saturnmq.runtime.door import split_addresses

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
    election: Annotated[
        bool,
        typer.Option("--election", help="Groups elect their masters, through an etcd beside them."),
    ] = False,
    etcds: Annotated[
        int, typer.Option(help="How many members that etcd has; 3 survive the loss of one.")
    ] = 1,
    etcd: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,...", help="Elect through this etcd, and start none."),
    ] = None,
    tls: Annotated[TlsMode, typer.Option(envvar="SATURNMQ_TLS", help=TLS_HELP)] = TlsMode.AUTO,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of broker.toml for every broker."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a cluster and return when all of it serves."""
    broker_options = pairs(options, "--set")
    for name in broker_options:
        if variable := node_environment.variable_of_secret(name):
            fail(f"--set would show {name} in the list of processes: set {variable} instead")
    settings = Settings(
        nameservers=nameservers,
        masters=masters,
        slaves=slaves,
        host=host,
        base_port=base_port,
        flush=flush,
        replication=replication or ("sync" if slaves else "async"),
        election=election or bool(etcd),
        etcd=split_addresses(etcd or ""),
        etcds=etcds,
        tls=tls,
        broker_options=broker_options,
    )
    cluster = LocalCluster.up(data or default_data(), settings)
    _show(cluster, as_json, _roles(cluster), with_grpc=True)


@app.command()
def status(data: Data = None, as_json: AsJson = False) -> None:
    """The nodes, their addresses and roles, and whether they serve.

    Exit status 1 when one does not live, or a broker group takes no sends.
    """
    cluster = LocalCluster.load(data or default_data())
    roles = _roles(cluster)
    _show(cluster, as_json, roles)
    serving = {
        node.broker_name
        for node in cluster.nodes
        if node.name in roles and roles[node.name] == ("master", "")
    }
    groups = {node.broker_name for node in cluster.nodes if node.broker_name}
    if groups > serving or not all(node.alive() for node in cluster.nodes):
        raise typer.Exit(1)


@app.command()
def kill(node: NodeName, data: Data = None, as_json: AsJson = False) -> None:
    """SIGKILL one node."""
    cluster = LocalCluster.load(data or default_data())
    cluster.kill(node)
    _show(cluster, as_json, _roles(cluster))


@app.command()
def restart(node: NodeName, data: Data = None, as_json: AsJson = False) -> None:
    """Start one node again on its ports and data.

    A node that runs is stopped in order first.
    """
    cluster = LocalCluster.load(data or default_data())
    cluster.restart(node)
    _show(cluster, as_json, _roles(cluster))


@app.command()
def upgrade(
    rolling: Annotated[
        bool, typer.Option("--rolling", help="One process at a time, while the cluster serves.")
    ] = False,
    dry_run: DryRun = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Restart every node with the saturnmq that is installed now, on its ports, data and options.

    With --rolling slaves first, then nameservers, then masters, which hand over before and lead
    again afterwards. It ends at the first problem, and says what to do.
    """
    if not rolling:
        fail(
            "say --rolling: one process at a time is restarted. That needs every node running, and "
            "in every group a slave in sync. Without: `saturnmq cluster down`, then `cluster up` "
            "as before"
        )
    from saturnmq import Admin
    from saturnmq.cli.rolling import Upgrade

    cluster = LocalCluster.load(data or default_data())

    def say(text: str) -> None:
        print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    with Admin(cluster.nameservers, **shared_secret()) as admin:
        work = Upgrade(cluster, admin, say)
        order = work.check() if dry_run else work.run()
    if as_json:
        emit({"nodes": order, "masters": work.leaders, "done": not dry_run})
    elif dry_run:
        print(f"would restart {', '.join(order)}")
    else:
        print(f"restarted {len(order)} nodes; they run version {VERSION}")


@app.command()
def down(data: Data = None, as_json: AsJson = False) -> None:
    """Stop every node; the data stays."""
    cluster = LocalCluster.load(data or default_data())
    cluster.down()
    _show(cluster, as_json, {})


def _roles(cluster: LocalCluster) -> dict[str, tuple[str, str]]:
    """The role that each living broker plays now, and what is wrong with it, by node name."""
    from saturnmq import Admin, SaturnError

    try:
        with Admin(cluster.nameservers, timeout=3.0, **shared_secret()) as admin:
            replicas = {replica.address: replica for replica in admin.replicas()}
    except SaturnError as error:
        return {
            node.name: ("unknown", f"no nameserver tells: {error}")
            for node in cluster.nodes
            if node.broker_name and node.alive()
        }
    found = {}
    for node in cluster.nodes:
        if node.broker_name and node.alive():
            try:
                replica = replicas.get(node.registers_as())
            except LauncherError:
                found[node.name] = ("unknown", "starting")
                continue
            if replica is None:
                found[node.name] = ("unknown", "not registered")
            else:
                trouble = replica.trouble if replica.role == "slave" else replica.refuses
                found[node.name] = (replica.role, replica.error or trouble)
    return found


def _show(
    cluster: LocalCluster,
    as_json: bool,
    roles: dict[str, tuple[str, str]],
    *,
    with_grpc: bool = False,
) -> None:
    facts = cluster.describe()
    for node in facts["nodes"]:
        own = None if node["ha_address"] else node["kind"]  # brokers' roles change
        node["role"], node["refuses"] = roles.get(node["name"], (own, ""))
    if as_json:
        emit(facts)
        return
    table(
        f"cluster in {cluster.data}",
        ["name", "role", "address", "pid", "state"],
        [
            (
                node["name"],
                node["role"],
                node["address"],
                str(node["pid"] or "-"),
                (node["refuses"] or "serving") if node["alive"] else "stopped",
            )
            for node in facts["nodes"]
        ],
    )
    grpc = [node["grpc"] for node in facts["nodes"] if node["grpc"]]
    if with_grpc and grpc:
        tls = "plain text and TLS" if cluster.settings.tls == TlsMode.AUTO else "plain text"
        print(f"gRPC ({tls}) at {', '.join(grpc)}")
    if all(node["alive"] for node in facts["nodes"]):
        print(f"export SATURNMQ_NAMESERVER={','.join(cluster.nameservers)}")
