"""Every call of the client beside its twins: sends, acknowledgements, batches, listeners and polls,
blocking and asyncio.

    python benchmarks/client_calls.py                          # all, bodies of 100 B and 1 KiB
    python benchmarks/client_calls.py --only poll --size 1024  # calls whose name has "poll"

One nameserver and one master (async flush, no slave) on this machine; client and broker share its
cores. Each figure is the median of `--runs` runs, in messages a second. A run checks that each
message was acknowledged, or came once. The calls of the blocking client are in `cli/workloads.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from saturnmq import Message, aio
from saturnmq.cli.bench import machine
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.workloads import AHEAD, BATCH, BATCHES_AHEAD, CALLS, WARM_SENDS, Work, complete

REST_S = 1.0  # the broker indexes what the run before left


# -- asyncio ------------------------------------------------------------------------------------


def on_a_loop(act: Callable[[Work], Awaitable[float]]) -> Callable[[Work], float]:
    def run(work: Work) -> float:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

            async def main() -> float:
                return await act(work)

            return runner.run(main())

    return run


def aio_sending(
    act: Callable[[Work, aio.Producer], Awaitable[None]],
) -> Callable[[Work], float]:
    async def measured(work: Work) -> float:
        async with aio.Producer("calls", work.nameservers) as producer:
            for _ in range(WARM_SENDS):
                await producer.send(work.message())
            start = time.perf_counter()
            await act(work, producer)
            await producer.flush()
            return time.perf_counter() - start

    return on_a_loop(measured)


async def aio_flush(work: Work, producer: aio.Producer) -> None:
    topic, body, send = work.topic, work.body, producer.send_async
    for _ in range(work.count):
        await send(Message(topic, body))


async def aio_results(work: Work, producer: aio.Producer) -> None:
    topic, body, send = work.topic, work.body, producer.send_async
    before: list[Any] = []
    for _ in range(0, work.count, AHEAD):
        handles = [await send(Message(topic, body)) for _ in range(AHEAD)]
        for handle in before:
            await handle
        before = handles
    for handle in before:
        await handle


async def aio_batch(work: Work, producer: aio.Producer) -> None:
    topic, body = work.topic, work.body
    for _ in range(0, work.count, BATCH):
        await producer.send_batch([Message(topic, body) for _ in range(BATCH)])


async def aio_batch_async(work: Work, producer: aio.Producer) -> None:
    topic, body = work.topic, work.body
    under_way: list[Any] = []
    for _ in range(0, work.count, BATCH):
        messages = [Message(topic, body) for _ in range(BATCH)]
        under_way.append(await producer.send_batch_async(messages))
        if len(under_way) > BATCHES_AHEAD:
            for handle in under_way.pop(0):
                await handle


def aio_polling(most: int) -> Callable[[Work], float]:
    async def measured(work: Work) -> float:
        consumer = aio.PullConsumer(
            f"group-{uuid.uuid4().hex[:8]}", work.nameservers, consume_from="first"
        )
        consumer.subscribe(work.backlog(keyed=False))
        seen, first = 0, 0.0
        async with consumer:
            while seen < work.count:
                messages = await consumer.poll(5.0, most)
                if not seen:
                    first = time.perf_counter()
                for message in messages:
                    _ = message.body
                seen += len(messages)
            took = time.perf_counter() - first
        complete(work, seen)
        return took

    return on_a_loop(measured)


ALL: dict[str, Callable[[Work], float]] = {
    **CALLS,
    "aio send_async, flush": aio_sending(aio_flush),
    "aio send_async, results": aio_sending(aio_results),
    "aio send_batch of 1,000": aio_sending(aio_batch),
    "aio send_batch_async of 1,000": aio_sending(aio_batch_async),
    "aio poll(1)": aio_polling(1),
    "aio poll(1000)": aio_polling(1000),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="calls whose name has this")
    parser.add_argument("--size", type=int, action="append", help="bytes of a body; 100 and 1024")
    parser.add_argument("--count", type=int, default=1_000_000, help="messages of a run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, dict[int, list[int]]] = {}
    with tempfile.TemporaryDirectory(prefix="saturnmq-calls-") as home:
        cluster = LocalCluster.up(Path(home), Settings())
        try:
            for size in options.size or [100, 1024]:
                work = Work(cluster.nameservers, size, options.count)
                for name, run in ALL.items():
                    if options.only not in name:
                        continue
                    rates = []
                    for _ in range(options.runs):
                        time.sleep(REST_S)
                        rates.append(round(options.count / run(work)))
                    figures.setdefault(name, {})[size] = rates
                    if not options.json:
                        print(
                            f"{name:45} {size:5} B {statistics.median(rates):>12,.0f}  {rates}",
                            flush=True,
                        )
        finally:
            cluster.down()
    if options.json:
        print(json.dumps({"machine": machine(), "figures": figures}))


if __name__ == "__main__":
    main()
