"""Whether a broker has what was acknowledged, whoever stored it: by queue offset, by key, by id."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from interop_messages import GROUP, LIVENESS_S, Sent
from saturnmq.aio import Admin, MessageQueue, PullConsumer, ReceivedMessage

LOOKUPS = 60  # of each kind, spread over all messages


async def read_back(
    nameserver: str, sent: Sequence[Sent], said: Mapping[str, bytes]
) -> Counter[str]:
    """Assert that everything of `sent` is where it was acknowledged and nothing is there that was
    never said; what was looked at, by kind."""
    figures: Counter[str] = Counter()
    found: dict[tuple[MessageQueue, int], ReceivedMessage] = {}
    for topic in {each.queue.topic for each in sent}:
        found |= await read_topic(nameserver, topic)
    for message in found.values():
        assert bytes(message.body) == said[message.message_id], "changed, or never sent"
    for each in sent:
        message = found[each.queue, each.queue_offset]
        assert (message.message_id, bytes(message.body)) == (each.message_id, each.body)
        assert (tuple(message.keys), message.offset_message_id) == (each.keys, each.offset_id)
    figures["messages read back"] += len(found)

    async with Admin(nameserver, timeout=30.0) as admin:
        for each in sent[:: max(1, len(sent) // LOOKUPS)]:
            message = await admin.message_by_offset_id(each.offset_id)
            assert message.message_id == each.message_id
            figures["lookups by offset id"] += 1
            message = await admin.find_message(each.message_id, each.queue.topic)
            assert message.queue_offset == each.queue_offset
            figures["lookups by unique id"] += 1
            for key in each.keys[:1]:  # the first is this message's alone
                hits = await admin.find_by_key(each.queue.topic, key)
                assert [hit.message_id for hit in hits] == [each.message_id]
                figures["lookups by key"] += 1
    return figures


async def read_topic(
    nameserver: str, topic: str
) -> dict[tuple[MessageQueue, int], ReceivedMessage]:
    """Every message of a topic, by its place; its queues have no holes."""
    found: dict[tuple[MessageQueue, int], ReceivedMessage] = {}
    async with Admin(nameserver) as admin:
        places = await admin.describe_topic(topic)
    ranges = [(place.queue, range(place.min_offset, place.max_offset)) for place in places]
    wanted = {(queue, at) for queue, offsets in ranges for at in offsets}
    async with PullConsumer("interop-reader", nameserver, auto_commit=False) as consumer:
        consumer.assign(queue for queue, _ in ranges)
        for queue, offsets in ranges:
            consumer.seek(queue, offsets.start)
        async with asyncio.timeout(LIVENESS_S):
            while not wanted <= found.keys():
                for message in await consumer.poll(1.0):
                    found[message.queue, message.queue_offset] = message
    return found


async def consume_some(nameserver: str, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
    """Let the group go on a little on every queue; what it committed."""
    committed: dict[MessageQueue, int] = {}
    async with Admin(nameserver) as admin:
        places = await admin.describe_topic(queues[0].topic)
    first = {place.queue: place.min_offset for place in places}
    async with PullConsumer(GROUP, nameserver, auto_commit=False, from_beginning=True) as consumer:
        consumer.assign(queues)
        starts = {
            queue: max(await consumer.committed(queue) or 0, first[queue]) for queue in queues
        }
        async with asyncio.timeout(LIVENESS_S):
            while len(committed) < len(queues):
                for message in await consumer.poll(1.0, 50):
                    if message.queue not in committed:
                        assert message.queue_offset == starts[message.queue], "not where it was"
                    committed[message.queue] = message.queue_offset + 1
        await consumer.commit(committed)
    return committed


async def committed_offsets(
    nameserver: str, queues: Sequence[MessageQueue]
) -> dict[MessageQueue, int]:
    async with PullConsumer(GROUP, nameserver, auto_commit=False) as consumer:
        return {queue: await consumer.committed(queue) or 0 for queue in queues}
