"""Deletion by time and space, disk-full as a state, the transient pool."""

from __future__ import annotations

import dataclasses
import errno
import logging
import pathlib

import pytest
from cleaning_rig import FOUR, HOUR, NOON, World
from saturnmq.runtime.errors import ConfigError, ServiceNotAvailable, SystemBusy
from saturnmq.store.disk import NativeDisk
from saturnmq.store.log.cleaner import Space
from saturnmq.store.message_store import GetStatus, MessageStore, StoreConfig
from store_rig import CONFIG, SEGMENT, bodies, dispatch, flush, message, open_store

FORCED = dataclasses.replace(CONFIG, clean_forcibly=True)  # RocketMQ's rule


def test_nothing_goes_before_its_time_or_at_another_hour() -> None:
    world = World()
    segments = world.segments
    world.clock.now = NOON + 100 * HOUR  # expired, but it is four in the afternoon
    assert not world.clean()
    world.clock.now = FOUR
    assert (world.clock.now - NOON) / HOUR > 72
    assert world.clean()
    assert world.segments == segments[10:]


def test_a_pass_of_the_hour_is_none_of_another_hour() -> None:
    world = World(dataclasses.replace(CONFIG, delete_batch_max=1))
    segments = world.segments
    world.clock.now = FOUR
    for taken in (1, 2):
        assert world.clean()
        assert world.segments == segments[taken:]
    world.clock.now = FOUR + 8 * HOUR
    world.save()
    for _ in range(3):  # the first may still delete what waits
        world.clean()
    assert not world.clean()
    assert world.segments == segments[2:]


def test_what_is_gone_is_deleted_once_and_no_longer_counts_as_free() -> None:
    world = World()
    world.clock.now = FOUR
    for _ in range(5):
        world.clean()
        world.save()
        world.clock.now += 60_000
    assert world.waiting == []
    assert not world.clean()
    world.use(60)
    world.store.watch_space()
    assert world.store.space.percent == 60


def test_a_young_segment_stays_at_the_hour_of_deletion() -> None:
    world = World(dataclasses.replace(CONFIG, file_reserved_hours=96))
    segments = world.segments
    world.clock.now = FOUR
    assert not world.clean()
    assert world.segments == segments


def test_at_most_a_batch_goes_and_never_the_segment_being_written() -> None:
    world = World(dataclasses.replace(CONFIG, delete_batch_max=4))
    segments = world.segments
    world.clock.now = FOUR
    world.clean()
    assert world.segments == segments[4:]
    for _ in range(20):
        world.clean()
    current = world.store.watermarks.appended // SEGMENT * SEGMENT
    assert world.segments[0] == f"{current:020d}"
    assert world.store.put(message(b"next")).queue_offset == 300


@pytest.mark.parametrize("more", [False, True])
def test_a_slave_whose_log_ends_with_a_segment_keeps_the_last_one(more: bool) -> None:
    """`more` of it, behind that border, is not flushed."""
    master, world = World().store, World(count=0)
    slave, border = world.store, 2 * SEGMENT
    for start in (0, SEGMENT):
        slave.append_raw(start, bytes(master.read_log(start, SEGMENT) or b""))
    assert slave.watermarks.appended == border
    world.save()
    if more:
        slave.append_raw(border, bytes(master.read_log(border, SEGMENT) or b""))
    world.clock.now += 100 * HOUR
    slave.clean_on_request()
    assert world.clean()
    assert world.segments == [f"{border if more else SEGMENT:020d}"]
    assert slave.watermarks.start == (border if more else SEGMENT)


def test_queues_and_index_follow_the_log() -> None:
    world = World()
    store = world.store
    world.clock.now = FOUR
    before = {e.name for e in world.disk.list("/store/consumequeue/T/0")}
    index_before = {e.name for e in world.disk.list("/store/index")}
    world.clean()
    low = store.min_offset("T", 0)
    assert 0 < low < 300
    first = store.get_message("T", 0, low, 1)
    assert first.status is GetStatus.FOUND
    physical = int.from_bytes(bytes(first.data[28:36]), "big")
    assert store.watermarks.start <= physical < store.watermarks.start + 400
    result = store.get_message("T", 0, low - 1, 1)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    assert len(bodies(store)) == 300 - low
    assert store.query_by_key("T", f"k{low - 1}", 9, 0, 1 << 60) == []
    assert len(store.query_by_key("T", f"k{low}", 9, 0, 1 << 60)) == 1
    assert {e.name for e in world.disk.list("/store/consumequeue/T/0")} < before
    assert {e.name for e in world.disk.list("/store/index")} < index_before


