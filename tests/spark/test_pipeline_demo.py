"""The demo on a slice of its data, and the examples, on one small cluster."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from cluster_rig import running
from saturnmq import Admin, Message, Producer
from saturnmq.cli import flights, pipeline_demo
from saturnmq.cli.launcher import Settings

HERE = Path(__file__).parent
SLICE = HERE.parent / "data" / "flights-slice.csv"
EXAMPLES = HERE.parent.parent / "examples"
PAGE = HERE.parent.parent / "docs/pipeline.md"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def departures():
    return flights.read(SLICE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(tmp_path_factory.mktemp("demo"), Settings(masters=2)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ran(spark, cluster, departures, tmp_path_factory):
    """The demo's report and the delays that came back."""
    told = []
    home = tmp_path_factory.mktemp("archive")
    run = pipeline_demo.Pipeline(spark, cluster.nameservers, home, told.append)
    return run.run(SLICE, departures)


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stream_of_the_document_runs_as_pasted(spark, cluster, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    [code] = [text for text in blocks if "writeStream" in text]
    for text, mine in (
        ("127.0.0.1:9876", ",".join(cluster.nameservers)),
        ('"checkpoint"', repr(str(tmp_path / "checkpoint"))),
    ):
        assert text in code
        code = code.replace(text, mine)
    with Admin(nameservers=cluster.nameservers) as admin:
        for topic in ("orders", "checked"):
            admin.create_topic(topic, queues=2)
    exec(code, {"spark": spark})
    [query] = spark.streams.active
    try:
        query.processAllAvailable()  # it begins at the end of the topic
        with Producer("shop", nameservers=cluster.nameservers) as producer:
            for number in range(20):
                producer.send(Message("orders", b"%d" % number, keys=f"k{number % 5}"))
        query.processAllAvailable()
    finally:
        query.stop()
    options = {"endpoints": ",".join(cluster.nameservers), "subscribe": "checked"}
    rows = spark.read.format("saturnmq").options(**options).load().collect()
    assert sorted(int(row.body) for row in rows) == list(range(20))
    assert len({(row.keys, row.brokerName, row.queueId) for row in rows}) == 5


def messages(departures, origin):
    return sum(departure.origin == origin for departure in departures)


def test_the_demo_ends_well_and_the_second_run_adds_nothing(ran, departures):
    report, means = ran
    assert report["ok"], report
    assert report["archived"] == report["departures"] == len(departures)
    assert report["checksum of the archive"] == report["checksum of the file"]
    assert report["added by archiving again"] == report["added by writing again"] == 0
    assert {row[0] for row in means} == {"EWR", "JFK", "LGA"}


def test_means_that_are_not_those_of_plain_python_are_noticed(ran, departures):
    _, means = ran
    assert pipeline_demo.agree(means, departures)
    origin, carrier, hour, mean, count = means[0]
    assert not pipeline_demo.agree(
        [(origin, carrier, hour, mean + 1, count), *means[1:]], departures
    )


def test_the_plot_is_a_picture(ran, tmp_path):
    pytest.importorskip("matplotlib")
    pipeline_demo.draw(ran[1], tmp_path / "new" / "delays.png")
    assert (tmp_path / "new" / "delays.png").read_bytes()[:4] == b"\x89PNG"


def test_the_example_of_a_batch_counts_the_messages(spark, cluster, ran, departures):
    counted = example("read_batch").counts(spark, cluster.nameservers[0], pipeline_demo.DEPARTURES)
    by_tag = {}
    for row in counted.collect():
        by_tag[row["tags"]] = by_tag.get(row["tags"], 0) + row["count"]
    assert by_tag == {tag: messages(departures, tag) for tag in ("EWR", "JFK", "LGA")}


def test_the_example_of_a_stream_counts_the_messages(spark, cluster, ran, departures, tmp_path):
    query = example("stream_counts").start(
        spark,
        cluster.nameservers[0],
        pipeline_demo.DEPARTURES,
        str(tmp_path),
        trigger={"availableNow": True},
    )
    query.awaitTermination(120)
    assert query.exception() is None
    counted = spark.sql("SELECT tags, SUM(count) AS n FROM counts GROUP BY tags").collect()
    assert {row["tags"]: row["n"] for row in counted} == {
        tag: messages(departures, tag) for tag in ("EWR", "JFK", "LGA")
    }


def test_the_example_of_exactly_once_copies_everything(spark, cluster, ran, departures, tmp_path):
    with Admin(nameservers=cluster.nameservers) as admin:
        admin.create_topic("copied", queues=2)
    start = example("exactly_once").start
    arguments = cluster.nameservers[0], pipeline_demo.DEPARTURES, "copied", str(tmp_path)
    for _ in range(2):  # the second time there is nothing to do
        query = start(spark, *arguments, availableNow=True)
        query.awaitTermination(120)
        assert query.exception() is None
    reader = spark.read.format("saturnmq").option("endpoints", cluster.nameservers[0])
    copied = reader.option("subscribe", "copied").option("columns", "body").load().collect()
    assert sorted(bytes(row["body"]) for row in copied) == sorted(d.line for d in departures)


def test_the_example_of_an_audit_finds_the_store_sound(spark, cluster, ran, capsys):
    found = example("audit").check(spark, cluster.data / "master-0" / "store")
    assert found.sound, found.damage
    assert "messages in" in capsys.readouterr().out


def test_the_example_of_salting_counts_as_without(spark, cluster, ran, departures):
    found = example("salting").tags_of_keys(spark, cluster.nameservers[0], pipeline_demo.DEPARTURES)
    rows = found.collect()
    assert sum(row["messages"] for row in rows) == len(departures)
    assert len(rows) == len({departure.key for departure in departures})


def test_the_example_of_lake_tables_can_be_loaded():
    assert {"to_delta", "to_iceberg"} <= set(vars(example("lake_tables")))
