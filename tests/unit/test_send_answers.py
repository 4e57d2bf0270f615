"""Answers to sends that are written without a dictionary, against the usual way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.broker.handlers.send_answers import SendAnswers
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.remoting import FLAG_RESPONSE, Command, encode, parse_frame

PREFIX = "7F00000100002A9F"
OFFSETS = st.integers(0, (1 << 63) - 1)


def usual(
    region: str, opaque: int, physical: int, queue: int, offset: int, key: str, body: bytes = b""
) -> Command:
    fields = {
        "MSG_REGION": region,
        "msgId": f"{PREFIX}{physical:016X}",
        "queueId": str(queue),
        "queueOffset": str(offset),
    }
    if key:
        fields["transactionId"] = key
    return Command(0, fields, body, opaque=opaque, flag=FLAG_RESPONSE)


@given(
    st.text(max_size=10),
    st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), OFFSETS, st.integers(0, 1 << 31), OFFSETS),
    st.from_regex(r"[0-9A-Za-z]{0,64}", fullmatch=True),
    st.binary(max_size=40),
)
def test_an_answer_has_the_bytes_of_the_usual_way(
    region: str, numbers: tuple[int, int, int, int], key: str, body: bytes
) -> None:
    written = SendAnswers({"MSG_REGION": region}, PREFIX).answer(*numbers, key, body)
    expected = usual(region, *numbers, key, body)
    assert encode(written) == encode(expected)
    assert (written.ext, written.body_size) == (expected.ext, len(body))


@pytest.mark.parametrize("remark", [None, "not in time"])
@pytest.mark.parametrize("body", [b"", bytes(8)])
def test_a_promise_that_is_not_kept_is_told_with_the_place_of_the_message(
    remark: str | None, body: bytes
) -> None:
    written = SendAnswers({"MSG_REGION": "here"}, PREFIX).answer(7, 1000, 3, 5, "A1", body)
    written.code, written.remark = int(ResponseCode.FLUSH_DISK_TIMEOUT), remark
    told = parse_frame(memoryview(b"".join(encode(written))))
    expected = usual("here", 7, 1000, 3, 5, "A1")
    assert (told.code, told.remark, told.opaque) == (10, remark, 7)
    assert (told.ext, told.is_response, bytes(told.body)) == (expected.ext, True, body)
