"""`saturnmq nameserver` and `saturnmq broker`: the wiring of one server process, with the real
doors. `saturnmq health` asks one from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli import garbage, node_log
from saturnmq.cli.launcher import write_ready
from saturnmq.cli.node_log import LogSettings
from saturnmq.cli.output import fail
from saturnmq.cli.successor import relieve
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
    ready_file: ReadyFile = None,
    relieves: Relieves = "",
    log_file: LogFile = None,
    log_bytes: LogBytes = LOG_BYTES,
    log_files: LogFiles = LOG_FILES,
) -> None:
    """Run one nameserver until it is stopped."""
    from saturnmq.nameserver.server import NameServer
    from saturnmq.protocol.signing import Signing
    from saturnmq.runtime.memory import memory_bytes

    signing = Signing.of(os.environ)

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
        return NameServer(runtime, host, port, change, signing, within, order_messages)

    _serve(build, ready_file, relieves, "nameserver", LogSettings(log_file, log_bytes, log_files))


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
    ready_file: ReadyFile = None,
    relieves: Relieves = "",
    log_file: LogFile = None,
    log_bytes: LogBytes = LOG_BYTES,
    log_files: LogFiles = LOG_FILES,
) -> None:
    """Run one broker, master or slave, until it is stopped."""
    from saturnmq.broker.broker import Broker
    from saturnmq.broker.config import BrokerConfig
    from saturnmq.store.disk import NativeDisk

    text = ""
    if config is not None:
        try:
            text = config.read_text(encoding="utf-8")
        except OSError as problem:
            fail(f"--config {config}: {problem.strerror}")
        except UnicodeDecodeError as problem:
            fail(f"--config {config}: byte {problem.start} is not UTF-8: the file is damaged")
    settings = BrokerConfig.load(text, path=str(config or ""), environ=os.environ)

    def build(runtime: Any) -> Any:
        _warn_of_readers(settings.root)
        return Broker(settings, runtime, NativeDisk(), _ballot(settings, runtime))

    _serve(build, ready_file, relieves, "broker", LogSettings(log_file, log_bytes, log_files))


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
            signing=settings.signing,
        )

    async def check(group: str, me: str, others: list[str], force: bool) -> None:
        await check_elected(runtime, group, me, others, force=force, signing=settings.signing)

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
    ready_file: Path | None,
    relieves: str,
    what: str,
    settings: LogSettings,
) -> None:
    from saturnmq.runtime import native

    node_log.start(settings)

    native.raise_descriptor_limit()
    # A thread that computes may keep the interpreter from the loop for so long.
    sys.setswitchinterval(SWITCH_S)

    async def main(runtime: Any) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        # Early, so that a signal during start-up also ends in an orderly close.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        server = build(runtime)
        if relieves:
            pid, _, started = relieves.partition(":")
            relieve(int(pid), int(started))
        await server.start()
        garbage.begin()
        watch = runtime.spawn(server.loop_watch.run(), name="loop-watch")
        tidying = runtime.spawn(_tidy(runtime), name="garbage")
        try:
            facts = {"address": server.address, "pid": os.getpid()}
            if hasattr(server, "ha_address"):
                facts["ha_address"] = server.ha_address
            if ready_file is not None:
                write_ready(ready_file, facts)
            print(f"{what} serves on {server.address}", flush=True)
            await stop.wait()
        finally:
            watch.cancel()
            tidying.cancel()
            await _closed(server.close())
        if failed := getattr(server, "failed", None):
            fail(f"the {what} had stopped taking writes: {failed}")

    native.run(main)


async def _tidy(runtime: Any) -> None:
    while True:
        await runtime.sleep(garbage.EVERY_S)
        garbage.look()


async def _closed(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result
