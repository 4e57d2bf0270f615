"""The cluster of compose/: built, started and stopped as the README says, and under drills."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from example_rig import printed_by
from saturnmq import Admin, Message, Producer, PullConsumer, SendStatus
from saturnmq.drills.failover import compose
from tls_rig import spoken

ROOT = Path(__file__).parents[2]
FILE = ROOT / compose.FILE
WHEELS = ROOT / "compose" / "wheels"
BASE_IMAGE = "python:3.11-slim-bookworm"
NODES = {f"{kind}-{n}" for kind in ("nameserver", "master", "slave") for n in range(2)}
ETCDS = {f"etcd-{n}" for n in range(3)}
LIVENESS_S = 120.0
COUNT = 300


def why_not() -> str | None:
    """Why no image can be built and started here, or None."""
    reason = compose.why_not(FILE)
    if reason is not None:
        return reason
    if done("docker", "image", "inspect", BASE_IMAGE) and done("docker", "pull", BASE_IMAGE):
        return f"the engine has no image {BASE_IMAGE} and cannot pull it"
    if not WHEELS.is_dir():
        pip = ["python3", "-m", "pip", "--retries", "1", "download", "-q", "--no-deps", "typer"]
        if done("docker", "run", "--rm", BASE_IMAGE, *pip, "-d", "/tmp"):
            return "no package index in containers and no compose/wheels: run make compose-wheels"
        return None
    made = max(wheel.stat().st_mtime for wheel in WHEELS.glob("saturnmq-*.whl"))
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.pyx"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    sources = [ROOT / name for name in listed.stdout.split() if not name.startswith("tests/")]
    if any(source.exists() and source.stat().st_mtime > made for source in sources):
        return "compose/wheels is older than the sources: run make compose-wheels"
    return None


def done(*command: str) -> int:
    return subprocess.run(command, capture_output=True, check=False, timeout=120).returncode


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@dataclass
class Project:
    """The cluster under a name, a network and ports of its own, driven by one make of Compose."""

    command: list[str]
    name: str
    subnet: str
    publish: str
    etcd: bool = False

    def compose(self, *arguments: str) -> str:
        environment = {"SATURNMQ_NET": self.subnet, "SATURNMQ_PUBLISH": self.publish}
        command = [*self.command, "-p", self.name, "-f", str(FILE)]
        if self.etcd:
            command += ["--profile", "etcd"]
            endpoints = [f"{self.subnet}.{number}:2379" for number in (31, 32, 33)]
            environment["SATURNMQ_ETCD_ENDPOINTS"] = ",".join(endpoints)
        ended = subprocess.run(
            [*command, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
        return ended.stdout

    def facts(self) -> dict[str, dict]:
        """What the engine knows of each service's container."""
        ids = self.compose("ps", "-q").split()
        found = subprocess.run(["docker", "inspect", *ids], capture_output=True, check=True)
        label = "com.docker.compose.service"
        return {each["Config"]["Labels"][label]: each for each in json.loads(found.stdout)}

    def until_healthy(self) -> None:
        deadline = time.monotonic() + LIVENESS_S
        while True:
            health = {name: each["State"]["Health"] for name, each in self.facts().items()}
            states = {name: each["Status"] for name, each in health.items()}
            if states == dict.fromkeys(NODES | (ETCDS if self.etcd else set()), "healthy"):
                return
            assert time.monotonic() < deadline, health
            time.sleep(0.5)

    @property
    def nameservers(self) -> list[str]:
        """As published on the host."""
        return [f"{self.publish}:9876", f"{self.publish}:9877"]


COMMANDS = [["docker", "compose"], ["docker-compose"]]


