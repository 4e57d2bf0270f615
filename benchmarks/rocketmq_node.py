"""One RocketMQ 5.4 nameserver and broker on this machine, beside which a benchmark puts ours.

The jars are RocketMQ's from Maven, in a directory that SATURNMQ_ROCKETMQ_LIB names; by default the
one that `tests/interop` fetches them to. The broker has its own defaults, with asynchronous flush
and its timer wheel on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path

from saturnmq.cli.free_ports import free_block

VARIABLE = "SATURNMQ_ROCKETMQ_LIB"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saturnmq"
START_S = 120.0
_OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util")
_JAVA = [
    "java",
    "-server",
    "-Xms1g",
    "-Xmx2g",
    "-XX:+UseG1GC",
    "-XX:MaxDirectMemorySize=2g",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
]


class RocketMQNode:
    """Both processes; a context that ends them."""

    def __init__(self, home: Path) -> None:
        self._jars = Path(os.environ.get(VARIABLE) or CACHE / "rocketmq-5.4.0")
        if not list(self._jars.glob("rocketmq-broker-*.jar")):
            raise SystemExit(f"no jars of RocketMQ in {self._jars}: name them with {VARIABLE}")
        self._home = home
        port = free_block("127.0.0.1", 10)
        self.nameserver = f"127.0.0.1:{port}"
        self._ports = (port, port + 4)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def broker_pid(self) -> int:
        return self._processes[-1].pid

    def __enter__(self) -> RocketMQNode:
        self._home.mkdir(parents=True, exist_ok=True)
        nameserver, broker = self._ports
        addresses = {"bindAddress": "127.0.0.1"}
        self._start("namesrv.NamesrvStartup", {**addresses, "listenPort": nameserver})
        self._until_open(nameserver)
        options = {
            **addresses,
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": broker,
            "haListenPort": broker + 1,
            "namesrvAddr": self.nameserver,
            "storePathRootDir": self._home / "store",
            "storePathCommitLog": self._home / "store" / "commitlog",
            "diskMaxUsedSpaceRatio": 95,
        }
        self._start("broker.BrokerStartup", options)
        self._until_open(broker)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _start(self, name: str, options: dict[str, object]) -> None:
        conf = self._home / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
        command = [*_JAVA, f"-Duser.home={self._home}", "-cp", f"{self._jars}/*"]
        command += [f"org.apache.rocketmq.{name}", "-c", str(conf)]
        with open(self._home / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "ROCKETMQ_HOME": str(self._home)},
            )
        self._processes.append(process)

    def _until_open(self, port: int) -> None:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"RocketMQ does not listen on {port}; see {self._home}")
            time.sleep(0.1)
