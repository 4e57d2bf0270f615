"""Messages, properties, ids, hashes, names, subscriptions and compression."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.protocol import compression, ids
from saturnmq.protocol.jhash import index_hash, jhash, tags_code
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.properties import decode_properties, encode_properties, find_property
from saturnmq.protocol.subscription import Subscription
from saturnmq.protocol.topics import check_group, check_topic, retry_topic
from saturnmq.runtime.errors import InvalidParameter, MessageIllegal, SubscriptionParseFailed


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now


def test_published_hashes():
    assert tags_code("TagA") == 2598919
    assert tags_code("TagB") == 2598920
    assert tags_code(None) == tags_code("") == 0
    assert jhash("polygenelubricants") == -2147483648
    assert jhash("TopicTest#order_3") == -1829191872
    assert index_hash("TopicTest", "order_3") == 1829191872


@given(st.text(), st.text())
def test_a_hash_continues_from_its_prefix(head, tail):
    assert jhash(tail, jhash(head)) == jhash(head + tail)


names = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)


@given(st.dictionaries(names, names))
def test_properties_round_trip(properties):
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    for name, value in properties.items():
        assert find_property(data, name.encode()) == value.encode()


def test_bad_pairs_are_dropped_and_the_last_of_a_name_wins():
    assert decode_properties(b"a\x011\x02\x01x\x02b\x01\x02c\x02a\x012\x02d\x013") == {
        "a": "2",
        "d": "3",
    }
    assert encode_properties({"a": None, "b": "", "c": "1"}) == b"c\x011\x02"


def test_offset_ids():
    assert ids.offset_message_id(b"\x7f\0\0\1", 20911, 828) == "7F000001000051AF000000000000033C"
    assert ids.decode_message_id("7F000001000051AF000000000000033C") == ("127.0.0.1", 20911, 828)
    v6 = ids.encode_address("[::1]:10911")
    assert ids.decode_host(v6) == "[::1]:10911"
    assert len(ids.offset_message_id(v6[:-4], 10911, 1)) == 56
    for bad in ("", "7F", "X" * 32, "7F 00 00 01 00 00 51 AF 00 00 00", " " * 56):
        with pytest.raises(InvalidParameter):
            ids.decode_message_id(bad)


def test_unique_ids_never_repeat_even_when_the_clock_stands_or_falls_back():
    clock = Clock(1_795_225_271_949)
    unique = ids.UniqueIds(clock, "10.0.0.1", 77)
    seen = {unique.next() for _ in range(140_000)}
    clock.now -= 5000
    seen |= {unique.next() for _ in range(70_000)}
    clock.now += 40 * 86_400_000
    seen |= {unique.next() for _ in range(10)}
    assert len(seen) == 210_010
    assert all(len(text) == 32 and text.startswith("0A000001004D") for text in seen)


def test_message_keeps_tag_and_keys_in_its_properties():
    message = Message("T", b"x", tag="a", keys=["k1", "k2"], sharding_key="s", delay_level=3)
    assert message.properties == {
        "TAGS": "a",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "s",
        "DELAY": "3",
    }
    message.tag = None
    message.delay_level = 0
    assert (message.tag, message.delay_level, message.keys) == (None, 0, ["k1", "k2"])


def test_queue_prints_as_rocketmq_hashes_it():
    assert str(MessageQueue("T", "b", 2)) == "MessageQueue [topic=T, brokerName=b, queueId=2]"


def test_subscriptions():
    some = Subscription.parse("T", " TagA||TagB ", 7)
    assert some.to_json()["codeSet"] == [2598919, 2598920]
    assert some.matches_code(2598919)
    assert not some.matches_code(1)
    assert some.matches_tag("TagB")
    assert not some.matches_tag(None)
    assert Subscription.from_json(some.to_json()) == some
    for text in (None, "", "*", " * "):
        everything = Subscription.parse("T", text)
        assert everything.is_all
        assert everything.filter_codes is None
        assert everything.matches_tag(None)
    with pytest.raises(SubscriptionParseFailed):
        Subscription.parse("T", "||")
    with pytest.raises(SubscriptionParseFailed):
        Subscription.parse("T", "a > 1", expression_type="XPATH")


def test_names():
    assert check_topic("a%|b_-9") == "a%|b_-9"
    assert check_topic("t" * 127)
    assert check_topic(retry_topic("g" * 120))
    assert check_group("g" * 120)
    for bad in ("", "a b", "a/b", "é", "a\n", "t" * 128):
        with pytest.raises(InvalidParameter):
            check_topic(bad)
    with pytest.raises(InvalidParameter):
        check_group("g" * 121)


@pytest.mark.parametrize("kind", [compression.LZ4, compression.ZSTD, compression.ZLIB])
def test_bodies_are_compressed_and_bombs_refused(kind):
    body = b"saturn" * 2000
    small = compression.compress(body, kind)
    flag = compression.sys_flag_of(kind)
    assert len(small) < len(body)
    assert compression.decompress(small, flag, len(body)) == body
    with pytest.raises(MessageIllegal, match="more than"):
        compression.decompress(small, flag, len(body) - 1)
    with pytest.raises(MessageIllegal):
        compression.decompress(b"not compressed at all", flag)
    assert compression.decompress(body, 0) == body
    with pytest.raises(MessageIllegal):
        compression.decompress(small, compression.sys_flag_of(7))
    with pytest.raises(MessageIllegal, match="cut off"):
        compression.decompress(small[:-1], flag)


def test_bodies_of_old_clients_are_zlib():
    assert compression.decompress(compression.compress(b"x" * 99), 1) == b"x" * 99


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("body", [b"x", bytes(300_000), bytes(range(256)) * 700, b"saturn" * 2000])
def test_a_zstd_body_of_a_stream_is_whole_or_refused(body: bytes, checksum: bool) -> None:
    """Java's clients compress as a stream: the frame does not say how large its content is."""
    stream = zstandard.ZstdCompressor(write_checksum=checksum).compressobj()
    small = stream.compress(body) + stream.flush()
    flag = compression.sys_flag_of(compression.ZSTD)
    assert zstandard.frame_content_size(small) < 0
    assert compression.decompress(small, flag, len(body)) == body
    for end in {*range(min(40, len(small))), *range(max(0, len(small) - 40), len(small))}:
        with pytest.raises(MessageIllegal):
            compression.decompress(small[:end], flag)
    with pytest.raises(MessageIllegal, match="more than"):
        compression.decompress(small, flag, len(body) - 1)
