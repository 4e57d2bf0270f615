"""Nothing of a client ends in silence: what no call can raise is told to the application."""

import asyncio
import itertools
import logging
import random
import re
import threading
from pathlib import Path

import client_fakes as fakes
import pytest
from saturnmq.client import blocking
from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.producer.producer import Producer
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.runtime.errors import SaturnError, StoreDamaged, TaskFailed
from saturnmq.runtime.supervision import Supervisor

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer, Admin])
def test_every_client_tells_its_application_and_its_log_what_no_call_can_raise(kind, caplog):
    async def main():
        told = []
        client = kind(nameservers=NOBODY, on_error=told.append, **_group(kind))
        problem = StoreDamaged("no call waits for this")
        client.core.report_error(problem)
        assert told == [problem]

    asyncio.run(main())
    assert [r.levelno for r in caplog.records if "no call waits" in r.message] == [logging.ERROR]


def _group(kind):
    return {} if kind is Admin else {"group": "somebody"}


@pytest.mark.parametrize("failure", [ValueError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_what_on_error_itself_raises_is_logged_and_stops_neither_others_nor_the_client(
    failure, caplog
):
    async def main():
        def bad(error):
            raise failure

        told = []
        admin = Admin(NOBODY, on_error=bad)
        Producer("somebody", core=admin.core, on_error=told.append)
        admin.core.report_error(SaturnError("first"))
        assert [str(error) for error in told] == ["first"]

    asyncio.run(main())
    assert any("on_error failed" in record.message for record in caplog.records)


def test_a_synchronous_producer_tells_on_its_own_thread():
    ready, told = threading.Event(), []

    def on_error(error):
        told.append((str(error), threading.current_thread()))
        ready.set()

    with (
        fakes.threaded("a") as cluster,
        blocking.Producer("p", cluster.address, on_error=on_error) as producer,
    ):
        engine = producer.engine
        engine.call_on_loop(lambda: engine.core.report_error(SaturnError("told")))
        assert ready.wait(5)
    ((text, thread),) = told
    assert text == "told"
    assert thread is not threading.current_thread()


class Troubled:
    """Supervised work on a simulated machine; what was told, and when the work began."""

    def __init__(self, loop):
        self.loop = loop
        self.runtime = SimRuntime(loop, SimNetwork(loop, 1), 1, "client")
        self.told = []
        self.began = []
        self.tasks = Supervisor(self.runtime, self.told.append)

    def work(self, *outcomes):
        """Work that goes through `outcomes`: what to raise, or None to return."""
        left = list(outcomes)

        async def work():
            self.began.append(round(self.loop.time(), 3))
            await asyncio.sleep(0)
            outcome = left.pop(0)
            if outcome is not None:
                raise outcome

        return work


def supervised(test):
    loop = SimLoop(random.Random(1))
    troubled = Troubled(loop)
    try:
        loop.run_until_complete(test(troubled))
        assert loop.failures == []
        assert troubled.runtime.deaths == []
    finally:
        loop.close()


FAILURES = [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_task_for_good_begins_again_after_any_failure_later_and_later_and_each_is_told(failure):
    async def test(troubled):
        task = troubled.tasks.keep(troubled.work(*[failure] * 7, None), name="the work")
        await task
        pauses = [b - a for a, b in itertools.pairwise(troubled.began)]
        assert [round(pause) for pause in pauses] == [1, 2, 4, 8, 16, 30, 30]
        assert [type(error) for error in troubled.told] == [TaskFailed] * 7
        assert {error.__cause__ for error in troubled.told} == {failure}
        assert "'the work' failed, again in 1 s" in str(troubled.told[0])

    supervised(test)


def test_a_task_that_went_well_for_long_begins_again_soon_after_a_failure():
    async def test(troubled):
        failing = troubled.work(*[ValueError()] * 8, None)

        async def work():
            if len(troubled.began) > 4:
                await troubled.runtime.sleep(100)
            await failing()

        await troubled.tasks.keep(work, name="w")
        pauses = [round(b - a) for a, b in itertools.pairwise(troubled.began)]
        assert pauses == [1, 2, 4, 8, 116, 101, 101, 101]

    supervised(test)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_task_with_an_end_is_not_repeated_and_who_waits_for_it_gets_its_error(failure):
    async def test(troubled):
        got = []
        await troubled.tasks.once(troubled.work(failure), name="w", failed=got.append)
        assert got == troubled.told
        assert (len(got), got[0].__cause__) == (1, failure)

    supervised(test)


def test_who_cancels_a_supervised_task_ends_it_and_nothing_is_told():
    async def test(troubled):
        async def work():
            await asyncio.Event().wait()

        tasks = [
            troubled.tasks.keep(work, name="at work"),
            troubled.tasks.once(work, name="at work", failed=troubled.told.append),
            troubled.tasks.keep(troubled.work(ValueError()), name="in its pause"),
        ]
        await troubled.runtime.sleep(0.5)
        troubled.told.clear()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1)
        assert all(task.cancelled() for task in tasks)
        assert troubled.told == []

    supervised(test)


def test_every_task_of_a_client_is_supervised():
    client = Path(blocking.__file__).parent
    spawns = re.compile(r"spawn\(|create_task\(")
    spawning = {path.name for path in client.glob("*.py") if spawns.search(path.read_text())}
    assert spawning == set()
