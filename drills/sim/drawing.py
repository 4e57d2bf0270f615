"""The plan of a seed, with its scenes and its rare faults.

Plan, scenes and rare faults have each a stream of random numbers, a new scene is drawn last, and a
new rare fault from a stream of its own: so the seeds that do not draw it stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

from saturnmq.drills.sim.plan import ENABLED, FAULTS, LATER, RARE, RARE_CHANCE, SimPlan
from saturnmq.drills.sim.scenes import SCENES


def draw_plan(seed: int) -> SimPlan:
    """The plan of a seed."""
    plan = SimPlan.draw(random.Random(f"{seed}/plan"))
    rng = random.Random(f"{seed}/scenes")
    drawn = frozenset(name for name in SCENES if rng.random() < ENABLED.get(name, 0.0))
    rng = random.Random(f"{seed}/rare")
    rare = [name for name in RARE if name not in LATER and rng.random() < RARE_CHANCE]
    rare += [name for name in LATER if random.Random(f"{seed}/{name}").random() < RARE_CHANCE]
    plan = plan.with_rare(rng, {name: RARE[name] for name in rare})
    return replace(plan, scenes=drawn)


def with_faults(seed: int, plan: SimPlan, names: Collection[str]) -> SimPlan:
    """The same plan without scenes, with only these faults."""
    weights = {name: weight * (name in names) for name, weight in FAULTS.items()}
    plan = replace(plan, weights=weights, rare={}, scenes=frozenset())
    rare = {name: weight for name, weight in RARE.items() if name in names}
    return plan.with_rare(random.Random(f"{seed}/rare/alone"), rare)
