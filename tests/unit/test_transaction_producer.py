"""The transaction producer against a real broker, in virtual time; the blocking one on loopback."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest
from saturnmq import PullConsumer, aio
from saturnmq import Transaction as BlockingTransaction
from saturnmq import TransactionProducer as BlockingProducer
from saturnmq.broker.broker import Broker
from saturnmq.client.producer import transactions
from saturnmq.client.producer.transactions import TransactionProducer, TransactionState
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import Message, ReceivedMessage
from saturnmq.runtime.errors import (
    ClientClosed,
    InvalidParameter,
    SaturnError,
    SystemBusy,
    TransactionEnded,
    TransactionFailed,
)
from served_rig import served
from world_rig import World, run

COMMIT, ROLLBACK, UNKNOWN = (
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
    TransactionState.UNKNOWN,
)
QUICK: dict[str, Any] = {"transaction_timeout_ms": 500, "transaction_check_ms": 1000}


class Told:
    """A check that says what it is told to, and notes what it was asked."""

    def __init__(self, state: object = UNKNOWN) -> None:
        self.state = state
        self.asked: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> Any:
        self.asked.append(message)
        if isinstance(self.state, BaseException):
            raise self.state
        return self.state


class Setting:
    """A broker and the means to make producers."""

    def __init__(self, world: World, nameserver: str, broker: Broker) -> None:
        self.world, self.nameserver, self.broker = world, nameserver, broker
        self.errors: list[SaturnError] = []

    async def producer(self, check: Any, group: str = "payers") -> TransactionProducer:
        async def ask(message: ReceivedMessage) -> Any:
            return await check(message)

        node = self.world.node(f"producer-{len(self.world.nodes)}")
        made = TransactionProducer(
            group, self.nameserver, check=ask, runtime=node, on_error=self.errors.append
        )
        return await made.start()

    async def bodies(self, topic: str = "T") -> list[bytes]:
        """What consumers would get, of all queues."""
        marks, store = self.broker.store.watermarks, self.broker.store
        await self.world.until(lambda: marks.dispatched == marks.appended)
        return [
            message.body
            for queue in store.queue_ids(topic)
            for message in decode_frames(store.get_message(topic, queue, 0, 100).data, True)
        ]

    @property
    def pending(self) -> int:
        return self.broker.messaging.half_log.pending


async def setting(world: World, **changes: Any) -> Setting:
    nameserver = await world.nameserver()
    broker = await world.broker(nameservers=(nameserver,), **{**QUICK, **changes})
    await world.until(lambda: broker.messaging.half_log.is_loaded)
    await asyncio.sleep(1)
    return Setting(world, nameserver, broker)


def test_a_block_commits_at_its_end_and_rolls_back_when_it_raises() -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        producer = await here.producer(check := Told())
        message = Message("T", b"paid", tag="t", keys="k", properties={"price": "3"})
        async with producer.transaction(message) as transaction:
            assert transaction.state is UNKNOWN
            assert await here.bodies() == []
        assert (transaction.state, transaction.confirmed) == (COMMIT, True)
        assert message.properties == {"price": "3", "TAGS": "t", "KEYS": "k"}, "as it was"
        with pytest.raises(KeyError):
            async with producer.transaction(Message("T", b"not paid")) as other:
                raise KeyError("no such account")
        assert (other.state, other.confirmed) == (ROLLBACK, True)
        async with producer.transaction(Message("T", b"withdrawn")) as third:
            await third.rollback()
        async with producer.transaction(Message("T", b"early")) as fourth:
            await fourth.commit()
        assert sorted(await here.bodies()) == [b"early", b"paid"]
        assert here.pending == 0
        await asyncio.sleep(5)
        assert check.asked == []
        assert here.errors == []
        await producer.close()
        await here.broker.close()

    run(body)


def test_a_local_transaction_says_how_it_ended() -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        check = Told(UNKNOWN)
        producer = await here.producer(check)
        seen: list[Any] = []

        async def local(message: Message, arg: TransactionState) -> TransactionState:
            seen.append((message.body, arg))
            return arg

        def in_a_thread(message: Message, arg: TransactionState) -> TransactionState:
            return arg

        for number, state in enumerate((COMMIT, ROLLBACK, UNKNOWN)):
            message = Message("T", b"%d" % number)
            ended = await producer.send_in_transaction(message, local, state)
            assert (ended.state, ended.confirmed) == (state, state is not UNKNOWN)
            assert seen[-1] == (b"%d" % number, state)
        await producer.send_in_transaction(Message("T", b"3"), in_a_thread, COMMIT)
        assert sorted(await here.bodies()) == [b"0", b"3"]
        await world.until(lambda: len(check.asked) == 2, every=0.1)
        assert [message.body for message in check.asked] == [b"2", b"2"]
        assert check.asked[0].topic == "T"
        check.state = COMMIT
        await world.until(lambda: here.pending == 0, every=0.1)
        assert sorted(await here.bodies()) == [b"0", b"2", b"3"]
        await producer.close()
        await here.broker.close()

    run(body)


def test_a_local_transaction_that_raises_stays_open_and_is_asked_about() -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        producer = await here.producer(check := Told(ROLLBACK))

        async def local(message: Message, arg: object) -> TransactionState:
            raise OSError("the database is away")

        with pytest.raises(OSError, match="away"):
            await producer.send_in_transaction(Message("T", b"x"), local)
        await world.until(lambda: here.pending == 1)
        await world.until(lambda: here.pending == 0, every=0.1)
        assert len(check.asked) == 1
        assert await here.bodies() == []
        await producer.close()
        await here.broker.close()

    run(body)


def test_while_it_runs_and_when_it_has_ended_the_application_is_not_asked() -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        producer = await here.producer(check := Told(ROLLBACK))
        async with producer.transaction(Message("T", b"slow")):
            await asyncio.sleep(5)
            assert here.broker.messaging.check_backs.checks >= 3
            assert here.pending == 1
        assert here.pending == 0
        transaction = await producer.transaction(Message("T", b"unheard")).begin()
        transaction.state = COMMIT  # decided, and the broker has not heard
        async with asyncio.timeout(30):
            while sorted(await here.bodies()) != [b"slow", b"unheard"]:
                await asyncio.sleep(0.1)
        assert here.pending == 0
        assert check.asked == []
        await producer.close()
        await here.broker.close()

    run(body)


def test_another_member_answers_for_one_that_died() -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        dying = await here.producer(Told(ROLLBACK))
        await dying.transaction(Message("T", b"orphan", keys="4711")).begin()
        world.nodes[-1].power_off()
        heir = await here.producer(check := Told(COMMIT))
        await world.until(lambda: check.asked, every=0.1)
        assert check.asked[0].keys == ["4711"]
        await world.until(lambda: here.pending == 0, every=0.1)
        assert await here.bodies() == [b"orphan"]
        await heir.close()
        await here.broker.close()

    run(body)


def test_a_half_that_was_sent_twice_is_committed_once() -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        producer = await here.producer(check := Told(COMMIT))
        message = Message("T", b"once", properties={"UNIQ_KEY": "U"})
        first = await producer.transaction(message).begin()
        second = await producer.transaction(message).begin()
        assert first.transaction_id == second.transaction_id == "U"
        await second.commit()
        await world.until(lambda: here.pending == 0, every=0.1)
        assert await here.bodies() == [b"once"]
        assert check.asked == []
        await producer.close()
        await here.broker.close()

    run(body)


@pytest.mark.parametrize("wrong", ["yes", None, ValueError("no")])
def test_a_check_that_fails_is_reported_and_leaves_it_open(wrong: object) -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        producer = await here.producer(check := Told(wrong))
        transaction = await producer.transaction(Message("T", b"x")).begin()
        await transaction.end(UNKNOWN)
        await world.until(lambda: here.errors, every=0.1)
        assert "check" in str(here.errors[0])
        assert here.pending == 1
        check.state = COMMIT
        await world.until(lambda: here.pending == 0, every=0.1)
        assert await here.bodies() == [b"x"]
        await producer.close()
        await here.broker.close()

    run(body)


def test_wrong_uses_are_refused() -> None:
    async def body(world: World) -> None:
        here = await setting(world, transaction_check_max=1)
        producer = await here.producer(Told(UNKNOWN))
        transaction = producer.transaction(Message("T", b"x"))
        with pytest.raises(InvalidParameter, match="has not begun"):
            await transaction.commit()
        await transaction.begin()
        with pytest.raises(InvalidParameter, match="has begun already"):
            await transaction.begin()
        with pytest.raises(InvalidParameter, match="no end of a transaction"):
            await transaction.end("commit")  # type: ignore[arg-type]
        await transaction.rollback()
        await transaction.rollback()
        with pytest.raises(InvalidParameter, match="ended by ROLLBACK"):
            await transaction.commit()
        late = await producer.transaction(Message("T", b"late")).begin()
        await world.until(lambda: here.broker.messaging.check_backs.expired, every=0.1)
        with pytest.raises(TransactionEnded, match="expired"):
            await late.commit()
        lost = await producer.transaction(Message("T", b"lost")).begin()
        lost._result = late._result
        producer._transactions._group = "others"
        with pytest.raises(TransactionFailed, match="producer group wrong"):
            await lost.rollback()
        assert await here.bodies() == []
        producer._transactions._group = "payers"
        await producer.close()
        await here.broker.close()

    run(body)


def test_a_refused_half_is_sent_again_and_an_end_waits_for_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        producer = await here.producer(Told())
        refused = 0
        admission = here.broker.messaging.ends._admission
        ready = type(admission).check_ready

        def check_ready(self: Any) -> None:
            nonlocal refused
            if refused < 2:
                refused += 1
                raise SystemBusy("not now")
            ready(self)

        sends = here.broker.messaging.sends
        monkeypatch.setattr(sends, "_check_ready", lambda: check_ready(admission))
        transaction = await producer.transaction(Message("T", b"x")).begin()
        assert refused == 2
        refused = 0
        monkeypatch.setattr(admission, "check_ready", lambda: check_ready(admission))
        await transaction.commit()
        assert refused == 2
        assert transaction.confirmed
        assert await here.bodies() == [b"x"]
        await producer.close()
        await here.broker.close()

    run(body)


def test_a_block_that_ends_its_transaction_by_unknown_leaves_it_to_check() -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        producer = await here.producer(check := Told(ROLLBACK))
        async with producer.transaction(Message("T", b"x")) as transaction:
            await transaction.end(UNKNOWN)
        assert (transaction.state, transaction.confirmed) == (UNKNOWN, False)
        await world.until(lambda: here.pending == 1)
        await world.until(lambda: here.pending == 0, every=0.1)
        assert [message.body for message in check.asked] == [b"x"]
        assert await here.bodies() == []
        await producer.close()
        await here.broker.close()

    run(body)


def test_a_local_transaction_that_says_no_state_is_left_to_check() -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        producer = await here.producer(check := Told(COMMIT))

        async def local(message: Message, arg: Any) -> Any:
            return arg

        ended = await producer.send_in_transaction(Message("T", b"none"), local, None)
        assert ended.state is UNKNOWN
        with pytest.raises(InvalidParameter, match="'yes' is no end of a transaction"):
            await producer.send_in_transaction(Message("T", b"wrong"), local, "yes")
        await world.until(lambda: here.pending == 2)
        await world.until(lambda: here.pending == 0, every=0.1)
        assert {message.body for message in check.asked} == {b"none", b"wrong"}
        assert sorted(await here.bodies()) == [b"none", b"wrong"]
        await producer.close()
        await here.broker.close()

    run(body)


def test_it_remembers_so_many_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        monkeypatch.setattr(transactions, "KNOWN_MOST", 2)
        here = await setting(world)
        producer = await here.producer(Told())
        for _ in range(4):
            async with producer.transaction(Message("T", b"x")):
                pass
        assert len(producer._transactions._known) == 2
        await producer.close()
        await here.broker.close()

    run(body)


def test_ordinary_messages_go_beside_the_transactions() -> None:
    async def body(world: World) -> None:
        here = await setting(world)
        producer = await here.producer(Told())
        replier = aio.Producer("repliers", here.nameserver, runtime=world.node("replier"))
        consumer = aio.PullConsumer(
            "repliers", here.nameserver, from_beginning=True, runtime=world.node("consumer")
        )
        consumer.subscribe("questions")
        async with producer.transaction(Message("T", b"in one")) as transaction:
            result = await producer.send(Message("T", b"sent"))
            handle = await producer.send_async(Message("T", b"later"))
            assert (result.ok, (await handle).ok) == (True, True)
            assert sorted(await here.bodies()) == [b"later", b"sent"]
            await transaction.commit()
        assert sorted(await here.bodies()) == [b"in one", b"later", b"sent"]
        assert producer.options.retries == 2  # a half has none
        async with replier, consumer:
            asking = asyncio.create_task(producer.request(Message("questions", b"?"), timeout=30))
            while not (questions := await consumer.poll(1.0)):
                pass
            await replier.reply(questions[0], b"!")
            assert (await asking).body == b"!"
        last = await producer.send_async(Message("T", b"last"))
        await producer.close()
        assert last.done()
        assert here.errors == []
        await here.broker.close()

    run(body)


def test_the_blocking_producer_sends_ordinary_messages_too(tmp_path: Path) -> None:
    def check(message: ReceivedMessage) -> TransactionState:
        return ROLLBACK

    with served(tmp_path) as nameserver:
        producer = BlockingProducer("payers", nameserver, check=check, namespace="space")
        with pytest.raises(ClientClosed, match="not started"):
            producer.transaction(Message("T", b"x"))
        with (
            producer,
            PullConsumer("readers", nameserver, namespace="space", from_beginning=True) as consumer,
        ):
            with producer.transaction(Message("T", b"in one")):
                producer.send(Message("T", b"sent"))
            handles = [producer.send_async(Message("T", b"%d" % n)) for n in range(100)]
            assert all(handle.result(30).ok for handle in handles)
            consumer.subscribe("T")
            got: list[bytes] = []
            while len(got) < 102:
                got += [bytes(message.body) for message in consumer.poll(30.0)]
        assert {b"in one", b"sent", b"0", b"99"} <= set(got)
        with pytest.raises(ClientClosed):
            producer.send(Message("T", b"x"))


def test_the_blocking_producer_runs_the_local_transaction_in_the_callers_thread(
    tmp_path: Path,
) -> None:
    asked: list[tuple[str, threading.Thread]] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append((message.body.decode(), threading.current_thread()))
        return COMMIT

    def local(message: Message, arg: TransactionState) -> TransactionState:
        assert threading.current_thread() is threading.main_thread()
        return arg

    with (
        served(tmp_path, transaction_timeout_ms=50, transaction_check_ms=100) as nameserver,
        BlockingProducer("payers", nameserver, check=check) as producer,
    ):
        assert producer.group == "payers"
        with producer.transaction(Message("T", b"block")) as transaction:
            assert transaction.result.ok
            assert transaction.transaction_id == transaction.result.message_id
        assert (transaction.state, transaction.confirmed) == (COMMIT, True)
        assert transaction.message.body == b"block"
        assert "COMMIT" in repr(transaction)
        with pytest.raises(ValueError, match="no"), producer.transaction(Message("T", b"raised")):
            raise ValueError("no")
        assert producer.send_in_transaction(Message("T", b"said"), local, COMMIT).confirmed
        assert producer.send_in_transaction(Message("T", b"dropped"), local, ROLLBACK).confirmed
        ended = producer.send_in_transaction(Message("T", b"asked"), local, UNKNOWN)
        assert not ended.confirmed
        with pytest.raises(AttributeError):
            producer.send_in_transaction(Message("T", b"failed"), lambda m, arg: arg.nothing)
        manual = producer.transaction(Message("T", b"manual")).begin()
        manual.rollback()
        manual = producer.transaction(Message("T", b"by hand")).begin()
        manual.commit()
        found: set[bytes] = set()
        consumer = PullConsumer("readers", nameserver, consume_from="first")
        consumer.subscribe("T")
        with consumer:
            while len(found) < 5:
                found |= {message.body for message in consumer.poll(10.0)}
        assert found == {b"block", b"said", b"asked", b"failed", b"by hand"}
        assert sorted(body for body, _ in asked) == ["asked", "failed"]
        assert threading.main_thread() not in {thread for _, thread in asked}


def test_both_faces_have_the_same_methods() -> None:
    for ours, theirs in (
        (BlockingProducer, aio.TransactionProducer),
        (BlockingTransaction, aio.Transaction),
    ):
        for name, method in vars(theirs).items():
            if name.startswith("_") or name == "check_transaction" or not callable(method):
                continue
            here, there = (
                list(inspect.signature(getattr(each, name)).parameters) for each in (ours, theirs)
            )
            assert here == there, name
            assert inspect.getdoc(getattr(ours, name)), name
