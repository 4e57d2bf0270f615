"""The drill `pipeline`: archive, replay and stream, each with its driver, a worker and a broker
killed with SIGKILL at moments drawn from the seed; then every message is accounted for.

Messages are sent to a topic. Its archive, the replay of that archive to a second topic and the
stream from the first to a third, both exactly-once, are run until they end well, as an operator or
a scheduler would: first with the driver killed, then with a worker and a master, and if that went
wrong, unharmed.
Every other killed master is replaced by its slave, where replication is synchronous, and follows
that one when it comes back.
A job that ended is run once more at once, and that must change nothing. While the archive is made,
messages go on to come before each attempt.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
from saturnmq import Admin, Message, Producer, PullConsumer
from saturnmq.drills.failover.backend import BROKER, Backend
from saturnmq.drills.failover.checker import DrillVerdict
from saturnmq.drills.pipeline import account
from saturnmq.drills.pipeline.driver import REPLAYED, SOURCE, STREAMED
from saturnmq.pipeline.jobs.manifest import Archive
from saturnmq.runtime.errors import SaturnError

MESSAGES = 6_000  # before each of the first attempts at the archive
BODY = 300
QUEUES = 4
MOMENTS_S = {"archive": 4.0, "replay": 5.0, "stream": 5.0}  # kills come within, from `ready` on
ATTEMPTS = 6
ATTEMPT_TIMEOUT_S = 240.0
OUTAGE_S = 2.0
PROMOTE_TIMEOUT_S = 20.0  # a slave may be about to follow the master that was killed
READ_TIMEOUT_S = 60.0
DRIVER, WORKER, MASTER = "driver", "worker", "broker"
Say = Callable[[str], None]


def live(backend: Backend, directory: Path, seed: int, say: Say) -> DrillVerdict:
    """The whole drill on a cluster that serves; the verdict."""
    verdict = DrillVerdict()
    life = PipelineWorkload(backend, directory, random.Random(f"{seed}/pipeline"), say, verdict)
    life.run()
    return verdict


class PipelineWorkload:
    """One drill."""

    def __init__(
        self,
        backend: Backend,
        directory: Path,
        chance: random.Random,
        say: Say,
        verdict: DrillVerdict,
    ) -> None:
        self.backend = backend
        self.directory = directory
        self.chance = chance
        self.say = say
        self.verdict = verdict
        self.begin = time.monotonic()
        self.nameservers = [n.address for n in backend.nodes if n.kind != BROKER]
        brokers = [node for node in backend.nodes if node.kind == BROKER]
        self.masters = {node.group: node for node in brokers if not node.broker_id}
        self.slaves = {node.group: node for node in brokers if node.broker_id}
        self.given: dict[account.Queue, list[bytes]] = {}
        self._sent = 0

    def run(self) -> None:
        with Admin(nameservers=self.nameservers) as admin:
            for topic in (SOURCE, REPLAYED, STREAMED):
                admin.create_topic(topic, queues=QUEUES)
        for job in MOMENTS_S:
            if not self._until_done(job):
                return
        account.archived(self.verdict, self.given, self._archive())
        for what, topic in (("replayed", REPLAYED), ("streamed", STREAMED)):
            account.delivered(self.verdict, what, self.given, self._topic(topic))

    # -- the jobs ----------------------------------------------------------------------------------

    def _until_done(self, job: str) -> bool:
        """Attempt after attempt: with the driver killed, with others killed, then unharmed."""
        for number, victims in enumerate([(DRIVER,), (WORKER, MASTER)] + [()] * ATTEMPTS):
            if job == "archive" and victims:
                self._send(MESSAGES)
            if self._attempt(job, number, victims) and number:
                return True
        self.verdict.add(f"{job} did not end", [f"in {ATTEMPTS} attempts without kills"])
        return False

    def _attempt(self, job: str, number: int, victims: tuple[str, ...]) -> bool:
        """Whether it ended well."""
        moments = sorted((self.chance.random() * MOMENTS_S[job], victim) for victim in victims)
        command = [sys.executable, "-m", "saturnmq.drills.pipeline.driver", job]
        command += [",".join(self.nameservers), str(self.directory)]
        log_path = self.directory / f"{job}-{number}.txt"
        with open(log_path, "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        told = _Lines(process)
        healing = contextlib.ExitStack()
        try:
            with healing:
                told.wait_for("ready", ATTEMPT_TIMEOUT_S)
                ready = time.monotonic()
                for moment, victim in moments:
                    told.wait_for("again", ready + moment - time.monotonic())
                    self._strike(job, victim, process, moment, healing)
                told.wait_for(None, ATTEMPT_TIMEOUT_S)
            if process.poll() is None:
                text = f"attempt {number} after {ATTEMPT_TIMEOUT_S:.0f} s; see {log_path}"
                self.verdict.add(f"{job} hangs", [text])
            return process.poll() == 0
        finally:
            _end(process)

    def _strike(
        self,
        job: str,
        victim: str,
        process: subprocess.Popen[bytes],
        moment: float,
        healing: contextlib.ExitStack,
    ) -> None:
        workers: list[int] = []
        while victim == WORKER and not workers and process.poll() is None:
            workers = _workers(process.pid)  # they come with the first task
        if process.poll() is not None:
            self.verdict.counts[f"{job}: too late for the {victim}"] += 1
            return
        if victim == DRIVER:
            _end(process)
        elif victim == WORKER:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.chance.choice(workers), signal.SIGKILL)
        else:
            self._break_broker(job, healing)
        self.verdict.counts[f"{job}: {victim} killed"] += 1
        self.say(f"{self._now()}  {job}: kill -9 of the {victim}, {moment:.2f} s after its start")

    def _break_broker(self, job: str, healing: contextlib.ExitStack) -> None:
        group = self.chance.choice(sorted(self.masters))
        name = self.masters[group].name
        outage_s = self.chance.uniform(0.2, OUTAGE_S)
        fail_over = self.chance.random() < 0.5 and self.backend.replication == "sync"
        self.backend.kill(name)

        def heal() -> None:
            time.sleep(outage_s)
            try:
                if fail_over:
                    self._promote(job, group)
            finally:
                self.backend.restart(name)

        thread = threading.Thread(target=heal, name=f"heal {group}")
        thread.start()
        healing.callback(thread.join)

    def _promote(self, job: str, group: str) -> None:
        """The slave leads, and the dead master is the slave to be."""
        slave = self.slaves[group]
        deadline = time.monotonic() + PROMOTE_TIMEOUT_S
        with Admin(nameservers=self.nameservers) as admin:
            while True:
                try:
                    admin.promote(group, slave.address)
                    break
                except SaturnError as problem:
                    if time.monotonic() >= deadline:
                        self.verdict.add("slave not promoted", [str(problem)])
                        return
                    time.sleep(0.2)
        self.masters[group], self.slaves[group] = slave, self.masters[group]
        self.verdict.counts[f"{job}: slave promoted"] += 1
        self.say(f"{self._now()}  {job}: {slave.name} is the master of {group}")

    def _now(self) -> str:
        return f"{time.monotonic() - self.begin:6.1f} s"

    # -- what goes in, what came out ---------------------------------------------------------------

    def _send(self, count: int) -> None:
        """Send so many more messages; all of them are acknowledged when this returns."""
        padding = self.chance.randbytes(BODY // 2).hex().encode()
        with Producer(nameservers=self.nameservers, group="drill") as producer:
            handles = []
            for number in range(self._sent, self._sent + count):
                body = b"%09d " % number + padding
                message = Message(SOURCE, body, keys=f"k{number}", tag=f"t{number % 3}")
                handles.append((producer.send_async(message), body))
            places: dict[account.Queue, list[tuple[int, bytes]]] = {}
            for handle, body in handles:
                receipt = handle.result()
                if not receipt.ok:
                    self.verdict.add("not sent", [receipt.status.value])
                    continue
                queue = receipt.queue.broker_name, receipt.queue.queue_id
                places.setdefault(queue, []).append((receipt.queue_offset, body))
        for queue, placed in places.items():
            self.given.setdefault(queue, []).extend(body for _, body in sorted(placed))
        self._sent += count
        self.verdict.counts["acknowledged"] += count
        self.say(f"{self._now()}  {count:,} messages sent")

    def _archive(self) -> dict[account.Queue, list[tuple[int, bytes]]]:
        """The rows of the files that the manifests list, in their order."""
        found: dict[account.Queue, list[tuple[int, bytes]]] = {}
        kept = Archive(str(self.directory / "archive"))
        for manifest in kept.existing():
            for file in sorted(manifest.files, key=lambda file: file.first):
                table = pq.read_table(kept.full(file), columns=["queueOffset", "body"])
                rows = found.setdefault((file.broker, file.queue_id), [])
                rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
        return found

    def _topic(self, topic: str) -> dict[account.Queue, list[bytes]]:
        """The messages that an ordinary consumer gets, until there are no more."""
        found: dict[account.Queue, dict[int, bytes]] = {}
        wanted = sum(map(len, self.given.values()))
        deadline = time.monotonic() + READ_TIMEOUT_S
        consumer = PullConsumer(f"count-{topic}", nameservers=self.nameservers, from_beginning=True)
        consumer.subscribe(topic)
        with consumer:
            while time.monotonic() < deadline:
                messages = consumer.poll(timeout_s=0.5)
                for message in messages:
                    queue = found.setdefault((message.broker_name, message.queue_id), {})
                    queue[message.queue_offset] = bytes(message.body)
                if not messages and sum(map(len, found.values())) >= wanted:
                    break
        return {queue: [held[n] for n in sorted(held)] for queue, held in found.items()}


class _Lines:
    """The output lines of a driver, read on a thread."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._said: set[str] = set()
        self._over = False
        self._changed = threading.Condition()
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, line: str | None, timeout_s: float) -> None:
        """Wait until the line was printed, the driver has ended, or so much time has passed."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or line in self._said, max(timeout_s, 0.0))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._said.add(line.decode(errors="replace").strip())
                self._changed.notify_all()
        self._process.wait()
        with self._changed:
            self._over = True
            self._changed.notify_all()


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for the driver: its interpreter and its JVM at once, as when the machine is gone.
    Python workers are not among them; they end when they find their driver gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _workers(driver: int) -> list[int]:
    """The Python processes below the driver's JVM."""
    found = []
    for pid, command in _descendants(driver):
        if b"pyspark" in command and b"java" not in command.split(b"\0")[0]:
            found.append(pid)
    return found


def _descendants(root: int) -> Iterator[tuple[int, bytes]]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry))
    below = list(parents.get(root, ()))
    while below:
        pid = below.pop()
        below += parents.get(pid, ())
        with contextlib.suppress(OSError):
            yield pid, Path("/proc", str(pid), "cmdline").read_bytes()
