"""The access of a source to the place where messages lie: a cluster's brokers, or a store
directory.

A `Where` says which place; it is small and pickled into every task. `open_access` (places.py) gives
the `Access`, which planning on the driver and reading in a worker share: one per process and place.

    with open_access(Where.brokers("127.0.0.1:9876")) as access:  # or Where.store("/data/store")
        bounds = access.bounds(["orders"])
        pieces = access.cuts([Range("orders", "broker-a", 0, 0, 100)], 8 << 20, 65_536)
        for batch in access.batches(pieces, Decoding()):
            ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from saturnmq.pipeline.columns import Columns, select
from saturnmq.pipeline.plan import Range
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.subscription import ALL, TAG_EXPRESSION
from saturnmq.runtime.door import split_addresses
from saturnmq.runtime.errors import ConfigError, SaturnError

FAILFAST, DROPMALFORMED, PERMISSIVE = "FAILFAST", "DROPMALFORMED", "PERMISSIVE"
MODES = (FAILFAST, DROPMALFORMED, PERMISSIVE)
MASTER, SLAVE, ANY = "master", "slave", "any"
STORE_BROKER = "store"  # the broker's name where no broker tells it
PULL_TIMEOUT_MS = 120_000
CHUNK_BYTES = 2 << 20  # of frames; a quarter less work per message than with half of it
RETRIES, RETRY_INTERVAL_MS = 10, 1000  # the time a broker takes to start again


def named_path(path: str) -> str:
    """The path itself; ConfigError for an empty one, which would be the current directory."""
    if not path:
        raise ConfigError("a path is empty: give the name of a directory, `.` for the current one")
    return path


class DataLoss(SaturnError):
    """Messages that were asked for are not there any more"""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The outputs that can be made of the frames of a range.

    `expression` is a subscription (`*`, `A || B`, or SQL92 when `expression_type` says so): tags
    are looked at by hash where the entries are read and exactly where the frames are decoded,
    conditions where the entries are read.
    Without `fail_on_data_loss` gaps are logged and passed over.
    """

    columns: Columns = field(default_factory=select)
    mode: Any = FAILFAST  # one of MODES
    decompress: bool = True
    verify: bool = False
    expression: str = ALL
    expression_type: str = TAG_EXPRESSION
    fail_on_data_loss: bool = True

    @property
    def takes_all(self) -> bool:
        """Whether no message is filtered out."""
        return (self.expression, self.expression_type) == (ALL, TAG_EXPRESSION)


@dataclass(frozen=True, slots=True)
class Where:
    """A cluster (`nameservers`) or a directory (`path`)."""

    nameservers: tuple[str, ...] = ()
    path: str = ""
    read_from: str = MASTER
    broker_name: str = STORE_BROKER
    trust_tail: bool = False
    chunk_bytes: int = CHUNK_BYTES
    timeout_ms: int = PULL_TIMEOUT_MS
    retries: int = RETRIES
    retry_interval_ms: int = RETRY_INTERVAL_MS
    group: str = ""

    @classmethod
    def brokers(cls, nameservers: str | Sequence[str], **options: Any) -> Where:
        """`nameservers`: `host:port`, several with `;` or `,` between, or a sequence."""
        return cls(tuple(split_addresses(nameservers)), **options)

    @classmethod
    def store(cls, path: str, **options: Any) -> Where:
        """`path`: the storePathRootDir of a broker, the directory that has `commitlog`."""
        return cls(path=named_path(path), **options)


class Access(Protocol):
    """Read-only but for `commit`. Not for several threads at once."""

    def topics(self) -> list[str]:
        """The topics that users made, retry and dead-letter topics among them, but for those of
        batches, which the log names."""

    def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues, sorted; none if there is no such topic."""

    def bounds(
        self, topics: Collection[str], begun: Collection[MessageQueue] = ()
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Every readable queue's first offset and its end, the next offset that consumers will
        see; and those of the queues `begun`, also if their topic has fewer queues now."""

    def end_in_log(self, queue: MessageQueue) -> int | None:
        """Where the queue ends with the messages that consumers do not see yet: behind it nothing
        comes back. None: its master does not say."""

    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at that time or later; the queue's end if there is none."""

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """The offsets at which the group goes on, in those queues that it has read."""

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set where the group goes on."""

    def cuts(
        self,
        ranges: Sequence[Range],
        max_bytes: int,
        max_rows: int,
        *,
        first_only: bool = False,
    ) -> list[Range]:
        """The ranges cut into neighbouring pieces of at most so many bytes and rows, and at least a
        row, each with its bytes; `first_only`: the first piece of each range."""

    def batches(self, pieces: Iterable[Range], decoding: Decoding) -> Iterator[Any]:
        """The messages of ranges as `pyarrow.RecordBatch`es, in order, each of one range.

        DataLoss: some are gone. DamagedFrame: as the mode says. A SaturnError names the broker that
        could not be read.
        """

    def close(self) -> None:
        """Give back what is open."""

    def __enter__(self) -> Access: ...

    def __exit__(self, *_: object) -> None: ...
