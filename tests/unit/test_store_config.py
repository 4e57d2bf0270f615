"""What a store does that is told nothing, and which settings it refuses."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.config import StoreConfig

DEFAULTS: dict[str, Any] = {  # RocketMQ's
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "messageIndexEnable": True,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "maxMessageSize": 4 << 20,
    "fileReservedTime": 72,
    "deleteWhen": "04",
    "diskMaxUsedSpaceRatio": 75,
    "diskSpaceCleanForciblyRatio": 85,
    "diskSpaceWarningLevelRatio": 90,
    "cleanResourceInterval": 10_000,
    "deleteFileBatchMax": 10,
    "transientStorePoolEnable": False,
    "transientStorePoolSize": 5,
    "fastFailIfNoBufferInStorePool": False,
    "commitIntervalCommitLog": 200,
    "warmMapedFileEnable": False,
    "dataReadAheadEnable": True,
    "accessMessageInMemoryMaxRatio": 40,
    "maxTransferCountOnMessageInMemory": 32,
    "maxTransferBytesOnMessageInMemory": 256 << 10,
    "maxTransferCountOnMessageInDisk": 8,
    "maxTransferBytesOnMessageInDisk": 64 << 10,
    "maxFilterMessageSize": 16_000,
    "maxMsgsNumBatch": 64,
    "defaultQueryMaxNum": 32,
}


def test_a_setting_that_is_left_out_is_as_at_rocketmq() -> None:
    config = StoreConfig()
    told = {field.metadata["key"]: getattr(config, field.name) for field in fields(config)}
    assert {key: told[key] for key in DEFAULTS} == DEFAULTS
    assert config.crc_property, "unlike RocketMQ's enabledAppendPropCRC"
    assert not config.clean_forcibly, "unlike RocketMQ's cleanFileForciblyEnable"
    assert (config.sync_zeros, config.lock_in_memory, config.disk_enough_bytes) == (False, False, 0)


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        ((9, 29, 34), (10, 30, 35)),
        ((10, 30, 35), (10, 30, 35)),
        ((11, 31, 36), (11, 31, 36)),
        ((94, 84, 89), (94, 84, 89)),
        ((95, 85, 90), (95, 85, 90)),
        ((96, 86, 91), (95, 85, 90)),
    ],
)
def test_percentages_of_the_disk_have_limits(
    told: tuple[int, int, int], counts: tuple[int, int, int]
) -> None:
    normal, forcibly, warning = told
    config = StoreConfig(
        disk_max_used_ratio=normal,
        disk_clean_forcibly_ratio=forcibly,
        disk_warning_ratio=warning,
    )
    assert config.disk_levels == counts


@pytest.mark.parametrize(
    ("told", "hours"),
    [("04", {4}), ("0;23", {0, 23}), (" 1 ; 02;", {1, 2}), ("", set()), ("4;04", {4})],
)
def test_segments_are_deleted_at_the_hours_that_are_told(told: str, hours: set[int]) -> None:
    assert StoreConfig(delete_when=told).delete_hours == hours


@pytest.mark.parametrize("told", ["24", "4;24", "4,5", "-1", "noon"])
def test_what_is_no_hour_of_the_day_is_refused(told: str) -> None:
    with pytest.raises(ConfigError, match=f"deleteWhen is '{told}'.*00 to 23"):
        StoreConfig(delete_when=told)


def test_a_pool_has_two_buffers_at_least() -> None:
    assert StoreConfig(transient_pool_size=2).transient_pool_size == 2
    with pytest.raises(ConfigError, match="transientStorePoolSize is 1"):
        StoreConfig(transient_pool_size=1)


def test_a_share_of_the_memory_is_taken_for_cache() -> None:
    limits = StoreConfig(access_in_memory_ratio=25).read_limits(1_000_007)
    assert limits.memory_bytes == 250_001
