"""The machine of replication in small worlds (`machine_world.py`): every order of events of a few
nodes up to a depth, and long random ones. `World.act` raises Broken when a promise is broken."""

from __future__ import annotations

from typing import Any

import pytest
from machine_mutants import BROKEN, Mutant
from machine_promises import Broken
from machine_search import in_step, search, wander
from machine_world import World

STATES = 1_200  # of each exhaustive search
RUNS, STEPS = 5, 300  # of each random one


@pytest.mark.parametrize(
    "options",
    [
        {"kill": 1, "promote": 1, "write": 1},
        {"die": 1, "promote": 1, "write": 1},
        {"isolate": 1, "promote": 1, "write": 1},
        {"kill": 2, "wipe": 1},
        {"slaves": 2, "kill": 1, "promote": 1, "write": 1},
        {"slaves": 2, "kill": 1, "promote": 1, "slow": True},
        {"slaves": 2, "fail": 1, "promote": 1},
    ],
    ids=str,
)
def test_no_order_of_events_breaks_a_promise(options: dict[str, Any]) -> None:
    assert search(in_step(**options), STATES) >= STATES


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("slaves", [1, 2])
@pytest.mark.parametrize(
    "trouble",
    [
        *("abandon", "break", "copy", "damage", "die", "fail", "fault", "force", "hours", "late"),
        *("lose_front", "lose_log", "power", "stale", "wipe"),
    ],
)
def test_no_long_run_breaks_a_promise(trouble: str, slaves: int, slow: bool) -> None:
    usual = {"write": 8, "kill": 4, "stop": 2, "promote": 3, "isolate": 3, "pause": 1, "forget": 1}
    acked = 0
    for seed in range(RUNS):
        sync_flush = seed % 2 == 0
        world = World(slaves, 2, sync_flush=sync_flush, slow=slow, **usual, **{trouble: 3})
        wander(world, seed, STEPS)
        acked += len(world.promises.acked)
    assert acked >= RUNS


@pytest.mark.parametrize("slow", [False, True])
def test_without_copies_no_restart_loses_a_message(slow: bool) -> None:
    acked = 0
    for seed in range(RUNS):
        world = World(1, 1, slow=slow, write=6, kill=3, stop=2, pause=1, fail=1, promote=1)
        wander(world, seed, STEPS)
        acked += len(world.promises.acked)
    assert acked >= RUNS


def test_no_order_of_events_breaks_a_promise_above_a_promotion_that_did_not_come() -> None:
    world = in_step(slaves=2, slow=True, isolate=1, promote=1, abandon=1, hours=1, write=3)
    for action in [("isolate", "a"), ("promote", "b"), ("operate",), ("operate",), ("abandon",)]:
        world.act(action)
    for number in [*world.links]:
        world.act(("idle", number))
    world.act(("heal",))
    for action in [("dial", "b"), ("down", 1), ("up", 1), ("hours",)]:
        world.act(action)
    assert search(world, STATES) >= STATES


@pytest.mark.parametrize(("mutant", "options"), BROKEN, ids=[x.name for x, _ in BROKEN])
def test_a_broken_machine_is_found(
    mutant: Mutant, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.apply(monkeypatch)
    with pytest.raises(Broken):
        search(in_step(**options), STATES)
