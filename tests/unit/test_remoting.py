"""Remoting frames: golden vectors of a real RocketMQ, round trips, every truncation."""

import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saturnmq.protocol.remoting import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    LANGUAGES,
    MAX_FIELDS,
    MAX_FRAME,
    MAX_HEADER,
    Body,
    Command,
    FrameDecoder,
    encode,
    encode_binary,
    frame_size,
    parse_frame,
)
from saturnmq.runtime.errors import MalformedFrame

# Recorded from RocketMQ 5.4.0.
BINARY = bytes.fromhex(
    "0000002a 01000026 0069 03 01ed 00000001 00000000 00000000 00000011"
    "0005 746f706963 00000006 52546f706963"
)
REQUEST_HEADER = (
    rb'{"code":310,"extFields":{"a":"PG1","b":"RTopic","c":"TBW102","d":"4","e":"0","f":"0",'
    rb'"g":"1795228024155","h":"0","i":"u\u0001v\u0002KEYS\u0001key1\u0002UNIQ_KEY\u0001'
    rb'FD00..0000\u0002WAIT\u0001true\u0002TAGS\u0001TagA\u0002","j":"0","k":"false",'
    rb'"m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":7,'
    rb'"serializeTypeCurrentRPC":"JSON","version":493}'
)
RESPONSE_HEADER = (
    b'{"code":0,"extFields":{"queueId":"0","transactionId":"FD00..0000",'
    b'"msgId":"7F0000010000326F0000000000000000","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"queueOffset":"0"},"flag":1,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":493}'
)


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


REQUEST = frame(REQUEST_HEADER, b"hello")
RESPONSE = frame(RESPONSE_HEADER)


def fields(command: Command) -> tuple[object, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        command.language,
        command.version,
        command.remark,
        command.ext,
        bytes(command.body),
    )


def test_golden_binary_frame_parses_and_is_rebuilt() -> None:
    command = parse_frame(memoryview(BINARY))
    assert fields(command) == (105, 1, 0, "PYTHON", 493, None, {"topic": "RTopic"}, b"")
    assert b"".join(encode_binary(command)) == BINARY


def test_golden_json_request_and_response_parse() -> None:
    request = parse_frame(memoryview(REQUEST))
    assert (request.code, request.opaque, request.language) == (310, 7, "JAVA")
    assert request.ext["i"].startswith("u\x01v\x02KEYS\x01key1\x02")
    assert request.body == b"hello"
    assert not request.is_response
    response = parse_frame(memoryview(RESPONSE))
    assert response.is_response
    assert response.code == 0
    assert response.ext["queueOffset"] == "0"
    assert len(response.body) == 0


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
def test_decoder_takes_any_chunks_and_both_serialisations_on_one_connection(chunk: int) -> None:
    stream = REQUEST + BINARY + RESPONSE
    decoder = FrameDecoder()
    commands = [
        command
        for start in range(0, len(stream), chunk)
        for command in decoder.feed(stream[start : start + chunk])
    ]
    assert [command.code for command in commands] == [310, 105, 0]
    assert decoder.pending == 0


@pytest.mark.parametrize("whole", [REQUEST, BINARY, RESPONSE])
def test_truncated_frame_waits_at_every_length(whole: bytes) -> None:
    for size in range(len(whole)):
        decoder = FrameDecoder()
        assert decoder.feed(whole[:size]) == []
        assert decoder.pending == size


def test_binary_header_cut_at_any_length_is_malformed() -> None:
    for size in range(len(BINARY) - 8):
        with pytest.raises(MalformedFrame):
            parse_frame(memoryview(frame(BINARY[8 : 8 + size], kind=1)))


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
commands = st.builds(
    Command,
    st.integers(-(2**15), 2**15 - 1),
    st.dictionaries(text.filter(bool), text, max_size=6),
    st.binary(max_size=200),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    language=st.sampled_from(LANGUAGES),
    version=st.integers(0, 2**15 - 1),
    remark=st.none() | text.filter(bool),
)


