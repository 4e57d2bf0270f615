"""The options of a producer."""

from __future__ import annotations

from dataclasses import dataclass

from saturnmq.client.option_checks import check_options
from saturnmq.client.producer.faults import DEFAULT_TABLE, LatencyTable
from saturnmq.runtime.errors import ConfigError

ZIPPED_BYTES_MAX = 2 << 20  # of a batch before it is compressed: it has at most 32,767 messages


@dataclass(frozen=True)
class ProducerOptions:
    """The same names are keyword arguments of both `Producer`s. ConfigError names a value that
    makes no sense."""

    send_timeout: float = 3.0  # seconds of one attempt, and of trying while no master takes it
    retries: int = 2  # extra attempts of an unpinned batch; 0: one attempt, whatever comes of it
    delivery_timeout: float = 120.0  # seconds of all attempts of a pinned batch
    absence_timeout: float = 60.0  # seconds that keys keep the queues of a broker that is away
    retry_unless_stored: bool = False  # statuses 10, 11, 12: try another broker; pinned: again
    until_delivered: bool = False  # all batches have `delivery_timeout`, even if stored twice
    batch_bytes: int = 1 << 20
    buffer_bytes: int = 64 << 20
    in_flight: int = 10  # batches per broker and lane
    linger: float = 0.0005  # seconds that a batch may fill while messages come fast; 0: never
    max_message_bytes: int = 4 << 20
    compress_above: int | None = 4096  # bytes of body; None never compresses
    compression: str | None = None  # "zstd": of batches as a whole, for topics of batches
    latency_table: LatencyTable = DEFAULT_TABLE

    def __post_init__(self) -> None:
        check_options(vars(self))
        if self.compression not in (None, "zstd"):
            raise ConfigError(f'compression is {self.compression!r}: give "zstd" or None')
        if self.compression and self.batch_bytes > ZIPPED_BYTES_MAX:
            raise ConfigError(
                f"batch_bytes is {self.batch_bytes}: a batch that is compressed as a whole has "
                f"{ZIPPED_BYTES_MAX} at most"
            )

    def patience_s(self, pinned: object) -> float:
        """Seconds of all attempts of a batch, which may be pinned to a queue."""
        if pinned is not None or self.until_delivered:
            return self.delivery_timeout
        return self.send_timeout * (self.retries + 1)
