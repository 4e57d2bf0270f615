"""When the comparison with a real RocketMQ runs, and what its tests share."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # the tests of this directory share its modules

import interop_mqadmin  # noqa: E402
import interop_nodes  # noqa: E402

FIGURES: pytest.StashKey[Counter[str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = Counter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "SATURNMQ_INTEROP=1 compares with a real RocketMQ; needs java, takes some minutes"
    if os.environ.get("SATURNMQ_INTEROP") == "1":
        reason = interop_nodes.why_not() or ""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skipif(bool(reason), reason=reason))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells its figures."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        figures: Counter[str] = session.config.stash[FIGURES]
        output["interop"] = dict(figures)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    figures: Counter[str] = node.config.stash[FIGURES]
    figures.update(node.workeroutput.get("interop", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    figures = config.stash[FIGURES]
    if figures:
        text = ", ".join(f"{count:,} {what}" for what, count in figures.items())
        terminalreporter.write_line(f"interop with RocketMQ {interop_nodes.VERSION}: {text}")


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Counter[str]:
    """What was compared, by kind; printed at the end of the run."""
    return request.config.stash[FIGURES]


@pytest.fixture(scope="session")
def jars() -> Path:
    """Those of RocketMQ."""
    return interop_nodes.rocketmq_jars()


@pytest.fixture(scope="session")
def shared_mqadmin(
    jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], interop_mqadmin.Mqadmin]]:
    """One JVM for the commands of many tests, which starts when it is first asked for."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started() -> interop_mqadmin.Mqadmin:
            home = tmp_path_factory.mktemp("mqadmin")
            return stack.enter_context(interop_mqadmin.mqadmin_jvm(jars, home))

        yield started


@pytest.fixture
def nodes(
    tmp_path: Path, jars: Path, shared_mqadmin: Callable[[], interop_mqadmin.Mqadmin]
) -> Iterator[interop_nodes.Nodes]:
    """Starts nodes of this test's own: a nameserver must not know of another test's broker."""
    home = tmp_path / "nodes"
    home.mkdir()
    with interop_nodes.nodes(home, jars, shared_mqadmin) as made:
        yield made
