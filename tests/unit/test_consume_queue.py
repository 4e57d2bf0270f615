"""A queue's files against a naive model: a table of entries that has holes and an end."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from saturnmq.drills.sim.disk import PowerCutOdds, SimDisk
from saturnmq.store.derived.consumequeue import ENTRY, ConsumeQueue, last_physical
from store_rig import files_have_holes

PER_FILE = 7
HOLE = (0, 0x7FFFFFFF, 0)
NOTHING_ELSE = PowerCutOdds(kept=0.0, torn=0.0, names=0.0)

Entry = tuple[int, int, int]


class Model:
    """What a queue is to hold: entries by their number; `low` and `end` bound those that count."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.low = self.end = 0
        self.log_end = 0

    def append(self, skip: int, sizes: list[int]) -> tuple[int, list[Entry]]:
        first = max(self.end + skip, 0)
        found = []
        for number, size in enumerate(sizes, first):
            if number not in self.entries and number >= self.end:
                self.entries[number] = (self.log_end, size, -number)
                self.log_end += size
            found.append(self.entries.get(number, (1, 1, 1)))
        if not self.low and not self.end:
            self.low = first
        self.end = max(self.end, first + len(sizes))
        return first, found

    def is_frame(self, offset: int, size: int, topic: str, queue_id: int, number: int) -> bool:
        entry = self.entries.get(number)
        return (topic, queue_id) == ("T", 3) and entry is not None and entry[:2] == (offset, size)

    def number_at(self, physical: int) -> int:
        """The first number behind all entries that begin before `physical`."""
        return max((n + 1 for n, e in self.entries.items() if e[0] < physical), default=0)

    def cut(self, physical: int) -> None:
        self.entries = {n: e for n, e in self.entries.items() if e[0] < physical}
        self.end = max(self.number_at(physical), min(self.low, self.end))
        self.log_end = physical


def opened(disk: SimDisk) -> ConsumeQueue:
    queue = ConsumeQueue(disk, "/q/T/3", 20 * PER_FILE, "T", 3)
    queue.series.load()
    return queue


def check(queue: ConsumeQueue, model: Model) -> None:
    assert (queue.min_offset, queue.max_offset) == (model.low, model.end)
    for number in range(model.low, model.end):
        expected = model.entries.get(number, HOLE)
        assert queue.entry(number) == expected
        stop = min(number - number % PER_FILE + PER_FILE, model.end, number + 3)
        packed = b"".join(ENTRY.pack(*model.entries.get(n, HOLE)) for n in range(number, stop))
        assert queue.entries(number, 3) == packed
    for number in (model.low - 1, model.end, model.end + PER_FILE):
        assert queue.entry(number) is None
    assert len(queue.entries(model.end, 3)) == 0
    last = model.entries.get(model.end - 1) if model.low < model.end else None
    assert queue.last_physical == (-1 if last is None else last[0])
    if model.low < model.end:
        assert queue.max_physical == (-1 if last is None else last[0] + last[1])
        for physical in (0, model.log_end // 2, model.log_end, *(e[0] for e in (last,) if e)):
            found = queue.first_at_or_after(physical, model.low, model.end)
            assert found == min(max(model.number_at(physical), model.low), model.end)


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.sampled_from([-5, -1, 0, 0, 0, 0, 1, 2, 9, 600]),
            st.lists(st.integers(91, 300), min_size=1, max_size=20),
        ),
        st.tuples(st.sampled_from(["truncate", "drop", "crash", "reload"]), st.floats(0, 1)),
    ),
    max_size=12,
)


