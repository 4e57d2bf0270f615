"""What holds for every table of known bugs."""

from __future__ import annotations

from collections.abc import Mapping

from saturnmq.drills.mutants import Mutant


def assert_no_trace(mutants: Mapping[str, Mutant]) -> None:
    """Each changes something while it is active, and nothing afterwards."""
    before = {
        (patch.owner, patch.name): vars(patch.owner)[patch.name]
        for mutant in mutants.values()
        for patch in mutant.patches
    }
    for mutant in mutants.values():
        with mutant.active():
            assert any(
                vars(patch.owner)[patch.name] is not before[patch.owner, patch.name]
                for patch in mutant.patches
            )
    for (owner, name), original in before.items():
        assert vars(owner)[name] is original
