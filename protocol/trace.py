"""The records of RocketMQ's message trace: the bodies of messages in RMQ_SYS_TRACE_TOPIC.

    record = kind 0x01 field 0x01 field ... 0x02

| kind | fields, in this order | written |
|---|---|---|
| Pub | timestamp region group topic msgId tags keys storeHost bodyLength cost msgType offsetMsgId success | when a message was stored |
| SubBefore | timestamp region group requestId msgId retries keys | before a listener gets it |
| SubAfter | requestId msgId cost success keys contextCode timestamp group | after the listener |
| EndTransaction | timestamp region group topic msgId tags keys storeHost msgType transactionId state fromCheck | when a transaction ends |
| Recall | timestamp region group topic msgId success | when a timed message is recalled |

A body has many records. The KEYS of the message are the ids of the messages in it and their keys,
so a trace is found by either. RocketMQ writes a field that is not there as `null`, and its reader
fails on a record whose last field is empty; so tags and keys that are not there are `null` here,
too. Older clients leave out the offsetMsgId of Pub and the end of SubAfter, others add the
client's host to Pub: all are read.
"""  # noqa: E501

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from saturnmq.protocol import checked
from saturnmq.protocol.properties import KEY_SEPARATOR
from saturnmq.runtime.errors import MalformedFrame

FIELD_END = "\x01"
RECORD_END = "\x02"
ABSENT = "null"
DEFAULT_REGION = "DefaultRegion"


