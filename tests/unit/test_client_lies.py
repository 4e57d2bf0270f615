"""Servers that answer nonsense: every field of every answer that a client reads, each in every bad
way (tests/rigs/lying_rig.py), in virtual time. A call ends in time with a SaturnError, or the
client goes on once the truth is told again; no task has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable

import pytest
from lying_rig import WHOLE_LIES, Lie, LyingCluster, falsehoods, run
from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.staging import SinkState
from saturnmq.client.server_requests import offset_table
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import MalformedFrame, SaturnError, TaskFailed

TOPIC, GROUP = "T", "G"
QUEUES = 2
BOUND_S = 120.0  # of any call, whoever lies; the longest chain of time-outs is below a minute
LIES_S = 8.0
RECOVER_S = 120.0
BODIES = {b"%d" % n for n in range(6)}
# All of them take minutes; the sample meets each field with several lies, and each lie often.
EVERY_LIE = os.environ.get("SATURNMQ_EVERY_LIE") == "1"
SAMPLE = 7

ANSWERED = (220, 221, 307, 309, 326)
ASKED = (39, 40, *ANSWERED, int(RequestCode.ROUTE_CHANGED))
KEYS = (
    b'{"brokerName":"broker-a","queueId":0,"topic":"T"}',
    b'{"brokerName":"broker-a","queueId":-1,"topic":"T"}',
    b'"T"',
    b"7",
)
NUMBERS = (b"-1", b"1.5", b"9" * 400, b"9" * 5000, b'"x"', b"null", b"[]", b"true")


class Subject:
    """A client that is lied to: `start` and `use` may raise a SaturnError, `works` may not."""

    def __init__(self, cluster: LyingCluster) -> None:
        self.cluster = cluster
        self.runtime = cluster.world.node("subject")
        self.told: list[SaturnError] = []
        self.options = {"runtime": self.runtime, "on_error": self.told.append}

    async def use(self) -> None:
        await asyncio.sleep(LIES_S)

    async def works(self) -> None:
        raise NotImplementedError


class Pushing(Subject):
    ordered = False

    def __init__(self, cluster: LyingCluster) -> None:
        super().__init__(cluster)
        self.seen: set[bytes] = set()
        self.client = PushConsumer(
            GROUP,
            cluster.nameserver,
            listener=self.listen,
            consume_from="first",
            ordered=self.ordered,
            rebalance_interval_s=5.0,
            commit_interval_s=1.0,
            **self.options,
        )
        self.client.subscribe(TOPIC)

    async def listen(self, messages) -> None:
        self.seen.update(bytes(message.body) for message in messages)

    async def works(self) -> None:
        await self.cluster.world.until(lambda: self.seen >= BODIES, RECOVER_S)


class PushingInOrder(Pushing):
    ordered = True


class Pulling(Subject):
    def __init__(self, cluster: LyingCluster) -> None:
        super().__init__(cluster)
        self.seen: set[bytes] = set()
        self.client = PullConsumer(
            GROUP,
            cluster.nameserver,
            consume_from="first",
            rebalance_interval_s=5.0,
            commit_interval_s=1.0,
            **self.options,
        )
        self.client.subscribe(TOPIC)

    async def use(self) -> None:
        self.seen.update(bytes(m.body) for m in await self.client.poll(LIES_S))

    async def works(self) -> None:
        async with asyncio.timeout(RECOVER_S):
            while not self.seen >= BODIES:
                self.seen.update(bytes(m.body) for m in await self.client.poll(5.0))


class Sending(Subject):
    def __init__(self, cluster: LyingCluster) -> None:
        super().__init__(cluster)
        self.client = Producer("P", cluster.nameserver, **self.options)

    async def use(self) -> None:
        handles = [await self.client.send_async(Message(TOPIC, b"more")) for _ in range(10)]
        alone = await self.client.send_async(Message(TOPIC, b"later", delay_level=1))
        for handle in (*handles, alone):
            with contextlib.suppress(SaturnError):
                result = await handle
                assert result.queue_offset >= 0
                assert result.offset_message_id is not None

    async def works(self) -> None:
        assert (await self.client.send(Message(TOPIC, b"more"))).ok


class Administering(Subject):
    def __init__(self, cluster: LyingCluster) -> None:
        super().__init__(cluster)
        self.client = Admin(cluster.nameserver, **self.options)

    def calls(self) -> list[Callable[[], Awaitable[object]]]:
        client, queue = self.client, MessageQueue(TOPIC, "broker-a", 0)
        return [
            client.cluster,
            client.replicas,
            client.list_topics,
            client.list_groups,
            lambda: client.route(TOPIC),
            lambda: client.describe_topic(TOPIC),
            lambda: client.group_lag("read"),
            lambda: client.broker_status(self.cluster.broker),
            lambda: client.offset_by_time(queue, 0),
            lambda: client.find_by_key(TOPIC, "key"),
            lambda: client.find_message(self.cluster.an_id),
            lambda: client.create_topic("another", QUEUES),
            lambda: client.create_group("another"),
            lambda: client.reset_offsets("read", TOPIC, 0),
        ]

    async def use(self) -> None:
        for call in self.calls():
            with contextlib.suppress(SaturnError):
                await call()

    async def works(self) -> None:
        for call in self.calls():
            await call()


async def prepare(cluster: LyingCluster) -> None:
    """A topic with messages, and groups with offsets."""
    there = {"runtime": cluster.world.node("honest")}
    async with Admin(cluster.nameserver, **there) as admin:
        await admin.create_topic(TOPIC, QUEUES)
    async with Producer("P", cluster.nameserver, **there) as producer:
        for n, body in enumerate(sorted(BODIES)):
            queue = MessageQueue(TOPIC, "broker-a", n % QUEUES)
            sent = await producer.send(Message(TOPIC, body, keys=["key"]), queue=queue)
        cluster.an_id = sent.offset_message_id
    async with Admin(cluster.nameserver, **there) as admin:
        for group in ("read", GROUP):
            await admin.create_group(group)
            await admin.reset_offsets(group, TOPIC, 0)
    cluster.liar.seen.clear()


def told_to(kind: type[Subject]) -> list[Lie]:
    """Every lie that can be told to a client of this kind."""
    lies: list[Lie] = []

    async def honest(cluster: LyingCluster) -> None:
        await prepare(cluster)
        subject = kind(cluster)
        await subject.client.start()
        await subject.use()
        await subject.works()
        await subject.client.close()
        assert subject.told == []
        lies.extend(falsehoods(cluster.liar.seen))

    run(honest)
    return lies


def lied_to(kind: type[Subject], lie: Lie) -> None:
    async def test(cluster: LyingCluster) -> None:
        await prepare(cluster)
        subject = kind(cluster)
        cluster.liar.lie = lie
        try:
            async with asyncio.timeout(BOUND_S):
                await subject.client.start()
                await subject.use()
        except SaturnError:
            pass
        else:
            cluster.liar.lie = None
            await subject.works()
            cluster.liar.lie = lie
        async with asyncio.timeout(BOUND_S):
            await subject.client.close()
        assert not [error for error in subject.told if isinstance(error, TaskFailed)]

    run(test)


@pytest.mark.parametrize("kind", [Pushing, PushingInOrder, Pulling, Sending, Administering])
def test_no_answer_of_a_server_hangs_a_client_or_ends_one_of_its_tasks(kind):
    lies = told_to(kind)
    assert len(lies) > 300
    broken = []
    for lie in lies if EVERY_LIE else lies[::SAMPLE]:
        try:
            lied_to(kind, lie)
        except Exception as problem:
            broken.append(f"{lie}: {problem!r:.200}")
    assert not broken, f"{len(broken)} of {len(lies)}\n" + "\n".join(broken)


@pytest.mark.parametrize("kind", [Pushing, PushingInOrder, Pulling, Sending])
def test_no_request_of_a_server_stops_a_client(kind):
    codes = [*ASKED, 7, 99_999]
    offsets = [b'{"offsetTable":{%s:%s}}' % (key, at) for key in KEYS for at in NUMBERS]
    bodies = [*WHOLE_LIES, *offsets, b'{"offsetTable":[]}', b"[7]", b'[["T"]]']
    exts = [{}, {"consumerGroup": GROUP, "topic": TOPIC}, {"group": GROUP, "topic": "\x00"}]

    async def test(cluster: LyingCluster) -> None:
        await prepare(cluster)
        subject = kind(cluster)
        await subject.client.start()
        await subject.use()
        asked = 0
        for endpoint in [each for each in cluster.liar.clients if not each.closed]:
            for code, body, ext in itertools.product(codes, bodies, exts):
                asked += 1
                request = Command.request(code, dict(ext), body)
                if code in ANSWERED:
                    answer = await endpoint.request(request, 10.0)
                    assert answer.code or code != 220 or ext.get("topic") != TOPIC or readable(body)
                else:
                    endpoint.oneway(request)
        assert asked > 500
        await asyncio.sleep(LIES_S)
        await subject.works()
        async with asyncio.timeout(BOUND_S):
            await subject.client.close()
        assert subject.told == []

    run(test)


def readable(body: bytes) -> bool:
    """Whether it is a table of offsets, perhaps an empty one."""
    with contextlib.suppress(MalformedFrame):
        return offset_table(body) is not None
    return False


NONSENSE = (
    {"brokers": "broker-a"},
    {"brokers": [7]},
    {"epochs": [1]},
    {"epochs": {"x": {"1": {}}}},
    {"epochs": {"1": "12"}},
    {"epochs": {"1": {"9" * 400: {}}}},
    {"finished": "9" * 5000},
    {"finished": 1.5},
    {"finished": -2},
)


@pytest.mark.parametrize("told", NONSENSE, ids=lambda told: str(told)[:30])
def test_nonsense_about_a_sink_is_a_typed_error(told):
    with pytest.raises(MalformedFrame):
        SinkState.read(told)


def test_a_state_of_a_sink_is_read_as_brokers_tell_it():
    told = {
        "brokers": ["a", "b"],
        "epochs": {"3": {"0": {}, "2": {}}, "4": {"1": {}}},
        "finished": 2,
    }
    assert SinkState.read(told) == SinkState(["a", "b"], [(3, 0), (3, 2), (4, 1)], 2)
    assert SinkState.read({}) == SinkState.read({"finished": -1}) == SinkState([], [], -1)
