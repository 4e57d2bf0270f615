"""Queries against naive models of the rules in docs/internals/format.md 3, 4 and 8."""

from __future__ import annotations

import errno
import random
import struct
import zlib
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saturnmq.broker.config import BrokerConfig
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.jhash import index_hash, jhash
from saturnmq.store.config import StoreConfig
from saturnmq.store.derived.lookup import ReadLimits
from saturnmq.store.message_store import GetStatus, MessageStore, PendingMessage

NOW = 1_700_000_000_000
SEGMENT = 8192
PER_FILE = 20  # entries
CONFIG = StoreConfig(
    root="/store",
    commitlog_segment_bytes=SEGMENT,
    consumequeue_segment_bytes=20 * PER_FILE,
    index_slots=3,
    index_items=8,
    zero_ahead_bytes=4096,
    crc_property=False,
    filter_bytes=20 * 12,
)


class Clock:
    now = NOW

    def now_ms(self) -> int:
        return self.now


@dataclass
class Sent:
    """One message of queue 0, and where it went."""

    body: bytes
    tag: str
    time: int
    queue_offset: int
    physical: int = 0
    size: int = 0


def open_store(memory_bytes: int = 8 << 30, **changes: object) -> tuple[MessageStore, Clock]:
    clock = Clock()
    disk = SimDisk(random.Random(1), memory_bytes=memory_bytes)
    return MessageStore.open(replace(CONFIG, **changes), disk, clock), clock


def dispatch(store: MessageStore) -> None:
    while store.reput():
        pass


def frame(message: Sent) -> bytes:
    """As a master would have sent it: any queue offset, any time."""
    properties = f"TAGS\x01{message.tag}\x02".encode()
    size = 91 + len(message.body) + 1 + len(properties)
    fields = struct.pack(
        ">iiiiiqqiq8sq8siqi",
        *(size, -626843481, zlib.crc32(message.body) & 0x7FFFFFFF, 0, 0),
        *(message.queue_offset, message.physical, 0, message.time, bytes(8)),
        *(message.time, bytes(8), 0, 0, len(message.body)),
    )
    return fields + message.body + b"\x01T" + struct.pack(">h", len(properties)) + properties


def append(store: MessageStore, sent: list[Sent]) -> None:
    """Write and dispatch them; fills in where they went."""
    position = store.watermarks.appended
    for message in sent:
        message.size = len(frame(message))
        segment = store.config.commitlog_segment_bytes
        left = segment - position % segment
        if message.size + 8 > left:
            store.append_raw(position, struct.pack(">ii", left, -875286124) + bytes(left - 8))
            position += left
        message.physical = position
        store.append_raw(position, frame(message))
        position += message.size
    dispatch(store)


messages = st.lists(
    st.tuples(
        st.integers(0, 400),  # bytes of body
        st.sampled_from("ABC"),
        st.sampled_from([0, 0, 0, 1, 1, 7, 60]),  # seconds since the one before
        st.sampled_from([1, 1, 1, 1, 1, 2, 30]),  # places in the queue since the one before
    ),
    min_size=1,
    max_size=90,
)


def build(drawn: list[tuple[int, str, int, int]]) -> list[Sent]:
    time, place, sent = NOW, -1, []
    for number, (length, tag, seconds, places) in enumerate(drawn):
        time += 1000 * seconds
        place += places
        sent.append(Sent(b"%03d" % number + bytes(length), tag, time, place))
    return sent


def scan(
    sent: dict[int, Sent],
    offset: int,
    low: int,
    high: int,
    most: int,
    room: int,
    tags: str | None,
    visible: int,
    cached: int,
) -> tuple[GetStatus, int, list[bytes], int | None]:
    """The table and the scan of docs/internals/format.md 8, one entry after the other."""
    if high == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0, [], None
    if offset < low:
        return GetStatus.OFFSET_TOO_SMALL, low, [], None
    if offset == high:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset, [], None
    if offset > high:
        return GetStatus.OFFSET_OVERFLOW_BADLY, high, [], None
    taken: list[Sent] = []
    index, last = offset, None
    while index < high and index // PER_FILE == offset // PER_FILE:
        if (index - offset) * 20 >= max(CONFIG.filter_bytes, 20 * most):
            break
        message = sent.get(index)
        if message is not None:
            if message.physical + message.size > visible:
                break
            count, used = len(taken), sum(m.size for m in taken)
            if count:
                limits = [(most, room)]
                in_memory = message.physical >= cached
                limits.append((32, 262_144) if in_memory else (8, 65_536))
                if any(count + 1 > n or used + message.size > size for n, size in limits):
                    break
            last = message.physical
            if tags is None or message.tag in tags:
                taken.append(message)
        index += 1
    if index == offset:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset, [], None
    status = GetStatus.FOUND if taken else GetStatus.NO_MATCHED_MESSAGE
    return status, index, [message.body for message in taken], last


