"""The index by itself: whatever happens on the way, it is the one that a single run would make."""

from __future__ import annotations

import errno
import itertools
import random

import pytest
from saturnmq.drills.sim.disk import PowerCutOdds, SimDisk
from saturnmq.protocol.jhash import index_hash
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.derived.index_items import INCOMING, ITEM
from saturnmq.store.derived.indexfile import Index, IndexMark
from store_rig import Clock, new_disk

SLOTS, PLACES = 7, 5  # four items in a file
FILE_BYTES = 40 + 4 * SLOTS + 20 * PLACES
NOW = Clock().now_ms()
FAR = 1 << 60
NOTHING_ELSE = PowerCutOdds(kept=0.0, torn=0.0, names=0.0)

Message = tuple[int, int, tuple[str, ...]]  # offset, store time, keys
MESSAGES: list[Message] = [
    (100 * n, NOW + 700 * n, ("ab", "a", "abc")[n % 3 : n % 3 + 1] + ("all", f"k{n}")[: n % 4])
    for n in range(12)
]


def opened(disk: SimDisk, *, clean: bool = True) -> Index:
    index = Index(disk, "/index", SLOTS, PLACES, Clock().now_ms)
    disk.make_dirs("/index")
    index.load(clean=clean)
    index.resume()
    return index


def items(*messages: Message) -> bytes:
    return b"".join(
        INCOMING.pack(index_hash("T", key), offset, time)
        for offset, time, keys in messages
        for key in keys
    )


def filled(disk: SimDisk, *messages: Message) -> Index:
    index = opened(disk)
    index.append(items(*messages))
    return index


def parts(index: Index) -> list[bytes]:
    """The header, the slots and the items that are counted, of each file."""
    return [bytes(file.file.view[: 40 + 4 * SLOTS + 20 * file.count]) for file in index.files]


def hits(index: Index, key: str, begin: int = 0, end: int = FAR) -> list[int]:
    found = index.candidates("T", key, begin, end)
    return [offset for offset in found if offset is not None]  # None: looked at in vain


def time_at(offset: int) -> int | None:
    return next((time for at, time, _ in MESSAGES if at == offset), None)


def test_a_cut_index_is_one_that_never_had_more() -> None:
    for end in (*range(0, 1300, 100), 50, 1101):
        cut = filled(new_disk(), *MESSAGES)
        cut.truncate(end, time_at)
        kept = [message for message in MESSAGES if message[0] < end]
        assert parts(cut) == parts(filled(new_disk(), *kept))
        assert cut.indexed_to() == (kept[-1][0] if kept else None)
        cut.append(items(*MESSAGES))  # it knows what it has, and takes what was cut again
        assert parts(cut) == parts(filled(new_disk(), *MESSAGES))


def test_a_cut_behind_all_items_changes_nothing() -> None:
    for count in range(1, len(MESSAGES) + 1):
        index = filled(new_disk(), *MESSAGES[:count])
        index.truncate(MESSAGES[count - 1][0] + 1, time_at)
        assert parts(index) == parts(filled(new_disk(), *MESSAGES[:count]))


def test_the_end_time_stays_when_the_last_message_of_a_cut_index_is_gone() -> None:
    index = filled(new_disk(), *MESSAGES[:2])
    before = index.files[-1].end_time
    index.truncate(100, lambda offset: None)
    assert (index.files[-1].end_offset, index.files[-1].end_time) == (0, before)


def test_no_item_is_put_twice_wherever_an_earlier_run_stopped() -> None:
    whole, everything = filled(new_disk(), *MESSAGES), items(*MESSAGES)
    for there in range(0, len(everything) + 1, INCOMING.size):
        disk = new_disk()
        first = opened(disk)
        first.append(everything[:there])
        first.close()
        again = opened(disk)
        for message in MESSAGES:  # as the steps of reput are, of which the first know nothing new
            again.append(items(message))
        assert parts(again) == parts(whole)


def test_items_that_no_file_could_be_made_for_come_again() -> None:
    disk = new_disk()
    index = opened(disk)
    disk.plan("create_segment", errno.ENOSPC, pattern="*/index/*", times=1)
    with pytest.raises(OSError, match="planned"):
        index.append(items(*MESSAGES))
    index.append(items(*MESSAGES[:2]))
    disk.plan("create_segment", errno.ENOSPC, pattern="*/index/*", times=1)
    with pytest.raises(OSError, match="planned"):
        index.append(items(*MESSAGES[2:]))
    index.append(items(*MESSAGES[2:]))
    assert parts(index) == parts(filled(new_disk(), *MESSAGES))


