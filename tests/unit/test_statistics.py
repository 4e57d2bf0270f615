"""What mqadmin is told of a broker's traffic: exact figures, in virtual time."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from saturnmq.broker.tables.statistics import Statistics, Totals
from saturnmq.store.derived.derived import Arrival
from world_rig import Remote, World, run

EVENING = int(datetime(2026, 3, 1, 23, 59).timestamp() * 1000)


TOPICS, GROUPS = {"T"}, {"G"}


def entries(topic: str, count: int) -> list[Arrival]:
    return [Arrival(topic, 0, count, bytes(20 * count), count)]


def test_rates_are_those_of_the_last_ten_sixty_and_six_hundred_seconds() -> None:
    counted = Statistics(0.0, EVENING)
    for second in range(1, 1001):
        if second > 700:
            counted.arrived(entries("T", 10 if second > 990 else 1))
            counted.pulled("G", "T", 4 if second > 990 else 0)
        counted.sample(float(second), EVENING, TOPICS, GROUPS)
    assert counted.totals == Totals(390, 10, 290, 40)
    assert counted.rates("put", 1000.0) == "10.00 2.50 0.65"
    assert counted.rates("found", 1000.0) == "1.00 0.17 0.02"
    assert counted.rates("missed", 1000.0) == "0.00 0.83 0.48"
    assert counted.rates("asked", 1000.0) == "1.00 1.00 0.50"
    assert counted.rates("transferred", 1000.0) == "4.00 0.67 0.07"


def test_a_rate_of_a_young_broker_is_over_the_time_that_it_has() -> None:
    counted = Statistics(5.0, EVENING)
    assert counted.rates("put", 5.0) == "0.00 0.00 0.00"
    counted.arrived(entries("T", 40))
    assert counted.rates("put", 25.0) == "2.00 2.00 2.00"


def test_totals_of_days_move_at_midnight() -> None:
    counted = Statistics(0.0, EVENING)
    days = [EVENING + int(timedelta(days=n).total_seconds() * 1000) for n in range(3)]
    for number, now_ms in enumerate(days):
        counted.sample(float(number), now_ms, TOPICS, GROUPS)
        counted.arrived(entries("T", 10))
        counted.pulled("G", "T", 3)
    assert tuple(counted.day) == (10, 20, 3, 6)


def test_a_topic_and_its_readers_have_rates_of_a_minute_and_go_with_it() -> None:
    counted = Statistics(0.0, EVENING)
    topics = {"T", "U"}
    for second in range(1, 121):
        counted.arrived(entries("T", 2))
        counted.pulled("G", "T", 1)
        counted.pulled("G", "U", 1)
        counted.sample(float(second), EVENING, topics, GROUPS)
    assert counted.topic_rate("T", 120.0) == 2.0
    assert counted.group_rate("G", ["T", "U"], 120.0) == 2.0
    assert counted.group_rate("H", ["T"], 120.0) == 0.0
    assert len(counted) == 3
    topics.clear()
    for second in range(121, 202):
        counted.sample(float(second), EVENING, topics, GROUPS)
    assert counted.topic_rate("T", 201.0) == 0.0
    assert len(counted) == 0


def test_what_a_group_got_goes_with_it() -> None:
    """Groups come and go, while the topic that they read stays."""
    counted = Statistics(0.0, EVENING)
    for second in range(1, 1001):
        group = f"G{second}"
        counted.pulled(group, "T", 1)
        counted.sample(float(second), EVENING, TOPICS, {group})
    assert len(counted) <= 10
    assert counted.spans("GROUP_GET_NUMS", "T@G1", 1000.0) is None


async def table(client: Remote) -> dict[str, str]:
    found: dict[str, str] = json.loads(bytes((await client.ask(28)).body))["table"]
    return found


async def tps(client: Remote, code: int, name: str, **ext: Any) -> float:
    text = bytes((await client.ask(code, ext)).body).decode()
    return float(text.partition(f'"{name}":')[2].split(",")[0].rstrip("}"))


def test_a_broker_tells_what_went_through_it() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        began = broker.store.watermarks.appended
        for n in range(30):
            assert (await client.send(b"%d" % n)).code == 0
        assert (await client.pull(0)).code == 0
        assert (await client.pull(30)).code == 19
        await client.commit(30)
        found = await table(client)
        assert found["msgPutTotalTodayNow"] == found["putMessageTimesTotal"] == "30"
        assert found["msgGetTotalTodayNow"] == "30"
        size = broker.store.watermarks.appended - began
        assert found["putMessageSizeTotal"] == str(size)
        assert float(found["putMessageAverageSize"]) == pytest.approx(size / 30, abs=0.1)
        await world.until(lambda: world.loop.time() >= 20, every=0.5)
        put, *_ = (await table(client))["putTps"].split()
        assert float(put) == 0.0, "nothing in the last ten seconds"
        for name, messages in (("putTps", 30), ("getTransferredTps", 30), ("getTotalTps", 2)):
            minute = float((await table(client))[name].split()[1])
            assert minute == pytest.approx(messages / world.loop.time(), abs=0.05)
        expected = pytest.approx(30 / world.loop.time(), abs=0.05)
        assert await tps(client, 202, "topicPutTps", topic="T") == expected
        assert await tps(client, 208, "consumeTps", consumerGroup="G") == expected
        await broker.close()

    run(body)


def counted_for(hours: float, put: int) -> Statistics:
    """`put` messages of T and pulls of one by G each second, for so long; sampled every second."""
    counted = Statistics(0.0, EVENING)
    for second in range(1, int(hours * 3600) + 1):
        counted.arrived(entries("T", put))
        counted.pulled("G", "T", 1)
        counted.sample(float(second), EVENING, TOPICS, GROUPS)
    return counted


def totals_of(counted: Statistics, figure: str, key: str, now: float) -> list[int]:
    spans = counted.spans(figure, key, now)
    assert spans is not None
    return [span.total for span in spans]


def test_an_hour_and_a_day_forget_what_is_older() -> None:
    counted = counted_for(27, 2)
    now = 27 * 3600.0
    for figure, key, rate in (
        ("TOPIC_PUT_NUMS", "T", 2),
        ("GROUP_GET_NUMS", "T@G", 1),
        ("BROKER_PUT_NUMS", "any", 2),
        ("BROKER_GET_NUMS", "any", 1),
    ):
        minute, hour, day = totals_of(counted, figure, key, now)
        assert 60 * rate <= minute <= 70 * rate
        assert 3600 * rate <= hour <= 4200 * rate
        assert 23 * 3600 * rate <= day <= 24 * 3600 * rate
        spans = counted.spans(figure, key, now)
        assert spans is not None
        assert [round(span.rate, 6) for span in spans] == [rate] * 3


def test_what_stands_still_falls_out_of_the_hour_and_later_out_of_the_day() -> None:
    counted = counted_for(0.5, 2)
    assert totals_of(counted, "TOPIC_PUT_NUMS", "T", 1800.0) == [120, 3600, 3600]
    for second in range(1801, 26 * 3600):
        counted.sample(float(second), EVENING, TOPICS, GROUPS)
        if second == 3 * 3600:
            assert totals_of(counted, "TOPIC_PUT_NUMS", "T", float(second)) == [0, 0, 3600]
    assert totals_of(counted, "TOPIC_PUT_NUMS", "T", 26 * 3600.0) == [0, 0, 0]


def test_a_topic_that_is_made_anew_counts_from_its_beginning() -> None:
    counted = counted_for(0.5, 2)
    for second in range(1801, 1900):
        counted.sample(float(second), EVENING, set(), GROUPS)
    assert counted.spans("TOPIC_PUT_NUMS", "T", 1900.0) is None
    counted.arrived(entries("T", 5))
    minute, hour, day = totals_of(counted, "TOPIC_PUT_NUMS", "T", 1900.0)
    assert (minute, hour - 5, day - 5) == (5, 3600, 3600)
