"""Commands that are read in one go, against the reference: `parse_frame` and the schema."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from saturnmq.protocol import command_reading
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.command_reading import TypedRequest, header_of, read_answer, reader_of
from saturnmq.protocol.header_fields import HeaderField, NumberField
from saturnmq.protocol.headers import HEADERS
from saturnmq.protocol.remoting import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Command,
    encode,
    encode_binary,
    parse_frame,
)
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame

read_frame = reader_of(HEADERS)
KINDS = {int(code): header for code, header in HEADERS.items()}
compiled = pytest.mark.skipif(command_reading._kernel is None, reason="no compiled kernel")

SEND = {
    "a": "senders",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "1",
    "f": "0",
    "g": "1790000000000",
    "h": "0",
    "i": "UNIQ_KEY\x017F000001\x02WAIT\x01true\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}
PULL = {
    "consumerGroup": "readers",
    "topic": "orders",
    "queueId": "3",
    "queueOffset": "123456789",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "-1",
    "expressionType": "TAG",
}
USUAL = [
    (RequestCode.SEND_MESSAGE_V2, SEND),
    (RequestCode.SEND_BATCH_MESSAGE, {**SEND, "m": "true", "saturnSizes": "true"}),
    (
        RequestCode.SEND_MESSAGE,
        {"topic": "orders", "queueId": "1", "properties": "KEYS\x01é漢\x02"},
    ),
    (RequestCode.PULL_MESSAGE, PULL),
    (RequestCode.HEART_BEAT, {}),
]


def framed(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def outcome(read: Any, frame: bytes) -> tuple[object, ...]:
    """All that a handler may see of a request, or the errors in its place."""
    try:
        command = read(memoryview(frame))
    except MalformedFrame:
        return ("malformed",)
    header = KINDS.get(command.code)
    fields: object = None
    if header is not None:
        try:
            fields = header_of(command, header)
        except InvalidParameter as error:
            fields = str(error)
    return (
        command.code,
        command.flag,
        command.opaque,
        command.version,
        command.language,
        command.remark,
        tuple(command.more),
        bytes(command.body),
        fields,
        type(fields),
        command.ext,
    )


def same(frame: bytes) -> None:
    """Both readers see in it what the reference sees."""
    expected = outcome(parse_frame, frame)
    assert outcome(read_frame, frame) == expected
    assert outcome(read_answer, frame) == expected


@compiled
@pytest.mark.parametrize("encoded", [encode, encode_binary])
@pytest.mark.parametrize(("code", "ext"), USUAL)
def test_usual_requests_are_read_in_one_go(code: int, ext: dict[str, str], encoded: Any) -> None:
    for flag, body in [(0, b"body"), (FLAG_ONEWAY, b""), (0, b"x" * 70_000)]:
        command = Command(int(code), ext, body, opaque=0x7FFFFFFF, flag=flag)
        frame = b"".join(encoded(command))
        assert type(read_frame(memoryview(frame))) is TypedRequest
        same(frame)


ANSWERS = [
    (0, {"MSG_REGION": "here", "msgId": "7F" * 16, "queueId": "3", "queueOffset": "17"}, None),
    (0, {"nextBeginOffset": "18", "minOffset": "0", "maxOffset": "18"}, "FOUND"),
    (19, {}, "no new message"),
    (1, {"what": 'é漢 "quoted"\n', "é": "", "": "x"}, 'system error: "é\\\x00"'),
]


@compiled
@pytest.mark.parametrize(("code", "ext", "remark"), ANSWERS)
def test_usual_answers_are_read_in_one_go(code: int, ext: Any, remark: str | None) -> None:
    for body in (b"", b"body", b"x" * 70_000):
        command = Command(
            code, ext, body, opaque=0x7FFFFFFF, flag=FLAG_RESPONSE, language="JAVA", remark=remark
        )
        frame = b"".join(encode(command))
        found = command_reading._kernel.read_answer(memoryview(frame))
        is_plain = all(name.isascii() for name in ext)
        assert (type(found) is Command) is is_plain
        same(frame)


def test_fields_of_answers_do_not_mix() -> None:
    for number in range(10):
        ext = {f"name-{number}": str(number)}
        assert read_answer(memoryview(b"".join(encode(Command(0, ext, flag=1))))).ext == ext


@pytest.mark.parametrize("encoded", [encode, encode_binary])
def test_a_field_without_a_name_is_no_field_that_has_one_name(encoded: Any) -> None:
    same(b"".join(encoded(Command(int(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG), {"": "0"}))))


def test_the_body_is_a_slice_of_the_frame() -> None:
    frame = bytearray(b"".join(encode(Command(310, SEND, b"one"))))
    command = read_frame(memoryview(frame))
    frame[-3:] = b"two"
    assert command.body == b"two"
    assert command.ext == SEND  # which is kept


def test_fields_that_a_handler_clears_are_gone() -> None:
    command = read_frame(memoryview(b"".join(encode(Command(11, PULL)))))
    command.ext = {}
    assert command.ext == {}


def values_of(field: HeaderField) -> list[str]:
    texts = ["", "0", "1", "-1", "true", "false", "TRUE", "name", " ", "é", "a\x01b\x02", 'q"\\/']
    if isinstance(field, NumberField):
        texts += [str(n) for n in (field.least, field.least - 1, field.most, field.most + 1)]
        texts += ["007", "-0", "+1", "1.5", "9" * 19, "٣", " 1"]
    else:
        texts += ["x" * 255, "x" * 256, "\x7f", "\ud7ff", "\U0001f600", "\x00", "0" * 32, "LOWER"]
    return texts


@st.composite
def requests(draw: st.DrawFn) -> Command:
    code = draw(st.sampled_from([*map(int, HEADERS), 0, 99]))
    ext = {}
    header = KINDS.get(code)
    for field in header.FIELDS.values() if header is not None else ():
        how = draw(st.sampled_from(["usual"] * 6 + ["odd", "left out", "long", "both"]))
        value = draw(st.sampled_from(values_of(field)))
        if how == "usual":
            value = str(max(1, field.least)) if isinstance(field, NumberField) else "name"
        if how != "left out":
            ext[field.long or field.name if how == "long" else field.name] = value
        if how == "both" and field.long is not None:
            ext[field.long] = value
    ext |= draw(st.dictionaries(st.sampled_from(["zone", "é", 'q"', ""]), st.text(max_size=3)))
    command = Command(code, ext, draw(st.binary(max_size=20)))
    command.opaque = draw(st.integers(-(1 << 31), (1 << 31) - 1))
    command.flag = draw(st.sampled_from([0, 0, 0, 2, 4, 1, 1, 3]))
    command.version = draw(st.sampled_from([493, 0, -1]))
    command.language = draw(st.sampled_from(["PYTHON", "JAVA", "GO", "RUST"]))
    if draw(st.integers(0, 9)) == 0:
        command.remark = "why"
    return command


@settings(max_examples=1500, deadline=None)
@given(requests(), st.data())
def test_any_request_is_read_as_the_reference_reads_it(
    command: Command, data: st.DataObject
) -> None:
    encodings = [encode] if command.code > 0x7FFF else [encode, encode_binary]
    for encoded in encodings:
        frame = b"".join(encoded(command))
        same(frame)
        damaged = bytearray(frame)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(
                st.sampled_from([0, 0x20, 0x22, 0x2C, 0x30, 0x5C, 0x7D, 0xC3, 0xFF])
            )
        same(bytes(damaged))
        cut = data.draw(st.integers(0, len(frame)))
        same(frame[:cut])
        same(frame + b"x")


scalars = st.sampled_from(
    [
        "0",
        "1",
        "-0",
        "310",
        "00",
        "1e2",
        "1.0",
        "4294967296",
        "null",
        "true",
        '"310"',
        '"\\u0041"',
        "{}",
    ]
)
names = st.sampled_from(
    [
        "code",
        "flag",
        "opaque",
        "version",
        "language",
        "remark",
        "serializeTypeCurrentRPC",
        "extFields",
        "other",
    ]
)
escapes = st.sampled_from(
    [
        '"x"',
        '""',
        '"\\u0001"',
        '"\\ud83d\\ude00"',
        '"\\ud83d"',
        '"\\q"',
        '"\\n\\t\\b\\f\\r\\/\\\\\\""',
        '"\\u00e9\\u6f22"',
        '"\t"',
        "1",
        "true",
        "null",
        "1.5",
        "[]",
    ]
)
fields = st.sampled_from(["b", "topic", "e", "i", "m", "\\u0062", "zone", "g"])


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(st.tuples(names, scalars), max_size=4),
    st.lists(st.tuples(fields, escapes), max_size=5),
    st.sampled_from(["", " ", "\n"]),
    st.booleans(),
)
@example([], [("b", '"x"'), ("b", '"y"')], "", True)
@example([], [("b", '""'), ("topic", '"y"')], "", True)
@example([("code", "11")], [("b", '"x"')], "", False)
@example([], [("b", '"x"'), ("zone", '"é"')], "", True)
@example([("flag", "1")], [("b", '"x"'), ("b", '"y"')], "", True)
@example([("flag", "1"), ("remark", '"x"')], [("b", "1")], "", False)
@example([("flag", "1"), ("remark", "null")], [("b", '""')], "", False)
def test_any_json_is_read_as_the_reference_reads_it(
    others: list[tuple[str, str]], ext: list[tuple[str, str]], space: str, first: bool
) -> None:
    written = ",".join(f'"{name}":{value}' for name, value in ext)
    parts = ['"code":310', f'"extFields":{space}{{{written}}}']
    parts += [f'"{name}":{value}' for name, value in others]
    if not first:
        parts.reverse()
    same(framed(f"{{{','.join(parts)}}}{space}".encode()))


@pytest.mark.parametrize("code", [310, 11, 17, 390020])
def test_every_field_is_held_to_its_bounds(code: int) -> None:
    header = HEADERS[RequestCode(code)]
    usual = {
        field.name: str(max(1, field.least)) if isinstance(field, NumberField) else "name"
        for field in header.FIELDS.values()
    }
    for field in header.FIELDS.values():
        for value in values_of(field):
            for name in (field.name, field.long or field.name):
                ext = {key: text for key, text in usual.items() if key != field.name}
                same(b"".join(encode(Command(code, {**ext, name: value}))))


ESCAPES = [
    "n",
    "/",
    "u0041",
    "u00e9",
    "uFFFF",
    "ud7ff",
    "ud800",
    "udfff",
    "ue000",
    "u00g0",
    "u12",
    "q",
]


@pytest.mark.parametrize("flag", [0, FLAG_RESPONSE])
@pytest.mark.parametrize("name", ["b", "i", "zone"])
def test_every_escape_is_read_as_json_has_it(name: str, flag: int) -> None:
    for escape in ESCAPES:
        text = f'{{"code":310,"extFields":{{"b":"orders","{name}":"a\\{escape}b"}},"flag":{flag}}}'
        same(framed(text.replace('"b":"orders",', "" if name == "b" else '"b":"orders",').encode()))


def test_nothing_may_stand_behind_the_header() -> None:
    for rest in ("", " ", "}", "x", ",", "\x00"):
        same(framed(('{"code":310,"extFields":{"b":"orders"}}' + rest).encode()))


def test_more_fields_than_the_limit_are_refused() -> None:
    for many in (1000, 1023, 1024, 1025, 2000):
        ext = {**SEND, **{f"x{n}": "1" for n in range(many - len(SEND))}}
        for encoded in (encode, encode_binary):
            same(b"".join(encoded(Command(310, ext))))


def test_a_header_that_is_too_large_is_refused() -> None:
    def sized(size: int) -> bytes:
        return b"".join(encode(Command(310, {**SEND, "i": "x" * size})))

    for size in (200_000, 260_000):
        same(sized(size))
    for read, size in ((read_frame, 270_000), (read_answer, 4_200_000)):
        with pytest.raises(MalformedFrame, match="header of"):
            read(memoryview(sized(size)))
    assert len(read_answer(memoryview(sized(4_100_000))).ext["i"]) == 4_100_000


@pytest.mark.parametrize("flag", [0, FLAG_RESPONSE])
def test_bytes_that_are_no_utf8_are_left_to_the_reference(flag: int) -> None:
    ext = {"b": "orders", "i": "@", "zone": "#"}
    fields = {"code": 310, "extFields": ext, "flag": flag}
    good = json.dumps(fields | {"remark": "@"} if flag else fields)
    for mark in (b"@", b"#", b"orders"):
        for wrong in (b"\xff", b"\xc3", b"\xed\xa0\x80", "漢".encode()):
            same(framed(good.replace(" ", "").encode().replace(mark, wrong)))
