"""The HA protocol, both sides: a slave that lies to a master, a master that lies to a slave.

A turn is one connection with some frames: right ones, ones with a value of their document bent or
a number drawn, ones that are spoiled as bytes. All but the right ones are executions, if the broker
at the other end has read them. It runs in virtual time. It may refuse, close, follow, cut its log
or be deposed; no task of it may die, and nothing may fail unforeseen. A node that was deposed, or
whose log has grown, makes way for a new one.
"""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

from saturnmq.broker.broker import Broker
from saturnmq.drills.fuzz.files import lived
from saturnmq.drills.fuzz.inprocess import Violation
from saturnmq.drills.fuzz.mutations import NUMBERS, bent, spoiled, written
from saturnmq.drills.fuzz.scene import ROOT, SMALL, FuzzScene, disk_of
from saturnmq.protocol import fastjson, ha
from saturnmq.protocol.kernels import crc32
from saturnmq.runtime.errors import MalformedFrame

HA_PORT = 10912
ANSWER_S = 0.02  # of virtual time: how long a peer waits for the next frame
DIALS_S = 5.0  # a slave dials again
FRAMES = (1, 2, 3, 6, 12)  # of one connection
SERVED_MAX = 200  # connections of one broker
_HEAD = struct.Struct(">qiIq")
HELLO = {
    "brokerName": "broker-a", "identity": "1" * 32, "brokerId": 0, "address": "10.0.0.99:10911",
    "haAddress": "10.0.0.99:10912", "role": "master", "epoch": 100_000, "epochs": [[100_000, 0]],
    "start": 0, "end": 0, "floor": 0, "confirmed": 0, "required": 1, "forced": [], "replicas": {},
    "segmentBytes": SMALL["commitlog_segment_bytes"],
}  # fmt: skip


class Peer(asyncio.BufferedProtocol):
    """The lying end of one connection."""

    def __init__(self) -> None:
        self._inbox = ha.Inbox(1 << 16)
        self._transport: Any = None
        self._said = 0  # bytes
        self._lies: list[int] = []  # where they end
        self.heard = asyncio.Event()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closed = True
        self.heard.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.free()

    def buffer_updated(self, nbytes: int) -> None:
        self._inbox.filled(nbytes)
        self.heard.set()

    def say(self, data: bytes, *, is_lie: bool) -> None:
        if not self.closed:
            self._transport.write(data)
            self._said += len(data)
            if is_lie:
                self._lies.append(self._said)

    def believed(self) -> int:
        """The number of lies that the other end has read."""
        read = self._said - self._transport.get_write_buffer_size()
        return sum(end <= read for end in self._lies)

    def close(self) -> None:
        if not self.closed:
            self._transport.close()

    def control(self, of_master: bool) -> dict[str, Any] | None:
        """The document of a control frame that has come in whole."""
        try:
            frame = self._inbox.next_of_master() if of_master else self._inbox.next_of_slave()
        except MalformedFrame:
            return None
        self._inbox.make_room()
        return frame.document if isinstance(frame, ha.Control) else None

    def forget(self) -> None:
        """Forget the input so far."""
        self._inbox = ha.Inbox()
        self.heard.clear()


