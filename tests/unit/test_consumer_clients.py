"""Push and pull consumers against a broker pair in memory, on the simulator's virtual clock."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest
from saturnmq.client.pull_consumer import PullConsumer
from saturnmq.client.push_consumer import PushConsumer
from saturnmq.client.results import ConsumeResult
from saturnmq.client.routes import RouteTable
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.protocol.errors import (
    ClientClosed,
    ConfigError,
    ConnectionLost,
    InvalidParameter,
    error_for,
)
from saturnmq.protocol.frame import encode_frame
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.native import NativeRuntime
from saturnmq.protocol.properties import encode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicRoute

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
MASTER, SLAVE = "127.0.0.1:10911", "127.0.0.1:10921"


class World:
    """One broker `a` (master and slave with the same log) and what clients did to it."""

    def __init__(self, queues: int = 2, topic: str = "T", group: str = "G") -> None:
        self.loop = SimLoop(random.Random(7))
        self.runtime = SimRuntime(self.loop, SimNetwork(self.loop, 7), 7, "client")
        self.topic, self.group = topic, group
        self.frames: dict[MessageQueue, list[bytes]] = {}
        self.offsets: dict[MessageQueue, int] = {}
        self.commits: list[tuple[MessageQueue, int]] = []
        self.committed_at: list[str] = []
        self.committed_when: list[float] = []
        self.down: set[str] = set()
        self.masterless = False  # the route that a nameserver gives
        self.promoted = False  # the slave is the master and the old master a slave
        self.hung: set[str] = set()
        self.stuck = False  # pulls are answered at once, with nothing
        self.pulls: list[dict[str, str]] = []
        self.pulled_from: list[str] = []
        self.backs: list[dict[str, str]] = []
        self.refuse_backs = 0
        self.members = ["me"]
        self.locks_granted = True
        self.term = ""  # with whose offsets a broker of ours says of which epoch they are
        self.unlocked: list[MessageQueue] = []
        self.suggest = 0
        self.first_kept = 0
        self.slave_lacks = 0
        self.more = asyncio.Condition()
        self.damaged: dict[str, set[int]] = {}  # queue offsets whose frames a replica has damaged
        self.routes = RouteTable()
        self.listed = [topic]
        self.physical = 0
        for number in range(queues):
            self.frames[MessageQueue(topic, "a", number)] = []

    def send(self, queue_id: int, body: bytes, tag: str | None = None, **properties: str) -> None:
        queue = MessageQueue(self.topic, "a", queue_id)
        if tag:
            properties["TAGS"] = tag
        log = self.frames[queue]
        frame = encode_frame(
            physical_offset=self.physical,
            queue_offset=len(log),
            queue_id=queue_id,
            flag=0,
            sys_flag=0,
            born_timestamp=1,
            born_host=HOST,
            store_timestamp=1,
            store_host=HOST,
            reconsume_times=0,
            prepared_offset=0,
            body=body,
            topic=self.topic.encode(),
            properties=bytes(encode_properties(properties)),
        )
        self.physical += len(frame)
        log.append(frame)

    def run(self, body: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(600):
                await body()

        try:
            self.loop.run_until_complete(main())
            assert self.loop.failures == []
            assert self.runtime.deaths == []
        finally:
            self.loop.close()

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, "the condition did not come true in time"
            await asyncio.sleep(0.01)


class WorldCore:
    """What consumers use of ClientCore."""

    client_id = "me"

    def __init__(self, world: World) -> None:
        self.world = world
        self.runtime = world.runtime
        self.routes = world.routes
        self.handlers: dict[str, Any] = {}
        self.terms: dict[Any, str] = {}

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def heartbeat_now(self) -> None: ...

    def register_consumer(self, group: str, handler: Any) -> None:
        self.handlers[group] = handler

    async def unregister_consumer(self, group: str) -> None:
        self.handlers.pop(group, None)

    async def route(self, topic: str, *, refresh: bool = False, create: bool = False) -> TopicRoute:
        if topic not in self.world.listed:
            raise error_for(17, f"no topic {topic}")
        known = self.routes.route(topic)
        if known is not None and not refresh:
            return known
        count = sum(1 for queue in self.world.frames if queue.topic == topic)
        route = TopicRoute.from_json(
            {
                "brokerDatas": [
                    {
                        "brokerName": "a",
                        "cluster": "C",
                        "brokerAddrs": {"1": SLAVE}
                        if self.world.masterless
                        else {"0": SLAVE, "1": MASTER}
                        if self.world.promoted
                        else {"0": MASTER, "1": SLAVE},
                    }
                ],
                "queueDatas": [
                    {
                        "brokerName": "a",
                        "readQueueNums": count,
                        "writeQueueNums": count,
                        "perm": 6,
                        "topicSysFlag": 0,
                    }
                ],
            }
        )
        if self.routes.update(topic, route):
            for handler in list(self.handlers.values()):
                handler.on_route_changed(topic)
        return route

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        return self.routes.subscribe_queues(topic)

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        return self.routes.publish_queues(topic)

    def broker_address(self, name: str, *, master: bool = True) -> str | None:
        return self.routes.address(name, master=master)

    def refresh_soon(self, topic: str) -> None:
        self.runtime.spawn(self.route(topic, refresh=True), name="refresh")

    def connected(self, address: str) -> object | None:
        return None if address in self.world.down else (self, address)

    async def connect(self, address: str) -> None: ...

    def oneway(self, address: str, cmd: Command) -> None:
        if cmd.code == 15:
            self._commit(address, cmd.ext)

    def _commit(self, address: str, ext: dict[str, str]) -> None:
        queue = MessageQueue(ext["topic"], "a", int(ext["queueId"]))
        offset = int(ext["commitOffset"])
        self.world.commits.append((queue, offset))
        self.world.committed_at.append(address)
        self.world.committed_when.append(self.runtime.monotonic())
        self.world.offsets[queue] = offset

    async def invoke(
        self,
        address: str,
        cmd: Command,
        timeout_s: float | None = None,
        ok: Collection[int] = frozenset({0}),
    ) -> Command:
        await self.runtime.sleep(0.001)
        if address in self.world.down:
            raise ConnectionLost(f"{address} is down")
        if address in self.world.hung:
            await self.runtime.sleep(timeout_s or 3.0)
            raise ConnectionLost(f"{address} hangs")
        reply = await self._answer(address, cmd)
        if reply.code not in ok:
            raise error_for(reply.code, reply.remark)
        return reply

    async def _answer(self, address: str, cmd: Command) -> Command:
        world, ext = self.world, cmd.ext
        if cmd.code == 11:
            return await self._pull(address, cmd)
        if cmd.code == 38:
            return cmd.reply(body=json.dumps({"consumerIdList": world.members}).encode())
        if cmd.code == 36:
            if world.refuse_backs > 0:
                world.refuse_backs -= 1
                return cmd.reply(1, "refused")
            world.backs.append(ext)
            return cmd.reply()
        if cmd.code in (41, 42):
            asked = json.loads(bytes(cmd.body))["mqSet"]
            if cmd.code == 42:
                world.unlocked += [
                    MessageQueue(mq["topic"], mq["brokerName"], mq["queueId"]) for mq in asked
                ]
            granted = asked if world.locks_granted else []
            return cmd.reply(body=json.dumps({"lockOKMQSet": granted}).encode())
        queue = MessageQueue(ext.get("topic", ""), "a", int(ext.get("queueId", "0")))
        if cmd.code == 14:
            if queue not in world.offsets:
                return cmd.reply(22, "no offset")
            term = {"saturnTerm": world.term} if world.term else {}
            return cmd.reply(ext={"offset": str(world.offsets[queue]), **term})
        if cmd.code == 15:
            self._commit(address, ext)
            return cmd.reply()
        if cmd.code == 30:
            return cmd.reply(ext={"offset": str(len(world.frames[queue]))})
        if cmd.code == 29:
            return cmd.reply(ext={"offset": "1"})
        return cmd.reply(3, f"code {cmd.code}")

    async def _pull(self, address: str, cmd: Command) -> Command:
        world, ext = self.world, cmd.ext
        world.pulls.append(ext)
        world.pulled_from.append(address)
        queue = MessageQueue(ext["topic"], "a", int(ext["queueId"]))
        log, offset = world.frames.get(queue, []), int(ext["queueOffset"])
        if address == SLAVE and world.slave_lacks:
            log = log[: -world.slave_lacks]
        until = world.loop.time() + int(ext["suspendTimeoutMillis"]) / 1000
        while offset == len(log) and world.loop.time() < until and address not in world.down:
            await self.runtime.sleep(0.05)
        while address in world.hung:
            await self.runtime.sleep(0.05)
        if address in world.down:
            raise ConnectionLost(f"{address} went down")
        stop = min(offset + int(ext["maxMsgNums"]), len(log))
        bad = world.damaged.get(address, set())
        taken = [
            log[n][:88] + b"?" + log[n][89:] if n in bad else log[n] for n in range(offset, stop)
        ]
        code, following = (0, offset + len(taken)) if taken else (19, offset)
        if offset > len(log):
            code, following, taken = 21, len(log), []
        if offset < world.first_kept:
            code, following, taken = 21, world.first_kept, []
        if world.stuck:
            code, following, taken = 20, offset, []
        if code == 21 and address == SLAVE:  # without offsetCheckInSlave, its default
            code, following = 20, offset
        header = {
            "suggestWhichBrokerId": str(world.suggest),
            "nextBeginOffset": str(following),
            "minOffset": str(world.first_kept),
            "maxOffset": str(len(log)),
        }
        return cmd.reply(code, ext=header, body=b"".join(taken))


Q0, Q1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def consumer(world: World, **options: Any) -> PushConsumer:
    core: Any = WorldCore(world)
    made = PushConsumer("G", core=core, **{"from_beginning": True, **options})
    made.subscribe("T", "*")
    return made


@pytest.mark.parametrize("at_slave", [set(), {3, 900}])
def test_a_damaged_message_is_read_elsewhere_or_told_and_passed_over(
    at_slave: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    world, got = World(queues=1), []
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
    world, got = World(), []
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
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
    world.suggest = 1
    world.send(0, b"0")

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: SLAVE in world.pulled_from)

    world.run(main)


def test_offsets_outside_the_queue_are_corrected() -> None:
    world, got = World(queues=1), []
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
    world.offsets[MessageQueue(world.topic, "a", 0)] = 0
    world.term = term

    async def main() -> None:
        async with consumer(world, listener_one=lambda _: None):
            await world.until(lambda: any(pull["topic"] == world.topic for pull in world.pulls))
        first = next(pull for pull in world.pulls if pull["topic"] == world.topic)
        assert first.get("saturnTerm", "") == term

    world.run(main)


def test_a_slave_alone_is_read_from_its_first_message_though_it_corrects_nobody() -> None:
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
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


def test_an_ordered_message_that_always_fails_ends_in_the_dlq() -> None:
    world, got = World(queues=1), []
    for n in range(3):
        world.send(0, b"%d" % n)

    def listener(message: ReceivedMessage) -> None:
        if message.queue_offset == 1:
            raise ValueError("never")
        got.append(message.queue_offset)

    async def main() -> None:
        made = consumer(world, listener_one=listener, ordered=True, max_reconsume=2)
        async with made:
            await world.until(lambda: got == [0, 2])
        assert [back["delayLevel"] for back in world.backs] == ["-1"]

    world.run(main)


def test_nothing_is_pulled_without_the_lock() -> None:
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
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
    world, got = World(queues=1), []
    for n in range(3):
        world.send(0, b"%d" % n)
    files: dict[str, bytes] = {}

    class Door:
        def read(self, path: str) -> bytes | None:
            return files.get(path)

        def replace(self, path: str, data: bytes) -> None:
            files[path] = data

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
        assert len(back) == len(set(back))
        assert len(set(got) | set(back)) == 500
        assert len(set(got) & set(back)) == 1  # the one that failed before another one hung

    world.run(main)


def test_messages_of_the_retry_topic_show_their_own_topic() -> None:
    world, got = World(queues=1, topic="%RETRY%G"), []
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
    with pytest.raises(ConfigError, match="either listener"):
        consumer(world, listener=print, listener_one=print)

    async def main() -> None:
        with pytest.raises(ConfigError, match="no listener"):
            await consumer(world).start()

    world.run(main)


def puller(world: World, **options: Any) -> PullConsumer:
    core: Any = WorldCore(world)
    return PullConsumer("G", core=core, **{"from_beginning": True, **options})


def test_subscribed_polls_bring_everything_and_commit() -> None:
    world, got = World(), set()
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
            with pytest.raises(InvalidParameter, match="negative"):
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
