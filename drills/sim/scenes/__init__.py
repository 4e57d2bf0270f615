"""The scenes: actions of operators, clocks and applications in a simulated cluster, one module
each."""

from saturnmq.drills.sim.scenes.checking_types import CheckingTypes
from saturnmq.drills.sim.scenes.delaying import ClockSteps, Delaying
from saturnmq.drills.sim.scenes.forgetting import Forgetting
from saturnmq.drills.sim.scenes.growing import Growing
from saturnmq.drills.sim.scenes.polling import Polling
from saturnmq.drills.sim.scenes.popping import Popping
from saturnmq.drills.sim.scenes.recreating import Recreating
from saturnmq.drills.sim.scenes.replying import Replying
from saturnmq.drills.sim.scenes.resending import Resending
from saturnmq.drills.sim.scenes.resetting import Resetting
from saturnmq.drills.sim.scenes.retrying import Misbehaving, Retrying
from saturnmq.drills.sim.scenes.scene import Scene
from saturnmq.drills.sim.scenes.shrinking import Shrinking
from saturnmq.drills.sim.scenes.spreading import Spreading
from saturnmq.drills.sim.scenes.taking_long import TakingLong
from saturnmq.drills.sim.scenes.timing import Timing
from saturnmq.drills.sim.scenes.transacting import Transacting

__all__ = ["SCENES", "Scene"]

SCENES: dict[str, type[Scene]] = {
    "clocks": ClockSteps,
    "delaying": Delaying,
    "growing": Growing,
    "misbehaving": Misbehaving,
    "recreating": Recreating,
    "retrying": Retrying,
    "shrinking": Shrinking,
    "taking-long": TakingLong,
    "spreading": Spreading,
    "transacting": Transacting,
    "popping": Popping,
    "timing": Timing,
    "replying": Replying,  # new ones come last: those before are drawn as they were
    "polling": Polling,
    "resetting": Resetting,
    "resending": Resending,
    "checking-types": CheckingTypes,
    "forgetting": Forgetting,
}
