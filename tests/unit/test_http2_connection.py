"""A connection of HTTP/2 without a socket: frames in, frames out."""

from __future__ import annotations

import asyncio
import struct

import pytest
from http2_rig import FakeTask, Wire, body, breaks, data, fails, stall
from saturnmq.drills.fuzz import http2 as h2
from saturnmq.drills.fuzz.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ParsedFrame,
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
    CONNECTION_WINDOW,
    STREAM_BYTES,
    STREAMS_MAX,
)
from saturnmq.gateway.http2.frames import FRAME_MAX, USUAL_WINDOW, WINDOW_MAX, Why
from saturnmq.gateway.http2.grpc_calls import DONE, HEAD
from saturnmq.gateway.http2.hpack import LIST_MAX
from saturnmq.gateway.http2.stream import (
    MESSAGE_BYTES,
    OWN_WINDOW,
    WAITING_MAX,
)

HEADERS_OF_CALL = block(request_headers("/test/Echo"))
LARGE = (1 << 31) - 1


# the begin


def test_settings_and_the_larger_window_come_first() -> None:
    wire = Wire(greet=False)
    first, second = wire.sent()
    assert (first.kind, second.kind, second.stream) == (SETTINGS, WINDOW_UPDATE, 0)
    told = dict(struct.iter_unpack(">HI", first.payload))
    assert told == {3: STREAMS_MAX, 4: OWN_WINDOW, 6: LIST_MAX}
    assert second.number == CONNECTION_WINDOW - USUAL_WINDOW


@pytest.mark.parametrize("cut", [1, 2, 7, 1000])
def test_bytes_may_come_in_any_pieces(cut: int) -> None:
    wire = Wire(greet=False)
    wire.sent()
    whole = PREFACE + settings() + call(1, data=b"abc") + call(3, data=b"x" * 5000)
    for at in range(0, len(whole), cut):
        wire.feed(whole[at : at + cut])
    assert [stream.take() for stream in wire.connection.streams.values()] == [
        (False, b"abc"),
        (False, b"x" * 5000),
    ]
    assert wire.connection.partial_s(wire.clock.now + 9) == 0


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"P" * 24, PREFACE[:23] + b"\r", b"\0"])
def test_other_prefaces_are_refused(start: bytes) -> None:
    fails(Wire(greet=False), start, Why.PROTOCOL_ERROR)


@pytest.mark.parametrize("first", [frame(PING, payload=bytes(8)), call(1), window(0, 1)])
def test_settings_have_to_be_first(first: bytes) -> None:
    fails(Wire(greet=False), PREFACE + first, Why.PROTOCOL_ERROR)


# frames that end the connection


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (frame(DATA, 0, 0, b"x"), Why.PROTOCOL_ERROR),
        (frame(DATA, 0, 5, b"x"), Why.PROTOCOL_ERROR),  # never opened
        (frame(DATA, 0, 2, b"x"), Why.PROTOCOL_ERROR),
        (frame(DATA, PADDED, 1, b""), Why.PROTOCOL_ERROR),
        (frame(DATA, PADDED, 1, b"\x05abcd"), Why.PROTOCOL_ERROR),
        (frame(DATA, 0, 1, bytes(FRAME_MAX + 1)), Why.FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS, 0, HEADERS_OF_CALL), Why.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 4, HEADERS_OF_CALL), Why.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 3, b"\xbe"), Why.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS | PADDED, 3, b"\xff\x82"), Why.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | h2.HAS_PRIORITY, 3, b"abcd"), Why.FRAME_SIZE_ERROR),
        (frame(HEADERS, 0, 3) + frame(PING, payload=bytes(8)), Why.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 3) + frame(CONTINUATION, END_HEADERS, 5), Why.PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1), Why.PROTOCOL_ERROR),
        (reset(0), Why.PROTOCOL_ERROR),
        (reset(3), Why.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 1, b"123"), Why.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), Why.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, bytes(5)), Why.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), Why.FRAME_SIZE_ERROR),
        (settings((INITIAL_WINDOW, 1 << 31)), Why.FLOW_CONTROL_ERROR),
        (settings((h2.MAX_FRAME, FRAME_MAX - 1)), Why.PROTOCOL_ERROR),
        (settings((h2.MAX_FRAME, 1 << 24)), Why.PROTOCOL_ERROR),
        (settings((h2.ENABLE_PUSH, 2)), Why.PROTOCOL_ERROR),
        (frame(h2.PUSH_PROMISE, END_HEADERS, 1, bytes(4)), Why.PROTOCOL_ERROR),
        (frame(PING, 0, 1, bytes(8)), Why.PROTOCOL_ERROR),
        (frame(PING, 0, 0, bytes(7)), Why.FRAME_SIZE_ERROR),
        (window(0, 0), Why.PROTOCOL_ERROR),
        (window(3, 1), Why.PROTOCOL_ERROR),
        (window(0, LARGE), Why.FLOW_CONTROL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, b"123"), Why.FRAME_SIZE_ERROR),
    ],
)
def test_frames_that_no_client_sends_end_the_connection(bad: bytes, why: Why) -> None:
    wire = Wire()
    wire.opened()
    fails(wire, bad, why)


