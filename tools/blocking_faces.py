"""Writes client/blocking_faces.py: the synchronous consumers and the synchronous admin.

    python tools/blocking_faces.py           # write it
    python tools/blocking_faces.py --check   # status 1 if it is not what this would write

Each class is the asynchronous one (push_consumer.py, pull_consumer.py and simple_consumer.py of
client/consumer/, client/admin/admin.py) with the same constructor, methods, properties and
docstrings, those of its bases included, over the `Facade` of client/facade.py. It reads sources
only, so it works on a tree that cannot be imported. What it leaves out:

- names that begin with `_`, and attributes that the class body does not annotate
- what the library itself calls: the methods of the protocols in `CALLED_BY_US`
- parameters that put a client on a loop or a disk of ours: `INTERNAL_PARAMETERS`
"""

from __future__ import annotations

import argparse
import ast
import builtins
import inspect
import subprocess
import sys
from pathlib import Path
from textwrap import fill, indent

ROOT = Path(__file__).parents[1]
WRITTEN = "client/blocking_faces.py"
FACES = {
    "PushConsumer": "consumer.push_consumer",
    "PullConsumer": "consumer.pull_consumer",
    "SimpleConsumer": "consumer.simple_consumer",
    "Admin": "admin.admin",
}
CALLED_BY_US = {
    "server_requests": ("ConsumerHandler", "ConsumerRequests"),
    "consumer.membership": ("RebalanceMember",),
}
# What a method may answer without a visit to the loop: the loop is asked when this is empty.
AT_HAND = {"PullConsumer.poll": "round.give(max_messages)"}
# The method that gets an answer whose caller was interrupted.
UNTAKEN = {"PullConsumer.poll": "_put_back"}
INTERNAL_PARAMETERS = ("core", "runtime", "files")
LIFE = ("start", "close")  # the Facade has them; a face adds what the asynchronous class says

