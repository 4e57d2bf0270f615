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
from store_rig import CONFIG, bodies, dispatch, message, new_disk, open_store
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
    with pytest.raises(ConfigError, match=r"mappedFileSizeCommitLog is 4095; .* from 4096 "):
        BrokerConfig.load("mappedFileSizeCommitLog=4095", path="broker.conf")


SIZES = {
    each.name: each.metadata["bounds"][0]
    for each in dataclasses.fields(StoreConfig)
    if each.name.endswith(("_segment_bytes", "_slots", "_items", "_size", "_mapped"))
}


@pytest.mark.parametrize("name", SIZES)
def test_a_store_works_at_the_least_value_of_each_size(name: str) -> None:
    config = dataclasses.replace(CONFIG, **{name: SIZES[name]})
    disk = new_disk()
    store = open_store(disk, config=config)
    for number in range(6):
        store.put(message(str(number).encode(), key=str(number)))
    dispatch(store)
    store.close()
    again = open_store(disk, config=config)
    assert bodies(again) == [b"%d" % number for number in range(6)]
    again.close()


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


@pytest.mark.parametrize("value", ["1.5", "10911.0", "true", "inf", "nan", "1e400", '"1.5"', "[1]"])
@pytest.mark.parametrize("key", ["listenPort", "slaveTimeout", "fileReservedTime"])
def test_a_number_is_a_number_without_a_fraction(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"broker\.toml: {key} is .*; it must be a number wi"):
        BrokerConfig.load(f"{key} = {value}", path="broker.toml")


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("autoCreateTopicEnable", "1", "true or false"),
        ("autoCreateTopicEnable", "'yes'", "true or false"),
        ("autoCreateTopicEnable", "[]", "true or false"),
        ("namesrvAddr", "5", "text, or a list of texts"),
        ("namesrvAddr", "[5]", "text, or a list of texts"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_name(key: str, value: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} is .*; it must be {wanted}"):
        BrokerConfig.load(f"{key} = {value}", path="broker.toml")


@pytest.mark.parametrize("text", ["1_0", " ", "0x10", "1.5", "٣"])
def test_a_number_in_text_is_digits(text: str) -> None:
    with pytest.raises(ConfigError, match=r"it must be a number without a fraction"):
        BrokerConfig.load(f"listenPort={text}", path="broker.conf")
    with pytest.raises(ConfigError, match=r"SATURNMQ_PORT: port is .*; it must be a number"):
        BrokerConfig.load(environ={"SATURNMQ_PORT": text})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("broker.conf", "listenPort=1\nport=2\n"),
        ("broker.toml", "listenPort = 1\nport = 2\n"),
        ("broker.toml", "[broker]\nlistenPort = 1\n[store]\nlistenPort = 2\n"),
    ],
)
def test_two_values_for_one_setting_are_refused(path: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"listenPort and \w+ are one setting with two values"):
        BrokerConfig.load(text, path=path)
    assert BrokerConfig.load(text.replace("2", "1"), path=path).port == 1, "they agree"


@pytest.mark.parametrize("name", ["store_options", "passed_over"])
def test_a_field_that_is_no_setting_is_an_unknown_key(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key '{name}'"):
        BrokerConfig.load(f"{name} = 5", path="broker.toml")
