"""Values from a peer, each checked against its type and its bounds.

Every reader of a header or a JSON body uses it. A wrong value raises MalformedFrame, which names
the field, the value and the bounds; it is never guessed. As in fastjson, numbers may come as text.
"""

import re
import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import MalformedFrame

from . import fastjson
from .compiled import compiled
from .message_queue import MessageQueue
from .remoting import Body

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
ENTRIES_MAX = 1_000_000  # of a list or a table; a frame of 16 MiB can hold more

IDENTITY = re.compile(r"[0-9a-f]{32}")
T = TypeVar("T")

_kernel: Any = compiled("saturnmq.protocol.number_kernel")
_WRAPPED = 16  # levels of documents around a value that is kept
_DIGITS_MAX = 19  # a number of 64 bits has no more; int() refuses 4301 digits


def integer(
    fields: Mapping[str, Any],
    name: str,
    default: int | None = None,
    *,
    least: int = 0,
    most: int = INT64_MAX,
) -> int:
    """The number under `name`; `default` if there is none, null or an empty text."""
    if _kernel is not None and type(fields) is dict:
        number: int | None = _kernel.number_in(fields, name)
        if number is not None and least <= number <= most:
            return number
    value = fields.get(name)
    if value is None or value == "":
        if default is None:
            raise MalformedFrame(f"field {name!r} is missing: a number is wanted")
        return default
    return as_integer(value, name, least, most)


def as_integer(value: object, what: str, least: int = 0, most: int = INT64_MAX) -> int:
    """`value` as a number within bounds; `what` names it in the error."""
    number = value
    if isinstance(number, str):  # nearly every field of a header: no regular expression for it
        digits = number.removeprefix("-")
        if len(digits) <= _DIGITS_MAX and digits.isascii() and digits.isdigit():
            number = int(number)
    if isinstance(number, int) and not isinstance(number, bool) and least <= number <= most:
        return number
    raise MalformedFrame(f"{what} is {_shown(value)}, not a number from {least} to {most}")


def text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """The text under `name`; `default` if there is none or null."""
    value = fields.get(name)
    if value is None and default is not None:
        return default
    return as_text(value, name)


def as_address(value: str) -> str:
    """`value` as a HOST:PORT that a connection can be opened to."""
    try:
        split_address(value)
    except ValueError as error:
        raise MalformedFrame(str(error)) from None
    return value


def as_text(value: object, what: str) -> str:
    if isinstance(value, str):
        return value
    raise MalformedFrame(f"{what} is {_shown(value)}, not a text")


def identity(fields: Mapping[str, Any], name: str) -> str:
    """The identity of a group of brokers under `name`; empty if it is unknown: none, null or an
    empty text."""
    value = fields.get(name)
    if value is None or value == "":
        return ""
    if isinstance(value, str) and IDENTITY.fullmatch(value):
        return value
    raise MalformedFrame(
        f"{name} is {_shown(value)}, not the identity of a group: 32 lower-case hex digits"
    )


def table(fields: Mapping[str, Any], name: str) -> dict[Any, Any]:
    """The object under `name`; empty if there is none or null."""
    value = fields.get(name)
    return {} if value is None else as_table(value, name)


def as_table(value: object, what: str) -> dict[Any, Any]:
    if isinstance(value, dict) and len(value) <= ENTRIES_MAX:
        return value
    raise MalformedFrame(f"{what} is {_shown(value)}, not an object of at most {ENTRIES_MAX}")


def as_queue(key: object) -> MessageQueue:
    """The queue that is a key of a table (jsonx reads it as a tuple)."""
    if isinstance(key, tuple):
        topic, broker_name, queue_id = key
        return MessageQueue(topic, broker_name, as_integer(queue_id, "a queue id", 0, INT32_MAX))
    raise MalformedFrame(f"the key {_shown(key)} is not a message queue")


def items(fields: Mapping[str, Any], name: str, most: int = ENTRIES_MAX) -> list[Any]:
    """The list under `name`; empty if there is none or null."""
    value = fields.get(name)
    if value is None:
        return []
    if isinstance(value, list) and len(value) <= most:
        return value
    raise MalformedFrame(f"{name} is {_shown(value)}, not a list of at most {most}")


def texts(fields: Mapping[str, Any], name: str) -> list[str]:
    """The list of texts under `name`; empty if there is none or null."""
    return [as_text(value, name) for value in items(fields, name)]


def document(body: Body) -> dict[Any, Any]:
    """The JSON object in a body; empty for no body and for null."""
    value = fastjson.loads(body) if body else None
    return {} if value is None else as_table(value, "the body")


def as_json(value: T, what: str) -> T:
    """`value`, which can be written as JSON again, also inside other documents: no number has more
    than 64 bits, and the nesting is not too deep."""
    wrapped: object = value
    for _ in range(_WRAPPED):
        wrapped = [wrapped]
    try:
        fastjson.dumps(wrapped)
    except (TypeError, ValueError) as error:
        raise MalformedFrame(f"{what} cannot be written as JSON: {error}") from None
    return value


class _Shown(reprlib.Repr):
    """Only the outer levels of what is nested: `repr` runs out of stack at 1,000 of them."""

    def repr_int(self, number: int, level: int) -> str:
        bits = number.bit_length()
        return f"a number of {bits} bits" if bits > 200 else repr(number)


_OUTER = _Shown()
_OUTER.maxlevel, _OUTER.maxdict, _OUTER.maxlist, _OUTER.maxstring = 3, 50, 50, 1_000


def shown(value: object, most: int) -> str:
    """At most so many characters of a value of any kind and depth, for a log or an error."""
    return _OUTER.repr(value)[:most]


def _shown(value: object) -> str:
    if isinstance(value, (list, dict)):
        return f"a JSON {type(value).__name__} of {len(value)}"
    return shown(value, 60)
