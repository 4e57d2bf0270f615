"""Kafka's side of `saturnmq bench --against kafka`: one broker (`kafka_node.py`) and the client
confluent-kafka in this process.

Set for the client, by the kind of work: for pipelined sends a queue of 1 GiB, for single ones no
linger. A consumer with a backlog is set to fetch on 10 ms after its queue was full; by default it
waits 1 s. End to end, consumers have their defaults, and producers no linger at 1,000 messages a
second, at 10,000 a linger of 5 ms, which is this client's default.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from peers.kafka_node import SERVER, VARIABLE, KafkaNode
from peers.packages import CACHE, pip_package
from peers.side import Figures, Meter, arguments, end_in_order, serve
from saturnmq.cli.workloads import BATCH, QUEUES, Pace, quantile, records

CLIENT = "confluent-kafka==2.16.1"
WAIT_S = 120.0
PIPELINED = {
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
}
# Of several settings that were tried these gave most with bodies of 100 B and of 1 KiB: 1.9 and
# 1.4 M/s by 1,000, where the defaults had 0.3 and 1.0 to 1.3 (benchmarks/README.md).
BACKLOG = {"fetch.queue.backoff.ms": 10, "queued.min.messages": 200_000}
LINGER_FROM = 5_000  # messages a second
ANSWERS_EVERY = 1000  # sends between two looks at what was answered


class Kafka:
    """The broker and its works."""

    def __init__(self, node: KafkaNode, *, sync_flush: bool) -> None:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient, NewTopic

        self._kafka, self._new_topic = confluent_kafka, NewTopic
        self._node, self._sync_flush = node, sync_flush
        self._admin = AdminClient({"bootstrap.servers": node.address})
        self._backlogs: dict[tuple[int, int, bool], str] = {}

    # -- topics and clients ----------------------------------------------------------------------

    def topic(self, queues: int = QUEUES) -> str:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        config = {"flush.messages": "1"} if self._sync_flush else {}
        topic = self._new_topic(name, queues, 1, config=config)
        self._admin.create_topics([topic])[name].result(WAIT_S)
        return name

    def producer(self, settings: dict[str, Any]) -> Any:
        return self._kafka.Producer({"bootstrap.servers": self._node.address, **settings})

    def consumer(self, topic: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Any:
        consumer = self._kafka.Consumer(
            {
                "bootstrap.servers": self._node.address,
                "group.id": f"bench-{uuid.uuid4().hex[:12]}",
                "auto.offset.reset": "earliest",
                **settings,
            }
        )
        consumer.subscribe([topic])
        return consumer

    def check_stored(self, topic: str, count: int) -> None:
        consumer = self._kafka.Consumer(
            {"bootstrap.servers": self._node.address, "group.id": "bench-check"}
        )
        try:
            stored = 0
            for partition in range(QUEUES):
                place = self._kafka.TopicPartition(topic, partition)
                low, high = consumer.get_watermark_offsets(place, WAIT_S)
                stored += high - low
        finally:
            consumer.close()
        if stored != count:
            raise SystemExit(f"sent {count:,} messages, Kafka stored {stored:,}")

    def backlog(self, size: int, count: int, *, keyed: bool) -> str:
        known = (size, count, keyed)
        if known not in self._backlogs:
            topic, body = self.topic(), os.urandom(size)
            producer = self.producer(PIPELINED)
            act = _keyed if keyed else _flush
            act(producer, topic, body, count)
            self.check_stored(topic, count)
            self._backlogs[known] = topic
        return self._backlogs[known]

    # -- works -----------------------------------------------------------------------------------

    def send(self, request: dict[str, Any]) -> Figures:
        topic, body = self.topic(), os.urandom(request["size"])
        count, act = request["count"], SENDS[request["call"]]
        producer = self.producer(
            {**PIPELINED, **({"compression.type": request["zip"]} if "zip" in request else {})}
        )
        producer.produce(topic, body)
        _emptied(producer)
        if "zip" in request:
            records(request["size"])  # made before anything is measured
        meter, start = Meter([self._node.pid]), time.perf_counter()
        act(producer, topic, body, count)
        figures = meter.rate(count, time.perf_counter() - start)
        figures["disk"] = self._node.bytes_of(topic) / count
        self.check_stored(topic, count + 1)
        return figures

    def single(self, request: dict[str, Any]) -> Figures:
        topic, body, senders = self.topic(), os.urandom(request["size"]), request["senders"]
        producer = self.producer({"linger.ms": 0})
        times: list[float] = []
        problems: list[object] = []
        over = threading.Event()

        def send_share(share: int) -> None:
            answered = threading.Event()

            def told(error: object, _: object) -> None:
                if error is not None:
                    problems.append(error)
                answered.set()

            for _ in range(share):
                begin = time.perf_counter()
                producer.produce(topic, body, on_delivery=told)
                if senders == 1:
                    while not answered.is_set():
                        producer.poll(1.0)
                elif not answered.wait(WAIT_S):
                    problems.append("no answer")
                times.append((time.perf_counter() - begin) * 1e6)
                answered.clear()

        def answers() -> None:
            while not over.is_set():
                producer.poll(0.1)

        for _ in range(200):
            producer.produce(topic, body)
            _emptied(producer)
        share = request["count"] // senders
        meter, start = Meter([self._node.pid]), time.perf_counter()
        if senders == 1:
            send_share(share)
        else:
            poller = threading.Thread(target=answers)
            poller.start()
            threads = [threading.Thread(target=send_share, args=(share,)) for _ in range(senders)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            over.set()
            poller.join()
        figures = meter.rate(share * senders, time.perf_counter() - start)
        if problems:
            raise SystemExit(f"{len(problems)} sends failed, the first by {problems[0]}")
        self.check_stored(topic, share * senders + 200)
        times.sort()
        return {**figures, "p50_us": quantile(times, 0.5), "p99_us": quantile(times, 0.99)}

    def paced(self, request: dict[str, Any]) -> Figures:
        topic, rate, count = self.topic(request["queues"]), request["rate"], request["count"]
        pace = Pace(rate, count, request["warm"], request["size"])
        producer = self.producer({"linger.ms": 0 if rate < LINGER_FROM else 5})
        consumer = self.consumer(topic)
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                message = consumer.poll(0.1)
                if message is not None:
                    pace.came(_body_of(message))

        listener = threading.Thread(target=listen)
        try:
            while not consumer.assignment():
                consumer.poll(0.1)
            listener.start()
            meter = Meter([self._node.pid])
            for body in pace.bodies():
                producer.produce(topic, body)
                producer.poll(0)
            _emptied(producer)
            quantiles = pace.quantiles()
            figures = meter.rate(count, count / rate)
        finally:
            over.set()
            if listener.is_alive():
                listener.join()
            consumer.close()
        return {**figures, **quantiles}

    def consume(self, request: dict[str, Any]) -> Figures:
        count, (most, touch) = request["count"], CONSUMES[request["call"]]
        topic = self.backlog(request["size"], count, keyed=touch is _all_of)
        seen, first, deadline = 0, 0.0, time.perf_counter() + WAIT_S
        meter = Meter([self._node.pid])
        consumer = self.consumer(topic, BACKLOG)
        try:
            while seen < count and time.perf_counter() < deadline:
                if most == 1:
                    message = consumer.poll(1.0)
                    messages = [] if message is None else [message]
                else:
                    messages = consumer.consume(most, 1.0)
                if not seen:  # joining the group takes 3 s
                    first = time.perf_counter()
                for message in messages:
                    touch(message)
                seen += len(messages)
            figures = meter.rate(count, time.perf_counter() - first)
        finally:
            consumer.close()
        if seen != count:
            raise SystemExit(f"consumed {seen:,} of {count:,} messages")
        return figures


def _emptied(producer: Any) -> None:
    left = producer.flush(WAIT_S)
    if left:
        raise SystemExit(f"{left:,} messages were not answered in {WAIT_S:.0f} s")


def _flush(producer: Any, topic: str, body: bytes, count: int) -> None:
    send = producer.produce
    for _ in range(count):
        send(topic, body)
    _emptied(producer)


def _records(producer: Any, topic: str, body: bytes, count: int) -> None:
    send = producer.produce
    for record in itertools.islice(itertools.cycle(records(len(body))), count):
        send(topic, record)
    _emptied(producer)


def _callbacks(producer: Any, topic: str, body: bytes, count: int) -> None:
    send, acknowledged = producer.produce, 0

    def told(error: object, _: object) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1

    for number in range(count):
        send(topic, body, on_delivery=told)
        if not number % ANSWERS_EVERY:
            producer.poll(0)
    _emptied(producer)
    if acknowledged != count:
        raise SystemExit(f"{acknowledged:,} of {count:,} messages were acknowledged")


def _keyed(producer: Any, topic: str, body: bytes, count: int) -> None:
    send = producer.produce
    for number in range(count):
        send(topic, body, key=f"order-{number}", headers=[("tag", b"A")])
    _emptied(producer)


def _batch(producer: Any, topic: str, body: bytes, count: int) -> None:
    for _ in range(0, count, BATCH):
        _produce_batch(producer, topic, body)
        _emptied(producer)


def _batches(producer: Any, topic: str, body: bytes, count: int) -> None:
    for _ in range(0, count, BATCH):
        _produce_batch(producer, topic, body)
    _emptied(producer)


_partitions = itertools.cycle(range(QUEUES))


def _produce_batch(producer: Any, topic: str, body: bytes) -> None:
    taken = producer.produce_batch(
        topic, [{"value": body} for _ in range(BATCH)], partition=next(_partitions)
    )
    if taken != BATCH:
        raise SystemExit(f"a batch of {BATCH} messages: {taken} were taken")


def _body_of(message: Any) -> object:
    if message.error():
        raise SystemExit(str(message.error()))
    return message.value()


def _all_of(message: Any) -> object:
    return _body_of(message), message.key(), message.headers()


SENDS: dict[str, Callable[[Any, str, bytes, int], None]] = {
    "flush": _flush,
    "results": _callbacks,  # its client has no other way to look at an acknowledgement
    "callbacks": _callbacks,
    "keyed": _keyed,
    "batch": _batch,
    "batches": _batches,
    "records": _records,
}
CONSUMES: dict[str, tuple[int, Callable[[Any], object]]] = {
    "many": (BATCH, _body_of),
    "one": (1, _body_of),
    "touch": (1, _all_of),
    "poll1": (1, _body_of),
    "poll1000": (BATCH, _body_of),
}


def main() -> None:
    options = arguments()
    end_in_order()
    pip_package(CACHE, CLIENT)
    cache = Path(os.environ.get(VARIABLE) or CACHE / "kafka-4.2.0")
    with contextlib.ExitStack() as stack:
        node = KafkaNode(cache, options.home / "kafka")
        stack.push(node)
        node.__enter__()
        kafka = Kafka(node, sync_flush=options.sync_flush)
        version = SERVER[0].rpartition(":")[2]
        works = {
            "send": kafka.send,
            "single": kafka.single,
            "consume": kafka.consume,
            "paced": kafka.paced,
        }
        serve(f"Kafka {version}, {CLIENT.replace('==', ' ')}", works)


if __name__ == "__main__":
    main()
