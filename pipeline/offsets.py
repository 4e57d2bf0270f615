"""Offsets as the source's options, Spark's checkpoint and progress reports have them.

    {"orders":{"broker-a":{"0":1200,"1":1187},"broker-b":{"0":77}}}

Each number is the next offset to read. In an option -2 stands for the earliest, -1 for the latest
one. Keys are sorted, so that equal offsets are equal text: Spark compares texts. The end offset of
a micro-batch has one key more, `$plan` (plan.py), so that its repetition is cut as the first time.
That of a query's first one has also `$start`: where it begins, which Spark keeps nowhere else. No
topic can have these names. Checkpoints of 0.1 have `_plan`, which a topic may be called as well:
its offsets lie one level deeper.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saturnmq.protocol import checked
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError

EARLIEST, LATEST = -2, -1
_DIGITS_MAX = 10  # of the number of a queue
PLAN = "$plan"
START = "$start"
_PLAN_OF_0_1 = "_plan"
EXAMPLE = '{"orders":{"broker-a":{"0":1200,"1":-1}}}'

Offsets = dict[MessageQueue, int]


def to_json(
    offsets: Mapping[MessageQueue, int],
    plan: Any = None,
    start: Mapping[MessageQueue, int] | None = None,
) -> dict[str, Any]:
    """The dictionary that Spark writes as JSON; `start`: of a query's first micro-batch."""
    found: dict[str, Any] = {}
    for queue in sorted(offsets):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    if plan is not None:
        found[PLAN] = plan
    if start is not None:
        found[START] = to_json(start)
    return found


def dumps(offsets: Mapping[MessageQueue, int]) -> str:
    """The offsets as JSON text."""
    return json.dumps(to_json(offsets), separators=(",", ":"))


def from_json(value: Mapping[str, Any]) -> Offsets:
    """Read the offsets that `to_json` wrote, without their plan and start. ConfigError if it is
    something else: the checkpoint of another source."""
    offsets = {
        name: each for name, each in value.items() if name != START and not _is_plan(name, each)
    }
    return _leaves(offsets, "the checkpoint's offset", _at_least(0, "an offset"))


def plan_in(value: Mapping[str, Any]) -> Any:
    """The plan that `to_json` wrote with the offsets; None if there is none."""
    return next((each for name, each in value.items() if _is_plan(name, each)), None)


def start_in(value: Mapping[str, Any]) -> Offsets | None:
    """The start that `to_json` wrote with the end of a query's first micro-batch, or None."""
    return from_json(value[START]) if START in value else None


def _is_plan(name: str, value: Any) -> bool:
    if name == _PLAN_OF_0_1 and isinstance(value, Mapping):
        return not any(isinstance(each, Mapping) for each in value.values())
    return name == PLAN


def parse(text: str, option: str) -> Offsets:
    """Offsets that a user wrote, -2 and -1 among them."""
    return _leaves(_object(text, option), option, _at_least(EARLIEST, "an offset, -2 or -1"))


def parse_times(text: str, option: str) -> dict[MessageQueue, int]:
    """Milliseconds since 1970 by queue, in the same form."""
    return _leaves(_object(text, option), option, _at_least(0, "milliseconds since 1970"))


def parse_assignment(text: str) -> list[MessageQueue]:
    """Option `assign`: `{"orders":{"broker-a":[0,1]}}`."""
    queues: set[MessageQueue] = set()
    for topic, broker, ids in _brokers(_object(text, "assign"), "assign"):
        if not isinstance(ids, list) or not all(_whole(n) and n >= 0 for n in ids):
            raise _wrong("assign", f"{topic}.{broker} is {_shown(ids)}, not a list of queue ids")
        queues.update(MessageQueue(topic, broker, n) for n in ids)
    if not queues:
        raise _wrong("assign", "it names no queue")
    return sorted(queues)


def _object(text: str, option: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, option))
    except (ValueError, RecursionError) as error:
        raise _wrong(option, f"{text[:80]!r} is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise _wrong(option, f"{_shown(value)} is no JSON object")
    return value


def _once(pairs: list[tuple[str, Any]], option: str) -> dict[str, Any]:
    """An object whose names differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for name in names if names.count(name) > 1)
        raise _wrong(option, f"{again!r} is there twice in one object")
    return found


def _leaves(
    value: Mapping[str, Any], option: str, check: Callable[[Any], str | None]
) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for topic, broker, queues in _brokers(value, option):
        if not isinstance(queues, Mapping):
            raise _wrong(option, f"{topic}.{broker} is {_shown(queues)}, not an object of queues")
        for queue_id, number in queues.items():
            place = f"{topic}.{broker}.{queue_id}"
            if not str(queue_id).isdecimal() or len(queue_id) > _DIGITS_MAX:
                raise _wrong(option, f"{place}: {queue_id!r} is no queue id")
            problem = check(number)
            if problem is not None:
                raise _wrong(option, f"{place} is {_shown(number)}: {problem}")
            queue = MessageQueue(topic, broker, int(queue_id))
            if queue in found:
                raise _wrong(option, f"{topic}.{broker}.{int(queue_id)} is there twice")
            found[queue] = number
    return found


def _brokers(value: Mapping[str, Any], option: str) -> Iterable[tuple[str, str, Any]]:
    for topic, brokers in value.items():
        if not isinstance(brokers, Mapping):
            raise _wrong(option, f"{topic} is {_shown(brokers)}, not an object of brokers")
        for broker, queues in brokers.items():
            yield topic, broker, queues


def _at_least(least: int, what: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return None if _whole(value) and value >= least else f"{what} is wanted"

    return check


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)[:80]
    except RecursionError:
        return checked.shown(value, 80)


def _wrong(option: str, problem: str) -> ConfigError:
    form = '{"orders":{"broker-a":[0,1]}}' if option == "assign" else EXAMPLE
    return ConfigError(f"{option}: {problem}; write it as {form}")
