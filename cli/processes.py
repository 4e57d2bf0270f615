"""`saturnmq broker --processes N`: N brokers on one machine behind one configuration.

An event loop uses one processor. More of them take more brokers, each with a name, ports and a
store of its own, so clients see a cluster of N masters and spread over them as over any. The
process of the command starts the others as forks, before it has threads or a loop, and does nothing
but wait for them: a signal that ends a node goes to all, and when one ends, all end.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from saturnmq.runtime.errors import ConfigError

if TYPE_CHECKING:
    from saturnmq.broker.config import BrokerConfig

PORTS_APART = 10  # a broker has up to four ports
MOST = 64
_PR_SET_PDEATHSIG = 1


def settings_of(settings: BrokerConfig, number: int) -> BrokerConfig:
    """The configuration of process `number`, which counts from 0. The first one has the given
    configuration; a store that there is stays in use.

    ConfigError: a setting can only hold for one broker."""
    if settings.ha_master_address:
        raise ConfigError(
            "haMasterAddress names one master, and each process has one of its own: leave it "
            "empty, the nameservers know them"
        )
    if not number:
        return settings
    return dataclasses.replace(
        settings,
        broker_name=f"{settings.broker_name}-{number}",
        root=f"{settings.root.rstrip('/')}-{number}",
        port=_port("listenPort", settings.port, number),
        ha_port=_port("haListenPort", settings.ha_port, number),
        grpc_port=_port("grpcServerPort", settings.grpc_port, number),
    )


def _port(name: str, first: int, number: int) -> int:
    if first <= 0:  # any, or none
        return first
    port = first + number * PORTS_APART
    if port > 65_535:
        raise ConfigError(
            f"{name} of process {number} would be {port}, the highest port is 65535: the ports "
            f"of processes are {PORTS_APART} apart, begin lower"
        )
    return port


def log_file_of(path: Path | None, number: int) -> Path | None:
    """The log file of process `number`."""
    return path and (path.with_name(f"{path.stem}-{number}{path.suffix}") if number else path)


def ends() -> list[signal.Signals]:
    """The signals that end a node in order; that of a terminal which goes away is ignored under
    `nohup`."""
    found = [signal.SIGTERM, signal.SIGINT]
    return found if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*found, signal.SIGHUP]


def fork_into(count: int) -> int:
    """Become `count` processes: returns in each of them, with its number. The process that calls
    waits for them, and ends with the status of the first that failed."""
    parent = os.getpid()
    children: dict[int, int] = {}
    signals = ends()
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until all are known
    for number in range(count):
        child = os.fork()
        if not child:
            _end_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            return number
        children[child] = number

    is_ending = False

    def end_all(*_: object) -> None:
        nonlocal is_ending
        if not is_ending:  # one that is closing would be cut short by another signal
            is_ending = True
            for pid in children:
                os.kill(pid, signal.SIGTERM)

    for each in signals:
        signal.signal(each, end_all)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    status = 0
    while children:
        pid, waited = os.wait()
        number, ended = children.pop(pid), os.waitstatus_to_exitcode(waited)
        if ended and not status:
            status = ended if ended > 0 else 128 - ended
            print(f"saturnmq: process {number} ended with status {ended}", file=sys.stderr)
        end_all()
    sys.exit(status)


def _end_with(parent: int) -> None:
    """Have the kernel end this process if `parent` is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
