"""The port of gRPC of a broker, in virtual time: connections of bytes, frames and calls that no
client sends.

A turn is one connection. Beside it a client behaves well, and has to be answered in time. An answer
that tells of an unforeseen error is a violation, and so is memory that is still counted when the
connection has gone.
"""

from __future__ import annotations

import asyncio
import random
import re
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError
from saturnmq.drills.fuzz import http2 as h2
from saturnmq.drills.fuzz.http2 import ParsedFrame, call, frame, message, reset, settings, window
from saturnmq.drills.fuzz.inprocess import Violation
from saturnmq.drills.fuzz.mutations import spoiled
from saturnmq.drills.fuzz.scene import FuzzScene
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.gateway import v2
from saturnmq.gateway.descriptors import rpcs_of
from saturnmq.gateway.door import Door
from saturnmq.gateway.gateway import Gateway
from saturnmq.gateway.http2.grpc_calls import GrpcCalls
from saturnmq.protocol.limits import MEMORY_MIN

PORT = 8081
PATH = f"/{v2.SERVICE}/"
CLIENT = {"x_mq_client_id": "me"}
ANSWERED_S = 5.0  # of virtual time
HELD_MAX = 64 << 10  # bytes for tables of the broker, and the client that behaves well
WAITS_S = 0.001, 0.02, 1.0, 45.0
UNFORESEEN = re.compile(r"^[A-Za-z]*(Error|Exception|Exit|Iteration): ")
UNFORESEEN_CODES = {v2.Code.INTERNAL_ERROR, v2.Code.INTERNAL_SERVER_ERROR}
NUMBERS = 0, 1, 2, 3, 9, 0x7FFFFFFF, 0xFFFFFFFF
TIMEOUTS = "3S", "0n", "99999999H", "1", "", "-1S", "1s", "S", "123456789m", "\xb2m"
QUEUE = v2.MessageQueue(topic=v2.Resource(name="T"), broker=v2.Broker(name="broker-a"))
GROUP = v2.Resource(name="G")


class Wrong(asyncio.Protocol):
    """The connection of one turn, or that of the client that behaves well."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_closed = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_closed = True

    def data_received(self, data: bytes) -> None:
        self.received += data

    def frames(self) -> list[ParsedFrame]:
        """Those that came whole."""
        found, at = [], 0
        data = self.received
        while len(data) - at >= 9:
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if len(data) < end:
                break
            found += h2.parsed(bytes(data[at:end]))
            at = end
        return found


class Good(Wrong):
    """A client that says that it lives."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(frame(h2.PING, h2.ACK, 0, bytes(8)))


