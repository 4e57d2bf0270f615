"""Right requests of every call, for tests that make them wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway_rig import NODES, Caller, Code, everywhere
from saturnmq.broker.broker import Broker
from saturnmq.gateway import v2
from world_rig import NOW, World

Type = v2.MessageType
NOW_S = NOW // 1000


@dataclass
class Facts:
    """What right requests name."""

    brokers: list[Broker]
    caller: Caller
    handles: list[str]
    message_id: str
    transaction_id: str
    recall_handle: str


async def facts_at(world: World, node: str) -> Facts:
    """A client of one of the nodes. All that is named is at broker-0."""
    brokers, callers = await everywhere(world)
    owner = callers[NODES[0]]
    for number in range(3):
        sent = await owner.send(owner.message(b"%d" % number, "NORMAL"))
        assert sent.status.code == Code.OK
    got = await owner.receive("NORMAL", broker="broker-0", invisible_ms=600_000)
    assert len(got.messages) == 3
    due = {"message_type": Type.DELAY, "delivery_timestamp": (NOW_S + 3600) * 1000}
    (delayed,) = (await owner.send(owner.message(b"d", "DELAY", **due))).entries
    half = owner.message(b"t", "TRANSACTION", message_type=Type.TRANSACTION)
    (opened,) = (await owner.send(half)).entries
    return Facts(
        brokers,
        callers[node],
        [message.system_properties.receipt_handle for message in got.messages],
        opened.message_id,
        opened.transaction_id,
        delayed.recall_handle,
    )


def resource(name: str) -> Any:
    return v2.Resource(name=name)


def queue() -> Any:
    return v2.MessageQueue(topic=resource("NORMAL"), broker=v2.Broker(name="broker-0"))


def right(name: str, facts: Facts) -> Any:
    """A request that is answered OK."""
    topic, group = {"topic": resource("NORMAL")}, {"group": resource("G")}
    handle = {"receipt_handle": facts.handles[0]}
    fields: dict[str, Any] = {
        "QueryRoute": topic,
        "QueryAssignment": topic | group,
        "Heartbeat": group | {"client_type": v2.ClientType.SIMPLE_CONSUMER},
        "SendMessage": {"messages": [facts.caller.message(b"x", "NORMAL")]},
        "ReceiveMessage": group | {"message_queue": queue(), "batch_size": 1},
        "AckMessage": topic | group | {"entries": [handle]},
        "ChangeInvisibleDuration": topic | group | {"receipt_handle": facts.handles[1]},
        "ForwardMessageToDeadLetterQueue": topic | group | {"receipt_handle": facts.handles[2]},
        "EndTransaction": {
            "topic": resource("TRANSACTION"),
            "message_id": facts.message_id,
            "transaction_id": facts.transaction_id,
            "resolution": v2.TransactionResolution.ROLLBACK,
        },
        "RecallMessage": {"topic": resource("DELAY"), "recall_handle": facts.recall_handle},
        "PullMessage": group | {"message_queue": queue(), "batch_size": 1},
        "UpdateOffset": group | {"message_queue": queue(), "offset": 0},
        "GetOffset": group | {"message_queue": queue()},
        "QueryOffset": {"message_queue": queue(), "query_offset_policy": 1},
        "Telemetry": {"settings": v2.Settings(client_type=v2.ClientType.PRODUCER)},
        "NotifyClientTermination": group,
    }[name]
    request = v2.RPCS[name].request(**fields)
    if name == "ReceiveMessage":
        request.invisible_duration.FromSeconds(10)
        request.filter_expression.CopyFrom(v2.FilterExpression(type=1, expression="*"))
    if name == "ChangeInvisibleDuration":
        request.invisible_duration.FromSeconds(20)
    if name == "Telemetry":
        request.settings.publishing.topics.add(name="NORMAL")
    return request