class TraceKind(enum.Enum):
    """The moment in the life of a message that a record is about."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class TracedType(enum.IntEnum):
    """The type of a message in a record: those that our producers write. RocketMQ's 4 is a message
    of an ordered topic."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class ContextCode(enum.IntEnum):
    """How a listener ended: the ends that our consumers write. RocketMQ has two more: it took too
    long, 1, and it returned null, 3."""

    SUCCESS = 0
    EXCEPTION = 2
    FAILED = 4


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One record. A field that its kind does not have keeps its default."""

    kind: TraceKind
    """The moment."""
    message_id: str
    """The unique id of the message."""
    group: str = ""
    """The group of the producer or consumer."""
    timestamp_ms: int = 0
    """When it began; of SubAfter, when it ended."""
    region: str = DEFAULT_REGION
    """The region of the broker."""
    topic: str = ""
    """The topic of the message; a consumer's records do not have it."""
    tags: str = ""
    """The tag of the message."""
    keys: str = ""
    """The keys of the message, separated by spaces."""
    store_host: str = ""
    """The address of the broker."""
    body_length: int = 0
    """The bytes of the body."""
    cost_ms: int = 0
    """The time that the send took, or the listener for one message."""
    message_type: int = TracedType.NORMAL
    """A TracedType."""
    offset_message_id: str = ""
    """The id that the broker gave."""
    success: bool = True
    """Whether the send, the listener or the recall succeeded."""
    request_id: str = ""
    """The same in the SubBefore and SubAfter of one call of a listener."""
    retries: int = 0
    """How often the group got the message before."""
    context_code: int = ContextCode.SUCCESS
    """A ContextCode."""
    transaction_id: str = ""
    """The id of the transaction."""
    transaction_state: str = ""
    """COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""
    from_check: bool = False
    """Whether the broker asked for the end of the transaction."""
    client_host: str = ""
    """The host of the client; a reader takes it from the message that has the record."""


_FIELDS: dict[TraceKind, tuple[str, ...]] = {
    TraceKind.PUB: (
        *("timestamp_ms", "region", "group", "topic", "message_id", "tags", "keys", "store_host"),
        *("body_length", "cost_ms", "message_type", "offset_message_id", "success"),
    ),
    TraceKind.SUB_BEFORE: (
        *("timestamp_ms", "region", "group", "request_id", "message_id", "retries", "keys"),
    ),
    TraceKind.SUB_AFTER: (
        *("request_id", "message_id", "cost_ms", "success", "keys", "context_code"),
        *("timestamp_ms", "group"),
    ),
    TraceKind.END_TRANSACTION: (
        *("timestamp_ms", "region", "group", "topic", "message_id", "tags", "keys", "store_host"),
        *("message_type", "transaction_id", "transaction_state", "from_check"),
    ),
    TraceKind.RECALL: ("timestamp_ms", "region", "group", "topic", "message_id", "success"),
}
_KINDS = {kind.value: kind for kind in TraceKind}
_BOOLEANS = frozenset({"success", "from_check"})
_LONG = frozenset({"timestamp_ms"})
_INTEGERS = frozenset({"body_length", "cost_ms", "message_type", "retries", "context_code"}) | _LONG
_NULLABLE = frozenset({"tags", "keys"})
_OPTIONAL = 2  # fields at the end of SubAfter that older clients leave out, after context_code
_SUB_AFTER_LEAST = len(_FIELDS[TraceKind.SUB_AFTER]) - _OPTIONAL - 1
_OFFSET_ID_AT = _FIELDS[TraceKind.PUB].index("offset_message_id")
_SPACES = {ord(FIELD_END): " ", ord(RECORD_END): " "}


def encode_record(record: TraceRecord) -> str:
    """The text of a record."""
    parts = [record.kind.value]
    for name in _FIELDS[record.kind]:
        value = getattr(record, name)
        if name in _BOOLEANS:
            parts.append("true" if value else "false")
        elif name in _INTEGERS:
            parts.append(str(int(value)))
        else:  # a property may hold a separator, if its producer was no client of RocketMQ's
            parts.append(value.translate(_SPACES) or (ABSENT if name in _NULLABLE else ""))
    return FIELD_END.join(parts) + RECORD_END


def keys_of(record: TraceRecord) -> list[str]:
    """The keys by which the record is to be found: the id first."""
    keys = record.keys.translate(_SPACES).split(KEY_SEPARATOR)
    return [record.message_id, *(key for key in keys if key)]


def decode_records(body: bytes | bytearray | memoryview) -> Iterator[TraceRecord]:
    """The records in a body; those of kinds that are not known are passed over. MalformedFrame: a
    record does not have the fields of its kind."""
    for text in str(body, "utf-8", "replace").split(RECORD_END):
        name, *parts = text.split(FIELD_END)
        kind = _KINDS.get(name)
        if kind is not None:
            yield _record(kind, parts)


def _record(kind: TraceKind, parts: list[str]) -> TraceRecord:
    names = _FIELDS[kind]
    if kind is TraceKind.PUB and len(parts) == len(names) - 1:
        parts.insert(_OFFSET_ID_AT, "")
    least = _SUB_AFTER_LEAST if kind is TraceKind.SUB_AFTER else len(names)
    if len(parts) < least:
        raise MalformedFrame(f"a trace {kind.value} has {len(parts)} fields; it needs {least}")
    texts = dict(zip(names, parts, strict=False))
    fields: dict[str, str | int | bool] = {}
    for name, text in texts.items():
        if name in _BOOLEANS:
            fields[name] = text.lower() == "true"
        elif name in _INTEGERS:
            most = checked.INT64_MAX if name in _LONG else checked.INT32_MAX
            fields[name] = checked.integer(texts, name, least=-most - 1, most=most)
        else:
            fields[name] = "" if text == ABSENT and name in _NULLABLE else text
    if kind is TraceKind.PUB and len(parts) > len(names):
        fields["client_host"] = parts[len(names)]
    # The table names fields of the record, each with a value of its type.
    return TraceRecord(kind, **fields)  # type: ignore[arg-type]


def bodies_of(
    records: Iterable[TraceRecord], *, body_most: int, keys_most: int
) -> Iterator[tuple[list[str], str, int]]:
    """The records in as few bodies as possible: of each its keys, its text and the number of its
    records. Keys that do not fit, of one record alone, are left out behind its id."""
    texts: list[str] = []
    keys: dict[str, None] = {}
    size = key_size = 0
    for record in records:
        text, found = encode_record(record), keys_of(record)
        more = sum(len(key.encode()) + 1 for key in found if key not in keys)
        if texts and (size + len(text.encode()) > body_most or key_size + more > keys_most):
            yield list(keys), "".join(texts), len(texts)
            texts, keys, size, key_size = [], {}, 0, 0
        texts.append(text)
        size += len(text.encode())
        for key in found:
            cost = 0 if key in keys else len(key.encode()) + 1
            if key_size + cost <= keys_most:
                keys[key] = None
                key_size += cost
    if texts:
        yield list(keys), "".join(texts), len(texts)
