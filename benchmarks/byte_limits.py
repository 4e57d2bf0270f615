"""The rates that the copies of this machine allow for 1 KiB, beside those that are reached.

    python benchmarks/byte_limits.py [--rounds N] [--json]

A byte that is produced is copied from the application into a batch, into a socket and out of it,
from there into a frame, and from the frame into the page cache, where zeros were written before it
(docs/guarantees.md S3). A byte that is consumed is copied from the page cache into a socket and out
of it. Each of these takes processor time, which is measured here without any message. The bound of
producing is what the processors could do if they were always busy with nothing else; the bound of
consuming is a stream over a Unix socket, with one processor at each end.

Rounds measure the copies, producing and consuming in turns; the figures are medians.
"""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import limits
from limits import Figures
from saturnmq.cli.workloads import CALLS, Work

BODY = 1024
FRAME = BODY + 172  # as our client sends it, with the CRC property
COUNT = 400_000
PIECE = 1 << 20  # a batch
READ = 256 << 10
ROOM = 2 << 20  # of a socket, as between clients and brokers
TOTAL = 512 << 20
PROCESSORS = os.cpu_count() or 1


def used() -> float:
    """Processor seconds of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def per_gb(work: Callable[[int], object]) -> float:
    """Processor seconds of `work`, which gets the place of each piece, per GB."""
    begun = used()
    for at in range(0, TOTAL, PIECE):
        work(at)
    return (used() - begun) / TOTAL * 1e9


def copies(folder: Path) -> Figures:
    """Processor seconds per GB of a copy in memory, and of writes to zeroed and to new pages."""
    piece, zeros = os.urandom(PIECE), bytes(PIECE)
    memory = memoryview(bytearray(TOTAL))
    memory[:] = bytes(TOTAL)  # its pages are there

    def copy(at: int) -> None:
        memory[at : at + PIECE] = piece

    copied = per_gb(copy)
    memory.release()
    with tempfile.TemporaryFile(dir=folder) as file:
        fd = file.fileno()
        os.posix_fallocate(fd, 0, TOTAL)
        zeroed = per_gb(lambda at: os.pwrite(fd, zeros, at))
        written = per_gb(lambda at: os.pwrite(fd, piece, at))
    return {"copy": copied, "zeros": zeroed, "write": written}


def stream() -> Figures:
    """A stream from another process: processor seconds per GB of both, and bytes a second."""
    own, other = socket.socketpair()
    for each in (own, other):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
    begun = used()
    child = os.fork()
    if child == 0:
        own.close()
        piece = bytes(PIECE)
        for _ in range(0, TOTAL, PIECE):
            other.sendall(piece)
        os._exit(0)
    other.close()
    buffer, start = bytearray(READ), time.perf_counter()
    while own.recv_into(buffer):
        pass
    seconds = time.perf_counter() - start
    os.waitpid(child, 0)
    own.close()
    return {"socket": (used() - begun) / TOTAL * 1e9, "stream": TOTAL / seconds}


def bounds(figures: Figures) -> Figures:
    """Messages a second that these copies allow."""
    produced = 2 * figures["copy"] + figures["socket"] + figures["zeros"] + figures["write"]
    return {
        "produce, at most": PROCESSORS / (produced * FRAME / 1e9),
        "consume, at most": figures["stream"] / FRAME,
    }


def reached(work: Work) -> Figures:
    """Messages a second that are reached."""
    sent = work.count / CALLS["send_async, flush"](work)
    work.backlog(keyed=False)
    return {"produce": sent, "consume": work.count / CALLS["listen by 1,000"](work)}


def lines(medians: Figures) -> Iterator[str]:
    """The figures for people."""
    for key in ("copy", "socket", "zeros", "write"):
        yield f"{key:8} {medians[key]:.2f} s of processor time per GB"
    yield f"{'stream':8} {medians['stream'] / 1e9:.1f} GB/s"
    for key in ("produce", "consume"):
        rate, most = medians[key], medians[f"{key}, at most"]
        yield f"{key:8} {rate / 1e3:,.0f} k/s of {most / 1e3:,.0f} k/s: {rate / most:.0%}"


def measure(folder: Path, work: Work) -> Figures:
    """One round."""
    measured = copies(folder) | stream()
    return measured | bounds(measured) | reached(work)


def main() -> None:
    args = limits.options(__doc__).parse_args()
    found = limits.medians(args.rounds, BODY, COUNT, measure)
    limits.show(found, lines(found), as_json=args.json)


if __name__ == "__main__":
    main()
