"""docs/configuration.md is written from the code, is up to date, and is true of the options."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest
from saturnmq.pipeline import options, sink_options

ROOT = Path(__file__).parents[2]
SOURCE = {"endpoints": "127.0.0.1:9876", "subscribe": "orders"}
STORE = {"store": "/data/broker-a", "subscribe": "orders"}
SINK = {"endpoints": "127.0.0.1:9876", "topic": "orders"}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("configuration", ROOT / "tools/configuration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_tool_writes(tool):
    assert tool.PATH.read_text() == tool.reference(), "run python tools/configuration.py"


def test_a_setting_that_nobody_explains_is_refused(tool, tmp_path, monkeypatch):
    path = tmp_path / "silent_config.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from saturnmq.protocol.settings import setting\n"
        "@dataclass\n"
        "class Config:\n"
        "    first: int = setting('firstKey', 1)\n"
        '    """Explained."""\n'
        "    second: int = setting('secondKey', 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = importlib.import_module("silent_config").Config
    assert tool.strings_below(config) == {"first": "Explained."}
    with pytest.raises(SystemExit, match="second"):
        list(tool._settings(config))


def test_a_parameter_of_a_client_that_is_gone_is_refused(tool):
    class Client:
        def __init__(self, group: str, sip: int = 1) -> None:
            """sip: how much"""

    assert list(tool._parameters(Client, {}))[1] == ("`sip`", "`1`", "-", "how much")
    with pytest.raises(SystemExit, match="gulp"):
        list(tool._parameters(Client, {"gulp": "gulpSize"}))


def test_every_parameter_of_a_client_has_a_meaning(tool):
    rows = [
        row
        for name, names in tool.CLIENT_NAMES.items()
        for row in tool._parameters(getattr(tool.saturnmq, name), names)
    ]
    assert [row[0] for row in rows if not row[-1]] == []


@pytest.mark.parametrize("name", [n for n, o in options.OPTIONS.items() if o.default])
def test_the_default_of_an_option_of_the_source_is_what_leaving_it_out_means(name):
    given = STORE if name in ("brokerName", "trustTail") else SOURCE
    for streaming in (False, True):
        if name in (options._STREAM_ONLY, options._BATCH_ONLY)[streaming]:
            continue
        if name == "startingOffsets" and streaming:
            continue  # a stream begins at the latest
        written = options.parse({**given, name: options.OPTIONS[name].default}, streaming=streaming)
        left_out = options.parse(given, streaming=streaming)
        if name in ("startingOffsets", "endingOffsets"):  # the planner fills these in
            side = getattr(written, name.removesuffix("Offsets"))
            assert side.word == options.OPTIONS[name].default
            assert getattr(left_out, name.removesuffix("Offsets")) is None
        else:
            assert written == left_out


@pytest.mark.parametrize("name", [n for n, o in sink_options.OPTIONS.items() if o.default])
def test_the_default_of_an_option_of_the_sink_is_what_leaving_it_out_means(name):
    written = sink_options.parse({**SINK, name: sink_options.OPTIONS[name].default})
    assert written == sink_options.parse(SINK)
