"""Whether a message is of the type of its topic (`message.type`).

RocketMQ's brokers take messages of any type; its proxy checks them, also for Remoting clients
(`enableTopicMessageTypeCheck`, on there). This broker has the same setting, off by default, so
clients find what they find at a RocketMQ broker. The rules are the proxy's:

- A topic takes messages of its type only. Without the attribute its type is NORMAL. MIXED takes
  all types, UNSPECIFIED none.
- The type of a message follows from its properties: TRAN_MSG=true is TRANSACTION, else a delay
  level or a time of delivery DELAY, else a sharding key FIFO, else NORMAL.
- Retry and dead-letter topics take all, as do messages with TRANSFER_FLAG.

The proxy looks at the properties of a batch, this broker at those of each message in it. The answer
is 13 for both.
"""

from __future__ import annotations

from saturnmq.broker.tables.topics import Topic
from saturnmq.protocol.batch import iterate_batch
from saturnmq.protocol.message_types import DELAY, FIFO, MESSAGE_TYPE, MIXED, NORMAL, TRANSACTION
from saturnmq.protocol.properties import DELAYING, find_in_text
from saturnmq.protocol.topics import DLQ_PREFIX, RETRY_PREFIX
from saturnmq.runtime.errors import MessageIllegal

_DELAYING = tuple(f"{name}\x01" for name in DELAYING)


def type_of(properties: str) -> str:
    """The type of a message with this properties field."""
    if find_in_text(properties, "TRAN_MSG\x01").lower() == "true":
        return TRANSACTION
    if any(find_in_text(properties, name) for name in _DELAYING):
        return DELAY
    return FIFO if find_in_text(properties, "__SHARDINGKEY\x01") else NORMAL


def check_type(topic: Topic, properties: str) -> None:
    """MessageIllegal: a message with these properties is of another type than its topic."""
    if topic.name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return
    if not find_in_text(properties, "TRANSFER_FLAG\x01"):
        _check(topic, type_of(properties))


def check_recall(topic: Topic) -> None:
    """MessageIllegal: the topic is not for timed messages."""
    _check(topic, DELAY)


def _check(topic: Topic, found: str) -> None:
    wanted = topic.attributes.get(MESSAGE_TYPE, NORMAL)
    if found != wanted != MIXED:
        raise MessageIllegal(
            f"TopicMessageType validate failed, the expected type is {wanted}, but actual type is "
            f"{found}: topic {topic.name} (enableTopicMessageTypeCheck)"
        )


def check_types(topic: Topic, batch: bytes | bytearray | memoryview) -> None:
    """MessageIllegal: a message of this batch is of another type than its topic."""
    for entry in iterate_batch(batch):
        check_type(topic, str(entry.properties, "utf-8", "replace"))
