"""What a broker says about itself in REGISTER_BROKER (103), read from header and body (remoting.md
3.2).

The body is JSON, or, with `compressed=true`, a zlib stream of

| type | field |
|---|---|
| i32 + bytes | DataVersion as JSON |
| i32 | number of topics |
| i32 + bytes, each | `name read write perm SINGLE_TAG {attributes}`, separated by single spaces |
| i32 + bytes | JSON array of filter servers (ignored) |
| i32 + entries | static-topic info from version 413 on (ignored) |

`bodyCrc32` is zlib's CRC-32 of the body as sent, masked to 31 bits; 0 = not checked. A missing
body is an empty table of version zero. Brokers write this; the nameserver alone reads it.
"""

import struct
import zlib
from dataclasses import dataclass, field

from saturnmq.protocol import checked, jsonx
from saturnmq.protocol.errors import InvalidParameter, SystemError_
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import DataVersion, TopicConfig

# 100,000 topics of 100 bytes fit six times; a small stream must not unpack to all of our memory.
UNPACKED_MAX = 64 * 1024 * 1024
# A broker that asks for days of silence would stay in routes for days after its death.
TIMEOUT_MS_DEFAULT = 120_000
TIMEOUT_MS_MAX = 3_600_000
BROKER_ID_MAX = (1 << 63) - 1

_I32 = struct.Struct(">i")


@dataclass(slots=True)
class Registration:
    """One broker's announcement."""

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str = ""
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    enable_acting_master: bool = False
    version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    whole: bool = False  # the broker has no other topics; RocketMQ's may announce one only
    identity: str = ""  # of its group (claims.py); empty: unknown


def required(command: Command, name: str) -> str:
    """A field that must be there and not be blank."""
    value = command.ext.get(name)
    if value is None or not value.strip():
        raise InvalidParameter(f"field {name} of request {command.code} is missing or blank")
    return value


def integer(command: Command, name: str, default: int | None = None) -> int:
    """A decimal field from 0 to 2^63-1; without a default it must be there."""
    text = command.ext.get(name)
    if text is None and default is not None:
        return default
    text = required(command, name)
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > BROKER_ID_MAX:
        raise InvalidParameter(f"field {name} is {text!r}: an integer from 0 to 2^63-1 is needed")
    return int(text)


def flag(command: Command, name: str) -> bool:
    """A boolean field, as Java reads it: anything but `true` is false."""
    return command.ext.get(name, "").lower() == "true"


def parse_registration(command: Command) -> Registration:
    """The announcement in a 103 request; InvalidParameter or code 1 when it is not one.

    An epoch that no master can have is refused as well: it would depose the true one for good.
    """
    body = command.body
    crc = integer(command, "bodyCrc32", 0)
    if crc and crc != zlib.crc32(body) & 0x7FFFFFFF:
        raise SystemError_("crc32 not match")
    result = Registration(
        cluster=required(command, "clusterName"),
        name=required(command, "brokerName"),
        broker_id=integer(command, "brokerId"),
        address=required(command, "brokerAddr"),
        ha_address=command.ext.get("haServerAddr", ""),
        timeout_ms=min(
            integer(command, "heartbeatTimeoutMillis", TIMEOUT_MS_DEFAULT) or TIMEOUT_MS_DEFAULT,
            TIMEOUT_MS_MAX,
        ),
        enable_acting_master=flag(command, "enableActingMaster"),
        whole=flag(command, "saturnWhole"),
        identity=checked.identity(command.ext, "saturnIdentity"),
    )
    if not len(body):
        return result
    try:
        if flag(command, "compressed"):
            result.version, topics = _parse_packed(bytes(body))
        else:
            wrapper = jsonx.loads(body).get("topicConfigSerializeWrapper") or {}
            result.version = DataVersion.from_json(wrapper.get("dataVersion"))
            table = wrapper.get("topicConfigTable") or {}
            topics = [
                TopicConfig.from_json({"topicName": name, **value}) for name, value in table.items()
            ]
    except (AttributeError, KeyError, TypeError, ValueError, struct.error, zlib.error) as error:
        raise InvalidParameter(
            f"registration body of {len(body)} bytes does not parse: {type(error).__name__} {error}"
        ) from None
    result.topics = {topic.name: topic for topic in topics}
    return result


def _parse_packed(body: bytes) -> tuple[DataVersion, list[TopicConfig]]:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(body, UNPACKED_MAX)
    if unpacker.unconsumed_tail:
        raise ValueError(f"unpacks to more than {UNPACKED_MAX} bytes")
    position = 0

    def take() -> bytes:
        nonlocal position
        (size,) = _I32.unpack_from(data, position)
        start = position + 4
        if size < 0 or start + size > len(data):
            raise ValueError(f"field of {size} bytes at {position} does not fit")
        position = start + size
        return data[start:position]

    version = DataVersion.from_json(jsonx.loads(take()))
    (count,) = _I32.unpack_from(data, position)
    position += 4
    topics = []
    for _ in range(count):
        parts = str(take(), "utf-8").split(" ", 5)
        name, read, write, perm = parts[:4]
        topic = TopicConfig(name, int(read), int(write), int(perm))
        if len(parts) > 4:
            topic.filter_type = parts[4]
        if len(parts) > 5 and parts[5]:
            topic.attributes = dict(jsonx.loads(parts[5].encode()) or {})
        topics.append(topic)
    return version, topics
