"""Push consumers of a group that was told to pop: broker, client and Admin in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.listening import Verdict
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.results import ConsumeResult, Retry
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import ConfigError, ListenerStuck, SaturnError
from world_rig import Remote, World, run

AGAIN = ConsumeResult.RETRY


class Reader:
    """A push consumer that notes what it gets, and when."""

    def __init__(
        self,
        world: World,
        nameserver: str,
        verdict: Callable[[ReceivedMessage], Verdict] = lambda _: None,
        name: str = "reader",
        takes_s: float = 0.0,
        in_thread: bool = False,
        **options: Any,
    ) -> None:
        self._world, self._verdict, self._takes_s = world, verdict, takes_s
        self.got: list[bytes] = []
        self.at: list[float] = []
        self.errors: list[SaturnError] = []
        self.consumer = PushConsumer(
            "G",
            [nameserver],
            runtime=world.node(name),
            listener_one=self._take_in_thread if in_thread else self._take,
            from_beginning=True,
            on_error=self.errors.append,
            **options,
        )
        self.consumer.subscribe("T")

    def _take_in_thread(self, message: ReceivedMessage) -> Verdict:
        self.got.append(message.body)
        self.at.append(self._world.loop.time())
        return self._verdict(message)

    async def _take(self, message: ReceivedMessage) -> Verdict:
        verdict = self._take_in_thread(message)
        await asyncio.sleep(self._takes_s)
        return verdict


class Cluster:
    """A broker with the topic T, whose group G pops it or pulls it."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def start(self, *, pops: bool = True) -> Cluster:
        self.nameserver = await self.world.nameserver()
        self.broker: Broker = await self.world.broker(nameservers=(self.nameserver,))
        self.client: Remote = await self.world.connect(self.broker.address)
        await self.send("first")
        self.admin = await Admin([self.nameserver], runtime=self.world.node("admin")).start()
        await self.admin.create_group("G")
        if pops:
            await self.admin.set_request_mode("G", "T", "POP")
        return self

    async def send(self, *texts: str) -> None:
        for number, text in enumerate(texts):
            assert (await self.client.send(text.encode(), queue=number % 4)).code == 0

    @property
    def lanes(self) -> set[str]:
        """The topics that the group pops now."""
        return {place.topic for place in self.broker.messaging.popping.leases.lanes}

    @property
    def dead(self) -> int:
        return self.broker.store.max_offset("%DLQ%G", 0)

    async def reading(self, **options: Any) -> Reader:
        reader = Reader(self.world, self.nameserver, **options)
        await reader.consumer.start()
        return reader

    async def committed(self) -> int:
        """The messages of T that the group has consumed."""
        return sum(row.committed for row in await self.admin.group_lag("G", "T"))


async def clustered(world: World, *, pops: bool = True) -> Cluster:
    return await Cluster(world).start(pops=pops)


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_consumer_of_a_group_that_pops_pops_and_the_broker_keeps_its_place(
    in_thread: bool,
) -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        reader = await cluster.reading(in_thread=in_thread)
        await world.until(lambda: len(reader.got) == 1)
        await cluster.send(*(f"{n}" for n in range(100)))
        await world.until(lambda: len(reader.got) == 101)
        assert cluster.lanes == {"T"}
        assert {queue.topic for queue in reader.consumer.held_queues()} <= {"%RETRY%G"}
        await asyncio.sleep(1)
        assert await cluster.committed() == 101
        assert len(set(reader.got)) == 101
        info = reader.consumer.running_info()
        (popped,) = info["mqPopTable"]
        assert (popped.topic, popped.queue_id) == ("T", -1)
        assert info["mqPopTable"][popped]["waitAckCount"] == 0
        await reader.consumer.close()
        assert reader.errors == []

    run(body)


