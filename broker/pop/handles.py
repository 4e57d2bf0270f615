"""Receipt handles: RocketMQ's POP_CK, eight words with a blank between them.

    <start offset> <pop time> <invisible time> <revive queue> <kind> <broker> <queue> <offset>

The kind says which topic the message is in: 0 the topic itself, 1 and 2 the group's retry topics
(`%RETRY%<group>_<topic>`, `%RETRY%<group>+<topic>`). Java clients build the text from the fields of
an answer and send it back. An answer to CHANGE_MESSAGE_INVISIBLETIME gives the words for the next
handle.

A handle is a claim, and only the broker's table decides on it (`leases.py`): it must name a message
that is out, with the very pop time and invisible time. So a forged handle, one of another group or
queue, and one whose time is over are refused, whatever numbers are in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from saturnmq.protocol.checked import INT32_MAX, INT64_MAX, as_integer
from saturnmq.protocol.topics import RETRY_PREFIX
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame

ORDERED = 999  # the revive queue in the handles of ordered pops
WORDS = 8
NORMAL, RETRY_V1, RETRY_V2 = 0, 1, 2


@dataclass(frozen=True, slots=True)
class PopHandle:
    """The words of one handle."""

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    kind: int
    broker: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return (
            f"{self.start} {self.pop_ms} {self.invisible_ms} {self.revive_queue} {self.kind} "
            f"{self.broker} {self.queue_id} {self.offset}"
        )

    @staticmethod
    def parse(text: str, offset: int) -> PopHandle:
        """The handle in a request about the message at `offset`. InvalidParameter: it is no handle,
        or it is that of another message."""
        words = text.split(" ")
        try:
            if len(words) not in (WORDS - 1, WORDS):
                raise MalformedFrame(f"it has {len(words)} words")
            start, pop_ms, invisible_ms, revive, kind, broker, queue_id = words[:7]
            handle = PopHandle(
                as_integer(start, "its start"),
                as_integer(pop_ms, "its pop time"),
                as_integer(invisible_ms, "its invisible time"),
                as_integer(revive, "its revive queue", most=INT32_MAX),
                as_integer(kind, "its kind", most=RETRY_V2),
                broker,
                as_integer(queue_id, "its queue", most=INT32_MAX),
                as_integer(words[7], "its offset", most=INT64_MAX) if words[7:] else offset,
            )
        except MalformedFrame as error:
            raise InvalidParameter(
                f"extraInfo {text[:80]!r} is no handle of a message ({error}): send the one that "
                "came with it"
            ) from None
        if handle.offset != offset:
            raise InvalidParameter(
                f"extraInfo {text[:80]!r} is the handle of offset {handle.offset}, not of {offset}"
            )
        return handle


def kind_of(topic: str) -> int:
    """The kind of a topic, by its name."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def topic_of_kind(topic: str, group: str, kind: int) -> str:
    """The topic that a message of this kind is in, for readers of `topic`."""
    if kind == NORMAL:
        return topic
    return f"{RETRY_PREFIX}{group}{'+' if kind == RETRY_V2 else '_'}{topic}"
