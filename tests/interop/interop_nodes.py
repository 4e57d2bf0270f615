"""Nameservers and brokers of both makes as processes of this test, on loopback, ended by their pid.

`ROCKETMQ` is Apache RocketMQ 5.4.0 from Maven, `SATURNMQ` is this repository. Both makes of broker
are given the same `broker.conf`, to the letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interop_cache import cached, fetched_jars, java_classes
from saturnmq.aio import Admin
from saturnmq.broker.replication.role import State
from saturnmq.cli.free_ports import free_block
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import SaturnError

if TYPE_CHECKING:
    from interop_mqadmin import Mqadmin

ROCKETMQ, SATURNMQ = "rocketmq", "saturnmq"
VERSION = "5.4.0"
LIB_VARIABLE = "SATURNMQ_ROCKETMQ_LIB"
START_S = 60.0
STOP_S = 60.0
LAST_WORDS_S = 5.0
CLUSTER = "InteropCluster"
BROKER = "broker-a"

# What the broker's mapped files and its netty need of the Java modules since Java 16.
_JAVA = [
    "java",
    "-server",
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=512m",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(
        f"--add-opens=java.base/{name}=ALL-UNNAMED"
        for name in ("java.nio", "sun.nio.ch", "java.lang", "java.util")
    ),
]


def why_not() -> str | None:
    """What is missing for a real RocketMQ, as far as can be told without downloading anything."""
    if shutil.which("java") is None:
        return "no `java` on the path"
    jars = os.environ.get(LIB_VARIABLE) or cached(f"rocketmq-{VERSION}").is_dir()
    if not jars and shutil.which("mvn") is None:
        return f"no `mvn` on the path to fetch RocketMQ with, and {LIB_VARIABLE} names no jars"
    return None


def rocketmq_jars() -> Path:
    """The directory of RocketMQ's jars; fetched by Maven once, then kept in the user's cache."""
    given = os.environ.get(LIB_VARIABLE)
    if given:
        if not list(Path(given).glob("rocketmq-broker-*.jar")):
            pytest.skip(f"{LIB_VARIABLE} is {given!r}, which holds no rocketmq-broker jar")
        return Path(given)
    return fetched_jars(f"rocketmq-{VERSION}", "pom.xml")


def client_jars(version: str) -> Path:
    """The directory of the jars of RocketMQ's client of this version."""
    if version == VERSION:
        return rocketmq_jars()
    return _jars_of("rocketmq-client", "pom-client.xml", version)


def grpc_jars(version: str) -> Path:
    """The directory of the jars of RocketMQ's client of this version, over gRPC."""
    return _jars_of("rocketmq-client-java", "pom-grpc.xml", version)


def spring_jars(version: str) -> Path:
    """The directory of the jars of rocketmq-spring of this version."""
    return _jars_of("rocketmq-spring", "pom-spring.xml", version)


def _jars_of(name: str, pom: str, version: str) -> Path:
    return fetched_jars(f"{name}-{version}", pom, f"-Drocketmq.version={version}")


def java_command(
    jars: Path, program: str, *arguments: str, options: Sequence[str] = ()
) -> list[str]:
    """The command for a Java program of this directory, in one file, with RocketMQ's classes beside
    it."""
    classes = java_classes(jars, program)
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *options]
    return [*command, "-cp", f"{classes}:{jars}/*", Path(program).stem, *arguments]


