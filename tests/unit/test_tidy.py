"""Rules of the source tree that no linter knows (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "runtime", "protocol", "store", "nameserver", "broker", "client", "pipeline", "cli", "drills",
)  # fmt: skip
# The blocking and the asynchronous class of one name are two faces of one thing.
TWO_FACES = {"Admin", "Producer", "PullConsumer", "PushConsumer"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert len(places) > 400
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == TWO_FACES, {k: v for k, v in twice.items() if k not in TWO_FACES}
    for found in twice.values():
        assert len(found) == 2
        assert any(path.startswith("client/blocking") for path in found)


def test_the_glossary_has_each_term_once_and_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    terms = re.findall(r"^\| ([^|]+?) \| [^|]+ \| [^|]* \|$", text, re.MULTILINE)
    words = [word for term in terms if term != "term" for word in term.split(", ")]
    assert len(words) > 70
    assert sorted(words) == sorted(set(words))
    paths = re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w/]*(?:\.py)?)`", text)
    assert len(paths) > 50
    assert [path for path in paths if not (ROOT / path).exists()] == []
