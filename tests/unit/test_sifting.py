"""Conditions while a queue is read: how far one call goes, to the message, and that the kernel and
its reference go equally far.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from frame_rig import plain_frame
from hypothesis import given, settings
from hypothesis import strategies as st
from saturnmq.protocol.sql92 import Sql, searches_of
from saturnmq.store.derived.consumequeue import ENTRY, FILLER
from saturnmq.store.derived.sql_filter import (
    COLD,
    COMPILED_COSTS,
    PASSED,
    REFERENCE_COSTS,
    WORK_MAX,
    LookCosts,
    sift,
    sift_compiled,
    sift_reference,
)

FAR = 1 << 40
WAYS = {"reference": (sift_reference, REFERENCE_COSTS)}
if sift_compiled is not None:
    WAYS["compiled"] = (sift, COMPILED_COSTS)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[Callable[..., memoryview], LookCosts]:
    return WAYS[request.param]


def frame(number: int, properties: bytes) -> bytes:
    return plain_frame(body=b"x", properties=b"n\x01%d\x02" % number + properties)


def codes(
    sifted: Callable[..., memoryview],
    frames: list[bytes],
    sql: str,
    *,
    visible: int = FAR,
    cached: int = 0,
    most: int = 1 << 20,
    room: int = FAR,
    fillers: int = 0,
    gone: bool = False,
) -> list[int]:
    """Of each entry that was looked at; `fillers` lie before each message. `gone`: the log has
    none of them."""
    log = b"".join(frames)
    entries, at = bytearray(), 0
    for each in frames:
        entries += FILLER * fillers + ENTRY.pack(at, len(each), 77)
        at += len(each)
    read = memoryview(log)
    found = sifted(
        memoryview(entries),
        Sql(sql),
        lambda at, size: None if gone else read[at : at + size],
        visible,
        cached,
        most,
        room,
    )
    for number, (place, size, _) in enumerate(ENTRY.iter_unpack(found)):
        assert (place, size) == ENTRY.unpack_from(entries, 20 * number)[:2]
    return [code for _, _, code in ENTRY.iter_unpack(found)]


def test_what_passes_has_the_code_that_is_asked_for(way) -> None:
    frames = [frame(n, b"") for n in range(10)]
    assert codes(way[0], frames, "n > 6") == [0] * 7 + [1] * 3
    assert frozenset([1]) == PASSED
    assert codes(way[0], frames, "n < 1") == [1] + [0] * 9, "the first of the log is no filler"
    assert codes(way[0], frames[:2], "n < 9", fillers=2) == [0, 0, 1, 0, 0, 1]
    assert codes(way[0], [], "n < 9") == []


def test_what_is_gone_or_damaged_passes(way) -> None:
    sifted, costs = way
    frames = [frame(n % 9, b"") for n in range(1 + WORK_MAX // costs.of(Sql("n > 9"), 0))]
    assert codes(sifted, frames * 2, "n > 9", gone=True) == [1] * len(frames)
    assert codes(sifted, [frames[3], bytes(100), frames[5]], "n > 3") == [0, 1, 1]


@pytest.mark.parametrize("limit", range(4))
def test_so_many_messages_or_bytes_pass(way, limit: int) -> None:
    sifted = way[0]
    frames = [frame(n, b"") for n in range(10)]
    size = len(frames[0])
    found = codes(sifted, frames, "n > 1", most=limit)
    assert found == ([0, 0] + [1] * limit if limit else [])
    for room in (size * limit - 1, size * limit, size * limit + 1):
        taken = -(-room // size)
        found = codes(sifted, frames, "n > 1", room=room)
        assert found == ([0, 0] + [1] * taken if room > 0 else [])
    for visible in (size * limit, size * limit + size - 1):
        assert codes(sifted, frames, "n > 1", visible=visible) == [int(n > 1) for n in range(limit)]


@pytest.mark.parametrize(
    ("sql", "properties", "cold"),
    [
        (" OR ".join(["n > 9"] * 4), b"", 0),
        ("n > 9", b"", 0),
        ("n > 9", b"k\x01" + b"v" * 96 + b"\x02", 0),
        ("n > 9 AND k CONTAINS 'w'", b"k\x01" + b"v" * 96 + b"\x02", 0),
        ("n > 9 OR n > 8", b"k\x01" + b"v" * 29 + b"\x02", 0),
        ("n > 9", b"", 7),
        ("n > 9", b"", 1 << 20),
    ],
)
def test_the_work_of_one_call_is_counted_to_the_message(
    way, sql: str, properties: bytes, cold: int
) -> None:
    sifted, costs = way
    size = len(frame(1, properties))
    expected = work = 0
    while work < WORK_MAX:
        work += costs.of(Sql(sql), len(b"n\x019\x02") + len(properties))
        work += COLD if expected < cold else 0
        expected += 1
    frames = [frame(n % 9, properties) for n in range(expected + 50)]
    assert codes(sifted, frames, sql, cached=size * cold) == [0] * expected
    assert expected > (100 if not cold else 50)


def test_the_estimate_of_a_message_has_all_that_takes_time() -> None:
    plain, search = Sql("n > 9"), Sql("n CONTAINS 'w'")
    assert searches_of(plain) == 0
    assert searches_of(search) == 1
    costs = LookCosts(frame=100_000, byte=100, term=1)
    assert costs.of(plain, 0) == 100_000 + plain.terms
    assert costs.of(plain, 7) == 100_000 + plain.terms + 700
    assert costs.of(search, 7) == 100_000 + search.terms + 707


def test_a_filler_costs_nothing(way) -> None:
    sifted, costs = way
    frames = [frame(n % 9, b"") for n in range(10 + WORK_MAX // costs.of(Sql("n > 9"), 4))]
    alone = codes(sifted, frames, "n > 9")
    assert len(alone) < len(frames)
    assert len(codes(sifted, frames, "n > 9", fillers=2)) == 3 * len(alone) + 2


def test_what_the_kernel_leaves_to_the_reference_is_weighed_as_such() -> None:
    frames = [frame(5, b"m\x017\x02") for _ in range(2000)]
    sql = "n = 5.5 OR n > m"
    most = 1 + WORK_MAX // REFERENCE_COSTS.of(Sql(sql), 8)
    assert codes(sift, frames, sql) == codes(sift_reference, frames, sql) == [0] * most


# -- the kernel and its reference ------------------------------------------------------------------

SEGMENT = 4096
CONDITIONS = [
    "n > 4",
    "n BETWEEN 2.5 AND 7 AND s IN ('a', 'bc')",
    "NOT (s = 'a') OR n IS NULL",
    "s CONTAINS 'b' OR n <> 3",
    "t = TRUE",
    "n < 9 AND (m IS NULL OR n = m)",  # left to the reference for some
]
VALUES = ["1", "5", "7.5", "a", "bc", "", "true", "-0", "9" * 30, "标", "x" * 60]
fields = st.fixed_dictionaries(
    {
        "properties": st.lists(
            st.tuples(st.sampled_from("nmst"), st.sampled_from(VALUES)), max_size=5
        ).map(lambda pairs: "".join(f"{n}\x01{v}\x02" for n, v in pairs).encode()),
        "body": st.binary(max_size=200),
        "topic": st.sampled_from([b"T", b"t" * 127, b"t" * 128, b"t" * 300]),
        "born_host": st.sampled_from([bytes(8), bytes(20)]),
        "store_host": st.sampled_from([bytes(8), bytes(20)]),
        "crc_property": st.booleans(),
    }
)
damage = st.sampled_from(["", "", "", "", "byte", "cut", "gone", "filler", "size"])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(fields, damage), max_size=40),
    st.sampled_from(CONDITIONS),
    st.randoms(use_true_random=False),
)
@pytest.mark.skipif(sift_compiled is None, reason="no compiled kernel")
def test_the_kernel_sifts_as_its_reference(drawn, sql: str, rng: random.Random) -> None:
    log, entries, lost = bytearray(), bytearray(), set()
    for made, how in drawn:
        one = bytearray(plain_frame(**made))
        if how == "byte":
            one[rng.choice([rng.randrange(len(one)), rng.randrange(36, 40)])] = rng.randrange(256)
        if len(log) % SEGMENT + len(one) > SEGMENT:
            log += bytes(-len(log) % SEGMENT)
        size = {"cut": len(one) // 2, "size": rng.choice([-1, 0, 90, 91, 1 << 30])}
        entries += FILLER if how == "filler" else b""
        entries += ENTRY.pack(len(log), size.get(how, len(one)), rng.randrange(-9, 9))
        if how == "gone":
            lost.add(len(log) // SEGMENT)
        log += one
    if entries and rng.random() < 0.2:  # a damaged queue is in no order
        order = rng.sample(range(len(entries) // 20), len(entries) // 20)
        entries = bytearray(b"".join(entries[20 * n : 20 * n + 20] for n in order))
    view = memoryview(bytes(log))

    def read(at: int, size: int) -> memoryview | None:
        if not 0 <= at < len(view) or at // SEGMENT in lost:
            return None
        return view[at : min(at + size, at - at % SEGMENT + SEGMENT)]

    visible = rng.choice([1 << 60, 1 << 60, rng.randrange(len(log) + 1)])
    cached = rng.choice([0, 1 << 60, rng.randrange(len(log) + 1)])
    most, room = rng.choice([1, 5, 1 << 62]), rng.choice([1, 700, 1 << 62])
    arguments = memoryview(entries), Sql(sql), read, visible, cached, most, room
    assert sift(*arguments) == sift_reference(*arguments)


@pytest.mark.skipif(sift_compiled is None, reason="no compiled kernel")
def test_frames_are_read_across_windows_and_segments() -> None:
    """The kernel asks for 16 MiB of the log at once."""
    count = 40
    frames = [plain_frame(1 << 20, properties=b"n\x01%d\x02" % n) for n in range(count)]
    view, size = memoryview(b"".join(frames)), 1 << 20
    asked: list[tuple[int, int]] = []

    def read(at: int, most: int) -> memoryview:
        asked.append((at, most))
        return view[at : min(at + most, 19 * size if at < 19 * size else len(view))]

    entries = memoryview(b"".join(ENTRY.pack(n * size, size, 0) for n in range(count)))
    found = sift(entries, Sql("n > 20"), read, FAR, 0, FAR, FAR)
    assert [code for _, _, code in ENTRY.iter_unpack(found)] == [int(n > 20) for n in range(count)]
    assert [at // size for at, _ in asked] == [0, 16, 19, 35]
    assert {most for _, most in asked} == {16 << 20}


@pytest.mark.skipif(sift_compiled is None, reason="no compiled kernel")
def test_an_error_of_the_reader_is_told() -> None:
    def read(at: int, size: int) -> memoryview:
        raise OSError("a bad sector")

    entries = memoryview(ENTRY.pack(0, 100, 0))
    with pytest.raises(OSError, match="bad sector"):
        sift(entries, Sql("n > 20"), read, FAR, 0, 9, 999)
