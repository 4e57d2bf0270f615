"""A fake cluster for client tests: one nameserver and scripted brokers, on loopback sockets or in
virtual time, as the runtime is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from saturnmq.client.loop_thread import LoopThread
from saturnmq.client.producer.producer import Producer
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.protocol import fastjson
from saturnmq.protocol.batch import iterate_batch
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.properties import decode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData


class FakeBroker:
    """Keeps what it is sent, per queue; `answer(cmd)` may return (code, remark),
    "silence" or "failed write"."""

    def __init__(self, name, runtime):
        self.name = name
        self.runtime = runtime
        self.log = {}  # queue id -> [(body, properties)]
        self.requests = []
        self.answer = None
        self.endpoints = []
        self.listener = None

    async def start(self, port=0):
        def factory():
            endpoint = Endpoint(self.runtime, self.serve, server=True)
            self.endpoints.append(endpoint)
            return endpoint

        self.listener = await self.runtime.listen("127.0.0.1", port, factory)
        self.address = self.listener.address
        return self

    def stop(self):
        self.listener.close()
        for endpoint in self.endpoints:
            endpoint.abort()
        self.endpoints.clear()

    def serve(self, endpoint, cmd):
        self.requests.append((cmd.code, dict(cmd.ext)))
        if cmd.code == RequestCode.SEND_BATCHES:  # as RocketMQ's brokers answer ours
            endpoint.send(cmd.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), cmd)
            return
        sends = (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2)
        if cmd.code not in sends:
            endpoint.send(cmd.reply(), cmd)
            return
        verdict = self.answer(cmd) if self.answer else None
        if verdict == "silence":
            return
        if verdict == "failed write":  # of a disk
            endpoint.send(cmd.reply(ResponseCode.FLUSH_DISK_TIMEOUT, "it may be stored"), cmd)
            return
        if verdict is not None and verdict[0] not in (0, 10, 11, 12):
            endpoint.send(cmd.reply(*verdict), cmd)
            return
        queue = int(cmd.ext["e"])
        log = self.log.setdefault(queue, [])
        first = len(log)
        if cmd.code == RequestCode.SEND_BATCH_MESSAGE:
            for entry in iterate_batch(cmd.body):
                log.append((bytes(entry.body), decode_properties(entry.properties)))
        else:
            log.append((bytes(cmd.body), decode_properties(cmd.ext["i"].encode())))
        ids = ",".join(f"{offset:032X}" for offset in range(first, len(log)))
        ext = {"msgId": ids, "queueId": str(queue), "queueOffset": str(first)}
        code = 0 if verdict is None else verdict[0]
        endpoint.send(cmd.reply(code, ext=ext), cmd)

    def sent(self, code):
        """The fields of the requests with this code."""
        return [ext for each, ext in self.requests if each == code]

    def bodies(self):
        return [body for log in self.log.values() for body, _ in log]


def cluster_info(brokers: Iterable[BrokerData]) -> bytes:
    """A nameserver's answer to GET_BROKER_CLUSTER_INFO (106)."""
    return fastjson.dumps(
        {"brokerAddrTable": {each.broker_name: each.to_json() for each in brokers}}
    )


class FakeCluster:
    """A nameserver whose one topic lives on `brokers`, `queues` on each.

    `masters` are the names that have a master now, `replaced` those whose master is another broker.
    """

    def __init__(self, runtime, brokers=("a",), queues=2, topic="T"):
        self.runtime = runtime
        self.queues = queues
        self.topic = topic
        self.brokers = {name: FakeBroker(name, runtime) for name in brokers}
        self.masters = set(brokers)
        self.replaced = {}
        self.listed = list(brokers)
        self.known = list(brokers)  # of which the nameserver knows any node
        self.registered = []  # whose masters the nameserver knows, whatever topics they have
        self.asked = 0
        self.links = []
        self.watchers = []
        self.on_loop = None  # of `threaded`

    async def start(self):
        for broker in self.brokers.values():
            await broker.start()
        await self.start_nameserver()
        return self

    async def start_nameserver(self, port=0):
        def factory():
            endpoint = Endpoint(self.runtime, self.serve, server=True)
            self.links.append(endpoint)
            return endpoint

        self.nameserver = await self.runtime.listen("127.0.0.1", port, factory)
        self.address = self.nameserver.address

    def stop_nameserver(self):
        self.nameserver.close()
        for endpoint in self.links:
            endpoint.abort()
        self.links.clear()
        self.watchers.clear()

    def stop(self):
        self.stop_nameserver()
        for broker in self.brokers.values():
            broker.stop()

    def announce(self):
        """Tell every watcher that the route changed."""
        for endpoint in self.watchers:
            body = fastjson.dumps([self.topic])
            endpoint.oneway(Command.request(RequestCode.ROUTE_CHANGED, body=body))

    def serve(self, endpoint, cmd):
        if cmd.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            nodes = {name: int(name not in self.registered) for name in self.known}
            known = [BrokerData("C", name, {id_: "127.0.0.1:1"}) for name, id_ in nodes.items()]
            endpoint.send(cmd.reply(body=cluster_info(known)), cmd)
            return
        if cmd.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or cmd.ext["topic"] != self.topic:
            endpoint.send(cmd.reply(17, "no such topic"), cmd)
            return
        self.asked += 1
        if cmd.ext.get("saturnWatch") == "true" and endpoint not in self.watchers:
            self.watchers.append(endpoint)
        route = {
            "brokerDatas": [
                {
                    "brokerName": name,
                    "cluster": "C",
                    "brokerAddrs": {
                        "0" if name in self.masters else "1": self.replaced.get(
                            name, self.brokers[name]
                        ).address
                    },
                }
                for name in self.listed
            ],
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": 6,
                    "readQueueNums": self.queues,
                    "writeQueueNums": self.queues,
                }
                for name in self.listed
            ],
        }
        endpoint.send(cmd.reply(body=fastjson.dumps(route)), cmd)


@contextmanager
def threaded(*brokers: str, queues: int = 2) -> Iterator[FakeCluster]:
    """A cluster in a thread of its own, for clients that block; `on_loop` calls a function there
    and returns its result."""
    thread = LoopThread("fake-cluster")
    cluster = FakeCluster(thread.runtime, brokers, queues=queues)
    cluster.on_loop = thread.call
    thread.run(cluster.start())
    try:
        yield cluster
    finally:
        thread.call(cluster.stop)
        thread.close()


def run_producer(
    test: Callable[[FakeCluster, Producer], Awaitable[None]],
    *brokers: str,
    queues: int = 2,
    **options: Any,
) -> None:
    """Run `test` with a producer of `brokers`, in virtual time, in which the machine's speed
    decides nothing."""
    loop = SimLoop(random.Random(1))
    runtime = SimRuntime(loop, SimNetwork(loop, 1), 1, "client")

    async def main() -> None:
        cluster = await FakeCluster(runtime, brokers or ("a",), queues=queues).start()
        try:
            async with (
                asyncio.timeout(30),
                Producer("senders", cluster.address, runtime=runtime, **options) as producer,
            ):
                await test(cluster, producer)
        finally:
            cluster.stop()

    try:
        loop.run_until_complete(runtime.spawn(main()))
        assert (loop.failures, runtime.deaths) == ([], [])
    finally:
        loop.close()