class GrpcPort:
    """A broker with its gateway; each turn is one connection to it."""

    def __init__(self, seed: int) -> None:
        self._scene = FuzzScene(seed)
        self._good = Good()
        self._next = 1
        self._scene.run(lambda: self._start(seed))

    async def _start(self, seed: int) -> None:
        disk = SimDisk(random.Random(seed))
        broker = self._broker = await self._scene.broker(
            disk, default_topic_queues=4, memory_budget_bytes=MEMORY_MIN
        )
        runtime = self._scene.nodes[-1]
        self._door = Door(runtime, broker.connections, lambda: None, broker.body_max)
        self._address = await self._door.listen(runtime.ip, PORT)
        self._gateway = await runtime.run(self._serve(runtime))
        broker.ground.context.topics.ensure("T", 4)
        while not broker.messaging.popping.serves:
            await asyncio.sleep(0.01)
        self._at_first = broker.connections.budget.used
        self._machine = self._scene.node("client")
        await self._connect(self._good)
        self._good.transport.write(h2.PREFACE + settings((h2.INITIAL_WINDOW, 0x7FFFFFFF)))
        self._good.transport.write(window(0, 0x7FFF0000 - 65_535))

    async def _serve(self, runtime: Any) -> Gateway:
        turns = self._broker.connections.turns
        gateway = Gateway(runtime, self._broker, self._address, turns)
        self._door.serve(GrpcCalls(runtime, gateway.services, turns).begin)
        return gateway

    async def _connect(self, protocol: Wrong) -> None:
        host, _, port = self._address.rpartition(":")
        await self._machine.connect(host, int(port), protocol)

    def turn(self, rng: random.Random) -> list[str]:
        return self._scene.run(lambda: self._turn(rng))

    async def _turn(self, rng: random.Random) -> list[str]:
        draw = rng.choice(WAYS)
        wrong = Wrong()
        await self._connect(wrong)
        parts = draw(rng)
        for part in parts:
            wrong.transport.write(part)
            if rng.random() < 0.2:
                await asyncio.sleep(rng.choice(WAITS_S))
        await asyncio.sleep(rng.choice(WAITS_S))
        await self._is_served()
        outcome = f"{draw.__name__}: {self._looked_at(wrong)}"
        if not wrong.is_closed:
            wrong.transport.abort()
        await asyncio.sleep(0.1)
        self._look_for_rests(draw.__name__)
        return [outcome]

    def _look_for_rests(self, when: str) -> None:
        more = self._broker.connections.budget.used - self._at_first
        if more > HELD_MAX:
            raise Violation(f"{more} bytes are counted behind {when}")

    async def _is_served(self) -> None:
        """The client that behaves well gets its answer."""
        beat = v2.HeartbeatRequest(client_type=1).SerializeToString()
        stream, self._next = self._next, self._next + 2
        self._good.received.clear()
        self._good.transport.write(call(stream, f"{PATH}Heartbeat", beat, **CLIENT))
        async with asyncio.timeout(ANSWERED_S):
            while not any(
                each.stream == stream and each.flags & h2.END_STREAM for each in self._good.frames()
            ):
                if self._good.is_closed:
                    raise Violation("the connection of a good client was closed")
                await asyncio.sleep(0.01)
        if _refusals(self._good.frames()) != {"0"}:
            raise Violation(f"a good client was refused: {self._good.frames()}")

    def _looked_at(self, wrong: Wrong) -> str:
        """How the connection ended. Violation: of an error that nobody foresaw."""
        frames = wrong.frames() if wrong.received[:4] != b"HTTP" else []
        refused = _refusals(frames)
        ends = [each.number for each in frames if each.kind == h2.GOAWAY]
        if ends:
            return f"goaway {ends[-1]}"
        if wrong.is_closed:
            return "closed"
        return f"open, status {max(refused)}" if refused else "open"

    def close(self) -> None:
        self._scene.run(self._end)
        self._scene.close()

    async def _end(self) -> None:
        await self._door.close()
        await self._gateway.close()
        await self._broker.close()
        self._look_for_rests("the end")


def _refusals(frames: list[ParsedFrame]) -> set[str]:
    """The status of each call that was answered."""
    found = set()
    for each in frames:
        if each.kind == h2.DATA:
            _check_answer(each.payload)
        if each.kind == h2.HEADERS:
            headers = h2.answer_headers(each.payload)
            text = headers.get("grpc-message", "")
            if UNFORESEEN.match(text):
                raise Violation(f"an unforeseen error: {text}")
            found |= {headers["grpc-status"]} if "grpc-status" in headers else set()
    return found


def _check_answer(payload: bytes) -> None:
    """Look at the status of an answer, the first field of most. Violation: nobody foresaw it."""
    answer = v2.HeartbeatResponse()  # it has that field alone, and takes others as unknown
    try:
        answer.MergeFromString(payload[5:])
    except DecodeError:  # another field, or a part of an answer
        return
    status = answer.status
    if status.code in UNFORESEEN_CODES and UNFORESEEN.match(status.message):
        raise Violation(f"an unforeseen error: {status.message}")


# right requests


