"""Conditions of SQL92: drawn from the grammar and held against the reference, or spoiled texts,
which are refused by name or evaluated. The kernel gets the same message as encoded properties,
spoiled as well, and must decide as the conditions do or not at all.
"""

from __future__ import annotations

import random
from typing import Any

from saturnmq.drills.fuzz.corpus import CONDITIONS
from saturnmq.drills.fuzz.inprocess import Violation
from saturnmq.drills.fuzz.sql_reference import Tree, bare, matches, text_of
from saturnmq.protocol.properties import decode_properties, encode_properties
from saturnmq.protocol.sql92 import LENGTH_MAX, NESTING_MAX, Sql, program_of
from saturnmq.runtime.errors import SubscriptionParseFailed

NAMES = ("a", "b", "c$", "_D4")
NUMBERS = (
    "0", "5", "5L", "7", "1000", "2147483647", "2147483648", "9223372036854775807", "5.5", ".5",
    "5.", "1e3", "5E-1", "1000.0", "1e300",
)  # fmt: skip
TEXTS = (
    "5", "5.5", "-3", "+5", "true", "TRUE", "no", "x", "xyz", "it's", " 7 ", "1e3", "5d", "0", "",
    "NaN", "-0.0", "0.0", "Infinity", "2147483648", "-2147483648", "9223372036854775808", "1_0",
    "9" * 5000, "1e" + "9" * 30, "\x00", "\u6807", "x" * 32_000,
)  # fmt: skip
SPOILS = (
    b"",
    b"\x01",
    b"\x02",
    b"\x02\x02",
    b"\0",
    b"-",
    b".",
    b"9",
    b"e",
    b"\xe6",
    b"\xa0",
    b"\xff",
)
TOKENS = (
    *NAMES, *NUMBERS, "'x'", "'", "''", "(", ")", ",", "=", "<>", "<", "<=", ">", ">=", "+", "-",
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH",
    "ENDSWITH", "--", "/*", "*/", "\n", '"', "!", ".", "\u0663", "9" * 5000, "1e999", "0x1", "5LL",
)  # fmt: skip
DEPTH = 5


class Conditions:
    """The target."""

    def __init__(self, seed: int) -> None:
        self._kept = iter(CONDITIONS)

    def turn(self, rng: random.Random) -> list[str]:
        if (kept := next(self._kept, None)) is not None:
            return [_evaluated(rng, *kept)]
        message = {name: rng.choice(TEXTS) for name in NAMES if rng.random() < 0.7}
        if rng.random() < 0.6:
            return [self._compared(rng, drawn(rng), message)]
        return [self._spoiled(rng, message)]

    def close(self) -> None:
        pass

    @staticmethod
    def _compared(rng: random.Random, tree: Tree, message: dict[str, str]) -> str:
        text = text_of(tree)
        try:
            sql = Sql(text)
        except SubscriptionParseFailed as error:
            if len(text) > LENGTH_MAX or f"nested deeper than {NESTING_MAX}" in str(error):
                return "too long or too deep"
            raise Violation(f"{text!r} is refused: {error}") from error
        found = sql.matches(message)
        if found is not matches(tree, message):
            raise Violation(f"{text!r} of {message!r:.300} is {found}")
        _check_kernel(rng, sql, message)
        return "as the reference has it"

    @staticmethod
    def _spoiled(rng: random.Random, message: dict[str, str]) -> str:
        parts = [text_of(drawn(rng))] if rng.random() < 0.5 else []
        for _ in range(rng.choice((1, 2, 3, 5, 10, 200))):
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(TOKENS))
        text = rng.choice((" ", " ", "")).join(parts)
        if rng.random() < 0.5:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(("", "(" * 300, chr(rng.randrange(0xD800)))) + text[at:]
        if rng.random() < 0.02:
            text *= rng.choice((2, 50, 1000))
        return _evaluated(rng, text, message)


