"""Stories of groups of nodes, one in each file of `machine/` (`machine_stories.py` says how they
are read). After a change that is meant, `REWRITE_STORIES=1 pytest` writes down what comes of them
now: read the difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from machine_stories import play

STORIES = sorted((Path(__file__).parent / "machine").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_story_goes_as_it_is_told(story: Path) -> None:
    told = story.read_text()
    if os.environ.get("REWRITE_STORIES"):
        story.write_text(play(told))
    else:
        assert play(told) == told
