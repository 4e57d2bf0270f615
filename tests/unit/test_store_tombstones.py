"""Deleted topics in the store: what went with them does not come back, whatever happens to the
files, and a topic of the same name goes on behind it."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.tombstones import KEY, Tombstone
from saturnmq.store.inspect.rebuild import rebuild
from saturnmq.store.inspect.verify import Sizes, check
from saturnmq.store.message_store import MessageStore
from store_rig import (
    CONFIG,
    bodies,
    dispatch,
    flush,
    message,
    new_disk,
    open_store,
)

SIZES = Sizes(
    CONFIG.commitlog_segment_bytes,
    CONFIG.consumequeue_segment_bytes,
    CONFIG.index_slots,
    CONFIG.index_items,
)


def put(store: MessageStore, count: int, topic: str = "T", queue: int = 0, tag: str = "m") -> None:
    for number in range(count):
        store.put(message(b"%s-%d" % (tag.encode(), number), topic, queue, key=tag))
    dispatch(store)


def delete(store: MessageStore, disk, *topics: str) -> None:
    """As a broker does: durably in its table first, then in the store."""
    stones = {topic: store.tombstone(topic) for topic in topics}
    write_tombstones(disk, stones)
    store.bury(stones)
    store.flush_derived()
    store.checkpoint()
    for _ in store.remove_deleted():
        pass


def write_tombstones(disk, stones: dict[str, Tombstone]) -> None:
    disk.make_dirs("/store/config")
    document = {"topicConfigTable": {}, KEY: {name: s.to_json() for name, s in stones.items()}}
    ConfigFile(disk, "/store/config/topics.json").save(document)


def killed(store: MessageStore, disk):
    """What the next process finds after kill -9."""
    return disk.kill_image(random.Random(1))


def damage(disk) -> list[str]:
    return [finding.what for finding in check(disk, "/store", SIZES).damage]


def directories(disk) -> set[str]:
    return {entry.name for entry in disk.list("/store/consumequeue")}


def test_files_that_could_not_be_removed_do_not_stand_in_the_way_of_the_topics_next_messages() -> (
    None
):
    disk = new_disk()
    store = open_store(disk)
    put(store, 5)
    disk.plan("remove_tree", errno.EMFILE, "/store/consumequeue/T/0")
    with pytest.raises(OSError, match="planned"):
        delete(store, disk, "T")
    put(store, 3, tag="again")
    store.put(message(b"another", topic="U"))
    dispatch(store)
    assert store.refuses == ""
    assert bodies(store) == [b"again-0", b"again-1", b"again-2"]
    assert bodies(store, topic="U") == [b"another"]
    store.close()
    again = open_store(disk)
    assert (again.min_offset("T", 0), again.max_offset("T", 0)) == (5, 8)
    again.close()
    assert damage(disk) == []


def test_queue_files_of_a_deleted_topic_go_and_its_queues_begin_where_they_ended() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 50)
    put(store, 3, queue=1)
    put(store, 2, topic="other")
    delete(store, disk, "T")
    assert directories(disk) == {"other"}
    assert [store.min_offset("T", 0), store.max_offset("T", 0)] == [50, 50]
    assert bodies(store) == []
    put(store, 2, tag="new")
    assert bodies(store) == [b"new-0", b"new-1"]
    assert [store.min_offset("T", 0), store.max_offset("T", 0)] == [50, 52]
    assert store.max_offset("T", 1) == 3
    assert bodies(store, topic="other") == [b"m-0", b"m-1"]


def test_a_topic_that_is_deleted_twice_leaves_no_file() -> None:
    """The second time its files do not begin at 0."""
    disk = new_disk()
    store = open_store(disk)
    put(store, 50)
    delete(store, disk, "T")
    put(store, 50, tag="new")
    assert {entry.name for entry in disk.list("/store/consumequeue/T/0")} == {
        f"{start:020d}" for start in (800, 1200, 1600)
    }
    delete(store, disk, "T")
    assert directories(disk) == set()
    assert [store.min_offset("T", 0), store.max_offset("T", 0)] == [100, 100]


def test_a_message_deleted_with_its_topic_is_found_by_no_key_and_at_no_time() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 3, tag="k")
    delete(store, disk, "T")
    put(store, 1, tag="k")
    assert len(store.query_by_key("T", "k", 10, 0, 1 << 62)) == 1
    assert store.offset_by_time("T", 0, 0) == 3
    assert store.get_message("T", 0, 0, 10).status.name == "OFFSET_TOO_SMALL"
    assert store.get_message("T", 0, 0, 10).next_begin_offset == 3
    assert store.is_deleted("T", 0)
    assert not store.is_deleted("T", store.watermarks.appended)


@pytest.mark.parametrize("recreated", [0, 2])
@pytest.mark.parametrize("end", ["clean", "killed", "without queues", "without a checkpoint"])
def test_a_deleted_topic_does_not_come_back_at_the_next_start(recreated: int, end: str) -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 30)
    put(store, 5, queue=1)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    delete(store, disk, "T")
    put(store, recreated, tag="new")
    if end == "killed":
        disk = killed(store, disk)
    else:
        store.close()
    if end != "clean":
        disk.unlink("/store/checkpoint") if end == "without a checkpoint" else None
    if end in ("without queues", "without a checkpoint"):
        disk.remove_tree("/store/consumequeue")
    store = open_store(disk)
    assert bodies(store) == [b"new-%d" % n for n in range(recreated)]
    assert [store.min_offset("T", 0), store.max_offset("T", 0)] == [30, 30 + recreated]
    assert [store.min_offset("T", 1), store.max_offset("T", 1)] == [5, 5]
    put(store, 1, queue=1, tag="more")
    assert bodies(store, queue=1) == [b"more-0"]
    assert store.max_offset("T", 1) == 6
    store.close()
    assert damage(disk) == []


def test_a_crash_between_the_tombstone_and_the_files_leaves_no_topic() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 50)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    write_tombstones(disk, {"T": store.tombstone("T")})
    disk = killed(store, disk)
    assert damage(disk) == [], "the files that are left are none"
    store = open_store(disk)
    assert bodies(store) == []
    assert store.max_offset("T", 0) == 50
    assert directories(disk) == set()


def test_the_next_start_after_a_deletion_does_not_build_every_queue_again() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 50)
    put(store, 50, topic="other")
    flush(store)
    store.flush_derived()
    store.checkpoint()
    delete(store, disk, "T")
    store = open_store(killed(store, disk))
    assert store.recovery.scanned_from > 0
    assert len(bodies(store, topic="other")) == 50


def test_queues_that_are_rebuilt_are_those_that_were_kept() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 30)
    delete(store, disk, "T")
    put(store, 30, tag="new")
    put(store, 3, topic="other")
    store.close()
    kept = {path: disk.content(path) for path in disk.paths() if "/consumequeue/" in path}
    rebuild(disk, "/store", lambda: 1, SIZES)
    assert {p: disk.content(p) for p in disk.paths() if "/consumequeue/" in p} == kept
    assert damage(disk) == []


def test_a_slave_that_hears_late_keeps_what_was_written_after_the_deletion() -> None:
    """It has both in one queue file by then; what was deleted is below the least offset."""
    disk = new_disk()
    store = open_store(disk)
    put(store, 25)
    put(store, 5, queue=1)
    stone = store.tombstone("T")
    put(store, 3, tag="new")
    write_tombstones(disk, {"T": stone})
    store.bury({"T": stone})
    assert bodies(store) == [b"new-0", b"new-1", b"new-2"]
    for _ in store.remove_deleted():
        pass
    assert store.min_offset("T", 0) == 25
    assert {entry.name for entry in disk.list("/store/consumequeue/T")} == {"0"}
    for again in (killed(store, disk), disk):
        if again is disk:
            store.close()
        reopened = open_store(again)
        assert bodies(reopened) == [b"new-0", b"new-1", b"new-2"]
        assert reopened.min_offset("T", 0) == 25


@pytest.mark.parametrize("old", [0, 1, 10])
@pytest.mark.parametrize("new", [0, 1, 2])
def test_frames_of_a_deleted_topic_that_arrive_later_are_not_dispatched(old: int, new: int) -> None:
    """A slave has the table before the log."""
    master, disk = open_store(new_disk()), new_disk(2)
    put(master, 1, topic="other")
    put(master, old)
    stone = master.tombstone("T")
    put(master, new, tag="new")
    slave = open_store(disk)
    slave.bury({"T": stone})
    end = master.watermarks.appended
    slave.append_raw(0, bytes(master.read_log(0, end)))
    dispatch(slave)
    assert bodies(slave) == [b"new-%d" % n for n in range(new)]
    assert [slave.min_offset("T", 0), slave.max_offset("T", 0)] == [old, old + new]
    assert bodies(slave, topic="other") == [b"m-0"]


def test_a_repair_does_not_miss_the_places_of_deleted_messages(caplog) -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 5)
    delete(store, disk, "T")
    put(store, 3, tag="new")
    last = store.put(message(b"last", topic="other"))
    flush(store)
    store.flush_derived()
    store.checkpoint()
    data = bytes(store.read_log(0, last.end_offset))
    places = [0]
    while places[-1] < last.physical_offset:
        places.append(places[-1] + int.from_bytes(data[places[-1] :][:4], "big"))
    for number in (3, 4, 5):  # two old ones and a new one
        disk.flip(f"/store/commitlog/{0:020d}", places[number] + 90, 1)
    disk = killed(store, disk)
    disk.remove_tree("/store/consumequeue")
    store = open_store(disk)
    assert store.recovery.gaps == [(places[3], places[6])]
    assert bodies(store) == [b"new-1", b"new-2"]
    store.repair(places[3], data[places[3] : places[6]])
    assert bodies(store) == [b"new-0", b"new-1", b"new-2"]
    assert "no place" not in caplog.text


def test_a_queue_that_begins_below_what_a_tombstone_says_begins_where_the_log_has_it() -> None:
    """A Java master counts a new topic from 0 again."""
    disk = new_disk()
    store = open_store(disk)
    end = store.watermarks.appended
    store.bury({"T": Tombstone(end, {0: 30})})
    other = open_store(new_disk(3))
    put(other, 3)
    store.append_raw(0, bytes(other.read_log(0, other.watermarks.appended)))
    dispatch(store)
    assert len(bodies(store)) == 3
    assert store.min_offset("T", 0) == 0


def test_a_truncation_leaves_the_queue_of_a_new_topic_where_it_began() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 30)
    delete(store, disk, "T")
    cut = store.watermarks.appended
    put(store, 3, tag="new")
    store.truncate(cut)
    assert [store.min_offset("T", 0), store.max_offset("T", 0)] == [30, 30]
    put(store, 1, tag="again")
    assert store.max_offset("T", 0) == 31
    assert bodies(store) == [b"again-0"]


def test_entries_are_not_synced_into_a_directory_that_a_deletion_has_removed() -> None:
    disk = new_disk()
    store = open_store(disk, config=replace(CONFIG))
    put(store, 5)
    delete(store, disk, "T")
    flush(store)
    store.flush_derived()
    assert store.failed is None


def test_a_queue_that_the_tombstone_does_not_name_begins_at_0() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 2, topic="other")
    end = store.watermarks.appended
    put(store, 1, queue=2)  # a slave may have more of the log than the table tells of
    store.bury({"T": Tombstone(end, {0: 30})})
    put(store, 1)
    put(store, 1, queue=1)
    bounds = [(q, store.first_offset("T", q), store.max_offset("T", q)) for q in range(4)]
    assert bounds == [(0, 30, 31), (1, 0, 1), (2, 0, 1), (3, 0, 0)]
    assert store.is_deleted("T", 0)
    assert not store.is_deleted("other", 0)
    assert (store.has_queues("T"), store.has_queues("none")) == (True, False)
    store.truncate(end)
    assert [store.max_offset("T", q) for q in range(4)] == [30, 0, 0, 0]


def test_a_tombstone_that_is_taken_back_leaves_the_queues_that_have_files() -> None:
    store = open_store(new_disk())
    put(store, 5)
    put(store, 2, topic="other")
    store.bury({"T": Tombstone(store.watermarks.appended, {0: 5, 1: 30})})
    assert store.queue_ids("T") == [0, 1]
    assert not store.has_queues("T")
    store.bury({})
    assert (store.tombstones, store.is_deleted("T", 0)) == ({}, False)
    assert store.queue_ids("T") == [0]
    assert store.first_offset("T", 0) == 0
    assert bodies(store, topic="other") == [b"m-0", b"m-1"]
    put(store, 1, tag="new")
    assert bodies(store) == [b"new-0"]
    for _ in store.remove_deleted():
        raise AssertionError("nothing is deleted any more")


def test_two_deletions_of_one_topic_are_as_one() -> None:
    first, second = Tombstone(100, {0: 5, 1: 2}), Tombstone(300, {0: 9})
    assert first.merged(second) == second.merged(first) == Tombstone(300, {0: 9, 1: 2})
    assert second.within(200) == Tombstone(200, {0: 9})
    assert second.within(400) == second == second.merged(None)
    assert Tombstone(7, {1: 2, 0: 9}).to_json() == {"end": 7, "next": {"0": 9, "1": 2}}


@pytest.mark.parametrize(
    "table", [[1], {"T": 5}, {"T": {"end": "x"}}, {"T": {}}, {"T": {"end": 1, "next": {"x": 1}}}]
)
def test_a_table_of_deleted_topics_that_cannot_be_read_refuses_the_start(table: object) -> None:
    disk = new_disk()
    disk.make_dirs("/store/config")
    file = ConfigFile(disk, "/store/config/topics.json")
    file.save({KEY: table})
    with pytest.raises(StoreDamaged, match=r"deletedTable of /store/config/topics.json"):
        open_store(disk)
    file.save({KEY: {"T": {"end": 0, "next": None}}})  # and one without queues is one
    assert open_store(disk).tombstones == {"T": Tombstone(0)}


def test_a_deletion_that_a_start_finishes_is_durable_before_any_file_goes() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 5)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    write_tombstones(disk, {})
    before = disk.platters("/store/config/topics.json")
    disk.plan("sync_dir", errno.EIO, "/store/config")  # the broker dies before that
    with pytest.raises(OSError, match="sync_dir"):
        write_tombstones(disk, {"T": store.tombstone("T")})
    assert disk.platters("/store/config/topics.json") == before
    disk = killed(store, disk)
    went: list[bytes] = []

    def note(operation: str, path: str) -> None:
        if operation == "remove_tree":
            went.append(disk.platters("/store/config/topics.json"))

    disk.step = note
    open_store(disk)
    assert went
    assert before not in went
