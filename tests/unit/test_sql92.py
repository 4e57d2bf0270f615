"""SQL92 filters: each rule by example, and random conditions against a second evaluation."""

from __future__ import annotations

import contextlib
import copy
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.drills.fuzz.sql_reference import Tree, matches, text_of
from saturnmq.protocol.sql92 import LENGTH_MAX, NESTING_MAX, Sql, compiled
from saturnmq.runtime.errors import SubscriptionParseFailed
from sql_rig import conditions, properties

HELD = {"a": "5", "b": "x'y", "price": "9.5", "TAGS": "paid", "flag": "True", "c$_1": "-3"}

TRUE = [
    "a = 5",
    "a = 5L",
    "a = 5.0",
    "a = '5'",
    "5 = a",
    "a <> 6",
    "a>4 and A IS NULL",  # names keep their case
    "a BeTwEeN 5 aNd 5",
    "a NOT BETWEEN 6 AND 7",
    "price BETWEEN 9.0 AND 10.0",
    "TAGS IN ('new', 'paid')",
    "TAGS NOT IN ('new')",
    "b = 'x''y'",
    "b CONTAINS ''''",
    "b NOT CONTAINS 'z'",
    "TAGS STARTSWITH 'pa' AND TAGS ENDSWITH 'id'",
    "TAGS NOT STARTSWITH 'id' AND TAGS NOT ENDSWITH 'pa'",
    "none IS NULL",
    "a IS NOT NULL",
    "flag = TRUE",
    "a <> TRUE",
    "c$_1 = -3 AND c$_1 < -2 AND c$_1 = - + 3",
    "a > c$_1",  # two properties, as numbers
    "TRUE",
    "NOT FALSE",
    "(a = 1 OR a = 5) AND TAGS = 'paid'",
    "a = 1 OR a = 5 AND TAGS = 'paid'",
    "NOT (a = 1)",
    "a = 5 -- a comment",
    "a = /* one * of / these */ 5",
    "\ta\n=\r\n5 -- another\n",
    "a > .5e1 OR a >= 5e0",
    "none = nothing",  # both are missing
    "5 <> none",
    "NOT (none CONTAINS 'x')",
    "none > 3 OR a = 5",
    "a = 5 IS NOT NULL",
    "a > 0.0",
]
NOT_TRUE = [
    "a = 6",
    "none = 5",
    "none <> 5",  # unknown
    "NOT (none = 5)",
    "none NOT IN ('x')",
    "none NOT CONTAINS 'x'",  # false
    "a CONTAINS ''",
    "a NOT CONTAINS ''",
    "NOT a = 1",  # (NOT a) = 1
    "a",
    "NOT none",
    "NULL",
    "price > 9",  # 9.5 is no whole number: nothing is known
    "NOT (price > 9)",
    "price > 9 OR a = 5",  # which ends it all
    "TAGS > 3",
    "TRUE = flag",
    "a = - 'x' OR -a = -5",
    "a BETWEEN 6 AND 7",
    "a > 4 AND none = 1",
]


@pytest.mark.parametrize("text", TRUE)
def test_what_holds(text):
    assert Sql(text).matches(HELD)


@pytest.mark.parametrize("text", NOT_TRUE)
def test_what_does_not_hold(text):
    assert not Sql(text).matches(HELD)


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("", 1, "it is empty"),
        ("   ", 1, "it is empty"),
        ("a >", 4, "a property, a value or ( is expected, not the end"),
        ("a > > 3", 5, "a property, a value or ( is expected, not '>'"),
        ("a = 3 b", 7, "AND, OR or the end is expected, not 'b'"),
        ("(a = 3", 7, ") is expected, not the end"),
        ("a = 3)", 6, "AND, OR or the end is expected"),
        ("a > 'x'", 5, "> orders numbers only"),
        ("(a = 1) < 3", 2, "< orders numbers only"),
        ("a BETWEEN 'a' AND 'b'", 11, ">= orders numbers only"),
        ("a BETWEEN 5 AND 3", 11, "nothing is between 5 and 3"),
        ("a BETWEEN 5", 12, "AND is expected"),
        ("a = NULL", 5, "write IS NULL"),
        ("TRUE = 5", 8, "TRUE and FALSE are compared with properties only"),
        ("a IS 5", 6, "NULL is expected"),
        ("a IN (5)", 7, "a string '...' is expected"),
        ("a IN ()", 7, "a string '...' is expected"),
        ("'a' IN ('b')", 1, "IN is asked of a property only"),
        ("a CONTAINS b", 12, "a string '...' is expected"),
        ("5", 1, "a condition is expected"),
        ("a = 1 OR 'x'", 10, "a condition is expected"),
        ("-a", 2, "a condition is expected"),
        ("a = 'x", 5, "the string is not closed"),
        ('a = "x"', 5, "strings stand between '...'"),
        ("a /* b", 3, "the comment is not closed"),
        ("a != 1", 3, "write <>"),
        ("a.b = 1", 2, "names have letters, digits, _ and $"),
        ("标签 = 1", 1, "means nothing here"),
        ("a = 007", 5, "'00' is no number"),
        ("a = 5x", 5, "'5x' is no number"),
        ("a = 9223372036854775808", 5, "above the largest whole number"),
        ("a = 1e999", 5, "out of the range"),
    ],
)
def test_an_error_tells_place_and_expectation(text, place, why):
    with pytest.raises(SubscriptionParseFailed) as caught:
        Sql(text)
    first = str(caught.value)
    assert f"character {place}: " in first
    assert why in first
    assert repr(text.strip()) in first