@contextlib.contextmanager
def java_talk(
    jars: Path,
    program: str,
    *arguments: str,
    log: Path,
    options: Sequence[str] = (),
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Such a program that is told and answers by lines; at the end of the block it is not told any
    more, and has a moment to end by itself."""
    options = [f"-Duser.home={log.parent}", *options]
    command = java_command(jars, program, *arguments, options=options)
    with (
        open(log, "w") as errors,
        subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                process.kill()  # a thread of RocketMQ's keeps it alive


def java(
    jars: Path, program: str, *arguments: str, text: str = "", home: Path | None = None
) -> list[str]:
    """The lines that such a program prints."""
    options = [] if home is None else [f"-Duser.home={home}"]
    command = java_command(jars, program, *arguments, options=options)
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout.splitlines()


@dataclass
class Node:
    """One running process."""

    make: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """SIGTERM: an orderly end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{self.make} had not stopped {STOP_S:.0f} s after SIGTERM\n{self.tail()}"
            ) from None

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, closed or said good-bye to."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_S)

    def until_open(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self.process.poll() is None, f"{self.make} ended at its start\n{self.tail()}"
            assert time.monotonic() < deadline, f"{self.make} does not listen\n{self.tail()}"
            time.sleep(0.02)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


@dataclass
class Nodes:
    """Starts processes below `home` and ends what is left of them."""

    home: Path
    jars: Path
    shared_mqadmin: Callable[[], Mqadmin] | None = None
    """One JVM for the commands of many tests."""
    running: list[Node] = field(default_factory=list)
    _nameservers: dict[str, Node] = field(default_factory=dict)

    def nameserver(self, make: str) -> str:
        """The address of the one nameserver of this make, started when first asked for."""
        if make not in self._nameservers:
            port = free_block("127.0.0.1", 1)
            if make == ROCKETMQ:
                conf = self._conf("namesrv", {"bindAddress": "127.0.0.1", "listenPort": port})
                main = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf)]
                node = self._java("namesrv", port, main)
            else:
                node = self._python("nameserver", port, ["nameserver", "--port", str(port)])
            node.until_open()
            self._nameservers[make] = node
        return self._nameservers[make].address

    def stop_nameserver(self, make: str) -> None:
        """End it in order; the next `nameserver` starts another one."""
        self._nameservers.pop(make).stop()

    def broker(
        self,
        make: str,
        store: Path,
        port: int,
        settings: dict[str, object],
        *,
        nameserver: str | None = None,
    ) -> Node:
        """A broker over `store`, serving and registered, by default at a nameserver of its make."""
        nameserver = nameserver or self.nameserver(make)
        options = {
            "brokerClusterName": CLUSTER,
            "brokerName": BROKER,
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": nameserver,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "autoCreateTopicEnable": "true",
            "timerWheelEnable": "false",  # 100 MiB of files that nothing here needs
            **settings,
        }
        conf = self._conf(f"{make}-{port}", options)
        if make == ROCKETMQ:
            main = ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf)]
            node = self._java("broker", port, main)
        else:
            node = self._python("broker", port, ["broker", "--config", str(conf)])
        node.until_open()
        asyncio.run(_until_serving(nameserver, node))
        return node

    def mqadmin(self, *arguments: str, java: Sequence[str] = ()) -> str:
        """What RocketMQ's own mqadmin prints; `java`: options of a JVM for this command alone."""
        if self.shared_mqadmin is not None and not java:
            printed = self.shared_mqadmin().run(*arguments)
            assert printed.ended, f"{arguments} runs for too long\n{printed.text}"
            return printed.text
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        done = subprocess.run(
            self._java_command([main, *arguments], java),
            env=self._environment() | {"LC_ALL": "C.UTF-8"},  # properties need not be ASCII
            capture_output=True,
            text=True,
            check=True,
            timeout=START_S,
        )
        return done.stdout

    def close(self) -> None:
        """End every process that is still running."""
        for node in self.running:
            node.kill()

    def _conf(self, name: str, options: dict[str, object]) -> Path:
        path = self.home / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
        return path

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "ROCKETMQ_HOME": str(self.home)}

    def _java_command(self, main: list[str], options: Sequence[str] = ()) -> list[str]:
        places = [f"-Duser.home={self.home}", f"-Djava.io.tmpdir={self.home}"]
        return [*_JAVA, *places, *options, "-cp", f"{self.jars}/*", *main]

    def _java(self, name: str, port: int, main: list[str]) -> Node:
        return self._start(ROCKETMQ, f"{ROCKETMQ}-{name}", port, self._java_command(main))

    def _python(self, name: str, port: int, arguments: list[str]) -> Node:
        command = [sys.executable, "-m", "saturnmq", *arguments]
        return self._start(SATURNMQ, f"{SATURNMQ}-{name}", port, command)

    def _start(self, make: str, name: str, port: int, command: list[str]) -> Node:
        log = self.home / f"{name}-{port}.log"
        with open(log, "ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment(),
            )
        node = Node(make, process, port, log)
        self.running.append(node)
        return node


async def _until_serving(nameserver: str, node: Node) -> None:
    """Until the broker is registered, and, one of ours, knows whether it is the master still."""
    # A RocketMQ broker finds no nameserver when it starts and looks again 10 s later, unless
    # something it has to announce changes.
    nudge = Command.request(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=6")
    deadline = time.monotonic() + START_S
    async with Admin(nameserver) as admin:
        while True:
            with contextlib.suppress(SaturnError):
                if any(known.address == node.address for known in await admin.cluster()):
                    status = await admin.broker_status(node.address)
                    if State.UNSURE.value not in status.get("refusesWrites", ""):
                        return
                if node.make == ROCKETMQ:
                    await admin.core.invoke(node.address, nudge, START_S)
            assert time.monotonic() < deadline, f"{node.make} did not register\n{node.tail()}"
            await asyncio.sleep(0.1)


@contextlib.contextmanager
def nodes(
    home: Path, jars: Path, shared_mqadmin: Callable[[], Mqadmin] | None = None
) -> Iterator[Nodes]:
    """Nodes that are ended however the block ends."""
    made = Nodes(home, jars, shared_mqadmin)
    try:
        yield made
    finally:
        made.close()
