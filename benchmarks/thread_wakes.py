"""What it costs to wake a Python thread for each message, beside threads that send and wait.

    python benchmarks/thread_wakes.py [--senders N] [--rounds N] [--json]

A thread that waits for an acknowledgement sleeps until another thread wakes it. Here as many
threads as there are senders do only that: each leaves a lock where one more thread finds it, and
sleeps until that thread releases the lock. No message, no request and no broker is part of it, so
synchronous senders of one process cannot be faster. Rounds measure the wake-ups and the senders in
turns; the figures are medians.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import limits
from limits import Figures
from saturnmq.cli.workloads import Work, one_by_one

BODY = 1024
COUNT = 60_000
WAKES = "wakes", "user", "kernel"
SENDS = "sends", "send, user", "send, kernel"


def wakes(senders: int) -> Figures:
    """Wake-ups a second, and the processor time of each in us: the program's and the kernel's."""
    left: list[threading.Lock] = []
    turn, bell = threading.Lock(), threading.Semaphore(0)
    share = COUNT // senders

    def sleeper() -> None:
        for _ in range(share):
            lock = threading.Lock()
            lock.acquire()
            with turn:
                left.append(lock)
                is_first = len(left) == 1
            if is_first:
                bell.release()
            lock.acquire()

    def waker() -> None:
        woken = 0
        while woken < share * senders:
            bell.acquire()
            with turn:
                found = left.copy()
                left.clear()
            woken += len(found)
            for lock in found:
                lock.release()

    threads = [threading.Thread(target=sleeper) for _ in range(senders)]
    threads.append(threading.Thread(target=waker))

    def run() -> float:
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start

    return timed(WAKES, share * senders, run)


def sends(work: Work, senders: int) -> Figures:
    """Sends a second, and the processor time of each in this process in us."""
    return timed(SENDS, work.count, lambda: one_by_one(work, senders)[1])


def timed(names: Sequence[str], count: int, run: Callable[[], float]) -> Figures:
    """Of `run`, which does something `count` times and tells the seconds, by these names: the rate,
    and the processor time of each in us, the program's and the kernel's."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds = run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    values = count / seconds, user / count * 1e6, kernel / count * 1e6
    return dict(zip(names, values, strict=True))


def lines(figures: Figures) -> Iterator[str]:
    """The figures for people."""
    for rate, user, kernel in (WAKES, SENDS):
        yield (
            f"{rate} {figures[rate] / 1e3:.1f} k/s, processor time of each "
            f"{figures[user]:.1f} us in the program, {figures[kernel]:.1f} us in the kernel"
        )


def main() -> None:
    parser = limits.options(__doc__)
    parser.add_argument("--senders", type=int, default=64)
    args = parser.parse_args()
    found = limits.medians(
        args.rounds, BODY, COUNT, lambda _, work: wakes(args.senders) | sends(work, args.senders)
    )
    limits.show(found, lines(found), as_json=args.json)


if __name__ == "__main__":
    main()
