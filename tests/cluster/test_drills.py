"""Drills with real processes: one in every run of the suite, all of them with SATURNMQ_DRILLS=1.

`saturnmq drill all --seeds 1-10 --mode each` runs more.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial

import pytest
from saturnmq.cli import drill as commands
from saturnmq.drills import hostile
from saturnmq.drills.failover import clock, network
from saturnmq.drills.failover.drill import Drill, DrillRun
from saturnmq.drills.failover.history import History
from saturnmq.drills.failover.html import page
from saturnmq.drills.failover.plans import DRILLS
from saturnmq.drills.failover.processes import Processes
from saturnmq.drills.failover.report import DrillsReport
from saturnmq.drills.failover.run import HISTORY_FILE, MODES, run_drill
from saturnmq.drills.semantics import kinds
from saturnmq.drills.semantics import load as semantics_load
from saturnmq.drills.semantics.drill import live as live_semantics

CLOCKS = """
import time
from saturnmq.runtime import native

async def main(runtime):
    print(time.time(), runtime.now_ms() / 1000, runtime.monotonic())

native.run(main)
"""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
EVERYTHING = os.environ.get("SATURNMQ_DRILLS") == "1"
ELECTED = (
    "kill-master", "fail-over", "pause-master", "isolate-master", "rolling-restart",
    "rolling-upgrade", "power-cut", "random-mix",
)  # fmt: skip
long = pytest.mark.skipif(not EVERYTHING, reason="takes minutes: set SATURNMQ_DRILLS=1")


async def kill_master(run: DrillRun) -> None:
    victim = run.master(run.group())
    await run.kill(victim)
    await run.sleep(2.0)
    await run.restart(victim)


async def destroy_a_group(run: DrillRun) -> None:
    group = run.group()
    names = [run.master(group), run.slave(group)]
    await run.kill(*names)
    for name in names:
        await run.wipe(name)
    await run.restart(*names)


def test_a_killed_master_loses_nothing_and_others_go_on(tmp_path):
    drill = Drill("kill-master", "in short", kill_master)
    report = run_drill(drill, MODES["sync"], 1, keep=tmp_path)
    assert report.verdict.violations == []
    assert report.verdict.counts["acknowledged"] > 500
    (effect,) = report.effects
    assert effect.what.startswith("kill -9 master-")
    assert effect.send_s is not None
    assert effect.stall_s is not None
    assert effect.read_s is not None, "old messages could be read from the slave"
    with open(report.kept / HISTORY_FILE) as lines:
        assert sum(event.kind == "ok" for event in History.read(lines).events) > 500
    html = page(DrillsReport([report]))
    assert html.count("<svg") == 3
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", html), "it needs nothing else"


def semantics(messages: int, kill_s: float) -> Drill:
    live = partial(live_semantics, messages=messages, kill_s=kill_s)
    return replace(DRILLS["semantics"], live=live)


def test_every_kind_of_message_keeps_its_promise_while_masters_are_killed(tmp_path):
    report = run_drill(semantics(3000, 3.0), MODES["sync"], 1, keep=tmp_path)
    assert report.verdict.violations == []
    counts = report.verdict.counts
    assert counts["acknowledged"] >= 3000
    assert counts["masters killed"] >= 1
    assert counts["slaves promoted"] >= 1
    for count in ("retries", "dead letters", "recalled", "pop: left out once"):
        assert counts[count] > 0, f"no {count}"
    assert counts["deals: told to commit"] > counts["deals: told to rollback"] > 0
    with open(report.kept / HISTORY_FILE) as lines:
        assert sum(event.kind == "ok" for event in History.read(lines).events) >= 3000


@long
def test_broken_promises_of_kinds_of_messages_are_found(tmp_path, monkeypatch):
    """The drill itself is on trial: requests say something else than their senders believe."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(
        semantics_load.STATES, kinds.ROLLBACK, semantics_load.STATES[kinds.COMMIT]
    )  # fmt: skip
    sooner = semantics_load.deliver_after
    monkeypatch.setattr(semantics_load, "deliver_after", lambda m, s: sooner(m, s / 2))
    receive = semantics_load.aio.SimpleConsumer.receive

    def briefly(consumer, most, *, invisible_s, wait_s):
        return receive(consumer, most, invisible_s=invisible_s / 2, wait_s=wait_s)

    monkeypatch.setattr(semantics_load.aio.SimpleConsumer, "receive", briefly)
    report = run_drill(semantics(1000, 60.0), MODES["async"], 1)
    names = {text.split(":")[0] for text in report.verdict.violations}
    assert names == {
        "I13 not committed, and delivered",
        "I13 not committed, and stored",
        "I14 early",
        "I18 given out twice within its invisible time",
    }


