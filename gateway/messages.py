"""Messages of the API as requests to send them, and messages of brokers as the API delivers them.

The properties are those that RocketMQ's proxy writes, so a message sent through gRPC is the same to
a consumer over Remoting, and the other way round:

| field | property |
|---|---|
| tag, keys | TAGS; KEYS, with blanks between |
| message_id | UNIQ_KEY |
| message_group | __SHARDINGKEY |
| delivery_timestamp | TIMER_DELIVER_MS |
| message_type TRANSACTION | TRAN_MSG; the producer group, PGROUP, is the topic |
| orphaned_transaction_recovery_duration | CHECK_IMMUNITY_TIME_IN_SECONDS |
| trace_context | TRACE_CONTEXT |
| born_host, born_timestamp | __BORNHOST; the frame has the time |

A delivered body is never compressed, and has an MD5 digest: Rust's client does not decompress,
Node.js's and C#'s need a digest, and languages write a CRC-32 in different ways.
"""

from __future__ import annotations

import hashlib
from typing import Any

from saturnmq.gateway import v2
from saturnmq.gateway.checks import RESERVED, milliseconds
from saturnmq.gateway.codes import CallRefused, Code
from saturnmq.gateway.handles import ReceiptHandle
from saturnmq.protocol import message_types
from saturnmq.protocol import properties as names
from saturnmq.protocol.checked import INT32_MAX, INT64_MAX
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.compression import ZLIB, sys_flag_of
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.properties import encode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import AUTO_CREATE_TOPIC

Type: Any = v2.MessageType
TYPES = {
    Type.NORMAL: message_types.NORMAL,
    Type.FIFO: message_types.FIFO,
    Type.DELAY: message_types.DELAY,
    Type.TRANSACTION: message_types.TRANSACTION,
}
KNOWN_TYPES = frozenset(each.value for each in Type)
GZIP = v2.Encoding.GZIP
IDENTITY = v2.Encoding.IDENTITY
MD5 = v2.DigestType.MD5
_ZLIB_HEADS = (0x01, 0x5E, 0x9C, 0xDA)  # the second byte of a zlib stream; its first one is 0x78


def type_of(message: Any) -> int:
    """The type of a message to be sent, from the fields that it has. One that is not known here is
    as its sender says: no topic takes it."""
    system = message.system_properties
    if system.message_type == Type.LITE or system.lite_topic:
        return int(Type.LITE)
    if system.message_type == Type.PRIORITY or system.HasField("priority"):
        return int(Type.PRIORITY)
    if system.message_type == Type.TRANSACTION or system.message_type not in KNOWN_TYPES:
        return int(system.message_type)
    if system.HasField("delivery_timestamp"):
        return int(Type.DELAY)
    if system.HasField("message_group"):
        return int(Type.FIFO)
    return int(Type.NORMAL)


def send_request(message: Any, topic: str, queue_id: int, now_ms: int) -> Command:
    """The request that stores a checked message."""
    system = message.system_properties
    properties: dict[str, str] = dict(message.user_properties)
    properties[names.UNIQ_KEY] = system.message_id
    if system.HasField("tag"):
        properties[names.TAGS] = system.tag
    if system.keys:
        properties[names.KEYS] = names.KEY_SEPARATOR.join(system.keys)
    if system.HasField("message_group"):
        properties[names.SHARDING_KEY] = system.message_group
    if system.HasField("delivery_timestamp"):
        due_ms = min(max(milliseconds(system.delivery_timestamp), 1), INT64_MAX)
        properties[names.TIMER_DELIVER_MS] = str(due_ms)
    if system.message_type == Type.TRANSACTION:
        properties[names.TRAN_MSG] = "true"
        properties[names.PGROUP] = topic
        if recovery_s := system.orphaned_transaction_recovery_duration.seconds:
            properties[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(recovery_s)
    if system.HasField("trace_context"):
        properties[names.TRACE_CONTEXT] = system.trace_context
    if system.born_host:
        properties[names.BORN_HOST] = system.born_host
    encoded = encode_properties(properties)
    if len(encoded) > names.PROPERTIES_BYTES_MAX:
        raise CallRefused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"all that is told of the message has {len(encoded)} bytes, the limit is "
            f"{names.PROPERTIES_BYTES_MAX}: shorten keys, properties or trace_context",
        )
    born_ms = milliseconds(system.born_timestamp)
    ext = {
        "a": topic,
        "b": topic,
        "c": AUTO_CREATE_TOPIC,
        "d": "4",
        "e": str(queue_id),
        "f": str(_sys_flag(message)),
        "g": str(born_ms if 0 < born_ms <= INT64_MAX else now_ms),
        "h": "0",
        "i": encoded.decode(),
    }
    return Command.request(RequestCode.SEND_MESSAGE_V2, ext, message.body)


