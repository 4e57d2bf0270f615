"""Dead letters: the messages that a group has given up, in `%DLQ%<group>`, and how it gets them
again.

A copy goes to `%RETRY%<group>` on the broker that has the letter, so that this group alone consumes
it, as a first delivery of its original topic. An ordered group consumes no retries, and one that
only pops not these: for them, or for all groups, the copy goes to the original topic. The letter
itself stays until it expires.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from saturnmq.client.admin.message_finding import MessageFinder
from saturnmq.client.core import ClientCore
from saturnmq.client.single_send import send_again
from saturnmq.protocol import properties as names
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.topics import dlq_topic, retry_topic
from saturnmq.runtime.errors import MessageIllegal, RouteNotFound, SaturnError, TopicNotExist

# Of the letter's own way, or of the frame that it lies in.
_LEFT_OUT = {names.CRC32, names.DELAY, names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID}

# The topic of a letter is gone or takes nothing: others of the group may have another one.
OF_ITS_TOPIC = (RouteNotFound, TopicNotExist)


def origin_of(letter: ReceivedMessage) -> str:
    """The topic that the message was sent to first."""
    told = letter.properties
    return told.get(names.RETRY_TOPIC) or told.get(names.DLQ_ORIGIN_TOPIC) or letter.topic


async def letters_of(
    finder: MessageFinder, group: str, ids: Sequence[str] | None
) -> AsyncIterator[list[ReceivedMessage]]:
    """The dead letters of a group, some at a time: all, or those with these ids. A message that was
    given up more than once, because it was sent again, is among them once."""
    wanted = None if ids is None else set(ids)
    seen: set[str] = set()
    try:
        async for letters in finder.all_of(dlq_topic(group)):
            new = {each.message_id: each for each in letters if each.message_id not in seen}
            seen.update(new)
            yield [each for name, each in new.items() if wanted is None or name in wanted]
    except TopicNotExist:
        return  # it has never given a message up


async def resend(
    core: ClientCore, group: str, letter: ReceivedMessage, *, to_topic: bool, timeout: float
) -> None:
    """Let the group, or with `to_topic` all groups of the original topic, have a letter again."""
    origin = origin_of(letter)
    told = {name: value for name, value in letter.properties.items() if name not in _LEFT_OUT}
    told[names.WAIT] = "true"  # of retries and letters it is false, and this is told as done
    if to_topic:
        told.pop(names.RETRY_TOPIC, None)
        if origin == letter.topic:
            raise MessageIllegal(
                f"message {letter.message_id} does not name its original topic: leave --to-topic "
                "out"
            )
    else:
        told[names.RETRY_TOPIC] = origin
    queue = await _queue_for(core, origin if to_topic else retry_topic(group), letter.broker_name)
    address = core.master_address(queue.broker_name)
    await core.invoke(address, send_again(queue, group, letter, told), timeout)


async def _queue_for(core: ClientCore, topic: str, broker_name: str) -> MessageQueue:
    """A queue of the topic, of the broker that has the letter if it has one."""
    await core.route(topic)
    queues = core.publish_queues(topic)
    if not queues:
        raise RouteNotFound(f"topic {topic} has no writable queue: no master serves it now")
    near = [queue for queue in queues if queue.broker_name == broker_name]
    return core.runtime.random.choice(near or queues)


async def resend_all(
    core: ClientCore,
    group: str,
    letters: AsyncIterator[list[ReceivedMessage]],
    *,
    to_topic: bool,
    timeout: float,
) -> int:
    """Send these letters again; returns how many they were. One that is refused keeps no other from
    it; the error that is raised at the end, or when the next one would fail as well, has the
    counts."""
    resent = refused = 0
    first: SaturnError | None = None
    async for some in letters:
        for letter in some:
            try:
                await resend(core, group, letter, to_topic=to_topic, timeout=timeout)
                resent += 1
            except SaturnError as error:
                refused += 1
                first = first or type(error)(f"{letter.message_id}: {error}")
                if error.retriable and not isinstance(error, OF_ITS_TOPIC):
                    raise _counted(first, resent, refused) from error
    if first is not None:
        raise _counted(first, resent, refused)
    return resent


def _counted(first: SaturnError, resent: int, refused: int) -> SaturnError:
    return type(first)(
        f"{resent:,} dead letters were sent again, {refused:,} were not, the first of them {first}"
    )