def test_a_deleted_segment_waits_a_minute_in_a_directory_of_its_own() -> None:
    world = World()
    first = world.segments[0]
    world.clock.now = FOUR
    world.clean()
    assert f"{first}.delete" in world.waiting
    world.clock.now += 59_000
    world.clean()
    assert f"{first}.delete" in world.waiting
    world.clock.now += 1_000
    world.clean()
    assert f"{first}.delete" not in world.waiting


def test_a_pool_of_one_buffer_cannot_roll() -> None:
    with pytest.raises(ConfigError, match="from 2 to"):
        StoreConfig(transient_pool=True, transient_pool_size=1)


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_ends_what_deletion_left(clean: bool) -> None:
    world = World()
    world.clock.now = FOUR
    world.clean()
    low, segments = world.store.min_offset("T", 0), world.segments
    assert world.waiting
    if clean:
        world.store.close()
    else:
        world.disk.kill()
        world.disk.power_on()
    again = world.open()
    assert world.waiting == []
    assert world.segments == segments
    assert again.min_offset("T", 0) == low
    assert (again.watermarks.start, again.max_offset("T", 0)) == (int(segments[0]), 300)


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [
        ("rename", "/store/commitlog/*"),
        ("sync_dir", "/store/commitlog/deleted"),
        ("sync_dir", "/store/commitlog"),
        ("make_dirs", "/store/commitlog/deleted"),
        ("unlink", "/store/consumequeue/*"),
        ("unlink", "/store/commitlog/deleted/*"),
    ],
)
def test_a_pass_that_fails_is_ended_before_newer_segments_go(operation: str, pattern: str) -> None:
    world = World(dataclasses.replace(CONFIG, delete_batch_max=3), count=600)
    world.clock.now = FOUR
    plan = world.disk.plan(operation, errno.EMFILE, pattern)
    failures = 0
    for _ in range(4):
        try:
            world.clean()
        except OSError:
            failures += 1
        world.save()
        starts = [int(name) for name in world.segments]
        assert starts == list(range(starts[0], starts[-1] + SEGMENT, SEGMENT)), "there is a hole"
        world.clock.now += 60_000
    assert (failures, plan.hits) == (1, 1)
    assert starts[0] == world.store.watermarks.start >= 2 * 3 * SEGMENT
    world.clock.now = NOON + 200 * HOUR
    world.clean()
    assert world.waiting == []
    low, queue = world.store.min_offset("T", 0), world.disk.list("/store/consumequeue/T/0")
    assert (low - 20) * 20 < int(queue[0].name) <= low * 20, "an old file of the queue is left"
    world.store.close()
    again = world.open()
    assert again.amnesia == ""
    assert (again.watermarks.start, again.max_offset("T", 0)) == (starts[0], 600)
    assert len(bodies(again)) == 600 - low


def tried(world: World) -> bool:
    """Whether a pass deleted all that it should."""
    try:
        world.clean()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("stuck", ["consumequeue/T/0/" + "0" * 20, "commitlog/deleted/" + "0" * 20])
def test_a_file_that_can_never_be_deleted_holds_up_no_other(stuck: str) -> None:
    world = World(dataclasses.replace(CONFIG, delete_batch_max=3), count=600)
    world.clock.now = FOUR
    plan = world.disk.plan("unlink", errno.EPERM, f"/store/{stuck}*", times=None)
    for _ in range(4):
        tried(world)
        world.save()
        world.clock.now += 60_000
    assert int(world.segments[0]) == world.store.watermarks.start >= 4 * 3 * SEGMENT
    tried(world)
    waiting = [name for name in world.waiting if "deleted" not in stuck or name[:20] != "0" * 20]
    assert len(waiting) == 3, "those of the last pass"
    world.use(60)
    world.store.watch_space()
    assert world.store.space.percent <= 60
    world.store.close()
    again = world.open()
    assert again.max_offset("T", 0) == 600
    plan.times = 0
    world.store = again
    world.clock.now = NOON + 1000 * HOUR
    world.save()
    assert tried(world)
    world.clock.now += 60_000
    assert tried(world)
    assert not any(name.startswith("0" * 20) for name in world.waiting)


