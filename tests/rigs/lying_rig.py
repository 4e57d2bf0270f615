"""A cluster in virtual time whose servers can be made to lie: between a client and a real
nameserver and broker stands a `Liar`, which passes everything on and spoils chosen answers.

What can be spoiled is not listed anywhere: `Liar.seen` collects every field of every answer that
went by, and `falsehoods` gives the bad values for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import world_rig
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.protocol import fastjson
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import MalformedFrame, SaturnError
from world_rig import World


@dataclass(frozen=True)
class Raw:
    """A number as text: one that no JSON library writes."""

    text: str

    def __repr__(self) -> str:
        return f"{self.text[:12]}.. ({len(self.text)} characters)"


MISSING = Raw("")
LONG, ENDLESS = Raw("9" * 400), Raw("9" * 5000)
EXT_LIES: tuple[Any, ...] = (
    MISSING, "nonsense", "-7", "1.5", "\u0663", "9" * 20, LONG.text, ENDLESS.text,
)  # fmt: skip
BODY_LIES: tuple[Any, ...] = (
    MISSING, None, True, -7, 1.5, 10**9, 1 << 63, LONG, ENDLESS,
    "", "nonsense", "\u0000", [], {}, [[]], {"x": 1},
)  # fmt: skip
WHOLE_LIES = (b"", b"null", b"[]", b"{}", b'"x"', b"7", b"\xff\xfe", b"[" * 3000, b"9" * 5000, b"{")
CODE_LIES = (1, 2, 17, 206, 999_999, -1)

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Lie:
    """`where` is "ext", "body", "whole", "code" or "silence"; `path` leads to the field."""

    code: int
    where: str
    path: Path = ()
    value: Any = None

    def __str__(self) -> str:
        value = repr(self.value)
        return f"answer to {self.code}, {self.where} {self.path}: {value[:40]}"


class Liar:
    """Listens in front of the servers; `lie` is what is told now, None: the truth."""

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self._fronts: dict[bytes, bytes] = {}
        self.lie: Lie | None = None
        self.clients: list[Endpoint] = []  # connections that clients opened
        self.seen: set[tuple[int, str, Path]] = set()

    async def stand_before(self, address: str) -> str:
        host, port = split_address(address)
        front = f"{self._runtime.ip}:{port}"
        self._fronts[address.encode()] = front.encode()

        def accept() -> Endpoint:
            upstream = Endpoint(self._runtime, lambda _, cmd: self._ask(near, cmd))
            near = Endpoint(
                self._runtime,
                lambda _, cmd: self._pass_on(upstream, near, connected, cmd),
                on_close=lambda _: upstream.close(),
                server=True,
            )
            connected = self._runtime.spawn(self._runtime.connect(host, port, upstream))
            self.clients.append(near)
            return near

        await self._runtime.listen(self._runtime.ip, port, accept)
        return front

    def _ask(self, near: Endpoint, cmd: Command) -> None:
        """A server asks the client."""
        near.oneway(Command.request(cmd.code, dict(cmd.ext), bytes(cmd.body)))

    def _pass_on(
        self, upstream: Endpoint, near: Endpoint, connected: asyncio.Task[Any], cmd: Command
    ) -> None:
        cmd.body = bytes(cmd.body)
        self._runtime.spawn(self._relay(upstream, near, connected, cmd))

    async def _relay(
        self, upstream: Endpoint, near: Endpoint, connected: asyncio.Task[Any], cmd: Command
    ) -> None:
        await connected
        request = Command.request(cmd.code, dict(cmd.ext), cmd.body)
        request.language = cmd.language
        if cmd.is_oneway:
            upstream.oneway(request)
            return
        try:
            answer = await upstream.request(request, 100.0)
        except SaturnError:
            return
        reply = self._spoiled(cmd, answer)
        if reply is not None and not near.closed:
            near.send(reply)

    def _spoiled(self, cmd: Command, answer: Command) -> Command | None:
        body = bytes(answer.body)
        for real, front in self._fronts.items():
            body = body.replace(real, front)
        reply = cmd.reply(answer.code, answer.remark, dict(answer.ext), body)
        self._note(cmd.code, reply)
        lie = self.lie
        if lie is None or lie.code != cmd.code:
            return reply
        if lie.where == "silence":
            return None
        if lie.where == "code":
            reply.code = lie.value
        elif lie.where == "whole":
            reply.body = lie.value
        elif lie.where == "ext":
            reply.ext.pop(lie.path[0], None)
            if lie.value is not MISSING:
                reply.ext[lie.path[0]] = lie.value
        elif body:
            reply.body = dump(replaced(fastjson.loads(body), lie.path, lie.value))
        return reply

    def _note(self, code: int, reply: Command) -> None:
        self.seen.add((code, "code", ()))
        self.seen.update((code, "ext", (name,)) for name in reply.ext)
        try:
            value = fastjson.loads(reply.body) if reply.body else None
        except MalformedFrame:
            return  # frames of messages: test_bad_input spoils them
        if value is not None:
            self.seen.add((code, "whole", ()))
            self.seen.update((code, "body", path) for path in paths(value) if path)


def falsehoods(seen: set[tuple[int, str, Path]]) -> list[Lie]:
    """Every lie about every field, in an order of its own."""
    values = {"ext": EXT_LIES, "body": BODY_LIES, "whole": WHOLE_LIES, "code": CODE_LIES}
    lies = [Lie(code, where, path, value) for code, where, path in seen for value in values[where]]
    lies += [Lie(code, "silence") for code in {code for code, _, _ in seen}]
    return sorted(lies, key=repr)


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    yield at
    items: Any = ()
    if isinstance(value, dict):
        items = list(value.items())
        if all(isinstance(inner, dict) for _, inner in items):
            items = items[:1]  # a table, and one entry stands for all
    elif isinstance(value, list):
        items = list(enumerate(value))[:1]
    for key, inner in items:
        yield from paths(inner, (*at, key))


def replaced(value: Any, path: Path, lie: Any) -> Any:
    """`value` with another one at `path`; as it was if there is no such path."""
    key, *rest = path
    known = isinstance(value, dict) and key in value
    if not known and not (isinstance(value, list) and len(value) > key):
        return value
    value = value.copy()
    if rest:
        value[key] = replaced(value[key], tuple(rest), lie)
    elif lie is MISSING:
        del value[key]
    else:
        value[key] = lie
    return value


def dump(value: Any) -> bytes:
    """JSON as fastjson writes it: queues as keys, numbers of any length."""
    if isinstance(value, Raw):
        return value.text.encode()
    if isinstance(value, dict):
        return b"{" + b",".join(_key(k) + b":" + dump(v) for k, v in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(dump, value)) + b"]"
    return orjson.dumps(value)


def _key(key: Any) -> bytes:
    if isinstance(key, tuple):
        topic, broker, queue = key
        return orjson.dumps({"brokerName": broker, "queueId": queue, "topic": topic})
    return orjson.dumps(str(key))


class LyingCluster:
    """A nameserver and a broker in one world, and the Liar before them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.liar = Liar(world.node("liar"))

    async def start(self) -> None:
        nameserver = await self.world.nameserver()
        broker = await self.world.broker(nameservers=(nameserver,))
        self.nameserver = await self.liar.stand_before(nameserver)
        self.broker = await self.liar.stand_before(broker.address)


def run(body: Callable[[LyingCluster], Awaitable[None]]) -> None:
    """Run a test in virtual time; nothing may have died unheard."""

    async def main(world: World) -> None:
        cluster = LyingCluster(world)
        await cluster.start()
        await body(cluster)

    world_rig.run(main)
