"""When the comparison with a real RocketMQ runs, and what its tests share."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # the tests of this directory share its modules

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
    try:
        return interop_nodes.rocketmq_jars()
    except interop_nodes.Unavailable as problem:
        pytest.skip(str(problem))


@pytest.fixture
def nodes(tmp_path: Path, jars: Path) -> Iterator[interop_nodes.Nodes]:
    """Starts nodes of this test's own: a nameserver must not know of another test's broker."""
    home = tmp_path / "nodes"
    home.mkdir()
    with interop_nodes.nodes(home, jars) as made:
        yield made
