"""Traces of our clients at a broker: who writes which records, who reads them, and what happens
when they cannot be sent."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest
from example_rig import printed_by
from saturnmq import (
    Admin,
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
    aio,
    deliver_after,
)
from saturnmq.cli.main import app
from saturnmq.client import tracing
from saturnmq.protocol.topics import TRACE_TOPIC
from saturnmq.protocol.trace import TraceKind, TraceRecord, encode_record
from saturnmq.runtime.errors import IllegalOperation, TopicNotExist
from served_rig import served
from traces_rig import traces_of
from typer.testing import CliRunner

PUB, BEFORE, AFTER, END, RECALL = TraceKind


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FLUSH_S", 0.02)


def kinds(records: list[TraceRecord]) -> list[TraceKind]:
    return [record.kind for record in records]


def test_a_message_is_traced_from_its_send_to_its_consumption(tmp_path: Path) -> None:
    got: list[ReceivedMessage] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        got.extend(messages)
        return ConsumeResult.RETRY if len(got) == 1 else ConsumeResult.SUCCESS

    with served(tmp_path) as address, Admin(address) as admin:
        consumer = PushConsumer("readers", address, listener=listener, trace=True)
        consumer.subscribe("orders")
        with Producer("senders", address, trace=True) as producer, consumer:
            sent = producer.send(Message("orders", b"hello", tag="new", keys="k1 k2"))
            records = traces_of(admin, sent.message_id, lambda found: len(found) >= 3, TRACE_TOPIC)
            assert kinds(records) == [PUB, BEFORE, AFTER]
            pub, before, after = records
            assert (pub.group, pub.topic, pub.tags, pub.keys) == (
                *("senders", "orders", "new"),
                "k1 k2",
            )
            assert (pub.body_length, pub.success, pub.store_host) == (5, True, sent_to(admin))
            assert pub.offset_message_id == sent.offset_message_id
            assert (before.group, before.keys, before.retries) == ("readers", "k1 k2", 0)
            assert (after.success, after.context_code) == (False, 4)
            assert before.request_id == after.request_id
            assert all(record.client_host == "127.0.0.1" for record in records)
        result = CliRunner().invoke(
            app, ["message", "trace", sent.message_id, "--nameserver", address, "--json"]
        )
        shown = json.loads(result.stdout)["records"]
        assert [row["kind"] for row in shown] == ["Pub", "SubBefore", "SubAfter"]
        plain = CliRunner().invoke(
            app,
            ["message", "trace", sent.message_id, "--nameserver", address],
            env={"COLUMNS": "200"},
        )
        assert "senders" in plain.stdout
        assert "failed" in plain.stdout
        nothing = CliRunner().invoke(app, ["message", "trace", "00", "--nameserver", address])
        assert nothing.exit_code == 1


def test_a_time_that_no_calendar_has_is_shown_as_its_number(tmp_path: Path) -> None:
    """A record is what any client wrote."""
    record = TraceRecord(RECALL, timestamp_ms=1 << 62, topic="orders", message_id="ID")
    with served(tmp_path) as address, Producer("senders", address) as producer:
        producer.send(Message("traces", encode_record(record).encode(), keys="ID"))
        command = ["message", "trace", "ID", "--topic", "traces", "--nameserver", address]
        shown = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert f"{1 << 62} ms" in shown.stdout


def sent_to(admin: Admin) -> str:
    return admin.cluster()[0].address


def test_every_way_to_send_leaves_one_record_a_message(tmp_path: Path) -> None:
    with served(tmp_path) as address, Admin(address) as admin:
        with Producer("senders", address, trace="traces") as producer:
            ids = [producer.send(Message("t", b"x")).message_id]
            handles = [producer.send_async(Message("t", b"x")) for _ in range(50)]
            ids += [handle.result().message_id for handle in handles]
            batch = producer.send_batch([Message("t", b"x") for _ in range(3)])
            ids += [result.message_id for result in batch]
            together = producer.send_batch_async([Message("t", b"x") for _ in range(3)])
            ids += [handle.result().message_id for handle in together]
            late = producer.send(deliver_after(Message("t", b"x"), 3600))
            producer.recall(late)
            with pytest.raises(IllegalOperation):
                producer.recall(late)
        for message_id in ids:
            assert kinds(traces_of(admin, message_id, bool, "traces")) == [PUB]
        records = traces_of(admin, late.message_id, lambda found: len(found) >= 3, "traces")
        assert sorted(kinds(records), key=list(TraceKind).index) == [PUB, RECALL, RECALL]
        assert {record.success for record in records if record.kind is RECALL} == {True, False}
        assert [record.message_type for record in records if record.kind is PUB] == [3]
        with pytest.raises(TopicNotExist):
            admin.message_trace(ids[0])


def test_the_asynchronous_clients_trace_alike(tmp_path: Path) -> None:
    async def main(address: str) -> str:
        consumed = asyncio.Event()

        async def listener(messages: list[ReceivedMessage]) -> None:
            consumed.set()

        consumer = aio.PushConsumer(
            "readers", address, listener=listener, trace=True, from_beginning=True
        )
        consumer.subscribe("orders")
        async with aio.Producer("senders", address, trace=True) as producer, consumer:
            sent = await producer.send(Message("orders", b"x"))
            async with asyncio.timeout(20):
                await consumed.wait()
        return sent.message_id

    with served(tmp_path) as address, Admin(address) as admin:
        message_id = asyncio.run(main(address))
        records = traces_of(admin, message_id, lambda found: len(found) >= 3, TRACE_TOPIC)
        assert kinds(records) == [PUB, BEFORE, AFTER]
        assert records[-1].success


def test_a_listener_that_raises_and_one_for_single_messages_are_traced(tmp_path: Path) -> None:
    called = threading.Semaphore(0)

    def listener(message: ReceivedMessage) -> None:
        called.release()
        raise ValueError("no")

    with served(tmp_path) as address, Admin(address) as admin:
        consumer = PushConsumer("readers", address, listener_one=listener, trace=True)
        consumer.subscribe("orders")
        with Producer("senders", address) as producer, consumer:
            sent = producer.send(Message("orders", b"x"))
            assert called.acquire(timeout=20)
        records = traces_of(admin, sent.message_id, lambda found: len(found) >= 2, TRACE_TOPIC)
        assert kinds(records)[:2] == [BEFORE, AFTER]
        assert (records[1].success, records[1].context_code) == (False, 2)


def test_a_poll_leaves_both_records_of_each_message_that_it_gives(tmp_path: Path) -> None:
    with served(tmp_path) as address, Admin(address) as admin:
        admin.create_topic("orders", queues=1)
        with Producer("senders", address) as producer:
            ids = [producer.send(Message("orders", b"x", keys=key)).message_id for key in "abc"]
        with PullConsumer("readers", address, from_beginning=True, trace="traces") as consumer:
            consumer.assign([each.queue for each in admin.describe_topic("orders")])
            polled = [*consumer.poll(20.0, max_messages=2)]
            assert [message.message_id for message in polled] == ids[:2]
            for message, key in zip(polled, "ab", strict=True):
                found = traces_of(
                    admin, message.message_id, lambda found: len(found) >= 2, "traces"
                )
                assert kinds(found) == [BEFORE, AFTER]
                before, after = found
                assert before.request_id == after.request_id
                assert (after.group, after.keys, after.client_host) == ("readers", key, "127.0.0.1")
                assert (after.success, after.context_code, after.cost_ms) == (True, 0, 0)
        # Pulled ahead, and never polled.
        assert admin.message_trace(ids[2], "traces") == []


def test_a_received_message_is_traced_until_it_is_acknowledged_or_given_up(tmp_path: Path) -> None:
    with served(tmp_path) as address, Admin(address) as admin:
        admin.create_topic("orders", queues=1)
        with Producer("senders", address) as producer:
            ids = [producer.send(Message("orders", b"x", keys=key)).message_id for key in "abcd"]
        consumer = SimpleConsumer("readers", address, from_beginning=True, trace="traces")
        consumer.subscribe("orders")
        with consumer:
            done, given_up, slow, left = consumer.receive(4, wait_s=20)
            assert [each.message_id for each in (done, given_up, slow, left)] == ids
            consumer.ack(done)
            consumer.dead_letter(given_up)
            consumer.change_invisible_duration(slow, 60)
            consumer.ack(slow)
        ends = {ids[0]: (True, 0), ids[1]: (False, 4), ids[2]: (True, 0)}
        for message_id, end in ends.items():
            records = traces_of(admin, message_id, lambda found: len(found) >= 2, "traces")
            assert kinds(records) == [BEFORE, AFTER]
            before, after = records
            assert (after.success, after.context_code) == end
            assert before.request_id == after.request_id
            assert (after.group, after.client_host) == ("readers", "127.0.0.1")
            assert 0 <= after.cost_ms < 20_000
        assert kinds(traces_of(admin, ids[3], bool, "traces")) == [BEFORE]


def test_the_end_of_a_transaction_is_traced(tmp_path: Path) -> None:
    def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    with served(tmp_path) as address, Admin(address) as admin:
        with (
            TransactionProducer("payers", address, check=check, trace=True) as producer,
            producer.transaction(Message("payments", b"1", keys="order")) as transaction,
        ):
            pass
        message_id = transaction.transaction_id
        records = traces_of(admin, message_id, lambda found: len(found) >= 2, TRACE_TOPIC)
        assert kinds(records) == [PUB, END]
        pub, end = records
        assert pub.message_type == 1
        assert (end.transaction_state, end.transaction_id) == ("COMMIT_MESSAGE", message_id)
        assert (end.keys, end.from_check, end.message_type) == ("order", False, 2)


def test_traces_that_nobody_takes_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_S", 3600.0)
    monkeypatch.setattr(tracing, "WAITING_MOST", 10)
    with (
        served(tmp_path) as address,
        Admin(address) as admin,
        Producer("senders", address, trace=True) as producer,
    ):
        ids = [producer.send(Message("t", b"x")).message_id for _ in range(25)]
        tracer = producer.engine.tracer  # type: ignore[attr-defined]
        assert tracer.dropped == 15
        producer.close()
        traced = [bool(traces_of(admin, each, bool, TRACE_TOPIC)) for each in ids[:10]]
        assert all(traced)
        assert admin.message_trace(ids[10]) == []


def test_a_broker_that_takes_no_traces_holds_up_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_S", 3600.0)

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    with served(tmp_path) as address, Producer("senders", address, trace=True) as producer:
        producer.send(Message("t", b"x"))
        tracer = producer.engine.tracer  # type: ignore[attr-defined]
        monkeypatch.setattr(tracer, "_send", hang)
        began = time.monotonic()
        producer.close(0.0)
        assert 0.9 < time.monotonic() - began < 30
        assert tracer.dropped == 1


def test_a_client_without_traces_has_nothing_in_its_way(tmp_path: Path) -> None:
    with served(tmp_path) as address, Producer("senders", address) as producer:
        producer.send(Message("t", b"x"))
        assert producer._offer == producer.engine.accumulator.offer
        assert producer._express is not None
        consumer = PushConsumer("readers", address, listener=list.clear)  # type: ignore[arg-type]
        try:
            assert consumer._target._caller._many == list.clear
        finally:
            consumer.close()


def test_a_broker_makes_the_topic_of_traces_if_it_is_told_to(tmp_path: Path) -> None:
    settings = {"trace_topic_enable": True, "trace_topic": "my-traces"}
    with served(tmp_path, **settings) as address, Admin(address) as admin:
        queues = admin.describe_topic("my-traces")
        assert len(queues) == 1


def test_the_example_shows_a_message_from_its_send_to_its_consumption(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        lines = printed_by("trace", address)
    assert lines == [
        "consumed from orders",
        "Pub senders ok",
        "SubBefore readers ok",
        "SubAfter readers ok",
    ]


def test_a_message_in_the_topic_of_traces_that_holds_none_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(tmp_path) as address, Admin(address) as admin:
        with Producer("senders", address, trace=True) as producer:
            sent = producer.send(Message("t", b"x"))
            for body in (b"Pub\x01x\x01y\x02", b"\xff\xfe", b"\x02\x02\x01"):
                producer.send(Message(TRACE_TOPIC, body, keys=sent.message_id))
        assert kinds(traces_of(admin, sent.message_id, bool, TRACE_TOPIC)) == [PUB]
        assert "holds no traces" in caplog.text
