"""Known bugs of what lies above the log: delays, retries, deleted topics, queues taken
away, offsets, queue hand-over; kept to be found again in the scenes (`scenes/`), as those of
replication are (`mutants.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from saturnmq.broker.commit import copies
from saturnmq.broker.commit.copies import CopyWriter
from saturnmq.broker.delay.delivery import DelayService
from saturnmq.broker.delay.waits import Waits
from saturnmq.broker.handlers import retry, send
from saturnmq.broker.handlers.retry import RetryService
from saturnmq.broker.tables.locks import QueueLockTable as BrokerLocks
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.broker.tables.topics import TopicTable
from saturnmq.broker.timer import reading
from saturnmq.broker.timer.delay_clock import DelayClock
from saturnmq.broker.timer.delivery import TimerDelivery
from saturnmq.broker.timer.service import TimerService
from saturnmq.client.admin.group_admin import QueueLag
from saturnmq.client.consumer import listening
from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.process_queue import ProcessQueue
from saturnmq.client.consumer.queue_locks import QueueLocks
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.client.producer.placing import Placement
from saturnmq.client.producer.sending import Sender
from saturnmq.drills.mutants import Mutant, Patch
from saturnmq.drills.sim.plan import FAULTS
from saturnmq.protocol.headers import SendBackHeader
from saturnmq.protocol.route import TopicRoute
from saturnmq.protocol.topics import RETRY_PREFIX
from saturnmq.store.derived.tombstones import KEY as TOMBSTONES
from saturnmq.store.derived.tombstones import Tombstone
from saturnmq.store.message_store import MessageStore


def _nothing(original: Any) -> Any:
    return lambda *args, **kwargs: None


def _by_store_time(original: Any) -> Any:
    return lambda self, offset, stored: self._delay + stored


def _from_the_start(original: Any) -> Any:
    return lambda self, offset, stored: self._delay + self._start


def _no_marks(original: Any) -> Any:
    return lambda self, document: {}


def _from_the_first(original: Any) -> Any:
    return lambda self, level, known: known


def _one_level_less(original: Any) -> Any:
    def schedule(topic: str, queue_id: int, encoded: bytes, levels: int) -> tuple[str, int, bytes]:
        waiting, level, properties = original(topic, queue_id, encoded, levels)
        return waiting, max(0, level - 1) if waiting != topic else level, properties

    return schedule


def _uncounted(original: Any) -> Any:
    def store(self: CopyWriter, topic: str, *args: Any, **options: Any) -> Any:
        if topic.startswith(RETRY_PREFIX) and not options.get("rescheduled"):
            options["reconsume_times"] -= 1
        return original(self, topic, *args, **options)

    return store


def _one_attempt_less(original: Any) -> Any:
    def send_back(self: RetryService, endpoint: Any, request: Any, header: SendBackHeader) -> None:
        most = header.max_reconsume_times if header.max_reconsume_times >= 0 else 16
        header = replace(header, max_reconsume_times=max(0, most - 1))
        original(self, endpoint, request, header)

    return send_back


def _one_attempt_more(original: Any) -> Any:
    def send_back(self: RetryService, endpoint: Any, request: Any, header: SendBackHeader) -> None:
        most = header.max_reconsume_times if header.max_reconsume_times >= 0 else 16
        header = replace(header, max_reconsume_times=most + 1)
        original(self, endpoint, request, header)

    return send_back


def _no_tombstones(original: Any) -> Any:
    def document(self: TopicTable) -> dict[str, Any]:
        made: dict[str, Any] = original(self)
        return made | {TOMBSTONES: {}}

    return document


def _all_of_them(original: Any) -> Any:
    return lambda self, marks: dict(marks)


def _from_zero(original: Any) -> Any:
    def tombstone(self: MessageStore, topic: str) -> Tombstone:
        found: Tombstone = original(self, topic)
        return Tombstone(found.end)

    return tombstone


def _pulled_is_done(original: Any) -> Any:
    return lambda self: self.next_offset


def _ahead(original: Any) -> Any:
    def commit(self: ConsumerOffsets, group: str, topic: str, queue_id: int, offset: int) -> bool:
        done: bool = original(self, group, topic, queue_id, offset + 1)
        return done

    return commit


def _at_once(original: Any) -> Any:
    def once_quiet(self: AssignedQueue, act: Callable[[], object]) -> None:
        self.run = None
        act()

    return once_quiet


async def _kept(self: QueueLocks, held: Any) -> bool:
    return True


def _granted(original: Any) -> Any:
    def lock(self: BrokerLocks, group: str, client_id: str, queues: Any, now: float) -> Any:
        for owner in {owner for owner, _ in self._owners.get(group, {}).values()}:
            self.unlock(group, owner, queues)
        return original(self, group, client_id, queues, now)

    return lock


def _anything_is_success(original: Any) -> Any:
    def note(chunk: Any, batch: Any, result: object, *, stop_at_failure: bool) -> bool:
        said = result if isinstance(result, ConsumeResult) else ConsumeResult.SUCCESS
        done: bool = original(chunk, batch, said, stop_at_failure=stop_at_failure)
        return done

    return note


def _never_fewer(original: Any) -> Any:
    def take(self: Placement, topic: str, route: TopicRoute, now: float) -> None:
        had = Counter(queue.broker_name for queue in self.round(topic).queues)
        queues = [
            replace(data, write_queues=max(data.write_queues, had[data.broker_name]))
            for data in route.queues
        ]
        original(self, topic, replace(route, queues=queues), now)

    return take


def _never(original: Any) -> Any:
    return lambda *args, **kwargs: False


def _of_old(original: Any) -> Any:
    return lambda self, name: 0


def _no_lag(original: Any) -> Any:
    return property(lambda self: 0)


def _always(original: Any) -> Any:
    return lambda *args, **kwargs: True


def _nothing_own(original: Any) -> Any:
    return lambda self, what, marker: self.pending.own.add(marker)


def _wall_clock(original: Any) -> Any:
    return lambda self, shelf: self._c.runtime.now_ms()


NO_FAULTS = dict.fromkeys(FAULTS, 0)
RESTARTS = {"gap_s": 2.0, "weights": NO_FAULTS | {"kill": 6, "power_loss": 6, "promote": 3}}

_TABLE: dict[str, tuple[str, str, tuple[Patch, ...], tuple[str, ...], dict[str, Any]]] = {
    "due-by-wall-clock": (
        "a delayed message is due at its store time plus its delay",
        "I14 early: the clock steps, or the store time is of another node's",
        (Patch(Waits, "due", _by_store_time),),
        ("clocks", "delaying"),
        {},
    ),
    "due-since-the-start": (
        "what waits counts from the start of the broker",
        "I14 early",
        (Patch(Waits, "due", _from_the_start),),
        ("delaying",),
        {},
    ),
    "waits-forgotten": (
        "what a broker knows of how long messages have waited is lost with it",
        "I14 early: a clock steps, then the broker restarts",
        (Patch(DelayService, "_learn", _nothing),),
        ("clocks", "delaying"),
        RESTARTS,
    ),
    "delay-progress-forgotten": (
        "how far delayed delivery has come does not survive (#3473)",
        "I14 again: all of it is delivered once more after a restart",
        (
            Patch(DelayService, "marks_of", _no_marks),
            Patch(DelayService, "_found_delivered", _from_the_first),
        ),
        ("delaying",),
        {"safety_s": 40.0, "gap_s": 12.0, "away": 0.0, "weights": NO_FAULTS | {"kill": 1}},
    ),
    "settlements-unread": (
        "a start or a new master does not read which timed messages were delivered",
        "I14 again: they are delivered once more",
        (Patch(reading, "settlement_in", _nothing),),
        ("timing",),
        RESTARTS,
    ),
    "delays-by-wall-clock": (
        "the delay of a timed message is counted by the wall clock",
        "I14 early: the clock steps",
        (Patch(TimerDelivery, "now_of", _wall_clock),),
        ("clocks", "timing"),
        {},
    ),
    "delay-clock-forgotten": (
        "the clock of delays begins anew with each process",
        "I14 early: a clock steps, then the broker restarts",
        (Patch(DelayClock, "load", _nothing),),
        ("clocks", "timing"),
        RESTARTS,
    ),
    "recall-without-effect": (
        "a recall is answered, and its message waits on until the next start",
        "I14 recalled, and delivered",
        (Patch(TimerService, "settle_at_once", _nothing_own),),
        ("timing",),
        {},
    ),
    "delay-level-off": (
        "a message waits in the queue of the level before",
        "I14 early",
        (
            Patch(send, "schedule", _one_level_less),
            Patch(copies, "schedule", _one_level_less),
        ),
        ("delaying",),
        {},
    ),
    "retry-level-off": (
        "the first retry comes at level 2",
        "I14 early",
        (Patch(retry, "FIRST_RETRY_LEVEL", lambda original: original - 1),),
        ("retrying",),
        {},
    ),
    "retry-uncounted": (
        "a message that is sent back keeps its count",
        "I12: it never comes to its last attempt",
        (Patch(CopyWriter, "store", _uncounted),),
        ("retrying",),
        {},
    ),
    "dlq-early": (
        "the dead-letter queue gets a message one attempt too early",
        "I1: it never had its last attempt",
        (Patch(RetryService, "on_send_back", _one_attempt_less),),
        ("retrying",),
        {},
    ),
    "dlq-late": (
        "the dead-letter queue gets a message one attempt too late",
        "I1: an attempt beyond the last",
        (Patch(RetryService, "on_send_back", _one_attempt_more),),
        ("retrying",),
        {},
    ),
    "nonsense-is-success": (
        "what a listener says counts as success unless it is RETRY",
        "I12: what it refused in other words never comes again",
        (Patch(listening, "_note", _anything_is_success),),
        ("misbehaving",),
        {},
    ),
    "deletion-unwritten": (
        "the topic table does not say on the disk, or to slaves, what was deleted",
        "I1 there again: a restart builds the queues from the log",
        (Patch(TopicTable, "document", _no_tombstones),),
        ("recreating",),
        RESTARTS,
    ),
    "restore-without-tombstones": (
        "a start restores topics from the log without a look at what was deleted",
        "I1, I12: a broker restarts, and the order to delete is never so",
        (Patch(TopicTable, "_made_at", _of_old),),
        ("recreating",),
        RESTARTS,
    ),
    "deletion-unheard-by-store": (
        "deleting a topic changes the topic table only: its queues stay",
        "I1 there again: a topic of the same name has them",
        (Patch(MessageStore, "bury", _nothing),),
        ("recreating",),
        {},
    ),
    "recreated-from-zero": (
        "the queues of a topic that is made again begin at 0",
        "I4: a place of a deleted message is used again",
        (Patch(MessageStore, "tombstone", _from_zero),),
        ("recreating",),
        {},
    ),
    "deleted-groups-come-back": (
        "a table does not look at the deleted groups when it takes that of another node",
        "I6: a slave that was away brings their offsets back",
        (Patch(ConsumerOffsets, "of_living", _all_of_them),),
        ("forgetting",),
        RESTARTS,
    ),
    "commit-ahead-of-listener": (
        "what was pulled is committed, finished or not",
        "I12: a member dies, its heir passes over what it was in",
        (Patch(ProcessQueue, "commit_offset", _pulled_is_done),),
        ("taking-long",),
        {},
    ),
    "commit-one-too-far": (
        "the broker keeps an offset one beyond what was committed",
        "I6, I12",
        (Patch(ConsumerOffsets, "commit", _ahead),),
        ("taking-long",),
        {},
    ),
    "handed-over-at-once": (
        "a queue is handed over while its listener is in it",
        "I5: two owners at once",
        (Patch(AssignedQueue, "once_quiet", _at_once),),
        ("taking-long",),
        {},
    ),
    "locks-unrenewed": (
        "a member never asks for its locks again",
        "I12: it stops when they run out",
        (Patch(QueueLocks, "renew", lambda original: _kept),),
        ("taking-long",),
        {},
    ),
    "locks-for-everybody": (
        "a broker grants a lock that another member holds",
        "I5: two owners at once",
        (Patch(BrokerLocks, "lock", _granted),),
        ("taking-long",),
        {},
    ),
    "keys-over-queues-gone": (
        "sharding keys are hashed over all queues that there ever were",
        "I12: sends fail as long as their queue is gone",
        (Patch(Placement, "take", _never_fewer),),
        ("shrinking",),
        {},
    ),
    "leftovers-to-the-old-queue": (
        "what was bound to a queue stays bound to it when it is gone",
        "I12: sends that were under way fail",
        (Patch(Sender, "_is_gone", _never),),
        ("shrinking",),
        {"gap_s": 1.0, "weights": NO_FAULTS | {"clients_cut_off": 6, "slow_link": 4, "pause": 4}},
    ),
    "queues-restored": (
        "a start restores each queue that the log has messages of, also one that was taken away",
        "I4 there again, or I12: a broker restarts, and an operator never gets fewer of them",
        (Patch(TopicTable, "_made_at", _of_old),),
        ("shrinking",),
        RESTARTS,
    ),
    "lag-unseen": (
        "the lag of a group is 0, whatever is left",
        "I1: queues that count as drained are taken away with messages in them",
        (Patch(QueueLag, "lag", _no_lag),),
        ("shrinking",),
        {
            "gap_s": 1.0,
            "weights": NO_FAULTS | {"consumer": 5, "clients_cut_off": 6, "connections": 3},
        },
    ),
}
SCENE_MUTANTS = {
    name: Mutant(name, failure, found_by, patches)
    for name, (failure, found_by, patches, _, _) in _TABLE.items()
}
SCENE_BIAS: dict[str, dict[str, Any]] = {
    name: {"scenes": frozenset(scenes), **bias} for name, (*_, scenes, bias) in _TABLE.items()
}
