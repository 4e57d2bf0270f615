"""JSON that is nested deeply: as deep as it can be read, and so deep that `repr` runs out of stack.
A value of it is refused like any other, and told in part."""

from __future__ import annotations

import pytest
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.pipeline import offsets
from saturnmq.protocol import checked, fastjson
from saturnmq.runtime.errors import ConfigError, MalformedFrame

DEEP = fastjson.loads(b"[" * 1000 + b"]" * 1000)
OBJECTS = fastjson.loads(b'{"a":' * 1000 + b"1" + b"}" * 1000)


@pytest.mark.parametrize(
    "value",
    [DEEP, OBJECTS, [1, DEEP], 1 << 20_000],
    ids=["lists", "objects", "a list of both", "a number"],
)
def test_a_value_of_any_depth_is_shown_in_part(value: object) -> None:
    with pytest.raises((RecursionError, ValueError)):
        repr(value)
    assert 0 < len(checked.shown(value, 60)) <= 60


@pytest.mark.parametrize("value", [DEEP, OBJECTS], ids=["lists", "objects"])
def test_an_offset_that_is_nested_deeply_is_left_out_and_told(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    table = ConsumerOffsets(lambda: 0)
    table.load({"offsetTable": {"t@g": value, "t@h": {"0": value, "1": 7}}})
    assert table.query("h", "t", 1) == 7
    assert (table.query("g", "t", 0), table.query("h", "t", 0)) == (None, None)
    assert "of t@h in queue '0' is left out: its offset is a JSON " in caplog.text
    with pytest.raises(MalformedFrame):
        checked.as_integer(value, "it")


@pytest.mark.parametrize("depth", [900, 100_000])
def test_offsets_of_an_option_that_are_nested_deeply_are_a_wrong_option(depth: int) -> None:
    for text in ('{"t":' * depth + "1" + "}" * depth, '{"t":' + "[" * depth + "]" * depth + "}"):
        with pytest.raises(ConfigError, match="startingOffsets"):
            offsets.parse(text, "startingOffsets")
    with pytest.raises(ConfigError, match="checkpoint"):
        offsets.from_json({"t": {"b": {"0": DEEP}}})
