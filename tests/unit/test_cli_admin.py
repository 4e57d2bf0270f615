"""The commands of operators over a real broker: what destroys says first what would go."""

import json
import os
import pty
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime

import pytest
from saturnmq import Admin, Message, MessageQueue, Producer, PullConsumer, PushConsumer, SaturnError
from saturnmq.cli.main import app
from served_rig import served
from typer.testing import CliRunner

runner = CliRunner()


@pytest.fixture
def nameserver(tmp_path):
    with served(tmp_path) as address:
        yield address


@pytest.fixture
def run(nameserver):
    """A command; its exit status, what it prints and what it says of errors."""

    def run_one(*arguments: str):
        environment = {"SATURNMQ_NAMESERVER": nameserver, "COLUMNS": "200", "TERM": "dumb"}
        done = runner.invoke(app, list(arguments), env=environment)
        if isinstance(done.exception, SaturnError):  # which the program's main tells
            return 1, done.stdout, f"saturnmq: {done.exception}\n"
        return done.exit_code, done.stdout, done.stderr

    return run_one


@pytest.fixture
def orders(nameserver):
    """Six messages, one after the other, in the two queues of `orders`; a group has read one of
    queue 0."""
    with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
        admin.create_topic("orders", queues=2)
        results = []
        for number in range(6):
            queue = MessageQueue("orders", "broker-a", number % 2)
            results.append(
                producer.send(Message("orders", b"%d" % number, keys=["k"]), queue=queue)
            )
            sent = time.time_ns() // 1_000_000
            while time.time_ns() // 1_000_000 <= sent:
                pass  # each has a store time of its own
    with PullConsumer("readers", nameserver, auto_commit=False) as consumer:
        consumer.assign([MessageQueue("orders", "broker-a", 0)])
        consumer.seek(MessageQueue("orders", "broker-a", 0), 1)
        consumer.commit()
    return results


def answer_of(done):
    assert done[0] == 0, done
    return json.loads(done[1])


def test_a_topic_that_is_there_loses_no_queue_with_messages_unasked(run, orders):
    status, shown, told = run("topic", "create", "orders", "--queues", "1")
    assert (status, shown) == (1, "")
    assert "queues from 1 on of orders still hold 3 messages that group readers has not" in told
    assert len(answer_of(run("topic", "describe", "orders", "--json"))["queues"]) == 2
    assert len(answer_of(run("topic", "create", "orders", "--json"))["queues"]) == 8
    made = answer_of(run("topic", "create", "orders", "--queues", "1", "--yes", "--json"))
    assert len(made["queues"]) == 1


def test_a_topic_is_deleted_when_it_was_said_what_goes(run, orders):
    preview = {
        "topic": "orders",
        "messages": 6,
        "queues": [
            {"broker": "broker-a", "queue": number, "first": 0, "end": 3} for number in range(2)
        ],
        "groups": [{"group": "readers", "lag": 5}],
        "done": False,
    }
    assert answer_of(run("topic", "delete", "orders", "--dry-run", "--json")) == preview
    assert answer_of(run("topic", "delete", "orders", "--dry-run", "--yes", "--json")) == preview
    status, shown, refusal = run("topic", "delete", "orders")
    assert status == 1
    assert "6 messages go" in shown
    assert "readers" in shown
    assert refusal == "saturnmq: there is no terminal to ask at: pass --yes to do it\n"
    status, shown, refusal = run("topic", "delete", "orders", "--json")
    assert (status, json.loads(shown)) == (1, preview)
    assert "orders" in run("topic", "list")[1]
    done = answer_of(run("topic", "delete", "orders", "--yes", "--json"))
    assert done == {**preview, "done": True}
    assert "orders" not in run("topic", "list", "--all")[1]
    status, _, refusal = run("topic", "delete", "orders", "--yes")
    assert status == 1
    assert "orders" in refusal


