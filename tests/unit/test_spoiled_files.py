"""Tables of a broker with entries that cannot be: they are left out and told, the others count. A
document that is no table at all is refused, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import world_rig
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.replication.elector import SavedMemory
from saturnmq.broker.replication.role import Role
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.broker.tables.subscription_groups import GroupTable
from saturnmq.broker.tables.topics import Topic, TopicTable
from saturnmq.protocol import fastjson
from saturnmq.protocol.route import TopicConfig
from saturnmq.runtime.errors import MalformedFrame, StoreDamaged
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.tombstones import read_tombstones
from saturnmq.store.log.epochs import Epochs
from world_rig import World

GOOD = Topic("good", 2, 2).to_json()
HUGE = 10**400
BAD_TOPICS: list[Any] = [
    7,
    {**GOOD, "perm": HUGE},
    {**GOOD, "readQueueNums": 10**9},
    {**GOOD, "writeQueueNums": -1},
    {**GOOD, "topicSysFlag": "x"},
    {**GOOD, "attributes": {"a": 1}},
    {**GOOD, "attributes": 5},
]


def topics() -> TopicTable:
    return TopicTable(lambda: 1, lambda: None, lambda: 100)


@pytest.mark.parametrize("bad", BAD_TOPICS, ids=lambda bad: str(bad)[:40])
def test_a_topic_that_cannot_be_is_left_out_and_told(bad: Any, caplog) -> None:
    table = topics()
    table.load({"topicConfigTable": {"bad": bad, "good": GOOD}})
    assert [topic.name for topic in table] == ["good"]
    assert caplog.text.count("topic 'bad' is left out: ") == 1
    assert fastjson.dumps(table.snapshot())


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0", "x" * 256])
def test_no_topic_has_a_name_that_no_directory_could_have(name: str) -> None:
    table = topics()
    table.load({"topicConfigTable": {name: GOOD, "good": GOOD}})
    assert [topic.name for topic in table] == ["good"]
    with pytest.raises(MalformedFrame, match="cannot be a topic's name"):
        TopicConfig.from_json({**GOOD, "topicName": name})


def test_many_bad_entries_are_told_by_their_number(caplog) -> None:
    topics().load({"topicConfigTable": {f"t{n}": n for n in range(1000)}})
    assert caplog.text.count("is left out: ") == 10
    assert "990 more like this are left out" in caplog.text


@pytest.mark.parametrize(
    "document",
    [
        {"topicConfigTable": []},
        {"topicConfigTable": {}, "asOfTable": 1},
        {"topicConfigTable": {}, "dataVersion": {"counter": HUGE}},
        {"topicConfigTable": {}, "deletedTable": {"gone": {"end": HUGE}}},
        {"topicConfigTable": {}, "deletedTable": {"gone": {"end": 1, "next": {"x": 1}}}},
    ],
    ids=str,
)
def test_a_copy_that_is_no_table_of_topics_changes_nothing(document: dict[str, Any]) -> None:
    table = topics()
    table.put(Topic("orders", 4, 4))
    before = table.snapshot()
    with pytest.raises(MalformedFrame):
        table.replace_all(document, as_of=50)
    assert table.snapshot() == before


def test_a_topic_that_a_copy_has_and_that_cannot_be_is_not_taken_for_deleted() -> None:
    table = topics()
    table.put(Topic("orders", 4, 4))
    table.replace_all({"topicConfigTable": {"orders": 7}}, as_of=50)
    assert table.deleted == {}


def test_a_copy_that_is_no_table_of_groups_changes_nothing() -> None:
    table = GroupTable(lambda: 1, auto_create=True)
    table.get_or_create("readers")
    before = table.snapshot()
    for document in ({"subscriptionGroupTable": 1}, {"forbiddenTable": 1}, {"dataVersion": 1}):
        with pytest.raises(MalformedFrame):
            table.replace_all(document)
        assert table.snapshot() == before


def test_bits_of_what_is_forbidden_that_cannot_be_are_left_out(caplog) -> None:
    table = GroupTable(lambda: 1, auto_create=True)
    forbidden = {"a": {"t": "x"}, "b": 7, "c": {"t": HUGE}, "d": {"t": 4}}
    table.load({"forbiddenTable": forbidden})
    assert [table.forbids(group, "t") for group in "abcd"] == [False, False, False, True]
    assert caplog.text.count("is left out: ") == 3


@pytest.mark.parametrize("queues", [{"x": 1}, {"-1": 1}, {"0": -2}, {"0": HUGE}, {"0": None}, [1]])
def test_offsets_that_cannot_be_are_left_out(queues: Any) -> None:
    table = ConsumerOffsets(lambda: 1)
    table.load({"offsetTable": {"bad@g": queues, "good@g": {"0": 7}}})
    assert (table.query("g", "good", 0), len(table)) == (7, 1)
    assert fastjson.dumps(table.snapshot())


ROLES: list[dict[str, Any]] = [
    {"epoch": HUGE},
    {"epoch": 1 << 31},
    {"epoch": -1},
    {"term": "x"},
    {"floor": -1},
    {"forced": 7},
    {"forced": [HUGE]},
    {"identity": "x"},
    {"replicas": 7},
    {"decided": True},
    {"decided": True, "brokerId": 0, "required": 0},
]


@pytest.mark.parametrize("document", ROLES, ids=lambda each: str(each)[:40])
def test_a_role_that_cannot_be_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        Role(BrokerConfig(root="/store")).load(document)


def test_a_replica_that_nobody_could_reach_is_left_out_of_the_role_and_told(caplog) -> None:
    role = Role(BrokerConfig(root="/store"))
    role.load({"replicas": {"1": "nowhere", "x": "h:1", "0": "h:1", "2": 5, "3": "h:1"}})
    assert role.replicas == {3: "h:1"}
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [line.partition(" is left out: ")[0] for line in told] == [
        f"replica '{broker_id}'" for broker_id in ("1", "x", "0", "2")
    ]
    assert "'nowhere'" in told[0]


@pytest.mark.parametrize("name", ["cluster", "revision", "recordChanged", "forgot"])
def test_a_memory_of_elections_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(MalformedFrame):
        SavedMemory().load({name: HUGE})


@pytest.mark.parametrize("line", [f"{1 << 31}-0", f"1-{1 << 63}", f"{HUGE}-0"])
def test_epochs_that_no_master_can_have_are_damage(line: str) -> None:
    disk = world_rig.new_disk()
    disk.make_dirs("/store")
    disk.write_file("/store/epochFileCheckpoint", f"1\n0\n{line}\n".encode())
    with pytest.raises(StoreDamaged, match="nobody knows which master wrote"):
        Epochs.load(disk, "/store", 1 << 62)


def test_tombstones_that_cannot_be_are_damage() -> None:
    disk = world_rig.new_disk()
    disk.make_dirs("/store/config")
    ConfigFile(disk, "/store/config/topics.json").save({"deletedTable": {"gone": {"end": "x"}}})
    with pytest.raises(StoreDamaged, match="take the key out"):
        read_tombstones(disk, "/store")


Spoil = Callable[[dict[str, Any]], None]


def test_a_broker_with_bad_entries_in_all_its_tables_serves_the_good_ones() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        assert (await client.send(b"one")).code == 0
        assert (await client.commit(1)).code == 0
        await broker.close()
        world.disk.locks.clear()
        for name, table, bad in (
            ("topics", "topicConfigTable", {"bad": {"perm": 1 << 62, "readQueueNums": 10**12}}),
            ("subscriptionGroup", "subscriptionGroupTable", {"bad": {"retryQueueNums": 10**12}}),
            ("consumerOffset", "offsetTable", {"T@bad": {"0": "x"}}),
        ):
            file = ConfigFile(world.disk, f"/store/config/{name}.json")
            document = file.load()
            assert document is not None
            document[table] |= bad
            file.save(document)
        broker = await world.broker(nameservers=(nameserver,), port=10921)
        client = await world.connect(broker.address)
        assert (await client.send(b"two")).code == 0
        assert await client.committed() == 1
        asked = await world.connect(nameserver)
        await world.until(lambda: broker.replication.registrar.registered)
        assert (await asked.ask(105, {"topic": "T"})).code == 0
        assert broker.failures.count == 0
        await broker.close()

    world_rig.run(body)
