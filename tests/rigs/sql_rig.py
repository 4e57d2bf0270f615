"""Random SQL92 conditions, and messages to ask them of. A condition is a tree of tuples
(`drills/fuzz/sql_reference.py`).
"""

from __future__ import annotations

from hypothesis import strategies as st
from saturnmq.drills.fuzz.sql_reference import Tree, bare

NAMES = ["a", "b", "c$", "_D4"]
TEXTS = ["5", "5.5", "-3", "+5", "true", "TRUE", "no", "x", "xyz", "it's", " 7 ", "1e3", "5d", "0"]
TEXTS += ["NaN", "-0.0", "0.0", "Infinity", "3000000000", "9223372036854775808", "1_0", "标签"]
NUMBERS = ["0", "5", "5L", "7", "1000", "2147483647", "2147483648", "3000000000", "5.5", ".5", "5."]
NUMBERS += ["9223372036854775807", "1e3", "5E-1", "1000.0"]

properties = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS))
_names = st.sampled_from(NAMES).map(lambda name: ("property", name))
_texts = st.sampled_from([*TEXTS, "", "y"]).map(lambda text: ("text", text))
_numbers = st.sampled_from(NUMBERS).map(lambda number: ("number", number))
_words = st.sampled_from(["TRUE", "FALSE", "NULL"]).map(lambda word: ("word", word))


def _is_constant(tree: Tree) -> bool:
    return tree[0] in ("text", "number", "word")


def _comparable(pair: tuple[Tree, Tree]) -> bool:
    left, right = pair
    null = ("word", "NULL") in pair
    return not null and not (left[0] == "word" and right[0] in ("text", "number"))


def _in_order(pair: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    low, high = pair
    if low[0] == high[0] == "number" and float(bare(low[1])) > float(bare(high[1])):
        return high, low
    return pair


def _more(conditions: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    minus = st.one_of(_numbers, _names, conditions).map(lambda tree: ("minus", tree))
    ordered = st.one_of(_names, _numbers, minus)
    anything = st.one_of(_names, _texts, _numbers, minus, conditions)
    wanted = st.booleans()
    pairs = st.tuples(anything, anything).filter(_comparable)
    return st.one_of(
        st.tuples(st.just("relation"), st.sampled_from(["<", "<=", ">", ">="]), ordered, ordered),
        st.tuples(st.just("equal"), wanted, pairs),
        st.tuples(st.just("null"), wanted, anything),
        st.tuples(st.just("between"), wanted, ordered, st.tuples(ordered, ordered).map(_in_order)),
        st.tuples(st.just("in"), wanted, _names, st.lists(_texts, min_size=1, max_size=6)),
        st.tuples(
            st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]), wanted, anything, _texts
        ),
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(conditions, min_size=2, max_size=3)),
        st.tuples(st.just("not"), conditions),
    )


conditions: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(_words, _names), _more, max_leaves=12
).filter(lambda tree: tree[0] not in ("text", "number", "minus"))
