"""Writes docs/configuration.md: every setting of a broker, a nameserver, a client and the pipeline.

    python tools/configuration.py           # write it
    python tools/configuration.py --check   # status 1 if it is not what this would write

Each setting is said once, in the code: a field of `BrokerConfig` or `StoreConfig` with the string
below it, an option of `saturnmq nameserver`, a parameter of a client with its line in the
docstring, an `Option` of the source or the sink. Only the names that RocketMQ has for the
parameters of a client and of a nameserver are written here.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import saturnmq
from saturnmq.broker.config import BrokerConfig
from saturnmq.cli.nodes import nameserver
from saturnmq.pipeline import options as source
from saturnmq.pipeline import sink_options as sink
from saturnmq.pipeline.option_values import Option
from saturnmq.protocol.checked import INT32_MAX, INT64_MAX
from saturnmq.protocol.settings import OURS
from saturnmq.store.config import StoreConfig
from typer.models import OptionInfo

WRITTEN = "docs/configuration.md"
PATH = Path(__file__).parents[1] / WRITTEN
UNITS = {"ms": "ms", "s": "s", "hours": "h", "bytes": "bytes", "ratio": "%"}
KIB = 1024
LIVE = " *Can be changed while the broker runs.*"

HEADER = """\
<!-- Written by tools/configuration.py from the code; do not edit. `make lint` checks it. -->

# Configuration reference

Every setting of a broker, a nameserver, a client and the pipeline on Spark.

A broker reads its settings from a file (`saturnmq broker --config FILE`) and from the environment,
which wins. The file is TOML if its name ends in `.toml`, else
RocketMQ's `broker.conf` ([what becomes of its other keys](broker-conf.md)). Both spellings of a key
are read in both files: `flushDiskType` and `flush_disk_type`. In the environment a setting is
`SATURNMQ_` and the second spelling in capitals: `SATURNMQ_FLUSH_DISK_TYPE`. A key that means
nothing stops the start with an error that names the nearest one. So does a value that is out of
range or of another kind, and a setting with two values in two spellings.

The column "RocketMQ" has `=` where RocketMQ 5 knows the key and has the same default, its
default where that is another one, and "-" where RocketMQ does not know the key.

Some settings can be changed while the broker runs, with `saturnmq admin set KEY=VALUE` or
`mqadmin updateBrokerConfig`: numbers and switches only, no path, command, class or address. Such a
change holds until the broker stops; one that shall stay belongs in its file as well. Every client
that reaches the broker may make it ([security](security.md)).
"""

ENVIRONMENT = """\
## Environment of the commands

