"""A nameserver and one broker in a thread, for what is synchronous: the blocking clients and the
command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker_rig import config, started
from saturnmq.client.loop_thread import LoopThread
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.tls import Certificates
from saturnmq.runtime.native import NativeRuntime


@contextmanager
def served(
    root: Path,
    *,
    make_runtime: Callable[[], NativeRuntime] | None = None,
    certificates: Certificates | None = None,
    order_messages: bool = False,
    **changes: Any,
) -> Iterator[str]:
    """The nameserver's address; `changes` are settings of the broker, called `broker-a` without
    them, which may have a runtime of its own. With `certificates` both take TLS."""
    thread = LoopThread("servers")
    nameserver = NameServer(thread.runtime, port=0, order_messages=order_messages)
    try:
        thread.run(nameserver.start())
        changes = {"broker_name": "broker-a", **changes}
        settings = config(root, nameservers=(nameserver.address,), **changes)
        runtime = thread.call(make_runtime) if make_runtime else thread.runtime
        broker = thread.run(started(runtime, settings))
        nameserver.connections.certificates = broker.connections.certificates = certificates
        try:
            yield nameserver.address
        finally:
            thread.run(broker.close())
            thread.run(nameserver.close())
    finally:
        thread.close()


@contextmanager
def nameserver_alone() -> Iterator[str]:
    """The address of a nameserver in a thread that no broker registers at: clients leave it for
    another one."""
    thread = LoopThread("nameserver")
    nameserver = NameServer(thread.runtime, port=0)
    try:
        thread.run(nameserver.start())
        yield nameserver.address
        thread.run(nameserver.close())
    finally:
        thread.close()
