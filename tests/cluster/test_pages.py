"""The README, the tutorial and the how-to pages do what they say: each block is run, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_rig import check_loops
from pages_rig import ROOT, Reader, blocks, same, unseen

HOW_TO = sorted((ROOT / "docs/how-to").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "docs/tutorial.md", *HOW_TO]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    assert [block.wrong for block in blocks(page) if block.wrong] == []
    assert unseen(page) == []
    with Reader(tmp_path) as reader:
        reader.follow(page)
    for cluster in tmp_path.rglob("cluster.json"):
        check_loops(cluster.parent)


def page_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_a_block_that_is_not_run_says_why(tmp_path: Path) -> None:
    text = (
        "```\nls\n```\n\n<!-- not run: -->\n```sh\nls\n```\n\n<!-- tomorrow -->\n```sh\nls\n```\n"
    )
    wrong = [block.wrong for block in blocks(page_of(tmp_path, text))]
    assert [bool(text) for text in wrong] == [True, True, True]
    page = page_of(tmp_path, "<!-- not run: needs Docker -->\n```sh\nls\n```\n")
    assert [block.wrong for block in blocks(page)] == [""]


def test_a_block_that_would_be_passed_over_is_noticed(tmp_path: Path) -> None:
    text = "```sh\nls\n```\n\n- a point:\n\n    ```sh\n    ls\n    ```\n\n```text\n```\n"
    assert unseen(page_of(tmp_path, text)) == [7, 9]


@pytest.mark.parametrize(
    ("told", "seen", "is_same"),
    [
        ("2 of 2 messages acknowledged", "2 of 2 messages acknowledged\n", True),
        ("2 of 2 messages acknowledged", "1 of 2 messages acknowledged\n", False),
        ("127.0.0.1:9876 is up", "127.0.0.1:24001 is up\n", True),
        ("┃ master ┃ 1,234 ┃", "│ master  │ 99,999 │\n", True),
        ("first\n...\nlast", "first\nmiddle\nlast\n", True),
        ("first\n...\nlast", "first\nmiddle\n", False),
        ("...\nlast\n...", "first\nlast\n", True),
        ("last", "first\nlast\n", False),
        ("", "anything", False),
    ],
)
def test_what_a_page_tells_of_the_output_is_compared(told: str, seen: str, is_same: bool) -> None:
    assert same(told, seen) is is_same


@pytest.mark.parametrize(
    "text",
    [
        "```sh\nfalse\n```\n",
        "<!-- status 1 -->\n```sh\ntrue\n```\n",
        "```sh\necho one\n```\n\n```text\ntwo\n```\n",
        "```python\nraise SystemExit(3)\n```\n",
    ],
)
def test_a_page_that_says_what_is_not_so_is_noticed(text: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("pages_rig.ROOT", tmp_path)
    monkeypatch.delenv("REWRITE_PAGES", raising=False)
    page = page_of(tmp_path, text)
    with Reader(tmp_path) as reader, pytest.raises(AssertionError):
        reader.follow(page)
