"""HPACK: the examples of RFC 7541, its limits, and blocks of an encoder of the tests' own."""

from __future__ import annotations

import contextlib
import random

import pytest
from http2_rig import RandomEncoder
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.drills.fuzz.http2 import block, integer, text
from saturnmq.gateway.http2 import hpack
from saturnmq.gateway.http2.hpack import (
    LIST_MAX,
    STATIC,
    TABLE_MAX,
    BadBlock,
    BadText,
    HeaderDecoder,
    ListTooLong,
    encoded,
    unpacked,
)

# Every byte once, 0 to 255, as the package hpack 4.2 packs them.
EVERY_BYTE = bytes.fromhex(
    "ffc7fffd8fffffe2fffffe3fffffe4fffffe5fffffe6fffffe7fffffe8ffffeafffffff3fffffa7fffffabffffff"
    "dfffffebfffffecfffffedfffffeefffffefffffff0ffffff1ffffff2fffffffbfffffcffffffd3fffffd7fffffd"
    "bfffffdffffffe3fffffe7fffffebfffffed4fe3f9ffaffcabf1febfafefe7fdfd2cbb00089969b71d79fb9f7fff"
    "20ffbff3ff50ddbd7f061c58f265cd9f469d5af66dddbf871e5f9cff7ff7fffc3ff9ffe45fff4719242cb34e6e9d"
    "68a6a3d7dac426defe3cfaf7fffbfe7ffbffdffffffcfffe6ffff4bfff9ffffa3fffd3ffff53fffd5ffffb3fffeb"
    "7fffdaffffb7ffff73fffeeffffdeffffebffffbfffffd9ffffdbfffebffffe0ffffeeffffc3ffff8bffff1ffffe"
    "4fffee7fffb1ffff97fffd9ffffcdffff9fffffbffffdafffeeffff4ffffb7fffee7fffe8ffffd3fffdeffffd5ff"
    "feeffffbdffffe1fffdfffff7fffff5ffffecffff07fff87fffe0ffff17fffedffff87ffff77fffeffffeaffff8b"
    "fffe3ffff93ffff87fffcbffff37ffff1fffff83ffffe1fffebfffe3ffff3fffff2ffffa3ffffd9fffff17ffffc7"
    "fffff27ffffdefffffbffffff2fffff8fffffb7fff97fff8fffffe6fffffc1fffff87ffffe7fffffc5ffffe5fffe"
    "4ffff2fffffd1fffff4ffffffefffffe3fffffc9fffff97fffb3ffffcffffb7fffcdffff4ffff9ffffd1ffffcfff"
    "feaffffafffffddffffeffffff4fffff5fffffabffffa7ffffd7fffff9bffffecfffffb7fffff3fffffe8fffffd3"
    "fffffabfffff5fffffff7ffffecfffffdbfffffbbfffff7ffffff0fffffbbf"
)
BITS = {
    symbol: f"{code:0{length}b}"
    for (length, code), symbol in hpack._codes().items()  # checked by EVERY_BYTE
}
DATE = ("date", "Mon, 21 Oct 2013 20:13:21 GMT")
LOCATION = ("location", "https://www.example.com")
COOKIE = ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")

