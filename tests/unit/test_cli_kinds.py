"""`saturnmq produce`, `consume` and `message recall`: keys in order, messages for later, pop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from saturnmq import Admin
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


def test_a_message_for_later_comes_then_or_is_recalled(run: Run) -> None:
    run("topic", "create", "t", "--queues", "1")
    began = time.time()
    run("produce", "t", "--after", "1.5", given="later\n")
    [kept] = rows(run("produce", "t", "--at", str(int(began * 1000) + 900), "--acks", given="at\n"))
    [gone] = rows(run("produce", "t", "--after", "3600", "--acks", given="never\n"))
    assert run("message", "recall", gone["recall"]) == f"recalled {gone['id']}\n"
    with pytest.raises(IllegalOperation, match="was recalled"):
        run("message", "recall", gone["recall"])
    consume = ("consume", "t", "--group", "g", "--from-beginning", "-n", "2")
    assert run(*consume).splitlines() == ["at", "later"]
    assert time.time() - began >= 1.5
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


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--after", "1", "--at", "2026-11-23"], "give --after or --at"),
        (["--ordered"], "--ordered wants --key-field"),
        (["--at", "soon"], "--at 'soon' is no time"),
        (["--after=-1"], "Input should be greater than or equal to 0"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(arguments: list[str], why: str) -> None:
    done = CliRunner().invoke(app, ["produce", "t", *arguments], env=PLAIN)
    assert done.exit_code != 0
    assert why in done.stderr
