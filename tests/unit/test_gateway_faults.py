"""Requests with one fault each: the code of the answer is that of the fault, whichever node is
asked. Without the fault the request is answered OK."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from gateway_requests import NOW_S, Type, facts_at, resource, right
from gateway_rig import NODES, Caller, Code
from saturnmq.gateway import v2
from saturnmq.gateway.calls import CallFailed
from world_rig import World, run

DAY_S = 86_400


Fault = Callable[[Any], Any]


def put(path: str, value: Any) -> Fault:
    """Set a field, by the names that lead to it; None takes it out."""

    def change(request: Any) -> None:
        *names, last = path.split(".")
        for each in names:
            request = request[int(each)] if each.isdigit() else getattr(request, each)
        if value is None:
            request.ClearField(last)
        elif isinstance(value, dict):
            getattr(request, last).update(value)
        elif isinstance(value, list):
            request.ClearField(last)
            getattr(request, last).extend(value)
        elif hasattr(value, "DESCRIPTOR"):
            getattr(request, last).CopyFrom(value)
        else:
            setattr(request, last, value)

    return change


def several(*changes: Fault) -> Fault:
    def change(request: Any) -> None:
        for each in changes:
            each(request)

    return change


def times(field: str, count: int) -> Fault:
    """The only one of a list so many times, or not at all."""

    def change(request: Any) -> None:
        values = getattr(request, field)
        one = values[0]
        del values[:]
        for _ in range(count):
            values.add().CopyFrom(one)

    return change


def of_topic(path: str) -> list[tuple[Fault, int]]:
    return [
        *((put(f"{path}.name", name), Code.ILLEGAL_TOPIC) for name in ("", "a b", "x" * 128, "\0")),
        (put(f"{path}.name", "x" * (1 << 20)), Code.ILLEGAL_TOPIC),
        (put(f"{path}.name", "rmq_sys_wheel_timer"), Code.ILLEGAL_TOPIC),
        (put(path, None), Code.ILLEGAL_TOPIC),
    ]


def of_group(path: str = "group") -> list[tuple[Fault, int]]:
    wrong = Code.ILLEGAL_CONSUMER_GROUP
    return [
        *((put(f"{path}.name", name), wrong) for name in ("", " ", "a b", "x" * 121, "\x7f")),
        (put(f"{path}.name", "x" * (1 << 20)), wrong),
        (put(path, None), wrong),
    ]


def of_handle(path: str = "receipt_handle") -> list[tuple[Fault, int]]:
    wrong = ("", "x", "9" * 5000, "1 2 3 4 0 broker-0 0 0 0", "1 2 3 4 0 broker-0 9 0 0")
    return [(put(path, text), Code.INVALID_RECEIPT_HANDLE) for text in wrong]


def of_queue(missing: int = Code.BAD_REQUEST) -> list[tuple[Fault, int]]:
    path = "message_queue"
    return [
        *of_topic(f"{path}.topic"),
        (put(f"{path}.topic.name", "MISSING"), Code.TOPIC_NOT_FOUND),
        (put(path, None), Code.ILLEGAL_TOPIC),
        *((put(f"{path}.id", number), missing) for number in (-1, 4, 2**31 - 1, -(2**31))),
        (put(f"{path}.broker.name", "broker-9"), missing),
    ]


def duration(seconds: int) -> Any:
    return type(v2.Settings().request_timeout)(seconds=seconds)


def moment(seconds: int) -> Any:
    return type(v2.SystemProperties().born_timestamp)(seconds=seconds)


SYSTEM = "messages.0.system_properties"
CONFLICT = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
OF_MESSAGES: list[tuple[Fault, int]] = [
    (put("messages.0.body", b""), Code.MESSAGE_BODY_EMPTY),
    (put("messages.0.body", bytes((4 << 20) + 1)), Code.MESSAGE_BODY_TOO_LARGE),
    (put("messages.0.body", bytes(5 << 20)), Code.MESSAGE_BODY_TOO_LARGE),
    (put("messages.0.system_properties", None), Code.ILLEGAL_MESSAGE_ID),
    *((put(f"{SYSTEM}.message_id", text), Code.ILLEGAL_MESSAGE_ID) for text in ("", " ", "\1")),
    (put(f"{SYSTEM}.message_id", "x" * 40_000), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    *((put(f"{SYSTEM}.tag", text), Code.ILLEGAL_MESSAGE_TAG) for text in ("", " ", "a|b", "\2")),
    (put(f"{SYSTEM}.tag", "x" * 17_000), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    *((put(f"{SYSTEM}.keys", ["k", text]), Code.ILLEGAL_MESSAGE_KEY) for text in ("", "\t")),
    (put(f"{SYSTEM}.keys", ["k" * 17] * 1000), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (put(f"{SYSTEM}.keys", ["k"] * 20_000), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    *(
        (put(f"{SYSTEM}.message_group", text), Code.ILLEGAL_MESSAGE_GROUP)
        for text in ("", "\n", "g" * 64, "g" * (1 << 20))
    ),
    (put(f"{SYSTEM}.message_group", "g"), CONFLICT),
    (put(f"{SYSTEM}.born_host", "\x02TRAN_MSG\x01true\x02"), Code.BAD_REQUEST),
    (put(f"{SYSTEM}.trace_context", "\x01"), Code.BAD_REQUEST),
    (put(f"{SYSTEM}.trace_context", "x" * (1 << 20)), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    *(
        (put("messages.0.user_properties", wrong), Code.ILLEGAL_MESSAGE_PROPERTY_KEY)
        for wrong in ({"KEYS": "x"}, {"": "x"}, {"a\1": "x"}, {"a": "\2"}, {"__CRC32#": "1"})
    ),
    *(
        (put("messages.0.user_properties", wrong), Code.MESSAGE_PROPERTIES_TOO_LARGE)
        for wrong in ({f"p{n}": "x" for n in range(129)}, {"a": "x" * (1 << 20)})
    ),
    *((put(f"{SYSTEM}.message_type", kind), CONFLICT) for kind in (4, 5, 6, 7, 77, -1)),
    (put(f"{SYSTEM}.priority", 0), CONFLICT),
    (put(f"{SYSTEM}.lite_topic", "lite"), CONFLICT),
    (put(f"{SYSTEM}.delivery_timestamp", moment(NOW_S)), CONFLICT),
    (put(f"{SYSTEM}.delivery_timestamp", moment(NOW_S + 2 * DAY_S)), Code.ILLEGAL_DELIVERY_TIME),
    (put(f"{SYSTEM}.delivery_timestamp", moment(2**63 - 1)), Code.ILLEGAL_DELIVERY_TIME),
    (put(f"{SYSTEM}.orphaned_transaction_recovery_duration", duration(3601)), Code.BAD_REQUEST),
    (put(f"{SYSTEM}.body_encoding", v2.Encoding.GZIP), Code.MESSAGE_CORRUPTED),
    (put(f"{SYSTEM}.body_encoding", 77), Code.MESSAGE_CORRUPTED),
    (put(f"{SYSTEM}.body_digest", v2.Digest(type=2, checksum="00")), Code.MESSAGE_CORRUPTED),
    (
        several(
            put("messages.0.topic.name", "TRANSACTION"),
            put(f"{SYSTEM}.message_type", Type.TRANSACTION),
            put(f"{SYSTEM}.delivery_timestamp", moment(NOW_S)),
        ),
        CONFLICT,
    ),
    *((times("messages", count), Code.MESSAGE_CORRUPTED) for count in (0, 1001, 10_000)),
    (
        several(times("messages", 10), put("messages.7.topic.name", "FIFO")),
        Code.MESSAGE_CORRUPTED,
    ),
    *of_topic("messages.0.topic"),
    (put("messages.0.topic.name", "MISSING"), Code.TOPIC_NOT_FOUND),
]


def subscribed(count: int, expression: str) -> v2.Subscription:
    """So many topics, each with this filter."""
    found = v2.Subscription(group=resource("G"))
    for number in range(count):
        chosen = v2.FilterExpression(type=1, expression=expression)
        found.subscriptions.add(topic=resource(f"T{number}"), expression=chosen)
    return found


OF_SETTINGS: list[tuple[Fault, int]] = [
    *((put("settings.client_type", kind), Code.UNRECOGNIZED_CLIENT_TYPE) for kind in (0, 7, 77)),
    (put("settings.client_type", None), Code.UNRECOGNIZED_CLIENT_TYPE),
    *((put("settings.client_type", kind), Code.NOT_IMPLEMENTED) for kind in (5, 6)),
    *((put("settings.client_type", kind), Code.BAD_REQUEST) for kind in (2, 3, 4)),
    (put("settings.publishing", None), Code.BAD_REQUEST),
    (put("settings.subscription", v2.Subscription(group=resource("G"))), Code.BAD_REQUEST),
    (put("settings.publishing.topics", [resource("a b")]), Code.ILLEGAL_TOPIC),
    (
        put("settings.publishing.topics", [resource(f"T{number}") for number in range(1_001)]),
        Code.BAD_REQUEST,
    ),
    *(
        (several(put("settings.client_type", 3), put("settings.subscription", asked)), code)
        for asked, code in (
            (subscribed(1, "t||" * 30_000), Code.ILLEGAL_FILTER_EXPRESSION),
            (subscribed(3, "t||" * 10_000), Code.ILLEGAL_FILTER_EXPRESSION),
            (subscribed(1_001, "*"), Code.BAD_REQUEST),
        )
    ),
]

INVISIBLE = "invisible_duration"
FAULTS: dict[str, list[tuple[Fault, int]]] = {
    "QueryRoute": [*of_topic("topic"), (put("topic.name", "MISSING"), Code.TOPIC_NOT_FOUND)],
    "QueryAssignment": [
        *of_topic("topic"),
        *of_group(),
        (put("topic.name", "MISSING"), Code.TOPIC_NOT_FOUND),
    ],
    "Heartbeat": [
        *of_group(),
        *((put("client_type", kind), Code.UNRECOGNIZED_CLIENT_TYPE) for kind in (0, 7, 77, -1)),
        *((put("client_type", kind), Code.NOT_IMPLEMENTED) for kind in (5, 6)),
    ],
    "SendMessage": OF_MESSAGES,
    "ReceiveMessage": [
        *of_group(),
        *of_topic("message_queue.topic"),
        (put("message_queue.topic.name", "MISSING"), Code.TOPIC_NOT_FOUND),
        (put("message_queue.broker.name", "broker-9"), Code.HA_NOT_AVAILABLE),
        *(
            (put("filter_expression", v2.FilterExpression(**wrong)), Code.ILLEGAL_FILTER_EXPRESSION)
            for wrong in (
                {"type": 2, "expression": "a >"},
                {"type": 2, "expression": "(" * 10_000},
                {"type": 77, "expression": "*"},
                {"type": 1, "expression": "t||" * 30_000},
            )
        ),
        *(
            (put(INVISIBLE, duration(seconds)), Code.ILLEGAL_INVISIBLE_TIME)
            for seconds in (0, 9, 12 * 3600 + 1, -5, 2**62)
        ),
        (put(INVISIBLE, None), Code.ILLEGAL_INVISIBLE_TIME),
        (put("attempt_id", "x" * 300), Code.BAD_REQUEST),
    ],
    "AckMessage": [
        *of_topic("topic"),
        *of_group(),
        *((times("entries", count), Code.BAD_REQUEST) for count in (0, 1001, 10_000)),
        *of_handle("entries.0.receipt_handle"),
        (put("topic.name", "MISSING"), Code.INVALID_RECEIPT_HANDLE),
        (put("group.name", "OTHER"), Code.INVALID_RECEIPT_HANDLE),
    ],
    "ChangeInvisibleDuration": [
        *of_topic("topic"),
        *of_group(),
        *of_handle(),
        (put("topic.name", "MISSING"), Code.INVALID_RECEIPT_HANDLE),
        (put("group.name", "OTHER"), Code.INVALID_RECEIPT_HANDLE),
        *(
            (put(INVISIBLE, duration(seconds)), Code.ILLEGAL_INVISIBLE_TIME)
            for seconds in (-1, 12 * 3600 + 1, 2**62)
        ),
    ],
    "ForwardMessageToDeadLetterQueue": [
        *of_topic("topic"),
        *of_group(),
        *of_handle()[:3],  # a handle that is only dead is no fault: see test_gateway_handles.py
    ],
    "EndTransaction": [
        *of_topic("topic"),
        *(
            (put("transaction_id", text), Code.INVALID_TRANSACTION_ID)
            for text in ("", " ", "x", "x" * (1 << 20), "-1-2-broker-0")
        ),
        (put("message_id", "other"), Code.INVALID_TRANSACTION_ID),
        *((put("resolution", number), Code.BAD_REQUEST) for number in (0, 3, 77, -1)),
        (
            several(put("message_id", "ID"), put("transaction_id", "ID-0-9999-broker-0")),
            Code.INVALID_TRANSACTION_ID,
        ),
        (
            several(put("message_id", "ID"), put("transaction_id", "ID-0-0-broker-9")),
            Code.HA_NOT_AVAILABLE,
        ),
    ],
    "RecallMessage": [
        *of_topic("topic"),
        *((put("recall_handle", text), Code.BAD_REQUEST) for text in ("", "x", "x" * 5000)),
        (put("topic.name", "MISSING"), Code.TOPIC_NOT_FOUND),
        (put("topic.name", "NORMAL"), CONFLICT),
    ],
    "PullMessage": [
        *of_group(),
        *of_queue(),
        (put("offset", -1), Code.ILLEGAL_OFFSET),
        (put("offset", 2**62), Code.ILLEGAL_OFFSET),
        (put("filter_expression", v2.FilterExpression(type=77)), Code.ILLEGAL_FILTER_EXPRESSION),
    ],
    "UpdateOffset": [*of_group(), *of_queue(), (put("offset", -1), Code.ILLEGAL_OFFSET)],
    "GetOffset": [*of_group(), *of_queue(), (put("group.name", "OTHER"), Code.OFFSET_NOT_FOUND)],
    "QueryOffset": [
        *of_queue(),
        *((put("query_offset_policy", number), Code.BAD_REQUEST) for number in (2, 3, 77, -1)),
    ],
    "Telemetry": OF_SETTINGS,
}


async def code_of_answer(caller: Caller, name: str, request: Any) -> int:
    rpc = v2.RPCS[name]
    request = rpc.request.FromString(request.SerializeToString())
    if not rpc.gives_stream:
        return int((await caller.gateway.unary[name](caller.call(), request)).status.code)
    parts: list[Any] = []

    async def write(part: Any) -> None:
        parts.append(part)

    async def read() -> Any:
        yield request

    if name == "Telemetry":
        with contextlib.suppress(CallFailed):
            await caller.gateway.telemetry(caller.call(None), read(), write)
    else:
        await caller.gateway.streams[name](caller.call(), request, write)
    return int(parts[0].status.code)


@pytest.mark.parametrize("node", NODES)
def test_a_fault_has_its_code_at_every_node(node: str) -> None:
    async def body(world: World) -> None:
        facts = await facts_at(world, node)
        unexpected = []
        for name, faults in FAULTS.items():
            for number, (fault, code) in enumerate(faults):
                request = right(name, facts)
                fault(request)
                found = await code_of_answer(facts.caller, name, request)
                if found != code:
                    unexpected.append((name, number, Code(code).name, Code(found).name))
        assert not unexpected
        last = "NotifyClientTermination"  # Java's client opens no stream after it
        for name in sorted(
            v2.RPCS.keys() - {"SyncLiteSubscription"}, key=lambda each: each == last
        ):
            found = await code_of_answer(facts.caller, name, right(name, facts))
            is_empty = name in ("ReceiveMessage", "PullMessage") and found == Code.MESSAGE_NOT_FOUND
            assert found == Code.OK or is_empty, (name, Code(found).name)

    run(body)


def test_every_call_with_a_fault_is_in_the_table() -> None:
    without = {"NotifyClientTermination", "SyncLiteSubscription"}
    assert v2.RPCS.keys() - FAULTS.keys() == without


@pytest.mark.parametrize("client_id", ["", " ", "x" * 2000])
def test_every_call_needs_a_client_id(client_id: str) -> None:
    async def body(world: World) -> None:
        facts = await facts_at(world, NODES[0])
        facts.caller.client_id = client_id
        for name in v2.RPCS.keys() - {"SyncLiteSubscription"}:
            found = await code_of_answer(facts.caller, name, right(name, facts))
            assert found == Code.CLIENT_ID_REQUIRED, name

    run(body)
