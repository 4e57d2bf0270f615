"""Receipt handles: RocketMQ's POP_CK, eight words with a blank between them.

    <start offset> <pop time> <invisible time> <revive queue> <kind> <broker> <queue> <offset>

The kind says which topic the message is in: 0 the topic itself, 1 and 2 the group's retry topics
(`%RETRY%<group>_<topic>`, `%RETRY%<group>+<topic>`). Clients build the text from the fields of an
answer, keep it as a property of the message, and send it back. An answer to
CHANGE_MESSAGE_INVISIBLETIME gives the words for the next handle.

A handle is a claim, and only the broker's table decides on it (`broker/pop/leases.py`): it must
name a message that is out, with the very pop time and invisible time. So a forged handle, one of
another group or queue, and one whose time is over are refused, whatever numbers are in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from saturnmq.runtime.errors import MalformedFrame

from .checked import INT32_MAX, as_integer, integer
from .topics import RETRY_PREFIX

ORDERED = 999  # the revive queue in the handles of ordered pops
WORDS = 8
NORMAL, RETRY_V1, RETRY_V2 = KINDS = (0, 1, 2)


class PopHandle(NamedTuple):
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
        return " ".join(map(str, self))

    def about(self, topic: str, group: str) -> dict[str, str]:
        """The fields of a request about the message, for readers of `topic`."""
        return {
            "consumerGroup": group,
            "topic": topic_of_kind(topic, group, self.kind),
            "queueId": str(self.queue_id),
            "offset": str(self.offset),
            "extraInfo": str(self),
            "bname": self.broker,
        }

    def changed(self, answer: Mapping[str, str]) -> PopHandle:
        """The handle that is valid after this answer to CHANGE_MESSAGE_INVISIBLETIME.
        MalformedFrame: a value in it is impossible."""
        return self._replace(
            start=self.offset,
            pop_ms=integer(answer, "popTime"),
            invisible_ms=integer(answer, "invisibleTime"),
            revive_queue=integer(answer, "reviveQid", most=INT32_MAX),
        )

    @staticmethod
    def decode(text: str, offset: int | None = None) -> PopHandle:
        """The handle with this text. MalformedFrame: it is none. The last word may be absent from
        the handle in a request about the message at `offset`."""
        words = text.split(" ")
        if len(words) == WORDS - 1 and offset is not None:
            words.append(str(offset))
        if len(words) != WORDS:
            raise MalformedFrame(f"it has {len(words)} words")
        return PopHandle(
            as_integer(words[0], "its start"),
            as_integer(words[1], "its pop time"),
            as_integer(words[2], "its invisible time"),
            as_integer(words[3], "its revive queue", most=INT32_MAX),
            as_integer(words[4], "its kind", most=RETRY_V2),
            words[5],
            as_integer(words[6], "its queue", most=INT32_MAX),
            as_integer(words[7], "its offset"),
        )


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
