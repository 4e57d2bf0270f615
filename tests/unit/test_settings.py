"""Every number that a node can be told has bounds, and one beyond them is refused by its name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from saturnmq.broker.config import BrokerConfig
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.config import StoreConfig

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
@pytest.mark.parametrize("address", ["nohost", "nohost:", "nohost:65536", "http://nohost"])
def test_an_address_that_is_none_is_refused_by_its_name(key: str, address: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: '{address}' is not an address"):
        BrokerConfig.load(f"{key}={address}", path="broker.conf")