# Appendix C: each block, its headers, and the size of the table behind it.
REQUESTS = [
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    [
        *((":method", "GET"), (":scheme", "http"), (":path", "/")),
        *((":authority", "www.example.com"), ("cache-control", "no-cache")),
    ],
    [
        *((":method", "GET"), (":scheme", "https"), (":path", "/index.html")),
        *((":authority", "www.example.com"), ("custom-key", "custom-value")),
    ],
]
ANSWERS = [
    [(":status", "302"), ("cache-control", "private"), DATE, LOCATION],
    [(":status", "307"), ("cache-control", "private"), DATE, LOCATION],
    [
        *((":status", "200"), ("cache-control", "private")),
        *((DATE[0], DATE[1].replace("21 GMT", "22 GMT")), LOCATION),
        *(("content-encoding", "gzip"), COOKIE),
    ],
]
CHAINS = {
    "C.3": (
        REQUESTS,
        [57, 110, 164],
        [
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ],
    ),
    "C.4": (
        REQUESTS,
        [57, 110, 164],
        [
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ],
    ),
    "C.5": (
        ANSWERS,
        [222, 222, 215],
        [
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d"
            "546e1768747470733a2f2f7777772e6578616d706c652e636f6d",
            "4803333037c1c0bf",
            "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f"
            "6f3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b"
            "2076657273696f6e3d31",
        ],
    ),
    "C.6": (
        ANSWERS,
        [222, 222, 215],
        [
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad17186"
            "3c78f0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335"
            "dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        ],
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_examples_of_the_rfc_are_read(chain: str) -> None:
    wanted, sizes, blocks = CHAINS[chain]
    decoder = HeaderDecoder()
    if wanted is ANSWERS:  # appendices C.5 and C.6 are about a table of 256 bytes
        assert decoder.decode(integer(256, 5, 0x20)) == []
    for headers, size, data in zip(wanted, sizes, blocks, strict=True):
        assert decoder.decode(bytes.fromhex(data)) == headers
        assert decoder._size == size


@pytest.mark.parametrize(
    ("data", "headers", "is_kept"),
    [
        ("400a637573746f6d2d6b65790c637573746f6d2d6865616465", ("custom-key", "custom-heade"), 1),
        ("040c2f73616d706c652f70617468", (":path", "/sample/path"), 0),
        ("100870617373776f726406736563726574", ("password", "secret"), 0),
        ("82", (":method", "GET"), 0),
    ],
)
def test_each_form_of_a_header_is_read(data: str, headers: tuple[str, str], is_kept: int) -> None:
    decoder = HeaderDecoder()
    assert decoder.decode(bytes.fromhex(data)) == [headers]
    assert len(decoder._table) == is_kept


def test_integers_of_the_rfc_are_read() -> None:
    assert hpack._integer(b"\x0a", 0, 5) == (10, 1)
    assert hpack._integer(b"\x1f\x9a\x0a", 0, 5) == (1337, 3)
    assert hpack._integer(b"\x2a", 0, 8) == (42, 1)


@given(st.integers(0, 1 << 28), st.integers(1, 8))
def test_every_integer_in_the_limits_is_read(value: int, bits: int) -> None:
    data = integer(value, bits)
    assert hpack._integer(data + b"\xff", 0, bits) == (value, len(data))


@pytest.mark.parametrize(
    "tail", ["80" * 5 + "01", "80" * 8 + "00", "ffffffff0f", "ff" * 20, "", "80"]
)
def test_integers_beyond_the_limits_are_bad(tail: str) -> None:
    with pytest.raises(BadBlock):
        HeaderDecoder().decode(b"\xff" + bytes.fromhex(tail))


# Huffman's code


def test_every_symbol_has_the_code_of_the_rfc() -> None:
    assert unpacked(EVERY_BYTE) == bytes(range(256))
    assert sorted(BITS) == [*range(257)]
    assert BITS[256] == "1" * 30


def test_a_code_ends_with_less_than_a_byte_of_ones() -> None:
    assert unpacked(b"") == b""
    assert unpacked(b"\x07") == b"0"  # 00000, 111
    for bad in (b"\x00\x00\x01", b"\x07\xff", b"\xff", b"\x06"):
        with pytest.raises(BadBlock):
            unpacked(bad)


def test_the_end_symbol_in_a_text_is_bad() -> None:
    with pytest.raises(BadBlock, match="end symbol"):
        unpacked(b"\xff\xff\xff\xff")


@given(st.binary(max_size=200))
def test_what_is_packed_is_unpacked(data: bytes) -> None:
    bits = "".join(BITS[byte] for byte in data)
    bits += "1" * (-len(bits) % 8)
    assert unpacked(bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))) == data


@given(st.binary(max_size=40))
def test_no_text_breaks_the_unpacking(data: bytes) -> None:
    try:
        found = unpacked(data)
    except BadBlock:
        return
    bits = "".join(BITS[byte] for byte in found)
    assert f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}"[: len(bits)] == bits or not data


# the table


def test_the_static_table_is_that_of_the_rfc() -> None:
    assert STATIC[0] == (":authority", "")
    assert STATIC[15] == ("accept-encoding", "gzip, deflate")
    assert STATIC[60] == ("www-authenticate", "")
    assert HeaderDecoder().decode(bytes(range(0x81, 0x81 + 61))) == [*STATIC]


