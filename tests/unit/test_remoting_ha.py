"""Replication frames: RocketMQ's recorded bytes, any chunking, and refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saturnmq.protocol import ha
from saturnmq.protocol.errors import MalformedFrame

RECORDED_REPORTS = bytes.fromhex("0000000000000000 0000000000008000 000000000000b089")
RECORDED_HEADERS = (
    "000000000000000000008000",
    "000000000000800000003089",
    "000000000000becb00000000",
)


def test_recorded_reports_parse_whole_and_byte_by_byte() -> None:
    expected = [0, 0x8000, 0xB089]
    assert ha.ReportDecoder().feed(RECORDED_REPORTS) == expected
    decoder = ha.ReportDecoder()
    assert [x for byte in RECORDED_REPORTS for x in decoder.feed(bytes([byte]))] == expected
    assert b"".join(map(ha.encode_report, expected)) == RECORDED_REPORTS


@pytest.mark.parametrize("recorded", RECORDED_HEADERS)
def test_recorded_transfer_header_is_what_we_write(recorded: str) -> None:
    header = bytes.fromhex(recorded)
    offset, size = int(recorded[:16], 16), int(recorded[16:], 16)
    assert ha.encode_transfer_header(offset, size) == header
    (transfer,) = ha.TransferDecoder().feed(header + bytes(size))
    assert transfer == (offset, bytes(size))
    assert transfer.is_heartbeat == (size == 0)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.binary(max_size=300)), max_size=8),
    st.lists(st.integers(1, 200), min_size=1),
)
def test_transfers_survive_any_chunking(
    transfers: list[tuple[int, bytes]], chunks: list[int]
) -> None:
    stream = b"".join(b"".join(ha.encode_transfer(*transfer)) for transfer in transfers)
    decoder = ha.TransferDecoder()
    seen: list[tuple[int, bytes]] = []
    position = step = 0
    while position < len(stream):
        size = chunks[step % len(chunks)]
        seen += [
            (t.offset, bytes(t.data)) for t in decoder.feed(stream[position : position + size])
        ]
        position, step = position + size, step + 1
    assert seen == transfers
    assert decoder.pending == 0


def test_truncated_transfer_waits_at_every_length() -> None:
    stream = b"".join(ha.encode_transfer(77, b"abcdef"))
    for size in range(len(stream)):
        decoder = ha.TransferDecoder()
        assert decoder.feed(stream[:size]) == []
        assert decoder.pending == size


@pytest.mark.parametrize(("offset", "size"), [(-1, 0), (0, -1), (0, ha.BODY_MAX + 1)])
def test_impossible_transfer_is_refused_before_memory_is_taken(offset: int, size: int) -> None:
    header = offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big", signed=True)
    with pytest.raises(MalformedFrame, match="transfer of"):
        ha.TransferDecoder().feed(header)


def test_negative_report_is_refused() -> None:
    with pytest.raises(MalformedFrame, match="negative"):
        ha.ReportDecoder().feed(b"\xff" * 8)
