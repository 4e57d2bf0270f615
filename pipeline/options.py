"""The options of the source (docs/configuration.md has the table). Pure.

Options come with lower-case names, as Spark hands them over. The error of an unknown one names the
nearest that exists, or what another connector's option of that name is called here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from saturnmq.pipeline import offsets as _offsets
from saturnmq.pipeline.access import (
    ANY,
    CHUNK_BYTES,
    FAILFAST,
    MASTER,
    MODES,
    PERMISSIVE,
    PULL_TIMEOUT_MS,
    RETRIES,
    RETRY_INTERVAL_MS,
    SLAVE,
    STORE_BROKER,
    Decoding,
    Where,
)
from saturnmq.pipeline.columns import Columns, select
from saturnmq.pipeline.option_values import (
    NumberOption,
    OneOf,
    Option,
    Size,
    check_nameservers,
    read_duration,
    read_flag,
    read_group,
    read_text,
    read_topic,
    read_words,
    unknown,
)
from saturnmq.pipeline.plan import MAX_BYTES
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.subscription import SQL_EXPRESSION, TAG_EXPRESSION, Subscription
from saturnmq.runtime.errors import ConfigError, SubscriptionParseFailed, nearest

EARLIEST, LATEST, GROUP = "earliest", "latest", "group"
ERROR = "error"
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 64 << 10, 8 << 20
SQL_PREFIX = "sql:"


@dataclass(frozen=True, slots=True)
class Position:
    """A start or an end of a read: `word` (earliest, latest, group), else `offsets`, else a time
    for all queues, else times by queue."""

    word: str = ""
    offsets: Mapping[MessageQueue, int] | None = None
    timestamp: int | None = None
    timestamps: Mapping[MessageQueue, int] | None = None
    option: str = ""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read, checked as far as they can be without a request."""

    where: Where
    subscribe: tuple[str, ...] = ()
    pattern: str = ""
    assign: tuple[MessageQueue, ...] = ()
    starting: Position | None = None
    ending: Position | None = None
    latest_if_no_match: bool = False
    fail_on_data_loss: bool = True
    wait_for_topic: bool = False
    partitions: int = 0
    min_partitions: int = 0
    max_rows_per_partition: int = 0
    max_bytes_per_partition: int = MAX_BYTES
    max_offsets_per_trigger: int = 0
    min_offsets_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    max_trigger_delay_ms: int = 15 * 60_000
    group: str = ""
    columns: Columns = field(default_factory=select)
    mode: str = FAILFAST
    decompress: bool = True
    verify: bool = False
    expression: str = "*"
    expression_type: str = TAG_EXPRESSION
    pushdown: bool = False

    def decoding(self, columns: Columns) -> Decoding:
        """The options by which tasks decode frames."""
        return Decoding(
            columns,
            self.mode,
            self.decompress,
            self.verify,
            self.expression,
            self.expression_type,
            self.fail_on_data_loss,
        )


# -- one option ----------------------------------------------------------------------------------


def _topics(name: str, value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(read_topic(name, topic) for topic in read_words(name, value)))