class Replication:
    """The target: a master in rounds of odd seeds, a slave in the others."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._files = lived(seed)
        self._log = b"".join(
            data.rstrip(b"\0")
            for path, data in sorted(self._files.items())
            if path.startswith(ROOT + "/commitlog/")
        )
        self._documents: dict[ha.Kind, dict[str, Any]] = {
            ha.Kind.HELLO: {**HELLO, "end": len(self._log)},
            ha.Kind.ACCEPT: {},
            ha.Kind.GROUP: {"required": 2, "replicas": {"1": "10.0.0.9:10911"}},
            ha.Kind.REFUSE: {"why": "x", "freeId": 3, "differs": [0, 100]},
            ha.Kind.JOIN: HELLO,
            ha.Kind.PROVE: {"nonce": "0" * 32},
        }
        self._is_master = seed % 2 == 1
        self._began = 0
        self._broker: Broker | None = None
        self._calls: asyncio.Queue[Peer]

    def turn(self, rng: random.Random) -> list[str]:
        if self._broker is None:
            self._begin()
        outcome, believed = self._scene.run(lambda: self._lie(rng))
        broker = self._broker
        assert broker is not None
        if broker.failures.count:
            raise Violation(f"it failed in a way that nobody foresaw: {broker.failures.last}")
        self._served += 1
        state = broker.context.role.state_name
        is_changed = state != ("master" if self._is_master else "slave")
        if is_changed or self._grew() or self._served >= SERVED_MAX:
            self._end()
        return [f"{outcome}, {state}"] * believed

    def close(self) -> None:
        if self._broker is not None:
            self._end()

    # the broker

    def _begin(self) -> None:
        self._began += 1
        self._served = 0
        self._scene = scene = FuzzScene((self._seed << 16) + self._began)

        async def begin() -> None:
            self._liar = scene.node("liar")
            if self._is_master:
                self._broker = await scene.broker(disk_of(self._files, self._seed))
                return
            self._calls = asyncio.Queue()
            await self._liar.listen(self._liar.ip, HA_PORT, self._called)
            self._broker = await scene.broker(
                disk_of({}, self._seed),
                role="SLAVE",
                broker_id=1,
                ha_master_address=f"{self._liar.ip}:{HA_PORT}",
                ha_reconnect_ms=1,
            )

        scene.run(begin)

    def _called(self) -> Peer:
        peer = Peer()
        self._calls.put_nowait(peer)
        return peer

    def _grew(self) -> bool:
        assert self._broker is not None
        return not self._is_master and self._broker.store.watermarks.appended >= len(self._log)

    def _end(self) -> None:
        broker, self._broker = self._broker, None
        assert broker is not None
        try:
            self._scene.run(broker.close)
        finally:
            self._scene.close()

    # the lies

    async def _lie(self, rng: random.Random) -> tuple[str, int]:
        """Lie over one connection; return how it ended, and how many lies were read."""
        peer = await self._connected()
        if self._is_master:
            await self._as_slave(rng, peer)
        else:
            await self._as_master(rng, peer)
        outcome = "closed by it" if peer.closed else "heard"
        believed = peer.believed()
        peer.close()
        await asyncio.sleep(ANSWER_S)
        return outcome, believed

    async def _as_slave(self, rng: random.Random, peer: Peer) -> None:
        greeting = ha.encode_greeting(rng.choice((0, 0, len(self._log))))
        await self._say(rng, peer, greeting, is_lie=False)
        hello = peer.control(of_master=True) or HELLO
        is_joined = rng.random() < 0.5
        if is_joined:
            await self._say(rng, peer, ha.encode_control(*self._join(rng, hello)), is_lie=False)
        for _ in range(rng.choice(FRAMES)):
            peer.forget()
            if peer.closed:
                break
            data, is_lie = self._of_slave(rng, hello, 0.2 if is_joined else 0.6)
            await self._say(rng, peer, data, is_lie=is_lie)

    async def _as_master(self, rng: random.Random, peer: Peer) -> None:
        await self._wait(peer)
        rolled = sent = 0
        kind: ha.Kind | None = ha.Kind.HELLO  # None: the slave has joined, the log comes next
        for _ in range(rng.choice(FRAMES)):
            peer.forget()
            if peer.closed:
                break
            said = kind if rng.random() < 0.8 else rng.choice((None, *ha.Kind))
            if said is None:
                data, is_lie, rolled, sent = self._stretch(rng, rolled, sent)
            else:
                data, is_lie = _control(rng, said, self._documents[said])
            await self._say(rng, peer, data, is_lie=is_lie)
            join = peer.control(of_master=False)
            if join is not None and type(join.get("from")) is int:
                sent, kind = join["from"], ha.Kind.ACCEPT if "asks" in join else None

    async def _say(self, rng: random.Random, peer: Peer, data: bytes, *, is_lie: bool) -> None:
        if rng.random() < 0.1:
            data, is_lie = spoiled(rng, data), True
        peer.say(data, is_lie=is_lie)
        await self._wait(peer)

    async def _connected(self) -> Peer:
        if not self._is_master:
            async with asyncio.timeout(DIALS_S):
                while (peer := await self._calls.get()).closed:
                    pass
            return peer
        assert self._broker is not None
        peer = Peer()
        host, _, port = self._broker.ha_address.rpartition(":")
        await self._liar.connect(host, int(port), peer)
        return peer

    @staticmethod
    async def _wait(peer: Peer) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await peer.heard.wait()
        except TimeoutError:
            pass

    def _join(self, rng: random.Random, hello: dict[str, Any]) -> tuple[ha.Kind, dict[str, Any]]:
        end = rng.choice((0, 0, len(self._log)))
        slave = {"role": "slave", "brokerId": rng.choice((1, 7)), "address": "10.0.0.9:10911"}
        place: dict[str, Any] = {"from": end, "check": [end, end, 0], "end": end}
        if rng.random() < 0.2:
            place["asks"] = True
        return ha.Kind.JOIN, {**hello, **slave, **place}

    def _of_slave(
        self, rng: random.Random, hello: dict[str, Any], joins: float
    ) -> tuple[bytes, bool]:
        """A frame, and whether it is a lie."""
        if rng.random() < joins:
            return _control(rng, *self._join(rng, hello))
        way = rng.random()
        if way < 0.2:
            return _control(rng, rng.choice(list(ha.Kind)), {"nonce": "0" * 32, "why": "x"})
        if way < 0.8:
            return ha.encode_our_report(_offset(rng), _offset(rng)), True
        return ha.encode_report(_offset(rng)), True

    def _stretch(self, rng: random.Random, rolled: int, at: int) -> tuple[bytes, bool, int, int]:
        """A stretch of the log: a frame, whether it is a lie, its checksum and its end."""
        right = data = self._log[at : at + rng.choice((0, 50, 300, 1 << 16))]
        if rng.random() < 0.3:
            data = spoiled(rng, data)
        offset = at if rng.random() < 0.9 else _offset(rng)
        if rng.random() < 0.05:
            return ha.encode_transfer_header(offset, len(data)) + data, True, rolled, at
        if data:
            rolled = ha.roll(rolled, data)
        end = at + len(data)
        confirmed = rng.choice((-1, 0, end, _offset(rng)))
        said = rolled if rng.random() < 0.95 else rng.getrandbits(32)
        head = ha.encode_our_transfer_header(offset, len(data), said, confirmed)
        is_right = (data, offset, said) == (right, at, rolled) and confirmed in (-1, 0, end)
        return head + data, not is_right, rolled, end


def _offset(rng: random.Random) -> int:
    return rng.choice([0, 1, 100, *(n for n in NUMBERS if -(1 << 63) <= n < 1 << 63)])


def _control(rng: random.Random, kind: ha.Kind, document: dict[str, Any]) -> tuple[bytes, bool]:
    """A frame whose checksum is right, whatever its document says; and whether it is a lie."""
    if rng.random() < 0.4:
        return ha.encode_control(kind, document), False
    body = written(bent(rng, fastjson.loads(fastjson.dumps(document))))
    if rng.random() < 0.1:
        body = spoiled(rng, body)
    return _HEAD.pack(kind, len(body), crc32(body), rng.choice((0, 0, 0, 1))) + body, True