| variable | meaning |
|---|---|
| `SATURNMQ_NAMESERVER` | the nameservers that commands ask; `--nameserver` wins |
| `SATURNMQ_ACCESS_KEY` | the [user](security.md#clients) of clients and commands |
| `SATURNMQ_SECRET_KEY` | the password of that user |
| `SATURNMQ_CLIENT_TLS` | whether clients and commands use TLS ([the values](security.md#tls)) |
| `SATURNMQ_DATA` | the directory of `saturnmq cluster`; `--data` wins |
| `SATURNMQ_REPLICATION_SECRET` | the nodes' secret ([what it protects](replication-secret.md)) |
| `SATURNMQ_REPLICATION_SECRET_REQUIRED` | `false`: also believe nodes that do not sign |
| `SATURNMQ_LOG` | the level of a node's log: `debug`, `info`, `warning`, `error` |
| `SATURNMQ_LOG_FILE` | the file that a node logs to; else standard error |
| `SATURNMQ_LOG_BYTES`, `SATURNMQ_LOG_FILES` | the size of a log file, and how many are kept |
| `SATURNMQ_KERNELS` | `python`: run without the compiled kernels |
"""

# RocketMQ's names: of a key of namesrv.conf, and of the setters of its Java clients.
NAMESERVER_NAMES = {
    "host": "bindAddress",
    "port": "listenPort",
    "max_idle_s": "serverChannelMaxIdleTimeSeconds",
}
CONSUMER_NAMES = {
    "namespace": "namespace",
    "group": "consumerGroup",
    "nameservers": "namesrvAddr",
    "consume_from": "consumeFromWhere, consumeTimestamp",
    "rebalance": "allocateMessageQueueStrategy",
    "rebalance_interval_s": "rocketmq.client.rebalance.waitInterval",
    "hold_s": "brokerSuspendMaxTimeMillis",
    "max_cached_messages": "pullThresholdForQueue",
    "max_cached_bytes": "pullThresholdSizeForQueue",
}
CLIENT_NAMES: dict[str, dict[str, str]] = {
    "Producer": {
        "group": "producerGroup",
        "nameservers": "namesrvAddr",
        "send_timeout": "sendMsgTimeout",
        "retries": "retryTimesWhenSendFailed",
        "retry_unless_stored": "retryAnotherBrokerWhenNotStoreOK",
        "batch_bytes": "batchMaxBytes",
        "buffer_bytes": "totalBatchMaxBytes",
        "linger": "batchMaxDelayMs",
        "max_message_bytes": "maxMessageSize",
        "compress_above": "compressMsgBodyOverHowmuch",
        "trace": "enableTrace, traceTopic",
        "namespace": "namespace",
        "latency_table": "latencyMax, notAvailableDuration",
    },
    "TransactionProducer": {
        "group": "producerGroup",
        "nameservers": "namesrvAddr",
        "check": "transactionListener",
        "send_timeout": "sendMsgTimeout",
        "max_message_bytes": "maxMessageSize",
        "compress_above": "compressMsgBodyOverHowmuch",
        "trace": "enableTrace, traceTopic",
        "namespace": "namespace",
    },
    "PushConsumer": CONSUMER_NAMES
    | {
        "listener": "messageListener",
        "instance_name": "instanceName",
        "broadcasting": "messageModel",
        "consume_message_batch_max_size": "consumeMessageBatchMaxSize",
        "consume_threads": "consumeThreadMin, consumeThreadMax",
        "max_reconsume": "maxReconsumeTimes",
        "trace": "enableTrace, traceTopic",
        "consume_timeout_s": "consumeTimeout",
        "pop_invisible_s": "popInvisibleTime",
        "suspend_s": "suspendCurrentQueueTimeMillis",
        "commit_interval_s": "persistConsumerOffsetInterval",
    },
    "PullConsumer": CONSUMER_NAMES
    | {
        "auto_commit": "autoCommit",
        "commit_interval_s": "autoCommitIntervalMillis",
        "offset_store": "offsetStore",
    },
    "SimpleConsumer": {
        "group": "consumerGroup",
        "nameservers": "namesrvAddr",
        "consume_from": "consumeFromWhere, consumeTimestamp",
        "trace": "enableTrace, traceTopic",
        "namespace": "namespace",
    },
    "Admin": {"nameservers": "namesrvAddr", "namespace": "namespace"},
}


UNTOLD = {"group": "the name of the group", "orderly": "the same as `ordered`"}


def main() -> None:
    parser = argparse.ArgumentParser(description=f"Write {WRITTEN}.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    check = parser.parse_args().check
    text = reference()
    if not check:
        PATH.write_text(text)
    elif not PATH.exists() or PATH.read_text() != text:
        sys.exit(f"{WRITTEN} is out of date: run python tools/configuration.py")


def reference() -> str:
    """The text of the document."""
    broker = list(_settings(BrokerConfig))
    in_broker = {key for key, *_ in broker}
    store = [row for row in _settings(StoreConfig) if row[0] not in in_broker]
    parts = [
        HEADER,
        "## Broker\n",
        _settings_table(broker),
        "## Store of a broker\n\nThey stand in the same file.\n",
        _settings_table(store),
        "## Nameserver\n\nOptions of `saturnmq nameserver`.\n",
        _table(
            ("option", "environment", "default", "range", "RocketMQ's name", "meaning"),
            _nameserver(),
        ),
        "## Clients\n\nKeyword arguments of the classes of `saturnmq` and `saturnmq.aio`.\n",
    ]
    for name, names in CLIENT_NAMES.items():
        rows = _parameters(getattr(saturnmq, name), names)
        parts += [
            f"### {name}\n",
            _table(("parameter", "default", "RocketMQ's name", "meaning"), rows),
        ]
    columns = ("option", "default", "values", "meaning")
    parts += [
        "## Source of the pipeline\n\nOptions of `spark.read` and `spark.readStream` "
        "([pipeline.md](pipeline.md)). Case does not matter.\n",
        _table(columns, _options(source.OPTIONS)),
        "## Sink of the pipeline\n\nOptions of `df.write` and `df.writeStream`.\n",
        _table(columns, _options(sink.OPTIONS)),
        ENVIRONMENT,
    ]
    return "\n".join(parts)


# -- brokers -------------------------------------------------------------------------------------


def _settings(config: type) -> Iterator[tuple[str, ...]]:
    told = strings_below(config)
    for each in dataclasses.fields(config):
        if "key" not in each.metadata:
            continue
        if each.name not in told:
            sys.exit(f"{config.__name__}.{each.name} has no string below it that says what it does")
        unit = _unit(each.name)
        yield (
            each.metadata["key"],
            each.name,
            _default(each.default, unit),
            unit,
            _range(each.default, *each.metadata["bounds"]),
            {"": "=", OURS: "-"}.get(each.metadata["rocketmq"], each.metadata["rocketmq"]),
            told[each.name] + (LIVE if each.metadata["live"] else ""),
        )


def _settings_table(rows: Iterable[tuple[str, ...]]) -> str:
    names = ("key", "default", "unit", "range", "RocketMQ", "meaning")
    return _table(names, ((f"`{key}`<br>`{field}`", *rest) for key, field, *rest in rows))


def strings_below(config: type) -> dict[str, str]:
    """The string below each field of a dataclass, in one line."""
    [tree] = ast.parse(inspect.getsource(config)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node, following in itertools.pairwise(tree.body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[node.target.id] = " ".join(str(following.value.value).split())
    return found


def _unit(name: str) -> str:
    if name.endswith("_bytes_per_s"):
        return "bytes/s"
    return UNITS.get(name.rpartition("_")[2], "")


def _default(value: Any, unit: str) -> str:
    if value in ("", ()):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if unit.startswith("bytes") and value >= KIB and value % KIB == 0:
        return f"`{value}` ({_size(value)})"
    return f"`{value}`"


def _size(value: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB")):
        if value % KIB**power == 0:
            return f"{value // KIB**power} {unit}"
    return f"{value // KIB} KiB"


def _range(default: Any, least: int, most: int) -> str:
    if isinstance(default, bool):
        return "true, false"
    if not isinstance(default, int):
        return ""
    ends = {INT32_MAX: "2^31 - 1", INT64_MAX: "2^63 - 1"}
    return f"{least} to {ends.get(most, most)}"


# -- nameservers, clients, pipeline --------------------------------------------------------------


def _nameserver() -> Iterator[tuple[str, ...]]:
    defaults = inspect.signature(nameserver).parameters
    for name, annotated in get_type_hints(nameserver, include_extras=True).items():
        option = next((m for m in get_args(annotated) if isinstance(m, OptionInfo)), None)
        if option is None or option.hidden:
            continue
        least, most, default = option.min, option.max, defaults[name].default
        bounds = "" if least is None else f"from {least}" if most is None else f"{least} to {most}"
        rocketmq = NAMESERVER_NAMES.get(name)
        yield (
            f"`{next(iter(option.param_decls or ()), '--' + name.replace('_', '-'))}`",
            f"`{option.envvar}`",
            "none" if default is None else f"`{default}`",
            bounds,
            f"`{rocketmq}`" if rocketmq else "-",
            option.help or "",
        )


def _parameters(client: type, names: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    told = _told(inspect.getdoc(client.__init__) or "")
    parameters = inspect.signature(client.__init__).parameters
    wrong = sorted({*told, *names} - {*parameters})
    if wrong:
        sys.exit(f"{client.__name__} has no parameter {', '.join(wrong)}")
    for name, each in parameters.items():
        if name == "self":
            continue
        default = "needed" if each.default is inspect.Parameter.empty else f"`{each.default!r}`"
        rocketmq = names.get(name, "")
        yield (
            f"`{name}`",
            default,
            ", ".join(f"`{one}`" for one in rocketmq.split(", ")) if rocketmq else "-",
            told.get(name, UNTOLD.get(name, "")).replace("<", "&lt;"),
        )


def _told(docstring: str) -> dict[str, str]:
    """The explanation of each name in the lines `name: text` and `name, name: text`."""
    told: dict[str, str] = {}
    of: list[str] = []
    for line in docstring.splitlines():
        begins = re.match(r"((?:\w+, )*\w+): (.*)", line)
        if begins:
            of = begins[1].split(", ")
            told |= dict.fromkeys(of, begins[2])
        elif line.startswith("    "):
            told |= {name: f"{told[name]} {line.strip()}" for name in of}
        elif line.strip():
            of = []
    return told


def _options(options: Mapping[str, Option]) -> Iterator[tuple[str, ...]]:
    for name, each in options.items():
        default = f"`{each.default}`" if each.default else "none"
        yield f"`{name}`", default, each.allowed, each.about


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*columns]]
    lines += [["---"] * len(lines[0])]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
