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


def usual(region: str, opaque: int, physical: int, queue: int, offset: int, key: str) -> Command:
    fields = {
        "MSG_REGION": region,
        "msgId": f"{PREFIX}{physical:016X}",
        "queueId": str(queue),
        "queueOffset": str(offset),
        "transactionId": key,
    }
    return Command(0, fields, opaque=opaque, flag=FLAG_RESPONSE)


@given(
    st.text(max_size=10),
    st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), OFFSETS, st.integers(0, 1 << 31), OFFSETS),
    st.from_regex(r"[0-9A-Za-z]{1,64}", fullmatch=True),
)
def test_an_answer_has_the_bytes_of_the_usual_way(
    region: str, numbers: tuple[int, int, int, int], key: str
) -> None:
    written = SendAnswers({"MSG_REGION": region}, PREFIX).answer(*numbers, key)
    expected = usual(region, *numbers, key)
    assert encode(written) == encode(expected)
    assert (written.ext, written.body_size) == (expected.ext, 0)


@pytest.mark.parametrize("remark", [None, "not in time"])
def test_a_promise_that_is_not_kept_is_told_with_the_place_of_the_message(
    remark: str | None,
) -> None:
    written = SendAnswers({"MSG_REGION": "here"}, PREFIX).answer(7, 1000, 3, 5, "A1")
    written.code, written.remark = int(ResponseCode.FLUSH_DISK_TIMEOUT), remark
    told = parse_frame(memoryview(b"".join(encode(written))))
    expected = usual("here", 7, 1000, 3, 5, "A1")
    assert (told.code, told.remark, told.opaque) == (10, remark, 7)
    assert (told.ext, told.is_response) == (expected.ext, True)
