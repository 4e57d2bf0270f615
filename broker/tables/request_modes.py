"""How a group reads a topic: it pulls, or it pops. A part of the group's settings, under a key of
ours: `"saturnRequestModes":{"<topic>":{"mode":"POP","popShareQueueNum":n}}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saturnmq.protocol import checked
from saturnmq.protocol.checked import INT32_MAX
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame

KEY = "saturnRequestModes"
PULL, POP = "PULL", "POP"
SHARE = "popShareQueueNum"
TOPICS_MAX = 10_000  # of one group


@dataclass(frozen=True, slots=True)
class RequestMode:
    """How one group reads one topic. `share` below 1: every member pops everything."""

    mode: str = PULL
    share: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"mode": self.mode, SHARE: self.share}

    @classmethod
    def from_json(cls, fact: Mapping[str, Any]) -> RequestMode:
        """MalformedFrame: it is neither PULL nor POP, or its share is no number."""
        mode = checked.text(fact, "mode", PULL)
        if mode not in (PULL, POP):
            raise MalformedFrame(f"mode is {mode!r:.60}, not {PULL} or {POP}")
        return cls(mode, checked.integer(fact, SHARE, 0, least=-INT32_MAX, most=INT32_MAX))


def request_modes(settings: Mapping[str, Any]) -> dict[str, RequestMode]:
    """The modes in the settings of a group by topic. MalformedFrame: a mode is impossible."""
    table = checked.table(settings, KEY)
    if len(table) > TOPICS_MAX:
        raise MalformedFrame(f"{KEY} has {len(table)} topics, the limit is {TOPICS_MAX}")
    return {
        checked.as_text(topic, "a topic"): RequestMode.from_json(checked.as_table(mode, KEY))
        for topic, mode in table.items()
    }


def joined(modes: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The modes of a group in its settings, with more. InvalidParameter: they are too many to be
    read again."""
    found = {**modes, **more}
    if len(found) > TOPICS_MAX:
        raise InvalidParameter(f"the group has modes for {TOPICS_MAX} topics; no more are kept")
    return found
