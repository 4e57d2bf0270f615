"""A pytest plugin for the measuring run: names the running test to coverage, and times it."""

from __future__ import annotations

import json
from pathlib import Path

import coverage
import pytest

SECONDS: dict[str, float] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)
    yield


def pytest_runtest_logreport(report):
    SECONDS[report.nodeid] = SECONDS.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish():
    path = Path(__file__).resolve().parents[2] / ".mutation" / "seconds.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | SECONDS))
