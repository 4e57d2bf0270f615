"""The clients of a drill: senders and readers that write down what they asked for and got.

Senders, each with one send under way, at a steady pace together:

| name | how it sends |
|---|---|
| `free-N` | to any queue: goes on with other brokers when one fails |
| `once-N` | the same without retries, and each knows one nameserver only |
| `key-N` | with a sharding key of its own: all to one queue, in order |
| `pin-BROKER` | to one queue of one broker, in order: tells when that broker takes messages |
| `post-N`, `post-key-N` | as `free-N` and `key-N`, by the blocking client's `send_async` |
| `thread-N`, `thread-key-N` | the same by its `send`, each in a thread of its own |
| `batch-N` | BATCH messages by its `send_batch`, to any queue: all are stored or none |
| `batch-BROKER` | BATCH messages by its `send_batch_async`, to one queue of one broker, in order |

A value is sent once by its sender; what is unknown stays unknown. Groups: `shared` (concurrent),
`ordered`, and `polled` (with `PullConsumer`), of two members each, one of them with the blocking
client, whose threads call the listener, or poll. A reader for each broker reads its oldest messages
again and again: it tells when old messages can be had. One event loop writes the history, so it
needs no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from saturnmq import (
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SaturnError,
    SendHandle,
    aio,
)
from saturnmq.drills.failover.clients import REBALANCE_S, create_topic, end_tasks, value_of
from saturnmq.drills.failover.history import AGAIN, IN_ORDER, ONCE, History
from saturnmq.drills.sim.history import make_body
from saturnmq.protocol.ids import decode_message_id
from saturnmq.runtime.door import join_address

TOPIC = "drill"
QUEUES = 4  # on each broker
POLLED = "polled"
PUSHED = {"shared": False, "ordered": True}  # group -> ordered
GROUPS = PUSHED | {POLLED: False}
FREE, SINGLE, KEYS = 4, 2, 8
BLOCKING = 2  # senders of each kind that use the blocking client
BATCH = 3  # messages of those who send several at once
POLL_MOST, POLL_S = 50, 1.0
PADDING = 200  # bytes of body
RATE = 600  # sends a second, all senders together
SENDER = "sender"  # property
SAMPLE_S = 0.5
READ_PAUSE_S = 0.1
READ_TIMEOUT_S = 5.0
REPEAT_SHARE = 0.002  # of the calls of the ordered listener that ask for the same again
PINNED_PATIENCE_S = 8.0

CONSUMER: dict[str, Any] = {"consume_from": "first", "rebalance_interval_s": REBALANCE_S}
NOTED_S = 30.0

Listener = Callable[[Any], Coroutine[Any, Any, ConsumeResult]]
Send = Callable[..., Awaitable[Any]]
"""Of a message and where it goes; gives the SendResult, or raises the error of the send."""
SendAll = Callable[..., Awaitable[Sequence[Any]]]
"""The same of several messages, with a SendResult for each."""


class Workload:
    """Started and ended by the drill; `history` is what it is for."""

    def __init__(
        self,
        nameservers: Sequence[str],
        brokers: Sequence[str],
        history: History,
        seed: int,
        *,
        rate: int = RATE,
        padding: int = PADDING,
    ) -> None:
        self.history = history
        self._nameservers = list(nameservers)
        self._brokers = list(brokers)
        self._chance = random.Random(f"{seed}/load")
        self._padding = padding
        singles = FREE + SINGLE + KEYS + 4 * BLOCKING + len(brokers)
        self._pause = (singles + BATCH * (1 + len(brokers))) / rate
        self._ends: list[Callable[[], Awaitable[Any]]] = []  # of the clients
        self._threads = ThreadPoolExecutor(2 * BLOCKING + 3, "drill-client")
        self._senders: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        # Acknowledged and not yet processed, and all that was processed; by group.
        self._missing: dict[str, set[str]] = {group: set() for group in GROUPS}
        self._seen: dict[str, set[str]] = {group: set() for group in GROUPS}
        self.acked_on: dict[str, float] = {}  # broker -> when it last acknowledged
        self.admin: Any = aio.Admin(nameservers=self._nameservers)

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.admin.start()
        await create_topic(self.admin, TOPIC, QUEUES)
        for group, ordered in PUSHED.items():
            await self._begin_member(group, ordered)
            await self._begin_blocking_member(group, ordered)
        await self._begin_polls()
        usual = await self._producer("usual", self._nameservers, delivery_timeout=PINNED_PATIENCE_S)
        for index in range(FREE):
            self._begin(usual.send, f"free-{index}")
        for index in range(SINGLE):
            nameserver = self._nameservers[index % len(self._nameservers)]
            once = await self._producer(f"{ONCE}-{index}", [nameserver], retries=0)
            self._begin(once.send, f"{ONCE}-{index}")
        for index in range(KEYS):
            self._begin(usual.send, f"key-{index}", sharding_key=f"key-{index}")
        await self._begin_blocking()
        for broker in self._brokers:
            self._begin(usual.send, f"pin-{broker}", queue=MessageQueue(TOPIC, broker, 0))
            self._others.append(asyncio.create_task(self._read(broker)))
        self._others.append(asyncio.create_task(self._sample_commits()))

    async def stop_sending(self) -> None:
        """No new messages; returns when all are answered."""
        self._stop.set()
        await asyncio.gather(*self._senders)

    async def close(self) -> list[str]:
        """End everything; unanswered sends stay unknown. Returns what had ended a sender, a reader
        or the samples before (`end_tasks`)."""
        self._stop.set()
        broken = await end_tasks((*self._senders, *self._others))
        for close in self._ends:
            with contextlib.suppress(SaturnError):
                await close()
        self._threads.shutdown(wait=False)
        await self.admin.close()
        return broken

    def outstanding(self) -> int:
        """Acknowledged messages that some group has not got yet."""
        return sum(map(len, self._missing.values()))

    # -- sending -----------------------------------------------------------------------------------

    async def _producer(self, name: str, nameservers: Sequence[str], **options: Any) -> Any:
        producer = aio.Producer(f"drill-{name}", nameservers, **options)
        await producer.start()
        self._ends.append(partial(producer.close, timeout=1.0))
        return producer

    async def _begin_blocking(self) -> None:
        """The senders of the blocking client, whose ways to a broker are others than those of
        `aio`."""
        producer = await self._in_thread(
            Producer("drill-blocking", self._nameservers, delivery_timeout=PINNED_PATIENCE_S).start
        )
        self._ends.append(partial(self._in_thread, producer.close, 1.0))
        by_post, by_thread = partial(_post, producer), partial(self._in_thread, producer.send)
        for kind, send in (("post", by_post), ("thread", by_thread)):
            for index in range(BLOCKING):
                self._begin(send, f"{kind}-{index}")
                name = f"{kind}-key-{index}"
                self._begin(send, name, sharding_key=name)
        self._begin_batches(partial(self._in_thread, producer.send_batch), "batch-0")
        for broker in self._brokers:
            place = MessageQueue(TOPIC, broker, 0)
            self._begin_batches(partial(_post_batch, producer), f"batch-{broker}", queue=place)

    async def _in_thread(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(call, *args, **options))

    def _begin(self, send: Send, who: str, **where: Any) -> None:
        async def send_one(messages: list[Message], **where: Any) -> list[Any]:
            return [await send(messages[0], **where)]

        self._begin_batches(send_one, who, 1, **where)

    def _begin_batches(self, send: SendAll, who: str, size: int = BATCH, **where: Any) -> None:
        self._senders.append(asyncio.create_task(self._send_all(send, who, size, where)))

    async def _send_all(self, send: SendAll, who: str, size: int, where: dict[str, Any]) -> None:
        chance = random.Random(self._chance.getrandbits(32))
        number = 0
        while not self._stop.is_set():
            await asyncio.sleep(self._pause * chance.uniform(0.5, 1.5))
            await self._send(send, who, [f"{who}-{number + n}" for n in range(size)], where)
            number += size

    async def _send(
        self, send: SendAll, who: str, values: list[str], where: dict[str, Any]
    ) -> None:
        messages = []
        for value in values:
            body = make_body(value, self._padding)
            messages.append(Message(TOPIC, body, keys=value, properties={SENDER: who}))
            self.history.add("invoke", who, value, note=IN_ORDER if where else "")
        try:
            results = await send(messages, **where)
        except SaturnError as error:
            kind = "fail" if error.outcome == "rejected" else "unknown"
            for value in values:
                self.history.add(kind, who, value, note=f"{type(error).__name__}: {error}")
            return
        for value, result in zip(values, results, strict=True):
            self._answered(who, value, result)

    def _answered(self, who: str, value: str, result: Any) -> None:
        queue = result.queue
        place = {"broker": queue.broker_name, "queue": queue.queue_id}
        if not result.ok:
            status = result.status.value
            self.history.add("unknown", who, value, **place, note=status)
            return
        host, port, position = decode_message_id(result.offset_message_id)
        event = self.history.add(
            "ok",
            who,
            value,
            **place,
            offset=result.queue_offset,
            node=join_address(host, port),
            position=position,
        )
        self.acked_on[queue.broker_name] = event.at
        for group, seen in self._seen.items():
            if value not in seen:
                self._missing[group].add(value)

    # -- reading -----------------------------------------------------------------------------------

    def _listener(self, group: str, ordered: bool) -> Listener:
        chance = random.Random(self._chance.getrandbits(32))

        async def listen(messages: Any) -> ConsumeResult:
            again = ordered and chance.random() < REPEAT_SHARE
            for message in messages:
                self._delivered(group, message, again)
            return ConsumeResult.SUSPEND if again else ConsumeResult.SUCCESS

        return listen

    async def _begin_member(self, group: str, ordered: bool) -> None:
        listener = self._listener(group, ordered)
        consumer = aio.PushConsumer(
            group, self._nameservers, listener=listener, ordered=ordered, **CONSUMER
        )
        consumer.subscribe(TOPIC)
        await consumer.start()
        self._ends.append(consumer.close)

    async def _begin_blocking_member(self, group: str, ordered: bool) -> None:
        loop, note = asyncio.get_running_loop(), self._listener(group, ordered)

        def listener(messages: Any) -> ConsumeResult:
            # In the history before it counts as consumed.
            return asyncio.run_coroutine_threadsafe(note(messages), loop).result(NOTED_S)

        def start() -> PushConsumer:
            consumer = PushConsumer(
                group, self._nameservers, listener=listener, ordered=ordered, **CONSUMER
            )
            consumer.subscribe(TOPIC)
            return consumer.start()

        consumer = await self._in_thread(start)
        self._ends.append(partial(self._in_thread, consumer.close))

    async def _begin_polls(self) -> None:
        consumer = aio.PullConsumer(POLLED, self._nameservers, **CONSUMER)
        consumer.subscribe(TOPIC)
        await consumer.start()
        self._ends.append(consumer.close)
        self._others.append(asyncio.create_task(self._poll(consumer.poll)))
        blocking = PullConsumer(POLLED, self._nameservers, **CONSUMER)
        blocking.subscribe(TOPIC)
        await self._in_thread(blocking.start)
        self._ends.append(partial(self._in_thread, blocking.close))
        poll = partial(self._in_thread, blocking.poll)
        self._others.append(asyncio.create_task(self._poll(poll)))

    async def _poll(self, poll: Callable[..., Awaitable[Any]]) -> None:
        """Each message is in the history before the next poll commits it."""
        while True:
            for message in await poll(POLL_S, POLL_MOST):
                self._delivered(POLLED, message, again=False)

    def _delivered(self, group: str, message: Any, again: bool) -> None:
        value = value_of(message)
        wrong = AGAIN if again else ""
        sender = value.rpartition("-")[0]
        told = (message.topic, list(message.keys), message.properties.get(SENDER))
        if value and told != (TOPIC, [value], sender):
            wrong = f"topic, keys and sender were {told}"
        self.history.add(
            "deliver",
            group,
            value,
            broker=message.broker_name,
            queue=message.queue_id,
            offset=message.queue_offset,
            note=wrong,
        )
        if not again:
            self._seen[group].add(value)
            self._missing[group].discard(value)

    async def _read(self, broker: str) -> None:
        """The beginning of a queue of `broker`, again and again, each time asked for anew."""
        queue = MessageQueue(TOPIC, broker, 0)
        reader = aio.PullConsumer(
            "drill-readers", self._nameservers, consume_from="first", auto_commit=False,
            max_cached_messages=8,
        )  # fmt: skip
        reader.assign([queue])
        async with reader:
            while True:
                asked = self.history.now()
                reader.seek(queue, 0)
                if await reader.poll(READ_TIMEOUT_S, 8):
                    self.history.add("read", "reader", broker=broker, note=f"{asked:.4f}")
                await asyncio.sleep(READ_PAUSE_S)

    async def _sample_commits(self) -> None:
        """Sample the committed offsets of the brokers; skip while they cannot be asked."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self.sample_commits()

    async def is_replicated(self) -> bool:
        """Whether the logs of every group are equally long; no if one cannot be asked."""
        try:
            async with asyncio.timeout(2.0):
                replicas = await self.admin.replicas()
        except (SaturnError, TimeoutError):
            return False
        ends = {(replica.group, replica.end) for replica in replicas}
        return all(r.answers for r in replicas) and len(ends) == len({r.group for r in replicas})

    async def sample_commits(self) -> None:
        for group in GROUPS:
            try:
                async with asyncio.timeout(2.0):
                    rows = await self.admin.group_lag(group, TOPIC)
            except (SaturnError, TimeoutError):
                continue
            for row in rows:
                if row.committed >= 0:
                    self.history.add(
                        "committed",
                        group,
                        broker=row.queue.broker_name,
                        queue=row.queue.queue_id,
                        offset=row.committed,
                    )


async def _post_batch(producer: Producer, messages: list[Message], **where: Any) -> list[Any]:
    handles = producer.send_batch_async(messages, **where)
    await _over(handles[-1])
    return [handle.result() for handle in handles]


async def _post(producer: Producer, message: Message, **where: Any) -> Any:
    handle = producer.send_async(message, **where)
    await _over(handle)
    return handle.result()


async def _over(handle: SendHandle) -> None:
    """Wait until this send is over, with whatever outcome."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    handle.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
    await done.wait()
