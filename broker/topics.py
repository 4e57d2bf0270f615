"""The topic table: which topics exist here, with how many queues and which permissions.

`config/topics.json`: `{"dataVersion":DV,"topicConfigTable":{"<topic>":TopicConfig}}`. Written by
the broker when it changed, read at start, sent to nameservers in every registration and to slaves
(code 21). Permission bits: 1 inherit (a template for auto-creation), 2 write, 4 read.

Auto-creation (remoting §2.1): the template named by the sender (TBW102) must exist with the inherit
bit; the new topic gets min(asked, template's write queues) queues and loses the inherit bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from saturnmq.broker.documents import Saveable
from saturnmq.protocol.errors import InvalidParameter, NoPermission, TopicNotExist
from saturnmq.protocol.topics import AUTO_CREATE_TOPIC, GROUPS_TOPIC, SCHEDULE_TOPIC

INHERIT, WRITE, READ = 1, 2, 4


@dataclass(frozen=True, slots=True)
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
        return cls(
            name,
            int(document.get("readQueueNums", 8)),
            int(document.get("writeQueueNums", 8)),
            int(document.get("perm", READ | WRITE)),
            int(document.get("topicSysFlag", 0)),
            bool(document.get("order", False)),
            {str(k): str(v) for k, v in (document.get("attributes") or {}).items()},
        )


def system_topics(cluster: str, broker: str, template_queues: int, *, auto: bool) -> list[Topic]:
    """What a RocketMQ broker has from its first second (store-format §1), and one of ours."""
    topics = [
        Topic(SCHEDULE_TOPIC, 18, 18),
        Topic("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1),
        Topic("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 1),
        Topic("rmq_sys_wheel_timer", 1, 1),
        Topic(f"rmq_sys_REVIVE_LOG_{cluster}", 8, 8),
        Topic("SELF_TEST_TOPIC", 1, 1),
        Topic("OFFSET_MOVED_EVENT", 1, 1),
        Topic("BenchmarkTest", 1024, 1024),
        Topic(cluster, 16, 16, INHERIT | READ | WRITE),
        Topic(broker, 1, 1, INHERIT | READ | WRITE),
        Topic(f"{cluster}_REPLY_TOPIC", 1, 1),
        Topic(f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, 1),
        Topic(GROUPS_TOPIC, 1, 1),
    ]
    if auto:
        topics.append(
            Topic(AUTO_CREATE_TOPIC, template_queues, template_queues, INHERIT | READ | WRITE)
        )
    return topics


class TopicTable(Saveable):
    def __init__(self, now_ms: Callable[[], int], on_change: Callable[[], None]) -> None:
        self._now_ms = now_ms
        self._on_change = on_change  # registers at the nameservers at once
        self._topics: dict[str, Topic] = {}
        self._system: set[str] = set()
        self._counter = 0
        self._timestamp = now_ms()

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def readable(self, name: str, queue_id: int | None = None) -> Topic:
        """The topic, if it and this queue of it may be read; a SaturnError says why not."""
        topic = self.get(name)
        if topic is None:
            raise TopicNotExist(f"topic[{name}] not exist, apply first please!")
        if not topic.perm & READ:
            raise NoPermission(f"topic [{name}] is not readable")
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

    def restore(self, queues: Iterable[tuple[str, int]]) -> bool:
        """Topics and queues that the log knows and the table does not: created just before a
        crash, or on a master that this node has not copied the table of yet. True if there are."""
        missing: dict[str, int] = {}
        for name, queue_id in queues:
            known = self._topics.get(name)
            if known is None or (queue_id >= known.queues and not self.is_system(name)):
                missing[name] = max(missing.get(name, 0), queue_id + 1)
        for name, count in sorted(missing.items()):
            known = self._topics.get(name) or Topic(name, count, count)
            self.put(
                replace(
                    known,
                    read_queues=max(known.read_queues, count),
                    write_queues=max(known.write_queues, count),
                )
            )
        return bool(missing)

    def put(self, topic: Topic) -> None:
        if self._topics.get(topic.name) != topic:
            self._topics[topic.name] = topic
            self._touch()

    def delete(self, name: str) -> bool:
        if self._topics.pop(name, None) is None:
            return False
        self._touch()
        return True

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
        )
        self.put(topic)
        return topic

    def ensure(self, name: str, queues: int, perm: int = READ | WRITE) -> Topic:
        """A topic the broker itself needs (retry, DLQ)."""
        found = self._topics.get(name)
        if found is None:
            found = Topic(name, queues, queues, perm)
            self.put(found)
        return found

    @property
    def data_version(self) -> dict[str, int]:
        return {"counter": self._counter, "stateVersion": 0, "timestamp": self._timestamp}

    def snapshot(self) -> dict[str, Any]:
        return {
            "dataVersion": self.data_version,
            "topicConfigTable": {name: t.to_json() for name, t in sorted(self._topics.items())},
        }

    def load(self, document: Mapping[str, Any]) -> None:
        """The file's table at start; system topics missing from it stay."""
        for name, config in (document.get("topicConfigTable") or {}).items():
            self._topics[name] = Topic.from_json(name, config)
        version = document.get("dataVersion") or {}
        self._counter = int(version.get("counter", 0))

    def replace_all(self, document: Mapping[str, Any]) -> None:
        """A slave takes over its master's table."""
        system = {n: t for n, t in self._topics.items() if n in self._system}
        old = self._topics
        self._topics = system
        self.load(document)
        version = document.get("dataVersion") or {}
        self._timestamp = int(version.get("timestamp", self._timestamp))
        if self._topics != old:
            self.mark_dirty()
            self._on_change()

    def _touch(self) -> None:
        self._counter += 1
        self._timestamp = self._now_ms()
        self.mark_dirty()
        self._on_change()
