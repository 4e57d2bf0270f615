"""The texts of failures: whose call it was, in the answer and in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from gateway_rig import Caller, Code, served
from saturnmq.gateway import v2
from saturnmq.gateway.calls import CallFailed, GrpcStatus
from world_rig import World, run

REQUEST_ID = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
MISSING = v2.Resource(name="MISSING")


async def texts_of(caller: Caller) -> list[str]:
    """The texts of calls of each kind that fail."""
    route = await caller.ask("QueryRoute", topic=MISSING)
    assert route.status.message.startswith("CODE: 17 ")  # which Node's client looks for
    sent = await caller.send(caller.message(b"x", priority=1))
    bad = v2.Message()
    bad.system_properties.receipt_handle = "no handle"
    acked = await caller.ack(bad)
    found = [route, sent, acked, *acked.entries]
    got = await caller.receive("MISSING")
    return [*(each.status.message for each in found), got.parts[0].status.message]


async def refusal_of(caller: Caller, settings: Any) -> tuple[Any, CallFailed]:
    """The last command over a Telemetry stream, and how it ends."""
    stream = caller.open_telemetry()
    caller.says.put_nowait(v2.TelemetryCommand(settings=settings))
    with pytest.raises(CallFailed) as failed:
        await stream
    return caller.told[-1], failed.value


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (REQUEST_ID, f"(x-mq-request-id {REQUEST_ID})"),
        ("x" * 5000, f"(x-mq-request-id {'x' * 64})"),
        ("a\nb\x1b[31m\xe9", "(x-mq-request-id a?b?[31m?)"),
    ],
)
def test_failures_name_the_request_in_answers_and_in_the_log(
    sent: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        caller.request_id = sent
        with caplog.at_level(logging.DEBUG, "saturnmq.gateway"):
            texts = await texts_of(caller)
            command, error = await refusal_of(caller, v2.Settings(client_type=5))
        for text in (*texts, command.status.message, str(error)):
            assert text.endswith(told), text
        logged = [record.getMessage() for record in caplog.records]
        for name in ("QueryRoute", "SendMessage", "AckMessage", "ReceiveMessage", "Telemetry"):
            begin = f"{name}, request {told.removeprefix('(x-mq-request-id ')[:-1]}: "
            assert any(line.startswith(begin) for line in logged), name

    run(body)


def test_good_answers_and_callers_without_a_request_id_are_told_nothing() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        for text in await texts_of(caller):
            assert "x-mq-request-id" not in text
        caller.request_id = REQUEST_ID
        good = await caller.send(caller.message(b"x"))
        assert (good.status.message, good.entries[0].status.message) == ("OK", "OK")
        got = await caller.receive()
        assert (got.code, got.parts[0].status.message) == (Code.OK, "OK")
        empty = await caller.receive()
        assert empty.parts[0].status.message == "no new message"

    run(body)


def test_an_unforeseen_error_is_logged_with_the_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        caller.request_id = REQUEST_ID

        def breaks(_: Any) -> None:
            raise RuntimeError("a mistake of ours")

        monkeypatch.setattr("saturnmq.gateway.membership.topic_of", breaks)
        answer = await caller.ask("QueryRoute", topic=MISSING)
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        assert answer.status.message.endswith(f"(x-mq-request-id {REQUEST_ID})")
        assert f"call QueryRoute failed, request {REQUEST_ID}" in caplog.text

    run(body)


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        # Python's lite push consumer waits 10 s for settings and fails with this text in its log;
        # it started without quotas, and received nothing.
        (v2.ClientType.LITE_PUSH_CONSUMER, Code.NOT_IMPLEMENTED, GrpcStatus.UNIMPLEMENTED),
        (v2.ClientType.LITE_SIMPLE_CONSUMER, Code.NOT_IMPLEMENTED, GrpcStatus.UNIMPLEMENTED),
        (77, Code.UNRECOGNIZED_CLIENT_TYPE, GrpcStatus.INVALID_ARGUMENT),
        (v2.ClientType.PUSH_CONSUMER, Code.BAD_REQUEST, GrpcStatus.INVALID_ARGUMENT),
    ],
)
def test_refused_settings_are_told_and_end_the_stream(kind: int, code: int, status: int) -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        command, error = await refusal_of(caller, v2.Settings(client_type=kind))
        assert (command.status.code, command.WhichOneof("command")) == (code, None)
        assert error.status == status

    run(body)
