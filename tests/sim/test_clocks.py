"""Clocks that are wrong, step, or disagree, under brokers on simulated machines.

A delay lasts its time by the steady clock of whoever delivers (docs/clocks.md): never less, and at
most so much more as GRAIN_S says.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from machines_rig import SEGMENT, Machine, World, follow, group, promote, run
from saturnmq.broker.commit.retention import RetentionClock
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import TopicNotExist
from saturnmq.store.message_store import PendingMessage

HOUR_MS = 3_600_000
GRAIN_S = 1.5  # a second of arrivals that count as one, and the delivery's own pauses
LEVELS_S = {2: 5.0, 3: 10.0, 5: 60.0, 7: 180.0, 14: 600.0, 18: 7200.0}


async def comes_after(machine: Machine, body: bytes, since: float, level: int) -> None:
    """Not before the level's delay has passed since `since`, and then soon; once."""
    loop = machine.world.loop
    delay = LEVELS_S[level]
    await asyncio.sleep(since + delay - 0.05 - loop.time())
    assert body not in await machine.bodies(), "early"
    await asyncio.sleep(since + delay + GRAIN_S + delay / 50 - loop.time())
    assert (await machine.bodies()).count(body) == 1, "late, or twice"


# -- steps under a waiting message -----------------------------------------------------------------


@pytest.mark.parametrize("step_ms", [-20, -HOUR_MS, HOUR_MS])
def test_a_step_of_the_clock_does_not_move_a_waiting_message(step_ms: int) -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2")
        await machine.boot()
        await machine.send(b"later", 14)
        sent = world.loop.time()
        machine.step(step_ms)
        await comes_after(machine, b"later", sent, 14)

    run(body)


@pytest.mark.parametrize("restarts", [False, True])
def test_after_a_clock_that_was_ahead_a_delay_lasts_its_time(restarts: bool) -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2", HOUR_MS)
        await machine.boot()
        await machine.send(b"stamped an hour ahead")
        machine.step(-HOUR_MS)
        if restarts:
            await machine.restart(clean=True)
        for level in (3, 2):
            await machine.send(b"%d" % level, level)
            await comes_after(machine, b"%d" % level, world.loop.time(), level)

    run(body)


def test_a_waiting_message_that_nobody_told_of_waits_from_when_it_is_found() -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2")
        await machine.boot()
        await machine.send(b"makes a topic")
        store = machine.broker.store
        names = b"DELAY\x012\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        store.put(PendingMessage("SCHEDULE_TOPIC_XXXX", 1, b"untold", names))
        while store.reput():  # as a cut of the log does
            pass
        await machine.send(b"told", 3)
        found = world.loop.time()
        await comes_after(machine, b"untold", found, 2)
        await comes_after(machine, b"told", found, 3)

    run(body)


def test_what_comes_due_at_once_is_delivered_at_once() -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2")
        await machine.boot()
        for number in range(2000):
            await machine.send(b"%d" % number, 3)
        sent = world.loop.time()
        await asyncio.sleep(LEVELS_S[3] + GRAIN_S)
        assert machine.count() == 2000, world.loop.time() - sent

    run(body)


# -- restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("step_ms", [0, -HOUR_MS, HOUR_MS])
def test_a_restart_after_a_step_goes_on_waiting_where_it_was(clean: bool, step_ms: int) -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2", max(0, -step_ms))
        await machine.boot()
        await machine.send(b"first", 14)
        sent = world.loop.time()
        await asyncio.sleep(100)
        await machine.send(b"second", 14)
        await asyncio.sleep(50)
        machine.step(step_ms)
        await asyncio.sleep(50)
        for _ in range(3):
            await machine.restart(clean=clean)
            await asyncio.sleep(50)
        await comes_after(machine, b"first", sent, 14)
        await comes_after(machine, b"second", sent + 100, 14)

    run(body)


def without_waiting_table(machine: Machine) -> None:
    """As RocketMQ would have left the file."""
    path = "/store/config/delayOffset.json"
    machine.disk.power_on()
    document = json.loads(machine.disk.read_file(path))
    del document["waitingTable"]
    machine.disk.replace_file(path, json.dumps(document).encode())


@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS])
def test_in_a_directory_of_rocketmqs_store_time_counts_unless_it_lies_ahead(ahead_ms: int) -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2", ahead_ms)
        await machine.boot()
        await machine.send(b"later", 14)
        sent = world.loop.time()
        await asyncio.sleep(100)
        await machine.stop()
        without_waiting_table(machine)
        machine.step(-ahead_ms)
        await machine.boot()
        # With a stamp that lies ahead it waits its whole time from the start, no more, no less.
        await comes_after(machine, b"later", world.loop.time() if ahead_ms else sent, 14)

    run(body)