def _requests() -> dict[str, bytes]:
    """A right request of most calls."""
    properties = v2.SystemProperties(message_id="01" * 17, message_type=1, body_encoding=1)
    sent = v2.Message(topic=v2.Resource(name="T"), body=b"body", system_properties=properties)
    receive = v2.ReceiveMessageRequest(group=GROUP, message_queue=QUEUE, batch_size=4)
    receive.invisible_duration.FromSeconds(10)
    receive.long_polling_timeout.FromSeconds(5)
    told = v2.TelemetryCommand(settings=v2.Settings(client_type=2))
    told.settings.subscription.group.name = "G"
    found = {
        "SendMessage": v2.SendMessageRequest(messages=[sent, sent]),
        "ReceiveMessage": receive,
        "QueryRoute": v2.QueryRouteRequest(topic=v2.Resource(name="T")),
        "Heartbeat": v2.HeartbeatRequest(group=GROUP, client_type=3),
        "Telemetry": told,
    }
    return {name: each.SerializeToString() for name, each in found.items()} | {
        name: b"" for name in rpcs_of(v2.SERVICE) if name not in found
    }


REQUESTS = _requests()


def _call(rng: random.Random, stream: int, **more: str) -> bytes:
    name = rng.choice((*REQUESTS, "SendMessage", "ReceiveMessage", "Telemetry"))
    return call(stream, PATH + name, REQUESTS[name], **{**CLIENT, **more})


def _greeting(rng: random.Random) -> bytes:
    pairs = [(rng.randrange(8), rng.choice((0, 1, 1 << 14, 1 << 16))) for _ in range(3)]
    return h2.PREFACE + settings(*([] if rng.random() < 0.7 else pairs))


# ways to be wrong, each a list of parts


def garbage(rng: random.Random) -> list[bytes]:
    start = rng.choice((b"", h2.PREFACE[:10], h2.PREFACE, _greeting(rng), b"\x16\x03\x01", b"GET "))
    return [start] + [rng.randbytes(rng.choice((1, 9, 100, 20_000))) for _ in range(3)]


def odd_frames(rng: random.Random) -> list[bytes]:
    """Well-formed frames with values that cannot be."""
    parts, stream = [_greeting(rng)], 1
    for _ in range(rng.randrange(1, 30)):
        if rng.random() < 0.4:
            parts.append(_call(rng, stream))
            stream += 2
            continue
        kind = rng.randrange(12)
        number = rng.choice((0, 1, 2, stream, stream - 2 if stream > 1 else 1, 0x7FFFFFFF))
        flags = rng.choice((0, 1, 4, 5, 8, 13, 32, 37, 255))
        usual = {h2.PING: 8, h2.RST_STREAM: 4, h2.WINDOW_UPDATE: 4, h2.SETTINGS: 6, h2.PRIORITY: 5}
        size = usual.get(kind, rng.choice((0, 1, 5, 300, 16_384)))
        if rng.random() < 0.2:
            size = rng.choice((0, 1, 3, 7, 16_385))
        data = rng.choice(
            (bytes(size), rng.randbytes(size), rng.choice(NUMBERS).to_bytes(4, "big") + bytes(4))
        )
        if kind == h2.SETTINGS and rng.random() < 0.7:
            data = rng.randrange(8).to_bytes(2, "big") + rng.choice(NUMBERS).to_bytes(4, "big")
        parts.append(frame(kind, flags, number, data[:16_385]))
    return parts


def spoiled_session(rng: random.Random) -> list[bytes]:
    """A usual session with some bytes changed."""
    whole = _greeting(rng)
    for stream in range(1, 2 * rng.randrange(1, 5), 2):
        whole += _call(rng, stream)
    whole += window(0, 1000) + frame(h2.PING, payload=bytes(8)) + reset(1)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(whole))
        whole = whole[:at] + spoiled(rng, whole[at:])
    return [whole]


