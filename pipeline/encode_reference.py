"""Rows to entries of a MessageBatch in plain Python: the reference of `encode_kernel.pyx`, same
class, same answers.

An entry is that of protocol/batch.py, with the properties

    UNIQ_KEY=<prefix><row number, 8 hex digits>  WAIT=true  KEYS  TAGS  __SHARDINGKEY  <the map's>

A pair without a name or a value is left out, as readers pass over it; a byte 1 or 2 in one is
refused. Of the map, names that have a column and names of the system (`properties.RESERVED`) are
left out: rows that were read from a topic carry those, and they tell of another message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from saturnmq.protocol import properties as names
from saturnmq.protocol.batch import ENTRY_BYTES_MIN, encode_batch_item
from saturnmq.protocol.frame import CRC_PROPERTY_BYTES, is_torn
from saturnmq.runtime.errors import MessageIllegal

ENTRY_BYTES_MAX = 4 << 20  # of a batch, which may have one entry: a broker's maxMessageSize
PROPERTIES_BYTES_MAX = names.PROPERTIES_BYTES_MAX - CRC_PROPERTY_BYTES  # which a broker may add
ID_PREFIX_BYTES = 24
NUMBER_MAX = 0xFFFFFFFF

TEXT_COLUMNS = {"keys": names.KEYS, "tags": names.TAGS, "shardingKey": names.SHARDING_KEY}
"""The property that each column of text becomes, in the order they are written in."""
LEFT_OUT = frozenset(name.encode() for name in names.RESERVED - set(TEXT_COLUMNS.values()))


class RowIllegal(MessageIllegal):
    """A row of a batch cannot be sent"""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"row {row} of a batch {why}")
        self.row = row
        self.why = why


class Encoded(NamedTuple):
    """Entries of one request."""

    body: bytes
    rows: int
    next_row: int
    """The first row that is not in it, counted among those asked for."""


class RowColumns:
    """The columns of one batch that go into entries: Arrow arrays by the sink's names, of (large)
    binary, `properties` a map of those, `flag` int32."""

    def __init__(self, columns: Mapping[str, Any], entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self._columns = {name: column.to_pylist() for name, column in columns.items()}
        self._entry_bytes_max = entry_bytes_max
        named = {TEXT_COLUMNS[name].encode() for name in TEXT_COLUMNS if name in columns}
        self._left_out = LEFT_OUT | named

    def encode(
        self, rows: Sequence[int], at: int, id_prefix: bytes, first_id: int, max_bytes: int
    ) -> Encoded:
        """The entries of `rows[at:]`, as many as `max_bytes` hold, but at least one. MessageIllegal
        if already the first cannot be sent."""
        out = bytearray()
        next_row = at
        for row in rows[at:]:
            item = bytearray()
            try:
                self._put(item, row, id_prefix, first_id + row)
            except MessageIllegal:
                if out:
                    break
                raise
            if out and len(out) + len(item) > max_bytes:
                break
            out += item
            next_row += 1
        return Encoded(bytes(out), next_row - at, next_row)

    def _put(self, out: bytearray, row: int, id_prefix: bytes, number: int) -> None:
        body = self._columns["body"][row]
        if not body:
            raise RowIllegal(row, "has no body: filter such rows out, RocketMQ takes no empty ones")
        if number > NUMBER_MAX:
            raise MessageIllegal(
                f"row {number} of a partition has no number for its id, the last is {NUMBER_MAX}: "
                "repartition into more"
            )
        properties = b"UNIQ_KEY\x01%b%08X\x02WAIT\x01true\x02" % (id_prefix, number)
        for name, value in self._pairs(row):
            if not name or not value:
                continue
            if any(mark in text for mark in (b"\x01", b"\x02") for text in (name, value)):
                raise RowIllegal(
                    row,
                    f"holds a byte 1 or 2 in property {name!r}: replace them, they end fields",
                )
            properties += name + b"\x01" + value + b"\x02"
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise RowIllegal(
                row,
                f"has properties of {len(properties)} B: shorten keys or properties, brokers take "
                f"{PROPERTIES_BYTES_MAX} B",
            )
        if is_torn(properties):
            raise RowIllegal(
                row,
                "ends its properties with a zero byte: leave it out, it would look like a frame "
                "that a crash tore",
            )
        size = ENTRY_BYTES_MIN + len(body) + len(properties)
        if size > self._entry_bytes_max:
            raise RowIllegal(
                row,
                f"has {size} B with its properties: compress bodies (option compression), or split "
                f"it; brokers take batches of {self._entry_bytes_max} B (maxMessageSize)",
            )
        flag = self._columns["flag"][row] if "flag" in self._columns else None
        encode_batch_item(out, body, properties, flag or 0)

    def _pairs(self, row: int) -> Iterator[tuple[bytes, bytes | None]]:
        for column, name in TEXT_COLUMNS.items():
            if column in self._columns:
                yield name.encode(), self._columns[column][row]
        if "properties" in self._columns:
            for key, value in self._columns["properties"][row] or ():
                if key not in self._left_out:
                    yield key, value
