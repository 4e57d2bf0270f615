"""docs/internals/protocol.md against the schema: each code, each field, each response code."""

from __future__ import annotations

import re
from collections import Counter
from enum import IntEnum
from itertools import chain
from pathlib import Path

import pytest
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.header_fields import (
    INT32_MIN,
    INT64_MIN,
    NAME_MAX,
    REQUIRED,
    TEXT_MAX,
    ChoiceField,
    FlagField,
    Header,
    HeaderField,
    NumberField,
    TextField,
)
from saturnmq.protocol.headers import HEADERS

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "internals" / "protocol.md"
PACKAGES = ("protocol", "gateway", "nameserver", "broker", "client", "pipeline", "cli")
I32_MAX, I64_MAX = 2**31 - 1, 2**63 - 1
NUMBERS = {
    (INT32_MIN, I32_MAX): "i32",
    (INT64_MIN, I64_MAX): "i64",
    (0, I32_MAX): "u31",
    (0, I64_MAX): "u63",
}


def number(value: int) -> str:
    power = value + 1
    return f"2^{power.bit_length() - 1}-1" if power >> 16 and not power & value else str(value)


def kind(field: HeaderField) -> str:
    if isinstance(field, NumberField):
        known = NUMBERS.get((field.least, field.most))
        return known or f"{number(field.least)}..{number(field.most)}"
    if isinstance(field, TextField):
        usual, word = (NAME_MAX, "name") if field.is_name else (TEXT_MAX, "text")
        return word if field.most == usual else f"{word}≤{field.most}"
    if isinstance(field, FlagField):
        return "bool"
    return "/".join(field.words) if isinstance(field, ChoiceField) else "identity"


def default(field: HeaderField) -> str:
    if not field.default:
        return ""
    if isinstance(field.default, int) and field.default is not True:
        return f"={number(field.default)}"
    return f"={field.default}".replace("True", "true")


def written(field: HeaderField) -> str:
    """As the document has it."""
    name = field.name if field.long is None else f"{field.name}/{field.long}"
    if field.default is REQUIRED:
        return f"`{name}:{kind(field)}`"
    return f"`{name}?:{kind(field)}{default(field)}`"


def fields_of(header: type[Header]) -> str:
    return " ".join(map(written, header.FIELDS.values())) or "-"


def tables(text: str) -> list[list[list[str]]]:
    """Each table, row by row, cell by cell; the first row is its head."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in block.splitlines()]
        found.append([rows[0], *rows[2:]])
    return found


def named(row: list[str]) -> list[tuple[int, str]]:
    """The codes of a row with their names."""
    codes = [int(code) for code in row[0].split(",")]
    names = [name.strip(" `") for name in row[1].split(",")]
    return list(zip(codes, names, strict=True))


TEXT = DOCUMENT.read_text()
HEADS = (["code", "name"], ["codes", "names"])
REQUESTS = [table for table in tables(TEXT) if table[0][:2] in HEADS]
SERVED = [
    pytest.param(code, row[2], id=name)
    for head, *rows in REQUESTS
    if head[2:3] == ["fields"]
    for row in rows
    for code, name in named(row)
]


@pytest.mark.parametrize(("code", "cell"), SERVED)
def test_a_request_has_the_fields_of_the_schema(code: int, cell: str) -> None:
    assert cell == fields_of(HEADERS[RequestCode(code)])


def test_every_request_of_the_schema_is_described_once() -> None:
    described = Counter(param.values[0] for param in SERVED)
    assert described == Counter(int(code) for code in HEADERS)


def members(enum: type[IntEnum]) -> list[tuple[int, str]]:
    return [(int(each), each.name) for each in enum]


def test_every_code_has_its_name() -> None:
    rows = chain.from_iterable(rows for head, *rows in REQUESTS if head[2:3] != ["meaning"])
    described = set(chain.from_iterable(map(named, rows)))
    assert described == set(members(RequestCode))


def test_every_response_code_has_its_name_and_its_meaning() -> None:
    answers = [table for table in REQUESTS if table[0][2:] == ["meaning"]]
    assert len(answers) == 1
    assert [pair for row in answers[0][1:] for pair in named(row)] == members(ResponseCode)
    assert all(row[2] for row in answers[0])


def test_what_nobody_serves_is_in_no_schema() -> None:
    (unserved,) = (rows for head, *rows in REQUESTS if head == ["codes", "names"])
    assert not {code for row in unserved for code, _ in named(row)} & set(map(int, HEADERS))


def test_every_field_of_ours_is_explained() -> None:
    sources = chain.from_iterable((ROOT / each).rglob("*.py") for each in PACKAGES)
    used = {name for path in sources for name in re.findall(r"\bsaturn[A-Z]\w+", path.read_text())}
    explained = set(re.findall(r"^\| (`saturn.*?) \|", TEXT, re.MULTILINE))
    assert used == set(re.findall(r"saturn[A-Z]\w+", " ".join(explained)))
