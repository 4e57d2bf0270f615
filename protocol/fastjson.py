"""JSON bodies as fastjson writes and reads them (docs/internals/protocol.md 1.9).

Reading is tolerant: a quarter of the bodies that Java brokers send are not strict JSON. Two
deviations occur, both in the place of a key:

| seen | read as |
|---|---|
| `{0:"127.0.0.1:10911"}` | `{"0": "127.0.0.1:10911"}`, the same as the quoted form |
| `{{"brokerName":"b","queueId":0,"topic":"T"}:5}` | `{("T", "b", 0): 5}`, equal to a MessageQueue |

Writing is strict (integer keys are quoted, which every Java reader takes), except for maps keyed by
message queues: those must have bare objects as keys, because fastjson 2 throws on quoted ones.
Strict text goes through orjson. If orjson refuses it, integer keys are quoted first. The parser
below runs only if that was not enough. It takes a hundred times as long, so servers, which anybody
may call, never use it (`loads_request`): no request has message queues as keys.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson
from saturnmq.runtime.errors import MalformedFrame

QUOTED_MAX = 65_536  # integer keys of one request: a tenth of a second
STRINGS_MAX = 1_000_000  # of a request that is not strict: a third of a second
MAX_DEPTH = 64  # deeper bodies do not exist; without a limit a peer could overflow our stack

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_INTEGER = re.compile(r"-?\d+")
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile("true|false|null")
# A string without escapes, skipped as a whole, or an integer key.
_STRING_OR_KEY = re.compile(rb'"[^"]*"?|[{,]\s*(-?\d+)(?=\s*:)')

MqKey = tuple[str, str, int]
"""(topic, broker name, queue id): the fields of MessageQueue, in its order."""


def loads(data: bytes | bytearray | memoryview) -> Any:
    """The value of a JSON body; MalformedFrame when it is neither strict JSON nor fastjson's."""
    try:
        return _loads_quoted(data)
    except MalformedFrame:
        pass
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"JSON body is not UTF-8: {error}") from None
    parser = _JsonParser(text)
    value = parser.value(0)
    parser.skip()
    if parser.position != len(text):
        raise parser.fail("text after the end of the value")
    return value


def loads_request(data: bytes | bytearray | memoryview) -> Any:
    """The value of a JSON body that is strict except for some integer keys; MalformedFrame when it
    is something else."""
    return _loads_quoted(data, QUOTED_MAX)


def _loads_quoted(data: bytes | bytearray | memoryview, most: int | None = None) -> Any:
    try:
        return orjson.loads(data)
    except ValueError as error:
        reason = error
    quoted = _with_quoted_keys(bytes(data), most)
    try:
        return orjson.loads(quoted)
    except ValueError:
        raise MalformedFrame(f"not JSON: {reason}") from None


def loads_strict(data: bytes | bytearray | memoryview, most: int) -> Any:
    """The value of a JSON body of at most `most` bytes and no integer keys; MalformedFrame when it
    is something else."""
    if len(data) > most:
        raise MalformedFrame(
            f"{len(data)} bytes of JSON, the limit is {most}: say less in one request"
        )
    try:
        return orjson.loads(data)
    except ValueError as error:
        raise MalformedFrame(f"not JSON: {error}") from None


def _with_quoted_keys(data: bytes, most: int | None = None) -> bytes:
    # As long as `data`, and every quote left in it begins or ends a string. A pattern that knows
    # escapes would take memory for each, or possessive groups, which fail before Python 3.11.5.
    plain = data.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    parts: list[bytes] = []
    done = keys = 0
    for strings, found in enumerate(_STRING_OR_KEY.finditer(plain)):
        if most is not None and strings > STRINGS_MAX:
            raise MalformedFrame(f"not JSON, and more than {STRINGS_MAX} strings and integer keys")
        start, end = found.span(1)
        if start < 0:
            continue
        keys += 1
        if most is not None and keys > most:
            raise MalformedFrame(f"more than {most} keys are integers: write them as texts")
        parts += data[done:start], b'"', data[start:end], b'"'
        done = end
    return b"".join([*parts, data[done:]])


