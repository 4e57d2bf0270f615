"""What an operator asks of nameservers, brokers and connected consumers, by Admin and by
`saturnmq`, at a real broker."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster_rig import until
from saturnmq import (
    Admin,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SaturnError,
    SendStatus,
    SimpleConsumer,
)
from saturnmq.cli.main import app
from saturnmq.runtime.errors import (
    ConsumerNotOnline,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    RouteNotFound,
    SystemError_,
)
from served_rig import nameserver_alone, served
from typer.testing import CliRunner

SCAN = "scanNotActiveBrokerInterval"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as address:
        yield address


@pytest.fixture
def admin(nameserver: str) -> Iterator[Admin]:
    with Admin(nameserver) as made:
        yield made


@pytest.fixture
def run(nameserver: str) -> Run:
    """A command; its exit status, what it prints and what it says of errors."""

    def run_one(*arguments: str) -> tuple[int, str, str]:
        environment = {"SATURNMQ_NAMESERVER": nameserver, "COLUMNS": "200", "TERM": "dumb"}
        done = CliRunner().invoke(app, list(arguments), env=environment)
        if isinstance(done.exception, SaturnError):  # which the program's main tells
            return 1, done.stdout, f"saturnmq: {done.exception}\n"
        return done.exit_code, done.stdout, done.stderr

    return run_one


def answer_of(done: tuple[int, str, str]) -> Any:
    assert done[0] == 0, done
    return json.loads(done[1])


def test_entries_of_nameservers_are_written_read_and_deleted(admin: Admin, run: Run) -> None:
    assert admin.kv_config("space") == {}
    admin.put_kv_config("space", "one", "two = 2; three")
    assert admin.kv_config("space") == {"one": "two = 2; three"}
    assert run("admin", "kv", "put", "space", "four", "five") == (0, "wrote four in space\n", "")
    told = run("admin", "kv", "put", "space", "namespace", "six", "--json")
    assert answer_of(told) == {"namespace": "space", "key": "namespace", "value": "six"}
    admin.delete_kv_config("space", "namespace")
    assert answer_of(run("admin", "kv", "get", "space", "--json")) == admin.kv_config("space")
    assert run("admin", "kv", "get", "space", "four") == (0, "five\n", "")
    assert "two = 2; three" in run("admin", "kv", "get", "space")[1]
    status, _, refused = run("admin", "kv", "get", "space", "six")
    assert (status, refused) == (1, "saturnmq: there is no key 'six' in namespace 'space'\n")
    assert run("admin", "kv", "delete", "space", "four")[0] == 0
    status, shown, refused = run("admin", "kv", "delete", "space", "four")
    assert (status, shown) == (1, "")
    assert refused == "saturnmq: there is no key 'four' in namespace 'space'\n"
    admin.delete_kv_config("space", "one")
    admin.delete_kv_config("space", "one")  # it is gone already
    assert admin.kv_config("space") == {}
    admin.create_topic("ordered", 2, order=True)
    assert admin.kv_config("ORDER_TOPIC_CONFIG") == {"ordered": "broker-a:2"}


def test_a_change_goes_to_every_nameserver_and_the_first_error_is_raised_at_the_end(
    tmp_path: Path,
) -> None:
    with served(tmp_path / "a") as first, served(tmp_path / "b") as second:
        with Admin([first, "127.0.0.1:1", second]) as admin:
            with pytest.raises(SaturnError, match=r"127\.0\.0\.1:1"):
                admin.put_kv_config("space", "one", "two")
            with pytest.raises(SaturnError, match=r"127\.0\.0\.1:1"):
                admin.change_nameserver_settings({SCAN: "7000"})
        for each in (first, second):
            with Admin(each) as admin:
                assert admin.kv_config("space") == {"one": "two"}
                assert admin.nameserver_settings()[each][SCAN] == "7000"


AWAY = "127.0.0.1:1"


@pytest.fixture
def run_with_one_away(run: Run, nameserver: str) -> Run:
    """A command that is given a second nameserver, which is away."""
    return lambda *command: run(*command, "--nameserver", f"{nameserver},{AWAY}")


MISSED = f"1 of 2 nameservers did not do it: {AWAY}: no connection to {AWAY}"


def test_of_several_nameservers_those_that_missed_an_entry_are_named(
    admin: Admin, run_with_one_away: Run
) -> None:
    status, _, error = run_with_one_away("admin", "kv", "put", "space", "one", "two")
    assert (status, error.startswith(f"saturnmq: {MISSED}")) == (1, True)
    assert admin.kv_config("space") == {"one": "two"}
    status, _, error = run_with_one_away("admin", "kv", "delete", "space", "one")
    assert (status, error.startswith(f"saturnmq: {MISSED}")) == (1, True)
    assert admin.kv_config("space") == {}
    status, _, error = run_with_one_away("admin", "kv", "delete", "space", "one")
    assert (status, error.startswith(f"saturnmq: {MISSED}")) == (1, True), "it may be there"


def test_a_topic_that_one_nameserver_missed_is_made_or_deleted_at_all_others(
    admin: Admin, run_with_one_away: Run
) -> None:
    status, _, error = run_with_one_away("topic", "create", "flights", "--order")
    assert (status, f"topic 'flights' was made, but {MISSED}" in error) == (1, True)
    assert "flights" in admin.list_topics()
    assert admin.kv_config("ORDER_TOPIC_CONFIG") == {"flights": "broker-a:8"}
    status, _, error = run_with_one_away("topic", "delete", "flights", "--yes")
    assert status == 1
    assert f"topic 'flights' is deleted on the brokers, but {MISSED}" in error
    assert error.endswith("; repeat it\n")
    assert admin.kv_config("ORDER_TOPIC_CONFIG") == {}
    assert "flights" not in admin.list_topics()
    status, _, error = run_with_one_away("group", "create", "billing")
    status, _, error = run_with_one_away("group", "delete", "billing", "--yes")
    assert (status, "billing" in admin.list_groups()) == (1, False)
    assert f"group 'billing' is deleted on the brokers, but {MISSED}" in error
    assert error.endswith("end there when the brokers register\n")


def test_the_order_that_a_deleted_topic_left_is_told_and_can_be_deleted(
    tmp_path: Path, run: Run
) -> None:
    with served(tmp_path / "a") as first, nameserver_alone() as second, Admin(second) as other:
        both = ["--nameserver", f"{first},{second}"]
        other.put_kv_config("ORDER_TOPIC_CONFIG", "flights", "broker-a:2")
        status, shown, told = run("topic", "create", "flights", "--json", *both)
        assert (status, json.loads(shown)["topic"]) == (0, "flights")
        assert "nameservers have the order broker-a:2 for flights already" in told
        with Admin(first) as admin:
            admin.delete_topic("flights")
        gone = answer_of(run("topic", "delete", "flights", "--yes", "--json", *both))
        assert (gone["messages"], gone["queues"], gone["done"]) == (0, [], True)
        assert other.kv_config("ORDER_TOPIC_CONFIG") == {}
        assert run("topic", "delete", "flights", "--yes", *both)[0] == 1, "there is nothing left"


def test_a_nameserver_that_does_not_answer_delays_no_other(nameserver: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, Admin(nameserver) as other:
        address = "{}:{}".format(*silent.getsockname())
        with Admin([address, nameserver], timeout=60) as admin, ThreadPoolExecutor() as pool:
            told = pool.submit(admin.put_kv_config, "space", "one", "two")
            until(lambda: other.kv_config("space"), "the other nameserver is told")
            assert not told.done()
            silent.accept()[0].close()
            with pytest.raises(SaturnError, match=address):
                told.result()


def test_a_deleted_topic_leaves_no_order_to_a_new_one(tmp_path: Path) -> None:
    with served(tmp_path, order_messages=True) as nameserver, Admin(nameserver) as admin:
        admin.create_topic("flights", queues=2, order=True)
        assert admin.route("flights").order_topic_conf == "broker-a:2"
        admin.delete_topic("flights")
        assert admin.kv_config("ORDER_TOPIC_CONFIG") == {}
        admin.create_topic("flights", queues=8)
        assert admin.route("flights").order_topic_conf is None


def test_settings_of_running_nameservers_are_shown_and_changed(
    nameserver: str, admin: Admin, run: Run
) -> None:
    shown = answer_of(run("admin", "nameserver-settings", "--json"))
    assert shown == admin.nameserver_settings()
    assert shown[nameserver][SCAN] == "5000"
    changed = answer_of(run("admin", "nameserver-set", f"{SCAN}=6000", "--json"))
    assert changed == {"settings": {SCAN: "6000"}, "nameservers": [nameserver]}
    assert admin.nameserver_settings()[nameserver][SCAN] == "6000"
    with pytest.raises(NoPermission, match="listenPort"):
        admin.change_nameserver_settings({"listenPort": "1"})
    with pytest.raises(InvalidParameter, match="both are one line"):
        admin.change_nameserver_settings({SCAN: "1\nlistenPort=1"})
    assert run("admin", "nameserver-set", SCAN) == (
        1,
        "",
        f"saturnmq: setting '{SCAN}': it is NAME=VALUE\n",
    )
    assert SCAN in run("admin", "nameserver-settings")[1]


def test_a_nameserver_that_is_away_hides_no_settings_of_the_others(
    tmp_path: Path, run: Run
) -> None:
    with served(tmp_path / "a") as first, served(tmp_path / "b") as second:
        given = ("--nameserver", f"{first},127.0.0.1:1,{second}")
        for command in (("nameserver-set", f"{SCAN}=8000"), ("nameserver-settings", "--json")):
            status, told, refused = run("admin", *command, *given)
            assert (status, first in told, second in told) == (1, True, True)
            assert "1 of 3 nameservers did not do it: 127.0.0.1:1: " in refused
        assert {values[SCAN] for values in json.loads(told).values()} == {"8000"}


def test_a_broker_that_one_nameserver_knows_counts_whichever_is_in_use(tmp_path: Path) -> None:
    with (
        served(tmp_path / "a") as first,
        served(tmp_path / "b", broker_name="broker-b") as second,
        served(tmp_path / "c") as third,
    ):
        where = {}
        for each in (first, second, third):
            with Admin(each) as admin:
                [node] = admin.cluster()
            where[each] = node.address
        for wanted, others in ((first, (second, third)), (third, (second, first))):
            with Admin([wanted, *others, "127.0.0.1:1"]) as admin:
                admin._target.core._rotation._at = 0
                found = {node.broker_name: node.address for node in admin.cluster()}
            assert found == {"broker-a": where[wanted], "broker-b": where[second]}


def test_a_probe_tells_whether_a_broker_takes_messages(admin: Admin, run: Run) -> None:
    probe = admin.probe("broker-a")
    assert (probe.broker_name, probe.status) == ("broker-a", SendStatus.OK)
    assert 0 < probe.milliseconds < 5_000
    rows = answer_of(run("admin", "probe", "-n", "2", "--json"))
    assert [(row["broker"], row["ok"], row["status"]) for row in rows] == [
        ("broker-a", True, "SEND_OK")
    ] * 2
    assert all(row["ms"] > 0 for row in rows)
    with pytest.raises(RouteNotFound, match="no master is called 'broker-b'"):
        admin.probe("broker-b")


def test_a_probe_that_is_refused_says_why(tmp_path: Path) -> None:
    with served(tmp_path, max_message_bytes=8) as nameserver:
        with Admin(nameserver) as admin, pytest.raises(MessageIllegal):
            admin.probe("broker-a")
        done = CliRunner().invoke(
            app, ["admin", "probe", "--nameserver", nameserver], env={"COLUMNS": "200"}
        )
    assert done.exit_code == 1
    assert "maxMessageSize" in done.stdout


def test_an_export_has_topics_groups_and_settings(admin: Admin, run: Run, tmp_path: Path) -> None:
    admin.create_topic("orders", 3, message_type="FIFO")
    admin.create_group("readers", max_retries=2)
    found = admin.export()
    topic = found["topics"]["broker-a"]["orders"]
    assert (topic["readQueueNums"], topic["attributes"]) == (3, {"message.type": "FIFO"})
    assert found["groups"]["broker-a"]["readers"]["retryMaxTimes"] == 2
    (node,) = admin.cluster()
    assert found["settings"][node.address]["brokerName"] == "broker-a"
    assert len(found["settings"]) == 2  # the nameserver's, too
    file = tmp_path / "cluster.json"
    assert run("admin", "export", str(file)) == (0, "", "")
    status, printed, _ = run("admin", "export")
    for text in (file.read_text(), printed):
        assert json.loads(text).keys() == found.keys()
        assert json.loads(text)["topics"] == found["topics"]
    assert status == 0


def test_the_entries_of_a_queue_lead_into_the_log(nameserver: str, admin: Admin, run: Run) -> None:
    admin.create_topic("orders", queues=1)
    empty = answer_of(run("topic", "queue", "orders", "--queue", "0", "--json"))
    assert (empty["first"], empty["end"], empty["entries"]) == (0, 0, [])
    queue = MessageQueue("orders", "broker-a", 0)
    with Producer(nameservers=nameserver) as producer:
        sent = [producer.send(Message("orders", bytes([65 + n]), tag="A")) for n in range(5)]
    entries = admin.queue_entries(queue)
    assert [entry.offset for entry in entries] == list(range(5))
    ids = [int(result.offset_message_id[-16:], 16) for result in sent]
    assert [entry.physical_offset for entry in entries] == ids
    assert {entry.tags_code for entry in entries} == {ord("A")}
    assert entries[1].physical_offset == entries[0].physical_offset + entries[0].size
    assert admin.queue_entries(queue, 3, 1) == entries[3:4]
    with pytest.raises(InvalidParameter, match="index 9 is outside"):
        admin.queue_entries(queue, 9)
    shown = answer_of(run("topic", "queue", "orders", "--queue", "0", "-n", "2", "--json"))
    assert (shown["broker"], shown["queue"], shown["first"], shown["end"]) == ("broker-a", 0, 0, 5)
    assert shown["entries"] == [entry._asdict() for entry in entries[:2]]
    assert "0 to 5" in run("topic", "queue", "orders", "--queue", "0", "--offset", "4")[1]
    for arguments, why in (
        (("--queue", "3"), "topic orders has no queue 3: they are 0 to 0"),
        (
            ("--queue", "0", "--broker", "broker-b"),
            "topic orders is not on a broker 'broker-b'; did you mean 'broker-a'?",
        ),
    ):
        status, _, refused = run("topic", "queue", "orders", *arguments)
        assert (status, refused) == (1, f"saturnmq: {why}\n")


def test_what_is_left_of_topics_is_deleted_when_asked(admin: Admin, run: Run) -> None:
    (node,) = admin.cluster()
    admin.create_topic("orders")
    admin.delete_unused(node.address)
    assert answer_of(run("admin", "clean", "--unused", "--json")) == [node.address]
    assert "orders" in admin.list_topics()


def push(nameserver: str, listener: Any) -> PushConsumer:
    consumer = PushConsumer(
        "readers", nameserver, listener_one=listener, from_beginning=True, client_id="reader-1"
    )
    consumer.subscribe("orders")
    return consumer


def test_a_consumer_consumes_a_stored_message_again_when_asked(
    nameserver: str, admin: Admin, run: Run
) -> None:
    got: list[str] = []
    consumed = threading.Semaphore(0)

    def listener(message: ReceivedMessage) -> ConsumeResult:
        got.append(f"{message.topic} {bytes(message.body).decode()}")
        consumed.release()
        return ConsumeResult.RETRY if len(got) == 3 else ConsumeResult.SUCCESS

    admin.create_topic("orders", queues=1)
    with Producer(nameservers=nameserver) as producer:
        sent = producer.send(Message("orders", b"one"))
    with push(nameserver, listener):
        assert consumed.acquire(timeout=30)
        message = admin.find_message(sent.message_id, "orders")
        outcome = admin.consume_message_directly(message, "readers", "reader-1")
        assert (outcome.result, outcome.success, outcome.ordered) == ("CR_SUCCESS", True, False)
        again = ("message", "consume-directly", sent.message_id, "--topic", "orders")
        status, shown, _ = run(*again, "--group", "readers")
        assert (status, shown.split(" after ")[0]) == (1, "reader-1: CR_LATER")
        told = answer_of(run(*again, "--group", "readers", "--client", "reader-1", "--json"))
        assert (told["client"], told["result"]) == ("reader-1", "CR_SUCCESS")
        assert got == ["orders one"] * 4
        with pytest.raises(SystemError_, match="<readers> <another> not online"):
            admin.consume_message_directly(message, "readers", "another")
        assert run(*again, "--group", "nobody")[0] == 1
    simple = SimpleConsumer("readers", nameserver, client_id="simple-1")
    simple.subscribe("orders")
    with simple, pytest.raises(SystemError_, match="does not do this here"):
        admin.consume_message_directly(message, "readers", "simple-1")
    status, _, refused = run(*again, "--group", "readers")
    assert (status, refused) == (1, "saturnmq: no member of group readers is connected\n")


def test_a_consumer_prints_its_stacks(nameserver: str, admin: Admin, run: Run) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def a_listener_that_waits(message: ReceivedMessage) -> None:
        inside.set()
        go_on.wait(60)

    with Producer(nameservers=nameserver) as producer:
        producer.send(Message("orders", b"one"))
    with push(nameserver, a_listener_that_waits):
        assert inside.wait(30)
        text = admin.member_stacks("readers", "reader-1")
        assert "in a_listener_that_waits" in text
        assert "thread saturnmq-listener" in text
        assert "task rebalance readers:" in text
        status, shown, _ = run("group", "stacks", "readers", "reader-1")
        assert (status, "in a_listener_that_waits" in shown) == (0, True)
        told = answer_of(run("group", "stacks", "readers", "reader-1", "--json"))
        assert "in a_listener_that_waits" in told["stacks"]
        go_on.set()
        with pytest.raises((ConsumerNotOnline, SystemError_), match="another"):
            admin.member_stacks("readers", "another")


def test_an_admin_with_a_namespace_gives_and_gets_plain_names(nameserver: str) -> None:
    with (
        Admin(nameserver) as plain,
        Admin(nameserver, namespace="space") as admin,
        Producer("senders", nameserver, namespace="space") as producer,
    ):
        plain.create_topic("others")
        plain.create_group("strangers")
        admin.create_topic("orders", queues=1, message_type="NORMAL")
        admin.create_group("readers")
        assert {"space%orders", "others"} <= set(plain.list_topics())
        assert admin.list_topics() == ["orders"]
        assert admin.list_topics(internal=False) == ["orders"]
        assert admin.list_groups() == ["readers"]
        assert "space%readers" in plain.list_groups()
        sent = producer.send(Message("orders", b"x", keys="key"))
        queue = MessageQueue("orders", "broker-a", 0)
        assert [row.queue for row in admin.describe_topic("orders")] == [queue]
        assert admin.topic_settings("orders")["broker-a"].name == "orders"
        assert len(admin.route("orders").queues) == 1
        admin.alter_topic("orders", perm=6)
        found = [
            admin.find_message(sent.message_id, "orders"),
            admin.message_by_offset_id(sent.offset_message_id),
            admin.find_by_id(sent.offset_message_id),
            admin.find_by_offset(queue, 0),
            *admin.find_by_key("orders", "key"),
            *admin.find_by_time("orders", 0),
        ]
        assert [message and message.topic for message in found] == ["orders"] * 6
        assert admin.offset_by_time(queue, 0) == 0
        assert len(admin.queue_entries(queue)) == 1
        consumer = SimpleConsumer(
            "readers", nameserver, namespace="space", from_beginning=True, client_id="one"
        )
        consumer.subscribe("orders")
        with consumer:
            assert admin.groups_of_topic("orders") == ["readers"]
            assert [m.client_id for at in admin.describe_group("readers") for m in at.members] == [
                "one"
            ]
            assert admin.member_queues("readers", "one") == []
            assert "MainThread" in admin.member_stacks("readers", "one")
            consumer.dead_letter(consumer.receive())
        assert {row.queue for row in admin.group_lag("readers", "orders")} == {queue}
        assert queue in {row.queue for row in admin.group_lag("readers")}
        assert admin.preview_reset("readers", "orders", 0)[0].queue == queue
        assert admin.reset_offsets("readers", "orders", queue=queue, offset=0) == {queue: 0}
        assert [(row.queue, row.group) for row in admin.undrained("orders", 0)] == [
            (queue, "readers")
        ]
        admin.create_group("copies")
        assert admin.preview_clone("readers", "copies", "orders")[0].queue == queue
        assert admin.clone_offsets("readers", "copies")[queue] == 0
        (letter,) = admin.dead_letters("readers")
        assert letter.topic == "%DLQ%readers"
        assert admin.resend_dead_letters("readers") == 1
        assert {each.group for each in admin.producers()} == {"senders"}
        assert "space%senders" in {each.group for each in plain.producers()}
        admin.delete_group("copies")
        admin.delete_topic("orders")
        assert admin.list_topics(internal=False) == []
        assert "space%copies" not in plain.list_groups()
        with pytest.raises(InvalidParameter, match="namespace 'a%b'"):
            Admin(nameserver, namespace="a%b")
