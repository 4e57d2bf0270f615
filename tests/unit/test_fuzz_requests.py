"""Well-formed requests with wrong values, against a broker and a nameserver on loopback ports: each
is answered with a typed error or done, nothing fails in a way that nobody foresaw, the nodes serve
on, and the store is sound.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, pull, run, send, started
from saturnmq.drills.fuzz.corpus import OF_BROKERS, OF_NAMESERVERS, KeptRequest
from saturnmq.drills.fuzz.requests import RequestMaker, codes_of
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.asking import connect
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import MAX_FRAME, Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConnectionLost, RequestTimeout
from saturnmq.runtime.native import NativeRuntime

ROLES = {RequestCode.FENCE, RequestCode.PROMOTE}
BATCH = 50
UNFORESEEN = ("Error:", "Exception:")  # what an endpoint answers to a failure that nobody foresaw


async def pelt(client: Endpoint, maker: RequestMaker, count: int) -> list[str]:
    """Ask so often; what was answered by code 1 with the name of an exception of Python."""
    found: list[str] = []
    for _ in range(count // BATCH):
        drawn = [maker.draw() for _ in range(BATCH)]
        asked = [client.request(Command.request(code, ext, body), 1.0) for code, ext, body in drawn]
        for request, answer in zip(drawn, asked, strict=True):
            with contextlib.suppress(RequestTimeout):  # a pull that is held
                reply = await answer
                remark = str(reply.remark or "")
                if reply.code == 1 and remark.split(" ", maxsplit=1)[0].endswith(UNFORESEEN):
                    found.append(f"{request}: {remark}")
    return found


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_broker_does_what_it_is_asked_or_says_why_not(
    tmp_path: Path, seed: int, roles: bool
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, auto_create_topics=True))
        client = await connected(runtime, broker)
        codes = [code for code in codes_of({*broker.parts.handlers}) if roles or code not in ROLES]
        found = await pelt(client, RequestMaker(random.Random(seed), codes), 600)
        assert found == []
        assert (broker.failures.count, broker.failures.last) == (0, "")
        reader = await connected(runtime, broker)
        assert (await ask(reader, RequestCode.REPLICA_STATE)).code == 0
        if not roles:  # else another node may be its master now
            reply = await send(reader, b"still here", topic="sound")
            assert reply.code == 0, reply.remark
            assert (await pull(reader, 0, topic="sound", subscription="*")).code == 0
        for endpoint in (client, reader):
            endpoint.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize("seed", range(3))
def test_a_nameserver_does_what_it_is_asked_or_says_why_not(seed: int) -> None:
    async def main() -> None:
        runtime = NativeRuntime()
        server = NameServer(runtime, port=0)
        await server.start()
        client = await connect(runtime, *split_address(server.address))
        codes = codes_of({*server._handlers, *server._slow_handlers})
        assert await pelt(client, RequestMaker(random.Random(seed), codes), 600) == []
        reply = await client.request(
            Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), 5.0
        )
        assert reply.code == 0
        client.close()
        await server.close()

    asyncio.run(main())


async def taken(client: Callable[[], Awaitable[Endpoint]], corpus: Iterable[KeptRequest]) -> Any:
    """Ask for all of it, one after the other: what was taken, and how often it was refused."""
    wrong, refused = [], 0
    for kept in corpus:
        endpoint = await client()
        endpoint.max_header = MAX_FRAME
        try:
            answer = await endpoint.request(Command.request(kept.code, kept.ext, kept.body), 5.0)
        except ConnectionLost:  # who sends such a header is heard no more
            refused += kept.refused
            continue
        refused += kept.refused and answer.code != 0
        remark = str(answer.remark or "").split(" ", maxsplit=1)[0]
        if (kept.refused and answer.code == 0) or remark.endswith(UNFORESEEN):
            wrong.append(f"{kept.what}: {answer.code} {answer.remark}")
        endpoint.close()
    return wrong, refused


def test_a_broker_refuses_what_once_ended_or_froze_it(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, auto_create_topics=True))
        wrong, refused = await taken(lambda: connected(runtime, broker), OF_BROKERS)
        assert wrong == []
        assert refused == sum(kept.refused for kept in OF_BROKERS)
        assert (broker.failures.count, broker.failures.last) == (0, "")
        client = await connected(runtime, broker)
        assert (await send(client, b"still here", topic="sound")).code == 0
        client.close()
        await broker.close()

    run(body)


def test_a_nameserver_refuses_what_once_ended_or_froze_it() -> None:
    async def main() -> None:
        runtime = NativeRuntime()
        server = NameServer(runtime, port=0)
        await server.start()
        address = split_address(server.address)
        wrong, refused = await taken(lambda: connect(runtime, *address), OF_NAMESERVERS)
        assert wrong == []
        assert refused == sum(kept.refused for kept in OF_NAMESERVERS)
        await server.close()

    asyncio.run(main())


def test_a_seed_repeats_its_requests() -> None:
    def drawn(seed: int) -> list[Any]:
        maker = RequestMaker(random.Random(seed), codes_of({10, 11, 17, 103}))
        return [maker.draw() for _ in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)
