"""RocketMQ's own integration tests, its module `test`, at a nameserver and three brokers of ours.

The module is not part of this repository, and no registry has it: `SATURNMQ_ROCKETMQ_SOURCES` names
a checkout of RocketMQ. The classes of rocketmq_suite/ take the place of those that would start
RocketMQ's brokers in the tests' JVM.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop_cache import fetched_jars
from interop_nodes import SATURNMQ, Nodes, nodes
from saturnmq.cli.free_ports import free_block
from saturnmq.runtime.door import split_address

SOURCES_VARIABLE = "SATURNMQ_ROCKETMQ_SOURCES"
SOURCES = os.environ.get(SOURCES_VARIABLE)
OURS = Path(__file__).parent / "rocketmq_suite"
PACKAGE = "org/apache/rocketmq/test"
CLASS_S, BUILD_S = 300, 300
BROKERS = 3

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(CLASS_S + BUILD_S),
    pytest.mark.skipif(not SOURCES, reason=f"{SOURCES_VARIABLE} names no checkout of RocketMQ"),
]

LEFT_OUT = (
    *("autoswitchrole", "container", "dledger", "grpc", "lmq", "schema", "statictopic"),
    "offset/OffsetNotFoundIT",
)
"""They need more than a broker's protocol: objects of the Java broker, containers, roles."""

FAILING = {
    "client.consumer.pop.PopOrderlyIT": {"testPopMessageOrderlyThenChangeInvisibleTimeMidMessage"},
    "client.producer.batch.BatchSendIT": {"testBatchSend_SysInnerBatch"},
    "offset.LagCalculationIT": {"testEstimateLag"},
    "offset.OffsetResetForPopIT": {
        "testResetOffsetThenAckOldForPopOrderly",
        "testRestOffsetToSkipMsgForPopOrderly",
    },
    "recall.RecallWithTraceIT": {"testRecallTrace"},
    "recall.SendAndRecallDelayMessageIT": {"testSendAndRecall_ukCollision"},
    "route.CreateAndUpdateTopicIT": {"testStaticTopicNotAffected"},
    "smoke.NormalMessageSendAndRecvIT": {
        "testSynSendMessageWhenEnableBuildConsumeQueueConcurrently"
    },
}
"""The tests that fail, and why: docs/interop.md."""


def sources() -> list[Path]:
    """The Java files of the module that are compiled, with ours in the place of some."""
    assert SOURCES is not None
    module = Path(SOURCES) / "test" / "src"
    ours = {path.relative_to(OURS): path for path in OURS.rglob("*.java")}
    found = list(ours.values())
    for root in (module / "main" / "java", module / "test" / "java"):
        for path in sorted(root.rglob("*.java")):
            place = path.relative_to(root)
            of_package = place.relative_to(PACKAGE).with_suffix("").as_posix()
            if place not in ours and not of_package.startswith(LEFT_OUT):
                found.append(path)
    return found


def classes() -> list[str]:
    """The names of the test classes, from the package on."""
    if not SOURCES:
        return []
    marker = f"/src/test/java/{PACKAGE}/"
    found = [path.as_posix().partition(marker)[2] for path in sources()]
    assert any(found), f"{SOURCES_VARIABLE} is {SOURCES!r}, which has no test{marker}"
    return sorted(name[:-5].replace("/", ".") for name in found if name.endswith("IT.java"))


@dataclass
class Suite:
    """The compiled tests, and the nodes that they use."""

    command: list[str]

    def run(self, name: str) -> str:
        """What JUnit prints of a class."""
        full = f"{PACKAGE}/{name}".replace("/", ".")
        done = subprocess.run(
            [*self.command, "org.junit.runner.JUnitCore", full],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=CLASS_S,
        )
        return done.stdout


def compiled(jars: Path, home: Path) -> list[str]:
    """The class path of the tests."""
    libraries = fetched_jars("rocketmq-suite", "rocketmq_suite/pom.xml")
    path = f"{libraries}/*:{jars}/*"
    command = ["javac", "-nowarn", "-cp", path, "-d", str(home / "classes"), *map(str, sources())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_S)
    assert done.returncode == 0, done.stderr
    # Of two classes of one name the first is taken: ours.
    return ["-cp", f"{home / 'classes'}:{SOURCES}/test/src/test/resources:{path}"]


def start_brokers(made: Nodes, home: Path) -> list[str]:
    """The ports of the brokers."""
    ports = []
    for number in range(1, BROKERS + 1):
        port = free_block("127.0.0.1", 4) + 2
        settings: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": f"TestBrokerName_{number}",
            "enablePropertyFilter": "true",
            "recallMessageEnable": "true",
            "timerWheelEnable": "true",
            "grpcServerPort": -1,
        }
        made.broker(SATURNMQ, home / f"store-{number}", port, settings)
        ports.append(str(port))
    return ports


@pytest.fixture(scope="module")
def suite(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    home = tmp_path_factory.mktemp("suite")
    class_path = compiled(jars, home)
    with nodes(home, jars) as made:
        ports = start_brokers(made, home)
        _, nameserver = split_address(made.nameserver(SATURNMQ))
        command = ["java", "-Xmx1g", f"-Duser.home={home}", f"-Djava.io.tmpdir={home}"]
        command += [f"-Drocketmq.client.logRoot={home}", f"-Dsuite.nameserver={nameserver}"]
        yield Suite([*command, f"-Dsuite.brokers={','.join(ports)}", *class_path])


@pytest.mark.parametrize("name", classes())
def test_rocketmqs_own_tests_pass_but_for_those_that_the_page_lists(
    suite: Suite, name: str, figures: Counter[str]
) -> None:
    printed = suite.run(name)
    ended = re.search(r"^OK \((\d+) tests?\)|^Tests run: (\d+),", printed, re.MULTILINE)
    assert ended is not None, printed[-3000:]
    failed = set(re.findall(r"^\d+\) (\w+)\(", printed, re.MULTILINE))
    assert failed == FAILING.get(name, set()), printed[-3000:]
    figures["tests of RocketMQ's own that pass"] += int(ended[1] or ended[2]) - len(failed)
