"""Answers of servers, recorded once and then spoiled: what clients are told.

A field bent, missing or huge, frames of messages with values that cannot be, bodies that unpack to
gigabytes, another code, another opaque, twice, never, torn, garbage; routes that lead nowhere;
requests that nobody expects.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import lz4.frame
import orjson
import zstandard
from saturnmq.drills.fuzz.mutations import (
    NUMBERS,
    ODD,
    bent,
    odd,
    spoiled,
    spoiled_in_place,
    written,
)
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.compression import BODY_BYTES_MAX, LZ4, ZLIB, ZSTD, compress, sys_flag_of
from saturnmq.protocol.frame import FRAME_BYTES_MIN, NUMBERS_AT_V4, encode_frame, seal_body, size_of
from saturnmq.protocol.remoting import Command, encode, encode_head

TOPIC, OTHER_TOPIC, GROUP, SINK = "orders", "bills", "readers", "sink"
QUEUES_MAX = 1_000  # of a topic, to be read
LIES = (0.1, 0.3, 0.5)  # of the answers: few, and what takes many steps gets far
UNASKED = (39, 40, 220, 221, 307, 309, 326, int(RequestCode.ROUTE_CHANGED), 7, 99_999)
CODES = (0, 1, 2, 10, 12, 16, 17, 19, 20, 21, 22, 24, 26, 29, 206, 999_999, -1)
ADDRESSES = (
    "", "x", "127.0.0.9:1", "127.0.0.2:9876", "127.0.0.1:99999", "[::1]:1", ":", "127.0.0.1:\u0663",
    "a..b:1",
)  # fmt: skip
_PIECE = 1 << 20
BOMBS = 0.001  # of the bodies that are spoiled: to unpack one takes a tenth of a second


class Truth:
    """The answers of servers, by server and request code."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], list[tuple[Mapping[str, str], Command]]] = {}

    def note(self, server: str, request: Command, told: Command) -> None:
        """The answers of `server`."""
        key = server, request.code
        self._told.setdefault(key, []).append((dict(request.ext), told))

    def of(self, rng: random.Random, server: str, request: Command) -> Command:
        """The answer to the request that is most like this one."""
        told = self._told.get((server, request.code))
        if not told:
            told = [
                each
                for (_, code), all_ in self._told.items()
                if code == request.code
                for each in all_
            ]
        if not told:
            return Command(0, {}, b"")
        mine = request.ext.items()
        best = max(len(mine & ext.items()) for ext, _ in told)
        return rng.choice([answer for ext, answer in told if len(mine & ext.items()) == best])

    def behind(self, addresses: Mapping[str, str]) -> Truth:
        """The same answers for servers at other addresses, with those addresses in the answers."""
        moved = Truth()
        names = {old.encode(): new.encode() for old, new in addresses.items()}
        for (server, code), told in self._told.items():
            for ext, answer in told:
                body = bytes(answer.body)
                for old, new in names.items():
                    body = body.replace(old, new)
                copy = Command(answer.code, answer.ext, body, remark=answer.remark)
                copy.language = answer.language
                key = addresses.get(server, server), code
                moved._told.setdefault(key, []).append((ext, copy))
        return moved


@dataclass
class Said:
    """The answer of a server, in one piece, and whether it is a lie."""

    data: bytes
    is_lie: bool = True
    closes: bool = False


def answer(rng: random.Random, truth: Truth, server: str, request: Command, lies: float) -> Said:
    """The answer of `server` to a request; the share `lies` of its answers are lies."""
    told = reply(request, truth.of(rng, server, request))
    if rng.random() >= lies:
        return Said(_encoded(told), is_lie=False)
    unasked = _encoded(_unasked(rng)) if rng.random() < 0.1 else b""
    ways: tuple[Callable[[random.Random, Command], Said], ...] = (
        _ext, _body, _body, _body, _code, _shape, _shape,
    )  # fmt: skip
    said = rng.choice(ways)(rng, told)
    said.data = unasked + said.data
    return said


