"""`saturnmq admin status`: what a broker tells of itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from saturnmq.cli import admin, output
from saturnmq.cli.main import app
from typer.testing import CliRunner

SOUND = {"refusesWrites": "", "flushBehindMs": "0", "unforeseenFailures": "0"}


def shown(monkeypatch: pytest.MonkeyPatch, **facts: str) -> str:
    return told_by(monkeypatch, SOUND | facts)


def told_by(monkeypatch: pytest.MonkeyPatch, table: dict[str, str], *more: str) -> str:
    class Client:
        def cluster(self) -> list[Any]:
            return [SimpleNamespace(broker_name="broker-a", broker_id=0, address="127.0.0.1:1")]

        def broker_status(self, address: str) -> dict[str, str]:
            return table

    @contextlib.contextmanager
    def client(nameserver: str) -> Iterator[Client]:
        yield Client()

    monkeypatch.setattr(admin, "admin", client)
    result = CliRunner().invoke(app, ["admin", "status", *more], terminal_width=200)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_failures_that_nobody_foresaw_are_told_and_of_none_nothing(monkeypatch) -> None:
    assert "foresaw" not in shown(monkeypatch)
    told = {"unforeseenFailures": "3", "lastUnforeseenFailure": "request 30: KeyError: 'x'"}
    assert (
        "broker-a 0: 3 requests or tasks failed in an unforeseen way, the last: request "
        "30: KeyError: 'x'"
    ) in shown(monkeypatch, **told)


def test_for_how_long_a_loop_stood_still_is_told(monkeypatch) -> None:
    assert "loop stood" in shown(monkeypatch)
    assert "123 ms" in shown(monkeypatch, longestStopMs="123")


def test_groups_whose_members_subscribe_differently_are_told(monkeypatch) -> None:
    assert "differently" not in shown(monkeypatch, differingGroups="0")
    assert "broker-a 0: in 2 groups members subscribe differently" in shown(
        monkeypatch, differingGroups="2"
    )


def test_transactions_that_expired_are_told(monkeypatch) -> None:
    assert "expired" not in shown(monkeypatch)
    assert "broker-a 0: 2 transactions expired undecided" in shown(
        monkeypatch, transactionsExpired="2"
    )


def test_timed_messages_that_wait_and_their_lateness_are_told(monkeypatch) -> None:
    assert "timed" not in shown(monkeypatch, timedWaiting="0")
    assert "broker-a 0: 1,200 timed messages wait, deliveries were up to 35 ms late" in shown(
        monkeypatch, timedWaiting="1200", timedLatestMs="35"
    )
    assert "1 timed messages wait" in shown(monkeypatch, timedWaiting="1"), "of a slave"


def test_open_pops_and_groups_that_get_no_more_are_told(monkeypatch) -> None:
    assert "popped" not in shown(monkeypatch, popsOpen="0")
    told = {"popsOpen": "42", "popsOpenMax": "1250000", "popsOpenByGroup": "G=40;H=2"}
    found = shown(monkeypatch, **told, popGroupsHeldBack="G;K")
    assert (
        "broker-a 0: 42 of at most 1,250,000 popped messages are not acknowledged, by group: "
        "G=40, H=2"
    ) in found
    assert "broker-a 0: G, K get no new messages by pop" in found


def test_a_broker_of_rocketmq_is_shown_although_it_tells_less(monkeypatch) -> None:
    table = {
        "brokerVersionDesc": "V5_4_0",
        "commitLogMinOffset": "0",
        "commitLogMaxOffset": "4711",
        "commitLogDiskRatio": "0.2",
    }
    found = told_by(monkeypatch, table)
    assert "│ broker-a │ 0 │ 0 │ 4711 │ - │ 20 % │ - │ - │" in found
    del table["commitLogDiskRatio"]  # with several directories it has other names
    assert "│ 4711 │ - │ - │ - │ - │" in told_by(monkeypatch, table)
    row = json.loads(told_by(monkeypatch, table, "--json"))[0]
    assert row == {"broker": "broker-a", "id": 0, **table}


def on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    *rows: tuple[object, ...],
) -> list[str]:
    """The lines of a table there."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": width, "LINES": 25}.items():
        monkeypatch.setenv(name, str(value))
    output.table("brokers", ["broker", "address", "log ends at", "note"], rows)
    return capsys.readouterr().out.splitlines()


def test_a_narrow_terminal_shows_all_of_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ("broker-0", "127.0.0.1:10911", 1_540, "disk is full")
    wide = on_a_terminal(monkeypatch, capsys, 80, row)
    assert all(text in wide[4] for text in ("127.0.0.1:10911", "1,540", "disk is full"))
    assert on_a_terminal(monkeypatch, capsys, 40, row, row)[:6] == [
        "brokers",
        "broker       broker-0",
        "address      127.0.0.1:10911",
        "log ends at  1,540",
        "note         disk is full",
        "",
    ]
    assert on_a_terminal(monkeypatch, capsys, 40)[0] == "brokers"  # nothing in it


def test_a_table_shows_texts_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "[bold]x[/] :bug: \\["
    assert text in on_a_terminal(monkeypatch, capsys, 80, ("b", "a", 1, text))[4]
