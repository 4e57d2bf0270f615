"""The words of RocketMQ's users and access rules (ACL 2.0), for brokers and clients."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from saturnmq.runtime.errors import InvalidParameter, nearest

SUBJECT = "User:"
"""The beginning of a subject, which is a user."""


class Word(StrEnum):
    """A word of RocketMQ's, read in any case."""

    @classmethod
    def read(cls, text: str, what: str) -> Self:
        """The word that `text` is. InvalidParameter: it is none."""
        for word in cls:
            if word.lower() == text.lower():
                return word
        names = [word.value for word in cls]
        hint = nearest(text.capitalize(), names, 0.5)
        raise InvalidParameter(f"{what} is {text!r}; it must be one of {', '.join(names)}{hint}")


class UserType(Word):
    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Word):
    ENABLED = "enable"
    DISABLED = "disable"


class Action(Word):
    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(Word):
    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(Word):
    CUSTOM = "Custom"
    DEFAULT = "Default"
