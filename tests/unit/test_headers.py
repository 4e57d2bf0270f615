"""The schema of requests: what each field of each header takes, and that handlers see nothing else
of a request's fields.
"""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.broker.handlers.requests import Services, served
from saturnmq.protocol import headers
from saturnmq.protocol.header_fields import (
    REQUIRED,
    ChoiceField,
    FlagField,
    Header,
    HeaderField,
    IdentityField,
    NumberField,
    TextField,
)
from saturnmq.protocol.headers import HEADERS
from saturnmq.runtime.errors import InvalidParameter

ROOT = Path(__file__).parents[2]
SCHEMA = [
    pytest.param(header, attribute, id=f"{header.__name__}.{attribute}")
    for header in dict.fromkeys(HEADERS.values())
    for attribute in header.FIELDS
]
GOOD = {
    NumberField: "1",
    TextField: "name",
    FlagField: "true",
    ChoiceField: "LOWER",
    IdentityField: "0" * 32,
}


def required(header: type[Header]) -> dict[str, str]:
    """The fewest fields that a request of this kind needs."""
    fields = header.FIELDS.values()
    return {each.name: good(each) for each in fields if each.default is REQUIRED}


def good(field: HeaderField) -> str:
    if isinstance(field, NumberField):
        return str(max(1, field.least))
    return GOOD[type(field)]


def read(header: type[Header], attribute: str, value: str | None) -> object:
    ext = required(header)
    name = header.FIELDS[attribute].name
    ext.pop(name, None)
    if value is not None:
        ext[name] = value
    return getattr(header.decode(ext), attribute)


@pytest.mark.parametrize(("header", "attribute"), SCHEMA)
def test_a_field_takes_its_bounds_and_nothing_beyond(header: type[Header], attribute: str) -> None:
    field = header.FIELDS[attribute]
    if isinstance(field, NumberField):
        inside = [field.least, field.most]
        assert [read(header, attribute, str(n)) for n in inside] == inside
        outside = [str(field.least - 1), str(field.most + 1), "9" * 400, "1.5", "0x1", "1_0", "²"]
    elif isinstance(field, TextField):
        assert read(header, attribute, "x" * field.most) == "x" * field.most
        outside = ["x" * (field.most + 1)]
        if field.is_name:
            outside += [" ", "a\nb", "\x00", "\ud800", "é" * (field.most // 2 + 1)]
    elif isinstance(field, ChoiceField):
        assert [read(header, attribute, w.lower()) for w in field.words] == list(field.words)
        outside = ["MIDDLE"]
    elif isinstance(field, IdentityField):
        assert read(header, attribute, "a1" * 16) == "a1" * 16
        outside = ["A1" * 16, "1" * 31]
    else:
        assert [read(header, attribute, v) for v in ("TRUE", "yes", "1")] == [True, False, False]
        outside = []
    for value in outside:
        with pytest.raises(InvalidParameter, match=re.escape(field.name)) as error:
            read(header, attribute, value)
        assert field.kind in str(error.value)
        assert len(str(error.value)) < 300, "a long value is shown in part"


@pytest.mark.parametrize(("header", "attribute"), SCHEMA)
@pytest.mark.parametrize("value", [None, ""])
def test_a_field_that_is_missing_or_empty_is_its_default(
    header: type[Header], attribute: str, value: str | None
) -> None:
    field = header.FIELDS[attribute]
    if field.default is REQUIRED:
        with pytest.raises(InvalidParameter, match=f"{field.name!r}.* is missing: send "):
            read(header, attribute, value)
    else:
        assert read(header, attribute, value) == field.default


@given(
    header=st.sampled_from(list(dict.fromkeys(HEADERS.values()))),
    ext=st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=6),
    data=st.data(),
)
def test_a_header_is_decoded_or_refused_and_reads_back_what_it_wrote(header, ext, data) -> None:
    values = st.one_of(st.text(max_size=40), st.integers().map(str), st.just("true"))
    ext |= {
        each.name: data.draw(values) for each in header.FIELDS.values() if data.draw(st.booleans())
    }
    try:
        decoded = header.decode(ext)
    except InvalidParameter:
        return
    assert header.decode(decoded.encode()) == decoded


def test_the_long_names_of_a_send_are_read_where_the_short_ones_are_missing() -> None:
    long = {"topic": "T", "queueId": "3", "flag": "-7", "batch": "true", "properties": "a\x01b\x02"}
    short = {"b": "T", "e": "3", "h": "-7", "m": "true", "i": "a\x01b\x02"}
    assert headers.SendHeader.decode(long) == headers.SendHeader.decode(short)
    assert headers.SendHeader.decode(long | {"b": "other"}).topic == "other"


def test_the_fields_on_the_wire_have_one_name_each() -> None:
    for header in HEADERS.values():
        names = [name for field in header.FIELDS.values() for name in (field.name, field.long)]
        named = [name for name in names if name is not None]
        assert len(named) == len(set(named)), header


def header_of(handler: object) -> object:
    """The type of the last parameter of a handler."""
    last = list(inspect.signature(handler).parameters)[-1]
    return typing.get_type_hints(handler)[last]


def test_every_handler_of_a_broker_gets_the_header_that_the_schema_names() -> None:
    classes = typing.get_type_hints(Services)
    found = served(Services(**classes))  # classes stand for their instances
    assert {code: header_of(handler) for code, handler in found.items()} == {
        code: HEADERS[code] for code in found
    }


def test_nobody_else_reads_the_fields_of_a_request() -> None:
    reads = re.compile(r"\b(?:request|command|cmd)\.ext\b(?! = \{\})")  # or lets them go
    found = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("broker", "nameserver")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if reads.search(line)
    }
    assert found == {
        # A signature covers all fields, whatever they are; and a slave passes all of them on.
        "broker/access/guard.py: fields, is_inside = request.ext, isinstance(endpoint, "
        "InnerEndpoint)",
        "broker/handlers/access.py: passed = Command.request(request.code, {**request.ext, "
        'PASSED_ON: "true"}, request.body)',
        'broker/context.py: log.exception("request %d with %s failed", request.code, '
        "without_secrets(request.ext))",
        "broker/registration.py: news = answer.command.ext",
        "nameserver/server.py: return HEADERS[RequestCode(command.code)].decode(command.ext)",
    }