@pytest.mark.parametrize(("reply", "status"), [("n\n", 130), ("y\n", 0)])
def test_on_a_terminal_it_asks(nameserver, orders, reply, status):
    ours, theirs = pty.openpty()
    try:
        os.write(ours, reply.encode())
        command = ["topic", "delete", "orders", "--nameserver", nameserver]
        done = subprocess.run(
            [sys.executable, "-m", "saturnmq", *command],
            stdin=theirs,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == status
    assert "Delete topic orders and its 6 messages?" in done.stderr
    assert "6 messages go" in done.stdout
    with Admin(nameserver) as admin:
        assert ("orders" in admin.list_topics()) == (status != 0)


LONG_WAITS_MS = 1_200_000, 1_800_000, 3_600_000, 7_200_000
NEW_GROUP = {
    "broker": "broker-a",
    "max_retries": 16,
    "retry_queues": 1,
    "retry_policy": {
        "type": "CUSTOMIZED",
        "customizedRetryPolicy": {
            "next": [1000, 5000, 10_000, 30_000, *range(60_000, 600_001, 60_000), *LONG_WAITS_MS]
        },
    },
    "orderly": False,
    "enabled": True,
    "broadcast": True,
    "notify_members": True,
    "broker_id": 0,
    "slow_broker_id": 1,
    "from_min": True,
    "consume_timeout_min": 15,
    "attributes": {},
    "pops": [],
}
"""The settings of a group that nobody changed."""


def test_groups_are_created_listed_described_and_deleted(run, orders):
    made = answer_of(run("group", "create", "writers", "--orderly", "--max-retries", "3", "--json"))
    assert made == {
        "group": "writers",
        "brokers": [{**NEW_GROUP, "max_retries": 3, "orderly": True}],
        "members": [],
        "queues": [],
        "silent": {},
        "missed": [],
    }
    assert answer_of(run("group", "describe", "writers", "--json")) | {"missed": []} == made
    assert run("group", "list")[1].split() == ["readers", "writers"]
    everything = answer_of(run("group", "list", "--all", "--json"))["groups"]
    assert {"readers", "writers", "TOOLS_CONSUMER"} <= set(everything)
    preview = answer_of(run("group", "delete", "readers", "--dry-run", "--json"))
    assert preview == {
        "group": "readers",
        "topics": [{"topic": "orders", "lag": 5}],
        "retry_messages": 0,
        "dead_letters": 0,
        "members": [],
        "done": False,
    }
    assert run("group", "delete", "readers")[0] == 1
    assert "readers" in run("group", "list")[1]
    assert "deleted group readers" in run("group", "delete", "readers", "--yes")[1]
    assert run("group", "list")[1].split() == ["writers"]
    status, _, refusal = run("group", "describe", "writer")
    assert status == 1
    assert "did you mean 'writers'" in refusal


def test_a_change_of_a_group_keeps_what_it_does_not_name(run, orders):
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 600_000]}}
    growing = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 5000, "max": 7_200_000, "multiplier": 3},
    }

    def brokers(*command: str) -> list[dict[str, object]]:
        return answer_of(run("group", *command, "--json"))["brokers"]

    options = ("--disable", "--no-broadcast", "--no-notify", "--no-from-min", "--retry-queues", "4")
    numbers = ("--broker-id", "2", "--slow-broker-id", "3", "--consume-timeout", "7")
    more = ("--retry-policy", "1s,10m", "--attribute", "priority.factor=30")
    expected = {
        **NEW_GROUP,
        **dict.fromkeys(("enabled", "broadcast", "notify_members", "from_min"), False),
        "retry_queues": 4,
        "broker_id": 2,
        "slow_broker_id": 3,
        "consume_timeout_min": 7,
        "retry_policy": policy,
        "attributes": {"priority.factor": "30"},
    }
    assert brokers("create", "writers", *options, *numbers, *more) == [expected]
    assert brokers("create", "writers") == [expected], "a second creation resets nothing"
    expected |= {"max_retries": 5, "retry_policy": growing, "attributes": {}}
    changes = ("--max-retries", "5", "--retry-policy", "5s*3..2h", "--without", "priority.factor")
    assert brokers("alter", "writers", *changes) == [expected]
    expected["enabled"] = True
    assert brokers("alter", "writers", "--enable") == [expected]
    assert brokers("describe", "writers") == [expected]
    _, shown, _ = run("group", "describe", "writers")
    assert "5s*3..2h" in shown


