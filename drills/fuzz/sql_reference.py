"""SQL92 conditions, what they mean said a second time: the reference of `protocol/sql92.py`.

A condition is a tree of tuples. `text_of` writes it with every parenthesis; `truth_of` evaluates it
by RocketMQ's classes, value by value and with Java's types, slowly.
"""

from __future__ import annotations

import math
import re
from typing import Any

Tree = tuple[Any, ...]


def text_of(tree: Tree) -> str:
    match tree:
        case "property" | "number" | "word", text:
            return str(text)
        case "text", text:
            return "'" + str(text).replace("'", "''") + "'"
        case "minus", inner:
            return f"- ({text_of(inner)})"
        case "not", inner:
            return f"not ({text_of(inner)})"
        case ("AND" | "OR") as word, parts:
            return f" {word} ".join(f"({text_of(part)})" for part in parts)
        case "relation", sign, left, right:
            return f"({text_of(left)}) {sign} ({text_of(right)})"
        case "equal", wanted, (left, right):
            return f"({text_of(left)}) {'=' if wanted else '<>'} ({text_of(right)})"
        case "null", wanted, inner:
            return f"({text_of(inner)}) is {'' if wanted else 'Not '}NULL"
        case "between", wanted, value, (low, high):
            word = "BETWEEN" if wanted else "NOT BETWEEN"
            return f"({text_of(value)}) {word} ({text_of(low)}) AND ({text_of(high)})"
        case "in", wanted, value, texts:
            inner = ", ".join(text_of(text) for text in texts)
            return f"({text_of(value)}) {'IN' if wanted else 'NOT in'} ({inner})"
        case word, wanted, inner, text:
            return f"({text_of(inner)}) {'' if wanted else 'NOT '}{word} {text_of(text)}"
    raise AssertionError(tree)


def bare(number: str) -> str:
    """Without the mark of a long one."""
    return number.rstrip("lL")


class Broken(Exception):
    """Java would throw: no match, whatever stands around."""


def matches(tree: Tree, message: dict[str, str]) -> bool:
    try:
        return bool(truth_of(tree, message) == ("Boolean", True))
    except Broken:
        return False


def truth_of(tree: Tree, message: dict[str, str]) -> Any:
    """(Java's class, value), or None."""
    match tree:
        case "property", name:
            return ("String", message[name]) if name in message else None
        case "text", text:
            return "String", text
        case "number", number:
            return _literal(number)
        case "word", word:
            return None if word == "NULL" else ("Boolean", word == "TRUE")
        case "minus", inner:
            value = truth_of(inner, message)
            number = value is not None and value[0] in ("Integer", "Long", "Double")
            return (value[0], -value[1]) if number else None
        case "not", inner:
            return _not(_condition(inner, message))
        case ("AND" | "OR") as word, parts:
            return _logic(word == "OR", parts, message)
        case "relation", sign, left, right:
            return _relation(sign, left, right, message)
        case "equal", wanted, (left, right):
            value = _equals(truth_of(left, message), truth_of(right, message))
            return value if wanted else _not(value)
        case "null", wanted, inner:
            return "Boolean", (truth_of(inner, message) is None) == wanted
        case "between", True, value, (low, high):
            parts = [("relation", ">=", value, low), ("relation", "<=", value, high)]
            return _logic(False, parts, message)
        case "between", False, value, (low, high):
            parts = [("relation", "<", value, low), ("relation", ">", value, high)]
            return _logic(True, parts, message)
        case "in", wanted, value, texts:
            found = truth_of(value, message)
            if found is None:
                return None
            return "Boolean", any(found == text_value for text_value in _strings(texts)) == wanted
        case word, wanted, inner, (_, part):
            value = truth_of(inner, message)
            if not part or value is None or value[0] != "String":
                return "Boolean", False
            at = value[1].rfind(part) if word == "ENDSWITH" else value[1].find(part)
            hit = at >= 0
            if word == "STARTSWITH":
                hit = at == 0
            elif word == "ENDSWITH":
                hit = at >= 0 and at + len(part) == len(value[1])
            return "Boolean", hit == wanted
    raise AssertionError(tree)


def _strings(texts: list[Tree]) -> list[Any]:
    return [("String", text) for _, text in texts]


def _condition(tree: Tree, message: dict[str, str]) -> Any:
    """Evaluate a condition, with the cast that a property gets where a condition is expected."""
    value = truth_of(tree, message)
    if tree[0] == "property" and value is not None:
        return "Boolean", False
    return value


def _not(value: Any) -> Any:
    return None if value is None else ("Boolean", not value[1])


def _logic(deciding: bool, parts: list[Tree], message: dict[str, str]) -> Any:
    left, *rest = parts
    value = _condition(left, message)
    for part in rest:  # ((a and b) and c)
        if value == ("Boolean", deciding):
            continue
        right = _condition(part, message)
        if right == ("Boolean", deciding):
            value = right
        elif value is None or right is None:
            value = None
        else:
            value = "Boolean", not deciding
    return value


def _literal(number: str) -> Any:
    if re.search(r"[.eE]", number):
        return "Double", float(number)
    value = int(bare(number))
    return ("Integer" if -(2**31) <= value < 2**31 else "Long"), value


def _relation(sign: str, left: Tree, right: Tree, message: dict[str, str]) -> Any:
    first = truth_of(left, message)
    if first is None:
        return None
    second = truth_of(right, message)
    if second is None:
        return None
    if first[0] == second[0] == "String":
        first, second = _valued("Double", first[1]), _valued("Double", second[1])
    order = _order(first, second)
    return "Boolean", {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[sign]


def _equals(first: Any, second: Any) -> Any:
    if first is None and second is None:
        return "Boolean", True
    if first is None:
        return None
    if second is None:
        return "Boolean", False
    return "Boolean", _order(first, second) == 0


def _order(first: Any, second: Any) -> int:
    kinds = first[0], second[0]
    if kinds[0] != kinds[1]:
        if "Boolean" in kinds:
            if kinds == ("String", "Boolean"):
                first = "Boolean", first[1].lower() == "true"
            elif kinds == ("Boolean", "String"):
                raise Broken
            else:
                return -1
        elif kinds[0] == "String":
            first = _valued(kinds[1], first[1])
        elif kinds[1] == "String":
            second = _valued(kinds[0], second[1])
        elif "Double" in kinds:
            first, second = ("Double", float(first[1])), ("Double", float(second[1]))
    left, right = first[1], second[1]
    if first[0] == "Double":
        keys = [(math.isnan(x), 0.0 if math.isnan(x) else x) for x in (left, right)]
        if keys[0] == keys[1] and left == 0:
            left, right = math.copysign(1, left), math.copysign(1, right)
        else:
            left, right = keys
    return int(left > right) - int(left < right)


def _valued(kind: str, text: str) -> Any:
    """Double.valueOf(text) and its like."""
    if kind == "Double":
        trimmed = text.strip("".join(chr(n) for n in range(33)))
        if re.fullmatch(r"[+-]?(NaN|Infinity)", trimmed):
            return kind, float(trimmed)
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?", trimmed):
            return kind, float(re.sub("[dDfF]$", "", trimmed))
        raise Broken
    bits = {"Integer": 31, "Long": 63}[kind]
    if not re.fullmatch("[+-]?[0-9]{1,4000}", text) or not -(2**bits) <= int(text) < 2**bits:
        raise Broken
    return kind, int(text)
