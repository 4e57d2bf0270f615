"""Timed messages on simulated machines: when they come under steps of clocks, restarts, power cuts
and promotions, and that each comes once."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest
from machines_rig import Machine, World, follow, group, promote, run
from saturnmq.broker.timer.service import SAVE_S
from saturnmq.protocol.codes import RequestCode
from saturnmq.runtime.errors import InvalidParameter, MessageIllegal
from saturnmq.store.message_store import PendingMessage
from timed_rig import HOUR_MS, after, booted, comes, later, wall

DAY_S = 86_400

# -- on one machine --------------------------------------------------------------------------------


def test_a_message_comes_when_its_time_has_come() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        now = world.loop.time()
        await after(machine, b"seconds", 30)
        await later(machine, b"milliseconds", TIMER_DELAY_MS=10_500)
        await later(machine, b"moment", TIMER_DELIVER_MS=wall(machine) + 20_250)
        await later(machine, b"past", TIMER_DELIVER_MS=wall(machine) - 1)
        assert await machine.bodies() == [b"past"]
        await comes(machine, b"milliseconds", now + 10.5)
        await comes(machine, b"moment", now + 20.25)
        await comes(machine, b"seconds", now + 30)
        assert len(await machine.bodies()) == 4

    run(body)


def test_a_delivered_message_is_as_one_of_rocketmqs() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        at = wall(machine) + 5_250
        await later(machine, b"moment", TIMER_DELIVER_MS=at, mine="kept")
        await asyncio.sleep(6)
        message = (await machine.read())[0]
        names = message.properties
        assert (message.topic, message.queue_id, message.born_timestamp) == ("T", 0, 1)
        assert (names["REAL_TOPIC"], names["REAL_QID"], names["mine"]) == ("T", "0", "kept")
        assert int(names["TIMER_OUT_MS"]) == (at - 1) // 1000 * 1000
        assert int(names["TIMER_ENQUEUE_MS"]) <= at <= int(names["TIMER_DEQUEUE_MS"])
        assert "SATURN_TIMER" not in names

    run(body)


@pytest.mark.parametrize("step_ms", [-20, -HOUR_MS, HOUR_MS])
def test_a_step_of_the_wall_clock_moves_no_delay(step_ms: int) -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        sent = world.loop.time()
        await after(machine, b"later", 600)
        machine.step(step_ms)
        await comes(machine, b"later", sent + 600)

    run(body)


def test_a_moment_is_judged_by_the_present_wall_clock() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        start = world.loop.time()
        await later(machine, b"held", TIMER_DELIVER_MS=wall(machine) + 60_000)
        await later(machine, b"released", TIMER_DELIVER_MS=wall(machine) + HOUR_MS)
        await asyncio.sleep(59)
        machine.step(-30_000)
        await comes(machine, b"held", start + 90)
        machine.step(HOUR_MS)
        await comes(machine, b"released", world.loop.time())
        machine.step(-HOUR_MS)
        await asyncio.sleep(100)
        assert await machine.bodies() == [b"held", b"released"]

    run(body)


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_at_which_nothing_waits_does_not_read_the_log_anew(clean: bool) -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        for number in range(3):
            await after(machine, b"%d" % number, 1 + number)
        await asyncio.sleep(SAVE_S + 40)
        assert machine.count() == 3
        await machine.restart(clean=clean)
        pending = machine.broker.messaging.timers.pending
        assert (pending.next_offset, pending.next_marker) == (3, 3)
        sent = world.loop.time()
        await after(machine, b"next", 5)
        await comes(machine, b"next", sent + 5)
        assert machine.count() == 4

    run(body)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("step_ms", [0, -HOUR_MS])
def test_a_restart_goes_on_where_it_was(clean: bool, step_ms: int) -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        sent = world.loop.time()
        await after(machine, b"first", 5)
        await after(machine, b"second", 600)
        await asyncio.sleep(50)
        machine.step(step_ms)
        await asyncio.sleep(50)
        for _ in range(3):
            await machine.restart(clean=clean)
            await asyncio.sleep(50)
        await comes(machine, b"second", sent + 600)
        assert await machine.bodies() == [b"first", b"second"]

    run(body)


@pytest.mark.parametrize("power", [True, False])
def test_no_crash_repeats_or_loses_a_message(power: bool) -> None:
    async def body(world: World) -> None:
        machine = await booted(world, flush_disk_type="SYNC_FLUSH")
        chance = random.Random(5)
        sent: dict[bytes, float] = {}
        for number in range(120):
            seconds = chance.randrange(1, 60)
            name = b"%d" % number
            sent[name] = world.loop.time() + seconds
            await after(machine, name, seconds)
            if number % 8 == 0:
                await (machine.lose_power() if power else machine.kill())
                await machine.boot()
            await asyncio.sleep(chance.random())
        await asyncio.sleep(70)
        store = machine.broker.store
        assert machine.count() == len(sent)
        result = store.get_message("T", 0, 0, 1000, 1 << 20, override_limits=True)
        assert result.count == len(sent)
        assert not machine.broker.messaging.timers.pending.topics

    run(body)


def test_many_messages_that_come_due_at_once_come_within_a_second() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        at = wall(machine) + 30_000
        due = world.loop.time() + 30
        for number in range(3000):
            await later(machine, b"%d" % number, TIMER_DELIVER_MS=at)
        await asyncio.sleep(due - 0.01 - world.loop.time())
        assert machine.count() == 0
        await asyncio.sleep(1)
        assert machine.count() == 3000

    run(body)


def test_a_message_that_waits_longer_than_its_log_is_kept_is_written_anew() -> None:
    async def body(world: World) -> None:
        options = {"file_reserved_hours": 1, "commitlog_segment_bytes": 128 << 10}
        machine = await booted(world, store_options=options)
        sent = world.loop.time()
        await after(machine, b"hours", 10_000)
        await later(machine, b"moment", TIMER_DELIVER_MS=wall(machine) + 10_000_000)
        for turn in range(16):
            await asyncio.sleep(600)
            for _ in range(3):
                await machine.send(bytes(100_000), topic="other")
            await machine.ask(RequestCode.DELETE_EXPIRED_COMMITLOG, {})
            if turn == 8:
                await machine.restart(clean=False)
        store = machine.broker.store
        assert store.watermarks.start > 0
        assert store.min_offset("rmq_sys_wheel_timer", 0) > 2
        assert machine.count() == 0
        await comes(machine, b"hours", sent + 10_000)
        assert (await machine.bodies()).count(b"moment") == 1
        assert int((await machine.read())[0].properties["TIMER_ROLL_TIMES"]) == 4

    run(body)


@pytest.mark.parametrize("days", [4, 40])
def test_a_broker_that_allows_forty_days_keeps_a_message_for_so_long(days: int) -> None:
    """It runs for a minute of each day, so that the test takes seconds. Each start may set the
    clock of delays back by 3 ms."""

    async def body(world: World) -> None:
        options = {"commitlog_segment_bytes": 128 << 10}  # and the log is kept for three days
        machine = await booted(world, timer_max_delay_s=40 * DAY_S, store_options=options)
        sent = world.loop.time()
        await later(machine, b"moment", TIMER_DELIVER_MS=wall(machine) + days * DAY_S * 1000)
        await after(machine, b"delay", days * DAY_S)
        for day in range(1, days + 1):
            await machine.stop()
            await asyncio.sleep(sent + day * DAY_S - 30 - world.loop.time())
            await machine.boot()
            for _ in range(2):
                await machine.send(bytes(100_000), topic="other")
            await machine.ask(RequestCode.DELETE_EXPIRED_COMMITLOG, {})
            if day < days:
                await asyncio.sleep(60)
        assert machine.broker.store.min_offset("rmq_sys_wheel_timer", 0) > 1
        assert machine.count() == 0
        await comes(machine, b"delay", sent + days * DAY_S)
        assert await machine.bodies() == [b"moment", b"delay"]

    run(body, limit_s=41.0 * DAY_S)


def test_a_wait_beyond_the_bound_is_refused_and_the_bound_is_at_most_forty_days() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)

        async def answer_of(**names: int) -> int:
            return (await machine.put(b"x", **names)).code

        for bound_s in (3 * DAY_S, 40 * DAY_S):
            # By the wall clock a moment is nearer when the broker looks at it.
            beyond_ms = wall(machine) + (bound_s + 1) * 1000
            assert await answer_of(TIMER_DELAY_SEC=bound_s) == 0
            assert await answer_of(TIMER_DELAY_SEC=bound_s + 1) == MessageIllegal.code
            assert await answer_of(TIMER_DELAY_MS=bound_s * 1000 + 1) == MessageIllegal.code
            assert await answer_of(TIMER_DELIVER_MS=beyond_ms) == MessageIllegal.code
            for seconds, code in ((40 * DAY_S + 1, InvalidParameter.code), (40 * DAY_S, 0)):
                change = b"timerMaxDelaySec=%d\n" % seconds
                reply = await machine.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, change)
                assert reply.code == code, reply.remark

    run(body)


def test_a_message_of_a_topic_that_was_deleted_meanwhile_does_not_come() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        await after(machine, b"gone", 10)
        await machine.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        await asyncio.sleep(11)
        await machine.send(b"new")
        assert await machine.bodies() == [b"new"]
        assert not machine.broker.messaging.timers.pending.topics

    run(body)


def as_rocketmq_left_it(machine: Machine, read: int, until_ms: int, *, keep: bool = False) -> None:
    """The file of a RocketMQ broker that had delivered so far; nothing of ours, unless `keep`."""
    machine.disk.power_on()
    for name in () if keep else machine.disk.list("/store/timer"):
        machine.disk.unlink(f"/store/timer/{name.name}")
    words = struct.pack(">7q", until_ms, 0, read, read, 0, 0, 0)
    machine.disk.write_file("/store/config/timercheck", words.ljust(4096, bytes(1)))


def test_in_a_directory_of_rocketmqs_what_waits_comes_and_what_came_does_not() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        await machine.send(b"makes a topic")
        start, names = wall(machine), {}
        for name, out in (("was delivered", 5), ("waits", 60), ("was not read", 6)):
            out_ms = (start // 1000 + out) * 1000
            names[name] = out_ms + 1000
            text = f"UNIQ_KEY\x01{name}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02TIMER_OUT_MS\x01"
            frame = PendingMessage(
                "rmq_sys_wheel_timer", 0, name.encode(), f"{text}{out_ms}\x02".encode()
            )
            machine.broker.store.put(frame)
        await machine.send(b"last")
        await machine.stop()
        as_rocketmq_left_it(machine, 2, (start // 1000 + 20) * 1000)
        await asyncio.sleep(20)
        await machine.boot()
        await asyncio.sleep(1)
        assert (await machine.bodies())[2:] == [b"was not read"]
        await machine.restart(clean=False)
        await asyncio.sleep((names["waits"] - wall(machine)) / 1000 - 0.1)
        assert len(await machine.bodies()) == 3
        await asyncio.sleep(1)
        assert (await machine.bodies())[2:] == [b"was not read", b"waits"]

    run(body)


def test_what_rocketmq_delivered_between_two_lives_of_ours_does_not_come_again() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        start = wall(machine)
        for seconds in (5, 35, 60):
            await after(machine, b"delay %d" % seconds, seconds)
            moment = start + 1000 * seconds
            await later(machine, b"moment %d" % seconds, TIMER_DELIVER_MS=moment)
        last: list[bytes] = []
        for life, delivered in enumerate((20, 40)):
            await machine.stop()
            as_rocketmq_left_it(machine, 6 + life, (start // 1000 + delivered) * 1000, keep=True)
            await asyncio.sleep(20)
            await machine.boot()
            await asyncio.sleep(1)
            assert await machine.bodies() == last
            await after(machine, b"own %d" % life, 5)
            await asyncio.sleep(6)
            last = await machine.bodies()
            assert last == [b"own %d" % each for each in range(life + 1)]
        await machine.restart(clean=False)
        await asyncio.sleep(60)
        assert sorted(await machine.bodies()) == sorted([*last, b"delay 60", b"moment 60"])

    run(body)


# -- promotions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("history", ["follows", "is restarted", "comes late"])
def test_a_promotion_to_a_node_with_another_clock_moves_no_delay(
    ahead_ms: int, history: str
) -> None:
    async def body(world: World) -> None:
        master, slave = await group(world, ahead_ms)
        if history != "comes late":
            await slave.boot()
            await follow(slave, master)
        await after(master, b"delivered before", 5)
        await asyncio.sleep(20)
        sent = world.loop.time()
        await after(master, b"first", 180)
        await asyncio.sleep(30)
        await after(master, b"second", 180)
        await asyncio.sleep(30)
        if history == "is restarted":
            await slave.restart(clean=False)
            await follow(slave, master)
        elif history == "comes late":
            await slave.boot()
            await follow(slave, master)
        await master.kill()
        await asyncio.sleep(10)
        await promote(slave)
        await asyncio.sleep(10)
        assert await slave.bodies() == [b"delivered before"]
        await comes(slave, b"first", sent + 180)
        await comes(slave, b"second", sent + 210)
        assert len(await slave.bodies()) == 3

    run(body)


@pytest.mark.parametrize("clean", [True, False])
def test_a_master_that_knows_what_waits_delivers_once_a_slave_confirms_its_log(clean: bool) -> None:
    """Its saved copy is level with its log, of which nothing is confirmed when its term begins. No
    other timed message comes."""

    async def body(world: World) -> None:
        await world.nameserver()
        nameservers = ("10.0.0.9:9876",)
        master = world.machine(
            "a", "10.0.0.2", role="SYNC_MASTER", in_sync_replicas=2, nameservers=nameservers
        )
        slave = world.machine(
            "b", "10.0.0.3", role="SLAVE", broker_id=1, slave_sync_ms=100, nameservers=nameservers
        )
        await master.boot()
        await slave.boot()
        await asyncio.sleep(5)
        sent = world.loop.time()
        await after(master, b"held", 120)
        await asyncio.sleep(SAVE_S + 10)
        await master.restart(clean=clean)
        await comes(master, b"held", sent + 120)

    run(body)


def test_a_promotion_hands_a_moment_to_the_clock_of_the_new_master() -> None:
    async def body(world: World) -> None:
        master, slave = await group(world, -60_000)
        await slave.boot()
        await follow(slave, master)
        sent = world.loop.time()
        await later(master, b"moment", TIMER_DELIVER_MS=wall(master) + 30_000)
        await follow(slave, master)
        await master.kill()
        await promote(slave)
        await comes(slave, b"moment", sent + 90)

    run(body)


def test_back_and_forth_between_two_masters_each_message_comes_once() -> None:
    async def body(world: World) -> None:
        master, slave = await group(world, 0)
        await slave.boot()
        await follow(slave, master)
        number = 0
        for turn in range(4):
            for _ in range(20):
                await after(master, b"%d" % number, 1 + number % 17)
                number += 1
            await asyncio.sleep(3)
            await follow(slave, master)
            await master.kill()
            await promote(slave, turn + 2)
            await asyncio.sleep(1)
            await master.boot()
            await follow(master, slave)
            master, slave = slave, master
        await asyncio.sleep(20)
        result = master.broker.store.get_message("T", 0, 0, 1000, 1 << 20, override_limits=True)
        assert result.count == number
        await follow(slave, master)
        assert slave.count() == number
        for node in (master, slave):
            assert len(node.broker.messaging.timers.pending) == 0

    run(body)


def test_a_repair_of_the_log_repeats_no_delivery_that_is_not_confirmed() -> None:
    async def body(world: World) -> None:
        master = world.machine("a", "10.0.0.2", role="SYNC_MASTER")
        slave = world.machine("b", "10.0.0.3", role="SLAVE", broker_id=1, slave_sync_ms=100)
        await master.boot()
        await slave.boot()
        await follow(slave, master)
        await after(master, b"later", 5)
        await slave.kill()
        await asyncio.sleep(8)
        marks = master.broker.store.watermarks
        assert marks.confirmed < marks.appended, "the copy is not confirmed"
        await master.broker.replication.rewriter.repair(lambda: None)
        await asyncio.sleep(5)
        await slave.boot()
        await follow(slave, master)
        await asyncio.sleep(5)
        assert await master.bodies() == [b"later"]
        await after(master, b"another", 5)
        await comes(master, b"another", world.loop.time() + 5)

    run(body)


def test_a_damaged_message_that_is_mended_before_its_time_comes() -> None:
    """Nobody had it whole when it was read, and the state without it was saved."""

    async def body(world: World) -> None:
        master = await booted(world)
        await after(master, b"another", 7200)
        await asyncio.sleep(1)
        sent = world.loop.time()
        await after(master, b"rotten", 3600)
        path = "/store/commitlog/" + "0" * 20
        place = master.disk.content(path).index(b"rotten")
        master.disk.flip(path, place, 0)
        await asyncio.sleep(SAVE_S + 10)
        assert master.broker.messaging.timers.pending.unreadable == 1
        master.disk.flip(path, place, 0)
        await master.broker.replication.rewriter.repair(lambda: None)
        await asyncio.sleep(1)
        await master.kill()
        await master.boot()
        await comes(master, b"rotten", sent + 3600)

    run(body)
