"""How topics are used: one scan over the messages (without their bodies), one page of HTML and one
JSON document that say the same.

Rates by hour of the store time, sizes, how long messages took from producer to store, the most
frequent keys and tags, how evenly queues are filled, how far groups lag and, against an earlier
report, whether they catch up, and what came back to be tried again or given up, by the topic it
came from.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from html import escape
from typing import Any

from saturnmq.client.blocking_faces import Admin
from saturnmq.pipeline import html
from saturnmq.pipeline.access import DROPMALFORMED, Access, Decoding, Where
from saturnmq.pipeline.columns import select
from saturnmq.pipeline.jobs.archive import known_topics, workers
from saturnmq.pipeline.jobs.manifest import hour_name
from saturnmq.pipeline.jobs.tasks import Progress, run
from saturnmq.pipeline.jobs.usage import Usage
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import Range, ReadPlan, pack
from saturnmq.protocol.topics import DLQ_PREFIX, RETRY_PREFIX
from saturnmq.runtime.errors import ConfigError, SaturnError
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.disk import NativeDisk

_COLUMNS = ("size", "storeTimestamp", "bornTimestamp", "keys", "tags")
_OF_RETRIES = (*_COLUMNS, "reconsumeTimes", "properties")
_MOST = 20
_PLOTTED = 5  # topics, the biggest, that have a line in plots over time
_POINTS = 10_000  # of a line at most: a clock that was wrong makes a span of decades


@dataclass(slots=True)
class GroupLag:
    """The lag of a group on a topic."""

    group: str
    topic: str
    lag: int
    change: float | None = None  # messages a second since the earlier report


@dataclass(slots=True)
class UsageReport:
    """The findings of a usage report."""

    place: str
    made: datetime
    seconds: float = 0.0
    missing: int = 0  # messages that could not be read
    topics: dict[str, Usage] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)  # of each topic, empty ones too
    lags: list[GroupLag] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(usage.total.messages for usage in self.topics.values())

    @property
    def bytes(self) -> int:
        return sum(usage.total.bytes for usage in self.topics.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "made": self.made.isoformat(),
            "seconds": round(self.seconds, 1),
            "messages": self.messages,
            "bytes": self.bytes,
            "missing": self.missing,
            "topics": [self._topic(name, usage) for name, usage in sorted(self.topics.items())],
            "groups": [
                {"group": lag.group, "topic": lag.topic, "lag": lag.lag, "change": lag.change}
                for lag in self.lags
            ],
            "returned": self.returned(),
        }

    def _topic(self, name: str, usage: Usage) -> dict[str, Any]:
        total = usage.total
        return {
            "topic": name,
            "messages": total.messages,
            "bytes": total.bytes,
            "size": usage.sizes.percentiles(),
            "delay_ms": usage.delays_ms.percentiles(),
            "stored_before_born": usage.early,
            "skew": round(usage.skew(self.queues[name]), 2),
            "queues": [
                {"broker": broker, "queue": number, "messages": a.messages, "bytes": a.bytes}
                for (broker, number), a in sorted(usage.queues.items())
            ],
            "hours": [
                {"hour": hour_name(hour), "messages": a.messages, "bytes": a.bytes}
                for hour, a in sorted(usage.hours.items())
            ],
            "tags": usage.tags.most(_MOST),
            "keys": usage.keys.most(_MOST),
            "counts_too_low_by_at_most": max(usage.tags.dropped, usage.keys.dropped),
        }

    def returned(self) -> list[dict[str, Any]]:
        """The messages in every retry and dead-letter topic: their group, and how often they were
        tried."""
        found = []
        for name, usage in sorted(self.topics.items()):
            for prefix, kind in ((RETRY_PREFIX, "retry"), (DLQ_PREFIX, "given up")):
                if name.startswith(prefix):
                    row = {
                        "group": name.removeprefix(prefix),
                        "kind": kind,
                        "messages": usage.total.messages,
                        "from": dict(usage.origins.most_common()),
                        "tries": {str(n): count for n, count in sorted(usage.tries.items())},
                    }
                    found.append(row)
        return found


def report(
    spark: Any,
    where: Where,
    topics: Sequence[str] | None = None,
    *,
    since_ms: int | None = None,
    earlier: str | None = None,
    progress: Progress | None = None,
) -> UsageReport:
    """Look at the topics (all without), from `since_ms` of store time on. `earlier`: the JSON of an
    earlier report, to compare lags with. `progress` counts bytes."""
    begin = datetime.now(UTC)
    result = UsageReport(where.path or ",".join(where.nameservers), begin)
    before = None if earlier is None else _read_earlier(earlier)
    with open_access(where) as access:
        names = known_topics(access, topics) if topics else access.topics()
        wanted = _ranges(access, names, since_ms)
        for name in names:
            result.topics[name] = Usage()
            result.queues[name] = len(access.queues(name))
        plan = ReadPlan(parts=workers(spark))
        parts = pack(access.cuts(wanted, *plan.grain(sum(each.rows for each in wanted))), plan)
        result.lags = _lags(where, access, names)
    work = partial(_look_at, where=where)
    weights = [sum(piece.bytes for piece in part) for part in parts]
    for usages in run(spark, work, parts, weights, progress):
        for topic, usage in usages.items():
            result.topics[topic].merge(usage)
    result.missing = sum(each.rows for each in wanted) - result.messages
    result.seconds = (datetime.now(UTC) - begin).total_seconds()
    if before is not None:
        _compare(result, before)
    return result


def report_paths(to: str) -> tuple[str, str]:
    """The files of a report called `to`; ConfigError if they would have no name."""
    if not os.path.basename(to):
        raise ConfigError(f"give the report a name, as usage: {to!r} has none")
    return f"{to}.html", f"{to}.json"


def write_report(found: UsageReport, to: str) -> tuple[str, str]:
    """Write `to`.html and `to`.json; their paths."""
    paths = report_paths(to)
    os.makedirs(os.path.dirname(os.path.abspath(to)), exist_ok=True)
    texts = as_html(found), json.dumps(found.to_json(), indent=1)
    for path, text in zip(paths, texts, strict=True):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return paths


# -- what is looked at ----------------------------------------------------------------------------


def _ranges(access: Access, topics: Sequence[str], since_ms: int | None) -> list[Range]:
    found = []
    for queue, (low, high) in sorted(access.bounds(topics).items()):
        start = low if since_ms is None else max(low, access.offset_at_time(queue, since_ms))
        if start < high:
            found.append(Range(*queue, start, high))
    return found


def _look_at(part: Sequence[Range], *, where: Where) -> dict[str, Usage]:
    usages: dict[str, Usage] = {}
    with open_access(where) as access:
        for piece in part:
            usage = usages.setdefault(piece.topic, Usage())
            retries = piece.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            decoding = Decoding(
                select(_OF_RETRIES if retries else _COLUMNS),
                mode=DROPMALFORMED,
                verify=True,
                fail_on_data_loss=False,
            )
            for batch in access.batches([piece], decoding):
                usage.add(piece.broker, piece.queue_id, batch)
    for usage in usages.values():
        usage.shrink()
    return usages


def _lags(where: Where, access: Access, topics: Sequence[str]) -> list[GroupLag]:
    """The lag of every group on every topic that it has read."""
    lags = _lags_in(where.path, access, topics) if where.path else _lags_at(where.nameservers)
    return [GroupLag(*key, lag) for key, lag in sorted(lags.items()) if key[1] in topics]


def _lags_in(path: str, access: Access, topics: Sequence[str]) -> dict[tuple[str, str], int]:
    """The lags according to the tables of a store directory."""
    file = ConfigFile(NativeDisk(), posixpath.join(path, "config", "consumerOffset.json"))
    table = (file.load() or {}).get("offsetTable") or {}
    bounds = access.bounds(topics)
    lags = {}
    for name in table:
        topic, _, group = name.partition("@")
        committed = access.committed(group, topic)
        lags[group, topic] = sum(
            max(0, high - max(low, committed.get(queue, low)))
            for queue, (low, high) in bounds.items()
            if queue.topic == topic
        )
    return lags


def _lags_at(nameservers: Sequence[str]) -> dict[tuple[str, str], int]:
    """The lags according to the brokers."""
    lags: dict[tuple[str, str], int] = {}
    with Admin(list(nameservers)) as admin:
        for group in admin.list_groups():
            try:
                found = admin.group_lag(group)
            except SaturnError:  # it has read nothing
                continue
            for each in found:
                key = group, each.queue.topic
                lags[key] = lags.get(key, 0) + each.lag
    return lags


def _read_earlier(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            document = json.load(file)
        datetime.fromisoformat(document["made"])
        return {"made": document["made"], "groups": list(document["groups"])}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"give the JSON of an earlier report: {path} is none ({error!r})"
        ) from error


def _compare(found: UsageReport, earlier: dict[str, Any]) -> None:
    """Note the speed at which each lag has changed since an earlier report."""
    seconds = (found.made - datetime.fromisoformat(earlier["made"])).total_seconds()
    before = {(row["group"], row["topic"]): row["lag"] for row in earlier["groups"]}
    for lag in found.lags:
        known = before.get((lag.group, lag.topic))
        if known is not None and seconds > 0:
            lag.change = round((lag.lag - known) / seconds, 3)


# -- the page -------------------------------------------------------------------------------------


def as_html(found: UsageReport) -> str:
    """The page."""
    document = found.to_json()
    topics = sorted(document["topics"], key=lambda each: -each["messages"])
    parts = [
        f"<h1>Usage of {escape(found.place)}</h1><p>{found.made:%Y-%m-%d %H:%M} UTC: "
        f"{found.messages:,} messages, {found.bytes / (1 << 20):,.1f} MiB in "
        f"{len(found.topics):,} topics</p>"
    ]
    if found.missing:
        parts.append(f"<p class=bad>{found.missing:,} messages could not be read</p>")
    parts += [_overview(topics), _over_time(found), _groups(found), _returned(document)]
    parts += [_topic_part(each, found.topics[each["topic"]]) for each in topics]
    return html.document("SaturnMQ usage", "".join(parts))


def _overview(topics: Sequence[dict[str, Any]]) -> str:
    columns = ["topic", "messages", "MiB", "size p50", "size p99", "delay p50 ms", "delay p99 ms"]
    rows = [
        (
            each["topic"],
            each["messages"],
            f"{each['bytes'] / (1 << 20):,.1f}",
            *(each["size"][name] for name in ("p50", "p99")),
            *(each["delay_ms"][name] for name in ("p50", "p99")),
            f"{each['skew']:.2f}",
        )
        for each in topics
    ]
    return html.table([*columns, "skew (max / mean)"], rows)


def _over_time(found: UsageReport) -> str:
    biggest = sorted(found.topics.items(), key=lambda pair: -pair[1].total.messages)[:_PLOTTED]
    hours = [hour for _, usage in biggest for hour in usage.hours]
    if not hours:
        return ""
    first, last = min(hours), max(hours)
    step = (last - first) // _POINTS + 1
    names = [hour_name(hour) for hour in range(first, last + 1, step)]
    unit = "an hour" if step == 1 else f"in {step:,} hours"
    plots = []
    for title, size in (("messages", 0), ("MiB", 1 << 20)):
        series = {}
        for name, usage in biggest:
            series[name] = points = [0.0] * len(names)
            for hour, amount in usage.hours.items():
                points[(hour - first) // step] += amount.bytes / size if size else amount.messages
        plots.append(html.lines(f"{title} {unit}", names, series))
    return "<h2>Over time</h2>" + "".join(plots)


def _groups(found: UsageReport) -> str:
    if not found.lags:
        return ""
    rows = [
        (lag.group, lag.topic, lag.lag, None if lag.change is None else f"{lag.change:+,.1f}")
        for lag in found.lags
    ]
    columns = ["group", "topic", "lag", "change, messages a second"]
    return "<h2>Groups</h2>" + html.table(columns, rows)


def _returned(document: dict[str, Any]) -> str:
    if not document["returned"]:
        return ""
    rows = [
        (
            row["group"],
            row["kind"],
            row["messages"],
            ", ".join(f"{name or 'unknown'} {count:,}" for name, count in row["from"].items()),
            ", ".join(f"{tries}: {count:,}" for tries, count in row["tries"].items()),
        )
        for row in document["returned"]
    ]
    columns = ["group", "what", "messages", "first topic", "by number of tries"]
    return "<h2>Messages that came back</h2>" + html.table(columns, rows)


def _topic_part(each: dict[str, Any], usage: Usage) -> str:
    if not each["messages"]:
        return ""
    parts = [f"<h2>{escape(each['topic'])}</h2>"]
    percentiles = [
        (what, *each[key].values())
        for what, key in (("size, bytes", "size"), ("delay, ms", "delay_ms"))
    ]
    parts.append(html.table(["", *each["size"]], percentiles))
    if each["stored_before_born"]:
        parts.append(
            f"<p class=bad>{each['stored_before_born']:,} messages were stored before they were "
            "born: the clocks of producers and brokers differ</p>"
        )
    queues = each["queues"]
    names = [f"{queue['broker']}/{queue['queue']}" for queue in queues]
    parts.append(html.bars("messages by queue", names, [queue["messages"] for queue in queues]))
    for title, classes in (("size, bytes", usage.sizes), ("delay, ms", usage.delays_ms)):
        counts = classes.doublings()
        names = [f"up to {limit:,}" for limit, _ in counts]
        parts.append(html.bars(f"messages by {title}", names, [count for _, count in counts]))
    for title, top in (("tags", each["tags"]), ("keys", each["keys"])):
        if top:
            parts.append(html.table([f"most frequent {title}", "messages"], top))
    if each["counts_too_low_by_at_most"]:
        parts.append(f"<p>counts too low by at most {each['counts_too_low_by_at_most']:,}</p>")
    return "".join(parts)