@pytest.fixture(params=COMMANDS, ids=" ".join)
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    command = request.param
    if shutil.which(command[0]) is None or done(*command, "version"):
        pytest.skip(f"no `{' '.join(command)}` here")
    chance = random.Random(os.urandom(8))
    number = chance.randrange(64, 250), chance.randrange(1, 255)
    made = Project(
        command,
        f"saturnmq-test-{os.getpid()}",
        "10.{}.{}".format(*number),
        "127.{}.{}.1".format(*number),
    )
    try:
        yield made
    finally:
        made.compose("--profile", "etcd", "down", "--volumes", "--timeout", "10")


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_compose_starts_a_cluster_that_serves_the_host_and_keeps_its_data(project: Project) -> None:
    project.compose("up", "-d", "--build")
    project.until_healthy()
    for name, each in project.facts().items():
        container = each["Id"]
        inside = ["docker", "exec", container, "sh", "-c", "id -u; cat /proc/1/comm"]
        told = subprocess.run(inside, capture_output=True, text=True, check=True)
        user, first_process = told.stdout.split()
        assert (user != "0", first_process) == (True, "tini"), name
        limits = each["HostConfig"]
        assert (limits["ReadonlyRootfs"], limits["CapDrop"]) == (True, ["ALL"]), name
        assert 0 < limits["Memory"] <= 2 << 30, name
        assert limits["SecurityOpt"] == ["no-new-privileges:true"], name
        assert set(limits["LogConfig"]["Config"]) == {"max-size", "max-file"}, name
        assert done("docker", "exec", container, "touch", "/tmp/there") == 0, name
        assert done("docker", "exec", container, "touch", "/opt/there") != 0, name
        if "nameserver" not in name:
            mode = ["docker", "exec", container, "stat", "-c", "%a", "/data", "/data/config"]
            told = subprocess.run(mode, capture_output=True, text=True, check=True)
            assert told.stdout.split() == ["700", "700"], name

    bodies = {f"{number}".encode() for number in range(COUNT)}
    with Producer(nameservers=project.nameservers) as producer:
        until_replicated(producer)
        results = [producer.send(Message("kept", body)) for body in bodies]
    assert {result.status for result in results} == {SendStatus.OK}, "a slave has each"

    with Admin(nameservers=project.nameservers) as admin:
        admin.create_topic("greetings", message_type="NORMAL")
    for port in (8081, 8082):  # nameservers, which tell the brokers' own addresses
        lines = printed_by("clients/python/example", f"{project.publish}:{port}", "greetings")
        assert sum(line.startswith("received hello") for line in lines) == 3
    for port in (10913, 10923, 10933, 10943):
        assert spoken(f"{project.publish}:{port}") == "h2"

    project.compose("down", "--timeout", "30")  # the volumes stay
    project.compose("up", "-d")
    project.until_healthy()
    assert read(project.nameservers, "kept", len(bodies)) == bodies


@pytest.mark.cluster
@pytest.mark.skipif(
    os.environ.get("SATURNMQ_DRILLS") != "1", reason="takes a minute: set SATURNMQ_DRILLS=1"
)
@pytest.mark.timeout(900)
def test_with_the_profile_etcd_a_slave_leads_when_its_master_is_killed(project: Project) -> None:
    project.etcd = True
    project.compose("up", "-d", "--build")
    project.until_healthy()
    deadline = time.monotonic() + LIVENESS_S
    with (
        Admin(nameservers=project.nameservers) as admin,
        Producer(nameservers=project.nameservers) as producer,
    ):
        until_replicated(producer)
        while any(replica.no_failover != "" for replica in admin.replicas()):
            assert time.monotonic() < deadline, admin.replicas()
            time.sleep(0.2)
        done("docker", "kill", project.facts()["master-0"]["Id"])
        slave = f"{project.subnet}.22:10921"
        while not any(r.is_master and r.address == slave for r in admin.replicas("broker-0")):
            assert time.monotonic() < deadline, admin.replicas("broker-0")
            time.sleep(0.2)


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize("drill", ["kill-master", "partition-slave", "partition-clients"])
def test_a_drill_on_the_containers_loses_nothing(drill: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "saturnmq", "drill", "run", drill, "--compose", "--json"]
    ended = subprocess.run(
        [*command, "--keep", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    (summary,) = json.loads(ended.stdout)["summary"]
    assert summary["acked"] > 1_000
    assert summary["RPO"] == 0


def until_replicated(producer: Producer) -> None:
    """Each master has its slave: they start in any order."""
    waiting = {"broker-0", "broker-1"}
    deadline = time.monotonic() + LIVENESS_S
    while waiting:
        result = producer.send(Message("probe", b"?"))
        if result.status is SendStatus.OK:
            waiting.discard(result.queue.broker_name)
        assert time.monotonic() < deadline, f"{result.status} of {waiting}"


def read(nameservers: list[str], topic: str, count: int) -> set[bytes]:
    """Bodies of a topic, once there are as many."""
    found: set[bytes] = set()
    deadline = time.monotonic() + LIVENESS_S
    consumer = PullConsumer("readers", nameservers, from_beginning=True)
    consumer.subscribe(topic)
    with consumer:
        while len(found) < count:
            found |= {bytes(message.body) for message in consumer.poll(1.0)}
            assert time.monotonic() < deadline, f"{len(found)} of {count} arrived"
    return found