@example([("append", 0, [91]), ("drop", 1.0), ("append", 1, [91]), ("crash", 0.0)], 0)
@given(steps, st.sampled_from([0, 0, 3, 50]))
def test_a_queue_holds_what_its_model_does(taken, begin: int) -> None:
    disk, model = SimDisk(random.Random(1)), Model()
    queue = opened(disk)
    log_start = 0
    for step in taken:
        if step[0] == "append":
            _, skip, sizes = step
            if not model.entries:
                if queue.series.segments:
                    continue  # what a queue without entries goes on with is a matter of its files
                model, skip = Model(), begin
                model.log_end = log_start
            before = model.end if queue.series.segments else max(model.end + skip, 0)
            first, entries = model.append(skip, sizes)
            packed = b"".join(ENTRY.pack(*entry) for entry in entries)
            fresh = queue.append(first, packed)
            new = entries[max(before - first, 0) :]
            assert fresh == b"".join(ENTRY.pack(*entry) for entry in new)
            queue.flush()
            disk.sync_dir("/q/T/3")
        elif not model.entries:
            continue
        else:
            places = sorted(model.entries)
            chosen = places[min(int(step[1] * len(places)), len(places) - 1)]
            if step[0] == "truncate":
                physical = model.entries[chosen][0]
                if physical <= log_start or chosen <= model.low:
                    continue
                model.cut(physical)
                queue.truncate(physical)
            elif step[0] == "drop":
                if step[1] == 1:
                    log_start, model.low = model.log_end, model.end
                else:
                    log_start = max(log_start, model.entries[chosen][0])
                    low = max(chosen, model.low)  # what goes before may be behind a hole
                    model.low = min((n for n in places if n >= low), default=model.end)
                gone = queue.drop_before(log_start)
                assert all(int(path.rpartition("/")[2]) // 20 < model.low for path in gone)
                for path in gone:
                    disk.unlink(path)
                names = [int(entry.name) // 20 for entry in disk.list("/q/T/3")]
                last = min(model.low, model.end - 1)  # the newest file stays
                assert names[0] == last - last % PER_FILE
                model.entries = {n: e for n, e in model.entries.items() if n >= names[0]}
            else:
                if step[0] == "crash":
                    disk = disk.crash_image(random.Random(1), NOTHING_ELSE)
                queue = opened(disk)
                assert queue.recover(model.log_end, model.is_frame, nothing_behind=True)
                queue.correct_min(log_start)
                # a hole in front was the front for who saw it being made, and is for nobody else
                model.low = min((n for n in model.entries if n >= model.low), default=model.end)
        check(queue, model)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("kept", range(12))
def test_an_end_that_was_lost_is_told_by_what_lies_behind_it(kept: int, behind: bool) -> None:
    disk, model = SimDisk(random.Random(1)), Model()
    queue = opened(disk)
    first, entries = model.append(0, [100] * 20)
    queue.append(first, b"".join(ENTRY.pack(*entry) for entry in entries))
    for number in range(kept, 20 if not behind else 19):
        segment = queue.series.find(20 * number)
        assert segment is not None
        segment.file.write(20 * number - segment.start, bytes(20))
    again = opened(disk)
    assert again.recover(model.log_end, model.is_frame) == (not behind)
    assert (again.max_offset, again.last_physical) == (kept, 100 * (kept - 1) if kept else -1)
    again = opened(disk)
    assert again.recover(model.log_end, model.is_frame), "what lay behind it is gone"


SLOT = tuple[int, int]  # offset and size of an entry
EMPTY, FILLED = (0, 0), (0, 0x7FFFFFFF)


def test_no_entry_follows_an_empty_slot() -> None:
    """Also where the search for the end does not look at that one."""
    disk = SimDisk(random.Random(1))
    slots = [(0, 100), (100, 100), (200, 100), (300, 100), EMPTY, (500, 100)]
    opened(disk).append(0, b"".join(ENTRY.pack(*slot, 0) for slot in slots))
    again = opened(disk)
    again.recover(2000, lambda *_: True)
    assert again.max_offset == 4


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        ([(500, 100)], 6),
        ([(499, 100)], 5),  # it begins within the frame before
        ([(1000, 100)], 6),
        ([(1999, 100)], 6),
        ([(2000, 100)], 5),  # at the limit
        ([FILLED, (500, 100)], 7),
        ([FILLED], 5),  # the end of a queue is no gap
        ([FILLED, FILLED], 5),
        ([EMPTY, (500, 100)], 5),
        ([(500, 100), (550, 100)], 6),
        ([(500, 100), (500, 100)], 6),
        ([(500, 0)], 5),
        ([(500, -100)], 5),
    ],
)
def test_the_last_entry_that_is_kept_rises_above_the_one_before(
    last: list[SLOT], kept: int
) -> None:
    """Also where no frame can be asked, because the log does not begin before them."""
    disk = SimDisk(random.Random(1))
    queue = opened(disk)
    slots = [(100 * number, 100) for number in range(5)] + last
    queue.append(0, b"".join(ENTRY.pack(*slot, 0) for slot in slots))
    again = opened(disk)
    again.recover(2000, lambda *_: True)
    assert again.max_offset == kept


@pytest.mark.parametrize("number", [204, 819, 820, 1000, 1999])
def test_an_entry_beside_a_hole_of_the_file_is_found(number: int, monkeypatch) -> None:
    """Also one that ends in zeros within the hole."""
    files_have_holes(monkeypatch)
    disk, size = SimDisk(random.Random(1)), 20 * 2000
    queue = ConsumeQueue(disk, "/q/T/3", size, "T", 3)
    queue.append(0, ENTRY.pack(0, 100, 0))
    segment = queue.series.find(0)
    assert segment is not None
    segment.file.write(20 * number, ENTRY.pack(700, 100, 0))
    ours = {(0, 100, "T", 3, 0), (700, 100, "T", 3, number)}
    for sound in (False, True):  # what lay behind the end is gone then
        again = ConsumeQueue(disk, "/q/T/3", size, "T", 3)
        again.series.load()
        assert again.recover(1000, lambda *frame: frame in ours) == sound
        assert again.max_offset == 1