def test_a_segment_that_cannot_be_renamed_holds_up_none_of_earlier_passes() -> None:
    world = World(dataclasses.replace(CONFIG, delete_batch_max=3), count=600)
    world.clock.now = FOUR
    assert tried(world)
    world.save()
    world.disk.plan("rename", errno.EPERM, "/store/commitlog/*", times=None)
    assert not tried(world)
    world.save()
    assert len(world.waiting) == 3
    world.use(60)
    world.store.watch_space()
    measured = world.store.space.percent
    world.clock.now += 60_000
    assert not tried(world)
    world.save()
    assert not tried(world)
    assert world.waiting == [], "their time is over"
    assert int(world.segments[0]) == 3 * SEGMENT
    world.store.watch_space()
    assert world.store.space.percent <= measured, "what cannot be deleted counts as free"


def test_a_log_is_emptied_only_when_a_pass_that_failed_is_ended() -> None:
    """Later files have the same names."""
    world = World()
    store, last = world.store, World(count=300).store
    world.clock.now = FOUR
    plan = world.disk.plan("rename", errno.EMFILE, "/store/commitlog/*", times=2)
    with pytest.raises(OSError, match="planned"):
        world.clean()
    with pytest.raises(ServiceNotAvailable, match="expired files"):
        store.truncate(0)
    assert plan.hits == 2
    end = store.watermarks.appended
    assert len(bodies(store)) > 0
    store.truncate(0)
    while store.watermarks.appended < end:
        at = store.watermarks.appended
        store.append_raw(at, bytes(last.read_log(at, SEGMENT) or b""))
    world.save()
    assert len(bodies(store)) == 300
    world.clock.now = NOON
    world.clean()
    assert world.segments[0] == "0" * 20


def test_a_reader_keeps_what_it_found() -> None:
    world = World()
    result = world.store.get_message("T", 0, 0, 5)
    before = result.data
    world.clock.now = FOUR
    world.clean()
    world.clock.now += HOUR
    world.clean()
    assert result.data == before