@settings(max_examples=150, deadline=None)
@given(
    messages,
    st.integers(-2, 120),
    st.integers(1, 40),
    st.sampled_from([0, 150, 700, 3000, 1 << 20]),
    st.sampled_from([None, "A", "BC"]),
    st.integers(0, 90),
    st.sampled_from([0, 2000, 9000, 1 << 33]),
)
def test_reads_answer_as_the_table_has_it(drawn, offset, most, room, tags, unseen, memory) -> None:
    store, _ = open_store(memory * 5 // 2)  # 40 % of it
    sent = build(drawn)
    append(store, sent)
    low, high = store.min_offset("T", 0), store.max_offset("T", 0)
    assert (low, high) == (sent[0].queue_offset, sent[-1].queue_offset + 1)
    visible = sent[-min(unseen, len(sent))].physical if unseen else 1 << 60
    end = store.watermarks.appended
    cached = end - memory * 5 // 2 * 40 // 100
    codes = None if tags is None else frozenset(jhash(tag) for tag in tags)
    places = {message.queue_offset: message for message in sent}
    status, following, bodies, last = scan(
        places, offset, low, high, most, room, tags, visible, cached
    )
    result = store.get_message("T", 0, offset, most, room, codes, visible)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (low, high)
    by_body = {message.body: message for message in sent}
    assert result.data == b"".join(frame(by_body[body]) for body in bodies)
    assert result.count == len(bodies)
    if last is not None:
        assert result.suggest_slave == (last < cached)
    elif status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
        assert not result.suggest_slave, "nothing was read"


@settings(max_examples=150, deadline=None)
@given(messages, st.lists(st.tuples(st.integers(-2, 100), st.integers(-1, 1)), max_size=30))
def test_a_time_leads_to_the_offset_of_rocketmqs_rule(drawn, asked) -> None:
    store, _ = open_store()
    sent = build(drawn)
    append(store, sent)
    for number, late in asked:
        time = sent[min(max(number, 0), len(sent) - 1)].time + late
        for boundary in ("LOWER", "UPPER"):
            found = store.offset_by_time("T", 0, time, boundary)
            assert found == by_segments(sent, time, boundary), (time - NOW, boundary)


def by_segments(sent: list[Sent], time: int, boundary: str) -> int:
    """Section 3: choose a segment by its first and last times, then look inside."""
    lower = boundary == "LOWER"
    low, high = sent[0].queue_offset, sent[-1].queue_offset + 1
    segments: dict[int, list[Sent]] = {}
    for message in sent:
        segments.setdefault(message.queue_offset // PER_FILE, []).append(message)
    files = [segments[number] for number in sorted(segments)]
    if lower:
        chosen = next((file for file in files if file[-1].time >= time), files[-1])
    else:
        before = [file for file in files if file[0].time <= time]
        if not before:
            return low  # 0, brought into the queue's bounds
        chosen = before[-1]
    first, last = chosen[0], chosen[-1]
    if last.time < time:
        found = last.queue_offset + 1 if lower else last.queue_offset
    elif first.time > time:
        found = first.queue_offset
    else:
        left = [m.queue_offset for m in chosen if m.time <= time]
        right = [m.queue_offset for m in chosen if m.time >= time]
        found = right[0] if lower else left[-1]
    return min(max(found, low), high)


@dataclass
class Item:
    number: int
    key_hash: int
    time: int  # as the file tells it


keys = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["a", "b", "Aa", "BB"]), max_size=3),
        st.sampled_from([0, 0, 400, 1000, 1700, 90_000]),  # milliseconds since the one before
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    keys,
    st.sampled_from(["a", "b", "Aa", "BB", "absent"]),
    st.integers(1, 70),
    st.integers(-1, 60),
    st.integers(-1, 60),
    st.sampled_from([-1, 0, 0, 0, 1, 999, 1000]),
    st.sampled_from([-1, 0, 0, 0, 1, 999, 1000]),
)
def test_a_key_finds_the_newest_hits_of_overlapping_files(
    drawn, key, most, first, second, early, late
) -> None:
    store, clock = open_store()
    times: list[int] = []
    files: list[list[Item]] = []
    begins: list[int] = []
    ends: list[int] = []
    for number, (names, later) in enumerate(drawn):
        clock.now += later
        times.append(clock.now)
        properties = f"KEYS\x01{' '.join(names)}\x02" if names else ""
        store.put(PendingMessage("T", 0, b"%03d" % number, properties.encode()))
        for name in names:  # each is an item; a file takes one less than its places
            if not files or len(files[-1]) == CONFIG.index_items - 1:
                begins.append(ends[-1] if ends else 0)
                files.append([])
                ends.append(0)
            begin = begins[-1]
            seconds = (clock.now - begin) // 1000 if begin > 0 else 0
            if not files[-1]:
                begins[-1] = clock.now
            files[-1].append(Item(number, index_hash("T", name), seconds))
            ends[-1] = clock.now
    dispatch(store)
    begin = times[min(max(first, 0), len(times) - 1)] - early
    end = times[min(max(second, 0), len(times) - 1)] + late

    found: list[int] = []
    for file, file_begin, file_end in reversed(list(zip(files, begins, ends, strict=True))):
        if file_begin <= end and file_end >= begin:
            for item in reversed(file):
                # A chain is a slot's: strangers of the same slot can end it as well.
                time = file_begin + 1000 * item.time
                if item.key_hash % CONFIG.index_slots == index_hash("T", key) % CONFIG.index_slots:
                    if time < begin:
                        break
                    if (
                        item.key_hash == index_hash("T", key)
                        and time <= end
                        and key in drawn[item.number][0]
                        and item.number not in found
                    ):
                        found.append(item.number)
        if file_begin < begin:
            break
    found.sort(key=lambda number: times[number] > end)  # those of the second of `end` come last
    expected = sorted(found[: min(most, 64)])
    data = store.query_by_key("T", key, most, begin, end)
    assert [int(one[88:91]) for one in data] == expected


