"""One RocketMQ 5.4 nameserver and broker on this machine, and a slave or a proxy for gRPC if one is
asked for. A benchmark puts ours beside them.

The jars are RocketMQ's from Maven (`packages.py`), in the directory that `tests/interop` keeps them
in, which has no proxy (artifact rocketmq-proxy), or in one that SATURNMQ_ROCKETMQ_LIB names. The
broker has its own defaults, but that a send may wait for 5 s instead of 0.2 before it is refused as
"broker busy".
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

from peers.packages import CACHE, jars
from saturnmq.cli.free_ports import free_block

VARIABLE = "SATURNMQ_ROCKETMQ_LIB"
VERSION = "5.4.0"
ARTIFACTS = tuple(
    f"org.apache.rocketmq:rocketmq-{name}:{VERSION}"
    for name in ("namesrv", "broker", "client", "tools")
)
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
    """The processes; a context that ends them."""

    def __init__(
        self, home: Path, *, proxy: bool = False, sync_flush: bool = False, sync_slave: bool = False
    ) -> None:
        """`sync_flush`: acknowledged when flushed; `sync_slave`: when a slave has it, too."""
        self._proxy, self._sync_slave = proxy, sync_slave
        self._flush = "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"
        self._jars = rocketmq_jars()
        wanted = "rocketmq-proxy-*.jar" if proxy else "rocketmq-broker-*.jar"
        if not list(self._jars.glob(wanted)):
            raise SystemExit(f"no {wanted} in {self._jars}: name RocketMQ's jars with {VARIABLE}")
        self._home = home
        port = free_block("127.0.0.1", 16)
        self.nameserver = f"127.0.0.1:{port}"
        self._ports = (port, port + 4)
        self.grpc = f"127.0.0.1:{port + 7}"  # of the proxy
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def broker_pid(self) -> int:
        return self._processes[1].pid

    @property
    def proxy_pid(self) -> int:
        return self._processes[-1].pid

    def __enter__(self) -> RocketMQNode:
        self._home.mkdir(parents=True, exist_ok=True)
        nameserver, broker = self._ports
        options = {"bindAddress": "127.0.0.1", "listenPort": nameserver}
        self._start("namesrv.NamesrvStartup", options, "namesrv")
        self._until_open(nameserver)
        self._start_broker(broker, 0)
        if self._sync_slave:
            self._start_broker(broker + 6, 1)
        if self._proxy:
            self._start_proxy(int(self.grpc.rpartition(":")[2]))
        return self

    def _start_broker(self, port: int, number: int) -> None:
        store = self._home / f"store-{number}"
        options = {
            "bindAddress": "127.0.0.1",
            "brokerName": "broker-a",
            "brokerId": number,
            "brokerRole": "SLAVE" if number else self._role,
            "flushDiskType": self._flush,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": self.nameserver,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "diskMaxUsedSpaceRatio": 95,
            "waitTimeMillsInSendQueue": 5000,
        }
        self._start("broker.BrokerStartup", options, f"broker-{number}")
        self._until_open(port)

    @property
    def _role(self) -> str:
        return "SYNC_MASTER" if self._sync_slave else "ASYNC_MASTER"

    def _start_proxy(self, port: int) -> None:
        conf = self._home / "proxy.json"
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "CLUSTER",
            "namesrvAddr": self.nameserver,
            "grpcServerPort": port,
            "remotingListenPort": port + 1,
            "localServeAddr": "127.0.0.1",
        }
        conf.write_text(json.dumps(settings))
        self._launch("proxy.ProxyStartup", "-pm", "cluster", "-pc", str(conf), name="proxy")
        self._until_open(port)

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _start(self, main: str, options: dict[str, object], name: str) -> None:
        conf = self._home / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
        self._launch(main, "-c", str(conf), name=name)

    def _launch(self, main: str, *arguments: str, name: str) -> None:
        command = [*_JAVA, f"-Duser.home={self._home / name}", "-cp", f"{self._jars}/*"]
        command += [f"org.apache.rocketmq.{main}", *arguments]
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


def rocketmq_jars() -> Path:
    """The directory with RocketMQ's jars; fetched if there is none yet."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    folder = CACHE / f"rocketmq-{VERSION}"
    if not list(folder.glob("rocketmq-broker-*.jar")):
        jars(CACHE, folder.name, ARTIFACTS, alone=False)
    return folder
