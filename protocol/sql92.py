"""SQL92 filters: RocketMQ's conditions over the properties of a message.

    Sql("TAGS = 'paid' AND (price BETWEEN 10 AND 20 OR region IN ('eu', 'us'))").matches(properties)

| from loose to tight | |
|---|---|
| `OR`, then `AND` | of conditions; a property alone is one that never holds |
| `=  <>  IS NULL  IS NOT NULL` | of anything; not with the word NULL, that is what IS is for |
| `<  <=  >  >=`, `[NOT] BETWEEN x AND y` | of properties and numbers |
| `[NOT] IN ('a', 'b')` | of a property |
| `[NOT] CONTAINS 'a'`, `STARTSWITH`, `ENDSWITH` | false without the property, with NOT as well |
| `NOT`, `+`, `-` | tighter than any comparison: write `NOT (a = 1)` |

Words in any case, names of properties as they are spelled: ASCII letters, digits, `_` and `$`.
Numbers `5`, `5L`, `.5`, `5e3`; strings `'it''s'`; `-- to the end of the line`, `/* comments */`.

Properties are texts. A property that is compared with a number is read as a number: with a whole
number as a whole number of 32 bits (of 64, if the number needs them), with a fraction as any
number. With `=` and TRUE or FALSE it is read as whether it is "true". Two properties are ordered as
numbers. A text that is no such number makes the whole condition fail, whatever else the condition
says. Otherwise there are three truth values: a comparison with a missing property is unknown, and
only true is a match. `=` looks at its left side: `5 <> a` is true where `a` is missing, `a <> 5` is
not.

These are RocketMQ's rules, checked against its own classes. Our additions: text behind a whole
expression is an error (RocketMQ ignores it), 0.0 is a number, `--` needs no line end, and length
and nesting have limits.

This is the reference. Where it is compiled, `sql92_kernel.pyx` decides the usual conditions from
the encoded properties. It gets the condition as a tree of tuples:

    ("word", True | False | None)   ("text", str)   ("number", NumberLiteral)   ("property", name)
    ("condition", property)   ("minus", value)   ("not", condition)   ("all" | "any", [condition])
    ("=" | "<" | "<=" | ">" | ">=", value, value)   ("null", value, wanted)
    ("in", property, texts, wanted)   ("CONTAINS" | "STARTSWITH" | "ENDSWITH", value, part, wanted)
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from saturnmq.protocol.kernels import COMPILED
from saturnmq.protocol.sql92_terms import (
    RELATIONS,
    SEARCHES,
    Evaluate,
    NotComparable,
    NumberLiteral,
    Properties,
    beside_number,
    equated,
    is_text,
    joined,
    missing,
    negated,
    negative,
    order_of,
    read_any,
    read_int,
    read_long,
    related,
    searched,
)
from saturnmq.runtime.errors import SubscriptionParseFailed

SqlProgram: Any = None
if COMPILED:
    try:
        SqlProgram = importlib.import_module("saturnmq.protocol.sql92_kernel").SqlProgram
    except ImportError:  # only the other kernels could be compiled
        SqlProgram = None

LENGTH_MAX = 16_384  # characters of an expression
NESTING_MAX = 64
_SHOWN = 60  # characters of the expression in an error
_WHOLE_DIGITS = 19  # digits of the largest whole number; int() itself refuses 4301

_TOKEN = re.compile(
    r"""(?P<space> [ \t\n\r\f]+ | --[^\r\n]* | /\*.*?\*/ )
      | (?P<fraction> (?: \d+\.\d* | \.\d+ ) (?: [eE][+-]?\d+ )? | \d+[eE][+-]?\d+ )
      | (?P<whole> 0 | [1-9]\d*[lL]? )
      | (?P<text> '(?: [^'] | '' )*' )
      | (?P<name> [A-Za-z_$][A-Za-z0-9_$]* )
      | (?P<sign> <= | >= | <> | [=<>()+,-] )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_WORDS = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905
)
_HINTS = {
    "'": "the string is not closed",
    '"': "strings stand between '...'",
    "/": "the comment is not closed by */",
    "!": "write <> for not equal",
    ".": "names have letters, digits, _ and $",
}


