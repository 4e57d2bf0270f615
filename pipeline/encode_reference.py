"""Rows to entries of a MessageBatch in plain Python: what is right, for the kernel to be compared
with.

An entry is protocol/batch.py's, with the properties

    UNIQ_KEY=<prefix><row number, 8 hex digits>  WAIT=true  KEYS  TAGS  __SHARDINGKEY  <the map's>

as client producers write them. Of the map a name that a column or the broker gives is left out:
rows that were read from a topic carry those, and they say something about another message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from saturnmq.protocol import properties as names
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.errors import MessageIllegal

TEXT_COLUMNS = {"keys": names.KEYS, "tags": names.TAGS, "shardingKey": names.SHARDING_KEY}
OF_THE_SYSTEM = names.RESERVED - names.TRAVELS_ALONE - set(TEXT_COLUMNS.values())


class Encoded(NamedTuple):
    """Entries of one request."""

    body: bytes
    rows: int
    next_row: int
    """The first row that is not in it, counted among those asked for."""


def encode_rows(
    columns: dict[str, Any],
    rows: Sequence[int],
    id_prefix: bytes,
    first_id: int,
    max_bytes: int,
) -> Iterator[Encoded]:
    """`columns` are Arrow arrays by the sink's names; the other arguments are Encoder.encode's."""
    values = {name: column.to_pylist() for name, column in columns.items()}
    out = bytearray()
    first = 0
    for at, row in enumerate(rows):
        item = bytearray()
        body, extra, flag = _message({name: column[row] for name, column in values.items()}, row)
        unique = b"UNIQ_KEY\x01%b%08X\x02WAIT\x01true\x02" % (id_prefix, first_id + row)
        encode_batch_item(item, body, unique + extra, flag)
        if out and len(out) + len(item) > max_bytes:
            yield Encoded(bytes(out), at - first, at)
            out.clear()
            first = at
        out += item
    if out:
        yield Encoded(bytes(out), len(rows) - first, len(rows))


def _message(value: dict[str, Any], row: int) -> tuple[bytes, bytes, int]:
    """(body, properties but the first two, flag) of one row."""
    body = value["body"]
    if not body:
        raise MessageIllegal(
            f"row {row} of a batch has no body: filter such rows out, RocketMQ takes no empty ones"
        )
    pairs = {TEXT_COLUMNS[name]: value[name] for name in TEXT_COLUMNS if name in value}
    for name, text in value.get("properties") or ():
        if name in names.TRAVELS_ALONE:
            raise MessageIllegal(
                f"row {row} of a batch has the property {name}: drop it, delayed messages and "
                "transactions cannot be sent in batches"
            )
        if name not in OF_THE_SYSTEM and not any(
            TEXT_COLUMNS[column] == name for column in TEXT_COLUMNS if column in value
        ):
            pairs[name] = text
    for name, text in pairs.items():
        if any(mark in name or mark in (text or "") for mark in (names.NAME_END, names.PAIR_END)):
            raise MessageIllegal(
                f"row {row} of a batch: property {name!r} holds a byte 1 or 2; replace them, they "
                "end fields"
            )
    return (
        body.encode() if isinstance(body, str) else body,
        names.encode_properties(pairs),
        value.get("flag") or 0,
    )
