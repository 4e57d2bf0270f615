"""The work that benchmarks measure, as this project's blocking client does it: sends, batches,
listeners and polls. Used by `saturnmq bench` and by the scripts in `benchmarks/`.

A function of `CALLS` does its work once and returns the seconds that it took. Before it returns, it
has checked that each message was acknowledged, or came once; if not, it ends the program with the
reason.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

QUEUES = 4
BATCH = 1000
AHEAD = 100_000  # handles kept before those of the chunk before are looked at
BATCHES_AHEAD = 16
WARM_SENDS = 20
RECORDS = 10_000  # a batch holds fewer: no batch has the same record twice
WAIT_S = 600.0
PACED_WAIT_S = 60.0
SHARES = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
TICKS = os.sysconf("SC_CLK_TCK")

Show = Callable[[int], object]
"""Told how many messages are done so far."""


class Work:
    """The messages of one run on a cluster: their size and number, and their topic."""

    def __init__(
        self,
        nameservers: Sequence[str],
        size: int,
        count: int,
        *,
        queues: int = QUEUES,
        compression: str | None = None,
    ) -> None:
        """With `compression` the topic has batches, and its producers compress each as a whole."""
        self.nameservers, self.size, self.count = list(nameservers), size, count
        self.queues = queues
        self.compression = compression
        self.body = os.urandom(size)
        self.topic = new_topic(self.nameservers, queues, batched=compression is not None)
        self._backlogs: dict[bool, str] = {}

    def message(self) -> Any:
        from saturnmq import Message

        return Message(self.topic, self.body)

    def backlog(self, *, keyed: bool) -> str:
        """A topic with the messages for a consumer, made at the first call; `keyed`: each has a key
        and a tag."""
        if keyed not in self._backlogs:
            from saturnmq import Message, Producer

            topic = new_topic(self.nameservers, self.queues)
            with Producer("fill", self.nameservers) as producer:
                send, body = producer.send_async, self.body
                for number in range(self.count):
                    if keyed:
                        send(Message(topic, body, keys=[f"order-{number}"], tag="A"))
                    else:
                        send(Message(topic, body))
                producer.flush()
            check_stored(self.nameservers, topic, self.count)
            self._backlogs[keyed] = topic
        return self._backlogs[keyed]


def new_topic(nameservers: list[str], queues: int, *, batched: bool = False) -> str:
    from saturnmq import Admin

    topic = f"bench-{uuid.uuid4().hex[:12]}"
    attributes = {"queue.type": "BatchCQ"} if batched else None
    with Admin(nameservers) as admin:
        admin.create_topic(topic, queues=queues, attributes=attributes)
    return topic


@functools.cache
def records(size: int) -> list[bytes]:
    """Records of a log of requests in JSON, of `size` bytes each, always the same: what compresses
    in them are names and words, what does not are ids and numbers."""
    chance = random.Random(size)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(400)]
    found = []
    for number in range(RECORDS):
        record = {
            "time": f"2026-11-26T10:{number // 60 % 60:02}:{number % 60:02}.{number % 1000:03}Z",
            "level": chance.choice(("info", "info", "info", "warning", "error")),
            "service": chance.choice(("orders", "payments", "stock", "accounts")),
            "host": f"node-{chance.randrange(40):02}.example.org",
            "request": f"{chance.getrandbits(128):032x}",
            "status": chance.choice((200, 200, 201, 404, 500)),
            "duration_us": chance.randrange(100, 900_000),
            "user": chance.randrange(1_000_000),
            "text": "",
        }
        room = size - len(json.dumps(record))
        text = ""
        while len(text) < room:
            text += chance.choice(words) + " "
        found.append(json.dumps({**record, "text": text[: max(room, 0)]}).encode())
    return found


def check_stored(nameservers: list[str], topic: str, count: int) -> None:
    """End the program unless the brokers have so many messages of the topic."""
    from saturnmq import Admin

    with Admin(nameservers) as admin:
        stored = sum(row.max_offset - row.min_offset for row in admin.describe_topic(topic))
    if stored != count:
        raise SystemExit(f"sent {count:,} messages, the broker stored {stored:,}")


def processor_s(pids: Sequence[int]) -> float:
    """The processor time of these processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the `ordered` ones lies."""
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


# -- sends --------------------------------------------------------------------------------------


def sending(act: Callable[[Work, Any], None]) -> Callable[[Work], float]:
    """Measure the sends of `act(work, producer)`, and the flush after them."""

    def run(work: Work) -> float:
        from saturnmq import Producer

        with Producer("bench", work.nameservers, compression=work.compression) as producer:
            if work.compression:
                records(work.size)
            for _ in range(WARM_SENDS):  # route, connection, first segment
                producer.send(work.message())
            start = time.perf_counter()
            act(work, producer)
            producer.flush()
            return time.perf_counter() - start

    return run


def looked_at(handles: Sequence[Any]) -> None:
    """Look at the result of each send."""
    for handle in handles:
        if not handle.result().ok:
            raise SystemExit(f"a send ended as {handle.result().status.value}")


def complete(work: Work, count: int) -> None:
    if count != work.count:
        raise SystemExit(f"{count:,} messages of {work.count:,}")


def send_flush(work: Work, producer: Any) -> None:
    from saturnmq import Message

    topic, body, send = work.topic, work.body, producer.send_async
    for _ in range(work.count):
        send(Message(topic, body))


def send_records(work: Work, producer: Any) -> None:
    from saturnmq import Message

    topic, send = work.topic, producer.send_async
    for body in itertools.islice(itertools.cycle(records(work.size)), work.count):
        send(Message(topic, body))


def send_results(work: Work, producer: Any, show: Show | None = None) -> None:
    from saturnmq import Message

    topic, body, send = work.topic, work.body, producer.send_async
    before: list[Any] = []
    for done in range(0, work.count, AHEAD):
        handles = [send(Message(topic, body)) for _ in range(min(AHEAD, work.count - done))]
        looked_at(before)
        before = handles
        if show is not None:
            show(done)
    looked_at(before)


def send_callbacks(work: Work, producer: Any) -> None:
    from saturnmq import Message

    topic, body, send = work.topic, work.body, producer.send_async
    acknowledged = 0

    def told(handle: Any) -> None:
        nonlocal acknowledged
        if handle.exception() is None:
            acknowledged += 1

    for _ in range(work.count):
        send(Message(topic, body)).add_done_callback(told)
    producer.flush()
    complete(work, acknowledged)


def send_keyed(work: Work, producer: Any) -> None:
    from saturnmq import Message

    topic, body, send = work.topic, work.body, producer.send_async
    for number in range(work.count):
        send(Message(topic, body, tag="A", keys=f"order-{number}"))


def send_batch(work: Work, producer: Any) -> None:
    from saturnmq import Message

    topic, body = work.topic, work.body
    acknowledged = 0
    for _ in range(0, work.count, BATCH):
        acknowledged += len(producer.send_batch([Message(topic, body) for _ in range(BATCH)]))
    complete(work, acknowledged)


def send_batch_async(work: Work, producer: Any) -> None:
    from saturnmq import Message

    topic, body = work.topic, work.body
    under_way: list[Any] = []
    for _ in range(0, work.count, BATCH):
        under_way.append(producer.send_batch_async([Message(topic, body) for _ in range(BATCH)]))
        if len(under_way) > BATCHES_AHEAD:
            looked_at(under_way.pop(0))
    for handles in under_way:
        looked_at(handles)


def one_by_one(work: Work, senders: int) -> tuple[list[float], float]:
    """Synchronous sends of `senders` threads: the microseconds of each in order, and the seconds of
    all."""
    from saturnmq import Producer

    times: list[float] = []
    problems: list[BaseException] = []
    with Producer("bench", work.nameservers) as producer:
        for _ in range(min(500, work.count)):
            producer.send(work.message())

        def send_share(share: int) -> None:
            mine = []
            try:
                for _ in range(share):
                    begin = time.perf_counter()
                    if not producer.send(work.message()).ok:
                        raise SystemExit("a send was not acknowledged")
                    mine.append((time.perf_counter() - begin) * 1e6)
            except BaseException as problem:
                problems.append(problem)
            times.extend(mine)

        shares = [work.count // senders] * senders
        start = time.perf_counter()
        if senders == 1:
            send_share(work.count)
        else:
            threads = [threading.Thread(target=send_share, args=(share,)) for share in shares]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        seconds = time.perf_counter() - start
    if problems:
        raise problems[0]
    return sorted(times), seconds


# -- end to end ---------------------------------------------------------------------------------


class Pace:
    """Messages at a steady rate. Each has the time at which it was due, and its number, in front of
    its body: it counts how late it comes to a consumer, also if its sender is late."""

    HEAD = struct.Struct(">qi")  # nanoseconds of `time.perf_counter_ns`, number

    def __init__(self, rate: int, count: int, warm: int, size: int) -> None:
        """The first `warm` of `count` messages do not count."""
        self.count, self._warm = count, warm
        self._rate, self._rest = rate, os.urandom(max(0, size - self.HEAD.size))
        self._late = [-1] * count
        self._missing = count
        self._all_came = threading.Event()

    def came(self, body: bytes | memoryview) -> None:
        """A message came to its consumer."""
        due, number = self.HEAD.unpack_from(body)
        if self._late[number] < 0:
            self._missing -= 1
        self._late[number] = time.perf_counter_ns() - due
        if not self._missing:
            self._all_came.set()

    def bodies(self) -> Iterator[bytes]:
        """The bodies, each when it is due."""
        begun, step = time.perf_counter_ns(), 1e9 / self._rate
        for number in range(self.count):
            due = begun + int(number * step)
            while (left := due - time.perf_counter_ns()) > 0:
                time.sleep(left / 1e9)
            yield self.HEAD.pack(due, number) + self._rest

    def quantiles(self) -> dict[str, float]:
        """Microseconds from the moment a message was due until a consumer had it, when all came."""
        if not self._all_came.wait(PACED_WAIT_S):
            raise SystemExit(f"{self._missing:,} of {self.count:,} messages did not come")
        times = sorted(late / 1e3 for late in self._late[self._warm :])
        return {name: quantile(times, share) for name, share in SHARES.items()}


def end_to_end(work: Work, rate: int, warm: int) -> dict[str, float]:
    """A producer at this rate, and a push consumer, in this process."""
    from saturnmq import Message, Producer, PushConsumer

    pace = Pace(rate, work.count, warm, work.size)
    consumer = PushConsumer(
        _group(),
        work.nameservers,
        listener_one=lambda message: pace.came(message.body),
        consume_from="first",
    )
    consumer.subscribe(work.topic)
    with consumer, Producer("bench", work.nameservers) as producer:
        for body in pace.bodies():
            producer.send_async(Message(work.topic, body))
        producer.flush()
        return pace.quantiles()


# -- consumers ----------------------------------------------------------------------------------


def body_of(message: Any) -> object:
    return message.body


def all_of(message: Any) -> object:
    return message.body, message.keys, message.properties


def drain(
    work: Work, topic: str, batch: int, touch: Callable[[Any], object], show: Show | None = None
) -> float:
    """The seconds in which one PushConsumer takes all messages, from the first one on, `batch` in a
    call of its listener; with 1 its listener gets single ones."""
    from saturnmq import PushConsumer

    done = threading.Event()
    seen, first = 0, 0.0

    def one(message: Any) -> None:
        nonlocal seen, first
        if not seen:
            first = time.perf_counter()
        touch(message)
        seen += 1
        if seen >= work.count:
            done.set()

    def many(messages: list[Any]) -> None:
        nonlocal seen, first
        if not seen:
            first = time.perf_counter()
        for message in messages:
            touch(message)
        seen += len(messages)
        if seen >= work.count:
            done.set()

    consumer = PushConsumer(
        _group(),
        work.nameservers,
        listener=many if batch > 1 else None,
        listener_one=one if batch == 1 else None,
        consume_from="first",
        consume_message_batch_max_size=batch,
        consume_threads=1,
    )
    consumer.subscribe(topic, "*")
    start = time.perf_counter()
    with consumer:
        while not done.wait(0.2):
            if show is not None:
                show(seen)
            if time.perf_counter() - start > WAIT_S:
                raise SystemExit(f"consumed {seen:,} of {work.count:,} in {WAIT_S:.0f} s")
        seconds = time.perf_counter() - first
    complete(work, seen)
    return seconds


def listening(
    batch: int, touch: Callable[[Any], object], *, keyed: bool
) -> Callable[[Work], float]:
    def run(work: Work) -> float:
        return drain(work, work.backlog(keyed=keyed), batch, touch)

    return run


def polling(most: int) -> Callable[[Work], float]:
    """Measure a PullConsumer that takes at most so many at once, from the first message on."""

    def run(work: Work) -> float:
        from saturnmq import PullConsumer

        consumer = PullConsumer(_group(), work.nameservers, consume_from="first")
        consumer.subscribe(work.backlog(keyed=False))
        seen, first, start = 0, 0.0, time.perf_counter()
        with consumer:
            while seen < work.count:
                messages = consumer.poll(5.0, most)
                if not seen:
                    first = time.perf_counter()
                for message in messages:
                    _ = message.body
                seen += len(messages)
                if not messages and time.perf_counter() - start > WAIT_S:
                    raise SystemExit(f"polled {seen:,} of {work.count:,} in {WAIT_S:.0f} s")
            seconds = time.perf_counter() - first
        complete(work, seen)
        return seconds

    return run


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


SENDS: dict[str, Callable[[Work], float]] = {
    "send_async, flush": sending(send_flush),
    "send_async, results": sending(send_results),
    "send_async, callbacks": sending(send_callbacks),
    "send_async, key and tag": sending(send_keyed),
    "send_batch of 1,000": sending(send_batch),
    "send_batch_async of 1,000": sending(send_batch_async),
}
CALLS: dict[str, Callable[[Work], float]] = {
    **SENDS,
    "listen by 1,000": listening(BATCH, body_of, keyed=False),
    "listen one by one": listening(1, body_of, keyed=False),
    "listen one by one: body, keys, properties": listening(1, all_of, keyed=True),
    "poll(1)": polling(1),
    "poll(1000)": polling(1000),
}
