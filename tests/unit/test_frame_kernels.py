"""Every kernel against its reference, on random and on damaged input.

Without compiled kernels the references are run against themselves: the properties still hold.
"""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import tracemalloc
import zlib
from array import array
from types import SimpleNamespace

import pytest
from frame_rig import plain_frame
from hypothesis import given, settings
from hypothesis import strategies as st
from saturnmq.protocol import batch, compression, frame, frame_reference, ids, received_reference
from saturnmq.protocol import properties as properties_module
from saturnmq.protocol.frame import (
    BORN_HOST_V6,
    INNER_BATCH,
    NEED_UNWRAP,
    TRANSACTION_PREPARED,
    WRAPPED,
)
from saturnmq.runtime.errors import MalformedFrame, MessageIllegal

try:
    compiled = importlib.import_module("saturnmq.protocol.frame_kernel")
except ImportError:
    compiled = None

reference = SimpleNamespace(
    crc32=frame.crc32,
    put_batch_item=batch.put_batch_item,
    check_batch=batch.check_batch,
    write_batch=frame_reference.write_batch,
    write_message=frame_reference.write_message,
    scan_frames=frame_reference.scan_frames,
    has_wrapped=frame_reference.has_wrapped,
    decode_frames=received_reference.decode_frames,
    decode_plain=received_reference.decode_plain,
    ReceivedMessage=received_reference.ReceivedMessage,
    ResponseBuffer=received_reference.ResponseBuffer,
    batch_ids=ids.batch_ids,
)
fast = compiled or reference
both = pytest.mark.parametrize("k", [reference, fast], ids=["reference", "kernel"])
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
LEVELS = tuple(1000 * n for n in range(1, 19))

words = st.text("abZ 9é漢\U0001f600", min_size=0, max_size=12)
pairs = st.lists(
    st.tuples(
        st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "x", ""]), words | st.just("3")
    ),
    max_size=5,
)
properties = st.builds(
    lambda items, end: "\x02".join(f"{n}\x01{v}" for n, v in items).encode() + end,
    pairs,
    st.sampled_from([b"", b"\x02", b"\x01", b"\xff\x02", b"\x02__CRC32#\x011234567890\x02"]),
)
entries = st.lists(st.tuples(st.binary(max_size=200), properties, st.integers(-5, 5)), max_size=6)
topics = st.sampled_from(["T", "SCHEDULE_TOPIC_XXXX", "é-topic", "t" * 127, "t" * 128, "t" * 255])
hosts = st.sampled_from([HOST, bytes(range(20))])


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except (MessageIllegal, MalformedFrame, ValueError) as error:
        return type(error), str(error)


@given(st.binary(max_size=3000), st.integers(0, 40))
def test_crc_is_zlibs(data, offset):
    view = memoryview(data)[offset:]
    assert fast.crc32(view) == zlib.crc32(view) & 0x7FFFFFFF
    if compiled:
        assert compiled.crc32_portable(view) == fast.crc32(view)


def test_crc_of_a_long_buffer_is_zlibs():
    data = bytes(range(251)) * 4000
    assert fast.crc32(data) == zlib.crc32(data) & 0x7FFFFFFF


@pytest.mark.skipif(compiled is None, reason="there is no kernel")
@given(st.binary(max_size=100), st.integers(0, 5000))
def test_crcs_of_parts_join_to_the_crc_of_the_whole(head, size):
    tail = bytes(i * 7 & 0xFF for i in range(size))
    assert compiled.crc32_joined(head, tail) == zlib.crc32(head + tail)
    assert compiled.crc32_joined(head, tail, portable=True) == zlib.crc32(head + tail)


@given(st.lists(st.integers(250, 2000), min_size=1, max_size=5))
def test_batches_of_long_bodies_become_the_same_frames(sizes):
    body = encoded([(bytes([n & 0xFF]) * n, b"a\x01b", 0) for n in sizes], True)
    _, total = reference.check_batch(body, 1, 0, True, 1 << 20)
    written = []
    for k in (reference, fast):
        out = bytearray(total)
        k.write_batch(body, out, 0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, b"T", True)
        written.append(out)
    assert written[0] == written[1]


