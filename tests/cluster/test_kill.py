"""Real processes and real kills: what `saturnmq produce` was acknowledged is never lost with sync
replication.

For each kind of node a small cluster (two nameservers, one master, one slave) lives through seven
seeded rounds. In each, `saturnmq produce --acks` gets lines on its standard input, the node is
killed with SIGKILL after a seeded number of acknowledgements and comes back, lines are acknowledged
again, and a fresh group reads the topic: every acknowledged line lies where its acknowledgement
said, byte for byte, and nothing is there that was never sent.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time

import pytest
from cluster_rig import running
from saturnmq import PullConsumer
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
ROUNDS = 7
AHEAD = 200  # lines given to the program that it has not settled yet, at most
LIVENESS_S = 30.0


@pytest.mark.parametrize("victim", ["master-0", "slave-0", "nameserver-0"])
def test_kill_9_during_produce_loses_no_acknowledged_message(tmp_path, victim):
    settings = Settings(nameservers=2, masters=1, slaves=1, replication="sync")
    with running(tmp_path / "cluster", settings) as cluster:
        for seed in range(ROUNDS):
            one_round(cluster, victim, seed)


def one_round(cluster: LocalCluster, victim: str, seed: int) -> None:
    chance = random.Random(f"{victim}/{seed}")
    with Produce(cluster, f"kill-{seed}", chance.randrange(1 << 30)) as produce:
        try:
            produce.until_acked(chance.randrange(1, 2_000))
            cluster.kill(victim)
            produce.until_settled(len(produce.outcomes) + chance.randrange(1, 200))
            cluster.restart(victim)
            produce.until_acked(len(produce.acked) + 200)
            status = produce.finish()
            got = consume(cluster, produce.topic, produce.acked, f"check-{seed}")
        except AssertionError as problem:
            raise AssertionError(f"{problem}; repeat with victim {victim}, seed {seed}") from None
        assert sorted(row["line"] for row in produce.outcomes) == list(produce.lines)
        assert not produce.twice, "one place acknowledged to two lines"
        assert status == (0 if len(produce.acked) == len(produce.lines) else 1)
        lost = {place: line for place, line in produce.acked.items() if got.get(place) != line}
        assert not lost, f"{len(lost)} acknowledged lost or changed, {victim} seed {seed}: {lost}"
        phantoms = set(got.values()) - set(produce.lines.values())
        assert not phantoms, f"never sent, {victim} seed {seed}: {phantoms}"


class Produce:
    """One `saturnmq produce --acks`, a thread that gives it lines and one that reads its answers.

    `acked` maps where a line lies, as acknowledged, to its bytes.
    """

    def __init__(self, cluster: LocalCluster, topic: str, seed: int) -> None:
        self.topic = topic
        self.lines: dict[int, bytes] = {}
        self.outcomes: list[dict] = []
        self.acked: dict[tuple[str, int, int], bytes] = {}
        self.twice: list[tuple[str, int, int]] = []
        self._chance = random.Random(seed)
        self._stop = False
        command = [sys.executable, "-m", "saturnmq", "produce", topic, "--acks", "--nameserver"]
        self._process = subprocess.Popen(
            [*command, ",".join(cluster.nameservers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._threads = [threading.Thread(target=work) for work in (self._write, self._read)]

    def __enter__(self) -> Produce:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        try:
            self._process.wait(LIVENESS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        self._process.stdout.close()
        self._process.stderr.close()

    def finish(self) -> int:
        """End its input; its exit status."""
        self._stop = True
        for thread in self._threads:
            thread.join(LIVENESS_S)
        return self._process.wait(LIVENESS_S)

    def _write(self) -> None:
        # If the program ends early, `_until` says so.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as out:
            while not self._stop and self._process.poll() is None:
                if len(self.lines) - len(self.outcomes) >= AHEAD:
                    time.sleep(0.001)
                    continue
                number = len(self.lines) + 1
                size = self._chance.randrange(400)
                self.lines[number] = f"{number} {self._chance.randbytes(size).hex()}".encode()
                out.write(self.lines[number] + b"\n")
                out.flush()

    def _read(self) -> None:
        for answer in self._process.stdout:
            row = json.loads(answer)
            if row["status"] == "SEND_OK":
                place = row["broker"], row["queue"], row["offset"]
                if place in self.acked:
                    self.twice.append(place)
                self.acked[place] = self.lines[row["line"]]
            self.outcomes.append(row)

    def until_acked(self, count: int) -> None:
        self._until(lambda: len(self.acked) >= count, f"{count} acknowledged")

    def until_settled(self, count: int) -> None:
        self._until(lambda: len(self.outcomes) >= count, f"{count} settled")

    def _until(self, reached, what: str) -> None:
        deadline = time.monotonic() + LIVENESS_S
        while not reached():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise AssertionError(
                    f"not {what} within {LIVENESS_S:.0f} s: {len(self.lines)} lines, "
                    f"{len(self.acked)} acknowledged, {len(self.outcomes)} settled, the last: "
                    f"{self.outcomes[-1:]}, exit status {self._process.poll()}"
                )
            time.sleep(0.002)


def consume(
    cluster: LocalCluster, topic: str, wanted: dict[tuple[str, int, int], bytes], group: str
) -> dict[tuple[str, int, int], bytes]:
    """Read the topic from its beginning until `wanted` is complete and a poll comes back empty."""
    got: dict[tuple[str, int, int], bytes] = {}
    deadline = time.monotonic() + LIVENESS_S
    consumer = PullConsumer(group, nameservers=cluster.nameservers, from_beginning=True)
    consumer.subscribe(topic)
    with consumer:
        while time.monotonic() < deadline:
            messages = consumer.poll(timeout_s=0.5)
            for message in messages:
                place = message.broker_name, message.queue_id, message.queue_offset
                got[place] = bytes(message.body)
            if not messages and wanted.keys() <= got.keys():
                break
    return got
