"""A number from a peer: as text or as a number, within bounds, or an error that shows it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.protocol import checked
from saturnmq.protocol.checked import INT64_MAX, integer
from saturnmq.runtime.errors import MalformedFrame


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        ("0", 0),
        ("7", 7),
        ("-7", -7),
        ("0000000000000000007", 7),
        (str(INT64_MAX), INT64_MAX),
        (INT64_MAX, INT64_MAX),
        (None, 3),
        ("", 3),
    ],
)
def test_a_number_may_come_as_text_and_may_have_a_default(value: Any, number: int) -> None:
    assert integer({"n": value}, "n", 3, least=-10) == number


@pytest.mark.parametrize(
    "value",
    [
        "1_000",
        " 1",
        "+1",
        "1.0",
        "0x1",
        "--1",
        "-",
        "\u0661\u0662",  # digits of other scripts: int() takes these
        "\u00b2",  # isdigit(), and int() fails
        "1" * 20,
        "0" * 20,
        "1" * 5000,
        str(INT64_MAX + 1),
        INT64_MAX + 1,
        "-1",
        -1,
        True,
        1.0,
        [1],
        {},
        b"1",
    ],
)
def test_anything_else_is_an_error_that_names_the_field_and_the_bounds(value: Any) -> None:
    with pytest.raises(MalformedFrame, match=f"^n is .*, not a number from 0 to {INT64_MAX}$"):
        integer({"n": value}, "n")


def test_a_table_of_fastjson_has_numbers_as_keys() -> None:
    fields: Any = {3: "7"}
    assert [integer(fields, name, 0) for name in (3, 4)] == [7, 0]


def test_a_number_that_is_missing_and_wanted_is_an_error() -> None:
    for fields in ({}, {"n": None}, {"n": ""}):
        with pytest.raises(MalformedFrame, match="field 'n' is missing"):
            integer(fields, "n")


@given(
    number=st.integers(-(10**20), 10**20), least=st.integers(-100, 100), size=st.integers(0, 200)
)
def test_bounds_belong_to_what_is_allowed(number: int, least: int, size: int) -> None:
    most = least + size
    for value in (number, str(number)):
        if least <= number <= most:
            assert integer({"n": value}, "n", least=least, most=most) == number
        else:
            with pytest.raises(MalformedFrame):
                integer({"n": value}, "n", least=least, most=most)


@given(st.integers(0, 100), st.sampled_from([0, 1, 50]))
def test_a_bound_itself_is_allowed(least: int, size: int) -> None:
    for number in (least, least + size):
        for value in (number, str(number)):
            assert integer({"n": value}, "n", least=least, most=least + size) == number


@given(st.text(st.sampled_from("-+0123456789 _.e\u0661\u00b2"), max_size=20))
@pytest.mark.skipif(checked._kernel is None, reason="no compiled kernel")
def test_the_kernel_reads_no_text_that_the_reference_refuses(value: str) -> None:
    number = checked._kernel.number_in({"n": value}, "n")
    if number is not None:
        assert checked.as_integer(value, "n", -INT64_MAX) == number
