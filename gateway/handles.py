"""Texts that clients keep and give back: receipt handles, and ids of transactions. Both name the
broker that they belong to, so any node can send on what it is asked.

    handle          the words of POP_CK (protocol/pop_handle.py), and the place in the log
    transaction id  <message id> <queue offset of the half> <its place in the log> <broker>

Nothing in them is trusted: brokers compare them with their tables.
"""

from __future__ import annotations

from typing import NamedTuple

from saturnmq.gateway.codes import CallRefused, Code
from saturnmq.protocol import checked
from saturnmq.protocol.pop_handle import PopHandle
from saturnmq.runtime.errors import MalformedFrame

HANDLE_MAX = 1024  # characters
SEPARATOR = "-"  # between the parts of a transaction's id


class ReceiptHandle(NamedTuple):
    """The handle of one delivery."""

    receipt: PopHandle
    physical_offset: int

    def __str__(self) -> str:
        return f"{self.receipt} {self.physical_offset}"


def parse_handle(text: str) -> ReceiptHandle:
    """CallRefused: it is no handle."""
    words, _, physical = text.rpartition(" ")
    try:
        if len(text) > HANDLE_MAX:
            raise MalformedFrame(f"it has {len(text)} characters")
        return ReceiptHandle(PopHandle.decode(words), checked.as_integer(physical, "the place"))
    except MalformedFrame as error:
        raise CallRefused(
            Code.INVALID_RECEIPT_HANDLE, f"{text!r:.80} is no receipt handle: {error}"
        ) from None


class TransactionId(NamedTuple):
    """The half message of a transaction."""

    message_id: str
    queue_offset: int
    physical_offset: int
    broker: str

    def __str__(self) -> str:
        return SEPARATOR.join(map(str, self))


def parse_transaction(text: str, message_id: str) -> TransactionId:
    """The transaction of this message. CallRefused: it is the id of none."""
    head, parts = text[: len(message_id)], text[len(message_id) :].split(SEPARATOR, 3)
    try:
        if not message_id or head != message_id or len(parts) != 4 or parts[0] or not parts[3]:
            raise MalformedFrame(f"it does not begin with the id of message {message_id!r:.80}")
        return TransactionId(
            message_id,
            checked.as_integer(parts[1], "the queue offset"),
            checked.as_integer(parts[2], "the place"),
            parts[3],
        )
    except MalformedFrame as error:
        raise CallRefused(
            Code.INVALID_TRANSACTION_ID, f"{text!r:.80} is the id of no transaction: {error}"
        ) from None
