"""Conditions over encoded properties: the kernel's answers are those of the reference, or none."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from saturnmq.drills.fuzz.sql_reference import Tree, text_of
from saturnmq.protocol.properties import decode_properties, encode_properties
from saturnmq.protocol.sql92 import Sql, SqlProgram, program_of
from sql_rig import NAMES, NUMBERS, TEXTS, conditions

pytestmark = pytest.mark.skipif(SqlProgram is None, reason="no compiled kernel")


def answer(condition: str | Sql, properties: bytes) -> bool | None:
    """The kernel's; it is that of the reference, or None."""
    sql = Sql(condition) if isinstance(condition, str) else condition
    expected = sql.matches(decode_properties(properties))
    program = program_of(sql)
    found: bool | None = None if program is None else program.matches(properties)
    assert found in (expected, None), (sql, properties)
    return found


HELD = encode_properties(
    {"a": "5", "b": "x'y", "price": "9.5", "TAGS": "paid", "flag": "True", "c$_1": "-3"}
)
DECIDED = [
    "a = 5",
    "a = 5.0",
    "a = '5'",
    "a <> 6",
    "a > 4",
    "a >= 6 OR a < 3 OR a <= 5",
    "a BETWEEN 4 AND 5",
    "a NOT BETWEEN 6 AND 7",
    "price BETWEEN 9.0 AND 1e1",
    "price > 9 OR a = 5",
    "c$_1 > -4 AND c$_1 = - + 3",
    "TAGS IN ('new', 'paid')",
    "TAGS NOT IN ('new')",
    "b = 'x''y'",
    "b CONTAINS ''''",
    "b NOT CONTAINS 'z'",
    "a CONTAINS ''",
    "a NOT STARTSWITH '' OR a ENDSWITH ''",
    "TAGS STARTSWITH 'pa' AND TAGS ENDSWITH 'id'",
    "none IS NULL",
    "a IS NOT NULL",
    "flag = TRUE",
    "a <> TRUE",
    "TRUE",
    "NOT FALSE",
    "NULL",
    "a",
    "NOT none",
    "(a = 1 OR a = 5) AND NOT (TAGS = 'paid')",
    "a > 4 AND none = 1",
    "a = '标签'",
]
UNDECIDED = [
    "a > price",
    "a = b",
    "5 = a",
    "5 < a",
    "-a = 5",
    "TRUE = flag",
    "'x' CONTAINS 'x'",
    "a = 5 IS NOT NULL",
    "a = '\ufffd'",
    "a IN ('5', '\ufffd')",
    "a CONTAINS '\ud800'",
]


@pytest.mark.parametrize("condition", DECIDED)
def test_usual_conditions_are_decided(condition: str) -> None:
    assert answer(condition, HELD) is not None
    assert answer(condition, b"") is not None


@pytest.mark.parametrize("condition", UNDECIDED)
def test_all_others_are_left_to_the_reference(condition: str) -> None:
    assert program_of(Sql(condition)) is None
    assert answer(f"a = 5 AND {condition}", HELD) is None
    assert answer(f"a = 6 AND {condition}", HELD) is False, "it was not asked"
    assert answer(f"TAGS > 5 OR {condition}", HELD) is False, "a text that is no number ends it"


def test_the_properties_of_a_condition_are_counted() -> None:
    named = " AND ".join(f"p{n} = {n}" for n in range(16))
    held = encode_properties({f"p{n}": str(n) for n in range(17)})
    assert answer(named, held) is True
    assert answer(named + " AND p15 > 3 AND p0 < 3", held) is True
    assert program_of(Sql(named + " AND p16 = 16")) is None


spoils = st.sampled_from([b"\x00", b"\x01", b"\x02", b"-", b"+", b".", b"e", b"\xe6", b"\xff"])
values = st.one_of(
    st.sampled_from(TEXTS).map(str.encode),
    st.sampled_from(NUMBERS).map(str.encode),
    st.binary(max_size=4),
    st.text(max_size=3).map(str.encode),
    st.sampled_from(
        [b"\xe6\xa0\x87\xe7\xad\xbe", b"\xe6\xa0", b"\xa0\x87", b"\xc3\xa9", "٣".encode()]
    ),
)
pairs = st.tuples(
    st.one_of(st.sampled_from([*NAMES, "", "aa", "A"]).map(str.encode), st.binary(max_size=2)),
    st.sampled_from([b"\x01"] * 9 + [b"", b"\x01\x01"]),
    values,
    st.sampled_from([b"\x02"] * 9 + [b"", b"\x02\x02"]),
).map(b"".join)
encoded = st.lists(pairs, max_size=6).map(b"".join)


