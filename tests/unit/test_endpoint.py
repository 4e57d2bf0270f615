"""One connection: in-place parsing, coalesced replies, time-outs, and what a bad peer can do."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saturnmq.protocol import endpoint as module
from saturnmq.protocol.asking import connect
from saturnmq.protocol.endpoint import RECEIVE_BUFFER, Endpoint
from saturnmq.protocol.remoting import MAX_FRAME, Command, FrameDecoder, encode
from saturnmq.runtime import turns
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    InvalidParameter,
    MalformedFrame,
    RequestTimeout,
    SaturnError,
    TopicNotExist,
    error_for,
)
from saturnmq.runtime.native import NativeRuntime


class Wire(asyncio.Transport):
    """A transport that only remembers what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False
        self.reading = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 4711)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: object) -> None:
        self.writes.append(b"".join(map(bytes, list_of_data)))  # type: ignore[call-overload]

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def sent(self) -> list[Command]:
        return FrameDecoder().feed(b"".join(self.writes))


def echo(endpoint: Endpoint, command: Command) -> None:
    endpoint.send(command.reply(ext=command.ext, body=bytes(command.body)), command)


class Still:
    """A runtime on which a turn of the loop takes no time, and does not end."""

    def monotonic(self) -> float:
        return 1.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        pass


def wired(handler: module.Handler | None = echo, **options: object) -> tuple[Endpoint, Wire]:
    options.setdefault("turns", turns.Turns(Still()))  # type: ignore[arg-type]
    endpoint = Endpoint(NativeRuntime(), handler, **options)  # type: ignore[arg-type]
    wire = Wire()
    endpoint.connection_made(wire)
    return endpoint, wire


def feed(endpoint: Endpoint, data: bytes, chunk: int = 1 << 30) -> None:
    """Deliver bytes as a socket would: never more than the buffer takes."""
    position = 0
    while position < len(data):
        buffer = endpoint.get_buffer(-1)
        part = data[position : position + min(chunk, len(buffer))]
        assert part, "the receive buffer must never be full"
        buffer[: len(part)] = part
        endpoint.buffer_updated(len(part))
        position += len(part)


def frame(code: int, body: bytes = b"", opaque: int = 1, flag: int = 0) -> bytes:
    return b"".join(encode(Command(code, {"n": str(code)}, body, opaque=opaque, flag=flag)))


def test_a_request_that_is_too_large_is_refused_at_once_and_only_then() -> None:
    async def main(runtime: NativeRuntime) -> None:
        endpoint = Endpoint(runtime, None, max_frame=1000)
        endpoint.connection_made(Wire())
        told: list[Command | SaturnError] = []
        with pytest.raises(MalformedFrame, match="send less at once"):
            endpoint.request_callback(Command(1, body=bytes(1000)), 5.0, told.append)
        assert endpoint.waiting == 0
        endpoint.close()
        assert told == []

    run(main)


def test_a_request_whose_fields_are_too_long_is_refused_and_an_answer_is_shortened() -> None:
    """The peer would end the connection, on which others have requests, too."""

    async def main(runtime: NativeRuntime) -> None:
        wire = Wire()
        endpoint = Endpoint(runtime, None)
        endpoint.connection_made(wire)
        with pytest.raises(InvalidParameter, match="the limit is 262144: shorten them"):
            endpoint.request_callback(Command(1, {"a": "x" * 262_144}), 5.0, print)
        assert (endpoint.waiting, wire.writes) == (0, [])
        endpoint.request_callback(Command(1, {"a": "x" * 262_000}), 5.0, lambda _: None)
        assert endpoint.waiting == 1
        wire.writes.clear()
        endpoint.send(Command(1, opaque=7).reply(1, "\x01" * 262_144))
        (answer,) = FrameDecoder().feed(b"".join(wire.writes))
        assert answer.remark == "\x01" * 32_768 + "..."
        endpoint.close()

    run(main)


def run(main: Callable[[NativeRuntime], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await main(NativeRuntime())

    asyncio.run(limited())


def test_replies_of_one_read_leave_together_but_do_not_wait_for_the_last() -> None:
    endpoint, wire = wired()
    replies = 5 * module.PIECES_AT_ONCE + 1  # each has a head and a body
    feed(endpoint, b"".join(frame(10, b"x", opaque) for opaque in range(replies)))
    assert len(wire.writes) == 2 * 5 + 1
    assert [reply.opaque for reply in wire.sent()] == list(range(replies))


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 40_000) | st.integers(60_000, 200_000), min_size=1, max_size=12),
    st.integers(99, 70_000),
    st.booleans(),
)
def test_frames_of_any_size_in_any_chunks_are_served(
    sizes: list[int], chunk: int, server: bool
) -> None:
    endpoint, wire = wired(server=server)
    feed(endpoint, b"".join(frame(10, b"a" * n, i) for i, n in enumerate(sizes)), chunk)
    assert [(c.opaque, len(c.body)) for c in wire.sent()] == list(enumerate(sizes))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=8), st.integers(999, 300_000))
