"""Clients whose connections are encrypted, as they or the environment say."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from saturnmq import (
    Admin,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    aio,
)
from saturnmq.client.producer.posting import OPEN_AFTER
from saturnmq.client.producer.transactions import TransactionState
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


def sends(make: Callable[..., Any]) -> Callable[[str, Any], None]:
    def send(nameserver: str, tls: Any) -> None:
        with make("senders", nameserver, tls=tls) as producer:
            for number in range(5):
                producer.send(Message("sent", b"%d" % number))
            for _ in range(OPEN_AFTER + 20):  # these have a connection of their own, without TLS
                producer.send_async(Message("sent", b"alone")).result(10)
            handles = [producer.send_async(Message("sent", b"x" * 5000)) for _ in range(50)]
            assert all(handle.result(10) for handle in handles)

    return send


def polls(nameserver: str, tls: Any) -> None:
    sends(Producer)(nameserver, tls)
    with PullConsumer("pollers", nameserver, tls=tls, from_beginning=True) as consumer:
        consumer.subscribe("sent")
        assert any(consumer.poll(1.0) for _ in range(20))


def listens(nameserver: str, tls: Any) -> None:
    sends(Producer)(nameserver, tls)
    bodies: list[bytes] = []
    consumer = PushConsumer(
        "listeners",
        nameserver,
        tls=tls,
        from_beginning=True,
        listener=lambda messages: bodies.extend(message.body for message in messages),
    )
    consumer.subscribe("sent")
    with consumer, Admin(nameserver, tls=tls) as admin:
        for _ in range(1000):
            if bodies:
                break
            admin.list_topics()
    assert bodies


def receives(nameserver: str, tls: Any) -> None:
    sends(Producer)(nameserver, tls)
    with SimpleConsumer("receivers", nameserver, tls=tls, from_beginning=True) as consumer:
        consumer.subscribe("sent")
        found = consumer.receive()
        assert found
        for message in found:
            consumer.ack(message)


def commits(nameserver: str, tls: Any) -> None:
    def check(message: object) -> TransactionState:
        return TransactionState.COMMIT

    producer = TransactionProducer("payers", nameserver, check=check, tls=tls)
    with producer, producer.transaction(Message("sent", b"paid")):
        pass


def sends_on_a_loop(nameserver: str, tls: Any) -> None:
    async def body() -> None:
        async with aio.Producer("senders", nameserver, tls=tls) as producer:
            await producer.send(Message("sent", b"1"))
        async with aio.Admin(nameserver, tls=tls) as admin:
            assert "sent" in await admin.list_topics()
        consumer = aio.PullConsumer("pollers", nameserver, tls=tls)
        consumer.subscribe("sent")
        async with consumer:
            await consumer.poll(0.01)

    asyncio.run(body())


WORK = [sends(Producer), polls, listens, receives, commits, sends_on_a_loop]


@pytest.mark.parametrize("work", WORK)
def test_every_client_does_its_work_over_tls(
    nameserver: str, pem: str, seen: Seen, work: Callable[[str, Any], None]
) -> None:
    seen.came = seen.secured = 0
    work(nameserver, ssl.create_default_context(cafile=pem))
    assert seen.secured == seen.came >= 2, "to the nameserver, and to the broker"
    seen.secured = 0
    work(nameserver, False)
    assert not seen.secured


@pytest.mark.parametrize("work", WORK)
def test_the_environment_encrypts_all_clients(
    nameserver: str,
    pem: str,
    seen: Seen,
    work: Callable[[str, Any], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value in (pem, "unverified"):
        monkeypatch.setenv(VARIABLE, value)
        seen.came = seen.secured = 0
        work(nameserver, None)
        assert seen.secured == seen.came >= 2


def test_nobody_is_trusted_without_an_authority(nameserver: str) -> None:
    with pytest.raises(SaturnError, match="self-signed certificate"):
        sends(Producer)(nameserver, True)


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