def test_in_the_directory_of_a_slave_of_rocketmqs_its_masters_stamps_count() -> None:
    async def body(world: World) -> None:
        master, slave = await group(world, 0)
        await slave.boot()
        await follow(slave, master)
        await master.send(b"later", 5)
        sent = world.loop.time()
        await asyncio.sleep(30)
        await slave.stop()
        await master.kill()
        without_waiting_table(slave)
        await slave.boot()
        await promote(slave)
        await comes_after(slave, b"later", sent, 5)

    run(body)


def test_a_clock_set_back_while_the_broker_was_down_costs_one_delay_at_most() -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2")
        await machine.boot()
        await machine.send(b"later", 5)
        await machine.stop()
        machine.step(-HOUR_MS)
        await machine.boot()
        await comes_after(machine, b"later", world.loop.time(), 5)

    run(body)


def test_what_was_known_of_a_lost_message_does_not_hasten_the_one_in_its_place() -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2")
        await machine.boot()
        await machine.send(b"kept", 5)
        sent = world.loop.time()
        await asyncio.sleep(10)
        await machine.stop()
        machine.disk.power_on()
        path = "/store/config/delayOffset.json"
        document = json.loads(machine.disk.read_file(path))
        ((end, came),) = document["waitingTable"]["5"]
        document["waitingTable"]["5"].append([end + 3, came])  # the log has lost three
        machine.disk.replace_file(path, json.dumps(document).encode())
        await asyncio.sleep(10)
        await machine.boot()
        await machine.send(b"new", 5)
        await machine.restart(clean=False)
        # What was not written down has waited since its store time.
        await comes_after(machine, b"kept", sent, 5)
        await comes_after(machine, b"new", sent + 20, 5)

    run(body)


def remove_progress(machine: Machine) -> None:
    machine.disk.power_on()
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        if machine.disk.exists(f"/store/config/{name}"):
            machine.disk.unlink(f"/store/config/{name}")


@pytest.mark.parametrize("delivered", [0, 1, 37])
def test_where_the_progress_is_lost_nothing_is_delivered_again(delivered: int) -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2")
        await machine.boot()
        for number in range(delivered):
            await machine.send(b"%d" % number, 3)
        await asyncio.sleep(30)
        assert machine.count() == delivered
        for number in range(3):
            await machine.send(b"waits %d" % number, 3)
        await machine.kill()
        remove_progress(machine)
        await machine.boot()
        await asyncio.sleep(30)
        assert machine.count() == delivered + 3

    run(body)


def test_a_message_sent_twice_hides_none_that_was_not_delivered() -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2")
        await machine.boot()
        await machine.send(b"twice", 3)
        await asyncio.sleep(5)
        for name in (b"once", b"twice", b"last"):
            await machine.send(name, 3)
        await asyncio.sleep(6)
        assert await machine.bodies() == [b"twice"]
        await machine.kill()
        remove_progress(machine)
        await machine.boot()
        await asyncio.sleep(20)
        assert {b"once", b"last"} < set(await machine.bodies())

    run(body)


# -- promotions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("history", ["follows", "is restarted", "comes late"])
def test_a_promotion_to_a_node_with_another_clock_moves_no_message(
    ahead_ms: int, history: str
) -> None:
    async def body(world: World) -> None:
        master, slave = await group(world, ahead_ms)
        if history != "comes late":
            await slave.boot()
            await follow(slave, master)
        await master.send(b"delivered before", 2)
        await asyncio.sleep(20)
        await master.send(b"first", 7)
        sent = world.loop.time()
        await asyncio.sleep(30)
        await master.send(b"second", 7)
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
        await comes_after(slave, b"first", sent, 7)
        await comes_after(slave, b"second", sent + 30, 7)
        assert len(await slave.bodies()) == 3

    run(body)


def test_what_came_while_a_slave_was_cut_off_waits_no_longer_after_its_promotion() -> None:
    async def body(world: World) -> None:
        master, slave = await group(world, 0)
        await slave.boot()
        await follow(slave, master)
        world.network.partition(["a"], ["b"])
        world.network.partition(["b"], ["a"])
        await master.send(b"later", 7)
        sent = world.loop.time()
        await asyncio.sleep(60)
        world.network.heal()
        await asyncio.sleep(30)
        assert slave.broker.store.watermarks.appended == master.broker.store.watermarks.appended
        await master.kill()
        await promote(slave)
        await comes_after(slave, b"later", sent, 7)

    run(body)


