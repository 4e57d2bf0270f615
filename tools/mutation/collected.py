"""A pytest that has imported everything and collected its tests: for each mutant it forks.

A mutant of a function is put in place of the live function's code, so nothing is imported again.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import CodeType, FunctionType

import pytest

CO_OPTIMIZED = 0x01  # set in the code of functions, not in that of modules and classes


def serve(requests: Connection, folder: str, files: list[str]) -> None:
    """Collect `files`, then answer requests (module, source before and after, tests, seconds):
    whether the tests pass, or None if the change is in no function that is there."""
    os.setpgrp()
    silence = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(silence, number)
    os.environ["PYTHONPATH"] = folder
    sys.path.insert(0, folder)
    quick = ["--assert=plain", "--tb=native"]  # nobody reads why a test failed
    arguments = ["-q", "-n", "0", "-p", "no:cacheprovider", *quick, *files]
    pytest.main(arguments, plugins=[Collected(requests)])
    requests.close()
    os._exit(0)


class Collected:
    def __init__(self, requests: Connection) -> None:
        self._requests = requests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
        gc.freeze()  # a collection in a fork would copy all of it
        self._requests.send(sorted(items))
        while True:
            try:
                module, before, after, tests, seconds = self._requests.recv()
            except EOFError:
                return True
            chosen = [items[test] for test in tests if test in items]
            changed = changes(functions, module, before, after) if chosen else None
            self._requests.send(changed and passes(session, chosen, changed, seconds))


def passes(
    session: pytest.Session,
    items: list[pytest.Item],
    changed: list[tuple[FunctionType, CodeType]],
    seconds: float,
) -> bool:
    """Whether a copy of this process with the changed functions passes the tests in time."""
    child = os.fork()
    if child == 0:
        os.setpgrp()  # whatever the tests start can be ended with them
        for function, code in changed:
            function.__code__ = code
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os._exit(1)
        os._exit(0)
    with contextlib.suppress(OSError):  # whoever is first
        os.setpgid(child, child)
    ended = os.pidfd_open(child)
    watch = select.poll()  # select() takes no descriptors above 1023
    watch.register(ended, select.POLLIN)
    if not watch.poll(seconds * 1000):
        os.killpg(child, signal.SIGKILL)
    os.close(ended)
    return os.waitpid(child, 0)[1] == 0


def changes(
    functions: list[FunctionType], module: str, before: str, after: str
) -> list[tuple[FunctionType, CodeType]] | None:
    """Those functions of a module that another source changes, with their new code; None if it
    changes anything else, or a function of which there is none."""
    old = dict(codes(compile(before, module, "exec")))
    try:
        new = dict(codes(compile(after, module, "exec")))
    except SyntaxError:  # a "not" before a walrus
        return None
    if old.keys() != new.keys():
        return None
    changed = {key for key in old if old[key] != new[key]}
    live: dict[tuple[str, int, int], list[FunctionType]] = {key: [] for key in changed}
    for function in functions:
        if function.__code__.co_filename.endswith("/" + module):
            for key in changed:
                if function.__code__ == old[key]:
                    live[key].append(function)
    outermost = {key for key in changed if not any(is_inside(key, other) for other in changed)}
    if not outermost or not all(live[key] for key in outermost):
        return None
    return [(function, new[key]) for key in changed for function in live[key]]


def codes(code: CodeType, number: int = 0) -> Iterator[tuple[tuple[str, int, int], CodeType]]:
    """The code of each function in it, by name, line and place among the code that holds it."""
    if code.co_flags & CO_OPTIMIZED:
        yield (code.co_qualname, code.co_firstlineno, number), code
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for position, constant in enumerate(inner):
        yield from codes(constant, position)


def is_inside(key: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return key[0].startswith(f"{other[0]}.<locals>.")
