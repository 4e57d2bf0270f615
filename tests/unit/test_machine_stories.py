"""Stories of groups of nodes, one in each file of `machine/` (`machine_stories.py` says how they
are read). After a change that is meant, `REWRITE_STORIES=1 pytest` writes down what comes of them
now: read the difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from machine_mutants import TOLD, Mutant
from machine_promises import Broken
from machine_stories import play

FOLDER = Path(__file__).parent / "machine"
STORIES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_story_goes_as_it_is_told(story: Path) -> None:
    told = story.read_text()
    if os.environ.get("REWRITE_STORIES"):
        story.write_text(play(told))
    else:
        assert play(told) == told


@pytest.mark.parametrize(("mutant", "story"), TOLD, ids=[mutant.name for mutant, _ in TOLD])
def test_a_broken_machine_tells_another_story(
    mutant: Mutant, story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = (FOLDER / f"{story}.txt").read_text()
    mutant.apply(monkeypatch)
    try:
        assert play(told) != told
    except Broken:
        return
