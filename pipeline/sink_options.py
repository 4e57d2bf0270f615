"""What the sink can be told, and the columns it takes (docs: pipeline.md).

Options come with lower-case names, as Spark hands them over; the error of an unknown one names the
nearest that exists. Columns are checked against the schema of the rows before a task runs. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from saturnmq.protocol import compression
from saturnmq.protocol.errors import ConfigError, nearest
from saturnmq.protocol.topics import check_group, check_topic

AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
ROUND_ROBIN = "roundRobin"
SHARDING_KEY = "shardingKey"
COLUMN = "column"
ALL = "all"
STORED = "stored"
NONE = "none"

CHUNK_BYTES_MIN = 4 << 10
CHUNK_BYTES_MAX = 4 << 20  # a RocketMQ broker refuses batches above its maxMessageSize

# What Spark itself puts among the options of a write.
OF_SPARK = frozenset({"checkpointlocation", "queryname"})

COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("BINARY", "STRING"),
    "topic": ("STRING",),
    "tags": ("STRING",),
    "keys": ("STRING",),
    "properties": ("MAP<STRING,STRING>",),
    "flag": ("INT",),
    "queueId": ("INT", "BIGINT"),
    "brokerName": ("STRING",),
    "shardingKey": ("STRING",),
    "bornTimestamp": ("TIMESTAMP",),
    "deliveryTimestamp": ("TIMESTAMP",),
}
"""The columns of a row, each with the Spark types it may have; only the body must be there."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of one write, checked."""

    endpoints: str
    topic: str | None = None
    """Where all rows go, whatever column `topic` says."""
    delivery: str = AT_LEAST_ONCE
    queue_selector: str = ""
    """roundRobin, shardingKey or column; empty: what the columns suggest (`selector_for`)."""
    chunk_bytes: int = 1 << 20
    ack_mode: str = ALL
    """all: only an acknowledgement as the broker's own mode has it (flushed, replicated) counts,
    what was stored short of it is sent again. stored: that the master has it is enough."""
    compression: int | None = None
    compression_threshold: int = 4096
    producer_group: str = "saturnmq-spark"
    retry_timeout_ms: int = 120_000
    write_id: str | None = None
    brokers: tuple[str, ...] = ()
    ignore_extra_columns: bool = False

    @property
    def exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE


def parse(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write; ConfigError names the first that is wrong."""
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = key.lower()
        if name in OF_SPARK:
            continue
        if name not in _PARSERS:
            raise ConfigError(_unknown(key))
        field, read = _PARSERS[name]
        values[field] = read(text.strip())
    if not values.get("endpoints"):
        raise ConfigError("option 'endpoints' is missing; give nameservers as HOST:9876,HOST:9876")
    options = SinkOptions(**values)
    if options.exactly_once and options.ack_mode != ALL:
        raise ConfigError(
            f"ackMode={options.ack_mode} does not go with delivery={EXACTLY_ONCE}; drop it: groups "
            "are acknowledged as the broker's own mode has it"
        )
    if options.exactly_once and not options.topic and not options.brokers:
        raise ConfigError(
            f"delivery={EXACTLY_ONCE} with topics of a column needs option 'brokers': the names of "
            "those that have all these topics; or give option 'topic'"
        )
    for name, value in (("writeId", options.write_id), ("brokers", options.brokers)):
        if value and not options.exactly_once:
            raise ConfigError(
                f"option {name!r} is for delivery={EXACTLY_ONCE}; give that too, or drop it"
            )
    return options


def _unknown(key: str) -> str:
    hint = nearest(key.lower(), _PARSERS)
    for name in NAMES:
        hint = hint.replace(repr(name.lower()), repr(name))
    if key.lower() == "path":
        hint = "; name the topic with .option('topic', ...), and save without a path"
    return f"unknown sink option {key!r}{hint}; known: {', '.join(NAMES)}"


def check_columns(schema: Any, options: SinkOptions) -> tuple[str, ...]:
    """The names of the columns of `schema` (a StructType) that the sink looks at, in its order.
    ConfigError for one that it does not know, has another type for, or lacks."""
    used = []
    for field in schema.fields:
        types = COLUMNS.get(field.name)
        if types is None:
            if options.ignore_extra_columns:
                continue
            hint = next((n for n in COLUMNS if n.lower() == field.name.lower()), None)
            near = f"; did you mean {hint!r}?" if hint else nearest(field.name, COLUMNS)
            raise ConfigError(
                f"the sink has no column {field.name!r}{near}; drop it, or give "
                f"ignoreExtraColumns=true; columns are {_ddl()}"
            )
        kind = field.dataType.simpleString().upper()
        if kind not in types:
            raise ConfigError(
                f"column {field.name!r} is {kind}, not {' or '.join(types)}; cast it; "
                f"columns are {_ddl()}"
            )
        if field.name in used:
            raise ConfigError(f"column {field.name!r} is there twice; drop one")
        used.append(field.name)
    if "body" not in used:
        raise ConfigError(f"column 'body' is missing; name one so; columns are {_ddl()}")
    if options.topic is None and "topic" not in used:
        raise ConfigError("no topic; give option 'topic', or a column 'topic'")
    if "deliveryTimestamp" in used:
        raise ConfigError(
            "drop column 'deliveryTimestamp': messages for a given time are not supported by the "
            "brokers yet"
        )
    selector_for(used, options)
    return tuple(used)


def selector_for(columns: list[str] | tuple[str, ...], options: SinkOptions) -> str:
    """How rows find their queue: as the option says, else by the columns there are, the more exact
    one first. ConfigError if the column that the option needs is missing."""
    asked = options.queue_selector
    if asked == SHARDING_KEY and "shardingKey" not in columns:
        raise ConfigError("queueSelector=shardingKey needs a column 'shardingKey'; add it")
    if asked == COLUMN and "queueId" not in columns:
        raise ConfigError("queueSelector=column needs a column 'queueId'; add it")
    if asked:
        return asked
    if "queueId" in columns:
        return COLUMN
    return SHARDING_KEY if "shardingKey" in columns else ROUND_ROBIN


def _ddl() -> str:
    return ", ".join(f"{name} {'|'.join(types)}" for name, types in COLUMNS.items())


def _choice(name: str, *choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ConfigError(
            f"{name}={text!r} is none of {', '.join(choices)}{nearest(text, choices)}"
        )

    return read


def _number(name: str, least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(
                f"{name}={text!r} is no whole number; give {least} to {most}"
            ) from None
        if not least <= value <= most:
            raise ConfigError(f"{name}={value} is out of range; give {least} to {most}")
        return value

    return read


def _compression(text: str) -> int | None:
    chosen = _choice("compression", NONE, *compression.NAMES)(text)
    return None if chosen == NONE else compression.NAMES[chosen]


def _flag(name: str) -> Callable[[str], bool]:
    choice = _choice(name, "true", "false")
    return lambda text: choice(text) == "true"


def _names(text: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in text.split(",")} - {""}))


def _write_id(text: str) -> str:
    if not 0 < len(text) <= 120 or not text.isprintable():
        raise ConfigError(f"writeId={text!r} must be 1 to 120 printable characters; choose another")
    return text


_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "endpoints": ("endpoints", str),
    "topic": ("topic", check_topic),
    "delivery": ("delivery", _choice("delivery", AT_LEAST_ONCE, EXACTLY_ONCE)),
    "queueSelector": (
        "queue_selector",
        _choice("queueSelector", ROUND_ROBIN, SHARDING_KEY, COLUMN),
    ),
    "chunkBytes": ("chunk_bytes", _number("chunkBytes", CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)),
    "ackMode": ("ack_mode", _choice("ackMode", ALL, STORED)),
    "compression": ("compression", _compression),
    "compressionThreshold": (
        "compression_threshold",
        _number("compressionThreshold", 1, CHUNK_BYTES_MAX),
    ),
    "producerGroup": ("producer_group", check_group),
    "retryTimeoutMs": ("retry_timeout_ms", _number("retryTimeoutMs", 1, 86_400_000)),
    "writeId": ("write_id", _write_id),
    "brokers": ("brokers", _names),
    "ignoreExtraColumns": ("ignore_extra_columns", _flag("ignoreExtraColumns")),
}
NAMES: tuple[str, ...] = tuple(_OPTIONS)
_PARSERS = {name.lower(): entry for name, entry in _OPTIONS.items()}
