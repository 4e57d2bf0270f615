"""The table of halves against a model that remembers everything, and the ending's bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.broker.transactions import half_table
from saturnmq.broker.transactions.endings import (
    HEAD_BYTES,
    Ending,
    EndingKind,
    counts,
    read_ending,
    write_ending,
)
from saturnmq.broker.transactions.half_table import HalfTable
from saturnmq.protocol.kernels import decode_frames, message_size, write_message
from saturnmq.store.message_store import PendingMessage

HOST = bytes([10, 0, 0, 1, 0, 0, 42, 159])
HOST_V6 = bytes(15) + b"\x01" + bytes([0, 0, 42, 159])


@given(st.lists(st.integers(0, 40), max_size=60))
def test_it_knows_which_halves_are_over_whatever_their_order(order: list[int]) -> None:
    table, over = HalfTable(0, 0), set[int]()
    for ending, half in enumerate(order):
        table.end(half, half, EndingKind.COMMITTED, ending)
        over.add(half)
        table.validate()
        first_open = next(n for n in range(50) if n not in over)
        assert table.position == first_open
        assert [n for n in range(41) if table.is_open(n)] == [n for n in range(41) if n not in over]
        assert table.pending(41) == 41 - len(over)
        # A table that begins where this one stands learns the same from the rest.
        again = HalfTable(table.position, table.base)
        for number in range(table.base, ending + 1):
            again.end(order[number], order[number], EndingKind.COMMITTED, number)
        assert all(table.is_open(n) == again.is_open(n) for n in range(41))
        assert again.position == table.position
    assert table.base <= len(order)


def test_a_transaction_that_moves_keeps_its_name_and_its_age() -> None:
    table = HalfTable(0, 0)
    assert (table.current(0), table.since(0)) == (0, None)
    table.end(0, 0, EndingKind.MOVED, 0)
    table.move(0, 3, 7.5)
    assert (table.current(0), table.since(0)) == (3, 7.5)
    assert not table.is_open(0)
    assert [table.pending(end) for end in (1, 3, 4, 5)] == [3, 3, 3, 4], "with the one at 3"
    assert table.outcome(0) is None
    table.end(3, 0, EndingKind.ROLLED_BACK, 1)
    assert table.outcome(0) is EndingKind.ROLLED_BACK
    assert table.since(0) is None
    table.validate()


@given(st.sets(st.integers(0, 20)), st.integers(0, 25))
def test_halves_that_are_deleted_with_the_log_are_open_no_more(ended: set[int], first: int) -> None:
    table = HalfTable(0, 0)
    for ending, half in enumerate(sorted(ended)):
        table.end(half, half, EndingKind.COMMITTED, ending)
    if table.is_open(3):
        table.move(1, 3, 0.0)
    assert table.begin_at(first) == len(set(range(first)) - ended)
    table.validate()
    assert table.position == next(n for n in range(first, 50) if n not in ended)
    assert [n for n in range(21) if table.is_open(n)] == [
        n for n in range(first, 21) if n not in ended
    ]
    assert table.begin_at(first) == 0


def test_it_remembers_so_many_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_table, "OUTCOMES", 2)
    table = HalfTable(0, 0)
    for half in range(3):
        table.end(half, half, EndingKind.COMMITTED, half)
    assert [table.outcome(half) is None for half in range(3)] == [True, False, False]


def framed(message: PendingMessage, at: int) -> bytes:
    size = message_size(
        len(message.body),
        len(message.topic),
        len(message.properties),
        len(message.born_host),
        len(message.store_host),
    )
    out = bytearray(size)
    hosts = 0x10 * (len(message.born_host) > 8) | 0x20 * (len(message.store_host) > 8)
    write_message(
        out, 0, at, 5, message.queue_id, 0, message.sys_flag | hosts, 1, message.born_host, 2,
        message.store_host, 0, message.prepared_offset, message.body, message.topic.encode(),
        message.properties,
    )  # fmt: skip
    return bytes(out)


def ending(kind: EndingKind = EndingKind.COMMITTED) -> Ending:
    message = write_ending(kind, 7, 4000, 3, position=2, base=1, now_ms=9, host=HOST)
    [read] = decode_frames(framed(message, 100), False)
    return read_ending(read)


def test_an_ending_is_read_as_it_was_written() -> None:
    for kind in EndingKind:
        assert ending(kind) == Ending(5, (7,), kind, 4000, 3, 2, 1)


@pytest.mark.parametrize("said", ["", "c", "c 1 2 3", "c 1 2 3 x", "q 1 2 3 4", "c 1 2 3 4 5"])
def test_an_ending_with_another_property_is_one_of_rocketmq(said: str) -> None:
    text = f"TAGS\x01d\x02SATURN_ENDING\x01{said}\x02".encode()
    [read] = decode_frames(framed(PendingMessage("T", 0, b"7,8,", text, store_host=HOST), 0), False)
    assert read_ending(read) == Ending(5, (7, 8))


@pytest.mark.parametrize("born", [HOST, HOST_V6])
@pytest.mark.parametrize("host", [HOST, HOST_V6])
def test_an_ending_counts_with_the_frame_behind_it_only(born: bytes, host: bytes) -> None:
    follower = PendingMessage(
        "T", 0, b"x" * 100, born_host=born, store_host=host, prepared_offset=4000
    )
    head = memoryview(framed(follower, 900))[:HEAD_BYTES]
    for kind in EndingKind:
        needs = kind is not EndingKind.ROLLED_BACK
        assert counts(ending(kind), head, 900)
        assert counts(ending(kind), None, 900) is not needs
        assert counts(ending(kind), head[:50], 900) is not needs
        assert counts(ending(kind), head, 901) is not needs, "a frame of another place"
        follower.prepared_offset = 4001
        other = memoryview(framed(follower, 900))[:HEAD_BYTES]
        assert counts(ending(kind), other, 900) is not needs, "a message of another half"
        follower.prepared_offset = 4000
    assert counts(Ending(5, (7,)), None, 900), "RocketMQ's"
