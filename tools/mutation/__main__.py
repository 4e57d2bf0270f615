"""Mutation testing: changes one operator of a module at a time and asks whether a test notices.

    make mutation MODULES="store/derived/lookup.py broker/tables/offsets.py"

Cosmic Ray knows which changes a module allows, and makes them. Decided here is which of its
operators count and which tests are asked, in which order: those that ran the changed line, first
the ones whose file imports the module, all tests before a second case of one, the fastest first, by
a coverage measured once (`--measure` measures anew, with `--tests` only these files). The first
test that fails kills a mutant, and so does time running out; a survivor is printed with its line.
Annotations are passed over, because nothing evaluates them, and so is `slots=`, which saves memory
and changes no result. Only copies of the sources are changed.

A changed function is put into a fork of a process that has collected the tests (`collected.py`);
whatever else changes is imported anew (`forked.py`).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from coverage import CoverageData

from tools.mutation.collected import serve
from tools.mutation.forked import run_pytest

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".mutation"
FOLDERS = (
    "runtime",
    "protocol",
    "store",
    "nameserver",
    "broker",
    "client",
    "cli",
    "pipeline",
    "drills",
)
NAMES = ("__init__.py", "__main__.py", "_version.py", "aio.py", "py.typed")
TESTS = ("tests/unit", "tests/rules")
COMPARISONS = (
    "Lt_LtE LtE_Lt Gt_GtE GtE_Gt Eq_NotEq NotEq_Eq Lt_GtE GtE_Lt Gt_LtE LtE_Gt Is_IsNot IsNot_Is"
)
BINARIES = "Add_Sub Sub_Add Mul_Div FloorDiv_Mul Mod_Mul BitAnd_BitOr BitOr_BitAnd"
OTHERS = (
    "AddNot NumberReplacer ReplaceAndWithOr ReplaceOrWithAnd ReplaceBreakWithContinue "
    "ReplaceContinueWithBreak ReplaceTrueWithFalse ReplaceFalseWithTrue ZeroIterationForLoop"
)
OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{pair}" for pair in COMPARISONS.split()),
    *(f"core/ReplaceBinaryOperator_{pair}" for pair in BINARIES.split()),
    *(f"core/{name}" for name in OTHERS.split()),
)
MARGIN_S = 20.0  # what a test may take beyond three times its usual time
MTIMES = itertools.count(1_000_000_000)  # no two versions of a module share one


@dataclass(frozen=True)
class OperatorMutant:
    module: str  # a path from the root
    line: int
    operator: str
    occurrence: int
    statement: tuple[int, int]  # its lines, the end exclusive
    at_import: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.operator.removeprefix('core/')}#{self.occurrence}"


def mutants(module: str) -> Iterator[OperatorMutant]:
    """Every mutant of a module but those that nothing can notice."""
    source = (ROOT / module).read_text()
    passed_over = _passed_over(source)
    statements = _statements(source)
    tree = get_ast(source)
    for operator in OPERATORS:
        maker = get_operator(operator)()
        occurrence = 0
        for node in ast_nodes(tree):
            for start, _ in maker.mutation_positions(node):
                unseen = any(a <= start < b for a, b in passed_over)
                if not unseen and not _is_star(source, operator, start):
                    where = statements.get(start[0], ((start[0], start[0] + 1), False))
                    yield OperatorMutant(module, start[0], operator, occurrence, *where)
                occurrence += 1


def _statements(source: str) -> dict[int, tuple[tuple[int, int], bool]]:
    """By line: the lines of its innermost statement (of a compound one, of its head), and whether
    an import runs it."""
    found: dict[int, tuple[tuple[int, int], bool]] = {}

    def visit(node: ast.AST, at_import: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                body = getattr(child, "body", None)
                end = body[0].lineno if body else (child.end_lineno or child.lineno) + 1
                end = max(end, child.lineno + 1)
                first = min([d.lineno for d in getattr(child, "decorator_list", ())] + [end - 1])
                first = min(first, child.lineno)
                for line in range(first, end):
                    found[line] = (first, end), at_import
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            visit(child, at_import and not function)

    visit(ast.parse(source), True)
    return found


def _passed_over(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where nothing is evaluated, or nothing that a result depends on."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            found.append(node.returns)
        elif isinstance(node, ast.keyword) and node.arg == "slots":
            found.append(node.value)
    return [
        ((e.lineno, e.col_offset), (e.end_lineno or e.lineno, e.end_col_offset or 0)) for e in found
    ]


def _is_star(source: str, operator: str, start: tuple[int, int]) -> bool:
    """The star of a signature or of an unpacking is no product."""
    before = source.splitlines()[start[0] - 1][: start[1]].rstrip()
    return "_Mul_" in operator and before[-1:] in ("", "(", "[", "{", ",", "*")


def overlay(folder: Path) -> Path:
    """A copy of the packages as they are imported, with the kernels of the installation."""
    package = folder / "saturnmq"
    for name in FOLDERS:
        shutil.copytree(
            ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    for name in NAMES:
        shutil.copy(ROOT / "client" / "names" / name, package / name)
    shutil.copytree(ROOT / "pipeline" / "names", folder / "pyspark_saturnmq")
    installed = Path(sysconfig.get_paths()["purelib"])
    for kernel in (installed / "saturnmq").rglob("*.so"):
        shutil.copy(kernel, package / kernel.relative_to(installed / "saturnmq"))
    return folder


@functools.cache
def forks() -> multiprocessing.context.ForkServerContext:
    """Processes that have imported the libraries, but nothing that is tested."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tools.mutation.forked", "tools.mutation.collected"])
    return context


