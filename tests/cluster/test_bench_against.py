"""`saturnmq bench --against`, with a peer that only pretends: the figures, the turns, the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from saturnmq.cli import bench_chart, versus
from saturnmq.cli.versus import Line, Metric
from typer import Exit

PEER = """
import json, sys
home = sys.argv[1]
open(sys.argv[0] + ".runs", "a").write("start " + " ".join(sys.argv[2:]) + "\\n")
print(json.dumps({"ready": "Nobody 1.0"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    open(sys.argv[0] + ".runs", "a").write(f"{request['count']}\\n")
    if request["call"] == "keyed":
        print(json.dumps({"failed": "no keys"}), flush=True)
    else:
        print(json.dumps({"rate": 10.0, "cpu_s": 2.0}), flush=True)
"""
FACTS = {"cpus": 2}
SMOKE = Path(__file__).parents[2] / "benchmarks" / "smoke.py"


def line(name: str, call: str) -> Line:
    request = {"work": "send", "call": call, "size": 100, "count": 10_000}
    metrics = (Metric("rate", "messages/s", 2.0), Metric("cpu_s", "s", at_most=True, bound=1e-9))
    return Line(name, request, metrics, sync_flush=True)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scripts" / "peers"
    folder.mkdir(parents=True)
    (folder / "kafka.py").write_text(PEER)
    table = (line("first", "flush"), line("second", "callbacks"), line("bad", "keyed"))
    monkeypatch.setattr(versus, "TABLE", table)
    return folder.parent


def compared(scripts: Path, only: str, output: Path | None) -> tuple[dict[str, Any], list[str]]:
    told: list[str] = []
    found = versus.compare("kafka", only, 2, scripts, output, FACTS, told.append)
    return found, told


def test_both_sides_work_in_turns_and_lines_that_a_file_has_are_not_measured_again(
    scripts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "figures.json"
    _, told = compared(scripts, "first", output)
    assert told[0] == "1/1 first"
    assert [each.startswith(f"    pair {pair}") for pair, each in enumerate(told) if pair] == [
        True
    ] * 2
    runs = scripts / "peers" / "kafka.py.runs"
    assert runs.read_text().splitlines() == ["start --sync-flush", "2000", "10000", "10000"]
    runs.unlink()
    document, told = compared(scripts, "s", output)
    assert "1/2 first: measured already" in told
    assert runs.read_text().count("start") == 1
    assert json.loads(output.read_text()) == document
    assert list(document["lines"]) == ["first", "second"]
    rate, cpu = document["lines"]["second"].values()
    assert len(rate["runs"]["ours"]) == 2
    assert rate["ratio"] == pytest.approx(rate["ours"] / 10.0)
    assert rate["reached"] is True
    assert cpu["ratio"] == pytest.approx(2.0 / cpu["ours"])
    assert cpu["reached"] is False, "more than the bound"
    assert [row[0] for row in versus.rows(document)] == ["first"] * 2 + ["second"] * 2
    picture = ElementTree.fromstring(bench_chart.chart(document, versus.short))
    bars = [each for each in picture.iter() if each.tag.endswith("rect")]
    assert len(bars) == 1 + 4


def test_the_page_cache_is_filled_before_each_run(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Cache:
        def __enter__(self) -> Cache:
            return self

        def __exit__(self, *_: object) -> None:
            events.append("gone")

        def fill(self) -> None:
            events.append("full")

    monkeypatch.setattr(versus, "FullCache", Cache)
    output = tmp_path / "figures.json"
    document = versus.compare(
        "kafka", "first", 1, scripts, output, FACTS, lambda _: None, full_cache=True
    )
    assert events == ["full"] * 4 + ["gone"], "two sides get warm, and then run"
    assert document["machine"] == {**FACTS, "full_cache": True}
    with pytest.raises(Exit):
        compared(scripts, "first", output)


def test_a_line_for_which_the_peer_fails_is_named_and_the_others_are_measured(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "figures.json"
    table = (line("bad", "keyed"), line("dead", "batch"), line("first", "flush"))
    monkeypatch.setattr(versus, "TABLE", table)
    peer = scripts / "peers" / "kafka.py"
    peer.write_text(
        PEER.replace("    else:", '    elif request["call"] == "batch":\n        break\n    else:')
    )
    document, told = compared(scripts, "", output)
    assert list(document["lines"]) == ["first"]
    assert document["failed"] == {
        "bad": "the peer failed: no keys",
        "dead": "the peer has ended with status 0: start its program alone",
    }
    assert "    the peer failed: no keys; the other lines go on" in told
    peer.write_text(PEER.replace("keyed", "other"))
    document, told = compared(scripts, "bad", output)
    assert list(document["lines"]) == ["first", "bad"], "it is measured the next time"
    assert document["failed"] == {}
    command = [
        sys.executable,
        "-m",
        "saturnmq",
        "bench",
        "--against",
        "rocketmq",
        "--only",
        "one sync",
    ]
    peer.with_name("rocketmq.py").write_text("import sys; sys.exit(3)")
    done = subprocess.run(
        [*command, "--peers", str(scripts)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        "saturnmq: no figures for one synchronous send: the peer has ended with status 3"
        in done.stderr
    )


def test_a_file_of_another_run_ends_it(
    scripts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "figures.json"
    facts = {**FACTS, "full_cache": False}
    other = {"against": "kafka", "pairs": 7, "machine": facts, "versions": "", "lines": {}}
    output.write_text(json.dumps(other))
    with pytest.raises(Exit):
        compared(scripts, "first", output)
    assert "its pairs is 7, not 2" in capsys.readouterr().err
    with pytest.raises(Exit):
        compared(scripts, "third", None)
    assert "no line has 'third' in its name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [(3_673_482, "3.67 M"), (311_000, "311 k"), (2048, "2,048"), (95.25, "95.2"), (0.123, "0.123")],
)
def test_figures_have_three_digits_that_count(value: float, text: str) -> None:
    assert versus.short(value) == text


def test_the_smoke_of_the_figures_compares_with_what_is_committed(tmp_path: Path) -> None:
    committed = tmp_path / "smoke.json"
    command = [sys.executable, str(SMOKE), "--quick", "--strict", "--committed", str(committed)]
    done = subprocess.run([*command, "--write"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(committed.read_text())
    known = json.loads(SMOKE.with_suffix(".json").read_text())
    assert document["ratios"].keys() == known["ratios"].keys()
    document["ratios"] = {name: 1e3 * ratio for name, ratio in document["ratios"].items()}
    committed.write_text(json.dumps(document))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.count("WARNING: slower") == len(document["ratios"])
