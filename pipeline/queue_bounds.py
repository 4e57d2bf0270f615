"""The first offsets and ends of a topic's queues on one broker, ours or RocketMQ's.

A topic that gets fewer read queues has messages in the others, which a reader that has begun such a
queue goes on to read: it asks for their bounds by number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from saturnmq.client.channels import document
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command

Bounds = dict[int, tuple[int, int]]


def request(topic: str, also: Sequence[int]) -> Command:
    """The request for the bounds of all readable queues, and of these."""
    body = fastjson.dumps(also) if also else b""
    return Command.request(RequestCode.QUEUE_BOUNDS, {"topic": topic}, body)


def of_answer(address: str, answer: Command) -> Bounds:
    """The bounds in the answer of a broker of ours."""
    table = document(address, answer)
    return {int(key): (int(low), int(high)) for key, (low, high) in table.items()}


def of_rocketmq(
    address: str,
    topic: str,
    readable: Collection[int],
    also: Collection[int],
    ask: Callable[[Command], Command],
) -> Bounds:
    """The bounds at a broker of RocketMQ's. Its statistics have queues, too, that it gives nothing
    from, and not all that a topic once had."""
    stats = Command.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    table = document(address, ask(stats)).get("offsetTable") or {}
    found = {int(k[2]): (int(v["minOffset"]), int(v["maxOffset"])) for k, v in table.items()}
    for number in set(also) - set(found):
        ext = {"topic": topic, "queueId": str(number)}
        codes = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
        low, high = (int(ask(Command.request(code, ext)).ext["offset"]) for code in codes)
        found[number] = low, high
    return {number: found[number] for number in sorted(found) if number in {*readable, *also}}
