"""Rules of commit messages (CONTRIBUTING.md), checked over the last commits that this clone has."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAST = 50
SUBJECT_MAX = 100
# From the first second of 2026-11-24 (UTC) on, by the author's clock. Older commits may be shorter.
BODIES_SINCE = 1_795_478_400
CODE = (".py", ".pyx", ".pyi", ".pxd", ".c", ".h")
BESIDE = {"benchmarks", "docs", "examples", "tests", "tools"}  # no folder of a package


@dataclass
class CommitMessage:
    written: int  # seconds since 1970
    parents: list[str]  # none: a root, or the border of a shallow clone, whose files are unknown
    subject: str
    body: str
    files: list[str]

    @property
    def touches_code(self) -> bool:
        return any(file.endswith(CODE) and file.split("/")[0] not in BESIDE for file in self.files)


def wrong_with(commit: CommitMessage) -> str:
    """Why the message breaks the rules; empty if it does not."""
    if not re.match(r"[^:]+: \S", commit.subject):
        return "the subject is not `area: what`"
    if commit.written < BODIES_SINCE:
        return ""
    if len(commit.subject) > SUBJECT_MAX:
        return f"the subject has {len(commit.subject)} characters, {SUBJECT_MAX} are allowed"
    if commit.parents and commit.touches_code and not commit.body:
        return "it changes code and has no body: say why"
    return ""


def last_commits() -> list[CommitMessage]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this is no clone with a history")
    form = "%x1e%at%x1f%P%x1f%s%x1f%b%x1f"
    command = [git, "log", f"-{LAST}", "--no-merges", "--name-only", f"--format={form}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"git cannot read this clone: {done.stderr.strip()}")
    found = []
    for entry in done.stdout.split("\x1e")[1:]:
        written, parents, subject, body, files = entry.split("\x1f")
        commit = CommitMessage(
            int(written), parents.split(), subject, body.strip(), files.strip().splitlines()
        )
        found.append(commit)
    return found


def test_the_last_commits_say_what_and_why() -> None:
    commits = last_commits()
    assert commits
    assert {commit.subject: why for commit in commits if (why := wrong_with(commit))} == {}


def message(subject: str, body: str, *files: str, written: int = BODIES_SINCE) -> CommitMessage:
    return CommitMessage(written, ["0" * 40], subject, body, list(files))


def test_a_message_without_an_area_or_a_reason_is_found() -> None:
    code, page = "store/log/writer.py", "docs/limits.md"
    assert wrong_with(message("fix the writer", "It lost a byte.", code)) != ""
    assert wrong_with(message("store: the writer counts BLANKs", "", code)) != ""
    assert wrong_with(message("store: the writer counts BLANKs", "They took room.", code)) == ""
    assert wrong_with(message("docs: limits of a peer", "", page)) == ""
    assert wrong_with(message("tests: a lie", "", "tests/unit/test_store.py")) == ""
    assert wrong_with(message("store: " + "x" * 100, "Because.", code)) != ""


def test_older_commits_and_the_border_of_a_shallow_clone_need_no_body() -> None:
    code = "store/log/writer.py"
    assert wrong_with(message("store: older", "", code, written=BODIES_SINCE - 1)) == ""
    border = message("store: the border", "", code, "docs/limits.md")
    border.parents = []
    assert wrong_with(border) == ""
