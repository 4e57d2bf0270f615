"""The commands of the README against a real cluster, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
TIMEOUT_S = 60
PROGRAM = [sys.executable, "-m", "saturnmq"]


class Shell:
    """Runs `saturnmq ...` with one environment and checks the exit status."""

    def __init__(self, data) -> None:
        self.environment = {**os.environ, "SATURNMQ_DATA": str(data)}

    def __call__(self, *arguments: str, given: str = "", status: int = 0) -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == status, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            timeout=TIMEOUT_S,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    run = Shell(tmp_path_factory.mktemp("commands") / "data")
    up = ("cluster", "up", "--nameservers", "2", "--masters", "2", "--slaves", "1", "--json")
    facts = json.loads(run(*up))
    try:
        assert len(facts["nameservers"]) == 2
        assert [node["kind"] for node in facts["nodes"]].count("slave") == 2
        assert all(node["pid"] and node["grpc"] is None for node in facts["nodes"])
        run.environment["SATURNMQ_NAMESERVER"] = ",".join(facts["nameservers"])
        yield run
    finally:
        run("cluster", "down")


def test_what_is_produced_is_consumed_counted_and_found(shell):
    shell("topic", "create", "greetings", "--queues", "2")
    assert "greetings" in shell("topic", "list").splitlines()
    assert shell("topic", "list").count("TBW102") == 0
    assert shell("topic", "list", "--all").count("TBW102") == 1
    lines = '{"id": 1, "text": "hello"}\n{"id": 2, "text": "world"}\n'
    acks = [
        json.loads(line)
        for line in shell(
            "produce", "greetings", "--acks", "--key-field", "id", "--tag", "A", given=lines
        ).splitlines()
    ]
    assert [(row["line"], row["status"]) for row in acks] == [(1, "SEND_OK"), (2, "SEND_OK")]
    shell("produce", "greetings", "--tag", "B", given="other\n")
    readers = ("consume", "greetings", "--group", "readers", "--from-beginning")
    got = shell(*readers, "--tag", "A || C", "-n", "2").splitlines()
    assert sorted(got) == sorted(lines.splitlines())
    lag = json.loads(shell("group", "lag", "readers", "--json"))
    assert lag["lag"] <= 1  # the line of tag B, unless the filter has passed it already
    [found] = json.loads(shell("message", "find", "--topic", "greetings", "--key", "2", "--json"))[
        "messages"
    ]
    assert json.loads(found["body"])["text"] == "world"
    [same] = json.loads(
        shell("message", "find", "--topic", "greetings", "--id", acks[1]["id"], "--json")
    )["messages"]
    assert same["offset_id"] == found["offset_id"]


def test_a_group_goes_on_behind_the_last_line_printed(shell):
    shell("produce", "numbers", given="".join(f"{number}\n" for number in range(100)))
    group = ("consume", "numbers", "--group", "counters", "--from-beginning")
    got = [shell(*group, "-n", count) for count in ("1", "30", "69")]
    assert sorted(map(int, "".join(got).split())) == list(range(100))


def test_what_is_not_there_is_answered_with_the_nearest_name(shell):
    shell("topic", "create", "departures")
    for arguments, word in [
        (("topic", "describe", "departure"), "'departures'"),
        (("consume", "departurs", "--group", "g"), "'departures'"),
        (("group", "lag", "nobody"), "'nobody'"),
        (("message", "find", "--topic", "departures", "--key", "none"), "'none'"),
        (("message", "find", "--topic", "departures", "--id", "none"), "'none'"),
        (("cluster", "kill", "mastr-0"), "master-0"),
        (("cluster", "up"), "cluster down"),
    ]:
        done = shell.run(*arguments)
        assert done.returncode == 1, arguments
        assert word in done.stderr, arguments
        assert len(done.stderr.splitlines()) == 1, arguments


def test_a_bad_line_is_named_and_the_others_are_sent(shell):
    done = shell.run("produce", "mixed", "--key-field", "id", given='{"id": 7}\nno json\n')
    assert done.returncode == 1
    assert "1 of 2" in done.stdout
    assert "line 2" in done.stderr


def test_a_closed_pipe_ends_consume_and_loses_nothing(shell):
    shell("produce", "piped", given="".join(f"{number}\n" for number in range(20_000)))
    consume = shell.start("consume", "piped", "--group", "heads", "--from-beginning")
    consume.stdout.readline()
    consume.stdout.close()
    assert consume.wait(TIMEOUT_S) == 1
    assert consume.stderr.read() == ""
    consume.stdin.close()
    consume.stderr.close()
    lag = json.loads(shell("group", "lag", "heads", "--json"))["lag"]
    assert lag > 0
    rest = shell("consume", "piped", "--group", "heads", "-n", str(lag)).split()
    assert len(set(rest)) == lag


def test_an_interrupt_ends_produce_after_what_was_read(shell):
    produce = shell.start("produce", "interrupted", "--acks")
    produce.stdin.write("one\ntwo\n")
    produce.stdin.flush()
    acks = [json.loads(produce.stdout.readline()) for _ in range(2)]
    assert [row["status"] for row in acks] == ["SEND_OK", "SEND_OK"]
    produce.send_signal(signal.SIGINT)
    out, err = produce.communicate(timeout=TIMEOUT_S)
    assert (produce.returncode, out) == (130, "")
    assert "2 of 2" in err
    assert "Traceback" not in err


def test_a_killed_master_is_shown_and_restarted_and_its_slave_serves_meanwhile(shell):
    shell("produce", "kept", given="".join(f"{number}\n" for number in range(1_000)))
    shell("cluster", "kill", "master-0")
    states = {
        node["name"]: node["alive"]
        for node in json.loads(shell("cluster", "status", "--json", status=1))["nodes"]
    }
    assert [name for name, alive in states.items() if not alive] == ["master-0"]
    got = shell("consume", "kept", "--group", "g", "--from-beginning", "-n", "1000").split()
    assert sorted(map(int, got)) == list(range(1_000))
    shell("cluster", "restart", "master-0")
    shell("cluster", "status")
    shell("produce", "kept", given="after\n")
