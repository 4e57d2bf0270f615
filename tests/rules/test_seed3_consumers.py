"""Rows 3.22 to 3.30: questions and answers, consumers. See `rows.tsv`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from rig import bodies, dispatch, frames, message, open_store, raw_frame
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.protocol.message import ReceivedMessage
from world_rig import Remote, World, new_disk, run, saved_json

COMMIT, ROLLBACK = 0x8, 0xC


def test_row_3_22_offsets_per_group_topic_and_queue() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for number in range(12):
            await client.send(b"x", "TU"[number % 2], number % 4)
        for offset, place in enumerate((("G", "T", 0), ("G", "T", 2), ("G", "U", 1)), 1):
            await client.commit(offset, *place)
        await client.commit(3, "H", "T", 0)
        assert await client.committed("G", "T", 0) == 1
        assert await client.committed("G", "T", 2) == 2
        assert await client.committed("G", "U", 1) == 3
        assert await client.committed("H", "T", 0) == 3
        assert await client.committed("H", "T", 2) is None
        await broker.close()
        assert saved_json(world.disk, "consumerOffset.json")["offsetTable"] == {
            "T@G": {"0": 1, "2": 2},
            "U@G": {"1": 3},
            "T@H": {"0": 3},
        }

    run(body)


def test_row_3_23_offsets_are_saved_every_5_s_and_read_at_the_start() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for _ in range(30):
            await client.send(b"x")
        await client.commit(1)
        committed = world.loop.time()
        assert BrokerConfig().flush_offsets_ms == 5000

        def saved() -> int | None:
            if not world.disk.exists("/store/config/consumerOffset.json"):
                return None
            table = saved_json(world.disk, "consumerOffset.json")["offsetTable"]
            return table.get("T@G", {}).get("0")

        await world.until(lambda: saved() == 1)
        assert world.loop.time() - committed < 10
        for offset in (2, 3):
            await client.commit(offset)
            committed = world.loop.time()
            assert saved() == offset - 1
            await world.until(lambda wanted=offset: saved() == wanted)
            assert world.loop.time() - committed < 5.1
        await broker.close()
        world.disk.write_file("/store/config/consumerOffset.json", b'{"offsetTable":{"T@G":{0:')
        broker = await world.broker()
        client = await world.connect(broker.address)
        assert await client.committed() == 2, "from the .bak"
        await broker.close()

    run(body)


class Files:
    """The file door of a broadcasting consumer, in memory."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        return self.content.get(path)

    def replace(self, path: str, data: bytes) -> None:
        self.content[path] = data

    def lock(self, path: str) -> str | None:
        return None

    def unlock(self, path: str) -> None: ...


