"""Pop on one broker process: messages received and acknowledged per second, and the cost of an
acknowledgement with many messages open.

    python benchmarks/pop.py                       # 100,000 messages through 4 consumers
    python benchmarks/pop.py --open 1000000        # acknowledgements while so many are open
    python benchmarks/pop.py --held 1000000        # clients hold so many, then the broker is killed

A cluster of one master with asynchronous flush is started in a temporary directory. Consumers are
threads of this process; each receives up to 32 messages and acknowledges them in one request
(`--single`: each in its own). `--open` asks the broker's service itself, without a network: it
opens so many messages in pops of 32, and measures acknowledgements at some numbers of open
messages, and the memory that they take.

`--held`: the consumers receive all messages for an hour and acknowledge none. Then single
acknowledgements are timed, the broker is killed and started again, which must give out nothing, and
the rest is acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import threading
import time
from pathlib import Path

from saturnmq import Admin, Message, Producer, ReceivedMessage, SimpleConsumer
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.pop.orders import PopOrder
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.protocol.pop_handle import PopHandle
from saturnmq.runtime.errors import SystemBusy
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
    parser.add_argument("--held", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.open:
            asyncio.run(cost_of_acks(Path(folder), options.open))
        elif options.held:
            hold(Path(folder), options.held, options.consumers)
        else:
            rate(Path(folder), options.messages, options.consumers, single=options.single)


def fill_topic(nameserver: str, count: int) -> None:
    """Store so many messages in eight queues."""
    with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
        admin.create_topic(TOPIC, 8)
        handles = [producer.send_async(Message(TOPIC, BODY)) for _ in range(count)]
        for handle in handles:
            handle.result()


def hold(folder: Path, count: int, consumers: int) -> None:
    cluster = LocalCluster.up(folder / "cluster", Settings())
    try:
        nameserver = cluster.nameservers[0]
        fill_topic(nameserver, count)
        before = memory_of(cluster.node("master-0").pid)
        held: list[list[ReceivedMessage]] = []
        times = [time.perf_counter()]

        def take() -> None:
            consumer = SimpleConsumer(GROUP, nameserver, from_beginning=True)
            consumer.subscribe(TOPIC)
            with consumer:
                while messages := consumer.receive(32, invisible_s=3600, wait_s=2.0):
                    held.append(messages)
                    times.append(time.perf_counter())

        threads = [threading.Thread(target=take) for _ in range(consumers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pops, tenth = len(times) - 1, len(times) // 10
        ends = times[tenth] - times[0], times[-1] - times[-1 - tenth]
        memory = memory_of(cluster.node("master-0").pid) - before
        each = {message.message_id for messages in held for message in messages}
        print(f"{len(each):,} messages held in {pops:,} pops, {memory / 1e6:,.0f} MB")
        print(f"the first tenth of the pops took {ends[0]:.1f} s, the last one {ends[1]:.1f} s")
        with SimpleConsumer(GROUP, nameserver, from_beginning=True) as consumer:
            print(f"one acknowledgement: {acknowledge_some(consumer, held)}")
        cluster.kill("master-0")
        begun = time.perf_counter()
        cluster.restart("master-0")
        consumer = SimpleConsumer(GROUP, nameserver, from_beginning=True)
        consumer.subscribe(TOPIC)
        with consumer:
            while True:
                try:
                    again = consumer.receive(32, wait_s=0.0)
                    break
                except SystemBusy:  # it still reads what is out
                    time.sleep(0.01)
            print(f"killed, answers pops again after {time.perf_counter() - begun:.1f} s")
            again += consumer.receive(32, wait_s=5.0)
            print(f"given out again while they are held: {len(again)}")
            print(f"one acknowledgement: {acknowledge_some(consumer, held)}")
            begun = time.perf_counter()
            for messages in held:
                consumer.ack(messages)
            took = time.perf_counter() - begun
            print(f"the rest acknowledged in {took:.1f} s, 32 in a request")
            print(f"come again afterwards: {len(consumer.receive(32, wait_s=2.0))}")
    finally:
        cluster.down()


def acknowledge_some(consumer: SimpleConsumer, held: list[list[ReceivedMessage]]) -> str:
    """The times of single acknowledgements, one at a time."""
    times = []
    for messages in [held.pop() for _ in range(ACKS // 200)]:
        for message in messages:
            begun = time.perf_counter()
            consumer.ack(message)
            times.append(time.perf_counter() - begun)
    times.sort()
    most = times[len(times) * 99 // 100]
    return f"{statistics.median(times) * 1e6:.0f} us, 99 % {most * 1e6:.0f} us"


def rate(folder: Path, count: int, consumers: int, *, single: bool) -> None:
    cluster = LocalCluster.up(folder / "cluster", Settings())
    try:
        nameserver = cluster.nameservers[0]
        fill_topic(nameserver, count)
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
    config = BrokerConfig(root=str(folder), port=0, ha_port=0, max_popped_messages=2 * most)
    broker = Broker(config, runtime, NativeDisk())
    await broker.start()
    service = broker.messaging.popping
    while not service.serves:
        await asyncio.sleep(0.01)
    broker.context.topics.ensure(TOPIC, 1)
    order = PopOrder(GROUP, TOPIC, 0, 32, 3_600_000)
    opened: list[PopHandle] = []
    before = memory_of("self")

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
        memory = memory_of("self") - before
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


def memory_of(process: int | str | None) -> int:
    """The bytes of a process that are not pages of files (Linux)."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


if __name__ == "__main__":
    main()
