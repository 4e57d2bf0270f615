from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.client.consumer.process_queue import FlowLimits, ProcessQueue


@dataclass
class Stub:
    queue_offset: int


def filled(*batches: tuple[list[int], int]) -> ProcessQueue:
    queue = ProcessQueue(next_offset=0)
    for offsets, following in batches:
        queue.put([Stub(offset) for offset in offsets], following, 100 * len(offsets))
    return queue


def test_a_finished_chunk_behind_an_unfinished_one_is_not_committed() -> None:
    queue = filled(([0, 1, 2, 3], 4))
    first, second = queue.take(2), queue.take(2)
    assert first is not None
    assert second is not None
    queue.finish(second)
    assert queue.commit_offset() == 0
    queue.finish(first)
    assert queue.commit_offset() == 4
    assert (queue.messages, queue.bytes) == (0, 0)


def test_chunks_follow_each_other_and_share_the_bytes_of_their_batch() -> None:
    queue = filled((list(range(10)), 10), ([12], 13))
    chunks = [chunk for chunk in (queue.take(count) for count in (4, 1, 99, 99)) if chunk]
    offsets = [[message.queue_offset for message in chunk.messages] for chunk in chunks]
    assert offsets == [[0, 1, 2, 3], [4], [5, 6, 7, 8, 9], [12]]
    assert [chunk.first_offset for chunk in chunks] == [0, 4, 5, 12]
    assert [chunk.size for chunk in chunks] == [400, 100, 500, 100]
    assert queue.bytes == 1100
    assert queue.take(1) is None
    assert queue.commit_offset() == 0
    for chunk in chunks[:2]:
        queue.finish(chunk)
    assert queue.commit_offset() == 5


def test_what_the_filter_dropped_is_committed_with_the_rest() -> None:
    queue = filled(([3, 7], 20))
    chunk = queue.take(10)
    assert chunk is not None
    assert queue.commit_offset() == 3
    queue.finish(chunk)
    assert queue.commit_offset() == 20


def test_a_failed_message_holds_the_offset() -> None:
    queue = filled(([0, 1, 2], 3))
    chunk = queue.take(3)
    assert chunk is not None
    queue.keep(chunk, [chunk.messages[1]])
    assert queue.commit_offset() == 1
    assert (queue.messages, queue.bytes) == (1, chunk.size) == (1, 100)
    queue.finish(chunk)
    assert queue.commit_offset() == 3
    assert queue.bytes == 0


def test_what_the_listener_has_finished_is_committed_while_it_is_at_work() -> None:
    queue = filled(([5, 7, 9, 11], 12))
    chunk = queue.take(4)
    assert chunk is not None
    assert queue.commit_offset() == 5
    chunk.begin(0.0)
    chunk.handled = 2
    assert queue.commit_offset() == 9
    chunk.handled = 4
    assert queue.commit_offset() == 5, "finish() or keep() says what comes of them"
    chunk.failed.append(chunk.messages[2])  # before it counts as handled
    chunk.handled = 3
    assert queue.commit_offset() == 5
    queue.keep(chunk, chunk.messages[2:])
    assert queue.commit_offset() == 9
    chunk.begin(2.0)
    chunk.handled = 1
    chunk.give_up()
    assert queue.commit_offset() == 9


def test_what_the_listener_was_not_given_is_taken_again_in_its_place() -> None:
    queue = filled((list(range(8)), 8), ([8, 9], 10))
    first, last = queue.take(8), queue.take(2)
    assert first is not None
    assert last is not None
    first.begin(0.0)
    assert [next(first.upcoming).queue_offset for _ in range(3)] == [0, 1, 2]
    first.handled = 2
    queue.split(first)
    queue.split(first)
    assert [message.queue_offset for message in first.messages] == [0, 1, 2]
    assert (first.size, queue.messages, queue.bytes) == (300, 10, 1000)
    queue.finish(last)
    assert queue.commit_offset() == 2
    queue.finish(first)
    assert queue.commit_offset() == 3
    one, rest = queue.take(1), queue.take(9)
    assert one is not None
    assert rest is not None
    assert (one.first_offset, rest.first_offset, queue.take(1)) == (3, 4, None)
    queue.finish(rest)
    assert queue.commit_offset() == 3
    queue.finish(one)
    assert (queue.commit_offset(), queue.messages, queue.bytes) == (10, 0, 0)


@pytest.mark.parametrize("end", ["drop", "reset", "give up"])
def test_a_chunk_that_is_ended_is_not_split(end: str) -> None:
    queue = filled(([0, 1, 2], 3))
    chunk = queue.take(3)
    assert chunk is not None
    chunk.begin(0.0)
    {"drop": queue.drop, "reset": lambda: queue.reset(7), "give up": chunk.give_up}[end]()
    queue.split(chunk)
    assert (len(chunk.messages), queue.waiting) == (3, False)


