"""The packages of the peers that ours is compared to, fetched once by their ordinary clients: jars
by Maven, Python's by pip. They are kept in the user's cache directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saturnmq"

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>benchmark</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = """
<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"""
_ALONE = """
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"""


def jars(cache: Path, name: str, coordinates: tuple[str, ...], *, alone: bool) -> list[Path]:
    """The jars of these artifacts; with what they depend on unless `alone`."""
    folder = cache / name
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        each = [_DEPENDENCY.format(*c.split(":"), _ALONE if alone else "") for c in coordinates]
        (folder / "pom.xml").write_text(_POM.format(name=name, dependencies="".join(each)))
        command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml")]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise SystemExit("a comparison needs Maven (mvn) on PATH for the jars") from None
        if done.returncode:
            raise SystemExit(f"Maven could not copy {coordinates[0]}:\n{done.stdout[-2000:]}")
        (folder / "complete").touch()
    return sorted(folder.glob("*.jar"))


def pip_package(cache: Path, requirement: str) -> None:
    """Make a Python package importable: here, not in the environment of the project."""
    folder = cache / requirement
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"pip could not install {requirement}:\n{done.stderr[-2000:]}")
        (folder / "complete").touch()
    sys.path.append(str(folder))
