"""What operators look up and change, over a real broker: messages by key, place and time, groups
and their offsets."""

import contextlib
import socket
import time
from typing import Any

import pytest
from broker_rig import config, started
from cluster_rig import until
from saturnmq import Admin, Message, MessageQueue, Producer, PullConsumer
from saturnmq.client.admin.message_finding import MessageFinder
from saturnmq.client.loop_thread import LoopThread
from saturnmq.runtime.errors import (
    ConnectFailed,
    GroupNotExist,
    InvalidParameter,
    NoPermission,
    QueryNotFound,
    TopicNotExist,
)
from saturnmq.runtime.native import NativeRuntime
from served_rig import served

HOUR_MS = 3_600_000


def queue(number: int, topic: str = "orders") -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


@pytest.fixture
def nameserver(tmp_path):
    with served(tmp_path) as address:
        yield address


@pytest.fixture
def admin(nameserver):
    with Admin(nameserver) as client:
        yield client


@pytest.fixture
def send(nameserver, admin):
    """Sends a body to a queue of `orders`, which has two; returns its store time, which is later
    than all before."""
    admin.create_topic("orders", queues=2)
    last = 0
    with Producer(nameservers=nameserver) as producer:

        def send_one(body: str, number: int = 0, key: str = "k") -> int:
            nonlocal last
            while time.time_ns() // 1_000_000 <= last:
                pass  # the broker's clock is this one
            message = Message("orders", body.encode(), keys=[key])
            result = producer.send(message, queue=queue(number))
            last = admin.find_by_offset(result.queue, result.queue_offset).store_timestamp
            return last

        yield send_one


def bodies(messages):
    return [bytes(message.body).decode() for message in messages]


def test_a_message_is_found_at_its_offset_and_nowhere_else(admin, send):
    send("first", 1)
    send("second", 1)
    assert bytes(admin.find_by_offset(queue(1), 1).body) == b"second"
    assert admin.find_by_offset(queue(1), 1).queue == queue(1)
    assert admin.find_by_offset(queue(1), 2) is None
    assert admin.find_by_offset(queue(0), 0) is None
    with pytest.raises(TopicNotExist):
        admin.find_by_offset(queue(0, "order"), 0)


def test_a_broker_that_does_not_answer_may_have_the_message(admin, send):
    send("only")
    found = admin.find_by_offset(queue(0), 0)
    own = found.offset_message_id
    assert admin.find_by_id(own).queue_offset == 0
    assert admin.find_by_id(found.message_id, "orders").queue_offset == 0
    assert admin.find_by_id("0" * 32, "orders") is None
    for names_no_broker in (found.message_id, "an order's number"):
        with pytest.raises(QueryNotFound, match="for a unique id give its topic too"):
            admin.find_by_id(names_no_broker)
    assert admin.find_by_id(own[:16] + "7" * 16) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"{own[:8]}{taken.getsockname()[1]:08X}{own[16:]}"
    for topic in (None, "orders"):
        with pytest.raises(ConnectFailed):
            admin.find_by_id(gone, topic)


def test_a_stretch_of_time_has_its_messages_of_all_queues_in_order(admin, send):
    times = [send(f"{number}", number % 2) for number in range(6)]
    assert bodies(admin.find_by_time("orders", 0)) == ["0", "1", "2", "3", "4", "5"]
    assert bodies(admin.find_by_time("orders", times[1], times[4])) == ["1", "2", "3", "4"]
    assert bodies(admin.find_by_time("orders", times[1] + 1, times[4] - 1, 2)) == ["2", "3"]
    assert bodies(admin.find_by_time("orders", times[5])) == ["5"]
    assert admin.find_by_time("orders", times[5] + 1) == []
    assert admin.find_by_time("orders", 0, times[0] - 1) == []
    assert bodies(admin.find_by_time("orders", times[5], (1 << 63) - 1)) == ["5"]
    assert bodies(admin.find_by_key("orders", "k", 1 << 70, begin_ms=times[5])) == ["5"]
    with pytest.raises(InvalidParameter, match="ends before it begins"):
        admin.find_by_time("orders", 2, 1)
    with pytest.raises(InvalidParameter, match="limit 0"):
        admin.find_by_time("orders", 0, limit=0)


