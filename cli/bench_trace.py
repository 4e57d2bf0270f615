"""`saturnmq bench trace`: what a broker's event loop does while messages come at a steady rate, and
its pauses (`runtime/loop_trace.py`). Producer and consumer run in the process of the command.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saturnmq.cli import workloads
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.output import emit, fail, table

VARIABLE = "SATURNMQ_TRACE_LOOP"
WARM_S = 1.0  # first connections, routes, files
PAUSES, PARTS = 30, 12  # lines of the tables


def run(
    rate: int, seconds: float, queues: int, size: int, at_least_ms: float, as_json: bool
) -> None:
    """Trace a broker of its own at this rate, and print what came of it."""
    home = Path(tempfile.mkdtemp(prefix="saturnmq-bench-"))
    try:
        with _traced(home):
            cluster = LocalCluster.up(home / "cluster", Settings())
        try:
            begun = _load(cluster.nameservers, rate, seconds, queues, size)
        finally:
            cluster.down()
        (path,) = home.glob("broker-*.json")
        trace = json.loads(path.read_text())
    finally:
        shutil.rmtree(home, ignore_errors=True)
    pauses = long_ones(trace, begun, begun + seconds, at_least_ms / 1000)
    if as_json:
        emit({"rate": rate, "seconds": seconds, "pauses": pauses, "totals": trace["totals"]})
        return
    title = f"pauses of {at_least_ms:g} ms and more in {seconds:g} s at {rate:,} messages/s"
    columns = ["times", "longest, ms", "all, ms", "of them processor, ms", "what ran", "where"]
    table(title, columns, [[*row.values()] for row in pauses[:PAUSES]])
    table("all that ran", ["what", "times", "ms", "longest, ms"], _parts(trace))


@contextmanager
def _traced(folder: Path) -> Iterator[None]:
    """Nodes that start meanwhile write a trace there."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def _load(nameservers: list[str], rate: int, seconds: float, queues: int, size: int) -> float:
    """Send and consume at this rate. Returns the time, of `time.monotonic`, at which the part
    began that counts."""
    from saturnmq import ConsumeResult, Message, Producer, PushConsumer

    topic, body = workloads.new_topic(nameservers, queues), os.urandom(size)
    count = int(rate * (WARM_S + seconds))
    consumed = threading.Event()
    ids: set[str] = set()

    def listen(messages: Any) -> Any:
        ids.update(message.message_id for message in messages)
        if len(ids) >= count:
            consumed.set()
        return ConsumeResult.SUCCESS

    group = f"bench-{uuid.uuid4().hex[:12]}"
    consumer = PushConsumer(group, nameservers, listener=listen, consume_from="first")
    consumer.subscribe(topic)
    with consumer, Producer("bench", nameservers) as producer:
        begun, sent = time.monotonic(), 0
        while sent < count:
            due = min(count, int((time.monotonic() - begun) * rate) + 1)
            while sent < due:
                producer.send_async(Message(topic, body))
                sent += 1
            time.sleep(max(0.0, begun + sent / rate - time.monotonic()))
        producer.flush()
        if not consumed.wait(workloads.WAIT_S):
            fail(f"{len(ids):,} of {count:,} messages came in {workloads.WAIT_S:.0f} s")
    return begun + WARM_S


def long_ones(
    trace: dict[str, Any], begun: float, end: float, at_least_s: float
) -> list[dict[str, Any]]:
    """The long runs of a trace that began in this time, those of one kind and place together; first
    those that took longest in all."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in trace["long"]:
        if begun <= each["at"] < end and each["took"] >= at_least_s:
            place = each["places"][0] if each["places"] else ""
            found.setdefault((each["what"], place), []).append(each)
    rows = [
        {
            "times": len(runs),
            "longest_ms": _ms(max(each["took"] for each in runs)),
            "all_ms": _ms(sum(each["took"] for each in runs)),
            "processor_ms": _ms(sum(each["used"] for each in runs)),
            "what": what,
            "where": place,
        }
        for (what, place), runs in found.items()
    ]
    return sorted(rows, key=lambda row: row["all_ms"], reverse=True)


def _parts(trace: dict[str, Any]) -> list[list[Any]]:
    ordered = sorted(trace["totals"].items(), key=lambda item: item[1][1], reverse=True)
    return [
        [what, times, _ms(took), _ms(longest)] for what, (times, took, longest) in ordered[:PARTS]
    ]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
