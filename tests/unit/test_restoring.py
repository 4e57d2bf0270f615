"""What a message that was cut off a log is sent again as, and to which queue; sends whose outcome
nobody knows, in virtual time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from client_fakes import FakeBroker, FakeCluster
from lying_rig import Lie, LyingCluster, run
from saturnmq.client.admin.admin import Admin
from saturnmq.client.admin.restoring import (
    Item,
    Purpose,
    Restorer,
    RestoreVerdict,
    delay_left,
    place,
    properties_again,
    purpose,
)
from saturnmq.client.core import ClientCore
from saturnmq.client.producer.placing import queue_of
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frame import encode_frame
from saturnmq.protocol.ids import encode_host
from saturnmq.protocol.kernels import ReceivedMessage
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.properties import encode_properties
from saturnmq.runtime.errors import SaturnError
from saturnmq.runtime.native import NativeRuntime

STORED = 1_700_000_000_000
DELAYS = (1_000, 5_000, 10_000, 60_000)
HOST = encode_host("10.0.0.9", 10911)


def frame(topic: str = "T", raw: bytes | None = None, **more: Any) -> ReceivedMessage:
    properties = {"UNIQ_KEY": "U", **more.pop("properties", {})}
    fields = {
        "physical_offset": 4096,
        "queue_offset": 7,
        "queue_id": 3,
        "flag": 5,
        "sys_flag": 0,
        "born_timestamp": STORED - 9,
        "born_host": bytes(8),
        "store_timestamp": STORED,
        "store_host": HOST,
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body": b"body",
    }
    encoded = encode_properties(properties) if raw is None else raw
    return ReceivedMessage(
        encode_frame(topic=topic.encode(), properties=encoded, **(fields | more)), 0
    )


def item(**more: Any) -> Item:
    message = frame(**more)
    meant = purpose(message)
    assert isinstance(meant, Purpose)
    return Item(message, meant, "file@4096")


def test_a_message_goes_where_it_was() -> None:
    assert purpose(frame()) == Purpose("T", 3, "U", 0, 0, False)
    retried = frame("%RETRY%G", reconsume_times=2, properties={"DELAY": "4"})
    assert purpose(retried) == Purpose("%RETRY%G", 3, "U", 2, 4, False)
    assert purpose(frame(sys_flag=0x8)) == Purpose("T", 3, "U", 0, 0, False)


def test_what_waits_for_its_delay_goes_where_it_would_have_gone() -> None:
    waiting = {"DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "1"}
    meant = Purpose("T", 1, "U", 0, 2, True)
    assert purpose(frame("SCHEDULE_TOPIC_XXXX", properties=waiting)) == meant
    delivered = purpose(frame(properties=waiting))
    assert isinstance(delivered, Purpose)
    assert (delivered.key, delivered.waits) == (meant.key, False)
    assert delivered.rank > meant.rank
    assert purpose(frame("SCHEDULE_TOPIC_XXXX")) is RestoreVerdict.SYSTEM
    nonsense = {**waiting, "DELAY": "9" * 5000, "REAL_QID": "-1"}
    assert purpose(frame("SCHEDULE_TOPIC_XXXX", properties=nonsense)) == dataclasses.replace(
        meant, queue_id=0, delay_level=0
    )


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        (frame("RMQ_SYS_TRANS_HALF_TOPIC"), RestoreVerdict.TRANSACTION),
        (frame(sys_flag=0x4), RestoreVerdict.TRANSACTION),
        (frame(sys_flag=0xC), RestoreVerdict.TRANSACTION),
        (frame("RMQ_SYS_TRANS_OP_HALF_TOPIC"), RestoreVerdict.SYSTEM),
        (frame("rmq_sys_wheel_timer"), RestoreVerdict.SYSTEM),
        (frame("rmq_sys_SATURN_GROUPS"), RestoreVerdict.SYSTEM),
        (frame("DefaultCluster_REPLY_TOPIC"), RestoreVerdict.SYSTEM),
        (frame("OFFSET_MOVED_EVENT"), RestoreVerdict.SYSTEM),
        (frame(raw=b"UNIQ_KEY\x01U\x02name\x01\xff\x02"), RestoreVerdict.UNREADABLE),
    ],
)
def test_what_is_not_a_users_message_is_left_out(
    message: ReceivedMessage, verdict: RestoreVerdict
) -> None:
    assert purpose(message) is verdict


def test_a_message_without_an_id_gets_one_of_its_place_and_time() -> None:
    ids = {purpose(frame(raw=b"TAGS\x01A\x02", **changes)).unique_id for changes in ({}, {})}
    assert ids == {f"0A00000900002A9F{4096:016X}{STORED:016X}"}
    other = purpose(frame(raw=b"", store_timestamp=STORED + 1))
    assert other.unique_id not in ids, "the same place, cut off twice"


@pytest.mark.parametrize(
    ("level", "passed_ms", "left"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (1, 999, 1),
        (1, 1_000, 0),
        (3, 1, 3),
        (3, 5_000, 2),
        (3, 5_001, 2),
        (3, 9_001, 1),
        (4, 49_999, 4),
        (9, 1, 4),
        (4, -5_000, 4),
        (4, 10**12, 0),
    ],
)
def test_what_is_left_of_a_delay_is_never_cut_short(level: int, passed_ms: int, left: int) -> None:
    assert delay_left(level, STORED, STORED + passed_ms, DELAYS) == left


def test_levels_need_not_rise() -> None:
    assert delay_left(1, STORED, STORED + 7_000, (9_000, 60_000, 2_500, 2_000)) == 4


def test_properties_are_kept_but_for_those_of_the_way_behind() -> None:
    own = {"KEYS": "a b", "TAGS": "t", "__SHARDINGKEY": "s", "mine": "1", "RETRY_TOPIC": "T"}
    gone = {
        "DELAY": "3",
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
        "WAIT": "false",
        "TRAN_MSG": "true",
        "TIMER_DELIVER_MS": "1",
        "MSG_REGION": "r",
        "TRACE_ON": "true",
        "CLUSTER": "c",
        "RESTORED_FROM": "before",
    }
    found = item(properties={**own, **gone})
    expected = {**own, "UNIQ_KEY": "U", "WAIT": "true", "RESTORED_FROM": "file@4096"}
    assert properties_again(found, 0) == expected
    assert properties_again(found, 2) == {**expected, "DELAY": "2"}


def test_a_queue_stays_one_queue() -> None:
    queues = [MessageQueue("T", name, number) for name in "ab" for number in range(4)]
    assert place(item(), queues, "a") == MessageQueue("T", "a", 3)
    assert place(item(), queues, "gone") == MessageQueue("T", "b", 3)
    assert place(item(queue_id=2), queues, None) == MessageQueue("T", "a", 2)
    assert place(item(queue_id=9), queues, "b") == queues[9 % 8]
    few = [MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)]
    assert place(item(), few, "a") == few[1]
    keyed = item(properties={"__SHARDINGKEY": "customer"})
    assert place(keyed, queues, "b") == queue_of("customer", queues)


# -- sending, in virtual time ---------------------------------------------------------------------


async def restorer(cluster: LyingCluster, **options: Any) -> tuple[Admin, Restorer]:
    node = cluster.world.node("operator")
    core = ClientCore(node, cluster.nameserver)
    await core.start()
    admin = Admin(core=core)
    await admin.create_topic("T", 2)
    return admin, Restorer(core, DELAYS, **options)


def three() -> list[Item]:
    return [item(queue_id=0, body=b"%d" % n, properties={"UNIQ_KEY": f"U{n}"}) for n in range(3)]


async def stored(admin: Admin) -> list[bytes]:
    return [bytes(message.body) for message in await admin.find_by_time("T", 0)]


def test_a_send_without_an_answer_is_looked_for_and_not_repeated() -> None:
    async def body(cluster: LyingCluster) -> None:
        admin, restore = await restorer(cluster)
        items, settled = three(), []
        assert await restore.judge(items) == [RestoreVerdict.WANTED] * 3
        cluster.liar.lie = Lie(int(RequestCode.SEND_MESSAGE_V2), "silence")
        await restore.send(items, lambda *outcome: settled.append(outcome))
        assert settled == [(each, None) for each in items]
        assert await stored(admin) == [b"0", b"1", b"2"]
        assert await restore.judge(items) == [RestoreVerdict.PRESENT] * 3

    run(body)


class Outcomes(list[tuple[bytes, str]]):
    """Of each message that is settled the body, and what it was refused with."""

    def __call__(self, item: Item, refusal: SaturnError | None) -> None:
        self.append((bytes(item.message.body), str(refusal or "")))


def scripted(
    answers: list[Any], work: Callable[[Restorer, FakeBroker], Awaitable[None]], **options: Any
) -> None:
    """A broker that answers sends so, and takes those behind that."""

    async def main() -> None:
        runtime = NativeRuntime()
        cluster = await FakeCluster(runtime, queues=1).start()
        broker = cluster.brokers["a"]
        broker.answer = lambda _: answers.pop(0) if answers else None
        core = ClientCore(runtime, cluster.address)
        await core.start()
        restore = Restorer(core, DELAYS, **options)
        try:
            assert await restore.judge(three()) == [RestoreVerdict.WANTED] * 3
            await work(restore, broker)
        finally:
            await core.close()
            cluster.stop()

    asyncio.run(main())


def test_a_broker_that_is_busy_for_a_while_is_asked_again() -> None:
    async def work(restore: Restorer, broker: FakeBroker) -> None:
        outcomes = Outcomes()
        await restore.send(three(), outcomes)
        assert outcomes == [(b"0", ""), (b"1", ""), (b"2", "")]
        assert broker.bodies() == [b"0", b"1", b"2"]

    scripted([None, (2, "busy")], work)


def test_a_message_that_is_refused_for_good_does_not_keep_the_others() -> None:
    async def work(restore: Restorer, broker: FakeBroker) -> None:
        outcomes = Outcomes()
        await restore.send(three(), outcomes)
        assert outcomes == [(b"0", ""), (b"1", "too large"), (b"2", "")]
        assert broker.bodies() == [b"0", b"2"]

    scripted([None, (13, "too large")], work)


@pytest.mark.parametrize("answer", [(12, "not replicated"), (2, "busy")])
def test_what_cannot_be_settled_ends_the_run(answer: tuple[int, str]) -> None:
    async def work(restore: Restorer, broker: FakeBroker) -> None:
        outcomes = Outcomes()
        with pytest.raises(SaturnError, match=answer[1]):
            await restore.send(three(), outcomes)
        assert outcomes == [(b"0", "")]
        stored = [b"0", b"1"] if answer[0] == 12 else [b"0"]
        assert broker.bodies() == stored, "stored or not, it is not sent again, nor what follows"

    scripted([None, *[answer] * 100], work, patience_s=0.0)


def test_a_message_carries_what_it_was_stored_with() -> None:
    async def work(restore: Restorer, broker: FakeBroker) -> None:
        sent = item(sys_flag=0x101 | 0x8, reconsume_times=4, body=b"packed", queue_id=0)
        await restore.send([sent], lambda *_: None)
        [ext] = [ext for code, ext in broker.requests if code == RequestCode.SEND_MESSAGE_V2]
        assert (ext["f"], ext["g"], ext["h"], ext["j"]) == (str(0x101), str(STORED - 9), "5", "4")
        assert ext["c"] == "", "the topic is not made again if it was deleted meanwhile"

    scripted([], work)


@pytest.mark.parametrize(("stored", "again"), [(0xC0 | 0x201, 0xC0 | 0x201), (0x80, 0), (0, 0)])
def test_a_batch_is_sent_again_as_one_and_a_single_message_of_its_topic_singly(
    stored: int, again: int
) -> None:
    async def work(restore: Restorer, broker: FakeBroker) -> None:
        numbers = {"INNER_NUM": "3", "INNER_BASE": "70"} if stored else {}
        await restore.send([item(sys_flag=stored, queue_id=0, properties=numbers)], lambda *_: None)
        [ext] = [ext for code, ext in broker.requests if code == RequestCode.SEND_MESSAGE_V2]
        assert int(ext["f"]) == again
        assert ("INNER_NUM\x013\x02" in ext["i"]) == (again != 0)
        assert "INNER_BASE" not in ext["i"]

    scripted([], work)


def test_a_broker_that_is_away_may_have_what_is_looked_for() -> None:
    async def main() -> None:
        runtime = NativeRuntime()
        cluster = await FakeCluster(runtime, brokers=("a", "b"), queues=1).start()
        core = ClientCore(runtime, cluster.address)
        await core.start()
        cluster.brokers["b"].stop()
        with pytest.raises(SaturnError, match="no connection"):
            await Restorer(core, DELAYS).judge(three())
        await core.close()
        cluster.stop()

    asyncio.run(main())
