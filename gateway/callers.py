"""Whose a call of gRPC is: the user that its header `authorization` names, and the signature there.

    authorization: MQv2-HMAC-SHA1 Credential=NAME, SignedHeaders=x-mq-date-time, Signature=HEX
    x-mq-date-time: the text that is signed

The gateway knows no users. It asks a broker whether the caller of each call is known, and each
request that it makes for the call tells the broker of the caller (broker/access/guard.py): its own
one, or another node, to which it signs the request as the node that it is. Requests without a
caller are the gateway's own work.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from typing import TypeVar

from saturnmq.gateway.calls import GrpcCall
from saturnmq.protocol.credentials import (
    CALLER,
    CALLER_HOST,
    CALLER_SIGNATURE,
    CALLER_TEXT,
    Credentials,
    sign,
)
from saturnmq.protocol.remoting import Command

T = TypeVar("T")

AUTHORIZATION, SIGNED_TEXT = "authorization", "x-mq-date-time"
HEADER_MAX = 1024  # characters of each

Caller = Mapping[str, str]
"""The ext fields that tell a broker of the caller of a call; its name is empty if it has none."""

PRESENT: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""The caller of the present call; None: this is the gateway's own work."""


def caller_of(call: GrpcCall) -> Caller:
    """The caller as its headers have it, known or not. One whose headers have another form has no
    name."""
    nobody = {CALLER: "", CALLER_HOST: call.peer.rpartition(":")[0]}
    header = call.metadata.get(AUTHORIZATION, "")
    signed = call.metadata.get(SIGNED_TEXT, "")
    if not header or len(header) > HEADER_MAX or not 0 < len(signed) <= HEADER_MAX:
        return nobody
    _, _, listed = header.partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in listed.split(","))
    name = parts.get("Credential", "").partition("/")[0]
    try:
        signature = base64.b64encode(bytes.fromhex(parts.get("Signature", ""))).decode()
    except ValueError:
        return nobody
    if not name or not signature:  # Python's client sends both empty when it has no credentials
        return nobody
    return {**nobody, CALLER: name, CALLER_TEXT: signed, CALLER_SIGNATURE: signature}


async def as_itself(work: Awaitable[T]) -> T:
    """The result of work of the gateway's own: a task that a call starts has its caller else."""
    PRESENT.set(None)
    return await work


def tell(command: Command) -> None:
    """Tell the broker in this process whose a request is."""
    caller = PRESENT.get()
    if caller is not None:
        command.ext = {**command.ext, **caller}


class Signatory:
    """Tells other nodes whose the requests of one gateway are."""

    def __init__(self, own: Credentials | None) -> None:
        self._own = own

    def sign(self, command: Command) -> None:
        """Tell whose a request is, as this node."""
        tell(command)
        if self._own is not None:
            sign(command, self._own)
