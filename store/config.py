"""The settings of a store. `key` is RocketMQ's name of a setting in broker.conf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.settings import OURS, check_bounds, setting
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.delay_levels import DEFAULT_LEVELS, parse_levels
from saturnmq.store.derived.lookup import ReadLimits
from saturnmq.store.derived.queue_files import MAPPED_LIMIT, MAPPED_MOST


class DiskLevels(NamedTuple):
    """Percent of the disk beyond which something happens."""

    normal: int  # expired segments are deleted
    forcibly: int  # any segment is
    warning: int  # sends are refused


SEGMENT_BYTES_LEAST = 4096  # a page of memory, and room for what the broker itself writes
BATCH_BYTES_LEAST = 4 << 20  # RocketMQ's default of maxMessageSize, by which it bounds batches


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Everything that a store is told at its start; nothing changes it afterwards."""

    root: str = setting("storePathRootDir", "store", rocketmq="~/store", needed=True)
    """The directory of the broker: log, queues, index, tables."""
    commitlog_segment_bytes: int = setting("mappedFileSizeCommitLog", 1 << 30, SEGMENT_BYTES_LEAST)
    """The size of a segment of the log, which no message may exceed. A log that was written with
    another size is refused."""
    consumequeue_segment_bytes: int = setting("mappedFileSizeConsumeQueue", 6_000_000, 20)
    """The size of a file of a queue, 20 bytes for each message."""
    batch_queue_segment_bytes: int = setting("mapperFileSizeBatchConsumeQueue", 13_800_000, 46)
    """The size of a file of a queue of batches, 46 bytes for each batch."""
    index_enable: bool = setting("messageIndexEnable", True)
    """Messages can be found by key and id."""
    index_slots: int = setting("maxHashSlotNum", 5_000_000)
    """The hash slots of an index file."""
    index_items: int = setting("maxIndexNum", 20_000_000, 2)
    """The entries of an index file, of which the first is never used."""
    max_message_bytes: int = setting("maxMessageSize", 4_194_304)
    """A message with a larger body is refused, and so is a batch with a larger one that has more
    than 4 MiB."""
    crc_property: bool = setting("enabledAppendPropCRC", True, rocketmq="false")
    """Each message carries a checksum over header, topic, body and properties; without it only the
    body has one, and damage elsewhere is not found."""
    zero_ahead_bytes: int = setting("zeroAheadBytes", 64 << 20, 0, rocketmq=OURS)
    """How far ahead of the writer the log is zeroed, so that no append waits for the file system;
    0: not at all."""
    sync_zeros: bool = setting("syncZeros", False, rocketmq=OURS)
    """The zeros are synced as they are written. SYNC_FLUSH turns it on, so that no sync of a send
    carries them."""
    file_reserved_hours: int = setting("fileReservedTime", 72, 0)
    """Segments that were last written longer ago are deleted, at the hour of `deleteWhen`."""
    delete_when: str = setting("deleteWhen", "04")
    """The local hours of the day at which expired segments are deleted, separated by semicolons."""
    disk_max_used_ratio: int = setting("diskMaxUsedSpaceRatio", 75, 0, 100)
    """While the disk is used beyond this, expired segments are deleted at any hour. 10 to 95
    counts, as at RocketMQ."""
    disk_clean_forcibly_ratio: int = setting("diskSpaceCleanForciblyRatio", 85, 0, 100)
    """While the disk is used beyond this, `cleanFileForciblyEnable` deletes what has not expired.
    30 to 85 counts, as at RocketMQ."""
    disk_warning_ratio: int = setting("diskSpaceWarningLevelRatio", 90, 0, 100)
    """While the disk is used beyond this, sends are refused. 35 to 90 counts, as at RocketMQ."""
    disk_enough_bytes: int = setting("diskSpaceEnoughBytes", 0, 0, INT64_MAX, rocketmq=OURS)
    """While so much is free no percentage counts. 0: they always count. `cluster up` sets 1 GiB, so
    that a nearly full large disk does not stop it."""
    clean_forcibly: bool = setting("cleanFileForciblyEnable", False, rocketmq="true")
    """A short disk deletes the oldest messages even if they have not expired. A broker.conf has
    RocketMQ's default; everything else keeps messages and refuses sends."""
    clean_interval_ms: int = setting("cleanResourceInterval", 10_000)
    """The time between two looks at what is to be deleted."""
    delete_batch_max: int = setting("deleteFileBatchMax", 10)
    """The segments that one look deletes at most."""
    delete_grace_ms: int = setting("deleteGraceTime", 60_000, 0, rocketmq=OURS)
    """A deleted segment lies in `deleted/` for so long; none, while the disk is short."""
    queue_files_mapped: int = setting(
        "queueFilesMapped", MAPPED_MOST, 1, MAPPED_LIMIT, rocketmq=OURS
    )
    """The queue files that are mapped at once; those least used give way. The kernel allows a
    process 65,530 maps."""
    transient_pool: bool = setting("transientStorePoolEnable", False)
    """Appends go to buffers of our own before the page cache. A killed process loses what is in
    them, also what was acknowledged."""
    transient_pool_size: int = setting("transientStorePoolSize", 5, 2)
    """The buffers, each of a segment's size. The next segment needs one while the one before is
    being written, so two at least."""
    transient_fail_fast: bool = setting("fastFailIfNoBufferInStorePool", False)
    """Refuse sends while no buffer is free; else the log is written without one."""
    commit_interval_ms: int = setting("commitIntervalCommitLog", 200)
    """The time between two writes of these buffers to the page cache."""
    warm_files: bool = setting("warmMapedFileEnable", False)
    """Each queue file is brought into memory before it is first written."""
    lock_in_memory: bool = setting("lockInMemory", False, rocketmq=OURS)
    """Segments are locked in memory (mlock)."""
    read_ahead: bool = setting("dataReadAheadEnable", True)
    """The kernel reads ahead in the log; false for consumers that read here and there."""
    access_in_memory_ratio: int = setting("accessMessageInMemoryMaxRatio", 40, 0, 100)
    """The part of the machine's memory that the newest part of the log is taken to be cached in.
    In a container the container's memory counts."""
    in_memory_count: int = setting("maxTransferCountOnMessageInMemory", 32)
    """The most messages that one pull returns from that part."""
    in_memory_bytes: int = setting("maxTransferBytesOnMessageInMemory", 262_144)
    """The most that one pull returns from that part."""
    on_disk_count: int = setting("maxTransferCountOnMessageInDisk", 8)
    """The most messages that one pull returns from older parts."""
    on_disk_bytes: int = setting("maxTransferBytesOnMessageInDisk", 65_536)
    """The most that one pull returns from older parts."""
    filter_bytes: int = setting("maxFilterMessageSize", 16_000)
    """The queue entries that one filtered pull looks at, 20 bytes each. Pulls for more than 32
    messages, such as our clients' own, look at up to 16,384 entries."""
    delay_levels: str = setting("messageDelayLevel", DEFAULT_LEVELS)
    """How long each delay level waits (s, m, h, d), from level 1 on. Alike on master and slaves."""
    query_count: int = setting("maxMsgsNumBatch", 64)
    """The messages that one search by key returns at most."""
    unique_key_count: int = setting("defaultQueryMaxNum", 32)
    """The messages that one search by id returns at most."""

    def __post_init__(self) -> None:
        check_bounds(self)
        parse_levels(self.delay_levels)
        if not all(hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in self._hours()):
            raise ConfigError(
                f"deleteWhen is {self.delete_when!r}; it must be hours of the day, 00 to 23, "
                "separated by semicolons"
            )

    @property
    def max_batch_bytes(self) -> int:
        """The bytes of a batch as it comes. Its messages have the limit of messages; how many of
        them a producer puts together it decides without knowing that."""
        return max(self.max_message_bytes, BATCH_BYTES_LEAST)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The wait of each delay level in ms, from level 1 on."""
        return parse_levels(self.delay_levels)

    @property
    def disk_levels(self) -> DiskLevels:
        """The levels in force, bounded by RocketMQ's limits."""
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
        """The limits of one read on a machine with so much memory."""
        return ReadLimits(
            memory_bytes * self.access_in_memory_ratio // 100,
            self.in_memory_count,
            self.in_memory_bytes,
            self.on_disk_count,
            self.on_disk_bytes,
            self.filter_bytes,
            self.query_count,
        )