@pytest.mark.parametrize("step", [1, 4])
def test_what_a_flush_tells_is_there_after_a_power_loss(step: int) -> None:
    for killed in range(13):
        disk = new_disk()
        index = opened(disk)
        mark = IndexMark(0, bytes(40), 0)
        for number, message in enumerate(MESSAGES):
            index.append(items(message))
            if number == killed:  # what it wrote since is nowhere but in memory
                disk.kill()
                disk.power_on()
                index = opened(disk, clean=False)
                index.restore(mark.name, mark.header)
                index.resume()
                index.append(items(*MESSAGES[: number + 1]))
            if number % step == 0:
                mark = index.flush()
                sound = parts(index)
                assert mark.name == index.files[-1].name
                full = time_at(index.files[-2].end_offset) if index.files[1:] else 0
                assert mark.full_until == full
                again = opened(disk.crash_image(random.Random(1), NOTHING_ELSE), clean=False)
                again.restore(mark.name, mark.header)
                assert parts(again) == sound


def test_an_index_without_files_tells_so() -> None:
    disk = new_disk()
    index = opened(disk)
    assert index.flush() == IndexMark(0, bytes(40), 0)
    assert (index.name_of_newest(), index.indexed_to()) == (0, None)
    index = filled(disk, *MESSAGES)
    mark = index.flush()
    index.destroy()
    assert (disk.list("/index"), index.flush()) == ([], IndexMark(0, bytes(40), 0))
    index.restore(mark.name, mark.header)  # its file is gone: there is nothing to go back to
    assert index.files == []
    index.append(items(*MESSAGES))
    assert index.files[0].name == mark.name + 1, "no name is given twice"


def test_files_behind_the_one_that_a_checkpoint_names_go() -> None:
    disk = new_disk()
    index = filled(disk, *MESSAGES[:5])
    mark, sound = index.flush(), parts(index)
    index.append(items(*MESSAGES[5:]))
    newest = index.files[-1].name
    index.restore(mark.name, mark.header)
    assert parts(index) == sound
    index.resume()
    index.append(items(*MESSAGES))
    assert parts(index) == parts(filled(new_disk(), *MESSAGES))
    assert index.files[-1].name > newest


def test_files_go_from_the_front_when_all_their_messages_are_gone() -> None:
    disk = new_disk()
    index = filled(disk, *MESSAGES)
    paths = [file.file.path for file in index.files]
    first, second = (file.end_offset for file in index.files[:2])
    assert index.drop_before(first) == []
    assert index.drop_before(first + 1) == paths[:1]
    assert index.drop_before(second + 1) == paths[1:2]
    assert index.drop_before(FAR) == paths[2:-1]
    assert [file.file.path for file in index.files] == paths[-1:], "the last one is never deleted"


# times


def test_times_of_a_range_count_to_the_millisecond() -> None:
    index = filled(new_disk(), *((n, NOW + 1000 * n, ("k",)) for n in range(3)))
    begins = (NOW - 1, NOW, NOW + 1, NOW + 1000, NOW + 2000, NOW + 2001)
    for begin, end in itertools.product(begins, (NOW - 1, NOW, NOW + 999, NOW + 1000, NOW + 2000)):
        expected = [n for n in (2, 1, 0) if begin <= NOW + 1000 * n <= end]
        assert hits(index, "k", begin, end) == expected


