"""The names of message properties, and the codec of the properties field.

    name 0x01 value 0x02   name 0x01 value 0x02   ...

Written by producers (in a send header or a batch entry) and by the broker (which adds UNIQ_KEY and
friends); read by brokers (tags, keys, delay) and consumers. The order carries no meaning.
RocketMQ's rules hold: a pair with an empty name or an empty value is dropped, the value starts
after the first 0x01, and of a repeated name the last pair wins.
"""

from __future__ import annotations

from collections.abc import Mapping

NAME_END = "\x01"
PAIR_END = "\x02"
PROPERTIES_BYTES_MAX = 32767  # the length field is a signed 16-bit integer

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
BUYER_ID = "BUYER_ID"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
RECONSUME_TIME = "RECONSUME_TIME"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
DUP_INFO = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
CLUSTER = "CLUSTER"
MSG_TYPE = "MSG_TYPE"
POP_CK = "POP_CK"
POP_CK_OFFSET = "POP_CK_OFFSET"
FIRST_POP_TIME = "1ST_POP_TIME"
SHARDING_KEY = "__SHARDINGKEY"
FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT = "REDIRECT"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
TRACE_CONTEXT = "TRACE_CONTEXT"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
SATURN_TIMER = "SATURN_TIMER"  # ours: the moment and its clock; broker/timer/due.py
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
CRC32 = "__CRC32#"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
ENDING = "SATURN_ENDING"  # ours: broker/transactions/endings.py
RESTORED_FROM = "RESTORED_FROM"  # ours: side file and log offset; client/admin/restoring.py

DELAYING = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""With one of these a producer asks for delivery at a later time."""
TRAVELS_ALONE = frozenset(
    {
        *DELAYING,
        TRAN_MSG,
        CORRELATION_ID,  # of a request and of a reply: both need what the broker adds to a single
        POP_CK,  # of a popped message that is sent on: the broker takes it out of a single
    }
)
"""A message with one of these cannot be in a batch."""
CLIENT_PROPERTIES = TRAVELS_ALONE | {UNIQ_KEY, WAIT, SHARDING_KEY}
"""The properties that a sending client reads; all others just travel."""

TRANSIENT_PREFIX = "__RMQ.TRANSIENT."  # properties with this prefix are never stored
KEY_SEPARATOR = " "  # between the keys inside KEYS

RESERVED = frozenset(
    value
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, str) and len(value) > 1 and value != TRANSIENT_PREFIX
)
"""Names with a meaning for the system; a producer refuses them as user properties."""


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """The field for `properties`; pairs whose value is None or empty would not survive a read."""
    return "".join(
        [f"{name}\x01{value}\x02" for name, value in properties.items() if name and value]
    ).encode()


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """The pairs of a properties field; never fails, as RocketMQ's reader never does."""
    properties: dict[str, str] = {}
    for pair in str(data, "utf-8", "replace").split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def find_in_text(properties: str, name: str) -> str:
    """The first value of a property in the decoded field, empty if it is absent. `name` ends with
    0x01, so that a search costs no text of its own."""
    at = properties.find(name)
    while at > 0 and properties[at - 1] != PAIR_END:  # the end of a longer name
        at = properties.find(name, at + 1)
    if at < 0:
        return ""
    start = at + len(name)
    end = properties.find(PAIR_END, start)
    return properties[start:end] if end >= 0 else properties[start:]


def without_in_text(properties: str, name: str) -> str:
    """The decoded field without a property; `name` ends with 0x01, and each pair with 0x02."""
    if name not in properties:
        return properties
    pairs = properties.split(PAIR_END)
    return PAIR_END.join(pair for pair in pairs if not pair.startswith(name))


def find_property(data: bytes, name: bytes) -> bytes | None:
    """The last non-empty value of `name` in a properties field, without decoding the rest."""
    found = None
    for pair in data.split(b"\x02"):
        key, _, value = pair.partition(b"\x01")
        if key == name and value:
            found = value
    return found