def test_a_file_that_begins_with_the_range_is_not_the_last_that_is_searched() -> None:
    store, _ = open_store(index_items=3)
    for number in range(6):
        store.put(PendingMessage("T", 0, b"%d" % number, b"KEYS\x01k\x02"))
    dispatch(store)
    assert len(store.query_by_key("T", "k", 64, NOW, NOW)) == 6


def test_topics_whose_keys_have_one_hash_are_told_apart() -> None:
    store, _ = open_store()
    assert index_hash("Aa", "k") == index_hash("BB", "k")
    for topic in ("Aa", "BB"):
        store.put(PendingMessage(topic, 0, topic.encode(), b"KEYS\x01k\x02"))
    dispatch(store)
    for topic in ("Aa", "BB"):
        (found,) = store.query_by_key(topic, "k", 64, 0, 1 << 60)
        assert found[88:90] == topic.encode()


def test_the_index_says_how_far_it_reaches() -> None:
    store, clock = open_store(index_items=3)  # two of them in a file
    assert store.indexed_until() == (0, 0)
    for number in range(7):
        clock.now += 1000
        put = store.put(PendingMessage("T", 0, b"%d" % number, b"KEYS\x01k\x02"))
        dispatch(store)
        assert store.indexed_until() == (clock.now, put.physical_offset)
    without, _ = open_store(index_enable=False)
    without.put(PendingMessage("T", 0, b"", b"KEYS\x01k\x02"))
    dispatch(without)
    assert without.indexed_until() == (0, 0)
    assert without.query_by_key("T", "k", 64, 0, 1 << 60) == []