class Listening:
    """A push consumer and the messages it was handed, batch by batch."""

    def __init__(self, world: World, nameserver: str, **options: object) -> None:
        self.batches: list[list[bytes]] = []
        self.held: set[bytes] = set()  # bodies whose batches wait
        self.release = asyncio.Event()
        self.node = world.node(f"consumer-{len(world.nodes)}")
        self.consumer = PushConsumer(
            "G",
            [nameserver],
            runtime=self.node,
            listener=self.listen,
            from_beginning=True,
            **options,  # type: ignore[arg-type]
        )
        self.consumer.subscribe("T")

    async def listen(self, messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        batch = [bytes(message.body) for message in messages]
        self.batches.append(batch)
        if self.held.intersection(batch):
            await self.release.wait()
        return ConsumeResult.SUCCESS

    @property
    def seen(self) -> list[bytes]:
        return sorted(body for batch in self.batches for body in batch)


async def cluster(world: World, count: int) -> tuple[str, Broker, Remote]:
    """A nameserver, a broker and messages b"00", b"01", ... in queue 0 of T."""
    nameserver = await world.nameserver()
    broker = await world.broker(nameservers=(nameserver,))
    client = await world.connect(broker.address)
    for number in range(count):
        assert (await client.send(b"%02d" % number)).code == 0
    await world.until(lambda: broker.store.max_offset("T", 0) == count)
    return nameserver, broker, client


def test_row_3_24_a_broadcasting_consumer_keeps_offsets_in_a_file_of_its_own() -> None:
    async def body(world: World) -> None:
        nameserver, broker, client = await cluster(world, 5)
        files = Files()
        local = {"broadcasting": True, "files": files, "offsets_path": "/me/offsets.json"}
        one = Listening(world, nameserver, **local)
        await one.consumer.start()
        await world.until(lambda: len(one.seen) == 5)
        await one.consumer.close()
        text = files.content["/me/offsets.json"].decode()
        assert '"offsetTable"' in text
        assert '"brokerName":"broker-a"' in text
        assert await client.committed() is None, "the broker knows nothing of it"
        await client.send(b"05")
        two = Listening(world, nameserver, **local)
        await two.consumer.start()
        await world.until(lambda: two.seen)
        await asyncio.sleep(1)
        assert two.seen == [b"05"], "it goes on where it was"
        await two.consumer.close()
        await broker.close()

    run(body)


def test_row_3_25_only_rising_offsets_are_accepted_and_a_reset_is_no_commit() -> None:
    async def body(world: World) -> None:
        _, broker, client = await cluster(world, 9)
        for offset, expected in ((5, 5), (3, 5), (5, 5), (7, 7), (0, 7)):
            assert (await client.commit(offset)).code == 0
            assert await client.committed() == expected
        reset = {"topic": "T", "group": "G", "timestamp": 0}
        assert (await client.ask(222, reset)).code == 0
        assert await client.committed() == 0
        assert (await client.commit(9)).code == 0
        assert await client.committed() == 0, "of one that has not heard of the reset"
        assert (await client.pull(0)).code == 0
        for offset, expected in ((2, 2), (1, 2)):
            await client.commit(offset)
            assert await client.committed() == expected
        await broker.close()

    run(body)


def test_row_3_26_a_push_consumer_pulls() -> None:
    async def body(world: World) -> None:
        nameserver, broker, _ = await cluster(world, 1)
        listening = Listening(world, nameserver)
        await listening.consumer.start()
        await world.until(lambda: listening.seen)
        # One pull for each of the topic's queues and the retry queue waits at the broker.
        await world.until(lambda: len(broker.messaging.pulls.held) == 4 + 1)
        await listening.consumer.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize("size", [1, 3])
def test_row_3_27_a_listener_gets_so_many_and_the_local_offset_moves_by_batches(size: int) -> None:
    async def body(world: World) -> None:
        nameserver, broker, _ = await cluster(world, 7)
        listening = Listening(
            world, nameserver, consume_message_batch_max_size=size, consume_threads=1
        )
        held = size  # the first of the second batch
        listening.held = {b"%02d" % held}
        await listening.consumer.start()
        await world.until(lambda: len(listening.batches) >= 2)
        known = listening.consumer.consumer_status("T")
        assert {queue.queue_id: offset for queue, offset in known.items()}[0] == size
        listening.release.set()
        await world.until(lambda: len(listening.seen) == 7)
        assert [len(batch) for batch in listening.batches] == ([1] * 7 if size == 1 else [3, 3, 1])
        await listening.consumer.close()
        await broker.close()

    run(body)


def test_row_3_27_a_listener_of_one_message_gets_one() -> None:
    async def body(world: World) -> None:
        nameserver, broker, _ = await cluster(world, 4)
        seen: list[bytes] = []

        async def listen(one: ReceivedMessage) -> ConsumeResult:
            seen.append(bytes(one.body))
            return ConsumeResult.SUCCESS

        consumer = PushConsumer(
            "G",
            [nameserver],
            runtime=world.node("consumer"),
            listener_one=listen,
            from_beginning=True,
        )
        consumer.subscribe("T")
        await consumer.start()
        await world.until(lambda: len(seen) == 4)
        await consumer.close()
        await broker.close()

    run(body)


def test_row_3_28_the_smallest_unprocessed_offset_is_committed_every_5_s() -> None:
    async def body(world: World) -> None:
        nameserver, broker, client = await cluster(world, 8)
        listening = Listening(world, nameserver, consume_message_batch_max_size=1)
        listening.held = {b"02"}
        await listening.consumer.start()
        await world.until(lambda: len(listening.seen) == 8)
        finished = world.loop.time()
        await world.until(lambda: broker.context.offsets.query("G", "T", 0) is not None)
        assert world.loop.time() - finished < 5.1
        assert await client.committed() == 2, "07 is done, 02 is not"
        await asyncio.sleep(12)
        assert await client.committed() == 2
        listening.release.set()
        released = world.loop.time()
        await world.until(lambda: broker.context.offsets.query("G", "T", 0) == 8)
        assert 2.9 < world.loop.time() - released < 3.1, "12 s later it is 3 s to the next"
        await listening.consumer.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize("who", ["consumer", "broker"])
def test_row_3_29_what_was_not_committed_comes_again(who: str) -> None:
    async def body(world: World) -> None:
        nameserver, broker, _ = await cluster(world, 6)
        first = Listening(world, nameserver)
        await first.consumer.start()
        await world.until(lambda: len(first.seen) == 6)
        assert broker.context.offsets.query("G", "T", 0) is None
        first.node.power_off()
        if who == "broker":
            [machine] = [node for node in world.nodes if node.name.startswith("broker")]
            machine.power_off()
            world.disk.kill()
            world.disk.power_on()
            broker = await world.broker(nameservers=(nameserver,))
        second = Listening(world, nameserver)
        await second.consumer.start()
        await world.until(lambda: len(second.seen) == 6, 300)
        assert second.seen == first.seen
        await second.consumer.close()
        await broker.close()

    run(body)


def test_row_3_30_the_broker_filters_and_the_store_knows_transactions() -> None:
    disk = new_disk()
    store = open_store(disk)
    half = store.put(message(b"half", "RMQ_SYS_TRANS_HALF_TOPIC", keys="k"))
    store.put(message(b"rolled back", sys_flag=ROLLBACK, prepared_offset=half.physical_offset))
    dispatch(store)
    assert store.max_offset("T", 0) == 0, "nothing to consume before the commit"
    assert bodies(store, "RMQ_SYS_TRANS_HALF_TOPIC") == [b"half"]
    done = store.put(
        message(b"half", keys="k", sys_flag=COMMIT, prepared_offset=half.physical_offset)
    )
    dispatch(store)
    assert bodies(store) == [b"half"]
    stored = raw_frame(store.message_at(done.physical_offset) or b"")
    assert (stored.sys_flag, stored.prepared) == (COMMIT, half.physical_offset)

    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for tag in "ABA":
            await client.send(tag.encode(), TAGS=tag)
        await world.until(lambda: broker.store.max_offset("T", 0) == 3)
        got = await client.pull(0, subscription="B")
        assert [frame.body for frame in frames(bytes(got.body))] == [b"B"]
        sent = await client.send(b"half", queue=1, TRAN_MSG="true", PGROUP="P")
        which = {
            "producerGroup": "P",
            "tranStateTableOffset": sent.ext["queueOffset"],
            "commitLogOffset": int(sent.ext["msgId"][-16:], 16),
        }
        assert broker.store.max_offset("T", 1) == 0
        await world.until(lambda: broker.messaging.half_log.is_loaded)
        assert (await client.ask(37, {**which, "commitOrRollback": COMMIT})).code == 0
        await world.until(lambda: broker.store.max_offset("T", 1) == 1)
        await broker.close()

    run(body)
