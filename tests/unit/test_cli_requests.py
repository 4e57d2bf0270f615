"""`saturnmq request` and `reply`: a shell asks, and programs answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from saturnmq import Admin
from served_rig import served

PATIENCE_S = 60
PROGRAM = [sys.executable, "-m", "saturnmq"]
# Takes a line, and prints it in capitals; fails on "fail" and prints nothing for "nothing".
SHOUT = (
    "import sys; line = sys.stdin.readline().strip(); "
    "sys.exit(3) if line == 'fail' else print(line.upper() if line != 'nothing' else '', end='')"
)


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as address:
        with Admin(address) as admin:
            admin.create_topic("questions", queues=2)
        yield address


def run(nameserver: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "SATURNMQ_NAMESERVER": nameserver},
    )


@contextmanager
def replying(nameserver: str, count: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A process that answers so many requests, and ends well."""
    arguments = ["reply", "questions", "--group", "answerers", "-n", str(count), *options]
    process = subprocess.Popen(
        [*PROGRAM, *arguments, "--", sys.executable, "-c", SHOUT],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SATURNMQ_NAMESERVER": nameserver},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_each_line_gets_the_reply_of_a_program(nameserver: str) -> None:
    with replying(nameserver, 3) as process:
        given = "one\ntwo\nthree\n"
        done = run(nameserver, "request", "questions", "--timeout", "30", given=given)
        assert (done.returncode, done.stdout) == (0, "ONE\nTWO\nTHREE\n"), done.stderr
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert told == "3 replies, 0 requests without one\n"


def test_a_request_without_a_reply_is_told_and_the_others_go_on(nameserver: str) -> None:
    with replying(nameserver, 4) as process:
        run(nameserver, "request", "questions", "--timeout", "30", given="there?\n")
        asked = ("request", "questions", "--timeout", "2", "--json")
        done = run(nameserver, *asked, given="fail\nnothing\nyes\n")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["status"] for row in rows] == ["RequestTimeout", "RequestTimeout", "OK"]
        assert rows[2]["reply"] == "YES"
        assert rows[2]["ms"] > 0
        assert done.returncode == 1
        assert "2 of 3 requests got no reply" in done.stderr
        _, told = process.communicate(timeout=PATIENCE_S)
    assert "ends with status 3" in told
    assert "the body is empty" in told
    assert told.endswith("2 replies, 2 requests without one\n")


def test_requests_have_tags_and_properties_and_a_namespace(nameserver: str) -> None:
    with Admin(nameserver, namespace="space") as admin:
        admin.create_topic("questions", queues=1)
    with replying(nameserver, 1, "--namespace", "space", "--tag", "loud"):
        asked = ("request", "questions", "--namespace", "space", "--property", "a=b")
        quiet = run(nameserver, *asked, "--tag", "quiet", "--timeout", "0.5", given="one\n")
        assert quiet.returncode == 1
        loud = run(nameserver, *asked, "--tag", "loud", "--timeout", "30", given="two\n")
        assert (loud.returncode, loud.stdout) == (0, "TWO\n"), loud.stderr
        with Admin(nameserver, namespace="space") as admin:
            found = admin.find_by_time("questions", 0)
        assert [(each.tag, each.properties["a"]) for each in found] == [
            ("quiet", "b"),
            ("loud", "b"),
        ]


def test_a_program_that_is_not_there_is_told(nameserver: str) -> None:
    arguments = [*PROGRAM, "reply", "questions", "--group", "answerers", "-n", "1", "no-such-one"]
    with subprocess.Popen(
        arguments,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SATURNMQ_NAMESERVER": nameserver},
    ) as process:
        run(nameserver, "request", "questions", "--timeout", "0.5", given="one\n")
        _, told = process.communicate(timeout=PATIENCE_S)
    assert "no-such-one" in told
    assert "0 replies, 1 requests without one" in told
