"""The user of a client: the access key of its user, and a signature with that user's secret key.

A request of Remoting names its user in ext `AccessKey`, and proves it in ext `Signature`: base64 of
the HMAC-SHA1, with the secret key, over the values of all other ext fields in the order of their
names, and the body. `SecurityToken` is signed as any other field. A call of gRPC signs the text of
its header `x-mq-date-time` alone. Both are RocketMQ's (AclClientRPCHook, AclSigner), and neither
keeps who can read packets from sending them again: TLS does.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import ConfigError, MalformedFrame

from . import fastjson
from .endpoint import Endpoint, Handler, ResultCallback
from .remoting import MAX_FRAME, Body, Command

ACCESS_KEY, SIGNATURE, SECURITY_TOKEN = "AccessKey", "Signature", "SecurityToken"
ACCESS_VARIABLE, SECRET_VARIABLE = "SATURNMQ_ACCESS_KEY", "SATURNMQ_SECRET_KEY"
# The user of a call of gRPC, as a node tells it: its name, the text that it has signed, the
# signature, and the address that it called from.
CALLER, CALLER_TEXT = "saturnCaller", "saturnCallerText"
CALLER_SIGNATURE, CALLER_HOST = "saturnCallerSignature", "saturnCallerHost"
BOUND = "saturnRequest"
"""The code of a request and the names of its fields, which RocketMQ's signature leaves open: ours
covers them by this field, and a request of a node has to have it."""
PASSED_ON = "saturnPassedOn"
"""A slave adds it to a signed request, so nobody signs it."""
# Clients up to this version leave a field out of what they sign.
UNSIGNED_FIELD, UNSIGNED_VERSION = "_UNIQUE_KEY_QUERY", 399  # V4_9_3


@dataclass(frozen=True)
class Credentials:
    """The user of a client. ConfigError: a key is empty."""

    access_key: str
    """The name of the user."""
    secret_key: str = field(repr=False)
    """The user's password."""
    security_token: str = field(default="", repr=False)
    """Sent and signed, and read by nobody here."""

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(f"{name} must be a text that is not empty")


def credentials_of(given: Credentials | None) -> Credentials | None:
    """The credentials of a client: those given to it, else those of the environment; None if there
    are none."""
    if given is None:
        return _credentials_in(os.environ)
    if not isinstance(given, Credentials):
        raise ConfigError(  # without its value, which may hold the secret
            f"credentials is a {type(given).__name__}: give a saturnmq.Credentials"
        )
    return given


def _credentials_in(environ: Mapping[str, str]) -> Credentials | None:
    access, secret = environ.get(ACCESS_VARIABLE, ""), environ.get(SECRET_VARIABLE, "")
    if bool(access) != bool(secret):
        raise ConfigError(f"set both {ACCESS_VARIABLE} and {SECRET_VARIABLE}, or none of them")
    return Credentials(access, secret) if access else None


def read_credentials(text: str, setting: str, access: str, secret: str) -> Credentials | None:
    """The credentials in a setting that is a JSON object; None if it is empty."""
    if not text:
        return None
    try:
        found = fastjson.loads(text.encode())
        return Credentials(found[access], found[secret])
    except (ConfigError, MalformedFrame, KeyError, TypeError, ValueError):
        raise ConfigError(
            f'{setting} must be {{"{access}":"...","{secret}":"..."}}, with texts that are not '
            "empty"
        ) from None


def sign(command: Command, credentials: Credentials) -> None:
    """Sign a request, which is not changed any more until it is sent."""
    fields = {**command.ext, ACCESS_KEY: credentials.access_key}
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields[BOUND] = bound(command.code, fields)
    body = (command.body, *command.more)
    fields[SIGNATURE] = signature(credentials.secret_key, signed_fields(fields), body)
    command.ext = fields


def bound(code: int, fields: Iterable[str]) -> str:
    """The text that binds a signature to one kind of request."""
    names = sorted({*fields} - {SIGNATURE, BOUND, PASSED_ON})
    return f"{int(code)} {' '.join(names)}"


def signed_fields(fields: Mapping[str, str], version: int = UNSIGNED_VERSION + 1) -> bytes:
    """The part of a signed text that the ext fields are; `version` is that of the client."""
    left_out = {SIGNATURE, PASSED_ON}
    if version <= UNSIGNED_VERSION:
        left_out.add(UNSIGNED_FIELD)
    return "".join(fields[name] for name in sorted(fields) if name not in left_out).encode()


def signature(secret_key: str, text: bytes, body: Iterable[Body] = ()) -> str:
    """The signature over a text and what follows it."""
    digest = hmac.new(secret_key.encode(), text, "sha1")
    for part in body:
        digest.update(part)
    return base64.b64encode(digest.digest()).decode()


def client_endpoint(
    runtime: Runtime,
    handler: Handler | None,
    on_close: Callable[[Endpoint], None] | None = None,
    max_frame: int = MAX_FRAME,
    *,
    credentials: Credentials | None,
) -> Endpoint:
    """The client's side of a connection, which signs its requests if there are credentials."""
    if credentials is None:
        return Endpoint(runtime, handler, on_close, max_frame)
    return SigningEndpoint(runtime, handler, credentials, on_close, max_frame)


class SigningEndpoint(Endpoint):
    """A connection whose requests are signed."""

    def __init__(
        self,
        runtime: Runtime,
        handler: Handler | None,
        credentials: Credentials,
        on_close: Callable[[Endpoint], None] | None = None,
        max_frame: int = MAX_FRAME,
    ) -> None:
        super().__init__(runtime, handler, on_close, max_frame)
        self._credentials = credentials

    def oneway(self, command: Command) -> None:
        sign(command, self._credentials)
        super().oneway(command)

    def _ask(
        self,
        command: Command,
        timeout_s: float,
        waiter: asyncio.Future[Command] | ResultCallback,
    ) -> int:
        sign(command, self._credentials)
        return super()._ask(command, timeout_s, waiter)
