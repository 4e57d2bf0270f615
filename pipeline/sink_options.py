"""The options of the sink (docs/configuration.md has the table) and the columns it takes.

Options come with lower-case names, as Spark hands them over; the error of an unknown one names the
nearest that exists. Columns are checked against the schema of the rows before a task runs. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saturnmq.pipeline.option_values import (
    NumberOption,
    OneOf,
    Option,
    Size,
    check_nameservers,
    read_flag,
    read_group,
    read_topic,
    read_words,
    unknown,
)
from saturnmq.protocol import compression
from saturnmq.runtime.door import split_addresses
from saturnmq.runtime.errors import ConfigError, nearest

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

# Options that Spark itself adds to a write.
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
        if key.lower() in OF_SPARK:
            continue
        name = _BY_LOWER.get(key.lower())
        if name is None:
            raise unknown("sink", key, NAMES, _ELSEWHERE)
        values[_FIELDS[name]] = OPTIONS[name].read(name, text.strip())
    if "endpoints" not in values:
        raise ConfigError("option endpoints is missing; give nameservers, as HOST:9876,HOST:9876")
    options = SinkOptions(**values)
    if options.exactly_once and options.ack_mode != ALL:
        raise ConfigError(
            f"ackMode={options.ack_mode} does not go with delivery={EXACTLY_ONCE}; drop it: groups "
            "are acknowledged as the broker's own mode has it"
        )
    if options.exactly_once and not options.topic and not options.brokers:
        raise ConfigError(
            f"delivery={EXACTLY_ONCE} with topics of a column needs option brokers: the names of "
            "those that have all these topics; or give option topic"
        )
    for name, value in (("writeId", options.write_id), ("brokers", options.brokers)):
        if value and not options.exactly_once:
            raise ConfigError(
                f"option {name} is for delivery={EXACTLY_ONCE}; give that too, or drop it"
            )
    return options


def check_columns(schema: Any, options: SinkOptions) -> tuple[str, ...]:
    """The names of the columns of `schema` (a StructType) that the sink looks at, in its order.
    ConfigError for one that it does not know, has another type for, or lacks."""
    used = []
    for field in schema.fields:
        if field.name == "deliveryTimestamp":
            raise ConfigError(
                "drop column 'deliveryTimestamp': a sink sends batches, whose messages have no "
                "time of their own; a Producer sends timed messages (deliver_at)"
            )
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
    selector_for(used, options)
    return tuple(used)


def selector_for(columns: list[str] | tuple[str, ...], options: SinkOptions) -> str:
    """The selector that finds a row's queue: by the option, else by the columns there are, the more
    exact one first. ConfigError if a column that the option, or another column, needs is
    missing."""
    asked = options.queue_selector
    if asked == SHARDING_KEY and "shardingKey" not in columns:
        raise ConfigError("queueSelector=shardingKey needs a column 'shardingKey'; add it")
    if asked == COLUMN and "queueId" not in columns:
        raise ConfigError("queueSelector=column needs a column 'queueId'; add it")
    if asked:
        return asked
    if "queueId" in columns:
        return COLUMN
    if "brokerName" in columns:
        raise ConfigError(
            "column 'brokerName' names no queue without a column 'queueId'; add that, drop "
            "'brokerName', or say by queueSelector=roundRobin or shardingKey that it is not looked "
            "at"
        )
    return SHARDING_KEY if "shardingKey" in columns else ROUND_ROBIN


def _ddl() -> str:
    return ", ".join(f"{name} {'|'.join(types)}" for name, types in COLUMNS.items())


def _endpoints(_name: str, text: str) -> str:
    check_nameservers(split_addresses(text))
    return text


def _compression(name: str, text: str) -> int | None:
    chosen = OneOf(NONE, *compression.NAMES)(name, text)
    return None if chosen == NONE else compression.NAMES[chosen]


def _write_id(name: str, text: str) -> str:
    if not 0 < len(text) <= 120 or not text.isprintable():
        raise ConfigError(f"option {name} is {text!r}; write 1 to 120 printable characters")
    return text


OPTIONS: dict[str, Option] = {
    "endpoints": Option(
        _endpoints, "The nameservers of the cluster to write to.", values="HOST:PORT,..."
    ),
    "topic": Option(read_topic, "The topic, which must exist. It outranks the column `topic`."),
    "delivery": Option(
        OneOf(AT_LEAST_ONCE, EXACTLY_ONCE),
        "With at-least-once a repeated task repeats its rows.",
        AT_LEAST_ONCE,
    ),
    "queueSelector": Option(
        OneOf(ROUND_ROBIN, SHARDING_KEY, COLUMN),
        "How a row finds its queue: in turn, by `shardingKey`, or by the columns `queueId` and "
        "`brokerName`. By default what the columns suggest.",
    ),
    "chunkBytes": Option(Size(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX), "The bytes of a request.", "1m"),
    "ackMode": Option(
        OneOf(ALL, STORED),
        "`all`: acknowledged as the broker's own mode has it (flushed, replicated). `stored`: that "
        "the master has it is enough.",
        ALL,
    ),
    "compression": Option(
        _compression,
        "How bodies are compressed.",
        NONE,
        ", ".join((NONE, *compression.NAMES)),
    ),
    "compressionThreshold": Option(
        Size(1, CHUNK_BYTES_MAX), "Bodies from this size on are compressed.", "4096"
    ),
    "producerGroup": Option(read_group, "The producer group.", "saturnmq-spark"),
    "retryTimeoutMs": Option(
        NumberOption(1, 86_400_000),
        "The milliseconds that a broker that is away is waited for.",
        "120000",
    ),
    "writeId": Option(
        _write_id,
        "Of an exactly-once batch: a job that repeats the id adds nothing. One of this write by "
        "default.",
        values="1 to 120 printable characters",
    ),
    "brokers": Option(
        lambda name, text: tuple(sorted(set(read_words(name, text)))),
        "Of an exactly-once write: the brokers that may take part. Those of the route by default.",
        values="broker names, with commas between",
    ),
    "ignoreExtraColumns": Option(
        read_flag, "Drop columns that the sink does not know; else they are an error.", "false"
    ),
}
_FIELDS = {name: re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name) for name in OPTIONS}
NAMES: tuple[str, ...] = tuple(OPTIONS)
_BY_LOWER = {name.lower(): name for name in NAMES}

# Other connectors' names for these options.
_ELSEWHERE = {
    "path": "topic",
    "nameserver": "endpoints",
    "namesrvaddr": "endpoints",
    "service.url": "endpoints",
    "kafka.bootstrap.servers": "endpoints",
    "kafka.acks": "ackMode",
    "kafka.batch.size": "chunkBytes",
    "kafka.compression.type": "compression",
    "kafka.delivery.timeout.ms": "retryTimeoutMs",
    "group": "producerGroup",
}
