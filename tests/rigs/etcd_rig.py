"""A real etcd for tests, found through PATH; who asks for one is skipped where there is none."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from saturnmq.cli import local_etcd
from saturnmq.cli.free_ports import free_block

START_S = 30.0


class EtcdProcess:
    """One etcd that is a cluster of its own."""

    def __init__(self, data: Path, certificates: Path | None = None) -> None:
        self._data = data
        self._certificates = certificates  # with them nobody is served without TLS
        self.endpoint = f"127.0.0.1:{free_block('127.0.0.1', local_etcd.PORTS)}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        port = int(self.endpoint.rpartition(":")[2])
        command = local_etcd.command("etcd-0", {"etcd-0": ("127.0.0.1", port)}, self._data)
        if certificates := self._certificates:
            client = f"https://{self.endpoint}"
            command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
            command += [f"--cert-file={certificates}/node.pem", "--client-cert-auth"]
            command += [f"--key-file={certificates}/node.key"]
            command += [f"--trusted-ca-file={certificates}/ca.pem"]
        self._data.parent.mkdir(parents=True, exist_ok=True)
        with open(self._data.with_suffix(".log"), "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.call("KV/Range", b"\n\x01a")
                return
            except grpc.RpcError as error:
                if "user name is empty" in str(error):
                    return
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise AssertionError(f"etcd does not serve: {error}") from error
                time.sleep(0.02)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wipe(self) -> None:
        """It begins anew, with the same id."""
        shutil.rmtree(self._data)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        while any(_state(task) != "T" for task in tasks.iterdir()):  # it answers until then
            time.sleep(0.001)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def call(self, method: str, request: bytes = b"") -> bytes:
        """A request that our client has no need of, as bytes."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self._certificates is None:
            opened = grpc.insecure_channel(self.endpoint, options=options)
        else:
            names = ("ca.pem", "node.key", "node.pem")
            files = ((self._certificates / name).read_bytes() for name in names)
            credentials = grpc.ssl_channel_credentials(*files)
            opened = grpc.secure_channel(self.endpoint, credentials, options=options)
        with opened as channel:
            answer: Any = channel.unary_unary(f"/etcdserverpb.{method}")(request, timeout=5)
            return bytes(answer)

    def compact(self, revision: int) -> None:
        assert revision < 128, "one byte of a varint"
        self.call("KV/Compact", bytes([8, revision]))

    def want_password(self, user: str, password: str) -> None:
        """From now on etcd takes this user only, who may do everything."""
        self.call("Auth/UserAdd", _text(1, user) + _text(2, password))
        self.call("Auth/RoleAdd", _text(1, "root"))
        self.call("Auth/UserGrantRole", _text(1, user) + _text(2, "root"))
        self.call("Auth/AuthEnable")


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def _text(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text.encode()


def need_etcd() -> None:
    if shutil.which("etcd") is None:
        pytest.skip("no etcd in PATH (Debian: apt install etcd-server)")


def make_certificates(directory: Path) -> Path:
    """An authority (ca.pem) and what it signs for 127.0.0.1 (node.pem, node.key)."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl in PATH")
    directory.mkdir()
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=node -keyout node.key -out node.csr",
        "x509 -req -days 2 -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out node.pem"
        " -extfile names",
    ):
        subprocess.run(["openssl", *line.split()], cwd=directory, check=True, capture_output=True)
    return directory


@contextmanager
def running_etcd(directory: Path, certificates: Path | None = None) -> Iterator[EtcdProcess]:
    need_etcd()
    process = EtcdProcess(directory / "etcd", certificates)
    try:
        yield process
    finally:
        process.kill()
        shutil.rmtree(directory / "etcd", ignore_errors=True)