def test_a_range_spans_files_to_the_millisecond() -> None:
    index = filled(new_disk(), *((n, NOW + 1000 * (n // 4), ("k",)) for n in range(12)))
    # the seconds of a file's first item count from the end of the file before
    assert hits(index, "k", NOW + 1000, NOW + 1000) == [7, 6, 5]
    assert hits(index, "k", NOW + 1000, NOW + 1999) == [7, 6, 5]
    assert hits(index, "k", NOW + 1000, NOW + 2000) == [11, 10, 9, 7, 6, 5, 4]
    assert hits(index, "k", NOW, NOW) == [3, 2, 1, 0]
    assert hits(index, "k", NOW + 2000, FAR) == [11, 10, 9, 8]
    assert hits(index, "k", NOW + 2001, FAR) == []
    assert hits(index, "k", NOW, NOW + 2999)[0] == 11
    assert 8 not in hits(index, "k", NOW, NOW + 2999)
    assert 8 in hits(index, "k", NOW, NOW + 3000)
    index = filled(new_disk(), *((n, NOW, ("k",)) for n in range(8)))
    assert hits(index, "k", NOW, NOW) == [7, 6, 5, 4, 3, 2, 1, 0]


def test_a_slot_holds_the_keys_of_others() -> None:
    hashes = {f"k{n}": index_hash("T", f"k{n}") % SLOTS for n in range(40)}
    one, *others = sorted(hashes, key=lambda key: hashes[key])[:3]
    assert len({hashes[key] for key in (one, *others)}) == 1
    index = filled(new_disk(), (0, NOW, (one,)), (100, NOW, tuple(others)), (200, NOW, (one,)))
    assert hits(index, one) == [200, 0]
    assert hits(index, others[1]) == [100]
    assert hits(index, "absent") == []


# damage


def put_item(index: Index, number: int, *fields: int) -> None:
    ITEM.pack_into(index.files[0].file.view, 40 + 4 * SLOTS + 20 * number, *fields)


@pytest.mark.parametrize("previous", [2, 3, 4, -1])
def test_a_chain_that_does_not_lead_back_ends_there(previous: int) -> None:
    index = filled(new_disk(), *((n, NOW, ("k",)) for n in range(3)))
    put_item(index, 2, index_hash("T", "k"), 1, 0, previous)
    chain = index.candidates("T", "k", 0, FAR)
    assert list(itertools.islice(chain, 9)) == [2, 1]


def test_a_slot_that_leads_behind_the_items_has_none() -> None:
    index = filled(new_disk(), (0, NOW, ("k",)))
    key_hash = index_hash("T", "k")
    put_item(index, 2, key_hash, 5, 0, 1)
    slot = 40 + 4 * (key_hash % SLOTS)
    index.files[0].file.view[slot : slot + 4] = (2).to_bytes(4, "big")
    assert hits(index, "k") == []


def test_an_item_before_its_file_began_ends_a_chain() -> None:
    index = filled(new_disk(), *((n, NOW, ("k",)) for n in range(3)))
    put_item(index, 2, index_hash("T", "k"), 1, -1, 1)
    assert hits(index, "k", NOW - 5000) == [2]


# files of other lengths


def test_lengths_that_no_file_has_as_set_are_told() -> None:
    disk = new_disk()
    disk.make_dirs("/index")
    for name in ("00000000000000001", "00000000000000002"):
        disk.write_file(f"/index/{name}", bytes(int(name) * 60))
    with pytest.raises(StoreDamaged) as refused:
        opened(disk)
    for part in ("/index/00000000000000001 is 60 bytes", "Num 7", "Num 5", f"make {FILE_BYTES}"):
        assert part in str(refused.value)


def test_files_that_a_crash_left_empty_are_no_other_setting() -> None:
    disk = new_disk()
    disk.make_dirs("/index")
    disk.write_file("/index/00000000000000001", b"")
    assert (opened(disk).files, disk.list("/index")) == ([], [])


def test_what_is_no_index_file_is_left_alone() -> None:
    disk = new_disk()
    sound = parts(filled(disk, *MESSAGES))
    disk.make_dirs("/index/1")
    disk.write_file("/index/notes.txt", b"mine")
    assert parts(opened(disk)) == sound
    assert {"1", "notes.txt"} <= {entry.name for entry in disk.list("/index")}


@pytest.mark.parametrize("length", [0, 1, FILE_BYTES - 1, FILE_BYTES + 1])
def test_one_file_of_another_length_has_all_deleted_the_newest_first(
    length: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = new_disk()
    index = filled(disk, *MESSAGES)
    names = [str(file.name) for file in index.files]
    disk.unlink(f"/index/{names[1]}")
    disk.write_file(f"/index/{names[1]}", bytes(length))
    deleted: list[str] = []
    disk.step = lambda kind, path: deleted.append(path[-17:]) if kind == "unlink" else None
    again = opened(disk)
    disk.step = None
    assert deleted == names[::-1]
    assert (again.files, disk.list("/index")) == ([], [])
    assert f"/index/{names[1]} is {length} bytes long" in caplog.text
    again.append(items(*MESSAGES))
    assert again.files[0].name > int(names[-1])
    assert parts(again) == parts(filled(new_disk(), *MESSAGES))


# -- items that come late --------------------------------------------------------------------------
def test_items_that_are_kept_are_found_and_cut_as_if_they_were_there() -> None:
    for end in (*range(0, 1300, 100), 550):
        index = filled(new_disk(), *MESSAGES[:6])
        index.later(items(*MESSAGES[6:]))
        index.truncate(end, time_at)
        kept = [message for message in MESSAGES if message[0] < end]
        assert hits(index, "all") == [at for at, _, keys in reversed(kept) if "all" in keys]
        index.settle()
        assert parts(index) == parts(filled(new_disk(), *kept))


def test_what_is_kept_comes_before_what_is_appended_and_before_what_is_kept_next() -> None:
    index = opened(new_disk())
    index.later(items(*MESSAGES[:3]))
    index.later(items(*MESSAGES[3:5]))
    index.append(items(*MESSAGES[5:]))
    index.settle()
    assert parts(index) == parts(filled(new_disk(), *MESSAGES))


def test_kept_items_for_which_there_is_no_room_stay_until_there_is() -> None:
    disk = new_disk()
    index = filled(disk, *MESSAGES[:5])
    index.later(items(*MESSAGES[5:]))
    plan = disk.plan("create_segment", errno.ENOSPC, "*", times=None)
    for spare in range(3):  # some files may have been made before
        with pytest.raises(OSError, match="planned failure"):
            index.settle()
        assert 100 in hits(index, "all"), spare
    plan.times = 0
    index.settle()
    assert parts(index) == parts(filled(new_disk(), *MESSAGES))


def test_a_destroyed_index_keeps_nothing() -> None:
    index = filled(new_disk(), *MESSAGES[:5])
    index.later(items(*MESSAGES[5:]))
    index.destroy()
    index.settle()
    assert parts(index) == []
