"""The SparkSession of a job that was started by its command: `saturnmq pipeline` and the examples.

Whoever has a session passes that instead. Workers run the interpreter that runs the driver, unless
PYSPARK_PYTHON says otherwise: plain `python3` would not have the package.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from saturnmq.protocol.errors import ConfigError

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def start(master: str = "local[*]", name: str = "saturnmq", **settings: str) -> Any:
    """A SparkSession on `master`; `settings` with `_` for each dot go over ours.

    ConfigError where pyspark or Java is missing.
    """
    require_pyspark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    if master.startswith("local"):
        # a host name that does not resolve must not keep a session of one machine from starting
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
    chosen = _SETTINGS | {key.replace("_", "."): value for key, value in settings.items()}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkRuntimeError, FileNotFoundError) as error:
        raise ConfigError(
            "install Java 17 or newer, or set JAVA_HOME: Spark's gateway did not start "
            f"({str(error).splitlines()[0]})"
        ) from error
    spark.sparkContext.setLogLevel("OFF")  # what goes wrong comes back as an exception
    return spark


def require_pyspark() -> None:
    """ConfigError with the command to install it where pyspark or pyarrow is missing."""
    try:
        import pyarrow
        import pyspark
    except ImportError as error:
        raise ConfigError(
            f"the pipeline needs {error.name}: pip install 'saturnmq[spark]'"
        ) from error
    del pyarrow, pyspark
