"""`saturnmq produce`, `consume` and `message recall`: keys in order, messages for later, pop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from saturnmq import Admin, ReceivedMessage, TransactionProducer, TransactionState
from saturnmq.cli import consuming, messages
from saturnmq.cli.main import app
from saturnmq.runtime.errors import IllegalOperation
from served_rig import served
from typer.testing import CliRunner

Run = Callable[..., str]
PLAIN = {"COLUMNS": "200", "TERM": "dumb"}


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as address:
        yield address


@pytest.fixture
def run(nameserver: str) -> Run:
    """A command that succeeds; what it prints."""
    return runner(nameserver)


def runner(nameserver: str) -> Run:
    def run_one(*arguments: str, given: str = "") -> str:
        environment = {"SATURNMQ_NAMESERVER": nameserver, **PLAIN}
        done = CliRunner().invoke(app, list(arguments), env=environment, input=given)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.stderr
        return done.stdout

    return run_one


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_lines_of_one_key_keep_their_order(run: Run, nameserver: str) -> None:
    run("topic", "create", "t", "--queues", "4")
    lines = "".join(f"{number % 5},{number}\n" for number in range(40))
    acks = rows(run("produce", "t", "--key-field", "0", "--ordered", "--acks", given=lines))
    places: dict[int, list[tuple[int, int]]] = {}
    for row in acks:
        places.setdefault((row["line"] - 1) % 5, []).append((row["queue"], row["offset"]))
    for of_key in places.values():
        assert len({queue for queue, _ in of_key}) == 1
        assert of_key == sorted(of_key)
    assert len({of_key[0][0] for of_key in places.values()}) > 1
    with Admin(nameserver) as admin:
        found = admin.find_by_key("t", "3")
    assert {message.properties["__SHARDINGKEY"] for message in found} == {"3"}


@pytest.mark.parametrize(
    ("field", "odd"),
    [("0", "a\rb,1"), ("0", '"' + "x" * 200_000 + '",1'), ("id", "[" * 100_000)],
    ids=["bare CR", "long column", "deep JSON"],
)
def test_a_line_whose_key_cannot_be_read_keeps_no_other_from_its_topic(
    nameserver: str, field: str, odd: str
) -> None:
    command = ["produce", "t", "--key-field", field, "--nameserver", nameserver]
    with Admin(nameserver) as admin:
        admin.create_topic("t", queues=1)
        lines = f'{odd}\n{{"id": 1}}\n'
        done = CliRunner().invoke(app, command, input=lines.encode())
        assert done.stdout == "1 of 2 messages acknowledged\n"
        assert f"the last: line 1: --key-field {field}: " in done.stderr
        assert admin.describe_topic("t")[0].max_offset == 1


def test_a_message_for_later_comes_then_or_is_recalled(run: Run) -> None:
    run("topic", "create", "t", "--queues", "1")
    began = time.time()
    run("produce", "t", "--after", "5", given="later\n")
    soon = str(int(time.time() * 1000) + 2_500)
    [kept] = rows(run("produce", "t", "--at", soon, "--acks", given="at\n"))
    [gone] = rows(run("produce", "t", "--after", "3600", "--acks", given="never\n"))
    assert run("message", "recall", gone["recall"]) == f"recalled {gone['id']}\n"
    with pytest.raises(IllegalOperation, match="was recalled"):
        run("message", "recall", gone["recall"])
    consume = ("consume", "t", "--group", "g", "--from-beginning", "-n", "2")
    assert run(*consume).splitlines() == ["at", "later"]
    assert time.time() - began >= 5
    with pytest.raises(IllegalOperation, match="was delivered"):
        run("message", "recall", kept["recall"])
    [plain] = rows(run("produce", "t", "--acks", given="now\n"))
    assert "recall" not in plain


def test_messages_are_popped_and_acknowledged(run: Run, nameserver: str) -> None:
    run("topic", "create", "t", "--queues", "2")
    run("produce", "t", "--tag", "A", given="".join(f"{number}\n" for number in range(50)))
    run("produce", "t", "--tag", "B", given="other\n")
    consume = ("consume", "t", "--group", "g", "--from-beginning", "--pop", "--tag", "A")
    first = run(*consume, "-n", "20").splitlines()
    second = [row["body"] for row in rows(run(*consume, "-n", "30", "--json"))]
    assert sorted(map(int, first + second)) == list(range(50))
    with Admin(nameserver) as admin:
        assert sum(queue.lag for queue in admin.group_lag("g", "t")) <= 1  # that of tag B


@pytest.mark.parametrize("how", [[], ["--pop"], ["--ordered"], ["--broadcasting"]])
def test_consume_ends_when_no_message_came_for_so_long(
    run: Run, nameserver: str, how: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # has the places of a broadcasting member
    run("topic", "create", "t", "--queues", "1")
    run("produce", "t", given="a\nb\n")
    consume = ["consume", "t", "--group", "g", "--from-beginning", "--timeout", "2", *how]
    environment = {"SATURNMQ_NAMESERVER": nameserver}
    done = CliRunner().invoke(app, [*consume, "-n", "3"], env=environment)
    assert (done.stdout, done.exit_code) == ("a\nb\n", 1)
    assert "2 of 3 messages came, and no other in 2 s" in done.stderr
    run("produce", "t", given="c\n")
    done = CliRunner().invoke(app, consume, env=environment)
    assert (done.stdout.splitlines()[-1:], done.exit_code) == (["c"], 0)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--after", "1", "--at", "2026-11-23"], "give --after, --at or --delay-level"),
        (["--ordered"], "--ordered wants --key-field"),
        (["--at", "soon"], "--at 'soon' is no time"),
        (["--property", "TAGS=x"], "--property TAGS: the system gives that name a meaning"),
        (["--tag", "a||b"], "'||' separates the tags that a consumer asks for"),
        (["--after=-1"], "Input should be greater than or equal to 0"),
        (["--after", "1", "--delay-level", "2"], "give --after, --at or --delay-level"),
        (["--transaction", "maybe"], "it ends by commit, rollback, unknown"),
        (["--transaction", "commit", "--after", "1"], "neither delivered later nor sent one-way"),
        (["--transaction", "commit", "--one-way"], "neither delivered later nor sent one-way"),
        (["--one-way", "--acks"], "--acks has nothing to print"),
        (["--property", "price"], "--property 'price': it is NAME=VALUE"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(arguments: list[str], why: str) -> None:
    done = CliRunner().invoke(app, ["produce", "t", *arguments], env=PLAIN)
    assert done.exit_code != 0
    assert why in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--broadcasting", "--pop"], "goes with neither --pop nor --ordered"),
        (["--broadcasting", "--ordered"], "goes with neither --pop nor --ordered"),
        (["--instance", "one"], "--instance goes with --broadcasting"),
        (["--tag", "a", "--sql", "b > 3"], "give --tag or --sql"),
    ],
)
def test_a_choice_of_a_reader_that_makes_no_sense_is_refused(
    arguments: list[str], why: str
) -> None:
    done = CliRunner().invoke(app, ["consume", "t", "--group", "g", *arguments], env=PLAIN)
    assert done.exit_code != 0
    assert why in done.stderr


def test_a_start_that_makes_no_sense_is_refused(nameserver: str) -> None:
    environment = {"SATURNMQ_NAMESERVER": nameserver, **PLAIN}
    with Admin(nameserver) as admin:
        admin.create_topic("t")
    for more, why in (
        (["--from", "first", "--from-beginning"], "give --from-beginning or --from"),
        (["--from", "middle"], "--from 'middle' is no time"),
        (["--from", str(1 << 63)], f"no more than {(1 << 63) - 1} ms"),
    ):
        done = CliRunner().invoke(app, ["consume", "t", "--group", "g", *more], env=environment)
        assert (done.exit_code, why in done.stderr) == (1, True)


def test_lines_get_properties_and_wait_for_a_delay_level(run: Run, nameserver: str) -> None:
    run("topic", "create", "t", "--queues", "1")
    given = ("--property", "price=3", "--property", "region=eu = west", "--delay-level", "1")
    began = time.time()
    [ack] = rows(run("produce", "t", *given, "--acks", given="one\n"))
    [got] = rows(run("consume", "t", "--group", "g", "--from", "first", "-n", "1", "--json"))
    assert time.time() - began >= 1.0
    assert got["id"] == ack["id"]
    assert (got["properties"]["price"], got["properties"]["region"]) == ("3", "eu = west")


def test_lines_are_sent_one_way(run: Run, nameserver: str) -> None:
    run("topic", "create", "t", "--queues", "2")
    lines = "".join(f"{number}\n" for number in range(50))
    told = json.loads(run("produce", "t", "--one-way", "--json", given=lines))
    assert told == {"topic": "t", "sent": 50, "failed": 0}
    got = run("consume", "t", "--group", "g", "--from-beginning", "-n", "50").splitlines()
    assert sorted(map(int, got)) == list(range(50))
    assert run("produce", "t", "--one-way", given="x\n") == "1 of 1 messages sent\n"


def test_each_line_is_a_transaction_that_ends_as_it_is_told(tmp_path: Path) -> None:
    quick = {"transaction_timeout_ms": 100, "transaction_check_ms": 100}
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(bytes(message.body).decode())
        return TransactionState.COMMIT

    with served(tmp_path, **quick) as nameserver:
        run = runner(nameserver)
        run("topic", "create", "t", "--queues", "1")
        for end in ("commit", "rollback", "unknown"):
            given = "".join(f"{end} {number}\n" for number in range(3))
            sent = ("produce", "t", "--transaction", end, "--group", "payers", "--acks")
            told = rows(run(*sent, given=given))
            assert [row["transaction"] for row in told] == [end] * 3
            assert [row["confirmed"] for row in told] == [end != "unknown"] * 3
        consume = ("consume", "t", "--group", "g", "--from-beginning", "-n", "3")
        assert run(*consume).splitlines() == [f"commit {number}" for number in range(3)]
        with TransactionProducer("payers", nameserver, check=check, topics=["t"]):
            assert sorted(run(*consume).splitlines()) == [f"unknown {n}" for n in range(3)]
        assert sorted(asked) == [f"unknown {number}" for number in range(3)]


def test_lines_are_traced_on_their_way_in_and_out(run: Run) -> None:
    run("topic", "create", "t", "--queues", "1")
    [ack] = rows(run("produce", "t", "--trace", "--acks", given="one\n"))
    consume = ("consume", "t", "--trace", "--from-beginning", "-n", "1")
    for group, how in (("polls", ()), ("pops", ("--pop",)), ("listens", ("--ordered",))):
        assert run(*consume, "--group", group, *how) == "one\n"
    found = json.loads(run("message", "trace", ack["id"], "--json"))["records"]
    kinds = [(record["kind"], record["group"]) for record in found]
    assert kinds[0] == ("Pub", "saturnmq-cli")
    assert sorted(kinds[1:]) == [
        (kind, group)
        for kind in ("SubAfter", "SubBefore")
        for group in ("listens", "polls", "pops")
    ]


def test_topic_and_group_are_those_of_a_namespace(run: Run, nameserver: str) -> None:
    run("topic", "create", "space%t", "--queues", "1")
    run("produce", "t", "--namespace", "space", given="one\n")
    consume = ("consume", "t", "--namespace", "space", "--from-beginning", "-n", "1", "--json")
    for group, how in (("polls", ()), ("pops", ("--pop",)), ("listens", ("--ordered",))):
        [got] = rows(run(*consume, "--group", group, *how))
        assert (got["topic"], got["body"]) == ("t", "one")
    with Admin(nameserver) as admin:
        assert {"space%polls", "space%pops", "space%listens"} <= set(admin.list_groups())


@pytest.mark.parametrize("how", [(), ("--pop",), ("--ordered",)], ids=str)
def test_a_new_group_starts_at_a_place_or_at_a_time(run: Run, how: tuple[str, ...]) -> None:
    run("topic", "create", "t", "--queues", "1")
    acks = [row for n in range(3) for row in rows(run("produce", "t", "--acks", given=f"{n}\n"))]
    [second] = json.loads(run("message", "find", "t", "--id", acks[1]["id"], "--json"))["messages"]
    consume = ("consume", "t", *how)
    since = str(second["stored"])
    assert run(*consume, "--group", "a", "--from", since, "-n", "2").splitlines() == ["1", "2"]
    assert run(*consume, "--group", "b", "--from", "first", "-n", "1").splitlines() == ["0"]
    assert run(*consume, "--group", "b", "--from", since, "-n", "1").splitlines() == ["1"]


@pytest.mark.parametrize("how", [("--ordered",), ("--ordered", "--pop")], ids=str)
def test_lines_of_a_queue_come_in_their_order_and_go_on_behind_the_last(
    run: Run, how: tuple[str, ...]
) -> None:
    run("topic", "create", "t", "--queues", "3")
    lines = "".join(f"{number % 5},{number}\n" for number in range(60))
    run("produce", "t", "--key-field", "0", "--ordered", given=lines)
    consume = ("consume", "t", "--group", "g", "--from-beginning", *how)
    got = [line for n in (7, 20, 33) for line in run(*consume, "-n", str(n)).splitlines()]
    for key in range(5):
        assert [line for line in got if line[0] == str(key)] == [
            f"{key},{number}" for number in range(60) if number % 5 == key
        ]


def test_every_member_of_a_broadcasting_group_gets_all_and_goes_on_behind_the_last(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run("topic", "create", "t", "--queues", "1")
    run("produce", "t", given="".join(f"{number}\n" for number in range(30)))
    consume = ("consume", "t", "--group", "g", "--from-beginning", "--broadcasting")
    for member in ("one", "two"):
        got = []
        for count in ("4", "26"):
            got += run(*consume, "--instance", member, "-n", count).splitlines()
        assert got == [str(number) for number in range(30)]
    assert run(*consume, "-n", "1") == "0\n"  # of no name of its own


def test_a_line_that_an_ordered_reader_cannot_print_comes_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("topic", "create", "t", "--queues", "1")
    run("produce", "t", given="one\ntwo\n")
    consume = ("consume", "t", "--group", "g", "--from-beginning", "--ordered", "-n", "2")
    printing = consuming._print_message

    def closed(message: ReceivedMessage, as_json: bool) -> None:
        if message.body == b"two":
            raise BrokenPipeError
        printing(message, as_json)

    monkeypatch.setattr(consuming, "_print_message", closed)
    with pytest.raises(BrokenPipeError):
        run(*consume)
    monkeypatch.undo()
    assert run(*consume[:-1], "1") == "two\n"


@pytest.mark.parametrize("how", ["", "--ordered"])
def test_a_message_that_a_closed_output_does_not_take_is_not_consumed(
    run: Run, nameserver: str, how: str
) -> None:
    run("topic", "create", "t", "--queues", "1")
    run("produce", "t", given="one\n")
    consume = f"consume t --group g --from-beginning -n 1 {how}"
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m saturnmq {consume} >&-"],
        stderr=subprocess.PIPE,
        env={**os.environ, "SATURNMQ_NAMESERVER": nameserver},
        timeout=60,
        check=False,
    )
    assert (done.returncode, b"standard output is closed" in done.stderr) == (1, True)
    assert run(*consume.split()) == "one\n"


def test_all_lines_are_sent_although_what_became_of_them_cannot_be_printed(nameserver: str) -> None:
    lines = b"x\n" * (messages.WINDOW + 1_000)  # more than may be under way
    command = [sys.executable, "-m", "saturnmq", "produce", "t", "--acks"]
    environment = {**os.environ, "SATURNMQ_NAMESERVER": nameserver}
    with Admin(nameserver) as admin:
        admin.create_topic("t", queues=1)
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                command,
                input=lines,
                stdout=full,
                stderr=subprocess.PIPE,
                env=environment,
                timeout=60,
                check=False,
            )
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
        assert b"No space left" in done.stderr
        [queue] = admin.describe_topic("t")
    assert queue.max_offset == messages.WINDOW + 1_000


def test_lines_come_from_whatever_can_be_opened(run: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("one\ntwo\n",), daemon=True)
    writer.start()
    assert run("produce", "t", str(pipe)) == "2 of 2 messages acknowledged\n"
    writer.join(10)
    assert not writer.is_alive()
