"""The broker's tables without a broker: offsets, locks, topics, the ack ledger, configuration."""

from __future__ import annotations

from typing import Any

import pytest
from saturnmq.broker.ack import AckLedger
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.delay_levels import schedule
from saturnmq.broker.locks import LOCK_SECONDS, QueueLocks
from saturnmq.broker.offsets import ConsumerOffsets
from saturnmq.broker.topics import TopicTable, system_topics
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.properties import decode_properties
from saturnmq.protocol.remoting import Command


class Wire:
    """Stands where an endpoint does."""

    def __init__(self) -> None:
        self.closed = False
        self.sent: list[Command] = []

    def send(self, command: Command, request: Command | None = None) -> None:
        self.sent.append(command)


def offsets() -> ConsumerOffsets:
    return ConsumerOffsets(lambda: 1_000)


def test_an_offset_rises_and_only_a_reset_lowers_it() -> None:
    table = offsets()
    assert table.commit("g", "t", 0, 10)
    assert not table.commit("g", "t", 0, 9)
    assert table.query("g", "t", 0) == 10
    table.reset("g", "t", 0, 3, notify=True)
    assert table.query("g", "t", 0) == 3
    assert not table.commit("g", "t", 0, 50), "a commit from before the reset is ignored"
    assert table.take_reset("g", "t", 0) == 3
    assert table.take_reset("g", "t", 0) is None, "delivered once"
    assert table.commit("g", "t", 0, 4)


def test_offsets_survive_their_document_and_only_rise_when_merged() -> None:
    table = offsets()
    table.commit("g", "t", 2, 7)
    other = offsets()
    other.commit("g", "t", 2, 9)
    other.merge(table.snapshot())
    assert other.query("g", "t", 2) == 9
    table.merge(other.snapshot())
    assert table.query("g", "t", 2) == 9


def test_offsets_behind_the_recovered_end_are_lowered() -> None:
    table = offsets()
    table.commit("g", "t", 0, 7)
    assert table.clamp(lambda place: 5) == [(("t", "g", 0), 7, 5)]
    assert table.query("g", "t", 0) == 5


def test_a_queue_lock_has_one_owner_until_it_expires() -> None:
    locks, queue = QueueLocks(), MessageQueue("t", "b", 0)
    assert locks.lock("g", "one", [queue], 0.0) == [queue]
    assert locks.lock("g", "two", [queue], 1.0) == []
    assert locks.lock("g", "two", [queue], LOCK_SECONDS) == [queue]
    locks.unlock("g", "one", [queue])
    assert locks.holds_any("g", LOCK_SECONDS + 1)
    locks.unlock("g", "two", [queue])
    assert not locks.holds_any("g", LOCK_SECONDS + 1)


def test_auto_creation_needs_the_inherit_bit_and_takes_the_smaller_queue_number() -> None:
    changes: list[int] = []
    table = TopicTable(lambda: 1, lambda: changes.append(1))
    table.install_system(system_topics("c", "b", 8, auto=True))
    made = table.auto_create("orders", "TBW102", 4)
    assert made is not None
    assert (made.read_queues, made.write_queues, made.perm) == (4, 4, 6)
    assert table.auto_create("more", "orders", 4) is None
    assert changes == [1]
    copy = TopicTable(lambda: 1, lambda: None)
    copy.replace_all(table.snapshot())
    assert copy.get("orders") == made


def test_the_ledger_answers_in_log_order_and_names_what_was_late() -> None:
    wire: Any = Wire()
    ledger = AckLedger(10)
    for end in (10, 20, 30):
        ledger.add(end, 5.0, wire, Command(0))
    assert ledger.release(20) == 2
    assert [c.code for c in wire.sent] == [0, 0]
    assert ledger.expire(4.9, None) == 0
    assert ledger.expire(5.0, 25) == 1
    assert wire.sent[-1].code == 10
    ledger.add(40, 5.0, wire, Command(0))
    ledger.expire(5.0, 40)
    assert wire.sent[-1].code == 12


def test_a_delayed_message_remembers_where_it_goes() -> None:
    topic, queue, encoded = schedule("orders", 3, b"DELAY\x0199\x02KEYS\x01k\x02")
    assert (topic, queue) == ("SCHEDULE_TOPIC_XXXX", 17)
    properties = decode_properties(encoded)
    assert properties["REAL_TOPIC"] == "orders"
    assert properties["REAL_QID"] == "3"
    assert properties["DELAY"] == "18"


def test_both_spellings_and_both_formats_are_read() -> None:
    conf = "# a comment\nbrokerName = b1\nbrokerRole=SYNC_MASTER\nflushDiskType=SYNC_FLUSH\n"
    config = BrokerConfig.load(conf + "namesrvAddr=1.2.3.4:9876;1.2.3.5:9876\n", path="broker.conf")
    assert config.broker_name == "b1"
    assert config.replicas_required == 2
    assert config.sync_flush
    assert config.nameservers == ("1.2.3.4:9876", "1.2.3.5:9876")
    toml = 'broker_name = "b2"\nport = 0\nautoCreateTopicEnable = false\n'
    config = BrokerConfig.load(toml, path="broker.toml", environ={"SATURNMQ_PORT": "7"}, port=9)
    assert (config.broker_name, config.port, config.auto_create_topics) == ("b2", 9, False)


def test_a_broker_conf_of_rocketmq_is_read_as_it_is() -> None:
    conf = """
    brokerClusterName=DefaultCluster
    brokerName=broker-a
    brokerId=0
    deleteWhen=04
    fileReservedTime=48
    brokerRole=ASYNC_MASTER
    flushDiskType=ASYNC_FLUSH
    listenPort=20911
    storePathRootDir=/data/rmq
    storePathCommitLog=/data/rmq/commitlog/
    mapedFileSizeCommitLog=1048576
    autoCreateTopicEnable=false
    sendMessageThreadPoolNums=16
    syncFlushTimeout=1000
    aclEnable=false
    """
    config = BrokerConfig.load(conf, path="broker.conf")
    assert (config.port, config.ha_port, config.root) == (20911, 20912, "/data/rmq")
    store = config.store_config()
    assert (store.commitlog_segment_bytes, store.delete_when) == (1 << 20, "04")
    assert store.file_reserved_hours == 48
    assert (config.auto_create_topics, config.sync_flush_timeout_ms) == (False, 1000)
    assert config.passed_over == (
        "aclEnable",
        "sendMessageThreadPoolNums",
        "storePathCommitLog",
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("brokerNane=x\n", "brokerName"),
        ("listenPort=many\n", "a number"),
        ("brokerRole=BOSS\n", "ASYNC_MASTER"),
        ("brokerId=1\nbrokerRole=ASYNC_MASTER\n", "slave"),
        ("brokerRole=SYNC_MASTER\ninSyncReplicas=1\n", "2 or more"),
        ("nonsense\n", "key=value"),
        ("mapedFileSizeComitLog=1\n", "mappedFileSizeCommitLog"),
        ("fileReservedTimes=1\n", "fileReservedTime"),
        ("passed_over=1\n", "unknown key"),
        ("aclEnable=true\n", "no access control"),
        ("enableControllerMode=true\n", "brokerRole"),
        ("storeType=defaultRocksDB\n", "set it to default"),
        ("storePathRootDir=/a\nstorePathCommitLog=/b\n", "'/a/commitlog'"),
    ],
)
def test_a_wrong_configuration_says_the_way_out(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        BrokerConfig.load(text)
