"""A broker that answers a batch as RocketMQ's do, with the id of each message in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from saturnmq import Admin, Message, Producer
from saturnmq.client.producer import sending
from served_rig import served

COUNT = 8500


def test_a_large_batch_is_stored_once_and_each_message_has_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SIZES", "nothing")  # so the broker lists all ids
    messages = [Message("T", b"%d" % number) for number in range(COUNT)]
    with (
        served(tmp_path, store_options={"commitlog_segment_bytes": 8 << 20}) as address,
        Producer("G", nameservers=address, delivery_timeout=5) as producer,
        Admin(address) as admin,
    ):
        queue = producer.send(Message("T", b"first")).queue
        results = producer.send_batch(messages, queue=queue)
        last = admin.message_by_offset_id(results[-1].offset_message_id)
        assert (last.body, last.queue_offset) == (messages[-1].body, COUNT)
        assert producer.send(Message("T", b"next"), queue=queue).queue_offset == COUNT + 1
