"""Starting Spark: a signal meanwhile comes when that is done, and wrong options are told before."""

from __future__ import annotations

import shlex
import signal
from unittest.mock import Mock

import pytest
from saturnmq.cli.main import app
from saturnmq.pipeline import session
from typer.testing import CliRunner


class Builder:
    """In Spark's place: is interrupted while the JVM starts."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def __getattr__(self, _: str):
        return lambda *arguments: self

    def getOrCreate(self) -> str:
        signal.raise_signal(signal.SIGINT)
        self._seen.append("started")
        return "session"


def test_an_interrupt_while_spark_starts_waits_until_it_has(monkeypatch) -> None:
    sql = pytest.importorskip("pyspark.sql")
    seen: list[str] = []
    monkeypatch.setattr(session, "prepare", lambda: None)
    monkeypatch.setattr(sql.SparkSession, "builder", Builder(seen))
    # A shell starts what runs in the background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.spark_session("test", "local[1]")
        assert seen == ["started"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("archive T --to /a --mode PERMISSIVE", "take mode FAILFAST or DROPMALFORMED"),
        ("archive T --to /a --mode foo", "take mode FAILFAST or DROPMALFORMED: 'foo'"),
        ("archive T --to /a --compression foo", "take compression snappy"),
        ("archive T --to /a --store /nosuch", "/nosuch is no store"),
        ("audit --store /nosuch", "/nosuch is no store"),
        ("rebuild --store /nosuch --to /a", "/nosuch is no store"),
        ("report --store /nosuch", "/nosuch is no store"),
        ("replay /a T --compression foo", "it is one of none, lz4, zstd, zlib"),
        ("replay /a T --queues foo", "send to queues sharding, keep, any: 'foo'"),
        ("archive T --to /a --columns topic,foo", "there is no column 'foo'"),
        ("archive T --to /a --read-from foo", "--read-from wants master, slave or any"),
        ("archive T --to /a --nameserver foo", "--nameserver wants HOST:PORT"),
        ("archive T --to /a --follow inf", "less than or equal to 31536000"),
        ("archive T --to /a --follow 1e10", "less than or equal to 31536000"),
        ("replay /a T --nameserver foo", "--nameserver wants HOST:PORT"),
        ("replay hdfs:/a T", "hdfs:/a is not reached as a file"),
        ("replay /a T --rate inf", "messages a second, or 0 for no limit, not inf"),
        (
            "replay /a T --rate 1e-9",
            "messages a second, or 0 for no limit, not 1e-09",
        ),
        ("audit", "pass --store DIR to check its files, --archive PATH"),
        ("archive T --to ''", "a path is empty"),
        ("archive T --to file:", "a path is empty"),
        ("archive T --to '' --spark-sink", "a path is empty"),
        ("archive T --to /a --store ''", "a path is empty"),
        ("audit --archive ''", "a path is empty"),
        ("audit --store ''", "a path is empty"),
        ("replay '' T", "a path is empty"),
        ("rebuild --store '' --to /a", "a path is empty"),
        ("rebuild --store {store} --to ''", "a path is empty"),
        ("report --to ''", "give the report a name"),
        ("report --to usage/", "give the report a name"),
    ],
)
def test_a_job_that_makes_no_sense_does_not_start_spark(
    tmp_path, monkeypatch, command, told
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    started: list[object] = []
    monkeypatch.setattr(session, "spark_session", lambda *given: started.append(given))
    (tmp_path / "commitlog").mkdir()
    words = shlex.split(command.format(store=tmp_path))
    done = CliRunner().invoke(app, ["pipeline", *words])
    assert done.exit_code == 2, done.output
    assert told in " ".join(done.output.split())
    assert not started


def test_a_signal_that_ended_the_jvm_as_well_ends_a_job_without_a_word(monkeypatch) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    spark = Mock()
    spark.stop.side_effect = ConnectionRefusedError(111, "Connection refused")
    monkeypatch.setattr(session, "spark_session", lambda *_: spark)
    ended = Mock(side_effect=SystemExit(128 + signal.SIGTERM))
    monkeypatch.setattr("saturnmq.pipeline.jobs.archive.archive", ended)
    done = CliRunner().invoke(app, ["pipeline", "archive", "T", "--to", "/a"])
    assert (done.exit_code, done.output) == (128 + signal.SIGTERM, "")
    assert ended.called


def test_a_job_that_finds_that_it_makes_no_sense_ends_with_status_2(tmp_path, monkeypatch) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    monkeypatch.setattr(session, "spark_session", lambda *_: Mock())
    done = CliRunner().invoke(app, ["pipeline", "audit", "--archive", str(tmp_path)])
    assert done.exit_code == 2
    assert "is no archive" in done.output
