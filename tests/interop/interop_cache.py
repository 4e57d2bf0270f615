"""What the comparison fetches or builds once and then keeps in the user's cache: jars, class files,
programs, packages. Tests that run at the same time wait for each other here."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

DOWNLOAD_S = float(os.environ.get("SATURNMQ_INTEROP_DOWNLOAD_S") or 600)
BUILD_S = 300.0
RUST_S = 1200.0  # 250 crates
HERE = Path(__file__).parent


def cached(name: str) -> Path:
    """The place of what is fetched or built once."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "saturnmq" / name


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The place of this name, with what `make` puts into the path that it is given: a file or a
    directory that is not there yet."""
    place = cached(name)
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=place.parent) as fresh:
                make(Path(fresh) / "made")
                (Path(fresh) / "made").rename(place)
    return place


def run_or_skip(
    command: Sequence[str], what: str, within_s: float, cwd: Path | None = None
) -> None:
    """Run a command that fetches or builds; the test is skipped if it cannot."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"no `{command[0]}` on the path for {what}")
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=within_s
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what}: `{command[0]}` had not ended after {within_s:g} s")
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        pytest.skip(f"{what}: `{command[0]}` failed: {' '.join(said[:1] + said[-1:])}")


def fetched_jars(name: str, pom: str, *options: str) -> Path:
    """The directory of the jars that `pom` names, fetched by Maven."""

    def fetch(place: Path) -> None:
        command = ["mvn", "-q", "-B", "-f", str(HERE / pom), *options]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        run_or_skip([*command, f"-DoutputDirectory={place}"], f"the jars of {name}", DOWNLOAD_S)

    return made_once(name, fetch)


def java_classes(jars: Path, program: str) -> Path:
    """The directory of the class files of a Java program of this directory, in one file. It is
    compiled against these jars; a mistake in it fails the test."""
    source = HERE / program
    mark = hashlib.sha256(source.read_bytes() + str(jars).encode()).hexdigest()[:16]
    if shutil.which("javac") is None:
        pytest.skip("no `javac` on the path to run RocketMQ's classes with")

    def compile_it(place: Path) -> None:
        command = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(place), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_S)
        assert done.returncode == 0, done.stderr

    return made_once(f"classes-{source.stem}-{mark}", compile_it)


def go_program(source: Path) -> Path:
    """The program that Go builds from this directory."""

    def build(place: Path) -> None:
        command = ["go", "build", "-o", str(place), "."]
        run_or_skip(command, "RocketMQ's Go client", BUILD_S, source)

    return made_once(_name_of_program(source), build)


def rust_program(source: Path) -> Path:
    """The program that cargo builds from this directory. A build that has no time to end goes on
    where it was, the next time."""

    def build(place: Path) -> None:
        target = cached(f"{source.name}-target")
        command = ["cargo", "build", "--release", "--locked", "--target-dir", str(target)]
        run_or_skip(command, "RocketMQ's Rust client", RUST_S, source)
        shutil.copy2(target / "release" / source.name, place)

    return made_once(_name_of_program(source), build)


def cpp_program(source: Path) -> Path:
    """The program of this file, built with RocketMQ's C++ client, which no registry has: the
    directory `SATURNMQ_CPP_CLIENT` must have its `include/` and `lib/librocketmq.so`."""
    home = os.environ.get("SATURNMQ_CPP_CLIENT")
    if not home:
        pytest.skip("SATURNMQ_CPP_CLIENT does not say where RocketMQ's C++ client is installed")
    library = Path(home) / "lib"
    digest = hashlib.sha256(source.read_bytes() + home.encode()).hexdigest()[:16]

    def build(place: Path) -> None:
        command = ["g++", "-std=c++17", "-O1", f"-I{home}/include", str(source), "-o", str(place)]
        command += [f"-L{library}", "-lrocketmq", "-lpthread", f"-Wl,-rpath,{library}"]
        run_or_skip(command, "a program of RocketMQ's C++ client", BUILD_S)

    return made_once(f"{source.stem}-cpp-{digest}", build)


def _name_of_program(source: Path) -> str:
    """The name of its directory with a digest of its files."""
    files = sorted(path for path in source.rglob("*") if path.is_file())
    sources = b"".join(path.read_bytes() for path in files)
    return f"{source.name}-{hashlib.sha256(sources).hexdigest()[:16]}"


def node_package(name: str, version: str) -> Path:
    """The directory in which npm has installed a package."""
    if shutil.which("node") is None:
        pytest.skip("no `node` on the path to run RocketMQ's Node client with")

    def install(place: Path) -> None:
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        command += ["--prefix", str(place), f"{name}@{version}"]
        run_or_skip(command, f"{name} {version}", BUILD_S)

    return made_once(f"{name}-{version}", install)
