"""The frame itself: the golden frame, truncation at every length, damage at every byte."""

from __future__ import annotations

import pytest
from saturnmq.protocol.frame import (
    BLANK_MAGIC,
    Blank,
    Damage,
    End,
    Frame,
    NeedMore,
    crc32,
    decode_frame,
    encode_frame,
)

GOLDEN = bytes.fromhex(
    "0000008bdaa320a714bdf36800000000000000000000000000000000000000000013188800000000000001a1fbc3be8d"
    "7f000001000051af000001a1fbc3be8f7f000001000051af00000000000000000000000000000004302c312c1b524d51"
    "5f5359535f5452414e535f4f505f48414c465f544f50494300115741495401747275650254414753016402"
)
"""Written by a RocketMQ 5.3.3 broker at physical offset 1251464."""


def again(frame: Frame, **changes: object) -> bytes:
    fields = {
        "physical_offset": frame.physical_offset,
        "queue_offset": frame.queue_offset,
        "queue_id": frame.queue_id,
        "flag": frame.flag,
        "sys_flag": frame.sys_flag,
        "born_timestamp": frame.born_timestamp,
        "born_host": frame.born_host,
        "store_timestamp": frame.store_timestamp,
        "store_host": frame.store_host,
        "reconsume_times": frame.reconsume_times,
        "prepared_offset": frame.prepared_offset,
        "body": frame.body,
        "topic": frame.topic,
        "properties": frame.raw_properties,
    }
    return encode_frame(**(fields | changes))  # type: ignore[arg-type]


def golden() -> Frame:
    frame = decode_frame(GOLDEN)
    assert isinstance(frame, Frame)
    return frame


def test_golden_frame_is_decoded_and_encoded_to_the_same_bytes():
    frame = golden()
    assert frame.topic == b"RMQ_SYS_TRANS_OP_HALF_TOPIC"
    assert frame.body == b"0,1,"
    assert frame.physical_offset == 1251464
    assert frame.properties == {"WAIT": "true", "TAGS": "d"}
    assert again(frame) == GOLDEN


def test_published_crcs():
    assert crc32(b"hello 0") == 552077809
    assert crc32(b"123456789") == 1274296614
    assert crc32(b"") == 0


def test_a_frame_cut_at_any_length_asks_for_more():
    for length in range(1, len(GOLDEN)):
        outcome = decode_frame(GOLDEN[:length])
        assert outcome == (
            End() if not any(GOLDEN[:length]) else NeedMore(len(GOLDEN) * (length >= 8))
        )


def test_no_changed_length_or_body_byte_goes_unnoticed():
    for at in [*range(8, 12), *range(84, len(GOLDEN))]:
        bent = bytearray(GOLDEN)
        bent[at] ^= 0x80
        outcome = decode_frame(bent)
        if isinstance(outcome, Frame):  # inside topic or properties text, which no CRC covers
            assert at >= 92


def test_blank_and_zeros_end_a_segment():
    assert decode_frame((1000).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")) == Blank(1000)
    assert decode_frame(bytes(100)) == End()
    assert decode_frame(b"") == End()
    assert isinstance(decode_frame(b"\0\0\0\x08garbage"), Damage)


@pytest.mark.parametrize("hosts", [(8, 8), (8, 20), (20, 8), (20, 20)])
def test_ipv6_hosts_and_long_topics_round_trip(hosts):
    born, store = (bytes(range(n)) for n in hosts)
    encoded = again(golden(), born_host=born, store_host=store, topic=b"t" * 200)
    frame = decode_frame(encoded)
    assert isinstance(frame, Frame)
    assert (frame.born_host, frame.store_host) == (born, store)
    assert frame.topic == b"t" * 200
    assert again(frame) == encoded


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01d\x02", b"TAGS\x01d"])
def test_crc_property_is_the_last_one_and_holds(properties):
    encoded = again(golden(), properties=properties, crc_property=True)
    frame = decode_frame(encoded)
    assert isinstance(frame, Frame)
    digits = frame.properties["__CRC32#"]
    assert int(digits[::-1]) == crc32(encoded[:-20])
    assert frame.properties.get("TAGS") == ("d" if properties else None)
    bent = bytearray(encoded)
    bent[17] ^= 1  # the user's flag: no other check sees it
    assert isinstance(decode_frame(bent), Damage)
    assert isinstance(decode_frame(bent, verify=False), Frame)


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01d\x02"])
@pytest.mark.parametrize("crc_property", [False, True])
def test_the_crc_property_of_another_frame_is_not_stored(properties, crc_property):
    first = decode_frame(again(golden(), properties=properties, crc_property=True))
    assert isinstance(first, Frame)
    stale = properties + first.raw_properties[-20:].replace(b"\x01", b"\x011", 1)[:-2] + b"\x02"
    second = decode_frame(again(golden(), properties=stale, crc_property=crc_property))
    assert isinstance(second, Frame)
    assert second.raw_properties.startswith(properties)
    assert len(second.raw_properties) == len(properties) + 20 * crc_property


def test_a_property_that_only_ends_like_the_crc_is_the_users():
    mine = b"my__CRC32#\x010123456789\x02"
    frame = decode_frame(again(golden(), properties=mine, crc_property=False))
    assert isinstance(frame, Frame)
    assert frame.raw_properties == mine
