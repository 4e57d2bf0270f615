"""Are the figures still what they were? Two minutes at most; `make bench-smoke` runs it.

A figure of one machine, in one hour, says little about another one, so each is divided by a
reference that the same run measures: how fast this machine copies memory, sends a byte there and
back over loopback, and runs a plain loop of Python. The ratios are compared with those of
`smoke.json`, which is committed; one that is more than 25 % worse is a warning, one that is more
than 25 % better says that the file is out of date.

    python benchmarks/smoke.py             # compare; exit status 0
    python benchmarks/smoke.py --strict    # 1 on a warning
    python benchmarks/smoke.py --write     # make these ratios the committed ones

Each work is done five times, each time behind its reference, and the best of each counts: other
programs on the machine only ever make a figure worse.
"""

from __future__ import annotations

import argparse
import functools
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from saturnmq.cli.bench import machine
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.workloads import CALLS, Work, one_by_one

COMMITTED = Path(__file__).with_name("smoke.json")
TOLERANCE = 0.25
ROUNDS = 5
SENDS = 5_000
COPIED = 64 << 20
PINGS = 3_000


def memcpy() -> float:
    """Bytes a second."""
    source, target = bytearray(COPIED), memoryview(bytearray(COPIED))
    target[:] = source  # its pages are there
    start = time.perf_counter()
    for _ in range(4):
        target[:] = source
    return 4 * COPIED / (time.perf_counter() - start)


def loop() -> float:
    """Turns a second of a plain loop that makes an object and calls a method."""
    count, found, start = 500_000, list[tuple[int, str]](), time.perf_counter()
    for number in range(count):
        found.append((number, "text"))
    return count / (time.perf_counter() - start)


def ping_pong() -> float:
    """Round trips a second of 1 KiB between two threads, over loopback."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listener.accept()[0] as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := peer.recv(4096):
                peer.sendall(data)

    thread = threading.Thread(target=answer)
    thread.start()
    with listener, socket.create_connection(listener.getsockname()) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.perf_counter()
        for _ in range(PINGS):
            own.sendall(bytes(1024))
            got = 0
            while got < 1024:
                got += len(own.recv(4096))
        seconds = time.perf_counter() - start
    thread.join()
    return PINGS / seconds


REFERENCES: dict[str, Callable[[], float]] = {
    "memcpy": memcpy,
    "loop": loop,
    "ping-pong": ping_pong,
}
# work: its reference, the size of a body, messages
WORKS = {
    "send_async, flush": ("loop", 100, 500_000),
    "send_async, results": ("loop", 100, 500_000),
    "send_async, callbacks": ("loop", 100, 500_000),
    "send_async, key and tag": ("loop", 100, 500_000),
    "send_batch of 1,000": ("loop", 100, 500_000),
    "send_batch_async of 1,000": ("memcpy", 1024, 200_000),
    "listen by 1,000": ("memcpy", 1024, 300_000),
    "listen one by one": ("loop", 100, 500_000),
    "listen one by one: body, keys, properties": ("loop", 100, 500_000),
    "poll(1)": ("loop", 100, 500_000),
    "poll(1000)": ("memcpy", 1024, 300_000),
}
SINGLES = {"one synchronous send": 1, "64 synchronous senders": 64}


def measured(rounds: int, part: int) -> dict[str, float]:
    """The ratios by work."""
    references: dict[str, list[float]] = {name: [] for name in REFERENCES}
    rates: dict[str, list[float]] = {}

    def measure(name: str, reference: str, act: Callable[[], tuple[int, float]]) -> None:
        references[reference].append(REFERENCES[reference]())
        count, seconds = act()
        rates.setdefault(name, []).append(count / seconds)

    with tempfile.TemporaryDirectory(prefix="saturnmq-smoke-") as home:
        cluster = LocalCluster.up(Path(home), Settings())
        try:
            for _ in range(rounds):
                works: dict[tuple[int, int], Work] = {}
                for name, (reference, size, all_of) in WORKS.items():
                    count = all_of // part
                    if (size, count) not in works:
                        works[size, count] = Work(cluster.nameservers, size, count)
                    act = functools.partial(_called, CALLS[name], works[size, count])
                    measure(name, reference, act)
                for name, senders in SINGLES.items():
                    work = Work(cluster.nameservers, 1024, max(senders, SENDS // part))
                    measure(name, "ping-pong", functools.partial(_singles, work, senders))
        finally:
            cluster.down()
    best = {name: max(found) for name, found in references.items()}
    kinds = dict.fromkeys(SINGLES, "ping-pong") | {name: work[0] for name, work in WORKS.items()}
    return {name: max(found) / best[kinds[name]] for name, found in rates.items()}


def _called(call: Callable[[Work], float], work: Work) -> tuple[int, float]:
    return work.count, call(work)


def _singles(work: Work, senders: int) -> tuple[int, float]:
    times, seconds = one_by_one(work, senders)
    return len(times), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make these ratios the committed ones")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on a warning")
    parser.add_argument("--quick", action="store_true", help="for tests: its figures mean nothing")
    parser.add_argument("--committed", type=Path, default=COMMITTED, help="another smoke.json")
    options = parser.parse_args()
    ratios = measured(1, 100) if options.quick else measured(ROUNDS, 1)
    if options.write:
        document = {"machine": machine(), "ratios": ratios}
        options.committed.write_text(json.dumps(document, indent=1) + "\n")
    committed = json.loads(options.committed.read_text())
    worse = 0
    for name, was in committed["ratios"].items():
        change = ratios[name] / was - 1
        verdict = ""
        if change < -TOLERANCE:
            worse, verdict = worse + 1, "  WARNING: slower"
        elif change > TOLERANCE:
            verdict = "  faster: run it with --write"
        print(f"{name:45} {ratios[name]:10.3g} was {was:10.3g} {100 * change:+6.0f} %{verdict}")
    if committed["machine"] != machine():
        print("The committed ratios are of another machine, or of another version of Python.")
    if worse:
        print(f"{worse} of {len(ratios)} are more than {100 * TOLERANCE:.0f} % slower.")
        if options.strict:
            sys.exit(1)


if __name__ == "__main__":
    main()
