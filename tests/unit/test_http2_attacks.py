"""Attacks on one connection of HTTP/2, without a socket: each ends a call or the connection, takes
bounded memory, and little time."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from http2_rig import MESSAGE_MAX, FakeTask, Wire, body, breaks, data, fails, stall, told
from saturnmq.drills.fuzz import http2 as h2
from saturnmq.drills.fuzz.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    INITIAL_WINDOW,
    PING,
    RST_STREAM,
    answer_headers,
    block,
    call,
    frame,
    message,
    request_headers,
    reset,
    settings,
    window,
)
from saturnmq.gateway.http2.connection import (
    BLOCK_MAX,
    BROKEN_MAX,
    SETTINGS_MAX,
    STREAM_BYTES,
    STREAMS_MAX,
    TAKEN_BYTES,
)
from saturnmq.gateway.http2.frames import FRAME_MAX, Why
from saturnmq.gateway.http2.grpc_calls import DONE, HEAD, end_late
from saturnmq.gateway.http2.stream import (
    MESSAGE_BYTES,
    MESSAGES_MAX,
    Stream,
)

HEADERS_OF_CALL = block(request_headers("/test/Echo"))
LARGE = (1 << 31) - 1


def test_rapid_resets_end_the_connection() -> None:
    """CVE-2023-44487."""
    wire = Wire()
    flood = b"".join(call(n) + reset(n) for n in range(1, 2 * BROKEN_MAX + 2, 2))
    fails(wire, flood, Why.ENHANCE_YOUR_CALM)
    assert len(wire.begun) < 3 * BROKEN_MAX


def test_calls_that_make_the_server_reset_them_end_the_connection() -> None:
    """CVE-2025-8671."""
    wire = Wire()
    flood = b"".join(call(n) + window(n, 0) for n in range(1, 2 * BROKEN_MAX + 2, 2))
    fails(wire, flood, Why.ENHANCE_YOUR_CALM)


def test_calls_that_end_make_up_for_resets() -> None:
    wire = Wire()
    for n in range(1, 4 * BROKEN_MAX, 4):
        wire.opened(n)
        wire.feed(reset(n) + call(n + 2))
        wire.connection.streams[n + 2].answer(HEAD, b"", DONE)
    assert wire.connection._broken <= 1


@pytest.mark.parametrize("part", [b"x" * 1000, b"x", b""])
def test_headers_without_end_end_the_connection(part: bytes) -> None:
    """CVE-2024-27316."""
    wire = Wire()
    wire.feed(frame(HEADERS, 0, 1, block([(b"n", b"v")])))
    flood = frame(CONTINUATION, 0, 1, part) * (BLOCK_MAX // max(1, len(part)) + 1)
    fails(wire, flood, Why.ENHANCE_YOUR_CALM)


def test_a_list_of_headers_that_grows_by_the_table_takes_no_memory() -> None:
    wire = Wire()
    wire.feed(frame(HEADERS, END_HEADERS, 1, block([(b"n", b"v" * 4000)], kept=True)))
    bomb = block(request_headers("/test/Echo")) + b"\xbe" * (FRAME_MAX - 200)
    wire.feed(frame(HEADERS, END_HEADERS, 3, bomb))
    assert wire.begun[-1].headers == {}
    assert wire.connection.buffered < 5000


def test_a_flood_of_settings_ends_the_connection() -> None:
    wire = Wire()
    one = settings((INITIAL_WINDOW, 1), (INITIAL_WINDOW, LARGE))
    wire.feed(one * (SETTINGS_MAX - 1))
    wire.clock.now += 1
    wire.feed(one * SETTINGS_MAX)
    fails(wire, one, Why.ENHANCE_YOUR_CALM)


def test_settings_change_windows_once_in_a_frame() -> None:
    wire = Wire((INITIAL_WINDOW, 0))
    stall(wire, 50)
    wire.sent()
    toggles = [(INITIAL_WINDOW, n % 2) for n in range(2001)]
    assert body(wire.feed(settings(*toggles))) == b""


def test_a_common_window_of_few_bytes_costs_no_walk_over_all_calls() -> None:
    wire = Wire()
    for n in range(1, 2001, 2):
        stall(wire, 100, n)
    wire.sent()
    assert wire.connection._window == 0
    pushes = 0
    push = wire.connection.push

    def counted(stream: Stream) -> None:
        nonlocal pushes
        pushes += 1
        push(stream)

    wire.connection.push = counted  # type: ignore[method-assign]
    for _ in range(100):
        assert len(body(wire.feed(window(0, 1)))) == 1
    assert pushes <= 200


def test_calls_have_a_limit() -> None:
    wire = Wire()
    for n in range(1, 2 * STREAMS_MAX, 2):
        wire.connection.received(call(n, data=None))
    wire.sent()
    breaks(wire, call(2 * STREAMS_MAX + 1, data=None), Why.REFUSED_STREAM, 2 * STREAMS_MAX + 1)
    assert len(wire.connection.streams) == STREAMS_MAX


def test_calls_that_hold_too_much_are_refused() -> None:
    wire = Wire(memory=50 * STREAM_BYTES)
    refused = []
    for n in range(1, 201, 2):
        refused += wire.feed(call(n, data=None))
    assert {(each.kind, each.number) for each in refused} == {(RST_STREAM, Why.REFUSED_STREAM)}
    assert 30 < len(wire.connection.streams) < 50
    wire.connection.close()
    assert wire.budget.refused == len(refused)


def test_a_request_for_which_there_is_no_room_is_told_so() -> None:
    wire = Wire(memory=1 << 20)
    stream = wire.opened()
    code, text = told(wire.feed(data(1, message(bytes(1 << 20)))))
    assert (code, stream.over, wire.budget.used) == ("8", True, 0)
    assert "memory" in text


@pytest.mark.parametrize("head", [struct.pack(">BI", 0, MESSAGE_MAX + 1), b"\x02\0\0\0\0"])
def test_a_message_that_is_too_large_is_refused_by_its_head(head: bytes) -> None:
    wire = Wire()
    wire.opened()
    assert told(wire.feed(frame(DATA, 0, 1, head)))[0] == "8"
    assert wire.budget.used == 0


def test_messages_of_no_bytes_count() -> None:
    wire = Wire()
    wire.opened()
    wire.feed(data(1, message() * MESSAGES_MAX))
    assert wire.budget.used > (MESSAGES_MAX - 1) * MESSAGE_BYTES
    assert told(wire.feed(data(1, message())))[0] == "8"
    assert wire.budget.used == 0


def test_many_messages_of_one_call_leave_turns_for_others() -> None:
    async def main() -> None:
        wire = Wire()
        stream = wire.opened()
        wire.feed(data(1, message(b"x") * 100))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        for _ in range(100):
            assert await stream.next_message() == (False, b"x")
        assert turns >= 99
        task.cancel()

    asyncio.run(main())


def test_a_request_that_never_ends_is_late() -> None:
    wire = Wire()
    half = wire.opened()
    wire.feed(call(3))  # whole: its handler may take its time
    telemetry = wire.opened(5)
    telemetry.serve(FakeTask())  # type: ignore[arg-type]
    wire.feed(data(5, message(b"whole")))
    assert wire.connection.held_up_s(wire.clock.now + 2) == 2
    now = wire.clock.now = wire.clock.now + 29
    wire.feed(data(1, message(bytes(100))[:50]) + data(5, message(b"part")[:6]))
    assert wire.connection.late(now + 1, 30) == []
    assert wire.connection.late(now + 2, 30) == [half]
    assert wire.connection.late(now + 31, 30) == [half, telemetry]
    end_late(half)
    assert told(wire.sent())[0] == "4"
    assert wire.connection.held_up_s(now + 2) == 2
    wire.feed(data(5, message(b"part")[6:]))
    assert wire.connection.held_up_s(now + 9) == 0


def test_a_call_ends_at_its_deadline() -> None:
    wire = Wire()
    stream = wire.opened()
    stream.deadline = 100.0
    assert (wire.connection.late(99.9, 1e9), wire.connection.late(100.0, 1e9)) == ([], [stream])


def test_an_answer_that_nobody_takes_counts_and_is_late() -> None:
    wire = Wire((INITIAL_WINDOW, 0))
    stream = stall(wire, 1 << 20)
    assert 1 << 20 < wire.budget.used < (1 << 20) + 5000
    now = wire.clock.now
    assert wire.connection.held_up_s(now + 3) == 3
    for _ in range(29):
        wire.clock.now += 1
        wire.feed(window(1, 1))  # too few to count as taken
    assert wire.connection.late(now + 30.5, 30) == [stream]
    wire.feed(window(1, TAKEN_BYTES))
    assert wire.connection.late(now + 30.5, 30) == []
    assert wire.connection.late(now + 60, 30) == [stream]
    end_late(stream)
    last = wire.sent()[-1]
    assert answer_headers(last.payload)["grpc-status"] == "4"
    assert wire.budget.used == 0
    assert wire.connection.held_up_s(now + 99) == 0


def test_a_stream_of_answers_that_is_taken_waits_no_more() -> None:
    async def main() -> None:
        wire = Wire((INITIAL_WINDOW, 0))
        stream = wire.opened()
        await stream.write(HEAD, bytes(100))
        assert wire.connection.held_up_s(wire.clock.now + 5) == 5
        wire.feed(window(1, 100) + frame(DATA, h2.END_STREAM, 1, message()))
        assert wire.connection.held_up_s(wire.clock.now + 5) == 0

    asyncio.run(main())


def test_pings_without_calls_cost_no_connection() -> None:
    """Clients ping without calls in flight, and take a GOAWAY for a fault of theirs."""
    wire = Wire()
    wire.sent()
    for n in range(3000):
        ping = frame(PING, payload=n.to_bytes(8, "big"))
        assert [each.payload for each in wire.feed(ping)] == [n.to_bytes(8, "big")]


def test_the_calls_that_wait_longest_are_known_without_a_walk() -> None:
    wire = Wire((INITIAL_WINDOW, 0))
    first = stall(wire, 100_000, 1)
    wire.clock.now += 5
    second = stall(wire, 100_000, 3)
    now = wire.clock.now
    assert wire.connection.held_up_s(now) == 5
    wire.feed(window(1, TAKEN_BYTES))
    assert [*wire.connection._stalled] == [second, first]
    assert wire.connection.held_up_s(now + 1) == 1


@pytest.mark.parametrize(
    "part",
    [frame(PING, payload=bytes(8))[:12], frame(HEADERS, 0, 1, b"x"), b"\0"],
    ids=["frame", "block", "byte"],
)
def test_a_frame_that_never_ends_is_known(part: bytes) -> None:
    wire = Wire()
    wire.clock.now = 50
    wire.feed(part)
    wire.clock.now = 60
    if part[3:4] == bytes((HEADERS,)):
        wire.feed(frame(CONTINUATION, 0, 1, b"x"))
    else:
        wire.feed(b"\0")
    assert wire.connection.partial_s(80) == 30
    assert wire.connection.held_up_s(80) == 30
    assert wire.connection.buffered > 0
    wire.connection.excuse(80)
    assert wire.connection.partial_s(81) == 1


def test_frames_that_follow_each_other_are_never_one_that_never_ends() -> None:
    wire = Wire()
    ping = frame(PING, payload=bytes(8))
    wire.feed(ping[:5])
    for _ in range(50):
        wire.clock.now += 1
        wire.feed(ping[5:] + ping[:5])
    assert wire.connection.partial_s(wire.clock.now) == 0
    wire.feed(ping[5:])
    assert wire.connection.partial_s(wire.clock.now + 9) == 0


def test_a_connection_that_gives_way_to_its_own_request_leaves_nothing() -> None:
    wire = Wire(memory=100_000)
    stream = wire.opened()

    def relieve() -> None:
        wire.connection.close()
        wire.budget.close()

    wire.budget.relieve = relieve
    wire.feed(data(1, message(bytes(200_000))))
    assert stream.over
    assert wire.budget.used == 0


def test_an_answer_that_makes_its_connection_give_way_leaves_nothing() -> None:
    wire = Wire((INITIAL_WINDOW, 0), memory=100_000)

    def relieve() -> None:
        wire.connection.close()
        wire.budget.close()

    wire.budget.relieve = relieve
    stream = stall(wire, 200_000)
    assert stream.over
    assert wire.budget.used == 0


def test_a_close_ends_all_calls() -> None:
    wire = Wire((INITIAL_WINDOW, 0))
    tasks: list[Any] = []
    for n in (1, 3, 5):
        stream = wire.opened(n)
        stream.serve(FakeTask())  # type: ignore[arg-type]
        tasks.append(stream.task)
        wire.feed(data(n, message(b"part")[:7]))
    wire.connection.streams[1].answer(HEAD, bytes(100), DONE)
    wire.connection.close()
    wire.budget.close()
    assert all(task.is_cancelled for task in tasks)
    assert not wire.connection.streams
    assert wire.budget.used == 0