@settings(max_examples=500, deadline=None)
@given(conditions, st.lists(encoded, min_size=1, max_size=8))
def test_random_conditions_of_any_bytes_are_decided_alike(
    tree: Tree, messages: list[bytes]
) -> None:
    sql = Sql(text_of(tree))
    for message in messages:
        answer(sql, message)


LITERALS = ["0", "5", "2147483647", "2147483648", "9223372036854775807", "0.0", "5.5", "0.1"]
LITERALS += ["1e22", "1e23", "123456789012345678.0", "9007199254740993.0", "1e308", "1e-300"]


@given(
    st.sampled_from(["a = {}", "a < {}", "a >= {}", "a BETWEEN -{0} AND {0}", "NOT (a <= - {})"]),
    st.sampled_from(LITERALS),
    st.one_of(
        st.from_regex(r"\A[+-]?[0-9]{0,20}\Z"),
        st.from_regex(r"\A[ \t]*[+-]?[0-9]{0,17}(\.[0-9]{0,17})?([eE][+-]?[0-9]{1,5})?[fFdD]? ?\Z"),
        st.floats().map(repr),
        st.integers().map(str),
        st.text("+-.0123456789eEdDfFNaInity \x00\u0663\u00b2", max_size=12),
    ),
)
@example("a = {}", "0.0", "-0.0")
@example("a < {}", "0", "-0")
@example("a >= {}", "2147483648", "9223372036854775808")
@example("a >= {}", "5", "-2147483648")
@example("a >= {}", "5", "2147483648")
@example("a < {}", "5.5", "-Infinity")
@example("a >= {}", "0.0", "-NaN")
@example("a = {}", "0.1", "0.1")
@example("a = {}", "9007199254740993.0", "9007199254740993")
@example("a = {}", "44667375401.92533", "44667375401.9253275")  # not by one rounding
@example("a = {}", "9007199254740993.0", "9007199254740992")
def test_numbers_are_read_alike(form: str, literal: str, text: str) -> None:
    answer(form.format(literal), f"a\x01{text}\x02".encode())


@pytest.mark.parametrize(
    "text", ["0", "-17", "+5", "2147483647", "9.99", "-0.5", "1e3", "7d", " 8 "]
)
def test_usual_numbers_are_decided(text: str) -> None:
    assert answer("a > 3.5", f"a\x01{text}\x02".encode()) is not None


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("٣", "a > 2"),
        ("0" * 20, "a < 1"),
        ("1e23", "a > 0.5"),
        ("0.12345678901234567890", "a < 1.5"),
    ],
)
def test_odd_numbers_are_left_to_the_reference(text: str, condition: str) -> None:
    assert Sql(condition).matches({"a": text})
    assert answer(condition, f"a\x01{text}\x02".encode()) is None


@given(
    st.sampled_from(["=", "CONTAINS", "STARTSWITH", "ENDSWITH"]),
    st.text("aé标\U0001f600x", min_size=1, max_size=4),
    st.lists(
        st.binary(max_size=3) | st.text("aé标\U0001f600x", max_size=3).map(str.encode), max_size=4
    ),
)
def test_texts_are_found_among_bytes_that_are_no_text(
    word: str, part: str, pieces: list[bytes]
) -> None:
    text = b"".join(pieces).translate(None, b"\x02")
    assert answer(f"a {word} '{part}'", b"a\x01" + text + b"\x02") is not None
    assert answer(f"a {word} '{part}'", b"a\x01" + text + part.encode()) is not None


def test_one_of_many_texts_is_found() -> None:
    rng = random.Random(7)
    texts = {"".join(rng.choices("ab标", k=rng.randrange(1, 5))) for _ in range(60)}
    sql = Sql("a IN ({})".format(", ".join(f"'{text}'" for text in sorted(texts))))
    for _ in range(500):
        text = "".join(rng.choices("ab标", k=rng.randrange(1, 6)))
        assert answer(sql, f"a\x01{text}\x02".encode()) is (text in texts)