def encoded(items, with_crc):
    out = bytearray()
    for body, props, flag in items:
        batch.encode_batch_item(out, body, props, flag, with_crc)
    return bytes(out)


@given(
    st.binary(max_size=300),
    st.binary(max_size=40),
    st.sampled_from([-1, 0, 7, 0xABCD, 0xFFFF]),
    st.integers(0, 9),
    st.integers(0, 420),
)
def test_an_entry_is_put_into_a_buffer_or_does_not_fit(body, extra, number, flag, room):
    ends, buffers = [], []
    for k in (reference, fast):
        buffer = bytearray(b"\xee" * (5 + room))
        ends.append(k.put_batch_item(buffer, 5, body, b"0123456789AB" * 2, number, extra, flag))
        buffers.append(bytes(buffer))
    assert (ends[0], buffers[0]) == (ends[1], buffers[1])
    if ends[0] < 0:
        assert set(buffers[0]) <= {0xEE}
        return
    (entry,) = batch.iterate_batch(buffers[0][5 : ends[0]])
    assert (bytes(entry.body), entry.flag) == (body, flag)
    head = b"UNIQ_KEY\x01%b%04X\x02WAIT\x01true\x02" % (b"0123456789AB" * 2, number & 0xFFFF)
    assert entry.properties == (extra if number < 0 else head + extra)


@pytest.mark.parametrize("room", [4, 19])  # as many bytes as items, and as many as bytes
def test_a_body_is_measured_in_bytes_whatever_its_items_are(room):
    body = array("i", [1, 2, 3, 4])
    buffers = [bytearray(batch.ENTRY_BYTES_MIN + room) for _ in range(2)]
    ends = [
        k.put_batch_item(buffer, 0, body, b"", -1, b"")
        for k, buffer in zip((reference, fast), buffers, strict=True)
    ]
    assert (ends[0], buffers[0]) == (ends[1], buffers[1])
    if room < 16:
        assert ends[0] == -1
    else:
        (entry,) = batch.iterate_batch(buffers[0][: ends[0]])
        assert bytes(entry.body) == body.tobytes()


@pytest.mark.parametrize("number", [-1, 0])
def test_properties_too_large_for_an_entry_are_refused(number):
    results = [
        outcome(k.put_batch_item, bytearray(70_000), 0, b"x", b"0" * 28, number, b"p" * 32_768, 0)
        for k in (reference, fast)
    ]
    assert results[0] == results[1]
    assert results[0][0] is MessageIllegal


@settings(max_examples=60)
@given(
    entries,
    topics,
    hosts,
    hosts,
    st.booleans(),
    st.booleans(),
    st.integers(0, 210),
    st.integers(0, 90),
)
def test_batches_become_the_same_frames(
    items, topic, born, store, with_crc, crc_property, bmax, pmax
):
    body = encoded(items, with_crc)
    raw = topic.encode()
    host6 = (len(born) == 20) + (len(store) == 20)
    check = (body, len(raw), host6, crc_property, bmax, pmax)
    assert outcome(fast.check_batch, *check) == outcome(reference.check_batch, *check)
    if not items:
        return
    count, total = reference.check_batch(body, len(raw), host6, crc_property, 1 << 20)
    written = []
    for k in (reference, fast):
        out = bytearray(total + 20)
        got, sizes = k.write_batch(
            body, out, 10, 5000, 70, 3, 0, 111, born, 222, store, 1, raw, crc_property
        )
        assert (got, sum(sizes)) == (count, total)
        assert out[:10] == out[10 + total :] == bytes(10)
        written.append((out, list(sizes)))
    assert written[0] == written[1]
    log = bytes(written[0][0])
    for verify, index in ((True, True), (False, False)):
        arguments = (log, 10, len(log), 4990, verify, index, LEVELS)
        scan = reference.scan_frames(*arguments)
        assert fast.scan_frames(*arguments) == scan
        assert (scan.messages, scan.status, scan.next_pos) == (count, "end", 10 + total)