class Sql:
    """A condition, ready for `matches`. SubscriptionParseFailed says where it is wrong."""

    __slots__ = ("_evaluate", "_program", "_searches", "expression", "terms")

    def __init__(self, expression: str) -> None:
        self.expression = expression.strip()
        parser = _SqlParser(self.expression)
        node = parser.condition()
        self._evaluate = node.evaluate
        self.terms = parser.terms  # the cost per message: comparisons and their connectives
        self._searches = parser.searches
        program = None if SqlProgram is None else SqlProgram(node.tree)
        self._program = program if program is not None and program.decides else None

    def matches(self, properties: Properties) -> bool:
        """Whether the condition is true of a message with these properties."""
        try:
            return self._evaluate(properties) is True
        except NotComparable:
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sql) and self.expression == other.expression

    def __hash__(self) -> int:
        return hash(self.expression)

    def __repr__(self) -> str:
        return f"Sql({self.expression!r})"

    def __reduce__(self) -> tuple[type[Sql], tuple[str]]:
        return Sql, (self.expression,)


def program_of(sql: Sql) -> Any:
    """The compiled condition, whose `matches` decides from encoded properties, or says None. None
    without the kernel, and for a condition that it leaves to the reference."""
    return sql._program


def searches_of(sql: Sql) -> int:
    """The terms that may read all of a property."""
    return sql._searches


@lru_cache(maxsize=128)
def compiled(expression: str) -> Sql:
    """The same as Sql, remembered: pulls carry their expression again and again."""
    return Sql(expression)


# -- nodes -----------------------------------------------------------------------------------------


Tree = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    evaluate: Evaluate
    tree: Tree
    place: int  # position in the expression, from 0
    depth: int = 1
    is_condition: bool = False
    is_constant: bool = False  # a literal: the value is the same for all messages
    name: str = ""  # name of a property


# -- the parser ------------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str  # of _TOKEN's groups, "word", or "end"
    text: str  # a word in capitals
    place: int