def _evaluated(rng: random.Random, text: str, message: dict[str, str]) -> str:
    try:
        sql = Sql(text)
    except SubscriptionParseFailed:
        return "refused"
    found = sql.matches(message)
    if not isinstance(found, bool):
        raise Violation(f"{text!r:.300} of {message!r:.300} is {found!r}")
    _check_kernel(rng, sql, message)
    return "evaluated"


def _check_kernel(rng: random.Random, sql: Sql, message: dict[str, str]) -> None:
    """Hold the kernel's answer about the encoded message, whole and spoiled, against `matches`."""
    program = program_of(sql)
    if program is None:
        return
    encoded = encode_properties(message)
    if message:  # of a name that comes twice the last one counts
        encoded += encode_properties({rng.choice([*message]): rng.choice(TEXTS[:-1])})
    spoiled = bytearray(encoded)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(spoiled) + 1)
        spoiled[at : at + rng.randrange(3)] = rng.choice(SPOILS)
    for properties in (encoded, bytes(spoiled)):
        found = program.matches(properties)
        if found is not None and found is not sql.matches(decode_properties(properties)):
            raise Violation(f"{sql!r} of {properties!r:.300} is {found} in the kernel")


def drawn(rng: random.Random) -> Tree:
    """A condition that the grammar has."""
    return _condition(rng, DEPTH)


def _condition(rng: random.Random, depth: int) -> Tree:
    if depth == 0 or rng.random() < 0.1:
        return rng.choice((_word(rng), _name(rng)))
    inner = depth - 1
    wanted = rng.random() < 0.5
    match rng.randrange(8):
        case 0:
            sign = rng.choice(("<", "<=", ">", ">="))
            return "relation", sign, _ordered(rng, inner), _ordered(rng, inner)
        case 1:
            return "equal", wanted, _pair(rng, inner)
        case 2:
            return "null", wanted, _anything(rng, inner)
        case 3:
            low, high = _ordered(rng, inner), _ordered(rng, inner)
            if low[0] == high[0] == "number" and _value(low) > _value(high):
                low, high = high, low
            return "between", wanted, _ordered(rng, inner), (low, high)
        case 4:
            texts = [_text(rng) for _ in range(rng.randrange(1, 7))]
            return "in", wanted, _name(rng), texts
        case 5:
            word = rng.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
            return word, wanted, _anything(rng, inner), _text(rng)
        case 6:
            parts = [
                _condition(rng, inner) for _ in range(rng.choice((2, 2, 3, 20)) if inner else 2)
            ]
            return rng.choice(("AND", "OR")), parts
        case _:
            return "not", _condition(rng, inner)


def _pair(rng: random.Random, depth: int) -> tuple[Tree, Tree]:
    """Operands that = and <> can compare."""
    while True:
        left, right = _anything(rng, depth), _anything(rng, depth)
        if ("word", "NULL") in (left, right):
            continue
        if not (left[0] == "word" and right[0] in ("text", "number")):
            return left, right


def _anything(rng: random.Random, depth: int) -> Tree:
    make: Any = rng.choice((_name, _text, _number, _minus, _condition))
    tree: Tree = make(rng, depth) if make in (_minus, _condition) else make(rng)
    return tree


def _ordered(rng: random.Random, depth: int) -> Tree:
    way = rng.randrange(5)
    return _name(rng) if way < 2 else _number(rng) if way < 4 else _minus(rng, depth)


def _minus(rng: random.Random, depth: int) -> Tree:
    inner = _condition(rng, depth - 1) if depth > 0 and rng.random() < 0.3 else None
    return "minus", inner or rng.choice((_number(rng), _name(rng)))


def _name(rng: random.Random) -> Tree:
    return "property", rng.choice(NAMES)


def _text(rng: random.Random) -> Tree:
    return "text", rng.choice(TEXTS[:-4] if rng.random() < 0.95 else TEXTS)


def _number(rng: random.Random) -> Tree:
    return "number", rng.choice(NUMBERS)


def _word(rng: random.Random) -> Tree:
    return "word", rng.choice(("TRUE", "FALSE", "NULL"))


def _value(number: Tree) -> float:
    return float(bare(number[1]))