def odd_calls(rng: random.Random) -> list[bytes]:
    """Calls of gRPC with headers and messages that cannot be."""
    parts = [_greeting(rng)]
    for stream in range(1, 2 * rng.randrange(2, 8), 2):
        more = dict(CLIENT)
        for name, values in (
            ("grpc_timeout", TIMEOUTS),
            ("grpc_encoding", ("gzip", "identity", "zstd", "")),
            ("content_type", ("application/grpc+proto", "text/html", "")),
            ("x_mq_client_id", ("", " ", "x" * 2000, "\xff\x01")),
            ("x_mq_language", ("GOLANG", "\xe9", "x" * 300)),
            (":method", ("GET", "")),
        ):
            if rng.random() < 0.25:
                more[name] = rng.choice(values)
        name = rng.choice([*REQUESTS])
        path = rng.choice((PATH + name, PATH + name, PATH + name, "/", "", PATH, "/x/" + name))
        data = rng.choice((spoiled, lambda _, each: each, _packed))(rng, REQUESTS[name])
        whole = message(data, rng.choice((0, 0, 0, 1, 1, 2)))
        if rng.random() < 0.3:
            whole = spoiled(rng, whole)
        if rng.random() < 0.1:
            whole *= rng.choice((0, 2, 100))
        parts.append(call(stream, path, None, **more))
        flags = h2.END_STREAM if rng.random() < 0.8 else 0
        parts.append(frame(h2.DATA, flags, stream, whole[:16_384]))
    return parts


def _packed(rng: random.Random, data: bytes) -> bytes:
    """As gzip, and perhaps as a bomb."""
    packer = zlib.compressobj(wbits=31)
    found = packer.compress(data + bytes(rng.choice((0, 0, 100, 3 << 20, 17 << 20))))
    return found + packer.flush()


def resets(rng: random.Random) -> list[bytes]:
    """CVE-2023-44487, and its kin in which the server resets."""
    end = rng.choice((reset, lambda n: window(n, 0), lambda n: frame(h2.DATA, 1, n, b"late")))
    count = rng.choice((10, 1500))
    flood = [_call(rng, n) + end(n) for n in range(1, 2 * count, 2)]
    return [_greeting(rng), b"".join(flood)]


def endless_headers(rng: random.Random) -> list[bytes]:
    """CVE-2024-27316, and bombs of the table of headers."""
    part = rng.choice((b"", b"\x82", bytes(1000), b"\xbe" * 16_000))
    begin = h2.block([(b"n", b"v" * 4000)], kept=True)
    flood = [frame(h2.CONTINUATION, 0, 1, part)] * rng.choice((1, 5, 60))
    return [_greeting(rng), frame(h2.HEADERS, 0, 1, begin), *flood] + (
        [frame(h2.CONTINUATION, h2.END_HEADERS, 1)] if rng.random() < 0.5 else []
    )


def floods(rng: random.Random) -> list[bytes]:
    """Many frames that ask for an answer, or for none."""
    one = rng.choice(
        (
            settings((h2.INITIAL_WINDOW, rng.choice((0, 1, 1 << 20)))),
            frame(h2.PING, payload=bytes(8)),
            frame(h2.PRIORITY, 0, 1, bytes(5)),
            frame(h2.DATA, 0, 1),
            frame(h2.DATA, h2.PADDED, 1, bytes((200,)) + bytes(200)),
            window(0, 1),
            window(1, 1),
            frame(77, 0, 0, bytes(100)),
        )
    )
    return [_greeting(rng), _call(rng, 1), call(3, f"{PATH}Telemetry", None, **CLIENT), one * 3000]


def untaken(rng: random.Random) -> list[bytes]:
    """Answers that nobody takes, or a byte at a time."""
    parts = [h2.PREFACE + settings((h2.INITIAL_WINDOW, rng.choice((0, 1))))]
    count = rng.choice((1, 50, 500))
    route = REQUESTS["QueryRoute"]
    parts += [
        b"".join(call(n, f"{PATH}QueryRoute", route, **CLIENT) for n in range(1, 2 * count, 2))
    ]
    parts += [b"".join(window(n, 1) for n in range(1, 2 * count, 2))] * rng.randrange(4)
    return parts


def dribble(rng: random.Random) -> list[bytes]:
    """A byte in each frame, of a request that may never end."""
    name = rng.choice(("SendMessage", "Telemetry"))
    whole = message(REQUESTS[name])[: rng.choice((7, 30, 1000))]
    parts = [_greeting(rng), call(1, PATH + name, None, **CLIENT)]
    parts += [frame(h2.DATA, 0, 1, bytes((byte,))) for byte in whole]
    return parts + ([frame(h2.DATA, 1, 1)] if rng.random() < 0.3 else [])