def test_bodies_of_responses_stay_as_they_came(sizes: list[int], chunk: int) -> None:
    async def main(runtime: NativeRuntime) -> None:
        endpoint, wire = wired()
        bodies = [bytes([n]) * size for n, size in enumerate(sizes)]
        answers = [endpoint.request(Command.request(11), 60.0) for _ in bodies]
        replies = [
            frame(0, body, command.opaque, 1)
            for body, command in zip(bodies, wire.sent(), strict=True)
        ]
        feed(endpoint, b"".join(replies), chunk)
        feed(endpoint, frame(10, b"later" * 99_999))
        assert [bytes((await answer).body) for answer in answers] == bodies
        endpoint.close()

    run(main)


def test_a_large_response_that_is_cut_off_fails_its_request() -> None:
    async def main(runtime: NativeRuntime) -> None:
        endpoint, wire = wired()
        answer = endpoint.request(Command.request(11), 60.0)
        feed(endpoint, frame(0, b"x" * 999_999, wire.sent()[0].opaque, 1)[:-1])
        assert not answer.done()
        endpoint.connection_lost(None)
        with pytest.raises(ConnectionLost):
            await answer

    run(main)


def test_receive_buffer_grows_with_received_bytes_only_and_shrinks_back() -> None:
    endpoint, wire = wired(server=True)
    feed(endpoint, struct.pack(">i", MAX_FRAME) + b"x" * 10)
    assert len(endpoint._view) == module.FIRST_BUFFER
    endpoint, wire = wired(server=True)
    big = frame(10, b"b" * (MAX_FRAME - 200))
    feed(endpoint, big[:-1])
    assert len(endpoint._view) <= MAX_FRAME + 4
    feed(endpoint, big[-1:] + frame(11, b"after", 2))
    assert [(c.opaque, len(c.body)) for c in wire.sent()] == [(1, MAX_FRAME - 200), (2, 5)]
    for _ in range(module.SHRINK_AFTER_READS):
        feed(endpoint, frame(10, b"small"))
    assert len(endpoint._view) == RECEIVE_BUFFER
    feed(endpoint, frame(10, b"still fine", 77))
    assert wire.sent()[-1].opaque == 77


@pytest.mark.parametrize(
    "bad", [struct.pack(">i", MAX_FRAME + 1), b"\x16\x03\x01\x00", struct.pack(">iI", 5, 2) + b"{"]
)
def test_malformed_frame_closes_this_connection_after_answering_what_came_before(
    bad: bytes,
) -> None:
    closed: list[Endpoint] = []
    endpoint, wire = wired(on_close=closed.append)
    feed(endpoint, frame(10, b"good") + bad)
    assert [reply.code for reply in wire.sent()] == [0]
    assert wire.closed
    assert closed == [endpoint]
    assert "malformed" in str(endpoint.close_reason)
    endpoint.connection_lost(None)
    assert closed == [endpoint]


def test_handler_errors_become_response_codes_and_the_connection_lives() -> None:
    def handler(endpoint: Endpoint, command: Command) -> None:
        if command.code == 1:
            raise TopicNotExist("topic T: create it")
        raise ZeroDivisionError("oops")

    endpoint, wire = wired(handler)
    feed(endpoint, frame(1, opaque=1) + frame(2, opaque=2) + frame(1, flag=2) + frame(2, flag=2))
    assert [(c.opaque, c.code, c.remark) for c in wire.sent()] == [
        (1, 17, "topic T: create it"),
        (2, 1, "ZeroDivisionError: oops"),
    ]
    assert not wire.closed


def test_without_handler_every_request_is_answered_3() -> None:
    endpoint, wire = wired(None)
    feed(endpoint, frame(7777))
    assert [(c.code, c.remark) for c in wire.sent()] == [(3, " request type 7777 not supported")]


def test_server_stops_reading_while_the_peer_does_not_read_and_a_client_does_not() -> None:
    server, wire = wired(server=True)
    server.pause_writing()
    assert not wire.reading
    server.resume_writing()
    assert wire.reading
    client, wire = wired()
    client.pause_writing()
    assert wire.reading


def test_unknown_opaque_is_dropped() -> None:
    endpoint, wire = wired()
    feed(endpoint, frame(0, opaque=99, flag=1))
    assert wire.writes == []
    assert not wire.closed


