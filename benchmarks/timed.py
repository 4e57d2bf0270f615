"""Timed messages on one broker process: sends per second, and how late messages come.

    python benchmarks/timed.py                       # 100,000 messages, due within a minute
    python benchmarks/timed.py --messages 100000 --within 5     # as fast as the broker delivers
    python benchmarks/timed.py --pending 1000000     # memory and start with so many waiting

A cluster of one master with asynchronous flush is started in a temporary directory. The messages
name moments that are spread evenly over the time `--within`, which begins when all are sent. A
thread of this process receives them; the broker's TIMER_DEQUEUE_MS says when it delivered each.

`--pending` runs a broker in this process, without a network, stores so many messages that wait for
up to a day, and tells its memory at some numbers of them. Then it is started again in a new
process: after an orderly end, and without the files of the timer, which it makes from the log.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from saturnmq import Admin, Message, Producer, PullConsumer, deliver_at
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.timer.scheduling import TimerSchedule
from saturnmq.broker.timer.service import SAVE_S
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.protocol.properties import encode_properties
from saturnmq.protocol.topics import TIMER_TOPIC
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import PendingMessage

BODY = bytes(100)
TOPIC = "bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--within", type=float, default=60.0, help="seconds")
    parser.add_argument("--lead", type=float, default=60.0, help="seconds that the sends may take")
    parser.add_argument("--pending", type=int, default=0)
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        asyncio.run(start_again(options.start))
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.pending:
            pending(Path(folder), options.pending)
            return
        cluster = LocalCluster.up(Path(folder) / "cluster", Settings())
        try:
            measure(cluster.nameservers[0], options.messages, options.within, options.lead)
        finally:
            cluster.down()


def measure(nameserver: str, count: int, within: float, lead: float) -> None:
    begun = time.time()
    first = begun + lead
    with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
        admin.create_topic(TOPIC, 1)
        handles = [
            producer.send_async(deliver_at(Message(TOPIC, BODY), first + within * n / count))
            for n in range(count)
        ]
        for handle in handles:
            handle.result()
    took = time.time() - begun
    print(f"{count / took:,.0f} messages/s sent, for later")
    if took > lead:
        print(f"the sends took {took:.0f} s: the first messages were due before (--lead)")
    consumer = PullConsumer("readers", nameserver, from_beginning=True)
    consumer.subscribe(TOPIC)
    late: list[int] = []
    delivered: list[int] = []
    with consumer:
        while len(late) < count:
            for message in consumer.poll(1.0):
                at, due = (
                    int(message.properties[name])
                    for name in ("TIMER_DEQUEUE_MS", "TIMER_DELIVER_MS")
                )
                late.append(at - due)
                delivered.append(at)
    late.sort()
    rate = count / max((max(delivered) - min(delivered)) / 1000, 0.001)
    print(f"{rate:,.0f} messages/s delivered")
    print(
        f"late by {late[count // 2]} ms (median), {late[count * 99 // 100]} ms (99 %), "
        f"{late[-1]} ms (most); early: {sum(each < 0 for each in late)}"
    )


def pending(folder: Path, most: int) -> None:
    """Fill a broker, and start it again in other processes."""
    asyncio.run(fill(folder, most))
    again = [sys.executable, __file__, "--start", str(folder)]
    print("started after an orderly end:", flush=True)
    subprocess.run(again, check=True)
    shutil.rmtree(folder / "timer")
    print("started without the files of the timer:", flush=True)
    subprocess.run(again, check=True)


async def opened(folder: Path) -> Broker:
    config = BrokerConfig(root=str(folder), port=0, ha_port=0)
    broker = Broker(config, NativeRuntime(), NativeDisk())
    await broker.start()
    return broker


async def fill(folder: Path, most: int) -> None:
    broker = await opened(folder)
    timers = broker.messaging.timers
    schedule = TimerSchedule(broker.context, timers.clock, timers.window_ms)
    broker.context.topics.ensure(TOPIC, 1)
    gc.collect()
    before, count, size = own_memory(), 0, most // 100
    while count < most:
        for _ in range(min(1000, most - count)):
            delay_ms = 3_600_000 + count * 7919 % 82_800_000  # from an hour to a day
            properties = encode_properties(
                {"UNIQ_KEY": f"{count:032X}", "TIMER_DELAY_MS": str(delay_ms)}
            )
            topic, queue, stored, _ = schedule.schedule(TOPIC, 0, properties)
            broker.store.put(PendingMessage(topic, queue, BODY, stored))
            count += 1
        broker.ground.advancer.wake()
        await asyncio.sleep(0)
        if count >= size:
            await until_read(broker, count)
            gc.collect()
            memory = (own_memory() - before) / 1e6
            print(f"{count:>9,} wait: {memory:,.0f} MB more than with none", flush=True)
            size = min(10 * size, most)
    await asyncio.sleep(SAVE_S + 5.0)
    gc.collect()
    memory = (own_memory() - before) / 1e6
    print(f"{count:>9,} wait and are saved: {memory:,.0f} MB more than with none", flush=True)
    await broker.close()


async def until_read(broker: Broker, count: int) -> None:
    while broker.messaging.timers.pending.next_offset < count:
        broker.ground.advancer.wake()
        await asyncio.sleep(0.01)


async def start_again(folder: Path) -> None:
    begun, before = time.perf_counter(), own_memory()
    broker = await opened(folder)
    took = time.perf_counter() - begun
    count = broker.store.max_offset(TIMER_TOPIC, 0)
    await until_read(broker, count)
    ready = time.perf_counter() - begun
    gc.collect()
    print(
        f"{len(broker.messaging.timers.pending):>9,} wait: it serves after {took:.2f} s and has "
        f"read them after {ready:.2f} s, {(own_memory() - before) / 1e6:,.0f} MB"
    )
    await broker.close()


def own_memory() -> int:
    """The bytes of this process that are not pages of files (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


if __name__ == "__main__":
    main()