def test_a_group_is_told_to_pop_a_topic_and_to_pull_it_again(run, orders):
    assert run("group", "create", "writers")[0] == 0

    def pops() -> object:
        [here] = answer_of(run("group", "describe", "writers", "--json"))["brokers"]
        return here["pops"]

    assert run("group", "mode", "writers", "orders", "pop", "--share", "2")[0] == 0
    assert pops() == [{"topic": "orders", "share": 2}]
    assert run("group", "mode", "writers", "orders", "pull")[0] == 0
    assert pops() == []
    for command, told in (
        (("writers", "orders", "push"), "it is pull or pop"),
        (("writers", "order", "pop"), "did you mean 'orders'"),
        (("writer", "orders", "pop"), "no group 'writer'; did you mean 'writers'"),
    ):
        status, _, refusal = run("group", "mode", *command)
        assert (status, told in refusal) == (1, True), refusal
    assert "writer" not in run("group", "list")[1].split()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("alter", "writers"), "nothing to change"),
        (("alter", "writer", "--enable"), "did you mean 'writers'"),
        (("alter", "writers", "--retry-policy", "soon"), "'soon' is no delay"),
        (("alter", "writers", "--retry-policy", "5s*x..2h"), "'x' is no factor"),
        (("alter", "writers", "--retry-policy", "5s*2"), "'' is no delay"),
        (("alter", "writers", "--retry-policy", "1s*0..1s"), "a factor of at least 1"),
        (("create", "w", "--retry-policy", "5s*0..2h"), "wait of 5000 ms that grows by a factor"),
        (("alter", "writers", "--retry-policy", "9s*2..1s"), "no less than the first"),
        (("alter", "writers", "--retry-policy", f"1s*{10**30}..1m"), "multiplier is 1000000"),
        (("alter", "writers", "--attribute", "colour=red"), "unsupported key: colour"),
        (("create", "writers", "--retry-queues", "2000"), "retryQueueNums is 2000"),
    ],
)
def test_a_wrong_change_of_a_group_is_refused(run, orders, command, told):
    assert run("group", "create", "writers")[0] == 0
    status, _, refusal = run("group", *command)
    assert (status, told in refusal) == (1, True), refusal


