"""Calls of gRPC without a socket: faults of calls and of messages, and bombs."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from http2_rig import MESSAGE_MAX, Wire, body, data, told
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.drills.fuzz.http2 import (
    DATA,
    END_STREAM,
    HEADERS,
    ParsedFrame,
    answer_headers,
    call,
    frame,
    message,
    reset,
)
from saturnmq.gateway import v2
from saturnmq.gateway.calls import GrpcCall, Service
from saturnmq.gateway.descriptors import rpcs_of
from saturnmq.gateway.http2 import fields
from saturnmq.gateway.http2.fields import FIELDS_MAX, TooManyFields, check_fields
from saturnmq.gateway.http2.grpc_calls import GrpcCalls, seconds
from saturnmq.runtime.errors import SaturnError

PATH = f"/{v2.SERVICE}/"
SEND = v2.SendMessageRequest.DESCRIPTOR
OK, INVALID, TOO_LATE, EXHAUSTED, UNIMPLEMENTED, INTERNAL = "0", "3", "4", "8", "12", "13"


class Served:
    """A connection whose calls are answered; `asked` has their requests."""

    def __init__(self, **options: Any) -> None:
        self.wire = Wire(**options)
        self.asked: list[Any] = []
        self.calls: list[GrpcCall] = []
        rpcs = rpcs_of(v2.SERVICE).values()
        kinds: tuple[dict[str, Any], ...] = ({}, {}, {})
        for rpc in rpcs:
            kinds[rpc.takes_stream + rpc.gives_stream][rpc.name] = self._serving(rpc)
        self.wire.clock.spawn = lambda work, name: asyncio.ensure_future(work)  # type: ignore[attr-defined]
        served = GrpcCalls(self.wire.clock, [Service(v2.SERVICE, *kinds)])  # type: ignore[arg-type]
        self.wire.connection._begin = lambda stream: served.begin(stream, "1.2.3.4:5")

    def _serving(self, rpc: Any) -> Callable[..., Awaitable[Any]]:
        async def unary(call: GrpcCall, request: Any) -> Any:
            self.calls.append(call)
            self.asked.append(request)
            if call.metadata.get("fails"):
                raise ValueError("a mistake")
            return rpc.response()

        async def stream(call: GrpcCall, request: Any, write: Any) -> None:
            await write(await unary(call, request))

        async def dialogue(call: GrpcCall, read: Any, write: Any) -> None:
            async for request in read:
                await write(await unary(call, request))
                if request.HasField("status"):
                    raise SaturnError("no settings")

        return (unary, stream, dialogue)[rpc.takes_stream + rpc.gives_stream]

    async def feed(self, data: bytes) -> list[ParsedFrame]:
        found = self.wire.feed(data)
        for _ in range(20):
            await asyncio.sleep(0)
        return found + self.wire.sent()

    async def status(self, data: bytes) -> str:
        """The status of the only call in `data`."""
        ends = [each for each in await self.feed(data) if each.kind == HEADERS]
        return answer_headers(ends[-1].payload)["grpc-status"]


def run(check: Callable[[Served], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        served = Served(**options)
        await check(served)
        served.wire.connection.close()
        served.wire.budget.close()

    asyncio.run(main())


def test_a_call_of_each_kind_is_answered() -> None:
    async def check(served: Served) -> None:
        beat = v2.HeartbeatRequest(client_type=1)
        plain = await served.feed(call(1, f"{PATH}Heartbeat", beat.SerializeToString()))
        assert (body(plain), served.asked) == (message(), [beat])
        assert served.calls[0].peer == "1.2.3.4:5"
        assert await served.status(call(3, f"{PATH}ReceiveMessage")) == OK
        told = v2.TelemetryCommand()
        told.settings.client_type = 1
        part = frame(DATA, 0, 5, message(told.SerializeToString()))
        assert body(await served.feed(call(5, f"{PATH}Telemetry", None) + part * 3)) == b"\0" * 15
        assert await served.status(frame(DATA, END_STREAM, 5)) == OK
        assert served.asked[2:] == [told] * 3
        assert served.wire.budget.used == 0

    run(check)


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        (call(1, "/x"), UNIMPLEMENTED),
        (call(1, f"{PATH}Nothing"), UNIMPLEMENTED),
        (call(1, ""), UNIMPLEMENTED),
        (call(1, "/\xe9\u0141".encode().decode("latin-1")), UNIMPLEMENTED),
        (call(1, f"{PATH}Heartbeat", **{":method": "GET"}), UNIMPLEMENTED),
        (call(1, f"{PATH}Heartbeat", content_type="text/html"), INTERNAL),
        (call(1, f"{PATH}Heartbeat", content_type="application/grpc+proto"), OK),
        (call(1, f"{PATH}Heartbeat", grpc_timeout="soon"), INTERNAL),
        (call(1, f"{PATH}Heartbeat", grpc_timeout="99999999H"), OK),
        (call(1, f"{PATH}Heartbeat", b"\xff\xff"), INTERNAL),
        (call(1, f"{PATH}Heartbeat", fails="yes"), INTERNAL),
        (call(1, f"{PATH}ReceiveMessage", fails="yes"), INTERNAL),
        (call(1, f"{PATH}Telemetry", b"\xff\xff"), INTERNAL),
        (call(1, f"{PATH}Telemetry", b"\x0a\0"), INVALID),
        (call(1, f"{PATH}Heartbeat", None) + data(1, message() * 2, END_STREAM), INTERNAL),
        (call(1, f"{PATH}Heartbeat", None) + data(1, b"\0\0\0\0\5ab", END_STREAM), INTERNAL),
        (call(1, f"{PATH}Heartbeat", None) + data(1, b"", END_STREAM), INTERNAL),
        (call(1, f"{PATH}Heartbeat", None, big="x" * 8000, large="x" * 8000), EXHAUSTED),
    ],
)
def test_each_fault_of_a_call_has_a_status(start: bytes, wanted: str) -> None:
    async def check(served: Served) -> None:
        assert await served.status(start) == wanted
        assert served.wire.budget.used == 0
        assert await served.status(call(9, f"{PATH}Heartbeat")) == OK

    run(check)


def test_a_reset_cancels_the_work() -> None:
    async def check(served: Served) -> None:
        await served.feed(call(1, f"{PATH}Telemetry", None))
        task = served.wire.connection.streams[1].task
        await served.feed(reset(1))
        assert task is not None
        assert task.cancelled()

    run(check)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("3S", 3.0), ("2H", 7200.0), ("1M", 60.0), ("5m", 0.005), ("00000001n", 1e-9)],
)
def test_a_timeout_is_a_number_and_a_unit(text: str, wanted: float) -> None:
    assert seconds(text) == pytest.approx(wanted)


# compressed messages


def packed_call(stream: int, packed: bytes, **more: str) -> bytes:
    head = call(stream, f"{PATH}SendMessage", None, **{"grpc_encoding": "gzip", **more})
    return head + data(stream, message(packed, 1), END_STREAM)


def test_a_compressed_message_is_read_and_counts_until_its_call_ends() -> None:
    async def check(served: Served) -> None:
        sent = v2.SendMessageRequest(messages=[v2.Message(body=b"x" * 100_000)])
        packed = gzip.compress(sent.SerializeToString())
        assert await served.status(packed_call(1, packed)) == OK
        assert served.asked == [sent]
        assert served.wire.budget.most > 100_000
        assert served.wire.budget.used == 0

    run(check)


@pytest.mark.parametrize(
    ("packed", "more", "wanted"),
    [
        (b"", {}, INTERNAL),
        (b"no gzip", {}, INTERNAL),
        (gzip.compress(b"")[:-5], {}, INTERNAL),
        (gzip.compress(b"x" * 1000)[:15], {}, INTERNAL),
        (zlib.compress(b""), {}, INTERNAL),
        (gzip.compress(b""), {"grpc_encoding": "zstd"}, UNIMPLEMENTED),
        (gzip.compress(b""), {"grpc_encoding": "identity"}, UNIMPLEMENTED),
        (gzip.compress(bytes(MESSAGE_MAX + 1)), {}, EXHAUSTED),
        (gzip.compress(b"") + b"and more", {}, OK),
    ],
    ids=range(9),  # a gzip names the time
)
def test_a_compressed_message_with_a_fault_is_refused(
    packed: bytes, more: dict[str, str], wanted: str
) -> None:
    async def check(served: Served) -> None:
        assert await served.status(packed_call(1, packed, **more)) == wanted
        assert served.wire.budget.used == 0

    run(check)


def test_a_bomb_of_gzip_is_refused_before_it_is_unpacked() -> None:
    async def check(served: Served) -> None:
        code, text = told(await served.feed(packed_call(1, gzip.compress(bytes(12 << 20)))))
        assert (code, served.wire.budget.used) == (EXHAUSTED, 0)
        assert "memory" in text
        assert served.wire.budget.most <= 5 << 20

    run(check, memory=5 << 20)


def test_compressed_messages_of_a_stream_count_until_they_are_answered() -> None:
    async def check(served: Served) -> None:
        await served.feed(call(1, f"{PATH}Telemetry", None, grpc_encoding="gzip"))
        used = served.wire.budget.used
        trace = v2.TelemetryCommand(thread_stack_trace={"thread_stack_trace": "x" * 300_000})
        part = frame(DATA, 0, 1, message(gzip.compress(trace.SerializeToString()), 1))
        for _ in range(20):
            await served.feed(part)
        assert len(served.asked) == 20
        assert served.wire.budget.used == used

    run(check, memory=1 << 20)


# messages of many fields


@pytest.mark.parametrize(
    "unit",
    [
        b"\x0a\x00",  # messages
        b"\x0a\x02\x1a\x00",  # messages with system_properties
        b"\x13\x14",  # groups of an unknown number
        b"\xa0\x06\x01",  # numbers of an unknown field
        b"\x3d1234",
        b"\x3912345678",
    ],
)
def test_a_message_of_too_many_fields_is_not_parsed(unit: bytes) -> None:
    with pytest.raises(TooManyFields, match=str(FIELDS_MAX)):
        check_fields(unit * (FIELDS_MAX + 1), SEND)


def test_fields_are_counted_in_messages_within_messages() -> None:
    told = v2.TelemetryCommand()
    for _ in range(FIELDS_MAX // 2):
        told.settings.subscription.subscriptions.add()
    check_fields(told.SerializeToString(), told.DESCRIPTOR)
    for each in told.settings.subscription.subscriptions:
        each.topic.SetInParent()
    with pytest.raises(TooManyFields):
        check_fields(told.SerializeToString(), told.DESCRIPTOR)


def test_bytes_of_a_body_are_no_fields() -> None:
    large = v2.SendMessageRequest(messages=[v2.Message(body=b"\x0a\x00" * (1 << 20))])
    check_fields(large.SerializeToString(), SEND)


def test_a_request_of_too_many_fields_is_told_so() -> None:
    async def check(served: Served) -> None:
        bomb = b"\x0a\x00" * (FIELDS_MAX + 1)
        start = call(1, f"{PATH}SendMessage", None) + data(1, message(bomb), END_STREAM)
        code, text = told(await served.feed(start))
        assert (code, text) == (EXHAUSTED, f"more than {FIELDS_MAX} fields")

    run(check)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_count(data: bytes) -> None:
    assert fields._count(data, 0, len(data), SEND, 0) <= len(data)
