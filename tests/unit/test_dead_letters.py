"""What a group has given up: listed, and consumed again by that group or by all."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_rig import until
from saturnmq import (
    Admin,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SaturnError,
)
from saturnmq.cli.main import app
from saturnmq.cli.output import local_time
from saturnmq.runtime.errors import MessageIllegal
from served_rig import served
from typer.testing import CliRunner

runner = CliRunner()
Got = queue.Queue[ReceivedMessage]
PATIENCE_S = 20.0


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as address:
        yield address


def run(nameserver: str, *arguments: str) -> tuple[int, str]:
    environment = {"SATURNMQ_NAMESERVER": nameserver, "COLUMNS": "200", "TERM": "dumb"}
    done = runner.invoke(app, ["group", "dlq", *arguments], env=environment)
    if isinstance(done.exception, SaturnError):  # which the program's main tells
        return 1, f"saturnmq: {done.exception}\n"
    return done.exit_code, done.stdout + done.stderr


@contextmanager
def consumed(nameserver: str, group: str, work: Callable[[ReceivedMessage], None]) -> Iterator[Got]:
    """What a member of this group gets, while `work` is its listener; a failure is final."""
    got: Got = queue.Queue()

    def listener(message: ReceivedMessage) -> None:
        got.put(message)
        work(message)

    consumer = PushConsumer(
        group, nameserver, listener_one=listener, from_beginning=True, max_reconsume=0
    )
    consumer.subscribe("orders")
    with consumer:
        yield got


def fails(message: ReceivedMessage) -> None:
    raise ValueError("not today")


def given_up(nameserver: str, bodies: list[bytes]) -> list[ReceivedMessage]:
    """The dead letters of the group `readers`: these messages."""
    with Producer("senders", nameserver) as producer, Admin(nameserver) as admin:
        for number, body in enumerate(bodies):
            producer.send(Message("orders", body, tag="new", keys=f"k{number}"))
        with consumed(nameserver, "readers", fails) as got:
            for _ in bodies:
                got.get(timeout=PATIENCE_S)
            found: list[ReceivedMessage] = []
            while len(found) < len(bodies):
                found = admin.dead_letters("readers")
        assert {letter.body for letter in found} == set(bodies)
        return found


def test_a_group_that_gave_nothing_up_has_no_dead_letters(nameserver: str) -> None:
    with Admin(nameserver) as admin:
        admin.create_group("readers")
    assert run(nameserver, "list", "readers") == (0, "group readers has given no message up\n")
    assert run(nameserver, "resend", "readers", "--all") == (0, "0 of 0 dead letters sent again\n")


def test_a_group_that_does_not_exist_is_told_from_one_without_dead_letters(nameserver: str) -> None:
    with Admin(nameserver) as admin:
        admin.create_group("readers")
    for arguments in (["list", "reader"], ["resend", "reader", "--all"]):
        status, told = run(nameserver, *arguments)
        assert (status, told) == (1, "saturnmq: no group 'reader'; did you mean 'readers'?\n")


def test_the_group_alone_gets_its_dead_letters_again(nameserver: str) -> None:
    letters = given_up(nameserver, [b"first", b"second", b"third"])
    status, shown = run(nameserver, "list", "readers", "--json")
    listed = json.loads(shown)["dead_letters"]
    assert (status, [each["id"] for each in listed]) == (0, [each.message_id for each in letters])
    assert {(each["topic"], each["tag"]) for each in listed} == {("orders", "new")}
    assert run(nameserver, "list", "readers", "--limit", "1")[1].count("orders") == 1
    assert local_time(letters[0].store_timestamp) in run(nameserver, "list", "readers")[1]

    with (
        consumed(nameserver, "others", lambda _: None) as others,
        consumed(nameserver, "readers", lambda _: None) as got,
    ):
        for _ in letters:
            others.get(timeout=PATIENCE_S)
        one = letters[1].message_id
        expected = "1 of 3 dead letters would be sent again\n"
        assert run(nameserver, "resend", "readers", "--id", one, "--dry-run") == (0, expected)
        told = run(nameserver, "resend", "readers", "--id", one)
        assert told == (0, "1 of 3 dead letters sent again\n")
        again = got.get(timeout=PATIENCE_S)
        assert (again.message_id, again.body) == (one, letters[1].body)
        assert (again.topic, again.tag, again.keys) == ("orders", "new", letters[1].keys)
        assert again.reconsume_times == 0
        assert again.properties["WAIT"] == "true"  # for its copies: a letter does not
        told = run(nameserver, "resend", "readers", "--all", "--json")
        assert json.loads(told[1]) == {"group": "readers", "dead_letters": 3, "resent": 3}
        bodies = sorted(got.get(timeout=PATIENCE_S).body for _ in letters)
        assert bodies == sorted(letter.body for letter in letters)
        assert (got.empty(), others.empty()) == (True, True)


def test_every_group_gets_what_is_sent_to_the_topic_again(nameserver: str) -> None:
    (letter,) = given_up(nameserver, [b"only"])
    with consumed(nameserver, "others", lambda _: None) as others:
        assert others.get(timeout=PATIENCE_S).body == b"only"
        told = run(nameserver, "resend", "readers", "--all", "--to-topic")
        assert told == (0, "1 of 1 dead letters sent again\n")
        again = others.get(timeout=PATIENCE_S)
        assert (again.message_id, again.topic) == (letter.message_id, "orders")
        assert "RETRY_TOPIC" not in again.properties
        assert again.properties["WAIT"] == "true"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "say which: --id ID"),
        (["--all", "--id", "x"], "say which: --id ID"),
        (["--id", "x"], "1 of the ids are no dead letters of group readers"),
    ],
)
def test_a_wrong_choice_is_refused(nameserver: str, arguments: list[str], why: str) -> None:
    given_up(nameserver, [b"only"])
    status, told = run(nameserver, "resend", "readers", *arguments)
    assert (status, why in told) == (1, True)


def letter_by_hand(producer: Producer, body: bytes, topic: str) -> str:
    """The id of a letter that is made without a consumer."""
    letter = Message("%DLQ%readers", body, properties={"DLQ_ORIGIN_TOPIC": topic})
    return producer.send(letter, queue=MessageQueue("%DLQ%readers", "broker-a", 0)).message_id


def test_a_letter_that_is_refused_keeps_no_other_from_its_group(nameserver: str) -> None:
    """Its topic is gone, and topics are not made on demand."""
    given_up(nameserver, [b"only"])
    with Producer("senders", nameserver) as producer, Admin(nameserver) as admin:
        address = admin.cluster()[0].address
        admin.change_settings(address, {"autoCreateTopicEnable": "false"})
        gone = [letter_by_hand(producer, b"%d" % number, "gone") for number in range(2)]
        letter_by_hand(producer, b"behind", "orders")
        status, told = run(nameserver, "resend", "readers", "--all", "--to-topic")
        assert (status, gone[0] in told) == (1, True)
        assert "2 dead letters were sent again, 2 were not, the first of them" in told
        assert sum(row.max_offset for row in admin.describe_topic("orders")) == 3


def test_a_message_that_was_given_up_again_is_sent_once(nameserver: str) -> None:
    (letter,) = given_up(nameserver, [b"only"])
    with Admin(nameserver) as admin:
        assert admin.resend_dead_letters("readers") == 1
        with consumed(nameserver, "readers", fails) as got:
            got.get(timeout=PATIENCE_S)
            until(lambda: len(admin.dead_letters("readers")) == 2, "it is given up again")
        assert admin.resend_dead_letters("readers") == 1
        missing = "1 of the ids are no dead letters of group readers"
        told = run(nameserver, "resend", "readers", "--id", letter.message_id, "--id", "x")
        assert (told[0], missing in told[1]) == (1, True)


def test_a_letter_without_an_original_topic_goes_to_its_group_only(nameserver: str) -> None:
    """As somebody sent it to the topic of dead letters by hand."""
    given_up(nameserver, [b"only"])
    with Producer("senders", nameserver) as producer, Admin(nameserver) as admin:
        odd = producer.send(Message("%DLQ%readers", b"by hand"))
        with pytest.raises(MessageIllegal, match="does not name its original topic"):
            admin.resend_dead_letters("readers", [odd.message_id], to_topic=True)
        assert admin.resend_dead_letters("readers", [odd.message_id]) == 1