@long
def test_lost_stores_are_found(tmp_path, monkeypatch):
    """The drill itself is on trial: messages that were acknowledged are really gone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report = run_drill(Drill("destroy", "", destroy_a_group), MODES["sync"], 1)
    assert any(text.startswith("I1 lost") for text in report.verdict.violations)
    assert report.kept is not None
    assert (report.kept / HISTORY_FILE).exists(), "what shows it is kept"
    assert "--seed 1 --mode sync" in report.again


@long
@pytest.mark.timeout(900)  # pipeline starts Spark seven times at least
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", list(DRILLS))
def test_every_drill_in_every_mode_keeps_its_promise(name, mode):
    report = run_drill(DRILLS[name], MODES[mode], 1)
    if report.skipped:
        pytest.skip(report.skipped)
    assert report.verdict.violations == [], f"{report.again}; kept: {report.kept}"


@long
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("name", ELECTED)
def test_drills_keep_their_promise_where_masters_are_elected(name, mode):
    report = run_drill(DRILLS[name].with_elections(), MODES[mode], 1)
    if report.skipped:
        pytest.skip(report.skipped)
    assert report.verdict.violations == [], f"{report.again}; kept: {report.kept}"


class Elsewhere(Processes):
    """A machine on which nothing can be parted."""

    def why_not(self, feature):
        return "no namespaces here" if feature == "partition" else super().why_not(feature)


def test_a_drill_that_the_machine_cannot_run_is_skipped_with_the_reason():
    report = run_drill(DRILLS["partition-slave"], MODES["sync"], 1, kind=Elsewhere)
    assert (report.skipped, report.ok) == ("no namespaces here", True)
    assert DrillsReport([report]).to_json()["ok"] is False, "nothing was tried"


def test_a_drill_about_lost_disks_is_skipped_where_nothing_has_two_copies():
    report = run_drill(DRILLS["wipe-master"], MODES["sync-flush"], 1)
    assert report.skipped == "what has one copy is lost with its disk"


def test_the_list_names_every_drill(capsys):
    commands.list_drills(as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["drill"] for row in rows] == [*DRILLS, hostile.NAME]


@pytest.mark.skipif(clock.why_not() is not None, reason=str(clock.why_not()))
@pytest.mark.parametrize("shift", [-3600.0, -60.0, 3600.0])
def test_a_moved_clock_moves_the_wall_clock_of_a_node_and_not_its_steady_clock(tmp_path, shift):
    clocks = clock.Clocks(tmp_path, ["node"])
    clocks.shift("node", shift)
    wall, steady = time.time(), time.monotonic()
    command = [*clocks.prefix("node"), sys.executable, "-c", CLOCKS]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    python_wall, node_wall, node_steady = map(float, done.stdout.split())
    assert python_wall == pytest.approx(wall + shift, abs=30)
    assert node_wall == pytest.approx(wall + shift, abs=30)
    assert node_steady == pytest.approx(steady, abs=30)


@pytest.mark.skipif(network.why_not() is not None, reason=str(network.why_not()))
def test_networks_beside_each_other_are_left_alone():
    with network.network(["a"]) as first:
        for _ in range(30):
            assert network.why_not() is None
        first.cut("a", "clients")


@pytest.mark.skipif(network.why_not() is not None, reason=str(network.why_not()))
def test_namespaces_vanish_with_their_drill():
    def interrupted() -> None:
        with network.network(["a", "b"]) as made:
            made.cut("a", "b")
            raise KeyboardInterrupt

    def ours() -> list[str]:  # others may run drills beside us
        return [name for name in os.listdir("/run/netns") if f"sq{os.getpid() % 100_000}x" in name]

    with network.network(["a"]):
        assert len(ours()) == 2, "a node and the hub"
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ours() == []
