"""The trace of an event loop finds what ran, for how long and where."""

import asyncio
import gc
import json
import threading
import time
from pathlib import Path

import pytest
from saturnmq.cli.bench_trace import long_ones
from saturnmq.runtime.loop_trace import GARBAGE, LATE, LONG_S, LoopTrace, TracedRuntime
from saturnmq.runtime.native import run


class Clock:
    def __init__(self) -> None:
        self.at = self.used = 100.0

    def now(self) -> float:
        return self.at

    def processor(self) -> float:
        return self.used

    def work(self, seconds: float, waits: float = 0.0) -> None:
        self.at += seconds + waits
        self.used += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trace(clock: Clock) -> LoopTrace:
    return LoopTrace(clock.now, clock.processor)


def test_a_run_is_counted_and_a_long_one_is_kept(clock: Clock, trace: LoopTrace) -> None:
    trace.run("short", clock.work, 0.0005)
    trace.run("long", clock.work, 0.002, 0.01)
    assert trace.totals["short"] == [1, pytest.approx(0.0005), pytest.approx(0.0005)]
    (kept,) = trace.long
    assert kept["what"] == "long"
    assert kept["at"] == pytest.approx(100.0005)
    assert (kept["took"], kept["used"]) == (pytest.approx(0.012), pytest.approx(0.002))


def test_a_run_inside_another_belongs_to_that_one(clock: Clock, trace: LoopTrace) -> None:
    trace.run("outer", lambda: trace.run("inner", clock.work, 0.003))
    assert list(trace.totals) == ["outer"]
    assert [each["what"] for each in trace.long] == ["outer"]


def test_a_run_that_fails_is_counted(clock: Clock, trace: LoopTrace) -> None:
    with pytest.raises(ZeroDivisionError):
        trace.run("fails", lambda: 1 // 0)
    trace.run("next", clock.work, 0.001)
    assert list(trace.totals) == ["fails", "next"]


def test_a_late_timer_counts_from_the_end_of_the_last_run(clock: Clock, trace: LoopTrace) -> None:
    due = clock.at + 0.001
    trace.run("long", clock.work, 0.05)
    trace.late(due)
    assert LATE not in trace.totals, "the run before made it late"
    clock.at += 0.02
    trace.late(due)
    assert trace.totals[LATE] == [1, pytest.approx(0.02), pytest.approx(0.02)]


def test_the_second_thread_sees_where_a_long_run_is(clock: Clock, trace: LoopTrace) -> None:
    def look() -> None:
        thread = threading.Thread(target=trace.look)
        thread.start()
        thread.join()

    def dwell() -> None:
        look()  # the run is short so far
        clock.work(LONG_S)
        look()

    trace.run("long", dwell)
    (kept,) = trace.long
    assert len(kept["places"]) == 1
    assert "test_loop_trace.look:" in kept["places"][0]
    trace.run("other", clock.work, 0.002)
    assert trace.long[-1]["places"] == []


def test_a_traced_runtime_times_tasks_callbacks_timers_reads_and_garbage(tmp_path: Path) -> None:
    class Echo(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            heard.set_result(data)

    async def main(runtime: TracedRuntime) -> None:
        nonlocal heard
        heard = asyncio.get_running_loop().create_future()

        async def work() -> str:
            await runtime.sleep(0)
            until = time.monotonic() + 3 * LONG_S
            while time.monotonic() < until:
                pass
            return "done"

        assert await runtime.spawn(work(), name="worker") == "done"
        called = asyncio.Event()
        runtime.call_soon(called.set)
        await called.wait()
        later = asyncio.Event()
        runtime.call_later(0.001, later.set)
        await later.wait()
        listener = await runtime.listen("127.0.0.1", 0, Echo)
        host, _, port = listener.address.rpartition(":")
        transport = await runtime.connect(host, int(port), Echo())
        transport.write(b"bytes")
        assert await heard == b"bytes"
        transport.close()
        listener.close()
        gc.collect()
        failing = runtime.spawn(fails(), name="failing")
        failing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await failing
        runtime.trace.save(tmp_path / "trace.json")

    async def fails() -> None:
        await asyncio.Event().wait()

    heard: asyncio.Future[bytes]
    before = list(gc.callbacks)
    run(main, TracedRuntime)  # type: ignore[arg-type]  # it makes one of these
    assert gc.callbacks == before
    trace = json.loads((tmp_path / "trace.json").read_text())
    totals = trace["totals"]
    assert totals["task worker"][0] == 2  # steps
    assert totals["Event.set"][0] == 2
    assert totals["Echo.data_received"][0] == 1
    assert totals[f"{GARBAGE}, generation 2"][0] >= 1
    assert any(each["what"] == "task worker" for each in trace["long"])


def test_the_pauses_of_a_time_are_told_by_kind_and_place() -> None:
    def one(at: float, what: str, took: float, *places: str) -> dict[str, object]:
        return {"at": at, "what": what, "took": took, "used": took / 2, "places": list(places)}

    long = [
        one(1.0, "turn", 0.5, "start"),
        one(5.0, "turn", 0.003, "index"),
        one(6.0, "turn", 0.004, "index", "other"),
        one(7.0, "turn", 0.002),
        one(8.0, "turn", 0.0015, "index"),
        one(9.0, "turn", 0.5, "end"),
    ]
    rows = long_ones({"long": long}, 5.0, 9.0, 0.002)
    assert [(row["times"], row["longest_ms"], row["where"]) for row in rows] == [
        (2, 4.0, "index"),
        (1, 2.0, ""),
    ]
    assert rows[0]["all_ms"] == 7.0
    assert rows[0]["processor_ms"] == 3.5
