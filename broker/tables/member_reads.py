"""The subscriptions of each member of a consumer group, so that members that differ are found.

The members of a group share queues, not topics: a member gets messages of any queue of a topic,
with its own tags. If one subscribes `T: a` and another `T: b`, each drops what the other would
take; if only one subscribes `U`, the others leave the queues of `U` that fall to them. RocketMQ's
brokers keep the newest subscription of a group and say nothing.

A member's subscriptions are kept as a digest and the beginning of their text, and equal ones once.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from saturnmq.protocol.subscription import TAG_EXPRESSION
from saturnmq.protocol.topics import RETRY_PREFIX

TEXT_MAX = 200  # characters that are kept of the subscriptions of one member
SHOWN_MAX = 3  # kinds of members in one line of the log


class Reads(NamedTuple):
    """The subscriptions of a member."""

    digest: bytes
    text: str


NOTHING = Reads(b"", "")


def reads_of(subscriptions: Iterable[str]) -> Reads:
    """These subscriptions, each as `words_of` has it. Their order does not count, nor do those of
    retry topics, which only some kinds of consumers have."""
    words = "; ".join(sorted(each for each in subscriptions if not each.startswith(RETRY_PREFIX)))
    if not words:
        return NOTHING
    digest = blake2b(words.encode(errors="replace"), digest_size=8).digest()
    return Reads(digest, words if len(words) <= TEXT_MAX else f"{words[:TEXT_MAX]}..")


def words_of(subscription: Mapping[str, Any]) -> str:
    """A subscription of a heartbeat in words. The order of its tags does not count."""
    expression = subscription["subString"]
    kind = subscription["expressionType"] or TAG_EXPRESSION
    if kind == TAG_EXPRESSION:
        tags = sorted({tag.strip() for tag in expression.split("||")})
        return f"{subscription['topic']}: {' || '.join(tags) or '*'}"
    return f"{subscription['topic']}: {kind} {expression}"


class MemberReads:
    """The subscriptions of the members of one group."""

    def __init__(self) -> None:
        self._of: dict[Hashable, Reads] = {}
        self._count: Counter[Reads] = Counter()
        self._kept: dict[bytes, Reads] = {}  # equal ones once

    def __getitem__(self, member: Hashable) -> str:
        """The subscriptions of this member; empty if it has told none."""
        found = self._of.get(member)
        return "" if found is None else found.text

    @property
    def differ(self) -> bool:
        return len(self._count) > 1

    def __str__(self) -> str:
        kinds = self._count.most_common(SHOWN_MAX)
        told = " | ".join(f"{count} read {reads.text}" for reads, count in kinds)
        return told if len(self._count) <= SHOWN_MAX else f"{told} | .."

    def validate(self, members: Iterable[Hashable]) -> None:
        """AssertionError: it knows of others than these, or has counted wrongly."""
        assert self._of.keys() <= set(members), "one that is no member reads"
        assert self._count == Counter(self._of.values()), "members are counted wrongly"
        assert self._kept.keys() == {reads.digest for reads in self._count}, "others are kept"

    def take(self, member: Hashable, reads: Reads) -> None:
        """A member says what it reads. One without subscriptions chooses its queues itself, and
        differs from nobody."""
        if self._of.get(member) == reads:
            return
        self.forget(member)
        if reads == NOTHING:
            return
        reads = self._kept.setdefault(reads.digest, reads)
        self._of[member] = reads
        self._count[reads] += 1

    def forget(self, member: Hashable) -> None:
        """It is no member any more."""
        reads = self._of.pop(member, None)
        if reads is None:
            return
        self._count[reads] -= 1
        if not self._count[reads]:
            del self._count[reads], self._kept[reads.digest]