@both
def test_a_batch_with_a_negative_crc_is_refused_with_that_number(k):
    body = bytearray(encoded([(b"x", b"", 0)], True))
    body[8:12] = b"\xff" * 4
    out = bytearray(200)
    with pytest.raises(MessageIllegal, match="the producer sent -1;"):
        k.write_batch(body, out, 0, 0, 0, 3, 0, 1, HOST, 2, HOST, 1, b"T", False)
    assert not any(out)


@settings(max_examples=60)
@given(entries.filter(len), st.data())
def test_damaged_bytes_get_the_same_verdict(items, data):
    body = bytearray(encoded(items, True))
    crc_property = data.draw(st.booleans())
    total = reference.check_batch(body, 1, 0, crc_property, 1 << 20)[1]
    log = bytearray(total)
    reference.write_batch(body, log, 0, 0, 0, 3, 0, 1, HOST, 2, HOST, 1, b"T", crc_property)
    for target in (body, log):
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(target) - 1))
            target[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
        del target[data.draw(st.integers(0, len(target))) :]
    check = (body, 1, 0, False, 1 << 20)
    assert outcome(fast.check_batch, *check) == outcome(reference.check_batch, *check)
    results = []
    for k in (reference, fast):
        out = bytearray(2 * total + 100)
        got = outcome(k.write_batch, body, out, 0, 0, 0, 3, 0, 1, HOST, 2, HOST, 1, b"T")
        if isinstance(got[0], type):
            assert not any(out), "a refused batch leaves zeros"
        results.append((got, out))
    assert results[0] == results[1]
    assert fast.has_wrapped(log) == reference.has_wrapped(log)
    for verify in (True, False):
        arguments = (log, 0, len(log), 0, verify, True, LEVELS)
        assert fast.scan_frames(*arguments) == reference.scan_frames(*arguments)
        for tags in (None, frozenset({"3", "a"})):
            plain = [outcome(k.decode_plain, log, verify, "b", tags) for k in (reference, fast)]
            views = [outcome(k.decode_frames, log, verify, "b", tags) for k in (reference, fast)]
            for one, other in zip(plain, views, strict=True):
                wraps = one is None  # a batch is what they do not take alike
                assert wraps or [*map(repr, one)] == [*map(repr, other)]
            assert (plain[0] is None) == (plain[1] is None)
            if isinstance(views[0], tuple):
                assert views[1] == views[0]
            else:
                assert [v.frame for v in views[0]] == [v.frame for v in views[1]]
                for one, other in zip(*views, strict=True):
                    # Before the properties are decoded, and after.
                    assert (one.tag, one.keys) == (other.tag, other.keys)
                    assert one.message_id == other.message_id
                    assert (one.topic, one.properties) == (other.topic, other.properties)
                    assert (one.tag, one.broker_name) == (other.tag, other.broker_name)
                    assert (one.keys, one.message_id) == (other.keys, other.message_id)


@both
@pytest.mark.parametrize("size", [1, 400])
def test_a_batch_is_found_wherever_it_lies_among_whole_frames(k, size):
    flags = [0, INNER_BATCH, NEED_UNWRAP, TRANSACTION_PREPARED | BORN_HOST_V6]

    def frames(*each):
        out = bytearray()
        for number in each:
            host = bytes(20) if number & BORN_HOST_V6 else HOST
            room = bytearray(frame.message_size(size, 1, 0, len(host)))
            body = b"x" * size
            k.write_message(room, 0, 0, 0, 0, 0, number, 1, host, 2, HOST, 0, 0, body, b"T", b"")
            out += room
        return out

    assert not k.has_wrapped(b"")
    assert k.decode_plain(b"") == []
    for count in (1, 2, 300):
        plain = (flags * count)[:count]
        assert not k.has_wrapped(frames(*plain))
        assert [m.sys_flag for m in k.decode_plain(frames(*plain), True)] == plain
        for place in {0, count // 2, count}:
            wrapped = frames(*plain[:place], WRAPPED, *plain[place:])
            assert k.has_wrapped(wrapped)
            assert k.has_wrapped(memoryview(bytes(wrapped)))
            assert k.decode_plain(wrapped, True) is None
            if place < count:
                wrapped[-1] ^= 1  # the last frame is damaged
                assert k.decode_plain(wrapped[:-1], True) is None
    lone = frames(WRAPPED)
    assert not k.has_wrapped(lone[:90]), "less than a frame"
    for claimed in (0, 90, -1, 1 << 30):
        broken = frames(0, WRAPPED)
        broken[:4] = claimed.to_bytes(4, "big", signed=True)
        assert not k.has_wrapped(broken), "nothing behind damage is looked at"


texts = st.text("abcdeé", min_size=1, max_size=4) | st.text("xy", min_size=30, max_size=35)


@given(st.lists(st.dictionaries(texts, texts, max_size=12), min_size=1, max_size=40))
@settings(max_examples=150, deadline=None)
def test_texts_that_share_a_place_are_not_taken_for_each_other(many):
    for each in many:
        encoded = properties_module.encode_properties(each)
        whole = plain_frame(body=b"body", properties=encoded)
        assert fast.ReceivedMessage(whole, 0).properties == each


@both
def test_a_frame_whose_last_sector_is_missing_is_damage_at_every_border(k):
    size = 200
    out = bytearray(size)
    properties = b"KEYS\x01abc\x02TAGS\x01ab"
    end = k.write_message(
        out, 0, 0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, b"body", b"T", properties, True
    )
    whole = k.scan_frames(out, 0, end, 0, True)
    assert (whole.status, whole.messages) == ("end", 1)
    for border in range(8, end):
        first, second = out[:border], out[border:end]
        for torn in (first + bytes(end - border), bytes(border) + second):
            assert k.scan_frames(torn, 0, end, 0, True).messages == 0, border
        for more in range(border + 1, end):  # a sector in the middle
            if any(out[border:more]):
                torn = out[:border] + bytes(more - border) + out[more:end]
                assert k.scan_frames(torn, 0, end, 0, True).messages == 0, (border, more)
    before = out[: end - 21] + b"\0" + out[end - 20 : end]
    assert k.scan_frames(before, 0, end, 0, True).status == "damage", "the 0x02 in front of it"


@both
def test_properties_that_end_like_a_torn_frame_are_refused_where_no_crc_follows(k):
    body = encoded([(b"x", b"a\x01b\0\x02", 0)], True)
    assert k.check_batch(body, 1, 0, True, 1 << 20)[0] == 1
    with pytest.raises(MessageIllegal, match="zero byte"):
        k.check_batch(body, 1, 0, False, 1 << 20)


@both
def test_a_wrong_claimed_crc_refuses_the_whole_batch_and_leaves_zeros(k):
    body = bytearray(encoded([(b"one", b"", 0), (b"two", b"", 0)], True))
    body[20] ^= 1  # in the first body
    body[25 + 20] ^= 1  # and in the second
    out = bytearray(400)
    with pytest.raises(MessageIllegal, match="entry 0"):
        k.write_batch(bytes(body), out, 0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, b"T")
    body[20] ^= 1
    with pytest.raises(MessageIllegal, match="entry 1"):
        k.write_batch(bytes(body), out, 0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, b"T")
    assert not any(out)


@both
def test_a_frame_that_does_not_fit_is_refused(k):
    body = encoded([(b"one", b"", 0)], True)
    for room in (0, 94):
        with pytest.raises(ValueError, match="fit"):
            k.write_batch(body, bytearray(room), 0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, b"T")
    assert k.write_batch(body, bytearray(95), 0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, b"T")[0] == 1


@both
def test_runs_break_at_queue_topic_and_gap_and_skip_prepared_frames(k):
    out, pos = bytearray(4000), 0
    plan = [
        (b"A", 0, 5, 0),
        (b"A", 0, 6, 0),
        (b"A", 0, 0, 0x4),  # prepared: no entry, and the run goes on
        (b"A", 0, 7, 0x8),
        (b"A", 0, 9, 0),  # a gap
        (b"A", 1, 0, 0),
        (b"B", 1, 1, 0),
        (b"B", 1, 0, 0xC),  # rolled back: neither entry nor key
    ]
    for topic, queue, offset, flag in plan:
        pos += k.write_message(
            out, pos, pos, offset, queue, 0, flag, 1, HOST, 2, HOST, 0, 0, b"b", topic,
            b"UNIQ_KEY\x01u\x02KEYS\x01k1  k2\x02",
        )  # fmt: skip
    out[pos : pos + 8] = (4000 - pos).to_bytes(4, "big") + frame.BLANK_MAGIC.to_bytes(4, "big")
    scan = k.scan_frames(out, 0, len(out), 0, True, True, LEVELS)
    assert [run[:4] for run in scan.runs] == [
        ("A", 0, 5, 3), ("A", 0, 9, 1), ("A", 1, 0, 1), ("B", 1, 1, 1)
    ]  # fmt: skip
    assert (scan.status, scan.next_pos, scan.messages) == ("blank", 4000, 8)
    assert len(scan.index_items) == 20 * 3 * 7
    cut = k.scan_frames(out, 0, pos - 1, 0)
    assert (cut.status, cut.messages) == ("more", 7)
    moved = k.scan_frames(out, 0, pos, 1)
    assert (moved.status, moved.next_pos) == ("damage", 0)
    assert "offset 0" in moved.why


@both
def test_delayed_messages_carry_their_due_time_as_code(k):
    for level, due in ((b"1", 1000), (b"18", 18000), (b"99", 18000)):
        out = bytearray(400)
        size = k.write_message(
            out, 0, 0, 0, 0, 0, 0, 1, HOST, 500, HOST, 0, 0, b"", b"SCHEDULE_TOPIC_XXXX",
            b"DELAY\x01" + level + b"\x02TAGS\x01x\x02",
        )  # fmt: skip
        entry = k.scan_frames(out, 0, size, 0, True, True, LEVELS).runs[0][4]
        assert int.from_bytes(entry[12:], "big") == 500 + due


@both
@pytest.mark.parametrize("born", [HOST, bytes(16) + HOST[4:]])
@pytest.mark.parametrize("store", [HOST, bytes(15) + b"\1" + HOST[4:]])
def test_a_received_message_reads_every_field(k, born, store):
    out = bytearray(600)
    size = k.write_message(
        out, 7, 828, 41, 3, 9, 0, 111, born, 222, store, 2, 99, b"body", b"t" * 130,
        b"TAGS\x01a\x02KEYS\x01k1 k2\x02__SHARDINGKEY\x01s\x02",
    )  # fmt: skip
    (m,) = k.decode_frames(memoryview(out)[7 : 7 + size], True)
    m.broker_name = "b"
    assert (m.topic, m.body, m.tag, m.keys) == ("t" * 130, b"body", "a", ["k1", "k2"])
    assert (m.queue_id, m.queue_offset, m.physical_offset, m.flag) == (3, 41, 828, 9)
    assert (m.born_timestamp, m.store_timestamp, m.reconsume_times) == (111, 222, 2)
    assert (m.prepared_offset, m.sharding_key, m.frame_size) == (99, "s", size)
    assert (m.raw_born_host, m.raw_store_host) == (born, store)
    assert m.body_crc == zlib.crc32(b"body") & 0x7FFFFFFF
    assert m.message_id == m.offset_message_id
    assert ids.decode_message_id(m.message_id)[1:] == (10911, 828)
    assert m.store_host.endswith(":10911")
    m.topic = "shown"
    assert m.queue == ("shown", "b", 3)
    with pytest.raises(AttributeError):
        m.body = b""


def test_received_messages_survive_pickling_and_copying_and_are_no_work_for_the_collector():
    from saturnmq.protocol import kernels

    out = bytearray(200)
    size = kernels.write_message(
        out, 0, 0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, b"b", b"T", b"TAGS\x01a\x02"
    )
    (m,) = kernels.decode_frames(out[:size])
    m.broker_name = "broker"
    assert m.reconsume_times == 0
    m.reconsume_times += 3
    for twin in (pickle.loads(pickle.dumps(m)), copy.copy(m), copy.deepcopy(m)):
        assert type(twin) is type(m) is kernels.ReceivedMessage
        assert (twin.body, twin.topic, twin.tag) == (b"b", "T", "a")
        assert (twin.broker_name, twin.frame) == ("broker", m.frame)
        assert twin.reconsume_times == 3
        assert repr(twin) == repr(m)
        assert twin != m  # the same message delivered twice is two deliveries
    assert len({m, m}) == 1
    assert not (kernels.COMPILED and gc.is_tracked(m))
    with pytest.raises(MalformedFrame):
        kernels.ReceivedMessage(bytes(out[: size - 1]))


@both
def test_tags_are_told_apart_by_themselves_not_by_their_hash(k):
    out, pos = bytearray(2000), 0
    for tags in (
        b"TAGS\x01Aa",
        b"TAGS\x01BB\x02",
        b"",
        b"TAGS\x01\x02",
        b"TAGS\x01x\x02TAGS\x01Aa",
    ):
        pos += k.write_message(out, pos, pos, pos, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, b"", b"T", tags)
    data = bytes(out[:pos])
    found = k.decode_frames(data, True, "", frozenset({"Aa"}))
    assert [view.tag for view in found] == ["Aa", "Aa"]
    assert [view.tag for view in k.decode_frames(data, True)] == [
        "Aa", "BB", None, None, "Aa"
    ]  # fmt: skip


@both
def test_messages_outlive_the_response_they_came_in(k):
    out = bytearray(1 << 17)
    pos = 0
    while pos < 100_000:
        pos += k.write_message(
            out, pos, pos, pos, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, bytes(500), b"T", b""
        )
    kept = []
    for number in range(40):  # more than is recycled at once
        response = memoryview(k.ResponseBuffer(pos + 9))
        response[9:] = out[:pos]
        messages = k.decode_frames(response[9:], True, str(number))
        kept.append(messages[number])
        del response, messages
    assert [view.broker_name for view in kept] == [str(n) for n in range(40)]
    for number, view in enumerate(kept):
        assert view.queue_offset == view.physical_offset == number * view.frame_size
        assert view.raw_body == bytes(500)


def compressed(k, count, size):
    """Messages of a pull reply whose bodies are `size` bytes when they are unpacked."""
    packed = [compression.compress(bytes([n]) * size, compression.ZSTD) for n in range(count)]
    flag = compression.sys_flag_of(compression.ZSTD)
    out, end = bytearray(sum(map(len, packed)) + 200 * count), 0
    for body in packed:
        end += k.write_message(out, end, 0, 0, 0, 0, flag, 1, HOST, 2, HOST, 0, 0, body, b"T", b"")
    return k.decode_frames(out[:end], True)


@both
def test_a_compressed_body_is_unpacked_once_until_that_of_another_message_is(k):
    one, other = compressed(k, 2, 999)
    assert one.body == b"\0" * 999
    assert one.body is one.body
    kept = one.body
    assert (other.body, one.body) == (b"\1" * 999, kept)
    assert one.body is not kept
    assert one.raw_body == compression.compress(kept, compression.ZSTD)


@both
def test_of_a_batch_one_unpacked_body_lives_at_a_time_unless_it_is_kept(k):
    size, count = 1 << 20, 8
    messages = compressed(k, count, size)
    tracemalloc.start()
    try:
        for message in messages:
            assert len(message.body) == size
        living, peak = tracemalloc.get_traced_memory()
        assert living < 1.5 * size
        assert peak < 2.5 * size
        del messages, message
        assert tracemalloc.get_traced_memory()[0] < size
    finally:
        tracemalloc.stop()


@both
def test_a_cut_pull_reply_is_refused(k):
    out = bytearray(200)
    size = k.write_message(out, 0, 0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, b"b", b"T", b"")
    for data in (out[: size - 1], out[: size + 1]):
        got = outcome(k.decode_frames, data, True)
        assert got[0] is MalformedFrame or len(got) == 1  # one trailing zero: nothing lies there


@given(st.lists(st.integers(91, 5000), max_size=20), st.integers(0, 1 << 62))
def test_batch_ids_are_the_offset_ids_of_the_frames(sizes, offset):
    expected, at = [], offset
    for size in sizes:
        expected.append(ids.offset_message_id(HOST[:4], 10911, at))
        at += size
    for k in (reference, fast):
        assert k.batch_ids(HOST[:4], 10911, offset, sizes) == ",".join(expected)
