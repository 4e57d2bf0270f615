"""Every number that a node can be told has bounds, and one beyond them is refused by its name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from saturnmq.broker.config import BrokerConfig
from saturnmq.cli.main import app
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.config import StoreConfig
from typer.testing import CliRunner

NUMBERS = [
    (config, each)
    for config in (BrokerConfig, StoreConfig)
    for each in dataclasses.fields(config)
    if type(each.default) in (int, float)
]
NAMES = [each.metadata["key"] for _, each in NUMBERS]


@pytest.mark.parametrize(("config", "number"), NUMBERS, ids=NAMES)
def test_a_number_has_its_bounds(config: type[Any], number: dataclasses.Field[Any]) -> None:
    least, most = number.metadata["bounds"]
    assert least <= number.default <= most
    for beyond in (least - 1, most + 1, -(10**400), 10**400):
        with pytest.raises(ConfigError, match=rf"{number.metadata['key']} is -?\d+; it must be"):
            config(**{number.name: beyond})


def test_a_bound_is_told_when_a_broker_conf_is_read() -> None:
    with pytest.raises(ConfigError, match=r"fileReservedTime is -1; .* from 0 to 2147483647"):
        BrokerConfig.load("fileReservedTime=-1", path="broker.conf")
    with pytest.raises(ConfigError, match=r"mappedFileSizeCommitLog is 0; "):
        BrokerConfig.load("mappedFileSizeCommitLog=0", path="broker.conf")


@pytest.mark.parametrize("key", ["namesrvAddr", "haMasterAddress"])
@pytest.mark.parametrize(
    "address", ["nohost", "nohost:", "nohost:65536", "http://nohost", "http://h:1"]
)
def test_an_address_that_is_none_is_refused_by_its_name(key: str, address: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: '{address}' is not an address"):
        BrokerConfig.load(f"{key}={address}", path="broker.conf")


@pytest.mark.parametrize("key", ["storePathRootDir", "brokerName", "bindAddress"])
@pytest.mark.parametrize("value", ["", " "])
def test_a_text_that_cannot_be_left_empty_is_refused_by_its_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} is empty; give it a value, or leave it out for"):
        BrokerConfig.load(f'{key} = "{value}"', path="broker.toml")
    with pytest.raises(ConfigError, match=f"{key} is 5; it must be text"):
        BrokerConfig.load(f"{key} = 5", path="broker.toml")


@pytest.mark.parametrize("name", ["broker.toml", "broker.conf"])
def test_a_file_may_begin_with_a_byte_order_mark(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("storeRoot = 1\n", encoding="utf-8-sig")
    done = CliRunner().invoke(app, ["broker", "--config", str(file)])
    assert "unknown key 'storeRoot'" in str(done.exception)
