"""Half messages: how a message waits for the end of its transaction, and what becomes of it.

A message with TRAN_MSG=true is stored in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC, which consumers do
not read. Its properties remember the real topic and queue. A commit stores it again under the real
topic, with sysFlag COMMIT and the half's physical offset; its property string then still holds
TRAN_MSG, REAL_TOPIC and REAL_QID, as in RocketMQ.

Whenever the producer is asked, the half is stored again at the end of its queue, with the number of
questions, so that a segment that grows old takes no open transaction with it. A transaction keeps
one identity through all of that: the queue offset of its first half, its **root**, which copies
have as TRAN_PREPARED_QUEUE_OFFSET.
"""

from __future__ import annotations

from dataclasses import dataclass

from saturnmq.protocol import properties as names
from saturnmq.protocol.frame import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    own_properties,
)
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.properties import decode_properties, encode_properties, find_in_text
from saturnmq.protocol.topics import CHECK_MAX_TIME_TOPIC, DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX
from saturnmq.runtime.errors import MessageIllegal
from saturnmq.store.log.writer import PROPERTIES_EXCEEDED, PROPERTIES_MAX
from saturnmq.store.message_store import PendingMessage

QUEUE = HALF_TOPIC, 0
GROWTH_MAX = 256  # bytes of properties that copies of a half have more
IMMUNITY_S_MAX = 30 * 86_400
_ROOT = f"{names.TRAN_PREPARED_QUEUE_OFFSET}\x01"
_OF_COPIES = (names.TRAN_PREPARED_QUEUE_OFFSET, names.TRANSACTION_CHECK_TIMES)


def prepare(topic: str, queue_id: int, encoded: bytes) -> tuple[str, int, bytes]:
    """The topic, queue and properties with which a transactional message is stored first.
    MessageIllegal: it can be no half."""
    properties = decode_properties(encoded)
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise MessageIllegal(f"a transaction cannot write to {topic}; send the message without one")
    if not properties.get(names.PGROUP):
        raise MessageIllegal(
            "a transactional message names no producer group (PGROUP), so nobody could be asked "
            "how it ends; set the property"
        )
    for name in names.DELAYING:
        if properties.get(name, "0") != "0":
            raise MessageIllegal(
                f"a transactional message cannot wait as well ({name}={properties[name]}); leave "
                "one of them out"
            )
    for name in _OF_COPIES:  # of another transaction: a received message may be sent on
        properties.pop(name, None)
    properties[names.TRANSACTION_ID] = properties[names.UNIQ_KEY]
    properties[names.REAL_TOPIC] = topic
    properties[names.REAL_QID] = str(queue_id)
    written = encode_properties(properties)
    if len(written) > PROPERTIES_MAX - GROWTH_MAX:
        raise MessageIllegal(
            f"{PROPERTIES_EXCEEDED}the properties are {len(written)} bytes long, the limit is "
            f"{PROPERTIES_MAX - GROWTH_MAX} in a transaction: shorten them"
        )
    return *QUEUE, written


@dataclass(slots=True)
class Half:
    """A half as it lies in its queue at `offset`."""

    message: ReceivedMessage
    root: int
    group: str
    unique: str
    topic: str
    queue_id: int

    @property
    def offset(self) -> int:
        return self.message.queue_offset

    @property
    def physical(self) -> int:
        return self.message.physical_offset

    @property
    def checks(self) -> int:
        """How often the producer was asked."""
        return max(0, self._number(names.TRANSACTION_CHECK_TIMES))

    @property
    def immunity_s(self) -> int:
        """For how long nobody asks; 0: as long as the broker's setting says."""
        return min(max(0, self._number(names.CHECK_IMMUNITY_TIME_IN_SECONDS)), IMMUNITY_S_MAX)

    def _number(self, name: str) -> int:
        return _number(self.message.properties.get(name, "")) or 0


def read_half(message: ReceivedMessage) -> Half:
    """The half in a message of the half topic. Without a topic or a group it can only expire."""
    # Most halves are read once, to be ended: a dictionary of all properties would cost more.
    properties = str(message.raw_properties, "utf-8", "replace")
    root = _number(find_in_text(properties, _ROOT))
    return Half(
        message,
        root if root is not None and 0 <= root < message.queue_offset else message.queue_offset,
        find_in_text(properties, "PGROUP\x01"),
        find_in_text(properties, "UNIQ_KEY\x01"),
        find_in_text(properties, "REAL_TOPIC\x01"),
        max(0, _number(find_in_text(properties, "REAL_QID\x01")) or 0),
    )


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def committed(half: Half, store_host: bytes) -> PendingMessage:
    """The message that consumers get."""
    properties = half.message.raw_properties
    return _copy(half, half.topic, half.queue_id, properties, store_host, TRANSACTION_COMMIT)


def asked_again(half: Half, store_host: bytes, *, is_check: bool) -> PendingMessage:
    """The half as it waits on behind those that are there already; `is_check`: the producer is
    asked."""
    properties = decode_properties(own_properties(half.message.raw_properties))
    properties[names.TRAN_PREPARED_QUEUE_OFFSET] = str(half.root)
    if is_check:
        properties[names.TRANSACTION_CHECK_TIMES] = str(half.checks + 1)
    return _copy(half, *QUEUE, encode_properties(properties), store_host)


def expired(half: Half, store_host: bytes) -> PendingMessage:
    """The half whose producer was asked often enough: an operator finds it in this topic."""
    return _copy(half, CHECK_MAX_TIME_TOPIC, 0, half.message.raw_properties, store_host)


def _copy(
    half: Half,
    topic: str,
    queue_id: int,
    properties: bytes,
    store_host: bytes,
    transaction: int = TRANSACTION_NONE,
) -> PendingMessage:
    message = half.message
    return PendingMessage(
        topic,
        queue_id,
        message.raw_body,
        properties,
        flag=message.flag,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK | transaction,
        born_timestamp=message.born_timestamp,
        born_host=message.raw_born_host,
        store_host=store_host,
        reconsume_times=message.reconsume_times,
        prepared_offset=half.physical,
    )
