"""One Kafka broker on this machine, and Spark's connector for it: what the pipeline is compared to.

Neither is ours, and nothing of them is kept in the repository: Maven copies the jars below a cache
directory, once (`packages.py`). The broker is its own controller (KRaft), listens on loopback, and
has Kafka's defaults otherwise.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from peers.packages import jars

SERVER = ("org.apache.kafka:kafka_2.13:4.2.0", "org.slf4j:slf4j-simple:1.7.36")
# The connector names repositories of its own for what it needs, so that is named here.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
START_TIMEOUT_S = 120.0
VARIABLE = "SATURNMQ_KAFKA"

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={logs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def connector(cache: Path) -> list[Path]:
    """What Spark loads (`spark.jars`)."""
    return jars(cache, "connector", CONNECTOR, alone=True)


class KafkaNode:
    """The broker; a context that ends it and removes its files."""

    def __init__(self, cache: Path, home: Path) -> None:
        self._classes = ":".join(str(jar) for jar in jars(cache, "server", SERVER, alone=False))
        self._home = home
        self._properties = home / "server.properties"
        self._port, controller = _free_ports(2)
        home.mkdir(parents=True)
        self._properties.write_text(
            _PROPERTIES.format(port=self._port, controller=controller, logs=home / "logs")
        )
        self.pid = 0
        self.address = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KafkaNode:
        tool = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk"]
        done = subprocess.run(
            self._java("256m", *tool, "-c", str(self._properties)),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"Kafka could not format its directory:\n{done.stderr[-2000:]}")
        with open(self._home / "log.txt", "wb") as log:
            self._process = subprocess.Popen(
                self._java("1g", "kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._process.pid
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self._port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self._home / "log.txt").read_text()[-2000:]
                self.__exit__()
                raise SystemExit(f"Kafka does not serve:\n{text}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def bytes_of(self, topic: str) -> int:
        """The bytes of the log of a topic so far."""
        return sum(path.stat().st_size for path in self._home.glob(f"logs/{topic}-*/*.log"))

    def create_topic(self, spark: Any, name: str, partitions: int) -> None:
        """By the client that the session has loaded as a part of the connector."""
        jvm = spark._jvm
        settings = jvm.java.util.Properties()
        settings.setProperty("bootstrap.servers", self.address)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        try:
            topic = jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1)
            admin.createTopics(jvm.java.util.List.of(topic)).all().get()
        finally:
            admin.close()

    def _java(self, heap: str, *arguments: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home, "bin", "java")) if home else "java"
        return [java, f"-Xmx{heap}", "-cp", self._classes, *arguments]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
