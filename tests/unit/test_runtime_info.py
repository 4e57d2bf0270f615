"""The figures that a broker tells of timed messages, delays and acknowledgements. (Those of pops:
test_pop_shares.py, of transactions: test_transactions.py.)"""

from __future__ import annotations

import asyncio
import json

import pytest
from saturnmq.broker.commit.put_latency import PutLatency
from saturnmq.protocol.codes import RequestCode
from world_rig import Remote, World, run


async def figures(client: Remote) -> dict[str, str]:
    reply = await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    found: dict[str, str] = json.loads(bytes(reply.body))["table"]
    return found


def test_timed_messages_are_counted_while_they_wait_and_as_they_leave() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for number in range(6):
            wait = 60 if number else 3_600
            assert (await client.send(b"later", TIMER_DELAY_SEC=wait)).code == 0
        await world.until(lambda: len(broker.messaging.timers.pending) == 6)
        found = await figures(client)
        assert (found["timedWaiting"], found["timerCongestNum"]) == ("6", "6")
        assert (found["timerOffsetBehind"], found["timerReadBehind"]) == ("0", "0")
        assert float(found["timerEnqueueTps"]) > 0
        assert (found["timerDequeueTps"], found["timedLatestMs"]) == ("0.00", "0")
        await world.until(lambda: broker.messaging.timers.delivered == 5, 120)
        await asyncio.sleep(2)
        found = await figures(client)
        assert found["timedWaiting"] == "1"
        assert float(found["timerDequeueTps"]) > 0
        assert 0 <= int(found["timedLatestMs"]) <= 500
        await asyncio.sleep(180)
        found = await figures(client)
        assert (found["timerEnqueueTps"], found["timerDequeueTps"]) == ("0.00", "0.00")
        assert found["timedLatestMs"] == "0", "nothing was delivered in the last two minutes"

    run(body)


def test_a_broker_that_was_away_tells_how_late_its_deliveries_are() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        assert (await client.send(b"later", TIMER_DELAY_SEC=10)).code == 0
        await broker.close()
        await asyncio.sleep(30)
        broker = await world.broker()
        client = await world.connect(broker.address)
        await world.until(lambda: broker.messaging.timers.delivered == 1)
        assert 19_000 < int((await figures(client))["timedLatestMs"]) < 22_000

    run(body)


def test_a_slave_delivers_nothing_and_tells_of_no_lateness() -> None:
    async def body(world: World) -> None:
        slave = await world.broker(broker_id=1, role="SLAVE")
        found = await figures(await world.connect(slave.address))
        assert "timedWaiting" in found
        assert not found.keys() & {"timerReadBehind", "timedLatestMs"}

    run(body)


def test_each_delay_level_in_use_tells_how_far_it_is() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for level in (1, 1, 5):
            assert (await client.send(b"delayed", DELAY=level)).code == 0
        found = await figures(client)
        levels = {name: value for name, value in found.items() if "scheduleMessageOffset" in name}
        assert levels == {"scheduleMessageOffset_1": "0,2", "scheduleMessageOffset_5": "0,1"}
        await asyncio.sleep(3)
        assert (await figures(client))["scheduleMessageOffset_1"] == "2,2"

    run(body)


def test_a_figure_that_this_broker_does_not_have_is_left_out() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        found = await figures(client)
        assert not {name for name in found if name.startswith("EndTransaction")}
        assert not {name for name in found if name.startswith("putLatency")}
        assert (await client.send(b"x")).code == 0
        found = await figures(client)
        assert (found["putLatency99"], found["putLatency999"]) == ("0.00", "0.00")

    run(body)


def test_a_send_that_waits_for_the_disk_shows_in_the_latency_of_puts() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(flush_disk_type="SYNC_FLUSH")
        client = await world.connect(broker.address)
        begun = world.loop.time()
        assert (await client.send(b"x")).code == 0
        took_ms = (world.loop.time() - begun) * 1000
        assert 0 < float((await figures(client))["putLatency99"]) <= 2 * took_ms

    run(body)


@pytest.mark.parametrize(
    ("waits", "part", "least_ms", "most_ms"),
    [
        ([], 0.99, None, None),
        ([0.004] * 100, 0.99, 2, 4.1),
        ([0.0001] * 99 + [1.0], 0.99, 0.06, 0.14),
        ([0.0001] * 98 + [1.0] * 2, 0.99, 500, 1100),
        ([0.0], 0.99, 0, 0.003),
        ([1e9], 0.99, 1e8, 1e10),
    ],
)
def test_a_percentile_is_exact_to_a_power_of_two(
    waits: list[float], part: float, least_ms: float | None, most_ms: float | None
) -> None:
    latency = PutLatency(0.0)
    for seconds in waits:
        latency.waited(seconds)
    found = latency.percentile_ms(part)
    if least_ms is None or most_ms is None:
        assert found is None
    else:
        assert found is not None
        assert least_ms <= found <= most_ms


def test_a_percentile_covers_the_present_minute_and_the_one_before() -> None:
    latency = PutLatency(0.0)
    latency.waited(5.0)
    latency.turn(59.0)
    latency.turn(60.0)
    latency.waited(0.001)
    assert latency.percentile_ms(1.0) > 4000
    latency.turn(121.0)
    assert latency.percentile_ms(1.0) < 2
    latency.turn(500.0)
    assert latency.percentile_ms(1.0) is None
