"""`saturnmq pipeline report`: what it counts, by hand on small input; and the page."""

from __future__ import annotations

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_store_rig import START_MS, made, opened
from saturnmq import Admin, Message, Producer
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.jobs import usage as counting
from saturnmq.pipeline.jobs.report import UsageReport, as_html, report, write_report
from saturnmq.pipeline.jobs.usage import Histogram, Top
from saturnmq.pipeline.places import open_access
from saturnmq.runtime.errors import ConfigError, SaturnError
from saturnmq.store.message_store import PendingMessage
from served_rig import served


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store", 120, step_ms=100_000)


def reported(root: Path, **options) -> UsageReport:
    return report(None, Where.store(str(root), trust_tail=True), **options)


def test_a_page_stays_small_when_a_clock_was_decades_behind(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", step_ms=START_MS)
    for _ in range(3):
        store.put(PendingMessage("T", 0, b"x", b""))
    while store.reput():
        pass
    store.close()
    found = reported(tmp_path / "store")
    hours = found.to_json()["topics"][0]["hours"]
    assert [each["messages"] for each in hours] == [1, 1, 1]
    page = as_html(found)
    assert len(page) < 1 << 20
    assert re.search(r"messages in [\d,]+ hours", page)


# -- counting -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1 << 40), min_size=1), st.floats(0.01, 1.0))
def test_percentiles_are_right_within_their_classes(values: list[int], share: float) -> None:
    histogram = Histogram()
    histogram.add(np.array(values, np.int64))
    exact = sorted(values)[max(0, int(np.ceil(share * len(values))) - 1)]
    assert histogram.percentile(share) == pytest.approx(exact, rel=0.03, abs=1)
    assert histogram.percentiles()["max"] == max(values)


@given(st.lists(st.lists(st.integers(-5, 1 << 40))))
def test_histograms_add_up(parts: list[list[int]]) -> None:
    whole, merged = Histogram(), Histogram()
    whole.add(np.array([value for part in parts for value in part], np.int64))
    for part in parts:
        one = Histogram()
        one.add(np.array(part, np.int64))
        merged.merge(one)
    assert whole.percentiles() == merged.percentiles()
    assert sum(count for _, count in merged.doublings()) == sum(map(len, parts))


def test_the_classes_of_a_plot_are_doublings() -> None:
    histogram = Histogram()
    histogram.add(np.array([0, 1, 2, 2, 100]))
    assert histogram.doublings()[:2] == [(1, 1), (3, 3)]
    assert histogram.doublings()[-1] == (127, 1)


def test_the_most_frequent_are_told_with_what_they_may_lack(monkeypatch) -> None:
    monkeypatch.setattr(counting, "_KEPT", 50)
    monkeypatch.setattr(counting, "_HELD", 200)
    rng = random.Random(1)
    rare = [f"rare{n}" for n in range(2000)]
    texts = rare + ["often"] * 300 + ["sometimes"] * 100 + [None] * 7
    rng.shuffle(texts)
    top = Top()
    for at in range(0, len(texts), 100):
        top.add(pa.array(texts[at : at + 100], pa.string()))
    (first, often), (second, sometimes) = top.most(2)
    assert (first, second) == ("often", "sometimes")
    assert 300 - top.dropped <= often <= 300
    assert 100 - top.dropped <= sometimes <= 100
    assert top.dropped > 0


def test_merged_tops_count_all(monkeypatch) -> None:
    one, other = Top(), Top()
    one.add(pa.array(["a", "b", "a"]))
    other.add(pa.array(["a", "c"]))
    one.merge(other)
    assert one.most(5) == [("a", 3), ("b", 1), ("c", 1)]
    assert Top().most(3) == []


# -- reports --------------------------------------------------------------------------------------


def test_a_report_counts_what_is_there(root: Path) -> None:
    document = reported(root).to_json()
    assert (document["messages"], document["missing"]) == (120, 0)
    topics = {each["topic"]: each for each in document["topics"]}
    assert {name: each["messages"] for name, each in topics.items()} == {"T0": 60, "T1": 60}
    one = topics["T1"]
    assert sum(queue["messages"] for queue in one["queues"]) == 60
    assert sum(hour["messages"] for hour in one["hours"]) == 60
    assert [hour["hour"] for hour in one["hours"]][:2] == ["2025-11-21-15", "2025-11-21-16"]
    counts = [queue["messages"] for queue in one["queues"]]
    assert one["skew"] == round(max(counts) / 20, 2)
    assert sorted(one["tags"]) == [("t0", 20), ("t1", 20), ("t2", 20)]
    assert one["keys"][0] == ("all", 48)  # every fifth message has no keys
    assert len(one["keys"]) == 20
    assert 91 < one["size"]["p50"] < 400
    assert one["size"]["p50"] <= one["size"]["p99"] <= one["size"]["max"]


def test_topics_and_times_can_be_chosen(root: Path) -> None:
    middle = START_MS + 60 * 100_000
    found = reported(root, topics=["T0"], since_ms=middle)
    assert list(found.topics) == ["T0"]
    assert 0 < found.messages < 60
    with pytest.raises(ConfigError, match="there is no topic 'T00'; did you mean 'T0'"):
        reported(root, topics=["T00"])


def test_what_came_back_is_told_by_group_topic_and_tries(root: Path) -> None:
    store = opened(root)
    for topic, tries in (("%RETRY%g", 1), ("%RETRY%g", 2), ("%RETRY%g", 2), ("%DLQ%g", 16)):
        properties = b"RETRY_TOPIC\x01T1\x02"
        store.put(PendingMessage(topic, 0, b"x", properties, reconsume_times=tries))
    store.put(PendingMessage("%DLQ%h", 0, b"x", b""))
    while store.reput():
        pass
    store.close()
    rows = reported(root).returned()
    assert rows == [
        {"group": "g", "kind": "given up", "messages": 1, "from": {"T1": 1}, "tries": {"16": 1}},
        {"group": "h", "kind": "given up", "messages": 1, "from": {"": 1}, "tries": {"0": 1}},
        {
            "group": "g",
            "kind": "retry",
            "messages": 3,
            "from": {"T1": 3},
            "tries": {"1": 1, "2": 2},
        },
    ]
    assert "Messages that came back" in as_html(reported(root))


def test_lags_come_from_the_tables_and_an_earlier_report_tells_their_change(
    root: Path, tmp_path: Path
) -> None:
    table = {"T1@g": {"0": 1, "1": 0}, "T9@g": {"0": 5}}
    (root / "config").mkdir(exist_ok=True)
    offsets = root / "config" / "consumerOffset.json"
    offsets.write_text(json.dumps({"offsetTable": table}))
    first = reported(root)
    assert [(lag.group, lag.topic, lag.lag) for lag in first.lags] == [("g", "T1", 59)]
    document = first.to_json()
    document["made"] = "2020-01-01T00:00:00+00:00"
    document["groups"][0]["lag"] = 1_000_000_000
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(document))
    second = reported(root, earlier=str(earlier))
    assert second.lags[0].change < 0
    earlier.write_text("{}")
    with pytest.raises(ConfigError, match="give the JSON of an earlier report"):
        reported(root, earlier=str(earlier))