def passes(folder: Path, tests: list[str], timeout: float) -> bool:
    process = forks().Process(target=run_pytest, args=(str(folder), tests))
    process.start()
    process.join(timeout)
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):  # it may not lead a group of its own yet
            os.killpg(process.pid or 0, 9)
        process.kill()
        process.join()
    return process.exitcode == 0


@dataclass
class Ran:
    """Which tests run which lines, and how long each takes."""

    by_line: Mapping[str, Mapping[int, set[str]]]
    seconds: Mapping[str, float]

    def tests_of(self, mutant: OperatorMutant) -> list[str]:
        """Those that ran its statement. Of a line that only an import runs: those that ran a line
        with the name that it binds, else those of its module; and those of the files that import
        the module, which may only read a constant."""
        of_module = self.by_line.get(mutant.module, {})
        found = {test for line in range(*mutant.statement) for test in of_module.get(line, ())}
        importing = importers(mutant.module)
        if not found and mutant.at_import:
            of_all = {test for tests in of_module.values() for test in tests}
            for module, lines in self.by_line.items():
                for line in mentions(mutant.module, mutant.statement[0], module):
                    found |= lines.get(line, set()) & of_all
            found = found or of_all
            found |= {test for test in self.seconds if test.partition("::")[0] in importing}
        cases: Counter[str] = Counter()
        place: dict[str, tuple[bool, int, float]] = {}
        for test in sorted(found, key=lambda test: self.seconds[test]):
            function = test.partition("[")[0]
            own = test.partition("::")[0] in importing
            place[test] = (not own, cases[function], self.seconds[test])
            cases[function] += 1
        return sorted(found, key=lambda test: place[test])

    def asked(self, mutant: OperatorMutant, most: int, seconds: float) -> list[str]:
        """The first of them: so many, and no more once they take so long."""
        tests = self.tests_of(mutant)[:most]
        until = itertools.accumulate(self.seconds[test] for test in tests)
        return tests[: 1 + sum(took <= seconds for took in until)]


def mentions(module: str, line: int, other: str) -> list[int]:
    """The lines of another module (or the same) with the name that this line binds."""
    bound = re.match(r"\s*(\w+)\s*[:=]", (ROOT / module).read_text().splitlines()[line - 1])
    if bound is None or not (ROOT / other).exists():
        return []
    name = re.compile(rf"\b{bound[1]}\b")
    lines = (ROOT / other).read_text().splitlines()
    return [number for number, text in enumerate(lines, 1) if name.search(text)]


@functools.cache
def importers(module: str) -> frozenset[str]:
    """The test files that import a module by its name."""
    package, name = module.removesuffix(".py").replace("/", ".").rsplit(".", 1)
    pattern = re.compile(
        rf"from saturnmq\.{re.escape(package)}(\.{name} import|"
        rf" import (\([^)]*|[^(\n]*)\b{name}\b)"
    )
    files = [path for folder in TESTS for path in (ROOT / folder).rglob("*.py")]
    return frozenset(str(f.relative_to(ROOT)) for f in files if pattern.search(f.read_text()))