def test_requests_both_ways_on_one_connection() -> None:
    async def main(runtime: NativeRuntime) -> None:
        peers: list[Endpoint] = []

        def accept() -> Endpoint:
            peers.append(Endpoint(runtime, echo, server=True))
            return peers[-1]

        listener = await runtime.listen("127.0.0.1", 0, accept)
        client = await connect(runtime, *split_address(listener.address), echo)
        assert client.peer_address == listener.address
        for size in (0, 1, 300_000, MAX_FRAME - 300):
            reply = await client.request(Command.request(10, {"a": "é"}, b"z" * size), 5)
            assert (reply.body == b"z" * size, reply.ext) == (True, {"a": "é"})
        back = await peers[0].request(Command.request(40, body=b"notice"), 5)
        assert back.body == b"notice"
        many = [client.request(Command.request(10, body=b"%d" % i), 5) for i in range(500)]
        assert [r.body for r in await asyncio.gather(*many)] == [b"%d" % i for i in range(500)]
        results: list[Command | SaturnError] = []
        done = asyncio.Event()
        client.request_callback(
            Command.request(10, body=b"cb"), 5, lambda r: (results.append(r), done.set())[0]
        )
        await done.wait()
        assert isinstance(results[0], Command)
        client.close()
        listener.close()

    run(main)


def test_time_outs_share_one_timer_and_an_earlier_deadline_moves_it() -> None:
    async def main(runtime: NativeRuntime) -> None:
        endpoint = Endpoint(runtime, None)
        endpoint.connection_made(Wire())
        slow = endpoint.request(Command.request(11), 30)
        first_timer = endpoint._timer
        others = [endpoint.request(Command.request(11), 30) for _ in range(10)]
        assert endpoint._timer is first_timer
        with pytest.raises(RequestTimeout, match="request 12"):
            await endpoint.request(Command.request(12), 0.02)
        assert not slow.done()
        assert endpoint._timer is not None
        slow.cancel()
        await asyncio.sleep(0)
        assert len(endpoint._open) == len(others)
        endpoint.connection_lost(None)
        for future in others:
            with pytest.raises(ConnectionLost):
                await future
        assert endpoint._timer is None
        with pytest.raises(ConnectionLost):
            await endpoint.request(Command.request(12), 5)

    run(main)


def test_closing_peer_fails_open_requests_at_once() -> None:
    async def main(runtime: NativeRuntime) -> None:
        def slam(endpoint: Endpoint, command: Command) -> None:
            endpoint.abort()

        listener = await runtime.listen("127.0.0.1", 0, lambda: Endpoint(runtime, slam))
        client = await connect(runtime, *split_address(listener.address))
        with pytest.raises(ConnectionLost, match="request 10"):
            await client.request(Command.request(10), 10)
        listener.close()

    run(main)


def test_nobody_listening_and_port_in_use_are_typed_errors() -> None:
    async def main(runtime: NativeRuntime) -> None:
        listener = await runtime.listen("127.0.0.1", 0, lambda: Endpoint(runtime, None))
        host, port = split_address(listener.address)
        with pytest.raises(ConfigError, match="choose another port"):
            await runtime.listen(host, port, lambda: Endpoint(runtime, None))
        listener.close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectFailed):
            await connect(runtime, host, port)

    run(main)


def test_oversized_frame_is_refused_before_it_is_sent() -> None:
    endpoint, wire = wired()
    with pytest.raises(SaturnError, match="the limit is"):
        endpoint.send(Command(0, body=bytes(MAX_FRAME)))
    assert wire.writes == []


def test_every_response_code_has_one_error_and_unknown_codes_keep_their_number() -> None:
    assert isinstance(error_for(17, "x"), TopicNotExist)
    for code in (1, 2, 3, 10, 11, 12, 13, 14, 16, 17, 19, 22, 23, 24, 25, 26, 29, 206):
        error = error_for(code, "why")
        assert error.code == code
        assert str(error) == "why"
    assert error_for(4242, None).code == 4242
    assert "4242" in str(error_for(4242, None))


def test_of_a_flood_of_requests_a_turn_has_some_and_reading_goes_on_when_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 60.0)

    async def main(runtime: NativeRuntime) -> None:
        served: list[int] = []
        handler = lambda _, command: served.append(command.opaque)  # noqa: E731
        endpoint, wire = wired(handler, server=True, turns=turns.Turns(runtime))
        many = 10 * module.REQUESTS_AT_ONCE
        feed(endpoint, b"".join(frame(10, b"x" * 50, opaque) for opaque in range(many)))
        assert not wire.reading
        counts = [len(served)]
        while not wire.reading:
            await asyncio.sleep(0)
            counts.append(len(served))
        assert served == [*range(many)], "each once, and in their order"
        assert len(counts) > 2
        assert all(b - a <= module.REQUESTS_AT_ONCE for a, b in pairwise(counts))
        feed(endpoint, frame(10, b"", many))
        assert served[-1] == many

    run(main)


