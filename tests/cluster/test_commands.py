"""The commands against a real cluster, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time

import pytest
from cluster_rig import check_loops
from saturnmq import PushConsumer
from tls_rig import spoken

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
    data = tmp_path_factory.mktemp("commands") / "data"
    run = Shell(data)
    up = ("cluster", "up", "--nameservers", "2", "--masters", "2", "--slaves", "1", "--json")
    sizes = ("mappedFileSizeCommitLog=8388608", "maxHashSlotNum=1000", "maxIndexNum=4000")
    facts = json.loads(run(*up, *(part for size in sizes for part in ("--set", size))))
    try:
        assert len(facts["nameservers"]) == 2
        assert [node["kind"] for node in facts["nodes"]].count("slave") == 2
        assert all(node["pid"] for node in facts["nodes"])
        assert len({node["grpc"] for node in facts["nodes"]} - {None}) == len(facts["nodes"])
        run.environment["SATURNMQ_NAMESERVER"] = ",".join(facts["nameservers"])
        yield run
        check_loops(data)
    finally:
        run("cluster", "down")


def test_what_is_produced_is_consumed_counted_and_found(shell):
    shell("topic", "create", "letters", "--queues", "2")
    assert "letters" in shell("topic", "list").splitlines()
    assert shell("topic", "list").count("TBW102") == 0
    assert shell("topic", "list", "--all").count("TBW102") == 1
    lines = '{"id": 1, "text": "hello"}\n{"id": 2, "text": "world"}\n'
    acks = [
        json.loads(line)
        for line in shell(
            "produce", "letters", "--acks", "--key-field", "id", "--tag", "A", given=lines
        ).splitlines()
    ]
    assert [(row["line"], row["status"]) for row in acks] == [(1, "SEND_OK"), (2, "SEND_OK")]
    shell("produce", "letters", "--tag", "B", given="other\n")
    readers = ("consume", "letters", "--group", "postmen", "--from-beginning")
    got = shell(*readers, "--tag", "A || C", "-n", "2").splitlines()
    assert sorted(got) == sorted(lines.splitlines())
    lag = json.loads(shell("group", "lag", "postmen", "--json"))
    assert lag["lag"] <= 1  # the line of tag B, unless the filter has passed it already
    [found] = json.loads(shell("message", "find", "--topic", "letters", "--key", "2", "--json"))[
        "messages"
    ]
    assert json.loads(found["body"])["text"] == "world"
    [same] = json.loads(
        shell("message", "find", "--topic", "letters", "--id", acks[1]["id"], "--json")
    )["messages"]
    assert same["offset_id"] == found["offset_id"]


def test_operators_see_what_goes_before_it_goes(shell):
    shell("topic", "create", "passing", "--queues", "2")
    shell("produce", "passing", given="".join(f"{number}\n" for number in range(40)))
    shell("consume", "passing", "--group", "passers", "--from-beginning", "-n", "10")
    assert "passers" in shell("group", "list").split()
    shell("group", "create", "passers", "--max-retries", "3")
    described = json.loads(shell("group", "describe", "passers", "--json"))
    assert [at["max_retries"] for at in described["brokers"]] == [3, 3]
    back = ("group", "reset-offset", "passers", "passing", "--to", "earliest")
    preview = json.loads(shell(*back, "--dry-run", "--json"))
    assert (preview["repeated"], preview["skipped"], len(preview["queues"])) == (10, 0, 4)
    assert "pass --yes" in shell.run(*back).stderr
    assert json.loads(shell(*back, "--yes", "--json"))["repeated"] == 10
    assert json.loads(shell("group", "lag", "passers", "--json"))["lag"] == 40
    found = json.loads(shell("message", "find", "passing", "--offset", "0", "--json"))["messages"]
    assert {message["offset"] for message in found} == {0}
    since = str(found[0]["stored"])
    timed = shell("message", "find", "passing", "--from", since, "-n", "100", "--json")
    assert found[0]["id"] in {message["id"] for message in json.loads(timed)["messages"]}
    going = json.loads(shell("topic", "delete", "passing", "--dry-run", "--json"))
    assert (going["messages"], going["groups"]) == (40, [{"group": "passers", "lag": 40}])
    assert "pass --yes" in shell.run("topic", "delete", "passing").stderr
    shell("topic", "delete", "passing", "--yes")
    assert "passing" not in shell("topic", "list").split()
    assert "'passing'" in shell.run("topic", "describe", "passing").stderr
    shell("group", "delete", "passers", "--yes")
    assert "passers" not in shell("group", "list").split()


def test_brokers_tell_how_they_are_and_clean_when_asked(shell):
    rows = json.loads(shell("admin", "status", "--json"))
    assert {row["broker"] for row in rows} == {"broker-0", "broker-1"}
    assert all(row["refusesWrites"] == "" for row in rows)
    assert all(int(row["flushBehindMs"]) < 500 for row in rows)
    assert "taken" in shell("admin", "status", "--broker", "broker-0")
    assert len(json.loads(shell("admin", "clean", "--json"))) == len(rows)
    refused = shell.run("admin", "clean", "--broker", "broker-7")
    assert refused.returncode == 1
    assert "did you mean 'broker-" in refused.stderr


def test_servers_and_consumers_are_asked_what_mqadmin_asks_them(shell):
    nameservers = shell.environment["SATURNMQ_NAMESERVER"].split(",")
    shell("admin", "kv", "put", "space", "one", "two")
    for each in nameservers:  # each has it, and keeps it for itself
        assert shell("admin", "kv", "get", "space", "one", "--nameserver", each) == "two\n"
    shell("admin", "kv", "delete", "space", "one")
    assert json.loads(shell("admin", "kv", "get", "space", "--json")) == {}
    interval = "scanNotActiveBrokerInterval"
    shell("admin", "nameserver-set", f"{interval}=6000")
    settings = json.loads(shell("admin", "nameserver-settings", "--json"))
    assert {at: values[interval] for at, values in settings.items()} == dict.fromkeys(
        nameservers, "6000"
    )
    shell("topic", "create", "asked", "--queues", "1")
    exported = json.loads(shell("admin", "export"))
    assert exported["topics"]["broker-1"]["asked"]["readQueueNums"] == 1
    assert len(exported["settings"]) == 6
    probes = json.loads(shell("admin", "probe", "--json"))
    assert [(row["broker"], row["status"]) for row in probes] == [
        (name, "SEND_OK") for name in ("broker-0", "broker-1") for _ in range(3)
    ]
    shell("admin", "clean", "--unused")
    assert "choose one with --broker" in shell.run("topic", "queue", "asked", "--queue", "0").stderr

    consumed = threading.Semaphore(0)
    consumer = PushConsumer(
        "askers", nameservers, listener_one=lambda _: consumed.release(), from_beginning=True
    )
    consumer.subscribe("asked")
    with consumer:
        [sent] = [json.loads(shell("produce", "asked", "--acks", given="hello\n"))]
        assert consumed.acquire(timeout=TIMEOUT_S)
        place = ("--queue", "0", "--broker", sent["broker"], "--json")
        [entry] = json.loads(shell("topic", "queue", "asked", *place))["entries"]
        assert (entry["offset"], entry["size"] > 0) == (0, True)
        again = ("message", "consume-directly", sent["id"], "--topic", "asked")
        told = json.loads(shell(*again, "--group", "askers", "--json"))
        assert told["result"] == "CR_SUCCESS"
        assert consumed.acquire(timeout=TIMEOUT_S)
        assert "thread MainThread" in shell("group", "stacks", "askers", told["client"])


def test_the_stores_of_running_brokers_are_checked_beside_them(shell):
    shell("produce", "checked", given="line\n" * 1000)
    holders, messages = set(), 0  # a batch goes to one of the two masters
    for name in ("master-0", "slave-0", "master-1", "slave-1"):
        directory = os.path.join(shell.environment["SATURNMQ_DATA"], name, "store")
        facts = json.loads(shell("store", "check", directory, "--json"))
        assert (facts["sound"], facts["running"], facts["notes"]) == (True, True, [])
        messages += facts["messages"]
        if '"body": "line"' in shell("store", "dump", directory, "--topic", "checked", "--json"):
            holders.add(name.partition("-")[0])
        assert "in use" in shell.run("store", "rebuild", directory, "--yes").stderr
    assert holders == {"master", "slave"}
    assert messages >= 2000


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
    queues = json.loads(shell("group", "lag", "heads", "--topic", "piped", "--json"))["queues"]
    left = 20_000 - sum(queue["committed"] for queue in queues)
    assert left > 0
    again = ("consume", "piped", "--group", "heads", "--from-beginning")
    rest = shell(*again, "-n", str(left)).split()
    assert len(set(rest)) == left


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


def test_masters_change_by_hand_over_and_by_take_over_and_nothing_is_lost(shell):
    def roles() -> dict[str, str]:
        nodes = json.loads(shell("cluster", "status", "--json"))["nodes"]
        return {node["name"]: node["role"] for node in nodes if node["kind"] != "nameserver"}

    def in_sync() -> bool:
        rows = json.loads(shell("admin", "replicas", "broker-0", "--json"))
        return [row["in_sync"] for row in rows] == [None, True]

    shell("topic", "create", "led", "--queues", "2")
    shell("produce", "led", given="".join(f"{number}\n" for number in range(100)))
    result = json.loads(shell("admin", "promote", "broker-0", "slave-0", "--json"))
    assert result["handed_over"]
    assert roles()["slave-0"] == "master"
    refused = shell.run("admin", "promote", "broker-0", "slave-0")
    assert "is the master of broker-0 already" in refused.stderr
    shell("produce", "led", given="".join(f"{number}\n" for number in range(100, 200)))
    eventually(in_sync)
    assert roles() == {
        "master-0": "slave",
        "slave-0": "master",
        "master-1": "master",
        "slave-1": "slave",
    }
    shell("cluster", "kill", "slave-0")
    result = json.loads(shell("admin", "promote", "broker-0", "master-0", "--json"))
    assert not result["handed_over"]
    shell("cluster", "restart", "slave-0")
    eventually(in_sync)
    assert roles()["master-0"] == "master"
    shell("produce", "led", given="".join(f"{number}\n" for number in range(200, 300)))
    got = shell("consume", "led", "--group", "h", "--from-beginning", "-n", "300").split()
    assert sorted(set(map(int, got))) == list(range(300))
    assert "127.0.0.1" in shell("admin", "replicas")


@pytest.mark.parametrize("tls", ["auto", "off"])
def test_a_cluster_has_tls_on_its_grpc_ports_or_not(tmp_path, tls: str):
    data = tmp_path / "data"
    run = Shell(data)
    try:
        told = run("cluster", "up", "--tls", tls, "--set", "mappedFileSizeCommitLog=8388608")
        grpc = [node["grpc"] for node in json.loads(run("cluster", "status", "--json"))["nodes"]]
        kinds = "plain text and TLS" if tls == "auto" else "plain text"
        assert f"gRPC ({kinds}) at {', '.join(grpc)}\n" in told
        for address in grpc:
            if tls == "auto":
                assert spoken(address) == "h2"
            else:
                with pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"):
                    spoken(address)
    finally:
        run("cluster", "down")


def test_a_node_with_a_certificate_and_without_tls_does_not_start(shell):
    refused = shell.run("nameserver", "--tls=off", "--tls-cert-path=a.pem", "--tls-key-path=a.key")
    assert refused.returncode == 1
    assert "--tls off, but there is a certificate: tlsCertPath a.pem" in refused.stderr


def eventually(condition) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
