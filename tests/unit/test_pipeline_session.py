"""Starting Spark: a signal meanwhile comes when that is done, and wrong options are told before."""

from __future__ import annotations

import signal

import pytest
from saturnmq.cli.main import app
from saturnmq.pipeline import session
from saturnmq.runtime.errors import SaturnError
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
        ("archive T --to /a --mode foo", "take mode FAILFAST or DROPMALFORMED: 'foo'"),
        ("archive T --to /a --compression foo", "take compression snappy"),
        ("archive T --to /a --store /nosuch", "/nosuch is no store"),
        ("audit --store /nosuch", "/nosuch is no store"),
        ("rebuild --store /nosuch --to /a", "/nosuch is no store"),
        ("report --store /nosuch", "/nosuch is no store"),
        ("replay /a T --compression foo", "it is one of none, lz4, zstd, zlib"),
        ("replay /a T --queues foo", "send to queues sharding, keep, any: 'foo'"),
    ],
)
def test_a_job_that_makes_no_sense_does_not_start_spark(monkeypatch, command, told) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    started: list[object] = []
    monkeypatch.setattr(session, "spark_session", lambda *given: started.append(given))
    done = CliRunner().invoke(app, ["pipeline", *command.split()])
    assert isinstance(done.exception, SaturnError), done.output
    assert told in str(done.exception)
    assert not started
