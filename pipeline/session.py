"""A Spark session for the commands, examples and tests: one place that knows what ours need.

The set-up of a driver before Spark starts: a Java (`saturnmq.pipeline.java`), and the
interpreter of the workers, which Spark otherwise takes for the `python3` on PATH.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from saturnmq.pipeline import java
from saturnmq.runtime.errors import SaturnError

LOGGING = Path(__file__).with_name("log4j2.properties").resolve()


class SparkMissing(SaturnError):
    """PySpark is not installed"""


def prepare() -> None:
    """Have everything ready for a session of this process, or say what is missing.

    Sets JAVA_HOME and, unless the user chose another one, PYSPARK_PYTHON.
    """
    check_installed()
    java.prepare()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def check_installed() -> None:
    """SparkMissing if a module is missing without which no job can be imported."""
    for module in ("pyspark", "pyarrow", "numpy"):
        if find_spec(module) is None:
            raise SparkMissing(f"{module} is not installed: pip install 'saturnmq[spark]'")


def why_not() -> str | None:
    """Why there can be no session here, or None."""
    try:
        prepare()
    except SaturnError as problem:
        return str(problem)
    return None


def spark_session(
    name: str, master: str | None = "local[*]", settings: dict[str, Any] | None = None
) -> Any:
    """A `SparkSession`, quiet and in UTC; `settings` are Spark's own, and win.

    With `master=None` it is what `spark-submit` or spark-defaults.conf say. Raises SparkMissing and
    JavaMissing, whose one line says what to install.
    """
    prepare()
    from pyspark.sql import SparkSession

    chosen: dict[str, Any] = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    if master is not None and master.startswith("local"):
        # No other machine has to reach this driver: no page, no name of the host to be resolved.
        # This file sets the log level of a local driver; on a cluster the operator does.
        chosen["spark.ui.enabled"] = "false"
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, str(value))
    with _signals_wait():
        return builder.getOrCreate()


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Ctrl-C and SIGTERM come after what is done here: PySpark, interrupted while it waits for the
    JVM that it starts, leaves one behind that no caller can reach and that never ends."""
    if threading.current_thread() is not threading.main_thread():
        yield  # others get no signals
        return
    came: list[int] = []

    def hold(number: int, _: object) -> None:
        came.append(number)

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is hold:  # Spark has set one of its own for SIGINT
                signal.signal(number, handler)
        for held in came:
            signal.raise_signal(held)
