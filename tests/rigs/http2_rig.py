"""A connection of HTTP/2, the server's side, without a socket, and an encoder of headers that draws
every form that there is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from saturnmq.drills.fuzz.http2 import (
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    Pair,
    ParsedFrame,
    answer_headers,
    call,
    frame,
    integer,
    parsed,
    settings,
    text,
)
from saturnmq.gateway.http2.connection import Http2Connection
from saturnmq.gateway.http2.frames import FRAME_MAX, BadFrames, Why
from saturnmq.gateway.http2.grpc_calls import DONE, HEAD, refuse
from saturnmq.gateway.http2.stream import Stream
from saturnmq.protocol.budget import Budget


@dataclass
class Clock:
    """A runtime whose time stands; what is due soon happens with the next bytes."""

    now: float = 1.0
    soon: list[Callable[[], None]] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def processor_time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.soon.append(lambda: callback(*args))


MESSAGE_MAX = 16 << 20  # bytes of one in a request


class Wire:
    """A connection of the server; `begun` are its calls, once for each word about them."""

    def __init__(self, *first: tuple[int, int], memory: int = 1 << 30, greet: bool = True) -> None:
        """`first`: the settings of the client."""
        self.clock = Clock()
        self.budget = Budget(memory, "memory")
        self.begun: list[Stream] = []
        self.raw = bytearray()
        self.connection = Http2Connection(
            self.clock,  # type: ignore[arg-type]  # as much of one as it needs
            self.budget,
            lambda pieces: self.raw.extend(b"".join(pieces)),
            self.begun.append,
            refuse,
            MESSAGE_MAX,
        )
        self.connection.start()
        if greet:
            self.feed(PREFACE + settings(*first))

    def feed(self, data: bytes) -> list[ParsedFrame]:
        """Give it these bytes; the frames that it sends then."""
        self.connection.received(data)
        return self.sent()

    def sent(self) -> list[ParsedFrame]:
        """The frames that it sent since the last look."""
        soon, self.clock.soon = self.clock.soon, []
        for each in soon:
            each()
        data = bytes(self.raw)
        self.raw.clear()
        return parsed(data)

    def opened(self, stream: int = 1) -> Stream:
        """A call whose headers came."""
        self.feed(call(stream, data=None))
        return self.connection.streams[stream]


class RandomEncoder:
    """HPACK with every form that RFC 7541 has, chosen by chance."""

    def __init__(self, chance: random.Random, static: tuple[tuple[str, str], ...]) -> None:
        self._chance = chance
        self._static = [(name.encode(), value.encode()) for name, value in static]
        self._table: list[Pair] = []
        self._limit = 4096
        self.huffman: dict[int, str] = {}  # bits of each byte; empty: it is not used

    def encode(self, headers: Iterable[Pair]) -> bytes:
        out = bytearray()
        for _ in range(self._chance.choice((0, 0, 0, 1, 2))):
            self._limit = self._chance.choice((0, 40, 100, 1000, 4096))
            self._cut(0)
            out += integer(self._limit, 5, 0x20)
        for header in headers:
            out += self._one(header)
        return bytes(out)

    def _one(self, header: Pair) -> bytes:
        everything = self._static + self._table
        places = [i + 1 for i, each in enumerate(everything) if each == header]
        if places and self._chance.random() < 0.8:
            return integer(self._chance.choice(places), 7, 0x80)
        names = [i + 1 for i, each in enumerate(everything) if each[0] == header[0]]
        named = self._chance.choice(names) if names and self._chance.random() < 0.8 else 0
        form, bits = self._chance.choice(((0x40, 6), (0x40, 6), (0x00, 4), (0x10, 4)))
        out = integer(named, bits, form)
        out += b"" if named else self._text(header[0])
        out += self._text(header[1])
        if form == 0x40:
            size = len(header[0]) + len(header[1]) + 32
            self._cut(size)
            if size <= self._limit:
                self._table.insert(0, header)
        return out

    def _text(self, data: bytes) -> bytes:
        if not self.huffman or self._chance.random() < 0.5:
            return text(data)
        bits = "".join(self.huffman[byte] for byte in data)
        bits += "1" * (-len(bits) % 8)
        packed = int(bits or "0", 2).to_bytes(len(bits) // 8, "big")
        return integer(len(packed), 7, 0x80) + packed

    def _cut(self, more: int) -> None:
        def size() -> int:
            return sum(len(name) + len(value) + 32 for name, value in self._table)

        while self._table and size() + more > self._limit:
            self._table.pop()


class FakeTask:
    """The task of a call."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    """As many frames as it takes."""
    out = b""
    while len(payload) > FRAME_MAX:
        out += frame(DATA, 0, stream, payload[:FRAME_MAX])
        payload = payload[FRAME_MAX:]
    return out + frame(DATA, flags, stream, payload)


def fails(wire: Wire, bad: bytes, why: Why) -> None:
    """The connection ends, and says why."""
    with pytest.raises(BadFrames) as caught:
        wire.feed(bad)
    assert caught.value.why is why, caught.value
    (last,) = parsed(wire.connection.goodbye(caught.value))
    assert (last.kind, last.number) == (GOAWAY, why)
    wire.connection.close()
    assert not wire.connection.streams


def breaks(wire: Wire, bad: bytes, why: Why, stream: int = 1) -> None:
    """One stream ends, and the connection goes on."""
    assert ParsedFrame(RST_STREAM, 0, stream, int(why).to_bytes(4, "big")) in wire.feed(bad)
    assert stream not in wire.connection.streams
    assert [each.kind for each in wire.feed(frame(PING, payload=bytes(8)))] == [PING]


def body(frames: list[ParsedFrame]) -> bytes:
    return b"".join(each.payload for each in frames if each.kind == DATA)


def stall(wire: Wire, size: int, stream: int = 1) -> Stream:
    """A call whose answer of this size waits for its client."""
    wire.feed(call(stream))
    found = wire.connection.streams[stream]
    found.answer(HEAD, bytes(size), DONE)
    return found


def told(frames: list[ParsedFrame]) -> tuple[str, str]:
    """The status of an answer that is an error, and its text."""
    (found,) = (answer_headers(each.payload) for each in frames if each.kind == HEADERS)
    return found["grpc-status"], found["grpc-message"]