def test_frames_that_change_nothing_are_ignored() -> None:
    wire = Wire()
    wire.opened()
    strange = [
        frame(h2.PRIORITY, 0, 1, bytes(5)),
        frame(h2.PRIORITY, 0, 77, bytes(5)),
        frame(GOAWAY, 0, 0, bytes(8)),
        frame(PING, ACK, 0, bytes(8)),
        frame(SETTINGS, ACK, 0),
        frame(0xBE, 0xFF, 1, b"of a later version"),
        frame(DATA, 0, 1),
    ]
    assert wire.feed(b"".join(strange)) == []
    assert [*wire.connection.streams] == [1]


def test_a_ping_is_answered_with_its_bytes() -> None:
    assert Wire().feed(frame(PING, payload=b"12345678"))[-1] == ParsedFrame(
        PING, ACK, 0, b"12345678"
    )


# requests


def test_headers_with_padding_and_priority_and_in_parts_are_one_call() -> None:
    wire = Wire()
    flags = END_HEADERS | END_STREAM | PADDED | h2.HAS_PRIORITY
    wire.feed(frame(HEADERS, flags, 1, b"\x03" + bytes(5) + HEADERS_OF_CALL + b"pad"))
    wire.feed(frame(HEADERS, END_STREAM, 3, HEADERS_OF_CALL[:9]))
    wire.feed(frame(CONTINUATION, 0, 3, HEADERS_OF_CALL[9:20]))
    assert len(wire.begun) == 1
    wire.feed(frame(CONTINUATION, END_HEADERS, 3, HEADERS_OF_CALL[20:]))
    assert [stream.headers[":path"] for stream in wire.begun] == ["/test/Echo"] * 2
    assert all(stream.ended for stream in wire.begun)


def test_a_message_may_come_in_any_frames_with_padding() -> None:
    wire = Wire()
    stream = wire.opened()
    whole = message(b"abc")
    for byte in whole[:-1]:
        wire.feed(frame(DATA, PADDED, 1, bytes((4, byte, 0, 0, 0, 0))))
    assert stream.take() is None
    wire.feed(frame(DATA, PADDED | END_STREAM, 1, b"\x00" + whole[-1:]))
    assert (stream.take(), wire.begun) == ((False, b"abc"), [stream, stream])


def test_trailers_end_a_request() -> None:
    wire = Wire()
    stream = wire.opened()
    trailer = block([(b"x", b"y")])
    wire.feed(data(1, message(b"abc")))
    wire.feed(frame(HEADERS, END_HEADERS | END_STREAM, 1, trailer))
    assert stream.ended
    assert wire.begun == [stream, stream]
    wire.opened(3)
    breaks(wire, frame(HEADERS, END_HEADERS, 3, trailer), Why.PROTOCOL_ERROR, 3)
    wire.opened(5)
    unclean = frame(HEADERS, END_HEADERS | END_STREAM, 5, block([(b"x", b"\n")]))
    breaks(wire, unclean, Why.PROTOCOL_ERROR, 5)


@pytest.mark.parametrize(
    "late",
    [
        frame(DATA, END_STREAM, 1, b"more"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, HEADERS_OF_CALL),
    ],
)
def test_nothing_comes_behind_the_end_of_a_request(late: bytes) -> None:
    wire = Wire()
    wire.feed(call(1))
    breaks(wire, late, Why.STREAM_CLOSED)


def test_late_frames_of_a_call_that_is_over_change_nothing_but_the_common_window() -> None:
    wire = Wire()
    stream = wire.opened()
    stream.expire(HEAD + DONE, DONE)
    kinds = [each.kind for each in wire.sent()]
    assert kinds == [HEADERS, RST_STREAM]  # the client may stop
    late = [
        frame(DATA, 0, 1, b"late"),
        window(1, 5),
        reset(1),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b"x", b"y")], kept=True)),
    ]
    assert wire.feed(b"".join(late)) == []
    assert wire.begun == [stream]
    assert wire.connection._unacked == 4
    wire.feed(frame(HEADERS, END_HEADERS, 3, HEADERS_OF_CALL + b"\xbe"))
    assert wire.begun[-1].headers["x"] == "y"  # the table heard the late headers


