"""Known bugs of replication, kept to be found again by the cluster simulator (fault-model §9)."""

from __future__ import annotations

from saturnmq.drills.mutants import Mutant

_ALL: tuple[Mutant, ...] = ()
MUTANTS = {mutant.name: mutant for mutant in _ALL}
