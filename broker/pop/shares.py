"""How many messages a group may have open, so that one which acknowledges nothing stops no other.

The table of leases has room for `maxPoppedMessages`. A group gets new messages while it has fewer
than `popGroupShare` times as many open as there is room left. With a share of 4 it may have 4 of 5
parts of the room that the others leave, so each group that acknowledges nothing leaves a fifth of
the room that it found. (Switches share the memory of their queues by this rule, "dynamic
thresholds".) A message whose time is over is given out again at any time: it is open already.

With `enablePopMessageThreshold`, RocketMQ's switch, a group gets no new messages of a queue of
which it has `popInflightMessageThreshold` open.

A group that is held back is named in the log, once a minute at most, and in the broker's status. It
is given more as soon as there is room. Pure but for the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.pop.leases import Leases, PopLane

log = logging.getLogger(__name__)

TOLD = 10  # groups that a status names
REPORT_S = 60.0  # between two reports of one group


class PopShares:
    """The room of one term's leases."""

    def __init__(self, leases: Leases, config: Callable[[], BrokerConfig]) -> None:
        """`config` gives the present settings."""
        self._leases = leases
        self._config = config
        self._held_back: dict[PopLane, None] = {}
        self._reported: dict[str, float] = {}  # when, by group

    def room(self, lane: PopLane) -> int:
        """How many new messages of this lane may be given out."""
        config, place = self._config(), lane.place
        room = self._room_of(place.group)
        if config.pop_threshold_enable:
            room = min(room, config.pop_queue_threshold - len(lane.open))
        return max(room, 0)

    def _room_of(self, group: str) -> int:
        """The least number of messages more that makes the group reach its share."""
        config, leases = self._config(), self._leases
        share, own = config.pop_group_share, leases.by_group.get(group, 0)
        left = config.max_popped_messages - leases.count
        return -((own - share * left) // (share + 1))

    def hold_back(self, lane: PopLane, now: float) -> None:
        """Note a lane with new messages that nobody gets for want of room."""
        self._held_back[lane] = None
        group, config = lane.place.group, self._config()
        if now - self._reported.get(group, -REPORT_S) < REPORT_S:
            return
        self._reported[group] = now
        queue_limit = ""
        if config.pop_threshold_enable:
            queue_limit = f", popInflightMessageThreshold {config.pop_queue_threshold}"
        log.warning(
            "group %s gets no new messages by pop: it has %d open, %d of them in queue %d of %s, "
            "and all groups have %d of %d (maxPoppedMessages, popGroupShare %d%s). It gets more "
            "when it acknowledges some; those whose time is over are given out again",
            group,
            self._leases.by_group.get(group, 0),
            len(lane.open),
            lane.place.queue_id,
            lane.place.topic,
            self._leases.count,
            config.max_popped_messages,
            config.pop_group_share,
            queue_limit,
        )

    def released(self, now: float) -> Iterator[PopLane]:
        """The lanes that were held back and have room now."""
        lanes = self._leases.lanes
        for lane in list(self._held_back):
            if lanes.get(lane.place) is not lane:  # it was forgotten
                del self._held_back[lane]
            elif self.room(lane):
                del self._held_back[lane]
                yield lane
        for group, at in list(self._reported.items()):
            if now - at >= REPORT_S:
                del self._reported[group]

    def status(self) -> dict[str, str]:
        """Its figures in the broker's runtime information."""
        leases = self._leases
        largest = sorted(leases.by_group.items(), key=lambda each: (-each[1], each[0]))[:TOLD]
        return {
            "popsOpen": str(leases.count),
            "popsOpenMax": str(self._config().max_popped_messages),
            "popsOpenByGroup": ";".join(f"{group}={count}" for group, count in largest),
            "popGroupsHeldBack": ";".join(sorted({lane.place.group for lane in self._held_back})),
        }
