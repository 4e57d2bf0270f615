"""How the options of source and sink are written: one reader for each kind of value.

A reader takes the option's name and its text, stripped. Its error names both and what to write.
An `Option` is a row of docs/configuration.md, which tools/configuration.py writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saturnmq.protocol.topics import check_group, check_topic
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConfigError, InvalidParameter, nearest

_DIGITS = r"\d{1,20}"  # more than any number of ours has; int() refuses those of 4,301


def unknown(
    kind: str, key: str, names: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> ConfigError:
    """The error of an option that is none of `names`; `elsewhere` says, by lower-case name, what
    other connectors' options are called here."""
    here = (elsewhere or {}).get(key.lower())
    if here is not None:
        return ConfigError(f"unknown {kind} option {key!r}; here it is called {here!r}")
    # Names arrive in lower case, and the hint should not.
    by_lower = {name.lower(): name for name in names}
    hint = nearest(key.lower(), by_lower)
    for lower, name in by_lower.items():
        hint = hint.replace(repr(lower), repr(name))
    return ConfigError(f"unknown {kind} option {key!r}{hint}; known are {', '.join(names)}")


def read_text(name: str, value: str) -> str:
    if not value:
        raise ConfigError(f"option {name} is empty; leave it out or give it a value")
    return value


def read_words(name: str, value: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        raise ConfigError(f"option {name} is empty; name at least one, with commas between")
    return found


def read_topic(name: str, value: str) -> str:
    return _name_of(name, value, check_topic)


def read_group(name: str, value: str) -> str:
    return _name_of(name, value, check_group)


def _name_of(option: str, value: str, check: Callable[[str], str]) -> str:
    try:
        return check(value)
    except InvalidParameter as error:
        raise ConfigError(f"option {option}: {error}") from None


def read_flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"option {name} is {value!r}; write true or false")
    return value.lower() == "true"


@dataclass(frozen=True)
class NumberOption:
    """Reads a whole number within bounds."""

    least: int
    most: int = 1 << 62

    def __call__(self, name: str, value: str) -> int:
        if not re.fullmatch(rf"[+-]?{_DIGITS}", value) or not self.least <= int(value) <= self.most:
            limit = _limit(self.least, self.most)
            raise ConfigError(f"option {name} is {value!r}; write a whole number {limit}")
        return int(value)

    @property
    def allowed(self) -> str:
        return f"a number {_limit(self.least, self.most)}"


@dataclass(frozen=True)
class Size:
    """Reads a number of bytes within bounds, such as 1048576 or 1m."""

    least: int
    most: int = 1 << 62

    def __call__(self, name: str, value: str) -> int:
        match = re.fullmatch(rf"({_DIGITS})\s*([kmg]?)(?:i?b)?", value.lower())
        size = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]] if match else -1
        if not self.least <= size <= self.most:
            raise ConfigError(
                f"option {name} is {value!r}; write bytes {_limit(self.least, self.most)}, such as "
                f"{1 << 20} or 1m"
            )
        return size

    @property
    def allowed(self) -> str:
        return f"bytes {_limit(self.least, self.most)}, such as 1m"


def _limit(least: int, most: int) -> str:
    return f"from {least} to {most}" if most < 1 << 62 else f"from {least} on"


def read_duration(name: str, value: str) -> int:
    match = re.fullmatch(rf"({_DIGITS})\s*(ms|s|m|min|h|d)?", value.lower())
    if match is None:
        raise ConfigError(f"option {name} is {value!r}; write a time such as 500ms, 30s or 15m")
    unit = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    return int(match[1]) * unit[match[2] or "ms"]


class OneOf:
    """Reads one of some words, in any case."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def __call__(self, name: str, value: str) -> str:
        for word in self.known:
            if word.lower() == value.lower():
                return word
        hint = nearest(value, self.known)
        raise ConfigError(f"option {name} is {value!r}{hint}; it is one of {', '.join(self.known)}")

    @property
    def allowed(self) -> str:
        return ", ".join(self.known)


@dataclass(frozen=True)
class Option:
    """One option: its reading and its purpose; `default` is written as a user would write it."""

    read: Callable[[str, str], Any]
    about: str
    default: str = ""
    values: str = ""
    """The values that may be written, if `read` does not know them."""

    @property
    def allowed(self) -> str:
        if isinstance(self.read, NumberOption | Size | OneOf):
            return self.read.allowed
        return self.values or _ALLOWED[self.read]


_ALLOWED: dict[Callable[[str, str], Any], str] = {
    read_text: "text",
    read_words: "words, with commas between",
    read_topic: "a topic",
    read_group: "a group",
    read_flag: "true, false",
    read_duration: "a time such as 500ms, 30s, 15m",
}


def check_nameservers(addresses: Sequence[str]) -> None:
    """ConfigError unless there are some, each HOST:PORT."""
    for address in addresses:
        try:
            split_address(address, least_port=1)
        except ValueError:
            raise ConfigError(
                f"option endpoints: {address!r} is no nameserver; write HOST:PORT, such as "
                "127.0.0.1:9876, several with commas between; ports are 1 to 65535"
            ) from None
    if not addresses:
        raise ConfigError("option endpoints names no nameserver; write HOST:PORT,...")
