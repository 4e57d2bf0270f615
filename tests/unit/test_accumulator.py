"""Messages queue in batches: how large those are, what they count, and who hears of what."""

from __future__ import annotations

import contextlib
import random
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from saturnmq.client.producer.accumulator import Accumulator
from saturnmq.client.producer.batch import ProducerBatch, SendHandle
from saturnmq.client.producer.lanes import Lane, Pin
from saturnmq.protocol.batch import iterate_batch
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.runtime.errors import ClientClosed, MessageIllegal

A0, A1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


class Gate:
    """How a sender that is ahead of the loop was held up."""

    def __init__(self, gates: list[Any]) -> None:
        gates.append(self)
        self.waited: list[float] = []
        self.released = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.waited.append(timeout)
        return False

    def release(self) -> None:
        self.released += 1


class Senders:
    """An accumulator, and what it was told and tells."""

    def __init__(
        self, batch_bytes: int = 1 << 20, buffer_bytes: int = 64 << 20, *, gates: bool = False
    ) -> None:
        self.now = 1_700_000_000_000
        self.wakes = self.room = 0
        self.gates: list[Gate] = []
        self.made = Accumulator(
            contextlib.nullcontext(),
            lambda: self.now,
            UniqueIds(self, "127.0.0.1", 1),
            self.woken,
            lambda batch, timeout: None,
            None,  # type: ignore[arg-type]
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            alone_from=1 << 30,
            first_queue=lambda: 5,
            gate=(lambda: Gate(self.gates)) if gates else None,
        )
        self.made.on_space = self.more_room
        self.lane = self.made.lane("T", None)

    def now_ms(self) -> int:
        return self.now

    def woken(self) -> None:
        self.wakes += 1

    def more_room(self) -> None:
        self.room += 1

    def append(self, body: bytes, lane: Lane | None = None, given: str = "") -> SendHandle | None:
        extra = f"UNIQ_KEY\x01{given}\x02".encode() if given else b""
        return self.made.append(lane or self.lane, body, extra, 0, given)

    def take(self, lane: Lane | None = None) -> ProducerBatch:
        batch = self.made.pop(lane or self.lane)
        batch.attempts = 1
        return batch

    def batches(self) -> Iterator[ProducerBatch]:
        """All that wait in lanes."""
        for lane in self.made.lanes.values():
            yield from lane.ready
            if lane.open is not None:
                yield lane.open

    def check(self, under_way: list[ProducerBatch]) -> None:
        """Everything is counted, and nothing twice."""
        batches = [*self.batches(), *under_way]
        assert self.made.active == set(batches)
        assert self.made.buffered == sum(len(batch.buffer) for batch in batches)
        assert all(batch.bytes <= len(batch.buffer) for batch in batches if not batch.single)
        for lane in self.made.lanes.values():
            assert lane.ready_bytes == sum(len(batch.buffer) for batch in lane.ready)


def bodies(batch: ProducerBatch) -> list[bytes]:
    return [bytes(entry.body) for entry in iterate_batch(batch.body)]


# -- sizes -----------------------------------------------------------------------------------------


def counts(senders: Senders, messages: int, size: int, lane: Lane | None = None) -> list[int]:
    """Messages in each batch when so many are appended without a pause."""
    for _ in range(messages):
        assert senders.append(bytes(size), lane) is not None
    lane = lane or senders.lane
    return [batch.count for batch in lane.ready]


def test_the_batches_of_a_lane_grow_while_it_is_a_stream() -> None:
    sizes = counts(Senders(batch_bytes=8 << 20), 14_000, 1000)
    few, more, many = sizes[:15], sizes[15:31], sizes[31:]
    assert set(few) <= {64, 65, 66, 67}
    assert set(more) <= set(range(256, 270))
    assert set(many) <= set(range(1024, 1080))
    assert len(many) > 5


@pytest.mark.parametrize(("rest_ms", "as_new"), [(50, False), (51, True)])
def test_after_a_rest_batches_are_small_again(rest_ms: int, as_new: bool) -> None:
    senders = Senders(batch_bytes=8 << 20)
    counts(senders, 15 * 70 + 3 * 260, 1000)
    while senders.made.head(senders.lane) is not None:
        senders.take()
    senders.now += rest_ms
    size = counts(senders, 300, 1000)[:1]
    assert (size[0] < 70) == as_new if size else not as_new


