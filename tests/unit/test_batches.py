"""SEND_BATCHES on the wire: what goes in comes out, and nothing else is taken."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.protocol.batches import (
    PARTS_MAX,
    BatchPart,
    PartAnswer,
    decode_answers,
    decode_parts,
    encode_answers,
    encode_parts,
)
from saturnmq.runtime.errors import MalformedFrame

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPICS = st.text(min_size=1, max_size=40).filter(lambda name: name.isprintable())
PARTS = st.lists(
    st.builds(BatchPart, TOPICS, INT32, st.integers(0, 2**31 - 1), INT64, st.binary(max_size=50)),
    min_size=1,
    max_size=8,
)
ANSWERS = st.lists(st.builds(PartAnswer, INT32, INT32, INT64, INT64, st.binary(max_size=50)))
HEAD = struct.Struct(">iiqHi")


@given(PARTS)
def test_parts_come_out_as_they_went_in(parts: list[BatchPart]) -> None:
    assert [part._replace(body=bytes(part.body)) for part in decode_parts(encode_parts(parts))] == (
        parts
    )


@given(ANSWERS)
def test_answers_come_out_as_they_went_in(answers: list[PartAnswer]) -> None:
    assert decode_answers(encode_answers(answers), len(answers)) == answers


@given(PARTS, st.data())
def test_a_request_that_ends_early_is_refused(parts: list[BatchPart], data: st.DataObject) -> None:
    whole = encode_parts(parts)
    ends = {0}
    for part in parts:
        ends.add(max(ends) + len(encode_parts([part])))
    size = data.draw(st.integers(0, len(whole)).filter(lambda size: size not in ends - {0}))
    with pytest.raises(MalformedFrame):
        decode_parts(whole[:size])


@given(ANSWERS, st.data())
def test_an_answer_of_another_length_is_refused(
    answers: list[PartAnswer], data: st.DataObject
) -> None:
    whole = encode_answers(answers)
    for bent in (whole + b"\0", whole[: data.draw(st.integers(0, max(len(whole) - 1, 0)))]):
        if bent != whole:
            with pytest.raises(MalformedFrame):
                decode_answers(bent, len(answers))
    with pytest.raises(MalformedFrame):
        decode_answers(whole, len(answers) + 1)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (HEAD.pack(0, 0, 0, 1, -1), "-1 bytes"),
        (HEAD.pack(0, 0, 0, 1, 2**31 - 1), "2147483647 bytes"),
        (HEAD.pack(0, -1, 0, 1, 0), "flag -1"),
        (HEAD.pack(0, 0, 0, 0, 1), "topic of 0 bytes"),
        (HEAD.pack(0, 0, 0, 256, 0) + b"t" * 255, "topic of 256 bytes"),
        (HEAD.pack(0, 0, 0, 65535, 0), "topic of 65535 bytes"),
    ],
)
def test_what_a_part_says_of_itself_is_checked(head: bytes, why: str) -> None:
    with pytest.raises(MalformedFrame, match=why):
        decode_parts(head + b"\xffX")


def test_a_topic_must_be_text_and_a_request_have_no_more_parts_than_a_turn_takes() -> None:
    with pytest.raises(MalformedFrame, match="UTF-8"):
        decode_parts(HEAD.pack(0, 0, 0, 1, 0) + b"\xff")
    parts = [BatchPart("t", 0, 0, 0, b"x")] * (PARTS_MAX + 1)
    assert len(decode_parts(encode_parts(parts[1:]))) == PARTS_MAX
    with pytest.raises(MalformedFrame, match=str(PARTS_MAX)):
        decode_parts(encode_parts(parts))
    with pytest.raises(MalformedFrame, match="no batch"):
        decode_parts(b"")


def test_what_an_answer_says_of_itself_is_checked() -> None:
    for size in (-1, 2, 2**31 - 1):
        with pytest.raises(MalformedFrame, match=f"{size} bytes"):
            decode_answers(struct.pack(">iiqqi", 0, 0, 0, 0, size) + b"x", 1)