@settings(max_examples=60)
@given(commands)
def test_json_and_binary_round_trip(command: Command) -> None:
    assert fields(parse_frame(memoryview(b"".join(encode(command))))) == fields(command)
    assert fields(parse_frame(memoryview(b"".join(encode_binary(command))))) == fields(command)


@settings(max_examples=60)
@given(st.binary(max_size=120), st.sampled_from([0, 1, 2]))
def test_garbage_header_is_malformed_or_parsed_but_nothing_else(header: bytes, kind: int) -> None:
    with contextlib.suppress(MalformedFrame):
        parse_frame(memoryview(frame(header, kind=kind)))


def test_pop_codes_fit_json_headers() -> None:
    assert parse_frame(memoryview(b"".join(encode(Command.request(200050))))).code == 200050


def test_ext_fields_are_written_even_when_empty_and_never_a_body_key() -> None:
    (head,) = encode(Command.request(34))
    assert b'"extFields":{}' in head
    assert b'"body"' not in head
    assert b"remark" not in head


def test_header_values_of_other_types_are_taken_as_fastjson_does() -> None:
    header = (
        b'{"code":"105","opaque":"3","flag":0,"language":"KLINGON","unknown":[1],'
        b'"extFields":{"a":1,"b":true,"c":null,"d":1.5}}'
    )
    command = parse_frame(memoryview(frame(header)))
    assert (command.code, command.opaque, command.language, command.version) == (105, 3, None, 0)
    assert command.ext == {"a": "1", "b": "true", "d": "1.5"}
    assert parse_frame(memoryview(frame(b'{"code":1,"language":3}'))).language == "PYTHON"
    assert parse_frame(memoryview(frame(b'{"code":1}'))).language == "JAVA"
    assert parse_frame(memoryview(frame(b'{"code":1}'))).ext == {}


@pytest.mark.parametrize(
    "bad",
    [
        frame(b"{"),
        frame(b"[]"),
        frame(b'{"code":[]}'),
        frame(b'{"code":"x"}'),
        frame(b'{"code":4294967296}'),
        frame(b'{"code":1,"extFields":[]}'),
        frame(b"{}", kind=2),
        struct.pack(">iI", 4, 1),
    ],
)
def test_malformed_frame_is_refused(bad: bytes) -> None:
    with pytest.raises(MalformedFrame):
        parse_frame(memoryview(bad))


@pytest.mark.parametrize("length", [-1, 0, 3, MAX_FRAME + 1, 0x16030100])
def test_impossible_length_is_refused_from_its_four_bytes(length: int) -> None:
    with pytest.raises(MalformedFrame, match="allowed"):
        frame_size(memoryview(struct.pack(">i", length)), 0, 4)


def test_largest_frame_is_allowed() -> None:
    assert frame_size(memoryview(struct.pack(">i", MAX_FRAME)), 0, 4) == MAX_FRAME + 4


def test_reply_copies_opaque_and_sets_the_response_bit() -> None:
    request = Command(310, opaque=9, flag=FLAG_ONEWAY)
    assert request.is_oneway
    reply = request.reply(17, "no")
    assert (reply.opaque, reply.flag, reply.code, reply.remark) == (9, FLAG_RESPONSE, 17, "no")


@pytest.mark.parametrize("encode_it", [encode, encode_binary])
def test_a_header_of_more_bytes_or_fields_than_any_request_has_is_malformed(
    encode_it: Callable[[Command], list[Body]],
) -> None:
    def parsed(ext: dict[str, str]) -> Command:
        return parse_frame(memoryview(b"".join(encode_it(Command(10, ext)))))

    fields = {str(number): "x" for number in range(MAX_FIELDS)}
    assert parsed(fields).ext == fields
    with pytest.raises(MalformedFrame, match="more than 1024 ext fields"):
        parsed({**fields, "one": "more"})
    properties = {"i": "\x01" * 32_767}
    assert parsed(properties).ext == properties, "all that a message can have"
    with pytest.raises(MalformedFrame, match="the limit is 262144"):
        parsed({"i": "x" * MAX_HEADER})