@pytest.mark.parametrize("newest", [True, False])
def test_batches_are_small_again_when_somebody_waits_for_the_newest(newest: bool) -> None:
    senders = Senders(batch_bytes=8 << 20)
    counts(senders, 15 * 70 + 3 * 260, 1000)
    batch = senders.take()
    while newest and senders.made.head(senders.lane) is not None:
        batch = senders.take()
    assert senders.made.watch(batch, lambda: None)
    while senders.made.head(senders.lane) is not None:
        senders.take()
    assert (counts(senders, 300, 1000)[0] < 70) is newest


@pytest.mark.parametrize("newest", [True, False])
def test_batches_are_small_again_also_if_the_newest_is_still_waiting(newest: bool) -> None:
    senders = Senders(batch_bytes=8 << 20)
    counts(senders, 15 * 70 + 3 * 260, 1000)
    assert senders.lane.open is not None
    senders.made.watch(senders.lane.open if newest else senders.lane.ready[-1], lambda: None)
    while senders.made.head(senders.lane) is not None:
        senders.take()
    assert (counts(senders, 300, 1000)[0] < 70) is newest


def whole(senders: Senders, messages: int, size: int, lane: Lane | None = None) -> ProducerBatch:
    """Append a whole batch that others may join."""
    lane = lane or senders.lane
    batch = senders.made.batch(lane, bytearray(messages * (size + 96)))
    for _ in range(messages):
        batch.put(bytes(size), b"", 0, True)
    assert senders.made.append_batch(lane, batch, shared=True)
    return batch


def test_others_join_a_whole_batch_once_its_lane_is_a_stream_of_larger_ones() -> None:
    senders = Senders()
    batches = [whole(senders, 100, 1000) for _ in range(17)]
    assert list(senders.lane.ready) == batches[:-1]  # the first 16 travel alone
    assert senders.lane.open is batches[-1]
    before = senders.lane.open.count
    assert senders.append(bytes(1000)) is not None
    assert senders.lane.open.count == before + 1
    assert bodies(senders.lane.open) == [bytes(1000)] * 101
    senders.check([])
    whole(senders, 200, 1000)  # those of a stream have 256 now, so no other would have room
    assert [batch.count for batch in senders.lane.ready] == [100] * 16 + [101, 200]
    assert senders.lane.open is None
    senders.check([])


def test_nothing_joins_a_whole_batch_of_one_queue_or_one_without_room_in_the_buffer() -> None:
    senders = Senders(buffer_bytes=2 << 20)
    lane = senders.made.lane("T", Pin(A0))
    for _ in range(20):
        whole(senders, 1, 1000, lane)
        assert lane.open is None
    senders = Senders(buffer_bytes=17 * 100 * 1096 + 10_000)
    for _ in range(17):
        whole(senders, 100, 1000)
    assert senders.lane.open is None
    senders.check([])


def test_whoever_waits_for_an_answer_while_whole_batches_wait_sends_a_stream() -> None:
    senders = Senders()
    first = whole(senders, 100, 1000)
    assert senders.take() is first
    for _ in range(16):
        whole(senders, 100, 1000)
        senders.made.watch(first, lambda: None)
    assert senders.lane.open is not None
    while senders.made.head(senders.lane) is not None:
        newest = senders.take()
    senders.made.watch(newest, lambda: None)
    whole(senders, 100, 1000)
    assert senders.lane.open is None


def test_a_lane_of_one_queue_fills_its_batches() -> None:
    senders = Senders(batch_bytes=100_000)
    lane = senders.made.lane("T", Pin(A0))
    assert min(counts(senders, 1000, 1000, lane)) > 90


def test_no_batch_is_larger_than_it_may_be_but_for_one_message() -> None:
    senders = Senders(batch_bytes=20_000)
    for size in (100, 19_000, 50_000, 100):
        assert senders.append(bytes(size)) is not None
    sizes = [len(batch.buffer) for batch in senders.batches()]
    assert (sizes[0], sizes[1], len(sizes)) == (20_000, 50_000 + 96, 3)
    assert sizes[2] < 20_000