class _JsonParser:
    """Recursive descent over one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def fail(self, why: str) -> MalformedFrame:
        around = self.text[max(0, self.position - 20) : self.position + 20]
        return MalformedFrame(f"JSON body, character {self.position}: {why}, near {around!r}")

    def skip(self) -> str:
        """Skip white space; returns the next character, or '' at the end."""
        match = _SPACE.match(self.text, self.position)
        assert match is not None, "the pattern matches the empty text"
        self.position = match.end()
        return self.text[self.position : self.position + 1]

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.position)
        if match is None:
            raise self.fail(f"{what} expected")
        self.position = match.end()
        return match.group()

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self.fail(f"nested deeper than {MAX_DEPTH}")
        first = self.skip()
        if first == "{":
            return self.object(depth)
        if first == "[":
            return self.array(depth)
        if first == '"':
            return self.string()
        if first in ("t", "f", "n"):
            return _WORDS[self.take(_WORD, "a value")]
        start = self.position
        number = self.take(_NUMBER, "a value")
        try:
            return orjson.loads(number) if number.lstrip("-").isdigit() is False else int(number)
        except ValueError:  # too many digits, or beyond the range of a double
            self.position = start
            raise self.fail(f"a number of {len(number)} characters") from None

    def string(self) -> str:
        start = self.position
        literal = self.take(_STRING, "the end of a string")
        try:
            return str(orjson.loads(literal))
        except ValueError as error:
            self.position = start
            raise self.fail(f"bad string ({error})") from None

    def array(self, depth: int) -> list[Any]:
        self.position += 1
        items: list[Any] = []
        if self.skip() == "]":
            self.position += 1
            return items
        while True:
            items.append(self.value(depth + 1))
            if self.next_or_end("]"):
                return items

    def object(self, depth: int) -> dict[Any, Any]:
        self.position += 1
        fields: dict[Any, Any] = {}
        if self.skip() == "}":
            self.position += 1
            return fields
        while True:
            key = self.key(depth + 1)
            if self.skip() != ":":
                raise self.fail("':' expected")
            self.position += 1
            fields[key] = self.value(depth + 1)
            if self.next_or_end("}"):
                return fields

    def key(self, depth: int) -> str | MqKey:
        first = self.skip()
        if first == '"':
            return self.string()
        if first == "{":
            fields = self.value(depth)
            topic, broker = fields.get("topic"), fields.get("brokerName")
            queue_id = fields.get("queueId", 0)
            if type(topic) is str and type(broker) is str and type(queue_id) is int:
                return (topic, broker, queue_id)
            raise self.fail("an object key must be a message queue")
        return self.take(_INTEGER, "a key")

    def next_or_end(self, end: str) -> bool:
        found = self.skip()
        if found not in (",", end) or not found:
            raise self.fail(f"',' or {end!r} expected")
        self.position += 1
        return found == end


def dumps(value: Any) -> bytes:
    """Strict JSON; integer keys become strings. `mq_map` may stand anywhere inside."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def mq_json(queue: MqKey) -> dict[str, str | int]:
    """A message queue (or its tuple) as a value, or as a key of a map."""
    topic, broker, queue_id = queue
    return {"brokerName": broker, "queueId": queue_id, "topic": topic}


def dumps_mq_map(table: Mapping[Any, Any]) -> bytes:
    """A map with message queues (or their tuples) as keys, each key a bare object."""
    entries = [dumps(mq_json(queue)) + b":" + dumps(value) for queue, value in table.items()]
    return b"{" + b",".join(entries) + b"}"


def mq_map(table: Mapping[Any, Any]) -> Any:
    """The same as a part of a larger body: `dumps({"offsetTable": mq_map(offsets)})`."""
    return encoded(dumps_mq_map(table))


def encoded(text: bytes) -> Any:
    """JSON text as a part of a larger body."""
    return orjson.Fragment(text)