HEADER = '''"""The synchronous PushConsumer, PullConsumer, SimpleConsumer and Admin.

Written by tools/blocking_faces.py from the asynchronous classes; do not edit. Change those, and
run it again: `make lint` checks that this file is what it writes.
"""

from __future__ import annotations
'''
ANY_THREAD = (
    "A call returns when what it asks for is done. Any thread may call, but for the client's own: "
    "in an `async` listener and in `on_error` use saturnmq.aio."
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """A module of client/: its classes, and where the names that it uses come from."""

    def __init__(self, name: str) -> None:
        tree = ast.parse((ROOT / "client" / f"{name.replace('.', '/')}.py").read_text())
        self.name = f"saturnmq.client.{name}"
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._homes: dict[str, str] = {}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                self._homes.update((alias.name, node.module) for alias in node.names)

    def home(self, name: str) -> str:
        """The module to import `name` from."""
        return self._homes.get(name, self.name)

    def parts(self, name: str) -> list[tuple[Module, ast.ClassDef]]:
        """The class with this name and its bases, each with its module."""
        found = [(self, self.classes[name])]
        for base in self.classes[name].bases:
            assert isinstance(base, ast.Name), f"{name} has a base that is no name"
            home = self.home(base.id).removeprefix("saturnmq.client.")
            found += Module(home).parts(base.id)
        return list({source: (module, source) for module, source in found}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write client/blocking_faces.py.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    check = parser.parse_args().check
    text = faces()
    path = ROOT / WRITTEN
    if check:
        if not path.exists() or path.read_text() != text:
            sys.exit(f"{WRITTEN} is out of date: run python tools/blocking_faces.py")
        return
    path.write_text(text)


def faces() -> str:
    """The text of the module."""
    ours = {
        method.name
        for module, protocols in CALLED_BY_US.items()
        for protocol in protocols
        for method in _functions(Module(module).classes[protocol])
    }
    imports = {
        ("saturnmq.client.facade", "Facade"),
        ("typing", "Self"),
        *(tuple(f"saturnmq.client.{name}".rsplit(".", 1)) for name in FACES.values()),
    }
    classes = []
    for name, module_name in FACES.items():
        alias = module_name.rpartition(".")[2]
        writer = Face(name, Module(module_name).parts(name), f"{alias}.{name}", ours)
        classes.append(writer.text())
        imports |= writer.used
    lines = [f"from {module} import {name}" for module, name in sorted(imports)]
    names = f"__all__ = {sorted(FACES)}"
    return _formatted("\n".join([HEADER, *lines, "", names, "", *classes]))


class Face:
    """Writes one class."""

    def __init__(
        self, name: str, parts: list[tuple[Module, ast.ClassDef]], target: str, ours: set[str]
    ) -> None:
        """`parts`: the class, and after it its bases."""
        self.used: set[tuple[str, str]] = set()  # of annotations and defaults: module and name
        self._name = name
        self._parts = parts
        self._module = parts[0][0]
        self._target = target
        self._ours = ours

    def text(self) -> str:
        members = [self._docstring(self._parts[0][1], ANY_THREAD)]
        for module, source in self._parts:
            self._module = module
            members += self._members(source, is_base=source is not self._parts[0][1])
        body = indent("\n".join(part for part in members if part), "    ")
        return f"class {self._name}(Facade[{self._target}]):\n{body}\n"

    def _members(self, source: ast.ClassDef, *, is_base: bool) -> list[str]:
        parts = []
        body = source.body
        for node, following in zip(body, [*body[1:], None], strict=True):
            if is_base and isinstance(node, Function) and node.name == "__init__":
                continue
            if isinstance(node, ast.AnnAssign):
                parts.append(self._attribute(node, following))
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                parts.append(ast.unparse(node))  # a second name of a method
            elif isinstance(node, Function):
                parts.append(self._function(node))
        return parts

    def _function(self, node: Function) -> str:
        if node.name == "__init__":
            return self._constructor(node)
        if node.name.startswith("_") or node.name in self._ours:
            return ""
        if node.name in LIFE:
            if len(node.args.args) + len(node.args.kwonlyargs) > 1:
                raise SystemExit(f"{self._target}.{node.name} has parameters: a Facade has none")
            returns = "Self" if node.name == "start" else "None"
            call = f"return super().{node.name}()"
            return self._method(node, "self", returns, call)
        assert node.returns is not None, f"{self._target}.{node.name} has no return type"
        self._uses(node.returns)
        parameters, arguments = self._parameters(node)
        returns = ast.unparse(node.returns)
        if any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
            call = f"return self._target.{node.name}"
            return "@property\n" + self._method(node, parameters, returns, call)
        call = f"self._target.{node.name}({arguments})"
        waits = isinstance(node, ast.AsyncFunctionDef)
        there = f"lambda: {call}" if arguments else call.removesuffix("()")
        name = f"{self._name}.{node.name}"
        untaken = f", self._target.{UNTAKEN[name]}" if name in UNTAKEN else ""
        call = f"self._wait({call}{untaken})" if waits else f"self._call({there})"
        if at_hand := AT_HAND.get(name):
            call = f"self._target.{at_hand} or {call}"
        call = call if returns == "None" else f"return {call}"
        return self._method(node, parameters, returns, call)

    def _constructor(self, node: Function) -> str:
        parameters, arguments = self._parameters(node)
        made = f"{self._target}({arguments}, runtime=runtime)"
        call = f"super().__init__(lambda runtime: {made})"
        return self._method(node, parameters, "None", call)

    def _attribute(self, node: ast.AnnAssign, following: ast.stmt | None) -> str:
        """An annotation in the class body, with the docstring below it, as a property."""
        assert isinstance(node.target, ast.Name)
        name = node.target.id
        if name.startswith("_"):
            return ""
        if not isinstance(following, ast.Expr) or not isinstance(following.value, ast.Constant):
            raise SystemExit(f"{self._target}.{name} has no docstring")
        self._uses(node.annotation)
        head = f"@property\ndef {name}(self) -> {ast.unparse(node.annotation)}:"
        return f'{head}\n    """{following.value.value}"""\n    return self._target.{name}\n'

    def _method(self, node: Function, parameters: str, returns: str, call: str) -> str:
        body = [text for text in (self._docstring(node), call) if text]
        return f"def {node.name}({parameters}) -> {returns}:\n" + indent("\n".join(body), "    ")

    def _docstring(self, node: Function | ast.ClassDef, more: str = "") -> str:
        text = ast.get_docstring(node)
        if text is None:
            if node.name == "__init__":
                return ""
            raise SystemExit(f"{self._target}.{node.name} has no docstring")
        return '"""' + inspect.cleandoc(f"{text}\n\n{fill(more, 92)}" if more else text) + '\n"""'

    def _parameters(self, node: Function) -> tuple[str, str]:
        """The parameters as they are written, and the arguments that pass them on."""
        args = node.args
        assert not args.posonlyargs
        assert args.vararg is None
        given = [None] * (len(args.args) - len(args.defaults)) + list(args.defaults)
        written, passed = [], []
        for arg, default in zip(args.args, given, strict=True):
            written.append(self._parameter(arg, default))
            passed.append(arg.arg)
        public = [
            (arg, default)
            for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
            if arg.arg not in INTERNAL_PARAMETERS
        ]
        if public:
            written.append("*")
        for arg, default in public:
            written.append(self._parameter(arg, default))
            passed.append(f"{arg.arg}={arg.arg}")
        if args.kwarg is not None:  # their names are those of a TypedDict
            written.append(f"**{self._parameter(args.kwarg, None)}")
            passed.append(f"**{args.kwarg.arg}")
        return ", ".join(written), ", ".join(passed[1:])

    def _parameter(self, arg: ast.arg, default: ast.expr | None) -> str:
        text = arg.arg
        if arg.annotation is not None:
            self._uses(arg.annotation)
            text += f": {ast.unparse(arg.annotation)}"
        if default is not None:
            self._uses(default)
            text += f" = {ast.unparse(default)}"
        return text

    def _uses(self, node: ast.expr) -> None:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        self.used |= {
            (self._module.home(name), name) for name in names if not hasattr(builtins, name)
        }


def _functions(source: ast.ClassDef) -> list[Function]:
    return [node for node in source.body if isinstance(node, Function)]


def _formatted(text: str) -> str:
    """As `ruff check --select I --fix` and `ruff format` leave it."""
    for command in (["check", "--select", "I,F401", "--fix", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", WRITTEN, "-"]
        done = subprocess.run(
            ruff, input=text, capture_output=True, text=True, cwd=ROOT, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr or done.stdout)
        text = done.stdout
    return text


if __name__ == "__main__":
    main()