def _pattern(name: str, value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ConfigError(f"option {name} is {value!r}, no regular expression: {error}") from None
    return read_text(name, value)


def _offsets_of(*words: str) -> Callable[[str, str], Position]:
    def read(name: str, value: str) -> Position:
        if value.lower() in words:
            return Position(word=value.lower(), option=name)
        if not value.startswith("{"):
            known = ", ".join(words)
            hint = nearest(value.lower(), words)
            raise ConfigError(
                f"option {name} is {value[:60]!r}{hint}; write {known} or JSON such as "
                f"{_offsets.EXAMPLE}"
            )
        return Position(offsets=_offsets.parse(value, name), option=name)

    return read


def _time(name: str, value: str) -> Position:
    return Position(timestamp=NumberOption(0)(name, value), option=name)


def _times(name: str, value: str) -> Position:
    return Position(timestamps=_offsets.parse_times(value, name), option=name)


_JSON = "JSON by topic, broker and queue"
_DAY_MS = 86_400_000
OPTIONS: dict[str, Option] = {
    "endpoints": Option(
        read_text,
        "The nameservers of the cluster to read; this or `store`.",
        values="HOST:PORT,...",
    ),
    "store": Option(
        read_text,
        "The directory of a broker (`storePathRootDir`), SaturnMQ's or RocketMQ's. It is only "
        "read, never locked, also beside a running broker.",
        values="a path",
    ),
    "brokerName": Option(
        read_text, "With `store`: the name in the column `brokerName`.", STORE_BROKER, "text"
    ),
    "trustTail": Option(
        read_flag,
        "With `store`: read to the last whole message instead of to what is confirmed. A store of "
        "RocketMQ whose broker runs or was killed can only be read with it.",
        "false",
    ),
    "subscribe": Option(
        _topics,
        "The topics. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed.",
        values="topics, with commas between",
    ),
    "topic": Option(_topics, "The same as `subscribe`.", values="topics, with commas between"),
    "subscribePattern": Option(
        _pattern, "All topics whose name matches.", values="a regular expression"
    ),
    "assign": Option(
        lambda _name, value: tuple(_offsets.parse_assignment(value)),
        "These queues only.",
        values='JSON such as {"orders":{"broker-a":[0,1]}}',
    ),
    "startingOffsets": Option(
        _offsets_of(EARLIEST, LATEST, GROUP),
        "The first message to read: `group` is where the option `group` is. A stream begins at the "
        "latest by default.",
        EARLIEST,
        f"earliest, latest, group, or {_JSON}",
    ),
    "endingOffsets": Option(
        _offsets_of(LATEST), "Of a batch: where it ends.", LATEST, f"latest, or {_JSON}"
    ),
    "startingTimestamp": Option(
        _time,
        "Each queue from its first message stored then or later. It outranks the other starts.",
        values="milliseconds since 1970",
    ),
    "endingTimestamp": Option(
        _time,
        "Of a batch: each queue up to its first message stored then or later, or to its end.",
        values="milliseconds since 1970",
    ),
    "startingOffsetsByTimestamp": Option(_times, "The start in time, by queue.", values=_JSON),
    "endingOffsetsByTimestamp": Option(
        _times, "Of a batch: its end in time, by queue.", values=_JSON
    ),
    "startingOffsetsByTimestampStrategy": Option(
        OneOf(ERROR, LATEST), "If no message is that late: fail, or begin at the end.", ERROR
    ),
    "failOnDataLoss": Option(
        read_flag,
        "Messages that are gone before they were read are an error; else they are logged.",
        "true",
    ),
    "waitForTopic": Option(
        read_flag, "A topic that does not exist yet counts as an empty one.", "false"
    ),
    "partitions": Option(
        NumberOption(1),
        "The tasks to fill; fewer where there is little to read. The cores of the driver by "
        "default, so set it on a cluster.",
    ),
    "minPartitions": Option(NumberOption(1), "The tasks at least."),
    "maxRecordsPerPartition": Option(NumberOption(1), "The messages of a task at most."),
    "maxBytesPerPartition": Option(Size(1), "The bytes of a task at most.", "128m"),
    "maxOffsetsPerTrigger": Option(
        NumberOption(1),
        "Of a stream: the messages of a trigger at most, shared over the queues by what each has "
        "waiting.",
    ),
    "minOffsetsPerTrigger": Option(
        NumberOption(1), "Of a stream: wait for so many, but not longer than `maxTriggerDelay`."
    ),
    "maxBytesPerTrigger": Option(Size(1), "Of a stream: the bytes of a trigger at most."),
    "maxTriggerDelay": Option(read_duration, "How long `minOffsetsPerTrigger` may wait.", "15m"),
    "group": Option(
        read_group,
        "The group whose offsets `startingOffsets=group` begins at; a stream commits its progress "
        "to it.",
    ),
    "columns": Option(read_words, "The columns to read (see the pipeline page)."),
    "includeBody": Option(read_flag, "Read the column `body`.", "true"),
    "includeProperties": Option(read_flag, "Read the column `properties`.", "false"),
    "mode": Option(
        OneOf(*MODES),
        "A damaged message ends the query, is left out and counted, or is a row of nulls that says "
        "why in `_corrupt`.",
        FAILFAST,
    ),
    "decompress": Option(read_flag, "Unpack compressed bodies.", "true"),
    "verify": Option(
        read_flag,
        "Check the checksum of each message: else `mode` does not see a body that is damaged.",
        "false",
    ),
    "subExpression": Option(
        read_text,
        "Tags, `A || B`, or a condition over properties, `sql:price > 100.0`. Brokers evaluate it, "
        "or the task that reads a store directory.",
        "*",
    ),
    "expressionType": Option(
        OneOf(TAG_EXPRESSION, SQL_EXPRESSION),
        "The kind of `subExpression`, unless it has the prefix `sql:`.",
        TAG_EXPRESSION,
    ),
    "readFrom": Option(OneOf(MASTER, SLAVE, ANY), "Which brokers to read from.", MASTER),
    "chunkBytes": Option(
        Size(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX), "The bytes that one request asks for.", "2m"
    ),
    "pullTimeoutMs": Option(
        NumberOption(1, _DAY_MS), "The milliseconds that a request may take.", "120000"
    ),
    "fetchOffset.numRetries": Option(
        NumberOption(0), "How often a request that failed is tried again.", "10"
    ),
    "fetchOffset.retryIntervalMs": Option(
        NumberOption(0, _DAY_MS), "The milliseconds between two tries.", "1000"
    ),
    "pushdown": Option(
        read_flag,
        "Of a batch: conditions on `queueId`, `queueOffset` and `storeTimestamp` narrow what is "
        "read. It needs `spark.sql.python.filterPushdown.enabled=true`.",
        "false",
    ),
}
NAMES = tuple(OPTIONS)
_BY_LOWER = {name.lower(): name for name in NAMES}

# Other connectors' names for these options.
_ELSEWHERE = {
    "kafka.bootstrap.servers": "endpoints",
    "nameserver": "endpoints",
    "namesrvaddr": "endpoints",
    "service.url": "endpoints",
    "topics": "subscribe",
    "topicspattern": "subscribePattern",
    "kafka.group.id": "group",
    "groupidprefix": "group",
    "consumergroup": "group",
    "includeheaders": "includeProperties",
    "kafkaconsumer.polltimeoutms": "pullTimeoutMs",
    "polltimeoutms": "pullTimeoutMs",
    "pullbatchsize": "chunkBytes",
    "startingtime": "startingTimestamp",
    "endingtime": "endingTimestamp",
    "waitingfornonexistedtopic": "waitForTopic",
    "path": "store",
}
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown")
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
)
_STORE_ONLY = ("brokerName", "trustTail")
_BROKERS_ONLY = ("readFrom", "chunkBytes", "pullTimeoutMs", "waitForTopic")


