"""The content of the stores when a simulated run is over.

I7: the logs of a group are equal, byte by byte. I8: what is derived from a log is what a rebuild
would give (`store/inspect/verify.py`). And which values lie where, for the verdict.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from saturnmq.drills.sim.disk import SimDisk
from saturnmq.drills.sim.history import Place, read_body
from saturnmq.drills.sim.nodes import SimBroker
from saturnmq.drills.sim.plan import ROOT, TOPIC, SimPlan
from saturnmq.protocol import kernels
from saturnmq.runtime.errors import MalformedFrame
from saturnmq.store.inspect.verify import Sizes, check
from saturnmq.store.message_store import MessageStore

AT_ONCE = 32  # messages


@contextmanager
def watched(disk: SimDisk) -> Iterator[None]:
    """For reads by the simulation itself: they are no operations of the node, so no power is lost
    and no fault is met in them."""
    step, plans, disk.step, disk.plans = disk.step, disk.plans, None, []
    try:
        yield
    finally:
        disk.step, disk.plans = step, plans


def stored(
    store: MessageStore, group: str, visible: int | None = None, topic: str = TOPIC
) -> Iterator[tuple[Place, str | None]]:
    """The messages of `topic` (below `visible`), by their places; None: a body that nobody
    made, or a damaged frame."""
    for (name, queue_id), queue in sorted(store.queues().items()):
        if name != topic:
            continue
        offset, count = queue.min_offset, AT_ONCE
        while offset < queue.max_offset:
            found = store.get_message(topic, queue_id, offset, count, 1 << 20, visible=visible)
            try:
                messages = kernels.decode_frames(found.data, True, group)
            except MalformedFrame:
                if count > 1:
                    count = 1
                    continue
                yield Place(group, queue_id, offset), None
                offset += 1
                continue
            for message in messages:
                place = Place(group, queue_id, message.queue_offset)
                yield place, read_body(bytes(message.body))
            if not messages:
                break
            offset = messages[-1].queue_offset + 1


def log_bytes(node: SimBroker) -> tuple[int, bytes]:
    """The start of a stopped broker's log, and its segments as one piece."""
    segments = node.segments()
    if not segments:
        return 0, b""
    start = int(posixpath.basename(segments[0]))
    data = bytearray()
    for path in segments:  # one may be gone
        data += bytes(int(posixpath.basename(path)) - start - len(data)) + node.disk.content(path)
    return start, bytes(data)


def compare_logs(nodes: Sequence[SimBroker], ends: Sequence[int]) -> list[str]:
    """I7 for one group whose logs end there."""
    first, *others = [(node, end, *log_bytes(node)) for node, end in zip(nodes, ends, strict=True)]
    node, end, start, data = first
    for other, other_end, other_start, other_data in others:
        names = f"{node.name} and {other.name}"
        if end != other_end:
            return [f"I7 the logs of {names} end at {end} and {other_end}"]
        if start != other_start:  # nothing is old enough to be deleted
            return [f"I7 the logs of {names} begin at {start} and {other_start}"]
        if data[: end - start] != other_data[: end - start]:
            least = min(len(data), len(other_data), end - start)
            same = (n for n in range(least) if data[n] != other_data[n])
            at = start + next(same, least)
            return [f"I7 the logs of {names} differ from {at} on, of {end}"]
    return []


def are_equal(nodes: Sequence[SimBroker]) -> bool:
    """Whether the logs of running nodes, which end at one offset, are one."""
    return not compare_logs(nodes, [node.log_end for node in nodes])


def check_store(node: SimBroker, plan: SimPlan) -> list[str]:
    """I8 for one stopped broker."""
    sizes = Sizes(plan.segment_bytes, 20 * plan.queue_entries, plan.index_slots, plan.index_items)
    found = check(node.disk, ROOT, sizes)
    return [
        f"I8 {node.name}: {finding.what}, {finding.path} {finding.position}"
        for finding in found.damage[:2]
    ]


def is_anywhere(nodes: Sequence[SimBroker], body: bytes) -> bool:
    """Whether a log or a side file has this body."""
    return is_saved(nodes, body) or any(body in log_bytes(node)[1] for node in nodes)


def is_saved(nodes: Sequence[SimBroker], body: bytes) -> bool:
    """Whether a truncation put this body into a side file."""
    return any(body in data for node in nodes for data in [*node.saved, *node.side_files()])
