"""Replication frames: RocketMQ's recorded bytes, any chunking, and refusals, in both dialects."""

import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saturnmq.protocol import ha
from saturnmq.protocol.signing import Seal, Signing
from saturnmq.runtime.errors import MalformedFrame

RECORDED_REPORTS = bytes.fromhex("0000000000000000 0000000000008000 000000000000b089")
RECORDED_HEADERS = (
    "000000000000000000008000",
    "000000000000800000003089",
    "000000000000becb00000000",
)


def feed(inbox: ha.Inbox, data: bytes, take: Callable[[], Any]) -> list[Any]:
    """What comes out when these bytes arrive, whatever room the inbox has at a time."""
    found = []
    while True:
        while (frame := take()) is not None:
            if isinstance(frame, ha.Transfer):
                frame = frame._replace(data=bytes(frame.data))
            found.append(frame)
        inbox.make_room()
        if not data:
            return found
        room = inbox.free()
        assert len(room), "the inbox takes no more and gives nothing"
        part = data[: len(room)]
        room[: len(part)] = part
        inbox.filled(len(part))
        data = data[len(part) :]


def test_recorded_reports_parse_whole_and_byte_by_byte() -> None:
    expected = [0, 0x8000, 0xB089]
    inbox = ha.Inbox()
    assert feed(inbox, RECORDED_REPORTS, inbox.next_report) == expected
    inbox = ha.Inbox()
    found = [x for b in RECORDED_REPORTS for x in feed(inbox, bytes([b]), inbox.next_report)]
    assert found == expected
    assert b"".join(map(ha.encode_report, expected)) == RECORDED_REPORTS


@pytest.mark.parametrize("recorded", RECORDED_HEADERS)
def test_recorded_transfer_header_is_what_we_write(recorded: str) -> None:
    header = bytes.fromhex(recorded)
    offset, size = int(recorded[:16], 16), int(recorded[16:], 16)
    assert ha.encode_transfer_header(offset, size) == header
    inbox = ha.Inbox()
    (transfer,) = feed(inbox, header + bytes(size), inbox.next_transfer)
    assert transfer == (offset, bytes(size), -1, -1)


def test_a_java_master_reads_our_first_bytes_as_the_report_at_their_end() -> None:
    first = ha.encode_greeting(0x8000)
    assert len(first) % ha.REPORT_SIZE == 0
    assert first[-ha.REPORT_SIZE :] == ha.encode_report(0x8000)
    assert first[: ha.REPORT_SIZE] == b"\xff" * 8  # -1: RocketMQ's "nothing reported yet"


def test_our_hello_cannot_be_taken_for_a_java_masters_transfer() -> None:
    for data, ours in (
        (ha.encode_control(ha.Kind.HELLO, {}), True),
        (ha.encode_transfer_header(0, 0), False),
        (b"\x00" * 7, None),
    ):
        inbox = ha.Inbox()
        inbox.free()[: len(data)] = data
        inbox.filled(len(data))
        assert inbox.is_ours() is ours


offsets = st.integers(0, 2**63 - 1)
frames = st.one_of(
    st.tuples(offsets, st.binary(max_size=300), st.integers(0, 2**32 - 1), offsets),
    st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3),
)


def encoded(frame: Any) -> bytes:
    if isinstance(frame, dict):
        return ha.encode_control(ha.Kind.HELLO, frame)
    offset, data, rolled, confirmed = frame
    return ha.encode_our_transfer_header(offset, len(data), rolled, confirmed) + data


def decoded(frame: Any) -> Any:
    if isinstance(frame, ha.Control):
        return frame.document
    return (frame.offset, frame.data, frame.rolled, frame.confirmed)


@settings(deadline=None, max_examples=60)
@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 200), min_size=1))
def test_a_masters_frames_survive_any_chunking(sent: list[Any], chunks: list[int]) -> None:
    stream = b"".join(map(encoded, sent))
    inbox = ha.Inbox(64)
    seen: list[Any] = []
    position = step = 0
    while position < len(stream):
        size = chunks[step % len(chunks)]
        seen += feed(inbox, stream[position : position + size], inbox.next_of_master)
        position, step = position + size, step + 1
    assert list(map(decoded, seen)) == sent
    assert inbox.pending == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(offsets, offsets), max_size=8), st.integers(1, 50))
def test_a_slaves_frames_survive_any_chunking(reports: list[tuple[int, int]], chunk: int) -> None:
    stream = ha.encode_control(ha.Kind.JOIN, {"end": 7})
    stream += b"".join(ha.encode_our_report(*report) for report in reports)
    inbox = ha.Inbox(64)
    seen = []
    for at in range(0, len(stream), chunk):
        seen += feed(inbox, stream[at : at + chunk], inbox.next_of_slave)
    assert seen == [ha.Control(ha.Kind.JOIN, {"end": 7}, b'{"end":7}'), *reports]


@given(st.dictionaries(st.text(max_size=5), st.integers(0, 9)), st.integers(1, 50))
def test_a_signed_frame_survives_any_chunking(document: dict[str, int], chunk: int) -> None:
    secret = Signing("a secret of the cluster")
    mine, theirs = (Seal(secret, "s", "m", leads=leads) for leads in (False, True))
    frame = ha.encode_control(ha.Kind.JOIN, document, mine)
    stream, inbox, seen = frame + ha.encode_our_report(1, 2), ha.Inbox(64), []
    for at in range(0, len(stream), chunk):
        seen += feed(inbox, stream[at : at + chunk], inbox.next_of_slave)
    join, report = seen
    assert (join.document, report) == (document, (1, 2))
    assert theirs.is_right(join.kind, join.text, join.signature)


@pytest.mark.parametrize("size", [0, 31, 32])
def test_a_signed_frame_that_is_too_short_for_its_signature_is_refused(size: int) -> None:
    body = bytes(size)
    header = struct.pack(">qiIq", ha.Kind.JOIN, size, zlib.crc32(body), 1)
    inbox = ha.Inbox()
    with pytest.raises(MalformedFrame):
        feed(inbox, header + body, inbox.next_of_slave)


def test_the_rolling_checksum_tells_other_bytes_and_another_order() -> None:
    one = ha.roll(ha.roll(0, b"abc"), b"def")
    assert one != ha.roll(ha.roll(0, b"def"), b"abc")
    assert one != ha.roll(ha.roll(0, b"abc"), b"deg")
    assert one == ha.roll(ha.roll(0, memoryview(b"abc")), b"def")


@pytest.mark.parametrize(("offset", "size"), [(-9, 0), (0, -1), (0, ha.BODY_MAX + 1)])
@pytest.mark.parametrize("dialect", ["next_transfer", "next_of_master"])
def test_what_cannot_be_is_refused_before_memory_is_taken(
    offset: int, size: int, dialect: str
) -> None:
    header = offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big", signed=True)
    inbox = ha.Inbox()
    with pytest.raises(MalformedFrame, match=r"transfer of|control frame of"):
        feed(inbox, header + bytes(12), getattr(inbox, dialect))


def test_a_damaged_control_frame_is_refused() -> None:
    data = bytearray(ha.encode_control(ha.Kind.JOIN, {"end": 7}))
    data[-2] ^= 1
    inbox = ha.Inbox()
    with pytest.raises(MalformedFrame, match="checksum"):
        feed(inbox, bytes(data), inbox.next_of_slave)


def test_negative_report_is_refused() -> None:
    inbox = ha.Inbox()
    with pytest.raises(MalformedFrame, match="negative"):
        feed(inbox, b"\xff" * 7 + b"\xfe", inbox.next_report)
