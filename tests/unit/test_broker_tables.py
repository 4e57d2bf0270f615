"""The broker's tables without a broker: offsets, locks, topics, the ack ledger, configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from saturnmq.broker.commit.ack_ledger import ACK_BYTES, AckLedger
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.delay.levels import schedule
from saturnmq.broker.replication.role import Role
from saturnmq.broker.tables.locks import QueueLockTable
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.broker.tables.table_persistence import LazyRows
from saturnmq.broker.tables.topics import Topic, TopicTable, system_topics
from saturnmq.protocol import fastjson
from saturnmq.protocol.budget import Budget
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.properties import decode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import GROUPS_TOPIC
from saturnmq.runtime.errors import ConfigError, InvalidParameter, NoPermission, TopicNotExist
from saturnmq.store.derived.tombstones import Tombstone


class Wire:
    """Stands where an endpoint does."""

    def __init__(self) -> None:
        self.closed = False
        self.sent: list[Command] = []

    def send(self, command: Command, request: Command | None = None) -> None:
        self.sent.append(command)


def offsets() -> ConsumerOffsets:
    return ConsumerOffsets(lambda: 1_000)


def topics(log_end: Sequence[int] = (0,)) -> TopicTable:
    """A table whose log ends at the last of these."""
    return TopicTable(lambda: 1, lambda: None, lambda: log_end[-1])


def test_an_offset_rises_and_only_a_reset_lowers_it() -> None:
    table = offsets()
    assert table.commit("g", "t", 0, 10)
    assert not table.commit("g", "t", 0, 9)
    assert table.query("g", "t", 0) == 10
    table.reset("g", "t", 0, 3)
    assert table.query("g", "t", 0) == 3
    assert not table.commit("g", "t", 0, 50), "a commit from before the reset is ignored"
    assert table.move_for("g", "t", 0, 10, None) == 3
    assert table.move_for("g", "t", 0, 10, None) == 3, "the first answer may be lost"
    assert not table.commit("g", "t", 0, 50)
    assert table.move_for("g", "t", 0, 3, None) is None, "it has heard"
    assert table.move_for("g", "t", 0, 10, None) is None
    assert table.commit("g", "t", 0, 4)


def test_a_member_that_reads_from_the_new_offset_by_chance_is_told_once() -> None:
    table = offsets()
    table.commit("g", "t", 0, 3)
    table.reset("g", "t", 0, 10)
    assert table.move_for("g", "t", 0, 10, None) == 10, "it holds the messages up to there"
    assert not table.commit("g", "t", 0, 11)
    assert table.move_for("g", "t", 0, 10, None) is None
    assert table.commit("g", "t", 0, 11)
    table.reset("g", "t", 0, 10)
    table.tell("g", "t", 0)  # the answer to a new member that asked where to begin
    assert table.move_for("g", "t", 0, 10, None) is None


def test_a_reset_that_one_member_has_heard_of_moves_those_that_know_fewer_moves() -> None:
    table = offsets()
    table.commit("g", "t", 0, 10)
    assert table.moves("g", "t", 0) == 0
    table.reset("g", "t", 0, 3)
    assert table.moves("g", "t", 0) == 2
    assert table.move_for("g", "t", 0, 3, 0) == 3, "it is there by chance"
    assert table.move_for("g", "t", 0, 3, 2) is None, "it has heard for all"
    assert table.moves("g", "t", 0) == 2
    assert table.commit("g", "t", 0, 4)
    assert table.move_for("g", "t", 0, 10, 0) == 4
    assert table.move_for("g", "t", 0, 4, 0) == 4, "it is there by chance"
    assert table.move_for("g", "t", 0, 4, 2) is None
    for knows in (2, 4, None):
        assert table.move_for("g", "t", 0, 10, knows) is None


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


def test_a_queue_lock_has_one_owner_for_60_seconds_since_it_last_asked() -> None:
    locks, queue = QueueLockTable(), MessageQueue("t", "b", 0)
    assert locks.lock("g", "one", [queue], 0.0) == [queue]
    assert locks.lock("g", "one", [queue], 20.0) == [queue]
    assert locks.lock("g", "two", [queue], 79.9) == []
    assert locks.holds_any("g", 79.9)
    assert not locks.holds_any("g", 80.0)
    assert locks.lock("g", "two", [queue], 80.0) == [queue]
    locks.unlock("g", "one", [queue])
    assert locks.lock("g", "one", [queue], 81.0) == [], "only the owner gives it back"
    locks.unlock("g", "two", [queue])
    assert not locks.holds_any("g", 81.0)
    assert locks.lock("g", "one", [queue], 81.0) == [queue]


def test_auto_creation_needs_the_inherit_bit_and_takes_the_smaller_queue_number() -> None:
    changes: list[int] = []
    table = TopicTable(lambda: 1, lambda: changes.append(1), lambda: 0)
    table.install_system(system_topics("c", "b", 8, delay_levels=18, auto=True))
    made = table.auto_create("orders", "TBW102", 4)
    assert made is not None
    assert (made.read_queues, made.write_queues, made.perm) == (4, 4, 6)
    assert table.auto_create("more", "orders", 4) is None
    assert changes == [1]
    for asked in (0, -1):
        assert table.auto_create("none", "TBW102", asked) is None
    assert table.auto_create("most", "TBW102", 9) == Topic("most", 8, 8)
    copy = topics()
    copy.replace_all(table.snapshot(), as_of=0)
    assert copy.get("orders") == made


def test_a_broker_has_the_system_topics_of_rocketmq() -> None:
    made = {
        topic.name: (topic.read_queues, topic.write_queues, topic.perm)
        for topic in system_topics("c", "b", 8, delay_levels=3, auto=True)
    }
    assert made == {
        GROUPS_TOPIC: (1, 1, 6),  # ours
        "TBW102": (8, 8, 7),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),
        "rmq_sys_REVIVE_LOG_c": (8, 8, 6),
        "SELF_TEST_TOPIC": (1, 1, 6),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "c": (16, 16, 7),
        "b": (1, 1, 7),
        "c_REPLY_TOPIC": (1, 1, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_b": (1, 1, 6),
    }
    more = {topic.name: topic for topic in system_topics("c", "b", 8, delay_levels=20, auto=False)}
    assert more["SCHEDULE_TOPIC_XXXX"].queues == 20
    assert "TBW102" not in more


def test_a_system_topic_is_known_by_the_table_or_by_its_name() -> None:
    table = topics()
    table.install_system([Topic("BenchmarkTest", 1024, 1024)])
    table.put(Topic("orders", 4, 4))
    assert table.is_system("BenchmarkTest")
    assert table.is_system("rmq_sys_any")
    assert not table.is_system("orders")


def test_only_a_queue_that_exists_and_a_topic_with_the_read_bit_are_readable() -> None:
    table = topics()
    table.put(Topic("orders", 2, 8))
    table.put(Topic("inbox", 2, 2, 2))
    assert table.readable("orders", 0) == table.readable("orders", 1) == table.get("orders")
    for queue_id in (-1, 2):
        with pytest.raises(InvalidParameter, match="it has 2 read queues"):
            table.readable("orders", queue_id)
    with pytest.raises(NoPermission):
        table.readable("inbox")
    with pytest.raises(TopicNotExist):
        table.readable("gone")


def test_each_change_of_the_topics_makes_a_new_version_and_what_changes_nothing_makes_none() -> (
    None
):
    now = [5]
    table = TopicTable(lambda: now[0], lambda: None, lambda: 100)
    assert table.data_version == {"counter": 0, "stateVersion": 0, "timestamp": 5}
    now.append(7)
    now.reverse()
    table.put(Topic("orders", 4, 4))
    table.put(Topic("orders", 4, 4))
    assert table.data_version == {"counter": 1, "stateVersion": 0, "timestamp": 7}
    assert table.ensure("orders", 1) == Topic("orders", 4, 4)
    assert table.data_version["counter"] == 1
    assert table.ensure("%RETRY%g", 1) == Topic("%RETRY%g", 1, 1, 6, 0, False, {})
    assert table.data_version["counter"] == 2
    copy = topics()
    copy.replace_all(table.snapshot(), as_of=100)
    assert copy.snapshot() == table.snapshot()
    assert copy.dirty
    copy.clean()
    copy.replace_all(table.snapshot(), as_of=100)
    assert not copy.dirty


def test_a_table_that_was_replaced_is_told_as_a_whole() -> None:
    slave, master = topics(), topics()
    for name in ("a", "b", "c"):
        slave.put(Topic(name, 4, 4))
    master.put(Topic("a", 4, 4))
    assert slave.next_change(0) == Topic("a", 4, 4)
    slave.replace_all(master.snapshot(), as_of=0)
    # Told one by one, the first three would have versions below 0: the counter is 1 now.
    assert [slave.next_change(told) for told in range(slave.version + 1)] == [None] * 5
    slave.put(Topic("d", 4, 4))
    assert slave.next_change(slave.version - 1) == Topic("d", 4, 4)


def test_the_ledger_answers_in_log_order_and_names_what_was_late() -> None:
    wire: Any = Wire()
    memory = Budget(1 << 20, "all")
    ledger = AckLedger(10, memory, lambda: 0.0)
    for end in (10, 20, 30):
        ledger.add(end, 5.0, wire, Command(0))
    ledger.count()
    assert memory.used == 3 * ACK_BYTES
    assert ledger.release(20) == 2
    ledger.count()
    assert memory.used == ACK_BYTES
    assert [c.code for c in wire.sent] == [0, 0]
    assert ledger.expire(4.9, None) == 0
    assert ledger.expire(5.0, 25) == 1
    assert wire.sent[-1].code == 10
    ledger.add(40, 5.0, wire, Command(0))
    ledger.expire(5.0, 40)
    assert wire.sent[-1].code == 12


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("99", 18)])
def test_a_delayed_message_remembers_where_it_goes(asked: str, level: int) -> None:
    encoded = f"DELAY\x01{asked}\x02KEYS\x01k\x02".encode()
    topic, queue, encoded = schedule("orders", 3, encoded, 18)
    assert (topic, queue) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    wanted = {"DELAY": str(level), "KEYS": "k", "REAL_TOPIC": "orders", "REAL_QID": "3"}
    assert decode_properties(encoded) == wanted


@pytest.mark.parametrize("asked", ["0", "-1", "soon"])
def test_a_message_with_no_level_does_not_wait(asked: str) -> None:
    encoded = f"DELAY\x01{asked}\x02KEYS\x01k\x02".encode()
    assert schedule("orders", 3, encoded, 18) == ("orders", 3, encoded)


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
        ("aclEnable=true\n", "authenticationEnabled"),
        ("enableControllerMode=true\n", "brokerRole"),
        ("storeType=defaultRocksDB\n", "set it to default"),
        ("storePathRootDir=/a\nstorePathCommitLog=/b\n", "'/a/commitlog'"),
    ],
)
def test_a_wrong_configuration_says_the_way_out(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        BrokerConfig.load(text)


def test_the_log_counts_against_the_table_only_behind_what_the_table_was_told() -> None:
    end = [100]
    table = topics(end)
    table.put(Topic("orders", 4, 4))
    assert not table.restore([("orders", 7, 99), ("orders", 3, 100)]), "taken away, and known"
    assert table.restore([("orders", 3, 100), ("orders", 4, 100)]), "added since"
    assert table.restore([("orders", 5, 100), ("orders", 6, 99)])
    assert table.readable("orders").queues == 6
    end.append(200)
    assert table.restore([("orders", 7, 150)]), "the rest of a log that is dispatched bit by bit"
    table.delete("orders", Tombstone(200, {0: 9}))
    assert not table.restore([("orders", 0, 199)])
    assert table.restore([("orders", 0, 200), ("orders", 1, 199)])
    assert table.readable("orders").queues == 1
    table.install_system([Topic("SELF_TEST_TOPIC", 1, 1)])
    assert not table.restore([("SELF_TEST_TOPIC", 5, 300)])
    assert table.restore([("the first message of the log", 0, 0)])


def test_a_log_that_ends_earlier_knows_of_nothing_that_was_made_behind_its_end() -> None:
    put, deleted = topics([100]), topics([100])
    put.put(Topic("orders", 4, 4))
    deleted.delete("orders", Tombstone(100, {0: 9}))
    for table, at in ((put, "asOfTable"), (deleted, "deletedTable")):
        before = table.snapshot()
        table.clean()
        assert not table.within(100)
        assert not table.dirty
        assert table.within(60)
        assert table.dirty
        wanted = 60 if table is put else {"end": 60, "next": {"0": 9}}
        assert table.snapshot() == before | {at: {"orders": wanted}}


def test_offsets_of_a_deleted_topic_are_over_and_those_of_one_made_again_are_not() -> None:
    table = topics([100])
    assert not table.is_over("orders", 0, 0)
    table.delete("orders", Tombstone(100, {0: 9}))
    assert table.is_over("orders", 0, 9)
    table.put(Topic("orders", 4, 4))
    assert [table.is_over("orders", 0, offset) for offset in (8, 9)] == [True, False]
    assert not table.is_over("orders", 1, 0), "of a queue in which nothing was"


def test_a_deletion_is_undone_as_if_it_had_not_been() -> None:
    table = topics([100])
    table.put(Topic("orders", 4, 4))
    before = table.snapshot()
    undo = table.delete("orders", Tombstone(100, {0: 9}))
    undo()
    after = table.snapshot()
    assert after.pop("dataVersion") != before.pop("dataVersion"), "nameservers hear of both"
    assert after == before
    undo = table.delete("orders", Tombstone(100, {0: 9}))
    table.put(Topic("orders", 8, 8))
    undo()
    assert table.readable("orders").queues == 8, "it was made again meanwhile"
    table.delete("queues only", Tombstone(50))
    table.delete("queues only", Tombstone(100))()
    assert table.get("queues only") is None
    assert table.deleted == {"queues only": Tombstone(50)}


def test_a_slave_keeps_what_it_deleted_as_a_master_and_its_new_master_hears_of_it() -> None:
    old, new = topics([300]), topics([300])
    for table in (old, new):
        table.put(Topic("orders", 4, 4))
        table.put(Topic("newer", 4, 4))
        table.within(250)
    old.delete("orders", Tombstone(300, {0: 9}))
    old.delete("newer", Tombstone(300))
    old.within(280)  # where the two logs part
    old.replace_all(new.snapshot(), as_of=280)
    assert old.get("orders") is not None, "as its master says"
    assert old.deleted["orders"] == Tombstone(280, {0: 9})
    last = {"orders": 279, "newer": 280}
    new.merge_deleted(old.snapshot(), last.__getitem__)
    assert new.get("orders") is None
    assert new.get("newer") is not None, "it has a message from behind the deletion"
    old.replace_all(new.snapshot(), as_of=280)
    assert old.get("orders") is None
    assert old.snapshot() == new.snapshot()
    new.clean()
    new.merge_deleted(old.snapshot(), last.__getitem__)
    assert not new.dirty, "it has heard of both"
    old.delete("third", Tombstone(280))
    new.merge_deleted(old.snapshot(), lambda _: 0)
    assert new.deleted["third"] == Tombstone(280)


def test_a_topic_of_a_rocketmq_master_is_as_old_as_the_table_that_told_it_as_it_is() -> None:
    registrations: list[int] = []
    table = TopicTable(lambda: 1, lambda: registrations.append(1), lambda: 100)
    table.install_system([Topic("SELF_TEST_TOPIC", 1, 1)])
    master = {name: Topic(name, 4, 4).to_json() for name in ("same", "grows")}
    version = {"counter": 3, "stateVersion": 0, "timestamp": 7}
    document = {"topicConfigTable": master, "dataVersion": version}
    table.replace_all(document, as_of=50)
    assert table.data_version == version
    assert table.dirty
    table.clean()
    table.replace_all(document, as_of=60)
    assert (registrations, table.dirty) == ([1], False)
    master["grows"] = Topic("grows", 8, 8).to_json()
    table.replace_all(document, as_of=70)
    assert (registrations, table.dirty) == ([1, 1], True)
    ages = table.snapshot()["asOfTable"]
    assert (ages["same"], ages["grows"]) == (50, 70)
    assert table.get("SELF_TEST_TOPIC") == Topic("SELF_TEST_TOPIC", 1, 1)
    assert table.deleted == {}


def test_a_topic_is_read_as_it_was_written_and_for_the_rest_as_rocketmq_has_it() -> None:
    table, copy = topics([100]), topics([200])
    table.put(Topic("all", 3, 5, 3, 1, True, {"message.type": "FIFO"}))
    document = table.snapshot()
    document["topicConfigTable"]["none"] = {}
    copy.load(document)
    assert copy.get("all") == table.get("all")
    assert copy.get("none") == Topic("none", 16, 16, 6, 0, False, {})
    assert copy.snapshot()["asOfTable"] == {"all": 100, "none": 200}
    assert copy.data_version["counter"] == 1
    assert not copy.dirty
    copy.load({"topicConfigTable": {}})
    assert copy.data_version["counter"] == 0


def test_what_a_table_of_rocketmq_has_no_more_is_deleted_on_its_slave() -> None:
    table = topics([100])
    table.put(Topic("orders", 4, 4))
    table.replace_all({"topicConfigTable": {}}, as_of=90)
    assert table.get("orders") is None
    assert table.deleted["orders"] == Tombstone(90)


def test_a_tombstone_goes_when_the_log_begins_behind_it_and_nobody_goes_on_there() -> None:
    table = topics([100])
    table.delete("gone", Tombstone(50, {0: 9}))
    table.delete("again", Tombstone(50, {0: 9}))
    table.put(Topic("again", 4, 4))
    table.forget_deleted(49)
    assert table.deleted.keys() == {"gone", "again"}
    table.forget_deleted(50)
    assert table.deleted.keys() == {"again"}


def test_offsets_of_a_deleted_topic_come_back_with_no_table() -> None:
    deleted = {"gone": 1 << 62, "again": 10}
    table = ConsumerOffsets(lambda: 1, lambda topic, _, offset: offset < deleted.get(topic, 0))
    other = offsets()
    for topic, offset in (("gone", 5), ("again", 9), ("other", 5)):
        other.commit("g", topic, 0, offset)
    other.commit("g", "again", 1, 10)
    table.merge(other.snapshot())
    assert {place.topic for place, _ in table.progress} == {"again", "other"}
    assert table.query("g", "again", 0) is None
    assert table.query("g", "again", 1) == 10


def test_a_role_that_is_taken_back_is_written_again() -> None:
    role = Role(BrokerConfig())
    role.belongs(32 * "a")
    kept = role.keep()
    role.promise(100_000)
    role.clean()  # a save begins
    role.mark_dirty()  # it fails
    role.take_back(kept, 100_000)
    assert role.promised_epoch == 0
    assert role.dirty
    role.promise(200_000)
    assert role.dirty


def test_no_large_part_of_the_topics_document_is_made_at_once() -> None:
    """The loop stands still meanwhile: with 60,000 topics for 200 ms, at each change."""
    table = topics([100])
    for number in range(1000):
        table.put(Topic(f"topic-{number}", 4, 4))
        table.delete(f"gone-{number}", Tombstone(50, {0: 9}))
    large = {name for name, part in table.document().items() if isinstance(part, LazyRows)}
    assert large == {"topicConfigTable", "asOfTable", "deletedTable"}
    rest = {name: part for name, part in table.document().items() if name not in large}
    assert len(fastjson.dumps(rest)) < 200
    copy = topics([100])
    copy.load(table.snapshot())
    assert (copy.snapshot(), copy.deleted) == (table.snapshot(), table.deleted)


def test_a_slave_reads_only_the_topics_that_its_master_has_changed() -> None:
    master, table = topics([100]), topics([100])
    for name in ("same", "grows"):
        master.put(Topic(name, 4, 4, attributes={"message.type": "FIFO"}))
    table.replace_all(master.snapshot(), as_of=100)
    same, grows = table.get("same"), table.get("grows")
    master.put(Topic("grows", 8, 8))
    table.replace_all(master.snapshot(), as_of=100)
    assert table.get("same") is same, "to read 60,000 topics takes a second"
    assert grows != table.get("grows") == Topic("grows", 8, 8)
    assert table.snapshot() == master.snapshot()
