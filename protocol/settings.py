"""The settings of a node: fields of a dataclass, each with RocketMQ's name for it and, if it is a
number, its least and greatest value. RocketMQ takes any number and fails later, or deletes what
it should keep.

The string below a field describes the setting. The end of a field's name is its unit (`_ms`, `_s`,
`_hours`, `_bytes`, `_ratio`). tools/configuration.py writes docs/configuration.md from both.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from saturnmq.protocol.checked import INT32_MAX
from saturnmq.runtime.door import split_address, split_addresses
from saturnmq.runtime.errors import ConfigError

OURS = "ours"  # of a key that RocketMQ does not know


def setting(
    key: str,
    default: Any = dataclasses.MISSING,
    least: float = 1,
    most: float = INT32_MAX,
    *,
    rocketmq: str = "",
    live: bool = False,
    addresses: bool = False,
    needed: bool = False,
    **options: Any,
) -> Any:
    """A field that a broker.conf calls `key`; the bounds are those of a number. `rocketmq` is
    RocketMQ's own default if it differs, or `OURS`. `live`: it can be changed while the node runs,
    because it is read at each use. `addresses`: it is one, or several. `needed`: a text that is not
    empty."""
    metadata = {
        "key": key,
        "bounds": (least, most),
        "rocketmq": rocketmq,
        "live": live,
        "addresses": addresses,
        "needed": needed,
    }
    return dataclasses.field(default=default, metadata=metadata, **options)


_WORDS = {"true": True, "false": False, "1": True, "0": False}
_NUMBER = re.compile(
    r"[+-]?[0-9]{1,400}"
)  # int() takes more than digits, and refuses 4,301 of them


def converted(field: dataclasses.Field[Any], name: str, value: Any, where: str) -> Any:
    """The value of a setting that a file, the environment or a request calls `name`, where every
    value may be text. ConfigError: it is of another kind than the setting."""
    kind: type[Any] = type(field.default)
    if kind is tuple:
        parts = value.replace(",", ";").split(";") if isinstance(value, str) else value
        if isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts):
            return tuple(part.strip() for part in parts if part.strip())
        wanted = "text, or a list of texts"
    elif kind is bool:
        found = _WORDS.get(value.lower()) if isinstance(value, str) else value
        if isinstance(found, bool):
            return found
        wanted = "true or false"
    elif kind is int:
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            return int(value)
        if type(value) is int:  # a bool is one, too
            return value
        wanted = "a number without a fraction"
    else:
        return value  # check_bounds says whether it is text
    raise ConfigError(f"{where}: {name} is {value!r}; it must be {wanted}")


def check_bounds(config: Any) -> None:
    """Raise ConfigError for a number outside its bounds, for an address that is none, for what has
    to be text and is not, and for a needed text that is empty."""
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        if each.metadata.get("addresses"):
            try:
                for address in split_addresses(value):
                    split_address(address)
            except ValueError as error:
                raise ConfigError(f"{each.metadata['key']}: {error}") from None
        if isinstance(each.default, str):
            _check_text(each, value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        least, most = each.metadata["bounds"]
        if not least <= value <= most:
            raise ConfigError(
                f"{each.metadata['key']} is {value}; it must be a number from {least} to {most}"
            )


def _check_text(field: dataclasses.Field[Any], value: Any) -> None:
    key = field.metadata["key"]
    if not isinstance(value, str):
        raise ConfigError(f"{key} is {value!r}; it must be text: write it in quotes")
    if field.metadata["needed"] and not value.strip():
        raise ConfigError(f"{key} is empty; give it a value, or leave it out for {field.default!r}")
