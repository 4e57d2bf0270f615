"""RocketMQ's own listeners at a broker of ours: what they take of a list, when the rest comes
again, how an ordered queue waits and gives up, and where a group begins."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from interop_nodes import SATURNMQ, Nodes, java_talk
from saturnmq import Admin, Message, Producer
from saturnmq.cli.free_ports import free_block

pytestmark = [pytest.mark.quick, pytest.mark.interop, pytest.mark.timeout(300)]
PATIENCE_S = 60.0
Seen = tuple[str, int]  # a body, and the attempts before


class JavaListeners:
    """JavaListeners.java: what its groups got, and when."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._has_started = False
        self.got: dict[str, list[Seen]] = {}
        self.times: dict[tuple[str, Seen], float] = {}
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self._wait(lambda: self._has_started, "it has not started")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("> "):  # the client's log
                continue
            words = line.split()[1:]
            with self._changed:
                if words == ["started"]:
                    self._has_started = True
                else:
                    group, seen = words[0], (words[1], int(words[2]))
                    self.got.setdefault(group, []).append(seen)
                    self.times.setdefault((group, seen), time.monotonic())
                self._changed.notify_all()

    def _wait(self, check: Callable[[], bool], problem: str) -> None:
        with self._changed:
            assert self._changed.wait_for(check, PATIENCE_S), f"{problem}: {self.got}"

    def gets(self, group: str, expected: list[Seen]) -> None:
        """As soon as the group has so many messages, they are these, in any order."""
        self._wait(lambda: len(self.got.get(group, ())) >= len(expected), f"group {group}")
        assert sorted(self.got[group]) == sorted(expected)


@contextmanager
def java_listeners(jars: Path, nameserver: str, since: float, log: Path) -> Iterator[JavaListeners]:
    moment = datetime.fromtimestamp(since).strftime("%Y%m%d%H%M%S")  # in the zone of both
    with java_talk(jars, "JavaListeners.java", nameserver, moment, log=log) as process:
        yield JavaListeners(process)


def settled_until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)


def until_second(moment: float) -> None:
    """Java's start is a whole second: the clock itself is waited for."""
    while time.time() < moment:
        threading.Event().wait(0.05)


def test_java_listeners_take_parts_of_lists_wait_give_up_and_begin_where_they_say(
    nodes: Nodes, jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    nameserver = nodes.nameserver(SATURNMQ)
    settings: dict[str, object] = {"accessMessageInMemoryMaxRatio": 0}
    nodes.broker(SATURNMQ, tmp_path / "store", free_block("127.0.0.1", 4) + 2, settings)
    with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
        for topic in ("lists", "rows", "old"):
            admin.create_topic(topic, queues=1)
        queues = {topic: producer.queues(topic)[0] for topic in ("lists", "rows", "old")}

        def send(topic: str, *bodies: str) -> None:
            for body in bodies:
                producer.send_async(Message(topic, body.encode()), queue=queues[topic])
            producer.flush()

        send("old", "before")
        since = float(int(time.time()) + 2)
        until_second(since)
        send("old", "between")
        with java_listeners(jars, nameserver, since, tmp_path / "java.log") as java:
            java.gets("first", [("before", 0), ("between", 0)])
            java.gets("timestamp", [("between", 0)])
            settled_until(lambda: [row.committed for row in admin.group_lag("last", "old")] == [2])
            send("old", "after")
            java.gets("first", [("before", 0), ("between", 0), ("after", 0)])
            java.gets("timestamp", [("between", 0), ("after", 0)])
            java.gets("last", [("after", 0)])

            send("rows", "one", "bad", "two")
            java.gets("ordered", [("one", 0), ("bad", 0), ("bad", 1), ("bad", 2), ("two", 0)])
            assert java.got["ordered"][-1] == ("two", 0)

            producer.send_batch(
                [Message("lists", b"%d" % n) for n in range(4)], queue=queues["lists"]
            )
            came = [(str(n), 0) for n in range(4)]
            java.gets("acks", [*came, ("2", 1), ("3", 1)])
            for body in "23":
                waited = java.times["acks", (body, 1)] - java.times["acks", (body, 0)]
                assert 0.9 < waited < 9.0, "level 1 is a second, the usual one 10"
            for group, bodies in (("acks", {b"2", b"3"}), ("ordered", {b"bad"})):
                dead = partial(admin.dead_letters, group)
                settled_until(lambda: {bytes(m.body) for m in dead()} == bodies)  # noqa: B023
    figures["verdicts of Java listeners"] += 5
