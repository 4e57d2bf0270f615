"""Modules import each other in one direction (CONTRIBUTING.md).

The contracts in pyproject.toml say which folder may import which; this is about cycles inside a
folder. Imports for type checkers alone do not count: they do not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "runtime", "protocol", "store", "gateway", "nameserver", "broker", "client", "pipeline", "cli",
    "drills",
)  # fmt: skip
# A pickle of a received message names the function of the reference that rebuilds it, and that
# asks which kernel the reading process has. This table may only shrink.
LATE = {("protocol.received_reference", "protocol.kernels")}


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(node: ast.AST, *, late: bool) -> Iterator[str]:
    """The names that a module imports when it is loaded; `late`: and what its functions import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.module is not None or child.level
            yield child.module or ""
            yield from (f"{child.module}.{name.name}" for name in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for otherwise in child.orelse:
                yield from imports_of(otherwise, late=late)
        elif late or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports_of(child, late=late)


def graph(*, late: bool) -> dict[str, set[str]]:
    paths = modules()
    edges = {}
    for module, path in paths.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):  # `from .frame import x` is an import of saturnmq, too
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                node.module = ".".join(["saturnmq", *base, *filter(None, [node.module])])
        names = {name.removeprefix("saturnmq.") for name in imports_of(tree, late=late)}
        edges[module] = (names & paths.keys()) - {module}
    return edges


def cycle_of(edges: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle_when_they_are_loaded() -> None:
    edges = graph(late=False)
    assert sum(map(len, edges.values())) > 1500
    # A package's __init__ that gathers names is imported with each of its modules.
    assert cycle_of(edges) == []


def test_late_imports_hide_no_circle() -> None:
    edges = graph(late=True)
    for importer, imported in LATE:
        assert imported in edges[importer], f"drop {importer} -> {imported} from the table"
        edges[importer].discard(imported)
    assert cycle_of(edges) == []


def test_a_circle_is_found() -> None:
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []
