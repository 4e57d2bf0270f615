"""Pop on one broker process: messages received and acknowledged per second, and the cost of an
acknowledgement with many messages open.

    python benchmarks/pop.py                       # 100,000 messages through 4 consumers
    python benchmarks/pop.py --open 1000000        # acknowledgements while so many are open

A cluster of one master with asynchronous flush is started in a temporary directory. Consumers are
threads of this process; each receives up to 32 messages and acknowledges them in one request
(`--single`: each in its own). `--open` asks the broker's service itself, without a network: it
opens so many messages in pops of 32, and measures acknowledgements at some numbers of open
messages, and the memory that they take.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import threading
import time
from pathlib import Path

from saturnmq import Admin, Message, Producer, SimpleConsumer
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.pop.handles import PopHandle
from saturnmq.broker.pop.orders import PopOrder
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import PendingMessage

BODY = bytes(100)
ACKS = 20_000
TOPIC, GROUP = "bench", "poppers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--single", action="store_true", help="one request per acknowledgement")
    parser.add_argument("--open", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.open:
            asyncio.run(cost_of_acks(Path(folder), options.open))
        else:
            rate(Path(folder), options.messages, options.consumers, single=options.single)


def rate(folder: Path, count: int, consumers: int, *, single: bool) -> None:
    cluster = LocalCluster.up(folder / "cluster", Settings())
    try:
        nameserver = cluster.nameservers[0]
        with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
            admin.create_topic(TOPIC, 8)
            handles = [producer.send_async(Message(TOPIC, BODY)) for _ in range(count)]
            for handle in handles:
                handle.result()
        left = count
        lock = threading.Lock()

        def work() -> None:
            nonlocal left
            consumer = SimpleConsumer(GROUP, nameserver, from_beginning=True)
            consumer.subscribe(TOPIC)
            with consumer:
                while left > 0:
                    messages = consumer.receive(32, invisible_s=60, wait_s=0.2)
                    if single:
                        for message in messages:
                            consumer.ack(message)
                    elif messages:
                        consumer.ack(messages)
                    with lock:
                        left -= len(messages)

        threads = [threading.Thread(target=work) for _ in range(consumers)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - begun
        how = "each in its own request" if single else "32 in a request"
        print(f"{count / took:,.0f} messages/s received and acknowledged, {how}")
    finally:
        cluster.down()


async def cost_of_acks(folder: Path, most: int) -> None:
    runtime = NativeRuntime()
    config = BrokerConfig(root=str(folder), port=0, ha_port=0, max_popped_messages=most)
    broker = Broker(config, runtime, NativeDisk())
    await broker.start()
    service = broker.messaging.popping
    while not service.serves:
        await asyncio.sleep(0.01)
    broker.context.topics.ensure(TOPIC, 1)
    order = PopOrder(GROUP, TOPIC, 0, 32, 3_600_000)
    opened: list[PopHandle] = []
    before = own_memory()

    async def fill(count: int) -> None:
        """Store and pop so many messages more."""
        for number in range(count):
            broker.store.put(PendingMessage(TOPIC, 0, BODY))
            if not number % 1000:
                broker.ground.advancer.wake()
                await asyncio.sleep(0)
        while broker.context.visible < broker.store.watermarks.appended:
            broker.ground.advancer.wake()
            await asyncio.sleep(0.01)
        popped = 0
        while popped < count:
            answer = service.begin()
            service.look(order, answer, TOPIC, 0)
            for run in answer.runs:
                popped += len(run.offsets)
                if len(opened) < ACKS:
                    offset = run.offsets[0]
                    opened.append(
                        PopHandle(0, answer.pop_ms, order.invisible_ms, 0, 0, "broker-a", 0, offset)
                    )
            if not popped % 3200:
                await asyncio.sleep(0)

    size = 1000
    while size <= most:
        await fill(size - service.leases.count)
        gc.collect()
        memory = own_memory() - before
        some = list(opened)
        begun = time.perf_counter()
        for handle in some:
            service.acknowledge(GROUP, TOPIC, [handle])
        took = (time.perf_counter() - begun) / len(some)
        await asyncio.sleep(0.5)
        opened.clear()
        print(f"{size:>9,} open: {took * 1e6:6.1f} us per acknowledgement, {memory / 1e6:,.0f} MB")
        size *= 10
    await broker.close()


def own_memory() -> int:
    """The bytes of this process that are not pages of files (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


if __name__ == "__main__":
    main()
