"""How long a loop stands still, by a scripted clock; and on a real one, by what it tells."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any, cast

import pytest
from broker_rig import ask, config, connected, run, started, until
from saturnmq.protocol.codes import RequestCode
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.loop_watch import EVERY_S, LONG_S, TELL_S, LoopWatch, long_stops_in
from saturnmq.runtime.native import NativeRuntime


class Scripted:
    """A clock whose sleeps take what the script says: so much longer, so much of it computing."""

    def __init__(self, *stops: tuple[float, float]) -> None:
        self._stops = list(stops)
        self._now = self._used = 0.0

    def monotonic(self) -> float:
        return self._now

    def processor_time(self) -> float:
        return self._used

    async def sleep(self, seconds: float) -> None:
        assert seconds == EVERY_S
        if not self._stops:
            raise asyncio.CancelledError
        late, used = self._stops.pop(0)
        self._now += seconds + late
        self._used += used


def watched(*stops: tuple[float, float]) -> LoopWatch:
    watch = LoopWatch(cast(Runtime, Scripted(*stops)))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch.run())
    return watch


def test_the_longest_stop_counts_and_of_it_what_was_computed() -> None:
    watch = watched((0.0, 0.01), (0.3, 0.1), (0.2, 0.2), (0.05, 5.0))
    assert watch.longest_s == pytest.approx(0.3)
    assert watch.longest_busy_s == pytest.approx(0.2), "no more than the stop took"


def test_long_stops_are_told_once_in_a_while_with_how_many_there_were(caplog) -> None:
    caplog.set_level(logging.WARNING)
    watched((LONG_S - 0.001, 0.0))
    assert not caplog.records
    watched((LONG_S + 0.05, 0.09), (0.2, 0.0), (0.2, 0.0), (TELL_S, 0.05))
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop stood still for 150 ms, 90 of them processor time; the last request was "
        "one of code 0; 1 such stops since the last line",
        f"the event loop stood still for {TELL_S * 1000:.0f} ms, 50 of them processor time; the "
        "last request was one of code 0; 3 such stops since the last line",
    ]


def test_each_stop_of_much_processor_time_is_told_and_found_in_the_log(caplog) -> None:
    caplog.set_level(logging.WARNING)
    watched((0.3, 0.0), (0.2, LONG_S), (0.2, LONG_S - 0.001), (5.0, 0.16))
    assert long_stops_in(caplog.text) == [100, 160]


def test_a_broker_tells_its_longest_stop(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        watch = asyncio.ensure_future(broker.loop_watch.run())
        client = await connected(runtime, broker)
        assert (await figures(client))["longestBusyStopMs"] < 150
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        await until(lambda: broker.loop_watch.longest_s >= 0.15)
        told = await figures(client)
        assert told["longestStopMs"] >= told["longestBusyStopMs"] >= 150
        watch.cancel()
        client.close()
        await broker.close()

    async def figures(client: Any) -> dict[str, int]:
        reply = await ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = json.loads(reply.body)["table"]
        return {name: int(table[name]) for name in ("longestStopMs", "longestBusyStopMs")}

    run(body)