def test_a_reset_forgets_chunks_under_way() -> None:
    queue = filled(([0, 1], 2))
    chunk = queue.take(1)
    assert chunk is not None
    assert not chunk.ended
    before = queue.generation
    queue.reset(40)
    assert chunk.ended, "its listener is not called again"
    assert queue.generation != before, "the answer to a pull of before is not for it"
    queue.finish(chunk)
    assert not queue.holds(chunk)
    assert (queue.commit_offset(), queue.messages, queue.bytes) == (40, 0, 0)


def test_a_dropped_queue_ends_its_runs_and_commits_what_they_finished() -> None:
    queue = filled(([0, 1, 2], 3))
    first, second = queue.take(1), queue.take(1)
    assert first is not None
    assert second is not None
    assert queue.holds(first)
    queue.drop()
    assert first.ended
    assert second.ended
    assert not queue.holds(first)
    queue.finish(first)
    assert queue.commit_offset() == 1


def test_a_queue_is_idle_when_nothing_pulled_is_unfinished() -> None:
    queue = ProcessQueue()
    assert queue.commit_offset() == -1, "where it starts is not known yet"
    assert queue.idle
    queue.put([Stub(0)], 1, 100)
    assert not queue.idle
    chunk = queue.take(1)
    assert chunk is not None
    assert not queue.idle
    assert not queue.waiting
    queue.put_back(chunk)
    assert queue.waiting
    assert queue.take(1) is not None
    assert (queue.messages, queue.bytes) == (1, 100)


def test_a_listener_stands_still_from_when_it_last_finished_a_message() -> None:
    chunk = filled(([0, 1, 2], 3)).take(3)
    assert chunk is not None
    assert chunk.stands_still_s(7.0) == 0.0, "it is not called yet"
    chunk.begin(0.0)
    assert chunk.stands_still_s(8.0) == 8.0
    chunk.handled = 1
    assert chunk.stands_still_s(10.0) == 0.0
    assert chunk.stands_still_s(13.0) == 3.0


def test_flow_control_by_count_and_by_bytes() -> None:
    queue = filled((list(range(10)), 10))
    assert queue.full(FlowLimits(messages=10))
    assert queue.full(FlowLimits(bytes=1000))
    assert not queue.full(FlowLimits(messages=11, bytes=1001))


def test_a_lock_is_trusted_for_30_seconds() -> None:
    queue = ProcessQueue()
    assert not queue.locked(0.0)
    assert queue.lock(100.0)
    assert not queue.lock(110.0)
    assert queue.locked(139.9)
    assert not queue.locked(140.0)
    assert queue.lock(140.0)
    queue.unlock()
    assert not queue.locked(140.0)


@given(st.data())
def test_the_commit_never_passes_an_unfinished_message(data: st.DataObject) -> None:
    queue, put = ProcessQueue(next_offset=0), 0
    unfinished: set[Any] = set()
    chunks: list[Any] = []
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["put", "take", "finish", "keep", "split"]))
        if action == "put":
            count = data.draw(st.integers(0, 6))
            queue.put([Stub(put + n) for n in range(count)], put + count + 1, count)
            unfinished.update(range(put, put + count))
            put += count + 1
        elif action == "take":
            chunk = queue.take(data.draw(st.integers(1, 4)))
            if chunk is not None:
                chunks.append(chunk)
        elif chunks:
            chunk = data.draw(st.sampled_from(chunks))
            if action == "split":
                chunk.begin(0.0)
                for _ in range(data.draw(st.integers(1, len(chunk.messages)))):
                    next(chunk.upcoming)
                queue.split(chunk)
            elif action == "keep" and len(chunk.messages) > 1:
                done, rest = chunk.messages[0], chunk.messages[1:]
                queue.keep(chunk, rest)
                unfinished.discard(done.queue_offset)
            else:
                queue.finish(chunk)
                unfinished.difference_update(m.queue_offset for m in chunk.messages)
                chunks.remove(chunk)
        assert queue.commit_offset() == (min(unfinished) if unfinished else put)
        assert queue.messages == len(unfinished)


@pytest.mark.parametrize(
    ("taken", "finished", "moved", "begin"),
    [
        (1, False, 2, 0),  # the listener is in the first of three, and is given it again
        (1, True, 2, 1),
        (3, True, 2, 2),  # all is finished: back to where the logs part
        (0, False, 0, 0),
        (1, True, 9, 9),  # forward: what was before is gone
        (1, True, 3, 3),
    ],
)
def test_a_queue_that_goes_on_further_back_passes_over_nothing_that_is_held(
    taken: int, finished: bool, moved: int, begin: int
) -> None:
    queue = filled(([0, 1, 2], 3))
    if taken:
        chunk = queue.take(taken)
        assert chunk is not None
        if finished:
            queue.finish(chunk)
    assert queue.moved_to(moved) == begin
