"""Commands that ask each broker for something, while one of them does not answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from saturnmq.cli import admin
from saturnmq.cli.main import app
from saturnmq.runtime.errors import InvalidParameter, RequestTimeout, SaturnError
from typer.testing import CliRunner, Result

ADDRESSES = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]
COMMANDS = (("settings",), ("set", "maxMessageSize=1000"), ("clean",), ("clean", "--unused"))


class Client:
    """A cluster of three brokers, some of which answer with an error."""

    def __init__(self, errors: dict[str, SaturnError]) -> None:
        self._errors = errors
        self.asked: list[str] = []

    def cluster(self) -> list[Any]:
        return [
            SimpleNamespace(broker_name=f"broker-{n}", broker_id=0, address=address)
            for n, address in enumerate(ADDRESSES)
        ]

    def broker_settings(self, address: str) -> dict[str, str]:
        self.asked.append(address)
        if address in self._errors:
            raise self._errors[address]
        return {"brokerRole": "SLAVE"}

    def change_settings(self, address: str, settings: dict[str, str]) -> None:
        self.broker_settings(address)

    delete_expired = delete_unused = broker_settings


def run(monkeypatch: pytest.MonkeyPatch, client: Client, *command: str) -> Result:
    @contextlib.contextmanager
    def known(nameserver: str) -> Iterator[Client]:
        yield client

    monkeypatch.setattr(admin, "admin", known)
    return CliRunner().invoke(app, ["admin", *command])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("silent", ADDRESSES)
def test_the_others_are_asked_and_named_and_so_is_who_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], silent: str
) -> None:
    client = Client({silent: RequestTimeout("no answer in 3 s")})
    result = run(monkeypatch, client, *command, "--json")
    told = json.loads(result.stdout)
    others = [address for address in ADDRESSES if address != silent]
    assert client.asked == ADDRESSES
    named = told if isinstance(told, list) else list(told.get("brokers", told))
    assert named == others
    assert result.exit_code == 1
    assert f"1 of 3 brokers did not do it: {silent}: no answer in 3 s" in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_where_all_answer_nothing_is_told_of_failures(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    result = run(monkeypatch, Client({}), *command)
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(address in result.stdout for address in ADDRESSES)


def test_a_change_that_the_first_broker_refuses_is_asked_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client({ADDRESSES[0]: InvalidParameter("maxMessageSize is 0")})
    result = run(monkeypatch, client, "set", "maxMessageSize=0")
    assert isinstance(result.exception, InvalidParameter)
    assert (client.asked, result.stdout) == (ADDRESSES[:1], "")


def test_a_change_that_a_later_broker_refuses_says_where_it_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client({ADDRESSES[1]: InvalidParameter("maxMessageSize is unknown")})
    result = run(monkeypatch, client, "set", "maxMessageSize=1000")
    assert result.exit_code == 1
    assert "changed maxMessageSize on 2 brokers: 127.0.0.1:1, 127.0.0.1:3" in result.stdout
    assert "127.0.0.1:2: maxMessageSize is unknown" in result.stderr
