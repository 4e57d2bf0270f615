"""The installed package: its version and the packages that design names."""

import importlib

import pytest


@pytest.mark.parametrize(
    "name", ["protocol", "store", "nameserver", "broker", "client", "cli", "drills", "drills.sim"]
)
def test_every_folder_is_a_package(name: str) -> None:
    module = importlib.import_module(f"saturnmq.{name}")
    assert module.__doc__
