"""The topic table: the topics of this broker, with their queues and permissions.

`config/topics.json`: `{"dataVersion":DV,"topicConfigTable":{"<topic>":TopicConfig}}`. The broker
writes it when it changed, reads it at the start, and sends it to nameservers in every registration
and to slaves (code 21). Permission bits: 1 inherit (a template for auto-creation), 2 write, 4 read.
We add two keys, which RocketMQ ignores: `"asOfTable":{"<topic>":n}` and `"deletedTable"`
(store/derived/tombstones.py).

The table and the log can contradict each other: a crash may forget a topic that has messages, and a
deleted topic still has messages in the log. So each entry and each deletion records the end of the
log when it was made. Messages behind that place count against it (`restore`), earlier ones do not.
If the log ends earlier now, entries count as made at its present end (`within`). An entry of
RocketMQ's, or of an older version of ours, records no place: it counts as new as the log was when
the entry was read.

Auto-creation (docs/internals/protocol.md 2.1): the template named by the sender (TBW102) must exist
with the inherit bit; the new topic gets min(asked, template's write queues) queues and loses the
inherit bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from saturnmq.broker.tables.attributes import check_kept
from saturnmq.broker.tables.table_memory import TableText
from saturnmq.broker.tables.table_persistence import (
    Document,
    EncodedRows,
    LazyRows,
    Versioned,
    readable,
)
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.route import DataVersion, TopicConfig
from saturnmq.protocol.topics import (
    AUTO_CREATE_TOPIC,
    GROUPS_TOPIC,
    MEMBERS_PREFIX,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    reply_topic,
)
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame, NoPermission, TopicNotExist
from saturnmq.store.derived.tombstones import KEY as DELETED
from saturnmq.store.derived.tombstones import Tombstone, tombstones_of

INHERIT, WRITE, READ = 1, 2, 4
AS_OF = "asOfTable"

NEWS_MOST = 64  # changed topics that are sent one by one, and not with the whole table

LastEntries = Iterable[tuple[str, int, int]]
"""The queues: topic, queue id, and the place of the last entry's frame in the log."""


@dataclass(frozen=True)
class Topic:
    name: str
    read_queues: int
    write_queues: int
    perm: int = READ | WRITE
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def queues(self) -> int:
        return max(self.read_queues, self.write_queues)

    def validate(self) -> None:
        """AssertionError: no broker makes such a topic."""
        assert self.read_queues >= 0, f"{self.name} has {self.read_queues} read queues"
        assert self.write_queues >= 0, f"{self.name} has {self.write_queues} write queues"
        assert self.perm >= 0, f"{self.name} has the permissions {self.perm}"

    @cached_property  # because the whole table is written whenever one of thousands is made
    def row(self) -> bytes:
        """Its part of the table's JSON text."""
        return fastjson.dumps({self.name: self.to_json()})[1:-1]

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, name: str, document: Mapping[str, Any]) -> Topic:
        """Read a TopicConfig. MalformedFrame: a field is out of its bounds."""
        known = TopicConfig.from_json({**document, "topicName": name})
        return cls(
            known.name,
            known.read_queues,
            known.write_queues,
            known.perm,
            known.sys_flag,
            known.order,
            known.attributes,
        )


