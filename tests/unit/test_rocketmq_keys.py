"""All keys of RocketMQ's broker.conf: honoured, refused, or without effect for a reason."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.rocketmq_keys import OLDER_NAMES, REFUSED, WITHOUT_EFFECT
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.config import StoreConfig

FIELDS = {
    str(field.metadata["key"]): field
    for field in (*dataclasses.fields(StoreConfig), *dataclasses.fields(BrokerConfig))
    if "key" in field.metadata
}
ALLOWED = {key: (value, why) for why, keys in REFUSED.items() for key, value in keys.items()}
PASSED_OVER = [key for keys in WITHOUT_EFFECT.values() for key in keys]

# A value other than the default, where any number or text is not good enough; and what it needs.
OTHERS: dict[str, tuple[str, str]] = {
    "brokerId": ("1", ""),
    "brokerRole": ("SYNC_MASTER", ""),
    "flushDiskType": ("SYNC_FLUSH", ""),
    "brokerPermission": ("4", ""),
    "messageDelayLevel": ("1s 5s", ""),
    "deleteWhen": ("05", ""),
    "namesrvAddr": ("elsewhere:9876", ""),
    "haMasterAddress": ("elsewhere:10912", ""),
    "inSyncReplicas": ("3", "brokerRole=SYNC_MASTER"),
    "minInSyncReplicas": ("2", "brokerRole=SYNC_MASTER"),
    "allAckInSyncStateSet": ("true", "brokerRole=SYNC_MASTER"),
    "replicationSecret": ("0123456789abcdef", ""),
    "tlsCertPath": ("elsewhere", "tlsCertPath=here\ntlsKeyPath=here"),
    "tlsKeyPath": ("elsewhere", "tlsCertPath=here\ntlsKeyPath=here"),
    "authorizationEnabled": ("true", "authenticationEnabled=true"),
    "initAuthenticationUser": ('{"username":"root","password":"secret"}', ""),
    "innerClientAuthenticationCredentials": ('{"accessKey":"nodes","secretKey":"secret"}', ""),
    "cleanFileForciblyEnable": ("false", ""),  # true with a broker.conf of RocketMQ, not else
}


def other(key: str) -> tuple[str, str]:
    default: Any = FIELDS[key].default
    if key in OTHERS:
        return OTHERS[key]
    if isinstance(default, bool):
        return str(not default).lower(), ""
    if default == (1 << 31) - 1:
        return "7", ""
    return (str(default + 7), "") if isinstance(default, int) else ("elsewhere", "")


def test_each_key_is_classified_once() -> None:
    counted = Counter([*FIELDS, *ALLOWED, *PASSED_OVER, *OLDER_NAMES])
    assert [key for key, count in counted.items() if count > 1] == []
    assert all(why and why == why.strip() for why in (*REFUSED, *WITHOUT_EFFECT))
    assert set(OLDER_NAMES.values()) <= set(FIELDS)


@pytest.mark.parametrize("key", FIELDS)
def test_an_honoured_key_changes_what_it_names(key: str) -> None:
    value, needed = other(key)
    plain = BrokerConfig.load(f"{needed}\n", path="broker.conf")
    config = BrokerConfig.load(f"{needed}\n{key}={value}\n", path="broker.conf")
    assert config.passed_over == ()
    before, after = (c if FIELDS[key].name in _OURS else c.store_config() for c in (plain, config))
    name = FIELDS[key].name
    assert str(getattr(after, name)) != str(getattr(before, name))


_OURS = {field.name for field in dataclasses.fields(BrokerConfig)}


@pytest.mark.parametrize("key", ALLOWED)
def test_a_refused_key_names_itself_its_value_and_the_way_out(key: str) -> None:
    allowed, why = ALLOWED[key]
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(f"{key}=another\n", path="broker.conf")
    told = str(refused.value)
    assert f"{key}=another, but {why}; set it to {allowed or 'nothing'}, or leave it out" in told
    for spelling in (allowed, allowed.upper()):
        config = BrokerConfig.load(f"{key}={spelling}\n", path="broker.conf")
        assert config.passed_over == (key,), "the value that can be kept changes nothing"


def test_a_file_with_every_key_without_effect_loads_and_names_them() -> None:
    paths = {"storePathCommitLog": "store/commitlog"}
    text = "".join(f"{key}={paths.get(key, '1')}\n" for key in PASSED_OVER)
    assert BrokerConfig.load(text, path="broker.conf").passed_over == tuple(sorted(PASSED_OVER))


def test_the_address_of_replication_may_be_another() -> None:
    config = BrokerConfig.load("brokerIP1=1.2.3.4\nbrokerIP2=10.0.0.4\n", path="broker.conf")
    assert (config.advertised_host, config.ha_advertised_host) == ("1.2.3.4", "10.0.0.4")