def test_a_consumer_follows_at_once_when_its_group_is_told_to_pop_or_to_pull() -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world, pops=False)
        reader = await cluster.reading()
        await world.until(lambda: len(reader.got) == 1)
        assert len([q for q in reader.consumer.held_queues() if q.topic == "T"]) == 4
        total = 1
        for mode in ("POP", "PULL", "POP"):
            begun = world.loop.time()
            await cluster.admin.set_request_mode("G", "T", mode)
            pulled = 0 if mode == "POP" else 4
            await world.until(
                lambda pulled=pulled: (
                    len([q for q in reader.consumer.held_queues() if q.topic == "T"]) == pulled
                )
            )
            assert world.loop.time() - begun < 2, "it did not wait for its next rebalance"
            await cluster.send(*(f"{mode} {n}" for n in range(40)))
            total += 40
            await world.until(lambda total=total: len(reader.got) >= total)
        await asyncio.sleep(5)
        assert len(reader.got) == total, "nothing comes twice after an orderly change"
        await reader.consumer.close()

    run(body)


def test_all_members_share_what_is_popped() -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        readers = [await cluster.reading(name=f"reader {n}", takes_s=0.5) for n in range(3)]
        await world.until(lambda: any(reader.got for reader in readers))
        await cluster.send(*(f"{n}" for n in range(400)))
        await world.until(lambda: sum(len(reader.got) for reader in readers) == 401, 600)
        assert all(len(reader.got) > 20 for reader in readers)
        found = Counter(body for reader in readers for body in reader.got)
        assert max(found.values()) == 1
        for reader in readers:
            await reader.consumer.close()

    run(body)


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("verdict", "waits"),
    [
        (AGAIN, [10, 30, 60]),
        (Retry(delay_level=1), [1, 1, 1]),
    ],
)
def test_a_failed_message_comes_again_after_its_wait(
    verdict: ConsumeResult | Retry, waits: list[int], in_thread: bool
) -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        reader = await cluster.reading(verdict=lambda _: verdict, in_thread=in_thread)
        await world.until(lambda: len(reader.got) == len(waits) + 1, sum(waits) + 60, every=0.1)
        found = [after - before for before, after in zip(reader.at, reader.at[1:], strict=False)]
        for wait, took in zip(waits, found, strict=True):
            assert wait <= took < wait * 1.002 + 1
        await reader.consumer.close()

    run(body)


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("verdict", "options", "deliveries"),
    [
        (Retry(delay_level=-1), {}, 1),
        (Retry(delay_level=1), {"max_reconsume": 1}, 2),
        (Retry(delay_level=1), {"max_reconsume": 0}, 1),
        (Retry(delay_level=1), {}, 4),
    ],
)
def test_a_message_that_is_given_up_is_a_dead_letter_and_comes_no_more(
    verdict: Retry, options: dict[str, int], deliveries: int, in_thread: bool
) -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        await cluster.admin.alter_group("G", max_retries=3)
        reader = await cluster.reading(verdict=lambda _: verdict, in_thread=in_thread, **options)
        await world.until(lambda: cluster.dead == 1, 120, every=0.1)
        await asyncio.sleep(120)
        assert (len(reader.got), cluster.dead) == (deliveries, 1)
        assert await cluster.committed() == 1
        await reader.consumer.close()

    run(body)


def test_a_message_whose_listener_takes_too_long_comes_again_and_the_listener_is_reported() -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        slow = await cluster.reading(takes_s=1000, pop_invisible_s=10)
        await world.until(lambda: len(slow.got) == 2, 30)
        assert 9.9 < slow.at[1] - slow.at[0] < 12
        await world.until(lambda: bool(slow.errors), 30)
        assert isinstance(slow.errors[0], ListenerStuck)
        assert "pop_invisible_s (10)" in str(slow.errors[0])
        closing = asyncio.ensure_future(slow.consumer.close())
        await asyncio.sleep(25)
        assert closing.done(), "it waits no longer than ten seconds"
        quick = await cluster.reading(name="quick")
        await world.until(lambda: len(quick.got) == 1, 30)
        await quick.consumer.close()

    run(body)


def test_a_level_above_the_highest_waits_as_long_as_the_highest() -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        reader = await cluster.reading(verdict=lambda _: Retry(delay_level=99))
        table = cluster.broker.messaging.popping.leases

        def times() -> set[int]:
            return {
                each.invisible_ms for lane in table.lanes.values() for each in lane.open.values()
            }

        await world.until(lambda: times() == {7_200_000})
        await reader.consumer.close()

    run(body)


