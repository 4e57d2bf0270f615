"""Batches that fill for a moment while messages come fast; in virtual time, but for the timer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from producer_world import A0, Cluster, Make, clusters
from saturnmq.client.producer.batch import SendHandle
from saturnmq.client.producer.lingering import FULL, REST_S, VAIN_MOST, VAIN_S
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.drills.sim.runtime import SimAlarm
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime, new_event_loop

LINGER_S = 0.0005
STEP_S = 0.0001  # 10,000 messages a second
AFTER_S = 0.0002


@pytest.fixture
def cluster() -> Iterator[Make]:
    with clusters() as make:
        yield make


def quick(make: Make, **options: Any) -> Cluster:
    """One broker, which answers within a tenth of a millisecond, and a first message."""
    world = make({"a": 1}, linger=LINGER_S, **options)
    world.takes_s = lambda _: STEP_S / 2
    world.until_done(world.send())
    return world


def stream(world: Cluster, messages: int, step_s: float = STEP_S) -> list[SendHandle]:
    """Send one after the other; returns when the last one was accepted."""
    handles = []
    for _ in range(messages):
        handles.append(world.send())
        world.run(step_s)
    return handles


def fast(make: Make, **options: Any) -> Cluster:
    """A cluster whose producer has sent fast for a while, and has nothing under way."""
    world = quick(make, **options)
    world.until_done(*stream(world, 600))
    world.sent.clear()
    return world


def took_s(world: Cluster, handle: SendHandle) -> float:
    began = world.loop.time()
    while not handle.done():
        world.run(STEP_S / 4)
    return world.loop.time() - began


def test_while_messages_come_fast_several_go_together_and_none_waits_longer(cluster: Make) -> None:
    world = fast(cluster)
    began = world.loop.time()
    handles = stream(world, 200)
    requests = len(world.sent)
    world.until_done(*handles)
    assert 200 / 8 <= requests <= 200 / 4
    assert world.loop.time() - began <= 200 * STEP_S + 3 * LINGER_S
    assert world.idle()


def test_each_is_under_way_within_the_time_of_the_option(cluster: Make) -> None:
    world = fast(cluster)
    late = 0.0
    for _ in range(100):
        handle = world.send()
        began = world.loop.time()
        while not handle.done():
            world.run(STEP_S / 4)
            world.send()
        late = max(late, world.loop.time() - began)
    assert late <= LINGER_S + 3 * STEP_S


def test_slow_messages_go_at_once(cluster: Make) -> None:
    world = quick(cluster)
    handles = stream(world, 100, step_s=0.0005)
    assert len(world.sent) == 101
    world.until_done(*handles)


def test_linger_0_never_waits(cluster: Make) -> None:
    world = cluster({"a": 1}, linger=0.0)
    world.takes_s = lambda _: STEP_S / 2
    world.until_done(world.send())
    world.until_done(*stream(world, 600))
    assert len(world.sent) == 601


def test_after_a_rest_the_first_message_goes_at_once(cluster: Make) -> None:
    world = fast(cluster)
    world.run(REST_S + 0.001)
    assert took_s(world, world.send()) <= STEP_S


def test_somebody_who_waits_is_not_kept_waiting_nor_are_the_next_of_the_lane(cluster: Make) -> None:
    world = fast(cluster)
    handle = world.send()
    world.run(LINGER_S / 8)
    assert not world.sent
    asleep = world.runtime.spawn(world.engine.wait(handle.batch))
    assert took_s(world, handle) <= STEP_S
    world.run(STEP_S)
    assert asleep.done()
    assert took_s(world, world.send()) <= STEP_S, "there will be somebody again"
    world.run(REST_S)


def test_a_flush_does_not_wait_for_the_moment_to_end(cluster: Make) -> None:
    world = fast(cluster)
    handles = [world.send() for _ in range(3)]
    began = world.loop.time()
    world.loop.run_until_complete(world.engine.flush())
    assert all(handle.done() for handle in handles)
    assert world.loop.time() - began <= STEP_S


def test_closing_sends_what_lingers_and_closes_the_timer(
    cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[SimAlarm] = []

    def close(alarm: SimAlarm) -> None:
        closed.append(alarm)

    monkeypatch.setattr(SimAlarm, "close", close)
    world = fast(cluster)

    async def unregister(group: str) -> None:
        assert group == "G"

    world.unregister_producer = unregister  # type: ignore[attr-defined]
    handle = world.send()
    world.loop.run_until_complete(world.engine.close())
    assert handle.exception() is None
    assert len(world.sent) == len(closed) == 1


def test_many_at_once_go_at_once(cluster: Make) -> None:
    world = fast(cluster)
    handles = [world.send() for _ in range(FULL)]
    assert took_s(world, handles[0]) <= STEP_S
    assert len(world.sent) == 1


def test_a_full_batch_goes_at_once(cluster: Make) -> None:
    world = fast(cluster)
    handles = [world.send()]
    world.run(LINGER_S / 8)
    while not world.engine.accumulator.lane("T", None).ready:
        handles.append(world.send())
    assert len(handles) > FULL
    began = world.loop.time()
    while not handles[0].done():
        world.run(STEP_S / 4)
    assert world.loop.time() - began <= STEP_S
    world.until_done(*handles)


def test_a_callback_is_nobody_who_waits(cluster: Make) -> None:
    world = fast(cluster)
    done: list[SendHandle] = []
    handle = world.send()
    handle.add_done_callback(done.append)
    assert took_s(world, handle) >= LINGER_S / 2 - STEP_S / 4
    assert done == [handle]


def test_messages_of_one_key_linger_too_and_keep_their_order(cluster: Make) -> None:
    world = fast(cluster)
    handles = []
    for _ in range(50):
        handles.append(world.send(A0))
        world.run(STEP_S)
    world.until_done(*handles)
    assert len(world.sent) < 25
    offsets = [id(handle.batch) for handle in handles]
    assert offsets == sorted(offsets, key=offsets.index), "no batch comes back"


def test_where_messages_come_only_when_others_are_acknowledged_nothing_lingers_for_long(
    cluster: Make,
) -> None:
    world = fast(cluster)
    acknowledged = 0

    def again(handle: SendHandle) -> None:
        nonlocal acknowledged
        acknowledged += 1
        if acknowledged < 2000:
            world.send().add_done_callback(again)

    began = world.loop.time()
    for _ in range(8):
        world.send().add_done_callback(again)
    while acknowledged < 2000:
        world.run(STEP_S)
    took = world.loop.time() - began
    pauses = 1 + took / VAIN_S
    assert took <= 2000 / 8 * STEP_S + pauses * VAIN_MOST * LINGER_S


@pytest.mark.parametrize("linger", [-0.001, 61.0, float("nan")])
def test_a_linger_that_makes_no_sense_is_refused(linger: float) -> None:
    with pytest.raises(ConfigError, match=r"linger is .* give 0 to 60"):
        ProducerOptions(linger=linger)


# -- the timer -------------------------------------------------------------------------------------


def rings() -> list[float]:
    """Seconds from each `set` to its ring."""
    loop = new_event_loop()
    seen: list[float] = []

    async def body() -> None:
        ring = asyncio.Event()
        alarm = NativeRuntime(loop).alarm(ring.set)
        for _ in range(20):
            ring.clear()
            began = time.monotonic()
            alarm.set(AFTER_S)
            await asyncio.wait_for(ring.wait(), 10)
            seen.append(time.monotonic() - began)
        alarm.close()
        alarm.close()

    try:
        loop.run_until_complete(body())
    finally:
        loop.close()
    return seen


def test_the_timer_rings_after_its_time_again_and_again() -> None:
    rings()  # the first loop of a process opens files that it keeps
    before = len(os.listdir("/proc/self/fd"))
    assert min(rings()) >= AFTER_S
    assert len(os.listdir("/proc/self/fd")) == before


class NoFiles:
    def timerfd_create(self, *args: int) -> int:
        return -1

    def timerfd_settime(self, *args: object) -> int:
        raise AssertionError("there is no file")


def test_without_a_descriptor_the_loop_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.runtime.alarm.ctypes.CDLL", lambda name: NoFiles())
    assert len(rings()) == 20


@pytest.mark.parametrize("has_file", [True, False])
def test_a_closed_timer_does_not_ring(has_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_file:
        monkeypatch.setattr("saturnmq.runtime.alarm.ctypes.CDLL", lambda name: NoFiles())
    loop = new_event_loop()
    rang: list[int] = []
    alarm = NativeRuntime(loop).alarm(lambda: rang.append(1))
    alarm.set(AFTER_S)
    alarm.close()
    try:
        loop.run_until_complete(asyncio.sleep(20 * AFTER_S))
    finally:
        loop.close()
    assert rang == []