def measure(files: list[str]) -> None:
    """Run the tests once, noting what each of them runs; those of `files` if some are given."""
    if not files:
        shutil.rmtree(STATE, ignore_errors=True)
    STATE.mkdir(exist_ok=True)
    seconds = STATE / "seconds.json"
    if seconds.exists():
        known = json.loads(seconds.read_text())
        kept = {test: took for test, took in known.items() if test.partition("::")[0] not in files}
        seconds.write_text(json.dumps(kept))
    settings = STATE / "coveragerc"
    settings.write_text(
        f"[run]\nsource_pkgs = saturnmq\nconcurrency = thread\ndata_file = {STATE}/coverage\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        run = ["-m", "coverage", "run", "--append", f"--rcfile={settings}", "-m", "pytest", "-q"]
        command = [sys.executable, *run, "-n", "0", "-p", "tools.mutation.contexts"]
        environment = {**os.environ, "PYTHONPATH": str(overlay(Path(temporary)))}
        code = subprocess.run(
            [*command, *(files or TESTS)], cwd=ROOT, env=environment, check=False
        ).returncode
    if code:
        raise SystemExit(f"the tests fail without a mutant (exit status {code}): mend them first")


def load() -> Ran:
    seconds = json.loads((STATE / "seconds.json").read_text())
    data = CoverageData(str(STATE / "coverage"))
    data.read()
    by_line: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in data.measured_files():  # a module has one for each measurement
        lines = by_line[re.sub(r".*/saturnmq/", "", path)]
        for line, contexts in data.contexts_by_lineno(path).items():
            lines[line].update(test for test in contexts if test in seconds)
    return Ran(by_line, seconds)


def put(path: Path, source: str) -> None:
    """Write a module so that no bytecode of another version passes for its own."""
    path.write_text(source)
    mtime = next(MTIMES)
    os.utime(path, (mtime, mtime))


class MutantJudge:
    """Has a copy of the packages, and a process that has collected the tests of a module."""

    def __init__(self, folder: Path, ran: Ran) -> None:
        self._folder = overlay(folder)
        self._ran = ran

    def begin(self, module: str, tests: set[str]) -> MutantJudge:
        self._name = module
        self._copy = self._folder / "saturnmq" / module
        self._source = (ROOT / module).read_text()
        self._door, theirs = multiprocessing.Pipe()
        files = sorted({test.partition("::")[0] for test in tests})
        self._process = forks().Process(target=serve, args=(theirs, str(self._folder), files))
        self._process.start()
        theirs.close()
        try:
            gone = tests - set(self._door.recv())
        except EOFError:  # a file cannot be collected
            gone = tests
        if gone or not self._passes(self._source, sorted(tests)):
            raise SystemExit(
                f"of {module} some tests fail without a mutant, are gone or too slow: mend them, "
                f"then measure theirs anew: --tests {' '.join(files)}"
            )
        return self

    def end(self) -> None:
        self._door.close()
        self._process.join()

    def survives(self, mutant: OperatorMutant, tests: list[str]) -> bool:
        operator = get_operator(mutant.operator)()
        changed = mutate_code(self._source, operator, mutant.occurrence)
        try:
            compile(changed, mutant.module, "exec")
        except SyntaxError:  # `if x := y` with a `not`
            return False
        return self._passes(changed, tests)

    def _passes(self, source: str, tests: list[str]) -> bool:
        limit = MARGIN_S + 3 * sum(self._ran.seconds[test] for test in tests)
        put(self._copy, source)  # also for the processes that a test starts
        try:
            self._door.send((self._name, self._source, source, tests, limit))
            passed = self._door.recv()
            return passes(self._folder, tests, limit) if passed is None else passed
        finally:
            put(self._copy, self._source)


def judged(
    module: str, asked: dict[OperatorMutant, list[str]], judges: list[MutantJudge]
) -> Iterator[tuple[OperatorMutant, str | None]]:
    """Each mutant, and why nothing noticed it; None if a test did."""
    tests = set(itertools.chain.from_iterable(asked.values()))
    free: SimpleQueue[MutantJudge] = SimpleQueue()

    def judge(mutant: OperatorMutant) -> tuple[OperatorMutant, str | None]:
        if not asked[mutant]:
            return mutant, "no test runs this line"
        mine = free.get()
        try:
            passed = mine.survives(mutant, asked[mutant])
        finally:
            free.put(mine)
        return mutant, f"{len(asked[mutant])} tests pass" if passed else None

    with ThreadPoolExecutor(len(judges)) as pool:
        for ready in pool.map(lambda each: each.begin(module, tests), judges):
            free.put(ready)
        yield from pool.map(judge, asked)
    for each in judges:
        each.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="paths from the root")
    parser.add_argument("--measure", action="store_true", help="measure the coverage anew")
    parser.add_argument("--tests", nargs="+", default=[], help="measure only these files anew")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--most", type=int, default=60, help="tests asked for each mutant")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long those may take")
    parser.add_argument("--report", type=Path, help="write all outcomes there, as JSON")
    parser.add_argument("--again", type=Path, help="only what survived, by a report")
    options = parser.parse_args()
    if options.measure or options.tests or not (STATE / "coverage").exists():
        measure(options.tests)
    ran = load()
    again = options.again and {
        outcome["mutant"]
        for outcome in json.loads(options.again.read_text())
        if outcome["survived"]
    }
    outcomes: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        judges = [MutantJudge(Path(temporary) / str(n), ran) for n in range(options.workers)]
        for module in options.modules:
            began = time.monotonic()
            found = [m for m in mutants(module) if again is None or str(m) in again]
            asked = {m: ran.asked(m, options.most, options.seconds) for m in found}
            alive = 0
            for mutant, why in judged(module, asked, judges):
                outcomes.append({"mutant": str(mutant), "survived": why is not None, "why": why})
                if why is not None:
                    alive += 1
                    text = (ROOT / module).read_text().splitlines()[mutant.line - 1].strip()
                    print(f"  survived: {mutant} ({why}): {text}", flush=True)
            took = time.monotonic() - began
            print(f"{module}: {len(found)} mutants, {alive} survived, {took:.0f} s", flush=True)
            if options.report:
                options.report.write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main()