def test_no_more_is_popped_ahead_than_a_slow_listener_consumes_in_time() -> None:
    """Each message that waits in vain has used up an attempt: after 17 it would be a dead letter
    that no listener ever saw."""

    async def body(world: World) -> None:
        cluster = await clustered(world)
        await cluster.send(*(f"{n}" for n in range(59)))
        slow = await cluster.reading(takes_s=4, consume_threads=1, pop_invisible_s=5)
        await world.until(lambda: len(slow.got) == 60, 600)
        assert len(set(slow.got)) == 60, "each came once"
        assert cluster.dead == 0
        await slow.consumer.close()

    run(body)


@pytest.mark.parametrize("option", ["ordered", "broadcasting"])
def test_an_ordered_and_a_broadcasting_consumer_pull_whatever_the_group_was_told(
    option: str, tmp_path: Any
) -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        more = {"offsets_path": str(tmp_path / "offsets.json")} if option == "broadcasting" else {}
        reader = await cluster.reading(**{option: True}, **more)
        await world.until(lambda: len(reader.got) == 1)
        assert cluster.lanes == set()
        await reader.consumer.close()

    run(body)


def test_a_topic_that_the_consumer_leaves_is_popped_no_more() -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        reader = await cluster.reading()
        await world.until(lambda: len(reader.got) == 1)
        reader.consumer.unsubscribe("T")
        await world.until(lambda: not reader.consumer.running_info()["mqPopTable"])
        await asyncio.sleep(0.1)
        assert len(cluster.broker.messaging.pops.held) == 0
        await cluster.send("later")
        await asyncio.sleep(30)
        assert reader.got == [b"first"]
        leases = cluster.broker.messaging.popping.leases
        assert leases.count == 0, "nothing was popped for nobody"
        await reader.consumer.close()

    run(body)


def test_a_suspended_consumer_pops_no_more_until_it_is_resumed() -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        reader = await cluster.reading(pop_invisible_s=5)
        await world.until(lambda: len(reader.got) == 1)
        reader.consumer.suspend()
        await asyncio.sleep(30)  # a pop that was under way has ended
        await cluster.send(*(f"{n}" for n in range(40)))
        await asyncio.sleep(30)
        assert reader.got == [b"first"]
        assert not any(lane.open for lane in cluster.broker.messaging.popping.leases.lanes.values())
        reader.consumer.resume()
        await world.until(lambda: len(reader.got) == 41, 5)
        assert len(set(reader.got)) == 41
        await reader.consumer.close()

    run(body)


def test_a_share_gives_each_member_its_own_queues() -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world, pops=False)
        readers = [await cluster.reading(name=f"reader {n}") for n in range(4)]
        await world.until(lambda: any(reader.got for reader in readers))
        await cluster.admin.set_request_mode("G", "T", "POP", share=1)

        def shares() -> list[set[int]]:
            tables = [reader.consumer.running_info()["mqPopTable"] for reader in readers]
            return [{queue.queue_id for queue in table} for table in tables]

        await world.until(lambda: all(len(each) == 2 for each in shares()))
        assert sorted(queue for each in shares() for queue in each) == [0, 0, 1, 1, 2, 2, 3, 3]
        await cluster.send(*"abcd")
        await world.until(lambda: sum(len(reader.got) for reader in readers) == 5)
        for reader in readers:
            await reader.consumer.close()

    run(body)


@pytest.mark.parametrize("seconds", [0, 4.9, 301, float("nan")])
def test_an_invisible_time_out_of_rocketmqs_bounds_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="give 5 to 300"):
        PushConsumer("G", listener_one=print, pop_invisible_s=seconds)


def test_only_a_client_that_asks_is_told_which_topics_are_popped() -> None:
    async def body(world: World) -> None:
        cluster = await clustered(world)
        reader = await cluster.reading()
        await world.until(lambda: len(reader.got) == 1)
        mine = {"consumerIdList": [reader.consumer.core.client_id]}
        for ext, told in (({}, {}), ({"saturnPops": "true"}, {"saturnPops": ["T"]})):
            reply = await cluster.client.ask(38, {"consumerGroup": "G", **ext})
            assert json.loads(bytes(reply.body)) == {**mine, **told}
        await reader.consumer.close()

    run(body)
