"""Each request of each kind of client is signed by the user whom it or the environment names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_work_rig import WORK, Work, commits, polls, receives, sends
from credentials_rig import is_signed_by
from saturnmq import Admin, Credentials, Message, Producer, PushConsumer, SimpleConsumer
from saturnmq.cli import node_questions
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.credentials import ACCESS_VARIABLE, SECRET_VARIABLE
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Body, Command
from saturnmq.runtime.errors import ConfigError
from served_rig import served

ANN, BOB = Credentials("ann", "secret of ann"), Credentials("bob", "secret of bob")
OF_BROKERS = (
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.QUERY_DATA_VERSION,
)


class Requests:
    """The requests that servers and clients got, and the posts that were sent."""

    def __init__(self) -> None:
        self.posts = 0
        self.by: Counter[Credentials | None] = Counter()  # who signed them
        self.codes: Counter[int] = Counter()
        self.topics: set[str | None] = set()

    def at_server(self, command: Command) -> None:
        if command.code in OF_BROKERS:
            return
        signers = [each for each in (ANN, BOB) if is_signed_by(each, command)]
        if not signers:
            assert "AccessKey" not in command.ext, f"{command} has a wrong signature"
        self.by[signers[0] if signers else None] += 1
        self.codes[command.code] += 1
        self.topics.add(command.ext.get("b"))

    def at_client(self, command: Command) -> None:
        assert "AccessKey" not in command.ext, "servers do not sign"


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as address:
        with Admin(address) as admin:
            admin.create_topic("asked")
            admin.create_topic("sent")
        yield address


def be(user: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ACCESS_VARIABLE, user.access_key)
    monkeypatch.setenv(SECRET_VARIABLE, user.secret_key)


@pytest.fixture(autouse=True)
def seen(nameserver: str, requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, post = Endpoint._request, Channel.post

    def noted(self: Endpoint, command: Command) -> None:
        if self._server:
            requests.at_server(command)
        else:
            requests.at_client(command)
        handle(self, command)

    def counted(self: Channel, command: Command) -> list[Body]:
        requests.posts += 1
        return post(self, command)

    monkeypatch.setattr(Endpoint, "_request", noted)
    monkeypatch.setattr(Channel, "post", counted)


def answers(nameserver: str, **options: Any) -> None:
    with Producer("askers", nameserver, **options) as producer:
        consumer = PushConsumer(
            "answerers",
            nameserver,
            listener_one=lambda message: producer.reply(message, b"42"),
            **options,
        )
        consumer.subscribe("asked")
        with consumer:
            assert producer.request(Message("asked", b"?"), timeout=30.0).body == b"42"


def gives_up(nameserver: str, **options: Any) -> None:
    sends(nameserver, **options)
    with SimpleConsumer("losers", nameserver, from_beginning=True, **options) as consumer:
        consumer.subscribe("sent")
        consumer.dead_letter(consumer.receive()[0])


def traces(nameserver: str, **options: Any) -> None:
    with Producer("traced", nameserver, trace=True, **options) as producer:
        producer.send(Message("sent", b"traced"))


MORE_WORK: list[Work] = [answers, gives_up, traces]


@pytest.mark.parametrize("work", [*WORK, *MORE_WORK])
def test_each_request_of_each_client_is_signed_by_its_user(
    nameserver: str, requests: Requests, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(BOB, monkeypatch)
    work(nameserver, credentials=ANN)
    assert set(requests.by) == {ANN}
    work(nameserver)
    assert set(requests.by) == {ANN, BOB}
    monkeypatch.delenv(ACCESS_VARIABLE)
    monkeypatch.delenv(SECRET_VARIABLE)
    work(nameserver)
    assert set(requests.by) == {ANN, BOB, None}


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (sends, RequestCode.SEND_MESSAGE_V2),
        (sends, RequestCode.SEND_BATCH_MESSAGE),
        (polls, RequestCode.PULL_MESSAGE),
        (polls, RequestCode.HEART_BEAT),
        (polls, RequestCode.UPDATE_CONSUMER_OFFSET),
        (polls, RequestCode.GET_ROUTEINFO_BY_TOPIC),
        (receives, RequestCode.POP_MESSAGE),
        (receives, RequestCode.ACK_MESSAGE),
        (commits, RequestCode.END_TRANSACTION),
        (answers, RequestCode.SEND_REPLY_MESSAGE_V2),
        (gives_up, RequestCode.CONSUMER_SEND_MSG_BACK),
    ],
)
def test_the_work_has_the_requests_that_matter(
    nameserver: str, requests: Requests, work: Work, code: RequestCode
) -> None:
    work(nameserver, credentials=ANN)
    assert requests.codes[code], requests.codes


def test_posts_go_on_and_traces_are_sent(nameserver: str, requests: Requests) -> None:
    sends(nameserver, credentials=ANN)
    assert requests.posts
    traces(nameserver, credentials=ANN)
    with Admin(nameserver) as admin:
        for _ in range(1000):  # nobody waits for the acknowledgement of a trace
            if "RMQ_SYS_TRACE_TOPIC" in requests.topics:
                break
            admin.list_topics()
    assert "RMQ_SYS_TRACE_TOPIC" in requests.topics


def test_questions_of_the_launcher_are_signed(
    nameserver: str, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(ANN, monkeypatch)
    host, _, port = nameserver.rpartition(":")
    assert len(node_questions.registered(host, int(port))) == 1
    assert list(requests.by) == [ANN]


def test_credentials_that_make_no_sense_are_refused_before_anything_is_sent(
    nameserver: str, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: Any = "ann"
    for work in WORK:
        with pytest.raises(ConfigError, match=r"give a saturnmq\.Credentials"):
            work(nameserver, credentials=wrong)
    assert not requests.by
    monkeypatch.setenv(ACCESS_VARIABLE, "ann")
    with pytest.raises(ConfigError, match="set both"):
        Producer("a", nameserver).start()