ONE_TYPE = ("--attribute", "message.type=FIFO")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            ("topic", "create", "t", *ONE_TYPE, "--attribute", "message.type=DELAY"),
            "--attribute 'message.type=DELAY': message.type is 'FIFO' already, give one of them",
        ),
        (
            ("topic", "create", "t", *ONE_TYPE, "--type", "NORMAL"),
            "message type NORMAL and the attribute message.type=FIFO: give one of them",
        ),
        (
            ("topic", "alter", "orders", *ONE_TYPE, "--without", "message.type"),
            "--attribute message.type=FIFO and --without message.type: give one of them",
        ),
        (
            ("group", "alter", "g", "--attribute", "a=b", "--without", "a"),
            "--attribute a=b and --without a: give one of them",
        ),
        (("produce", "orders", "--property", "a=b", "--property", "a=c"), "a is 'b' already"),
        (("admin", "set", "slaveTimeout=3000", "slaveTimeout = 4000"), "is '3000' already"),
        (("admin", "nameserver-set", "a=1", "a=2"), "a is '1' already"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(run, orders, command, told):
    status, _, refusal = run(*command)
    assert (status, told in refusal) == (1, True), refusal
    assert run("topic", "describe", "t")[0] == 1, "nothing was made"


def test_an_argument_that_is_repeated_contradicts_nothing(run, orders):
    assert run("topic", "create", "t", *ONE_TYPE, *ONE_TYPE, "--type", "fifo")[0] == 0


def test_a_queue_whose_listener_hangs_is_shown(run, nameserver, orders):
    entered, leave = threading.Event(), threading.Event()

    def listener(messages):
        entered.set()
        leave.wait(60)

    consumer = PushConsumer(
        "slow", nameserver, listener=listener, ordered=True, from_beginning=True, client_id="me"
    )
    consumer.subscribe("orders")
    with consumer:
        assert entered.wait(30)
        consumer.unsubscribe("orders")
        described = {}
        until = time.monotonic() + 30
        while not any(row["awaited"] for row in described.get("queues", ())):
            assert time.monotonic() < until, described
            described = answer_of(run("group", "describe", "slow", "--json"))
        assert [member["client"] for member in described["members"]] == ["me"]
        [row] = [row for row in described["queues"] if row["awaited"]][:1]
        assert (row["client"], row["topic"], row["broker"]) == ("me", "orders", "broker-a")
        assert "yes" in run("group", "describe", "slow")[1]
        leave.set()


def test_a_reset_says_how_many_messages_it_repeats_and_skips(run, orders):
    reset = ("group", "reset-offset", "readers", "orders", "--to")

    def row(number, before, after, repeated, skipped):
        names = ("broker", "queue", "from", "to", "repeated", "skipped")
        values = ("broker-a", number, before, after, repeated, skipped)
        return dict(zip(names, values, strict=True))

    ahead = answer_of(run(*reset, "latest", "--dry-run", "--json"))
    assert ahead["queues"] == [row(0, 1, 3, 0, 2), row(1, None, 3, 0, 3)]
    assert (ahead["repeated"], ahead["skipped"], ahead["done"]) == (0, 5, False)
    status, shown, refusal = run(*reset, "earliest")
    assert status == 1
    assert "1 messages come again, 0 are skipped" in shown
    assert "--yes" in refusal
    assert answer_of(run(*reset, "2", "--queue", "1", "--yes", "--json"))["queues"] == [
        row(1, None, 2, 0, 2)
    ]
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    begin_in_the_east = "1970-01-01T00:00+01:00"  # negative: as a number it would mean the end
    for moment in (
        long_ago.isoformat(),
        str(int(long_ago.timestamp() * 1000)),
        begin_in_the_east,
    ):
        back = answer_of(run(*reset, moment, "--dry-run", "--json"))
        assert back["queues"] == [row(0, 1, 0, 1, 0), row(1, 2, 0, 2, 0)]
    assert run(*reset, "earliest", "--broker", "broker-a", "--yes")[0] == 0
    assert answer_of(run("group", "lag", "readers", "--json"))["lag"] == 6
    status, shown, refusal = run("group", "lag", "readers", "--topic", "order")
    assert (status, shown, "did you mean 'orders'" in refusal) == (1, "", True)


def test_a_skip_leaves_out_what_was_not_consumed(run, orders):
    assert "5 are skipped" in run("group", "skip", "readers", "orders", "--dry-run")[1]
    assert run("group", "skip", "readers", "orders")[0] == 1, "it asks first"
    skipped = answer_of(run("group", "skip", "readers", "orders", "--yes", "--json"))
    assert (skipped["skipped"], skipped["repeated"], skipped["done"]) == (5, 0, True)
    assert answer_of(run("group", "lag", "readers", "--json"))["lag"] == 0
    assert "'readers'" in run("group", "skip", "reader", "orders")[2]


def test_a_group_gets_the_offsets_of_another_one(run, orders):
    assert run("group", "create", "others")[0] == 0
    clone = ("group", "clone-offset", "readers", "others")
    ahead = answer_of(run(*clone, "--dry-run", "--json"))
    [row] = ahead["queues"]
    assert (row["topic"], row["queue"], row["from"], row["to"]) == ("orders", 0, None, 1)
    assert answer_of(run("group", "lag", "others", "--json"))["queues"] == []
    shown = run(*clone, "--topic", "orders", "--yes")[1]
    assert "0 messages come again, 1 are skipped" in shown
    assert shown.endswith("set the offsets of 1 queue\n")
    assert answer_of(run("group", "lag", "others", "--json"))["queues"][0]["committed"] == 1
    for arguments, word in (
        (("readers", "readers"), "two groups"),
        (("reader", "others"), "'readers'"),
        (("readers", "other"), "'others'"),
        (("readers", "others", "--topic", "order"), "'orders'"),
    ):
        status, _, refusal = run("group", "clone-offset", *arguments)
        assert (status, refusal.count("\n")) == (1, 1)
        assert word in refusal


def test_settings_of_running_brokers_are_shown_and_changed(run, orders):
    assert run("admin", "set", "transactionCheckMax=7", "slaveReadEnable = false")[0] == 0
    [settings] = answer_of(run("admin", "settings", "--json")).values()
    assert (settings["transactionCheckMax"], settings["slaveReadEnable"]) == ("7", "false")
    assert "transactionCheckMax" in run("admin", "settings", "--broker", "broker-a")[1]
    for arguments, word in (
        (("rocketmqHome=/tmp",), "rocketmqHome cannot be changed"),
        (("transactionCheckMax",), "'transactionCheckMax': it is NAME=VALUE"),
        (("transactionCheckMax=0",), "from 1 to"),
        (("transactionCheckMax=7", "--broker", "broker-b"), "'broker-a'"),
    ):
        status, shown, refusal = run("admin", "set", *arguments)
        assert (status, shown) == (1, "")
        assert word in refusal
    assert answer_of(run("admin", "producers", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("readers", "orders", "--to", "yesterday"), "ISO 8601"),
        (("readers", "orders", "--to", str(1 << 63)), f"no more than {(1 << 63) - 1} ms"),
        (("readers", "orders", "--to", "9" * 5000), "ISO 8601"),
        (("readers", "orders", "--to", "7"), "--queue N"),
        (("readers", "orders", "--to", "latest", "--queue", "2"), "0 to 1"),
        (("readers", "orders", "--to", "latest", "--broker", "broker-b"), "'broker-a'"),
        (("reader", "orders", "--to", "latest"), "'readers'"),
        (("readers", "order", "--to", "latest"), "'orders'"),
    ],
)
def test_a_reset_that_makes_no_sense_costs_one_line(run, orders, arguments, word):
    status, shown, refusal = run("group", "reset-offset", *arguments)
    assert (status, shown, refusal.count("\n")) == (1, "", 1)
    assert word in refusal


