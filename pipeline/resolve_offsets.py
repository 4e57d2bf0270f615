"""Resolve the options of a read to its queues, and to the offsets at which it begins and ends.

`Access` answers for the values that the options leave open: names of topics, bounds of queues,
offsets at a time, a group's offsets. An impossible option is a ConfigError that says what to
change. An offset that is gone by now is a loss, as failOnDataLoss has it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from saturnmq.pipeline.access import Access
from saturnmq.pipeline.offsets import EARLIEST as EARLIEST_MARK
from saturnmq.pipeline.offsets import LATEST as LATEST_MARK
from saturnmq.pipeline.offsets import Offsets
from saturnmq.pipeline.options import EARLIEST, GROUP, LATEST, Position, SourceOptions
from saturnmq.pipeline.plan import Range
from saturnmq.pipeline.reading import lost
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError, nearest


class Bounds(NamedTuple):
    """A queue's first offset and its end."""

    low: int
    high: int


def find(
    access: Access,
    options: SourceOptions,
    *,
    may_lack: bool = False,
    begun: Collection[MessageQueue] = (),
) -> dict[MessageQueue, Bounds]:
    """The queues that the options choose, with their bounds now, sorted; those that the read has
    `begun` also if their topic has fewer queues now. ConfigError for a topic or a queue that does
    not exist, unless it `may_lack`, or waitForTopic says that it will come."""
    may_lack = may_lack or options.wait_for_topic
    if options.pattern:
        topics = _matching(access.topics(), options.pattern)
    else:
        topics = list(options.subscribe) or sorted({queue.topic for queue in options.assign})
    found = access.bounds(topics, begun)
    missing = set(topics) - {queue.topic for queue in found}
    if missing and not may_lack and not options.pattern:
        topic = min(missing)
        raise ConfigError(
            f"topic {topic!r} does not exist{nearest(topic, access.topics())}; create it, see that "
            "its broker runs, or give waitForTopic=true to begin when it does"
        )
    if options.assign:
        unknown = set(options.assign) - set(found)
        if unknown and not may_lack:
            known = ", ".join(_name(queue) for queue in sorted(found))
            raise ConfigError(
                f"option assign names {_name(min(unknown))}, which does not exist; there are "
                f"{known}"
            )
        found = {queue: found[queue] for queue in options.assign if queue in found}
    return {queue: Bounds(*found[queue]) for queue in sorted(found)}


def _matching(topics: Iterable[str], pattern: str) -> list[str]:
    """The topics that match as a whole; retry and dead-letter topics only if the pattern says `%`,
    for who wants all topics seldom means these."""
    derived = "%" in pattern
    return [
        topic
        for topic in topics
        if (derived or not topic.startswith("%")) and re.fullmatch(pattern, topic)
    ]


def is_chosen(options: SourceOptions, queue: MessageQueue) -> bool:
    """Whether the options choose the queue, be it there or not."""
    if options.pattern:
        return bool(_matching([queue.topic], options.pattern))
    return queue in options.assign or queue.topic in options.subscribe


def starting(
    access: Access, options: SourceOptions, bounds: Mapping[MessageQueue, Bounds], default: str
) -> Offsets:
    """The offset at which a stream begins in each queue."""
    found = _starts(access, options, bounds, default)
    for queue, (low, _) in bounds.items():
        if found[queue] < low:
            _deleted(options, queue, found[queue], low)
            found[queue] = low
    return found


def ranges(
    access: Access, options: SourceOptions, bounds: Mapping[MessageQueue, Bounds]
) -> list[Range]:
    """The range of a batch in each queue. Both its ends may have expired: a range that is gone is
    empty, and a loss. ConfigError for a start behind its end."""
    ends = ending(access, options, bounds)
    # The earliest message up to an end that has expired is none, rather than one behind it.
    reached = {queue: Bounds(min(low, ends[queue]), high) for queue, (low, high) in bounds.items()}
    starts = _starts(access, options, reached, EARLIEST)
    found = []
    for queue, (low, _) in bounds.items():
        start, end = starts[queue], ends[queue]
        if start > end:
            raise ConfigError(
                f"the start {start} of {_name(queue)} is behind its end {end}; let the starting "
                "option name an offset or time before that of the ending one"
            )
        if start < min(low, end):
            _deleted(options, queue, start, min(low, end))
        found.append(Range(*queue, max(start, low), max(end, low)))
    return found