def asked_for(request: Command) -> str:
    """The name of the request, for the count."""
    known = request.code in RequestCode.__members__.values()
    return f"to {RequestCode(request.code).name if known else request.code}"


def reply(request: Command, told: Command) -> Command:
    """The same answer as a reply to this request."""
    answer = request.reply(told.code, told.remark, dict(told.ext), bytes(told.body))
    answer.language = told.language
    return answer


def _encoded(command: Command) -> bytes:
    return b"".join(encode(command))


def _ext(rng: random.Random, answer: Command) -> Said:
    ext: dict[str, Any] = dict(answer.ext)
    name = rng.choice(sorted(ext) or ["offset"])
    if rng.random() < 0.2:
        ext.pop(name, None)
    else:
        ext[name] = rng.choice(("1.5", "9" * 5000, *map(str, NUMBERS), *map(str, ODD)))
    answer.ext = ext
    return Said(_encoded(answer))


def _body(rng: random.Random, answer: Command) -> Said:
    body = bytes(answer.body)
    if not body or rng.random() < 0.1:
        answer.body = rng.choice((b"", b"null", b"[]", b"{}", b"7", b"\xff", b"[" * 3000, b"{"))
    elif body[:1] in b"{[":
        answer.body = _bent_json(rng, body)
    else:
        answer.body = _bent_frames(rng, body)
    return Said(_encoded(answer))


def _code(rng: random.Random, answer: Command) -> Said:
    answer.code = rng.choice(CODES)
    answer.remark = rng.choice((None, "", "x" * 5000, "\x00", answer.remark))
    return Said(_encoded(answer))


def _shape(rng: random.Random, answer: Command) -> Said:
    data = _encoded(answer)
    way = rng.randrange(8)
    if way == 0:  # never
        return Said(b"")
    if way == 1:
        answer.opaque = rng.choice((answer.opaque + 1, 0, -1, (1 << 31) - 1))
        return Said(_encoded(answer))
    if way == 2:
        return Said(data * rng.choice((2, 20)))
    if way == 3:  # torn
        return Said(data[: rng.randrange(len(data))], closes=rng.random() < 0.5)
    if way == 4:
        return Said(spoiled(rng, data))
    if way == 5:
        return Said(rng.randbytes(rng.randrange(100)))
    if way == 6:  # a header whose fields have other types
        header = written(bent(rng, orjson.loads(encode_head(answer)[8:])))
        size = 4 + len(header) + len(answer.body)
        head = size.to_bytes(4, "big") + len(header).to_bytes(4, "big")
        return Said(head + header + answer.body)
    return Said(b"", closes=True)


def _unasked(rng: random.Random) -> Command:
    ext = {"consumerGroup": GROUP, "group": GROUP, "topic": TOPIC}
    offsets = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:%b}}'
    body = rng.choice((b"", b"{}", b'["orders"]', offsets % written(odd(rng)), rng.randbytes(20)))
    return Command(rng.choice(UNASKED), ext if rng.random() < 0.7 else {}, body, opaque=7)


def _bent_json(rng: random.Random, body: bytes) -> bytes:
    try:
        document = orjson.loads(body)
    except ValueError:  # it has queues as keys
        return spoiled(rng, body)
    if isinstance(document, dict) and "brokerDatas" in document and rng.random() < 0.5:
        for data in document["brokerDatas"]:
            addresses = {str(rng.choice((0, 1, 7))): rng.choice(ADDRESSES) for _ in range(2)}
            data["brokerAddrs"] = addresses
        if rng.random() < 0.1:
            document["brokerDatas"] *= rng.choice((2, 5000))
    for _ in range(rng.choice((1, 1, 3))):
        document = bent(rng, document)
    for data in _readable(document):
        data["readQueueNums"] = min(data["readQueueNums"], QUEUES_MAX)
    return written(document)


def _readable(document: Any) -> list[dict[str, Any]]:
    """The queues of a route that give a number to read: a consumer reads as many as it is told."""
    queues = document.get("queueDatas") if isinstance(document, dict) else None
    return [
        data
        for data in (queues if isinstance(queues, list) else [])
        if isinstance(data, dict) and type(data.get("readQueueNums")) is int
    ]


