"""A bug in a handler or in a background task of a broker: it serves on, and its status says so."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_rig import ask, config, connected, pull, run, send, started, until
from saturnmq.broker.broker import Broker
from saturnmq.broker.commit.cleaning import CleaningService
from saturnmq.broker.commit.flush import FlushService
from saturnmq.broker.handlers import client_questions
from saturnmq.broker.handlers.queries import QueryService
from saturnmq.broker.replication.ha_master import HaMaster
from saturnmq.broker.replication.ha_slave import HaSlave
from saturnmq.protocol.codes import RequestCode
from saturnmq.runtime import supervision
from saturnmq.runtime.native import NativeRuntime


@contextlib.asynccontextmanager
async def broker_at(runtime: NativeRuntime, root: Path) -> AsyncIterator[Broker]:
    broker = await started(runtime, config(root))
    try:
        yield broker
    finally:
        await broker.close()


async def status(client) -> tuple[int, str]:
    reply = await ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)
    table = json.loads(reply.body)["table"]
    return int(table["unforeseenFailures"]), table["lastUnforeseenFailure"]


def test_a_request_that_fails_is_answered_and_counted(tmp_path: Path, monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(QueryService, "on_max_offset", fails)

    async def body(runtime) -> None:
        async with broker_at(runtime, tmp_path) as broker:
            client = await connected(runtime, broker)
            assert await status(client) == (0, "")
            reply = await ask(client, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
            assert (reply.code, reply.remark) == (1, "ZeroDivisionError: a bug")
            assert await status(client) == (1, "request 30: ZeroDivisionError: a bug")
            assert (await send(client, b"goes on")).code == 0

    run(body)


def test_a_request_that_fails_behind_its_handler_is_counted_too(
    tmp_path: Path, monkeypatch
) -> None:
    async def fails(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(client_questions, "_ask", fails)

    async def body(runtime) -> None:
        async with broker_at(runtime, tmp_path) as broker:
            client = await connected(runtime, broker)
            me = {"clientID": "me", "consumerDataSet": [{"groupName": "G"}]}
            await ask(client, RequestCode.HEART_BEAT, {}, json.dumps(me).encode())
            asked = {"consumerGroup": "G", "clientId": "me"}
            reply = await ask(client, RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
            assert (reply.code, reply.remark) == (1, "KeyError: 'a bug'")
            assert await status(client) == (1, "request 307: KeyError: 'a bug'")

    run(body)


def test_a_background_task_that_fails_begins_again(tmp_path: Path, monkeypatch) -> None:
    runs: list[int] = []
    original = CleaningService.run

    async def fails_twice(self: CleaningService) -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise IndexError("a bug")
        await original(self)

    monkeypatch.setattr(CleaningService, "run", fails_twice)
    monkeypatch.setattr(supervision, "PAUSE_S", 0.01)

    async def body(runtime) -> None:
        async with broker_at(runtime, tmp_path) as broker:
            client = await connected(runtime, broker)
            await until(lambda: len(runs) == 3)
            count, last = await status(client)
            assert count == 2
            assert last == "task 'cleaning' failed, again in 0.02 s: IndexError('a bug')"
            assert (await send(client, b"goes on")).code == 0
            assert (await pull(client, 0)).code == 0

    run(body)


@pytest.mark.parametrize("service", [FlushService, HaMaster, HaSlave])
def test_the_process_ends_with_a_task_whose_work_is_in_doubt(
    tmp_path: Path, monkeypatch, service: type
) -> None:
    async def fails(_: object) -> None:
        raise IndexError("a bug")

    monkeypatch.setattr(service, "run", fails)

    async def body(_: object) -> None:
        deaths: list[BaseException] = []
        broker = await started(NativeRuntime(on_fatal=deaths.append), config(tmp_path))
        await until(lambda: bool(deaths))
        assert [repr(death) for death in deaths] == ["IndexError('a bug')"]
        await broker.close()

    run(body)
