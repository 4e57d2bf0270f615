"""An extension of griffe, which reads docstrings for the API reference: the lines of a docstring
that explain a parameter, `name: text`, become a list.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_PARAMETER = re.compile(r"^((?:\w+, )*[a-z]\w*): (?=\S)")


class ParameterLists(Extension):
    """Makes lists of explained parameters."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.is_function and obj.docstring is not None:
            obj.docstring.value = _with_lists(obj.docstring.value, {p.name for p in obj.parameters})


def _with_lists(text: str, parameters: set[str]) -> str:
    lines, inside = [], False
    for line in text.splitlines():
        begins = _PARAMETER.match(line)
        if begins and parameters.issuperset(begins[1].split(", ")):
            lines += [] if inside else [""]
            inside = True
            names = ", ".join(f"`{name}`" for name in begins[1].split(", "))
            lines.append(f"- {names}: {line[begins.end() :]}")
        else:
            if inside and not line.startswith("    "):
                inside = False
                lines.append("")
            lines.append(line)
    return "\n".join(lines)