def test_what_is_not_in_memory_comes_in_smaller_replies_and_from_a_slave() -> None:
    store, _ = open_store(50_000, consumequeue_segment_bytes=20_000)  # 20,000 bytes in memory
    sent = build([(900, "A", 0, 1)] * 60)
    append(store, sent)
    end = store.watermarks.appended
    in_memory = next(m.queue_offset for m in sent if end - m.physical <= 20_000)
    cold = store.get_message("T", 0, 0, 32)
    assert (cold.count, cold.suggest_slave) == (8, True)
    warm = store.get_message("T", 0, in_memory, 32)
    assert (warm.count, warm.suggest_slave) == (60 - in_memory, False)
    assert warm.count > 8
    across = store.get_message("T", 0, in_memory - 4, 32)
    assert across.count > 8, "the limit is that of the next message"
    ours = store.get_message("T", 0, 0, 1000, 1 << 20, override_limits=True)
    assert (ours.count, ours.next_begin_offset) == (60, 60)
    large, _ = open_store(commitlog_segment_bytes=1 << 20)
    for _ in range(8):
        large.put(PendingMessage("T", 0, bytes(100_000)))
    dispatch(large)
    assert large.get_message("T", 0, 0, 32).count == 2, "262,144 bytes"
    assert large.get_message("T", 0, 0, 32, 1).count == 1, "one in any case"


def test_what_lies_as_far_behind_as_the_memory_reaches_is_in_memory() -> None:
    sizes = {"commitlog_segment_bytes": 1 << 20, "consumequeue_segment_bytes": 20_000}
    store, _ = open_store(50_000, **sizes)  # 20,000 bytes in memory
    append(store, build([(1000 - 91 - 1 - 7 - 3, "A", 0, 1)] * 40))
    assert store.watermarks.appended == 40_000
    for offset, count, slave in ((20, 20, False), (19, 21, False), (11, 8, True)):
        result = store.get_message("T", 0, offset, 32)
        assert (result.count, result.suggest_slave) == (count, slave)
    at_the_edge = store.get_message("T", 0, 12, 32)  # the ninth message is at 20,000
    assert at_the_edge.count == 28
    assert not store.get_message("T", 0, 20, 1).suggest_slave
    assert store.get_message("T", 0, 19, 1).suggest_slave


@pytest.mark.parametrize(
    ("key", "value", "count"),
    [
        ("in_memory_count", 5, 5),
        ("in_memory_bytes", 4 * 102, 4),
        ("on_disk_count", 3, 20),
    ],
)
def test_transfer_limits_are_settings(key: str, value: int, count: int) -> None:
    store, _ = open_store(**{key: value})
    append(store, build([(0, "A", 0, 1)] * 20))
    assert store.get_message("T", 0, 0, 32).count == count


def test_limits_have_the_keys_of_rocketmq() -> None:
    text = """
    accessMessageInMemoryMaxRatio = 25
    maxTransferCountOnMessageInMemory = 1
    maxTransferBytesOnMessageInMemory = 2
    maxTransferCountOnMessageInDisk = 3
    maxTransferBytesOnMessageInDisk = 4
    maxFilterMessageSize = 5
    maxMsgsNumBatch = 6
    """
    limits = BrokerConfig.load(text).store_config().read_limits(1000)
    assert limits == ReadLimits(250, 1, 2, 3, 4, 5, 6)
    default = StoreConfig().read_limits(1000)
    assert default == ReadLimits(400, 32, 262_144, 8, 65_536, 16_000, 64)


def test_a_slave_that_corrects_nobody_repeats_the_offset() -> None:
    store, _ = open_store()
    append(store, [Sent(b"x", "A", NOW, 7)])
    for offset, status in (
        (3, GetStatus.OFFSET_TOO_SMALL),
        (8, GetStatus.OFFSET_OVERFLOW_ONE),
        (9, GetStatus.OFFSET_OVERFLOW_BADLY),
    ):
        result = store.get_message("T", 0, offset, 32, correct=False)
        assert (result.status, result.next_begin_offset) == (status, offset)
    result = store.get_message("T", 1, 5, 32, correct=False)
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 5)


def test_a_missing_queue_file_leads_to_the_next_one() -> None:
    store, _ = open_store()
    append(store, build([(0, "A", 0, 1)] * 50))
    store.queues()["T", 0].series.take_oldest()
    result = store.get_message("T", 0, 7, 32)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_FOUND_NULL, PER_FILE)
    assert store.get_message("T", 0, PER_FILE, 32).status is GetStatus.FOUND
    result = store.get_message("T", 0, 7, 32, correct=False)
    assert result.next_begin_offset == 7


