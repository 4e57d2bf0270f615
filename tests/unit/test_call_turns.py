"""A flood of calls on one connection of gRPC leaves the others their turns of the loop."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from itertools import pairwise
from pathlib import Path

from broker_rig import run, until
from gateway_door_rig import opened
from http2_rig import Clock, Wire
from saturnmq.drills.fuzz.http2 import HEADERS, PREFACE, call, frame, parsed, settings
from saturnmq.gateway import v2
from saturnmq.gateway.http2.beginnings import Beginnings
from saturnmq.gateway.http2.connection import FRAMES_AT_ONCE, Http2Connection
from saturnmq.gateway.http2.frames import FrameKind
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime
from saturnmq.runtime.turns import TASKS_LEAST, TASKS_MOST, TURN_S, Turns

PINGS = [frame(FrameKind.PING, 0, 0, number.to_bytes(8, "big")) for number in range(1000)]


def turn_of(clock: Clock) -> None:
    soon, clock.soon = clock.soon, []
    for each in soon:
        each()


def test_few_calls_begin_in_a_turn_those_of_a_connection_in_their_order() -> None:
    clock = Clock()
    turns = Turns(clock)  # type: ignore[arg-type]  # as much of one as it needs
    flood, other = Beginnings(turns), Beginnings(turns)
    begun: list[str] = []
    for number in range(20):
        flood.add(partial(begun.append, f"flood {number}"))
    assert len(begun) == TASKS_LEAST
    turn_of(clock)
    other.add(partial(begun.append, "other"))
    assert begun[-1] == "other", "who comes with one call waits for no flood"
    counts = [len(begun)]
    while len(begun) < 21:
        turn_of(clock)
        counts.append(len(begun))
    assert max(after - before for before, after in pairwise(counts)) <= 2 * TASKS_MOST
    assert [each for each in begun if each != "other"] == [f"flood {n}" for n in range(20)]


def test_connections_whose_calls_wait_take_turns() -> None:
    clock = Clock()
    turns = Turns(clock)  # type: ignore[arg-type]
    clock.now += TURN_S * turns.is_over()
    begun: list[str] = []
    clock.now += TURN_S  # this turn is over
    for name in "abc":
        line = Beginnings(turns)
        for number in range(3):
            line.add(partial(begun.append, f"{name}{number}"))
    assert begun == []
    while len(begun) < 9:
        turn_of(clock)
    assert begun == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_the_frames_of_a_read_are_handled_in_several_turns() -> None:
    wire = Wire(greet=False)
    turns = Turns(wire.clock)  # type: ignore[arg-type]
    sent = bytearray()
    connection = Http2Connection(
        wire.clock,  # type: ignore[arg-type]
        wire.budget,
        lambda pieces: sent.extend(b"".join(pieces)),
        wire.begun.append,
        lambda stream, why: None,
        1 << 20,
        turns,
    )
    connection.received(PREFACE + settings() + b"".join(PINGS[: 2 * FRAMES_AT_ONCE]))
    answered = []
    while connection.is_behind:
        answered.append(sum(each.kind == FrameKind.PING for each in parsed(bytes(sent))))
        connection.received(b"")
    assert answered == [FRAMES_AT_ONCE - 1, 2 * FRAMES_AT_ONCE - 1]
    assert sum(each.kind == FrameKind.PING for each in parsed(bytes(sent))) == 2 * FRAMES_AT_ONCE
    assert connection.partial_s(wire.clock.now + 60) == 0


def test_a_socket_goes_on_with_frames_that_it_has_read(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            beat = v2.HeartbeatRequest(client_type=v2.ClientType.PRODUCER).SerializeToString()
            path = f"/{v2.SERVICE}/Heartbeat"
            headers = {"x-mq-client-id": "flood"}
            beats = b"".join(call(1 + 2 * n, path, beat, **headers) for n in range(300))
            data = PREFACE + settings() + b"".join(PINGS) + beats
            with socket.create_connection(split_address(node.address)) as client:
                client.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(client, data)
                got, answers = b"", {int(FrameKind.PING): 0, HEADERS: 0}
                async with asyncio.timeout(20):
                    while answers != {int(FrameKind.PING): len(PINGS), HEADERS: 2 * 300}:
                        got += await loop.sock_recv(client, 1 << 16)
                        while len(got) >= 9 and len(got) >= (end := 9 + int.from_bytes(got[:3])):
                            if got[3] in answers:
                                answers[got[3]] += 1
                            got = got[end:]
            await until(lambda: not any(each.http2.streams for each in node.door._open))

    run(body)
