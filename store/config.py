"""What a store may be told. `key` is RocketMQ's name of a setting in broker.conf."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from saturnmq.protocol.errors import ConfigError
from saturnmq.store.delay_levels import DEFAULT_LEVELS, parse_levels
from saturnmq.store.lookup import ReadLimits


def _key(rocketmq: str, default: Any) -> Any:
    return field(default=default, metadata={"key": rocketmq})


class DiskLevels(NamedTuple):
    """Percent of the disk beyond which something happens."""

    normal: int  # expired segments are deleted
    forcibly: int  # any segment is
    warning: int  # sends are refused


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Sizes in bytes, places, limits."""

    root: str = _key("storePathRootDir", "store")
    commitlog_segment_bytes: int = _key("mappedFileSizeCommitLog", 1 << 30)
    consumequeue_segment_bytes: int = _key("mappedFileSizeConsumeQueue", 6_000_000)
    index_enable: bool = _key("messageIndexEnable", True)
    index_slots: int = _key("maxHashSlotNum", 5_000_000)
    index_items: int = _key("maxIndexNum", 20_000_000)
    max_message_bytes: int = _key("maxMessageSize", 4_194_304)
    crc_property: bool = _key("enabledAppendPropCRC", True)
    zero_ahead_bytes: int = _key("zeroAheadBytes", 64 << 20)
    sync_zeros: bool = _key("syncZeros", False)
    # Deletion: hours, hours of the day, percent of the disk, ms. While `disk_enough_bytes`
    # are free no percentage counts (0: they always do, as in RocketMQ). `clean_forcibly` deletes
    # what has not expired, on a short disk: true at RocketMQ, and in its broker.conf.
    file_reserved_hours: int = _key("fileReservedTime", 72)
    delete_when: str = _key("deleteWhen", "04")
    disk_max_used_ratio: int = _key("diskMaxUsedSpaceRatio", 75)
    disk_clean_forcibly_ratio: int = _key("diskSpaceCleanForciblyRatio", 85)
    disk_warning_ratio: int = _key("diskSpaceWarningLevelRatio", 90)
    disk_enough_bytes: int = _key("diskSpaceEnoughBytes", 0)
    clean_forcibly: bool = _key("cleanFileForciblyEnable", False)
    clean_interval_ms: int = _key("cleanResourceInterval", 10_000)
    delete_batch_max: int = _key("deleteFileBatchMax", 10)
    delete_grace_ms: int = _key("deleteGraceTime", 60_000)
    # memory
    transient_pool: bool = _key("transientStorePoolEnable", False)
    transient_pool_size: int = _key("transientStorePoolSize", 5)
    transient_fail_fast: bool = _key("fastFailIfNoBufferInStorePool", False)
    commit_interval_ms: int = _key("commitIntervalCommitLog", 200)
    warm_files: bool = _key("warmMapedFileEnable", False)
    lock_in_memory: bool = _key("lockInMemory", False)
    read_ahead: bool = _key("dataReadAheadEnable", True)
    # Percent of the machine's memory that the newest part of the log is taken to be cached in.
    access_in_memory_ratio: int = _key("accessMessageInMemoryMaxRatio", 40)
    in_memory_count: int = _key("maxTransferCountOnMessageInMemory", 32)
    in_memory_bytes: int = _key("maxTransferBytesOnMessageInMemory", 262_144)
    on_disk_count: int = _key("maxTransferCountOnMessageInDisk", 8)
    on_disk_bytes: int = _key("maxTransferBytesOnMessageInDisk", 65_536)
    filter_bytes: int = _key("maxFilterMessageSize", 16_000)
    delay_levels: str = _key("messageDelayLevel", DEFAULT_LEVELS)
    query_count: int = _key("maxMsgsNumBatch", 64)
    unique_key_count: int = _key("defaultQueryMaxNum", 32)

    def __post_init__(self) -> None:
        parse_levels(self.delay_levels)
        if not all(hour.isdigit() and int(hour) < 24 for hour in self._hours()):
            raise ConfigError(
                f"deleteWhen is {self.delete_when!r}; it must be hours of the day, 00 to 23, "
                "separated by semicolons"
            )
        if self.transient_pool_size < 2:
            raise ConfigError(
                f"transientStorePoolSize is {self.transient_pool_size}; it must be 2 or more: the "
                "next segment needs a buffer while the one before is being written"
            )

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """How long the messages of each delay level wait, from level 1 on."""
        return parse_levels(self.delay_levels)

    @property
    def disk_levels(self) -> DiskLevels:
        """What counts, within RocketMQ's limits of what may be configured."""
        return DiskLevels(
            min(max(self.disk_max_used_ratio, 10), 95),
            min(max(self.disk_clean_forcibly_ratio, 30), 85),
            min(max(self.disk_warning_ratio, 35), 90),
        )

    @property
    def delete_hours(self) -> set[int]:
        """The local hours of `delete_when`."""
        return {int(hour) for hour in self._hours()}

    def _hours(self) -> list[str]:
        return [hour.strip() for hour in self.delete_when.split(";") if hour.strip()]

    def read_limits(self, memory_bytes: int) -> ReadLimits:
        """What one read may return on a machine with so much memory."""
        return ReadLimits(
            memory_bytes * self.access_in_memory_ratio // 100,
            self.in_memory_count,
            self.in_memory_bytes,
            self.on_disk_count,
            self.on_disk_bytes,
            self.filter_bytes,
            self.query_count,
        )
