"""A start that finds less than was durable once: it says so until it is settled, and destroys
nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import random

import pytest
from saturnmq.runtime.errors import ServiceNotAvailable, StoreDamaged
from saturnmq.store.log.truncated import SideFile
from saturnmq.store.message_store import MessageStore
from saturnmq.store.recovery.checkpoint import Checkpoint
from store_rig import CONFIG, SEGMENT, Clock, bodies, dispatch, flush, message, new_disk, open_store

IDENTITY = "00112233445566778899aabbccddeeff"
LOG = "/store/commitlog"
HOUR = 3_600_000


def save(store: MessageStore) -> None:
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()


def filled(disk, count: int = 120, clock: Clock | None = None) -> MessageStore:
    """A store with messages in several segments, all of it durable and in the checkpoint."""
    store = open_store(disk, clock)
    store.identity = IDENTITY
    for number in range(count):
        store.put(message(b"%d" % number + bytes(150)))
    save(store)
    return store


def die(disk) -> None:
    disk.kill()
    disk.power_on()


def stop(disk, store: MessageStore, clean: bool) -> None:
    if clean:
        store.close()
    else:
        die(disk)


def copy_back(store: MessageStore, data: bytes, start: int) -> None:
    """As a slave gets it: pieces that end anywhere."""
    for at in range(0, len(data), 1000):
        store.append_raw(start + at, data[at : at + 1000])
        dispatch(store)
        flush(store)
    save(store)


def content(store: MessageStore) -> bytes:
    marks = store.watermarks
    data, at = b"", marks.start
    while at < marks.appended:
        piece = store.read_log(at, 1 << 20)
        assert piece
        data += bytes(piece)
        at += len(piece)
    return data


def numbers(store: MessageStore) -> list[int]:
    return [int(body.rstrip(b"\0")) for body in bodies(store)]


def segment(number: int) -> str:
    return f"{LOG}/{number * SEGMENT:020d}"


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_is_gone_is_told_at_every_start_until_it_is_settled(clean: bool) -> None:
    disk = new_disk()
    store = filled(disk)
    end = store.watermarks.flushed
    stop(disk, store, clean)
    disk.remove_tree(LOG)
    for _ in range(2):
        store = open_store(disk)
        assert store.recovery.missing == store.missing == [(0, end)]
        promised = f"of the log, which had 0 to {end} on this disk once"
        assert store.amnesia == f"{LOG} lacks the bytes 0 to {end} {promised}"
        assert store.identity == IDENTITY
        with pytest.raises(ServiceNotAvailable, match=rf"0 to {end}.*admin promote .* --force"):
            store.put(message(b"x"))
        save(store)
        stop(disk, store, clean)
    assert open_store(disk).recovery.lost == 0  # the log has all that it said to have since
    die(disk)
    store = open_store(disk)
    store.settle()
    assert store.amnesia == ""
    disk.power_off()
    disk.power_on()
    store = open_store(disk)
    assert (store.amnesia, store.identity) == ("", IDENTITY)
    assert store.put(message(b"x")).queue_offset == 0


def test_the_first_start_counts_what_a_log_that_is_gone_had() -> None:
    disk = new_disk()
    end = filled(disk).watermarks.flushed
    die(disk)
    disk.remove_tree(LOG)
    assert open_store(disk).recovery.lost == end


def test_a_log_that_was_copied_back_settles_it_by_itself() -> None:
    disk = new_disk()
    store = filled(disk)
    data = content(store)
    die(disk)
    disk.remove_tree(LOG)
    store = open_store(disk)
    half = len(data) // 2
    copy_back(store, data[:half], 0)
    assert store.missing == [(store.watermarks.flushed, len(data))]
    die(disk)
    store = open_store(disk)
    at = store.watermarks.appended
    assert 0 < at <= half
    assert store.missing == [(at, len(data))]  # and not what the first start found
    copy_back(store, data[at:], at)
    assert store.amnesia == ""
    assert numbers(store) == list(range(120))
    assert store.put(message(b"120" + bytes(150))).queue_offset == 120
    die(disk)
    store = open_store(disk)
    assert store.amnesia == ""


def test_what_is_cut_after_it_was_copied_back_is_not_missed() -> None:
    disk = new_disk()
    data = content(filled(disk))
    die(disk)
    disk.remove_tree(LOG)
    store = open_store(disk)
    copy_back(store, data, 0)
    store.truncate(3 * SEGMENT, reason="it parted from its master there")
    assert store.amnesia == ""
    die(disk)
    assert open_store(disk).amnesia == ""


@pytest.mark.parametrize("first", [0, 3])
def test_a_whole_log_is_copied_back_from_wherever_the_other_one_begins(first: int) -> None:
    disk, other = new_disk(), new_disk()
    clock = Clock()
    store = filled(disk)
    donor = filled(other, clock=clock)
    data = content(donor)[first * SEGMENT :]
    die(disk)
    disk.remove_tree(LOG)
    store = open_store(disk)
    copy_back(store, data, first * SEGMENT)
    assert store.watermarks.start == first * SEGMENT
    assert content(store) == data
    expected = [n for n in range(120) if first == 0 or n > numbers(store)[0] - 1]
    assert numbers(store) == expected
    assert numbers(store)[-1] == 119
    # The other node's cleaner may have taken the front: only who copied knows.
    assert store.missing == ([] if first == 0 else [(0, first * SEGMENT)])
    store.settle()
    die(disk)
    again = open_store(disk)
    assert (again.amnesia, numbers(again), content(again)) == ("", expected, data)


def test_a_power_loss_while_the_log_is_copied_back_leaves_no_hole() -> None:
    """`flushed` says what is durable, not what was promised: what a crash leaves behind it goes."""
    for seed in range(12):
        disk = new_disk(seed)
        store = filled(disk)
        data = content(store)
        die(disk)
        disk.remove_tree(LOG)
        store = open_store(disk)
        rng = random.Random(seed)
        at = 0
        while at < len(data):
            size = min(rng.randint(1, 6000), len(data) - at)
            store.append_raw(at, data[at : at + size])
            at += size
            if rng.random() < 0.3:
                save(store)
            if rng.random() < 0.3:
                disk.power_off()
                disk.power_on()
                store = open_store(disk)
                assert store.recovery.gaps == []
                at = store.watermarks.appended
                assert store.missing == ([(at, len(data))] if at < len(data) else [])
        save(store)
        assert (content(store), store.amnesia, numbers(store)) == (data, "", list(range(120)))


@pytest.mark.parametrize("clean", [True, False])
def test_segments_missing_at_the_front_are_told(clean: bool) -> None:
    disk = new_disk()
    stop(disk, filled(disk), clean)
    disk.unlink(segment(0))
    disk.unlink(segment(1))
    for _ in range(2):
        store = open_store(disk)
        assert store.missing == [(0, 2 * SEGMENT)]
        assert numbers(store)[-1] == 119
        save(store)
        stop(disk, store, clean)


@pytest.mark.parametrize("cut", range(40))
def test_the_cleaner_is_never_accused_wherever_a_crash_cuts_it(cut: int) -> None:
    disk, clock = new_disk(cut), Clock()
    config = dataclasses.replace(CONFIG, file_reserved_hours=1)
    disk.now_ms = clock.now_ms
    store = open_store(disk, clock, config)
    for number in range(120):
        store.put(message(b"%d" % number + bytes(150)))
    save(store)
    clock.now += 2 * HOUR
    steps = 0

    def step(operation: str, path: str) -> None:
        nonlocal steps
        steps += 1
        if steps == cut:
            raise Cut

    disk.step = step
    with contextlib.suppress(Cut):
        for _ in range(3):
            store.clean_on_request()
            ticket = store.begin_clean()
            if ticket is not None:
                ticket.run()
            clock.now += HOUR
            if steps > 25:
                save(store)
    disk.step = None
    disk.power_off()
    disk.power_on()
    store = open_store(disk, clock, config)
    assert store.amnesia == ""
    assert store.watermarks.start in (0, *(n * SEGMENT for n in range(1, 5)))
    store.put(message(b"x"))


def test_a_crash_between_the_end_of_the_cleaners_files_and_the_checkpoint_accuses_nobody() -> None:
    disk, clock = new_disk(), Clock()
    config = dataclasses.replace(CONFIG, file_reserved_hours=1)
    disk.now_ms = clock.now_ms
    filled(disk, clock=clock).close()
    store = open_store(disk, clock, config)
    for _ in range(3):
        clock.now += 2 * HOUR
        store.clean_on_request()
        ticket = store.begin_clean()
        if ticket is not None:
            ticket.run()
    start = store.watermarks.start
    assert start == 4 * SEGMENT
    waiting = [entry.name for entry in disk.list(f"{LOG}/deleted")]
    assert waiting == [f"{start - SEGMENT:020d}.delete"]
    die(disk)
    store = open_store(disk, clock, config)
    assert store.amnesia == ""
    assert disk.list(f"{LOG}/deleted") == []  # the checkpoint has it now
    die(disk)
    assert open_store(disk, clock, config).amnesia == ""


class Cut(Exception):
    """The power went here."""


def test_a_front_that_goes_while_the_newest_of_the_cleaners_files_waits_is_told() -> None:
    disk, clock = new_disk(), Clock()
    config = dataclasses.replace(CONFIG, file_reserved_hours=1, delete_batch_max=1)
    disk.now_ms = clock.now_ms
    store = filled(disk, clock=clock)
    store.close()
    store = open_store(disk, clock, config)
    clock.now += 2 * HOUR
    store.clean_on_request()
    ticket = store.begin_clean()
    assert ticket is not None
    ticket.run()
    assert store.watermarks.start == SEGMENT
    die(disk)
    disk.unlink(segment(1))
    assert open_store(disk, clock, config).missing == [(SEGMENT, 2 * SEGMENT)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_behind_a_missing_segment_nothing_is_destroyed(clean: bool, known: bool) -> None:
    disk = new_disk()
    store = filled(disk)
    end = store.watermarks.flushed
    stop(disk, store, clean)
    kept = {n: disk.content(segment(n)) for n in (2, 3) if disk.exists(segment(n))}
    assert len(kept) == 2
    disk.unlink(segment(1))
    if not known:
        disk.unlink("/store/checkpoint")
    for _ in range(2):
        store = open_store(disk)
        assert store.missing == [(store.watermarks.appended, end)]
        assert store.watermarks.appended <= SEGMENT
        assert numbers(store) == list(range(len(numbers(store))))
        assert len(numbers(store)) > 10
        save(store)
        stop(disk, store, clean)
    sides = {side.start // SEGMENT: side for side in open_store(disk).truncated()}
    assert kept.keys() <= sides.keys()
    for n, data in kept.items():
        assert disk.read_file(sides[n].file) == data
        assert sides[n].size == SEGMENT
        assert sides[n].reason == f"a segment before {2 * SEGMENT} is missing"
    assert sum(side.messages for side in sides.values()) > 30
    assert SideFile.open(disk, sides[2].file).facts.segment_bytes == SEGMENT


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_a_crash_while_files_are_set_aside_keeps_all_of_them(cut: int) -> None:
    disk = new_disk(cut)
    end = filled(disk).watermarks.flushed
    die(disk)
    kept = [disk.content(segment(n)) for n in (2, 3)]
    disk.unlink(segment(1))
    disk.unlink("/store/checkpoint")
    steps = 0

    def step(operation: str, path: str) -> None:
        nonlocal steps
        steps += 1
        if steps == cut:
            raise Cut

    disk.step = step
    with contextlib.suppress(Cut):
        open_store(disk)
    disk.step = None
    disk.power_off()
    disk.power_on()
    store = open_store(disk)
    assert store.missing == [(store.watermarks.appended, end)]
    sides = {side.start // SEGMENT: disk.read_file(side.file) for side in store.truncated()}
    assert [sides[n] for n in (2, 3)] == kept
    assert end > 3 * SEGMENT


def test_files_on_another_file_system_are_copied() -> None:
    disk = new_disk()
    filled(disk)
    die(disk)
    kept = disk.content(segment(2))
    disk.unlink(segment(1))
    disk.plan("rename", errno.EXDEV, f"{LOG}/*", times=None)
    store = open_store(disk)
    assert not disk.exists(segment(2))
    assert kept in [disk.read_file(side.file) for side in store.truncated()]
    assert {side.epoch for side in store.truncated()} == {0}, "nobody knows it"


def test_files_that_cannot_be_set_aside_stop_the_start_and_stay() -> None:
    disk = new_disk()
    filled(disk)
    die(disk)
    kept = disk.content(segment(2))
    disk.unlink(segment(1))
    plan = disk.plan("rename", errno.EIO, f"{LOG}/*", times=None)
    with pytest.raises(ServiceNotAvailable, match="could not be moved"):
        open_store(disk)
    assert disk.content(segment(2)) == kept
    plan.times = 0
    assert kept in [disk.read_file(side.file) for side in open_store(disk).truncated()]


@pytest.mark.parametrize("known", [True, False])
def test_a_damaged_end_is_kept_in_a_side_file_before_it_is_cut(known: bool) -> None:
    disk = new_disk()
    store = filled(disk)
    end = store.watermarks.flushed
    last = store.put(message(b"last" + bytes(150)))
    save(store)
    stop(disk, store, clean=True)
    path, at = segment(end // SEGMENT), end % SEGMENT
    disk.flip(path, at + 100, 3)
    kept = disk.content(path)[at : at + last.end_offset - last.physical_offset]
    if not known:
        disk.unlink("/store/checkpoint")
    disk.write_file("/store/abort", b"1")
    store = open_store(disk)
    assert store.watermarks.appended == end
    assert store.missing == ([(end, last.end_offset)] if known else [])
    (side,) = store.truncated()
    assert disk.read_file(side.file) == kept.rstrip(b"\0")
    assert side.start == end
    die(disk)
    assert len(open_store(disk).truncated()) == 1


def test_a_tail_that_was_never_flushed_is_cut_without_a_copy() -> None:
    disk = new_disk()
    store = filled(disk)
    end = store.watermarks.flushed
    store.put(message(b"torn" + bytes(150)))
    die(disk)
    disk.flip(segment(end // SEGMENT), end % SEGMENT + 100, 3)
    store = open_store(disk)
    assert (store.watermarks.appended, store.amnesia, store.truncated()) == (end, "", [])


def test_without_room_for_the_copy_the_start_fails_and_nothing_is_cut() -> None:
    disk = new_disk()
    store = filled(disk)
    end = store.watermarks.flushed
    store.put(message(b"last" + bytes(150)))
    save(store)
    die(disk)
    path = segment(end // SEGMENT)
    disk.flip(path, end % SEGMENT + 100, 3)
    kept = disk.content(path)
    disk.plan("create_segment", errno.ENOSPC, "/store/truncated/*")
    with pytest.raises(ServiceNotAvailable, match="could not be saved"):
        open_store(disk)
    assert disk.content(path) == kept


def forget_the_start(disk) -> None:
    page = dataclasses.replace(Checkpoint.load(disk, "/store"), start=-1)
    page.save(disk, "/store")


def test_a_page_of_before_accuses_no_cleaner() -> None:
    disk = new_disk()
    store = filled(disk)
    store.close()
    disk.unlink(segment(0))
    forget_the_start(disk)
    assert open_store(disk).amnesia == ""


def test_a_page_of_before_tells_an_end_that_is_gone() -> None:
    disk = new_disk()
    store = filled(disk)
    end = store.watermarks.flushed
    store.close()
    disk.unlink(segment(3))
    forget_the_start(disk)
    for _ in range(2):
        store = open_store(disk)
        at = store.watermarks.appended
        assert store.missing == [(at, end)]
        assert f"which had 0 to {end} on this disk once" in store.amnesia
        die(disk)


def test_the_cleaner_goes_on_while_the_end_is_missing() -> None:
    disk, clock = new_disk(), Clock()
    config = dataclasses.replace(CONFIG, file_reserved_hours=1, delete_batch_max=1)
    disk.now_ms = clock.now_ms
    store = filled(disk, clock=clock)
    end = store.watermarks.flushed
    store.close()
    disk.unlink(segment(3))
    store = open_store(disk, clock, config)
    at = store.watermarks.appended
    clock.now += 2 * HOUR
    for gone in (1, 2):
        clean(store)
        save(store)
        for _ in range(2):
            assert store.watermarks.start == gone * SEGMENT
            assert store.missing == [(at, end)]
            assert f"which had {gone * SEGMENT} to {end} on this disk once" in store.amnesia
            die(disk)
            store = open_store(disk, clock, config)


def clean(store: MessageStore) -> None:
    store.clean_on_request()
    ticket = store.begin_clean()
    assert ticket is not None
    ticket.run()


def test_the_cleaner_waits_while_the_front_is_missing() -> None:
    """A segment that it took from behind a missing one would tell that it took both."""
    disk, clock = new_disk(), Clock()
    config = dataclasses.replace(CONFIG, file_reserved_hours=1, delete_batch_max=1)
    disk.now_ms = clock.now_ms
    store = filled(disk, clock=clock)
    store.close()
    disk.unlink(segment(0))
    clock.now += 2 * HOUR
    for _ in range(2):
        store = open_store(disk, clock, config)
        store.clean_on_request()
        assert store.begin_clean() is None
        save(store)
        assert store.missing == [(0, SEGMENT)]
        die(disk)
    store = open_store(disk, clock, config)
    store.settle()
    clean(store)
    assert (store.watermarks.start, store.amnesia) == (2 * SEGMENT, "")


def test_the_cleaner_moves_no_start_that_nobody_knows() -> None:
    disk, clock = new_disk(), Clock()
    config = dataclasses.replace(CONFIG, file_reserved_hours=1, delete_batch_max=1)
    disk.now_ms = clock.now_ms
    store = filled(disk, clock=clock)
    end = store.watermarks.flushed
    store.close()
    disk.unlink(segment(3))
    forget_the_start(disk)
    clock.now += 2 * HOUR
    for _ in range(2):
        store = open_store(disk, clock, config)
        at = store.watermarks.appended
        clean(store)
        assert store.missing == [(at, end)]
        assert f"which had 0 to {end} on this disk once" in store.amnesia
        die(disk)


def test_a_log_without_its_front_is_emptied_and_copied_back_whole() -> None:
    disk = new_disk()
    store = filled(disk)
    data = content(store)
    die(disk)
    disk.unlink(segment(0))
    store = open_store(disk)
    rest = content(store)
    store.truncate(0, reason="the whole log is copied back")
    assert store.missing == [(0, len(data))]
    [side] = store.truncated()
    assert disk.read_file(side.file) == rest
    die(disk)
    store = open_store(disk)
    assert store.missing == [(0, len(data))]
    copy_back(store, data, 0)
    assert (store.amnesia, numbers(store)) == ("", list(range(120)))


def test_a_settlement_that_cannot_be_written_down_is_none() -> None:
    disk = new_disk()
    store = filled(disk)
    die(disk)
    disk.remove_tree(LOG)
    store = open_store(disk)
    missing = store.missing
    disk.plan("write_file", errno.ENOSPC, "/store/checkpoint*")
    with pytest.raises(OSError, match="planned"):
        store.settle()
    assert store.missing == missing != []
    store.settle()
    assert store.missing == []


def test_a_truncation_to_nothing_is_no_amnesia() -> None:
    disk = new_disk()
    store = filled(disk)
    store.truncate(0, reason="the logs share no epoch")
    die(disk)
    assert open_store(disk).amnesia == ""


def test_a_front_that_goes_before_the_first_checkpoint_is_told() -> None:
    """As a restart minutes later does, which finds that the log ended behind it."""
    disk = new_disk()
    store = open_store(disk)
    for number in range(60):
        store.put(message(b"%d" % number + bytes(150)))
    dispatch(store)
    flush(store)
    die(disk)
    disk.unlink(segment(0))
    for _ in range(2):
        store = open_store(disk)
        assert store.missing == [(0, SEGMENT)]
        assert f"lacks the bytes 0 to {SEGMENT}" in store.amnesia
        die(disk)


def test_a_front_that_goes_again_after_it_was_copied_back_is_told_again() -> None:
    disk = new_disk()
    data = content(filled(disk))
    die(disk)
    disk.remove_tree(LOG)
    store = open_store(disk)
    for at in range(0, len(data), 1000):
        store.append_raw(at, data[at : at + 1000])
        dispatch(store)
        flush(store)
    store.settle()
    die(disk)
    disk.unlink(segment(0))
    assert open_store(disk).missing == [(0, SEGMENT)]
    disk.remove_tree(LOG)
    die(disk)
    assert open_store(disk).missing == [(0, len(data))]


def test_a_segment_that_goes_before_a_checkpoint_knows_it_is_told_by_those_behind() -> None:
    disk = new_disk()
    store = filled(disk, 20)
    for number in range(20, 120):
        store.put(message(b"%d" % number + bytes(150)))
    dispatch(store)
    flush(store)
    end = store.watermarks.flushed
    die(disk)
    disk.unlink(segment(1))
    for _ in range(2):
        store = open_store(disk)
        assert store.watermarks.appended <= SEGMENT
        assert store.missing == [(store.watermarks.appended, end)]
        die(disk)


def test_empty_segments_behind_a_missing_one_tell_nothing() -> None:
    disk = new_disk()
    store = filled(disk, 20)
    end = store.watermarks.flushed
    assert end < SEGMENT
    die(disk)
    disk.create_segment(segment(2), SEGMENT).close()
    store = open_store(disk)
    assert store.watermarks.appended == end
    assert store.amnesia == ""


def test_empty_segments_behind_a_missing_one_are_no_promise_where_nothing_was_flushed() -> None:
    disk = new_disk()
    store = open_store(disk)
    put = store.put(message(b"never flushed"))
    die(disk)
    disk.create_segment(segment(2), SEGMENT).close()
    store = open_store(disk)
    assert (store.watermarks.appended, store.amnesia) == (put.end_offset, "")


def test_without_a_checkpoint_a_segment_is_missed_that_empty_ones_follow() -> None:
    disk = new_disk()
    end = filled(disk, 20).watermarks.flushed
    die(disk)
    disk.unlink("/store/checkpoint")
    disk.create_segment(segment(2), SEGMENT).close()
    for _ in range(2):
        store = open_store(disk)
        assert store.missing == [(end, 2 * SEGMENT)]
        die(disk)


def test_a_copied_log_that_begins_later_accuses_nobody() -> None:
    disk, other = new_disk(), new_disk()
    data = content(filled(other))
    store = open_store(disk)
    store.append_raw(2 * SEGMENT, data[2 * SEGMENT :][:1000])
    die(disk)
    assert open_store(disk).amnesia == ""


def test_a_log_begins_when_it_is_written_down_where() -> None:
    disk = new_disk()
    store = open_store(disk)
    disk.plan("write_file", errno.ENOSPC, "/store/checkpoint*")
    with pytest.raises(ServiceNotAvailable, match="no room"):
        store.put(message(b"x"))
    assert store.watermarks.appended == 0
    assert store.put(message(b"x")).queue_offset == 0
    assert Checkpoint.load(disk, "/store").start == 0


def test_an_empty_log_takes_nothing_from_the_middle_of_a_segment() -> None:
    disk, other = new_disk(), new_disk()
    data = content(filled(other))
    store = open_store(disk)
    with pytest.raises(StoreDamaged, match="begins with a segment"):
        store.append_raw(SEGMENT + 400, data[SEGMENT + 400 :][:100])
    store.append_raw(SEGMENT, data[SEGMENT:][:1000])
    assert store.watermarks.start == SEGMENT