def system_topics(
    cluster: str,
    broker: str,
    template_queues: int,
    *,
    delay_levels: int,
    auto: bool,
    traces: str | None = None,
) -> list[Topic]:
    """The topics that a RocketMQ broker has from its first second (docs/internals/format.md 10.2),
    and one of ours. `traces`: the topic of traces, if the broker makes it."""
    topics = [
        Topic(SCHEDULE_TOPIC, max(18, delay_levels), max(18, delay_levels)),
        Topic("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1),
        Topic("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 1),
        Topic(TIMER_TOPIC, 1, 1),
        Topic(REVIVE_PREFIX + cluster, 8, 8),
        Topic("SELF_TEST_TOPIC", 1, 1),
        Topic("OFFSET_MOVED_EVENT", 1, 1),
        Topic("BenchmarkTest", 1024, 1024),
        Topic(cluster, 16, 16, INHERIT | READ | WRITE),
        Topic(broker, 1, 1, INHERIT | READ | WRITE),
        Topic(reply_topic(cluster), 1, 1),
        Topic(MEMBERS_PREFIX + broker, 1, 1),
        Topic(GROUPS_TOPIC, 1, 1),
    ]
    if traces is not None:
        topics.append(Topic(traces, 1, 1))
    if auto:
        topics.append(
            Topic(AUTO_CREATE_TOPIC, template_queues, template_queues, INHERIT | READ | WRITE)
        )
    return topics


def _tombstone_bytes(name: str, tombstone: Tombstone | None) -> int:
    """About the bytes of its part of the table's text."""
    return 0 if tombstone is None else len(name) + 40 + 30 * len(tombstone.next)


class TopicTable(Versioned):
    def __init__(
        self,
        now_ms: Callable[[], int],
        on_change: Callable[[], None],
        log_end: Callable[[], int],
        room_for: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`room_for` refuses one more topic if there is no room for it."""
        self._now_ms = now_ms
        self._room_for = room_for
        self.on_change = on_change  # registers at the nameservers at once
        self._log_end = log_end
        self._topics: dict[str, Topic] = {}
        self._as_of: dict[str, int] = {}
        self.deleted: dict[str, Tombstone] = {}
        self._system: set[str] = set()
        self._counter = 0
        self.version = 0  # counts changes since the start
        self._news: deque[Topic | None] = deque(maxlen=NEWS_MOST)  # their topics, if known
        self._timestamp = now_ms()
        self._told_ms = 0  # the time of the version that was loaded
        self._text = TableText("topics, and deleted ones that the log still has,", self._sizes)

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def validate(self) -> None:
        """AssertionError: the entries, and what is counted of them, do not fit together."""
        for name, topic in self._topics.items():
            assert name == topic.name, f"{topic.name} is kept as {name}"
            topic.validate()
        for name, as_of in self._as_of.items():
            assert name in self._topics, f"{name} was made at {as_of}, and is no topic"
            assert as_of >= 0, f"{name} was made at {as_of}"
        for tombstone in self.deleted.values():
            tombstone.validate()
        assert len(self._news) <= min(self.version, NEWS_MOST), (len(self._news), self.version)
        self._text.validate()

    def existing(self, name: str) -> Topic:
        """The topic of this name. TopicNotExist: there is none."""
        topic = self.get(name)
        if topic is None:
            raise TopicNotExist(f"topic[{name}] not exist, apply first please!")
        return topic

    def readable(self, name: str, queue_id: int | None = None) -> Topic:
        """The topic, if it and this queue may be read; a SaturnError says why not."""
        topic = self.existing(name)
        if not topic.perm & READ:
            raise NoPermission(f"topic [{name}] is not readable")
        if topic.attributes:
            check_kept(name, topic.attributes)
        if queue_id is not None and not 0 <= queue_id < topic.read_queues:
            raise InvalidParameter(
                f"queue id {queue_id} of topic {name} is out of range; it has "
                f"{topic.read_queues} read queues"
            )
        return topic

    def is_system(self, name: str) -> bool:
        return name in self._system or name.startswith("rmq_sys_")

    def install_system(self, topics: list[Topic]) -> None:
        for topic in topics:
            self._system.add(topic.name)
            self._topics.setdefault(topic.name, topic)

    def restore(self, queues: LastEntries) -> bool:
        """Restore topics and queues that only the log knows: they were created just before a crash,
        or on a master whose table this node has not copied yet. Return whether there were any."""
        missing: dict[str, int] = {}
        for name, queue_id, last in queues:
            known = self._topics.get(name)
            if known is not None and (queue_id < known.queues or self.is_system(name)):
                continue
            if last >= self._made_at(name):
                missing[name] = max(missing.get(name, 0), queue_id + 1)
        for name, count in sorted(missing.items()):
            known = self._topics.get(name) or Topic(name, count, count)
            self._put(
                replace(
                    known,
                    read_queues=max(known.read_queues, count),
                    write_queues=max(known.write_queues, count),
                ),
                self._made_at(name),  # the rest of the log may know more queues
            )
        return bool(missing)

    def _made_at(self, name: str) -> int:
        """The end of the log when the table last learned its entry of this topic."""
        if name in self._topics:
            return self._as_of.get(name, 0)
        return self.deleted[name].end if name in self.deleted else 0

    def put(self, topic: Topic) -> None:
        if self._topics.get(topic.name) != topic:
            self._put(topic, self._log_end())

    def make_room(self, topic: Topic) -> None:
        """Make room for a new or changed topic. SystemBusy: the table has none."""
        if topic.name not in self._topics:
            self._room_for(f"topic {topic.name}")
        self._text.check(self._more(topic))

    def _more(self, topic: Topic) -> int:
        before = self._topics.get(topic.name)
        return len(topic.row) - (len(before.row) if before else 0)

    def _put(self, topic: Topic, as_of: int) -> None:
        assert as_of >= 0, f"topic {topic.name} was made where the log ended at {as_of}"
        topic.validate()
        self._text.grow(self._more(topic))
        self._topics[topic.name] = topic
        self._as_of[topic.name] = as_of
        self._touch(topic)

    def delete(self, name: str, tombstone: Tombstone) -> Callable[[], None]:
        """Take a topic out; return a function that puts it back as it was, unless it was made again
        meanwhile."""
        topic, as_of = self._take_out(name), self._as_of.pop(name, 0)
        before = self.deleted.get(name)
        self._bury(name, tombstone)
        self._touch()

        def undo() -> None:
            self._bury(name, before)
            if topic is not None and name not in self._topics:
                self._text.grow(self._more(topic))
                self._topics[name], self._as_of[name] = topic, as_of
            self._touch()

        return undo

    def _take_out(self, name: str) -> Topic | None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._text.grow(-len(topic.row))
        return topic

    def _bury(self, name: str, tombstone: Tombstone | None) -> None:
        """Give a topic this tombstone, or none."""
        before = self.deleted.pop(name, None)
        self._text.grow(_tombstone_bytes(name, tombstone) - _tombstone_bytes(name, before))
        if tombstone is not None:
            tombstone.validate()
            self.deleted[name] = tombstone

    def _sizes(self) -> Iterator[int]:
        yield from (len(topic.row) for topic in self)
        yield from (_tombstone_bytes(name, each) for name, each in self.deleted.items())

    def is_over(self, name: str, queue_id: int, offset: int) -> bool:
        """Whether this offset belongs to a deleted topic; if the topic was made again, whether the
        offset lies before its new beginning."""
        tombstone = self.deleted.get(name)
        if tombstone is None:
            return False
        return name not in self._topics or offset < tombstone.next.get(queue_id, 0)

    def within(self, end: int) -> bool:
        """Count entries made behind the log's present end as made at it. Return whether any
        entry changed."""
        later = {name: t.within(end) for name, t in self.deleted.items() if t.end > end}
        made = {name: end for name, at in self._as_of.items() if at > end}
        assert end >= 0, f"the log ends at {end}"
        self.deleted |= later
        self._as_of |= made
        if later or made:
            self.mark_dirty()
        return bool(later or made)

    def forget_deleted(self, log_start: int) -> None:
        """Forget tombstones before the log's present start: the log has no such messages any
        more."""
        for name in [n for n, t in self.deleted.items() if t.end <= log_start]:
            if name not in self._topics:  # an existing topic needs it for the start of its queues
                self._bury(name, None)
                self.mark_dirty()

    def auto_create(self, name: str, template_name: str, asked_queues: int) -> Topic | None:
        template = self._topics.get(template_name)
        if template is None or not template.perm & INHERIT:
            return None
        queues = max(0, min(asked_queues, template.write_queues))
        if not queues:
            return None
        topic = replace(
            template,
            name=name,
            read_queues=queues,
            write_queues=queues,
            perm=template.perm & ~INHERIT,
            order=False,
            attributes={},
        )
        self.make_room(topic)
        self.put(topic)
        return topic

    def ensure(
        self, name: str, queues: int, perm: int = READ | WRITE, *, is_owed: bool = False
    ) -> Topic:
        """Create a topic that the broker itself needs (retry, DLQ). SystemBusy: the table has no
        room for its text, and no accepted message needs the topic."""
        found = self._topics.get(name)
        if found is None:
            found = Topic(name, queues, queues, perm)
            if not is_owed:
                self._text.check(self._more(found))
            self.put(found)
        return found

    def ensure_retry(self, name: str, queues: int) -> Topic:
        """As `ensure`, the retry topic of a group that has so many retry queues now: a retry in a
        queue that nobody reads would be lost."""
        found = self.ensure(name, queues)
        if min(found.read_queues, found.write_queues) < queues:
            found = replace(
                found,
                read_queues=max(found.read_queues, queues),
                write_queues=max(found.write_queues, queues),
            )
            self.put(found)
        return found

    @property
    def data_version(self) -> dict[str, int]:
        return {"counter": self._counter, "stateVersion": 0, "timestamp": self._timestamp}

    def document(self) -> Document:
        topics, as_of, deleted = [*self], [*self._as_of.items()], [*self.deleted.items()]
        return {
            "dataVersion": self.data_version,
            "topicConfigTable": EncodedRows(topic.row for topic in topics),
            AS_OF: LazyRows(as_of),
            DELETED: LazyRows((name, tombstone.to_json()) for name, tombstone in deleted),
        }

    def load(self, document: Mapping[str, Any]) -> None:
        """Read the file at the start; system topics missing from it stay. MalformedFrame: it is no
        table of topics, and nothing has changed."""
        self._read(document, {})

    def _read(self, document: Mapping[str, Any], known: Mapping[str, Topic]) -> None:
        """The same. An entry that says what is `known` is not read again, nor written as text: with
        thousands of topics one of which has changed, that is nearly every one."""
        told = checked.table(document, AS_OF)
        deleted = tombstones_of(document)
        version = DataVersion.from_json(checked.table(document, "dataVersion"))

        def read(name: str, config: object) -> tuple[Topic, int]:
            as_of = checked.integer(told, name, self._log_end())
            same = known.get(name)
            if same is not None and same.to_json() == config:
                return same, as_of
            return Topic.from_json(name, checked.as_table(config, "its entry")), as_of

        table = checked.table(document, "topicConfigTable")
        for topic, as_of in readable(table, read, "topic"):
            self._topics[topic.name], self._as_of[topic.name] = topic, as_of
        self.deleted |= deleted
        self._text.count()
        self._counter = version.counter
        self._told_ms = version.timestamp

    def replace_all(self, document: Mapping[str, Any], as_of: int) -> None:
        """Take over the master's table, on a slave; `as_of` is the end of the slave's log when it
        asked. A topic that this node deleted as a master stays deleted until the new master has
        decided about it (`merge_deleted`). RocketMQ writes no tombstones: a topic that its table
        has no more was deleted. MalformedFrame: as `load`."""
        old, marks, deleted = self._topics, self._as_of, self.deleted
        self._topics = {n: t for n, t in old.items() if n in self._system}
        self._as_of, self.deleted = {}, {}
        try:
            self._read(document, old)
        except MalformedFrame:
            self._topics, self._as_of, self.deleted = old, marks, deleted
            raise
        told = checked.table(document, AS_OF)
        for name, topic in self._topics.items():
            if name not in told:
                self._as_of[name] = marks.get(name, as_of) if topic == old.get(name) else as_of
        if DELETED not in document:
            named = self._topics.keys() | checked.table(document, "topicConfigTable").keys()
            for name in old.keys() - named:
                self._bury(name, Tombstone(as_of))
        for name, tombstone in deleted.items():
            self._bury(name, tombstone.merged(self.deleted.get(name)))
        self._timestamp = self._told_ms or self._timestamp
        # Versions are counted from the master's now: what is told one by one has a lower one.
        self._news.clear()
        if self._topics != old:
            self._tell()
        if (self._topics, self._as_of, self.deleted) != (old, marks, deleted):
            self.mark_dirty()

    def merge_deleted(self, document: Mapping[str, Any], last_of: Callable[[str], int]) -> None:
        """Take the deletions that a slave did as the master before. They hold, except for topics
        that were made and written since; `last_of` gives the place of a topic's last message."""
        for name, theirs in tombstones_of(document).items():
            tombstone = theirs.within(self._log_end()).merged(self.deleted.get(name))
            if tombstone == self.deleted.get(name):
                continue
            is_newer = max(self._made_at(name), last_of(name)) >= tombstone.end
            self._bury(name, tombstone)
            if not is_newer:
                self._take_out(name)
                self._as_of.pop(name, None)
            self._touch()

    def next_change(self, version: int) -> Topic | None:
        """The topic that was made or changed next after `version` changes. None: there was no other
        change, or a change of another kind, or so many that the whole table is shorter."""
        behind = self.version - version
        assert behind >= 0, f"version {version} is told, the newest is {self.version}"
        return self._news[-behind] if 0 < behind <= len(self._news) else None

    def permissions_changed(self) -> None:
        """Have nameservers be told the whole table again: the permission of the broker, which
        limits every topic's, is another one."""
        self._touch()

    def _touch(self, topic: Topic | None = None) -> None:
        self._counter += 1
        self._timestamp = self._now_ms()
        self.mark_dirty()
        self._tell(topic)

    def _tell(self, topic: Topic | None = None) -> None:
        self.version += 1
        self._news.append(topic)
        self.on_change()
