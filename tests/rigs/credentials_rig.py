"""The signature of a client's request, checked by another reading of RocketMQ's sources."""

from __future__ import annotations

import base64
import hashlib
import hmac

from saturnmq import Credentials
from saturnmq.protocol.remoting import Command


def is_signed_by(credentials: Credentials, command: Command) -> bool:
    """Whether a request as it came has the signature of this user."""
    ext = dict(command.ext)
    sent = ext.pop("Signature", "")
    text = "".join(ext[name] for name in sorted(ext)).encode() + bytes(command.body)
    digest = hmac.new(credentials.secret_key.encode(), text, hashlib.sha1).digest()
    is_right = sent == base64.b64encode(digest).decode()
    return is_right and ext.get("AccessKey") == credentials.access_key