def found_by(run, *arguments):
    messages = answer_of(run("message", "find", *arguments, "--json"))["messages"]
    return [message["body"] for message in messages]


def test_messages_are_found_at_their_offset(run, orders):
    assert found_by(run, "orders", "--offset", "1") == ["2", "3"]
    assert found_by(run, "--topic", "orders", "--offset", "1", "--queue", "1") == ["3"]
    assert found_by(run, "orders", "--offset", "1", "--broker", "broker-a") == ["2", "3"]
    assert found_by(run, "--offset", orders[4].offset_message_id) == ["4"]
    assert run("message", "find", "orders", "--offset", "3")[0] == 1
    for place, told in (
        (("--queue", "9"), "topic orders has no queue 9: they are 0 to "),
        (("--broker", "broker-z"), "topic orders is not on a broker 'broker-z'; did you mean"),
    ):
        status, _, refusal = run("message", "find", "orders", "--offset", "0", *place)
        assert (status, told in refusal) == (1, True), refusal
    status, shown, _ = run("message", "find", "orders", "--offset", "3", "--json")
    assert (status, json.loads(shown)) == (1, {"messages": []})


def test_messages_are_found_by_time_and_the_hint_leads_to_the_others(run, orders):
    assert found_by(run, "orders", "--from", "2001-01-01") == [str(n) for n in range(6)]
    assert found_by(run, "orders", "--from", "0", "--to", "2100-01-01T00:00:00Z", "-n", "2") == [
        "0",
        "1",
    ]
    status, _, refusal = run("message", "find", "orders", "--to", "2001-01-01")
    assert (status, refusal) == (1, "saturnmq: no message in topic orders in that time\n")
    seen, since = set(), "0"
    while len(seen) < 6:
        status, shown, hint = run("message", "find", "orders", "--from", since, "-n", "4", "--json")
        seen |= {message["body"] for message in json.loads(shown)["messages"]}
        since = hint.split()[-1] if hint else since
    seen, until = set(), "2100-01-01"
    while len(seen) < 6:
        way = ("message", "find", "orders", "--key", "k", "--to", until, "-n", "4", "--json")
        status, shown, hint = run(*way)
        seen |= {message["body"] for message in json.loads(shown)["messages"]}
        until = hint.split()[-1] if hint else until


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("orders",), "--from/--to"),
        (("orders", "--topic", "others", "--key", "k"), "'others'"),
        (("orders", "--key", "k", "--offset", "1"), "one of"),
        (("orders", "--id", "A", "--from", "0"), "--key"),
        (("orders", "--key", "k", "--queue", "1"), "--offset"),
        (("--offset", "1"), "topic"),
        (("orders", "--offset", "first"), "'first'"),
        (("orders", "--from", "soon"), "ISO 8601"),
        (("orders", "--from", "2", "--to", "1"), "--from 2 is later than --to 1"),
        (("order", "--offset", "1"), "'orders'"),
    ],
)
def test_a_search_that_makes_no_sense_costs_one_line(run, orders, arguments, word):
    status, shown, refusal = run("message", "find", *arguments)
    assert (status, shown, refusal.count("\n")) == (1, "", 1)
    assert word in refusal


