"""The account of the pipeline's jobs: their output against their input. Pure.

Bodies are unique, so a body says where its message lay. The archive must hold each queue as it is;
a topic that was written to must hold each message once, and those of one source queue in their
order wherever several lie in one queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from saturnmq.drills.failover.checker import DrillVerdict

Queue = tuple[str, int]  # broker, queue id
Queues = Mapping[Queue, Sequence[bytes]]
"""The bodies of each queue, in its order."""


def archived(
    verdict: DrillVerdict, given: Queues, found: Mapping[Queue, Sequence[tuple[int, bytes]]]
) -> None:
    """`found`: offset and body of each row of a queue, in the order of its files."""
    wrong = []
    for queue in sorted({*given, *found}):
        wanted = list(enumerate(given.get(queue, ())))
        rows = list(found.get(queue, ()))
        if rows != wanted:
            differ = (n for n, (a, b) in enumerate(zip(rows, wanted, strict=False)) if a != b)
            place = next(differ, min(len(rows), len(wanted)))
            wrong.append(f"{queue} has {len(rows)} of {len(wanted)} rows, right up to {place}")
    verdict.add("archive differs from the topic", wrong)
    verdict.counts["archived"] += sum(map(len, found.values()))


def delivered(verdict: DrillVerdict, what: str, given: Queues, found: Queues) -> None:
    """`found` is the topic that the job `what` wrote to."""
    source = {body: (queue, n) for queue, bodies in given.items() for n, body in enumerate(bodies)}
    times = Counter(body for bodies in found.values() for body in bodies)
    verdict.add(f"{what}: lost", [_short(body) for body in source if not times[body]])
    verdict.add(f"{what}: doubled", [_short(body) for body, n in times.items() if n > 1])
    verdict.add(f"{what}: not from the source", [_short(b) for b in times if b not in source])
    disorder = []
    for queue, bodies in found.items():
        newest: dict[Queue, int] = {}
        for body in bodies:
            origin, number = source.get(body, (queue, -1))
            if number >= 0 and number < newest.get(origin, -1):
                disorder.append(f"{_short(body)} of {origin} behind number {newest[origin]}")
            newest[origin] = max(number, newest.get(origin, -1))
    verdict.add(f"{what}: out of order", disorder)
    verdict.counts[what] += times.total()


def _short(body: bytes) -> str:
    return repr(body[:12])
