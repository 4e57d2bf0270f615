"""The installed package: its version and the packages that design names."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "protocol",
        "store",
        "gateway",
        "nameserver",
        "broker",
        "client",
        "cli",
        "drills",
        "drills.sim",
    ],
)
def test_every_folder_is_a_package(name: str) -> None:
    module = importlib.import_module(f"saturnmq.{name}")
    assert module.__doc__


def test_every_package_of_the_tree_is_installed() -> None:
    """A checkout that is run in place would not notice."""
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = set(settings["package-dir"].values())
    assert {settings["package-dir"][name] for name in settings["packages"]} == folders
    tops = {path.split("/")[0] for path in folders}
    there = {
        str(file.parent.relative_to(root))
        for top in tops
        for file in root.glob(f"{top}/**/__init__.py")
    }
    assert there - folders == set()


def test_the_image_is_built_from_every_package() -> None:
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.split("/")[0] for path in settings["package-dir"].values()}
    kept = set(re.findall(r"^!(\w+)$", (root / ".dockerignore").read_text(), re.MULTILINE))
    assert folders - kept == set()


def test_the_map_names_files_that_exist() -> None:
    root = Path(__file__).parents[2]
    missing = []
    for line in (root / "ARCHITECTURE.md").read_text().splitlines():
        named = re.findall(r"`([a-z0-9_/]+(?:\.py|/))`", line)
        folder = next((name for name in named if name.endswith("/")), "")
        for name in named:
            if not any((root / place).exists() for place in (name, folder + name)):
                missing.append(name)
    assert not missing


def test_each_row_of_what_was_withstood_names_a_test() -> None:
    text = (Path(__file__).parents[2] / "docs" / "withstood.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    without = [row for row in rows if "::test_" not in row]
    assert len(rows) > 30
    assert all(row.endswith("| shown by |") for row in without)