def test_a_header_with_a_line_end_breaks_its_call_only() -> None:
    wire = Wire()
    breaks(wire, call(1, bad="a\r\nx: y"), Why.PROTOCOL_ERROR)
    assert wire.begun == []


def test_headers_that_are_too_long_are_told_to_the_handler() -> None:
    wire = Wire()
    wire.feed(call(1, long="x" * (FRAME_MAX // 2), longer="x" * 7000, longest="x" * 900))
    assert wire.begun[0].headers == {}


def test_the_windows_of_a_client_are_given_back() -> None:
    wire = Wire()
    stream = wire.opened()
    given = {0: 0, 1: 0}
    size = 3 * CONNECTION_WINDOW // 4
    whole = message(bytes(size))
    for at in range(0, len(whole), FRAME_MAX):
        for each in wire.feed(frame(DATA, 0, 1, whole[at : at + FRAME_MAX])):
            assert each.kind == WINDOW_UPDATE
            given[each.stream] += each.number
    assert stream.take() == (False, bytes(size))
    assert given[0] >= size - CONNECTION_WINDOW // 2
    assert given[1] >= size - OWN_WINDOW
    assert given[1] + OWN_WINDOW == len(whole) + stream.allowed


def test_a_client_that_sends_beyond_its_window_breaks_its_call() -> None:
    wire = Wire()
    wire.opened().serve(FakeTask())
    small = message(bytes(FRAME_MAX - 5))
    for _ in range(OWN_WINDOW // FRAME_MAX):
        wire.feed(frame(DATA, 0, 1, small))  # nobody reads
    breaks(wire, frame(DATA, 0, 1, b"x"), Why.FLOW_CONTROL_ERROR)


def test_a_stream_of_requests_gets_its_window_back_as_it_is_read() -> None:
    async def main() -> None:
        wire = Wire()
        stream = wire.opened()
        stream.serve(FakeTask())  # type: ignore[arg-type]
        part = bytes(FRAME_MAX - 5)
        for _ in range(OWN_WINDOW // FRAME_MAX):
            assert wire.feed(frame(DATA, 0, 1, message(part))) == []
        assert (stream.allowed, stream.unread) == (0, OWN_WINDOW)
        held = wire.budget.used
        while stream.unread > OWN_WINDOW // 2:
            assert await stream.next_message() == (False, part)
        assert wire.sent() == [
            ParsedFrame(WINDOW_UPDATE, 0, 1, (OWN_WINDOW // 2).to_bytes(4, "big"))
        ]
        assert wire.budget.used == held - (FRAME_MAX + MESSAGE_BYTES) * 32

    asyncio.run(main())


def test_a_message_of_a_stream_may_be_larger_than_its_window() -> None:
    async def main() -> None:
        wire = Wire()
        stream = wire.opened()
        stream.serve(FakeTask())  # type: ignore[arg-type]
        whole, sent = message(bytes(3 * OWN_WINDOW)), 0
        room = OWN_WINDOW
        while sent < len(whole):
            assert room > 0, "the client waits for ever"
            piece = whole[sent : sent + min(room, FRAME_MAX)]
            sent, room = sent + len(piece), room - len(piece)
            room += sum(e.number for e in wire.feed(frame(DATA, 0, 1, piece)) if e.stream)
        assert await stream.next_message() == (False, bytes(3 * OWN_WINDOW))

    asyncio.run(main())


# answers


def test_an_answer_waits_for_both_windows() -> None:
    wire = Wire((INITIAL_WINDOW, 10))
    stream = stall(wire, 100_000)
    assert len(body(wire.sent())) == 10
    assert len(body(wire.feed(window(1, 5)))) == 5
    assert len(body(wire.feed(window(1, 99_985)))) == USUAL_WINDOW - 15
    assert not stream.over
    *parts, last = wire.feed(window(0, 50_000))
    assert len(body(parts)) == 100_000 - USUAL_WINDOW
    assert (last.kind, last.flags) == (HEADERS, END_STREAM | END_HEADERS)
    assert answer_headers(last.payload) == {"grpc-status": "0"}
    assert stream.over


def test_no_frame_is_longer_than_every_client_takes() -> None:
    wire = Wire((INITIAL_WINDOW, LARGE), (h2.MAX_FRAME, 1 << 20))
    wire.feed(window(0, LARGE - USUAL_WINDOW))
    stall(wire, 1 << 20)
    frames = wire.sent()
    assert len(body(frames)) == 1 << 20
    assert max(len(each.payload) for each in frames) == FRAME_MAX


def test_a_window_that_shrinks_may_become_negative() -> None:
    wire = Wire((INITIAL_WINDOW, 1000))
    stream = stall(wire, 3000)
    assert len(body(wire.sent())) == 1000
    wire.feed(settings((INITIAL_WINDOW, 0)))
    assert stream.window == -1000
    assert body(wire.feed(window(1, 1000))) == b""
    assert body(wire.feed(window(1, 1))) == b"\0"
    assert len(body(wire.feed(settings((INITIAL_WINDOW, 1500))))) == 1500
    assert len(body(wire.feed(window(1, 499)))) == 499
    assert stream.over


def test_windows_have_a_limit() -> None:
    wire = Wire()
    wire.opened()
    breaks(wire, window(1, LARGE), Why.FLOW_CONTROL_ERROR)
    wire.opened(3)
    breaks(wire, window(3, 0), Why.PROTOCOL_ERROR, 3)
    wire.opened(5)
    wire.feed(window(5, WINDOW_MAX - USUAL_WINDOW))
    fails(wire, settings((INITIAL_WINDOW, USUAL_WINDOW + 1)), Why.FLOW_CONTROL_ERROR)


def test_nothing_is_sent_while_the_socket_is_full() -> None:
    wire = Wire()
    wire.feed(call(1))
    wire.connection.pause()
    stream = wire.connection.streams[1]
    stream.answer(HEAD, bytes(100), DONE)
    assert body(wire.sent()) == b""
    assert wire.connection.late(wire.clock.now + 1000, 30) == []  # the socket is to blame
    wire.connection.resume()
    assert len(body(wire.sent())) == 100


def test_a_full_socket_excuses_clients_that_could_not_be_heard() -> None:
    wire = Wire((INITIAL_WINDOW, 0))
    stream = stall(wire, 100)
    wire.connection.pause()
    wire.clock.now += 40
    wire.connection.resume()
    assert wire.connection.late(wire.clock.now + 1, 30) == []
    assert wire.connection.late(wire.clock.now + 31, 30) == [stream]


def test_a_call_that_writes_a_stream_waits_for_its_client() -> None:
    async def main() -> None:
        wire = Wire()
        stream = wire.opened()
        part, written = message(bytes(64 << 10)), 0

        async def write() -> None:
            nonlocal written
            while True:
                await stream.write(HEAD, part)
                written += 1

        task = asyncio.ensure_future(write())
        await asyncio.sleep(0)
        waiting = stream.unsent
        assert WAITING_MAX < waiting <= WAITING_MAX + len(part)
        assert wire.budget.used > waiting
        wire.feed(window(0, 1 << 20) + window(1, 1 << 20))
        before = written
        await asyncio.sleep(0)
        assert written > before
        wire.feed(reset(1))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert wire.budget.used == 0

    asyncio.run(main())


def test_a_reset_ends_the_call() -> None:
    wire = Wire()
    stream = wire.opened()
    task = FakeTask()
    stream.serve(task)  # type: ignore[arg-type]
    wire.feed(data(1, message(bytes(1000))))
    assert wire.budget.used > 1000 + STREAM_BYTES
    assert wire.feed(reset(1)) == []
    assert task.is_cancelled
    assert stream.over
    assert wire.budget.used == 0


def test_a_server_that_leaves_takes_no_more_calls() -> None:
    wire = Wire()
    stream = wire.opened()
    wire.connection.leave()
    (last,) = wire.sent()
    assert (last.kind, last.number, last.payload[:4]) == (GOAWAY, 0, (1).to_bytes(4, "big"))
    breaks(wire, call(3, data=None), Why.REFUSED_STREAM, 3)
    stream.answer(HEAD, message(b"done"), DONE)
    assert body(wire.sent()) == message(b"done")


def test_all_who_write_to_one_stream_go_on_when_its_client_takes_something() -> None:
    """A Telemetry stream that ends with an error has a question on its way, maybe."""

    async def go() -> None:
        wire = Wire()
        stream = wire.opened()
        part = bytes(2 * WAITING_MAX)
        writers = [asyncio.ensure_future(stream.write(HEAD, part)) for _ in range(4)]
        await asyncio.sleep(0)
        assert not any(writer.done() for writer in writers)
        writers.pop().cancel()
        await asyncio.sleep(0)
        wire.feed(window(0, 8 * WAITING_MAX) + window(1, 8 * WAITING_MAX))
        async with asyncio.timeout(5):
            await asyncio.gather(*writers)

    asyncio.run(go())