# -- all of them ---------------------------------------------------------------------------------


def parse(given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """The options of a read; ConfigError names the first that is wrong. None: it is not yet known
    which kind of read it is."""
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = _BY_LOWER.get(key.lower())
        if name is None:
            raise unknown("source", key, NAMES, _ELSEWHERE)
        values[name] = OPTIONS[name].read(name, str(text).strip())
    if streaming is not None:
        _refuse(values, _BATCH_ONLY if streaming else _STREAM_ONLY, streaming)
    subscribe, pattern, assign = _which(values)
    starting = _position(values, "starting")
    ending = _position(values, "ending")
    if streaming is False and starting is not None and starting.word == LATEST:
        raise ConfigError(
            "startingOffsets=latest leaves a batch nothing to read; write earliest, "
            "offsets or a time"
        )
    if streaming is False:
        _no_such_mark(starting, _offsets.LATEST)
    _no_such_mark(ending, _offsets.EARLIEST)
    group = values.get("group", "")
    if starting is not None and starting.word == GROUP and not group:
        raise ConfigError("startingOffsets=group needs the option group: whose offsets to begin at")
    least = values.get("minOffsetsPerTrigger", 0)
    most = values.get("maxOffsetsPerTrigger", 0)
    if most and least > most:
        raise ConfigError(
            f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}; lower it"
        )
    expression, expression_type = _filter(values)
    mode = values.get("mode", FAILFAST)
    columns = select(
        values.get("columns"),
        include_body=values.get("includeBody", True),
        include_properties=values.get("includeProperties", False),
        corrupt=mode == PERMISSIVE,
    )
    return SourceOptions(
        where=_where(values, group),
        subscribe=subscribe,
        pattern=pattern,
        assign=assign,
        starting=starting,
        ending=ending,
        latest_if_no_match=values.get("startingOffsetsByTimestampStrategy") == LATEST,
        fail_on_data_loss=values.get("failOnDataLoss", True),
        wait_for_topic=values.get("waitForTopic", False),
        partitions=values.get("partitions", 0),
        min_partitions=values.get("minPartitions", 0),
        max_rows_per_partition=values.get("maxRecordsPerPartition", 0),
        max_bytes_per_partition=values.get("maxBytesPerPartition", MAX_BYTES),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_bytes_per_trigger=values.get("maxBytesPerTrigger", 0),
        max_trigger_delay_ms=values.get("maxTriggerDelay", 15 * 60_000),
        group=group,
        columns=columns,
        mode=mode,
        decompress=values.get("decompress", True),
        verify=values.get("verify", False),
        expression=expression,
        expression_type=expression_type,
        pushdown=values.get("pushdown", False),
    )


