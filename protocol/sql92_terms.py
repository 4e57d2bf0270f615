"""The values and parts of an SQL92 condition, and how they compare.

A part is a function of a message's properties. The functions here make one, most of them of the
parts inside it; sql92.py has the rules and puts parts together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import copysign
from typing import Any, NamedTuple

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Any]
"""A function of a message; its values are str, bool, Number, or None for unknown."""

_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
_ANY_NUMBER = re.compile(
    r"[+-]?(?:NaN|Infinity|((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?)", re.ASCII
)
_BLANKS = "".join(map(chr, range(33)))


class NotComparable(Exception):
    """A text is no number of the kind that it is compared with"""


class NumberLiteral(NamedTuple):
    """A number as it is written in the condition."""

    value: int | float
    read: Callable[[str], int | float]  # how a text compared with it is read


def _read_whole(bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def read(text: str) -> int:
        if len(text) < 10 and text.isdecimal():
            return int(text)
        try:
            value = int(text) if _WHOLE_NUMBER.fullmatch(text) else limit
        except ValueError:  # thousands of digits
            value = limit
        if not -limit <= value < limit:
            raise NotComparable
        return value

    return read


read_int, read_long = _read_whole(32), _read_whole(64)


def read_any(text: str) -> float:
    """Reads as Java reads a Double, except hexadecimal ones."""
    text = text.strip(_BLANKS)
    found = _ANY_NUMBER.fullmatch(text)
    if found is None:
        raise NotComparable
    return float(text.rstrip("fFdD") if found[1] else text)


def order_of(left: str | NumberLiteral, right: str | NumberLiteral) -> int:
    """Below, at or above 0; two texts are read as numbers."""
    if isinstance(left, str):
        if isinstance(right, str):
            return _compare(read_any(left), read_any(right))
        return _compare(right.read(left), right.value)
    if isinstance(right, str):
        return _compare(left.value, left.read(right))
    return _compare(left.value, right.value)


def _compare(left: float, right: float) -> int:
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right and left != 0:
        return 0
    return _rank(left) - _rank(right)


def _rank(value: float) -> int:
    """Java's order for equal or unordered numbers: -0.0 below 0, and NaN above everything."""
    if value != value:  # noqa: PLR0124
        return 2
    if value:
        return 1  # beside NaN
    return -1 if copysign(1.0, value) < 0 else 0


def _equal(left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return True if left is right else None if left is None else False
    if isinstance(left, bool):
        if isinstance(right, str):
            raise NotComparable  # RocketMQ reads a text beside TRUE on the right only
        return left is right
    if isinstance(right, bool):
        return isinstance(left, str) and (left.lower() == "true") is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return order_of(left, right) == 0


RELATIONS: dict[str, Callable[[int], bool]] = {
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}
SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def negated(evaluate: Evaluate) -> Evaluate:
    """NOT of a condition."""

    def opposite(properties: Properties) -> bool | None:
        value = evaluate(properties)
        return None if value is None else not value

    return opposite


def joined(parts: list[Evaluate], deciding: bool) -> Evaluate:
    """AND (False decides) or OR (True decides) of conditions, left to right."""

    def together(properties: Properties) -> bool | None:
        result: bool | None = not deciding
        for part in parts:
            value: bool | None = part(properties)
            if value is deciding:
                return value
            if value is None:
                result = None
        return result

    return together


def missing(inner: Evaluate, wanted: bool) -> Evaluate:
    """IS NULL if `wanted`, otherwise IS NOT NULL."""
    return lambda properties: (inner(properties) is None) is wanted


def equated(left: Evaluate, right: Evaluate) -> Evaluate:
    """left = right."""
    return lambda properties: _equal(left(properties), right(properties))


def related(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    """One of RELATIONS."""
    holds = RELATIONS[sign]

    def compared(properties: Properties) -> bool | None:
        first = left(properties)
        if first is None:
            return None
        second = right(properties)
        return None if second is None else holds(order_of(first, second))

    return compared


def beside_number(name: str, number: NumberLiteral, holds: Callable[[int], bool]) -> Evaluate:
    """A property compared with a literal number: the same as `related`, with less work."""
    read, value = number.read, number.value

    def compared(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else holds(_compare(read(text), value))

    return compared


def is_text(name: str, wanted: str) -> Evaluate:
    """Equality of a property with a string, with less work."""

    def compared(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else text == wanted

    return compared


def searched(word: str, wanted: bool, inner: Evaluate, part: str) -> Evaluate:
    """One of SEARCHES, with NOT unless `wanted`; false for a value that is no text, and for an
    empty part."""
    found = SEARCHES[word]

    def search(properties: Properties) -> bool:
        text = inner(properties)
        return isinstance(text, str) and part != "" and found(text, part) is wanted

    return search


def negative(inner: Evaluate) -> Evaluate:
    """The negated number; unknown for any other value."""

    def minus(properties: Properties) -> NumberLiteral | None:
        value = inner(properties)
        return NumberLiteral(-value.value, value.read) if isinstance(value, NumberLiteral) else None

    return minus