async def crash_at_arrival(master: Machine, slave: Machine, level: int) -> None:
    """A message comes to both; the slave dies before it has written that down."""
    await slave.boot()
    await follow(slave, master)
    await master.send(b"later", level)
    async with asyncio.timeout(0.1):
        while slave.count("SCHEDULE_TOPIC_XXXX", level - 1) == 0:
            await asyncio.sleep(0.001)
    await slave.kill()


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 1000, HOUR_MS])
@pytest.mark.parametrize("file", [True, False])
def test_what_a_dead_slave_did_not_write_down_is_not_judged_by_its_masters_clock(
    ahead_ms: int, file: bool
) -> None:
    async def body(world: World) -> None:
        master, slave = await group(world, ahead_ms)
        await crash_at_arrival(master, slave, 5)
        await master.kill()
        if not file:
            remove_progress(slave)
        await asyncio.sleep(20)
        await slave.boot()
        started = world.loop.time()
        await asyncio.sleep(1.5)
        await slave.restart(clean=False)  # the file says by now that it does not know
        await promote(slave)
        await comes_after(slave, b"later", started, 5)

    run(body)


def test_what_a_dead_slave_did_not_write_down_its_master_tells_it() -> None:
    async def body(world: World) -> None:
        master, slave = await group(world, HOUR_MS)
        await crash_at_arrival(master, slave, 7)
        sent = world.loop.time()
        await asyncio.sleep(20)
        await slave.boot()
        await follow(slave, master)
        await master.kill()
        await promote(slave)
        await comes_after(slave, b"later", sent, 7)

    run(body)


def test_what_a_master_did_not_write_down_has_waited_since_its_own_clock_said() -> None:
    async def body(world: World) -> None:
        master, _ = await group(world, 0)
        await master.send(b"later", 5)
        sent = world.loop.time()
        await master.kill()
        await asyncio.sleep(20)
        await master.boot()
        await comes_after(master, b"later", sent, 5)

    run(body)


def test_after_a_tail_was_cut_off_the_next_message_in_its_place_waits_its_own_time() -> None:
    async def body(world: World) -> None:
        old, new = await group(world, 0)
        await new.boot()
        await follow(new, old)
        await old.send(b"on both", 7)
        sent = world.loop.time()
        await asyncio.sleep(2)
        new.broker.replication.slave.close()
        await new.kill()
        await old.send(b"on the old one only", 7)
        await old.kill()
        await new.boot()
        await promote(new)
        await old.boot()
        await asyncio.sleep(60)
        assert old.broker.store.truncated(), "it has followed and was cut"
        await new.send(b"in its place", 7)
        again = world.loop.time()
        await asyncio.sleep(2)
        await new.kill()
        await promote(old, 4)
        await comes_after(old, b"on both", sent, 7)
        await comes_after(old, b"in its place", again, 7)
        assert old.count() == 2

    run(body)


# -- retries ---------------------------------------------------------------------------------------

RETRIES_S = [10, 30, *(60 * m for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)), 3600, 7200]
assert sum(RETRIES_S) == 4 * 3600 + 45 * 60 + 40


def test_sixteen_retries_take_as_long_as_rocketmqs_whatever_the_clock_does_and_did() -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2", HOUR_MS)
        await machine.boot()
        await machine.send(b"bad")
        machine.step(-HOUR_MS)
        await machine.restart(clean=True)
        (message,) = await machine.read()

        async def give_back(message: ReceivedMessage) -> None:
            back = {"group": "G", "offset": message.physical_offset, "delayLevel": 0}
            reply = await machine.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert reply.code == 0, reply.remark

        for attempt, wanted in enumerate(RETRIES_S):
            await give_back(message)
            machine.step(-20)
            await asyncio.sleep(wanted / 2)
            machine.step(HOUR_MS)
            await asyncio.sleep(wanted / 2 - 0.05)
            assert await machine.read(attempt, "%RETRY%G") == [], "early"
            await asyncio.sleep(0.25)
            (message,) = await machine.read(attempt, "%RETRY%G")
            assert message.reconsume_times == attempt + 1
        await give_back(message)
        await asyncio.sleep(0.1)
        assert await machine.bodies("%DLQ%G") == [b"bad"]

    run(body)


def test_a_retry_that_a_client_sends_itself_waits_as_long() -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2", HOUR_MS)
        await machine.boot()
        await machine.send(b"stamped an hour ahead")
        machine.step(-HOUR_MS)
        await machine.send(b"again", 3, "%RETRY%G")
        await asyncio.sleep(9.9)
        assert await machine.bodies("%RETRY%G") == []
        await asyncio.sleep(0.3)
        assert await machine.bodies("%RETRY%G") == [b"again"]

    run(body)


