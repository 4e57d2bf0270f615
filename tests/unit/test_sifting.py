"""Conditions while a queue is read: how far one call goes, to the message."""

from __future__ import annotations

import pytest
from frame_rig import plain_frame
from saturnmq.protocol.sql92 import Sql
from saturnmq.store.derived.consumequeue import ENTRY, FILLER
from saturnmq.store.derived.sql_filter import (
    COLD_WORK,
    FRAME_WORK,
    PASSED,
    PROPERTY_BYTES,
    WORK_MAX,
    sift,
)

FAR = 1 << 40


def frame(number: int, properties: bytes) -> bytes:
    return plain_frame(body=b"x", properties=b"n\x01%d\x02" % number + properties)


def codes(
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
    found = sift(
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


def test_what_passes_has_the_code_that_is_asked_for() -> None:
    frames = [frame(n, b"") for n in range(10)]
    assert codes(frames, "n > 6") == [0] * 7 + [1] * 3
    assert frozenset([1]) == PASSED
    assert codes(frames, "n < 1") == [1] + [0] * 9, "the first message of the log is no filler"
    assert codes(frames[:2], "n < 9", fillers=2) == [0, 0, 1, 0, 0, 1]


def test_what_is_gone_or_damaged_passes() -> None:
    frames = [frame(n, b"") for n in range(1200)]
    work = FRAME_WORK + Sql("n > 9").terms
    assert codes(frames, "n > 9", gone=True) == [1] * -(-WORK_MAX // work)
    assert codes([frames[3], bytes(100), frames[5]], "n > 3") == [0, 1, 1]


@pytest.mark.parametrize("limit", range(4))
def test_so_many_messages_or_bytes_pass(limit: int) -> None:
    frames = [frame(n, b"") for n in range(10)]
    size = len(frames[0])
    assert codes(frames, "n > 1", most=limit) == ([0, 0] + [1] * limit if limit else [])
    for room in (size * limit - 1, size * limit, size * limit + 1):
        taken = -(-room // size)
        assert codes(frames, "n > 1", room=room) == ([0, 0] + [1] * taken if room > 0 else [])
    for visible in (size * limit, size * limit + size - 1):
        assert codes(frames, "n > 1", visible=visible) == [int(n > 1) for n in range(limit)]


@pytest.mark.parametrize(
    ("sql", "properties", "cold"),
    [
        (" OR ".join(["n > 9"] * 4), b"", 0),
        ("n > 9", b"", 0),
        ("n > 9", b"k\x01" + b"v" * 96 + b"\x02", 0),
        ("n > 9", b"k\x01" + b"v" * 93 + b"\x02", 0),
        ("n > 9 OR n > 8", b"k\x01" + b"v" * 29 + b"\x02", 0),  # 16 each: the limit is met
        ("n > 9", b"", 7),
        ("n > 9", b"", 1000),
    ],
)
def test_the_work_of_one_call_is_counted_to_the_message(
    sql: str, properties: bytes, cold: int
) -> None:
    frames = [frame(n % 9, properties) for n in range(1200)]
    size = len(frames[0])
    expected = work = 0
    while work < WORK_MAX:
        work += (
            FRAME_WORK + Sql(sql).terms + (len(b"n\x019\x02") + len(properties)) // PROPERTY_BYTES
        )
        work += COLD_WORK if expected < cold else 0
        expected += 1
    assert codes(frames, sql, cached=size * cold) == [0] * expected
    if not cold:
        assert 100 < expected < 1200


def test_a_filler_costs_nothing() -> None:
    frames = [frame(n % 9, b"") for n in range(1200)]
    alone = codes(frames, "n > 9")
    assert len(codes(frames, "n > 9", fillers=2)) == 3 * len(alone) + 2