def _refuse(values: Mapping[str, Any], names: tuple[str, ...], streaming: bool) -> None:
    for name in names:
        if name in values:
            here, there = ("readStream", "read") if streaming else ("read", "readStream")
            raise ConfigError(f"option {name} is for spark.{there} only; leave it out of {here}")


def _which(values: Mapping[str, Any]) -> tuple[tuple[str, ...], str, tuple[MessageQueue, ...]]:
    names = [n for n in ("subscribe", "topic", "subscribePattern", "assign") if n in values]
    if len(names) != 1:
        given = f"{' and '.join(names)} are given together" if names else "no topic is chosen"
        raise ConfigError(
            f"{given}; give one of subscribe (topic is the same), subscribePattern and assign"
        )
    subscribe = values.get("subscribe") or values.get("topic") or ()
    return subscribe, values.get("subscribePattern", ""), values.get("assign", ())


def _position(values: Mapping[str, Any], which: str) -> Position | None:
    """The position that the options give. As in Kafka's connector a time for all goes before times
    by queue, these before offsets."""
    for name in (f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"):
        if name in values:
            found: Position = values[name]
            return found
    return None


def _no_such_mark(position: Position | None, mark: int) -> None:
    if position is None or position.offsets is None:
        return
    for queue, offset in position.offsets.items():
        if offset == mark:
            word = "-1 (latest)" if mark == _offsets.LATEST else "-2 (earliest)"
            raise ConfigError(
                f"{position.option}: {queue.topic}.{queue.broker_name}.{queue.queue_id} is {word}, "
                "which leaves nothing to read; write an offset"
            )


def _filter(values: Mapping[str, Any]) -> tuple[str, str]:
    text: str = values.get("subExpression", "*")
    kind: str = values.get("expressionType", TAG_EXPRESSION)
    if text.lower().startswith(SQL_PREFIX):
        text, kind = text[len(SQL_PREFIX) :].strip(), SQL_EXPRESSION
    try:
        Subscription.parse("", text, 0, kind)
    except SubscriptionParseFailed as error:
        if kind == SQL_EXPRESSION:
            raise ConfigError(f"correct option subExpression: {error}") from None
        raise ConfigError(
            f"option subExpression is {text!r} and names no tag; write * or tags joined by ||, "
            f"or {SQL_PREFIX}... for SQL92"
        ) from None
    return text, kind


def _where(values: Mapping[str, Any], group: str) -> Where:
    store, endpoints = values.get("store"), values.get("endpoints")
    if bool(store) == bool(endpoints):
        given = "store and endpoints are given together" if store else "no place to read is given"
        raise ConfigError(
            f"{given}; give endpoints (nameservers, HOST:9876,...) or store (a broker's directory)"
        )
    for name in _BROKERS_ONLY if store else _STORE_ONLY:
        if name in values:
            raise ConfigError(
                f"option {name} goes with {'endpoints' if store else 'store'}, not with "
                f"{'store' if store else 'endpoints'}; leave it out"
            )
    if store:
        return Where.store(
            store,
            broker_name=values.get("brokerName", STORE_BROKER),
            trust_tail=values.get("trustTail", False),
        )
    where = Where.brokers(
        str(endpoints),
        read_from=values.get("readFrom", MASTER),
        chunk_bytes=values.get("chunkBytes", CHUNK_BYTES),
        timeout_ms=values.get("pullTimeoutMs", PULL_TIMEOUT_MS),
        retries=values.get("fetchOffset.numRetries", RETRIES),
        retry_interval_ms=values.get("fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS),
        group=group,
    )
    check_nameservers(where.nameservers)
    return where


def place_options(where: Where) -> dict[str, str]:
    """The options that name this place: `parse` makes the same `Where` of them."""
    if where.path:
        trust_tail = str(where.trust_tail).lower()
        return {"store": where.path, "brokerName": where.broker_name, "trustTail": trust_tail}
    given = {
        "endpoints": ",".join(where.nameservers),
        "readFrom": where.read_from,
        "chunkBytes": str(where.chunk_bytes),
        "pullTimeoutMs": str(where.timeout_ms),
        "fetchOffset.numRetries": str(where.retries),
        "fetchOffset.retryIntervalMs": str(where.retry_interval_ms),
    }
    return given | ({"group": where.group} if where.group else {})