@given(st.data(), st.integers(0, 1 << 30))
def test_blocks_of_another_encoder_are_read(data: st.DataObject, seed: int) -> None:
    chance = random.Random(seed)
    encoder = RandomEncoder(chance, STATIC)
    encoder.huffman = BITS
    decoder = HeaderDecoder()
    names = st.sampled_from([b":path", b"date", b"x-mq-client-id", b"n" * 30])
    values = st.sampled_from([b"", b"/", b"a b", b"1" * 130, b"\xff\t~", b"v" * 700])
    for _ in range(data.draw(st.integers(1, 6))):
        headers = data.draw(st.lists(st.tuples(names, values), max_size=8))
        found = decoder.decode(encoder.encode(headers))
        assert found == [(name.decode(), value.decode("latin-1")) for name, value in headers]
        assert decoder._size <= decoder._limit
        assert len(decoder._table) == len(encoder._table)


def test_old_entries_leave_a_full_table_and_one_that_is_too_large_empties_it() -> None:
    decoder = HeaderDecoder()
    for n in range(200):
        decoder.decode(block([(b"n", b"%03d" % n)], kept=True))
    assert len(decoder._table) == TABLE_MAX // 36
    assert decoder.decode(b"\xbe") == [("n", "199")]
    assert decoder.memory < 40_000
    decoder.decode(block([(b"n", b"v" * TABLE_MAX)], kept=True))
    assert (len(decoder._table), decoder._size, decoder.memory) == (0, 0, 0)


def test_the_size_of_the_table_changes_at_the_begin_of_a_block_only() -> None:
    decoder = HeaderDecoder()
    decoder.decode(block([(b"n", b"v")], kept=True))
    assert decoder.decode(b"\x20" + integer(TABLE_MAX, 5, 0x20)) == []
    with pytest.raises(BadBlock, match="no header 62"):
        decoder.decode(b"\xbe")
    for bad in (b"\x82\x20", integer(TABLE_MAX + 1, 5, 0x20)):
        with pytest.raises(BadBlock, match="table"):
            HeaderDecoder().decode(bad)


@pytest.mark.parametrize(
    "bad",
    [b"\x80", b"\xbe", b"@", b"\0", b"\0\x05abcd", b"\0\x01a", b"\0\x01a\x7f", b"\x0f\xff\xff\x7f"],
)
def test_blocks_of_no_encoder_are_bad(bad: bytes) -> None:
    with pytest.raises(BadBlock):
        HeaderDecoder().decode(bad)


@given(st.binary(max_size=100))
def test_no_block_breaks_the_decoder(data: bytes) -> None:
    with contextlib.suppress(BadBlock, BadText, ListTooLong):
        HeaderDecoder().decode(data)


# limits


def test_a_list_that_is_too_long_leaves_the_table_in_order() -> None:
    decoder = HeaderDecoder()
    decoder.decode(block([(b"bomb", b"v" * 3000)], kept=True))
    with pytest.raises(ListTooLong, match=str(LIST_MAX)):
        decoder.decode(b"\xbe" * 6 + b"@" + text(b"last") + text(b"one"))
    assert decoder.decode(b"\xbe") == [("last", "one")]
    decoder.decode(block([(b"n", b"v" * (LIST_MAX - 33))]))


@pytest.mark.parametrize("dirt", [b"a\0b", b"a\rb", b"\n"])
def test_a_value_with_a_line_end_is_told_and_kept_without_it(dirt: bytes) -> None:
    decoder = HeaderDecoder()
    with pytest.raises(BadText):
        decoder.decode(block([(b"n", dirt)], kept=True))
    ((_, value),) = decoder.decode(b"\xbe")
    assert value == dirt.translate(bytes.maketrans(b"\0\r\n", b"   ")).decode()


# the encoder


@given(
    st.lists(
        st.one_of(
            st.sampled_from(STATIC),
            st.tuples(
                st.text("abc-", min_size=1, max_size=9),
                st.text(st.characters(codec="latin-1"), max_size=400),
            ),
        )
    )
)
def test_headers_of_the_server_keep_the_table_of_its_client_empty(
    headers: list[tuple[str, str]],
) -> None:
    decoder = HeaderDecoder()
    try:
        assert decoder.decode(encoded(headers)) == headers
    except (BadText, ListTooLong):
        return
    assert not decoder._table


def test_a_long_header_of_the_server_is_read() -> None:
    for size in (126, 127, 128, 254, 255, 256, 10_000):
        headers = [("grpc-message", "m" * size)]
        assert HeaderDecoder().decode(encoded(headers)) == headers