def test_a_broker_that_tells_the_message_before_a_time_hides_none(admin, send, monkeypatch):
    """RocketMQ 4 tells the nearest message, and behind the last one that."""
    exact = MessageFinder.offset_by_time

    async def nearest(*asked: Any) -> int:
        return max(0, await exact(*asked) - 1)

    monkeypatch.setattr(MessageFinder, "offset_by_time", nearest)
    times = [send(f"{number}") for number in range(4)]
    assert bodies(admin.find_by_time("orders", times[1], times[2])) == ["1", "2"]
    assert bodies(admin.find_by_time("orders", times[1], times[3] + 1)) == ["1", "2", "3"]
    assert bodies(admin.find_by_time("orders", times[3], times[3])) == ["3"]


def test_a_stretch_longer_than_one_pull_is_read_to_its_end(nameserver, admin, send):
    send("before")
    with Producer(nameservers=nameserver) as producer:
        for number in range(300):
            producer.send_async(Message("orders", b"%d" % number), queue=queue(1))
    found = admin.find_by_time("orders", 0, limit=1000)
    assert len(found) == 301
    assert [message.queue_offset for message in found[-300:]] == list(range(300))


def test_the_newest_messages_with_a_key_are_given_and_older_ones_by_an_earlier_end(admin, send):
    times = [send(f"{number}", number % 2) for number in range(6)]
    send("other", key="other")
    assert bodies(admin.find_by_key("orders", "k", 2)) == ["4", "5"]
    assert bodies(admin.find_by_key("orders", "k", 2, end_ms=times[4] - 1)) == ["2", "3"]
    assert bodies(admin.find_by_key("orders", "k", begin_ms=times[2], end_ms=times[3])) == [
        "2",
        "3",
    ]
    assert bodies(admin.find_by_key("orders", "k", begin_ms=times[5])) == ["5"]
    with pytest.raises(InvalidParameter, match="ends before it begins"):
        admin.find_by_key("orders", "k", begin_ms=2, end_ms=1)


def test_newer_messages_of_the_same_second_hide_none_with_the_key(nameserver, admin, send):
    """The index has whole seconds, and a broker gives the newest 64."""
    last = send("0")
    while time.time_ns() // 1_000_000 <= last:
        pass
    with Producer(nameservers=nameserver) as producer:
        producer.send_batch([Message("orders", b"new", keys=["k"]) for _ in range(70)])
    assert bodies(admin.find_by_key("orders", "k")) == ["new"] * 64
    assert bodies(admin.find_by_key("orders", "k", end_ms=last)) == ["0"]


def test_a_topic_has_no_queues_to_write_to_that_nobody_reads(admin):
    with pytest.raises(InvalidParameter, match="8 write queues and 4 read queues"):
        admin.create_topic("orders", read_queues=4)
    admin.create_topic("orders", queues=4)
    for change in ({"read_queues": 2}, {"write_queues": 6}, {"write_queues": 6, "read_queues": 5}):
        with pytest.raises(InvalidParameter, match="or fewer write queues"):
            admin.alter_topic("orders", **change)
    settings = admin.topic_settings("orders")["broker-a"]
    assert (settings.write_queues, settings.read_queues) == (4, 4)
    admin.alter_topic("orders", write_queues=2)
    admin.alter_topic("orders", read_queues=2)


def test_offsets_by_time_have_two_boundaries(admin, send):
    times = [send(f"{number}") for number in range(3)]
    assert admin.offset_by_time(queue(0), times[1]) == 1
    assert admin.offset_by_time(queue(0), times[1] + 1) == 2
    assert admin.offset_by_time(queue(0), times[2] + 1) == 3
    assert admin.offset_by_time(queue(0), times[1], "UPPER") == 1
    assert admin.offset_by_time(queue(0), times[2] + HOUR_MS, "UPPER") == 2


def test_messages_of_a_broker_whose_clock_is_ahead_are_found(tmp_path):
    with ahead(tmp_path) as nameserver, Admin(nameserver) as admin:
        admin.create_topic("orders", queues=1)
        with Producer(nameservers=nameserver) as producer:
            result = producer.send(Message("orders", b"tomorrow", keys=["k"]))
        assert bodies(admin.find_by_key("orders", "k")) == ["tomorrow"]
        assert bodies(admin.find_by_time("orders", 0)) == ["tomorrow"]
        assert bytes(admin.find_message(result.message_id, "orders").body) == b"tomorrow"


@contextlib.contextmanager
def ahead(root):
    """A broker whose clock is a day ahead of the client's."""

    class Ahead(NativeRuntime):
        def now_ms(self):
            return super().now_ms() + 24 * HOUR_MS

    with served(root, make_runtime=Ahead) as address:
        yield address