def test_a_message_does_not_steer_the_terminal_that_shows_it(run, orders, nameserver, tmp_path):
    with Producer(nameservers=nameserver) as producer:
        producer.send(
            Message("orders", b"a\x1b[2Jb\xc2\x9bc\nd", tag="\x1b]0;t\x07", keys=["k\x7f"])
        )
    _, shown, _ = run("message", "find", "orders", "--key", "k\x7f")
    _, dumped, _ = run("store", "dump", str(tmp_path), "--topic", "orders")
    for text in (shown, dumped):
        assert not [sign for sign in text if sign != "\n" and not sign.isprintable()]
        assert "\\x1b]0;t\\x07" in text
        assert "k\\x7f" in text
    assert "a\\x1b[2Jb\\x9bc" in shown
    assert len(dumped.splitlines()) == 7


def test_a_unique_id_without_its_topic_is_asked_for_with_it(run):
    status, shown, refusal = run("message", "find", "--id", "7F00000100012A00" + 15 * "0" + "F")
    assert (status, shown, refusal.count("\n")) == (1, "", 1)
    assert "for a unique id give its topic too" in refusal
    assert "ValueError" not in refusal


def test_a_trace_where_nobody_traced_says_how_to_trace(run, orders):
    status, shown, refusal = run("message", "trace", orders[0].message_id)
    assert (status, shown, refusal.count("\n")) == (1, "", 1)
    assert "trace=True" in refusal
    assert "topic create" not in refusal
    status, shown, _ = run("message", "trace", orders[0].message_id, "--json")
    assert (status, json.loads(shown)["records"]) == (1, [])
    status, _, refusal = run("message", "trace", orders[0].message_id, "--topic", "order")
    assert (status, "'orders'" in refusal) == (1, True)


def test_attributes_of_a_topic_are_given_shown_and_taken_away(run, nameserver):
    created = run("topic", "create", "typed", "--type", "fifo", "--attribute", "reserve.time=5")
    assert created[0] == 0, created
    (row,) = answer_of(run("topic", "describe", "typed", "--json"))["brokers"]
    assert row["attributes"] == {"message.type": "FIFO", "reserve.time": "5"}
    assert "message.type=FIFO, reserve.time=5" in run("topic", "describe", "typed")[1]
    altered = run(
        "topic", "alter", "typed", "--attribute", "message.type=DELAY", "--without", "reserve.time",
        "--json",
    )  # fmt: skip
    (row,) = answer_of(altered)["brokers"]
    assert row["attributes"] == {"message.type": "DELAY"}
    status, _, told = run("topic", "alter", "typed", "--attribute", "colour")
    assert (status, "it is NAME=VALUE" in told) == (1, True)
    status, _, told = run("topic", "alter", "typed", "--attribute", "message.type=LOUD")
    assert (status, "it is one of NORMAL, FIFO" in told) == (1, True)