def packed(first: int, count: int) -> list[bytes]:
    """Entries whose frames lie one behind the other, entry 0 at the log's beginning."""
    return [ENTRY.pack(100 * number, 100, -number) for number in range(first, first + count)]


def test_a_queue_without_files_has_neither_messages_nor_an_end() -> None:
    queue = opened(SimDisk(random.Random(1)))
    assert (queue.min_offset, queue.max_offset) == (0, 0)
    assert (queue.last_physical, queue.max_physical) == (-1, -1)
    assert (queue.is_empty, queue.since, queue.first) == (True, 0, 0)
    assert queue.recover(100, lambda *_: True)
    assert (queue.min_offset, queue.max_offset) == (0, 0)


@pytest.mark.parametrize("first", [0, 5, 7, 9, 10, 12, 14, 20])
@pytest.mark.parametrize("count", [1, 6, 20])
def test_entries_are_put_back_where_a_gap_left_their_places(first: int, count: int) -> None:
    """Files begin at 7; the gaps are 7 to 9 and 12 to 15, and 16 is the last entry. None is put
    before the first file, none over another, and what goes on behind the end is appended."""
    disk = SimDisk(random.Random(1))
    queue = opened(disk)
    queue.append(10, b"".join(packed(10, 2)))
    queue.append(16, ENTRY.pack(99_999, 100, 0))  # another message took this place
    queue.flush()
    disk.sync_dir("/q/T/3")
    expected = {10: packed(10, 1)[0], 11: packed(11, 1)[0], 16: ENTRY.pack(99_999, 100, 0)}
    places = [n for n in range(first, first + count) if n >= 7 and n != 16]
    expected |= {n: packed(n, 1)[0] for n in places}
    end = max(first + count, 17)
    if first > 17:
        places, end = list(range(first, first + count)), first + count
    assert queue.restore(first, b"".join(packed(first, count))) == len(places)
    assert queue.max_offset == end
    assert queue.min_offset == min([10, *places])
    durable = opened(disk.crash_image(random.Random(1), NOTHING_ELSE))
    for reader in (queue, durable) if end == 17 else (queue,):
        for number in range(7, end):
            segment = reader.series.find(20 * number)
            assert segment is not None
            entry = segment.view[20 * number - segment.start :][:20]
            assert entry == expected.get(number, ENTRY.pack(*HOLE)), number


@pytest.mark.parametrize("count", [1, PER_FILE - 1, PER_FILE, PER_FILE + 1, 2 * PER_FILE])
def test_the_newest_file_stays_when_all_messages_are_gone(count: int) -> None:
    """It tells the queue's next offset."""
    disk = SimDisk(random.Random(1))
    queue = opened(disk)
    queue.append(0, b"".join(packed(0, count)))
    assert len(queue.drop_before(100 * count)) == (count - 1) // PER_FILE
    assert (queue.min_offset, queue.max_offset) == (count, count)
    assert len(queue.series.segments) == 1
    assert queue.drop_before(1 << 60) == []


def test_a_file_stays_as_long_as_one_of_its_messages_is_there() -> None:
    queue = opened(SimDisk(random.Random(1)))
    queue.append(0, b"".join(packed(0, 3 * PER_FILE)))
    assert queue.drop_before(100 * (PER_FILE - 1)) == []
    assert queue.min_offset == PER_FILE - 1
    [gone] = queue.drop_before(100 * (PER_FILE - 1) + 1)
    assert gone.endswith("/q/T/3/" + "0" * 20)
    assert queue.min_offset == PER_FILE


def test_the_last_of_some_entries_tells_its_place() -> None:
    assert [last_physical(b"".join(packed(0, count))) for count in (1, 2, 9)] == [0, 100, 800]


@pytest.mark.parametrize("first", [0, 3, 3 * PER_FILE, 3 * PER_FILE + 2])
@pytest.mark.parametrize("kept", [0, 1, 6, PER_FILE, 14])
def test_entries_from_a_place_on_are_forgotten(first: int, kept: int) -> None:
    disk = SimDisk(random.Random(1))
    opened(disk).append(first, b"".join(packed(first, 15)))
    queue = opened(disk)
    queue.forget_from(100 * (first + kept))
    if kept:
        assert (queue.max_offset, queue.last_physical) == (first + kept, 100 * (first + kept - 1))
    else:
        assert queue.last_physical == -1
    queue.forget_from(0)
    assert (queue.series.segments, queue.max_offset) == ([], 0)