# -- routes and subscriptions ----------------------------------------------------------------------


def client_of(world: World, name: str, ip: str) -> SimRuntime:
    return SimRuntime(world.loop, world.network, 1, name, ip)


def test_a_step_of_a_nameservers_clock_expires_no_broker_and_keeps_no_silent_one() -> None:
    async def body(world: World) -> None:
        runtime = client_of(world, "nameserver", "10.0.0.9")
        server = NameServer(runtime, "10.0.0.9", 9876)
        await server.start()
        machine = world.machine("broker", "10.0.0.2", nameservers=("10.0.0.9:9876",))
        await machine.boot()
        await machine.send(b"makes a topic")
        await asyncio.sleep(1)
        runtime.jump_wall_clock(HOUR_MS)
        for _ in range(1000):
            await asyncio.sleep(0.1)
            assert len(server.routes.route("T").brokers) == 1
        runtime.jump_wall_clock(-HOUR_MS)
        machine.runtime.pause()
        await asyncio.sleep(300)
        with pytest.raises(TopicNotExist):
            server.routes.route("T")

    run(body)


@pytest.mark.parametrize("step_ms", [0, -HOUR_MS])
def test_a_new_subscription_counts_although_the_clients_clock_stepped_back(step_ms: int) -> None:
    async def body(world: World) -> None:
        await NameServer(client_of(world, "nameserver", "10.0.0.9"), "10.0.0.9", 9876).start()
        machine = world.machine("broker", "10.0.0.2", nameservers=("10.0.0.9:9876",))
        await machine.boot()
        await machine.send(b"makes a topic")
        await asyncio.sleep(1)
        runtime = client_of(world, "consumer", "10.0.0.4")

        async def listen(_: object) -> None: ...

        consumer = PushConsumer("G", "10.0.0.9:9876", runtime=runtime, listener=listen)
        consumer.subscribe("T", "old")
        await runtime.run(consumer.start())
        runtime.jump_wall_clock(step_ms)
        await asyncio.sleep(1)
        runtime.call_soon(consumer.subscribe, "T", "new")
        await asyncio.sleep(1)
        found = machine.broker.context.clients.subscription("G", "T")
        assert found is not None
        assert found.expression == "new"
        await runtime.run(consumer.close())

    run(body)


# -- what is deleted by age ------------------------------------------------------------------------

ALL_HOURS = ";".join(f"{hour:02d}" for hour in range(24))


@pytest.mark.parametrize("step_ms", [720 * HOUR_MS, -720 * HOUR_MS])
def test_a_step_of_the_clock_deletes_no_messages_and_forgets_no_sink(step_ms: int) -> None:
    async def body(world: World) -> None:
        machine = world.machine("broker", "10.0.0.2", store_options={"delete_when": ALL_HOURS})
        await machine.boot()
        for number in range(40):
            await machine.send((b"%05d " % number) * 10_000)
        finish = RequestCode.FINISH_EPOCH
        assert (await machine.ask(finish, {"sink": "s", "epoch": 0})).code == 0
        assert machine.broker.store.watermarks.appended > 2 * SEGMENT
        machine.step(step_ms + step_ms // 100)
        await machine.ask(finish, {"sink": "t", "epoch": 0})  # so the table is saved
        await asyncio.sleep(300)
        assert machine.broker.store.watermarks.start == 0
        assert machine.broker.messaging.sinks.get("s") is not None

    run(body)


def test_a_step_ahead_counts_for_retention_when_it_has_stood_for_a_day() -> None:
    async def body(world: World) -> None:
        runtime = client_of(world, "any", "10.0.0.2")
        clock = RetentionClock(runtime)
        for step_ms in (0, 59_000, -HOUR_MS, 59_000):  # what counts at once
            runtime.jump_wall_clock(step_ms)
            assert clock.now_ms() == runtime.now_ms()
        runtime.jump_wall_clock(HOUR_MS)
        for _ in range(24):
            assert clock.now_ms() == runtime.now_ms() - HOUR_MS
            await asyncio.sleep(3600)
        assert clock.now_ms() == runtime.now_ms()
        runtime.jump_wall_clock(HOUR_MS)
        clock.now_ms()
        runtime.jump_wall_clock(-HOUR_MS)  # set right
        assert clock.now_ms() == runtime.now_ms()
        runtime.jump_wall_clock(HOUR_MS)
        assert clock.now_ms() == runtime.now_ms() - HOUR_MS

    run(body)
