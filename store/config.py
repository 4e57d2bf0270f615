"""What a store may be told. `key` is RocketMQ's name of a setting in broker.conf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.settings import check_bounds, setting
from saturnmq.store.delay_levels import DEFAULT_LEVELS, parse_levels
from saturnmq.store.lookup import ReadLimits
from saturnmq.store.queue_files import MAPPED_LIMIT, MAPPED_MOST


class DiskLevels(NamedTuple):
    """Percent of the disk beyond which something happens."""

    normal: int  # expired segments are deleted
    forcibly: int  # any segment is
    warning: int  # sends are refused


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Sizes in bytes, places, limits."""

    root: str = setting("storePathRootDir", "store")
    commitlog_segment_bytes: int = setting("mappedFileSizeCommitLog", 1 << 30)
    consumequeue_segment_bytes: int = setting("mappedFileSizeConsumeQueue", 6_000_000)
    index_enable: bool = setting("messageIndexEnable", True)
    index_slots: int = setting("maxHashSlotNum", 5_000_000)
    index_items: int = setting("maxIndexNum", 20_000_000)
    max_message_bytes: int = setting("maxMessageSize", 4_194_304)
    crc_property: bool = setting("enabledAppendPropCRC", True)
    zero_ahead_bytes: int = setting("zeroAheadBytes", 64 << 20, 0)
    sync_zeros: bool = setting("syncZeros", False)
    # Deletion: hours, hours of the day, percent of the disk, ms. While `disk_enough_bytes`
    # are free no percentage counts (0: they always do, as in RocketMQ). `clean_forcibly` deletes
    # what has not expired, on a short disk: true at RocketMQ, and in its broker.conf.
    file_reserved_hours: int = setting("fileReservedTime", 72, 0)
    delete_when: str = setting("deleteWhen", "04")
    disk_max_used_ratio: int = setting("diskMaxUsedSpaceRatio", 75, 0, 100)
    disk_clean_forcibly_ratio: int = setting("diskSpaceCleanForciblyRatio", 85, 0, 100)
    disk_warning_ratio: int = setting("diskSpaceWarningLevelRatio", 90, 0, 100)
    disk_enough_bytes: int = setting("diskSpaceEnoughBytes", 0, 0, INT64_MAX)
    clean_forcibly: bool = setting("cleanFileForciblyEnable", False)
    clean_interval_ms: int = setting("cleanResourceInterval", 10_000)
    delete_batch_max: int = setting("deleteFileBatchMax", 10)
    delete_grace_ms: int = setting("deleteGraceTime", 60_000, 0)
    # memory
    queue_files_mapped: int = setting("queueFilesMapped", MAPPED_MOST, 1, MAPPED_LIMIT)
    transient_pool: bool = setting("transientStorePoolEnable", False)
    # Two buffers at least: the next segment needs one while the one before is being written.
    transient_pool_size: int = setting("transientStorePoolSize", 5, 2)
    transient_fail_fast: bool = setting("fastFailIfNoBufferInStorePool", False)
    commit_interval_ms: int = setting("commitIntervalCommitLog", 200)
    warm_files: bool = setting("warmMapedFileEnable", False)
    lock_in_memory: bool = setting("lockInMemory", False)
    read_ahead: bool = setting("dataReadAheadEnable", True)
    # Percent of the machine's memory that the newest part of the log is taken to be cached in.
    access_in_memory_ratio: int = setting("accessMessageInMemoryMaxRatio", 40, 0, 100)
    in_memory_count: int = setting("maxTransferCountOnMessageInMemory", 32)
    in_memory_bytes: int = setting("maxTransferBytesOnMessageInMemory", 262_144)
    on_disk_count: int = setting("maxTransferCountOnMessageInDisk", 8)
    on_disk_bytes: int = setting("maxTransferBytesOnMessageInDisk", 65_536)
    filter_bytes: int = setting("maxFilterMessageSize", 16_000)
    delay_levels: str = setting("messageDelayLevel", DEFAULT_LEVELS)
    query_count: int = setting("maxMsgsNumBatch", 64)
    unique_key_count: int = setting("defaultQueryMaxNum", 32)

    def __post_init__(self) -> None:
        check_bounds(self)
        parse_levels(self.delay_levels)
        if not all(hour.isdigit() and int(hour) < 24 for hour in self._hours()):
            raise ConfigError(
                f"deleteWhen is {self.delete_when!r}; it must be hours of the day, 00 to 23, "
                "separated by semicolons"
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
