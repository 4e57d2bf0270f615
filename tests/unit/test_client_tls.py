"""Clients whose connections are encrypted, as they or the environment say."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_work_rig import WORK, Work, sends
from saturnmq import Producer
from saturnmq.client.tls import VARIABLE, context_of
from saturnmq.gateway.certificates import Certificate, self_signed
from saturnmq.protocol.connections import Connection, Connections
from saturnmq.protocol.tls import Certificates
from saturnmq.runtime.errors import ConfigError, SaturnError
from served_rig import served


class Seen:
    """The certificate of a server, and how many connections asked for it; and how many came."""

    def __init__(self, pem: str) -> None:
        self.secured = self.came = 0
        self._current: Certificates = Certificate(pem, pem).current

    def __call__(self) -> ssl.SSLContext | None:
        self.secured += 1
        return self._current()


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(self_signed(tmp_path_factory.mktemp("node") / "tls", ["127.0.0.1"]))


@pytest.fixture(scope="module")
def seen(pem: str) -> Seen:
    return Seen(pem)


@pytest.fixture(autouse=True)
def counted(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    admit = Connections.admit

    def counting(self: Connections, connection: Connection) -> str:
        seen.came += 1
        return admit(self, connection)

    monkeypatch.setattr(Connections, "admit", counting)


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory, seen: Seen) -> Iterator[str]:
    root = tmp_path_factory.mktemp("broker")
    with served(root, certificates=seen, local_socket=True) as address:
        yield address


@pytest.mark.parametrize("work", WORK)
def test_every_client_does_its_work_over_tls(
    nameserver: str, pem: str, seen: Seen, work: Work
) -> None:
    seen.came = seen.secured = 0
    work(nameserver, tls=ssl.create_default_context(cafile=pem))
    assert seen.secured == seen.came >= 2, "to the nameserver, and to the broker"
    seen.secured = 0
    work(nameserver, tls=False)
    assert not seen.secured


@pytest.mark.parametrize("work", WORK)
def test_the_environment_encrypts_all_clients(
    nameserver: str,
    pem: str,
    seen: Seen,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value in (pem, "unverified"):
        monkeypatch.setenv(VARIABLE, value)
        seen.came = seen.secured = 0
        work(nameserver, tls=None)
        assert seen.secured == seen.came >= 2


def test_nobody_is_trusted_without_an_authority(nameserver: str) -> None:
    with pytest.raises(SaturnError, match="self-signed certificate"):
        sends(nameserver, tls=True)


@pytest.mark.parametrize("value", ["", " off ", "off"])
def test_plain_text_is_the_usual_way(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert context_of(None) is None
    assert context_of(False) is None


def test_words_of_the_environment(pem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, checks in (("on", True), (pem, True), ("unverified", False)):
        monkeypatch.setenv(VARIABLE, value)
        context = context_of(None)
        assert context is not None
        assert (context.verify_mode == ssl.CERT_REQUIRED, context.check_hostname) == (
            checks,
            checks,
        )
    assert context_of(True) is not None


def test_what_is_no_tls_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for value in (str(tmp_path / "none.pem"), str(tmp_path / "empty.pem"), "ON"):
        monkeypatch.setenv(VARIABLE, value)
        with pytest.raises(ConfigError, match=VARIABLE):
            context_of(None)
    with pytest.raises(ConfigError, match="give True, False or an ssl"):
        Producer("senders", "127.0.0.1:9", tls="on").start()  # type: ignore[arg-type]