def _sys_flag(message: Any) -> int:
    """Bodies that C++'s client marks as GZIP are zlib streams, as those of Remoting."""
    encoding = message.system_properties.body_encoding
    if encoding in (IDENTITY, v2.Encoding.ENCODING_UNSPECIFIED):
        return 0
    if encoding != GZIP:
        raise CallRefused(Code.MESSAGE_CORRUPTED, f"body_encoding {encoding} is not known here")
    body = message.body
    if body[0] != 0x78 or body[1:2] not in [bytes([each]) for each in _ZLIB_HEADS]:
        raise CallRefused(
            Code.MESSAGE_CORRUPTED,
            "body_encoding is GZIP, but the body is no zlib stream: brokers keep no others; send "
            "it as IDENTITY",
        )
    return sys_flag_of(ZLIB)


def check_digest(message: Any) -> None:
    """Check the digest of a body to be sent, if there is one of a kind that all write alike."""
    digest = message.system_properties.body_digest
    makes = {MD5: hashlib.md5, v2.DigestType.SHA1: hashlib.sha1}
    make = makes.get(digest.type)
    if make is None or not digest.checksum:
        return
    found = make(message.body, usedforsecurity=False).hexdigest()
    if found != digest.checksum.lower():
        raise CallRefused(
            Code.MESSAGE_CORRUPTED, f"the body's digest is {found}, not {digest.checksum:.80}"
        )


def delivered(found: ReceivedMessage, topic: Any, handle: ReceiptHandle | None) -> Any:
    """The message that a consumer gets. `topic`: as the consumer names it. MessageIllegal: its body
    cannot be decompressed."""
    properties = found.properties
    message = v2.Message(topic=topic, body=found.body)
    message.user_properties.update(
        {name: value for name, value in properties.items() if name not in RESERVED}
    )
    system = message.system_properties
    if tag := properties.get(names.TAGS):
        system.tag = tag
    if keys := properties.get(names.KEYS):
        system.keys.extend(keys.split(names.KEY_SEPARATOR))
    system.message_id = found.message_id
    system.body_digest.type = MD5
    digest = hashlib.md5(message.body, usedforsecurity=False)
    system.body_digest.checksum = digest.hexdigest().upper()
    system.body_encoding = IDENTITY
    system.message_type = _type_of(properties)
    _set_ms(system.born_timestamp, found.born_timestamp)
    _set_ms(system.store_timestamp, found.store_timestamp)
    system.born_host = properties.get(names.BORN_HOST) or found.born_host
    system.store_host = found.store_host
    system.queue_id = found.queue_id
    system.queue_offset = found.queue_offset
    # Any producer of Remoting says how often a message was delivered before.
    system.delivery_attempt = min(found.reconsume_times + 1, INT32_MAX)
    if handle is not None:
        system.receipt_handle = str(handle)
    if group := properties.get(names.SHARDING_KEY):
        system.message_group = group
    if context := properties.get(names.TRACE_CONTEXT):
        system.trace_context = context
    due = properties.get(names.TIMER_DELIVER_MS) or properties.get(names.TIMER_OUT_MS, "")
    if due.isascii() and due.isdigit() and len(due) < 16:
        _set_ms(system.delivery_timestamp, int(due))
    if origin := properties.get(names.DLQ_ORIGIN_TOPIC):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get(names.DLQ_ORIGIN_MESSAGE_ID, "")
    return message


def _type_of(properties: dict[str, str]) -> int:
    if properties.get(names.TRAN_MSG, "").lower() == "true":
        return int(Type.TRANSACTION)
    if any(
        properties.get(name)
        for name in (names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC)
    ):
        return int(Type.DELAY)
    return int(Type.FIFO if properties.get(names.SHARDING_KEY) else Type.NORMAL)


def _set_ms(timestamp: Any, milliseconds_: int) -> None:
    """Beyond the range of a Timestamp, year 9999, its end: a peer may have written anything."""
    seconds, rest = divmod(min(max(milliseconds_, 0), 253_402_300_799_999), 1000)
    timestamp.seconds, timestamp.nanos = seconds, rest * 1_000_000
