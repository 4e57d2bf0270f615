"""One call, as the door gives it to the services: its caller, and the time it has. The services
know nothing else of gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from saturnmq.gateway.codes import CallRefused, Code

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
REQUEST_ID = "x-mq-request-id"
REQUEST_ID_MAX = 64  # characters that are told; a UUID has 36
CLIENT_ID_MAX = 1024  # characters
USUAL_S = 3.0  # the time for a call without a deadline: the clients' own default
MARGIN_S = 0.5  # an answer must leave so long before the deadline

Write = Callable[[Any], Awaitable[None]]
"""Send one message of a stream; waits while the client does not read."""
Read = AsyncIterator[Any]


class GrpcStatus(IntEnum):
    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(Exception):
    """A call ends with an error of gRPC itself."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """The caller of one call, and the time that is left for it."""

    peer: str  # host:port
    metadata: Mapping[str, str]
    deadline: float | None  # by the steady clock

    @property
    def client_id(self) -> str:
        """CallRefused: the caller does not say."""
        found = self.metadata.get(CLIENT_ID, "").strip()
        if not found or len(found) > CLIENT_ID_MAX:
            raise CallRefused(
                Code.CLIENT_ID_REQUIRED,
                f"a call needs the header {CLIENT_ID}, of at most {CLIENT_ID_MAX} characters",
            )
        return found

    @property
    def request_id(self) -> str:
        """The caller's name of this call, as far as it can be printed; empty if it has none."""
        found = self.metadata.get(REQUEST_ID, "")[:REQUEST_ID_MAX]
        return "".join(each if " " <= each <= "~" else "?" for each in found)

    @property
    def is_secure(self) -> bool:
        """It came over TLS, as its client says."""
        return self.metadata.get(":scheme") == "https"

    def remaining_s(self, now: float, otherwise: float = USUAL_S) -> float:
        """The seconds that are left for the answer."""
        return otherwise if self.deadline is None else self.deadline - now


Unary = Callable[[GrpcCall, Any], Awaitable[Any]]
"""A call with one answer."""
Stream = Callable[[GrpcCall, Any, Write], Awaitable[None]]
"""A call with a stream of answers."""
Dialogue = Callable[[GrpcCall, Read, Write], Awaitable[None]]
"""A call with a stream each way."""


@dataclass(frozen=True)
class Service:
    """The calls of a service, by name. One that raises CallFailed ends with its status."""

    name: str
    unary: Mapping[str, Unary] = field(default_factory=dict)
    streams: Mapping[str, Stream] = field(default_factory=dict)
    dialogues: Mapping[str, Dialogue] = field(default_factory=dict)
