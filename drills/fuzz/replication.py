"""The HA protocol, both sides: a slave that lies to a master, a master that lies to a slave.

An execution is one connection with some frames: right ones, ones with a value of their document
bent, ones that are spoiled as bytes. The broker at the other end runs in virtual time. It may
refuse, close, follow or be deposed; no task of it may die, and nothing may fail unforeseen. A node
that was deposed, or whose log took what it was sent, makes way for a new one.
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
from saturnmq.drills.fuzz.scene import ROOT, SMALL, Scene, disk_of
from saturnmq.protocol import ha, jsonx
from saturnmq.protocol.errors import MalformedFrame
from saturnmq.protocol.kernels import crc32

HA_PORT = 10912
ANSWER_S = 0.05  # of virtual time: how long a peer waits for the next frame
DIALS_S = 5.0  # a slave dials again
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

    def say(self, data: bytes) -> None:
        if not self.closed:
            self._transport.write(data)

    def close(self) -> None:
        if not self.closed:
            self._transport.close()

    def next_control(self) -> ha.Control | None:
        """The next control frame of a master that has come in whole."""
        try:
            frame = self._inbox.next_of_master()
        except MalformedFrame:
            return None
        self._inbox.make_room()
        return frame if isinstance(frame, ha.Control) else None

    def forget(self) -> None:
        """What has come in."""
        self._inbox = ha.Inbox(1 << 16)
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
        self._is_master = seed % 2 == 1
        self._began = 0
        self._broker: Broker | None = None
        self._calls: asyncio.Queue[Peer]

    def execute(self, rng: random.Random) -> str:
        if self._broker is None:
            self._begin()
        outcome = self._scene.run(lambda: self._lie(rng))
        broker = self._broker
        assert broker is not None
        if broker.failures.count:
            raise Violation(f"it failed in a way that nobody foresaw: {broker.failures.last}")
        self._served += 1
        state = broker.context.role.state_name
        is_changed = state != ("master" if self._is_master else "slave") or self._grew()
        if is_changed or self._served >= SERVED_MAX:
            self._end()
        return f"{outcome}, {state}"

    def close(self) -> None:
        if self._broker is not None:
            self._end()

    # the broker

    def _begin(self) -> None:
        self._began += 1
        self._served = 0
        self._scene = scene = Scene((self._seed << 16) + self._began)

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
                ha_reconnect_ms=10,
            )

        scene.run(begin)

    def _called(self) -> Peer:
        peer = Peer()
        self._calls.put_nowait(peer)
        return peer

    def _grew(self) -> bool:
        assert self._broker is not None
        return not self._is_master and self._broker.store.watermarks.appended > 0

    def _end(self) -> None:
        broker, self._broker = self._broker, None
        assert broker is not None
        try:
            self._scene.run(broker.close)
        finally:
            self._scene.close()

    # the lies

    async def _lie(self, rng: random.Random) -> str:
        peer = await self._connected()
        hello: dict[str, Any] = dict(HELLO)
        if self._is_master:
            peer.say(_maybe_spoiled(rng, ha.encode_greeting(rng.choice((0, 0, len(self._log))))))
            await self._wait(peer)
            if (frame := peer.next_control()) is not None:
                hello = frame.document
        else:
            await self._wait(peer)
        peer.forget()
        rolled = sent = 0
        for _ in range(rng.choice((1, 2, 3, 6))):
            if self._is_master:
                data = self._of_slave(rng, hello)
            else:
                data, rolled, sent = self._of_master(rng, hello, rolled, sent)
            peer.say(_maybe_spoiled(rng, data))
            await self._wait(peer)
            peer.forget()
            if peer.closed:
                break
        outcome = "closed by it" if peer.closed else "heard"
        peer.close()
        await asyncio.sleep(ANSWER_S)
        return outcome

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

    def _of_slave(self, rng: random.Random, hello: dict[str, Any]) -> bytes:
        way = rng.random()
        if way < 0.6:
            end = rng.choice((0, 0, len(self._log)))
            slave = {"role": "slave", "brokerId": rng.choice((1, 7)), "address": "10.0.0.9:10911"}
            place = {"from": end, "check": [end, end, 0], "end": end}
            if rng.random() < 0.2:
                place["asks"] = True
            return _control(rng, ha.Kind.JOIN, {**hello, **slave, **place})
        if way < 0.7:
            return _control(rng, rng.choice(list(ha.Kind)), {"nonce": "0" * 32, "why": "x"})
        if way < 0.9:
            return ha.encode_our_report(_offset(rng), _offset(rng))
        return ha.encode_report(_offset(rng))

    def _of_master(
        self, rng: random.Random, hello: dict[str, Any], rolled: int, sent: int
    ) -> tuple[bytes, int, int]:
        way = rng.random()
        if way < 0.35 or (not sent and way < 0.6):
            return _control(rng, ha.Kind.HELLO, hello), rolled, sent
        if way < 0.6:
            kind, document = rng.choice(
                (
                    (ha.Kind.ACCEPT, {}),
                    (ha.Kind.GROUP, {"required": 2, "replicas": {"1": "10.0.0.9:10911"}}),
                    (ha.Kind.REFUSE, {"why": "x", "freeId": 3, "differs": [0, 100]}),
                    (ha.Kind.JOIN, hello),
                    (ha.Kind.PROVE, {"nonce": "0" * 32}),
                )
            )
            return _control(rng, kind, document), rolled, sent
        data = self._log[sent : sent + rng.choice((0, 50, 300, 1 << 16))]
        if rng.random() < 0.3:
            data = spoiled(rng, data)
        offset = sent if rng.random() < 0.9 else _offset(rng)
        if rng.random() < 0.05:
            return ha.encode_transfer_header(offset, len(data)) + data, rolled, sent
        if data:
            rolled = ha.roll(rolled, data)
        confirmed = rng.choice((-1, 0, sent + len(data), _offset(rng)))
        said = rolled if rng.random() < 0.95 else rng.getrandbits(32)
        head = ha.encode_our_transfer_header(offset, len(data), said, confirmed)
        return head + data, rolled, sent + len(data)


def _offset(rng: random.Random) -> int:
    return rng.choice([0, 1, 100, *(n for n in NUMBERS if -(1 << 63) <= n < 1 << 63)])


def _control(rng: random.Random, kind: ha.Kind, document: dict[str, Any]) -> bytes:
    """A frame whose checksum is right, whatever its document says."""
    if rng.random() < 0.3:
        return ha.encode_control(kind, document)
    body = written(bent(rng, jsonx.loads(jsonx.dumps(document))))
    if rng.random() < 0.1:
        body = spoiled(rng, body)
    return _HEAD.pack(kind, len(body), crc32(body), rng.choice((0, 0, 0, 1))) + body


def _maybe_spoiled(rng: random.Random, data: bytes) -> bytes:
    return spoiled(rng, data) if rng.random() < 0.1 else data