@pytest.mark.parametrize(("beyond", "batches"), [(0, 1), (1, 2)])
def test_a_batch_is_filled_to_its_last_byte(beyond: int, batches: int) -> None:
    senders = Senders(batch_bytes=20_000)
    lane = senders.made.lane("T", Pin(A0))
    senders.append(bytes(1000), lane)
    assert lane.open is not None
    room = 20_000 - lane.open.bytes
    senders.append(bytes(room - 96 + beyond), lane)
    assert [batch.count for batch in senders.batches()] == [2 // batches] * batches


def test_what_a_begun_batch_has_no_room_for_begins_the_next() -> None:
    senders = Senders(batch_bytes=20_000)
    for size in (10_000, 15_000):
        assert senders.append(bytes(size)) is not None
    assert [len(bodies(batch)[0]) for batch in senders.batches()] == [10_000, 15_000]


def test_a_message_of_large_properties_has_its_place() -> None:
    senders = Senders()
    extra = b"KEYS\x01" + b"k" * 20_000 + b"\x02"
    assert senders.made.append(senders.lane, b"x", extra, 0, "") is not None
    [entry] = iterate_batch(senders.take().body)
    assert entry.properties.endswith(extra)


def test_a_buffer_begins_small_and_grows_fourfold() -> None:
    senders = Senders()
    lane = senders.made.lane("T", Pin(A0))
    seen = []
    for _ in range(1100):
        senders.append(bytes(1000), lane)
        assert lane.open is not None
        seen.append(len(lane.open.buffer))
    small = [1 << n for n in (14, 16, 18, 20)]
    assert list(dict.fromkeys(seen))[:4] == small
    assert senders.append(bytes(5000)) is not None
    assert senders.lane.open is not None
    assert len(senders.lane.open.buffer) == 1 << 14
    senders.check([])
    senders = Senders()
    lane = senders.made.lane("T", Pin(A0))
    senders.append(b"x", lane)
    senders.append(bytes(200_000), lane)
    assert lane.open is not None
    assert 200_000 < len(lane.open.buffer) < 201_000


# -- what is counted -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_all_messages_leave_once_and_in_order_and_their_bytes_are_counted(seed: int) -> None:
    chance = random.Random(seed)
    senders = Senders(batch_bytes=4000, buffer_bytes=30_000)
    made = senders.made
    lanes = [senders.lane, made.lane("T", Pin(A0, 1)), made.lane("U", None)]
    sent: dict[Lane, list[bytes]] = {lane: [] for lane in lanes}
    left: dict[Lane, list[bytes]] = {lane: [] for lane in lanes}
    under_way: list[ProducerBatch] = []
    refused = 0
    for number in range(3000):
        lane = chance.choice(lanes)
        body = b"%d-" % number + bytes(chance.choice((0, 10, 300, 2000, 6000)))
        kind = chance.random()
        if kind < 0.1:
            batch = made.batch(lane, body, single=True)
            accepted = made.append_batch(lane, batch)
        else:
            accepted = senders.append(body, lane) is not None
        if accepted:
            sent[lane].append(body)
        else:
            refused += 1
            assert made.starving
            assert made.buffered + 16_384 + len(body) > 30_000
        assert made.buffered <= 30_000 or len(made.active) == 1
        senders.now += chance.choice((0, 0, 0, 60))
        if chance.random() < (0.05 if number % 200 < 100 else 0.4):
            lane = chance.choice(lanes)
            if made.head(lane) is not None:
                head = made.head(lane)
                under_way.append(senders.take(lane))
                assert under_way[-1] is head
                left[lane] += [head.buffer] if head.single else bodies(head)
        if under_way and chance.random() < 0.6:
            had = senders.room
            starving = made.starving
            made.finish(under_way.pop(chance.randrange(len(under_way))))
            enough = starving and made.buffered <= 15_000
            assert (senders.room - had, made.starving) == (enough, starving and not enough)
        senders.check(under_way)
    assert refused > 20
    assert senders.room > 2
    for lane in lanes:
        while made.head(lane) is not None:
            under_way.append(batch := senders.take(lane))
            left[lane] += [batch.buffer] if batch.single else bodies(batch)
    assert left == sent
    for batch in under_way:
        made.finish(batch)
        made.finish(batch)  # it is over only once
    assert (made.buffered, made.active) == (0, set())


def test_a_buffer_is_full_at_its_last_byte_and_one_batch_is_always_taken() -> None:
    senders = Senders(batch_bytes=1000, buffer_bytes=2000)
    first, second = (senders.made.batch(senders.lane, bytes(n), single=True) for n in (900, 1100))
    assert senders.made.append_batch(senders.lane, first)
    assert senders.made.append_batch(senders.lane, second)
    for body in (b"x", bytes(500)):
        assert senders.append(body) is None
        assert senders.made.starving
    for batch, room in ((senders.take(), 0), (senders.take(), 1)):
        senders.made.finish(batch)
        assert senders.room == room
    large = senders.made.batch(senders.lane, bytes(9000), single=True)
    assert senders.made.append_batch(senders.lane, large)
    assert not senders.made.append_batch(senders.lane, first)
    senders.check([])


def test_there_is_room_again_when_half_of_a_buffer_is_free() -> None:
    senders = Senders(buffer_bytes=2001)
    for size in (1001, 1000):
        batch = senders.made.batch(senders.lane, bytes(size), single=True)
        assert senders.made.append_batch(senders.lane, batch)
    assert senders.append(b"x") is None
    senders.made.finish(senders.take())
    assert (senders.room, senders.made.starving) == (1, False)


def test_a_batch_that_cannot_grow_is_refused_and_stays_as_it_is() -> None:
    senders = Senders(buffer_bytes=20_000)
    lane = senders.made.lane("T", Pin(A0))
    accepted = 0
    while senders.append(bytes(1000), lane) is not None:
        accepted += 1
    assert accepted == 15
    assert senders.made.starving
    assert len(bodies(senders.take(lane))) == 15


def test_a_body_that_is_longer_than_it_was_is_refused() -> None:
    senders = Senders()
    body: Any = array("i", [1] * 5000)  # 20 kB, and 5000 long
    with pytest.raises(MessageIllegal, match=r"array of 5000 B, grew while it was sent: leave it"):
        senders.append(body)
    senders.append(b"x")
    assert [bodies(batch) for batch in senders.batches()] == [[b"x"]], "once"


# -- who hears of what -----------------------------------------------------------------------------


def test_the_loop_is_woken_for_the_first_lane_that_got_something() -> None:
    senders = Senders()
    other = senders.made.lane("U", None)
    for lane in (senders.lane, senders.lane, other):
        senders.append(b"x", lane)
    assert senders.wakes == 1
    assert senders.made.take_dirty() == [senders.lane, other]
    assert senders.made.take_dirty() == []
    assert senders.made.append_batch(other, senders.made.batch(other, b"y", single=True))
    assert (senders.wakes, senders.made.take_dirty()) == (2, [other])


def test_who_watches_a_batch_is_called_when_it_is_over() -> None:
    senders = Senders()
    calls: list[str] = []
    senders.append(b"x")
    batch = senders.take()
    assert senders.made.watch(batch, lambda: calls.append("one"))
    assert senders.made.watch(batch, lambda: calls.append("two"))
    assert not calls
    senders.made.finish(batch)
    assert calls == ["one", "two"]
    assert not senders.made.watch(batch, lambda: calls.append("late"))
    senders.made.finish(batch)
    assert calls == ["one", "two"]
    assert senders.room == 0, "nobody waits for it"


def test_a_sender_that_is_two_full_batches_ahead_of_the_loop_pauses() -> None:
    senders = Senders(batch_bytes=10_000, gates=True)
    lane = senders.made.lane("T", Pin(A0))
    while lane.ready_bytes < 20_000:
        assert senders.gates == []
        senders.append(bytes(900), lane)
    assert lane.ready_bytes == 20_000
    (gate,) = senders.gates
    assert (gate.waited, gate.released) == ([0.002], 0)
    senders.append(b"x", lane)
    senders.take(lane)
    assert [gate.released for gate in senders.gates] == [1, 1]
    senders.append(b"x", lane)
    senders.take(lane)
    assert [gate.released for gate in senders.gates] == [1, 1]


def test_lanes_are_told_apart_by_topic_and_queue_and_round() -> None:
    senders = Senders()
    made = senders.made
    pins = [None, Pin(A0), Pin(A1), Pin(A0, 1), Pin(A0, 2)]
    lanes = [made.lane("T", pin) for pin in pins]
    assert len(set(map(id, lanes))) == 5
    assert [made.lane("T", pin) for pin in pins] == lanes
    other = made.lane("U", None)
    assert (set(made.lanes_of("T")), made.lanes_of("U")) == (set(lanes), [other])
    assert [pin.chosen for pin in pins if pin is not None] == [False, False, True, True]
    assert {lane.next_queue for lane in lanes} == {5}
    queues = [made.batch(lane, b"").queue for lane in lanes]
    assert queues == [None, A0, A1, A0, A0]


def test_ids_that_were_given_are_kept() -> None:
    senders = Senders()
    handles = [senders.append(b"x", given=given) for given in ("", "mine", "")]
    ids = [handle.message_id for handle in handles if handle is not None]
    assert ids[1] == "mine"
    assert (ids[0][:-4], ids[0][-4:], ids[2][-4:]) == (ids[2][:-4], "0000", "0002")


# -- the end ---------------------------------------------------------------------------------------


def test_buffers_of_batches_that_went_well_are_used_again() -> None:
    senders = Senders(batch_bytes=10_000)
    lane = senders.made.lane("T", Pin(A0))

    def full(count: int) -> list[ProducerBatch]:
        while len(lane.ready) < count:
            senders.append(bytes(900), lane)
        return [senders.take(lane) for _ in range(count)]

    kept = full(34)
    buffers = [batch.buffer for batch in kept]
    failed, repeated, encoded = full(3)
    repeated.attempts = 2
    encoded.buffer = bytes(encoded.buffer)
    senders.made.finish(failed, ClientClosed("closed"))
    for batch in (repeated, encoded, *kept):
        senders.made.finish(batch)
    assert [batch.buffer for batch in kept] == [b""] * 34
    assert all(any(spare is one for one in buffers) for spare in senders.made.spare)
    assert len(senders.made.spare) == 32
    alone = senders.made.batch(lane, bytearray(10_000), single=True)
    smaller = senders.made.batch(lane, bytearray(9_999))
    senders.made.spare.clear()
    for batch in (alone, smaller):
        senders.made.adopt(batch, "a")
        batch.attempts = 1
        senders.made.finish(batch)
    assert senders.made.spare == []
    spare = buffers[0]
    senders.made.spare.append(spare)
    senders.append(b"x")
    assert senders.made.spare == [spare], "a lane of the topic begins with a small batch"
    fresh = senders.made.lane("T", Pin(A1))
    senders.append(b"x", fresh)
    assert fresh.open is not None
    assert (fresh.open.buffer is spare, senders.made.spare) == (True, [])


def test_what_waits_in_a_lane_fails_together_and_the_rest_goes_on() -> None:
    senders = Senders(batch_bytes=1000)
    other = senders.made.lane("U", None)
    for lane in (senders.lane, other):
        for _ in range(10):
            senders.append(bytes(300), lane)
    under_way = senders.take(other)
    gone, waiting = list(senders.lane.ready), list(other.ready)
    error = ClientClosed("gone")
    senders.made.fail_lane(senders.lane, error)
    assert {batch.error for batch in gone} == {error}
    assert not any(batch.done for batch in [*waiting, under_way])
    senders.check([under_way])
    senders.made.close(error)
    assert {batch.error for batch in [*waiting, under_way]} == {error}
    assert (senders.made.buffered, senders.made.active) == (0, set())
    assert list(senders.batches()) == []


def test_a_message_is_offered_to_no_batch_of_a_queue_and_to_none_after_the_end() -> None:
    senders = Senders()
    senders.append(b"x", senders.made.lane("T", Pin(A0)))
    assert senders.made.offer(Message("T", b"y")) is None
    senders.made.refuse_offers()
    senders.append(b"x")
    assert senders.made.offer(Message("T", b"y")) is None
