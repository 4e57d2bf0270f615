"""Frames to Arrow: the kernel against its reference, and what the decoder makes of damage."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import pickle
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.pipeline.columns import COLUMNS, Columns, QueryColumn, select
from saturnmq.protocol.compression import LZ4, ZLIB, ZSTD, compress, sys_flag_of
from saturnmq.protocol.jhash import tags_code
from saturnmq.protocol.kernels import decode_frames, write_message
from saturnmq.runtime.errors import ConfigError, StoreDamaged

pa = pytest.importorskip("pyarrow", reason="the pipeline needs pyarrow: saturnmq[spark]")

from saturnmq.pipeline import arrow_reference, decoding, kernels  # noqa: E402
from saturnmq.pipeline.arrow_reference import Stop  # noqa: E402

try:
    compiled = importlib.import_module("saturnmq.pipeline.arrow_kernel")
except ImportError:
    compiled = None

fast = compiled or arrow_reference
both = pytest.mark.parametrize("kind", [arrow_reference, fast], ids=["reference", "kernel"])
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
HOST6 = bytes(range(16)) + b"\0\0\x2a\x9f"
NOW = 1_700_000_000_123
ALL = select(COLUMNS)


def frame(
    body=b"body",
    properties=b"",
    *,
    topic=b"T",
    number=0,
    at=0,
    queue=3,
    flag=7,
    sys_flag=0,
    born=NOW - 5,
    born_host=HOST,
    stored=NOW,
    store_host=HOST,
    again=0,
    crc_property=False,
):
    out = bytearray(len(body) + len(properties) + len(topic) + 400)
    size = write_message(
        out, 0, at, number, queue, flag, sys_flag, born, born_host, stored, store_host, again, 0,
        body, topic, properties, crc_property,
    )  # fmt: skip
    return bytes(out[:size])


words = st.text("abZ 9é漢\U0001f600", min_size=0, max_size=12)
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "x", "yy", "x", "é", ""])
pairs = st.lists(st.tuples(names, words | st.sampled_from(["a", "A" * 32])), max_size=8)
raw_properties = st.builds(
    lambda items, end: "\x02".join(f"{n}\x01{v}" for n, v in items).encode() + end,
    pairs,
    st.sampled_from([b"", b"\x02", b"\x01", b"\xff\x02", b"\x02KEYS\x01\xe4\xb8\x02", b"\x02\x02"]),
)
hosts = st.sampled_from([HOST, HOST6, b"\xc0\xa8\x01\xfe\xff\xff\xff\xff", b"\0" * 8])
times = st.sampled_from([0, -1, NOW, NOW + 1, -(1 << 63), (1 << 63) - 1, 253_402_300_800_000])
frames = st.builds(
    frame,
    st.binary(max_size=200),
    raw_properties,
    topic=st.sampled_from([b"T", b"T", b"%RETRY%g", "é".encode(), b"\xff\xfe", b"t" * 128]),
    number=st.integers(0, 1 << 62),
    at=st.integers(0, 1 << 62),
    queue=st.integers(-(1 << 31), (1 << 31) - 1),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    sys_flag=st.sampled_from([0, 0, 1, 8, 0x301]),
    born=times,
    stored=times,
    born_host=hosts,
    store_host=hosts,
    again=st.integers(0, 16),
    crc_property=st.booleans(),
)
chosen_columns = st.just(ALL) | st.lists(
    st.sampled_from(list(COLUMNS)), min_size=1, unique=True
).map(select)


def taken(kind, columns, walk, **options):
    """All batches that a builder of `kind` makes, with what `walk` answered on the way."""
    builder = kind.Builder(columns, "broker-é", **options)
    found, pos, stop = [], 0, Stop.FULL
    while stop != Stop.END:
        pos, stop = walk(builder, pos)
        rows = builder.rows
        if stop == Stop.DAMAGE:
            builder.add_corrupt(f"no frame at {pos}: é")
        batch, packed = builder.finish()
        batch.validate(full=True)
        assert batch.schema.equals(columns.arrow_schema())
        assert builder.rows == 0
        found.append((pos, int(stop), rows, batch, [tuple(item) for item in packed]))
        if stop == Stop.DAMAGE:
            break
    return found


def walked(kind, columns, data, **options):
    return taken(kind, columns, lambda builder, pos: builder.walk(data, pos), **options)


def read(kind, columns, log, base, entries, first, **options):
    return taken(
        kind, columns, lambda builder, pos: builder.read(log, base, entries, pos, first), **options
    )


def rows(batches):
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


# --- the kernel and its reference -----------------------------------------------------------------


@given(
    st.lists(frames, max_size=12),
    chosen_columns,
    st.booleans(),
    st.none() | st.sets(words, max_size=3).map(frozenset),
    st.integers(1, 13),
    st.integers(1, 500),
)
def test_a_batch_is_the_same_from_kernel_and_reference(items, columns, verify, tags, most, size):
    data = b"".join(items)
    options = {"verify": verify, "tags": tags, "rows_max": most, "bytes_max": size}
    expected = walked(arrow_reference, columns, data, **options)
    assert walked(fast, columns, data, **options) == expected
    assert expected[-1][:2] == (len(data), Stop.END)
    for _, _, count, batch, _ in expected:
        assert count == batch.num_rows <= most


@given(
    st.lists(frames, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 1 << 20),
    st.booleans(),
)
def test_cut_and_flipped_frames_stop_both_at_the_same_byte(items, flips, cut, verify):
    data = bytearray(b"".join(items))
    for at, value in flips:
        data[at % len(data)] = value
    data = bytes(data[: cut % (len(data) + 1)])
    expected = walked(arrow_reference, ALL, data, verify=verify)
    assert walked(fast, ALL, data, verify=verify) == expected


@given(frames, st.sampled_from([0, 4, 84, 96, 108]), st.binary(min_size=4, max_size=4))
def test_damaged_lengths_are_never_followed(item, place, value):
    """The lengths of frame, body, topic and properties: each may hold anything."""
    data = bytearray(item)
    data[place : place + 4] = value
    data = bytes(data[: len(item)])
    expected = walked(arrow_reference, ALL, data)
    assert walked(fast, ALL, data) == expected


def test_every_length_of_a_cut_frame_stops_both():
    data = frame(b"x" * 20, b"TAGS\x01a\x02KEYS\x01b", crc_property=True)
    for size in range(len(data)):
        expected = walked(arrow_reference, ALL, data[:size])
        assert walked(fast, ALL, data[:size]) == expected
        assert expected[0][:3] == (0, Stop.DAMAGE if size else Stop.END, 0)


def before_a_forbidden_page(size):
    """Memory of `size` bytes, behind which no byte may be read; None where that cannot be had."""
    libc = ctypes.CDLL(None)
    room = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    if libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0):
        return None
    return memoryview(room)[mmap.PAGESIZE - size : mmap.PAGESIZE]


@pytest.mark.skipif(os.name != "posix", reason="pages are protected as POSIX does it")
def test_no_byte_behind_the_data_is_read():
    """A kernel that does dies here: every cut of a frame ends at a page that cannot be read."""
    whole = frame(b"b" * 30, b"TAGS\x01a\x02KEYS\x01b\x02UNIQ_KEY\x01c", crc_property=True)
    variants = [whole]
    for place in (3, 87, 118, 121):  # the last bytes of the lengths, one more than there is
        variants.append(whole[:place] + bytes([whole[place] + 1]) + whole[place + 1 :])
    for data in variants:
        for size in range(1, len(data) + 1):
            view = before_a_forbidden_page(size)
            if view is None:
                pytest.skip("pages cannot be protected here")
            view[:] = data[:size]
            builder = fast.Builder(ALL, "b")
            pos, stop = builder.walk(view, 0)
            assert (pos, stop) == ((size, Stop.END) if data[:size] == whole else (0, Stop.DAMAGE))
            entry = struct.pack(">qiq", 0, size, 0)
            number, stop = builder.read(view, 0, entry, 0, 0)
            assert number == (data[:size] == whole)


class Segment:
    """A stretch of log and the queue entries of it."""

    def __init__(self, items, base=0, first=0):
        """`items` of (body, properties, tags code or None for the right one)."""
        self.base, self.first = base, first
        self.log, self.entries = bytearray(), bytearray()
        for number, (body, properties) in enumerate(items):
            at = base + len(self.log)
            one = frame(body, properties, number=first + number, at=at)
            (message,) = decode_frames(one)
            self.entries += struct.pack(">qiq", at, len(one), tags_code(message.tag))
            self.log += one

    def arguments(self):
        return bytes(self.log), self.base, bytes(self.entries), self.first


segments = st.builds(
    Segment,
    st.lists(st.tuples(st.binary(max_size=50), raw_properties), max_size=8),
    st.sampled_from([0, 1 << 30, 1 << 40]),
    st.sampled_from([0, 77, 1 << 40]),
)


@given(
    segments,
    chosen_columns,
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=3),
    st.none() | st.just(frozenset({"a", "é"})),
    st.integers(1, 9),
)
def test_entries_give_the_same_from_kernel_and_reference(segment, columns, flips, tags, most):
    for at, value in flips:
        if segment.entries:
            segment.entries[at % len(segment.entries)] = value
    options = {"tags": tags, "rows_max": most}
    expected = read(arrow_reference, columns, *segment.arguments(), **options)
    assert read(fast, columns, *segment.arguments(), **options) == expected


@given(
    segments,
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=3),
    st.booleans(),
)
def test_entries_of_a_damaged_log_stop_both_at_the_same_entry(segment, flips, verify):
    for at, value in flips:
        if segment.log:
            segment.log[at % len(segment.log)] = value
    expected = read(arrow_reference, ALL, *segment.arguments(), verify=verify)
    assert read(fast, ALL, *segment.arguments(), verify=verify) == expected


@both
@pytest.mark.parametrize(
    "entry",
    [
        (0, 2**31 - 1),
        (-1, 100),
        (-(2**63), 100),
        (2**63 - 1, 100),
        (0, -1),
        (0, 0),
        (0, 91),
        (1, 99),
        (50, 95),
        (2**62, 2**31 - 2),
    ],
)
def test_entries_that_name_no_frame_are_damage_or_filler(kind, entry):
    log = frame()
    ((number, stop, count, _, _),) = read(kind, ALL, log, 0, struct.pack(">qiq", *entry, 0), 0)
    filler = entry == (0, 2**31 - 1)
    assert (number, stop, count) == ((1, Stop.END, 0) if filler else (0, Stop.DAMAGE, 0))


# --- columns --------------------------------------------------------------------------------------


@both
def test_all_columns_of_a_message(kind):
    uid = "AC1100010050" + "0" * 20
    raw = f"UNIQ_KEY\x01{uid}\x02TAGS\x01red\x02KEYS\x01k1 k2\x02a\x01b=\x01c\x02a\x01d\x02e\x01"
    one = frame(
        b"\0\xff", raw.encode(),
        topic=b"orders", number=12, at=1 << 33, born_host=HOST6, again=2, crc_property=True,
    )  # fmt: skip
    ((_, _, _, batch, packed),) = walked(kind, ALL, one)
    row = batch.to_pylist(maps_as_pydicts="strict")[0]
    crc = row["properties"].pop("__CRC32#")
    assert re.fullmatch(r"\d{10}", crc)
    assert row.pop("bodyCrc") == decode_frames(one)[0].body_crc
    assert [row.pop(name).timestamp() for name in ("storeTimestamp", "bornTimestamp")] == [
        NOW / 1000,
        (NOW - 5) / 1000,
    ]
    assert row == {
        "topic": "orders",
        "brokerName": "broker-é",
        "queueId": 3,
        "queueOffset": 12,
        "keys": "k1 k2",
        "tags": "red",
        "body": b"\0\xff",
        "properties": {"UNIQ_KEY": uid, "TAGS": "red", "KEYS": "k1 k2", "a": "d"},
        "messageId": uid,
        "physicalOffset": 1 << 33,
        "size": len(one),
        "flag": 7,
        "sysFlag": 0x10,
        "bornHost": "[1:203:405:607:809:a0b:c0d:e0f]:10911",
        "storeHost": "127.0.0.1:10911",
        "reconsumeTimes": 2,
        "crcOk": True,
        "_corrupt": None,
    }
    assert packed == []


@both
def test_a_message_without_properties_has_nulls_and_the_offset_id(kind):
    ((_, _, _, batch, _),) = walked(kind, ALL, frame(at=0x1234))
    row = batch.to_pylist(maps_as_pydicts="strict")[0]
    assert (row["keys"], row["tags"], row["properties"]) == (None, None, {})
    assert row["messageId"] == "7F00000100002A9F0000000000001234"


@both
def test_crc_ok_tells_a_bent_body_and_a_bent_frame(kind):
    good = frame(b"abc", b"TAGS\x01red\x02", crc_property=True)
    bent_body = good.replace(b"abc", b"abd")
    bent_tag = good.replace(b"red", b"rad")
    data = good + bent_body + bent_tag
    ((_, _, _, batch, _),) = walked(kind, select(["crcOk", "tags"]), data)
    assert batch.to_pylist() == [
        {"crcOk": True, "tags": "red"},
        {"crcOk": False, "tags": "red"},
        {"crcOk": False, "tags": "rad"},
    ]
    assert [step[:3] for step in walked(kind, select(["tags"]), data, verify=True)] == [
        (len(good), Stop.DAMAGE, 1)
    ]


@both
def test_many_properties_of_one_message_keep_their_last_values(kind):
    names = [f"n{i % 150}" for i in range(900)]
    raw = "".join(f"{name}\x01{i}\x02" for i, name in enumerate(names)).encode()
    ((_, _, _, batch, _),) = walked(kind, select(["properties"]), frame(properties=raw))
    (found,) = rows([batch])
    assert found["properties"] == {f"n{i}": str(750 + i) for i in range(150)}


@both
def test_more_than_one_topic_in_a_batch_is_told_row_by_row(kind):
    topics = [b"%RETRY%g", b"%RETRY%g", b"T", b"%RETRY%g"]
    data = b"".join(frame(topic=topic) for topic in topics)
    ((_, _, _, batch, _),) = walked(kind, select(["topic", "brokerName"]), data)
    assert [row["topic"].encode() for row in rows([batch])] == topics


@both
def test_hash_collisions_are_told_apart_by_the_tag_itself(kind):
    assert tags_code("Aa") == tags_code("BB")
    segment = Segment([(b"1", b"TAGS\x01Aa\x02"), (b"2", b"TAGS\x01BB\x02"), (b"3", b"")])
    columns = select(["body"])
    steps = read(kind, columns, *segment.arguments(), tags=frozenset({"BB"}))
    assert [row["body"] for step in steps for row in rows([step[3]])] == [b"2"]
    steps = walked(kind, columns, bytes(segment.log), tags=frozenset({"Aa"}))
    assert [row["body"] for step in steps for row in rows([step[3]])] == [b"1"]


# --- limits of a batch ----------------------------------------------------------------------------


@both
def test_a_batch_ends_before_its_limits_and_holds_at_least_one_row(kind):
    data = b"".join(frame(bytes(size)) for size in (10, 10, 10, 50, 1, 20, 20))
    columns = select(["body"])
    assert [step[2] for step in walked(kind, columns, data, bytes_max=30)] == [3, 1, 2, 1]
    assert [step[2] for step in walked(kind, columns, data, rows_max=3)] == [3, 3, 1]
    flags = select(["flag"])  # bodies that nobody asked for count nothing
    assert [step[2] for step in walked(kind, flags, data, bytes_max=30)] == [7]


def test_a_batch_of_the_decoder_has_at_most_16384_rows():
    data = frame(b"x") * 20_000
    batches = list(decoding.Decoder(select(), broker="b").frames(data))
    assert [batch.num_rows for batch in batches] == [16_384, 20_000 - 16_384]


def test_a_batch_of_the_decoder_has_at_most_8_mib():
    data = frame(bytes(1 << 20)) * 17
    batches = list(decoding.Decoder(select(["body"]), broker="b").frames(data))
    assert [batch.num_rows for batch in batches] == [8, 8, 1]


def test_batches_own_their_memory():
    data = bytearray(frame(b"one", b"TAGS\x01a\x02") + frame(b"two"))
    (batch,) = decoding.Decoder(ALL, broker="b").frames(data)
    before = batch.to_pylist()
    data[:] = bytes(len(data))
    data.clear()  # fails while a view of it is held
    list(decoding.Decoder(ALL, broker="b").frames(frame(b"three") * 9))
    assert batch.to_pylist() == before


# --- damage ---------------------------------------------------------------------------------------


def decoded(data, mode, columns=None, **options):
    """(bodies, None and text of corrupt ones; the decoder)."""
    columns = columns or select(["body", "_corrupt"])
    decoder = decoding.Decoder(columns, broker="broker-a", mode=mode, **options)
    found = rows(decoder.frames(data, where="file 0", base=1000))
    return [(row["body"], row.get("_corrupt")) for row in found], decoder


GOOD = frame(b"one"), frame(b"two"), frame(b"three")
BAD_LENGTH = GOOD[1][:84] + b"\x7f\xff\xff\xff" + GOOD[1][88:]
BAD_SIZE = b"\0\0\1\0" + GOOD[1][4:]


@pytest.mark.parametrize("bad", [BAD_LENGTH, BAD_SIZE, b"\0" * 40, b"\xff" * 7])
def test_damage_among_frames_follows_the_mode(bad):
    data = GOOD[0] + bad + GOOD[2]
    at = 1000 + len(GOOD[0])
    with pytest.raises(decoding.DamagedFrame) as caught:
        decoded(data, "FAILFAST")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.where, error.offset) == ("file 0", at)
    assert str(error).startswith(f"damaged message in file 0, offset {at}: ")
    assert "set the option mode to DROPMALFORMED" in str(error)
    assert isinstance(error, StoreDamaged)
    found, decoder = decoded(data, "DROPMALFORMED")
    assert found == [(b"one", None), (b"three", None)]
    assert decoder.dropped == 1
    found, decoder = decoded(data, "PERMISSIVE")
    assert [body for body, _ in found] == [b"one", None, b"three"]
    assert found[1][1] == f"file 0, offset {at}: {error.why}"
    assert decoder.dropped == 0


def test_a_cut_off_end_is_one_damage():
    data = GOOD[0] + GOOD[1][:-1]
    found, decoder = decoded(data, "DROPMALFORMED")
    assert (found, decoder.dropped) == ([(b"one", None)], 1)
    with pytest.raises(decoding.DamagedFrame, match="is cut off after"):
        decoded(data, "FAILFAST")


def test_a_row_of_nulls_is_null_in_every_column():
    data = GOOD[0] + BAD_LENGTH + GOOD[2]
    decoder = decoding.Decoder(ALL, broker="b", mode="PERMISSIVE")
    (batch,) = decoder.frames(data)
    batch.validate(full=True)
    assert batch.num_rows == 3
    bad = batch.to_pylist()[1]
    assert bad.pop("_corrupt").startswith("the frames of broker b, offset ")
    assert set(bad.values()) == {None}
    assert {row["brokerName"] for row in rows([batch])} == {"b", None}


def test_verify_makes_a_wrong_checksum_damage():
    data = GOOD[0] + GOOD[1].replace(b"two", b"twO") + GOOD[2]
    assert [body for body, _ in decoded(data, "FAILFAST")[0]] == [b"one", b"twO", b"three"]
    with pytest.raises(decoding.DamagedFrame, match="body CRC is"):
        decoded(data, "FAILFAST", verify=True)
    found, _ = decoded(data, "DROPMALFORMED", verify=True)
    assert [body for body, _ in found] == [b"one", b"three"]


def test_damage_among_entries_is_told_with_its_physical_offset():
    segment = Segment([(b"%d" % n, b"") for n in range(6)], base=1 << 30, first=100)
    places = [struct.unpack_from(">q", segment.entries, 20 * n)[0] for n in range(6)]
    size = len(segment.log) // 6
    segment.log[size + 4] ^= 1  # magic
    segment.log[2 * size + 27] ^= 1  # queue offset
    segment.log[3 * size + 35] ^= 1  # physical offset
    segment.entries[4 * 20 + 11] ^= 1  # size
    columns = select(["queueOffset", "_corrupt"])
    decoder = decoding.Decoder(columns, broker="b", mode="PERMISSIVE")
    log, base, entries, first = segment.arguments()
    found = rows(decoder.entries(log, base, entries, first, where="00000000001073741824"))
    assert [row["queueOffset"] for row in found] == [100, None, None, None, None, 105]
    for number, text in [
        (1, "magic 0xd"),
        (2, "the frame has queue offset 103, its entry that of 102"),
        (3, f"the frame says that it lies at {places[3] ^ 1}"),
        (4, f"the frame has {size} B, its queue entry says {size ^ 1} B"),
    ]:
        where = f"00000000001073741824, offset {places[number]}: "
        assert found[number]["_corrupt"].startswith(where), found[number]
        assert text in found[number]["_corrupt"]
    dropping = decoding.Decoder(columns, broker="b", mode="DROPMALFORMED")
    assert len(rows(dropping.entries(log, base, entries, first, where="f"))) == 2
    assert dropping.dropped == 4
    with pytest.raises(StoreDamaged, match="no multiple of 20: rebuild"):
        list(decoder.entries(log, base, entries[:-1], first, where="f"))


def test_a_wrong_mode_and_a_column_that_may_not_be_null_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'PERMISSIVE'"):
        decoding.Decoder(select(), broker="b", mode="permissiv")
    columns = Columns((QueryColumn("queueId", nullable=False), QueryColumn("topic")))
    with pytest.raises(ConfigError, match="drop NOT NULL from queueId"):
        decoding.Decoder(columns, broker="b", mode="PERMISSIVE")


# --- compressed bodies ----------------------------------------------------------------------------


def packed_frame(body, kind=ZLIB, bits=None):
    return frame(compress(body, kind), sys_flag=sys_flag_of(kind) if bits is None else bits)


def test_compressed_bodies_are_inflated_unless_told_otherwise():
    plain = b"plain " * 50
    data = b"".join(
        [packed_frame(plain, kind) for kind in (LZ4, ZSTD, ZLIB)]
        + [frame(b"as it is"), packed_frame(plain, ZLIB, bits=1)]
    )
    found, _ = decoded(data, "FAILFAST")
    assert [body for body, _ in found] == [plain, plain, plain, b"as it is", plain]
    raw, _ = decoded(data, "FAILFAST", decompress=False)
    assert [body for body, _ in raw] == [message.raw_body for message in decode_frames(data)]


def test_inflated_bodies_keep_to_the_limit_of_a_batch():
    data = frame(b"x" * 10) + packed_frame(b"y" * 5000) * 5 + frame(b"z")
    decoder = decoding.Decoder(select(["body", "flag"]), broker="b", bytes_max=10_000)
    batches = list(decoder.frames(data))
    assert [batch.num_rows for batch in batches] == [2, 2, 2, 1]
    assert b"".join(row["body"] for row in rows(batches)) == b"x" * 10 + b"y" * 25_000 + b"z"
    for batch in batches:
        batch.validate(full=True)


@pytest.mark.parametrize("bent", [b"rubbish", compress(b"a" * 100)[:-2]])
def test_a_body_that_cannot_be_inflated_is_damage(bent):
    bad = frame(bent, sys_flag=sys_flag_of(ZLIB))
    data = packed_frame(b"one") + bad + packed_frame(b"three") + bad
    at = 1000 + len(packed_frame(b"one"))
    with pytest.raises(decoding.DamagedFrame, match=f"offset {at}: compressed body of"):
        decoded(data, "FAILFAST")
    found, decoder = decoded(data, "DROPMALFORMED")
    assert [body for body, _ in found] == [b"one", b"three"]
    assert decoder.dropped == 2
    found, _ = decoded(data, "PERMISSIVE")
    assert [body for body, _ in found] == [b"one", None, b"three", None]
    assert found[1][1].startswith(f"file 0, offset {at}: compressed body of")
    segment = Segment([(b"a", b"")], base=5000)
    log = segment.log + frame(
        bent, sys_flag=sys_flag_of(ZLIB), number=1, at=5000 + len(segment.log)
    )
    entries = segment.entries + struct.pack(">qiq", 5000 + len(segment.log), len(bad), 0)
    decoder = decoding.Decoder(select(["body"]), broker="b")
    with pytest.raises(decoding.DamagedFrame) as caught:
        list(decoder.entries(log, 5000, entries, 0, where="f"))
    assert caught.value.offset == 5000 + len(segment.log)


# --- and Spark ------------------------------------------------------------------------------------


def test_a_batch_has_exactly_the_schema_spark_wants():
    pytest.importorskip("pyspark", reason="needs pyspark: saturnmq[spark]")
    from pyspark.sql.pandas.types import to_arrow_schema

    (batch,) = decoding.Decoder(ALL, broker="b").frames(frame())
    assert to_arrow_schema(ALL.spark_schema(), timezone="UTC").equals(batch.schema)


def test_the_kernel_is_the_one_in_use():
    assert (compiled is not None and not kernels.FORCED) == kernels.COMPILED