def commit(nameserver, group, offsets):
    with PullConsumer(group, nameserver, auto_commit=False) as consumer:
        consumer.assign(offsets)
        for each, offset in offsets.items():
            consumer.seek(each, offset)
        consumer.commit()


def test_a_reset_does_what_its_preview_says(nameserver, admin, send):
    times = [send(f"{number}", number % 2) for number in range(6)]
    commit(nameserver, "readers", {queue(0): 1, queue(1): 3})
    for arguments, there in [
        ({"timestamp_ms": 0}, {queue(0): (1, 0), queue(1): (3, 0)}),
        ({"timestamp_ms": times[3]}, {queue(0): (0, 2), queue(1): (0, 1)}),
        ({"queue": queue(1), "timestamp_ms": 0}, {queue(1): (1, 0)}),
        ({"queue": queue(1), "offset": 2}, {queue(1): (0, 2)}),
        ({"queue": queue(0), "offset": 3}, {queue(0): (2, 3)}),
        ({}, {queue(0): (3, 3), queue(1): (2, 3)}),
    ]:
        preview = admin.preview_reset("readers", "orders", **arguments)
        assert {row.queue: (row.committed, row.target) for row in preview} == there
        assert admin.preview_reset("readers", "orders", **arguments) == preview
        done = admin.reset_offsets("readers", "orders", **arguments)
        assert done == {row.queue: row.target for row in preview}
        lag = {row.queue: row.committed for row in admin.group_lag("readers", "orders")}
        assert {each: lag[each] for each in done} == done


def test_a_preview_counts_what_is_repeated_and_skipped(nameserver, admin, send):
    for number in range(4):
        send(f"{number}", number % 2)
    commit(nameserver, "readers", {queue(0): 1})
    back, on = (admin.preview_reset("readers", "orders", to) for to in (0, -1))
    assert [(row.committed, row.repeated, row.skipped) for row in back] == [(1, 1, 0), (None, 0, 0)]
    assert [(row.committed, row.repeated, row.skipped) for row in on] == [(1, 0, 1), (None, 0, 2)]


def test_a_reset_of_what_does_not_exist_is_refused(nameserver, admin, send):
    send("one")
    commit(nameserver, "readers", {queue(0): 1})
    for change in (admin.reset_offsets, admin.preview_reset):
        with pytest.raises(InvalidParameter, match="give `queue`"):
            change("readers", "orders", offset=1)
        with pytest.raises(InvalidParameter, match="none of the 2 queues"):
            change("readers", "orders", queue=queue(2))
        with pytest.raises(InvalidParameter, match="negative"):
            change("readers", "orders", queue=queue(0), offset=-1)
        with pytest.raises(InvalidParameter, match=r"offset 2 is outside .* from 0 to 1"):
            change("readers", "orders", queue=queue(0), offset=2)
        with pytest.raises(TopicNotExist):
            change("readers", "order")
    with pytest.raises(GroupNotExist):
        admin.reset_offsets("strangers", "orders")


def test_a_clone_does_what_its_preview_says(nameserver, admin, send):
    for number in range(6):
        send(f"{number}", number % 2)
    admin.create_topic("others", queues=1)
    commit(nameserver, "readers", {queue(0): 1, queue(1): 3})
    commit(nameserver, "ahead", {queue(0): 3})
    preview = admin.preview_clone("readers", "ahead", "orders")
    assert [(row.queue, row.committed, row.target) for row in preview] == [
        (queue(0), 3, 1),
        (queue(1), None, 3),
    ]
    assert [(row.repeated, row.skipped) for row in preview] == [(2, 0), (0, 3)]
    assert admin.clone_offsets("readers", "ahead", "orders") == {queue(0): 1, queue(1): 3}
    assert [row.committed for row in admin.group_lag("ahead", "orders")] == [1, 3]
    commit(nameserver, "readers", {queue(0): 2})
    assert [row.target for row in admin.preview_clone("readers", "ahead")] == [2, 3]
    assert admin.clone_offsets("readers", "ahead") == {queue(0): 2, queue(1): 3}
    with pytest.raises(QueryNotFound, match="group readers has no offset in topic others"):
        admin.clone_offsets("readers", "ahead", "others")
    assert admin.preview_clone("readers", "ahead", "others") == []
    with pytest.raises(GroupNotExist):
        admin.clone_offsets("readers", "strangers")
    with pytest.raises(InvalidParameter):
        admin.clone_offsets("readers", "readers")


