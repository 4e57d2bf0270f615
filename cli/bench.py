"""`saturnmq bench produce|consume|latency`: measured, never estimated. With `--against` a peer does
the same work beside ours (`versus.py`); `trace` looks at the broker's loop (`bench_trace.py`).

Without --nameserver a cluster of its own is started for the run: one nameserver, one master, async
flush, no slave; client and broker share the machine, as in the table of `benchmarks/README.md`.
Every run checks its result (each message acknowledged, each consumed once) before it prints a
figure, and prints the machine and whether the kernels are compiled.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli import workloads
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.output import AsJson, addresses, emit, fail, progress_bar, table, write_file

app = typer.Typer(help="Measure this machine.", no_args_is_help=True, invoke_without_command=True)

Size = Annotated[int, typer.Option("--size", min=1, help="Bytes of each body.")]
Queues = Annotated[int, typer.Option("--queues", min=1, help="Queues of the topic.")]
BenchNameserver = Annotated[
    str | None,
    typer.Option("--nameserver", help="Measure this cluster instead of one of its own."),
]


@app.callback()
def against(
    context: typer.Context,
    peer: Annotated[
        str | None,
        typer.Option("--against", metavar="kafka|rocketmq", help="Compare with this peer."),
    ] = None,
    only: Annotated[str, typer.Option(help="Lines of the comparison whose name has this.")] = "",
    pairs: Annotated[int, typer.Option(min=1, help="Runs of each side, in turns.")] = 5,
    output: Annotated[
        Path | None,
        typer.Option(help="A file of JSON for the figures; lines that it has are kept."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="A file of SVG for the chart.")] = None,
    peers: Annotated[
        Path, typer.Option(help="The folder `benchmarks` of a checkout, with the peers' programs.")
    ] = Path("benchmarks"),
    full_cache: Annotated[
        bool,
        typer.Option(help="Fill the page cache before each run, as a server's is: steadier."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure this machine, or with --against this broker and a peer on it, in pairs."""
    if context.invoked_subcommand is not None:
        if peer is not None:
            fail("--against is a run of its own: give it no command")
        return
    if peer is None:
        fail("name a command, or a peer: --against kafka")
    from saturnmq.cli import bench_chart, versus

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    document = versus.compare(
        peer, only, pairs, peers.resolve(), output, machine(), tell, full_cache=full_cache
    )
    if plot is not None:
        write_file(plot, bench_chart.chart(document, versus.short))
    if as_json:
        emit(document)
    else:
        title = f"ours beside {document['versions']}, medians of {pairs}"
        table(title, ["work", "figure", "ours", peer, "ratio", "to reach"], versus.rows(document))
    if failed := document["failed"]:
        fail("no figures for " + "; ".join(f"{name}: {why}" for name, why in failed.items()))


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
        _send(workloads.Work(servers, size, min(count, 50_000), queues=queues))  # the first segment
        work = workloads.Work(servers, size, count, queues=queues)
        seconds = _send(work)
        workloads.check_stored(servers, work.topic, count + workloads.WARM_SENDS)
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
        work = workloads.Work(servers, size, count, queues=queues)
        seconds = _drain(work, 1 if one else batch)
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
        work = workloads.Work(servers, size, count, queues=queues)
        times, seconds = workloads.one_by_one(work, senders)
    figures = {
        "senders": senders,
        "p50_us": workloads.quantile(times, 0.5),
        "p99_us": workloads.quantile(times, 0.99),
        "p999_us": workloads.quantile(times, 0.999),
    }
    _report("latency", size, len(times), seconds, figures, as_json)


@app.command("trace")
def trace(
    rate: Annotated[int, typer.Option(min=1, help="Messages a second.")] = 1_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long.")] = 10.0,
    size: Size = 1024,
    queues: Queues = 8,
    at_least_ms: Annotated[float, typer.Option(min=1, help="Shorter pauses are left out.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """The pauses of a broker's event loop at a steady rate, with a consumer: what ran, how long."""
    from saturnmq.cli import bench_trace

    bench_trace.run(rate, seconds, queues, size, at_least_ms, as_json)


# -- the work -----------------------------------------------------------------------------------


def _send(work: workloads.Work) -> float:
    with progress_bar() as bar:
        task = bar.add_task("producing", total=work.count)
        show = functools.partial(_show, bar, task)
        return workloads.sending(functools.partial(workloads.send_results, show=show))(work)


def _drain(work: workloads.Work, batch: int) -> float:
    backlog = work.backlog(keyed=False)
    with progress_bar() as bar:
        task = bar.add_task("consuming", total=work.count)
        show = functools.partial(_show, bar, task)
        return workloads.drain(work, backlog, batch, workloads.body_of, show)


def _show(bar: Any, task: Any, done: int) -> None:
    bar.update(task, completed=done)


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