def test_places_without_a_message_are_passed_over() -> None:
    store, _ = open_store()
    append(store, [Sent(b"0", "A", NOW, 0), Sent(b"5", "A", NOW + 5000, 5)])
    result = store.get_message("T", 0, 0, 32)
    assert (result.count, result.next_begin_offset) == (2, 6)
    middle = store.get_message("T", 0, 2, 1)
    assert (middle.count, middle.next_begin_offset) == (1, 6)
    assert store.offset_by_time("T", 0, NOW + 1, "LOWER") == 5
    assert store.offset_by_time("T", 0, NOW + 4999, "UPPER") == 0


@settings(max_examples=50, deadline=None)
@given(messages)
def test_the_end_that_is_visible_lies_behind_the_last_message_that_is(drawn) -> None:
    store, _ = open_store()
    sent = build(drawn)
    append(store, sent)
    for message in sent:
        end = message.physical + message.size
        for visible in (message.physical - 1, message.physical, end - 1, end, end + 1):
            found = store.visible_end("T", 0, visible)
            below = [m for m in sent if m.queue_offset < found]
            assert below == [m for m in sent if m.physical + m.size <= visible]
    assert store.visible_end("none", 0, 1 << 60) == 0


def test_messages_tell_whether_they_are_in_memory_and_when_they_were_stored() -> None:
    store, _ = open_store(5000)  # 2000 bytes in memory
    sent = build([(300, "A", 1, 1)] * 20)
    append(store, sent)
    edge = store.watermarks.appended - 2000
    for message in sent:
        assert store.is_in_memory("T", 0, message.queue_offset) == (message.physical >= edge)
        assert store.store_time_of("T", 0, message.queue_offset) == message.time
    for queue, offset in ((0, 20), (0, -1), (1, 0)):  # where there is none, none has to be read
        assert store.is_in_memory("T", queue, offset)
        assert store.store_time_of("T", queue, offset) is None
    exact, _ = open_store(5 * sent[0].size)
    append(exact, build([(300, "A", 1, 1)] * 5))
    assert [exact.is_in_memory("T", 0, n) for n in range(5)] == [False, False, False, True, True]


def test_a_range_ends_before_its_end_whatever_else_could_be_read() -> None:
    store, _ = open_store()
    append(store, build([(0, "A", 0, 1)] * 20))
    for offset, end in ((0, 1), (0, 20), (7, 9), (19, 20)):
        result = store.get_message("T", 0, offset, 100, end=end, override_limits=True)
        assert (result.count, result.next_begin_offset) == (end - offset, end)


def test_entries_whose_frames_were_deleted_meanwhile_are_passed_over() -> None:
    store, _ = open_store()
    sent = build([(250, "A", 1, 1)] * 40)
    append(store, sent)
    store._log.series.take_oldest()  # a pass raises the queues' least offsets first
    gone = store.get_message("T", 0, 0, 5)
    assert (gone.status, gone.count) == (GetStatus.MESSAGE_WAS_REMOVING, 0)
    last = max(m.queue_offset for m in sent if m.physical < SEGMENT)
    across = store.get_message("T", 0, last, 5)
    assert (across.status, across.count) == (GetStatus.FOUND, 5)
    assert across.next_begin_offset == last + 6


def test_a_filter_looks_at_the_lower_half_of_the_tags_code() -> None:
    store, clock = open_store()
    delayed = b"TAGS\x01A\x02DELAY\x011\x02"
    store.put(PendingMessage("SCHEDULE_TOPIC_XXXX", 0, b"x", delayed))
    dispatch(store)
    due = clock.now + 1000
    low = due & 0xFFFFFFFF
    code = low - (1 << 32) if low >= 1 << 31 else low
    asked = ("SCHEDULE_TOPIC_XXXX", 0, 0, 32, 1 << 20)
    assert store.get_message(*asked, frozenset([code])).count == 1
    assert store.get_message(*asked, frozenset([jhash("A")])).count == 0