@cache
def _large_requests() -> list[tuple[str, bytes]]:
    """Requests with more, or longer, of something than is allowed."""
    body = v2.SendMessageRequest.FromString(REQUESTS["SendMessage"])
    body.messages[0].body = bytes(5 << 20)
    text = v2.SendMessageRequest.FromString(REQUESTS["SendMessage"])
    text.messages[0].system_properties.trace_context = "x" * (2 << 20)
    many = v2.SendMessageRequest.FromString(REQUESTS["SendMessage"])
    many.messages.extend([many.messages[0]] * 10_000)
    acks = v2.AckMessageRequest(group=GROUP, topic=v2.Resource(name="T"))
    acks.entries.extend([v2.AckMessageEntry(receipt_handle="1 2 3 4 0 broker-a 0 0 0")] * 10_000)
    name = v2.QueryRouteRequest(topic=v2.Resource(name="x" * (3 << 20)))
    told = v2.TelemetryCommand.FromString(REQUESTS["Telemetry"])
    told.settings.subscription.subscriptions.extend([v2.SubscriptionEntry()] * 30_000)
    found = [("SendMessage", each) for each in (body, text, many)]
    found += [("AckMessage", acks), ("QueryRoute", name), ("Telemetry", told)]
    return [(name, each.SerializeToString()) for name, each in found]


def large(rng: random.Random) -> list[bytes]:
    """A request that is too large in itself."""
    name, data = rng.choice(_large_requests())
    whole = message(data)
    frames = [frame(h2.DATA, 0, 1, whole[at : at + 16_384]) for at in range(0, len(whole), 16_384)]
    parts = [b"".join(frames[at : at + 16]) for at in range(0, len(frames), 16)]
    head = [_greeting(rng), call(1, PATH + name, None, **CLIENT)]
    return [*head, *parts, frame(h2.DATA, h2.END_STREAM, 1)]


def conversations(rng: random.Random) -> list[bytes]:
    """Commands over one Telemetry stream that no client gives in this order, or at all."""
    settings_ = [v2.Settings(client_type=kind) for kind in range(8)]
    for each in settings_[:4]:
        rng.choice((each.publishing, each.subscription.group)).SetInParent()
    commands = [v2.TelemetryCommand(settings=each) for each in settings_]
    commands += [
        v2.TelemetryCommand.FromString(REQUESTS["Telemetry"]),
        v2.TelemetryCommand(),
        v2.TelemetryCommand(thread_stack_trace=v2.ThreadStackTrace(nonce="1")),
        v2.TelemetryCommand(verify_message_result=v2.VerifyMessageResult(nonce="1")),
        v2.TelemetryCommand(reconnect_endpoints_command=v2.ReconnectEndpointsCommand(nonce="1")),
        v2.TelemetryCommand(status=v2.Status(code=v2.Code.OK)),
    ]
    parts = [_greeting(rng), call(1, f"{PATH}Telemetry", None, **CLIENT)]
    for each in rng.choices(commands, k=rng.randrange(1, 12)):
        parts.append(frame(h2.DATA, 0, 1, message(each.SerializeToString())))
    return parts + ([frame(h2.DATA, h2.END_STREAM, 1)] if rng.random() < 0.5 else [])


def hoards(rng: random.Random) -> list[bytes]:
    """Requests that hold much and end never."""
    streams = range(1, 2 * rng.choice((2, 20)), 2)
    parts = [_greeting(rng)] + [
        call(n, PATH + rng.choice(("SendMessage", "Telemetry")), None, **CLIENT) for n in streams
    ]
    part = rng.choice((message(), b"\0" + (15 << 20).to_bytes(4, "big") + bytes(16_000)))
    filling = part * (16_384 // len(part))
    parts += [frame(h2.DATA, 0, n, filling) for n in streams] * rng.choice((1, 30))
    return parts


Way = Callable[[random.Random], list[bytes]]
WAYS: tuple[Way, ...] = (
    *(garbage, odd_frames, odd_frames, odd_frames, spoiled_session, spoiled_session, odd_calls),
    *(odd_calls, odd_calls, resets, endless_headers, floods, untaken, dribble, hoards),
    *(large, conversations),
)