def test_of_requests_that_take_long_a_turn_has_fewer_whatever_connections_they_are_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    async def main(runtime: NativeRuntime) -> None:
        served: list[str] = []
        shared = turns.Turns(runtime)
        floods = []
        for name in "abc":
            handler = partial(lambda name, _, command: served.append(name), name)
            endpoint, wire = wired(handler, server=True, turns=shared)
            feed(endpoint, b"".join(frame(10, b"", opaque) for opaque in range(4)))
            floods.append(wire)
        assert served == ["a", "b", "c"], "the first of a read is served at once"
        patient, _ = wired(lambda _, command: served.append("d"), server=True, turns=shared)
        feed(patient, frame(10, b"", 1))
        assert served == ["a", "b", "c", "d"]
        while not all(wire.reading for wire in floods):
            await asyncio.sleep(0)
        assert len(served) == 13

    run(main)


def test_connections_in_line_are_served_in_turn() -> None:
    async def main(runtime: NativeRuntime) -> None:
        line, served = turns.Turns(runtime), ""

        def go_on(name: str, more: int) -> None:
            nonlocal served
            served += name
            if more:
                line.wait(partial(go_on, name, more - 1))

        for name in "abc":
            line.wait(partial(go_on, name, 2))
        assert served == ""
        while len(served) < 9:
            await asyncio.sleep(0)
        assert served == "abcabcabc"

    run(main)


def test_those_in_line_behind_a_step_that_fails_are_served() -> None:
    async def main(runtime: NativeRuntime) -> None:
        line, served, failures = turns.Turns(runtime), asyncio.Event(), list[object]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

        def fail() -> None:
            raise ZeroDivisionError

        line.wait(fail)
        line.wait(served.set)
        async with asyncio.timeout(10):
            await served.wait()
        assert [type(each) for each in failures] == [ZeroDivisionError]

    run(main)


def test_a_flood_of_a_peer_that_does_not_read_waits_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 60.0)

    async def main(runtime: NativeRuntime) -> None:
        endpoint, wire = wired(server=True, turns=turns.Turns(runtime))
        many = module.REQUESTS_AT_ONCE + 1
        feed(endpoint, b"".join(frame(10, b"", opaque) for opaque in range(many)))
        endpoint.pause_writing()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(wire.sent()) == module.REQUESTS_AT_ONCE
        assert not wire.reading
        endpoint.resume_writing()
        assert not wire.reading
        await asyncio.sleep(0)
        assert wire.reading
        assert len(wire.sent()) == many

    run(main)


def test_who_has_many_long_works_under_way_waits_with_what_else_it_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 60.0)

    async def main(runtime: NativeRuntime) -> None:
        served: list[int] = []

        def begin(endpoint: Endpoint, command: Command) -> None:
            served.append(command.opaque)
            endpoint.begin_work()

        async def a_turn() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        endpoint, wire = wired(begin, server=True, turns=turns.Turns(runtime))
        most = module.WORKS_MAX
        feed(endpoint, b"".join(frame(10, b"", opaque) for opaque in range(most + 2)))
        await a_turn()
        assert served == [*range(most)]
        assert not wire.reading
        endpoint.end_work()
        await a_turn()
        assert served == [*range(most + 1)]
        endpoint.pause_writing()
        endpoint.end_work()
        await a_turn()
        assert served == [*range(most + 1)], "it does not read what it asked for"
        endpoint.resume_writing()
        await a_turn()
        assert served == [*range(most + 2)]
        assert not wire.reading, "there are as many again"
        endpoint.end_work()
        await a_turn()
        assert wire.reading

    run(main)


def test_a_buffer_that_was_full_of_requests_has_room_when_their_works_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 60.0)
    monkeypatch.setattr(module, "WORKS_MAX", 1)
    endpoint, wire = wired(lambda endpoint, _: endpoint.begin_work(), server=True)
    short = frame(10)
    feed(endpoint, frame(10, bytes(module.FIRST_BUFFER - len(short))))
    assert not wire.reading
    endpoint.end_work()
    assert wire.reading
    feed(endpoint, short)
    assert not wire.reading


def test_what_many_ask_for_in_one_turn_is_made_once() -> None:
    async def main(runtime: NativeRuntime) -> None:
        made: list[int] = []

        def make() -> int:
            made.append(len(made))
            return made[-1]

        once = turns.OncePerTurn(runtime, make)
        assert [once(), once(), once()] == [0, 0, 0]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert once() == 1

    run(main)