class _SqlParser:
    """A recursive-descent parser; a method per line of the table above."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self.terms = self.searches = 0
        self._depth = 0
        if len(expression) > LENGTH_MAX:
            self._fail(0, f"it has {len(expression)} characters, the limit is {LENGTH_MAX}")
        self._tokens = self._split()
        self._at = 0

    def condition(self) -> _Node:
        if self._now.kind == "end":
            self._fail(0, "it is empty; write a condition such as price > 3")
        node = self._condition(self._or())
        if self._now.kind != "end":
            self._fail(self._now.place, f"AND, OR or the end is expected, not {self._seen()}")
        return node

    # tokens

    def _split(self) -> list[_Token]:
        text, place, tokens = self._expression, 0, []
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                sign = text[place]
                self._fail(place, _HINTS.get(sign, f"{sign!r} means nothing here"))
            kind, end = str(found.lastgroup), found.end()
            token = found[0]
            if kind in ("whole", "fraction") and re.match(r"[\w$.]", text[end : end + 1]):
                self._fail(place, f"{text[place : end + 1]!r} is no number")
            if kind == "name" and token.upper() in _WORDS:
                kind, token = "word", token.upper()
            if kind != "space":
                tokens.append(_Token(kind, token, place))
            place = end
        return [*tokens, _Token("end", "", len(text))]

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> str:
        """The word or sign that comes next, if it is one of these."""
        token = self._now
        if token.kind in ("word", "sign") and token.text in texts:
            self._at += 1
            return token.text
        return ""

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self._fail(self._now.place, f"{text} is expected, not {self._seen()}")

    def _take_after_not(self, *words: str) -> tuple[bool, str]:
        """(without NOT, the word) if one of the words comes next, or NOT and one of them."""
        negated = self._now.text == "NOT"
        following = self._tokens[self._at + negated] if negated else self._now
        if following.kind != "word" or following.text not in words:
            return True, ""
        self._at += 1 + negated
        return not negated, following.text

    def _seen(self) -> str:
        return repr(self._now.text) if self._now.text else "the end"

    def _fail(self, place: int, why: str) -> NoReturn:
        text = self._expression
        start = max(0, min(place - _SHOWN // 2, len(text) - _SHOWN))
        shown = text[start : start + _SHOWN]
        head, tail = "..." if start else "", "..." if start + _SHOWN < len(text) else ""
        raise SubscriptionParseFailed(
            f"SQL92 expression {head + shown + tail!r}, character {place + 1}: {why}"
        )

    # nodes

    def _node(self, evaluate: Evaluate, tree: Tree, *parts: _Node, **facts: Any) -> _Node:
        self.terms += 1
        depth = 1 + max((part.depth for part in parts), default=0)
        place = parts[0].place if parts else self._now.place
        if depth > NESTING_MAX:
            self._fail(place, f"it is nested deeper than {NESTING_MAX}; write it flatter")
        return _Node(evaluate, tree, place, depth, **facts)

    def _condition(self, node: _Node) -> _Node:
        if node.is_condition:
            return node
        if not node.name:
            self._fail(node.place, "a condition is expected here, this is a value")
        get = node.evaluate  # returns a text, which is never true
        return self._node(
            lambda p: None if get(p) is None else False,
            ("condition", node.tree),
            node,
            is_condition=True,
        )

    def _or(self) -> _Node:
        return self._join("OR", self._and, True)

    def _and(self) -> _Node:
        return self._join("AND", self._equality, False)

    def _join(self, word: str, part: Callable[[], _Node], deciding: bool) -> _Node:
        node = part()
        if self._now.text != word or self._now.kind != "word":
            return node
        nodes = [self._condition(node)]
        while self._take(word):
            nodes.append(self._condition(part()))
        return self._joined(nodes, deciding)

    def _joined(self, nodes: list[_Node], deciding: bool) -> _Node:
        evaluate = joined([each.evaluate for each in nodes], deciding)
        tree = "any" if deciding else "all", [each.tree for each in nodes]
        return self._node(evaluate, tree, *nodes, is_condition=True)

    def _equality(self) -> _Node:
        left = self._comparison()
        while sign := self._take("=", "<>", "IS"):
            if sign == "IS":
                wanted = not self._take("NOT")
                self._expect("NULL")
                tree: Tree = "null", left.tree, wanted
                left = self._node(missing(left.evaluate, wanted), tree, left, is_condition=True)
                continue
            right = self._comparison()
            self._check_equality(left, right)
            evaluate, tree = self._equal(left, right), ("=", left.tree, right.tree)
            if sign == "<>":
                evaluate, tree = negated(evaluate), ("not", tree)
            left = self._node(evaluate, tree, left, right, is_condition=True)
        return left

    def _equal(self, left: _Node, right: _Node) -> Evaluate:
        constant = right.evaluate({}) if left.name and right.is_constant else None
        if isinstance(constant, NumberLiteral):
            return beside_number(left.name, constant, lambda order: order == 0)
        if isinstance(constant, str):
            return is_text(left.name, constant)
        return equated(left.evaluate, right.evaluate)

    def _check_equality(self, left: _Node, right: _Node) -> None:
        for node in (left, right):
            if node.is_constant and node.evaluate({}) is None:
                self._fail(node.place, "nothing equals NULL; write IS NULL or IS NOT NULL")
        if left.is_constant and left.is_condition and right.is_constant and not right.is_condition:
            self._fail(right.place, "TRUE and FALSE are compared with properties only")

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            if sign := self._take(*RELATIONS):
                left = self._relation(sign, left, self._unary())
                continue
            wanted, word = self._take_after_not("BETWEEN", "IN", *SEARCHES)
            if not word:
                return left
            if word == "BETWEEN":
                left = self._between(left, wanted)
            elif word == "IN":
                left = self._in(left, wanted)
            else:
                self.searches += 1
                part = self._text()
                found = searched(word, wanted, left.evaluate, part)
                tree = word, left.tree, part, wanted
                left = self._node(found, tree, left, is_condition=True)

    def _relation(self, sign: str, left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            constant = node.evaluate({}) if node.is_constant else None
            if node.is_condition or isinstance(constant, str):
                self._fail(node.place, f"{sign} orders numbers only, not strings and conditions")
        if left.name and right.is_constant:
            evaluate = beside_number(left.name, right.evaluate({}), RELATIONS[sign])
        else:
            evaluate = related(sign, left.evaluate, right.evaluate)
        tree = sign, left.tree, right.tree
        return self._node(evaluate, tree, left, right, is_condition=True)

    def _between(self, value: _Node, wanted: bool) -> _Node:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        signs = (">=", "<=") if wanted else ("<", ">")
        parts = [
            self._relation(signs[0], value, low),
            self._relation(signs[1], value, high),
        ]
        if wanted and low.is_constant and high.is_constant:
            first, last = low.evaluate({}), high.evaluate({})
            if order_of(first, last) > 0:
                self._fail(
                    low.place, f"nothing is between {first.value} and {last.value}; exchange them"
                )
        return self._joined(parts, not wanted)

    def _in(self, left: _Node, wanted: bool) -> _Node:
        if not left.name:
            self._fail(left.place, "IN is asked of a property only")
        self._expect("(")
        texts = {self._text()}
        while self._take(","):
            texts.add(self._text())
        self._expect(")")
        name = left.name

        def within(properties: Properties) -> bool | None:
            value = properties.get(name)
            return None if value is None else (value in texts) is wanted

        return self._node(within, ("in", left.tree, texts, wanted), left, is_condition=True)

    def _unary(self) -> _Node:
        sign = self._take("+", "-", "NOT")
        if not sign:
            return self._primary()
        with_sign = self._tokens[self._at - 1].place
        self._enter(with_sign)
        node = self._unary()
        self._depth -= 1
        if sign == "+":
            return node
        if sign == "-":
            return self._negative(node)
        node = self._condition(node)
        return self._node(negated(node.evaluate), ("not", node.tree), node, is_condition=True)

    def _negative(self, node: _Node) -> _Node:
        evaluate = negative(node.evaluate)
        is_number = node.tree[0] == "number"  # then it is one again, whatever the message
        tree = ("number", evaluate({})) if is_number else ("minus", node.tree)
        return self._node(evaluate, tree, node)

    def _enter(self, place: int) -> None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            self._fail(place, f"it is nested deeper than {NESTING_MAX}; write it flatter")

    def _primary(self) -> _Node:
        token = self._now
        if self._take("("):
            self._enter(token.place)
            node = self._or()
            self._expect(")")
            self._depth -= 1
            return node
        match token.kind, token.text:
            case "name", name:
                node = self._node(lambda p: p.get(name), ("property", name), name=name)
            case "text", _:
                text = token.text[1:-1].replace("''", "'")
                node = self._node(lambda _: text, ("text", text), is_constant=True)
            case (("whole" | "fraction"), _):
                number = self._number(token)
                node = self._node(lambda _: number, ("number", number), is_constant=True)
            case "word", ("TRUE" | "FALSE" | "NULL") as word:
                value = {"TRUE": True, "FALSE": False}.get(word)
                tree = "word", value
                node = self._node(lambda _: value, tree, is_constant=True, is_condition=True)
            case _:
                self._fail(token.place, f"a property, a value or ( is expected, not {self._seen()}")
        self._at += 1
        return node

    def _number(self, token: _Token) -> NumberLiteral:
        if token.kind == "fraction":
            value = float(token.text)
            is_zero = not re.search("[1-9]", re.split("[eE]", token.text)[0])
            if value == float("inf") or (value == 0 and not is_zero):
                self._fail(token.place, f"{token.text} is out of the range of numbers")
            return NumberLiteral(value, read_any)
        digits = token.text.rstrip("lL")
        if len(digits) > _WHOLE_DIGITS or (whole := int(digits)) >= 1 << 63:
            shown = f"{token.text:.{_SHOWN}}"
            self._fail(token.place, f"{shown} is above the largest whole number, 2^63 - 1")
        return NumberLiteral(whole, read_int if whole < 1 << 31 else read_long)

    def _text(self) -> str:
        token = self._now
        if token.kind != "text":
            self._fail(token.place, f"a string '...' is expected, not {self._seen()}")
        self._at += 1
        return token.text[1:-1].replace("''", "'")
