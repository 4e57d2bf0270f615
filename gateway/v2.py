"""The messages, enums and calls of `apache.rocketmq.v2`. `v2.Message` is the class of a message,
`v2.Code` an IntEnum."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from saturnmq.gateway.descriptors import POOL, message_class, rpcs_of

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"
RPCS = rpcs_of(SERVICE)


def _enum(name: str) -> Any:
    values = POOL.FindEnumTypeByName(f"{PACKAGE}.{name}").values
    return IntEnum(name, [(value.name, value.number) for value in values])


def __getattr__(name: str) -> Any:
    """The message or enum of this name; made once."""
    for make in (lambda name: message_class(f"{PACKAGE}.{name}"), _enum):
        try:
            found = make(name)
        except KeyError:
            continue
        globals()[name] = found
        return found
    raise AttributeError(f"{PACKAGE} has no {name}")
