"""`saturnmq nameserver` and `saturnmq broker`: the wiring of one server process, with the real
doors. `saturnmq health` asks one from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli import garbage, node_log, processes
from saturnmq.cli.grpc_gateway import (
    OFF,
    TLS_HELP,
    USUAL_PORT,
    NodeGateway,
    TlsMode,
    TlsSettings,
    allows_self_signed,
)
from saturnmq.cli.node_log import LogSettings
from saturnmq.cli.output import drop_output, fail, write_file
from saturnmq.cli.processes import ends
from saturnmq.cli.successor import relieve
from saturnmq.protocol.credentials import credentials_of
from saturnmq.protocol.limits import MEMORY_MIN, Limits

log = logging.getLogger(__name__)

ReadyFile = Annotated[
    Path | None,
    typer.Option("--ready-file", help="Write addresses and pid there once serving.", hidden=True),
]
Relieves = Annotated[
    str,
    typer.Option(
        metavar="PID:STARTED",
        help="End that process once this one is loaded, then serve. STARTED is its start time in "
        "clock ticks since boot.",
        hidden=True,
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log-file", envvar="SATURNMQ_LOG_FILE", help="Log there, not to stderr."),
]
LogBytes = Annotated[
    int,
    typer.Option(
        "--log-bytes", envvar="SATURNMQ_LOG_BYTES", min=1, help="Begin another log file then."
    ),
]
LogFiles = Annotated[
    int,
    typer.Option(
        "--log-files", envvar="SATURNMQ_LOG_FILES", min=0, help="Keep so many older log files."
    ),
]
Tls = Annotated[TlsMode, typer.Option(envvar="SATURNMQ_TLS", help=TLS_HELP)]
TraceLoop = Annotated[
    Path | None,
    typer.Option(
        "--trace-loop",
        envvar="SATURNMQ_TRACE_LOOP",
        help="Time all that runs on the event loop; write it to a file in this directory at the "
        "end. For measurements: docs/loop.md.",
    ),
]
LOG_BYTES, LOG_FILES = 16 << 20, 4
SWITCH_S = 0.001


def nameserver(
    host: Annotated[
        str, typer.Option(envvar="SATURNMQ_HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="SATURNMQ_PORT", min=0, max=65535, help="Port; 0 = any.")
    ] = 9876,
    max_connections: Annotated[
        int, typer.Option(envvar="SATURNMQ_MAX_CONNECTIONS", min=1, help="More are refused.")
    ] = Limits.connections,
    max_connections_per_address: Annotated[
        int,
        typer.Option(
            envvar="SATURNMQ_MAX_CONNECTIONS_PER_ADDRESS", min=1, help="More of one are refused."
        ),
    ] = Limits.per_address,
    max_idle_s: Annotated[
        int,
        typer.Option(envvar="SATURNMQ_MAX_IDLE_S", min=1, help="Close a silent connection then."),
    ] = int(Limits.idle_s),
    frame_timeout_s: Annotated[
        int,
        typer.Option(
            envvar="SATURNMQ_FRAME_TIMEOUT_S", min=1, help="Close one whose request is not whole."
        ),
    ] = int(Limits.frame_s),
    memory_budget_bytes: Annotated[
        int,
        typer.Option(
            envvar="SATURNMQ_MEMORY_BUDGET_BYTES",
            min=MEMORY_MIN,
            help="Memory that is held for peers.",
        ),
    ] = Limits.memory_bytes,
    order_messages: Annotated[
        bool,
        typer.Option(
            "--order-messages",
            envvar="SATURNMQ_ORDER_MESSAGES",
            help="Routes name the queues of ordered topics (orderMessageEnable).",
        ),
    ] = False,
    kv_config: Annotated[
        Path | None,
        typer.Option(
            "--kv-config",
            envvar="SATURNMQ_KV_CONFIG",
            help="Keep the queues of ordered topics in this file (kvConfigPath), not in memory.",
        ),
    ] = None,
    grpc_port: Annotated[
        int,
        typer.Option(
            envvar="SATURNMQ_GRPC_PORT",
            min=OFF,
            max=65535,
            help="Port for clients of the gRPC API; 0 = any, -1 = none.",
        ),
    ] = USUAL_PORT,
    grpc_proxy: Annotated[
        bool,
        typer.Option(
            "--grpc-proxy",
            envvar="SATURNMQ_GRPC_PROXY",
            help="Clients of the gRPC API send all their calls to this node, which passes them on.",
        ),
    ] = False,
    tls: Tls = TlsMode.AUTO,
    tls_cert_path: Annotated[
        str,
        typer.Option(envvar="SATURNMQ_TLS_CERTIFICATE", help="Certificate of both ports (PEM)."),
    ] = "",
    tls_key_path: Annotated[
        str, typer.Option(envvar="SATURNMQ_TLS_KEY", help="Key of that certificate (PEM).")
    ] = "",
    ready_file: ReadyFile = None,
    relieves: Relieves = "",
    log_file: LogFile = None,
    log_bytes: LogBytes = LOG_BYTES,
    log_files: LogFiles = LOG_FILES,
) -> None:
    """Run one nameserver until it is stopped."""
    from saturnmq.nameserver.gateway_node import NameserverNode
    from saturnmq.nameserver.server import NameServer
    from saturnmq.protocol.signing import Signing
    from saturnmq.runtime.memory import memory_bytes
    from saturnmq.store.config_files import ConfigFile
    from saturnmq.store.disk import NativeDisk

    signing = Signing.of(os.environ)
    if kv_config is not None and not kv_config.absolute().parent.is_dir():
        fail(f"--kv-config {kv_config}: there is no directory {kv_config.absolute().parent}")

    if bool(tls_cert_path) != bool(tls_key_path):
        fail("--tls-cert-path and --tls-key-path belong together: give both, or none")
    is_self_signed = allows_self_signed(tls, tls_cert_path)

    limits = Limits(
        max_connections,
        max_connections_per_address,
        max_idle_s,
        frame_timeout_s,
        memory_budget_bytes,
    )

    def build(runtime: Any) -> Any:
        within = limits.within(memory_bytes())
        change = hand_over(runtime, signing)
        kept = None if kv_config is None else ConfigFile(NativeDisk(), str(kv_config.absolute()))
        return NameServer(runtime, host, port, change, signing, within, order_messages, kept)

    def gateway(runtime: Any, server: Any) -> NodeGateway:
        settings = TlsSettings(tls_cert_path, tls_key_path, is_self_signed, None)
        own = credentials_of(None)
        node = NameserverNode(runtime, server, is_proxy=grpc_proxy, credentials=own)
        return NodeGateway(runtime, node, server.connections, host, grpc_port, settings)

    log_settings = LogSettings(log_file, log_bytes, log_files)
    _serve(build, gateway, ready_file, relieves, "nameserver", log_settings)


def hand_over(runtime: Any, signing: Any) -> Any:
    """Hand a group over for a nameserver that is asked to elect a master; `mqadmin` waits 3 s."""
    from saturnmq.client.admin.handover import Succession
    from saturnmq.client.core import ClientCore

    async def change(group: str, addresses: list[str], broker_id: int) -> str:
        core = ClientCore(runtime, addresses, signing=signing)  # members are asked, no nameserver
        try:
            succession = Succession(core, timeout_s=1.0, addresses=addresses)
            return (await succession.hand_over(group, broker_id)).master
        finally:
            await core.close()

    return change


def broker(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="broker.toml, or RocketMQ's own broker.conf; keys: docs/configuration.md.",
        ),
    ] = None,
    tls: Annotated[
        TlsMode | None,
        typer.Option(envvar="SATURNMQ_TLS", help=f"{TLS_HELP} Default tlsTestModeEnable."),
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--processes",
            envvar="SATURNMQ_PROCESSES",
            min=1,
            max=processes.MOST,
            help="So many brokers behind this configuration, for machines with more processors: "
            "names NAME, NAME-1, ..., directories likewise, ports 10 apart.",
        ),
    ] = 1,
    ready_file: ReadyFile = None,
    relieves: Relieves = "",
    log_file: LogFile = None,
    log_bytes: LogBytes = LOG_BYTES,
    log_files: LogFiles = LOG_FILES,
    trace_loop: TraceLoop = None,
) -> None:
    """Run one broker, master or slave, until it is stopped."""
    from saturnmq.broker.broker import Broker
    from saturnmq.broker.config import BrokerConfig
    from saturnmq.store.disk import NativeDisk

    text = ""
    if config is not None:
        try:
            text = config.read_text(encoding="utf-8-sig")  # editors of Windows write a BOM
        except OSError as problem:
            fail(f"--config {config}: {problem.strerror}")
        except UnicodeDecodeError as problem:
            fail(f"--config {config}: byte {problem.start} is not UTF-8: the file is damaged")
    settings = BrokerConfig.load(text, path=str(config or ""), environ=os.environ)
    if count > 1:
        if ready_file is not None or relieves:
            fail("--processes is for brokers that are started by hand or by a service manager")
        for number in range(count):  # before any of them starts
            processes.settings_of(settings, number)
        number = processes.fork_into(count)
        settings = processes.settings_of(settings, number)
        log_file = processes.log_file_of(log_file, number)
    is_self_signed = settings.tls_test_mode
    if tls is not None:
        is_self_signed = allows_self_signed(tls, settings.tls_certificate)

    def build(runtime: Any) -> Any:
        _warn_of_readers(settings.root)
        return Broker(settings, runtime, NativeDisk(), _ballot(settings, runtime))

    def gateway(runtime: Any, server: Any) -> NodeGateway:
        own = Path(settings.root) / "tls"
        tls = TlsSettings(settings.tls_certificate, settings.tls_key, is_self_signed, own)
        host, port = settings.host, settings.grpc_port
        return NodeGateway(runtime, server, server.connections, host, port, tls)

    log_settings = LogSettings(log_file, log_bytes, log_files)
    _serve(build, gateway, ready_file, relieves, "broker", log_settings, trace_loop)


def _warn_of_readers(root: str) -> None:
    """Warn of a store that was made when other users could read it."""
    with contextlib.suppress(OSError):
        if os.stat(root).st_mode & stat.S_IROTH:
            log.warning(
                "%s can be read by every user of this machine: chmod -R o-rwx %s", root, root
            )


def _ballot(settings: Any, runtime: Any) -> Any:
    """The parts that a broker with an etcd uses for elections; None without one."""
    if not settings.etcd_endpoints:
        return None
    from saturnmq.broker.etcd.client import EtcdAccess, GrpcEtcd
    from saturnmq.broker.replication.elector import Ballot
    from saturnmq.client.admin.promotion import check_elected, promote_elected

    own = {"signing": settings.signing, "credentials": settings.own_credentials}

    async def promote(group: str, me: str, others: list[str], campaign: Any) -> None:
        epoch, force, asks = campaign.epoch, campaign.force, campaign.asks
        await promote_elected(
            runtime,
            group,
            me,
            others,
            epoch=epoch,
            force=force,
            asks=asks,
            **own,
        )

    async def check(group: str, me: str, others: list[str], force: bool) -> None:
        await check_elected(runtime, group, me, others, force=force, **own)

    access = EtcdAccess(
        endpoints=settings.etcd_endpoints,
        user=settings.etcd_user,
        password=settings.etcd_password,
        ca_file=settings.etcd_ca_file,
        cert_file=settings.etcd_cert_file,
        key_file=settings.etcd_key_file,
    )
    return Ballot(GrpcEtcd(access, runtime), promote, check)


def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The node to ask.")],
) -> None:
    """Ask one node, nameserver or broker, whether it serves; exit status 1 when it does not."""
    from saturnmq.cli.health import check

    check(address)
    print(f"{address} serves")


def _serve(
    build: Callable[[Any], Any],
    gateway_of: Callable[[Any, Any], NodeGateway],
    ready_file: Path | None,
    relieves: str,
    what: str,
    settings: LogSettings,
    trace_loop: Path | None = None,
) -> None:
    from saturnmq.runtime import loop_trace, native

    node_log.start(settings)

    native.raise_descriptor_limit()
    # A thread that computes may keep the interpreter from the loop for so long.
    sys.setswitchinterval(SWITCH_S)

    async def main(runtime: Any) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        # Early, so that a signal during start-up also ends in an orderly close.
        for number in ends():
            loop.add_signal_handler(number, stop.set)
        server = build(runtime)
        gateway = gateway_of(runtime, server)
        # While nothing serves, and nothing is ended, that it would take along.
        gateway.read_certificate()
        if relieves:
            pid, _, started = relieves.partition(":")
            relieve(int(pid), int(started))
        await server.start()
        await gateway.start()
        garbage.begin()
        watch = runtime.spawn(server.loop_watch.run(), name="loop-watch")
        tidying = runtime.spawn(_tidy(runtime), name="garbage")
        try:
            facts = {"address": server.address, "pid": os.getpid(), "grpc": gateway.address}
            if hasattr(server, "ha_address"):
                facts["ha_address"] = server.ha_address
            if ready_file is not None:
                _write_ready(ready_file, facts)
            try:
                print(f"{what} serves on {server.address}", flush=True)
            except OSError:  # nobody reads it, and a node serves nevertheless
                drop_output()
            await stop.wait()
        finally:
            watch.cancel()
            tidying.cancel()
            await gateway.close()
            await _closed(server.close())
            if trace_loop is not None:
                runtime.trace.save(trace_loop / f"{what}-{os.getpid()}.json")
        if failed := getattr(server, "failed", None):
            fail(f"the {what} had stopped taking writes: {failed}")

    native.run(main, native.NativeRuntime if trace_loop is None else loop_trace.TracedRuntime)


async def _tidy(runtime: Any) -> None:
    while True:
        await runtime.sleep(garbage.EVERY_S)
        garbage.look()


async def _closed(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result


def _write_ready(path: str | os.PathLike[str], facts: dict[str, Any]) -> None:
    """The launcher (`launcher.py`) waits for this file."""
    write_file(Path(path), json.dumps(facts))
