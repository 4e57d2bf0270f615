"""The columns of a message: what `spark.read.format("saturnmq")` gives, and the Arrow types of it.

A `Columns` is what one query asked for, in its order. Three things are made of it: the schema Spark
is told, the schema of the batches (exactly what Spark makes of the first, or it refuses them), and
what the decoder fills in. All columns are nullable, as those of Spark's readers of files are,
unless the user's own schema says otherwise.

pyspark and pyarrow are imported when a schema is asked for: planning needs neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from saturnmq.runtime.errors import ConfigError, nearest

CORRUPT = "_corrupt"
BODY = "body"
PROPERTIES = "properties"


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a message under one name."""

    name: str
    type: str  # as Spark's DDL writes it
    on_request: bool  # not among the columns of a query that names none
    optional: bool  # null in a message that has no such thing
    meaning: str


_ALWAYS = (
    ("topic", "STRING", False, "as in the frame: that of a retried message is its retry topic"),
    ("brokerName", "STRING", False, "the broker by name, which no fail-over changes"),
    ("queueId", "INT", False, "the queue in the topic on that broker"),
    ("queueOffset", "BIGINT", False, "the place in the queue"),
    ("storeTimestamp", "TIMESTAMP", False, "when the broker took the message"),
    ("bornTimestamp", "TIMESTAMP", False, "when the producer made it"),
    ("keys", "STRING", True, "property KEYS: the keys with spaces between; null without"),
    ("tags", "STRING", True, "property TAGS: the tag; null without"),
    (BODY, "BINARY", False, "the body, inflated if it travelled compressed"),
)
_ON_REQUEST = (
    (PROPERTIES, "MAP<STRING,STRING>", False, "all properties, keys and tags among them"),
    ("messageId", "STRING", False, "property UNIQ_KEY, or the offset id of a message without"),
    ("physicalOffset", "BIGINT", False, "where the frame lies in the CommitLog"),
    ("size", "INT", False, "bytes of the frame"),
    ("flag", "INT", False, "the producer's own flag"),
    ("sysFlag", "INT", False, "bits of the system: compression, transaction, IPv6 hosts"),
    ("bornHost", "STRING", False, "ip:port of the producer"),
    ("storeHost", "STRING", False, "ip:port of the broker"),
    ("reconsumeTimes", "INT", False, "how often a consumer group has sent it back"),
    ("bodyCrc", "INT", False, "CRC-32 of the body as stored, without the highest bit"),
    ("crcOk", "BOOLEAN", False, "whether body and frame agree with their checksums"),
    (CORRUPT, "STRING", True, "mode PERMISSIVE: file or broker, offset, and what is wrong there"),
)

COLUMNS: dict[str, Column] = {
    name: Column(name, kind, group is _ON_REQUEST, optional, meaning)
    for group in (_ALWAYS, _ON_REQUEST)
    for name, kind, optional, meaning in group
}
DEFAULT: tuple[str, ...] = tuple(name for name, *_ in _ALWAYS)


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """A column of one query."""

    name: str
    nullable: bool = True
    values_nullable: bool = True  # of a map

    @property
    def column(self) -> Column:
        return COLUMNS[self.name]

    def arrow_type(self) -> Any:
        import pyarrow as pa

        match self.column.type:
            case "STRING":
                return pa.string()
            case "BINARY":
                return pa.binary()
            case "INT":
                return pa.int32()
            case "BIGINT":
                return pa.int64()
            case "BOOLEAN":
                return pa.bool_()
            case "TIMESTAMP":
                return pa.timestamp("us", tz="UTC")
        key = pa.field("key", pa.string(), nullable=False)
        return pa.map_(key, pa.field("value", pa.string(), nullable=self.values_nullable))

    def spark_type(self) -> Any:
        from pyspark.sql import types

        if self.name == PROPERTIES:
            return types.MapType(types.StringType(), types.StringType(), self.values_nullable)
        return {
            "STRING": types.StringType,
            "BINARY": types.BinaryType,
            "INT": types.IntegerType,
            "BIGINT": types.LongType,
            "BOOLEAN": types.BooleanType,
            "TIMESTAMP": types.TimestampType,
        }[self.column.type]()


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one query, in its order."""

    fields: tuple[QueryColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[QueryColumn]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def ddl(self) -> str:
        """`topic STRING, ...`: what `.schema(...)` and error texts take."""
        return _ddl(self.names)

    def spark_schema(self) -> Any:
        """The `pyspark.sql.types.StructType`."""
        from pyspark.sql import types

        return types.StructType(
            [types.StructField(field.name, field.spark_type(), field.nullable) for field in self]
        )

    def arrow_schema(self) -> Any:
        """The `pyarrow.Schema` of the batches; equals what Spark makes of `spark_schema()`."""
        import pyarrow as pa

        return pa.schema(
            [pa.field(field.name, field.arrow_type(), nullable=field.nullable) for field in self]
        )


def select(
    names: Iterable[str] | None = None,
    *,
    include_body: bool = True,
    include_properties: bool = False,
    corrupt: bool = False,
) -> Columns:
    """The columns called `names`, in that order; without, the default ones, less the body, with the
    properties and with `_corrupt` as the flags say. ConfigError for a name that is none or comes
    twice, and for no name at all."""
    if names is None:
        chosen = [name for name in DEFAULT if include_body or name != BODY]
        chosen += [PROPERTIES] if include_properties else []
        chosen += [CORRUPT] if corrupt else []
    else:
        chosen = list(names)
        _check_names(chosen)
    return Columns(tuple(QueryColumn(name) for name in chosen))


def from_spark_schema(schema: Any) -> Columns:
    """The columns that a user's schema (a `StructType`) picks: by name, each with the one type it
    has. It may say NOT NULL of a column that no message lacks. ConfigError otherwise."""
    _check_names([field.name for field in schema.fields])
    fields = []
    for given in schema.fields:
        column = COLUMNS[given.name]
        kind = given.dataType.simpleString().upper()
        if kind != column.type:
            raise ConfigError(
                f"column {given.name} has the type {column.type}, the schema says {kind}; "
                f"give .schema() columns of these: {_ddl(COLUMNS)}"
            )
        if column.optional and not given.nullable:
            raise ConfigError(
                f"column {given.name} is null in a message without it; drop NOT NULL from the "
                "schema, and filter on `IS NOT NULL`"
            )
        fields.append(
            QueryColumn(
                given.name, given.nullable, getattr(given.dataType, "valueContainsNull", True)
            )
        )
    return Columns(tuple(fields))


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise ConfigError(f"no column is chosen; take some of these: {_ddl(COLUMNS)}")
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(
                f"there is no column {name!r}{_nearest(name)}; the columns are {_ddl(COLUMNS)}"
            )
        if names.count(name) > 1:
            raise ConfigError(f"column {name!r} is chosen twice; name it once")


def _nearest(name: str) -> str:
    """The hint of `errors.nearest`, which must not miss a name for its capitals alone."""
    for known in COLUMNS:
        if known.lower() == name.lower():
            return f"; did you mean {known!r}?"
    return nearest(name, COLUMNS)


def _ddl(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {COLUMNS[name].type}" for name in names)