def _starts(
    access: Access, options: SourceOptions, bounds: Mapping[MessageQueue, Bounds], default: str
) -> Offsets:
    position = options.starting or Position(word=default, option="startingOffsets")
    return _resolve(access, options, position, bounds, or_end=options.latest_if_no_match)


def _deleted(options: SourceOptions, queue: MessageQueue, start: int, end: int) -> None:
    lost(options.fail_on_data_loss, Range(*queue, start, end), start, end, "they are deleted")


def ending(
    access: Access, options: SourceOptions, bounds: Mapping[MessageQueue, Bounds]
) -> Offsets:
    """The end of the read in each queue: the first offset that is not read. Where nothing is as
    late as the time that is given, the queue's end, as with Spark's connector for Kafka."""
    position = options.ending or Position(word=LATEST, option="endingOffsets")
    return _resolve(access, options, position, bounds, or_end=True)


def _resolve(
    access: Access,
    options: SourceOptions,
    position: Position,
    bounds: Mapping[MessageQueue, Bounds],
    *,
    or_end: bool,
) -> Offsets:
    """`or_end`: a queue without a message that is as late as a given time counts to its end."""
    if position.offsets is not None:
        return _given(position, position.offsets, bounds)
    if position.timestamps is not None:
        _same_queues(position.option, position.timestamps, bounds)
        return {
            queue: _at_time(access, position.option, queue, bounds[queue].high, time, or_end)
            for queue, time in position.timestamps.items()
        }
    if position.timestamp is not None:
        return {
            queue: _at_time(access, position.option, queue, high, position.timestamp, or_end)
            for queue, (_, high) in bounds.items()
        }
    if position.word == GROUP:
        committed: Offsets = {}
        for topic in {queue.topic for queue in bounds}:
            committed |= access.committed(options.group, topic)
        return {
            queue: min(committed.get(queue, low), high) for queue, (low, high) in bounds.items()
        }
    return {
        queue: low if position.word == EARLIEST else high for queue, (low, high) in bounds.items()
    }


def _given(
    position: Position,
    offsets: Mapping[MessageQueue, int],
    bounds: Mapping[MessageQueue, Bounds],
) -> Offsets:
    _same_queues(position.option, offsets, bounds)
    found = {}
    for queue, (low, high) in bounds.items():
        offset = offsets[queue]
        if offset > high:
            raise ConfigError(
                f"{position.option}: {_name(queue)} has offsets {low} to {high}, {offset} is "
                "beyond its end; write one of them, -2 for the earliest or -1 for the latest"
            )
        found[queue] = {EARLIEST_MARK: low, LATEST_MARK: high}.get(offset, offset)
    return found


def _same_queues(
    option: str, given: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, Bounds]
) -> None:
    unknown, missing = sorted(set(given) - set(bounds)), sorted(set(bounds) - set(given))
    if unknown:
        known = ", ".join(map(_name, bounds)) or "none"
        raise ConfigError(f"{option}: {_name(unknown[0])} is not read here; the queues are {known}")
    if missing:
        marks = " (-2 is the earliest, -1 the latest)" if option.endswith("Offsets") else ""
        raise ConfigError(f"{option} does not name {_name(missing[0])}; name every queue{marks}")


def _at_time(
    access: Access, option: str, queue: MessageQueue, high: int, time_ms: int, or_end: bool
) -> int:
    offset = access.offset_at_time(queue, time_ms)
    if offset < high:
        return offset
    if or_end:
        return high
    raise ConfigError(
        f"{option}: no message of {_name(queue)} was stored at {time_ms} or later; give an earlier "
        "time, or startingOffsetsByTimestampStrategy=latest to take the queue's end"
    )


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name}/{queue.queue_id}"
