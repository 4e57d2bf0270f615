"""Messages for later through our client, against a broker: both faces, recalls, and the example."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from pathlib import Path

import pytest
from example_rig import printed_by
from saturnmq import (
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    aio,
    deliver_after,
    deliver_at,
    recall_handle,
)
from saturnmq.runtime.errors import IllegalOperation, InvalidParameter, MessageIllegal
from served_rig import served


def message(body: bytes = b"x") -> Message:
    return Message("later", body)


def test_a_message_comes_at_its_time_and_a_recalled_one_never(tmp_path: Path) -> None:
    with served(tmp_path) as address, Producer("senders", address) as producer:
        begun = time.time()
        gone = producer.send(deliver_after(message(b"gone"), 1.5))
        kept = producer.send(deliver_at(message(b"kept"), begun + 1.0))
        also = producer.send(deliver_after(message(b"also gone"), 1.5))
        assert producer.recall(gone) == gone.message_id
        assert producer.recall(recall_handle(also)) == also.message_id
        consumer = PullConsumer("readers", address, from_beginning=True)
        consumer.subscribe("later")
        with consumer:
            seen: list[ReceivedMessage] = []
            while not seen:
                seen = consumer.poll(1.0)
            assert time.time() >= begun + 1.0
            with pytest.raises(IllegalOperation, match="was delivered"):
                producer.recall(kept)
            with pytest.raises(IllegalOperation, match="was recalled"):
                producer.recall(gone)
            assert [each.body for each in seen + consumer.poll(2.0)] == [b"kept"]


def test_the_asynchronous_producer_does_the_same(tmp_path: Path) -> None:
    with served(tmp_path) as address:

        async def main() -> None:
            async with aio.Producer("senders", address) as producer:
                sent = await producer.send(deliver_after(message(), 3600))
                assert recall_handle(sent)
                assert await producer.recall(sent) == sent.message_id
                with pytest.raises(IllegalOperation, match="invalid handle"):
                    await producer.recall("no handle")

        asyncio.run(main())


def test_a_message_for_now_has_no_handle_and_one_too_far_ahead_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as address, Producer("senders", address) as producer:
        for now in (message(), deliver_after(message(), 0), deliver_at(message(), 0)):
            sent = producer.send(now)
            assert recall_handle(sent) == ""
            with pytest.raises(IllegalOperation):
                producer.recall(sent)
        with pytest.raises(MessageIllegal, match="timerMaxDelaySec"):
            producer.send(deliver_after(message(), 4 * 86_400))
        with pytest.raises(MessageIllegal):
            producer.send_batch([deliver_after(message(), 1), message()])


@pytest.mark.parametrize(
    "other", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"]
)
def test_a_message_that_is_sent_on_waits_for_its_new_time_only(other: str) -> None:
    first, second = (Message("later", b"x", properties={other: "3"}) for _ in range(2))
    assert deliver_after(first, 5).properties == {"TIMER_DELAY_MS": "5000"}
    assert deliver_at(second, 1_900_000_000).properties == {"TIMER_DELIVER_MS": "1900000000000"}


def test_a_time_becomes_the_property_of_rocketmq() -> None:
    moment = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    later = message()
    assert deliver_after(later, 0.0005) is later
    assert later.properties == {"TIMER_DELAY_MS": "1"}
    assert deliver_at(later, moment).properties == {"TIMER_DELIVER_MS": "1893456000000"}
    assert deliver_at(later, 1893456000.5).properties == {"TIMER_DELIVER_MS": "1893456000500"}
    assert deliver_after(later, 2).properties == {"TIMER_DELAY_MS": "2000"}


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_delay_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidParameter, match="seconds"):
        deliver_after(message(), seconds)


@pytest.mark.parametrize("moment", [dt.datetime(2030, 1, 1), float("nan"), float("inf")])
def test_a_moment_that_is_none_is_refused(moment: dt.datetime | float) -> None:
    with pytest.raises(InvalidParameter, match=r"time zone|no moment"):
        deliver_at(message(), moment)


def test_the_example_runs(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        lines = printed_by("timed", address)
    assert [line.split(" after ")[0] for line in lines] == ["order 2", "order 3"]
