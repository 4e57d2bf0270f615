"""How the parts of a broker (`broker/parts.py`) are connected: each is told of those that were made
after it, and whom it wakes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from saturnmq.broker.groundwork import Groundwork
from saturnmq.broker.tables.table_memory import GROUP, LOCK, MEMBER, OFFSET, TOPIC
from saturnmq.protocol.topics import GROUPS_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from saturnmq.store.message_store import Arrival

if TYPE_CHECKING:
    from saturnmq.broker.parts import Parts


def connect_parts(ground: Groundwork, parts: Parts) -> None:
    """Tell parts of those that were made after them."""
    replication = parts.replication
    _connect_advancer(ground, parts)
    _connect_context(ground, parts)

    # The slave flushes for a master that waits for it, and reports every flush.
    parts.durability.flush.on_flushed.append(replication.slave.flushed)

    # The slave asks for the tables when it joins, and knows whom to ask.
    replication.table_sync.master_address = lambda: replication.slave.master_address
    replication.mending.master_address = lambda: replication.slave.master_address

    # The registrar sends the table of topics, and it does so when that changes.
    def topics_changed() -> None:
        ground.persistence.wake()
        replication.registrar.topics_changed()

    ground.context.topics.on_change = topics_changed

    # The executor gives orders to all of these, and their news are its events.
    executor = replication.executor
    ground.context.role.on_pause = executor.paused
    ground.master.tell = replication.slave.tell = executor.tell
    replication.registrar.on_master = executor.nameserver_told
    # It decides on requests to the service that passes them on to it.
    executor.on_answer = replication.failover.answer


def _connect_advancer(ground: Groundwork, parts: Parts) -> None:
    """Connect the parts that advance watermarks with the advancer, which wakes them when one has
    risen."""
    c, advancer = ground.context, ground.advancer
    durability, messaging, replication = parts.durability, parts.messaging, parts.replication
    pulls = messaging.pulls

    def count_arrivals(_: int, arrivals: Iterable[Arrival]) -> None:
        if not c.role.is_slave:  # its master counts
            c.statistics.arrived(arrivals)

    advancer.on_append += [
        durability.upkeep.appended,
        durability.flush.wake,
        ground.master.appended,
        replication.registrar.log_grew,
    ]
    advancer.on_arrivals += [
        replication.table_sync.arrived,
        pulls.arrived,
        messaging.pops.arrived,
        count_arrivals,
    ]
    advancer.on_topic = {
        GROUPS_TOPIC: [messaging.sinks.arrived, messaging.timers.arrived],
        SCHEDULE_TOPIC: [messaging.delays.arrived],
        HALF_TOPIC: [messaging.half_log.arrived],
        TIMER_TOPIC: [messaging.timers.arrived],
    }
    advancer.on_visible += [pulls.wake, messaging.timers.visible_rose, messaging.pops.wake]
    advancer.is_awaited = lambda: pulls.held.count > 0 or messaging.pops.waits


def _connect_context(ground: Groundwork, parts: Parts) -> None:
    """Give the context the answers that every part may ask it for."""
    c, master, elections = ground.context, ground.master, parts.replication.elections
    c.enough_replicas, c.copies_in_sync = master.enough_replicas, master.copies_in_sync
    c.push, c.mend = master.appended, parts.replication.mending.mend_by_any
    c.flush_keeps_up = parts.durability.flush.keeps_up
    if elections is not None:
        c.witnesses, c.had_by = elections.witnesses, master.had_by
        c.unelected, c.counts = elections.refuses, elections.counts
        c.refuses_group = elections.refuses_group
    # The tables ask for memory, and it asks them for their sizes.
    c.tables.counts = {
        OFFSET: c.offsets.__len__,
        GROUP: c.groups.__len__,
        TOPIC: lambda: len(c.topics) + len(c.topics.deleted),
        MEMBER: c.clients.__len__,
        LOCK: c.locks.__len__,
    }
