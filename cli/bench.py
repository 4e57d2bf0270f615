"""`saturnmq bench produce|consume|latency`: measured, never estimated.

Without --nameserver a cluster of its own is started for the run: one nameserver, one master, async
flush, no slave; client and broker share the machine, as in the table of `benchmarks/README.md`.
Every run checks its result (each message acknowledged, each consumed once) before it prints a
figure, and prints the machine and whether the kernels are compiled.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.output import AsJson, addresses, emit, fail, progress_bar, table

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)

Size = Annotated[int, typer.Option("--size", min=1, help="Bytes of each body.")]
Queues = Annotated[int, typer.Option("--queues", min=1, help="Queues of the topic.")]
BenchNameserver = Annotated[
    str | None,
    typer.Option("--nameserver", help="Measure this cluster instead of one of its own."),
]
CHUNK = 100_000  # sends after which those of the chunk before are waited for


@app.command("produce")
def produce(
    size: Size = 1024,
    count: Annotated[int, typer.Option(min=1, help="Messages.")] = 1_000_000,
    queues: Queues = 4,
    nameserver: BenchNameserver = None,
    as_json: AsJson = False,
) -> None:
    """Pipelined sends of one producer process through the batching client."""
    with _target(nameserver) as servers:
        topic = _topic(servers, queues)
        _send(servers, topic, size, min(count, 50_000))  # warm-up: connections, first segment
        seconds = _send(servers, topic, size, count)
        _check_stored(servers, topic, count + min(count, 50_000))
    _report("produce", size, count, seconds, {}, as_json)


@app.command("consume")
def consume(
    size: Size = 1024,
    count: Annotated[int, typer.Option(min=1, help="Messages of backlog.")] = 1_000_000,
    batch: Annotated[int, typer.Option(min=1, help="Messages for each listener call.")] = 1000,
    one: Annotated[bool, typer.Option("--one", help="One message for each listener call.")] = False,
    queues: Queues = 4,
    nameserver: BenchNameserver = None,
    as_json: AsJson = False,
) -> None:
    """A backlog through one PushConsumer."""
    with _target(nameserver) as servers:
        topic = _topic(servers, queues)
        _send(servers, topic, size, count)
        seconds = _drain(servers, topic, size, count, 1 if one else batch, one)
    _report("consume", size, count, seconds, {"batch": 1 if one else batch}, as_json)


@app.command("latency")
def latency(
    size: Size = 1024,
    count: Annotated[int, typer.Option(min=1, help="Sends.")] = 20_000,
    senders: Annotated[int, typer.Option(min=1, help="Threads that send at once.")] = 1,
    flush: Annotated[str, typer.Option(help="async or sync, of the cluster it starts.")] = "async",
    queues: Queues = 4,
    nameserver: BenchNameserver = None,
    as_json: AsJson = False,
) -> None:
    """Synchronous sends: one waits for its acknowledgement before the next."""
    with _target(nameserver, flush) as servers:
        topic = _topic(servers, queues)
        times, seconds = _one_by_one(servers, topic, size, count, senders)
    times.sort()
    figures = {
        "senders": senders,
        "p50_us": _quantile(times, 0.5),
        "p99_us": _quantile(times, 0.99),
        "p999_us": _quantile(times, 0.999),
    }
    _report("latency", size, len(times), seconds, figures, as_json)


# -- the work -----------------------------------------------------------------------------------


def _send(servers: list[str], topic: str, size: int, count: int) -> float:
    from saturnmq import Message, Producer

    body = os.urandom(size)
    with Producer(nameservers=servers, group="bench") as producer, progress_bar() as bar:
        task = bar.add_task("producing", total=count)
        producer.send(Message(topic, body))  # route and connection
        send = producer.send_async
        before: list[Any] = []
        start = time.perf_counter()
        for done in range(0, count - 1, CHUNK):
            handles = [send(Message(topic, body)) for _ in range(min(CHUNK, count - 1 - done))]
            _settle(before)
            before = handles
            bar.update(task, completed=done)
        _settle(before)
        return time.perf_counter() - start


def _settle(handles: list[Any]) -> None:
    for handle in handles:
        if not handle.result().ok:
            fail(f"a send ended as {handle.result().status.value}")


def _drain(servers: list[str], topic: str, size: int, count: int, batch: int, one: bool) -> float:
    from saturnmq import ConsumeResult, PushConsumer

    done = threading.Event()
    sizes: list[int] = []  # appending is atomic: a lock would cost more than the message

    def listener(messages: Any) -> ConsumeResult:
        sizes.extend([len(message.body) for message in messages])
        if len(sizes) >= count:
            done.set()
        return ConsumeResult.SUCCESS

    def listener_one(message: Any) -> ConsumeResult:
        sizes.append(len(message.body))
        if len(sizes) >= count:
            done.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        f"bench-{uuid.uuid4().hex[:12]}",
        nameservers=servers,
        listener=None if one else listener,
        listener_one=listener_one if one else None,
        consume_from="first",
        consume_message_batch_max_size=batch,
    )
    consumer.subscribe(topic, "*")
    start = time.perf_counter()
    with consumer, progress_bar() as bar:
        task = bar.add_task("consuming", total=count)
        while not done.wait(0.2):
            bar.update(task, completed=len(sizes))
            if time.perf_counter() - start > 600:
                fail(f"consumed {len(sizes):,} of {count:,} in 600 s")
        seconds = time.perf_counter() - start
    taken, volume = len(sizes), sum(sizes)
    if (taken, volume) != (count, count * size):
        fail(f"consumed {taken:,} messages of {volume:,} bytes, not {count:,} of {count * size:,}")
    return seconds


def _one_by_one(
    servers: list[str], topic: str, size: int, count: int, senders: int
) -> tuple[list[float], float]:
    from saturnmq import Message, Producer

    body = os.urandom(size)
    times: list[float] = []
    problems: list[BaseException] = []
    with Producer(nameservers=servers, group="bench") as producer:
        for _ in range(min(500, count)):
            producer.send(Message(topic, body))

        def work(share: int) -> None:
            mine = []
            try:
                for _ in range(share):
                    begin = time.perf_counter()
                    if not producer.send(Message(topic, body)).ok:
                        raise RuntimeError("a send was not acknowledged")
                    mine.append((time.perf_counter() - begin) * 1e6)
            except BaseException as problem:
                problems.append(problem)
            times.extend(mine)

        start = time.perf_counter()
        if senders == 1:
            work(count)
        else:
            threads = [
                threading.Thread(target=work, args=(count // senders,)) for _ in range(senders)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        seconds = time.perf_counter() - start
    if problems:
        raise problems[0]
    return times, seconds


# -- around it ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _target(nameserver: str | None, flush: str = "async") -> Iterator[list[str]]:
    if nameserver:
        yield addresses(nameserver)
        return
    home = Path(tempfile.mkdtemp(prefix="saturnmq-bench-"))
    try:
        cluster = LocalCluster.up(home, Settings(flush=flush))
        try:
            yield cluster.nameservers
        finally:
            cluster.down()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _topic(servers: list[str], queues: int) -> str:
    from saturnmq import Admin

    topic = f"bench-{uuid.uuid4().hex[:12]}"
    with Admin(nameservers=servers) as admin:
        admin.create_topic(topic, queues=queues)
    return topic


def _check_stored(servers: list[str], topic: str, count: int) -> None:
    from saturnmq import Admin

    with Admin(nameservers=servers) as admin:
        stored = sum(row.max_offset - row.min_offset for row in admin.describe_topic(topic))
    if stored != count:
        fail(f"sent {count:,} messages, the broker stored {stored:,}")


def _quantile(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


def machine() -> dict[str, Any]:
    from saturnmq._version import VERSION
    from saturnmq.protocol import kernels

    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpus": os.cpu_count(),
        "cpu": model,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "saturnmq": VERSION,
        "kernels": bool(kernels.COMPILED),
    }


def _report(
    name: str, size: int, count: int, seconds: float, extra: dict[str, Any], as_json: bool
) -> None:
    facts: dict[str, Any] = {
        "bench": name,
        "size": size,
        "count": count,
        "seconds": round(seconds, 3),
        "msgs_per_s": round(count / seconds),
        "mb_per_s": round(count * size / seconds / 1e6, 1),
        "p50_us": None,
        "p99_us": None,
        "p999_us": None,
        **extra,
        "machine": machine(),
    }
    if as_json:
        emit(facts)
        return
    rows = [(key, value) for key, value in facts.items() if key != "machine" and value is not None]
    table("", ["", ""], [*rows, *facts["machine"].items()])
