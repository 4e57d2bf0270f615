"""How a thread and a loop look for bytes before they sleep, on clocks of the test."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from broker_rig import config, connected, run, send, slave_config, started, until
from saturnmq.runtime.lookout import LEFT_OUT_MOST, LEFT_TO_OTHERS, STEP_MAX_S, Lookout, LoopLookout
from saturnmq.runtime.native import NativeRuntime

STEP_S = 1e-6
MOST_S = 100e-6


class Scene:
    """Each look takes STEP_S, or `step_s` once others have the processor."""

    def __init__(self) -> None:
        self.at = 0.0
        self.step_s = STEP_S
        self.comes_at = 0.0
        self.looks = 0
        self.lookout = Lookout(lambda: self.at, self.is_there, MOST_S, self.give_way)

    def is_there(self) -> bool:
        self.looks += 1
        return self.at >= self.comes_at

    def give_way(self) -> None:
        self.at += self.step_s

    def ask(self, answered_after_s: float) -> tuple[bool, int]:
        """Whether looking found the answer, and how often it looked."""
        self.comes_at, self.looks = self.at + answered_after_s, 0
        return self.lookout.look(), self.looks


def test_an_answer_in_time_is_found_without_sleeping():
    scene = Scene()
    for _ in range(3):
        found, looks = scene.ask(60e-6)
        assert found
        assert 60 <= looks <= 62


def test_it_looks_for_a_bounded_time():
    scene = Scene()
    found, looks = scene.ask(1.0)
    assert not found
    assert looks <= MOST_S / STEP_S + 2


def test_after_looks_in_vain_ever_more_answers_are_slept_for():
    scene = Scene()
    looked = [n for n in range(400) if scene.ask(1.0)[1]]
    gaps = [after - before for before, after in pairwise(looked)]
    assert gaps[:6] == [2, 4, 8, 16, 32, 64]
    assert set(gaps[6:]) == {LEFT_OUT_MOST + 1}


def test_one_late_answer_costs_the_next_one_its_look_and_no_other():
    scene = Scene()
    assert scene.ask(60e-6)[0]
    assert not scene.ask(1.0)[0]
    assert scene.ask(60e-6) == (False, 0)
    assert scene.ask(60e-6)[0]
    assert not scene.ask(1.0)[0]
    assert scene.ask(60e-6) == (False, 0)  # the success in between counts: only one is passed
    assert scene.ask(60e-6)[0]


def test_it_stops_when_others_want_the_processor():
    scene = Scene()
    scene.step_s = 2 * STEP_MAX_S
    found, looks = scene.ask(3 * STEP_MAX_S)
    assert not found
    assert looks == 2
    scene.step_s = STEP_S
    assert [scene.ask(60e-6)[0] for _ in range(LEFT_TO_OTHERS + 1)].index(True) == LEFT_TO_OTHERS


def test_others_that_bring_the_answer_are_no_reason_to_stop():
    scene = Scene()
    scene.step_s = 2 * STEP_MAX_S
    assert scene.ask(STEP_MAX_S) == (True, 2)
    scene.step_s = STEP_MAX_S / 4
    assert scene.ask(60e-6)[0], "they had the processor, each for a short time"
    assert scene.ask(60e-6)[0]


class Loop:
    """A loop with nothing to do but its lookout."""

    def __init__(self) -> None:
        self.at = 0.0
        self.step_s = STEP_S
        self.due: list[Callable[[], None]] = []
        self.turns = 0
        self.lookout = LoopLookout(lambda: self.at, self.due.append, self.give_way)

    def give_way(self) -> None:
        self.at += self.step_s

    def ask(self, next_after_s: float, *, work_s: float = 0.0) -> int:
        """A request, the work that it makes, and the turns without sleep until the next one
        comes."""
        self.lookout.heard(MOST_S)
        self.at += work_s
        until, turns = self.at + next_after_s, 0
        while self.due and self.at < until:
            self.due.pop()()
            turns += 1
        self.at = max(self.at, until)
        return turns


def test_a_loop_does_not_sleep_while_requests_follow_each_other():
    loop = Loop()
    for _ in range(20):
        assert loop.ask(50e-6) in (50, 51)
        assert loop.due


def test_the_work_of_a_request_is_no_part_of_the_time_to_look():
    loop = Loop()
    for _ in range(20):
        assert loop.ask(50e-6, work_s=3 * MOST_S) in (50, 51)
    assert 100 <= loop.ask(1.0, work_s=3 * MOST_S) <= 102


def test_a_loop_sleeps_when_no_request_follows():
    loop = Loop()
    assert 100 <= loop.ask(1.0) <= 102
    assert not loop.due


def test_a_loop_looks_ever_less_often_when_no_request_follows():
    loop = Loop()
    looked = [n for n in range(400) if loop.ask(1.0)]
    gaps = [after - before for before, after in pairwise(looked)]
    assert gaps[:6] == [2, 4, 8, 16, 32, 64]
    assert set(gaps[6:]) == {LEFT_OUT_MOST + 1}


def test_a_loop_that_looks_again_with_success_leaves_out_one_only():
    loop = Loop()
    for _ in range(4):
        loop.ask(1.0)
    while not loop.ask(50e-6):
        pass
    assert loop.ask(50e-6)
    assert loop.ask(1.0)  # in vain, after a success
    assert not loop.ask(50e-6)
    assert loop.ask(50e-6)


def test_a_loop_sleeps_when_others_want_the_processor():
    loop = Loop()
    loop.step_s = 2 * STEP_MAX_S
    assert loop.ask(1.0) == 2  # the second one tells that they brought nothing
    assert not loop.due
    loop.step_s = STEP_S
    turns = [loop.ask(50e-6) for _ in range(LEFT_TO_OTHERS + 1)]
    assert not any(turns[:-1])
    assert turns[-1]


def test_a_loop_looks_on_if_others_brought_what_it_waits_for():
    loop = Loop()
    loop.step_s = 2 * STEP_MAX_S
    for _ in range(3):
        assert loop.ask(STEP_MAX_S) == 1  # a request comes with the turn in which they were there
    loop.step_s = STEP_S
    assert loop.ask(50e-6) in (50, 51)


@pytest.mark.parametrize(("micros", "kept_awake"), [(100, [100e-6, 100e-6]), (0, [])])
def test_a_request_keeps_the_loop_awake_for_the_next_one(
    tmp_path: Path, micros: int, kept_awake: list[float]
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, look_micros=micros))
        found: list[float] = []
        runtime.stay_awake = found.append  # type: ignore[method-assign]  # the loop is the test's
        client = await connected(runtime, broker)
        await send(client, b"one")
        await send(client, b"two")
        assert found == kept_awake
        await broker.close()

    run(body)


def test_a_group_that_waits_for_copies_stays_awake_for_longer(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        settings = config(tmp_path / "m", role="SYNC_MASTER", in_sync_replicas=2, look_micros=100)
        master = await started(runtime, settings)
        slave = await started(runtime, slave_config(tmp_path / "s", master, look_micros=100))
        await until(lambda: master.context.copies_in_sync() == 2)
        found: list[float] = []
        runtime.stay_awake = found.append  # type: ignore[method-assign]  # the loop is the test's
        client = await connected(runtime, master)
        assert (await send(client, b"one")).code == 0
        assert set(found) == {250e-6}
        assert len(found) >= 3  # for the request, the part of the log and its report
        await slave.close()
        await master.close()

    run(body)


def test_a_broker_with_synchronous_flush_stays_awake_for_longer(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        settings = config(tmp_path, flush_disk_type="SYNC_FLUSH", look_micros=100)
        broker = await started(runtime, settings)
        found: list[float] = []
        runtime.stay_awake = found.append  # type: ignore[method-assign]  # the loop is the test's
        client = await connected(runtime, broker)
        assert (await send(client, b"one")).code == 0
        assert found == [600e-6, 600e-6]  # for the request, and after its answer
        await broker.close()

    run(body)


def test_a_slave_stays_awake_for_the_next_part_of_the_log(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(runtime, config(tmp_path / "m", look_micros=0))
        slave = await started(runtime, slave_config(tmp_path / "s", master, look_micros=100))
        found: list[float] = []
        runtime.stay_awake = found.append  # type: ignore[method-assign]  # the loop is the test's
        client = await connected(runtime, master)
        assert (await send(client, b"one")).code == 0
        await until(lambda: slave.store.watermarks.appended == master.store.watermarks.appended > 0)
        assert set(found) == {100e-6}
        await slave.close()
        await master.close()

    run(body)
