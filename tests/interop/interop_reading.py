"""Whether a broker has what was acknowledged, whoever stored it: by queue offset, by tag, by time,
by key and by id.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from interop_messages import GROUP, LIVENESS_S, Sent
from saturnmq.aio import Admin, MessageQueue, PullConsumer, ReceivedMessage
from saturnmq.protocol.ids import decode_message_id, encode_address

LOOKUPS = 60  # of each kind, spread over all messages
TIMES = 10  # of each queue
FILTER = "标签-🪐 || BB"  # the hash of BB is that of Aa

Messages = dict[tuple[MessageQueue, int], ReceivedMessage]


async def read_back(
    nameserver: str, sent: Sequence[Sent], said: Mapping[str, bytes], *, port: int | None = None
) -> Counter[str]:
    """Assert that everything of `sent` is where it was acknowledged and nothing is there that was
    never said; what was looked at, by kind. `port`: of the slave that has it now, as offset ids
    name the broker that stored the message."""
    figures: Counter[str] = Counter()
    found: Messages = {}
    for topic in {each.queue.topic for each in sent}:
        found |= await read_topic(nameserver, topic)
        figures["messages read by tag"] += await read_by_tag(nameserver, topic, found)
        figures["lookups by time"] += await look_up_by_time(nameserver, found)
    for message in found.values():
        assert bytes(message.body) == said[message.message_id], "changed, or never sent"
    for each in sent:
        message = found[each.queue, each.queue_offset]
        assert (message.message_id, bytes(message.body)) == (each.message_id, each.body)
        assert (tuple(message.keys), message.offset_message_id) == (each.keys, each.offset_id)
    figures["messages read back"] += len(found)

    async with Admin(nameserver, timeout=30.0) as admin:
        for each in sent[:: max(1, len(sent) // LOOKUPS)]:
            host, stored_at, offset = decode_message_id(each.offset_id)
            place = encode_address(f"{host}:{port or stored_at}")
            message = await admin.message_by_offset_id(place.hex().upper() + f"{offset:016X}")
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


async def read_topic(nameserver: str, topic: str) -> Messages:
    """Every message of a topic, by its place; its queues have no holes."""
    async with Admin(nameserver) as admin:
        places = await admin.describe_topic(topic)
    return await _read(
        nameserver,
        {place.queue: place.min_offset for place in places},
        {(each.queue, at) for each in places for at in range(each.min_offset, each.max_offset)},
        "*",
    )


async def read_by_tag(nameserver: str, topic: str, messages: Messages) -> int:
    """Read once more with a filter, which the broker applies to its queue entries."""
    wanted = {place for place, each in messages.items() if each.tag in FILTER.split(" || ")}
    starts = {queue: at for queue, at in sorted(messages, reverse=True) if queue.topic == topic}
    filtered = await _read(nameserver, starts, wanted, FILTER)
    assert filtered.keys() == wanted
    return len(wanted)


async def _read(
    nameserver: str,
    starts: Mapping[MessageQueue, int],
    wanted: set[tuple[MessageQueue, int]],
    expression: str,
) -> Messages:
    found: Messages = {}
    async with PullConsumer("interop-reader", nameserver, auto_commit=False) as consumer:
        consumer.assign(starts, expression)
        for queue, offset in starts.items():
            consumer.seek(queue, offset)
        async with asyncio.timeout(LIVENESS_S):
            while not wanted <= found.keys():
                for message in await consumer.poll(1.0):
                    found[message.queue, message.queue_offset] = message
    return found


async def look_up_by_time(nameserver: str, messages: Messages) -> int:
    """The offset of a time is that of the first message stored then or later."""
    count = 0
    async with Admin(nameserver, timeout=30.0) as admin:
        for queue in {queue for queue, _ in messages}:
            times = {at: each.store_timestamp for (q, at), each in messages.items() if q == queue}
            for at in sorted(times)[:: max(1, len(times) // TIMES)]:
                first = min(offset for offset, time in times.items() if time >= times[at])
                assert await admin.offset_by_time(queue, times[at]) == first
                count += 1
    return count


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
