"""What is said to a broker of either make: the same messages, from the same seed, by our client.

Unique ids are given, not generated, so that two stores can be compared down to their key hashes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from interop_nodes import Node
from saturnmq.aio import Admin, Message, MessageQueue, Producer, PullConsumer, ReceivedMessage
from saturnmq.client.consumer.results import DEAD_LETTER
from saturnmq.client.consumer.send_back import SendBack
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.ids import decode_message_id
from saturnmq.protocol.properties import encode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import SaturnError

TOPIC, GROUP = "interop", "interop-readers"
QUEUES = 4
LONGEST_GROUP = "G" * 120
UNKNOWN_GROUP = "nobody-made-this"
VERY_LONG_GROUP = "g" * 200  # its retry topic has more than 127 bytes: a V2 frame
# No request makes such a group, but a broker reads it from its file.
GROUPS_FILE = {"subscriptionGroupTable": {VERY_LONG_GROUP: {"groupName": VERY_LONG_GROUP}}}
TAGS = ("TagA", "TagB", "Aa", "BB", "polygenelubricants", "标签-🪐")
UNKNOWN_DELAY_LEVEL = 25  # counts as the highest, 18
LIVENESS_S = 60.0
SENDERS = 8


@dataclass(frozen=True)
class Sent:
    """An acknowledged message and where it was acknowledged to lie."""

    queue: MessageQueue
    queue_offset: int
    body: bytes
    keys: tuple[str, ...]
    message_id: str
    offset_id: str

    @property
    def physical_offset(self) -> int:
        return decode_message_id(self.offset_id)[2]


class Speaker:
    """Sends to the one broker that a nameserver knows: `sent` is what was acknowledged, `said` maps
    the unique id of whatever was tried to its body."""

    def __init__(self, admin: Admin, producer: Producer, address: str, seed: int) -> None:
        self.sent: list[Sent] = []
        self.said: dict[str, bytes] = {}
        self.admin = admin
        self.producer = producer
        self.address = address
        self.chance = random.Random(seed)
        self.seed = seed
        self._count = 0
        self.broker = ""

    async def prepare(self) -> None:
        await self.admin.create_topic(TOPIC, QUEUES)
        for group in (GROUP, LONGEST_GROUP):
            await self.admin.create_group(group)
        self.broker = (await self.admin.route(TOPIC)).queues[0].broker_name

    def queue(self, queue_id: int, topic: str = TOPIC) -> MessageQueue:
        return MessageQueue(topic, self.broker, queue_id)

    def message(self, size: int, *, packs: bool = False, delay_level: int = 0) -> Message:
        """The next message: seeded body, tag, keys, properties and flag."""
        self._count += 1
        chance, number = self.chance, self._count
        head = f"{self.seed}/{number} ".encode()
        rest = max(0, size - len(head))
        body = head + (b"saturn" * (rest // 6) if packs else chance.randbytes(rest))
        keys = [f"k{self.seed}-{number}", f"order_{number % 100}", "schlüssel"][
            : chance.randrange(4)
        ]
        properties = {"UNIQ_KEY": f"{self.seed:016X}{number:016X}"}
        self.said[properties["UNIQ_KEY"]] = body
        for name in ("colour", "Aa", "BB", "größe")[: chance.randrange(5)]:
            properties[name] = "x" * chance.randrange(1, 40)
        return Message(
            TOPIC,
            body,
            tag=chance.choice((None, *TAGS)),
            keys=keys,
            properties=properties,
            delay_level=delay_level,
            flag=chance.choice((0, 0, 7, -1)),
        )

    def next_queue(self) -> MessageQueue:
        """The queues in turn."""
        return self.queue(len(self.sent) % QUEUES)

    async def send(self, messages: Iterable[Message], queue: MessageQueue | None = None) -> None:
        """One request each, one after the other."""
        for message in messages:
            result = await self.producer.send(message, queue=queue or self.next_queue())
            self.note([message], [result])

    async def send_batch(self, messages: Sequence[Message]) -> None:
        results = await self.producer.send_batch(messages, queue=self.next_queue())
        self.note(messages, results)

    def note(self, messages, results) -> None:
        for message, result in zip(messages, results, strict=True):
            self.sent.append(
                Sent(
                    result.queue,
                    result.queue_offset,
                    bytes(message.body),
                    tuple(message.keys),
                    result.message_id,
                    result.offset_message_id,
                )
            )

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        """A request that our client would not make."""
        command = Command.request(code, ext, body)
        return await self.admin.core.invoke(self.address, command, 10.0)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        ext = {"topic": topic, "queueId": str(queue_id)}
        return int((await self.ask(RequestCode.GET_MAX_OFFSET, ext)).ext["offset"])

    async def until_arrived(self, topic: str, queue_id: int, count: int) -> None:
        """Wait until the queue holds `count` messages."""

        async def there() -> bool:
            return await self.max_offset(topic, queue_id) >= count

        await until(there, f"{count} messages in {topic} {queue_id}")

    async def received(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """The message at one place, as a consumer gets it."""
        core = self.admin.core
        async with PullConsumer("interop-looker", core=core, auto_commit=False) as consumer:
            consumer.assign([queue])
            consumer.seek(queue, offset)
            messages = await consumer.poll(LIVENESS_S, 1)
        assert [message.queue_offset for message in messages] == [offset]
        return messages[0]

    async def send_raw(
        self, topic: str, body: bytes, properties: dict[str, str], *, batch: bool = False
    ) -> None:
        ext = {
            "a": "interop",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": encode_properties(properties).decode(),
            "j": "0",
            "k": "false",
            "m": "true" if batch else "false",
        }
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        await self.ask(code, ext, body)


async def everything(speaker: Speaker) -> None:
    """Every form a message can take, in an order that no clock decides."""
    chance = random.Random(speaker.seed)
    await speaker.send(speaker.message(chance.randrange(1, 1200)) for _ in range(1500))
    for _ in range(60):
        await speaker.send_batch(
            [speaker.message(chance.randrange(1, 900)) for _ in range(chance.randrange(1, 120))]
        )
    sizes = (4096, 4097, 5000, 20_000, 200_000)
    await speaker.send(speaker.message(size, packs=packs) for size in sizes for packs in (0, 1))
    await _delayed(speaker)
    await _sent_back(speaker)
    await _long_names(speaker)
    await _empty_bodies(speaker)
    await speaker.send(speaker.message(300) for _ in range(200))
    # Without a unique id, so that the broker gives one. The last, for its length may differ:
    # RocketMQ makes ids of 56 digits on machines whose first address is one of IPv6.
    await speaker.send_raw(TOPIC, b"bare", {})


async def _delayed(speaker: Speaker) -> None:
    queue = speaker.next_queue()
    before, told = await speaker.max_offset(TOPIC, queue.queue_id), len(speaker.sent)
    for level in (17, 18, UNKNOWN_DELAY_LEVEL):
        await speaker.send([speaker.message(100, delay_level=level)], queue)
    await speaker.send([speaker.message(100, delay_level=1)], queue)
    await speaker.send([speaker.message(9000, packs=True, delay_level=1)], queue)
    # What waits for hours is only in SCHEDULE_TOPIC_XXXX; what waited a second comes back.
    await speaker.until_arrived(TOPIC, queue.queue_id, before + 2)
    del speaker.sent[told:]


async def _sent_back(speaker: Speaker) -> None:
    """Twice to the retry topic, then over the limit and directly to the dead letters."""
    for group in (GROUP, LONGEST_GROUP):
        send_back = SendBack(speaker.admin.core, group, 2)
        retry = speaker.queue(0, f"%RETRY%{group}")
        for at in (0, 1, -1, -2):  # short ones, then compressed or large ones
            sent = speaker.sent[at]
            message = await speaker.received(sent.queue, sent.queue_offset)
            for _attempt in range(2):
                count = await _end(speaker, retry)
                assert await send_back(message, 1)
                await speaker.until_arrived(retry.topic, 0, count + 1)
                message = await speaker.received(retry, count)
            assert await send_back(message, 0)
        sent = speaker.sent[2]
        assert await send_back(await speaker.received(sent.queue, sent.queue_offset), DEAD_LETTER)


async def _end(speaker: Speaker, queue: MessageQueue) -> int:
    await speaker.admin.core.route(TOPIC)
    return await speaker.max_offset(queue.topic, queue.queue_id)


async def _long_names(speaker: Speaker) -> None:
    for group in (LONGEST_GROUP, VERY_LONG_GROUP, UNKNOWN_GROUP):
        for number in range(3):
            properties = {"UNIQ_KEY": f"{len(group):016X}{number:016X}", "TAGS": "TagA"}
            await speaker.send_raw(f"%RETRY%{group}", b"to a long name", properties)


async def _empty_bodies(speaker: Speaker) -> None:
    """Which only a batch can have."""
    entries = [(b"", encode_properties({"KEYS": "of-nothing", "TAGS": "Aa"}), 0), (b"", b"", 5)]
    await speaker.send_raw(TOPIC, bytes(encode_batch(entries)), {"WAIT": "true"}, batch=True)


async def send_until_killed(speaker: Speaker, node: Node) -> None:
    """Several senders at once; SIGKILL while all of them wait for an acknowledgement."""
    begun = len(speaker.sent)

    async def send() -> None:
        while True:
            message = speaker.message(speaker.chance.randrange(1, 900))
            result = await speaker.producer.send(message)
            speaker.note([message], [result])
            if len(speaker.sent) == begun + 500:
                node.kill()

    for ended in await asyncio.gather(*(send() for _ in range(SENDERS)), return_exceptions=True):
        assert isinstance(ended, SaturnError), f"a sender ended with {ended!r}"


async def until(
    done: Callable[[], Awaitable[bool]], what: str, within_s: float = LIVENESS_S
) -> None:
    """Wait for a condition."""
    try:
        async with asyncio.timeout(within_s):
            while not await done():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:.0f} s: {what}") from None


@contextlib.asynccontextmanager
async def speaking(nameserver: str, address: str, seed: int) -> AsyncIterator[Speaker]:
    """A speaker for the broker at `address`."""
    async with (
        Admin(nameserver) as admin,
        # A broker that is slow to answer must not get a message twice.
        Producer("interop", nameserver, send_timeout=30.0, retries=0) as producer,
    ):
        made = Speaker(admin, producer, address, seed)
        await made.prepare()
        yield made