def _bent_frames(rng: random.Random, body: bytes) -> bytes:
    if rng.random() < BOMBS:
        kind = rng.choice((ZLIB, LZ4, ZSTD))
        size = rng.choice((BODY_BYTES_MAX, BODY_BYTES_MAX + 1, 12 * BODY_BYTES_MAX))
        bomb = _bomb(kind, size)
        times = 1 if kind == ZLIB else rng.choice((1, 9))
        return b"".join(_frame(rng, bomb, sys_flag_of(kind)) for _ in range(times))
    way = rng.random()
    if way < 0.2:
        return b"".join(_packed(rng) for _ in range(rng.choice((1, 1, 20))))
    if way < 0.3:
        return spoiled(rng, body)
    size = size_of(body) if len(body) >= FRAME_BYTES_MIN else 0
    frame = bytearray(body[:size])
    if way < 0.9 and size > FRAME_BYTES_MIN:
        at, width = rng.choice(NUMBERS_AT_V4)
        number = (rng.choice(NUMBERS) + rng.choice((-1, 0, 0, 1))) % (1 << 8 * width)
        frame[at : at + width] = number.to_bytes(width, "big")
    else:
        frame[:] = spoiled_in_place(rng, bytes(frame))
    if rng.random() < 0.5 and size > FRAME_BYTES_MIN:
        seal_body(frame)
    return bytes(frame) + body[size:]


def _packed(rng: random.Random) -> bytes:
    """A frame whose body is not packed as it says."""
    flag = rng.choice((0, 1, 0x101, 0x201, 0x301, 0x701, 0x11, 0x20, -1))
    if rng.random() < 0.5:
        return _frame(rng, rng.choice((b"", b"x", rng.randbytes(30))), flag)
    kind = rng.choice((ZLIB, LZ4, ZSTD))
    body = compress(b"x" * rng.choice((0, 1, 1000)), kind)
    if rng.random() < 0.7:
        body, flag = spoiled(rng, body), sys_flag_of(kind)
    return _frame(rng, body, flag)


def _frame(rng: random.Random, body: bytes, sys_flag: int) -> bytes:
    properties = rng.choice(
        (b"", b"DELAY\x01" + b"9" * 5000 + b"\x02", b"TAGS\x01\x02", b"\x02\x01\x01", b"\xff\xfe")
    )
    return encode_frame(
        physical_offset=rng.choice((0, 1 << 62)),
        queue_offset=rng.choice((0, 5, 1 << 62)),
        queue_id=0,
        flag=0,
        sys_flag=sys_flag,
        born_timestamp=rng.choice((-1, 0, 1 << 62)),
        born_host=bytes(8),
        store_timestamp=0,
        store_host=bytes(8),
        reconsume_times=rng.choice((-1, 1 << 30)),
        prepared_offset=0,
        body=body,
        topic=TOPIC.encode(),
        properties=properties,
    )


@cache
def _bomb(kind: int, size: int) -> bytes:
    """Compressed bytes that unpack to so many zeros."""
    count, rest = divmod(size, _PIECE)
    pieces = [bytes(_PIECE)] * count + [bytes(rest)]
    packer: Any
    if kind == ZLIB:
        return _deflated(pieces)
    if kind == LZ4:
        packer = lz4.frame.LZ4FrameCompressor()
        begin = packer.begin()
    else:
        packer, begin = zstandard.ZstdCompressor().compressobj(), b""
    return b"".join([begin, *map(packer.compress, pieces), packer.flush()])


def _deflated(pieces: list[bytes]) -> bytes:
    """All but the last one are the same: they are packed once."""
    packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    first = packer.compress(pieces[0]) + packer.flush(zlib.Z_FULL_FLUSH)
    last = packer.compress(pieces[-1]) + packer.flush()
    check = 1
    for piece in pieces:
        check = zlib.adler32(piece, check)
    return b"".join((b"\x78\x01", first * (len(pieces) - 1), last, check.to_bytes(4, "big")))
