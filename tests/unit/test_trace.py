"""The records of traces: written as RocketMQ's, read from all its versions; and how they are put
together to messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.protocol.trace import (
    TraceKind,
    TraceRecord,
    bodies_of,
    decode_records,
    encode_record,
    keys_of,
)
from saturnmq.runtime.errors import MalformedFrame

PUB = TraceRecord(
    TraceKind.PUB,
    "7F000001",
    group="G",
    timestamp_ms=1,
    topic="T",
    keys="a b",
    store_host="h:1",
    body_length=5,
    cost_ms=2,
    offset_message_id="0A",
)
BEFORE = TraceRecord(
    TraceKind.SUB_BEFORE, "7F000001", group="G", timestamp_ms=1, request_id="R", retries=3
)
AFTER = TraceRecord(
    TraceKind.SUB_AFTER,
    "7F000001",
    group="G",
    timestamp_ms=9,
    cost_ms=4,
    success=False,
    request_id="R",
    context_code=2,
)


def body(text: str) -> bytes:
    return text.replace("|", "\x01").replace("~", "\x02").encode()


def test_records_have_the_bytes_of_rocketmq() -> None:
    # TraceDataEncoder.encoderFromContextBean of 5.4.0
    assert encode_record(PUB).encode() == body(
        "Pub|1|DefaultRegion|G|T|7F000001|null|a b|h:1|5|2|0|0A|true~"
    )
    assert encode_record(BEFORE).encode() == body("SubBefore|1|DefaultRegion|G|R|7F000001|3|null~")
    assert encode_record(AFTER).encode() == body("SubAfter|R|7F000001|4|false|null|2|9|G~")


def test_records_of_older_and_of_newer_clients_are_read() -> None:
    read = list(
        decode_records(
            body(
                "Pub|1|R|G|T|ID|tag|k|h:1|5|2|3|true~"
                "Pub|1|R|G|T|ID|tag|k|h:1|5|2|3|0A|false|10.0.0.9~"
                "SubAfter|REQ|ID|4|true|k~SubAfter|REQ|ID|4|true|k|1~Unheard|of~"
            )
        )
    )
    assert [record.offset_message_id for record in read] == ["", "0A", "", ""]
    assert [record.success for record in read] == [True, False, True, True]
    assert [record.client_host for record in read] == ["", "10.0.0.9", "", ""]
    assert [record.context_code for record in read] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "text", ["Pub|1", "Pub|x|R|G|T|ID|tag|k|h:1|5|2|3|true", "SubBefore|1|R|G|REQ|ID|99999999999|"]
)
def test_a_record_without_its_fields_is_malformed(text: str) -> None:
    with pytest.raises(MalformedFrame):
        list(decode_records(body(text)))


texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))
numbers = st.integers(0, (1 << 31) - 1)
records = st.builds(
    TraceRecord,
    st.sampled_from(TraceKind),
    texts,
    *[texts, st.integers(0, (1 << 63) - 1), *[texts] * 2],
    *[texts.filter(lambda text: text != "null")] * 2,
    texts,
)


@given(st.lists(records, max_size=4))
def test_what_is_written_is_read_again(written: list[TraceRecord]) -> None:
    text = "".join(encode_record(record) for record in written)
    read = list(decode_records(text.encode()))
    assert [encode_record(record) for record in read] == [encode_record(each) for each in written]
    assert [(each.kind, each.message_id) for each in read] == [
        (each.kind, each.message_id) for each in written
    ]


def test_separators_in_a_property_do_not_end_its_field() -> None:
    [read] = decode_records(
        encode_record(TraceRecord(TraceKind.SUB_BEFORE, "ID", keys="a\x01b\x02c")).encode()
    )
    assert read.keys == "a b c"


def test_bodies_keep_to_their_bounds_and_every_id_is_a_key() -> None:
    many = [
        TraceRecord(TraceKind.PUB, f"ID{number}", topic="T" * 100, keys=f"k{number % 7}")
        for number in range(100)
    ]
    made = list(bodies_of(many, body_most=2_000, keys_most=60))
    assert sum(count for _, _, count in made) == 100
    for keys, text, count in made:
        inside = list(decode_records(text.encode()))
        assert len(inside) == count
        assert len(text.encode()) <= 2_000
        assert len(" ".join(keys)) <= 60
        assert {record.message_id for record in inside} <= set(keys)
    assert len(made) > 5


def test_the_id_of_a_record_is_a_key_even_if_its_keys_do_not_fit() -> None:
    long = TraceRecord(TraceKind.PUB, "ID", keys="x" * 100 + " y")
    assert keys_of(long) == ["ID", "x" * 100, "y"]
    [(keys, _, _)] = bodies_of([long], body_most=10, keys_most=50)
    assert keys == ["ID", "y"]