def test_a_full_disk_refuses_sends_until_space_returns_and_stays_readable(caplog) -> None:
    world = World()
    store = world.store
    total = world.disk.total_bytes
    world.use(91)
    world.clean()
    world.clean()
    (told,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert "91 %: no more sends until it is at 85 % again" in told
    assert store.space.short
    with pytest.raises(ServiceNotAvailable, match="91 %"):
        store.put(message(b"no"))
    assert "91 %" in store.refuses
    assert len(bodies(store)) == 300
    world.use(88)  # no longer at the limit, but not yet out of it
    store.watch_space()
    with pytest.raises(ServiceNotAvailable):
        store.put(message(b"no"))
    world.disk.total_bytes = total
    store.watch_space()
    assert caplog.text.count("sends go on") == 1
    assert store.put(message(b"yes")).queue_offset == 300


def test_what_has_not_expired_stays_whatever_the_disk_says() -> None:
    world = World()
    segments = world.segments
    for percent in (76, 86, 91, 100):
        world.use(percent)
        assert not world.clean()
    assert world.segments == segments


def test_rocketmqs_rule_takes_the_oldest_of_a_short_disk_says_so_and_takes_no_more_than_it_needs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(FORCED)
    segments = world.segments
    world.use(86)
    world.clean()
    told = [r.message for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(told) == len(segments) - len(world.segments)
    assert segments[0] in told[0]
    assert "0.0 hours" in told[0]
    assert "cleanFileForciblyEnable" in told[0]
    left = len(segments) - len(world.segments)
    assert 1 <= left < 5
    assert world.segments == segments[left:]
    assert world.waiting
    world.save()  # a checkpoint says where the log begins now
    world.clean()
    assert world.waiting == []  # no minute is waited for
    assert world.segments == segments[left:]


def test_a_disk_above_its_normal_use_takes_only_what_is_expired() -> None:
    world = World()
    segments = world.segments
    world.use(80)
    assert not world.clean()
    world.clock.now += 72 * HOUR - 1
    assert not world.clean()
    world.clock.now += 1
    assert world.clean()
    assert len(world.segments) < len(segments)
    assert world.store.space.percent == 80
    world.store.watch_space()
    assert world.store.space.percent < 60, "what waits for its end counts as free"
    assert len(world.waiting) + len(world.segments) == len(segments)


def test_a_disk_above_its_normal_use_of_which_nothing_may_go_is_told_once(caplog) -> None:
    world = World()
    with caplog.at_level(logging.WARNING):
        for percent, later in ((80, 0), (80, 0), (70, 16 * HOUR), (80, 0), (80, 0)):
            world.use(percent)
            world.clock.now += later  # the pass of the hour finds the disk at its normal use
            world.clean()
    assert caplog.text.count("no segment may be deleted") == 2
    assert "80 %" in caplog.text
    assert "72 hours" in caplog.text


def test_one_request_stands_for_twenty_passes() -> None:
    world = World(dataclasses.replace(CONFIG, delete_batch_max=1), count=700)
    segments = world.segments
    world.clock.now = NOON + 73 * HOUR
    world.store.clean_on_request()
    for _ in range(len(segments)):
        world.clean()
    assert len(segments) > 22
    assert world.segments == segments[20:]


def test_a_start_deletes_only_what_a_pass_has_left() -> None:
    world = World()
    world.clock.now = FOUR
    world.clean()
    world.store.close()
    directory = "/store/commitlog/deleted"
    world.disk.write_file(f"{directory}/note", b"")
    world.disk.make_dirs(f"{directory}/another.delete")
    world.open()
    assert world.waiting == ["another.delete", "note"]


def test_on_request_expired_segments_go_at_any_hour() -> None:
    world = World(dataclasses.replace(CONFIG, delete_batch_max=1))
    segments = world.segments
    world.clock.now = NOON + 73 * HOUR
    assert not world.clean()
    world.store.clean_on_request()
    world.clean()
    world.clean()
    assert world.segments == segments[2:]


def test_what_is_not_flushed_and_dispatched_stays() -> None:
    world = World()
    for number in range(60):
        world.store.put(message(b"%d" % number + bytes(150)))
    flushed = world.store.watermarks.flushed
    world.clock.now = FOUR + 96 * HOUR
    for _ in range(10):
        world.clean()
    assert int(world.segments[0]) <= flushed


@pytest.mark.parametrize(
    ("percent", "was_full", "expected"),
    [
        (75, False, (False, False, False)),
        (76, False, (False, False, True)),
        (86, False, (False, True, True)),
        (90, False, (False, True, True)),
        (91, False, (True, True, True)),
        (86, True, (True, True, True)),
        (85, True, (False, False, True)),
    ],
)
def test_the_three_ratios(percent: int, was_full: bool, expected: tuple) -> None:
    space = Space.judge(1000, 1000 - 10 * percent, CONFIG, was_full=was_full)
    assert space == (percent, *expected)
    assert Space.judge(1000, 1000 - 10 * percent - 1, CONFIG).percent == percent + 1


def test_a_disk_without_a_size_is_full() -> None:
    assert Space.judge(0, 0, CONFIG) == (100, True, True, True)


def test_no_level_counts_while_enough_is_free() -> None:
    config = dataclasses.replace(CONFIG, disk_enough_bytes=20)
    assert Space.judge(1000, 20, config, was_full=True) == (98, False, False, False)
    assert Space.judge(1000, 19, config) == (99, True, True, True)


def test_a_level_beyond_what_may_be_configured_is_told_as_it_counts() -> None:
    config = dataclasses.replace(CONFIG, disk_warning_ratio=99, disk_clean_forcibly_ratio=10)
    assert config.disk_levels == (75, 30, 90)


@pytest.mark.parametrize("hour", ["25", "-1", "\N{SUPERSCRIPT TWO}"])
def test_hours_of_deletion_are_checked(hour: str) -> None:
    with pytest.raises(ConfigError, match=f"deleteWhen is '{hour}'"):
        StoreConfig(delete_when=hour)


def test_without_room_for_a_segment_a_send_is_refused_and_nothing_is_written() -> None:
    world = World(count=20)
    store, disk = world.store, world.disk
    plan = disk.plan("create_segment", errno.ENOSPC, "*commitlog*", times=None)
    end, refused = -1, ""
    while not refused:
        end = store.watermarks.appended
        try:
            store.put(message(bytes(150)))
        except ServiceNotAvailable as error:
            refused = str(error)
    assert "free space" in refused
    assert store.watermarks.appended == end
    disk.plans.remove(plan)
    accepted = store.put(message(b"again" + bytes(150)))
    dispatch(store)
    assert accepted.queue_offset + 1 == len(bodies(store))


@pytest.mark.parametrize("pattern", ["*consumequeue*", "*index*"])
def test_without_room_for_a_queue_file_dispatch_waits_and_goes_on(pattern: str) -> None:
    world = World(count=5)
    store, disk = world.store, world.disk
    plan = disk.plan("create_segment", errno.ENOSPC, pattern, times=None)
    for number in range(60):
        store.put(message(b"%d" % number, key=f"n{number}"))
    dispatch(store)
    assert store.watermarks.dispatched < store.watermarks.appended
    with pytest.raises(ServiceNotAvailable, match="no room for the queue and index files"):
        store.put(message(b"no"))
    disk.plans.remove(plan)
    arrivals = []
    while step := store.reput():
        arrivals += step
    assert store.refuses == ""
    assert len(bodies(store)) == 65
    assert max(a.max_offset for a in arrivals) == 65
    assert len(store.query_by_key("T", "n59", 9, 0, 1 << 60)) == 1


def test_the_options_of_memory_change_no_byte(tmp_path: pathlib.Path) -> None:
    contents = []
    for name, options in {
        "plain": {},
        "all": {"warm_files": True, "lock_in_memory": True, "read_ahead": False},
    }.items():
        config = dataclasses.replace(CONFIG, root=str(tmp_path / name), **options)
        store = open_store(NativeDisk(), None, config)
        for number in range(100):
            store.put(message(b"%d" % number + bytes(150)))
        store.close()
        files = sorted((tmp_path / name / "consumequeue").rglob("0*"))
        log = sorted((tmp_path / name / "commitlog").iterdir())
        contents.append([file.read_bytes() for file in [*log, *files] if file.is_file()])
        assert len(bodies(open_store(NativeDisk(), None, config))) == 100
    assert contents[0] == contents[1]


POOL = dataclasses.replace(CONFIG, transient_pool=True, transient_pool_size=2)


def commit(store: MessageStore) -> None:
    ticket = store.begin_commit()
    if ticket is not None:
        ticket.run()
        store.complete_flush(ticket)


def test_with_a_transient_pool_only_what_is_committed_can_be_read() -> None:
    world = World(POOL, count=0)
    store = world.store
    for number in range(10):
        store.put(message(b"%d" % number))
    dispatch(store)
    assert bodies(store) == []
    commit(store)
    dispatch(store)
    assert len(bodies(store)) == 10
    assert store.watermarks.flushed == 0
    store.put(message(b"lost"))
    world.disk.kill()
    world.disk.power_on()
    again = world.open()
    assert bodies(again) == [b"%d" % n for n in range(10)]


def test_a_flush_commits_first() -> None:
    world = World(POOL, count=0)
    world.store.put(message(b"safe"))
    flush(world.store)
    world.disk.power_off()
    world.disk.power_on()
    assert bodies(world.open()) == [b"safe"]


def test_an_exhausted_pool_gives_way_to_the_file() -> None:
    world = World(POOL, count=0)
    for number in range(200):
        world.store.put(message(b"%d" % number + bytes(150)))
    assert world.store.watermarks.appended > 4 * SEGMENT
    world.store.close()
    assert len(bodies(world.open())) == 200


def test_an_exhausted_pool_refuses_if_told_to_until_a_commit() -> None:
    world = World(dataclasses.replace(POOL, transient_fail_fast=True), count=0)
    sent, refused = 0, ""
    while not refused:
        try:
            world.store.put(message(b"%d" % sent + bytes(150)))
            sent += 1
        except SystemBusy as error:
            refused = str(error)
    assert "transientStorePoolSize" in refused
    assert world.store.watermarks.appended <= 2 * SEGMENT
    commit(world.store)
    world.store.put(message(b"%d" % sent + bytes(150)))
    world.store.close()
    assert len(bodies(world.open())) == sent + 1
