"""A broker's announcement of itself in REGISTER_BROKER (103), read from header and body
(docs/internals/protocol.md 3.1).

The body is JSON, or, with `compressed=true`, a zlib stream of

| type | field |
|---|---|
| i32 + bytes | DataVersion as JSON |
| i32 | number of topics |
| i32 + bytes, each | `name read write perm SINGLE_TAG {attributes}`, separated by single spaces |
| i32 + bytes | JSON array of filter servers (ignored) |
| i32 + entries | static-topic info from version 413 on (ignored) |

`bodyCrc32` is zlib's CRC-32 of the body as sent, masked to 31 bits; 0 = not checked. A missing body
is an empty table of version zero. Brokers write this; only the nameserver reads it.
"""

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from saturnmq.protocol import fastjson
from saturnmq.protocol.nameserver_headers import RegisterBrokerHeader
from saturnmq.protocol.remoting import Body
from saturnmq.protocol.route import DataVersion, TopicConfig
from saturnmq.runtime.errors import InvalidParameter, SystemError_

# 100,000 topics of 100 bytes fit six times; a small stream must not unpack to all of our memory.
UNPACKED_MAX = 64 * 1024 * 1024
# A broker that asks for days of silence would stay in routes for days after its death.
TIMEOUT_MS_DEFAULT = 120_000
TIMEOUT_MS_MAX = 3_600_000

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


def parse_registration(header: RegisterBrokerHeader, body: Body) -> Registration:
    """The announcement in a 103 request; InvalidParameter, or code 1, for a malformed one.

    An epoch that no master can have is refused as well: it would depose the true master for good.
    """
    if header.body_crc and header.body_crc != zlib.crc32(body) & 0x7FFFFFFF:
        raise SystemError_("crc32 not match")
    result = Registration(
        cluster=header.cluster,
        name=header.broker_name,
        broker_id=header.broker_id,
        address=header.address,
        ha_address=header.ha_address,
        timeout_ms=min(header.timeout_ms or TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX),
        enable_acting_master=header.enable_acting_master,
        whole=header.whole,
        identity=header.identity,
    )
    if not len(body):
        return result
    try:
        if header.compressed:
            result.version, topics = _parse_packed(bytes(body))
        else:
            wrapper = fastjson.loads_request(body).get("topicConfigSerializeWrapper") or {}
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

    version = DataVersion.from_json(fastjson.loads_strict(take(), UNPACKED_MAX))
    (count,) = _I32.unpack_from(data, position)
    position += 4
    topics = []
    for _ in range(count):
        parts = str(take(), "utf-8").split(" ", 5)
        name, read, write, perm = parts[:4]
        fields: dict[str, Any] = {
            "topicName": name,
            "readQueueNums": read,
            "writeQueueNums": write,
            "perm": perm,
        }
        if len(parts) > 4:
            fields["topicFilterType"] = parts[4]
        if len(parts) > 5 and parts[5]:
            fields["attributes"] = fastjson.loads_strict(parts[5].encode(), UNPACKED_MAX)
        topic = TopicConfig.from_json(fields)
        topics.append(topic)
    return version, topics
