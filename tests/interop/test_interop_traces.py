"""Traces: our writer against RocketMQ's reader, and RocketMQ's mqadmin over what our clients
wrote."""

from __future__ import annotations

import random
import time
from base64 import b64decode, b64encode
from collections import Counter
from pathlib import Path

import pytest
from cluster_rig import make_topic, running
from interop_nodes import Nodes, java
from saturnmq import Admin, Message, Producer, PushConsumer, ReceivedMessage
from saturnmq.protocol.trace import TraceKind, TraceRecord, encode_record, keys_of

pytestmark = pytest.mark.quick

LETTERS = "abc%_-0 \t\n'\"\\{}äß中\N{CRAB}"


def some_text(chance: random.Random, least: int = 0) -> str:
    return "".join(chance.choices(LETTERS, k=chance.randrange(least, 8)))


def some_keys(chance: random.Random) -> list[str]:
    return chance.choices(("k", "key-2", "ключ"), k=chance.randrange(4))


def some_record(chance: random.Random) -> TraceRecord:
    def number(bits: int) -> int:
        return chance.getrandbits(chance.randrange(bits))

    kind = chance.choice(list(TraceKind))
    return TraceRecord(
        kind,
        some_text(chance, 1),
        group="G" + some_text(chance),
        timestamp_ms=number(63),
        region=some_text(chance),
        topic=some_text(chance),
        tags=some_text(chance),
        keys=" ".join(() if kind is TraceKind.RECALL else some_keys(chance)),
        store_host=some_text(chance),
        body_length=number(31),
        cost_ms=number(31),
        message_type=chance.randrange(5),
        offset_message_id=some_text(chance),
        success=chance.random() < 0.5,
        request_id=some_text(chance),
        retries=number(31),
        context_code=chance.randrange(5),
        transaction_id=some_text(chance),
        transaction_state=chance.choice(("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW")),
        from_check=chance.random() < 0.5,
    )


def test_rocketmq_reads_every_record_as_it_was_written(jars: Path, figures: Counter[str]) -> None:
    chance = random.Random(18)
    bodies = [[some_record(chance) for _ in range(chance.randrange(1, 5))] for _ in range(500)]
    written = ["".join(encode_record(record) for record in body) for body in bodies]
    lines = "\n".join(b64encode(text.encode()).decode() for text in written)
    printed = java(jars, "Traces.java", text=lines)[-1]
    assert len(printed.split()) == len(bodies)
    for body, text, answer in zip(bodies, written, printed.split(), strict=True):
        again, keys = b64decode(answer).decode().rsplit("\x03", 1)
        assert again == text
        # RocketMQ's reader takes an absent key for the text "null".
        expected = {key for record in body for key in keys_of(record)}
        assert set(keys.split("\x04")) - {"null"} == expected
        figures["records of traces"] += len(body)


@pytest.mark.timeout(180)
def test_mqadmin_shows_what_our_clients_traced(
    nodes: Nodes, tmp_path: Path, figures: Counter[str]
) -> None:
    with running(tmp_path / "cluster") as cluster:
        nameserver = cluster.nameservers[0]
        topic = make_topic(cluster, "traced", 4)
        got: list[ReceivedMessage] = []
        consumer = PushConsumer(
            "our-readers", nameserver, listener=got.extend, trace=True, from_beginning=True
        )
        consumer.subscribe(topic)
        with Producer("our-senders", nameserver, trace=True) as producer, consumer:
            ids = [producer.send(Message(topic, b"x")).message_id for _ in range(20)]
            deadline = time.monotonic() + 60
            while len(got) < len(ids):
                assert time.monotonic() < deadline, f"{len(got)} of {len(ids)} came"
        with Admin(nameserver) as admin:
            while any(len(admin.message_trace(each)) < 3 for each in ids):
                assert time.monotonic() < deadline, "not all is traced"
        printed = nodes.mqadmin("queryMsgTraceById", "-n", nameserver, "-i", ids[7])
        rows = [line.split() for line in printed.splitlines()]
        assert [row[:3] for row in rows if row[:1] == ["Pub"]] == [
            ["Pub", "our-senders", "127.0.0.1"]
        ], printed
        assert [row[:2] for row in rows if row[:1] == ["Sub"]] == [["Sub", "our-readers"]], printed
        assert printed.count("success") == 2, printed
        figures["traces that mqadmin shows"] += 1
