"""Programs over RocketMQ's clients, in Java, Go, Node and Rust, told by lines. Each line is
answered by one that begins with "> ": the clients print lines of their own. An answer has a
deadline."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ANSWER_S = 150.0
BUILD_S = 300.0
RUST_S = 1200.0  # 250 crates
# A consumer of 5.4 first rebalances 1 s after its start, when its second heartbeat may be on its
# way. If so it does not tell the broker its new subscription, whose pulls the broker then refuses
# (25, as RocketMQ's does) until the next heartbeat, 30 s later. And a member may learn of its retry
# topic between two rebalances, 20 s apart.
SOON = (
    "-Drocketmq.client.rebalance.minInterval=200",
    "-Drocketmq.client.rebalance.waitInterval=2000",
)


class ClientProgram:
    """A running program."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def tell(self, *words: object) -> str:
        """The answer to a line. A program that does not answer in time is ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(ANSWER_S, self._process.kill)
        timer.start()
        try:
            print(*words, file=self._process.stdin, flush=True)
            for line in self._process.stdout:
                if line.startswith("> "):
                    return line.removeprefix("> ").strip()
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        raise AssertionError(f"no answer to {words}\n{tail}")


@contextmanager
def java_program(
    jars: Path,
    program: str,
    *arguments: str,
    log: Path,
    options: Sequence[str] = (),
    compiled: bool = False,
) -> Iterator[ClientProgram]:
    """Runs a Java program of this directory, in one file, until the block ends. `compiled`: to
    class files first, because it looks for its own."""
    if shutil.which("javac") is None:
        pytest.skip("no `javac` on the path to run RocketMQ's client with")
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", f"-Duser.home={log.parent}"]
    command += [f"-Drocketmq.client.logRoot={log.parent}", *SOON, *options]
    source = Path(__file__).with_name(program)
    if compiled:
        classes = log.parent / "classes"
        javac = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(source)]
        subprocess.run(javac, check=True, timeout=BUILD_S)
        command += ["-cp", f"{classes}:{jars}/*", source.stem, *arguments]
    else:
        command += ["-cp", f"{jars}/*", str(source), *arguments]
    with client_program(command, log) as running:
        yield running


def cached(name: str) -> Path:
    """The place of what is fetched or built once."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "saturnmq" / name


def go_client(directory: str = "goclient") -> str:
    """The built program of this directory; skips where it cannot be built."""
    if shutil.which("go") is None:
        pytest.skip("no `go` on the path to build RocketMQ's Go client with")
    source = Path(__file__).parent / directory
    sources = b"".join(path.read_bytes() for path in sorted(source.iterdir()))
    built = cached(f"{source.name}-{hashlib.sha256(sources).hexdigest()[:16]}")
    if not built.exists():
        command = ["go", "build", "-o", str(built), "."]
        try:
            done = subprocess.run(
                command, cwd=source, capture_output=True, text=True, check=False, timeout=BUILD_S
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"Go had not built its client after {BUILD_S:g} s")
        if done.returncode:
            pytest.skip(f"Go could not build its client: {done.stderr.strip().splitlines()[-1:]}")
    return str(built)


def rust_client(directory: str = "grpcrust") -> str:
    """The built program of this directory; skips where it cannot be built."""
    if shutil.which("cargo") is None:
        pytest.skip("no `cargo` on the path to build RocketMQ's Rust client with")
    source = Path(__file__).parent / directory
    sources = b"".join(path.read_bytes() for path in sorted(source.rglob("*")) if path.is_file())
    built = cached(f"{source.name}-{hashlib.sha256(sources).hexdigest()[:16]}")
    if not built.exists():
        target = cached(f"{source.name}-target")
        command = ["cargo", "build", "--release", "--locked", "--target-dir", str(target)]
        try:
            done = subprocess.run(
                command, cwd=source, capture_output=True, text=True, check=False, timeout=RUST_S
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"cargo had not built its client after {RUST_S:g} s; it goes on next time")
        if done.returncode:
            pytest.skip(
                f"cargo could not build its client: {done.stderr.strip().splitlines()[-1:]}"
            )
        shutil.copy2(target / "release" / source.name, built)
    return str(built)


def node_package(name: str, version: str) -> Path:
    """The directory in which npm has installed a package: fetched once, then kept."""
    cache = cached(f"{name}-{version}")
    if cache.is_dir():
        return cache
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no `node` and `npm` on the path to run RocketMQ's Node client with")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as fresh:
        installed = Path(fresh) / "installed"
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        command += ["--prefix", str(installed), f"{name}@{version}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=BUILD_S
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm had not installed {name} after {BUILD_S:g} s")
        if done.returncode:
            pytest.skip(f"npm could not install {name}: {done.stderr.strip().splitlines()[-1:]}")
        installed.rename(cache)
    return cache


@contextmanager
def client_program(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[ClientProgram]:
    """Runs a program that is told by lines, until the block ends. `environment`: variables beside
    those of this process."""
    with open(log, "w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            yield ClientProgram(process, log)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
