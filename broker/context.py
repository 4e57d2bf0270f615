"""What the services of one broker share: its configuration, its store and its tables.

Plain state, no behaviour except two facts everything asks for: how far consumers may see, and how
a reply reaches its sender.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from saturnmq.broker.ack import AckLedger
from saturnmq.broker.clients import ClientTable
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.groups import GroupTable
from saturnmq.broker.locks import QueueLocks
from saturnmq.broker.offsets import ConsumerOffsets
from saturnmq.broker.role import Role
from saturnmq.broker.topics import TopicTable
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.errors import InvalidParameter
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.runtime import Runtime
from saturnmq.store.epochs import Epochs
from saturnmq.store.message_store import MessageStore


@dataclass
class Context:
    config: BrokerConfig
    runtime: Runtime
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    clients: ClientTable
    offsets: ConsumerOffsets
    locks: QueueLocks
    ledger: AckLedger
    role: Role
    epochs: Epochs
    master_confirmed: int | None = None  # on a slave: how far its master confirms, if it says so
    appended: Callable[[], None] = lambda: None  # tells the turn that the log grew
    enough_replicas: Callable[[], bool] = lambda: True
    copies_in_sync: Callable[[], int] = lambda: 1
    flush_keeps_up: Callable[[], bool] = lambda: True
    address: str = ""  # as clients are told
    store_host: bytes = field(default=bytes(8))

    @property
    def visible(self) -> int:
        """Consumers see only what lies below this physical offset (invariant I9)."""
        return self.store.watermarks.confirmed


def lost_from(
    c: Context, ext: dict[str, str], topic: str, queue_id: int, offset: int
) -> int | None:
    """Where a consumer must go on whose offset is of messages that the group has lost; None if it
    may stay. It says in `saturnTerm` which epoch's log it has read: what that one had behind the
    start of the next is gone, and its offsets have come to mean other messages (fault-model I4)."""
    term = ext.get("saturnTerm")
    if not term or int(term) == c.role.term:
        return None
    start = c.epochs.end_of(int(term))
    end = None if start is None else c.store.offset_at(topic, queue_id, start)
    return None if end is None or offset <= end else end


def commit(c: Context, ext: dict[str, str], place: tuple[str, str, int], offset: int) -> None:
    """Keep a group's offset (group, topic, queue), unless it is of messages that are lost. A slave
    may lag behind the master that its consumers have read from; a master has it all."""
    group, topic, queue_id = place
    if lost_from(c, ext, topic, queue_id, offset) is not None:
        return
    if c.role.is_slave or offset <= c.store.max_offset(topic, queue_id):
        c.offsets.commit(group, topic, queue_id, offset)


def answer(endpoint: Endpoint, request: Command, reply: Command) -> None:
    """Send a reply unless nobody waits for it."""
    if not request.is_oneway and not endpoint.closed:
        endpoint.send(reply)


def integer(ext: dict[str, str], name: str, default: int | None = None) -> int:
    """A number of a request header; 29 says which field was missing or no number."""
    text = ext.get(name)
    if text is None or text == "":
        if default is None:
            raise InvalidParameter(f"header field {name!r} is missing; send a number")
        return default
    try:
        return int(text)
    except ValueError:
        raise InvalidParameter(f"header field {name!r} is {text[:40]!r}, not a number") from None


def text(ext: dict[str, str], name: str) -> str:
    """A required text of a request header."""
    value = ext.get(name)
    if not value:
        raise InvalidParameter(f"header field {name!r} is missing")
    return value