def test_a_clone_asks_nothing_of_a_broker_where_its_source_has_no_offset(
    nameserver, admin, send, tmp_path
):
    send("one")
    commit(nameserver, "readers", {queue(0): 1})
    commit(nameserver, "ahead", {queue(0): 0})
    with contextlib.closing(LoopThread("another")) as thread:
        settings = config(tmp_path / "b", broker_name="broker-b", nameservers=(nameserver,))
        broker = thread.run(started(thread.runtime, settings))
        try:
            until(lambda: len(admin.cluster()) == 2, "the second broker is not registered")
            assert [each.broker_name for each in admin.describe_group("ahead")] == ["broker-a"]
            assert admin.clone_offsets("readers", "ahead") == {queue(0): 1}
            assert [each.broker_name for each in admin.describe_group("ahead")] == ["broker-a"]
        finally:
            thread.run(broker.close())


def test_settings_of_a_running_broker_are_shown_and_changed(admin, send):
    send("one")
    [node] = admin.cluster()
    before = admin.broker_settings(node.address)
    assert before["brokerName"] == "broker-a"
    admin.change_settings(node.address, {"transactionCheckMax": "7", "slaveReadEnable": "false"})
    changed = {"transactionCheckMax": "7", "slaveReadEnable": "false"}
    assert admin.broker_settings(node.address) == before | changed
    with pytest.raises(NoPermission, match="storePathRootDir cannot be changed"):
        admin.change_settings(node.address, {"storePathRootDir": "/elsewhere"})
    for key, value in (("a=b", "c"), ("", "c"), ("a", "b\nc=d"), ("#a", "b")):
        with pytest.raises(InvalidParameter, match="one line"):
            admin.change_settings(node.address, {key: value})
    assert admin.broker_settings(node.address) == before | changed


def test_connected_producers_are_listed_by_group(nameserver, admin, send):
    send("one")
    with Producer("makers", nameserver) as producer:
        producer.send(Message("orders", b"two"))
        deadline = time.monotonic() + 10
        while not (mine := [each for each in admin.producers() if each.group == "makers"]):
            assert time.monotonic() < deadline
    [me] = mine
    assert (me.address, me.language) == ("127.0.0.1", "PYTHON")
    assert me.client_id


def test_a_group_is_described_with_its_settings_and_its_members(nameserver, admin, send):
    send("one")
    admin.create_group("readers", max_retries=3, orderly=True)
    [here] = admin.describe_group("readers")
    assert (here.broker_name, here.max_retries, here.orderly, here.enabled, here.members) == (
        "broker-a",
        3,
        True,
        True,
        (),
    )
    consumer = PullConsumer("readers", nameserver, client_id="me")
    consumer.subscribe("orders")
    with consumer:
        [here] = admin.describe_group("readers")
        assert [member.client_id for member in here.members] == ["me"]
    with pytest.raises(GroupNotExist, match="strangers"):
        admin.describe_group("strangers")


def test_a_deleted_group_is_gone_with_its_offsets(nameserver, admin, send):
    send("one")
    commit(nameserver, "readers", {queue(0): 1})
    assert admin.groups_of_topic("orders") == ["readers"]
    admin.delete_group("readers")
    assert "readers" not in admin.list_groups()
    assert admin.groups_of_topic("orders") == []
    assert [row.committed for row in admin.preview_reset("readers", "orders")] == [None, None]


def test_attributes_are_set_changed_removed_and_shown(admin):
    admin.create_topic("typed", queues=1, message_type="FIFO", attributes={"reserve.time": "5"})
    (config,) = admin.topic_settings("typed").values()
    assert config.attributes == {"message.type": "FIFO", "reserve.time": "5"}
    admin.create_topic("typed", queues=2)
    admin.alter_topic("typed", attributes={"reserve.time": None})
    settings = admin.topic_settings("typed")
    assert settings["broker-a"].attributes == {"message.type": "FIFO"}
    assert (settings["broker-a"].read_queues, settings["broker-a"].order) == (2, False)
    with pytest.raises(InvalidParameter, match="attribute 'a=b' with value 'c'"):
        admin.alter_topic("typed", attributes={"a=b": "c"})
    with pytest.raises(InvalidParameter, match=r"attribute 'a' with value 'b,-message\.type'"):
        admin.alter_topic("typed", attributes={"a": "b,-message.type"})
    with pytest.raises(InvalidParameter, match="unsupported key: colour"):
        admin.alter_topic("typed", attributes={"colour": "red"})
    with pytest.raises(InvalidParameter, match="compact"):
        admin.create_topic("latest", attributes={"cleanup.policy": "COMPACTION"})
    with pytest.raises(TopicNotExist):
        admin.topic_settings("latest")
