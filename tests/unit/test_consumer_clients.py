"""Push and pull consumers against a broker pair in memory, on the simulator's virtual clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from consumer_world import MASTER, Q0, Q1, SLAVE, World, WorldCore, consumer, puller
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import ClientClosed, ConfigError, InvalidParameter
from saturnmq.runtime.native import NativeRuntime


@pytest.mark.parametrize("at_slave", [set(), {3, 900}])
def test_a_damaged_message_is_read_elsewhere_or_told_and_passed_over(
    at_slave: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(queues=1)
    got: list[Any] = []
    for n in range(2000):
        world.send(0, b"%d" % n)
    world.damaged = {MASTER: {3, 900, 901}, SLAVE: at_slave}

    def listener(messages: Sequence[ReceivedMessage]) -> None:
        got.extend(int(bytes(message.body)) for message in messages)

    async def main() -> None:
        async with consumer(world, listener=listener):
            await world.until(lambda: len(got) == 2000 - len(at_slave), 3000.0)

    world.run(main)
    assert sorted(got) == [n for n in range(2000) if n not in at_slave]
    told = [record for record in caplog.records if "is damaged on every broker" in record.message]
    assert len(told) == len(at_slave)
    assert set(world.offsets.values()) == {2000}


def test_a_backlog_is_consumed_once_and_committed_at_shutdown() -> None:
    world = World()
    got: list[Any] = []
    for n in range(5000):
        world.send(n % 2, b"%d" % n)

    def listener(messages: Sequence[ReceivedMessage]) -> None:
        got.extend(int(bytes(message.body)) for message in messages)

    async def main() -> None:
        async with consumer(world, listener=listener):
            await world.until(lambda: len(got) == 5000)
        assert sorted(got) == list(range(5000))
        assert world.offsets == {Q0: 2500, Q1: 2500}
        assert world.pulls[0]["maxMsgNums"] == "32"
        assert world.pulls[-1]["saturnLimits"] == "true"
        assert world.pulls[-1]["maxMsgNums"] == "2048"

    world.run(main)


def test_offsets_are_committed_every_five_seconds() -> None:
    world = World(queues=1)
    got: list[Any] = []
    world.send(0, b"x")

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: (Q0, 1) in world.commits, 6.0)

    world.run(main)


@pytest.mark.parametrize("how", ["answer", "exception", "async"])
def test_failed_messages_go_back_to_the_broker(how: str) -> None:
    world = World(queues=1)
    for n in range(100):
        world.send(0, b"%d" % n)

    def verdict(message: ReceivedMessage) -> ConsumeResult | None:
        if int(bytes(message.body)) % 10:
            return None
        if how == "exception":
            raise ValueError("no tens")
        return ConsumeResult.RETRY

    async def verdict_async(message: ReceivedMessage) -> ConsumeResult | None:
        return verdict(message)

    async def main() -> None:
        one: Any = verdict_async if how == "async" else verdict
        world.refuse_backs = 3
        async with consumer(world, listener_one=one):
            # The three refused ones (no retry topic to fall back on) are tried again in place.
            await world.until(lambda: len(world.backs) == 10)
        assert world.offsets[Q0] == 100
        assert {back["delayLevel"] for back in world.backs} == {"0"}

    world.run(main)


def test_tags_are_filtered_exactly() -> None:
    world = World(queues=1)
    got: list[Any] = []
    for n in range(20):
        world.send(0, b"%d" % n, tag="AB"[n % 2])

    async def main() -> None:
        made = consumer(world, listener_one=got.append)
        made.subscribe("T", "A || C")
        async with made:
            await world.until(lambda: len(got) == 10)
        assert {message.tag for message in got} == {"A"}
        assert world.offsets[Q0] == 20

    world.run(main)


def test_a_slave_is_read_while_the_master_is_gone_and_the_master_again_after() -> None:
    world = World(queues=1)
    got: list[Any] = []
    world.send(0, b"0")

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: len(got) == 1)
            world.down.add(MASTER)
            world.send(0, b"1")
            await world.until(lambda: len(got) == 2, 5.0)
            assert world.pulled_from[-1] == SLAVE
            world.down.clear()
            world.send(0, b"2")
            await world.until(lambda: world.pulled_from[-1] == MASTER, 30.0)
            assert len(got) == 3

    world.run(main)


def test_the_slave_is_read_at_once_when_the_master_is_gone() -> None:
    world = World(queues=1)
    got: list[Any] = []
    world.send(0, b"0")

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: len(got) == 1)
            world.down.add(MASTER)
            world.send(0, b"1")
            await world.until(lambda: len(got) == 2, 0.2)

    world.run(main)


@pytest.mark.parametrize("kind", ["push", "ordered", "pull"])
def test_pulls_and_commits_follow_a_promotion_though_the_old_master_hangs(kind: str) -> None:
    world, got = World(queues=1), []
    world.send(0, b"0")

    async def read(puller: PullConsumer) -> None:
        while True:
            got.extend(await puller.poll(0.1))

    async def main() -> None:
        made: Any
        if kind == "pull":
            core: Any = WorldCore(world)
            made = PullConsumer("G", core=core, from_beginning=True)
            made.subscribe("T")
        else:
            made = consumer(world, listener_one=got.append, ordered=kind == "ordered")
        async with made:
            reading = asyncio.ensure_future(read(made)) if kind == "pull" else None
            await world.until(lambda: len(got) == 1)
            await world.until(lambda: (Q0, 1) in world.commits)
            assert set(world.committed_at) == {MASTER}
            world.hung.add(MASTER)
            world.promoted = True
            world.send(0, b"1")
            await made.core.route("T", refresh=True)
            await world.until(lambda: len(got) == 2, 1.0)
            assert world.pulled_from[-1] == SLAVE
            # What the old master was told may have been lost with it.
            await world.until(lambda: SLAVE in world.committed_at, 1.0)
            if reading is not None:
                reading.cancel()

    world.run(main)
    assert [message.queue_offset for message in got] == [0, 1]


def test_a_broker_that_says_again_at_once_for_ever_is_not_asked_without_end() -> None:
    world = World(queues=1)
    got: list[Any] = []
    world.send(0, b"0")
    world.stuck = True

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.runtime.sleep(10)
            assert 5 <= len(world.pulls) <= 15
            world.stuck = False
            await world.until(lambda: len(got) == 1, 2.0)

    world.run(main)


def test_a_suggested_slave_is_read_next() -> None:
    world = World(queues=1)
    got: list[Any] = []
    world.suggest = 1
    world.send(0, b"0")

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: SLAVE in world.pulled_from)

    world.run(main)


def test_offsets_outside_the_queue_are_corrected() -> None:
    world = World(queues=1)
    got: list[Any] = []
    for n in range(10):
        world.send(0, b"%d" % n)
    world.first_kept = 6

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: len(got) == 4)
        assert sorted(message.queue_offset for message in got) == [6, 7, 8, 9]

    world.run(main)


@pytest.mark.parametrize("term", ["", "7000"])
def test_the_first_pull_says_of_which_epoch_the_groups_offset_is(term: str) -> None:
    """Or messages that got the offsets of lost ones before it would be passed over."""
    world = World(queues=1)
    world.offsets[Q0] = 0
    world.term = term

    async def main() -> None:
        async with consumer(world, listener_one=lambda _: None):
            await world.until(lambda: any(pull["topic"] == world.topic for pull in world.pulls))
        first = next(pull for pull in world.pulls if pull["topic"] == world.topic)
        assert first.get("saturnTerm", "") == term

    world.run(main)


def test_a_pull_consumer_says_of_which_epoch_it_has_read() -> None:
    world = World(queues=1)
    world.send(0, b"0")
    world.term = "7000"

    async def main() -> None:
        async with puller(world) as made:
            made.assign([Q0])
            assert len(await made.poll(5.0)) == 1
            await world.until(lambda: len(world.pulls) == 2)
        assert [pull.get("saturnTerm") for pull in world.pulls] == [None, "7000"]

    world.run(main)


def test_a_slave_alone_is_read_from_its_first_message_though_it_corrects_nobody() -> None:
    world = World(queues=1)
    got: list[Any] = []
    for n in range(10):
        world.send(0, b"%d" % n)
    world.masterless = True
    world.first_kept = 6

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: len(got) == 4)
        assert sorted(message.queue_offset for message in got) == [6, 7, 8, 9]
        assert set(world.pulled_from) == {SLAVE}

    world.run(main)


def test_a_slave_that_lags_is_asked_again_a_little_later() -> None:
    world = World(queues=1)
    got: list[Any] = []
    for n in range(3):
        world.send(0, b"%d" % n)

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: len(got) == 3)
            world.slave_lacks = 2
            world.down.add(MASTER)
            asked = len(world.pulled_from)
            await asyncio.sleep(10)
            assert 1 <= world.pulled_from[asked:].count(SLAVE) < 30
            world.slave_lacks = 0
            world.send(0, b"3")
            await world.until(lambda: len(got) == 4)

    world.run(main)


@pytest.mark.parametrize(("start", "expected"), [("last", 3), (1_000, 1), ("first", 0)])
def test_where_a_new_group_starts(start: str | int, expected: int) -> None:
    world = World(queues=1)
    got: list[Any] = []
    for n in range(3):
        world.send(0, b"%d" % n)

    async def main() -> None:
        made = consumer(world, listener_one=got.append, from_beginning=False, consume_from=start)
        async with made:
            await world.until(lambda: bool(world.pulls))
            world.send(0, b"late")
            await world.until(lambda: any(message.queue_offset == 3 for message in got))
        assert sorted(message.queue_offset for message in got) == list(range(expected, 4))

    world.run(main)


def test_queues_move_when_the_group_grows() -> None:
    world = World(queues=2)

    async def main() -> None:
        made = consumer(world, listener_one=lambda _: None)
        async with made:
            await world.until(lambda: len(made.held_queues()) == 2)
            world.members = ["me", "you"]
            made.on_ids_changed()
            await world.until(lambda: made.held_queues() == [Q0])

    world.run(main)


def test_ordered_messages_stay_in_order_through_failures() -> None:
    world, got, tries = World(queues=1), [], []
    for n in range(50):
        world.send(0, b"%d" % n)

    def listener(message: ReceivedMessage) -> ConsumeResult | None:
        n = int(bytes(message.body))
        tries.append(n)
        if n % 10 == 0 and tries.count(n) < 3:
            return ConsumeResult.RETRY
        got.append(n)
        return None

    async def main() -> None:
        async with consumer(world, listener_one=listener, ordered=True):
            await world.until(lambda: len(got) == 50)
        assert got == list(range(50))
        assert tries.count(10) == 3
        assert world.backs == []
        assert Q0 in world.unlocked
        assert world.offsets[Q0] == 50

    world.run(main)


@pytest.mark.parametrize("bad", [0, 1])
def test_an_ordered_message_that_always_fails_ends_in_the_dlq_after_its_retries(bad: int) -> None:
    world, got, failures = World(queues=1), [], []
    for n in range(3):
        world.send(0, b"%d" % n)

    def listener(message: ReceivedMessage) -> None:
        if message.queue_offset == bad:
            failures.append(message.queue_offset)
            raise ValueError("never")
        got.append(message.queue_offset)

    async def main() -> None:
        made = consumer(world, listener_one=listener, ordered=True, max_reconsume=2)
        async with made:
            await world.until(lambda: got == [n for n in range(3) if n != bad])
        assert failures == [bad] * 3, "once, and two retries"
        assert [back["delayLevel"] for back in world.backs] == ["-1"]

    world.run(main)


def test_nothing_is_pulled_without_the_lock() -> None:
    world = World(queues=1)
    got: list[Any] = []
    world.send(0, b"0")
    world.locks_granted = False

    async def main() -> None:
        async with consumer(world, listener_one=got.append, ordered=True):
            await world.runtime.sleep(10)
            assert world.pulls == []
            world.locks_granted = True
            await world.until(lambda: len(got) == 1, 5.0)

    world.run(main)


def test_a_lock_that_the_new_master_gave_to_another_is_given_up_at_once() -> None:
    world = World(queues=1)
    got: list[Any] = []
    world.send(0, b"0")

    async def main() -> None:
        async with consumer(world, listener_one=got.append, ordered=True) as one:
            await world.until(lambda: len(got) == 1)
            world.locks_granted = False
            world.promoted = True
            await one.core.route("T", refresh=True)
            await world.runtime.sleep(0.1)
            world.send(0, b"1")
            await world.runtime.sleep(10)  # the grant of the old master would hold that long
            assert len(got) == 1
            world.locks_granted = True
            await world.until(lambda: len(got) == 2, 5.0)

    world.run(main)


def test_a_lock_lost_with_its_master_is_taken_again_and_nothing_comes_twice() -> None:
    world = World(queues=1)
    got: list[Any] = []
    for n in range(3):
        world.send(0, b"%d" % n)

    async def main() -> None:
        async with consumer(world, listener_one=got.append, ordered=True) as one:
            await world.until(lambda: len(got) == 3)
            world.down.add(MASTER)
            world.masterless = True
            await one.core.route("T", refresh=True)
            await world.runtime.sleep(60)  # longer than any lock lives
            world.offsets.clear()  # the master was killed before it saved them
            world.down.clear()
            world.masterless = False
            world.send(0, b"3")
            await world.until(lambda: len(got) > 3, 5.0)
            await world.runtime.sleep(5)
        assert [message.queue_offset for message in got] == [0, 1, 2, 3]

    world.run(main)


def test_broadcasting_keeps_offsets_in_a_file() -> None:
    world = World(queues=1)
    got: list[Any] = []
    for n in range(3):
        world.send(0, b"%d" % n)
    files: dict[str, bytes] = {}

    class Door:
        def read(self, path: str) -> bytes | None:
            return files.get(path)

        def replace(self, path: str, data: bytes) -> None:
            files[path] = data

        def lock(self, path: str) -> str | None:
            return None

        def unlock(self, path: str) -> None: ...

    async def main() -> None:
        options: dict[str, Any] = {
            "broadcasting": True,
            "files": Door(),
            "offsets_path": "o.json",
        }
        async with consumer(world, listener_one=got.append, **options):
            await world.until(lambda: len(got) == 3)
        assert world.commits == []
        assert b'"queueId":0' in files["o.json"].replace(b" ", b"")
        world.send(0, b"3")
        async with consumer(world, listener_one=got.append, **options):
            await world.until(lambda: len(got) == 4)
        assert sorted(message.queue_offset for message in got) == [0, 1, 2, 3]

    world.run(main)


def test_a_slow_listener_holds_back_the_pulls() -> None:
    world, got = World(queues=1), []
    for n in range(20_000):
        world.send(0, b"%d" % n)

    async def slow(message: ReceivedMessage) -> None:
        await world.runtime.sleep(1.0)
        got.append(message)

    async def main() -> None:
        made = consumer(world, listener_one=slow, max_cached_messages=1000)
        async with made:
            await world.runtime.sleep(30.0)
            assert int(world.pulls[-1]["queueOffset"]) <= 1000 + 2048 + len(got) + 32
            assert len(got) >= 20 * 25  # twenty at a time

    world.run(main)


def test_a_fast_listener_that_blocks_now_and_then_gets_more_threads() -> None:
    """Real threads: a message in each of four queues waits for those in the three others."""
    world, together, got = World(queues=4), threading.Barrier(4), []
    for n in range(1200):
        world.send(n % 4, b"%d" % n)

    def listener(message: ReceivedMessage) -> None:
        if message.queue_offset == 200:
            together.wait(30)
        got.append(message.message_id)

    async def main() -> None:
        runtime: Any = NativeRuntime()
        world.loop.close()
        world.loop, world.runtime = asyncio.get_running_loop(), runtime  # type: ignore[assignment]
        async with consumer(world, listener_one=listener):
            await world.until(lambda: len(got) == 1200)
        assert len(set(got)) == 1200
        assert not together.broken

    asyncio.run(main())


def test_what_a_listener_does_not_finish_in_time_goes_back() -> None:
    world, got = World(queues=1), []
    for n in range(500):
        world.send(0, b"%d" % n)

    async def listener(message: ReceivedMessage) -> ConsumeResult:
        if message.queue_offset == 300:
            await asyncio.Event().wait()
        got.append(message.physical_offset)
        return ConsumeResult.RETRY if message.queue_offset == 290 else ConsumeResult.SUCCESS

    async def main() -> None:
        made = consumer(world, listener_one=listener, consume_timeout_s=60.0)
        async with made:
            world.refuse_backs = 4
            await world.until(lambda: world.offsets.get(Q0) == 500, 90.0)
            assert world.loop.time() > 60.0
        back = [int(ext["offset"]) for ext in world.backs]
        assert {ext["delayLevel"] for ext in world.backs} == {"3"}
        assert len(back) == 2, "the one that hung, and nothing that the listener was not given"
        assert len(set(got) | set(back)) == 500
        assert len(set(got) & set(back)) == 1  # the one that failed before another one hung

    world.run(main)


def test_messages_of_the_retry_topic_show_their_own_topic() -> None:
    world = World(queues=1, topic="%RETRY%G")
    got: list[Any] = []
    world.send(0, b"again", RETRY_TOPIC="T")

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: len(got) == 1)
        assert got[0].topic == "T"

    world.run(main)


def test_bad_settings_are_named() -> None:
    world = World()
    with pytest.raises(ConfigError, match="choose one"):
        consumer(world, listener_one=print, ordered=True, broadcasting=True)
    with pytest.raises(ConfigError, match="'first', 'last'"):
        consumer(world, from_beginning=False, consume_from="middle")
    with pytest.raises(ConfigError, match="at most"):
        consumer(world, from_beginning=False, consume_from=1 << 63)
    with pytest.raises(ConfigError, match="either listener"):
        consumer(world, listener=print, listener_one=print)

    async def main() -> None:
        with pytest.raises(ConfigError, match="no listener"):
            await consumer(world).start()

    world.run(main)


def test_subscribed_polls_bring_everything_and_commit() -> None:
    world = World()
    got: set[Any] = set()
    for n in range(300):
        world.send(n % 2, b"%d" % n)

    async def main() -> None:
        made = puller(world)
        made.subscribe("T")
        async with made:
            while len(got) < 300:
                got.update(message.body for message in await made.poll(30.0))
            assert await made.lag() == 0
            assert await made.poll(1.0) == []
        assert world.offsets == {Q0: 150, Q1: 150}

    world.run(main)


def test_assigned_queues_seek_commit_and_lag() -> None:
    world = World()
    for n in range(10):
        world.send(0, b"%d" % n)

    async def main() -> None:
        made = puller(world, auto_commit=False)
        made.assign([Q0])
        async with made:
            first = await made.poll(5.0, max_messages=4)
            assert [message.queue_offset for message in first] == [0, 1, 2, 3]
            assert await made.committed(Q0) is None
            await made.commit()
            assert await made.committed(Q0) == 4
            assert await made.lag(Q0) == 6
            made.seek(Q0, 8)
            assert [message.queue_offset for message in await made.poll(5.0)] == [8, 9]
            with pytest.raises(InvalidParameter, match="not assigned"):
                made.seek(Q1, 0)
            with pytest.raises(InvalidParameter, match="is not from 0 to"):
                made.seek(Q0, -1)
        with pytest.raises(ClientClosed):
            await made.poll()

    world.run(main)


def test_one_queue_is_committed_before_the_others() -> None:
    """RocketMQ's brokers may lose what is committed beside a group's first commit of a topic."""
    world = World(queues=5)
    queues = sorted(world.frames)

    async def main() -> None:
        made = puller(world, auto_commit=False)
        made.assign(queues)
        async with made:
            await made.commit(dict.fromkeys(queues, 0))
            first, *others = world.committed_when  # a request takes a millisecond
            assert len(others) == 4
            assert max(others) - min(others) < 0.001 <= min(others) - first

    world.run(main)


def test_queues_may_be_assigned_while_it_runs() -> None:
    world = World()
    world.send(0, b"early")

    async def main() -> None:
        async with puller(world, auto_commit=False) as made:
            made.assign([Q0])  # nobody has asked for the topic's route before
            assert [message.body for message in await made.poll(5.0)] == [b"early"]
            assert await made.lag() == 0
            made.assign([Q1])
            assert await made.poll(60.0) == []  # no rebalance gives it the topic's other queue
            assert made.assignment() == [Q1]
            assert await made.lag() == 0

    world.run(main)


def test_a_queue_that_was_never_locked_or_consumed_has_no_such_times() -> None:
    world = World(queues=2)

    async def main() -> None:
        made = consumer(world, listener_one=lambda message: None)
        async with made:
            await world.until(lambda: len(made.held_queues()) == 2)
            for told in made.running_info()["mqTable"].values():
                assert (told["locked"], told["droped"]) == (False, False)
                assert told["lastLockTimestamp"] == told["lastConsumeTimestamp"] == 0

    world.run(main)
