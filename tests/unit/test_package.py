"""The installed package: its version and the packages that design names."""

import importlib
import re
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "name", ["protocol", "store", "nameserver", "broker", "client", "cli", "drills", "drills.sim"]
)
def test_every_folder_is_a_package(name: str) -> None:
    module = importlib.import_module(f"saturnmq.{name}")
    assert module.__doc__


def test_the_map_names_files_that_exist() -> None:
    root = Path(__file__).parents[2]
    missing = []
    for line in (root / "ARCHITECTURE.md").read_text().splitlines():
        named = re.findall(r"`([a-z_/]+(?:\.py|/))`", line)
        folder = next((name for name in named if name.endswith("/")), "")
        for name in named:
            if not any((root / place).exists() for place in (name, folder + name)):
                missing.append(name)
    assert not missing