def test_length_and_nesting_have_limits():
    longest = "a = 1 OR " * ((LENGTH_MAX - 5) // 9) + "a = 5"
    assert Sql(longest).matches(HELD)
    assert Sql(longest).terms > 3000
    with pytest.raises(SubscriptionParseFailed, match=f"the limit is {LENGTH_MAX}"):
        Sql("a = 1 OR " * (LENGTH_MAX // 9) + " a = 5555")
    deep = NESTING_MAX - 1
    assert Sql("(" * deep + "a = 5" + ")" * deep).matches(HELD)
    for text in (
        "(" * 5000 + "a = 5" + ")" * 5000,
        "NOT " * 4000 + "(a = 5)",
        "a = " + "-" + " -" * 5000 + " 5",
        "a" + " IS NULL" * 1000,
        "a" + " = b" * 1000,
        "a CONTAINS 'x'" + " CONTAINS 'x'" * 1000,
    ):
        with pytest.raises(SubscriptionParseFailed, match="nested deeper than 64"):
            Sql(text)
    with pytest.raises(SubscriptionParseFailed) as caught:
        Sql("a = 1 AND " * 100 + "b ! 3" + " AND a = 1" * 100)
    assert len(str(caught.value)) < 200
    assert "b ! 3" in str(caught.value)


def test_huge_texts_are_no_numbers():
    for digits in (20, 5000, 30_000):
        assert not Sql("a > 5").matches({"a": "9" * digits})


def test_a_filter_is_a_value():
    one = Sql(" a > 5 ")
    assert one == Sql("a > 5") == pickle.loads(pickle.dumps(one)) == copy.deepcopy(one)
    assert one != Sql("a > 6")
    assert repr(one) == "Sql('a > 5')"
    assert compiled("a > 5") is compiled("a > 5")
    assert {one: 1}[Sql("a > 5")] == 1


@given(conditions, st.lists(properties, min_size=1, max_size=8))
def test_random_conditions_hold_where_a_slow_evaluation_says(
    tree: Tree, messages: list[dict[str, str]]
) -> None:
    condition = Sql(text_of(tree))
    for message in messages:
        assert condition.matches(message) is matches(tree, message)


@given(st.text("ab5'()=<>-+., NOTINAD*/", max_size=40))
def test_any_text_is_a_condition_or_told(text: str) -> None:
    with contextlib.suppress(SubscriptionParseFailed):
        Sql(text).matches({"a": "5"})


def test_a_number_of_any_length_is_refused_by_its_place():
    for digits in ("9" * 5000, "9" * 5000 + "L"):
        with pytest.raises(SubscriptionParseFailed, match=r"character 5: 9+ is above the largest"):
            Sql(f"a = {digits}")


@pytest.mark.parametrize("condition", ["a > 5.5", "a > b", "a = 5.5"])
def test_a_long_property_that_is_hardly_no_number_costs_little(condition):
    """The pattern of a number took 34 s for it: it tried every way to cut the digits in two."""
    begun = time.thread_time()
    for tail in ("x", ".x", "e", "e5x"):
        assert not Sql(condition).matches({"a": "9" * 32_000 + tail, "b": "7"})
    assert time.thread_time() - begun < 1.0
