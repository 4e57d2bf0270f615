"""Servers that lie to clients without an event loop: the connections of lone threads, nameservers
asked in turn, sinks that stage, and the producer whose sends go from the calling thread.

They have real sockets and real time, so the servers are a thread of this process. It answers from
what was recorded for the asynchronous clients (`client.py`), spoiled (`lies.py`), at times byte by
byte and without end.

A turn is some calls of one client. Each spoiled answer to a question that was not given up is an
execution. A call ends within its time-outs, with a result or a SaturnError.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from saturnmq.client.blocking import Producer
from saturnmq.client.channels import Channels, Nameservers
from saturnmq.client.producer.staging import Pinned, StagingClient
from saturnmq.drills.fuzz.client import ClientTarget
from saturnmq.drills.fuzz.inprocess import Violation
from saturnmq.drills.fuzz.lies import LIES, SINK, TOPIC, answer, asked_for
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.remoting import Command, FrameDecoder
from saturnmq.runtime.errors import SaturnError, TaskFailed

# The producer's loop sends all other requests, and waits for them as long as any client does.
SENDS = frozenset(
    (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_BATCHES, RequestCode.SEND_MESSAGE_V2)
)
TIMEOUT_S = 0.02
ENDS_S = 10.0  # a call, with all that it tries: it may wait for a processor, too
DRIPS = 0.02  # of the lies
DRIP_S = 0.001  # between two bytes
Call = Callable[[], object]
_HOST = rb'[^\s"\[\],;:{}\x00-\x1f]'
_ADDRESS = re.compile(rb"(?<!%b)(%b++):\d" % (_HOST, _HOST))
_LOCAL = re.compile(rb"127[0-9.]*|a\.\.b")


class _Connection:
    """One connection, from the servers' side."""

    def __init__(self, server: str, peer: socket.socket) -> None:
        self.server = server
        self.socket = peer
        self.decoder = FrameDecoder()


class Servers:
    """The servers of one round, in a thread of their own."""

    def __init__(self, seed: int) -> None:
        self.rng, self.lies = random.Random(seed), 0.0
        self.about: frozenset[int] | None = None  # which requests; None: all
        self.until = math.inf  # the call under way has to end
        self.told: list[str] = []  # to which requests the lies of this turn were
        self._selector = selectors.DefaultSelector()
        client = ClientTarget(seed)
        addresses = {server: self._listen() for server in client.servers}
        self.nameserver, *_ = addresses.values()
        self._truth = client.truth.behind(addresses)
        client.close()
        self._dripping: list[_Connection] = []
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            # Only sockets are registered; the selector allows numbers of files, too.
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _listen(self) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._selector.register(listener, selectors.EVENT_READ, address)
        return address

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(DRIP_S if self._dripping else 1.0):
                if key.fileobj is self._woken:
                    return
                if isinstance(key.data, str):
                    # As in `close`.
                    peer, _ = key.fileobj.accept()  # type: ignore[union-attr]
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._selector.register(peer, selectors.EVENT_READ, _Connection(key.data, peer))
                else:
                    self._read(key.data)
            for connection in list(self._dripping):
                self._say(connection, b"\0")
            if time.monotonic() > self.until:  # or a call that waits for ever would do so here
                for key in list(self._selector.get_map().values()):
                    if isinstance(key.data, _Connection):
                        self._drop(key.data)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        for request in connection.decoder.feed(data):
            if not request.is_response and not request.is_oneway:
                self._answer(connection, request)

    def _answer(self, connection: _Connection, request: Command) -> None:
        lies = self.lies if self.about is None or request.code in self.about else 0.0
        said = answer(self.rng, self._truth, connection.server, request, lies)
        if said.is_lie and not all(map(_LOCAL.fullmatch, _ADDRESS.findall(said.data))):
            return  # nobody dials a stranger
        if said.is_lie and said.data:
            self.told.append(asked_for(request))
            if self.rng.random() < DRIPS:
                said.data = said.data[:-1]
                self._dripping.append(connection)
        self._say(connection, said.data)
        if said.closes:
            self._drop(connection)

    def _say(self, connection: _Connection, data: bytes) -> None:
        try:
            connection.socket.settimeout(1.0)
            connection.socket.sendall(data)
        except OSError:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if connection in self._dripping:
            self._dripping.remove(connection)
        if connection.socket.fileno() >= 0:
            self._selector.unregister(connection.socket)
            connection.socket.close()


class Blocking:
    """The target."""

    def __init__(self, seed: int) -> None:
        self._servers = Servers(seed)
        self._channels = Channels()
        self._wrong: list[str] = []

    def close(self) -> None:
        self._channels.close_idle()
        self._servers.close()

    def turn(self, rng: random.Random) -> list[str]:
        servers = self._servers
        kind = rng.choice((self._asking, self._staging, self._sending))
        servers.rng, servers.lies, servers.told = rng, rng.choice(LIES), []
        servers.about = SENDS if kind == self._sending else None
        kind(rng)
        if self._wrong:
            raise Violation(self._wrong[0])
        return list(servers.told)

    def _asking(self, rng: random.Random) -> None:
        nameservers = Nameservers([self._servers.nameserver], self._channels, TIMEOUT_S)
        for _ in range(rng.choice((1, 5, 20))):
            self._call("a route", lambda: nameservers.route(TOPIC))
        self._channels.close_idle()

    def _staging(self, rng: random.Random) -> None:
        client = StagingClient(
            self._servers.nameserver,
            timeout_s=TIMEOUT_S,
            retry_s=rng.choice((0.0, 0.0, 0.1)),
            channels=self._channels,
        )
        pinned = Pinned(SINK, ("broker-a",))
        rows = bytearray()
        encode_batch_item(rows, b"x", b"")

        def stage() -> None:
            stage = client.stage(pinned, 1, rng.randrange(2))
            for _ in range(rng.choice((1, 3))):
                stage.add(TOPIC, 0, rows, 1)
            stage.publish()

        calls: list[Call] = [
            lambda: client.open(SINK, TOPIC),
            lambda: client.queues("broker-a", TOPIC),
            stage,
            lambda: client.finish(pinned, 1),
            lambda: client.abort(pinned, 1),  # it waits for a second
        ]
        for _ in range(rng.choice((1, 5, 20))):
            self._call("a sink", rng.choices(calls, (10, 10, 20, 10, 1))[0])
        self._channels.close_idle()

    def _sending(self, rng: random.Random) -> None:
        producer = Producer(
            "writers",
            self._servers.nameserver,
            send_timeout=TIMEOUT_S,
            delivery_timeout=TIMEOUT_S,
            retries=0,
            on_error=self._told,
        )
        queue = MessageQueue(TOPIC, "broker-a", 0)
        try:
            self._call("a start", producer.start)
            for _ in range(rng.choice((1, 5, 20))):
                send = partial(producer.send, Message(TOPIC, b"x"), queue=rng.choice((None, queue)))
                self._call("a send", send)
        finally:
            self._call("a close", producer.close)

    def _told(self, error: SaturnError) -> None:
        if isinstance(error, TaskFailed):
            self._wrong.append(f"{error}: {error.__cause__!r}")

    def _call(self, name: str, call: Call) -> None:
        began = time.monotonic()
        self._servers.until = began + ENDS_S
        with contextlib.suppress(SaturnError):
            call()
        if (took := time.monotonic() - began) > ENDS_S:
            raise Violation(f"{name} took {took:.1f} s")