def test_a_topic_of_batches_is_named_and_the_others_are_reported(root: Path, caplog) -> None:
    whole = reported(root)
    (root / "batchconsumequeue" / "B" / "0").mkdir(parents=True)
    (root / "config").mkdir(exist_ok=True)
    table = {"topicConfigTable": {"B": {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}}}
    (root / "config" / "topics.json").write_text(json.dumps(table))
    found = reported(root)
    assert (found.messages, set(found.topics)) == (whole.messages, {"T0", "T1"})
    assert caplog.messages == ["topic B is left out: it has queues of batches, not read here"]
    with pytest.raises(ConfigError, match="topic B has queues of batches"):
        reported(root, topics=["B"])


def test_a_topic_of_batches_of_a_cluster_is_named_and_the_others_are_reported(
    tmp_path: Path, caplog
) -> None:
    with served(tmp_path) as nameserver:
        with Admin(nameserver) as admin:
            admin.create_topic("plain", queues=1)
            admin.create_topic("logs", queues=1, attributes={"queue.type": "BatchCQ"})
        with Producer(nameservers=nameserver) as producer:
            producer.send(Message("plain", b"one"))
            producer.send(Message("logs", b"two"))
        where = Where.brokers(nameserver)
        found = report(None, where)
        assert (found.messages, set(found.topics)) == (1, {"plain"})
        with open_access(where) as access:
            for _ in range(3):
                assert access.topics() == ["plain"]
        told = "topic logs is left out: it has queues of batches, not read here"
        assert caplog.messages == [told, told]  # by the report and by this access, once each
        with pytest.raises(SaturnError, match="topic logs has batches in its queues"):
            report(None, where, ["logs"])


class Balanced(HTMLParser):
    """Counts open elements; what needs no end is passed over."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)


def test_the_page_stands_alone_and_shows_names_as_they_are(root: Path, tmp_path: Path) -> None:
    store = opened(root)
    store.put(PendingMessage("T0", 0, b"", b"TAGS\x01<b>&\x02"))
    while store.reput():
        pass
    store.close()
    paths = write_report(reported(root), str(tmp_path / "out" / "usage"))
    text = Path(paths[0]).read_text()
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    assert parser.seen.count("svg") >= 8
    assert "&lt;b&gt;&amp;" in text
    assert "<b>" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert json.loads(Path(paths[1]).read_text())["messages"] == 121


def test_a_report_of_nothing_is_a_page_too(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    store.close()
    found = reported(tmp_path / "store")
    assert found.messages == 0
    assert "0 messages" in as_html(found)
