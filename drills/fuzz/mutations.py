"""Ways to spoil bytes and documents. Pure: a seed gives the same ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

ENDLESS = "\x00endless"  # written as a number of 5,000 digits, which no library writes
_ENDLESS_TEXT = json.dumps(ENDLESS)
NUMBERS = (-1, 0, 1, 255, 65_536, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63))
ODD: tuple[Any, ...] = (
    *NUMBERS, 10**400, ENDLESS, 1.5, 1e300, None, True, False, "", " ", "0", "-1", "9" * 400,
    "x" * 300, "nonsense", "\x00", "a@b", "../..", "127.0.0.1:1", "nowhere:99999", "\u0663",
)  # fmt: skip
DEEP = 200  # levels: more than any reader follows
ZEROS_MAX = 64


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """The bytes with one thing wrong."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 2, 4, 8, 30)))
    width = rng.choice((1, 2, 4, 8))
    number = (rng.choice(NUMBERS) + rng.choice((-1, 0, 0, 1))) % (1 << 8 * width)
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: (
            data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            if at < len(data)
            else b""
        ),
        lambda: data[:at],
        lambda: data[at:],
        lambda: data[:at] + data[end:],
        lambda: data[:at] + data[at:end] * 2 + data[end:],
        lambda: data[:at] + rng.randbytes(end - at) + data[end:],
        lambda: data[:at] + bytes(rng.randrange(ZEROS_MAX)) + data[at:],
        lambda: data[:at] + number.to_bytes(width, "big") + data[at + width :],
        lambda: data[:at] + number.to_bytes(width, "little") + data[at + width :],
        lambda: data + data[at:end],
    )
    return rng.choice(ways)()


def spoiled_in_place(rng: random.Random, data: bytes) -> bytes:
    """Spoil bytes without a change of their number."""
    return spoiled(rng, data)[: len(data)].ljust(len(data), b"\0")


def bent(rng: random.Random, document: Any) -> Any:
    """A copy of the document with something in it replaced, taken out, or there twice."""
    if isinstance(document, dict) and document and rng.random() < 0.85:
        key = rng.choice(list(document))
        copy = dict(document)
        way = rng.random()
        if way < 0.06:
            del copy[key]
        elif way < 0.12:
            copy[str(rng.choice(ODD))[:400]] = copy[key]
        else:
            copy[key] = bent(rng, copy[key])
        return copy
    if isinstance(document, list) and document and rng.random() < 0.85:
        at = rng.randrange(len(document))
        way = rng.random()
        if way < 0.06:
            return document[:at] + document[at + 1 :]
        if way < 0.12:
            return document[:at] + [document[at]] * rng.choice((2, 50)) + document[at + 1 :]
        return [*document[:at], bent(rng, document[at]), *document[at + 1 :]]
    return odd(rng)


def odd(rng: random.Random) -> Any:
    """A value that is hardly ever right."""
    way = rng.random()
    if way < 0.8:
        return rng.choice(ODD)
    if way < 0.85:
        deep: Any = []
        for _ in range(DEEP):
            deep = [deep]
        return deep
    return rng.choice(([], {}, [[]], [None] * 5, {"": {"": None}}, {"0": 0}, [0, 0, 0]))


def written(document: Any) -> bytes:
    """A document as JSON, with numbers of any length."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace(_ENDLESS_TEXT, "9" * 5000).encode()
