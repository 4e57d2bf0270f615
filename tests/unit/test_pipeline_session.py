"""Starting Spark: a signal meanwhile comes when that is done."""

from __future__ import annotations

import signal

import pytest
from saturnmq.pipeline import session


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