def test_a_query_shows_nothing_that_is_not_visible() -> None:
    store, _ = open_store()
    puts = [store.put(PendingMessage("T", 0, b"%d" % n, b"KEYS\x01k\x02")) for n in range(3)]
    dispatch(store)
    for visible, count in ((puts[-1].end_offset, 3), (puts[-1].end_offset - 1, 2), (0, 0)):
        assert len(store.query_by_key("T", "k", 64, 0, 1 << 60, visible)) == count


def test_a_query_gives_the_newest_messages_up_to_its_limit() -> None:
    store, _ = open_store(query_count=4)
    for n in range(6):
        store.put(PendingMessage("T", 0, b"%d" % n, b"KEYS\x01k\x02"))
    dispatch(store)
    for most in range(1, 7):
        found = store.query_by_key("T", "k", most, 0, 1 << 60)
        assert [int(one[88:89]) for one in found] == list(range(6 - min(most, 4), 6))


def test_a_filter_looks_at_so_many_entries_in_one_call() -> None:
    store, _ = open_store()
    append(store, build([(0, "A", 1, 1)] * 19))
    for most, looked_at in ((1, 12), (12, 12), (13, 13)):
        result = store.get_message("T", 0, 0, most, 1 << 20, frozenset([jhash("B")]))
        assert (result.count, result.next_begin_offset) == (0, looked_at)


def test_an_id_finds_a_message_only_at_its_own_offset() -> None:
    store, _ = open_store()
    inner = store.put(PendingMessage("T", 0, b"inner"))
    found = store.message_at(inner.physical_offset)
    assert found is not None
    outer = store.put(PendingMessage("T", 0, found))  # a frame within a frame
    assert store.message_at(outer.physical_offset) is not None
    for offset in (-1, 1, outer.physical_offset + 88, outer.end_offset, 1 << 50):
        assert store.message_at(offset) is None
    for length in (1, 3, 4, 50):  # a slave has the head of a frame
        slave, _ = open_store()
        slave.append_raw(0, found[:length])
        assert slave.message_at(0) is None


def test_a_damaged_message_is_not_found() -> None:
    clock, disk = Clock(), SimDisk(random.Random(1))
    store = MessageStore.open(CONFIG, disk, clock)
    puts = [store.put(PendingMessage("T", 0, bytes(99), b"KEYS\x01k\x02")) for _ in range(2)]
    dispatch(store)
    disk.flip(f"/store/commitlog/{0:020d}", 100, 0)  # in the body of the first
    assert store.message_at(puts[0].physical_offset) is None
    sound = store.message_at(puts[1].physical_offset)
    assert sound is not None
    assert store.query_by_key("T", "k", 64, 0, 1 << 60) == [sound]


def test_a_message_whose_frame_is_gone_was_stored_at_no_time_from_0_on() -> None:
    store, _ = open_store()
    sent = build([(250, "A", 1, 1)] * 40)
    append(store, sent)
    store._log.series.take_oldest()  # a pass raises the queues' least offsets first
    first = min(m.queue_offset for m in sent if m.physical >= SEGMENT)
    assert first > 0
    assert store.offset_by_time("T", 0, 0, "LOWER") == first


def test_a_queue_without_its_first_file_has_no_message() -> None:
    clock, disk = Clock(), SimDisk(random.Random(1))
    store = MessageStore.open(CONFIG, disk, clock)
    disk.plan("create_segment", errno.ENOSPC, "*/consumequeue/*", times=1 << 30)
    append(store, build([(0, "A", 1, 1)]))
    assert ("T", 0) in store.queues()
    for offset in (-1, 0, 1):
        result = store.get_message("T", 0, offset, 32)
        assert (result.status, result.next_begin_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_a_queue_whose_file_cannot_be_made_is_read_as_far_as_it_goes() -> None:
    clock, disk = Clock(), SimDisk(random.Random(1))
    store = MessageStore.open(CONFIG, disk, clock)
    sent = build([(0, "A", 1, 1)] * 30)
    disk.plan("create_segment", errno.ENOSPC, "*/consumequeue/*00400", times=2)
    append(store, sent)
    assert store.max_offset("T", 0) in (0, PER_FILE)
    dispatch(store)
    dispatch(store)
    assert store.max_offset("T", 0) == 30
    assert store.offset_by_time("T", 0, NOW + 30_000) == 29
