"""A real Apache RocketMQ in the place of our broker: the same load, the same power cuts.

Its jars are in the directory that the environment variable SATURNMQ_ROCKETMQ_LIB names. An image of
its disk is not recovered by it but read as it lies: its log ends where RocketMQ's recovery would
end it, at the first place that holds no valid frame.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from saturnmq import Admin
from saturnmq.cli.free_ports import free_block
from saturnmq.drills.kernel.mounts import RigUnavailable, undisturbed
from saturnmq.drills.kernel.server import STORE
from saturnmq.runtime.errors import SaturnError

LIB_VARIABLE = "SATURNMQ_ROCKETMQ_LIB"
START_S = 60.0
HOST = "127.0.0.1"
_OPENS = ("java.nio", "sun.nio.ch", "java.lang", "java.util")
_JAVA = (
    *("java", "-server", "-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=512m"),
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENS),
)


def why_not() -> str | None:
    """Why there is no RocketMQ here, or None."""
    jars = os.environ.get(LIB_VARIABLE, "")
    if not jars:
        return f"{LIB_VARIABLE} names no directory of RocketMQ's jars"
    if not list(Path(jars).glob("rocketmq-broker-*.jar")):
        return f"{LIB_VARIABLE} is {jars!r}, which holds no rocketmq-broker jar"
    if shutil.which("java") is None:
        return "RocketMQ needs java: install the package default-jre-headless"
    return None


class RocketServer:
    """RocketMQ's nameserver and broker."""

    def __init__(self, directory: Path, store: Path, flush: str) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_block(HOST, 5)
        self.nameservers = [f"{HOST}:{port}"]
        directory.mkdir(parents=True)
        self._configure("namesrv.conf", {"listenPort": port})
        self._configure(
            "broker.conf",
            {
                "brokerClusterName": "PowerCuts",
                "brokerName": "broker-a",
                "brokerIP1": HOST,
                "listenPort": port + 3,  # it takes the port two below and the one above as well
                "haListenPort": port + 4,
                "namesrvAddr": self.nameservers[0],
                "flushDiskType": "SYNC_FLUSH" if flush == "sync" else "ASYNC_FLUSH",
                "storePathRootDir": store,
                "storePathCommitLog": store / "commitlog",
                "mappedFileSizeCommitLog": 64 << 20,
                "messageIndexEnable": "false",
                "timerWheelEnable": "false",
                "diskMaxUsedSpaceRatio": 95,
            },
        )

    def _configure(self, name: str, settings: dict[str, object]) -> None:
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._directory / name).write_text(lines)

    def start(self) -> None:
        self._launch("namesrv.NamesrvStartup", "namesrv.conf")
        self._launch("broker.BrokerStartup", "broker.conf")
        deadline = time.monotonic() + START_S
        with Admin(self.nameservers, timeout=2.0) as admin:
            while True:
                with contextlib.suppress(SaturnError):
                    if admin.cluster():
                        return
                if time.monotonic() > deadline or any(
                    p.poll() is not None for p in self._processes
                ):
                    raise RigUnavailable(f"RocketMQ did not start: {self._printed()}")
                time.sleep(0.1)

    def _launch(self, main: str, config: str) -> None:
        home = self._directory
        classes = f"{home}:{os.environ[LIB_VARIABLE]}/*"
        with open(home / f"{main}.txt", "wb") as out, undisturbed():
            process = subprocess.Popen(
                [
                    *(*_JAVA, f"-Duser.home={home}", "-cp", classes),
                    *(f"org.apache.rocketmq.{main}", "-c", str(home / config)),
                ],
                env=os.environ | {"ROCKETMQ_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._processes.append(process)

    def _printed(self) -> str:
        texts = [path.read_text(errors="replace") for path in self._directory.glob("*.txt")]
        return "".join(texts).strip()[-500:]

    def kill(self) -> None:
        """SIGKILL both; the broker has nothing left to say."""
        for process in self._processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def rocketmq(directory: Path, mount: Path, flush: str) -> Iterator[RocketServer]:
    """RocketMQ with its store on `mount` and its logs below `directory`."""
    server = RocketServer(directory, mount / STORE, flush)
    try:
        server.start()
        yield server
    finally:
        server.kill()
