"""Batches go round the queues: few messages are spread evenly, many still travel together."""

from __future__ import annotations

import asyncio
from collections import Counter

import client_fakes as fakes
import pytest
from saturnmq.client.blocking import Producer as BlockingProducer
from saturnmq.client.producer import accumulator
from saturnmq.client.producer.producer import Producer
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.runtime.native import NativeRuntime

WINDOW, QUEUES = 1000, 4
WINDOWS, MOST_WINDOWS = 10, 60
EVEN = WINDOW // QUEUES


class WithoutRest(NativeRuntime):
    """However busy the machine is, no sender rests."""

    def now_ms(self) -> int:
        return 1_700_000_000_000


def within_a_quarter_of_even(counts: Counter[int]) -> bool:
    return len(counts) == QUEUES and all(
        0.75 * EVEN <= count <= 1.25 * EVEN for count in counts.values()
    )


def batches_of(cluster: fakes.FakeCluster) -> int:
    return sum(code == 320 for broker in cluster.brokers.values() for code, _ in broker.requests)


@pytest.mark.parametrize("size", [1, 100, 1024, 4000])
def test_a_window_of_pipelined_sends_of_a_task_is_spread_over_the_queues_in_batches(size):
    async def main() -> None:
        cluster = await fakes.FakeCluster(NativeRuntime(), queues=QUEUES).start()
        async with Producer("senders", cluster.address) as producer:
            handles = [await producer.send_async(Message("T", bytes(size))) for _ in range(WINDOW)]
            counts = Counter([(await handle).queue.queue_id for handle in handles])
        cluster.stop()
        assert within_a_quarter_of_even(counts), counts
        assert batches_of(cluster) < WINDOW / 40

    asyncio.run(main())


@pytest.mark.parametrize("size", [100, 1024])
def test_a_window_of_pipelined_sends_of_a_thread_is_spread_over_the_queues_in_batches(
    size, monkeypatch
):
    # However busy the machine is, no window has a rest in it: its waits for answers are enough.
    monkeypatch.setattr(accumulator, "REST_MS", 60_000)
    with fakes.threaded("a", "b", queues=QUEUES // 2) as cluster:
        # Nor does the producer avoid a broker that this machine held up for a second.
        with BlockingProducer("senders", cluster.address, latency_table=()) as producer:
            even, sent, total = 0, 0, Counter[int]()
            for windows in range(1, MOST_WINDOWS + 1):
                handles = [producer.send_async(Message("T", bytes(size))) for _ in range(WINDOW)]
                queues = [handle.result(10).queue for handle in handles]
                numbers = {queue: number for number, queue in enumerate(sorted(set(queues)))}
                counts = Counter([numbers[queue] for queue in queues])
                even, total = even + within_a_quarter_of_even(counts), total + counts
                sent += WINDOW
                # A busy machine may hold up this thread or the other one in the middle of a window.
                # Over more of them that fades, unless the same queue gets more each time.
                mean = Counter({queue: n // windows for queue, n in total.items()})
                spread = even >= windows / 2 and within_a_quarter_of_even(mean)
                if windows >= WINDOWS and spread:
                    break
            assert spread, (even, windows, mean)
        assert batches_of(cluster) < sent / 10


def test_what_waits_behind_many_batches_travels_in_large_ones():
    async def main() -> None:
        cluster = await fakes.FakeCluster(NativeRuntime(), queues=QUEUES).start()
        async with Producer("senders", cluster.address, runtime=WithoutRest()) as producer:
            count = 40_000
            handles = [await producer.send_async(Message("T", bytes(100))) for _ in range(count)]
            counts = Counter([(await handle).queue.queue_id for handle in handles])
        cluster.stop()
        assert batches_of(cluster) < count / 400
        assert len(counts) == QUEUES

    asyncio.run(main())


def test_messages_of_one_queue_travel_together_and_in_order():
    async def main() -> None:
        cluster = await fakes.FakeCluster(NativeRuntime(), queues=QUEUES).start()
        queue = MessageQueue("T", "a", 2)
        async with Producer("senders", cluster.address) as producer:
            for n in range(WINDOW):
                await producer.send_async(Message("T", b"%d" % n), queue=queue)
            await producer.flush()
        cluster.stop()
        bodies = [body for body, _ in cluster.brokers["a"].log[2]]
        assert bodies == [b"%d" % n for n in range(WINDOW)]
        assert batches_of(cluster) < 5

    asyncio.run(main())
