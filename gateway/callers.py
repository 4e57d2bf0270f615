"""Whose a call of gRPC is: the user that its header `authorization` names, and the signature there.

    authorization: MQv2-HMAC-SHA1 Credential=NAME, SignedHeaders=x-mq-date-time, Signature=HEX
    x-mq-date-time: the text that is signed

The gateway knows no users. Each request that it makes for a call takes these fields along to the
broker, which checks them (broker/access/guard.py): this one, or another node. The work of the
gateway itself is signed with the credentials of its node.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextvars import ContextVar

from saturnmq.protocol.credentials import ACCESS_KEY, DATE_TIME, SIGNATURE, Credentials, sign
from saturnmq.protocol.remoting import Command

AUTHORIZATION, SIGNED_TEXT = "authorization", "x-mq-date-time"
HEADER_MAX = 1024  # characters of each
NOBODY: Mapping[str, str] = {}

CALLER: ContextVar[Mapping[str, str] | None] = ContextVar("caller", default=None)
"""The fields that say whose the present call is; None: this is the gateway's own work."""


def fields_of(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """The ext fields that say whose a call is; none if it does not say, or in another form. A
    broker that checks users refuses its requests then, and other brokers do not look."""
    header, signed = metadata.get(AUTHORIZATION, ""), metadata.get(SIGNED_TEXT, "")
    if not header or len(header) > HEADER_MAX or not 0 < len(signed) <= HEADER_MAX:
        return NOBODY
    _, _, listed = header.partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in listed.split(","))
    name = parts.get("Credential", "").partition("/")[0]
    try:
        signature = base64.b64encode(bytes.fromhex(parts.get("Signature", ""))).decode()
    except ValueError:
        return NOBODY
    if not name or not signature:  # Python's client sends both empty when it has no credentials
        return NOBODY
    return {ACCESS_KEY: name, DATE_TIME: signed, SIGNATURE: signature}


class Signatory:
    """Signs the requests of one gateway."""

    def __init__(self, own: Credentials | None) -> None:
        self._own = own

    def sign(self, command: Command) -> None:
        """Say whose a request is: the call's that is served now, else the node's own."""
        fields = CALLER.get()
        if fields is not None:
            command.ext = {**command.ext, **fields}
        elif self._own is not None:
            sign(command, self._own)
